"""Hosts grouped by what is free in them, so that choosing one never looks at them all.

Whoever chooses says how good a host is by a *rank*: a function of the host's class (a few dozen distinct values) and
the number of GPUs. The index sorts classes by rank once, and then only asks each class for its lowest host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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


class HostIndex:
    """Hosts ``0 .. n-1``, each in the bucket of its class.

    Moving a host costs O(1), choosing one O(number of classes), neither depends on the number of hosts.
    """

    __slots__ = ("_buckets", "_by_class", "_n", "_orders", "_where", "occupied")

    def __init__(self, n: int) -> None:
        self._n = n
        self._by_class: dict[HostClass, int] = {}
        self._buckets: list[_Bucket] = []
        #: bucket of host ``h``; -1 before it was put in
        self._where = [-1] * n
        #: bit ``b`` is set exactly when bucket ``b`` has a host
        self.occupied = 0
        # per (rank, gpus): the usable buckets from best to worst, and the union of their bits
        self._orders: dict[tuple[Rank, int], tuple[int, list[_Bucket]]] = {}

    def bucket_of(self, host_class: HostClass) -> int:
        """The number of this class's bucket, to be kept by the caller. O(1) but for a class never seen."""
        bucket = self._by_class.get(host_class)
        if bucket is None:
            bucket = self._by_class[host_class] = len(self._buckets)
            self._buckets.append(_Bucket(1 << bucket, host_class, IndexSet(self._n)))
            self._orders.clear()
        return bucket

    def move(self, host: int, bucket: int) -> None:
        """Put ``host`` into ``bucket``. O(1)."""
        old = self._where[host]
        if old == bucket:
            return
        if old >= 0:
            hosts = self._buckets[old].hosts
            hosts.remove(host)
            if not hosts.summary:
                self.occupied &= ~(1 << old)
        self._where[host] = bucket
        self._buckets[bucket].hosts.add(host)
        self.occupied |= 1 << bucket

    def fill(self, bucket: int, hosts: range) -> None:
        """Put hosts that are in no bucket yet into ``bucket``. O(hosts)."""
        for host in hosts:
            self._where[host] = bucket
            self._buckets[bucket].hosts.add(host)
        if hosts:
            self.occupied |= 1 << bucket

    def class_of(self, host: int) -> HostClass:
        """The class of ``host``."""
        return self._buckets[self._where[host]].host_class

    def best(self, rank: Rank, gpus: int) -> int:
        """The host that ranks best for ``gpus``, the lowest number among equals; -1 when no host will do."""
        usable, order = self._order(rank, gpus)
        if usable & self.occupied:
            for bucket in order:
                if bucket.hosts.summary:
                    return bucket.hosts.first()
        return -1

    def any_for(self, rank: Rank, gpus: int) -> bool:
        """Whether :meth:`best` would find one."""
        return bool(self._order(rank, gpus)[0] & self.occupied)

    def in_order(self, rank: Rank, gpus: int) -> Iterator[int]:
        """All usable hosts from best to worst. The index must not change while this is read."""
        for bucket in self._order(rank, gpus)[1]:
            yield from bucket.hosts

    def _order(self, rank: Rank, gpus: int) -> tuple[int, list[_Bucket]]:
        order = self._orders.get((rank, gpus))
        if order is None:
            ranked = []
            for bucket in self._buckets:
                value = rank(bucket.host_class, gpus)
                if value is not None:
                    # classes of one rank are told apart by what is free in them, never by when they were first seen
                    ranked.append(((value, bucket.host_class.free, bucket.host_class.idle), bucket))
            ranked.sort(key=lambda pair: pair[0])
            usable = 0
            for _, bucket in ranked:
                usable |= bucket.bit
            order = self._orders[rank, gpus] = (usable, [bucket for _, bucket in ranked])
        return order

    def validate(self) -> None:
        """Every host is in exactly the bucket it is said to be in, and ``occupied`` says which have one."""
        seen: dict[int, int] = {}
        for number, bucket in enumerate(self._buckets):
            ensure(bool(bucket.hosts) == bool(self.occupied >> number & 1), f"occupied bit of class {number}")
            for host in bucket.hosts:
                ensure(host not in seen, f"host {host} in one class only")
                seen[host] = number
        ensure(
            [seen.get(host, -1) for host in range(self._n)] == self._where,
            "hosts are where they are said to be",
        )
