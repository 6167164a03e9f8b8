"""One level of a chain: which children of each cell are still to be had, the least crowded first.

*Crowd* is the number of GPUs of a cell in opportunistic use. Siblings of one parent stand together, ordered by crowd
and then by number, so "the least crowded available child of P" is one look-up, whatever the fan-out; and a cell is
split without a word written, since its children are listed already.
"""

from __future__ import annotations

from collections.abc import Iterator

from hived.errors import ensure

from .index_set import IndexSet


class Siblings:
    """The cells of one level, grouped by parent.

    A cell is *available* when nobody took it from its parent: neither allocated, nor bound, nor split. All operations
    are O(1) but for building, which is O(cells).
    """

    __slots__ = ("_block", "_order", "available", "count", "crowd", "fanout", "left")

    def __init__(self, count: int, fanout: int, gpus: int) -> None:
        #: cells at this level
        self.count = count
        #: cells per parent
        self.fanout = fanout
        #: opportunistic GPUs in each cell; kept for every cell, available or not
        self.crowd = [0] * count
        #: 1 for each cell that is available
        self.available = bytearray(b"\x01" * count)
        #: available children of each parent
        self.left = [fanout] * (count // fanout)
        # key of child c of parent p: p * block + crowd * fanout + c
        self._block = fanout * (gpus + 1)
        self._order = IndexSet(count * (gpus + 1))
        for cell in range(count):
            self._order.add(self._key(cell))

    def _key(self, cell: int) -> int:
        parent, child = divmod(cell, self.fanout)
        return parent * self._block + self.crowd[cell] * self.fanout + child

    def least_crowded(self, parent: int) -> int:
        """The available child of ``parent`` with the smallest crowd, then the lowest number; -1 when none is left."""
        start = parent * self._block
        key = self._order.first_from(start) - start
        if 0 <= key < self._block:
            return parent * self.fanout + key % self.fanout
        return -1

    def by_crowd(self, parent: int) -> Iterator[int]:
        """The available children of ``parent``, the least crowded first. Nothing may change while this is read."""
        start = parent * self._block
        key = self._order.first_from(start)
        while 0 <= key < start + self._block:
            yield parent * self.fanout + (key - start) % self.fanout
            key = self._order.first_from(key + 1)

    def take(self, cell: int) -> None:
        """``cell`` is no longer available."""
        self._order.remove(self._key(cell))
        self.available[cell] = 0
        self.left[cell // self.fanout] -= 1

    def give(self, cell: int) -> None:
        """``cell`` is available again."""
        self._order.add(self._key(cell))
        self.available[cell] = 1
        self.left[cell // self.fanout] += 1

    def set_crowd(self, cell: int, crowd: int) -> None:
        """The number of opportunistic GPUs in ``cell`` has changed."""
        if self.available[cell]:
            self._order.remove(self._key(cell))
            self.crowd[cell] = crowd
            self._order.add(self._key(cell))
        else:
            self.crowd[cell] = crowd

    def validate(self) -> None:
        """The order holds exactly the available cells under their present keys. O(cells)."""
        keys = sorted(self._key(cell) for cell in range(self.count) if self.available[cell])
        ensure(list(self._order) == keys, "sibling order re-derived from availability and crowd")
        for parent, left in enumerate(self.left):
            children = range(parent * self.fanout, (parent + 1) * self.fanout)
            ensure(left == sum(self.available[c] for c in children), f"available children of cell {parent}")
