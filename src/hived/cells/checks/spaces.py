"""The check of a space, and of its indexes."""

from __future__ import annotations

from collections.abc import Sequence

from hived.cells.capacity import Capacity, Counts
from hived.cells.shape import Shape
from hived.cells.space import CAPACITIES, Bucket, HostClass, Space
from hived.errors import ensure


def check_space(space: Space) -> None:
    """Check every index against the masks. O(hosts * capacities kept)."""
    seen: dict[int, Bucket] = {}
    for number, bucket in enumerate(space.buckets):
        ensure(bool(bucket) == bool(space.occupied >> number & 1), f"occupied bit of class {number}")
        for host in bucket:
            ensure(host not in seen, f"host {host} in one class only")
            seen[host] = bucket
    ensure([seen.get(host) for host in range(space.hosts)] == space._bucket_of, "hosts are where they are said to be")
    ensure(space.total == sum(mask.bit_count() for mask in space.obtainable), "leaves that can be had")
    for host, (shape, free, idle) in enumerate(zip(space.shapes, space.free, space.idle, strict=True)):
        ensure(not idle & ~free and not free & ~shape.full, f"host {host}: idle leaves are free ones of its own")
        wanted = HostClass(shape.profile(free), shape.profile(idle))
        ensure(space.class_of(host) == wanted, f"class of host {host}")
        if shape.depth < space.node_level:
            ensure(all(of_host[host] < 0 for of_host in space.groups), f"host {host} is no node and in no group")
    costly = not space.within_idle and space.free != space.idle
    ensure(costly == space.costly, "some hosts have leaves that are free but not idle")
    ensure(len(space._capacities) <= CAPACITIES, "capacities are bounded")
    for need, costless in list(space._capacities):
        masks = space.idle if costless else space.obtainable
        _check_capacity(space.capacity(need, costless), space.shapes, masks)


def _check_capacity(capacity: Capacity, shapes: Sequence[Shape], masks: Sequence[int]) -> None:
    """Check all state against a fresh build. O(hosts)."""
    fresh = Capacity(capacity.need, capacity.layout, shapes, masks)
    ensure(capacity._kind_of == fresh._kind_of, f"kinds of hosts for {capacity.need}")
    ensure(capacity.total == fresh.total, f"pods that fit for {capacity.need}")
    for groups, others in zip(capacity._groups, fresh._groups, strict=True):
        check_counts(groups, others.counts)
    ensure(capacity._kinds == sorted(capacity._by_kind), f"order of kinds for {capacity.need}")
    filled = {kind: hosts for kind, hosts in capacity._by_kind.items() if hosts}
    ensure(filled == fresh._by_kind, f"hosts by kind for {capacity.need}")


def check_counts(index: Counts, counts: list[int]) -> None:
    """Check the counts and their order. O(n)."""
    ensure(counts == index.counts, "counts")
    ensure(list(index._order) == sorted(c * len(counts) + i for i, c in enumerate(counts)), "order of counts")
