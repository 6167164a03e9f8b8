"""The binding of reserved cells with only bad hardware left to bad cells, visible to their VCs (*doomed bad*)."""

from __future__ import annotations

from collections.abc import Iterable

from .nodes import Nodes
from .pool import Pool


def doom(nodes: Nodes, pools: Iterable[Pool]) -> None:
    """Recompute the doomed cells of a chain; ``pools``: of all VCs.

    O(VCs * levels + doomed cells), and O(bad cells) for each VC that may be short.
    """
    allocator = nodes.allocator
    nodes.update_allocator()
    undoom(nodes)
    if not allocator.bad_leaves:
        return
    here = [pool.binding for pool in pools if pool.nodes is nodes and pool.pinned is None]
    before = -1
    while before < len(nodes.doomed):  # a cell doomed for one VC can be the last obtainable one of another
        before = len(nodes.doomed)
        for binding in here:
            for level, short in enumerate(allocator.shortage([len(cells) for cells in binding.unbound])):
                for _ in range(short):
                    cell = binding.doom(level)
                    if cell >= 0:
                        nodes.doomed.append((binding, cell))


def undoom(nodes: Nodes) -> None:
    """Unbind the doomed cells of a chain that are not in use. O(doomed cells)."""
    for binding, cell in nodes.doomed:
        binding.undoom(cell)
    nodes.doomed.clear()
