"""Sharing by cells: every tenant's virtual cluster behaves like its private one, and what it leaves idle is lent.

A guaranteed request is decided in two steps that know nothing of each other: the VC chooses virtual leaves as if it
were alone, then the binder finds physical cells for them. Theorem 1 (HiveD, OSDI'20, section 3.3) says the second step
cannot fail; opportunistic jobs in the way are preempted.
"""

from __future__ import annotations

from hived.cells import BuddyAllocator, Hierarchy, LevelSafety, assert_safe, safety
from hived.errors import ensure
from hived.spec.compiled import ClusterSpec

from ..allocation import NEW, Allocation, ClusterView, Grant, Kind, Part, Place
from ..binding import Binder
from ..feasibility import check_feasible, lowest_levels, reserved_cells
from ..physical import PhysicalChain
from ..virtual import VirtualCluster
from .lending import Lending
from .staying import Staying


class HivedCluster(Lending):
    """The hived scheme: VCs of cells on one physical cluster.

    Raises :class:`~hived.errors.InfeasibleError` for an assignment that does not fit. Requests cost O(levels) plus
    what they take or preempt; nothing depends on the size of the cluster.
    """

    independent = True

    def __init__(self, spec: ClusterSpec) -> None:
        check_feasible(spec)
        hierarchies = [Hierarchy(chain) for chain in spec.chains]
        #: the buddy allocator of each chain
        self.allocators = [
            BuddyAllocator(hierarchy, lowest)
            for hierarchy, lowest in zip(hierarchies, lowest_levels(spec), strict=True)
        ]
        super().__init__(spec, [PhysicalChain(number, hierarchy) for number, hierarchy in enumerate(hierarchies)])
        #: each tenant's VC
        self.clusters = [VirtualCluster(vc.name, vc.cells, vc.pinned, hierarchies) for vc in spec.virtual_clusters]
        self._reserved = reserved_cells(spec)
        #: pinned cells stand first: they take their physical cells before anything else can
        self.pins = [
            Binder(pool, self.allocators[number], pin.index)
            for cluster in self.clusters
            for pin, number, pool in cluster.pinned
        ]
        #: per tenant and pool: its bindings
        self.binders = [
            [Binder(pool, self.allocators[number]) for number, pool in cluster.pools] for cluster in self.clusters
        ]

    def waits_for_others(self, tenant: int, gpus: int) -> bool:
        return False

    def view(self, tenant: int) -> ClusterView:
        return self.clusters[tenant]

    def guarantee(self, holder: Allocation, place: Place) -> Grant | None:
        cluster = self.clusters[holder.tenant]
        spots = place(cluster, holder.gpus)
        if spots is None:
            return None
        pool_number, hosts = spots
        number, pool = cluster.pools[pool_number]
        binder = self.binders[holder.tenant][pool_number]
        chain = self.chains[number]
        had = holder.parts
        staying = None
        if had:  # its own GPUs no longer count as a crowd, and are asked for first
            self.end_loan(holder)
            own = [(node, mask) for at, node, mask in had if at == number]
            staying = Staying(binder, [host for host, _ in hosts], own)
        if chain.untold:
            chain.tell_crowds(self.allocators[number])
        opportunistic = chain.opportunistic
        parts = []
        crowded = False
        for host, mask in hosts:
            if staying is None:
                node, leaves = binder.bind(host, mask, opportunistic)
            else:
                node, leaves = binder.bind(host, mask, opportunistic, staying.hint(host))
                staying.taken(node)
            parts.append(Part(number, node, leaves))
            if opportunistic[node] & leaves:
                crowded = True
        pool.take(hosts)
        victims = self.evict(parts) if crowded else ()
        for _, node, leaves in parts:
            chain.add_guaranteed(node, leaves)
        holder.kind = Kind.GUARANTEED
        holder.spots = spots
        holder.parts = tuple(parts)
        self.holders[holder] = None
        return Grant(sorted(had) == sorted(parts), victims) if had or victims else NEW

    def release(self, holder: Allocation) -> None:
        spots = holder.spots
        if spots is None:
            if holder.kind is Kind.OPPORTUNISTIC:
                self.end_loan(holder)
            return
        pool_number, hosts = spots
        number, pool = self.clusters[holder.tenant].pools[pool_number]
        binder = self.binders[holder.tenant][pool_number]
        chain = self.chains[number]
        pool.give(hosts)
        for host, mask in hosts:
            binder.unbind(host, mask)
        for _, node, leaves in holder.parts:
            chain.remove_guaranteed(node, leaves)
        del self.holders[holder]
        holder.kind = None
        holder.spots = None
        holder.parts = ()

    def safety(self) -> tuple[LevelSafety, ...]:
        """Equations 1 and 2 as they stand now, for every chain and level. O(levels)."""
        rows: list[LevelSafety] = []
        for allocator, reserved in zip(self.allocators, self._reserved, strict=True):
            rows += safety(allocator.hierarchy, reserved, allocator.allocated, allocator.free)
        return tuple(rows)

    def validate(self) -> None:
        """Safety holds, and every index, count and binding is what the holders make it. O(cluster)."""
        for chain, allocator in zip(self.chains, self.allocators, strict=True):
            chain.tell_crowds(allocator)
        assert_safe(self.safety())
        self.validate_lending()
        virtual: dict[tuple[int, int, int], int] = {}
        for holder in self.holders:
            ensure((holder.spots is not None) == (holder.kind is Kind.GUARANTEED), f"{holder} stands in its VC")
            if holder.spots is not None:
                for host, mask in holder.spots.hosts:
                    key = (holder.tenant, holder.spots.pool, host)
                    ensure(not virtual.get(key, 0) & mask, "no virtual leaf is held twice")
                    virtual[key] = virtual.get(key, 0) | mask
        allocated = [[0] * (h.hierarchy.top + 1) for h in self.allocators]
        for pin in self.pins:
            pin.validate()
            number = self.allocators.index(pin.allocator)
            allocated[number][pin.pool.cells[pin.pinned].level] += 1
        for tenant, cluster in enumerate(self.clusters):
            cluster.validate()
            for number, ((chain_number, pool), binder) in enumerate(
                zip(cluster.pools, self.binders[tenant], strict=True)
            ):
                binder.validate()
                for host in range(pool.hosts):
                    held = virtual.get((tenant, number, host), 0)
                    ensure(pool.free[host] == pool.shapes[host].full & ~held, f"free leaves of virtual host {host}")
                for cell, bound in zip(pool.cells, binder.bound, strict=True):
                    allocated[chain_number][cell.level] += cell.parent < 0 <= bound
        for allocator, count, chain in zip(self.allocators, allocated, self.chains, strict=True):
            allocator.validate()
            ensure(allocator.allocated == count, "allocated cells per level")
            for level in allocator.levels:
                crowds = [_crowd(chain, level, cell) for cell in range(chain.hierarchy.count[level])]
                ensure(allocator.siblings(level).crowd == crowds, f"opportunistic GPUs per cell of level {level}")


def _crowd(chain: PhysicalChain, level: int, cell: int) -> int:
    """GPUs of a cell in opportunistic use, counted from the nodes' masks."""
    gpus, size = chain.hierarchy.gpus[level], chain.hierarchy.node_size
    if gpus < size:
        node, part = divmod(cell, size // gpus)
        return (chain.opportunistic[node] >> part * gpus & ((1 << gpus) - 1)).bit_count()
    nodes = gpus // size
    return sum(mask.bit_count() for mask in chain.opportunistic[cell * nodes : (cell + 1) * nodes])
