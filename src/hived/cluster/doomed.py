"""The binding of reserved cells with only bad hardware left to bad cells, visible to their VCs (*doomed bad*)."""

from __future__ import annotations

from collections.abc import Iterable

from .binding import ChainBindings
from .pool import Pool


def doom(chain: ChainBindings, pools: Iterable[Pool]) -> None:
    """Recompute the doomed cells of a chain; ``pools``: of all VCs.

    O(VCs * levels + doomed cells), and O(bad cells) for each VC that may be short.
    """
    allocator = chain.nodes.allocator
    undoom(chain)
    if not allocator.bad_leaves:
        return
    here = [pool.binding for pool in pools if pool.nodes is chain.nodes and pool.pinned is None]
    before = -1
    while before < len(chain.doomed):  # a cell doomed for one VC can be the last obtainable one of another
        before = len(chain.doomed)
        for binding in here:
            for level, short in enumerate(allocator.shortage([len(cells) for cells in binding.unbound])):
                for _ in range(short):
                    cell = binding.doom(level)
                    if cell >= 0:
                        chain.doomed.append((binding, cell))


def undoom(chain: ChainBindings) -> None:
    """End the doom of all cells of a chain, until it is computed anew. O(doomed cells + nodes that changed)."""
    chain.nodes.update_allocator()
    for binding, cell in chain.doomed:
        binding.undoom(cell)
    chain.doomed.clear()
    chain.doomed_at = -1
