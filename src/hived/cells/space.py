"""Hosts with the leaves that somebody can have: what a gang of pods is placed in.

One class serves three askers. What differs is only which leaves of a host they can have, and what those cost others:

    asker                          free                                    idle                       can have
    a VC                           free virtual leaves                     the same                   free
    a VC that may preempt          and those of lower-priority groups      virtual leaves free now    free, idle first
    opportunistic (within_idle)    leaves not in guaranteed use            leaves nobody uses         idle

Hosts are grouped by *class*: what is free and idle in them. Whoever chooses a host says how good it is by a *rank*, a
function of its class (a few dozen distinct values) and the number of GPUs. Classes are sorted by rank once; then each
class is only asked for its lowest host, and no choice looks at all hosts.

The search is in :mod:`.fit`; here is what it looks at, and how that is kept when a host changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice

from hived.errors import InvariantError, ensure

from .capacity import Capacity, Layout
from .host_fit import Leaves, Need, level_of, place
from .index_set import BITS, IndexSet
from .shape import Profile, Shape

#: capacities kept, each for one need; past that the one asked for least recently goes
CAPACITIES = 16
#: answers remembered per table (large hosts have many masks)
_REMEMBERED = 100_000
#: answers remembered per order
_BEST = 256


@dataclass(frozen=True, slots=True)
class HostClass:
    """What a scheduler may know of a host when it chooses one."""

    free: Profile  #: leaves that the asker can have, those in opportunistic use included where it may preempt
    idle: Profile  #: leaves that nobody uses

    @property
    def guaranteed(self) -> int:
        """Leaves in guaranteed use."""
        return self.free.size - self.free.free


#: How good a host of this class is for so many GPUs: smaller is better, ``None``: cannot be used.
Rank = Callable[[HostClass, int], tuple[int, ...] | None]


class Bucket(IndexSet):
    """The hosts of one class."""

    __slots__ = ("bit", "gpus", "host_class", "obtainable")

    def __init__(self, hosts: int, bit: int, host_class: HostClass, within_idle: bool) -> None:
        super().__init__(hosts)
        self.bit = bit
        self.host_class = host_class
        #: the leaves of each of its hosts that can be had, and how many they are
        self.obtainable = host_class.idle if within_idle else host_class.free
        self.gpus = self.obtainable.free


class _Order:
    """The classes that will do for a request, from best to worst."""

    __slots__ = ("best", "classes", "hosts", "usable")

    def __init__(self, classes: int, usable: int, hosts: list[Bucket]) -> None:
        #: classes known when it was made
        self.classes = classes
        #: the bits of their buckets
        self.usable = usable
        #: the hosts of each
        self.hosts = hosts
        #: by which of them have a host: the best that has one
        self.best: dict[int, Bucket | None] = {0: None}


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
        #: the hosts of each class seen so far
        self.buckets: list[Bucket] = []
        self._by_class: dict[HostClass, Bucket] = {}
        # the bucket of each host
        self._where: list[Bucket] = []
        #: bit ``b`` is set exactly when bucket ``b`` has a host
        self.occupied = 0
        #: leaves of all hosts that can be had
        self.total = 0
        # per host: its classes' buckets by (free, idle); hosts of one shape share them
        buckets: dict[Shape, dict[tuple[int, int], Bucket]] = {}
        self._buckets = [buckets.setdefault(shape, {}) for shape in shapes]
        #: leaves of the largest host
        self.widest = max((shape.leaves for shape in buckets), default=0)
        # the buckets of hosts that have free leaves which are not idle
        self._costly = 0
        start = 0
        for (shape, has_free, has_idle), run in groupby(zip(shapes, self.free, self.idle, strict=True)):
            number = sum(1 for _ in run)
            bucket = self._bucket(start, shape, has_free, has_idle)
            for host in range(start, start + number):
                bucket.add(host)
            self._where += [bucket] * number
            self.occupied |= bucket.bit
            self.total += bucket.gpus * number
            start += number
        self._layout: Layout | None = None
        # capacities by (need, whether only idle leaves count), the one asked for last at the end; and the hosts that
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
        """Whether some leaf that can be had costs somebody something."""
        return bool(self._costly & self.occupied) and not self.within_idle

    def _bucket(self, host: int, shape: Shape, free: int, idle: int) -> Bucket:
        """The bucket of these masks, asked for the first time."""
        if idle & ~free or free & ~shape.full:
            raise InvariantError(f"host {host}: idle leaves {idle:b} of free leaves {free:b} of {shape.full:b}")
        buckets = self._buckets[host]
        if len(buckets) >= _REMEMBERED:
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
        """The leaves of ``host`` are from now on these (``idle``: None for all that are free). O(1)."""
        if idle is None:
            idle = free
        bucket = self._buckets[host].get((free, idle))
        if bucket is None:
            bucket = self._bucket(host, self.shapes[host], free, idle)
        if self._capacities and (free != self.free[host] or idle != self.idle[host]):
            self._changed(host)
        self.free[host] = free
        self.idle[host] = idle
        old = self._where[host]
        if old is not bucket:
            self._where[host] = bucket
            self.total += bucket.gpus - old.gpus
            # what removing it from one set and adding it to the other does, with the place of its bit looked up once
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
        """Capacities have to count a host again."""
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

    def class_of(self, host: int) -> HostClass:
        """The class of ``host``."""
        return self._where[host].host_class

    def best_hosts(self, rank: Rank, gpus: int, level: int = 0, size: int = 0, cap: int = 0) -> IndexSet | None:
        """The hosts of the class that ranks best for ``gpus``; None when no host will do. To be read, not changed.

        Hosts without so many obtainable leaves will not do. ``level``, ``size``: nor those without a cell there that
        has ``size``. ``cap``: nor those in which no one cell of at most that level has ``gpus``. O(classes), O(1) once
        seen.
        """
        order = self._orders.get((rank, gpus, level, size, cap))
        if order is None or order.classes != len(self.buckets):
            order = self._sort(rank, gpus, level, size, cap)
        usable = order.usable & self.occupied
        if usable in order.best:
            return order.best[usable]
        if len(order.best) >= _BEST:
            order.best = {0: None}
        hosts = order.best[usable] = next(hosts for hosts in order.hosts if hosts.summary)
        return hosts

    def in_order(
        self, rank: Rank, gpus: int, level: int = 0, size: int = 0, cap: int = 0, each: int | None = None
    ) -> Iterator[int]:
        """The hosts that will do as :meth:`best_hosts` has it, from best to worst; at most ``each`` of a class.

        No host must change while this is read.
        """
        order = self._orders.get((rank, gpus, level, size, cap))
        if order is None or order.classes != len(self.buckets):
            order = self._sort(rank, gpus, level, size, cap)
        for hosts in order.hosts:
            if hosts.summary:
                yield from islice(hosts, each)

    def _sort(self, rank: Rank, gpus: int, level: int, size: int, cap: int) -> _Order:
        ranked = []
        usable = 0
        for bucket in self.buckets:
            most = bucket.obtainable.most_free
            if most[-1] < gpus or (level and (level > len(most) or most[level - 1] < size)):
                continue
            if cap and most[min(cap, len(most)) - 1] < gpus:
                continue
            value = rank(bucket.host_class, gpus)
            if value is not None:
                # classes of one rank are told apart by what is free in them, never by when they were first seen
                ranked.append(((value, bucket.host_class.free, bucket.host_class.idle), bucket))
                usable |= bucket.bit
        ranked.sort(key=lambda pair: pair[0])
        order = _Order(len(self.buckets), usable, [hosts for _, hosts in ranked])
        self._orders[rank, gpus, level, size, cap] = order
        return order

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
        seen: dict[int, Bucket] = {}
        for number, bucket in enumerate(self.buckets):
            ensure(bool(bucket) == bool(self.occupied >> number & 1), f"occupied bit of class {number}")
            for host in bucket:
                ensure(host not in seen, f"host {host} in one class only")
                seen[host] = bucket
        ensure([seen.get(host) for host in range(self.hosts)] == self._where, "hosts are where they are said to be")
        ensure(self.total == sum(mask.bit_count() for mask in self.obtainable), "leaves that can be had")
        for host, (shape, free, idle) in enumerate(zip(self.shapes, self.free, self.idle, strict=True)):
            ensure(not idle & ~free and not free & ~shape.full, f"host {host}: idle leaves are free ones of its own")
            wanted = HostClass(shape.profile(free), shape.profile(idle))
            ensure(self.class_of(host) == wanted, f"class of host {host}")
            if shape.depth < self.node_level:
                ensure(all(of_host[host] < 0 for of_host in self.groups), f"host {host} is no node and in no group")
        costly = not self.within_idle and self.free != self.idle
        ensure(costly == self.costly, "some hosts have leaves that are free but not idle")
        ensure(len(self._capacities) <= CAPACITIES, "capacities are bounded")
        for need, costless in list(self._capacities):
            masks = self.idle if costless else self.obtainable
            self.capacity(need, costless).validate(self.shapes, masks)
