"""Virtual cells onto physical ones: made when a group needs it, undone when nothing runs there any more.

A virtual cell in use stands on one physical cell of its level, and its children stand on that cell's children. So a
group's virtual leaves, as close together as its VC's policy chose them, are as close together in the real cluster.
Binding is late at every level: while a VC uses one GPU of a node it reserved, the seven others stay unbound below the
node, and an opportunistic group there runs on until one of them is really needed (HiveD, OSDI'20, section 3.3).

    preassigned cell    by the buddy allocator                       (cells/allocator.py)
    cells down to host  a free child of the parent's cell            } each time the one with the fewest GPUs
    cells in a host     a free child of the parent's cell            } in opportunistic use, then the lowest

Inside a bound cell every bad physical child has a virtual child bound to it at once: *anchored* there while nothing is
in use in it. So a VC always knows which of the leaves that it could have are bad. Preassigned cells that can no longer
be healthy are *doomed*: anchored to bad physical cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from hived.cells import BuddyAllocator, IndexSet, Shape, leaves_of
from hived.errors import InvariantError

from .binding_check import check_bindings
from .undo import Undo

if TYPE_CHECKING:
    from .pool import VirtualCells

#: physical inner cell under each virtual inner cell of a host
Inner = tuple[int, ...]
#: ways of binding inside a host that are remembered
REMEMBERED = 20_000
#: per cell that somebody reserved and that is bound: its level and number, to the bindings and the virtual cell
Owners = dict[tuple[int, int], tuple["Binding", int]]


class Binding:
    """The bindings of a VC's cells. To bind or unbind a host costs O(levels), inside a host O(its levels' fan-outs)."""

    __slots__ = (
        "_children",
        "_note",
        "allocator",
        "anchored",
        "bad",
        "bad_leaves",
        "bound",
        "changed",
        "doomed",
        "free",
        "inner",
        "live",
        "loose",
        "owners",
        "pinned",
        "sick",
        "virtual",
    )

    def __init__(
        self,
        virtual: VirtualCells,
        free: Sequence[int],
        allocator: BuddyAllocator,
        undo: Undo,
        pinned_to: int,
        bad_leaves: Sequence[int],
        owners: Owners,
    ) -> None:
        """``pinned_to``: the number of the physical cell that the one preassigned cell stands on for good; -1 for none.

        ``free``: free leaves of every host, and ``bad_leaves``: bad leaves of every node, both kept by the caller;
        ``owners``: told which reserved cells are bound.
        """
        self.virtual = virtual
        self.free = free
        #: where its preassigned cells come from
        self.allocator = allocator
        self._note = undo.note
        #: bad leaves per node
        self.bad_leaves = bad_leaves
        #: bad leaves of each host, as far as they are known: those of hosts that are bound
        self.bad = [0] * virtual.hosts
        #: reserved cells that are bound, of all bindings that share the chain
        self.owners = owners
        #: physical cell under each virtual cell; -1 while unbound
        self.bound = [-1] * len(virtual.cells)
        #: children of each virtual cell that are in use; a pinned cell counts its pin too, and so stays
        self.live = [0] * len(virtual.cells)
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
        for number, (level, parent) in enumerate(virtual.cells):
            if parent < 0:
                if level not in self.loose:
                    self.loose[level] = IndexSet(len(virtual.cells))
                self.loose[level].add(number)
        #: virtual cell that is pinned, -1 for none
        self.pinned = -1
        #: per host: physical inner cell under each virtual inner cell, -1 while unbound; None while nothing is
        self.inner: list[Inner | None] = [None] * virtual.hosts
        self._children: list[list[int]] | None = None
        if pinned_to >= 0:
            self.pinned = next(v for v, cell in enumerate(virtual.cells) if cell.parent < 0)
            allocator.allocate_at(virtual.cells[self.pinned].level, pinned_to)
            self._preassign(self.pinned, pinned_to)
            self.live[self.pinned] = 1

    # -- looking ------------------------------------------------------------------------------------------------------

    def children(self, cell: int) -> Sequence[int]:
        """The virtual cells right below an upper one. O(cells) once."""
        if self._children is None:
            self._children = [[] for _ in self.virtual.cells]
            for number, (_, parent) in enumerate(self.virtual.cells):
                if parent >= 0:
                    self._children[parent].append(number)
        return self._children[cell]

    def unbound(self, level: int) -> int:
        """How many preassigned cells of ``level`` are not bound."""
        loose = self.loose.get(level)
        return len(loose) if loose is not None else 0

    def node_of(self, host: int) -> int:
        """The number of the node that a bound host stands on, or in."""
        return self.bound[host] * self.virtual.shapes[host].leaves // self.virtual.hierarchy.node_size

    def can_stand(self, cell: int, physical: int) -> bool:
        """Whether ``cell`` stands on this very physical cell of its level, or could, and all stay safe. O(levels)."""
        if self.bound[cell] >= 0:
            return self.bound[cell] == physical
        level, parent = self.virtual.cells[cell]
        if parent < 0:
            return self.allocator.can_take(level, physical)
        above = physical // self.virtual.hierarchy.fanout[level + 1]
        if self.bound[parent] >= 0:
            return self.bound[parent] == above and self.allocator.is_open(level, physical)
        return self.can_stand(parent, above)

    def host_under(self, level: int, node: int, leaf: int) -> int:
        """The virtual host that can stand under this leaf, in a preassigned cell of ``level``; -1 when none can.

        Cells that stand there already come first, then the first that are unbound. O(levels * fan-out).
        """
        hierarchy = self.virtual.hierarchy
        first = node * hierarchy.node_size + leaf
        owner = self.owners.get((level, first // hierarchy.gpus[level]))
        if owner is not None:
            if owner[0] is not self:
                return -1
            cell = owner[1]
        else:
            loose = self.loose.get(level)
            cell = loose.first() if loose is not None else -1
            if cell < 0:
                return -1
        while cell >= self.virtual.hosts:
            wanted = first // hierarchy.gpus[self.virtual.cells[cell].level - 1]
            children = self.children(cell)
            child = next((c for c in children if self.bound[c] == wanted), -1)
            if child < 0:
                child = next((c for c in children if self.bound[c] < 0), -1)
                if child < 0:
                    return -1
            cell = child
        return cell if self.can_stand(cell, first // hierarchy.gpus[self.virtual.cells[cell].level]) else -1

    # -- the steps that change something, each of which notes its way back --------------------------------------------

    def _preassign(self, cell: int, physical: int) -> None:
        """A preassigned cell stands on a physical one that was taken from the allocator."""
        level = self.virtual.cells[cell].level
        self.bound[cell] = physical
        self.loose[level].remove(cell)
        self.owners[level, physical] = self, cell
        self._note((self._release, cell))

    def _release(self, cell: int) -> None:
        """A preassigned cell stands nowhere any more; the allocator has its physical cell again."""
        level, physical = self.virtual.cells[cell].level, self.bound[cell]
        self.bound[cell] = -1
        del self.owners[level, physical]
        self.loose[level].add(cell)
        self.allocator.release(level, physical)
        self._note((self._take_back, cell, physical))

    def _take_back(self, cell: int, physical: int) -> None:
        """Undo :meth:`_release`."""
        self.allocator.allocate_at(self.virtual.cells[cell].level, physical)
        self._preassign(cell, physical)

    def _attach(self, cell: int, physical: int) -> None:
        """A cell stands on a child, just taken, of what its parent stands on."""
        self.bound[cell] = physical
        self._note((self._detach, cell))

    def _detach(self, cell: int) -> None:
        """It stands there no longer, and its parent's cell has the child again."""
        physical = self.bound[cell]
        self.bound[cell] = -1
        self.allocator.give_child(self.virtual.cells[cell].level, physical)
        self._note((self._attach_again, cell, physical))

    def _attach_again(self, cell: int, physical: int) -> None:
        """Undo :meth:`_detach`."""
        self.allocator.take_child_at(self.virtual.cells[cell].level, physical)
        self._attach(cell, physical)

    def _count(self, cell: int, more: int) -> None:
        """So many more of the children of ``cell`` are in use."""
        self.live[cell] += more
        self._note((self._count, cell, -more))

    def _anchor(self, cell: int, is_anchored: bool) -> None:
        """Whether nothing is in use in a bound cell."""
        if (cell in self.anchored) != is_anchored:
            if is_anchored:
                self.anchored.add(cell)
            else:
                self.anchored.discard(cell)
            self._note((self._anchor, cell, not is_anchored))

    def _doom(self, cell: int, is_doomed: bool) -> None:
        """Whether a preassigned cell is bound since nothing healthy is left for it."""
        if (cell in self.doomed) != is_doomed:
            if is_doomed:
                self.doomed.add(cell)
            else:
                self.doomed.discard(cell)
            self._note((self._doom, cell, not is_doomed))

    def _set_inner(self, host: int, inner: Inner | None) -> None:
        """What is bound inside a host."""
        self._note((self._set_inner, host, self.inner[host]))
        self.inner[host] = inner

    def _set_bad(self, host: int, leaves: int) -> None:
        """These virtual leaves of ``host`` are the bad ones."""
        before = self.bad[host]
        if before != leaves:
            self._note((self._set_bad, host, before))
            self.bad[host] = leaves
            self.changed.add(host)
            if leaves:
                self.sick.add(host)
            else:
                self.sick.discard(host)

    # -- binding ------------------------------------------------------------------------------------------------------

    def hold(self, host: int, mask: int, near: int = -1) -> None:
        """``host`` is in use from now on, bound to a cell if it was not: ``near``, if that can be.

        ``mask``: what is wanted of it; bad leaves are anchored elsewhere in it as far as can be.
        """
        if self.bound[host] < 0:
            self._bind_cell(host, near, mask)
        elif self.anchored and host in self.anchored:
            self._use(host)

    def leaves(self, host: int, mask: int, crowd: list[int], near: tuple[int, int] | None = None) -> tuple[int, int]:
        """The node and the physical leaves under the virtual leaves ``mask`` of a bound ``host``, bound by this.

        ``crowd`` holds the opportunistic leaves per node; ``near`` is a node and leaves of it to be preferred. To be
        called before anybody takes the virtual leaves.
        """
        virtual = self.virtual
        shape = virtual.shapes[host]
        node, offset = divmod(self.bound[host] * shape.leaves, virtual.hierarchy.node_size)
        if mask == shape.full:
            return node, mask << offset
        before = self.inner[host]
        own = near[1] >> offset & shape.full if near is not None and near[0] == node else 0
        inner, leaves = _bound_inside(shape, before, mask, crowd[node] >> offset & shape.full, own)
        if inner is not before:
            self._note((self._set_inner, host, before))
            self.inner[host] = inner
        return node, leaves << offset

    def _bind_cell(self, cell: int, near: int, mask: int) -> None:
        level, parent = self.virtual.cells[cell]
        if parent < 0:
            physical = self.allocator.allocate(level, near)
            if physical < 0:
                raise InvariantError(f"no free cell at level {level} for a cell that was reserved: safety is broken")
            self._preassign(cell, physical)
        else:
            if self.bound[parent] < 0:
                self._bind_cell(parent, near // self.virtual.hierarchy.fanout[level + 1] if near >= 0 else -1, mask)
            elif parent in self.anchored:
                self._use(parent)
            self._attach_used(cell, self.allocator.take_child(level, self.bound[parent], near))
        if self.allocator.bad_leaves and cell < self.virtual.hosts:
            self.anchor_leaves(cell, mask)

    def _attach_used(self, cell: int, physical: int) -> None:
        """A cell in use stands on a child, just taken, of what its parent stands on."""
        parent = self.virtual.cells[cell].parent
        self._attach(cell, physical)
        self._count(parent, 1)
        if self.allocator.bad_leaves and self.live[parent] == 1:
            self._anchor_children(parent)

    def _use(self, cell: int) -> None:
        """Something is in use in a cell that was only anchored, and so in those above it."""
        self._anchor(cell, False)
        if cell in self.doomed:
            self.allocator.changes += 1  # who is short has to be asked again
        parent = self.virtual.cells[cell].parent
        if parent >= 0:
            if parent in self.anchored:
                self._use(parent)
            self._count(parent, 1)

    def stand(self, cell: int, physical: int, mask: int = 0) -> None:
        """Bind ``cell`` to this very physical cell, which :meth:`can_stand` allows, and count it as in use."""
        if self.bound[cell] >= 0:
            if cell in self.anchored:
                self._use(cell)
            return
        level, parent = self.virtual.cells[cell]
        if parent < 0:
            self.allocator.allocate_at(level, physical)
            self._preassign(cell, physical)
        else:
            self.stand(parent, physical // self.virtual.hierarchy.fanout[level + 1], mask)
            self.allocator.take_child_at(level, physical)
            self._attach_used(cell, physical)
        if self.allocator.bad_leaves and cell < self.virtual.hosts:
            self.anchor_leaves(cell, mask)

    def stand_leaves(self, host: int, leaves: int) -> int:
        """Bind virtual leaves of a bound ``host`` to these very physical ``leaves`` of its cell; 0 when that cannot be.

        Nothing has changed then. Returned are the virtual leaves.
        """
        shape = self.virtual.shapes[host]
        inner = _list_of(shape, self.inner[host])
        free = self.free[host]
        found = 0

        def first_free(unbound: list[int]) -> int:
            return next((c for c in unbound if not shape.masks[c] & (found | ~free)), -1)

        for leaf in leaves_of(leaves):
            cell = _leaf_on(shape, inner, leaf, first_free)
            if cell < 0 or not shape.masks[cell] & free:
                return 0
            found |= shape.masks[cell]
        self._set_inner(host, tuple(inner))
        return found

    # -- unbinding ----------------------------------------------------------------------------------------------------

    def unbind(self, host: int, mask: int) -> None:
        """The group on these virtual leaves has ended. To be called after the pool was told that they are free."""
        shape = self.virtual.shapes[host]
        free = self.free[host]
        before = self.inner[host]
        if free == shape.full:
            if before is not None:
                self._set_inner(host, None)
            if host != self.pinned:
                self._leave(host)
            elif self.allocator.bad_leaves:
                self.anchor_leaves(host, 0)
            return
        if before is not None:
            self._set_inner(host, _unbound_inside(shape, before, mask, free & ~self.bad[host]))

    def _leave(self, cell: int) -> None:
        """Nothing is in use in ``cell`` any more: it is unbound, or stays anchored where it is bad."""
        level, parent = self.virtual.cells[cell]
        if parent < 0:
            if cell in self.doomed:  # until somebody finds that it can be healthy again
                self._anchor(cell, True)
                self.allocator.changes += 1
                if cell < self.virtual.hosts:
                    self.anchor_leaves(cell, 0)
                return
            self._drop_inside(cell)
            self._release(cell)
            return
        if self.allocator.bad_leaves and self.allocator.is_bad(level, self.bound[cell]):
            self._anchor(cell, True)
            if cell < self.virtual.hosts:
                self.anchor_leaves(cell, 0)
        else:
            self._drop_inside(cell)
            self._detach(cell)
        self._count(parent, -1)
        if not self.live[parent]:
            self._leave(parent)

    def _drop_inside(self, cell: int) -> None:
        """``cell`` is about to stand on nothing any more, and so nothing that is anchored in it."""
        self._anchor(cell, False)
        if cell < self.virtual.hosts:
            if self.inner[cell] is not None:
                self._set_inner(cell, None)
            self._set_bad(cell, 0)
        elif self.anchored:
            for child in self.children(cell):
                if child in self.anchored:
                    self._drop_inside(child)
                    self._detach(child)

    # -- bad hardware -------------------------------------------------------------------------------------------------

    def doom(self, level: int) -> bool:
        """Bind the last unbound preassigned cell of ``level`` to a bad physical one; ``False`` when there is none."""
        cell = self.loose[level].last()
        physical = self.allocator.allocate_bad(level)
        if physical < 0:
            return False
        self._preassign(cell, physical)
        self._anchor(cell, True)
        self._doom(cell, True)
        if cell < self.virtual.hosts:
            self.anchor_leaves(cell, 0)
        else:
            self._anchor_children(cell)
        return True

    def undoom(self, cell: int) -> None:
        """Undo :meth:`doom`; where something is in use in ``cell`` by now, that keeps it bound."""
        self._doom(cell, False)
        if cell in self.anchored:
            self._drop_inside(cell)
            self._release(cell)

    def health_changed(self, cell: int, node: int) -> None:
        """The bad leaves of ``node``, which is inside the bound ``cell``, have changed. O(levels * fan-out)."""
        hierarchy = self.virtual.hierarchy
        while cell >= self.virtual.hosts:
            below = self.virtual.cells[cell].level - 1
            # a preassigned cell is at node level or above here, so exactly one child holds the node
            physical = node * hierarchy.node_size // hierarchy.gpus[below]
            child = next((c for c in self.children(cell) if self.bound[c] == physical), -1)
            if child < 0:
                if self.allocator.is_bad(below, physical):
                    self._anchor_children(cell)
                return
            if child in self.anchored and not self.allocator.is_bad(below, physical):
                self._drop_inside(child)
                self._detach(child)
                return
            cell = child
        self.anchor_leaves(cell, 0)

    def _anchor_children(self, cell: int) -> None:
        """Every bad physical child of a bound upper cell gets a virtual child: the last ones that are unbound."""
        level = self.virtual.cells[cell].level - 1
        for physical in self.allocator.bad_children(level, self.bound[cell]):
            if self.allocator.is_open(level, physical):
                child = next(c for c in reversed(self.children(cell)) if self.bound[c] < 0)
                self.allocator.take_child_at(level, physical)
                self._attach(child, physical)
                self._anchor(child, True)
                if child < self.virtual.hosts:
                    self.anchor_leaves(child, 0)
                else:
                    self._anchor_children(child)

    def anchor_leaves(self, host: int, avoid: int) -> None:
        """Say which virtual leaves of a bound host are bad; where there is a choice, the last, and not in ``avoid``."""
        hierarchy, shape = self.virtual.hierarchy, self.virtual.shapes[host]
        node, part = divmod(self.bound[host], hierarchy.node_size // shape.leaves)
        bad = self.bad_leaves[node] >> part * shape.leaves & shape.full
        if not (bad or self.bad[host]):
            return
        inner = _list_of(shape, self.inner[host])
        free = self.free[host]
        for cell in range(1, len(inner)):  # what was bound for hardware that is good again
            leaves = shape.masks[cell]
            if inner[cell] >= 0 and leaves & free == leaves:
                inner[cell] = -1

        def least_shared(unbound: list[int]) -> int:
            return min(reversed(unbound), key=lambda cell: (shape.masks[cell] & avoid).bit_count())

        found = 0
        for leaf in leaves_of(bad):
            found |= shape.masks[_leaf_on(shape, inner, leaf, least_shared)]
        self._set_inner(host, tuple(inner))
        self._set_bad(host, found)

    def validate(self) -> None:
        """Bound cells are exactly those in use or bad, each inside its parent's, no two on one. O(cells of the VC)."""
        check_bindings(self)


def _list_of(shape: Shape, inner: Inner | None) -> list[int]:
    """What is bound inside a bound host, to be changed."""
    # the host's own cells are counted from where it stands
    return [0, *[-1] * (len(shape.masks) - 1)] if inner is None else list(inner)


# hosts of one shape are bound inside in a few ways over and over, so each way is worked out once
@lru_cache(REMEMBERED)
def _bound_inside(shape: Shape, inner: Inner | None, mask: int, others: int, own: int) -> tuple[Inner, int]:
    """``inner`` once the virtual leaves ``mask`` are bound too, and the physical leaves that they stand on.

    ``others``: leaves to be avoided, ``own``: to be preferred. O(levels * fan-out), O(1) once seen.
    """
    bound = _list_of(shape, inner)
    masks, children = shape.masks, shape.children
    leaves = 0
    for parent, child, siblings, whole in shape.steps(mask):
        if bound[child] < 0:
            taken = [bound[c] for c in siblings]
            bound[child] = _choose(masks, children[bound[parent]], taken, others, own)
        if whole:
            leaves |= masks[bound[child]]
    return tuple(bound), leaves


@lru_cache(REMEMBERED)
def _unbound_inside(shape: Shape, inner: Inner, mask: int, keep: int) -> Inner:
    """``inner`` once the virtual leaves ``mask`` are bound no more, as far as they are among ``keep``."""
    bound = list(inner)
    for cell, leaves in shape.touched(mask):
        if leaves & keep == leaves:
            bound[cell] = -1
    return tuple(bound)


def _leaf_on(shape: Shape, inner: list[int], leaf: int, choose: Callable[[list[int]], int]) -> int:
    """The virtual leaf (an inner cell) of a host on its physical ``leaf``, bound in ``inner`` down to there.

    ``choose`` picks one of the unbound virtual cells wherever none stands there yet; -1 ends it, and is returned.
    """
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


def _choose(masks: Sequence[int], cells: Sequence[int], taken: list[int], crowd: int, near: int) -> int:
    """The cell not taken that suits best: most leaves of ``near``, fewest of ``crowd``, lowest number."""
    best, best_worth = -1, (0, 0)
    for cell in cells:
        if cell not in taken:
            mask = masks[cell]
            worth = -(mask & near).bit_count(), (mask & crowd).bit_count()
            if best < 0 or worth < best_worth:
                best, best_worth = cell, worth
    return best
