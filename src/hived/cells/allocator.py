"""Buddy cell allocation (HiveD, OSDI'20, section 3.3, Algorithm 1).

Which physical cell a preassigned virtual cell gets is decided here, level by level, like memory pages by a buddy
system:

    allocate a level-1 cell                                   release it
    level 3  [free]         ->  split into its buddies    ->  both buddies free: merge
    level 2   [free][free]  ->  [split] [free]
    level 1                     [taken][free]

A request takes a free cell of its own level if there is one, else it splits a free cell of the lowest level above. That
rule alone keeps sharing safety (section 3.3): *which* free cell of a level is taken does not matter for it, so the
choice serves the opportunistic jobs: the cell with the fewest GPUs in opportunistic use, then the lowest number.

(Where a higher cell has to be split, it is the least crowded of *its* level, and then its least crowded child.)

Cells with faulty leaves are *bad*. A request gets a healthy cell wherever sharing safety leaves one, which may mean
splitting a higher cell than the rule says; and bad cells are split before healthy ones, which stay whole for those who
want them whole (:mod:`hived.cells.faults` says when and which). Where no healthy one is to be had it gets the least bad
one, by the rule. While no leaf of the chain is bad, all this costs the look whether any is.

Cells are numbers, splitting writes no list, and each level keeps the least crowded healthy cell at hand, so allocating
and releasing cost O(levels) operations of an index set, independent of the fan-out; where hardware is bad,
O(bad cells in free ones) more.
"""

from __future__ import annotations

from collections.abc import Sequence

from hived.errors import InvariantError

from .faults import Supply
from .free_cells import FreeCells


class BuddyAllocator(FreeCells):
    """Which cell of one chain to take.

    A cell at level ``k`` is *free* when it is available and its parent is split (the root always is); an allocated cell
    belongs to one virtual cell, and its children are then taken one by one as that VC needs them (:meth:`take_child`).
    """

    __slots__ = ()

    def allocate(self, level: int, near: int = -1) -> int:
        """Take a free cell at ``level``, splitting a higher one if need be; its number, or -1 when there is none.

        ``near``: a cell number at ``level`` that is taken, or split towards, where the rule above leaves the choice of
        the cell, bad ones to be split included, unless it is bad and a healthy one is to be had.
        """
        if self.bad_leaves:
            return self._allocate_around(level, near)
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
            cell = self._least_crowded_free(k)
            near = -1
        return self._take_inside(k, cell, near, level)

    def _allocate_around(self, level: int, near: int) -> int:
        """:meth:`allocate` while some leaf is bad."""
        source = self._supply().source(level)
        if source is None:
            return -1
        k, cell, healthy = source
        if near >= 0:
            ancestor = near // (self.hierarchy.gpus[k] // self.hierarchy.gpus[level])
            if self.is_free(k, ancestor) and not (healthy and self.is_bad(level, near)):
                cell = ancestor
            else:
                near = -1
        if cell < 0:
            cell = self._least_crowded_free(k)
        return self._take_inside(k, cell, near, level)

    def allocate_exactly(self, level: int, cell: int) -> None:
        """Take this very cell, splitting whatever free cell holds it (for cells pinned by the spec)."""
        hierarchy = self.hierarchy
        k = self._level_of_holder(level, cell)
        if k > hierarchy.top:
            raise InvariantError(f"cell {cell} at level {level} is not free")
        self._take_inside(k, cell // (hierarchy.gpus[k] // hierarchy.gpus[level]), cell, level)

    def can_take(self, level: int, cell: int) -> bool:
        """Whether this very cell is free, or inside a free one, and sharing safety survives its being taken.

        For a cell that some VC reserved and has not bound, as :meth:`allocate_exactly` takes it. O(levels).
        """
        k = self._level_of_holder(level, cell)
        return k <= self.hierarchy.top and all(margin >= (level < i <= k) for i, margin in enumerate(self.margins()))

    def allocate_bad(self, level: int) -> int:
        """Take a cell at ``level`` that is bad, where safety allows; its number, or -1 when there is none.

        For a virtual cell that no healthy one can be had for (*doomed bad*), so that the healthy ones stay for others.
        Fewest bad leaves first, then the lowest level to be split, then the lowest number; not by crowd, since loans
        come and go, and what is doomed should stay. O(levels * bad cells of ``level``).
        """
        if not self.bad_leaves:
            return -1
        highest = self._supply().highest(level)
        siblings = self.siblings(level)
        best = min(
            (
                (leaves, k, cell)
                for cell, leaves in siblings.bad.items()
                if (k := self._level_of_holder(level, cell)) <= highest
            ),
            default=None,
        )
        if best is None:
            return -1
        _, k, cell = best
        return self._take_inside(k, cell // (self.hierarchy.gpus[k] // self.hierarchy.gpus[level]), cell, level)

    def surely_healthy(self, wanted: Sequence[int]) -> bool:
        """Whether :meth:`shortage` is 0 at every level, told without looking at bad cells one by one. O(levels).

        ``False`` may be wrong: healthy cells inside bad ones are not counted, but every bad one that may be split
        around one, before a healthy one is, is taken off the margin of its level.
        """
        hierarchy, margins = self.hierarchy, self.margins()
        spare = splits = 0
        lower = sum(wanted)
        for k in range(hierarchy.top, self.levels.start - 1, -1):
            left = self.free[k] - len(self.free_bad[k]) + spare - wanted[k]
            if left < 0:
                return False
            lower -= wanted[k]
            # bad cells at k that will be split: of those free now and those in bad ones above, one per lower request
            splits = min(len(self.bad[k]), len(self.free_bad[k]) + hierarchy.fanout[k + 1] * splits, lower)
            spare = hierarchy.fanout[k] * min(left, max(0, margins[k] - splits))
        return True

    def shortage(self, wanted: Sequence[int]) -> list[int]:
        """How many of ``wanted[k]`` more cells at each level ``k`` one VC would get bad ones for.

        Exactly as many as come out bad when it takes all of them by :meth:`allocate`, higher levels first, and nobody
        else takes or gives any. ``wanted`` must be within what is reserved and not allocated; cells beyond what there
        is at all are not counted. O(levels) while nothing is bad, else O(levels^2 + levels * b log b), b bad cells.
        """
        if not self.bad_leaves:
            return [0] * len(wanted)
        bad = [set(cells) for cells in self.free_bad]
        return Supply(self.hierarchy, self._siblings, self.free, bad, self.margins()).shortage(wanted)

    def _supply(self) -> Supply:
        return Supply(self.hierarchy, self._siblings, self.free, self.free_bad, self.margins())

    def take_child(self, level: int, parent: int, near: int = -1) -> int:
        """Take a child, at ``level``, of an allocated cell: ``near`` if it is available, else the least crowded.

        A bad child, be it ``near``, is taken only when no healthy one is available.
        """
        siblings = self.siblings(level)
        cell = near if near >= 0 and near // siblings.fanout == parent and siblings.available[near] else -1
        if self.bad_leaves and cell in siblings.bad and siblings.healthy(parent) >= 0:
            cell = -1
        if cell < 0:
            cell = siblings.least_crowded(parent)
        siblings.take(cell)
        return cell

    def take_exactly(self, level: int, cell: int) -> None:
        """Take this very child, at ``level``, of an allocated cell."""
        siblings = self.siblings(level)
        if not siblings.available[cell]:
            raise InvariantError(f"cell {cell} at level {level} was taken from its parent before")
        siblings.take(cell)

    def give_child(self, level: int, cell: int) -> None:
        """Give back a child taken by :meth:`take_child` or :meth:`take_exactly`."""
        self.siblings(level).give(cell)
