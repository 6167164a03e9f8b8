"""Cells that cannot be healthy any more, shown to the VCs that reserved them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .floor import Floor
from .tenancy import Tenancy

if TYPE_CHECKING:
    from .state import State


def see_bad(state: State) -> None:
    """Bind the reserved cells that can no longer be healthy to bad ones, so that their VCs see it (*doomed bad*).

    Worked out afresh whenever a reserved cell is bound or freed, or hardware turns bad or good. Costs one comparison
    per chain without bad hardware or change, else O(VCs * levels + doomed cells), and O(bad cells) for each VC that may
    be short.
    """
    for floor in state.floors:
        allocator = floor.allocator
        if (allocator.bad_leaves or floor.doomed) and floor.seen_at != allocator.changes:
            _see_bad(state, floor)
            floor.seen_at = allocator.changes


def _see_bad(state: State, floor: Floor) -> None:
    allocator = floor.allocator
    if floor.chain.untold:
        floor.chain.tell_crowds(allocator)
    for binder, cell in floor.doomed:
        binder.pardon(cell)
    floor.doomed.clear()
    if not allocator.bad_leaves:
        return
    found = True
    while found:  # a cell doomed for one VC can be the last that another could have had by splitting
        found = False
        for of_tenant in state.tenancies:
            for tenancy in of_tenant:
                if tenancy.floor is floor and tenancy.pinned is None:
                    found = _doom(floor, tenancy) or found


def _doom(floor: Floor, tenancy: Tenancy) -> bool:
    """Doom what a VC is short of; whether it was anything."""
    allocator, binder = floor.allocator, tenancy.binder
    wanted = [binder.unbound(level) for level in range(allocator.hierarchy.top + 1)]
    if not any(wanted) or allocator.surely_healthy(wanted):
        return False
    before = len(floor.doomed)
    for level, short in enumerate(allocator.shortage(wanted)):
        for _ in range(short):
            cell = binder.loose[level].last()
            if binder.doom(level):
                floor.doomed.append((binder, cell))
    return len(floor.doomed) > before
