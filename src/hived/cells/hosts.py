"""Hosts grouped by what is free in them, so that choosing one never looks at them all.

Whoever chooses says how good a host is by a *rank*: a function of the host's class (a few dozen distinct values) and
the number of GPUs. The index sorts classes by rank once, and then only asks each class for its lowest host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from hived.errors import ensure

from .index_set import IndexSet
from .shape import Profile


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


class _Bucket:
    """The hosts of one class."""

    __slots__ = ("bit", "host_class", "hosts")

    def __init__(self, bit: int, host_class: HostClass, hosts: IndexSet) -> None:
        self.bit = bit
        self.host_class = host_class
        self.hosts = hosts


class Ranking:
    """The classes of a :class:`HostIndex` in the order of one rank."""

    __slots__ = ("_index", "_orders", "_rank")

    def __init__(self, index: HostIndex, rank: Rank) -> None:
        self._index = index
        self._rank = rank
        # per number of GPUs: the classes known then, the union of the usable buckets' bits, and those buckets in order
        self._orders: dict[int, tuple[int, int, list[_Bucket]]] = {}

    def best(self, gpus: int) -> int:
        """The host that ranks best for ``gpus``, the lowest number within its class; -1 when no host will do."""
        hosts = self.best_hosts(gpus)
        return hosts.first() if hosts is not None else -1

    def best_hosts(self, gpus: int) -> IndexSet | None:
        """All hosts of the best class for ``gpus``; None when no host will do. To be read, not changed."""
        order = self._orders.get(gpus)
        if order is None or order[0] != self._index.classes:
            order = self._sort(gpus)
        if order[1] & self._index.occupied:
            for bucket in order[2]:
                if bucket.hosts.summary:
                    return bucket.hosts
        return None

    def any(self, gpus: int) -> bool:
        """Whether :meth:`best` would find one."""
        order = self._orders.get(gpus)
        if order is None or order[0] != self._index.classes:
            order = self._sort(gpus)
        return bool(order[1] & self._index.occupied)

    def in_order(self, gpus: int, each: int | None = None) -> Iterator[int]:
        """The usable hosts from best to worst, at most ``each`` of a class (None: all).

        The index must not change while this is read.
        """
        order = self._orders.get(gpus)
        if order is None or order[0] != self._index.classes:
            order = self._sort(gpus)
        for bucket in order[2]:
            if bucket.hosts.summary:
                yield from islice(bucket.hosts, each)

    def _sort(self, gpus: int) -> tuple[int, int, list[_Bucket]]:
        ranked = []
        for bucket in self._index.buckets:
            value = self._rank(bucket.host_class, gpus)
            if value is not None:
                # classes of one rank are told apart by what is free in them, never by when they were first seen
                ranked.append(((value, bucket.host_class.free, bucket.host_class.idle), bucket))
        ranked.sort(key=lambda pair: pair[0])
        usable = 0
        for _, bucket in ranked:
            usable |= bucket.bit
        order = self._orders[gpus] = (self._index.classes, usable, [bucket for _, bucket in ranked])
        return order


class HostIndex:
    """Hosts ``0 .. n-1``, each in the bucket of its class.

    Moving a host costs O(1), choosing one O(number of classes), neither depends on the number of hosts.
    """

    __slots__ = ("_by_class", "_n", "_rankings", "_where", "buckets", "classes", "occupied")

    def __init__(self, n: int) -> None:
        self._n = n
        self._by_class: dict[HostClass, int] = {}
        #: the hosts of each class
        self.buckets: list[_Bucket] = []
        #: number of classes seen so far
        self.classes = 0
        #: bucket of host ``h``; -1 before it was put in
        self._where = [-1] * n
        #: bit ``b`` is set exactly when bucket ``b`` has a host
        self.occupied = 0
        self._rankings: dict[Rank, Ranking] = {}

    def bucket_of(self, host_class: HostClass) -> int:
        """The number of this class's bucket, to be kept by the caller. O(1) but for a class never seen."""
        bucket = self._by_class.get(host_class)
        if bucket is None:
            bucket = self._by_class[host_class] = len(self.buckets)
            self.buckets.append(_Bucket(1 << bucket, host_class, IndexSet(self._n)))
            self.classes += 1
        return bucket

    def move(self, host: int, bucket: int) -> None:
        """Put ``host`` into ``bucket``. O(1)."""
        old = self._where[host]
        if old == bucket:
            return
        if old < 0:
            self.fill(bucket, range(host, host + 1))
            return
        hosts = self.buckets[old].hosts
        hosts.move(host, self.buckets[bucket].hosts)
        if not hosts.summary:
            self.occupied ^= 1 << old
        self._where[host] = bucket
        self.occupied |= 1 << bucket

    def fill(self, bucket: int, hosts: range) -> None:
        """Put hosts that are in no bucket yet into ``bucket``. O(hosts)."""
        for host in hosts:
            self._where[host] = bucket
            self.buckets[bucket].hosts.add(host)
        if hosts:
            self.occupied |= 1 << bucket

    def class_of(self, host: int) -> HostClass:
        """The class of ``host``."""
        return self.buckets[self._where[host]].host_class

    def by(self, rank: Rank) -> Ranking:
        """The hosts in the order of ``rank``: a function that is kept, since what it said is remembered. O(1)."""
        ranking = self._rankings.get(rank)
        if ranking is None:
            ranking = self._rankings[rank] = Ranking(self, rank)
        return ranking

    def validate(self) -> None:
        """Every host is in exactly the bucket it is said to be in, and ``occupied`` says which have one."""
        seen: dict[int, int] = {}
        for number, bucket in enumerate(self.buckets):
            ensure(bool(bucket.hosts) == bool(self.occupied >> number & 1), f"occupied bit of class {number}")
            for host in bucket.hosts:
                ensure(host not in seen, f"host {host} in one class only")
                seen[host] = number
        ensure(
            [seen.get(host, -1) for host in range(self._n)] == self._where,
            "hosts are where they are said to be",
        )
