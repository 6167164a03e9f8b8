"""Static binding: every virtual cell is bound from the start, for good, and leaf by leaf.

The baseline of dynamic binding (HiveD, OSDI'20, section 5.3, Figure 10). The preassigned cells take the physical cells
of their levels in the order of the spec, pinned cells first, the lowest number each time; cell ``i`` inside a cell is
bound to cell ``i`` of the physical one, down to the leaves. So a VC's choice of leaves alone decides which
opportunistic groups are preempted, and bad hardware stays where it is: in the cells of the VC that is bound to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .binding import Binding, ChainBindings
from .undo import Undo
from .virtual import VirtualCells


class StaticBinding(Binding):
    """The bindings of a VC's cells, of which only the health of the leaves changes. O(cells of the VC) to make."""

    def __init__(
        self, virtual: VirtualCells, free: Sequence[int], chain: ChainBindings, undo: Undo, pinned_to: int = -1
    ) -> None:
        """A pinned cell is bound at once, since no other cell may take its place; the others by :meth:`bind_all`."""
        super().__init__(virtual, free, chain, undo)
        if pinned_to >= 0:
            self.pinned = next(v for v, cell in enumerate(virtual.cells) if cell.parent < 0)
            self.allocator.allocate_at(virtual.cells[self.pinned].level, pinned_to)
            self._bind_below(self.pinned, pinned_to)

    def bind_all(self) -> None:
        """Bind the preassigned cells that are unbound, each to the lowest free cell of its level."""
        for cell, (level, parent) in enumerate(self.virtual.cells):
            if parent < 0 and self.bound[cell] < 0:
                self._bind_below(cell, self.allocator.allocate(level))

    def _bind_below(self, cell: int, physical: int) -> None:
        """Bind a cell to the physical one that it was given, and all cells inside to its children in order."""
        self._bind_cell(cell, physical)
        if cell < self.virtual.hosts:
            self.inner[cell] = tuple(range(len(self.virtual.shapes[cell].masks)))
            return
        below, children = self.virtual.cells[cell].level - 1, self.children[cell]
        for child, at in zip(children, range(physical * len(children), (physical + 1) * len(children)), strict=True):
            self.allocator.take_child_at(below, at)
            self._bind_below(child, at)

    def _place(self, host: int) -> tuple[int, int]:
        """The node that ``host`` is in, and the number of its first leaf there."""
        return divmod(self.bound[host] * self.virtual.shapes[host].leaves, self.virtual.hierarchy.node_size)

    def bind_leaves(
        self, host: int, mask: int, opportunistic: list[int], near: tuple[int, int] | None = None
    ) -> tuple[int, int]:
        """The physical leaves of the virtual ones, whatever runs there."""
        node, first = self._place(host)
        return node, mask << first

    def bind_leaves_at(self, host: int, leaves: int) -> int:
        """The virtual leaves of the physical ones; 0 if some are in use."""
        return 0 if leaves & ~self.free[host] else leaves

    def unbind(self, host: int, mask: int) -> None:
        """Do nothing: the binding is for good."""

    def health_changed(self, cell: int, node: int) -> None:
        """Update the bad leaves of the host of the preassigned ``cell`` on this node. O(levels)."""
        hierarchy = self.virtual.hierarchy
        while cell >= self.virtual.hosts:
            below = hierarchy.gpus[self.virtual.cells[cell].level - 1]
            cell = self.children[cell][node * hierarchy.node_size // below % len(self.children[cell])]
        self._set_bad(cell, self._bad_in(cell))

    def _bad_in(self, host: int) -> int:
        node, first = self._place(host)
        return self.bad_leaves[node] >> first & self.virtual.shapes[host].full
