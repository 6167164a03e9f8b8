"""Cells that cannot be healthy any more, shown to the VCs that reserved them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .nodes import Nodes
from .pool import Pool

if TYPE_CHECKING:
    from .state import State


def see_bad(state: State) -> None:
    """Bind the reserved cells that can no longer be healthy to bad ones, so that their VCs see it (*doomed bad*).

    Worked out afresh whenever a reserved cell is bound or freed, or hardware turns bad or good. Costs one comparison
    per chain of late bindings without bad hardware or change, else O(VCs * levels + doomed cells), and O(bad cells) for
    each VC that may be short. Not while a transaction is open: what is doomed stays.
    """
    for nodes in state.bound:
        allocator = nodes.allocator
        if (allocator.bad_leaves or nodes.doomed) and nodes.seen_at != allocator.changes:
            _see_bad(state, nodes)
            nodes.seen_at = allocator.changes
            state.undo.keep()


def _see_bad(state: State, nodes: Nodes) -> None:
    allocator = nodes.allocator
    nodes.tell_allocator()
    for binding, cell in nodes.doomed:
        binding.undoom(cell)
    nodes.doomed.clear()
    if not allocator.bad_leaves:
        return
    found = True
    while found:  # a cell doomed for one VC can be the last that another could have had by splitting
        found = False
        for of_tenant in state.pools:
            for pool in of_tenant:
                if pool.nodes is nodes and pool.pinned is None:
                    found = _doom(nodes, pool) or found


def _doom(nodes: Nodes, pool: Pool) -> bool:
    """Doom what a VC is short of; whether it was anything."""
    allocator, binding = nodes.allocator, pool.binding
    wanted = [binding.unbound(level) for level in range(allocator.hierarchy.top + 1)]
    if not any(wanted) or allocator.surely_healthy(wanted):
        return False
    before = len(nodes.doomed)
    for level, short in enumerate(allocator.shortage(wanted)):
        for _ in range(short):
            cell = binding.loose[level].last()
            if binding.doom(level):
                nodes.doomed.append((binding, cell))
    return len(nodes.doomed) > before
