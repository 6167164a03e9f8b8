"""What a scheduling policy is: three small questions over a read-only view of one tenant's cluster.

The same policy runs on a private cluster, on a quota share and inside a VC; it cannot tell which, since all three
answer through :class:`~hived.cluster.ClusterView`.

    order   which of a tenant's jobs is next
    place   where it goes in the cluster that the view shows
    react   what becomes of a job whose GPUs are taken
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from hived.cluster import ClusterView, Spots


class Request(NamedTuple):
    """A job as a policy sees it."""

    job: str  #: its name
    gpus: int
    submitted: int  #: time of submission, in the caller's unit
    sequence: int  #: rank among all submissions: tells jobs of one instant apart


@dataclass(frozen=True, slots=True)
class Displaced:
    """An opportunistic job cannot stay: a guaranteed job needs its GPUs, or its own turn has come elsewhere."""

    victim: Request
    by: Request  #: the guaranteed job; the victim itself when its turn came and its cells are not where it runs


class Reaction(Enum):
    """What becomes of a displaced job."""

    SUSPEND = "suspend"  #: it keeps its work and its place in the order, and waits for other GPUs
    RESTART = "restart"  #: the same, but its work is lost


class Order(Protocol):
    """The queue of one tenant."""

    def order(self, request: Request) -> tuple[int, ...]:
        """Sort key of a request: the smallest is next, and nobody passes it for guaranteed GPUs. Must not change."""


class Placement(Protocol):
    """Where a job goes."""

    def place(self, view: ClusterView, gpus: int) -> Spots | None:
        """A choice among what the view offers; ``None``: the job waits."""


class React(Protocol):
    """What to do when something happens to a running job."""

    def react(self, view: ClusterView, event: Displaced) -> Reaction:
        """``view`` is the cluster of the displaced job's tenant."""


class Policy(Order, Placement, React, Protocol):
    """All three together."""

    @property
    def name(self) -> str:
        """As the command line and the results call it."""
