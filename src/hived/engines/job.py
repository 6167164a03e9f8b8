"""A job as both engines have it, processes of one machine or a gang of pods; and what happens, as data.

People are told in sentences that are made where they read them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Reversible
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.requests import Request
from hived.errors import InvariantError
from hived.scheduling import Entry, JobView
from hived.spec.compiled import Device


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: to a job, to hardware, or to the engine."""

    seq: int  #: place among all events, from 1, without gaps
    at: float  #: seconds since the epoch
    kind: str
    job: Any = None  #: number or name, as the engine calls its jobs; None: it is about none
    data: dict[str, Any] = field(default_factory=dict)  #: what the kind says it has; plain JSON


def after(recent: Reversible[Event], seq: int) -> list[Event]:
    """What came after number ``seq``. O(how many)."""
    found: list[Event] = []
    for event in reversed(recent):
        if event.seq <= seq:
            break
        found.append(event)
    return found[::-1]


def placement_data(placement: Placement) -> dict[str, object]:
    """A placement as plain data."""
    pods = [[pod.node, list(pod.leaf_cells)] for pod in placement.pods]
    return {"chain": placement.chain, "pods": pods, "levels": list(placement.reserved_levels)}


def placement_from(plain: Any) -> Placement:
    """The placement that :func:`placement_data` made this of."""
    pods = tuple(PodPlacement(node, tuple(devices)) for node, devices in plain["pods"])
    return Placement(plain["chain"], pods, tuple(plain["levels"]))


#: states, and what brings from one to another
S = TypeVar("S", bound=StrEnum)
K = TypeVar("K", bound=StrEnum)


class EngineJob(ABC):
    """What both engines know of a job, and views show of it."""

    #: where it is in its life
    state: StrEnum
    #: what addresses call it
    key: str

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

    def devices(self) -> Iterator[Device]:
        """What is its own, or reserved for it."""
        return self.placement.devices() if self.placement is not None else iter(())

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
