"""Bindings made to order: to the very cells that a group runs on already.

After a restart or a reconfiguration, and when a downgraded group is guaranteed again, it is known where a group runs,
and its VC has to stand there: virtual cells are found for physical ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hived.cells import leaves_of

from .binding import Binder


class Bindings(NamedTuple):
    """All that is bound in one reserved cell."""

    root: int  #: the reserved cell
    bound: list[tuple[int, int, int, bool]]  #: cell, what it stands on, its children in use, whether only anchored
    inside: list[tuple[int, int, list[int] | None]]  #: host, its bad leaves, and what is bound inside


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
    free = binder.pool.free[host]
    found = 0

    def first_free(unbound: list[int]) -> int:
        return next((c for c in unbound if not shape.masks[c] & (found | ~free)), -1)

    for leaf in leaves_of(leaves):
        cell = binder.leaf_on(host, leaf, first_free)
        if cell < 0 or not shape.masks[cell] & free:
            binder.inner[host] = before
            return 0
        found |= shape.masks[cell]
    return found


def recorded(binder: Binder, hosts: Iterable[int]) -> list[Bindings]:
    """The bindings in the reserved cells that these bound hosts are in, for :func:`rebind`. O(cells bound there)."""
    return [_recorded(binder, root) for root in dict.fromkeys(binder.pool.reserved_cell(host) for host in hosts)]


def _recorded(binder: Binder, root: int) -> Bindings:
    below = list(_bound_below(binder, root))
    here = [root, *below]
    return Bindings(
        root,
        [(cell, binder.bound[cell], binder.live[cell], cell in binder.anchored) for cell in here],
        [
            (cell, binder.pool.bad[cell], None if (inner := binder.inner[cell]) is None else list(inner))
            for cell in here
            if cell < binder.pool.hosts
        ],
    )


def _bound_below(binder: Binder, cell: int) -> Iterator[int]:
    """The bound cells inside a bound one, each after the one that it is in."""
    if cell >= binder.pool.hosts:
        for child in binder.children(cell):
            if binder.bound[child] >= 0:
                yield child
                yield from _bound_below(binder, child)


def rebind(binder: Binder, records: Iterable[Bindings]) -> None:
    """Make the bindings what they were, whatever was bound and unbound since. O(cells bound then or now)."""
    pool = binder.pool
    for root, bound, inside in records:
        if binder.bound[root] >= 0:
            for cell in list(_bound_below(binder, root)):
                binder.allocator.give_child(pool.cells[cell].level, binder.bound[cell])
                _forget(binder, cell)
            binder.anchored.discard(root)
        else:
            binder.allocator.allocate_exactly(pool.cells[root].level, bound[0][1])
            binder.preassign(root, bound[0][1])
        for cell, physical, live, anchored in bound:
            if cell != root:
                binder.allocator.take_exactly(pool.cells[cell].level, physical)
                binder.bound[cell] = physical
            binder.live[cell] = live
            if anchored:
                binder.anchored.add(cell)
        for host, bad, inner in inside:
            binder.inner[host] = None if inner is None else list(inner)
            binder.set_bad(host, bad)


def _forget(binder: Binder, cell: int) -> None:
    binder.bound[cell] = -1
    binder.live[cell] = 0
    binder.anchored.discard(cell)
    if cell < binder.pool.hosts:
        binder.inner[cell] = None
        binder.set_bad(cell, 0)
