"""The space that gangs are placed in: hosts with the leaves that a requester can obtain.

One class serves three kinds of requester. They differ in the leaves of a host they can obtain, and in preemption:

    requester                      free                                    idle                       obtainable
    a VC                           free virtual leaves                     the same                   free
    a VC that may preempt          and those of lower-priority groups      virtual leaves free now    free, idle first
    opportunistic (within_idle)    leaves not in guaranteed use            leaves in no use           idle

Hosts are grouped by *class*: the profiles of their free and idle leaves. The caller scores hosts by a *rank*, a
function of the class (a few dozen distinct values) and the number of GPUs. Classes are sorted by rank once; then only
the lowest host of a class is read, and no choice scans all hosts.

The search is in :mod:`.fit`; this module has its indexes and keeps them up to date when a host changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from itertools import groupby, islice
from typing import Any

from hived.errors import InvariantError

from .capacity import Capacity, Layout
from .host_fit import Leaves, Need, level_of, place
from .index_set import BITS, IndexSet
from .shape import Profile, Shape

#: capacities kept, each for one need; the least recently used is dropped
CAPACITIES = 16
#: entries per cache (large hosts have many masks)
_MAX_CACHED = 100_000
#: cached answers per order
_MAX_BEST = 256


@dataclass(frozen=True, slots=True)
class HostClass:
    """The attributes of a host that the choice of a host may depend on."""

    free: Profile  #: leaves that the requester may use, those in opportunistic use included where it may preempt
    idle: Profile  #: leaves in no use

    @property
    def guaranteed(self) -> int:
        """Leaves in guaranteed use."""
        return self.free.size - self.free.free


#: score of a host of this class for a number of GPUs: smaller is better, ``None``: cannot be used. Among equals the
#: host with the lowest number is taken or, of a rank of :func:`packs`, the one whose free leaves are most broken up
Rank = Callable[[HostClass, int], tuple[float, ...] | None]
_PACKING: set[Rank] = set()


def packs(rank: Rank) -> None:
    """Have hosts that a rank scores alike in the order of their classes: as few leaves as possible are close together.

    Then hosts with many of them stay whole. The rank refuses no host that has enough leaves.
    """
    _PACKING.add(rank)


def is_packing(rank: Rank) -> bool:
    """Whether a rank refuses no host that has enough leaves, and has equals in the order of :func:`packs`."""
    return rank in _PACKING


class Bucket(IndexSet):
    """The hosts of one class."""

    __slots__ = ("bit", "gpus", "host_class", "obtainable")

    def __init__(self, hosts: int, bit: int, host_class: HostClass, within_idle: bool) -> None:
        super().__init__(hosts)
        self.bit = bit
        self.host_class = host_class
        #: the obtainable leaves of each of its hosts, and their number
        self.obtainable = host_class.idle if within_idle else host_class.free
        self.gpus = self.obtainable.free


class _Order:
    """The classes that fit a request, from best to worst."""

    __slots__ = ("best", "classes", "equals", "usable")

    def __init__(self, classes: int, usable: int, equals: list[list[Bucket]]) -> None:
        #: number of classes known when it was made
        self.classes = classes
        #: the bits of the buckets that fit
        self.usable = usable
        #: those buckets, best first, and those of equal score together
        self.equals = equals
        #: by the bits of nonempty usable buckets: the best of these, several where they are of equal score
        self.best: dict[int, Bucket | list[Bucket] | None] = {0: None}


def _leaves(shape: Shape, free: int, idle: int, within_idle: bool) -> Leaves:
    return Leaves(shape, idle, idle, shape.full & ~free) if within_idle else Leaves(shape, free, idle, 0)


# shapes are shared by all spaces, so these caches serve all tenants
@lru_cache(_MAX_CACHED)
def _spot(shape: Shape, free: int, idle: int, within_idle: bool, need: Need, cap: int) -> tuple[int, int]:
    masks = place(_leaves(shape, free, idle, within_idle), (need,), cap)
    if masks is None:
        raise InvariantError(f"leaf cells {free:b}, idle {idle:b}, were said to hold {need}")
    return masks[0], level_of(shape, masks[0])


@lru_cache(_MAX_CACHED)
def _place(
    shape: Shape, free: int, idle: int, within_idle: bool, needs: tuple[Need, ...], cap: int
) -> tuple[int, ...] | None:
    return place(_leaves(shape, free, idle, within_idle), needs, cap)


class Space:
    """Hosts ``0 .. n-1``, each with two masks of leaves, and the cells above them.

    A change of a host costs O(1); capacities are refreshed at the next search for a gang (O(levels) per change).
    """

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

        ``groups[j][host]`` is the number of the host's cell there, -1 where it has none; hosts of one group are
        contiguous. ``idle``: None if all free leaves are idle. O(runs of equal hosts), and a few dozen ns per host.
        """
        #: the shape of each host
        self.shapes = shapes
        self.groups = groups
        #: the level of nodes; hosts are nodes, or lower cells that are in no group
        self.node_level = node_level
        #: leaves per host that the requester may use, preemptible ones included
        self.free = list(free)
        #: those of them that need no preemption
        self.idle = list(free if idle is None else idle)
        #: whether only idle leaves are obtainable, the free ones serving the rank alone
        self.within_idle = within_idle
        #: obtainable leaves per host: one of the two lists
        self.obtainable = self.idle if within_idle else self.free
        #: the hosts of each class seen so far
        self.buckets: list[Bucket] = []
        self._by_class: dict[HostClass, Bucket] = {}
        # the bucket of each host
        self._bucket_of: list[Bucket] = []
        #: bit ``b`` is set exactly when bucket ``b`` has a host
        self.occupied = 0
        #: obtainable leaves of all hosts
        self.total = 0
        # per host: buckets by (free, idle); hosts of one shape share the table
        buckets: dict[Shape, dict[tuple[int, int], Bucket]] = {}
        self._buckets = [buckets.setdefault(shape, {}) for shape in shapes]
        #: leaves of the largest host
        self.widest = max((shape.leaves for shape in buckets), default=0)
        # bits of the buckets of hosts with free leaves that are not idle
        self._costly = 0
        start = 0
        for (shape, has_free, has_idle), run in groupby(zip(shapes, self.free, self.idle, strict=True)):
            number = sum(1 for _ in run)
            bucket = self._bucket(start, shape, has_free, has_idle)
            for host in range(start, start + number):
                bucket.add(host)
            self._bucket_of += [bucket] * number
            self.occupied |= bucket.bit
            self.total += bucket.gpus * number
            start += number
        self._layout: Layout | None = None
        # capacities by (need, whether only idle leaves count), the most recently used last; and the log of hosts that
        # have changed since the first of them was built
        self._capacities: dict[tuple[Need, bool], Capacity] = {}
        self._log: list[int] = []
        self._orders: dict[tuple[Rank, int, int, int, int], _Order] = {}

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.shapes)

    @property
    def costly(self) -> bool:
        """Whether some obtainable leaf needs a preemption."""
        return bool(self._costly & self.occupied) and not self.within_idle

    def _bucket(self, host: int, shape: Shape, free: int, idle: int) -> Bucket:
        """Look up or make the bucket of two masks, and cache it."""
        if idle & ~free or free & ~shape.full:
            raise InvariantError(f"host {host}: idle leaves {idle:b} of free leaves {free:b} of {shape.full:b}")
        buckets = self._buckets[host]
        if len(buckets) >= _MAX_CACHED:
            buckets.clear()
        profile = shape.profile(free)
        host_class = HostClass(profile, profile if free == idle else shape.profile(idle))
        bucket = self._by_class.get(host_class)
        if bucket is None:
            bucket = Bucket(len(self.shapes), 1 << len(self.buckets), host_class, self.within_idle)
            self._by_class[host_class] = bucket
            self.buckets.append(bucket)
        buckets[free, idle] = bucket
        if free != idle:
            self._costly |= bucket.bit
        return bucket

    def set(self, host: int, free: int, idle: int | None = None) -> None:
        """Set the free and idle leaves of ``host`` (``idle``: None if all free leaves are idle). O(1)."""
        if idle is None:
            idle = free
        bucket = self._buckets[host].get((free, idle))
        if bucket is None:
            bucket = self._bucket(host, self.shapes[host], free, idle)
        if self._capacities and (free != self.free[host] or idle != self.idle[host]):
            self._changed(host)
        self.free[host] = free
        self.idle[host] = idle
        old = self._bucket_of[host]
        if old is not bucket:
            self._bucket_of[host] = bucket
            self.total += bucket.gpus - old.gpus
            # IndexSet.remove and IndexSet.add inlined, with one look-up of the bit
            word, bit = host >> bucket.shift, BITS[host & bucket.mask]
            words = old.words
            left = words[word] = words[word] ^ bit
            if not left:
                old.summary ^= 1 << word
                if not old.summary:
                    self.occupied ^= old.bit
            words = bucket.words
            before = words[word]
            words[word] = before | bit
            if not before:
                bucket.summary |= 1 << word
                self.occupied |= bucket.bit

    def _changed(self, host: int) -> None:
        """Log a changed host for the capacities."""
        self._log.append(host)
        if len(self._log) > max(1024, self.hosts):  # rebuilding is cheaper now
            self._log.clear()
            self._capacities.clear()

    @property
    def layout(self) -> Layout:
        """The cells above the hosts; built at first use, O(hosts * levels)."""
        if self._layout is None:
            self._layout = Layout(self.hosts, self.groups)
        return self._layout

    def capacity(self, need: Need, costless: bool = False) -> Capacity:
        """How many pods of this need each host and each group holds (``costless``: on idle leaves alone).

        O(hosts) at first, then O(levels) per change since the last call. :data:`CAPACITIES` of them are kept.
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

    def class_of(self, host: int) -> HostClass:
        """The class of ``host``."""
        return self._bucket_of[host].host_class

    def best_hosts(self, rank: Rank, gpus: int, level: int = 0, size: int = 0, cap: int = 0) -> IndexSet | None:
        """The hosts of the class that ranks best for ``gpus``; None when no host fits. Read-only for the caller.

        A host fits if it has ``gpus`` obtainable leaves; with ``level`` and ``size``, if a cell of that level has
        ``size`` of them; with ``cap``, if one cell of at most that level has ``gpus``. O(classes), O(1) when cached.
        """
        order = self._orders.get((rank, gpus, level, size, cap))
        if order is None or order.classes != len(self.buckets):
            order = self._sort(rank, gpus, level, size, cap)
        usable = order.usable & self.occupied
        if usable in order.best:
            best = order.best[usable]
        else:
            if len(order.best) >= _MAX_BEST:
                order.best = {0: None}
            found = next(found for equals in order.equals if (found := [hosts for hosts in equals if hosts.summary]))
            best = order.best[usable] = found[0] if len(found) == 1 else found
        return min(best, key=IndexSet.first) if isinstance(best, list) else best

    def in_order(
        self, rank: Rank, gpus: int, level: int = 0, size: int = 0, cap: int = 0, each: int | None = None
    ) -> Iterator[int]:
        """The hosts that fit, as in :meth:`best_hosts`, from best to worst; at most ``each`` of a class.

        No host may change during the iteration.
        """
        order = self._orders.get((rank, gpus, level, size, cap))
        if order is None or order.classes != len(self.buckets):
            order = self._sort(rank, gpus, level, size, cap)
        for equals in order.equals:
            found = [islice(hosts, each) for hosts in equals if hosts.summary]
            yield from found[0] if len(found) == 1 else merge(*found)

    def _sort(self, rank: Rank, gpus: int, level: int, size: int, cap: int) -> _Order:
        ranked: list[tuple[tuple[Any, ...], Bucket]] = []
        usable, packing = 0, is_packing(rank)
        for bucket in self.buckets:
            most = bucket.obtainable.most_free
            if most[-1] < gpus or (level and (level > len(most) or most[level - 1] < size)):
                continue
            if cap and most[min(cap, len(most)) - 1] < gpus:
                continue
            value = rank(bucket.host_class, gpus)
            if value is not None:
                # never in the order in which classes were first seen
                of_class = bucket.host_class
                ranked.append(((value, of_class.free, of_class.idle) if packing else value, bucket))
                usable |= bucket.bit
        ranked.sort(key=lambda pair: pair[0])
        equals = [[hosts for _, hosts in pairs] for _, pairs in groupby(ranked, key=lambda pair: pair[0])]
        order = _Order(len(self.buckets), usable, equals)
        self._orders[rank, gpus, level, size, cap] = order
        return order

    def leaves(self, host: int) -> Leaves:
        """The leaves of ``host`` as its requester sees them."""
        return _leaves(self.shapes[host], self.free[host], self.idle[host], self.within_idle)

    def spot(self, host: int, need: Need, cap: int = 0) -> tuple[int, int]:
        """Mask and level for one pod on a host that fits it (``cap``: at this level or lower). O(1) when cached."""
        return _spot(self.shapes[host], self.free[host], self.idle[host], self.within_idle, need, cap)

    def place(self, host: int, needs: tuple[Need, ...], cap: int = 0) -> tuple[int, ...] | None:
        """Masks for several pods on ``host``, ``None`` when they do not fit (see :func:`.host_fit.place`)."""
        return _place(self.shapes[host], self.free[host], self.idle[host], self.within_idle, needs, cap)
