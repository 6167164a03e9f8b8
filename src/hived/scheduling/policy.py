"""The interface of a scheduling policy: three functions, the same under every sharing scheme, simulated and live.

order   which of a tenant's jobs is next
rank    which host a job is placed on
react   what a displaced job keeps
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from hived.cells import HostClass


class JobView(NamedTuple):
    """The attributes of a job that a policy may use."""

    job: str  #: its name
    gpus: int
    submitted: int  #: time of submission, in the caller's unit
    sequence: int  #: number of the submission; breaks ties of ``submitted``


@dataclass(frozen=True, slots=True)
class Displaced:
    """An opportunistic job loses its GPUs: a guaranteed job needs them, or its own turn has come elsewhere."""

    victim: JobView
    by: JobView  #: the guaranteed job; the victim itself if its turn has come on other GPUs


class Reaction(Enum):
    """What becomes of a displaced job."""

    SUSPEND = "suspend"  #: it is requeued at its place in the order and keeps its work
    RESTART = "restart"  #: it is requeued at its place in the order and loses its work


class Order(Protocol):
    """The order of a tenant's queue: the part of a policy that a queue needs."""

    def order(self, job: JobView) -> tuple[int, ...]:
        """Sort key of a job: the smallest is the head of line.

        After a change of the key of a waiting or running job the caller has to call ``Scheduler.rekey``.
        """


class Policy(Order, Protocol):
    """A scheduling policy: the order of the queue, the choice of a host, what a displaced job keeps."""

    @property
    def name(self) -> str:
        """Its name on the command line and in results."""

    def rank(self, host: HostClass, gpus: int) -> tuple[int, ...] | None:
        """Score of a host for ``gpus`` GPUs of a guaranteed job: smaller is better, None if it has too few.

        Called once per class of hosts (:class:`~hived.cells.HostClass`), so it must depend on its arguments alone.
        """

    def react(self, event: Displaced) -> Reaction:
        """Whether the victim keeps its work."""
