"""What both shared schemes do alike: idle GPUs lent to opportunistic jobs, and taken back."""

from __future__ import annotations

from collections.abc import Sequence

from hived.cells import leaves_of
from hived.errors import ensure
from hived.spec.compiled import ClusterSpec

from ..allocation import Allocation, Kind, Part, nodes_needed
from ..physical import PhysicalChain
from .sharing import NamedPlacement


class Lending:
    """The physical chains of a shared cluster, and who holds what of them."""

    lends = True

    def __init__(self, spec: ClusterSpec, chains: Sequence[PhysicalChain]) -> None:
        self.tenants: Sequence[str] = tuple(vc.name for vc in spec.virtual_clusters)
        #: the physical chains, in the order of the spec
        self.chains = chains
        #: everyone who holds GPUs
        self.holders: dict[Allocation, None] = {}
        self._lent = [0] * len(self.tenants)
        self._loans = 0
        self._ever: dict[int, bool] = {}

    def lend(self, holder: Allocation) -> bool:
        """See :class:`~hived.cluster.schemes.sharing.SharedCluster`. Chains are tried in the order of the spec."""
        for chain in self.chains:
            parts = chain.find_idle(holder.gpus)
            if parts is not None:
                for _, node, mask in parts:
                    chain.add_lodger(holder, node, mask)
                holder.kind = Kind.OPPORTUNISTIC
                holder.parts = parts
                self._loans += 1
                holder.started = self._loans
                self._lent[holder.tenant] += holder.held
                self.holders[holder] = None
                return True
        return False

    def can_lend(self, gpus: int) -> bool:
        """See :class:`~hived.cluster.schemes.sharing.SharedCluster`. O(chains * classes of nodes)."""
        for chain in self.chains:  # noqa: SIM110 - asked at every event: any() costs twice as much
            if chain.has_idle(gpus):
                return True
        return False

    def can_ever_lend(self, gpus: int) -> bool:
        """See :class:`~hived.cluster.schemes.sharing.SharedCluster`. O(1) once asked."""
        answer = self._ever.get(gpus)
        if answer is None:
            answer = self._ever[gpus] = self._fits_empty(gpus)
        return answer

    def _fits_empty(self, gpus: int) -> bool:
        return any(nodes_needed(gpus, chain.hierarchy.node_size) <= chain.hierarchy.nodes for chain in self.chains)

    def lent(self, tenant: int) -> int:
        """GPUs that the tenant's jobs hold opportunistically."""
        return self._lent[tenant]

    def end_loan(self, holder: Allocation) -> None:
        """An opportunistic holder loses its GPUs."""
        self._lent[holder.tenant] -= holder.held
        for number, node, _ in holder.parts:
            self.chains[number].remove_lodger(holder, node)
        del self.holders[holder]
        holder.kind, holder.parts = None, ()

    def evict(self, parts: Sequence[Part]) -> tuple[Allocation, ...]:
        """Take these GPUs back from whoever holds them opportunistically. A victim loses all its GPUs."""
        victims: list[Allocation] = []
        for number, node, mask in parts:
            for victim in self.chains[number].lodgers_on(node, mask):
                self.end_loan(victim)
                victims.append(victim)
        victims.sort(key=lambda victim: victim.started)
        return tuple(victims)

    def named(self, parts: Sequence[Part]) -> NamedPlacement:
        """A placement with the names of the spec."""
        return tuple(self.chains[number].device_names(node, tuple(leaves_of(mask))) for number, node, mask in parts)

    def node_sizes(self) -> Sequence[Sequence[int]]:
        """GPUs of every node, per chain. O(nodes)."""
        return [[chain.hierarchy.node_size] * chain.hierarchy.nodes for chain in self.chains]

    def validate_lending(self) -> None:
        """The masks of every chain are exactly what the holders hold, each GPU once. O(nodes + holders)."""
        held: dict[tuple[int, int], dict[Kind, int]] = {}
        lent = [0] * len(self.tenants)
        for holder in self.holders:
            ensure(holder.kind is not None, f"{holder} holds something")
            if holder.kind is Kind.OPPORTUNISTIC:
                lent[holder.tenant] += holder.held
            for number, node, mask in holder.parts:
                kinds = held.setdefault((number, node), dict.fromkeys(Kind, 0))
                ensure(not mask & (kinds[Kind.GUARANTEED] | kinds[Kind.OPPORTUNISTIC]), "no GPU is held twice")
                if holder.kind is not None:
                    kinds[holder.kind] |= mask
        ensure(lent == self._lent, "GPUs lent per tenant")
        for chain in self.chains:
            chain.validate()
            for node in range(chain.hierarchy.nodes):
                kinds = held.get((chain.number, node), dict.fromkeys(Kind, 0))
                ensure(chain.guaranteed[node] == kinds[Kind.GUARANTEED], f"guaranteed leaves of node {node}")
                ensure(chain.opportunistic[node] == kinds[Kind.OPPORTUNISTIC], f"opportunistic leaves of node {node}")
