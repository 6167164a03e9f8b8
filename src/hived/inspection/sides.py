"""The two sides of an inspection: the physical cells of a chain, and the virtual cells of a VC bound to them.

Both sides identify a cell by its level and its first leaf. Leaves are numbered across hosts: a host (a node, or the
part of a node that a VC reserved) begins ``node_size`` leaves after the one before, whatever its size. So a cell's
host, its leaves there and its children are plain arithmetic; a side adds addresses and bindings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import NamedTuple

from hived.cells import Hierarchy, Shape
from hived.cluster import OPPORTUNISTIC
from hived.cluster.binding import Binding, ChainBindings
from hived.cluster.pool import Pool
from hived.cluster.states import LeafState

from .cell import Cell
from .numbering import Reserved

#: the priority of a cell that no group holds
UNUSED = OPPORTUNISTIC - 1
FREE, USED, RESERVING, RESERVED = LeafState

#: leaves of a host that a group holds or has reserved: the mask, its priority, whether it runs, and its tenant if it is
#: opportunistic, else -1
Claim = tuple[int, int, bool, int]


class Spot(NamedTuple):
    """A cell of one side."""

    side: Side
    level: int
    leaf: int  #: its first leaf
    #: first leaf of the physical cell that it is bound to, or that it is; -1 for an unbound virtual cell
    on: int
    depth: int  #: cells above it
    number: int  #: base of the numbers of its children
    address: str
    virtual: int = 0  #: above hosts the number of the virtual cell, below hosts that of the inner cell


class Side:
    """Cells of one side at one moment: the groups' claims on leaves, and bad leaves."""

    __slots__ = ("_kinds", "_seen", "bad", "claims", "hierarchy", "vc")

    def __init__(self, hierarchy: Hierarchy, vc: str | None, bad: dict[int, int]) -> None:
        self.hierarchy = hierarchy
        #: the VC of the cells; None for physical cells
        self.vc = vc
        #: bad leaves of the hosts that have any
        self.bad = bad
        #: claims of the hosts that have any; filled by the caller before it reads cells
        self.claims: dict[int, list[Claim]] = {}
        self._seen: dict[int, tuple[Sequence[Claim], int, int]] = {}
        chain = hierarchy.spec
        # per level: the attributes that its cells share
        self._kinds = [
            (chain.name, chain.leaf_type, kind.cell_type, level, level == chain.node_level)
            for level, kind in enumerate((chain.levels[0], *chain.levels))
        ]

    def seen(self, host: int) -> tuple[Sequence[Claim], int, int]:
        """The claims on a host, its used leaves, and its reserved leaves. O(1) when cached."""
        found = self._seen.get(host)
        if found is None:
            claims = self.claims.get(host, ())
            used = reserved = 0
            for mask, _, running, _ in claims:
                if running:
                    used |= mask
                else:
                    reserved |= mask
            found = self._seen[host] = claims, used | self.used_by_others(host, reserved & ~used), reserved
        return found

    def used_by_others(self, host: int, reserved: int) -> int:
        """Leaves of ``reserved`` that are used by groups without a claim on this side."""
        return 0

    def partner(self, spot: Spot) -> Spot | None:
        """The physical cell that a virtual cell is bound to, or the reserved cell on a physical cell. O(levels)."""
        raise NotImplementedError  # each of the two sides has its own

    def borrower(self, spot: Spot) -> str | None:
        """The VC whose opportunistic group holds this leaf cell."""
        return None

    def children(self, spot: Spot) -> list[Spot]:
        """The children of a cell above leaf level. O(fan-out)."""
        raise NotImplementedError  # each of the two sides has its own

    def cell(self, spot: Spot, vc: str | None, other: Cell | None = None) -> Cell:
        """The inspected cell of a spot. O(claims on its hosts)."""
        _, level, leaf, _, depth, _, address, _ = spot
        size, leaves = self.hierarchy.node_size, self.hierarchy.gpus[level]
        host = leaf // size
        priority = UNUSED
        if leaves <= size:
            claims, used, reserved = self._seen.get(host) or self.seen(host)
            whole = (1 << leaves) - 1 << leaf - host * size
            used &= whole
            reserved &= whole
            healthy = not self.bad.get(host, 0) & whole
            for mask, rank, _, _ in claims:
                if mask & whole and rank > priority:
                    priority = rank
        else:
            hosts = range(host, host + leaves // size)
            healthy = self.bad.keys().isdisjoint(hosts)
            used = reserved = 0
            whole = leaves  # counted, not as a mask
            for host in hosts:
                claims, of_host, of_others = self.seen(host)
                used += of_host.bit_count()
                reserved += of_others.bit_count()
                for claim in claims:
                    if claim[1] > priority:
                        priority = claim[1]
        state = RESERVED if reserved == whole else FREE
        if used:
            state = RESERVING if used == whole == reserved else USED
        return Cell(depth, *self._kinds[level], address, state, healthy, priority, vc, other)


@cache
def _first_leaves(shape: Shape) -> tuple[int, ...]:
    """The first leaf of every inner cell of a host."""
    return tuple([(mask & -mask).bit_length() - 1 for mask in shape.masks])


class PhysicalSide(Side):
    """The cells of a chain."""

    __slots__ = ("_before", "_owners", "_sides", "_tenants", "loans")

    def __init__(
        self, chain: ChainBindings, tops: int, tenants: Sequence[str], sides: Mapping[Binding, VirtualSide]
    ) -> None:
        """``tops``: number of top cells of the chains before it; ``sides``: all virtual sides.

        Copies the bindings of reserved cells, and the bad leaves.
        """
        nodes = chain.nodes
        super().__init__(nodes.hierarchy, None, {node: nodes.bad[node] for node in nodes.bad_nodes})
        #: per tenant: nodes on which its opportunistic groups hold leaves; filled with the claims
        self.loans: dict[int, set[int]] = {}
        self._before = tops * self.hierarchy.gpus[self.hierarchy.top]
        self._tenants = tenants
        self._owners = dict(chain.owners)
        self._sides = sides

    def tops(self) -> Iterator[Spot]:
        """The top cells."""
        gpus = self.hierarchy.gpus[self.hierarchy.top]
        for number in range(self.hierarchy.count[self.hierarchy.top]):
            yield self.at(self.hierarchy.top, number * gpus)

    def at(self, level: int, leaf: int) -> Spot:
        """The cell of a level with this first leaf. O(levels)."""
        hierarchy = self.hierarchy
        names = [self._name(k, leaf) for k in range(hierarchy.top, level - 1, -1)]
        return Spot(self, level, leaf, leaf, hierarchy.top - level, self._number(level, leaf), "/".join(names))

    def _number(self, level: int, leaf: int) -> int:
        """Cells are counted from 0 in each node; those above nodes in all chains."""
        hierarchy = self.hierarchy
        first = leaf % hierarchy.node_size if level <= hierarchy.node_level else self._before + leaf
        return first // hierarchy.gpus[level]

    def _name(self, level: int, leaf: int) -> str:
        spec = self.hierarchy.spec
        node, number = divmod(leaf, self.hierarchy.node_size)
        if level == spec.node_level:
            return spec.node_names[node]
        return str(spec.device_index(node, number) if level == 1 else self._number(level, leaf))

    def children(self, spot: Spot) -> list[Spot]:
        _, above, first, _, depth, number, address, _ = spot
        level, spec, fanout = above - 1, self.hierarchy.spec, self.hierarchy.fanout[above]
        numbers: Iterable[int] = range(number * fanout, (number + 1) * fanout)
        names: Iterable[int | str] = numbers
        if level == spec.node_level:
            node = first // self.hierarchy.node_size
            names, numbers = [spec.node_names[n] for n in range(node, node + fanout)], repeat(0)
        elif level == 1 and spec.device_indices:
            names = [
                spec.device_index(*divmod(leaf, self.hierarchy.node_size)) for leaf in range(first, first + fanout)
            ]
        leaves = range(first, first + self.hierarchy.gpus[above], self.hierarchy.gpus[level])
        return [
            Spot(self, level, leaf, leaf, depth + 1, child, f"{address}/{name}", 0)
            for leaf, child, name in zip(leaves, numbers, names, strict=False)
        ]

    def partner(self, spot: Spot) -> Spot | None:
        found = self._owners.get((spot.level, spot.leaf // self.hierarchy.gpus[spot.level]))
        return None if found is None else self._sides[found[0]].reserved_cell(found[1])

    def lent(self, node: int, tenant: int) -> int:
        """The leaves of a node that opportunistic groups of a tenant hold, except those reserved by preemptors."""
        (claims, _, reserved), found = self.seen(node), 0
        for mask, _, running, borrower in claims:
            if borrower == tenant:
                found |= mask & ~reserved if running else mask
        return found

    def borrower(self, spot: Spot) -> str | None:
        if spot.level == 1:
            node, leaf = divmod(spot.leaf, self.hierarchy.node_size)
            for mask, _, _, borrower in self.seen(node)[0]:
                if borrower >= 0 and mask >> leaf & 1 and self.lent(node, borrower) >> leaf & 1:
                    return self._tenants[borrower]
        return None


class VirtualSide(Side):
    """The cells that a VC reserved in one chain, or one pinned cell."""

    __slots__ = ("_at", "_bound", "_children", "_inner", "_physical", "_reserved", "_virtual")

    def __init__(self, vc: str, pool: Pool, reserved: Sequence[Reserved], physical: PhysicalSide) -> None:
        """``physical``: the side of its chain. Copies the bindings of the VC's cells."""
        binding = pool.binding
        super().__init__(pool.virtual.hierarchy, vc, {host: binding.bad[host] for host in binding.bad_hosts})
        self._physical = physical
        self._virtual = pool.virtual
        self._children = binding.children
        self._reserved = reserved
        self._bound = list(binding.bound)
        self._inner = list(binding.inner)
        self._at: dict[int, Sequence[int]] = {}

    def reserved_cell(self, cell: int) -> Spot:
        """The reserved cell that a virtual cell is or belongs to. O(levels)."""
        cell = host = self._virtual.reserved_cell(cell)
        while host >= self._virtual.hosts:
            host = self._children[host][0]
        kind = next(kind for kind in self._reserved if host in kind.hosts)
        leaf = host * self.hierarchy.node_size
        virtual = cell if cell >= self._virtual.hosts else 0
        return Spot(
            self, kind.level, leaf, self._on(kind.level, cell), 0, 0, f"{self.vc}/{kind.number_of(host)}", virtual
        )

    def _on(self, level: int, cell: int) -> int:
        return self._bound[cell] * self.hierarchy.gpus[level] if self._bound[cell] >= 0 else -1

    def children(self, spot: Spot) -> list[Spot]:
        _, above, first, _, depth, number, address, virtual = spot
        level, hierarchy, fanout = above - 1, self.hierarchy, self.hierarchy.fanout[above]
        cells: Sequence[int]
        if level < hierarchy.node_level:
            host = first // hierarchy.node_size
            cells, at = self._virtual.shapes[host].children[virtual], self.at(host)
            on = [at[cell] for cell in cells]
        else:
            cells = self._children[virtual]
            on = [self._on(level, cell) for cell in cells]
            if level == hierarchy.node_level:
                cells = (0,) * fanout
        leaves = range(first, first + hierarchy.gpus[above], hierarchy.gpus[level])
        numbers = range(number * fanout, (number + 1) * fanout)
        return [
            Spot(self, level, leaf, physical, depth + 1, child, f"{address}/{child}", cell)
            for leaf, physical, child, cell in zip(leaves, on, numbers, cells, strict=True)
        ]

    def partner(self, spot: Spot) -> Spot | None:
        return None if spot.on < 0 else self._physical.at(spot.level, spot.on)

    def at(self, host: int) -> Sequence[int]:
        """Per inner cell of a host, the first leaf of its physical cell; -1 if it is not bound. O(inner cells).

        The binding does not record the order inside cells that are taken as a whole (:meth:`.Binding.bind_leaves`): a
        group in one has all its leaves, so its children are shown in order on the free children of the physical cell.
        """
        found = self._at.get(host)
        if found is None:
            found = self._at[host] = self._bound_inside(host)
        return found

    def _bound_inside(self, host: int) -> Sequence[int]:
        shape = self._virtual.shapes[host]
        at = list(self._inner[host] or [-1] * len(shape.masks))
        if self._bound[host] < 0:
            return at
        at[0] = 0
        taken = 0
        for mask, _, _, _ in self.claims.get(host, ()):
            taken |= mask
        if taken:
            for cell, children in enumerate(shape.children):
                whole = [child for child in children if at[child] < 0 and shape.masks[child] & taken]
                if whole and at[cell] >= 0:
                    others = {at[child] for child in children}
                    spare = (inner for inner in shape.children[at[cell]] if inner not in others)
                    for child, inner in zip(whole, spare, strict=False):
                        at[child] = inner
        first, firsts = self._bound[host] * shape.leaves, _first_leaves(shape)
        return [-1 if cell < 0 else first + firsts[cell] for cell in at]

    def used_by_others(self, host: int, reserved: int) -> int:
        """Leaves of ``reserved`` whose physical leaf is in use, as by a group that has it on loan."""
        found = 0
        if reserved:
            shape = self._virtual.shapes[host]
            for leaf, on in enumerate(self.at(host)[-shape.leaves :]):  # leaves have the last numbers
                if reserved >> leaf & 1:
                    node, number = divmod(on, self.hierarchy.node_size)
                    found |= (self._physical.seen(node)[1] >> number & 1) << leaf
        return found
