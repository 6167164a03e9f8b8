"""Virtual cells onto physical ones: made when a job needs it, undone when nothing runs there any more.

A virtual cell in use stands on one physical cell of its level, and its children stand on that cell's children. So a
job's virtual leaves, as close together as its VC's policy chose them, are as close together in the real cluster.
Binding is late at every level: while a VC uses one GPU of a node it reserved, the seven others stay unbound below the
node, and an opportunistic job there runs on until one of them is really needed.

    preassigned cell    by the buddy allocator                       (cells/allocator.py)
    cells down to host  a free child of the parent's cell            } each time the one with the fewest GPUs
    cells in a host     a free child of the parent's cell            } in opportunistic use, then the lowest
"""

from __future__ import annotations

from collections.abc import Sequence

from hived.cells import BuddyAllocator
from hived.errors import InvariantError, ensure

from .virtual import VirtualPool


class Binder:
    """The bindings of one pool. Binding and unbinding a host cost O(levels), inside a host O(its levels' fan-outs)."""

    __slots__ = ("_inner", "allocator", "bound", "live", "pinned", "pool")

    def __init__(self, pool: VirtualPool, allocator: BuddyAllocator, pinned_to: int = -1) -> None:
        """``pinned_to``: the number of the physical cell that the pool's one preassigned cell stands on for good."""
        self.pool = pool
        #: where its preassigned cells come from
        self.allocator = allocator
        #: physical cell under each virtual cell; -1 while unbound
        self.bound = [-1] * len(pool.cells)
        #: bound children of each virtual cell; a pinned cell counts its pin too, and so stays
        self.live = [0] * len(pool.cells)
        #: virtual cell that is pinned, -1 for none
        self.pinned = -1
        # per host: physical inner cell under each virtual inner cell, -1 while unbound; None while nothing is
        self._inner: list[list[int] | None] = [None] * pool.hosts
        if pinned_to >= 0:
            self.pinned = next(v for v, cell in enumerate(pool.cells) if cell.parent < 0)
            allocator.allocate_exactly(pool.cells[self.pinned].level, pinned_to)
            self.bound[self.pinned] = pinned_to
            self.live[self.pinned] = 1

    def bind(self, host: int, mask: int, crowd: list[int], near: tuple[int, int] | None = None) -> tuple[int, int]:
        """Stand the free virtual leaves ``mask`` of ``host`` on physical ones: ``(node, mask of its leaves)``.

        ``crowd`` holds the opportunistic leaves per node; ``near`` is a node and leaves of it to be preferred. To be
        called before the pool is told that the leaves are taken.
        """
        hierarchy = self.pool.hierarchy
        level = self.pool.cells[host].level
        per_node = hierarchy.node_size // hierarchy.gpus[level]
        if self.bound[host] < 0:
            hint = -1
            if near is not None:
                low = (near[1] & -near[1]).bit_length() - 1
                hint = near[0] * per_node + low // hierarchy.gpus[level]
            self._bind_cell(host, hint)
        node, part = divmod(self.bound[host], per_node)
        shape = self.pool.shapes[host]
        offset = part * shape.leaves
        if mask == shape.full:
            return node, mask << offset
        inner = self._inner[host]
        if inner is None:
            inner = self._inner[host] = [-1] * len(shape.masks)
            inner[0] = 0  # the host's own cells are counted from where it stands
        masks = shape.masks
        others = crowd[node] >> offset & shape.full
        own = near[1] >> offset & shape.full if near is not None and near[0] == node else 0
        leaves = 0
        for parent, child, siblings, whole in shape.steps(mask):
            cell = inner[child]
            if cell < 0:
                taken = [inner[c] for c in siblings]
                cell = inner[child] = _choose(masks, shape.children[inner[parent]], taken, others, own)
            if whole:
                leaves |= masks[cell]
        return node, leaves << offset

    def _bind_cell(self, cell: int, near: int) -> None:
        level, parent = self.pool.cells[cell]
        if parent < 0:
            physical = self.allocator.allocate(level, near)
            if physical < 0:
                raise InvariantError(f"no free cell at level {level} for a cell that was reserved: safety is broken")
        else:
            if self.bound[parent] < 0:
                above = near // self.pool.hierarchy.fanout[level + 1] if near >= 0 else -1
                self._bind_cell(parent, above)
            physical = self.allocator.take_child(level, self.bound[parent], near)
            self.live[parent] += 1
        self.bound[cell] = physical

    def unbind(self, host: int, mask: int) -> None:
        """The job on these virtual leaves has ended. To be called after the pool was told that they are free."""
        shape = self.pool.shapes[host]
        free = self.pool.free[host]
        if free == shape.full:
            self._inner[host] = None
            if host != self.pinned:
                self._unbind_cell(host)
            return
        inner = self._inner[host]
        if inner is not None:
            for cell, leaves in shape.touched(mask):
                if leaves & free == leaves:
                    inner[cell] = -1

    def _unbind_cell(self, cell: int) -> None:
        level, parent = self.pool.cells[cell]
        physical = self.bound[cell]
        self.bound[cell] = -1
        if parent < 0:
            self.allocator.release(level, physical)
            return
        self.allocator.give_child(level, physical)
        self.live[parent] -= 1
        if not self.live[parent]:
            self._unbind_cell(parent)

    def validate(self) -> None:
        """Bound cells are exactly those in use, each inside its parent's, and no two on one. O(cells of the VC)."""
        pool = self.pool
        hierarchy = pool.hierarchy
        live = [0] * len(pool.cells)
        if self.pinned >= 0:
            live[self.pinned] = 1
        taken: set[tuple[int, int]] = set()
        for number, (level, parent) in enumerate(pool.cells):
            physical = self.bound[number]
            if number < pool.hosts:
                used = pool.free[number] != pool.shapes[number].full
                ensure((physical >= 0) == (used or number == self.pinned), f"host {number} is bound while in use")
            if physical < 0:
                continue
            ensure((level, physical) not in taken, f"physical cell {physical} of level {level} stands under one cell")
            taken.add((level, physical))
            if parent >= 0:
                live[parent] += 1
                above = physical // hierarchy.fanout[level + 1]
                ensure(self.bound[parent] == above, f"virtual cell {number} stands inside its parent's cell")
                ensure(not self.allocator.siblings(level).available[physical], f"cell {physical} was taken")
        ensure(live == self.live, "bound children per virtual cell")
        for number, bound in enumerate(self.bound):
            if number >= pool.hosts:
                ensure((bound >= 0) == (live[number] > 0), f"virtual cell {number} is bound while a child is")
        for host, inner in enumerate(self._inner):
            if inner is None:
                continue
            shape = pool.shapes[host]
            for cell, children in enumerate(shape.children):
                stands_on = [inner[c] for c in children if inner[c] >= 0]
                ensure(len(set(stands_on)) == len(stands_on), f"host {host}: inner cells stand apart")
                at = inner[cell]
                ensure(all(at >= 0 and c in shape.children[at] for c in stands_on), f"host {host}: inner cells nest")
            for cell, leaves in enumerate(shape.masks):
                if cell and inner[cell] >= 0:
                    ensure(leaves & pool.free[host] != leaves, f"host {host}: inner cell {cell} is bound while in use")


def _choose(masks: Sequence[int], cells: Sequence[int], taken: list[int], crowd: int, near: int) -> int:
    """The cell not taken that suits best: most leaves of ``near``, fewest of ``crowd``, lowest number."""
    best, best_near, best_crowd = -1, 0, 0
    for cell in cells:
        if cell not in taken:
            if not (crowd or near):
                return cell
            is_near, is_crowd = (masks[cell] & near).bit_count(), (masks[cell] & crowd).bit_count()
            if best < 0 or is_near > best_near or (is_near == best_near and is_crowd < best_crowd):
                best, best_near, best_crowd = cell, is_near, is_crowd
    return best
