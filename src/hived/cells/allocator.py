"""Buddy cell allocation (HiveD, OSDI'20, section 3.3, Algorithm 1).

Which physical cell a preassigned virtual cell gets is decided here, level by level, like memory pages by a buddy
system:

    allocate a level-1 cell                                   release it
    level 3  [free]         ->  split into its buddies    ->  both buddies free: merge
    level 2   [free][free]  ->  [split] [free]
    level 1                     [taken][free]

A request takes a free cell of its own level if there is one, else it splits a free cell of the lowest level above. That
rule alone keeps sharing safety (section 3.4): *which* free cell of a level is taken does not matter for it, so the
choice serves the opportunistic jobs: the cell with the fewest GPUs in opportunistic use, then the lowest number.

(Where a higher cell has to be split, it is the least crowded of *its* level, and then its least crowded child.)

Cells are numbers, splitting writes no list, and each level keeps the least crowded cell at hand, so both operations
cost O(levels) operations of an index set, independent of the fan-out.
"""

from __future__ import annotations

from collections.abc import Iterator

from hived.errors import InvariantError, ensure

from .hierarchy import Hierarchy
from .index_set import IndexSet
from .siblings import Siblings


class BuddyAllocator:
    """Free, split and allocated cells of one chain.

    A cell at level ``k`` is *free* when it is available and its parent is split (the root always is); an allocated cell
    belongs to one virtual cell, and its children are then taken one by one as that VC needs them (:meth:`take_child`).
    """

    __slots__ = ("_has_split", "_least", "_split", "_split_order", "allocated", "free", "hierarchy", "levels")

    def __init__(self, hierarchy: Hierarchy, lowest: int = 1) -> None:
        """``lowest``: the lowest level that will ever be asked for; levels below cost nothing then."""
        self.hierarchy = hierarchy
        top = hierarchy.top
        low = min(lowest, hierarchy.node_level)
        #: the levels kept, in ascending order
        self.levels = range(low, top + 1)
        self._has_split = [bytearray(n) for n in hierarchy.count]
        self._split: list[Siblings | None] = [None] * (top + 1)
        # Split cells that have free children, by (least crowd among those, number): one set per level of the children.
        self._split_order = [IndexSet(1) for _ in range(top + 1)]
        self._least: list[dict[int, int]] = [{} for _ in range(top + 1)]
        for k in self.levels:
            self._split[k] = Siblings(hierarchy.count[k], hierarchy.fanout[k + 1], hierarchy.gpus[k])
            self._split_order[k] = IndexSet((hierarchy.gpus[k] + 1) * hierarchy.count[k + 1])
        #: free cells per level (f of equation 1)
        self.free = [0] * (top + 1)
        #: allocated cells per level (a of equation 1)
        self.allocated = [0] * (top + 1)
        self._has_split[top + 1][0] = 1
        self.free[top] = hierarchy.count[top]
        self._reorder(top, 0)

    def siblings(self, level: int) -> Siblings:
        """The cells of ``level`` by parent."""
        siblings = self._split[level]
        if siblings is None:
            raise InvariantError(f"level {level} is below the lowest this allocator was built for")
        return siblings

    def allocate(self, level: int, near: int = -1) -> int:
        """Take a free cell at ``level``, splitting a higher one if need be; its number, or -1 when there is none.

        ``near``: a cell number at ``level`` that is taken, or split towards, where the rule above leaves the choice.
        """
        hierarchy = self.hierarchy
        k = level
        while k <= hierarchy.top and not self.free[k]:
            k += 1
        if k > hierarchy.top:
            return -1
        cell = -1
        if near >= 0:
            ancestor = near // (hierarchy.gpus[k] // hierarchy.gpus[level])
            if self.is_free(k, ancestor):
                cell = ancestor
        if cell < 0:
            parent = self._split_order[k].first() % hierarchy.count[k + 1]
            cell = self.siblings(k).least_crowded(parent)
            near = -1
        self._take(k, cell)
        while k > level:
            cell = self._split_towards(k, cell, near, level)
            k -= 1
        self.allocated[level] += 1
        return cell

    def allocate_exactly(self, level: int, cell: int) -> None:
        """Take this very cell, splitting whatever free cell holds it (for cells pinned by the spec)."""
        hierarchy = self.hierarchy
        k, ancestor = level, cell
        while k <= hierarchy.top and not self.is_free(k, ancestor):
            ancestor //= hierarchy.fanout[k + 1]
            k += 1
        if k > hierarchy.top:
            raise InvariantError(f"cell {cell} at level {level} is not free")
        self._take(k, ancestor)
        while k > level:
            ancestor = self._split_towards(k, ancestor, cell, level)
            k -= 1
        self.allocated[level] += 1

    def release(self, level: int, cell: int) -> None:
        """Give an allocated cell back; it merges with its buddies as far up as they are all free."""
        hierarchy = self.hierarchy
        self.allocated[level] -= 1
        k = level
        while True:
            siblings = self.siblings(k)
            siblings.give(cell)
            self.free[k] += 1
            parent = cell // hierarchy.fanout[k + 1]
            if k == hierarchy.top or siblings.left[parent] < siblings.fanout:
                self._reorder(k, parent)
                return
            self.free[k] -= siblings.fanout
            self._has_split[k + 1][parent] = 0
            self._reorder(k, parent)
            k, cell = k + 1, parent

    def is_free(self, level: int, cell: int) -> bool:
        """Whether ``cell`` stands in the free list of ``level``."""
        parent = cell // self.hierarchy.fanout[level + 1]
        return bool(self.siblings(level).available[cell] and self._has_split[level + 1][parent])

    def take_child(self, level: int, parent: int, near: int = -1) -> int:
        """Take a child, at ``level``, of an allocated cell: ``near`` if it is available, else the least crowded."""
        siblings = self.siblings(level)
        cell = near if near >= 0 and near // siblings.fanout == parent and siblings.available[near] else -1
        if cell < 0:
            cell = siblings.least_crowded(parent)
        siblings.take(cell)
        return cell

    def give_child(self, level: int, cell: int) -> None:
        """Give back a child taken by :meth:`take_child`."""
        self.siblings(level).give(cell)

    def crowd_changed(self, node: int, before: int, after: int) -> None:
        """The opportunistic leaves of ``node`` were the mask ``before`` and are now ``after``.

        O(levels) above the node; below it, only where cells smaller than a node are ever asked for, O(its cells there).
        """
        hierarchy = self.hierarchy
        changed = before ^ after
        for k in range(self.levels.start, hierarchy.node_level):
            size = hierarchy.gpus[k]
            part = (1 << size) - 1
            first = node * (hierarchy.node_size // size)
            for i in range(hierarchy.node_size // size):
                if changed >> (i * size) & part:
                    self._set_crowd(k, first + i, (after >> (i * size) & part).bit_count())
        delta = after.bit_count() - before.bit_count()
        if delta:
            cell = node
            for k in range(hierarchy.node_level, hierarchy.top + 1):
                self._set_crowd(k, cell, self.siblings(k).crowd[cell] + delta)
                cell //= hierarchy.fanout[k + 1]

    def _set_crowd(self, k: int, cell: int, crowd: int) -> None:
        siblings = self.siblings(k)
        siblings.set_crowd(cell, crowd)
        parent = cell // siblings.fanout
        if siblings.available[cell] and self._has_split[k + 1][parent]:
            self._reorder(k, parent)

    def _take(self, k: int, cell: int) -> None:
        """A free cell leaves the free list."""
        siblings = self.siblings(k)
        siblings.take(cell)
        self.free[k] -= 1
        self._reorder(k, cell // siblings.fanout)

    def _split_towards(self, k: int, cell: int, near: int, level: int) -> int:
        """Split a cell just taken at ``k`` and take one child: the one that holds ``near``, else the least crowded."""
        siblings = self.siblings(k - 1)
        if near >= 0:
            child = near // (self.hierarchy.gpus[k - 1] // self.hierarchy.gpus[level])
        else:
            child = siblings.least_crowded(cell)
        self._has_split[k][cell] = 1
        siblings.take(child)
        self.free[k - 1] += siblings.fanout - 1
        self._reorder(k - 1, cell)
        return child

    def _reorder(self, k: int, parent: int) -> None:
        """``parent``'s free children at level ``k`` have changed: put it where it belongs among the split cells."""
        order, least = self._split_order[k], self._least[k]
        siblings = self.siblings(k)
        best = siblings.least_crowded(parent) if self._has_split[k + 1][parent] else -1
        crowd = siblings.crowd[best] if best >= 0 else -1
        old = least.get(parent, -1)
        if crowd == old:
            return
        n = self.hierarchy.count[k + 1]
        if old >= 0:
            order.remove(old * n + parent)
        if crowd >= 0:
            order.add(crowd * n + parent)
            least[parent] = crowd
        else:
            del least[parent]

    def free_cells(self, level: int) -> Iterator[int]:
        """The free list of ``level``, ascending. O(cells); for checks and displays."""
        return (cell for cell in range(self.hierarchy.count[level]) if self.is_free(level, cell))

    def validate(self) -> None:
        """Every free cell is listed once, no free cell is inside another, split cells have something taken."""
        hierarchy = self.hierarchy
        for k in self.levels:
            siblings = self.siblings(k)
            siblings.validate()
            free = list(self.free_cells(k))
            ensure(len(free) == self.free[k], f"number of free cells at level {k}")
            least: dict[int, int] = {}
            for cell in free:
                parent = cell // siblings.fanout
                least[parent] = min(least.get(parent, siblings.crowd[cell]), siblings.crowd[cell])
            ensure(least == self._least[k], f"least crowd per split cell at level {k + 1}")
            n = hierarchy.count[k + 1]
            ensure(
                list(self._split_order[k]) == sorted(c * n + p for p, c in least.items()),
                f"free order, level {k}",
            )
            for parent in range(n):
                if self._has_split[k + 1][parent] and k < hierarchy.top:
                    ensure(
                        not self.siblings(k + 1).available[parent],
                        f"split cell {parent} of level {k + 1} is taken",
                    )
                    ensure(
                        siblings.left[parent] < siblings.fanout,
                        f"split cell {parent} of level {k + 1} was merged",
                    )
