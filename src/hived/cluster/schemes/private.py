"""One cluster per tenant, made of the cells that it reserved: what the others are measured against."""

from __future__ import annotations

from collections.abc import Sequence

from hived.cells import Hierarchy, leaves_of
from hived.errors import ensure
from hived.spec.compiled import ClusterSpec

from ..allocation import NEW, Allocation, ClusterView, Grant, Kind, Part, Place
from ..virtual import VirtualCluster, VirtualPool
from .sharing import NamedPlacement


class PrivateClusters:
    """The private scheme. A part's ``chain`` is the number of a pool (of all tenants'), its ``node`` that pool's host.

    A reserved cell smaller than a node is a node of its own here.
    """

    lends = False
    independent = True

    def __init__(self, spec: ClusterSpec) -> None:
        hierarchies = [Hierarchy(chain) for chain in spec.chains]
        self.tenants: Sequence[str] = tuple(vc.name for vc in spec.virtual_clusters)
        #: each tenant's own cluster
        self.clusters = [VirtualCluster(vc.name, vc.cells, vc.pinned, hierarchies) for vc in spec.virtual_clusters]
        #: every pool with its tenant, and the number of its first node among that tenant's
        self.pools: list[tuple[VirtualCluster, VirtualPool, int]] = []
        # number of each tenant's first pool
        self._first_pool: list[int] = []
        for cluster in self.clusters:
            self._first_pool.append(len(self.pools))
            nodes = 0
            for _, pool in cluster.pools:
                self.pools.append((cluster, pool, nodes))
                nodes += pool.hosts
        self._holders: dict[Allocation, None] = {}

    def waits_for_others(self, tenant: int, gpus: int) -> bool:
        return False

    def view(self, tenant: int) -> ClusterView:
        return self.clusters[tenant]

    def guarantee(self, holder: Allocation, place: Place) -> Grant | None:
        cluster = self.clusters[holder.tenant]
        spots = place(cluster, holder.gpus)
        if spots is None:
            return None
        cluster.pools[spots.pool][1].take(spots.hosts)
        holder.kind = Kind.GUARANTEED
        holder.spots = spots
        number = self._first_pool[holder.tenant] + spots.pool
        holder.parts = tuple([Part(number, host, mask) for host, mask in spots.hosts])
        self._holders[holder] = None
        return NEW

    def lend(self, holder: Allocation) -> bool:
        return False

    def can_lend(self, gpus: int) -> bool:
        return False

    def can_ever_lend(self, gpus: int) -> bool:
        return False

    def lent(self, tenant: int) -> int:
        return 0

    def release(self, holder: Allocation) -> None:
        spots = holder.spots
        if spots is not None:
            self.clusters[holder.tenant].pools[spots.pool][1].give(spots.hosts)
            del self._holders[holder]
        holder.kind, holder.spots, holder.parts = None, None, ()

    def named(self, parts: Sequence[Part]) -> NamedPlacement:
        named = []
        for number, node, mask in parts:
            cluster, _, first = self.pools[number]
            named.append((f"{cluster.tenant}-node-{first + node}", tuple(leaves_of(mask))))
        return tuple(named)

    def node_sizes(self) -> Sequence[Sequence[int]]:
        return [[shape.leaves for shape in pool.shapes] for _, pool, _ in self.pools]

    def validate(self) -> None:
        used: dict[tuple[int, int], int] = {}
        for holder in self._holders:
            for number, node, mask in holder.parts:
                ensure(not used.get((number, node), 0) & mask, "no GPU is held twice")
                used[number, node] = used.get((number, node), 0) | mask
        for cluster in self.clusters:
            cluster.validate()
        for number, (cluster, pool, _) in enumerate(self.pools):
            for host, free in enumerate(pool.free):
                held = used.get((number, host), 0)
                ensure(free == pool.shapes[host].full & ~held, f"free leaves of {cluster.tenant}'s node {host}")
