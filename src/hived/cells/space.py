"""Hosts with the leaves that somebody can have: what a gang of pods is placed in.

One class serves three askers. What differs is only which leaves of a host they can have, and what those cost others:

    asker                          free                                    idle                       can have
    a VC                           free virtual leaves                     the same                   free
    a VC that may preempt          and those of lower-priority groups      virtual leaves free now    free, idle first
    opportunistic (within_idle)    leaves not in guaranteed use            leaves nobody uses         idle

The search is in :mod:`.gangs`; here is what it looks at, and how that is kept when a host changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import groupby

from hived.errors import InvariantError, ensure

from .capacity import Capacity, Layout
from .host_fit import Leaves, Need, level_of, place
from .hosts import HostClass, HostIndex, Rank, Ranking
from .shape import Shape

#: capacities kept, each for one need; past that the one asked for least recently goes
CAPACITIES = 16
#: answers remembered per table (large hosts have many masks)
_REMEMBERED = 100_000


def _usable(rank: Rank, within_idle: bool, level: int, size: int, host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """``rank``, for hosts in which a cell at ``level`` has ``size`` obtainable leaves and the host has ``gpus``."""
    most = (host.idle if within_idle else host.free).most_free
    if most[-1] < gpus or (level and (level > len(most) or most[level - 1] < size)):
        return None
    return rank(host, gpus)


def _capped(rank: Rank, within_idle: bool, cap: int, host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """``rank``, for hosts in which one cell of at most level ``cap`` has ``gpus`` obtainable leaves."""
    most = (host.idle if within_idle else host.free).most_free
    return rank(host, gpus) if most[min(cap, len(most)) - 1] >= gpus else None


def _leaves(shape: Shape, free: int, idle: int, within_idle: bool) -> Leaves:
    return Leaves(shape, idle, idle, shape.full & ~free) if within_idle else Leaves(shape, free, idle, 0)


# the inside of a host is the same for every space, so what was found once is known to all tenants
@lru_cache(_REMEMBERED)
def _spot(shape: Shape, free: int, idle: int, within_idle: bool, need: Need, cap: int) -> tuple[int, int]:
    masks = place(_leaves(shape, free, idle, within_idle), (need,), cap)
    if masks is None:
        raise InvariantError(f"leaf cells {free:b}, idle {idle:b}, were said to hold {need}")
    return masks[0], level_of(shape, masks[0])


@lru_cache(_REMEMBERED)
def _place(
    shape: Shape, free: int, idle: int, within_idle: bool, needs: tuple[Need, ...], cap: int
) -> tuple[int, ...] | None:
    return place(_leaves(shape, free, idle, within_idle), needs, cap)


class Space:
    """Hosts ``0 .. n-1``, each with two masks of leaves, and the cells above them.

    A host that changes costs O(1); what gangs need to know of it is counted at the next search (O(levels) per change).
    """

    __slots__ = (
        "_buckets",
        "_capacities",
        "_costly",
        "_layout",
        "_log",
        "_rankings",
        "free",
        "groups",
        "idle",
        "index",
        "node_level",
        "obtainable",
        "shapes",
        "widest",
        "within_idle",
    )

    def __init__(
        self,
        shapes: Sequence[Shape],
        groups: Sequence[Sequence[int]],
        node_level: int,
        free: Sequence[int],
        idle: Sequence[int] | None = None,
        within_idle: bool = False,
    ) -> None:
        """Levels are those of the chain: a host's own is ``shape.depth``, that of ``groups[j]`` ``node_level + 1 + j``.

        ``groups[j][host]`` is the number of the host's cell there, -1 where it has none; hosts of one group stand
        together. ``idle``: None where every free leaf is. O(runs of equal hosts), and a few dozen ns per host.
        """
        #: the inside of each host
        self.shapes = shapes
        self.groups = groups
        #: the level of nodes; hosts are nodes, or lower cells that stand in no group
        self.node_level = node_level
        #: leaves per host that are not closed to the asker
        self.free = list(free)
        #: those of them that cost nobody anything
        self.idle = list(free if idle is None else idle)
        #: whether only idle leaves can be had, the free ones serving the rank alone
        self.within_idle = within_idle
        #: leaves per host that can be had: one of the two lists
        self.obtainable = self.idle if within_idle else self.free
        #: hosts by what is free and idle in them
        self.index = HostIndex(len(shapes))
        # per host: its classes' buckets by (free, idle); hosts of one shape share them
        buckets: dict[Shape, dict[tuple[int, int], int]] = {}
        self._buckets = [buckets.setdefault(shape, {}) for shape in shapes]
        #: leaves of the largest host
        self.widest = max((shape.leaves for shape in buckets), default=0)
        # hosts that have free leaves which are not idle
        self._costly = 0
        start = 0
        for (shape, has_free, has_idle), run in groupby(zip(shapes, self.free, self.idle, strict=True)):
            end = start + sum(1 for _ in run)
            self.index.fill(self._bucket(start, shape, has_free, has_idle), range(start, end))
            if has_free != has_idle:
                self._costly += end - start
            start = end
        self._layout: Layout | None = None
        # capacities by (need, whether only idle leaves count), the one asked for last at the end; and the hosts that
        # have changed since the first of them was built
        self._capacities: dict[tuple[Need, bool], Capacity] = {}
        self._log: list[int] = []
        self._rankings: dict[tuple[Rank, int, int, int], Ranking] = {}

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.shapes)

    @property
    def costly(self) -> bool:
        """Whether some leaf that can be had costs somebody something."""
        return bool(self._costly) and not self.within_idle

    def _bucket(self, host: int, shape: Shape, free: int, idle: int) -> int:
        """The bucket of these masks, asked for the first time."""
        if idle & ~free or free & ~shape.full:
            raise InvariantError(f"host {host}: idle leaves {idle:b} of free leaves {free:b} of {shape.full:b}")
        buckets = self._buckets[host]
        if len(buckets) >= _REMEMBERED:
            buckets.clear()
        profile = shape.profile(free)
        bucket = self.index.bucket_of(HostClass(profile, profile if free == idle else shape.profile(idle)))
        buckets[free, idle] = bucket
        return bucket

    def set(self, host: int, free: int, idle: int | None = None) -> None:
        """The leaves of ``host`` are from now on these (``idle``: None for all that are free). O(1)."""
        if idle is None:
            idle = free
        old_free, old_idle = self.free[host], self.idle[host]
        if free == old_free and idle == old_idle:
            return
        bucket = self._buckets[host].get((free, idle))
        if bucket is None:
            bucket = self._bucket(host, self.shapes[host], free, idle)
        self.index.move(host, bucket)
        self.free[host], self.idle[host] = free, idle
        self._costly += (free != idle) - (old_free != old_idle)
        if self._capacities:
            self._log.append(host)
            if len(self._log) > max(1024, self.hosts):  # counting afresh is no dearer now
                self._log.clear()
                self._capacities.clear()

    @property
    def layout(self) -> Layout:
        """The cells above the hosts; laid out at first use, O(hosts * levels)."""
        if self._layout is None:
            self._layout = Layout(self.hosts, self.groups)
        return self._layout

    def capacity(self, need: Need, costless: bool = False) -> Capacity:
        """How many pods of this need each host and each group holds (``costless``: on idle leaves alone).

        O(hosts) at first, later O(levels) per change since. :data:`CAPACITIES` of them are kept.
        """
        masks = self.idle if costless else self.obtainable
        capacity = self._capacities.pop((need, costless), None)
        if capacity is None:
            if len(self._capacities) >= CAPACITIES:
                del self._capacities[next(iter(self._capacities))]
            capacity = Capacity(need, self.layout, self.shapes, masks)
        elif capacity.seen < len(self._log):
            for host in self._log[capacity.seen :]:
                capacity.count(host, self.shapes[host], masks[host])
        capacity.seen = len(self._log)
        self._capacities[need, costless] = capacity
        return capacity

    def ranking(self, rank: Rank, level: int = 0, size: int = 0, cap: int = 0) -> Ranking:
        """The hosts in the order of ``rank``, less those without enough obtainable leaves.

        ``level``, ``size``: less those without a cell there that has so many. ``cap``: less those in which no one cell
        of at most that level has enough.
        """
        ranking = self._rankings.get((rank, level, size, cap))
        if ranking is None:
            usable: Callable[[HostClass, int], tuple[int, ...] | None]
            usable = partial(_usable, rank, self.within_idle, level, size)
            if cap:
                usable = partial(_capped, usable, self.within_idle, cap)
            ranking = self._rankings[rank, level, size, cap] = self.index.by(usable)
        return ranking

    def leaves(self, host: int) -> Leaves:
        """The leaves of ``host`` as its asker sees them."""
        return _leaves(self.shapes[host], self.free[host], self.idle[host], self.within_idle)

    def spot(self, host: int, need: Need, cap: int = 0) -> tuple[int, int]:
        """Mask and level for one pod on a host that can hold it (``cap``: at this level or lower). O(1) once seen."""
        return _spot(self.shapes[host], self.free[host], self.idle[host], self.within_idle, need, cap)

    def place(self, host: int, needs: tuple[Need, ...], cap: int = 0) -> tuple[int, ...] | None:
        """Masks for several pods on ``host``, ``None`` when they do not fit (see :func:`.inside.place`)."""
        return _place(self.shapes[host], self.free[host], self.idle[host], self.within_idle, needs, cap)

    def validate(self) -> None:
        """Every index equals what the masks give. O(hosts * capacities kept)."""
        self.index.validate()
        for host, (shape, free, idle) in enumerate(zip(self.shapes, self.free, self.idle, strict=True)):
            ensure(not idle & ~free and not free & ~shape.full, f"host {host}: idle leaves are free ones of its own")
            wanted = HostClass(shape.profile(free), shape.profile(idle))
            ensure(self.index.class_of(host) == wanted, f"class of host {host}")
            if shape.depth < self.node_level:
                ensure(all(of_host[host] < 0 for of_host in self.groups), f"host {host} is no node and in no group")
        costly = sum(free != idle for free, idle in zip(self.free, self.idle, strict=True))
        ensure(costly == self._costly, "hosts with leaves that are free but not idle")
        ensure(len(self._capacities) <= CAPACITIES, "capacities are bounded")
        for need, costless in list(self._capacities):
            masks = self.idle if costless else self.obtainable
            self.capacity(need, costless).validate(self.shapes, masks)
