"""A job as both engines have it: processes of one machine, or a gang of pods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from hived.cluster.decisions import Placement
from hived.cluster.requests import Request
from hived.errors import InvariantError
from hived.scheduling import Entry, JobView

#: states, and what brings from one to another
S = TypeVar("S", bound=StrEnum)
K = TypeVar("K", bound=StrEnum)


class EngineJob(ABC):
    """What both engines know of a job, and views show of it."""

    #: where it is in its life
    state: StrEnum

    def __init__(
        self, number: int, request: Request, gpus: int, submitted_at: float, since: float, early: bool
    ) -> None:
        #: rank among all jobs of the engine
        self.id = number
        #: unique, and what the core calls its group
        self.name = request.group
        #: of all its pods or tasks
        self.gpus = gpus
        #: seconds since the epoch, here and below
        self.submitted_at = submitted_at
        #: when it came to where it is; who waits goes on waiting while GPUs are reserved for it
        self.since = since
        #: where it is, or what is reserved for it
        self.placement: Placement | None = None
        #: who preempted it last: group, VC, priority
        self.displaced_by: tuple[str, str, int] | None = None
        #: as the scheduler has it
        self.entry = Entry(number, request, JobView(self.name, gpus, round(submitted_at * 1000), number), early)

    @property
    @abstractmethod
    def key(self) -> str:
        """What addresses call it."""

    @property
    @abstractmethod
    def holds(self) -> bool:
        """Whether GPUs are its own; without, it waits."""

    @property
    def vc(self) -> str:
        """Its virtual cluster."""
        return self.entry.vc

    @property
    def priority(self) -> int:
        """As asked for; -1: opportunistic."""
        return self.entry.request.priority

    @property
    def guaranteed(self) -> bool:
        """Whether its placement stands in cells of its VC."""
        return self.placement is not None and self.placement.guaranteed

    @property
    def reserved(self) -> bool:
        """Whether GPUs are kept for it until others are gone from them."""
        return self.placement is not None and not self.holds


def next_state(table: Mapping[tuple[S, K], S], state: S, event: K) -> S:
    """The table's answer; :class:`~hived.errors.InvariantError` for what the table does not have."""
    after = table.get((state, event))
    if after is None:
        raise InvariantError(f"a job that is {state.value} cannot be {event.value}")
    return after
