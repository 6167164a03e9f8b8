"""Buddy cell allocation by the textbook: one plain set of free cells, and whole trees walked for every answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod

from hived.spec.compiled import ChainSpec

#: a cell: its level (1-based) and its number there
Cell = tuple[int, int]


class NaiveBuddies:
    """The free cells of one chain, and the bad and the opportunistic leaves that say which of them to take."""

    def __init__(self, chain: ChainSpec, reserved: Sequence[int] | None = None) -> None:
        self.chain = chain
        self.top = len(chain.levels)
        self.free: set[Cell] = {(self.top, cell) for cell in range(chain.top_cells)}
        self.opportunistic: set[int] = set()
        self.bad: set[int] = set()
        self.reserved = [0] * (self.top + 1) if reserved is None else reserved
        self.allocated = [0] * (self.top + 1)

    def gpus(self, level: int) -> int:
        return self.chain.levels[level - 1].gpus

    def leaves(self, cell: Cell) -> range:
        size = self.gpus(cell[0])
        return range(cell[1] * size, (cell[1] + 1) * size)

    def ancestor(self, cell: Cell, level: int) -> Cell:
        """The cell of ``level`` that holds ``cell``."""
        return level, cell[1] * self.gpus(cell[0]) // self.gpus(level)

    def children(self, cell: Cell) -> list[Cell]:
        fanout = self.chain.levels[cell[0] - 1].fanout
        return [(cell[0] - 1, cell[1] * fanout + i) for i in range(fanout)]

    def lent(self, cell: Cell) -> int:
        return len(self.opportunistic.intersection(self.leaves(cell)))

    def badness(self, cell: Cell) -> int:
        return len(self.bad.intersection(self.leaves(cell)))

    def best(self, cells: Iterable[Cell]) -> Cell:
        """The cell to take: the fewest bad leaves, then the fewest opportunistic ones, then the lowest number."""
        return min(cells, key=lambda cell: (self.badness(cell), self.lent(cell), cell[1]))

    def best_for(self, level: int, cells: Iterable[Cell]) -> Cell:
        """The cell to take, or to split, for a healthy cell of ``level``: bad ones that have one inside first."""
        useful = [cell for cell in cells if self.holds_healthy(cell, level)]
        return self.best([cell for cell in useful if self.badness(cell)] or useful)

    def holds_healthy(self, cell: Cell, level: int) -> bool:
        """Whether some cell of ``level`` that is, or is inside, ``cell`` has no bad leaf."""
        leaves, size = self.leaves(cell), self.gpus(level)
        return any(self.bad.isdisjoint(leaves[i : i + size]) for i in range(0, len(leaves), size))

    def free_at(self, level: int) -> list[int]:
        """The free list of ``level``, ascending."""
        return sorted(number for at, number in self.free if at == level)

    def level_to_split(self, level: int) -> int:
        """The lowest level, from ``level`` up, that has a free cell; 0 when none has."""
        return next((k for k in range(level, self.top + 1) if self.free_at(k)), 0)

    def choose(self, level: int, near: int = -1) -> Cell | None:
        """The cell that a request at ``level`` is to get, ``None`` when there is none."""
        lowest = self.level_to_split(level)
        if not lowest:
            return None
        for k in range(lowest, self.top + 1):
            useful = [(k, number) for number in self.free_at(k) if self.holds_healthy((k, number), level)]
            if useful and self.may_serve(level, k):
                if near >= 0 and not self.badness((level, near)) and self.ancestor((level, near), k) in self.free:
                    return level, near
                cell = self.best_for(level, useful)
                while cell[0] > level:
                    cell = self.best_for(level, self.children(cell))
                return cell
        if near >= 0 and self.ancestor((level, near), lowest) in self.free:
            return level, near
        cell = self.best((lowest, number) for number in self.free_at(lowest))
        while cell[0] > level:
            cell = self.best(self.children(cell))
        return cell

    def choose_bad(self, level: int) -> Cell | None:
        """The bad cell that is to be taken at ``level``, ``None`` when there is none that safety allows."""
        cells = [(level, number) for number in range(self.chain.cells_at(level)) if self.badness((level, number))]
        holders = {cell: holder for cell in cells if (holder := self.holder_of(cell)) is not None}
        return min(
            (cell for cell, (k, _) in holders.items() if self.may_serve(level, k)),
            key=lambda cell: (self.badness(cell), holders[cell][0], cell[1]),
            default=None,
        )

    def margin(self, level: int) -> int:
        """What equations 1 and 2 leave to spare at ``level``."""
        above = self.margin(level + 1) * self.chain.levels[level].fanout if level < self.top else 0
        return len(self.free_at(level)) + above - self.reserved[level] + self.allocated[level]

    def may_serve(self, level: int, k: int) -> bool:
        """Whether a free cell of ``k`` may be taken for ``level``: safely, or since there is none below."""
        return k <= self.level_to_split(level) or all(self.margin(i) >= 1 for i in range(level + 1, k + 1))

    def holder_of(self, cell: Cell) -> Cell | None:
        """The free cell that is, or holds, ``cell``."""
        above = (self.ancestor(cell, k) for k in range(cell[0], self.top + 1))
        return next((candidate for candidate in above if candidate in self.free), None)

    def take(self, cell: Cell) -> None:
        """Split whatever free cell holds ``cell``, and take it."""
        whole = self.holder_of(cell)
        assert whole is not None
        self.allocated[cell[0]] += 1
        self.free.remove(whole)
        while whole != cell:
            children = self.children(whole)
            whole = self.ancestor(cell, whole[0] - 1)
            self.free.update(child for child in children if child != whole)

    def give(self, cell: Cell) -> None:
        """Give ``cell`` back, and merge it with its buddies as far up as they are all free."""
        self.allocated[cell[0]] -= 1
        self.free.add(cell)
        while cell[0] < self.top:
            parent = self.ancestor(cell, cell[0] + 1)
            buddies = self.children(parent)
            if not self.free.issuperset(buddies):
                return
            self.free.difference_update(buddies)
            self.free.add(parent)
            cell = parent


def packs(chain: ChainSpec, wanted: Sequence[int], taken: Iterable[Cell] = ()) -> bool:
    """Whether ``wanted[k]`` cells of each level ``k`` fit side by side, found by trying every way.

    ``taken``: cells that are not available. Largest first; cells of one level in ascending order, since they are alike.
    """
    naive = NaiveBuddies(chain)
    used = {leaf for cell in taken for leaf in naive.leaves(cell)}
    demand = [k for k in range(naive.top, 0, -1) for _ in range(wanted[k])]

    def place(position: int, first: int, used: frozenset[int]) -> bool:
        if position == len(demand):
            return True
        level = demand[position]
        for number in range(first, chain.cells_at(level)):
            leaves = naive.leaves((level, number))
            if used.isdisjoint(leaves):
                again = position + 1 < len(demand) and demand[position + 1] == level
                if place(position + 1, number + 1 if again else 0, used.union(leaves)):
                    return True
        return False

    room = chain.gpus - len(used)
    return sum(naive.gpus(k) for k in demand) <= room and place(0, 0, frozenset(used))


def fanouts_of(leaves: int, depth: int, narrow: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Every hierarchy of so many leaves and levels, once: children per cell from level 2 to the top, and top cells.

    A cell with one child adds a name and no choice: only up to ``narrow`` leaves.
    """
    for above in range(depth):
        for fanouts in product(range(1, leaves + 1), repeat=above):
            for tops in range(1, (narrow if 1 in fanouts else leaves) // prod(fanouts) + 1):
                yield fanouts, tops


def name_of(chain: ChainSpec) -> str:
    """Top cells and children per cell, from the top down."""
    return "x".join(str(n) for n in (chain.top_cells, *(level.fanout for level in reversed(chain.levels[1:]))))
