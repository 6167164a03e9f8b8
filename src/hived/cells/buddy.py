"""Buddy cell allocation (HiveD, OSDI'20, section 3.3, Algorithm 1).

It decides which physical cell a preassigned virtual cell is bound to, level by level, as a buddy system allocates
memory pages:

    allocate a level-1 cell                                   release it
    level 3  [free]         ->  split into its buddies    ->  both buddies free: merge
    level 2   [free][free]  ->  [split] [free]
    level 1                     [taken][free]

A request takes a free cell of its own level if there is one, else it splits a free cell of the lowest level above. That
rule alone keeps sharing safety (section 3.3): *which* free cell of a level is taken does not matter for it, so the
choice spares the opportunistic jobs: the *least loaned* cell, which has the fewest GPUs in opportunistic use, then the
lowest number. If a higher cell has to be split, it is the least loaned of *its* level, and then its least loaned child.

A cell is one of

    open     not taken: *free* if its parent is split (the root always is), else inside a free cell, or a child of an
             allocated cell that is not bound yet
    split    some of its children are taken, and it is not allocated
    taken    allocated as a whole, or bound as a child of an allocated cell

and, in any of these states, *bad* if it has faulty leaves, else *healthy*. There are two queries on the healthy open
cells: the least loaned child of one parent, and the least loaned free cell of a level. The children of a parent are
bits of one mask per number of opportunistic GPUs, and one more mask has a bit for each of those that is not empty:

    a rack of 8 nodes of 8 GPUs: node 0 is taken, 1 has three opportunistic GPUs, 6 and 7 have one each, the others none

    masks of the rack by opportunistic GPUs    0: 0011_1100   1: 1100_0000   2: 0   3: 0000_0010   4 to 8: 0
    counts of the rack                          0000_1011      least loaned child: lowest bit, then lowest bit: node 2

The first query is two lowest bits. For the second, each level has an order of the split parents of its cells, by
(opportunistic GPUs of the least loaned child, number): the first parent has the least loaned free cell. So splitting or
merging a cell moves *one* entry of one order, whatever the fan-out. The root is never merged; a root with many children
counts as several parents, so that no mask of theirs is long.

Bad cells are in no mask. A request gets a healthy cell wherever sharing safety leaves one, even if that splits a higher
cell than the rule does; and bad cells are split before healthy ones, which stay whole for requests of their own level
(:mod:`hived.cells.healthy_first` has the rules). If no healthy cell is obtainable, the request gets the least bad one,
by the rule. While no leaf of the chain is bad, all this costs one test.

Allocating and releasing cost O(levels) operations on an index set and on masks, which have a bit per child, or per GPU,
of a cell: a few machine words. With bad hardware, O(bad cells in free ones) more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from hived.errors import InvariantError

from . import healthy_first
from .hierarchy import Hierarchy
from .index_set import IndexSet
from .safety import LevelSafety, safety
from .shape import leaves_of

OPEN: Final = 0
SPLIT: Final = 1
TAKEN: Final = 2

#: top cells per mask
_ROOT_FANOUT: Final = 1024


class BuddyAllocator:
    """The cells of one chain: their states, and the choice of the cell to take.

    An allocated cell is bound to one virtual cell, and its children are then taken one by one as that VC needs them
    (:meth:`take_child`). Levels and cells are numbers; level ``top + 1`` is the root.
    """

    def __init__(self, hierarchy: Hierarchy, lowest: int = 1, reserved: Sequence[int] | None = None) -> None:
        """``lowest``: the lowest level that will ever be requested; lower levels are not kept.

        ``reserved``: cells per level that all VCs reserve together, pinned ones included; none when not given. With bad
        hardware they decide which cells may be split around it.
        """
        self.hierarchy = hierarchy
        top = hierarchy.top
        #: the levels kept, in ascending order
        self.levels = range(min(lowest, hierarchy.node_level), top + 1)
        cells = [number if k in self.levels else 0 for k, number in enumerate(hierarchy.count)]
        #: children per cell, and parents per level of children
        self._fanout = [*hierarchy.fanout[: top + 1], min(hierarchy.count[top], _ROOT_FANOUT)]
        self._parents = [-(-cells[k] // self._fanout[k + 1]) for k in range(top + 1)]
        #: per level and cell: OPEN, SPLIT or TAKEN
        self._state = [bytearray(number) for number in cells]
        self._state[top + 1] = bytearray([SPLIT]) * self._parents[top]
        #: per level and cell: GPUs in opportunistic use, in any state of the cell
        self.opportunistic = [[0] * number for number in cells]
        #: per level and parent: how many of its children are open
        self._left = [[self._fanout[k + 1]] * self._parents[k] for k in range(top + 1)]
        #: masks per parent at each level: one for each number of opportunistic GPUs in a child
        self._blocks = [gpus + 1 for gpus in hierarchy.gpus]
        #: per level, parent and number of opportunistic GPUs: the healthy open children with that number, a bit each
        self._masks = [[0] * (self._parents[k] * self._blocks[k]) for k in range(top + 1)]
        #: per level and parent: the numbers of opportunistic GPUs with a nonzero mask, a bit each
        self._counts = [[1] * self._parents[k] for k in range(top + 1)]
        #: per level: split parents with healthy open children, by (opportunistic GPUs of the least loaned one, number)
        self._order = [IndexSet(self._blocks[k] * self._parents[k]) for k in range(top + 1)]
        for k in self.levels:
            self._masks[k][:: self._blocks[k]] = [(1 << self._fanout[k + 1]) - 1] * self._parents[k]
        beyond = self._parents[top] * self._fanout[top + 1] - hierarchy.count[top]
        self._masks[top][-self._blocks[top]] >>= beyond
        self._left[top][-1] -= beyond
        for part_of_root in range(self._parents[top]):
            self._order[top].add(part_of_root)
        #: number of changes of the free lists or the bad leaves
        self.changes = 0
        #: free cells per level (f of equation 1)
        self.free = [0] * top + [hierarchy.count[top]]
        #: allocated cells per level (a of equation 1)
        self.allocated = [0] * (top + 1)
        #: cells that all VCs reserve together, per level (r of equation 1)
        self.reserved = [0] * (top + 1) if reserved is None else list(reserved)
        #: bad leaves in the chain
        self.bad_leaves = 0
        #: per level: bad cells in any state, with their number of bad leaves
        self.bad: list[dict[int, int]] = [{} for _ in range(top + 1)]
        #: per level: bad cells by parent
        self.bad_under: list[dict[int, set[int]]] = [{} for _ in range(top + 1)]
        #: per level: bad free cells
        self.free_bad: list[set[int]] = [set() for _ in range(top + 1)]

    # -- queries ------------------------------------------------------------------------------------------------------

    def is_open(self, level: int, cell: int) -> bool:
        """Whether ``cell`` is neither allocated, nor bound, nor split."""
        self._check_kept(level)
        return self._state[level][cell] == OPEN

    def is_free(self, level: int, cell: int) -> bool:
        """Whether ``cell`` is in the free list of ``level``."""
        return self.is_open(level, cell) and self._state[level + 1][cell // self._fanout[level + 1]] == SPLIT

    def is_bad(self, level: int, cell: int) -> bool:
        """Whether ``cell`` has a bad leaf."""
        return cell in self.bad[level]

    def bad_children(self, level: int, parent: int) -> list[int]:
        """The bad children, at ``level``, of the cell ``parent``, ascending, open or not. O(bad children)."""
        return sorted(self.bad_under[level].get(parent, ()))

    def badness(self, level: int, cell: int) -> tuple[int, int, int]:
        """Sort key of bad cells of one level, the smallest taken first: bad leaves, opportunistic GPUs, number."""
        return self.bad[level].get(cell, 0), self.opportunistic[level][cell], cell

    def safety(self) -> tuple[LevelSafety, ...]:
        """Evaluate equations 1 and 2, from the top level down. O(levels)."""
        return safety(self.hierarchy, self.reserved, self.allocated, self.free)

    def margins(self) -> list[int]:
        """:attr:`LevelSafety.margin` by level (index 0 is 0): cells to spare; negative is unsafe. O(levels)."""
        margins = [0] * len(self.free)
        margin = 0
        for k in range(self.hierarchy.top, 0, -1):
            margin = self.free[k] + margin * self._fanout[k + 1] - (self.reserved[k] - self.allocated[k])
            margins[k] = margin
        return margins

    def can_take(self, level: int, cell: int) -> bool:
        """Whether this very cell is free, or inside a free one, and sharing safety survives its being taken.

        For a cell that some VC reserved and has not bound, as :meth:`allocate_at` takes it. O(levels).
        """
        k = self.level_of_holder(level, cell)
        return k <= self.hierarchy.top and all(margin >= (level < i <= k) for i, margin in enumerate(self.margins()))

    def level_of_holder(self, level: int, cell: int) -> int:
        """The level of the free cell that is, or holds, ``cell``; above the top when there is none. O(levels)."""
        k = level
        while k <= self.hierarchy.top and not self.is_free(k, cell):
            k += 1
            cell //= self._fanout[k]
        return k

    def shortage(self, wanted: Sequence[int]) -> list[int]:
        """Per level ``k``, how many of ``wanted[k]`` more cells of one VC would be bad.

        This is exactly the number of bad cells it gets when it takes all of them by :meth:`allocate`, higher levels
        first, with no other change meanwhile. ``wanted`` must be within what is reserved and not allocated; cells
        beyond the size of the chain are not counted. O(levels) if nothing is bad or healthy cells abound, else
        O(levels^2 + levels * b log b) for b bad cells.
        """
        if not (self.bad_leaves and any(wanted)) or healthy_first.surely_healthy(self, wanted):
            return [0] * len(wanted)
        return healthy_first.Supply(self).shortage(wanted)

    # -- allocating ---------------------------------------------------------------------------------------------------

    def allocate(self, level: int, near: int = -1) -> int:
        """Take a free cell at ``level``, splitting a higher one if needed; its number, or -1 when there is none.

        ``near``: a cell number at ``level`` that is preferred among the cells that the rule allows, bad ones to be
        split included, unless it is bad and a healthy one is obtainable.
        """
        if not self.free[level]:
            self._check_kept(level)
        k, cell = level, -1
        if not self.bad_leaves:
            while not self.free[k]:
                k += 1
                if k == len(self.free):
                    return -1
        else:
            is_healthy = True
            if self.free[k] == len(self.free_bad[k]):
                source = healthy_first.Supply(self).source(level)
                if source is None:
                    return -1
                k, cell, is_healthy = source
            if is_healthy and near in self.bad[level]:
                near = -1
        if near >= 0:
            ancestor = near // (self.hierarchy.gpus[k] // self.hierarchy.gpus[level])
            if self.is_free(k, ancestor):
                cell = ancestor
            else:
                near = -1
        if cell < 0:
            cell = self._least_child(k, self._order[k].first() % self._parents[k])
        return self._allocate_inside(k, cell, near, level)

    def choices(self, level: int, parent: int = -1) -> Iterator[int]:
        """Healthy cells of ``level`` that the rule allows too, the least loaned first: children of an allocated cell.

        Without ``parent``: cells that :meth:`allocate` could take, from the least loaned free cell of the level above
        that it would split. None where only the rule knows (bad hardware).
        """
        k = level
        if parent < 0:
            while k < len(self.free) and not self.free[k]:
                k += 1
            if k == len(self.free) or (self.bad_leaves and k > level):
                return
            if k == level:
                for at in self._order[k]:
                    yield from self._children(k, at % self._parents[k])
                return
            parent = self._least_child(k, self._order[k].first() % self._parents[k])
            while k > level + 1:
                k -= 1
                parent = self._least_child(k, parent)
        yield from self._children(level, parent)

    def _children(self, k: int, parent: int) -> Iterator[int]:
        """The healthy open children, at ``k``, of a cell, the least loaned first."""
        first = parent * self._fanout[k + 1]
        for count in leaves_of(self._counts[k][parent]):
            for child in leaves_of(self._masks[k][parent * self._blocks[k] + count]):
                yield first + child

    def allocate_at(self, level: int, cell: int) -> None:
        """Take the given cell, splitting the free cell that holds it (for cells pinned by the spec)."""
        k = self.level_of_holder(level, cell)
        if k > self.hierarchy.top:
            raise InvariantError(f"cell {cell} at level {level} is not free")
        self._allocate_inside(k, cell // (self.hierarchy.gpus[k] // self.hierarchy.gpus[level]), cell, level)

    def allocate_bad(self, level: int) -> int:
        """Take a bad cell at ``level``, where safety allows; its number, or -1 when there is none.

        For a virtual cell that cannot get a healthy one (*doomed bad*), so that healthy cells stay for others. Fewest
        bad leaves first, then the lowest level to be split, then the lowest number; not by opportunistic GPUs, since
        loans come and go, and a doomed binding should be stable. O(levels * bad cells of ``level``).
        """
        highest = healthy_first.Supply(self).highest(level)
        ranked = ((leaves, self.level_of_holder(level, cell), cell) for cell, leaves in self.bad[level].items())
        _, _, cell = min((rank for rank in ranked if rank[1] <= highest), default=(0, 0, -1))
        if cell >= 0:
            self.allocate_at(level, cell)
        return cell

    def _allocate_inside(self, k: int, cell: int, near: int, level: int) -> int:
        """Allocate a cell of ``level`` from a free cell at ``k``: ``near``, or else a choice at every split.

        The choice is a bad child that holds a healthy cell of ``level``, else the least loaned healthy child, else a
        bad one.
        """
        self.changes += 1
        self.free[k] -= 1
        if self.bad_leaves:
            self.free_bad[k].discard(cell)
        self._set(k, cell, TAKEN)
        while k > level:  # split it, and take one child
            parent, k = cell, k - 1
            bad = self.bad_under[k].get(parent)
            cell = -1
            if near >= 0:
                cell = near // (self.hierarchy.gpus[k] // self.hierarchy.gpus[level])
            elif bad:
                cell = healthy_first.bad_child_towards(self, k + 1, parent, level)
            if cell < 0:
                cell = self._least_child(k, parent)
            self._set(k, cell, TAKEN)
            self._state[k + 1][parent] = SPLIT
            self._reorder(k, parent, 0, self._counts[k][parent])
            self.free[k] += self._fanout[k + 1] - 1
            if bad:
                self.free_bad[k] |= bad - {cell}
        self.allocated[level] += 1
        return cell

    def release(self, level: int, cell: int) -> None:
        """Release an allocated cell and merge it with its buddies as far up as they are all free."""
        if self._state[level][cell] != TAKEN:
            raise InvariantError(f"cell {cell} at level {level} is not allocated")
        self.allocated[level] -= 1
        self.changes += 1
        k, parent = level, cell // self._fanout[level + 1]
        while k < self.hierarchy.top and self._left[k][parent] + 1 == self._fanout[k + 1]:
            self._reorder(k, parent, self._counts[k][parent], 0)
            self._state[k + 1][parent] = TAKEN
            self._set(k, cell, OPEN)
            self.free[k] -= self._fanout[k + 1] - 1
            self.free_bad[k].difference_update(self.bad_under[k].get(parent, ()))
            k, cell = k + 1, parent
            parent = cell // self._fanout[k + 1]
        self._set(k, cell, OPEN)
        self.free[k] += 1
        if cell in self.bad[k]:
            self.free_bad[k].add(cell)

    # -- children of allocated cells ----------------------------------------------------------------------------------

    def take_child(self, level: int, parent: int, near: int = -1) -> int:
        """Take a child, at ``level``, of an allocated cell: ``near`` if it is open, else the least loaned.

        A bad child, even ``near``, is taken only if no healthy one is open.
        """
        cell = near
        if (
            near < 0
            or near // self._fanout[level + 1] != parent
            or self._state[level][near] != OPEN
            or (near in self.bad[level] and self._counts[level][parent])
        ):
            cell = self._least_child(level, parent)
            if cell < 0:
                raise InvariantError(f"all children of cell {parent} at level {level + 1} were taken before")
        self._set(level, cell, TAKEN)
        return cell

    def take_child_at(self, level: int, cell: int) -> None:
        """Take the given child, at ``level``, of an allocated cell."""
        if self._state[level][cell] != OPEN:
            raise InvariantError(f"cell {cell} at level {level} was taken from its parent before")
        self._set(level, cell, TAKEN)

    def give_child(self, level: int, cell: int) -> None:
        """Release a child taken by :meth:`take_child` or :meth:`take_child_at`."""
        if self._state[level][cell] != TAKEN:
            raise InvariantError(f"cell {cell} at level {level} was not taken from its parent")
        self._set(level, cell, OPEN)

    # -- opportunistic use and bad leaves -----------------------------------------------------------------------------

    def set_opportunistic(self, node: int, before: int, after: int) -> None:
        """Update the leaves of ``node`` in opportunistic use from the mask ``before`` to ``after``.

        O(levels) above the node; below it, O(its cells at the kept levels).
        """
        for k, cell, more in self._changes(node, before, after):
            old = self.opportunistic[k][cell]
            new = self.opportunistic[k][cell] = old + more
            if self._state[k][cell] == OPEN and cell not in self.bad[k]:
                parent = cell // self._fanout[k + 1]
                bit = 1 << cell - parent * self._fanout[k + 1]
                first, masks = parent * self._blocks[k], self._masks[k]
                toggled = 0 if masks[first + new] else 1 << new
                masks[first + new] |= bit
                masks[first + old] ^= bit
                if not masks[first + old]:
                    toggled |= 1 << old
                if toggled:
                    self._toggle(k, parent, toggled)

    def set_bad(self, node: int, before: int, after: int) -> None:
        """Update the bad leaves of ``node`` from the mask ``before`` to ``after``.

        Its cells may be in any state; allocated cells stay allocated. Cost as :meth:`set_opportunistic`.
        """
        self.bad_leaves += after.bit_count() - before.bit_count()
        self.changes += 1
        for k, cell, more in self._changes(node, before, after):
            bad, under, parent = self.bad[k], self.bad_under[k], cell // self._fanout[k + 1]
            is_open, is_free = self.is_open(k, cell), self.is_free(k, cell)
            if is_open:  # remove it from the order; it is added again if it is healthy now
                self._set(k, cell, TAKEN)
            under.setdefault(parent, set()).add(cell)
            bad[cell] = bad.get(cell, 0) + more
            if not bad[cell]:
                del bad[cell]
                under[parent].remove(cell)
                if not under[parent]:
                    del under[parent]
                self.free_bad[k].discard(cell)
            elif is_free:
                self.free_bad[k].add(cell)
            if is_open:
                self._set(k, cell, OPEN)

    def _changes(self, node: int, before: int, after: int) -> Iterator[tuple[int, int, int]]:
        """(level, cell, more leaves in ``after``) of every kept cell whose number changes, from the lowest level up."""
        hierarchy = self.hierarchy
        for k in range(self.levels.start, hierarchy.node_level):
            size = hierarchy.gpus[k]
            part = (1 << size) - 1
            first = node * (hierarchy.node_size // size)
            for i in range(hierarchy.node_size // size):
                more = (after >> (i * size) & part).bit_count() - (before >> (i * size) & part).bit_count()
                if more:
                    yield k, first + i, more
        more = after.bit_count() - before.bit_count()
        if more:
            cell = node
            for k in range(hierarchy.node_level, hierarchy.top + 1):
                yield k, cell, more
                cell //= self._fanout[k + 1]

    # -- the open cells by opportunistic GPUs -------------------------------------------------------------------------

    def _least_child(self, k: int, parent: int) -> int:
        """The least loaned healthy open child, at ``k``, else the least bad open one; -1 when none is open."""
        counts = self._counts[k][parent]
        if counts:
            mask = self._masks[k][parent * self._blocks[k] + (counts & -counts).bit_length() - 1]
            return parent * self._fanout[k + 1] + (mask & -mask).bit_length() - 1
        bad = self.bad_under[k].get(parent, ())
        return min((self.badness(k, cell) for cell in bad if self._state[k][cell] == OPEN), default=(0, 0, -1))[2]

    def _set(self, k: int, cell: int, state: int) -> None:
        """Change the state of a cell between OPEN and TAKEN, and its parent's masks with it."""
        fanout = self._fanout[k + 1]
        parent = cell // fanout
        self._state[k][cell] = state
        self._left[k][parent] += 1 if state == OPEN else -1
        if cell not in self.bad[k]:
            count = self.opportunistic[k][cell]
            masks = self._masks[k]
            at = parent * self._blocks[k] + count
            before = masks[at]
            after = masks[at] = before ^ (1 << cell - parent * fanout)
            if not (before and after):
                self._toggle(k, parent, 1 << count)

    def _toggle(self, k: int, parent: int, toggled: int) -> None:
        """Toggle the bits of masks of a parent that have become, or ceased to be, 0."""
        counts = self._counts[k]
        before = counts[parent]
        after = counts[parent] = before ^ toggled
        if self._state[k + 1][parent] == SPLIT:
            self._reorder(k, parent, before, after)

    def _reorder(self, k: int, parent: int, before: int, after: int) -> None:
        """Move a split parent in the order by the lowest of its counts; without counts it is not in the order."""
        before &= -before
        after &= -after
        if before != after:
            order, n = self._order[k], self._parents[k]
            if before:
                order.remove((before.bit_length() - 1) * n + parent)
            if after:
                order.add((after.bit_length() - 1) * n + parent)

    # -- checking -----------------------------------------------------------------------------------------------------

    def _check_kept(self, level: int) -> None:
        if level < self.levels.start:
            raise InvariantError(f"level {level} is below the lowest this allocator was built for")
