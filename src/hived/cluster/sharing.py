"""The sharing schemes. They differ only in the pool from which a request chooses, and in whether the choice is bound.

hived      a pool of the VC's own cells, bound late to physical ones
quota      a pool of all nodes, limited by the tenant's number of leaf cells
private    a pool of the VC's own cells, which are nodes of their own: the baseline of the other two
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain as chained

from hived.cells import BuddyAllocator, Found, Hierarchy, Need, Rank, Space
from hived.errors import InfeasibleError
from hived.spec.compiled import ChainSpec, ClusterSpec, VirtualClusterSpec

from .binding import Binding, ChainBindings
from .feasibility import allocators, check_feasible
from .groups import Group
from .nodes import Nodes
from .parts import Part
from .pool import Pool
from .static_binding import StaticBinding
from .undo import Undo
from .virtual import Spots, VirtualCells


class Sharing(StrEnum):
    """The three ways to share that the papers compare (HiveD, OSDI'20, section 5)."""

    PRIVATE = "private"
    QUOTA = "quota"
    HIVED = "hived"


class BindingKind(StrEnum):
    """When the cells of a VC are bound to physical ones, where they are bound at all: under ``hived``."""

    DYNAMIC = "dynamic"  #: while they are in use, to the cells with the fewest opportunistic leaves
    STATIC = "static"  #: from the start, for good: the baseline of HiveD, OSDI'20, section 5.3


def lay_out(
    spec: ClusterSpec, sharing: Sharing, binding: BindingKind, undo: Undo
) -> tuple[list[ChainBindings], list[list[Pool]]]:
    """Create the chains, and per tenant its pools: one per chain in the order of the spec, then one per pinned cell.

    Raises :class:`~hived.errors.InfeasibleError` when cells are to be bound and do not fit. O(cells).
    """
    if sharing is Sharing.HIVED:
        check_feasible(spec)
        of_chains = [Nodes(number, allocator, undo) for number, allocator in enumerate(allocators(spec).values())]
    else:
        hierarchies = {chain.name: Hierarchy(chain) for chain in spec.chains}
        if sharing is Sharing.PRIVATE:
            return _private(spec, hierarchies, undo)
        of_chains = [Nodes(n, BuddyAllocator(h, h.node_level), undo) for n, h in enumerate(hierarchies.values())]
    chains = [ChainBindings(nodes) for nodes in of_chains]
    by_name = {chain.nodes.hierarchy.spec.name: chain for chain in chains}
    if sharing is Sharing.QUOTA:
        return chains, _quotas(spec, by_name, undo)
    hierarchies = {name: chain.nodes.hierarchy for name, chain in by_name.items()}
    pools: list[list[Pool]] = [[] for _ in spec.virtual_clusters]
    make = StaticPool if binding is BindingKind.STATIC else Pool
    for tenant, vc in enumerate(spec.virtual_clusters):
        for virtual, pin in _reserved(vc, hierarchies):
            chain = by_name[virtual.hierarchy.spec.name]
            pools[tenant].append(make(tenant, len(pools[tenant]), virtual, chain, undo, pin))
    for pool in chained(*pools):
        if isinstance(pool.binding, StaticBinding):  # the pinned cells have been taken by now
            pool.binding.bind_all()
    return chains, pools


class StaticPool(Pool):
    """Cells that are bound for good."""

    def bindings(self) -> Binding:
        return StaticBinding(self.virtual, self.free, self.chain, self.undo, self.pinned_to)


def _reserved(
    vc: VirtualClusterSpec, hierarchies: Mapping[str, Hierarchy]
) -> Iterator[tuple[VirtualCells, tuple[str, int] | None]]:
    """The reserved cells of a VC: those of each chain, then each pinned cell with its id and physical cell."""
    for name, hierarchy in hierarchies.items():
        cells = [(c.level, c.number) for c in vc.cells if c.chain == name]
        if cells:
            yield VirtualCells(hierarchy, cells), None
    for pin in vc.pinned:
        yield VirtualCells(hierarchies[pin.chain], [(pin.level, 1)]), (pin.pinned_cell_id, pin.index)


# -- private ----------------------------------------------------------------------------------------------------------


def _private(
    spec: ClusterSpec, hierarchies: Mapping[str, Hierarchy], undo: Undo
) -> tuple[list[ChainBindings], list[list[Pool]]]:
    chains: list[ChainBindings] = []
    found: list[list[Pool]] = []
    for tenant, vc in enumerate(spec.virtual_clusters):
        pools: list[Pool] = []
        first = 0
        for virtual, pin in _reserved(vc, hierarchies):
            name = "node" if pin is None else pin[0]
            nodes = _private_nodes(len(chains), f"{vc.name}-{name}", first if pin is None else 0, virtual, undo)
            chains.append(ChainBindings(nodes))
            pools.append(PrivatePool(tenant, len(pools), virtual, chains[-1], undo, pin and (pin[0], -1)))
            first += virtual.hosts
        found.append(pools)
    if not chains:
        raise InfeasibleError(f"{spec.source}: no virtual cluster has cells, so none can be a private cluster")
    return chains, found


def _private_nodes(number: int, name: str, first: int, virtual: VirtualCells, undo: Undo) -> Nodes:
    """Create nodes for the hosts of some cells, named by number; a reserved cell below node level becomes a node."""
    of_chain = virtual.hierarchy.spec
    names = tuple(f"{name}-{first + host}" for host in range(virtual.hosts))
    flat = ChainSpec(of_chain.name, of_chain.levels[: of_chain.node_level], of_chain.node_level, virtual.hosts, names)
    allocator = BuddyAllocator(Hierarchy(flat), of_chain.node_level)
    return Nodes(number, allocator, undo, virtual.shapes, virtual.groups, virtual.hierarchy)


class IdentityBinding(Binding):
    """The identity binding of hosts that are physical nodes. O(nodes) to make; pools may share one."""

    def __init__(self, virtual: VirtualCells, chain: ChainBindings, undo: Undo) -> None:
        super().__init__(virtual, (), chain, undo)
        self.bad = chain.nodes.bad
        self.bound = [*range(virtual.hosts), *[-1] * (len(virtual.cells) - virtual.hosts)]
        self.bad_hosts = chain.nodes.bad_nodes

    def bind_leaves(
        self, host: int, mask: int, opportunistic: list[int], near: tuple[int, int] | None = None
    ) -> tuple[int, int]:
        """The leaves themselves."""
        return host, mask

    def unbind(self, host: int, mask: int) -> None:
        """Do nothing."""

    def node_of(self, host: int) -> int:
        """The host itself."""
        return host


class PrivatePool(Pool):
    """The cells of a private cluster, which are its nodes."""

    def bindings(self) -> Binding:
        identity = IdentityBinding(self.virtual, self.chain, self.undo)
        self.nodes.add_watcher(identity.changed)
        return identity

    def level(self, found: int, parts: Sequence[Part]) -> int:
        return found

    def bind_at(self, parts: Sequence[Part], levels: Sequence[int]) -> Spots | None:
        spots = tuple([(node, mask) for _, node, mask in parts])
        if self.reserved_levels(spots) != tuple(levels) or any(mask & ~self.free[node] for node, mask in spots):
            return None
        return spots


# -- quota ------------------------------------------------------------------------------------------------------------


class Quota:
    """A tenant's number of leaf cells of one type, all chains together."""

    def __init__(self, limit: int) -> None:
        #: the most leaf cells in guaranteed use
        self.limit = limit
        #: the leaf cells left of the limit
        self.left = limit


def _quotas(spec: ClusterSpec, chains: Mapping[str, ChainBindings], undo: Undo) -> list[list[Pool]]:
    identity = {}
    for name, of_chain in chains.items():
        hierarchy = of_chain.nodes.hierarchy
        cells = [(hierarchy.top, hierarchy.count[hierarchy.top])]
        identity[name] = IdentityBinding(VirtualCells(hierarchy, cells), of_chain, undo)
    found: list[list[Pool]] = []
    for tenant, vc in enumerate(spec.virtual_clusters):
        limits: Counter[str] = Counter()
        for reserved in vc.cells:
            hierarchy = chains[reserved.chain].nodes.hierarchy
            limits[hierarchy.spec.leaf_type] += reserved.number * hierarchy.gpus[reserved.level]
        quotas = {leaf_type: Quota(limit) for leaf_type, limit in limits.items()}
        wanted: list[tuple[str, Quota, str | None]] = [
            (chain.name, quotas[chain.leaf_type], None) for chain in spec.chains if chain.leaf_type in quotas
        ]
        wanted += [(p.chain, Quota(chains[p.chain].nodes.hierarchy.gpus[p.level]), p.pinned_cell_id) for p in vc.pinned]
        pools: list[Pool] = []
        for chain, quota, pinned in wanted:
            pools.append(QuotaPool(tenant, len(pools), identity[chain], chains[chain], undo, quota, pinned))
        found.append(pools)
    return found


class QuotaPool(Pool):
    """All nodes of a chain, limited by a tenant's quota: the common scheme, whose anomalies HiveD removes.

    Other tenants can take its leaves, so a request within the quota may have to wait for them.
    """

    def __init__(
        self,
        tenant: int,
        number: int,
        identity: IdentityBinding,
        chain: ChainBindings,
        undo: Undo,
        quota: Quota,
        pinned: str | None,
    ) -> None:
        """``identity``: shared by all quotas in the chain. O(1), so that the cost is never tenants times nodes."""
        self.quota = quota
        self.identity = identity
        super().__init__(tenant, number, identity.virtual, chain, undo, None if pinned is None else (pinned, -1))

    def bindings(self) -> Binding:
        return self.identity

    def _all_free(self) -> list[int]:
        return []  # the nodes keep them

    def _free_space(self) -> Space:
        return self.nodes.open_space()  # updated by the nodes

    @property
    def levels(self) -> Iterable[int]:
        """The node level, since a quota has no cells."""
        return (self.nodes.hierarchy.node_level,)

    @property
    def account(self) -> object:
        return self.quota

    @property
    def gpus(self) -> int:
        """The quota, whichever chain it is used in."""
        return self.quota.limit

    def total(self, up_to: int = -1) -> int:
        """Number of obtainable leaves within the quota."""
        lower = [group.gpus for precedence in self.at if precedence <= up_to for group in self.at[precedence]]
        return self.quota.left + sum(lower)

    def space(self, up_to: int = -1) -> Space:
        """Leaves not in guaranteed use, and those of own groups ``up_to`` a precedence. O(nodes) with the latter."""
        space = self.nodes.open_space()
        if up_to < 0:
            return space
        view = Space(space.shapes, space.groups, space.node_level, space.free, space.idle)
        for host, held in self.held.items():
            lower = blocked = 0
            for group, mask in held.items():
                if group.precedence <= up_to:
                    lower |= mask
                else:
                    blocked |= mask
            lower &= ~(blocked | self.nodes.bad[host])
            view.set(host, view.free[host] | lower, view.idle[host])
        return view

    def find(self, space: Space, needs: Sequence[Need], rank: Rank, cap: int, up_to: int) -> Found | None:
        """Find leaves within the quota. Whole nodes are chosen by rank alone."""
        if sum([need.gpus for need in needs]) > self.total(up_to):
            return None
        size = self.nodes.hierarchy.node_size
        if len(needs) == 1 or cap or any(need != Need(size) for need in needs):
            return super().find(space, needs, rank, cap, up_to)
        hosts = []
        for host in space.in_order(rank, size):
            hosts.append((host, space.shapes[host].full))
            if len(hosts) == len(needs):
                return Found(tuple(hosts), 0)
        return None

    def conflicting(self, group: Group, victims: Iterable[Group] = ()) -> dict[Group, None]:
        """Also the groups whose part of the quota it needs, on any node: the lowest first, among equals the latest."""
        found = self.on(group.spots)
        short = sum(mask.bit_count() for _, mask in group.spots) - self.quota.left - sum(g.gpus for g in found)
        lower = (other for at in self.below(group.priority) for other in reversed(self.by_arrival(at)))
        for other in chained(victims, lower):
            if short <= 0:
                break
            if other not in found:
                found[other] = None
                short -= other.gpus
        return found

    def _mark_taken(self, spots: Spots) -> None:
        pass

    def _mark_free(self, host: int, held: Mapping[Group, int]) -> None:
        pass

    def allocate(self, group: Group) -> None:
        super().allocate(group)
        self.quota.left -= group.gpus

    def release(self, group: Group) -> None:
        super().release(group)
        self.quota.left += group.gpus

    def reserved_levels(self, spots: Spots) -> tuple[int, ...]:
        """The node level, since a quota has no cells."""
        return (self.nodes.hierarchy.node_level,) * len(spots)

    def bind_at(self, parts: Sequence[Part], levels: Sequence[int]) -> Spots | None:
        return self.in_place(parts)

    def in_place(self, parts: Sequence[Part]) -> Spots | None:
        """The leaves themselves, if they are within the quota."""
        gpus = sum([mask.bit_count() for _, _, mask in parts])
        if not gpus or gpus > self.quota.left or any(chain != self.nodes.number for chain, _, _ in parts):
            return None
        return tuple([(node, mask) for _, node, mask in parts])
