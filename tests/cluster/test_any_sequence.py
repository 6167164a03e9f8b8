"""Any legal sequence of requests over any cluster, in the three sharing schemes.

After every step the cluster re-derives its own state, and a checker that knows only the spec and what the jobs were
given looks for a GPU held twice, a broken affinity and a VC that does not stand in the cluster as it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hived.cells import assert_safe
from hived.cluster import Allocation, Grant, HivedCluster, Kind, Part, PrivateClusters, QuotaCluster, SharedCluster
from hived.spec.compiled import ClusterSpec

from ..strategies import feasible_specs
from .helpers import check_affinity, check_bindings, check_no_gpu_is_held_twice, leaves_of_parts, outlook, place


class SharingMachine(RuleBasedStateMachine):
    """Jobs come, are lent to, are guaranteed, and end, in any order."""

    cluster: SharedCluster

    @initialize(spec=feasible_specs())
    def build(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.cluster = self.make()
        self.most = max(chain.gpus for chain in spec.chains) + 1
        self.fresh = outlook(self.cluster, self.most)
        self.sizes = [chain.gpus_per_node for chain in spec.chains]
        self.number = 0
        #: small jobs, some of whole nodes, and one that never fits
        self.asked = sorted(
            {1, 2, 3, *self.sizes, *(2 * n for n in self.sizes), *(3 * n for n in self.sizes), self.most}
        )
        #: who holds GPUs, in the order in which they last started
        self.holders: list[Allocation] = []
        self.begin()

    @abstractmethod
    def make(self) -> SharedCluster:
        """The cluster under test."""

    def begin(self) -> None:
        """Whatever a scheme keeps beside."""

    def before_guarantee(self, job: Allocation) -> None:
        """A job asks for guaranteed GPUs."""

    def after_guarantee(self, job: Allocation, grant: Grant | None) -> None:
        """It has its answer."""

    def ended(self, job: Allocation) -> None:
        """A guaranteed job has ended."""

    def new_job(self, tenant: int, gpus: int) -> Allocation:
        self.number += 1
        return Allocation(f"job-{self.number}", tenant % len(self.cluster.tenants), self.asked[gpus % len(self.asked)])

    def ask(self, job: Allocation) -> None:
        """Ask for guaranteed GPUs; the answer must fit what was before."""
        kind, parts = job.kind, job.parts
        others = {holder: (holder.kind, holder.parts) for holder in self.holders if holder is not job}
        self.before_guarantee(job)
        grant = self.cluster.guarantee(job, place)
        if grant is None:
            assert (job.kind, job.parts) == (kind, parts)
            assert all((o.kind, o.parts) == before for o, before in others.items()), "nothing has changed"
        else:
            assert job.kind is Kind.GUARANTEED
            assert grant.in_place == (kind is Kind.OPPORTUNISTIC and set(job.parts) == set(parts))
            mine = set(leaves_of_parts(job.parts, self.sizes))
            for other, (kind_before, parts_before) in others.items():
                in_the_way = not mine.isdisjoint(leaves_of_parts(parts_before, self.sizes))
                assert (other in grant.victims) == in_the_way, "those in the way lose their GPUs, and nobody else"
                if in_the_way:
                    assert kind_before is Kind.OPPORTUNISTIC
                    assert (other.kind, other.parts) == (None, ())
                else:
                    assert (other.kind, other.parts) == (kind_before, parts_before)
            assert len(set(grant.victims)) == len(grant.victims)
            self.holders = [holder for holder in self.holders if holder not in (job, *grant.victims)] + [job]
        self.after_guarantee(job, grant)

    @rule(tenant=st.integers(0, 3), gpus=st.integers(0, 19))
    def guarantee(self, tenant: int, gpus: int) -> None:
        self.ask(self.new_job(tenant, gpus))

    @precondition(lambda self: any(job.kind is Kind.OPPORTUNISTIC for job in self.holders))
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        self.ask(data.draw(st.sampled_from([job for job in self.holders if job.kind is Kind.OPPORTUNISTIC])))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.holders)))

    def end(self, job: Allocation) -> None:
        was = job.kind
        self.holders.remove(job)
        self.cluster.release(job)
        assert (job.kind, job.parts) == (None, ())
        if was is Kind.GUARANTEED:
            self.ended(job)

    @invariant()
    def is_valid(self) -> None:
        if hasattr(self, "spec"):
            self.cluster.validate()

    @invariant()
    def jobs_hold_what_they_asked_for(self) -> None:
        if hasattr(self, "spec"):
            for job in self.holders:
                check_affinity(job, self.sizes[job.parts[0].chain])

    @invariant()
    def loans_are_counted(self) -> None:
        if hasattr(self, "spec"):
            for tenant in range(len(self.cluster.tenants)):
                lent = [job.held for job in self.holders if (job.tenant, job.kind) == (tenant, Kind.OPPORTUNISTIC)]
                assert self.cluster.lent(tenant) == sum(lent)

    def teardown(self) -> None:
        if hasattr(self, "spec"):
            while self.holders:
                self.end(self.holders[self.number % len(self.holders)])
                self.cluster.validate()
            assert outlook(self.cluster, self.most) == self.fresh, "an empty cluster is as good as new"


class LendingMachine(SharingMachine):
    """The two schemes that lend."""

    @rule(tenant=st.integers(0, 3), gpus=st.integers(0, 19))
    def lend(self, tenant: int, gpus: int) -> None:
        job = self.new_job(tenant, gpus)
        idle = self.idle_nodes()
        suits = any(self.can_host(chain, masks, job.gpus) for chain, masks in enumerate(idle))
        assert self.cluster.can_lend(job.gpus) == suits
        assert self.cluster.lend(job) == suits
        if not suits:
            assert (job.kind, job.parts) == (None, ())
            return
        assert job.kind is Kind.OPPORTUNISTIC
        assert self.cluster.can_ever_lend(job.gpus)
        assert all(mask & idle[chain][node] == mask for chain, node, mask in job.parts), "on idle GPUs"
        chain = next(n for n, masks in enumerate(idle) if self.can_host(n, masks, job.gpus))
        assert {part.chain for part in job.parts} == {chain}, "chains in the order of the spec"
        self.holders.append(job)
        if job.gpus <= self.sizes[chain]:
            self.check_far_from_guaranteed(job.parts[0], job.gpus, idle[chain])

    def idle_nodes(self) -> list[list[int]]:
        """Per chain and node, the leaves that nobody holds."""
        idle = [[(1 << chain.gpus_per_node) - 1] * chain.cells_at(chain.node_level) for chain in self.spec.chains]
        for job in self.holders:
            for chain, node, mask in job.parts:
                idle[chain][node] &= ~mask
        return idle

    def can_host(self, chain: int, idle: list[int], gpus: int) -> bool:
        size = self.sizes[chain]
        if gpus <= size:
            return any(mask.bit_count() >= gpus for mask in idle)
        return sum(mask.bit_count() == size for mask in idle) * size >= gpus

    def check_far_from_guaranteed(self, part: Part, gpus: int, idle: list[int]) -> None:
        """The node with the fewest guaranteed GPUs, then the one where they are closest together, then the tightest."""
        guaranteed = Counter[int]()
        for job in self.holders:
            if job.kind is Kind.GUARANTEED:
                guaranteed.update({p.node: p.mask.bit_count() for p in job.parts if p.chain == part.chain})
        levels = self.spec.chains[part.chain].levels[: self.spec.chains[part.chain].node_level]

        def rank(node: int) -> tuple[int, int, int]:
            level = next(
                k
                for k, spec in enumerate(levels)
                if any(
                    (idle[node] >> first & ((1 << spec.gpus) - 1)).bit_count() >= gpus
                    for first in range(0, levels[-1].gpus, spec.gpus)
                )
            )
            return guaranteed[node], level, idle[node].bit_count()

        assert rank(part.node) == min(rank(node) for node, mask in enumerate(idle) if mask.bit_count() >= gpus)

    @invariant()
    def no_gpu_is_held_twice(self) -> None:
        if hasattr(self, "spec"):
            check_no_gpu_is_held_twice(self.spec, self.holders)


class HivedMachine(LendingMachine):
    """Cells; beside them every tenant's private cluster, which is asked the same and never lends."""

    def make(self) -> SharedCluster:
        self.hived = HivedCluster(self.spec)
        return self.hived

    def begin(self) -> None:
        self.private = PrivateClusters(self.spec)
        self.twins: dict[Allocation, Allocation] = {}

    def after_guarantee(self, job: Allocation, grant: Grant | None) -> None:
        twin = Allocation(job.group, job.tenant, job.gpus)
        alone = self.private.guarantee(twin, place)
        assert (grant is None) == (alone is None), "a VC grants exactly what a private cluster would"
        if grant is not None:
            assert job.spots == twin.spots, "and the same place in it"
            self.twins[job] = twin

    def ended(self, job: Allocation) -> None:
        self.private.release(self.twins.pop(job))

    @invariant()
    def sharing_is_safe(self) -> None:
        if hasattr(self, "spec"):
            assert_safe(self.hived.safety())

    @invariant()
    def every_vc_stands_in_the_cluster_as_it_is(self) -> None:
        if hasattr(self, "spec"):
            check_bindings(self.spec, self.holders)


