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

from collections.abc import Callable, Sequence

from hived.cells import Shape
from hived.errors import InvariantError

from .anchoring import Anchoring
from .binding_check import check_bindings


class Binder(Anchoring):
    """The bindings of one pool. Binding and unbinding a host cost O(levels), inside a host O(its levels' fan-outs)."""

    __slots__ = ()

    def bind(self, host: int, mask: int, crowd: list[int], near: tuple[int, int] | None = None) -> tuple[int, int]:
        """Stand the free virtual leaves ``mask`` of ``host`` on physical ones: ``(node, mask of its leaves)``.

        ``crowd`` holds the opportunistic leaves per node; ``near`` is a node and leaves of it to be preferred. To be
        called before the pool is told that the leaves are taken.
        """
        hint = -1
        if near is not None and self.bound[host] < 0:
            gpus = self.pool.hierarchy.gpus[self.pool.cells[host].level]
            low = (near[1] & -near[1]).bit_length() - 1
            hint = near[0] * (self.pool.hierarchy.node_size // gpus) + low // gpus
        self.hold(host, mask, hint)
        return self.leaves(host, mask, crowd, near)

    def hold(self, host: int, mask: int, near: int = -1) -> None:
        """``host`` is in use from now on, bound to a cell if it was not: ``near``, if that can be.

        ``mask``: what is wanted of it; bad leaves are anchored elsewhere in it as far as can be.
        """
        if self.bound[host] < 0:
            self._bind_cell(host, near, mask)
        elif self.anchored and host in self.anchored:
            self._use(host)

    def leaves(
        self,
        host: int,
        mask: int,
        crowd: list[int],
        near: tuple[int, int] | None = None,
        spared: Callable[[int], int] | None = None,
        lost: Callable[[int, int], int] | None = None,
    ) -> tuple[int, int]:
        """The node and the physical leaves under the virtual leaves ``mask`` of a bound ``host``; see :meth:`bind`.

        ``spared``: leaves of a node to be avoided among equals; ``lost``: what opportunistic groups lose by these
        leaves of a node being taken, which comes before the number of leaves.
        """
        hierarchy = self.pool.hierarchy
        per_node = hierarchy.node_size // hierarchy.gpus[self.pool.cells[host].level]
        node, part = divmod(self.bound[host], per_node)
        shape = self.pool.shapes[host]
        offset = part * shape.leaves
        if mask == shape.full:
            return node, mask << offset
        inner = self.inner_of(host)
        masks = shape.masks
        others = crowd[node] >> offset & shape.full
        kept = spared(node) >> offset & shape.full if spared is not None else 0
        own = near[1] >> offset & shape.full if near is not None and near[0] == node else 0
        leaves = 0
        for parent, child, siblings, whole in shape.steps(mask):
            cell = inner[child]
            if cell < 0:
                taken = [inner[c] for c in siblings]
                cells = [c for c in shape.children[inner[parent]] if c not in taken]
                if others and lost is not None and len(cells) > 1:
                    ways = [leaves | _inside(shape, child, c, mask, lambda m: lost(node, m << offset)) for c in cells]
                    losses = [lost(node, way << offset) for way in ways]
                    cells = [c for c, loss in zip(cells, losses, strict=True) if loss == min(losses)]
                cell = inner[child] = _choose(masks, cells, others, own, kept)
            if whole:
                leaves |= masks[cell]
        return node, leaves << offset

    def _bind_cell(self, cell: int, near: int, mask: int) -> None:
        level, parent = self.pool.cells[cell]
        if parent < 0:
            physical = self.allocator.allocate(level, near)
            if physical < 0:
                raise InvariantError(f"no free cell at level {level} for a cell that was reserved: safety is broken")
            self.preassign(cell, physical)
        else:
            if self.bound[parent] < 0:
                self._bind_cell(parent, near // self.pool.hierarchy.fanout[level + 1] if near >= 0 else -1, mask)
            elif parent in self.anchored:
                self._use(parent)
            self._attach(cell, self.allocator.take_child(level, self.bound[parent], near))
        if self.allocator.bad_leaves and cell < self.pool.hosts:
            self.anchor_leaves(cell, mask)

    def _attach(self, cell: int, physical: int) -> None:
        """``cell`` stands on a child, just taken, of what its parent stands on."""
        parent = self.pool.cells[cell].parent
        self.bound[cell] = physical
        self.live[parent] += 1
        if self.allocator.bad_leaves and self.live[parent] == 1:
            self.anchor_children(parent)

    def _use(self, cell: int) -> None:
        """Something is in use in a cell that was only anchored, and so in those above it."""
        self.anchored.discard(cell)
        if cell in self.doomed:
            self.allocator.changes += 1  # who is short has to be asked again
        parent = self.pool.cells[cell].parent
        if parent >= 0:
            if parent in self.anchored:
                self._use(parent)
            self.live[parent] += 1

    def can_stand(self, cell: int, physical: int) -> bool:
        """Whether ``cell`` stands on this very physical cell of its level, or could, and all stay safe. O(levels)."""
        if self.bound[cell] >= 0:
            return self.bound[cell] == physical
        level, parent = self.pool.cells[cell]
        if parent < 0:
            return self.allocator.can_take(level, physical)
        above = physical // self.pool.hierarchy.fanout[level + 1]
        if self.bound[parent] >= 0:
            return self.bound[parent] == above and bool(self.allocator.siblings(level).available[physical])
        return self.can_stand(parent, above)

    def stand(self, cell: int, physical: int, mask: int = 0) -> None:
        """Bind ``cell`` to this very physical cell, which :meth:`can_stand` allows, and count it as in use."""
        if self.bound[cell] >= 0:
            if cell in self.anchored:
                self._use(cell)
            return
        level, parent = self.pool.cells[cell]
        if parent < 0:
            self.allocator.allocate_exactly(level, physical)
            self.preassign(cell, physical)
        else:
            self.stand(parent, physical // self.pool.hierarchy.fanout[level + 1], mask)
            self.allocator.take_exactly(level, physical)
            self._attach(cell, physical)
        if self.allocator.bad_leaves and cell < self.pool.hosts:
            self.anchor_leaves(cell, mask)

    def unbind(self, host: int, mask: int) -> None:
        """The job on these virtual leaves has ended. To be called after the pool was told that they are free."""
        shape = self.pool.shapes[host]
        free = self.pool.free[host]
        if free == shape.full:
            self.inner[host] = None
            if host != self.pinned:
                self._leave(host)
            elif self.allocator.bad_leaves:
                self.anchor_leaves(host, 0)
            return
        inner = self.inner[host]
        if inner is not None:
            keep = free & ~self.pool.bad[host]
            for cell, leaves in shape.touched(mask):
                if leaves & keep == leaves:
                    inner[cell] = -1

    def _leave(self, cell: int) -> None:
        """Nothing is in use in ``cell`` any more: it is unbound, or stays anchored where it is bad."""
        level, parent = self.pool.cells[cell]
        physical = self.bound[cell]
        if parent < 0:
            if cell in self.doomed:  # until somebody finds that it can be healthy again
                self.anchored.add(cell)
                self.allocator.changes += 1
                if cell < self.pool.hosts:
                    self.anchor_leaves(cell, 0)
                return
            self.drop(cell)
            del self.owners[level, physical]
            self.loose[level].add(cell)
            self.allocator.release(level, physical)
            return
        if self.allocator.bad_leaves and self.allocator.is_bad(level, physical):
            self.anchored.add(cell)
            if cell < self.pool.hosts:
                self.anchor_leaves(cell, 0)
        else:
            self.drop(cell)
            self.allocator.give_child(level, physical)
        self.live[parent] -= 1
        if not self.live[parent]:
            self._leave(parent)

    def validate(self) -> None:
        """Bound cells are exactly those in use or bad, each inside its parent's, no two on one. O(cells of the VC)."""
        check_bindings(self)


def _choose(masks: Sequence[int], cells: Sequence[int], crowd: int, near: int, kept: int) -> int:
    """The cell that suits best: most leaves of ``near``, fewest of ``crowd``, of ``kept``, lowest number."""
    if not (crowd or near):
        return cells[0]
    best, best_worth = -1, (0, 0, 0)
    for cell in cells:
        mask = masks[cell]
        worth = -(mask & near).bit_count(), (mask & crowd).bit_count(), (mask & kept).bit_count()
        if best < 0 or worth < best_worth:
            best, best_worth = cell, worth
    return best


def _inside(shape: Shape, virtual: int, cell: int, mask: int, lost: Callable[[int], int]) -> int:
    """The leaves for those of ``mask`` in the inner cell ``virtual`` if it stands on ``cell``, child by child.

    Each goes where the least is lost, beside what is lost anyway; nothing is bound inside yet. O((cells inside)^2).
    """
    masks = shape.masks
    if not masks[virtual] & ~mask:
        return masks[cell]
    leaves = 0
    left = list(shape.children[cell])
    for child in shape.children[virtual]:
        if masks[child] & mask:
            ways = [leaves | _inside(shape, child, c, mask, lost) for c in left]
            losses = [lost(way) for way in ways]
            best = losses.index(min(losses))
            leaves = ways[best]
            del left[best]
    return leaves
