"""One level of a chain: which children of each cell are still to be had, the least crowded first, bad ones last.

*Crowd* is the number of GPUs of a cell in opportunistic use; a cell is *bad* when it has faulty leaves, else *healthy*.
Healthy siblings of one parent stand together, ordered by crowd and then by number, so "the least crowded available
child of P" is one look-up, whatever the fan-out; and a cell is split without a word written, since its children are
listed already. Bad cells stand outside that order: there are few, and they are looked at one by one, here only when
nothing else is left (but see :mod:`hived.cells.faults`).
"""

from __future__ import annotations

from collections.abc import Iterator

from hived.errors import ensure

from .index_set import IndexSet


class Siblings:
    """The cells of one level, grouped by parent.

    A cell is *available* when nobody took it from its parent: neither allocated, nor bound, nor split. All operations
    are O(1) but for building, which is O(cells), and for a parent with no healthy child left: O(its bad children).
    """

    __slots__ = ("_block", "_order", "available", "bad", "bad_under", "count", "crowd", "fanout", "left")

    def __init__(self, count: int, fanout: int, gpus: int) -> None:
        #: cells at this level
        self.count = count
        #: cells per parent
        self.fanout = fanout
        #: opportunistic GPUs in each cell; kept for every cell, available or not
        self.crowd = [0] * count
        #: bad leaves in each cell that has any, available or not
        self.bad: dict[int, int] = {}
        #: the bad children of each parent that has any, available or not
        self.bad_under: dict[int, set[int]] = {}
        #: 1 for each cell that is available
        self.available = bytearray(b"\x01" * count)
        #: available children of each parent
        self.left = [fanout] * (count // fanout)
        # the healthy available cells; key of child c of parent p: p * block + crowd * fanout + c
        self._block = fanout * (gpus + 1)
        self._order = IndexSet(count * (gpus + 1))
        for cell in range(count):
            self._order.add(self._key(cell))

    def _key(self, cell: int) -> int:
        parent, child = divmod(cell, self.fanout)
        return parent * self._block + self.crowd[cell] * self.fanout + child

    def badness(self, cell: int) -> tuple[int, int, int]:
        """Among cells that are all bad, the smallest of these is the one to take: bad leaves, crowd, number."""
        return self.bad.get(cell, 0), self.crowd[cell], cell

    def healthy(self, parent: int) -> int:
        """The healthy available child of ``parent`` with the smallest crowd, then number; -1 when none is left."""
        start = parent * self._block
        key = self._order.first_from(start) - start
        if 0 <= key < self._block:
            return parent * self.fanout + key % self.fanout
        return -1

    def least_crowded(self, parent: int) -> int:
        """The available child of ``parent`` to take: :meth:`healthy`, else the least bad one; -1 when none is left."""
        cell = self.healthy(parent)
        if cell < 0 and self.bad:
            cell = min(self._bad_available(parent), key=self.badness, default=-1)
        return cell

    def by_crowd(self, parent: int) -> Iterator[int]:
        """The available children of ``parent`` in the order in which they would be taken.

        Nothing may change while this is read.
        """
        start = parent * self._block
        key = self._order.first_from(start)
        while 0 <= key < start + self._block:
            yield parent * self.fanout + (key - start) % self.fanout
            key = self._order.first_from(key + 1)
        if self.bad:
            yield from sorted(self._bad_available(parent), key=self.badness)

    def _bad_available(self, parent: int) -> list[int]:
        return [cell for cell in self.bad_under.get(parent, ()) if self.available[cell]]

    def take(self, cell: int) -> None:
        """``cell`` is no longer available."""
        if not self.bad or cell not in self.bad:
            self._order.remove(self._key(cell))
        elif not self.available[cell]:
            raise KeyError(cell)
        self.available[cell] = 0
        self.left[cell // self.fanout] -= 1

    def give(self, cell: int) -> None:
        """``cell`` is available again."""
        if not self.bad or cell not in self.bad:
            self._order.add(self._key(cell))
        self.available[cell] = 1
        self.left[cell // self.fanout] += 1

    def set_crowd(self, cell: int, crowd: int) -> None:
        """The number of opportunistic GPUs in ``cell`` has changed."""
        if self.available[cell] and not (self.bad and cell in self.bad):
            self._order.remove(self._key(cell))
            self.crowd[cell] = crowd
            self._order.add(self._key(cell))
        else:
            self.crowd[cell] = crowd

    def set_bad(self, cell: int, leaves: int) -> None:
        """The number of bad leaves in ``cell`` has changed."""
        parent = cell // self.fanout
        if leaves:
            if cell not in self.bad:
                self.bad_under.setdefault(parent, set()).add(cell)
                if self.available[cell]:
                    self._order.remove(self._key(cell))
            self.bad[cell] = leaves
        elif cell in self.bad:
            del self.bad[cell]
            self.bad_under[parent].remove(cell)
            if not self.bad_under[parent]:
                del self.bad_under[parent]
            if self.available[cell]:
                self._order.add(self._key(cell))

    def validate(self) -> None:
        """The order holds exactly the healthy available cells under their present keys. O(cells)."""
        keys = sorted(self._key(cell) for cell in range(self.count) if self.available[cell] and cell not in self.bad)
        ensure(list(self._order) == keys, "sibling order re-derived from availability, health and crowd")
        for parent, left in enumerate(self.left):
            children = range(parent * self.fanout, (parent + 1) * self.fanout)
            ensure(left == sum(self.available[c] for c in children), f"available children of cell {parent}")
            bad = {c for c in children if c in self.bad}
            ensure(self.bad_under.get(parent, set()) == bad, f"bad children of cell {parent}")
        ensure(all(self.bad.values()) and all(self.bad_under.values()), "only what is bad is listed as bad")
