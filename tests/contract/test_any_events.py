"""Any events in any order: the books of the driver hold, decisions keep their promises, and the log is the cluster."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hived import Bind, Cluster, Member, Preempt, Request, RequestError, Wait
from hived.cluster.decisions import Decision
from hived.cluster.replay import replay
from hived.spec import ClusterSpec

from ..strategies import feasible_specs
from .driver import Driver, Run, compiled, devices
from .hardware import Hardware
from .test_safety_differential import tight_specs

PICK = st.integers(0, 60)
#: pods and GPUs each
SHAPES = st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 3]), st.integers(1, 8)), min_size=1, max_size=2)
SPECS = st.one_of(tight_specs(), feasible_specs(max_gpus=16))


class AnyEvents(RuleBasedStateMachine):
    """Tenants, operators and hardware, all at once; what fails shows the log."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver.__new__(Driver)
        self.asked: list[Request] = []
        #: decisions not committed yet, some of them out of date
        self.open: list[Decision] = []

    @initialize(spec=SPECS)
    def start(self, spec: ClusterSpec) -> None:
        self.driver = Driver(spec, log=True)
        self.spec = spec

    def some(self, names: Any, pick: int) -> str:
        """One of the names."""
        listed = sorted(names)
        return str(listed[pick % len(listed)])

    def new_request(self, vc: int, priority: int, shapes: list[tuple[int, int]], pick: int, lazy: bool) -> Request:
        owner = self.spec.virtual_clusters[vc % len(self.spec.virtual_clusters)]
        kinds = owner.cells or owner.pinned
        chain = self.spec.chains[pick % len(self.spec.chains)]
        if kinds and priority >= 0:
            chain = self.driver.hardware.chains[kinds[pick % len(kinds)].chain]
        members = tuple(Member(pods, 1 + (gpus - 1) % chain.gpus_per_node) for pods, gpus in shapes)
        if pick % 11 == 0 and (kinds or priority < 0):
            members = (Member(shapes[0][0], cell_type=chain.levels[pick % chain.node_level].cell_type),)
        pinned = owner.pinned and priority >= 0 and (pick % 3 == 0 or not owner.cells)
        return Request(
            group=f"job-{len(self.asked)}",
            vc=owner.name,
            priority=priority,
            members=members,
            leaf_cell_type=chain.leaf_type if pick % 4 == 0 and (priority < 0 or owner.cells and not pinned) else None,
            pinned_cell_id=owner.pinned[0].pinned_cell_id if pinned else None,
            lazy_preemption=lazy,
            soft_affinity=pick % 2 == 0,
        )

    def suggestion(self, pick: int) -> list[str] | None:
        """Half of the nodes, now and then."""
        nodes = self.driver.hardware.nodes
        return [node for i, node in enumerate(nodes) if (i + pick) % 3] if pick % 5 == 1 else None

    @rule(
        vc=PICK,
        priority=st.sampled_from([-1, -1, 0, 0, 1, 2, 5]),
        shapes=SHAPES,
        pick=PICK,
        lazy=st.booleans(),
        how=st.sampled_from(["run", "run", "run", "commit", "keep"]),
    )
    def ask(self, vc: int, priority: int, shapes: list[tuple[int, int]], pick: int, lazy: bool, how: str) -> None:
        request = self.new_request(vc, priority, shapes, pick, lazy)
        self.asked.append(request)
        suggested = self.suggestion(pick)
        if how == "run":
            self.driver.run(request, suggested)
            return
        decision = self.driver.ask(request, suggested)
        if isinstance(decision, Wait):
            return
        if how == "commit":
            self.driver.commit(decision)
        else:
            self.open.append(decision)

    @precondition(lambda self: self.asked)
    @rule(pick=PICK)
    def ask_again(self, pick: int) -> None:
        request = self.asked[pick % len(self.asked)]
        if request.vc in {vc.name for vc in self.spec.virtual_clusters}:
            group = request.group
            try:
                decision = self.driver.ask(request)
            except RequestError:  # the new spec has no such pinned cell or device type
                return
            if group in self.driver.running:
                assert isinstance(decision, Bind)
            elif group in self.driver.preempting:
                assert isinstance(decision, Preempt) == bool(self.driver.preempting[group].victims)
            if not isinstance(decision, Wait) and group not in self.driver.running:
                self.driver.commit(decision)

    @precondition(lambda self: self.open)
    @rule(pick=PICK)
    def commit_late(self, pick: int) -> None:
        decision = self.open.pop(pick % len(self.open))
        if decision.group in self.driver.running or decision.group in self.driver.preempting:
            return
        before = self.driver.cluster.snapshot()
        try:
            self.driver.commit(decision)
        except RequestError:
            assert self.driver.cluster.snapshot() == before, "a refused commit has changed the state"
            self.driver.check()

    @precondition(lambda self: self.driver.running)
    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        self.driver.release(self.some(self.driver.running, pick))

    @precondition(lambda self: self.driver.preempting)
    @rule(pick=PICK)
    def end_a_victim(self, pick: int) -> None:
        name = self.some(self.driver.preempting, pick)
        reservation = self.driver.preempting[name]
        if reservation.victims:
            self.driver.step(reservation.request)
        else:
            self.driver.run(reservation.request)

    @precondition(lambda self: self.driver.preempting)
    @rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        self.driver.cancel(self.some(self.driver.preempting, pick))

    @rule(vc=PICK, priority=st.sampled_from([-1, 0, 3]), shapes=SHAPES, pick=PICK)
    def reserve_and_give_up_at_once(self, vc: int, priority: int, shapes: list[tuple[int, int]], pick: int) -> None:
        request = self.new_request(vc, priority, shapes, pick, lazy=False)
        before = self.driver.cluster.snapshot()
        decision = self.driver.ask(request)
        if isinstance(decision, Preempt):
            self.driver.commit(decision)
            self.driver.cancel(request.group)
        elif isinstance(decision, Wait):
            self.driver.cancel(request.group)
        if isinstance(decision, Wait | Bind) or not decision.overtaken:
            assert self.driver.cluster.snapshot() == before, "giving up has not given everything back"

    @rule(pick=PICK, healthy=st.booleans())
    def a_node_turns(self, pick: int, healthy: bool) -> None:
        self.driver.set_node(self.some(self.driver.hardware.nodes, pick), healthy)

    @rule(pick=PICK, device=PICK, healthy=st.booleans())
    def a_device_turns(self, pick: int, device: int, healthy: bool) -> None:
        node = self.some(self.driver.hardware.nodes, pick)
        indices = self.driver.hardware.devices_of(node)
        self.driver.set_device(node, indices[device % len(indices)], healthy)

    @rule(vc=PICK, priority=st.sampled_from([-1, 0, 5]), shapes=SHAPES, pick=PICK)
    def what_if(self, vc: int, priority: int, shapes: list[tuple[int, int]], pick: int) -> None:
        request = self.new_request(vc, priority, shapes, pick, lazy=False)
        before = self.driver.cluster.snapshot()
        plan = self.driver.cluster.plan(request)
        assert plan.outcome in {"now", "waits", "never"}
        assert isinstance(plan.decision, Wait) == bool(plan.reasons)
        assert self.driver.cluster.snapshot() == before

    @rule()
    def restart(self) -> None:
        """The process dies and knows only what runs, and what is broken; it is told in the opposite order."""
        old = self.driver
        placed = {device for run in old.running.values() for device in devices(run.pods)}
        there = {(node, device) for node in old.hardware.nodes for device in old.hardware.devices_of(node)}
        if old.preempting or not placed <= there or any(not run.pods for run in old.running.values()):
            return
        whole = all(len(run.pods) == run.request.pods for run in old.running.values())
        if whole:
            fresh = Cluster.from_spec(self.spec)
            for node, device in sorted(old.bad):
                fresh.set_device_health(node, device, healthy=False)
            fresh.recover(reversed(old.cluster.records()))
            other = Driver(self.spec, fresh)
            other.bad = set(old.bad)
            other.running = {name: Run(run.request, run.pods, run.downgraded) for name, run in old.running.items()}
            other.check()

    @invariant()
    def everybody_can_be_explained(self) -> None:
        if self.asked:
            for name in self.driver.cluster.groups():
                assert self.driver.cluster.explain(name)

    def teardown(self) -> None:
        """The log says it all: carried out again, it gives the same cluster."""
        if hasattr(self, "spec"):
            again = replay(self.driver.lines, Cluster)
            assert again.snapshot() == self.driver.cluster.snapshot()


