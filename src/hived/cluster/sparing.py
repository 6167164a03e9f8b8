"""Which cell is bound where loans have to make room for it: one whose loans lose the least work.

Work is GPU seconds: the GPUs of a group, wherever they are, times how long it runs. A guest loses none, since it goes
on beside the owner, nor does who saves its state. So a loan of an hour on one GPU stays, and one of a minute on two
makes room:

    node-0   a  a  .  .    since a minute, 2 GPUs     a cell of 4 GPUs is bound here: 120 GPU seconds are lost
    node-1   b  .  .  .    since an hour, 1 GPU

Bindings prefer the fewest GPUs on loan else, as HiveD does (:mod:`.binding`). Which free cell is bound matters to
loans alone, so neither safety nor what a VC gets changes (HiveD, OSDI'20, section 3.3).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import islice
from math import inf

from .groups import Group
from .nodes import Nodes

#: cells that are compared, those with the fewest GPUs on loan
MAX_CELLS = 16


class Sparing:
    """The loans of a chain by what they would lose."""

    def __init__(self, nodes: Nodes, lost: Callable[[Group], float]) -> None:
        """``lost``: GPU seconds, if a group ends now."""
        self._nodes, self._lost = nodes, lost
        # groups that end for the pods bound so far: on other nodes they cost nothing more
        self._ended: set[Group] = set()

    def begin(self) -> None:
        """The pods of another group are bound from now on."""
        self._ended.clear()

    def cheapest(self, level: int, cells: Iterable[int], gpus: int) -> int:
        """Of open cells of a level, one in which so many GPUs on a node cost least; the first of equals, -1 for none.

        O(``MAX_CELLS`` * GPUs of a cell).
        """
        best, least, ends = -1, inf, list[Group]()
        for cell in islice(cells, MAX_CELLS):
            cost, ending = self._in_cell(level, cell, gpus)
            if cost < least:
                best, least, ends = cell, cost, ending
            if not cost:
                break
        self._ended.update(ends)
        return best

    def _in_cell(self, level: int, cell: int, gpus: int) -> tuple[float, list[Group]]:
        """Where in a cell so many GPUs cost least, in one cell of the lowest level that has as many."""
        hierarchy = self._nodes.hierarchy
        low = min(bisect_left(hierarchy.gpus, gpus, 1), hierarchy.node_level, level)
        size, parts = hierarchy.gpus[low], hierarchy.gpus[level] // hierarchy.gpus[low]
        least: tuple[float, list[Group]] = inf, []
        for part in range(cell * parts, (cell + 1) * parts):
            node, at = divmod(part, hierarchy.node_size // size)
            found = self._on_leaves(node, ((1 << size) - 1) << at * size, gpus)
            if found[0] < least[0]:
                least = found
                if not found[0]:
                    break
        return least

    def cost(self, node: int, leaves: int, gpus: int) -> float:
        """GPU seconds that are lost for so many of these leaves, none of them in guaranteed use. O(groups there)."""
        return self._on_leaves(node, leaves, gpus)[0]

    def _on_leaves(self, node: int, leaves: int, gpus: int) -> tuple[float, list[Group]]:
        needed = gpus - (leaves & ~self._nodes.lent[node]).bit_count()
        if needed <= 0:
            return 0.0, []
        costs = [
            (0.0 if group in self._ended else self._lost(group), group, mask & leaves)
            for group, mask in self._nodes.held.get(node, {}).items()
            if mask & leaves
        ]
        costs.sort(key=lambda one: (one[0], one[1].lent_at))  # groups themselves have no order
        total, ends = 0.0, []
        for lost, group, mask in costs:
            if needed <= 0:
                break
            needed -= mask.bit_count()
            total += lost
            ends.append(group)
        return total, ends
