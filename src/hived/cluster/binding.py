"""The binding of virtual cells to physical ones: made when a group needs it, removed when nothing runs there any more.

A virtual cell in use is bound to one physical cell of its level, and its children to children of that cell. So a
group's virtual leaves are as close together in the physical cluster as its VC's policy chose them.
Binding is late at every level: while a VC uses one GPU of a node it reserved, the seven others stay unbound below the
node, and an opportunistic group there runs on until one of them is needed (HiveD, OSDI'20, section 3.3).

    preassigned cell    by the buddy allocator                       (cells/allocator.py)
    cells down to host  a free child of the parent's cell            } each time the one with the fewest GPUs
    cells in a host     a free child of the parent's cell            } in opportunistic use, then the lowest

Inside a bound cell every bad physical child has a virtual child bound to it at once, which is *anchored* there while
nothing is in use in it. So a VC always knows the bad leaves among its obtainable ones. Preassigned cells that can no
longer be healthy are *doomed*: anchored to bad physical cells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from hived.cells import IndexSet, Shape, leaves_of
from hived.errors import InvariantError

from .nodes import Nodes
from .sparing import Sparing
from .undo import Undo
from .virtual import VirtualCells

#: physical inner cell under each virtual inner cell of a host
Inner = tuple[int, ...]
#: ways of binding inside a host that are cached
CACHE_SIZE = 20_000


class ChainBindings:
    """The bound reserved cells of one chain, those of all VCs."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        #: bound preassigned cells: level and number of the physical cell, to the bindings and the virtual cell
        self.owners: dict[tuple[int, int], tuple[Binding, int]] = {}
        #: doomed cells: reserved cells with only bad hardware left for them, as bindings and virtual cell
        self.doomed: list[tuple[Binding, int]] = []
        #: the allocator's count of changes at the last refresh of the doomed cells
        self.doomed_at = -1
        #: which loans make room; None: those with the fewest GPUs
        self.sparing: Sparing | None = None

    def health_changed(self, node: int) -> None:
        """Have the bindings of all bound cells with leaves of a node follow its bad leaves. O(its cells)."""
        hierarchy = self.nodes.hierarchy
        for level in self.nodes.allocator.levels:
            if level < hierarchy.node_level:
                parts = hierarchy.node_size // hierarchy.gpus[level]
                cells = range(node * parts, (node + 1) * parts)
            else:
                above = node * hierarchy.node_size // hierarchy.gpus[level]
                cells = range(above, above + 1)
            for cell in cells:
                owner = self.owners.get((level, cell))
                if owner is not None:
                    binding, virtual = owner
                    binding.health_changed(virtual, node)


