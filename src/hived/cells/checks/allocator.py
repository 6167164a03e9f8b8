"""The check of a buddy allocator."""

from __future__ import annotations

from hived.cells.buddy import OPEN, SPLIT, TAKEN, BuddyAllocator
from hived.errors import ensure

#: what follows from the cells that are taken, opportunistic and bad
_DERIVED = (
    "_state", "opportunistic", "_left", "_masks", "_counts", "_order", "free", "allocated", "bad", "bad_leaves",
    "bad_under", "free_bad",
)  # fmt: skip


def check_allocator(buddy: BuddyAllocator) -> None:
    """Check all state against a fresh chain in which the same cells are taken, and that open cells have none taken.

    So split cells have a taken child, every free cell is listed once, and none is inside another. O(cells).
    """
    hierarchy, levels = buddy.hierarchy, buddy.levels
    lowest = levels.start
    fresh = BuddyAllocator(hierarchy, lowest)
    for k in reversed(levels):
        for cell in range(hierarchy.count[k]):
            if buddy._state[k][cell] == TAKEN:
                above = buddy._state[k + 1][cell // buddy._fanout[k + 1]]
                ensure(above != OPEN, f"cell {cell} of level {k} is taken inside an open one")
                (fresh.allocate_at if above == SPLIT else fresh.take_child_at)(k, cell)
    size = hierarchy.gpus[lowest]
    for node in range(hierarchy.nodes):
        lent = bad = 0
        for i in range(hierarchy.node_size // size):
            cell = node * (hierarchy.node_size // size) + i
            lent |= (1 << buddy.opportunistic[lowest][cell]) - 1 << i * size
            bad |= (1 << buddy.bad[lowest].get(cell, 0)) - 1 << i * size
        fresh.set_opportunistic(node, 0, lent)
        fresh.set_bad(node, 0, bad)
    for name in _DERIVED:
        ensure(getattr(buddy, name) == getattr(fresh, name), f"{name} of the cells of {hierarchy.spec.name}")
