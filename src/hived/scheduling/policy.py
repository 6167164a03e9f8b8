"""What a scheduling policy is: three small questions, the same under every way to share, simulated and live.

order   which of a tenant's jobs is next
rank    which host it goes to
react   what becomes of a job whose GPUs are taken
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from hived.cells import HostClass


class JobView(NamedTuple):
    """A job as a policy sees it."""

    job: str  #: its name
    gpus: int
    submitted: int  #: time of submission, in the caller's unit
    sequence: int  #: place among all submissions: tells jobs of one instant apart


@dataclass(frozen=True, slots=True)
class Displaced:
    """An opportunistic job cannot stay: a guaranteed job needs its GPUs, or its own turn has come elsewhere."""

    victim: JobView
    by: JobView  #: the guaranteed job; the victim itself when its turn came and its cells are not where it runs


class Reaction(Enum):
    """What becomes of a displaced job."""

    SUSPEND = "suspend"  #: it keeps its work and its place in the order, and waits for other GPUs
    RESTART = "restart"  #: the same, but its work is lost


class Order(Protocol):
    """Whose turn it is in a tenant's queue: the part of a policy that a queue needs."""

    def order(self, job: JobView) -> tuple[int, ...]:
        """Sort key of a job: the smallest is next, and nobody passes it for guaranteed GPUs.

        Whoever changes it for a job that waits or runs says so by ``Scheduler.rekey``.
        """


class Policy(Order, Protocol):
    """A scheduling policy: whose turn it is, which host is taken, what a displaced job keeps."""

    @property
    def name(self) -> str:
        """As the command line and the results call it."""

    def rank(self, host: HostClass, gpus: int) -> tuple[int, ...] | None:
        """How good a host is for so many GPUs of a guaranteed job: smaller is better, None where it has too few.

        Asked once per class of hosts (:class:`~hived.cells.HostClass`), so it must depend on these alone.
        """

    def react(self, event: Displaced) -> Reaction:
        """What becomes of the victim."""