class Binding:
    """The bindings of a VC's cells. To bind or unbind a host costs O(levels), inside a host O(its levels' fan-outs)."""

    def __init__(
        self, virtual: VirtualCells, free: Sequence[int], chain: ChainBindings, undo: Undo, pinned_to: int = -1
    ) -> None:
        """``pinned_to``: the number of the physical cell that its one preassigned cell is pinned to; -1 for none.

        ``free``: free leaves of every host, updated by the caller.
        """
        self.virtual = virtual
        self.free = free
        self._chain = chain
        #: the allocator of its preassigned cells
        self.allocator = chain.nodes.allocator
        self._note = undo.note
        #: bad leaves per node
        self.bad_leaves = chain.nodes.bad
        #: bad leaves of each host, known for bound hosts
        self.bad = [0] * virtual.hosts
        #: bound reserved cells of all bindings in the chain
        self.owners = chain.owners
        #: physical cell under each virtual cell; -1 while unbound
        self.bound = [-1] * len(virtual.cells)
        #: children of each virtual cell that are in use; a pinned cell counts its pin too, and so stays
        self.live = [0] * len(virtual.cells)
        #: cells bound for bad hardware alone, with nothing in use in them
        self.anchored: set[int] = set()
        #: preassigned cells bound to bad hardware because no healthy cell is left for them; they stay bound when unused
        self.doomed: set[int] = set()
        #: hosts whose bad leaves have changed since the pool's last refresh, which clears this
        self.changed: set[int] = set()
        #: hosts with bad leaves
        self.bad_hosts: set[int] = set()
        #: per level: the unbound preassigned cells
        self.unbound = [IndexSet(len(virtual.cells)) for _ in virtual.hierarchy.gpus]
        #: the virtual cells right below each upper one
        self.children: defaultdict[int, list[int]] = defaultdict(list)
        for number, (level, parent) in enumerate(virtual.cells):
            if parent < 0:
                self.unbound[level].add(number)
            else:
                self.children[parent].append(number)
        #: the pinned virtual cell, -1 for none
        self.pinned = -1
        #: per host: physical inner cell under each virtual inner cell, -1 while unbound; None while all are unbound
        self.inner: list[Inner | None] = [None] * virtual.hosts
        if pinned_to >= 0:
            self.pinned = next(v for v, cell in enumerate(virtual.cells) if cell.parent < 0)
            self._take(self.pinned, pinned_to)
            self.live[self.pinned] = 1

    def take_over(self, before: Binding, stay: Mapping[int, int]) -> dict[int, int]:
        """Have the bindings of cells of ``before``, which is not used any more; the new numbers of all of them.

        ``stay``: of the preassigned ones; all others are unbound. No cell is doomed. O(cells that stay).
        """
        moved = dict(stay)
        below = list(stay)
        for cell in below:
            inside = before.children.get(cell, ())
            moved.update(zip(inside, self.children.get(moved[cell], ()), strict=True))
            below += inside
        for cell, number in moved.items():
            level, parent = self.virtual.cells[number]
            physical = self.bound[number] = before.bound[cell]
            self.live[number] = before.live[cell]
            if cell in before.anchored:
                self.anchored.add(number)
            if parent < 0 and physical >= 0:
                self.unbound[level].remove(number)
                self.owners[level, physical] = self, number
            if number < self.virtual.hosts:
                self.inner[number] = before.inner[cell]
                self.bad[number] = before.bad[cell]
                if before.bad[cell]:
                    self.bad_hosts.add(number)
        return moved

    # -- queries ------------------------------------------------------------------------------------------------------

    def node_of(self, host: int) -> int:
        """The number of the node that a bound host is, or is in."""
        return self.bound[host] * self.virtual.shapes[host].leaves // self.virtual.hierarchy.node_size

    def can_bind(self, cell: int, physical: int) -> bool:
        """Whether ``cell`` is bound to this physical cell of its level, or could safely be. O(levels)."""
        if self.bound[cell] >= 0:
            return self.bound[cell] == physical
        level, parent = self.virtual.cells[cell]
        if parent < 0:
            return self.allocator.can_take(level, physical)
        above = physical // self.virtual.hierarchy.fanout[level + 1]
        if self.bound[parent] >= 0:
            return self.bound[parent] == above and self.allocator.is_open(level, physical)
        return self.can_bind(parent, above)

    def host_under(self, level: int, node: int, leaf: int) -> int:
        """The virtual host that can be bound around this leaf, in a preassigned cell of ``level``; -1 for none.

        Cells bound there already come first, then the first unbound ones. O(levels * fan-out).
        """
        hierarchy = self.virtual.hierarchy
        first = node * hierarchy.node_size + leaf
        owner = self.owners.get((level, first // hierarchy.gpus[level]))
        if owner is not None:
            if owner[0] is not self:
                return -1
            cell = owner[1]
        else:
            cell = self.unbound[level].first()
            if cell < 0:
                return -1
        while cell >= self.virtual.hosts:
            wanted = first // hierarchy.gpus[self.virtual.cells[cell].level - 1]
            could = [child for child in self.children[cell] if self.bound[child] in (wanted, -1)]
            if not could:
                return -1
            cell = next((child for child in could if self.bound[child] == wanted), could[0])
        return cell if self.can_bind(cell, first // hierarchy.gpus[self.virtual.cells[cell].level]) else -1

    # -- the steps that change something, each of which logs its inverse ----------------------------------------------

    def _bind_cell(self, cell: int, physical: int) -> None:
        """Bind a cell to a physical one that was just allocated, or taken from the cell of its parent."""
        level, parent = self.virtual.cells[cell]
        self.bound[cell] = physical
        if parent < 0:
            self.unbound[level].remove(cell)
            self.owners[level, physical] = self, cell
        self._note((self._release, cell))

    def _release(self, cell: int) -> None:
        """Unbind a cell, and free its physical cell."""
        level, parent = self.virtual.cells[cell]
        physical = self.bound[cell]
        self.bound[cell] = -1
        if parent < 0:
            del self.owners[level, physical]
            self.unbound[level].add(cell)
            self.allocator.release(level, physical)
        else:
            self.allocator.give_child(level, physical)
        self._note((self._take, cell, physical))

    def _take(self, cell: int, physical: int) -> None:
        """Allocate exactly this physical cell, and bind a cell to it."""
        level, parent = self.virtual.cells[cell]
        if parent < 0:
            self.allocator.allocate_at(level, physical)
        else:
            self.allocator.take_child_at(level, physical)
        self._bind_cell(cell, physical)

    def _count(self, cell: int, more: int) -> None:
        """Add ``more`` to the number of children of ``cell`` in use."""
        self.live[cell] += more
        self._note((self._count, cell, -more))

    def _mark(self, marked: set[int], cell: int, is_marked: bool) -> None:
        """Set whether a cell is in :attr:`anchored` or :attr:`doomed`."""
        if (cell in marked) != is_marked:
            marked ^= {cell}
            self._note((self._mark, marked, cell, not is_marked))

    def _set_inner(self, host: int, inner: Inner | None) -> None:
        """Set the bindings inside a host."""
        self._note((self._set_inner, host, self.inner[host]))
        self.inner[host] = inner

    def _set_bad(self, host: int, leaves: int) -> None:
        """Set the bad virtual leaves of ``host``."""
        before = self.bad[host]
        if before != leaves:
            self._note((self._set_bad, host, before))
            self.bad[host] = leaves
            self.changed.add(host)
            if leaves:
                self.bad_hosts.add(host)
            else:
                self.bad_hosts.discard(host)

    # -- binding ------------------------------------------------------------------------------------------------------

    def acquire(self, cell: int, mask: int, near: int = -1, exactly: bool = False) -> None:
        """Mark ``cell`` as in use, and bind it if it was not: to ``near``, if possible.

        ``mask``: the requested leaves of a host; bad leaves are anchored elsewhere in it as far as possible.
        ``exactly``: to ``near`` and no other cell, as :meth:`can_bind` allows.
        """
        if self.bound[cell] >= 0:
            if cell in self.anchored:
                self._use(cell)
            return
        level, parent = self.virtual.cells[cell]
        allocator = self.allocator
        if parent >= 0 and (self.bound[parent] < 0 or parent in self.anchored):
            self.acquire(parent, mask, near // self.virtual.hierarchy.fanout[level + 1] if near >= 0 else -1, exactly)
        above = self.bound[parent] if parent >= 0 else -1
        if near < 0 and (sparing := self._chain.sparing) is not None:
            near = sparing.cheapest(level, allocator.choices(level, above), mask.bit_count())
        if exactly:
            self._take(cell, near)
        elif parent >= 0:
            self._bind_cell(cell, allocator.take_child(level, above, near))
        else:
            physical = allocator.allocate(level, near)
            if physical < 0:
                raise InvariantError(f"no free cell at level {level} for a cell that was reserved: safety is broken")
            self._bind_cell(cell, physical)
        if parent >= 0:
            self._count(parent, 1)
            if allocator.bad_leaves and self.live[parent] == 1:
                self._anchor_inside(parent)
        if allocator.bad_leaves and cell < self.virtual.hosts:
            self._anchor_inside(cell, mask)

    def bind_leaves(
        self, host: int, mask: int, opportunistic: list[int], near: tuple[int, int] | None = None
    ) -> tuple[int, int]:
        """Bind the virtual leaves ``mask`` of a bound ``host``, and return the node and the physical leaves.

        ``opportunistic``: per node, the leaves in opportunistic use; ``near``: preferred leaves of a node.
        The caller takes the virtual leaves afterwards.
        """
        virtual = self.virtual
        shape = virtual.shapes[host]
        node, offset = divmod(self.bound[host] * shape.leaves, virtual.hierarchy.node_size)
        if mask == shape.full:
            return node, mask << offset
        before = self.inner[host]
        own = near[1] >> offset & shape.full if near is not None and near[0] == node else 0
        others, sparing = opportunistic[node] >> offset & shape.full, self._chain.sparing
        if sparing is None or not others:
            inner, leaves = _bound_inside(shape, before, mask, others, own)
        else:
            cost = sparing.cost
            inner, leaves = _bind_inside(
                shape,
                before,
                mask,
                own,
                lambda cells, gpus: (cost(node, cells << offset, gpus), (cells & others).bit_count()),
            )
        if inner is not before:
            self._note((self._set_inner, host, before))
            self.inner[host] = inner
        return node, leaves << offset

    def _use(self, cell: int) -> None:
        """Mark a cell that was only anchored as in use, and so the cells above it."""
        self._mark(self.anchored, cell, False)
        if cell in self.doomed:
            self.allocator.changes += 1  # so that the doomed cells are refreshed
        parent = self.virtual.cells[cell].parent
        if parent >= 0:
            if parent in self.anchored:
                self._use(parent)
            self._count(parent, 1)

    def bind_leaves_at(self, host: int, leaves: int) -> int:
        """Bind virtual leaves of a bound ``host`` to exactly these physical ``leaves``; the virtual ones.

        0, and nothing changed, where that is impossible.
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
        """Unbind virtual leaves of a group that has ended. The caller has marked them as free in the pool."""
        shape = self.virtual.shapes[host]
        free = self.free[host]
        before = self.inner[host]
        if free == shape.full:
            if before is not None:
                self._set_inner(host, None)
            if host != self.pinned:
                self._leave(host)
            elif self.allocator.bad_leaves:
                self._anchor_inside(host)
            return
        if before is not None:
            self._set_inner(host, _unbound_inside(shape, before, mask, free & ~self.bad[host]))

    def _leave(self, cell: int) -> None:
        """Unbind a cell that is no longer in use, or anchor it where it is bad."""
        level, parent = self.virtual.cells[cell]
        if cell in self.doomed:  # it stays bound until a refresh finds a healthy cell for it
            self.allocator.changes += 1
        elif parent < 0 or not self.allocator.is_bad(level, self.bound[cell]):
            self._drop(cell)
        if self.bound[cell] >= 0:
            self._mark(self.anchored, cell, True)
            self._anchor_inside(cell)
        if parent >= 0:
            self._count(parent, -1)
            if not self.live[parent]:
                self._leave(parent)

    def _drop(self, cell: int) -> None:
        """Unbind ``cell`` and the cells anchored in it."""
        self._mark(self.anchored, cell, False)
        if cell < self.virtual.hosts:
            if self.inner[cell] is not None:
                self._set_inner(cell, None)
            self._set_bad(cell, 0)
        elif self.anchored:
            for child in self.children[cell]:
                if child in self.anchored:
                    self._drop(child)
        self._release(cell)

    # -- bad hardware -------------------------------------------------------------------------------------------------

    def doom(self, level: int) -> int:
        """Bind the last unbound preassigned cell of ``level`` to a bad physical one; its number, or -1."""
        cell, physical = self.unbound[level].last(), self.allocator.allocate_bad(level)
        if physical < 0:
            return -1
        self._bind_cell(cell, physical)
        self._mark(self.anchored, cell, True)
        self._mark(self.doomed, cell, True)
        self._anchor_inside(cell)
        return cell

    def undoom(self, cell: int) -> None:
        """Undo :meth:`doom`; a cell that is in use by now stays bound."""
        self._mark(self.doomed, cell, False)
        if cell in self.anchored:
            self._drop(cell)

    def health_changed(self, cell: int, node: int) -> None:
        """Update the anchors inside the bound ``cell`` for changed bad leaves of its ``node``. O(levels * fan-out)."""
        hierarchy = self.virtual.hierarchy
        while cell >= self.virtual.hosts:
            below = self.virtual.cells[cell].level - 1
            # a preassigned cell is at node level or above here, so exactly one child has the node
            physical = node * hierarchy.node_size // hierarchy.gpus[below]
            child = next((c for c in self.children[cell] if self.bound[c] == physical), -1)
            if child < 0:
                if self.allocator.is_bad(below, physical):
                    self._anchor_inside(cell)
                return
            if child in self.anchored and not self.allocator.is_bad(below, physical):
                self._drop(child)
                return
            cell = child
        self._anchor_inside(cell)

    def _anchor_inside(self, cell: int, avoid: int = 0) -> None:
        """Anchor an unbound virtual child, the last first, to every bad physical child of a bound cell.

        In a host, to its bad leaves; virtual leaves outside ``avoid`` are preferred.
        """
        if cell < self.virtual.hosts:
            self._anchor_leaves(cell, avoid)
            return
        level = self.virtual.cells[cell].level - 1
        for physical in self.allocator.bad_children(level, self.bound[cell]):
            if self.allocator.is_open(level, physical):
                child = next(c for c in reversed(self.children[cell]) if self.bound[c] < 0)
                self._take(child, physical)
                self._mark(self.anchored, child, True)
                self._anchor_inside(child)

    def _anchor_leaves(self, host: int, avoid: int) -> None:
        hierarchy, shape = self.virtual.hierarchy, self.virtual.shapes[host]
        node, part = divmod(self.bound[host], hierarchy.node_size // shape.leaves)
        bad = self.bad_leaves[node] >> part * shape.leaves & shape.full
        if not (bad or self.bad[host]):
            return
        inner = _list_of(shape, self.inner[host])
        free = self.free[host]
        for cell in range(1, len(inner)):  # unbind the cells of hardware that is healthy again
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


class BindingHints:
    """Where an opportunistic group runs, as preferred places of the virtual hosts chosen for it.

    A host may be a whole node, or a cell in one, beside others that the group has there. Made once per request in
    O(levels * hosts); a hint costs O(levels + cells above node level that the group is in).
    """

    def __init__(self, binding: Binding, hosts: Iterable[int], own: Sequence[tuple[int, int]]) -> None:
        """``own``: nodes and the group's leaves on them; ``hosts``: the virtual hosts to be bound, in any order."""
        self._binding = binding
        hierarchy = binding.virtual.hierarchy
        #: by node, the group's leaves that no pod of it has yet
        self._left: dict[int, int] = {}
        for node, mask in own:
            self._left[node] = self._left.get(node, 0) | mask
        #: nodes in which more hosts may be bound
        self._open = dict.fromkeys(self._left)
        #: per level from the nodes up: those nodes by their physical cell
        self._groups: dict[int, dict[int, dict[int, None]]] = {}
        for level in range(hierarchy.node_level, hierarchy.top + 1):
            groups = self._groups[level] = {}
            for node in sorted(self._open):
                groups.setdefault(node // self._nodes(level), {})[node] = None
        #: number of the hosts in each virtual cell
        self._needed: dict[int, int] = {}
        for host in hosts:
            cell = host
            while cell >= 0:
                self._needed[cell] = self._needed.get(cell, 0) + 1
                cell = binding.virtual.cells[cell].parent

    def _nodes(self, level: int) -> int:
        hierarchy = self._binding.virtual.hierarchy
        return max(1, hierarchy.gpus[level] // hierarchy.node_size)

    def hint(self, host: int) -> tuple[int, int] | None:
        """The preferred node of ``host``, and the group's leaves on it that are left; None when all are taken.

        Where cells above the host have to be bound for it, they should have as many of the group's nodes as its hosts
        need there, and no more, so that every host finds one.
        """
        if self._binding.bound[host] >= 0:
            node = self._binding.node_of(host)
            return (node, left) if (left := self._left.get(node, 0)) else None
        if not self._open:
            return None
        cells = self._binding.virtual.cells
        path = []  # the cells to be bound for the host, from it upward
        cell = host
        while cell >= 0 and self._binding.bound[cell] < 0:
            path.append(cell)
            cell = cells[cell].parent
        inside: Collection[int] = self._open
        if cell >= 0 and cell != host:
            inside = self._groups[cells[cell].level].get(self._binding.bound[cell]) or inside
        for cell in reversed(path):
            level, wanted = cells[cell].level, self._needed[cell]
            if level > self._binding.virtual.hierarchy.node_level:
                groups = {g: nodes for g, nodes in self._groups[level].items() if next(iter(nodes)) in inside}
                best = min(groups, key=lambda g: (len(groups[g]) < wanted, abs(len(groups[g]) - wanted), g))
                inside = groups[best]
        node = next(iter(inside))
        return node, self._left[node]

    def cell(self, host: int, hint: tuple[int, int], leaves: int) -> int:
        """The physical cell of an unbound host, of which so many ``leaves`` are needed: with as many of the group's."""
        hierarchy = self._binding.virtual.hierarchy
        gpus, (node, left) = hierarchy.gpus[self._binding.virtual.cells[host].level], hint
        parts = max(1, hierarchy.node_size // gpus)
        full = (1 << gpus) - 1
        has = [(left >> part * gpus & full).bit_count() for part in range(parts)]
        best = min(range(parts), key=lambda part: (has[part] < leaves, abs(has[part] - leaves), part))
        return node * parts + best

    def take(self, host: int, node: int, leaves: int) -> None:
        """Leaves of a node were bound for a pod in ``host``: no host that is a node is bound there any more."""
        left = self._left[node] = self._left.get(node, 0) & ~leaves
        virtual = self._binding.virtual
        whole = virtual.cells[host].level >= virtual.hierarchy.node_level
        if (whole or not left) and node in self._open:
            del self._open[node]
            for level, groups in self._groups.items():
                cell = node // self._nodes(level)
                del groups[cell][node]
                if not groups[cell]:
                    del groups[cell]


def _list_of(shape: Shape, inner: Inner | None) -> list[int]:
    """A mutable copy of the bindings inside a bound host."""
    # inner cells are numbered from the host's own physical cell, 0
    return [0, *[-1] * (len(shape.masks) - 1)] if inner is None else list(inner)


# hosts of one shape are bound inside in a few recurring ways, so each way is computed once
@lru_cache(CACHE_SIZE)
def _bound_inside(shape: Shape, inner: Inner | None, mask: int, others: int, own: int) -> tuple[Inner, int]:
    """Bind the virtual leaves ``mask`` inside a host: the new ``inner``, and their physical leaves.

    ``others``: leaves to be avoided, ``own``: to be preferred. O(levels * fan-out), O(1) once cached.
    """
    return _bind_inside(shape, inner, mask, own, lambda leaves, _: (0.0, (leaves & others).bit_count()))


def _bind_inside(
    shape: Shape, inner: Inner | None, mask: int, own: int, cost: Callable[[int, int], tuple[float, int]]
) -> tuple[Inner, int]:
    """As :func:`_bound_inside`; ``cost``: of having so many of some leaves, by which others than ``own`` are chosen."""
    bound = _list_of(shape, inner)
    masks, children = shape.masks, shape.children
    leaves, below = 0, [0]
    for cell in below:
        for child in children[cell]:
            wanted = masks[child] & mask
            if not wanted:
                continue
            if bound[child] < 0:
                taken, number = [bound[c] for c in children[cell]], wanted.bit_count()
                bound[child] = min(
                    (c for c in children[bound[cell]] if c not in taken),
                    key=lambda c: (-(masks[c] & own).bit_count(), cost(masks[c], number)),
                )
            if wanted == masks[child]:  # nothing below it need be bound
                leaves |= masks[bound[child]]
            else:
                below.append(child)
    return tuple(bound), leaves


@lru_cache(CACHE_SIZE)
def _unbound_inside(shape: Shape, inner: Inner, mask: int, unused: int) -> Inner:
    """``inner`` without the cells on the virtual leaves ``mask`` whose leaves are all among ``unused``."""
    bound = list(inner)
    for cell, leaves in enumerate(shape.masks):
        if cell and leaves & mask and leaves & unused == leaves:
            bound[cell] = -1
    return tuple(bound)


def _leaf_on(shape: Shape, inner: list[int], leaf: int, choose: Callable[[list[int]], int]) -> int:
    """The virtual leaf (an inner cell) of a host on its physical ``leaf``; binds the cells down to it in ``inner``.

    ``choose`` picks one of the unbound virtual cells wherever none is bound yet; its -1 is returned at once.
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
