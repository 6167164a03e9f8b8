"""The bindings of a pool, re-derived from what is in use and what is bad."""

from __future__ import annotations

from hived.errors import ensure

from .anchoring import Anchoring


def check_bindings(binder: Anchoring) -> None:
    """Bound cells are exactly those in use or bad, each inside its parent's, no two on one. O(cells of the VC)."""
    pool, hierarchy, allocator = binder.pool, binder.pool.hierarchy, binder.allocator
    live = [0] * len(pool.cells)
    if binder.pinned >= 0:
        live[binder.pinned] = 1
    taken: set[tuple[int, int]] = set()
    for number, (level, parent) in enumerate(pool.cells):
        physical = binder.bound[number]
        if number < pool.hosts:
            used = pool.free[number] != pool.shapes[number].full
            in_use = physical >= 0 and number not in binder.anchored
            ensure(in_use == (used or number == binder.pinned), f"host {number} is bound while in use")
        if parent < 0:
            ensure((physical < 0) == (number in binder.loose[level]), f"cell {number} is loose while unbound")
        if physical < 0:
            continue
        ensure((level, physical) not in taken, f"physical cell {physical} of level {level} stands under one cell")
        taken.add((level, physical))
        if parent >= 0:
            live[parent] += number not in binder.anchored
            above = physical // hierarchy.fanout[level + 1]
            ensure(binder.bound[parent] == above, f"virtual cell {number} stands inside its parent's cell")
            ensure(not allocator.siblings(level).available[physical], f"cell {physical} was taken")
        else:
            ensure(binder.owners.get((level, physical)) == (binder, number), f"cell {number} is known to stand there")
        if number in binder.anchored:
            ensure(allocator.is_bad(level, physical), f"anchored cell {number} stands on bad hardware")
        if number >= pool.hosts and allocator.bad_leaves:
            for child in allocator.bad_children(level - 1, physical):
                ensure(not allocator.siblings(level - 1).available[child], f"bad child {child} is anchored")
    ensure(live == binder.live, "children in use per virtual cell")
    for number, bound in enumerate(binder.bound):
        if number >= pool.hosts:
            in_use = bound >= 0 and number not in binder.anchored
            ensure(in_use == (live[number] > 0), f"virtual cell {number} is bound while a child is in use")
    for host, inner in enumerate(binder.inner):
        if inner is None:
            ensure(not pool.bad[host], f"host {host}: bad leaves are bound")
        else:
            _check_inside(binder, host, inner)


def _check_inside(binder: Anchoring, host: int, inner: list[int]) -> None:
    pool, shape = binder.pool, binder.pool.shapes[host]
    for cell, children in enumerate(shape.children):
        stands_on = [inner[c] for c in children if inner[c] >= 0]
        ensure(len(set(stands_on)) == len(stands_on), f"host {host}: inner cells stand apart")
        at = inner[cell]
        ensure(all(at >= 0 and c in shape.children[at] for c in stands_on), f"host {host}: inner cells nest")
    for cell, leaves in enumerate(shape.masks):
        if cell and inner[cell] >= 0:
            idle = pool.free[host] & ~pool.bad[host]
            ensure(leaves & idle != leaves, f"host {host}: inner cell {cell} is bound while in use")
    if binder.bad:
        node, part = divmod(binder.bound[host], pool.hierarchy.node_size // shape.leaves)
        bad = binder.bad[node] >> part * shape.leaves & shape.full
        stand = 0
        for cell, leaves in enumerate(shape.masks):
            if not shape.children[cell] and leaves & pool.bad[host]:
                ensure(inner[cell] >= 0, f"host {host}: bad leaf {cell} is bound")
                stand |= shape.masks[inner[cell]]
        ensure(stand == bad, f"host {host}: its bad leaves stand on the bad ones")
