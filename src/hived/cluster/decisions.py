"""What the cluster answers: go there, go there once these are gone, or wait and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .reasons import Reason
from .requests import Asked, Request


class PodPlacement(NamedTuple):
    """Where one pod runs."""

    node: str
    leaf_cells: tuple[int, ...]  #: device indices on that node, ascending in the order of the spec's leaves


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a group runs. All of it is in one chain."""

    chain: str  #: name of the chain: its top cell type
    pods: tuple[PodPlacement, ...]  #: in the order of the request's members
    #: per pod, the level (1-based, of the chain) of the reserved cell it stands in; () for an opportunistic placement.
    #: With it, and nothing else, a placement says which cells of the VC are in use (see ``Cluster.recover``).
    reserved_levels: tuple[int, ...] = ()

    @property
    def guaranteed(self) -> bool:
        """Whether the pods stand in cells that their VC reserved."""
        return bool(self.reserved_levels)

    @property
    def gpus(self) -> int:
        """Devices of all pods."""
        return sum(len(pod.leaf_cells) for pod in self.pods)

    def devices(self) -> Iterator[tuple[str, int]]:
        """Node and device index of each, pod by pod."""
        return ((pod.node, device) for pod in self.pods for device in pod.leaf_cells)


@dataclass(frozen=True, slots=True)
class Bind:
    """The group can start now on this placement."""

    group: str
    placement: Placement
    within: str | None = None  #: type of the smallest cell that holds all pods; None when there is no common one
    relaxed: tuple[str, ...] = ()  #: caps given up for it under soft affinity, from the one asked for upward
    downgraded: tuple[str, ...] = ()  #: groups of its VC that run on as opportunistic for its sake (lazy preemption)
    overtaken: tuple[str, ...] = ()  #: preempting groups whose reservations end with the commit
    #: so that it can be decided again; no part of the answer
    asked: Asked | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Preempt:
    """The group can start there once the victims are gone. Committed, the placement is reserved for it."""

    group: str
    placement: Placement
    victims: tuple[str, ...]  #: groups to be ended, in the order in which they started
    within: str | None = None  #: see :class:`Bind`
    relaxed: tuple[str, ...] = ()  #: see :class:`Bind`
    downgraded: tuple[str, ...] = ()  #: see :class:`Bind`
    overtaken: tuple[str, ...] = ()  #: see :class:`Bind`
    asked: Asked | None = field(default=None, compare=False, repr=False)  #: see :class:`Bind`


@dataclass(frozen=True, slots=True)
class Wait:
    """The group cannot start now."""

    group: str
    reasons: tuple[Reason, ...]  #: all that stood in the way, the most decisive first; never empty


class Record(NamedTuple):
    """A group that runs."""

    group: str  #: its name
    request: Request
    placement: Placement
    jobs: tuple[str, ...] = ()  #: those on its allocation, where they are others than that of its name


#: what ``Cluster.schedule`` answers
Decision = Bind | Preempt | Wait