class AnyEventsAndSpecs(AnyEvents):
    """The same, and now and then a new spec."""

    @rule(spec=SPECS)
    def reconfigure(self, spec: ClusterSpec) -> None:
        driver = self.driver
        report = driver.cluster.reconfigure(spec)
        self.spec = spec
        driver.hardware = Hardware(compiled(spec))
        there = {(node, device) for node in driver.hardware.nodes for device in driver.hardware.devices_of(node)}
        driver.bad &= there
        driver.preempting.clear()
        for name, *_ in (*report.lost, *report.downgraded):
            placement = driver.cluster.group(name).placement
            assert placement is not None
            assert devices(placement.pods) == devices(driver.running[name].pods) & there
            driver.running[name] = Run(driver.running[name].request, placement.pods, downgraded=True)
            assert not driver.guaranteed(name)
        driver.check()


def test_any_events_in_any_order() -> None:
    run_state_machine_as_test(AnyEvents, settings=settings(max_examples=40, stateful_step_count=30))


def test_any_events_under_changing_specs() -> None:
    run_state_machine_as_test(AnyEventsAndSpecs, settings=settings(max_examples=25, stateful_step_count=30))


@settings(max_examples=30)
@given(SPECS, st.lists(st.tuples(PICK, st.sampled_from([-1, 0, 2]), SHAPES, PICK), max_size=12))
def test_the_same_calls_give_the_same_answers(
    spec: ClusterSpec, calls: list[tuple[int, int, list[tuple[int, int]], int]]
) -> None:
    told = []
    for _ in range(2):
        machine = AnyEvents()
        machine.start(spec)
        for vc, priority, shapes, pick in calls:
            machine.ask(vc, priority, shapes, pick, lazy=pick % 2 == 0, how="run")
        told.append((machine.driver.lines, machine.driver.cluster.snapshot()))
    assert told[0] == told[1]