class QuotaMachine(LendingMachine):
    """A number of GPUs per tenant and device type."""

    def make(self) -> SharedCluster:
        return QuotaCluster(self.spec)

    def begin(self) -> None:
        self.quota = Counter[tuple[int, str]]()
        for tenant, vc in enumerate(self.spec.virtual_clusters):
            for cells in vc.cells:
                chain = self.spec.chain(cells.chain)
                self.quota[tenant, chain.leaf_type] += cells.number * chain.levels[cells.level - 1].gpus

    def used(self) -> Counter[tuple[int, str]]:
        """GPUs held guaranteed, by tenant and device type."""
        used = Counter[tuple[int, str]]()
        for job in self.holders:
            if job.kind is Kind.GUARANTEED:
                used[job.tenant, self.spec.chains[job.parts[0].chain].leaf_type] += job.held
        return used

    def within_quota(self, job: Allocation, chain: int) -> bool:
        size = self.sizes[chain]
        needs = job.gpus if job.gpus <= size else -(-job.gpus // size) * size
        key = job.tenant, self.spec.chains[chain].leaf_type
        return self.used()[key] + needs <= self.quota[key]

    def before_guarantee(self, job: Allocation) -> None:
        """Work out what the answer must be: the first chain with quota and room, or in place."""
        free = self.free_nodes()
        candidates = [n for n in range(len(self.sizes)) if self.within_quota(job, n)]
        if job.kind is Kind.OPPORTUNISTIC and job.parts[0].chain in candidates:
            self.expected: int | None = job.parts[0].chain
        else:
            self.expected = next((n for n in candidates if self.can_host(n, free[n], job.gpus)), None)
        self.before = job.kind, job.parts
        self.was_idle = self.idle_nodes()
        self.was_free = free

    def free_nodes(self) -> list[list[int]]:
        """Per chain and node, the leaves outside guaranteed use."""
        opportunistic = [job for job in self.holders if job.kind is Kind.OPPORTUNISTIC]
        free = self.idle_nodes()
        for job in opportunistic:
            for chain, node, mask in job.parts:
                free[chain][node] |= mask
        return free

    def after_guarantee(self, job: Allocation, grant: Grant | None) -> None:
        assert (grant is None) == (self.expected is None)
        if grant is None:
            return
        chain = job.parts[0].chain
        assert chain == self.expected
        kind, parts = self.before
        if kind is Kind.OPPORTUNISTIC and parts[0].chain == chain:
            assert grant == (True, ()), "a quota names no place: whoever runs stays where it is"
            assert job.parts == parts
        elif kind is None and job.gpus <= self.sizes[chain]:
            taken = (job.parts[0].mask & ~self.was_idle[chain][job.parts[0].node]).bit_count()
            nodes = zip(self.was_idle[chain], self.was_free[chain], strict=True)
            suitable = [idle for idle, free in nodes if free.bit_count() >= job.gpus]
            assert taken == min(max(0, job.gpus - idle.bit_count()) for idle in suitable), "as few GPUs taken as can be"

    @invariant()
    def nobody_exceeds_the_quota(self) -> None:
        if hasattr(self, "spec"):
            assert all(count <= self.quota[key] for key, count in self.used().items())


class PrivateMachine(SharingMachine):
    """One cluster per tenant; nothing is lent, and nobody is in anybody's way."""

    def make(self) -> SharedCluster:
        return PrivateClusters(self.spec)

    def begin(self) -> None:
        self.sizes = []
        for tenant, vc in enumerate(self.spec.virtual_clusters):
            names = {cells.chain for cells in vc.cells}
            self.sizes += [chain.gpus_per_node for chain in self.spec.chains if chain.name in names]
            assert self.cluster.tenants[tenant] == vc.name

    @rule(tenant=st.integers(0, 3), gpus=st.integers(0, 19))
    def nothing_is_lent(self, tenant: int, gpus: int) -> None:
        job = self.new_job(tenant, gpus)
        assert not self.cluster.can_lend(job.gpus)
        assert not self.cluster.can_ever_lend(job.gpus)
        assert not self.cluster.lend(job)
        assert (job.kind, job.parts) == (None, ())

    @invariant()
    def gpus_are_held_once_and_by_their_owner(self) -> None:
        if not hasattr(self, "spec"):
            return
        hosts = self.cluster.node_sizes()
        names: dict[str, int] = {}
        for job in self.holders:
            for pool, node, mask in job.parts:
                assert mask.bit_length() <= hosts[pool][node]
            for name, _ in self.cluster.named(job.parts):
                assert names.setdefault(name, job.tenant) == job.tenant
        held = Counter(leaf for job in self.holders for leaf in leaves_of_parts(job.parts, [64] * len(hosts)))
        assert all(count == 1 for count in held.values())


for machine in (HivedMachine, QuotaMachine, PrivateMachine):
    machine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestHived = HivedMachine.TestCase
TestQuota = QuotaMachine.TestCase
TestPrivate = PrivateMachine.TestCase
