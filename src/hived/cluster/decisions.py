"""The decisions of the cluster: bind, preempt, or wait, and their placements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .explain.reasons import Reason
from .requests import Provenance, Request


class PodPlacement(NamedTuple):
    """The leaf cells of one pod."""

    node: str
    leaf_cells: tuple[int, ...]  #: device indices on that node, ascending in the order of the spec's leaves


@dataclass(frozen=True, slots=True)
class Placement:
    """The leaf cells of a group, in one chain."""

    chain: str  #: name of the chain: its top cell type
    pods: tuple[PodPlacement, ...]  #: in the order of the request's members
    #: per pod, the level (1-based, of the chain) of its reserved cell; () for an opportunistic placement.
    #: It alone makes a placement determine the cells of the VC in use (see ``Cluster.recover``).
    reserved_levels: tuple[int, ...] = ()

    @property
    def guaranteed(self) -> bool:
        """Whether the pods run in cells that their VC reserved."""
        return bool(self.reserved_levels)

    @property
    def gpus(self) -> int:
        """Devices of all pods."""
        return sum(len(pod.leaf_cells) for pod in self.pods)

    def devices(self) -> Iterator[tuple[str, int]]:
        """Node and device index of each, pod by pod."""
        return ((pod.node, device) for pod in self.pods for device in pod.leaf_cells)


class VirtualLeaves(NamedTuple):
    """Leaf cells of a VC, by numbers that are the same in every cluster of its spec: in private ones too."""

    pool: int  #: the reserved cells of one chain, or a pinned cell
    spots: tuple[tuple[int, int], ...]  #: per pod: a host of the VC, and its leaf cells there, one bit each
    level: int = 0  #: lowest level at which one cell of the VC holds all pods, 0 for none
    relaxed: tuple[str, ...] = ()  #: see :class:`Bind`

    @property
    def cells(self) -> tuple[int, dict[int, int]]:
        """The leaf cells, whichever pods have them: the pool, and by host one bit each. O(pods)."""
        hosts: dict[int, int] = {}
        for host, mask in self.spots:
            hosts[host] = hosts.get(host, 0) | mask
        return self.pool, hosts


@dataclass(frozen=True, slots=True)
class Bind:
    """The group can start now on this placement."""

    group: str
    placement: Placement
    within: str | None = None  #: type of the smallest cell that holds all pods; None when there is no common one
    relaxed: tuple[str, ...] = ()  #: caps given up for it under soft affinity, from the one asked for upward
    downgraded: tuple[str, ...] = ()  #: groups of its VC that it makes opportunistic (lazy preemption)
    overtaken: tuple[str, ...] = ()  #: preempting groups whose reservations end with the commit
    #: the call, so that it can be repeated; no part of the answer
    provenance: Provenance | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Preempt:
    """The group can start there once its victims have ended. A commit reserves the placement."""

    group: str
    placement: Placement
    victims: tuple[str, ...]  #: groups to be ended, in the order in which they started
    within: str | None = None  #: see :class:`Bind`
    relaxed: tuple[str, ...] = ()  #: see :class:`Bind`
    downgraded: tuple[str, ...] = ()  #: see :class:`Bind`
    overtaken: tuple[str, ...] = ()  #: see :class:`Bind`
    provenance: Provenance | None = field(default=None, compare=False, repr=False)  #: see :class:`Bind`


@dataclass(frozen=True, slots=True)
class Wait:
    """The group cannot start now."""

    group: str
    reasons: tuple[Reason, ...]  #: all obstacles, the most decisive first; never empty


class Record(NamedTuple):
    """A running group."""

    group: str  #: its name
    request: Request
    placement: Placement
    since: float = 0.0  #: when it started, by the caller's clock, in seconds


#: the answer of ``Cluster.schedule``
Decision = Bind | Preempt | Wait
