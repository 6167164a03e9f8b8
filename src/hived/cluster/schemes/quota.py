"""Sharing by quota: a number of GPUs per tenant, anywhere in the cluster. What the field does, and HiveD mends."""

from __future__ import annotations

from hived.cells import Hierarchy, Rank
from hived.errors import ensure
from hived.spec.compiled import ClusterSpec

from ..allocation import Allocation, ClusterView, Grant, Kind, Part, Place, Spots, nodes_needed
from ..physical import PhysicalChain
from .lending import Lending


class QuotaShare:
    """A tenant's view: the whole cluster, as far as its number of GPUs goes."""

    __slots__ = ("_cluster", "_number", "tenant")

    def __init__(self, cluster: QuotaCluster, number: int) -> None:
        self._cluster = cluster
        self._number = number
        #: whose share it is
        self.tenant = cluster.tenants[number]

    @property
    def gpus(self) -> int:
        """The quota, all device types together."""
        return sum(self._cluster.quota[self._number].values())

    def can_ever_fit(self, gpus: int) -> bool:
        """Whether the job is within the quota, and the cluster has the nodes for it."""
        for chain in self._cluster.chains:
            size = chain.hierarchy.node_size
            nodes = nodes_needed(gpus, size)
            needs = gpus if gpus <= size else nodes * size
            quota = self._cluster.quota[self._number].get(chain.hierarchy.spec.leaf_type, 0)
            if needs <= quota and nodes <= chain.hierarchy.nodes:
                return True
        return False

    def closest(self, gpus: int, rank: Rank) -> Spots | None:
        """See :class:`~hived.cluster.allocation.ClusterView`. Whole nodes are chosen by rank alone."""
        cluster = self._cluster
        for number, chain in enumerate(cluster.chains):
            if cluster.within_quota(self._number, number, gpus):
                hosts = chain.find_free(gpus, rank)
                if hosts is not None:
                    return Spots(number, hosts)
        return None


class QuotaCluster(Lending):
    """The quota scheme: guaranteed while the tenant is within its number of GPUs of a type, else opportunistic.

    Quotas are the GPUs of the VCs' cells (those of pinned cells left out, as in the other schemes' queues), counted per
    device type.
    """

    independent = False

    def __init__(self, spec: ClusterSpec) -> None:
        hierarchies = [Hierarchy(chain) for chain in spec.chains]
        super().__init__(spec, [PhysicalChain(number, h) for number, h in enumerate(hierarchies)])
        by_name = {h.spec.name: h for h in hierarchies}
        #: per tenant and device type: GPUs it may hold guaranteed
        self.quota: list[dict[str, int]] = []
        for vc in spec.virtual_clusters:
            quota: dict[str, int] = {}
            for cells in vc.cells:
                hierarchy = by_name[cells.chain]
                leaf_type = hierarchy.spec.leaf_type
                quota[leaf_type] = quota.get(leaf_type, 0) + cells.number * hierarchy.gpus[cells.level]
            self.quota.append(quota)
        #: per tenant and device type: GPUs it holds guaranteed
        self.used: list[dict[str, int]] = [dict.fromkeys(quota, 0) for quota in self.quota]
        self._views = [QuotaShare(self, number) for number in range(len(self.tenants))]

    def within_quota(self, tenant: int, chain: int, gpus: int) -> bool:
        """Whether ``gpus`` more (rounded up to whole nodes above one) stay within the tenant's quota."""
        hierarchy = self.chains[chain].hierarchy
        leaf_type = hierarchy.spec.leaf_type
        quota = self.quota[tenant].get(leaf_type, 0)
        size = hierarchy.node_size
        needs = gpus if gpus <= size else nodes_needed(gpus, size) * size
        return self.used[tenant].get(leaf_type, 0) + needs <= quota

    def waits_for_others(self, tenant: int, gpus: int) -> bool:
        return any(self.within_quota(tenant, number, gpus) for number in range(len(self.chains)))

    def view(self, tenant: int) -> ClusterView:
        return self._views[tenant]

    def guarantee(self, holder: Allocation, place: Place) -> Grant | None:
        tenant = holder.tenant
        if holder.kind is Kind.OPPORTUNISTIC:
            number = holder.parts[0].chain
            if self.within_quota(tenant, number, holder.gpus):  # a quota names no place: it stays where it is
                chain = self.chains[number]
                self._lent[tenant] -= holder.held
                for _, node, _ in holder.parts:
                    chain.promote_lodger(holder, node)
                self._charge(holder, number, holder.held)
                holder.kind = Kind.GUARANTEED
                return Grant(True, ())
        spots = place(self._views[tenant], holder.gpus)
        if spots is None:
            return None
        if holder.kind is Kind.OPPORTUNISTIC:
            self.end_loan(holder)
        chain = self.chains[spots.pool]
        holder.parts = tuple(Part(spots.pool, node, mask) for node, mask in spots.hosts)
        victims = self.evict(holder.parts)
        for node, mask in spots.hosts:
            chain.add_guaranteed(node, mask)
        self._charge(holder, spots.pool, holder.held)
        holder.kind = Kind.GUARANTEED
        self.holders[holder] = None
        return Grant(False, victims)

    def _charge(self, holder: Allocation, chain: int, gpus: int) -> None:
        self.used[holder.tenant][self.chains[chain].hierarchy.spec.leaf_type] += gpus

    def release(self, holder: Allocation) -> None:
        if holder.kind is Kind.OPPORTUNISTIC:
            self.end_loan(holder)
        elif holder.kind is Kind.GUARANTEED:
            number = holder.parts[0].chain
            self._charge(holder, number, -holder.held)
            for _, node, mask in holder.parts:
                self.chains[number].remove_guaranteed(node, mask)
            del self.holders[holder]
            holder.kind, holder.parts = None, ()

    def validate(self) -> None:
        self.validate_lending()
        used: list[dict[str, int]] = [dict.fromkeys(quota, 0) for quota in self.quota]
        for holder in self.holders:
            if holder.kind is Kind.GUARANTEED:
                used[holder.tenant][self.chains[holder.parts[0].chain].hierarchy.spec.leaf_type] += holder.held
        ensure(used == self.used, "guaranteed GPUs per tenant")
        for tenant, quota in enumerate(self.quota):
            ensure(all(used[tenant][t] <= quota[t] for t in quota), f"tenant {tenant} is within its quota")
