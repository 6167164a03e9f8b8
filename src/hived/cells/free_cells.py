"""What is free, split, allocated and bad in one chain, and how taking, splitting and merging change it.

    free       available, and its parent is split (the root always is)      }  per level: counted, and in one order of
    split      some of its children are taken                               }  parents by their least crowded healthy
    allocated  taken as a whole; its children are then taken one by one     }  free child; bad free cells apart
    bad        some of its leaves are faulty, whatever else it is

Which cell to take is decided in :mod:`hived.cells.allocator`. Each step here costs a few operations of an index set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hived.errors import InvariantError, ensure

from .faults import bad_child_towards
from .hierarchy import Hierarchy
from .index_set import IndexSet
from .safety import LevelSafety, safety
from .siblings import Siblings


class FreeCells:
    """The cells of one chain, level by level."""

    __slots__ = (
        "_has_split",
        "_least",
        "_siblings",
        "_split_order",
        "allocated",
        "bad",
        "bad_leaves",
        "changes",
        "free",
        "free_bad",
        "hierarchy",
        "levels",
        "reserved",
    )

    def __init__(self, hierarchy: Hierarchy, lowest: int = 1, reserved: Sequence[int] | None = None) -> None:
        """``lowest``: the lowest level that will ever be asked for; levels below cost nothing then.

        ``reserved``: cells per level that all VCs reserve together, pinned ones included; none when not given. They
        matter where hardware is bad, and decide what may be split around it.
        """
        self.hierarchy = hierarchy
        top = hierarchy.top
        low = min(lowest, hierarchy.node_level)
        #: the levels kept, in ascending order
        self.levels = range(low, top + 1)
        self._has_split = [bytearray(n) for n in hierarchy.count]
        self._siblings: dict[int, Siblings] = {}
        # Split cells with healthy free children, by (least crowd among those, number): one set per level of children.
        self._split_order = [IndexSet(1) for _ in range(top + 1)]
        self._least: list[dict[int, int]] = [{} for _ in range(top + 1)]
        for k in self.levels:
            self._siblings[k] = Siblings(hierarchy.count[k], hierarchy.fanout[k + 1], hierarchy.gpus[k])
            self._split_order[k] = IndexSet((hierarchy.gpus[k] + 1) * hierarchy.count[k + 1])
        #: counts what changes the free lists or the bad leaves
        self.changes = 0
        #: free cells per level (f of equation 1)
        self.free = [0] * (top + 1)
        #: allocated cells per level (a of equation 1)
        self.allocated = [0] * (top + 1)
        #: cells that all VCs reserve together, per level (r of equation 1)
        self.reserved = [0] * (top + 1) if reserved is None else list(reserved)
        #: bad leaves in the chain
        self.bad_leaves = 0
        #: bad leaves of each cell that has any, per level: free, allocated, or inside such a cell
        self.bad: list[dict[int, int]] = [self._siblings[k].bad if k in self.levels else {} for k in range(top + 1)]
        #: the free cells that are bad, per level
        self.free_bad: list[set[int]] = [set() for _ in range(top + 1)]
        self._has_split[top + 1][0] = 1
        self.free[top] = hierarchy.count[top]
        self._reorder(top, 0)

    # -- looking ------------------------------------------------------------------------------------------------------

    def siblings(self, level: int) -> Siblings:
        """The cells of ``level`` by parent."""
        try:
            return self._siblings[level]
        except KeyError:
            raise InvariantError(f"level {level} is below the lowest this allocator was built for") from None

    def is_free(self, level: int, cell: int) -> bool:
        """Whether ``cell`` stands in the free list of ``level``."""
        parent = cell // self.hierarchy.fanout[level + 1]
        return bool(self.siblings(level).available[cell] and self._has_split[level + 1][parent])

    def free_cells(self, level: int) -> Iterator[int]:
        """The free list of ``level``, ascending. O(cells); for checks and displays."""
        return (cell for cell in range(self.hierarchy.count[level]) if self.is_free(level, cell))

    def by_crowd(self, level: int) -> Iterator[int]:
        """The cells of ``level`` that are free or inside free ones, in about the order in which they would be taken.

        Those for which the lowest cell is split come first, and then the least crowded; free cells all of whose free
        siblings are bad are left out. Nothing may change meanwhile.
        """
        for k in range(level, self.hierarchy.top + 1):
            for key in self._split_order[k]:
                for cell in self.siblings(k).by_crowd(key % self.hierarchy.count[k + 1]):
                    yield from self.inside(k, cell, level)

    def inside(self, k: int, cell: int, level: int) -> Iterator[int]:
        """The cells of ``level`` inside a cell of ``k`` that is not split, each time the least crowded child first."""
        if k == level:
            yield cell
            return
        for child in self.siblings(k - 1).by_crowd(cell):
            yield from self.inside(k - 1, child, level)

    def is_bad(self, level: int, cell: int) -> bool:
        """Whether ``cell`` has a bad leaf."""
        return cell in self.siblings(level).bad

    def bad_children(self, level: int, parent: int) -> list[int]:
        """The bad children, at ``level``, of ``parent``, ascending, available or not. O(those)."""
        return sorted(self.siblings(level).bad_under.get(parent, ()))

    def safety(self) -> tuple[LevelSafety, ...]:
        """Equations 1 and 2 as they stand now, from the top level down. O(levels)."""
        return safety(self.hierarchy, self.reserved, self.allocated, self.free)

    def margins(self) -> list[int]:
        """:attr:`LevelSafety.margin` by level (index 0 is 0): cells to spare; negative is unsafe. O(levels)."""
        hierarchy = self.hierarchy
        margins = [0] * (hierarchy.top + 1)
        margin = 0
        for k in range(hierarchy.top, 0, -1):
            obtainable = margin * hierarchy.fanout[k + 1]
            margin = margins[k] = self.free[k] + obtainable - (self.reserved[k] - self.allocated[k])
        return margins

    def _level_of_holder(self, level: int, cell: int) -> int:
        """The level of the free cell that is, or holds, ``cell``; above the top when there is none."""
        fanout, top = self.hierarchy.fanout, self.hierarchy.top
        k = level
        while k <= top and not self.is_free(k, cell):
            cell //= fanout[k + 1]
            k += 1
        return k

    def _least_crowded_free(self, k: int) -> int:
        """The healthy free cell of ``k`` in the parent with the least crowded one; there must be one."""
        parent = self._split_order[k].first() % self.hierarchy.count[k + 1]
        return self.siblings(k).healthy(parent)

    # -- taking, splitting, merging -----------------------------------------------------------------------------------

    def _take_inside(self, k: int, cell: int, near: int, level: int) -> int:
        """Allocate a cell of ``level`` from a free cell at ``k``: ``near``, or what the choices at every split give."""
        self._take(k, cell)
        while k > level:
            cell = self._split_towards(k, cell, near, level)
            k -= 1
        self.allocated[level] += 1
        return cell

    def _take(self, k: int, cell: int) -> None:
        """A free cell leaves the free list."""
        siblings = self.siblings(k)
        siblings.take(cell)
        self.changes += 1
        self.free[k] -= 1
        if self.bad_leaves:
            self.free_bad[k].discard(cell)
        self._reorder(k, cell // siblings.fanout)

    def _split_towards(self, k: int, cell: int, near: int, level: int) -> int:
        """Split a cell just taken at ``k`` and take one child: the one that holds ``near``, else the best.

        That is a bad one that holds a healthy cell of ``level``, else the least crowded healthy one, else any bad one.
        """
        siblings = self.siblings(k - 1)
        has_bad = self.bad_leaves and cell in siblings.bad_under
        if near >= 0:
            child = near // (self.hierarchy.gpus[k - 1] // self.hierarchy.gpus[level])
        else:
            child = bad_child_towards(self._siblings, k, cell, level) if has_bad else -1
            if child < 0:
                child = siblings.healthy(cell)
        self._has_split[k][cell] = 1
        siblings.take(child)
        self.free[k - 1] += siblings.fanout - 1
        if has_bad:
            self.free_bad[k - 1].update(siblings.bad_under[cell])
            self.free_bad[k - 1].discard(child)
        self._reorder(k - 1, cell)
        return child

    def release(self, level: int, cell: int) -> None:
        """Give an allocated cell back; it merges with its buddies as far up as they are all free."""
        hierarchy = self.hierarchy
        self.allocated[level] -= 1
        self.changes += 1
        k = level
        while True:
            siblings = self.siblings(k)
            siblings.give(cell)
            self.free[k] += 1
            if self.bad_leaves and cell in siblings.bad:
                self.free_bad[k].add(cell)
            parent = cell // hierarchy.fanout[k + 1]
            if k == hierarchy.top or siblings.left[parent] < siblings.fanout:
                self._reorder(k, parent)
                return
            self.free[k] -= siblings.fanout
            if self.bad_leaves and parent in siblings.bad_under:
                self.free_bad[k] -= siblings.bad_under[parent]
            self._has_split[k + 1][parent] = 0
            self._reorder(k, parent)
            k, cell = k + 1, parent

    # -- crowds and bad leaves ----------------------------------------------------------------------------------------

    def crowd_changed(self, node: int, before: int, after: int) -> None:
        """The opportunistic leaves of ``node`` were the mask ``before`` and are now ``after``.

        O(levels) above the node; below it, only where cells smaller than a node are ever asked for, O(its cells there).
        """
        for k, cell, more in self._changes(node, before, after):
            siblings = self._siblings[k]
            siblings.set_crowd(cell, siblings.crowd[cell] + more)
            if self.is_free(k, cell):
                self._reorder(k, cell // siblings.fanout)

    def set_bad(self, node: int, before: int, after: int) -> None:
        """The faulty leaves of ``node`` were the mask ``before`` and are now ``after``. Costs as :meth:`crowd_changed`.

        Its cells may be free, allocated, or inside such; what is allocated stays so.
        """
        self.bad_leaves += after.bit_count() - before.bit_count()
        self.changes += 1
        for k, cell, more in self._changes(node, before, after):
            siblings = self._siblings[k]
            siblings.set_bad(cell, siblings.bad.get(cell, 0) + more)
            if self.is_free(k, cell):
                if cell in siblings.bad:
                    self.free_bad[k].add(cell)
                else:
                    self.free_bad[k].discard(cell)
                self._reorder(k, cell // siblings.fanout)

    def _changes(self, node: int, before: int, after: int) -> Iterator[tuple[int, int, int]]:
        """(level, cell, leaves more in ``after``) for every kept cell that is touched."""
        hierarchy = self.hierarchy
        changed = before ^ after
        for k in range(self.levels.start, hierarchy.node_level):
            size = hierarchy.gpus[k]
            part = (1 << size) - 1
            first = node * (hierarchy.node_size // size)
            for i in range(hierarchy.node_size // size):
                if changed >> (i * size) & part:
                    old, new = before >> (i * size) & part, after >> (i * size) & part
                    yield k, first + i, new.bit_count() - old.bit_count()
        more = after.bit_count() - before.bit_count()
        if more:
            cell = node
            for k in range(hierarchy.node_level, hierarchy.top + 1):
                yield k, cell, more
                cell //= hierarchy.fanout[k + 1]

    def _reorder(self, k: int, parent: int) -> None:
        """The healthy free children at ``k`` of ``parent`` have changed: put it in its place among the split cells."""
        order, least = self._split_order[k], self._least[k]
        siblings = self.siblings(k)
        best = siblings.healthy(parent) if self._has_split[k + 1][parent] else -1
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

    # -- checking -----------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Every free cell is listed once, no free cell is inside another, split cells have something taken."""
        hierarchy = self.hierarchy
        for k in self.levels:
            siblings = self.siblings(k)
            siblings.validate()
            free = list(self.free_cells(k))
            ensure(len(free) == self.free[k], f"number of free cells at level {k}")
            self._validate_bad(k, free)
            least: dict[int, int] = {}
            for cell in free:
                if cell not in siblings.bad:
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

    def _validate_bad(self, k: int, free: Sequence[int]) -> None:
        bad = self.bad[k]
        ensure(bad is self.siblings(k).bad, f"bad cells at level {k}")
        ensure(sum(bad.values()) == self.bad_leaves, f"bad leaves at level {k} are those of the chain")
        ensure(self.free_bad[k] == {cell for cell in free if cell in bad}, f"free bad cells at level {k}")
        if k > self.levels.start:
            leaves: dict[int, int] = {}
            for cell, number in self.bad[k - 1].items():
                parent = cell // self.hierarchy.fanout[k]
                leaves[parent] = leaves.get(parent, 0) + number
            ensure(leaves == bad, f"bad leaves at level {k} from those below")
