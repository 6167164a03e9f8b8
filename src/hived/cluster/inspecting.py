"""All cells of a cluster at one moment: what each is doing, and which virtual cell stands on which physical one.

What can change is copied at once, in O(nodes). The cells are made of the copy, one after the other, when they are asked
for; so whoever writes down a large cluster may let others have their turn in between, and still tells of one moment.

A cell is *used* when somebody runs in it; but *reserving* or *reserved* when all its leaves are; else *free*. It is bad
when one of its leaves is. So does the deployed scheduler show its cells, with one difference: a virtual cell is used or
reserved by groups of its VC that stand in it. Loans of others on the physical cell under it are no affair of the VC.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from hived.errors import RequestError

from .anchoring import Anchoring
from .floor import Floor
from .groups import Group
from .inspected import Cell, facts_of
from .physical_side import PhysicalSide
from .state import State
from .virtual_side import VirtualSide


class Inspection:
    """The cells at one moment, each right after the cell that it is in.

    A cell costs O(levels), above nodes O(its nodes).
    """

    __slots__ = ("_borrowers", "_chains", "_facts", "_groups", "_sides", "_vc", "vcs")

    def __init__(self, state: State, vc: str | None = None) -> None:
        """Of the whole cluster, or what concerns one VC. Raises :class:`RequestError` when there is no such VC.

        O(nodes + groups); for one VC O(its hosts + its nodes + groups there), and a plain copy of a few numbers a node.
        """
        known = len(state.spec.virtual_clusters)
        tenants = {
            name: tenant
            for tenant, name in enumerate(state.tenants)
            if vc in (None, name) and (tenant < known or state.borrowers[tenant])
        }
        if vc is not None and not tenants:
            raise RequestError("vc", f"there is no virtual cluster {vc!r}")
        #: the VCs that can be asked about: of the spec, and those no longer in it whose groups run on
        self.vcs = tuple(tenants)
        self._vc = vc
        self._borrowers = {name: (tenant, tuple(state.borrowers[tenant])) for name, tenant in tenants.items()}
        nodes: list[Collection[int]] = [
            floor.holders if vc is None else _nodes_of(state, tenants[vc], floor) for floor in state.floors
        ]
        self._facts = facts_of(state.groups.values() if vc is None else _groups_of(state, tenants[vc], nodes))
        self._groups = dict(state.groups)
        self._chains: list[PhysicalSide] = []
        tops = 0
        for floor, of_floor in zip(state.floors, nodes, strict=True):
            self._chains.append(PhysicalSide(floor, tops, tuple(state.tenants), self._facts, of_floor))
            tops += floor.chain.hierarchy.spec.top_cells
        #: per VC: its pools
        self._sides = {name: self._sides_of(state, tenant) for name, tenant in tenants.items()}
        if vc is None:
            by_binder: dict[Anchoring, VirtualSide] = {
                tenancy.binder: side
                for name, tenant in tenants.items()
                for tenancy, side in zip(state.tenancies[tenant], self._sides[name], strict=True)
            }
            for chain, floor in zip(self._chains, state.floors, strict=True):
                chain.owned_by(floor, by_binder)

    def _sides_of(self, state: State, tenant: int) -> list[VirtualSide]:
        """The pools of a tenant, which number their reserved cells in the order of the spec, pinned ones last."""
        tenancies = state.tenancies[tenant]
        numbers: list[dict[int, list[range]]] = [{} for _ in tenancies]
        if tenancies:
            spec = state.spec.virtual_clusters[tenant]
            pools = {
                tenancy.floor.chain.hierarchy.spec.name: tenancy.number for tenancy in tenancies if not tenancy.pinned
            }
            first = 0
            for cells in spec.cells:
                numbers[pools[cells.chain]].setdefault(cells.level, []).append(range(first, first + cells.number))
                first += cells.number
            for number, (pin, of_pin) in enumerate(zip(spec.pinned, numbers[len(pools) :], strict=True), first):
                of_pin[pin.level] = [range(number, number + 1)]
        return [
            VirtualSide(state.tenants[tenant], tenancy, self._chains[tenancy.floor.number], self._facts, of_pool)
            for tenancy, of_pool in zip(tenancies, numbers, strict=True)
        ]

    def physical(self) -> Iterator[Cell]:
        """The physical cells, chain by chain. Raises :class:`RequestError` where one VC alone was inspected."""
        if self._vc is not None:
            raise RequestError("vc", f"only {self._vc!r} was inspected; leave `vc` out for all physical cells")
        for chain in self._chains:
            hierarchy = chain.hierarchy
            for number in range(hierarchy.count[hierarchy.top]):
                yield from _walk(chain, hierarchy.top, number, None)

    def virtual(self, vc: str) -> Iterator[Cell]:
        """The virtual cells of a VC, in the order of the spec; then the leaf cells that its opportunistic groups have.

        Raises :class:`RequestError` when there is no such VC, or another was inspected.
        """
        if vc not in self.vcs:
            raise RequestError("vc", f"there is no virtual cluster {vc!r}" + (" here" if self._vc else ""))
        reserved = [(number, side, root) for side in self._sides[vc] for root, number in side.roots().items()]
        for _, side, root in sorted(reserved, key=lambda one: one[0]):
            yield from side.walk(root)
        for chain in self._chains:
            yield from chain.loans_of(*self._borrowers[vc])

    def leaves(self, group: str) -> tuple[tuple[str, str], ...]:
        """Where a group stands in its VC, pod by pod: addresses of the reserved cell and of the leaf cell in it.

        () for one that is opportunistic, waits, or is of another VC than the one inspected. O(its pods * cells of a
        host).
        """
        found = self._groups.get(group)
        facts = None if found is None else self._facts.get(found)
        if found is None or facts is None or facts.tenancy < 0:
            return ()
        name = self._chains[0].tenants[found.tenant]
        if name not in self._sides:
            return ()
        side = self._sides[name][facts.tenancy]
        return tuple([leaf for host, mask in facts.spots for leaf in side.leaves(host, mask)])


def _nodes_of(state: State, tenant: int, floor: Floor) -> set[int]:
    """The nodes of a chain that a tenant's cells stand on, or its opportunistic groups have."""
    hierarchy = floor.chain.hierarchy
    nodes = {part.node for group in state.borrowers[tenant] for part in group.parts if part.chain == floor.number}
    for tenancy in state.tenancies[tenant]:
        if tenancy.floor is floor:
            for (level, parent), on in zip(tenancy.pool.cells, tenancy.binder.bound, strict=True):
                if parent < 0 <= on:
                    first = on * hierarchy.gpus[level] // hierarchy.node_size
                    nodes.update(range(first, first + max(1, hierarchy.gpus[level] // hierarchy.node_size)))
    return nodes


def _groups_of(state: State, tenant: int, nodes: Sequence[Collection[int]]) -> Iterable[Group]:
    """The groups that take leaves of a tenant's cells, or are on these nodes."""
    groups: dict[Group, None] = {}
    for tenancy in state.tenancies[tenant]:
        for takers in tenancy.takers.values():
            groups.update(dict.fromkeys(takers))
    for floor, of_floor in zip(state.floors, nodes, strict=True):
        for node in of_floor:
            groups.update(dict.fromkeys(floor.holders.get(node, ())))
    return groups


def _walk(chain: PhysicalSide, level: int, number: int, stands: tuple[VirtualSide, int] | None) -> Iterator[Cell]:
    """A physical cell at node level or above and all in it; ``stands``: the virtual cell that stands on it."""
    if stands is None:
        stands = chain.owner(level, number)
    if level == chain.hierarchy.node_level:
        yield from chain.below(number, stands)
        return
    virtual = None if stands is None else stands[0].upper(stands[1])
    yield chain.upper(level, number, None if virtual is None else virtual.vc, virtual)
    on: dict[int, tuple[VirtualSide, int]] = {}
    if stands is not None:
        side, cell = stands
        on = {side.bound[child]: (side, child) for child in side.children(cell) if side.bound[child] >= 0}
    fanout = chain.hierarchy.fanout[level]
    for child in range(number * fanout, (number + 1) * fanout):
        yield from _walk(chain, level - 1, child, on.get(child))
