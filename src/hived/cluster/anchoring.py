"""The state of a pool's bindings, and what bad hardware does to it.

Inside a bound cell every bad physical child has a virtual child bound to it at once: *anchored* there while nothing is
in use in it. So a VC always knows which of the leaves that it could have are bad. Preassigned cells that can no longer
be healthy are *doomed*: anchored to bad physical cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hived.cells import BuddyAllocator, IndexSet, Shape, leaves_of

from .virtual import VirtualPool

#: per cell that somebody reserved and that is bound: its level and number, to the bindings and the virtual cell
Owners = dict[tuple[int, int], tuple["Anchoring", int]]


class Anchoring:
    """Which virtual cell of a pool stands on which physical one. Made use of by :class:`~.binding.Binder`."""

    __slots__ = (
        "_children",
        "allocator",
        "anchored",
        "bad",
        "bound",
        "changed",
        "doomed",
        "inner",
        "live",
        "loose",
        "owners",
        "pinned",
        "pool",
        "sick",
    )

    def __init__(
        self,
        pool: VirtualPool,
        allocator: BuddyAllocator,
        pinned_to: int = -1,
        bad: Sequence[int] = (),
        owners: Owners | None = None,
    ) -> None:
        """``pinned_to``: the number of the physical cell that the pool's one preassigned cell stands on for good.

        ``bad``: the bad leaves of every node, kept by the caller; ``owners``: told which reserved cells are bound.
        """
        self.pool = pool
        #: where its preassigned cells come from
        self.allocator = allocator
        #: bad leaves per node; empty where nobody cares
        self.bad = bad
        #: reserved cells that are bound, of all binders that share the chain
        self.owners = {} if owners is None else owners
        #: physical cell under each virtual cell; -1 while unbound
        self.bound = [-1] * len(pool.cells)
        #: children of each virtual cell that are in use; a pinned cell counts its pin too, and so stays
        self.live = [0] * len(pool.cells)
        #: cells bound for bad hardware alone: nothing is in use in them
        self.anchored: set[int] = set()
        #: preassigned cells bound to bad hardware since nothing healthy is left for them; they stay so while not in use
        self.doomed: set[int] = set()
        #: hosts whose bad leaves have changed since somebody last looked (and emptied this)
        self.changed: set[int] = set()
        #: hosts with bad leaves
        self.sick: set[int] = set()
        #: per level: the preassigned cells that are not bound
        self.loose: dict[int, IndexSet] = {}
        for number, (level, parent) in enumerate(pool.cells):
            if parent < 0:
                if level not in self.loose:
                    self.loose[level] = IndexSet(len(pool.cells))
                self.loose[level].add(number)
        #: virtual cell that is pinned, -1 for none
        self.pinned = -1
        #: per host: physical inner cell under each virtual inner cell, -1 while unbound; None while nothing is
        self.inner: list[list[int] | None] = [None] * pool.hosts
        self._children: list[list[int]] | None = None
        if pinned_to >= 0:
            self.pinned = next(v for v, cell in enumerate(pool.cells) if cell.parent < 0)
            allocator.allocate_exactly(pool.cells[self.pinned].level, pinned_to)
            self.preassign(self.pinned, pinned_to)
            self.live[self.pinned] = 1

    def children(self, cell: int) -> Sequence[int]:
        """The virtual cells right below an upper one. O(cells) once."""
        if self._children is None:
            self._children = [[] for _ in self.pool.cells]
            for number, (_, parent) in enumerate(self.pool.cells):
                if parent >= 0:
                    self._children[parent].append(number)
        return self._children[cell]

    def unbound(self, level: int) -> int:
        """How many preassigned cells of ``level`` are not bound."""
        loose = self.loose.get(level)
        return len(loose) if loose is not None else 0

    def inner_of(self, host: int) -> list[int]:
        """What is bound inside a bound host."""
        inner = self.inner[host]
        if inner is None:
            inner = self.inner[host] = [-1] * len(self.pool.shapes[host].masks)
            inner[0] = 0  # the host's own cells are counted from where it stands
        return inner

    def preassign(self, cell: int, physical: int) -> None:
        """A preassigned cell stands on a physical one that the allocator gave."""
        level = self.pool.cells[cell].level
        self.bound[cell] = physical
        self.loose[level].remove(cell)
        self.owners[level, physical] = self, cell

    def drop(self, cell: int) -> None:
        """``cell`` stands on nothing any more, and so nothing anchored in it."""
        level = self.pool.cells[cell].level
        self.bound[cell] = -1
        self.anchored.discard(cell)
        if cell < self.pool.hosts:
            self.inner[cell] = None
            self.set_bad(cell, 0)
        elif self.anchored:
            for child in self.children(cell):
                if child in self.anchored:
                    physical = self.bound[child]
                    self.drop(child)
                    self.allocator.give_child(level - 1, physical)

    def doom(self, level: int) -> bool:
        """Bind the last unbound preassigned cell of ``level`` to a bad physical one; ``False`` when there is none."""
        cell = self.loose[level].last()
        physical = self.allocator.allocate_bad(level)
        if physical < 0:
            return False
        self.preassign(cell, physical)
        self.anchored.add(cell)
        self.doomed.add(cell)
        if cell < self.pool.hosts:
            self.anchor_leaves(cell, 0)
        else:
            self.anchor_children(cell)
        return True

    def pardon(self, cell: int) -> None:
        """Undo :meth:`doom`; where something is in use in ``cell`` by now, that keeps it bound."""
        self.doomed.discard(cell)
        if cell not in self.anchored:
            return
        level, physical = self.pool.cells[cell].level, self.bound[cell]
        self.drop(cell)
        del self.owners[level, physical]
        self.loose[level].add(cell)
        self.allocator.release(level, physical)

    def health_changed(self, cell: int, node: int) -> None:
        """The bad leaves of ``node``, which is inside the bound ``cell``, have changed. O(levels * fan-out)."""
        hierarchy = self.pool.hierarchy
        while cell >= self.pool.hosts:
            below = self.pool.cells[cell].level - 1
            gpus = hierarchy.gpus[below]
            # a preassigned cell is at node level or above here, so exactly one child holds the node
            physical = node * hierarchy.node_size // gpus
            child = next((c for c in self.children(cell) if self.bound[c] == physical), -1)
            if child < 0:
                if self.allocator.is_bad(below, physical):
                    self.anchor_children(cell)
                return
            if child in self.anchored and not self.allocator.is_bad(below, physical):
                self.drop(child)
                self.allocator.give_child(below, physical)
                return
            cell = child
        self.anchor_leaves(cell, 0)

    def anchor_children(self, cell: int) -> None:
        """Every bad physical child of a bound upper cell gets a virtual child: the last ones that are unbound."""
        level = self.pool.cells[cell].level - 1
        for physical in self.allocator.bad_children(level, self.bound[cell]):
            if self.allocator.siblings(level).available[physical]:
                child = next(c for c in reversed(self.children(cell)) if self.bound[c] < 0)
                self.allocator.take_exactly(level, physical)
                self.bound[child] = physical
                self.anchored.add(child)
                if child < self.pool.hosts:
                    self.anchor_leaves(child, 0)
                else:
                    self.anchor_children(child)

    def anchor_leaves(self, host: int, avoid: int) -> None:
        """Say which virtual leaves of a bound host are bad; where there is a choice, the last, and not in ``avoid``."""
        hierarchy, shape = self.pool.hierarchy, self.pool.shapes[host]
        node, part = divmod(self.bound[host], hierarchy.node_size // shape.leaves)
        bad = self.bad[node] >> part * shape.leaves & shape.full
        was = self.pool.bad[host]
        if not (bad or was):
            return
        inner = self.inner_of(host)
        free = self.pool.free[host]
        for cell in range(1, len(inner)):  # what was bound for hardware that is good again
            leaves = shape.masks[cell]
            if inner[cell] >= 0 and leaves & free == leaves:
                inner[cell] = -1
        found = 0
        for leaf in leaves_of(bad):
            cell = self.leaf_on(
                host, leaf, lambda unbound: min(reversed(unbound), key=lambda c: _shared(shape, c, avoid))
            )
            found |= shape.masks[cell]
        self.set_bad(host, found)

    def leaf_on(self, host: int, leaf: int, choose: Callable[[list[int]], int]) -> int:
        """The virtual leaf (an inner cell) of a bound host on its physical ``leaf``, bound down to there.

        ``choose`` picks one of the unbound virtual cells wherever none stands there yet; -1 ends it, and is returned.
        """
        shape, inner = self.pool.shapes[host], self.inner_of(host)
        cell = 0
        while shape.children[cell]:
            at = next(c for c in shape.children[inner[cell]] if shape.masks[c] >> leaf & 1)
            child = next((c for c in shape.children[cell] if inner[c] == at), -1)
            if child < 0:
                child = choose([c for c in shape.children[cell] if inner[c] < 0])
                if child < 0:
                    return -1
                inner[child] = at
            cell = child
        return cell

    def set_bad(self, host: int, leaves: int) -> None:
        """These virtual leaves of ``host`` are the bad ones."""
        if self.pool.bad[host] != leaves:
            self.pool.bad[host] = leaves
            self.changed.add(host)
            if leaves:
                self.sick.add(host)
            else:
                self.sick.discard(host)


def _shared(shape: Shape, cell: int, leaves: int) -> int:
    """How many of ``leaves`` an inner cell has."""
    return (shape.masks[cell] & leaves).bit_count()
