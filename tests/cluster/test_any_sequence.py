"""Any sequence of calls on any cluster, whichever way its tenants share.

Jobs of a trace and gangs of all priorities are placed, lent to, promoted, preempted and released; hardware turns; the
cluster is made anew from what runs in it. After every step it re-derives its own state, and checkers that know the spec
and the placements alone look for a GPU held twice and a broken promise. What can be worked out by hand is compared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hived import Bind, Preempt
from hived.cluster import BindingKind, Cluster, Decision, Member, Placement, Request, Sharing, Wait
from hived.cluster.explain.queries import GroupStatus
from hived.cluster.placement_request import ANYWHERE, ON_IDLE, PlacementRequest
from hived.cluster.states import GroupState
from hived.spec.compiled import ClusterSpec, GuestsOf

from ..contract.walks import any_request
from ..strategies import feasible_specs, tiers
from .helpers import carry_out, check_bindings, check_no_gpu_is_held_twice, devices, spots

#: what to draw for a request: tenant, size, and where the dice fall
TENANT, GPUS, DICE = st.integers(0, 3), st.integers(0, 19), st.randoms(use_true_random=False)


class SharingMachine(RuleBasedStateMachine):
    """Groups come and go in any order."""

    sharing: ClassVar[Sharing]
    binding: ClassVar[BindingKind] = BindingKind.DYNAMIC
    #: whether hardware turns bad and good
    breaks: ClassVar[bool] = True
    #: whether victims may run on for a while, as opportunistic or until they are ended
    slow: ClassVar[bool] = True

    @initialize(spec=feasible_specs(), guests=st.sampled_from(["none", "own", "all"]))
    def build(self, spec: ClusterSpec, guests: GuestsOf) -> None:
        vcs = tuple(replace(vc, guests=guests) for vc in spec.virtual_clusters)
        self.spec = spec = replace(spec, virtual_clusters=vcs)
        self.cluster = Cluster(spec, self.sharing, binding=self.binding)
        self.fresh = self.cluster.snapshot()
        self.chains = {chain.name: chain for chain in spec.chains}
        #: per chain and node: its GPUs
        self.nodes = {(chain, node): gpus for chain, node, gpus in self.cluster.nodes()}
        sizes = [chain.gpus_per_node for chain in spec.chains]
        #: small jobs, some of whole nodes, and one that never fits
        most = max(chain.gpus for chain in spec.chains) + 1
        self.asked = sorted({1, 2, 3, *sizes, *(2 * n for n in sizes), *(3 * n for n in sizes), most})
        self.bad: set[tuple[str, int]] = set()
        self.requests: dict[str, Request] = {}
        self.begin()

    def begin(self) -> None:
        """Whatever a way to share keeps beside."""

    # -- what runs ----------------------------------------------------------------------------------------------------

    def groups(self, *states: GroupState) -> list[GroupStatus]:
        """The groups in some states, all by default, but for those that only wait."""
        wanted = states or (GroupState.ALLOCATED, GroupState.BEING_PREEMPTED, GroupState.PREEMPTING)
        return [group for group in map(self.cluster.group, self.cluster.groups()) if group.state in wanted]

    @property
    def running(self) -> list[GroupStatus]:
        return self.groups(GroupState.ALLOCATED, GroupState.BEING_PREEMPTED)

    # -- asking -------------------------------------------------------------------------------------------------------

    def job(self, tenant: int, gpus: int, priority: int = 0) -> Request:
        """A job of a trace."""
        vc = self.spec.virtual_clusters[tenant % len(self.spec.virtual_clusters)].name
        members = (Member(1, self.asked[gpus % len(self.asked)]),)
        return self.remembered(Request(f"job-{len(self.requests)}", vc, priority, members, whole_nodes=True))

    def gang(self, dice: Random) -> Request:
        """A gang with everything that a request can say."""
        request = any_request(dice, self.spec, f"gang-{len(self.requests)}")
        if request.opportunistic:  # its VC, where it may be promoted, need not have such cells
            members = tuple([member for member in request.members if member.cell_type is None])
            request = replace(request, members=members or (Member(1, 1),), within=None, leaf_cell_type=None)
        return self.remembered(replace(request, lazy_preemption=self.slow and request.lazy_preemption))

    def remembered(self, request: Request) -> Request:
        self.requests[request.group] = request
        return request

    def ask(self, request: Request, near: Placement | None = None, idle: bool = False) -> Bind | Preempt | None:
        """Ask, and hold the answer against what :meth:`schedule` promises."""
        before = self.cluster.snapshot()
        asked = PlacementRequest(request, ON_IDLE if idle else ANYWHERE, near=near)
        decision = self.cluster.place(asked)
        if decision is not None:
            self.check_answer(request, decision)
            assert self.cluster.snapshot() == before, "an answer that is not committed changes nothing"
        if near is None and not idle:
            would = self.cluster.plan(request).decision
            assert would == decision or (decision is None and isinstance(would, Wait)), "what schedule would answer"
        return self.cluster.place(asked)

    def check_answer(self, request: Request, decision: Bind | Preempt) -> None:
        """Each pod on one node, as large as requested, on good hardware; groups in the way are victims, and may be."""
        placement = decision.placement
        chain = self.chains[placement.chain]
        gpus_of = {level.cell_type: level.gpus for level in chain.levels}
        sizes = []
        for member in request.members:
            if member.cell_type is not None:
                sizes += [gpus_of[member.cell_type]] * member.pods
            elif request.whole_nodes and member.leaf_cells > chain.gpus_per_node:
                sizes += [chain.gpus_per_node] * -(-member.leaf_cells // chain.gpus_per_node)
            else:
                sizes += [member.leaf_cells] * member.pods
        assert [len(pod.leaf_cells) for pod in placement.pods] == sizes
        mine = devices(placement)
        assert len(mine) == sum(sizes)
        assert not mine & self.bad
        assert placement.guaranteed == (not request.opportunistic)
        victims = decision.victims if isinstance(decision, Preempt) else ()
        users = [g for g in self.groups() if mine & devices(g.placement) and not g.guest]
        if request.guest:
            assert not victims
            assert all(group.guaranteed for group in users), "it would be their guest"
            return
        for group in self.groups():
            if group.guest:
                assert group.name not in (*victims, *decision.overtaken, *decision.downgraded)
                continue
            if mine & devices(group.placement):
                assert group.name in (*victims, *decision.overtaken, *decision.downgraded)
            if group.name in victims and group.guaranteed:
                assert (group.vc, group.priority < request.priority) == (request.vc, True)
            elif group.name in victims:
                assert mine & devices(group.placement), "opportunistic groups go where they are in the way, alone"

    def start(self, request: Request, decision: Bind | Preempt | None) -> None:
        """Carry out an answer to the end."""
        if decision is not None:
            carry_out(self.cluster, decision, request)
            assert self.cluster.group(request.group).state is GroupState.ALLOCATED

    @rule(tenant=TENANT, gpus=GPUS)
    def place_a_job(self, tenant: int, gpus: int) -> None:
        request = self.job(tenant, gpus)
        decision = self.ask(request)
        self.check_job(request, decision)
        self.start(request, decision)

    def check_job(self, request: Request, decision: Bind | Preempt | None) -> None:
        """What is known of the answer to a job of a trace."""

    @rule(dice=DICE)
    def place_a_gang(self, dice: Random) -> None:
        request = self.gang(dice)
        self.start(request, self.ask(request))

    @precondition(lambda self: self.slow)
    @rule(dice=DICE)
    def let_a_gang_preempt(self, dice: Random) -> None:
        """It has reserved, and its victims run on for a while."""
        request = self.gang(dice)
        decision = self.ask(request)
        if decision is not None:
            self.cluster.commit(decision)

    @precondition(lambda self: self.groups(GroupState.PREEMPTING))
    @rule(dice=DICE)
    def go_on_with_a_preemption(self, dice: Random) -> None:
        group = dice.choice(self.groups(GroupState.PREEMPTING))
        if dice.random() < 0.3:
            self.cluster.cancel(group.name)
            return
        if group.victims:
            self.end(dice.choice(group.victims))
        self.schedule(self.requests[group.name])

    def schedule(self, request: Request) -> Decision:
        decision = self.cluster.schedule(request)
        self.cluster.commit(decision)
        assert self.cluster.explain(request.group)
        return decision

    @precondition(lambda self: self.slow)
    @rule(dice=DICE)
    def schedule_a_gang(self, dice: Random) -> None:
        """On some nodes alone, and with reasons where it has to wait."""
        request = self.gang(dice)
        names = sorted({node for _, node in self.nodes})
        suggested = dice.sample(names, dice.randint(1, len(names))) if dice.random() < 0.7 else None
        excluded = dice.sample(names, dice.randint(0, len(names) - 1))
        decision = self.cluster.schedule(request, suggested, excluded_nodes=excluded)
        if isinstance(decision, Wait):
            assert decision.reasons
            assert self.cluster.explain(request.group)
            self.cluster.cancel(request.group)
            return
        assert {pod.node for pod in decision.placement.pods} <= set(suggested or names) - set(excluded)
        self.check_answer(request, decision)
        assert isinstance(self.cluster.schedule(request, suggested, excluded_nodes=excluded), type(decision))
        self.cluster.commit(decision)

    @rule(tenant=TENANT, gpus=GPUS)
    def lend(self, tenant: int, gpus: int) -> None:
        request = self.job(tenant, gpus, -1)
        idle = self.idle_nodes()
        chain = next((name for name in self.chains if self.can_host(name, idle, request.members[0].leaf_cells)), None)
        assert self.cluster.can_lend(request) == (chain is not None)
        decision = self.ask(request, idle=True)
        assert (decision is None) == (chain is None)
        if decision is None:
            return
        assert isinstance(decision, Bind)
        assert not self.cluster.never_fits(request)
        placement = decision.placement
        assert placement.chain == chain, "chains in the order of the spec"
        assert devices(placement) <= {(node, d) for (_, node), of_node in idle.items() for d in of_node}, "on idle GPUs"
        if len(placement.pods) == 1:
            self.check_far_from_guaranteed(placement, idle)
        self.start(request, decision)

    def idle_nodes(self) -> dict[tuple[str, str], set[int]]:
        """Per chain and node, the healthy devices that are neither used nor reserved; none in private clusters."""
        if self.sharing is Sharing.PRIVATE:
            return {}
        taken = self.bad.union(*(devices(group.placement) for group in self.groups() if not group.guest))
        return {
            (chain, node): {device for device in range(gpus) if (node, device) not in taken}
            for (chain, node), gpus in self.nodes.items()
        }

    def can_host(self, chain: str, free: dict[tuple[str, str], set[int]], gpus: int) -> bool:
        """Whether a job fits on these devices of a chain."""
        size = self.chains[chain].gpus_per_node
        mine = [len(of_node) for (name, _), of_node in free.items() if name == chain]
        return any(n >= gpus for n in mine) if gpus <= size else mine.count(size) * size >= gpus

    def check_far_from_guaranteed(self, placement: Placement, idle: dict[tuple[str, str], set[int]]) -> None:
        """The node with the fewest guaranteed or bad GPUs, then where they are closest together, then the tightest."""
        owned = self.bad.union(*(devices(group.placement) for group in self.groups() if group.guaranteed))
        guaranteed = Counter(node for node, _ in owned)
        chain = self.chains[placement.chain]
        ((chosen, leaves),) = placement.pods

        def rank(node: str) -> tuple[int, int, int]:
            of_node = idle[chain.name, node]
            level = next(
                k
                for k, spec in enumerate(chain.levels[: chain.node_level])
                if max(Counter(device // spec.gpus for device in of_node).values()) >= len(leaves)
            )
            return guaranteed[node], level, len(of_node)

        suitable = [node for (name, node), free in idle.items() if name == chain.name and len(free) >= len(leaves)]
        assert rank(chosen) == min(map(rank, suitable))

    @precondition(lambda self: self.loans())
    @rule(dice=DICE, priority=st.sampled_from([0, 0, 1]))
    def promote(self, dice: Random, priority: int) -> None:
        group = dice.choice(self.loans())
        request = replace(self.requests[group.name], priority=priority, guest=False)
        others = {other.name: other for other in self.running if other.name != group.name}
        self.check_promotion(request, group)
        self.cluster.evicted()
        promoted = self.cluster.promote(request)
        for name in self.cluster.evicted():  # guests that its VC does not accept beside it
            guest = others.pop(name)
            assert (guest.guest, guest.vc == request.vc) == (True, False)
        after = {other.name: self.cluster.group(other.name) for other in self.running if other.name != group.name}
        assert after == others, "no other tenant is affected"
        if promoted:
            now = self.cluster.group(group.name)
            assert now.guaranteed
            assert now.priority == priority
            assert now.placement is not None
            assert group.placement is not None
            assert now.placement.pods == group.placement.pods, "every pod where it was"
            self.requests[group.name] = request
        else:
            assert self.cluster.group(group.name) == group
        moved: Bind | Preempt | None = None
        if promoted is False:
            self.end(group.name)
            moved = self.ask(request, near=group.placement)
            assert moved is not None, "its VC has room"
            self.requests[group.name] = request
            self.start(request, moved)
        self.after_promotion(request, promoted)

    def loans(self) -> list[GroupStatus]:
        """Groups that run on loans and are not being preempted."""
        return [g for g in self.groups(GroupState.ALLOCATED) if self.requests[g.name].opportunistic]

    def check_promotion(self, request: Request, group: GroupStatus) -> None:
        """What is known of the answer to come."""

    def after_promotion(self, request: Request, promoted: bool | None) -> None:
        """It runs guaranteed, where the VC had room."""

    @precondition(lambda self: self.running)
    @rule(dice=DICE)
    def release(self, dice: Random) -> None:
        self.end(dice.choice(self.running).name)

    def end(self, name: str) -> None:
        self.goes(name)
        self.cluster.release(name)

    def goes(self, name: str) -> None:
        """A running group ends."""

    # -- what happens to it -------------------------------------------------------------------------------------------

    @precondition(lambda self: self.breaks)
    @rule(dice=DICE, healthy=st.booleans())
    def hardware_turns(self, dice: Random, healthy: bool) -> None:
        _, node = dice.choice(sorted(self.nodes))
        gpus = max(gpus for (_, name), gpus in self.nodes.items() if name == node)
        which = {(node, device) for device in range(gpus)}
        if dice.random() < 0.5:
            self.cluster.set_node_health(node, healthy)
        else:
            which = {(node, dice.randrange(gpus))}
            self.cluster.set_device_health(*next(iter(which)), healthy)
        self.bad = self.bad - which if healthy else self.bad | which

    @precondition(lambda self: self.breaks and not self.groups(GroupState.PREEMPTING))
    @rule(respecified=st.booleans())
    def start_again(self, respecified: bool) -> None:
        """A restart that knows the records alone, or a new spec that is the old one: everybody runs on."""
        records = self.cluster.records()
        if respecified:
            report = self.cluster.reconfigure(self.spec)
        else:
            self.cluster = Cluster(self.spec, self.sharing, binding=self.binding)
            for node, device in sorted(self.bad):
                self.cluster.set_device_health(node, device, healthy=False)
            report = self.cluster.recover(reversed(records))
        assert (report.lost, report.downgraded, report.cancelled) == ((), (), ())
        after = self.cluster.records()
        assert [(r.group, r.placement.pods) for r in after] == [(r.group, r.placement.pods) for r in records]
        if not respecified:
            assert after == records

    # -- what holds always --------------------------------------------------------------------------------------------

    @invariant()
    def is_valid(self) -> None:
        self.cluster.validate()
        self.cluster.check_safety()
        self.cluster.unavailable()
        check_no_gpu_is_held_twice(self.cluster)

    @invariant()
    def loans_are_counted(self) -> None:
        for vc in self.spec.virtual_clusters:
            lent = [devices(g.placement) for g in self.groups() if g.vc == vc.name and not g.guaranteed and not g.guest]
            assert self.cluster.opportunistic_gpus(vc.name) == sum(map(len, lent))

    def teardown(self) -> None:
        if hasattr(self, "spec"):
            for group in self.groups(GroupState.PREEMPTING):
                self.cluster.cancel(group.name)
            while self.running:
                self.end(self.running[0].name)
                self.cluster.validate()
            for node, device in self.bad:
                self.cluster.set_device_health(node, device, healthy=True)
            for name in self.cluster.groups():
                self.cluster.cancel(name)
            assert self.cluster.snapshot()[1:] == self.fresh[1:], "nothing is left behind"


class HivedMachine(SharingMachine):
    """Cells, bound late."""

    sharing = Sharing.HIVED

    @invariant()
    def every_vc_stands_in_the_cluster_as_it_is(self) -> None:
        check_bindings(self.cluster)


class SafetyMachine(HivedMachine):
    """Beside it every tenant's private cluster, which is asked the same, and never lends.

    While preemptions are under way: tests/contract/test_safety_differential.py.
    """

    breaks = slow = False

    def begin(self) -> None:
        self.private = Cluster(self.spec, Sharing.PRIVATE)

    def start(self, request: Request, decision: Bind | Preempt | None) -> None:
        super().start(request, decision)
        if not request.opportunistic:
            self.ask_alone(request, decision is not None)

    @rule(tenant=TENANT, gpus=GPUS, early=st.booleans())
    def follow_the_private_cluster(self, tenant: int, gpus: int, early: bool) -> None:
        """A job gets the very leaves of its VC that it has there, whatever runs on them; it may have started early."""
        request = self.job(tenant, gpus)
        loan = replace(request, priority=-1)
        on_loan = early and self.cluster.place(PlacementRequest(loan, ON_IDLE), keep=True) is not None
        if self.private.place(PlacementRequest(request), keep=True) is None:
            if on_loan:
                self.cluster.release(request.group)
            return
        leaves = self.private.virtual_leaves(request.group)
        if not (on_loan and self.cluster.promote(request, leaves)):
            if on_loan:
                self.cluster.release(request.group)
            SharingMachine.start(self, request, self.cluster.place(PlacementRequest(request, leaves)))
        here = self.cluster.virtual_leaves(request.group)
        assert (here.pool, sorted(here.spots)) == (leaves.pool, sorted(leaves.spots))

    def ask_alone(self, request: Request, granted: bool) -> None:
        """The private cluster grants what the VC has granted, at the cost of the same groups."""
        self.same_alone(request, granted, self.private.place(PlacementRequest(request)))

    def same_alone(self, request: Request, granted: bool, alone: Bind | Preempt | None) -> None:
        assert granted == (alone is not None), "a VC grants exactly what a private cluster would"
        if alone is not None:
            carry_out(self.private, alone, request)
            here, there = spots(self.cluster, request.group), spots(self.private, request.group)
            assert here is not None
            assert there is not None
            same = (here[0], sorted(here[1])) == (there[0], sorted(there[1]))  # promoted pods stay, each where it was
            assert same, "and the same place in it"
        mine = {group.name for group in self.running if group.guaranteed}
        assert mine == set(self.private.groups()), "at the cost of the same groups"

    def after_promotion(self, request: Request, promoted: bool | None) -> None:
        if promoted or (promoted is None and request.priority == 0):  # a promotion preempts no group
            self.ask_alone(request, promoted is True)

    def goes(self, name: str) -> None:
        if self.cluster.group(name).guaranteed:
            self.private.release(name)


class StaticMachine(HivedMachine):
    """Cells that are bound for good: every one at all times, where it was at first."""

    binding = BindingKind.STATIC

    def begin(self) -> None:
        self.bound = self.bindings()
        mine = {vc.name: [c for c in self.bound if c[0] == vc.name] for vc in self.spec.virtual_clusters}
        for vc in self.spec.virtual_clusters:
            reserved = Counter({(c.chain, c.level): 0 for c in vc.cells})
            for chain, level, number in vc.reserved():
                reserved[chain, level] += number
            assert Counter((chain, level) for _, chain, level, _ in mine[vc.name]) == +reserved, "all of them"

    def bindings(self) -> list[tuple[str, str, int, int]]:
        """VC, chain, level and number of the physical cell of every preassigned cell."""
        state = self.cluster.state_now()
        return [
            (vc.name, pool.nodes.hierarchy.spec.name, cell.level, pool.binding.bound[number])
            for vc, pools in zip(self.spec.virtual_clusters, state.pools, strict=False)
            for pool in pools
            for number, cell in enumerate(pool.virtual.cells)
            if cell.parent < 0
        ]

    @invariant()
    def every_cell_is_bound_where_it_was(self) -> None:
        assert self.bindings() == self.bound
        assert all(at >= 0 for *_, at in self.bound)

    @invariant()
    def a_group_runs_where_its_virtual_leaves_are(self) -> None:
        """The numbers of its leaves in the VC alone say which physical ones it has."""
        for group in self.cluster.state_now().groups.values():
            pool = self.cluster.state_now().pool_of(group)
            if pool is not None:
                shapes, bound, size = pool.virtual.shapes, pool.binding.bound, pool.nodes.hierarchy.node_size
                want = []
                for host, mask in group.spots:
                    node, first = divmod(bound[host] * shapes[host].leaves, size)
                    want.append((group.chain, node, mask << first))
                assert sorted(want) == sorted(tuple(part) for part in group.parts)


class StaticSafetyMachine(SafetyMachine):
    """The same safety with cells that are bound for good."""

    binding = BindingKind.STATIC


class QuotaMachine(SharingMachine):
    """A number of GPUs per tenant and device type."""

    sharing = Sharing.QUOTA

    def begin(self) -> None:
        #: GPUs by tenant and device type
        self.quota = Counter[tuple[str, str]]()
        for vc in self.spec.virtual_clusters:
            for cells in vc.cells:
                chain = self.chains[cells.chain]
                self.quota[vc.name, chain.leaf_type] += cells.number * chain.levels[cells.level - 1].gpus

    def used(self) -> Counter[tuple[str, str]]:
        """GPUs in guaranteed use or reserved for it, by tenant and device type; pinned cells are no part of it."""
        used = Counter[tuple[str, str]]()
        victims = {name for group in self.groups(GroupState.PREEMPTING) for name in group.victims}
        for group in self.groups():
            pinned = self.requests[group.name].pinned_cell_id is not None
            if group.guaranteed and not pinned and group.name not in victims and group.placement is not None:
                used[group.vc, self.chains[group.placement.chain].leaf_type] += len(devices(group.placement))
        return used

    def within_quota(self, vc: str, chain: str, gpus: int) -> bool:
        size = self.chains[chain].gpus_per_node
        need = gpus if gpus <= size else -(-gpus // size) * size
        key = vc, self.chains[chain].leaf_type
        return self.used()[key] + need <= self.quota[key]

    def check_job(self, request: Request, decision: Bind | Preempt | None) -> None:
        """The first chain with quota and room, and on a node where the fewest GPUs are taken from others."""
        if self.groups(GroupState.PREEMPTING):
            return
        gpus = request.members[0].leaf_cells
        idle = self.idle_nodes()
        loans = [group for group in self.running if not group.guaranteed and not group.guest]  # a guest holds no cells
        lent = set[tuple[str, int]]().union(*(devices(group.placement) for group in loans))
        free = {
            (chain, node): of_node | {d for name, d in lent - self.bad if name == node and (chain, node) in self.nodes}
            for (chain, node), of_node in idle.items()
        }
        right = [n for n in self.chains if self.within_quota(request.vc, n, gpus) and self.can_host(n, free, gpus)]
        assert (decision is None) == (not right)
        if decision is None:
            return
        placement = decision.placement
        assert placement.chain == right[0]
        if gpus <= self.chains[right[0]].gpus_per_node:
            suitable = [key for key, of_node in free.items() if key[0] == right[0] and len(of_node) >= gpus]
            assert len(devices(placement) & lent) == min(max(0, gpus - len(idle[key])) for key in suitable)

    def check_promotion(self, request: Request, group: GroupStatus) -> None:
        """A quota has no cells: a group that runs on leaves of its own stays where it is."""
        assert group.placement is not None
        held = len(devices(group.placement))
        within = self.within_quota(request.vc, group.placement.chain, held)
        self.stays = within and not group.guest and not self.groups(GroupState.PREEMPTING)

    def after_promotion(self, request: Request, promoted: bool | None) -> None:
        assert promoted or not self.stays

    @invariant()
    def nobody_exceeds_the_quota(self) -> None:
        assert all(count <= self.quota[key] for key, count in self.used().items())


class PrivateMachine(SharingMachine):
    """One cluster per tenant; nothing is lent, and no tenant affects another."""

    sharing = Sharing.PRIVATE

    @invariant()
    def nodes_have_one_owner(self) -> None:
        owners: dict[str, str] = {}
        for group in self.groups():
            for node, _ in devices(group.placement):
                assert owners.setdefault(node, group.vc) == group.vc


MACHINES = (HivedMachine, SafetyMachine, StaticMachine, StaticSafetyMachine, QuotaMachine, PrivateMachine)


@pytest.mark.parametrize("machine", MACHINES)
@tiers(15, 200)
def test_any_sequence(machine: type[SharingMachine], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40))
