"""Virtual cells onto physical ones: made when a job needs it, undone when nothing runs there any more.

A virtual cell in use stands on one physical cell of its level, and its children stand on that cell's children. So a
job's virtual leaves, as close together as its VC's policy chose them, are as close together in the real cluster.
Binding is late at every level: while a VC uses one GPU of a node it reserved, the seven others stay unbound below the
node, and an opportunistic job there runs on until one of them is really needed.

    preassigned cell    by the buddy allocator                       (cells/allocator.py)
    cells down to host  a free child of the parent's cell            } each time the one with the fewest GPUs
    cells in a host     a free child of the parent's cell            } in opportunistic use, then the lowest

Bad hardware is bound at once, so that the VC sees which of its leaves are bad and chooses among the others: inside a
bound cell every bad physical child has a virtual child on it, *anchored* there while nothing is in use in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hived.cells import BuddyAllocator, IndexSet, leaves_of
from hived.errors import InvariantError, ensure

from .virtual import VirtualPool

#: per cell that somebody reserved and that is bound: its level and number, to the binder and the virtual cell
Owners = dict[tuple[int, int], tuple["Binder", int]]
#: the bindings of some hosts: per host its path from the preassigned cell down, and what is bound inside
Bindings = list[tuple[list[tuple[int, int]], int, list[int] | None]]


class Binder:
    """The bindings of one pool. Binding and unbinding a host cost O(levels), inside a host O(its levels' fan-outs)."""

    __slots__ = (
        "_children",
        "_inner",
        "allocator",
        "anchored",
        "bad",
        "bound",
        "changed",
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
        # per host: physical inner cell under each virtual inner cell, -1 while unbound; None while nothing is
        self._inner: list[list[int] | None] = [None] * pool.hosts
        self._children: list[list[int]] | None = None
        if pinned_to >= 0:
            self.pinned = next(v for v, cell in enumerate(pool.cells) if cell.parent < 0)
            allocator.allocate_exactly(pool.cells[self.pinned].level, pinned_to)
            self._preassign(self.pinned, pinned_to)
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

    # -- binding ------------------------------------------------------------------------------------------------------

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

    def leaves(self, host: int, mask: int, crowd: list[int], near: tuple[int, int] | None = None) -> tuple[int, int]:
        """The node and the physical leaves under the virtual leaves ``mask`` of a bound ``host``; see :meth:`bind`."""
        hierarchy = self.pool.hierarchy
        per_node = hierarchy.node_size // hierarchy.gpus[self.pool.cells[host].level]
        node, part = divmod(self.bound[host], per_node)
        shape = self.pool.shapes[host]
        offset = part * shape.leaves
        if mask == shape.full:
            return node, mask << offset
        inner = self._inner_of(host)
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

    def _inner_of(self, host: int) -> list[int]:
        inner = self._inner[host]
        if inner is None:
            inner = self._inner[host] = [-1] * len(self.pool.shapes[host].masks)
            inner[0] = 0  # the host's own cells are counted from where it stands
        return inner

    def _bind_cell(self, cell: int, near: int, mask: int) -> None:
        level, parent = self.pool.cells[cell]
        if parent < 0:
            physical = self.allocator.allocate(level, near)
            if physical < 0:
                raise InvariantError(f"no free cell at level {level} for a cell that was reserved: safety is broken")
            self._preassign(cell, physical)
        else:
            if self.bound[parent] < 0:
                self._bind_cell(parent, near // self.pool.hierarchy.fanout[level + 1] if near >= 0 else -1, mask)
            elif parent in self.anchored:
                self._use(parent)
            physical = self.allocator.take_child(level, self.bound[parent], near)
            self.bound[cell] = physical
            self.live[parent] += 1
            if self.allocator.bad_leaves and self.live[parent] == 1:
                self._anchor_children(parent)
        if self.allocator.bad_leaves and cell < self.pool.hosts:
            self._anchor_leaves(cell, mask)

    def _preassign(self, cell: int, physical: int) -> None:
        level = self.pool.cells[cell].level
        self.bound[cell] = physical
        self.loose[level].remove(cell)
        self.owners[level, physical] = self, cell

    def _use(self, cell: int) -> None:
        """Something is in use in a cell that was only anchored, and so in those above it."""
        self.anchored.discard(cell)
        parent = self.pool.cells[cell].parent
        if parent >= 0:
            if parent in self.anchored:
                self._use(parent)
            self.live[parent] += 1

    # -- exactly there ------------------------------------------------------------------------------------------------

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
            self._preassign(cell, physical)
        else:
            self.stand(parent, physical // self.pool.hierarchy.fanout[level + 1], mask)
            self.allocator.take_exactly(level, physical)
            self.bound[cell] = physical
            self.live[parent] += 1
            if self.allocator.bad_leaves and self.live[parent] == 1:
                self._anchor_children(parent)
        if self.allocator.bad_leaves and cell < self.pool.hosts:
            self._anchor_leaves(cell, mask)

    def host_for(self, level: int, node: int, leaf: int) -> int:
        """The virtual host that can stand under this leaf, in a preassigned cell of ``level``; -1 when none can.

        Cells that stand there already come first, then the first that are unbound. O(levels * fan-out).
        """
        hierarchy = self.pool.hierarchy
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
        while cell >= self.pool.hosts:
            wanted = first // hierarchy.gpus[self.pool.cells[cell].level - 1]
            children = self.children(cell)
            child = next((c for c in children if self.bound[c] == wanted), -1)
            if child < 0:
                child = next((c for c in children if self.bound[c] < 0), -1)
                if child < 0:
                    return -1
            cell = child
        return cell if self.can_stand(cell, first // hierarchy.gpus[self.pool.cells[cell].level]) else -1

    def virtual_leaves(self, host: int, leaves: int) -> int:
        """Bind virtual leaves of a bound ``host`` to these very physical ``leaves`` of its cell; 0 when that cannot be.

        Nothing has changed then.
        """
        shape = self.pool.shapes[host]
        before = list(self._inner_of(host))
        inner = self._inner_of(host)
        found = 0
        for leaf in leaves_of(leaves):
            cell = 0
            while shape.children[cell]:
                at = next(c for c in shape.children[inner[cell]] if shape.masks[c] >> leaf & 1)
                children = shape.children[cell]
                child = next((c for c in children if inner[c] == at), -1)
                if child < 0:
                    free = self.pool.free[host] & ~found
                    child = next((c for c in children if inner[c] < 0 and shape.masks[c] & free == shape.masks[c]), -1)
                    if child < 0:
                        self._inner[host] = before
                        return 0
                    inner[child] = at
                cell = child
            if not shape.masks[cell] & self.pool.free[host]:
                self._inner[host] = before
                return 0
            found |= shape.masks[cell]
        return found

    def recorded(self, hosts: Sequence[int]) -> Bindings:
        """The present bindings of bound hosts, for :meth:`rebind`. O(levels) each."""
        records: Bindings = []
        for host in hosts:
            path = []
            cell = host
            while cell >= 0:
                path.append((cell, self.bound[cell]))
                cell = self.pool.cells[cell].parent
            inner = self._inner[host]
            records.append((path[::-1], host, None if inner is None else list(inner)))
        return records

    def rebind(self, records: Bindings) -> None:
        """Bring recorded bindings back, after they and whatever was bound since were undone."""
        for path, host, inner in records:
            self.stand(host, path[-1][1])
            self._inner[host] = None if inner is None else list(inner)

    # -- unbinding ----------------------------------------------------------------------------------------------------

    def unbind(self, host: int, mask: int) -> None:
        """The job on these virtual leaves has ended. To be called after the pool was told that they are free."""
        shape = self.pool.shapes[host]
        free = self.pool.free[host]
        if free == shape.full:
            self._inner[host] = None
            if host != self.pinned:
                self._leave(host)
            elif self.allocator.bad_leaves:
                self._anchor_leaves(host, 0)
            return
        inner = self._inner[host]
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
            self._drop(cell)
            del self.owners[level, physical]
            self.loose[level].add(cell)
            self.allocator.release(level, physical)
            return
        if self.allocator.bad_leaves and self.allocator.is_bad(level, physical):
            self.anchored.add(cell)
            if cell < self.pool.hosts:
                self._anchor_leaves(cell, 0)
        else:
            self._drop(cell)
            self.allocator.give_child(level, physical)
        self.live[parent] -= 1
        if not self.live[parent]:
            self._leave(parent)

    def _drop(self, cell: int) -> None:
        """``cell`` stands on nothing any more, and so nothing anchored in it."""
        level = self.pool.cells[cell].level
        self.bound[cell] = -1
        self.anchored.discard(cell)
        if cell < self.pool.hosts:
            self._inner[cell] = None
            if self.pool.bad[cell]:
                self.pool.bad[cell] = 0
                self.sick.discard(cell)
                self.changed.add(cell)
        elif self.anchored:
            for child in self.children(cell):
                if child in self.anchored:
                    physical = self.bound[child]
                    self._drop(child)
                    self.allocator.give_child(level - 1, physical)

    # -- bad hardware -------------------------------------------------------------------------------------------------

    def doom(self, level: int) -> bool:
        """Bind the last unbound preassigned cell of ``level`` to a bad physical one; ``False`` when there is none."""
        cell = self.loose[level].last()
        physical = self.allocator.allocate_bad(level)
        if physical < 0:
            return False
        self._preassign(cell, physical)
        self.anchored.add(cell)
        if cell < self.pool.hosts:
            self._anchor_leaves(cell, 0)
        else:
            self._anchor_children(cell)
        return True

    def pardon(self, cell: int) -> None:
        """Undo :meth:`doom`, as long as nothing is in use in ``cell``."""
        level, physical = self.pool.cells[cell].level, self.bound[cell]
        self._drop(cell)
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
                    self._anchor_children(cell)
                return
            if child in self.anchored and not self.allocator.is_bad(below, physical):
                self._drop(child)
                self.allocator.give_child(below, physical)
                return
            cell = child
        self._anchor_leaves(cell, 0)

    def _anchor_children(self, cell: int) -> None:
        """Every bad physical child of a bound upper cell gets a virtual child: the last ones that are unbound."""
        level = self.pool.cells[cell].level - 1
        for physical in self.allocator.bad_children(level, self.bound[cell]):
            if self.allocator.siblings(level).available[physical]:
                child = next(c for c in reversed(self.children(cell)) if self.bound[c] < 0)
                self.allocator.take_exactly(level, physical)
                self.bound[child] = physical
                self.anchored.add(child)
                if child < self.pool.hosts:
                    self._anchor_leaves(child, 0)
                else:
                    self._anchor_children(child)

    def _anchor_leaves(self, host: int, avoid: int) -> None:
        """Say which virtual leaves of a bound host are bad; where there is a choice, the last, and not in ``avoid``."""
        hierarchy, shape = self.pool.hierarchy, self.pool.shapes[host]
        node, part = divmod(self.bound[host], hierarchy.node_size // shape.leaves)
        bad = self.bad[node] >> part * shape.leaves & shape.full
        was = self.pool.bad[host]
        if not (bad or was):
            return
        inner = self._inner_of(host)
        free = self.pool.free[host]
        for cell in range(1, len(inner)):  # what was bound for hardware that is good again
            leaves = shape.masks[cell]
            if inner[cell] >= 0 and leaves & free == leaves:
                inner[cell] = -1
        found = 0
        for leaf in leaves_of(bad):
            cell = 0
            while shape.children[cell]:
                at = next(c for c in shape.children[inner[cell]] if shape.masks[c] >> leaf & 1)
                children = shape.children[cell]
                child = next((c for c in children if inner[c] == at), -1)
                if child < 0:
                    unbound = (c for c in reversed(children) if inner[c] < 0)
                    child = min(unbound, key=lambda c: (shape.masks[c] & avoid).bit_count())
                    inner[child] = at
                cell = child
            found |= shape.masks[cell]
        if found != was:
            self.pool.bad[host] = found
            self.changed.add(host)
            if found:
                self.sick.add(host)
            else:
                self.sick.discard(host)

    def validate(self) -> None:
        """Bound cells are exactly those in use or bad, each inside its parent's, no two on one. O(cells of the VC)."""
        pool, hierarchy, allocator = self.pool, self.pool.hierarchy, self.allocator
        live = [0] * len(pool.cells)
        if self.pinned >= 0:
            live[self.pinned] = 1
        taken: set[tuple[int, int]] = set()
        for number, (level, parent) in enumerate(pool.cells):
            physical = self.bound[number]
            if number < pool.hosts:
                used = pool.free[number] != pool.shapes[number].full
                in_use = physical >= 0 and number not in self.anchored
                ensure(in_use == (used or number == self.pinned), f"host {number} is bound while in use")
            if parent < 0:
                ensure((physical < 0) == (number in self.loose[level]), f"cell {number} is loose while unbound")
            if physical < 0:
                continue
            ensure((level, physical) not in taken, f"physical cell {physical} of level {level} stands under one cell")
            taken.add((level, physical))
            if parent >= 0:
                live[parent] += number not in self.anchored
                above = physical // hierarchy.fanout[level + 1]
                ensure(self.bound[parent] == above, f"virtual cell {number} stands inside its parent's cell")
                ensure(not allocator.siblings(level).available[physical], f"cell {physical} was taken")
            else:
                ensure(self.owners.get((level, physical)) == (self, number), f"cell {number} is known to stand there")
            if number in self.anchored:
                ensure(allocator.is_bad(level, physical), f"anchored cell {number} stands on bad hardware")
            if number >= pool.hosts and allocator.bad_leaves:
                for child in allocator.bad_children(level - 1, physical):
                    ensure(not allocator.siblings(level - 1).available[child], f"bad child {child} is anchored")
        ensure(live == self.live, "children in use per virtual cell")
        for number, bound in enumerate(self.bound):
            if number >= pool.hosts:
                in_use = bound >= 0 and number not in self.anchored
                ensure(in_use == (live[number] > 0), f"virtual cell {number} is bound while a child is in use")
        for host, inner in enumerate(self._inner):
            if inner is None:
                ensure(not pool.bad[host], f"host {host}: bad leaves are bound")
            else:
                self._validate_inside(host, inner)

    def _validate_inside(self, host: int, inner: list[int]) -> None:
        pool, shape = self.pool, self.pool.shapes[host]
        for cell, children in enumerate(shape.children):
            stands_on = [inner[c] for c in children if inner[c] >= 0]
            ensure(len(set(stands_on)) == len(stands_on), f"host {host}: inner cells stand apart")
            at = inner[cell]
            ensure(all(at >= 0 and c in shape.children[at] for c in stands_on), f"host {host}: inner cells nest")
        for cell, leaves in enumerate(shape.masks):
            if cell and inner[cell] >= 0:
                idle = pool.free[host] & ~pool.bad[host]
                ensure(leaves & idle != leaves, f"host {host}: inner cell {cell} is bound while in use")
        if self.bad:
            node, part = divmod(self.bound[host], pool.hierarchy.node_size // shape.leaves)
            bad = self.bad[node] >> part * shape.leaves & shape.full
            stand = 0
            for cell, leaves in enumerate(shape.masks):
                if not shape.children[cell] and leaves & pool.bad[host]:
                    ensure(inner[cell] >= 0, f"host {host}: bad leaf {cell} is bound")
                    stand |= shape.masks[inner[cell]]
            ensure(stand == bad, f"host {host}: its bad leaves stand on the bad ones")


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
