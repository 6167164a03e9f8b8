"""The request for a placement: a group, and the constraint on the leaf cells that it may take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hived.errors import RequestError

from .decisions import Placement, PodPlacement, VirtualLeaves
from .demands import Demand
from .requests import Request


@dataclass(frozen=True, slots=True)
class Anywhere:
    """Any leaf cells, with victims if need be, as ``Cluster.schedule`` decides."""


@dataclass(frozen=True, slots=True)
class OnIdle:
    """Idle leaf cells, for an opportunistic request."""


@dataclass(frozen=True, slots=True)
class OnHosts:
    """Free leaf cells of hosts that the caller chooses, for a guaranteed request."""

    #: as ``Cluster.hosts`` numbers them; for each pod another
    hosts: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        _check_given("hosts", self.hosts)


@dataclass(frozen=True, slots=True)
class Beside:
    """Leaf cells on which a guest may run. Anywhere, it prefers those without a group, then those of few guests."""

    #: in order of preference; the shortest prefix is used that it fits
    leaves: Sequence[PodPlacement]


@dataclass(frozen=True, slots=True)
class Over:
    """Leaf cells that are free, or that these groups of its VC give up, as ``Cluster.select_victims`` names them."""

    victims: Sequence[str]

    def __post_init__(self) -> None:
        _check_given("victims", self.victims)


def _check_given(field: str, given: Sequence[object]) -> None:
    if not given:
        raise RequestError(field, "expected at least one")


#: on which leaf cells a group may be placed. ``VirtualLeaves``: these free leaf cells of its VC, for a guaranteed
#: request: those that it has in another cluster of this spec (``Cluster.virtual_leaves``)
PlacementConstraint = Anywhere | OnIdle | OnHosts | VirtualLeaves | Beside | Over
ANYWHERE = Anywhere()
ON_IDLE = OnIdle()


class PlacementRequest(NamedTuple):
    """A request of a new group for a scheduler that has its own queues: what ``Cluster.place`` decides."""

    request: Request
    constraint: PlacementConstraint = ANYWHERE
    now: float = 0.0  #: seconds by the caller's clock, kept as the start of running
    near: Placement | None = None  #: the last placement of the group, which it prefers
    excluded_nodes: Collection[str] = ()  #: nodes that it may not use; unknown names are ignored
    #: the answer of ``Cluster.demand`` for this request, or for one that differs by name alone. It is not checked
    #: against the request, and decides the number of leaf cells
    demand: Demand | None = None
