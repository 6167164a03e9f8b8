"""Cells that cannot be healthy any more, shown to the VCs that reserved them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .state import State


def see_bad(state: State) -> None:
    """Bind the reserved cells that can no longer be healthy to bad ones, so that their VCs see it (*doomed bad*).

    Worked out afresh from what is in use, and so the same whatever came before. Costs nothing without bad
    hardware, else O(VCs * levels + doomed cells) where something has changed.
    """
    for floor in state.floors:
        if (floor.allocator.bad_leaves or floor.doomed) and state.doomed_at[floor.number] != state.version:
            state.doomed_at[floor.number] = state.version
            if floor.chain.untold:
                floor.chain.tell_crowds(floor.allocator)
            binders = [
                tenancy.binder
                for of_tenant in state.tenancies
                for tenancy in of_tenant
                if tenancy.floor is floor and tenancy.pinned is None
            ]
            for binder, cell in floor.doomed:
                if cell in binder.anchored:
                    binder.pardon(cell)
            floor.doomed.clear()
            if floor.allocator.bad_leaves:
                for binder in binders:
                    wanted = [binder.unbound(level) for level in range(floor.allocator.hierarchy.top + 1)]
                    for level, short in enumerate(floor.allocator.shortage(wanted)):
                        for _ in range(short):
                            cell = binder.loose[level].last()
                            if binder.doom(level):
                                floor.doomed.append((binder, cell))
