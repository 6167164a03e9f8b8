"""Bindings made to order: to the very cells that a group runs on already.

After a restart or a reconfiguration, and when a downgraded group is guaranteed again, it is known where a group runs,
and its VC has to stand there: virtual cells are found for physical ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from hived.cells import leaves_of

from .binding import Binder

#: the bindings of some hosts: per host its path from the preassigned cell down, and what is bound inside
Bindings = list[tuple[list[tuple[int, int]], int, list[int] | None]]


def host_for(binder: Binder, level: int, node: int, leaf: int) -> int:
    """The virtual host that can stand under this leaf, in a preassigned cell of ``level``; -1 when none can.

    Cells that stand there already come first, then the first that are unbound. O(levels * fan-out).
    """
    hierarchy = binder.pool.hierarchy
    first = node * hierarchy.node_size + leaf
    owner = binder.owners.get((level, first // hierarchy.gpus[level]))
    if owner is not None:
        if owner[0] is not binder:
            return -1
        cell = owner[1]
    else:
        loose = binder.loose.get(level)
        cell = loose.first() if loose is not None else -1
        if cell < 0:
            return -1
    while cell >= binder.pool.hosts:
        wanted = first // hierarchy.gpus[binder.pool.cells[cell].level - 1]
        children = binder.children(cell)
        child = next((c for c in children if binder.bound[c] == wanted), -1)
        if child < 0:
            child = next((c for c in children if binder.bound[c] < 0), -1)
            if child < 0:
                return -1
        cell = child
    return cell if binder.can_stand(cell, first // hierarchy.gpus[binder.pool.cells[cell].level]) else -1


def virtual_leaves(binder: Binder, host: int, leaves: int) -> int:
    """Bind virtual leaves of a bound ``host`` to these very physical ``leaves`` of its cell; 0 when that cannot be.

    Nothing has changed then.
    """
    shape = binder.pool.shapes[host]
    before = list(binder.inner_of(host))
    inner = binder.inner_of(host)
    found = 0
    for leaf in leaves_of(leaves):
        cell = 0
        while shape.children[cell]:
            at = next(c for c in shape.children[inner[cell]] if shape.masks[c] >> leaf & 1)
            children = shape.children[cell]
            child = next((c for c in children if inner[c] == at), -1)
            if child < 0:
                free = binder.pool.free[host] & ~found
                child = next((c for c in children if inner[c] < 0 and shape.masks[c] & free == shape.masks[c]), -1)
                if child < 0:
                    binder.inner[host] = before
                    return 0
                inner[child] = at
            cell = child
        if not shape.masks[cell] & binder.pool.free[host]:
            binder.inner[host] = before
            return 0
        found |= shape.masks[cell]
    return found


def recorded(binder: Binder, hosts: Sequence[int]) -> Bindings:
    """The present bindings of bound hosts, for :func:`rebind`. O(levels) each."""
    records: Bindings = []
    for host in hosts:
        path = []
        cell = host
        while cell >= 0:
            path.append((cell, binder.bound[cell]))
            cell = binder.pool.cells[cell].parent
        inner = binder.inner[host]
        records.append((path[::-1], host, None if inner is None else list(inner)))
    return records


def rebind(binder: Binder, records: Bindings) -> None:
    """Bring recorded bindings back, after they and whatever was bound since were undone."""
    for path, host, inner in records:
        binder.stand(host, path[-1][1])
        binder.inner[host] = None if inner is None else list(inner)
