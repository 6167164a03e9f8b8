"""Any sequence of jobs on any cluster under any sharing scheme: instructions can be carried out, and none is missing.

A tracker (helpers.py) follows the instructions alone, as an engine would.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import ClassVar, NamedTuple

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

from hived.cluster import Cluster, Sharing
from hived.cluster.placement_request import PlacementRequest
from hived.policies import YarnCS
from hived.scheduling import Instruction, JobView, Kind
from hived.spec.compiled import ClusterSpec

from ..strategies import feasible_specs
from .helpers import Harness, Instant, TrackedJob


class Arrival(NamedTuple):
    tenant: int
    gpus: int


class SchedulerMachine(RuleBasedStateMachine):
    """Jobs are submitted and end."""

    scheme: ClassVar[Sharing]

    @initialize(spec=feasible_specs(max_gpus=24))
    def build(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.sim = Harness(self.scheme, spec)
        nodes = [chain.gpus_per_node for chain in spec.chains]
        #: GPUs of jobs of any kind: in a node, a whole one, of several
        self.sizes = sorted({1, 2, 3, *nodes, *(2 * n for n in nodes), *(3 * n for n in nodes)})
        #: every event and its instructions: the job's (tenant, GPUs), or the numbers of the jobs that ended
        self.log: list[tuple[Arrival | tuple[int, ...], list[Instruction]]] = []

    @rule(tenant=st.integers(0, 3), gpus=st.integers(0, 19))
    def submit(self, tenant: int, gpus: int) -> None:
        event = Arrival(tenant % len(self.spec.virtual_clusters), self.sizes[gpus % len(self.sizes)])
        self.sim.submit(event.tenant, event.gpus)
        self.log.append((event, self.sim.instructions))

    @precondition(lambda self: self.sim.tracker.running())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        some = st.lists(st.sampled_from(self.sim.tracker.running()), min_size=1, max_size=3, unique=True)
        numbers = tuple(data.draw(some))
        self.sim.finish(*numbers)
        self.log.append((numbers, self.sim.instructions))

    @invariant()
    def the_tracker_and_the_cluster_agree(self) -> None:
        running = {line.request.group: line for line in self.sim.tracker.jobs.values() if line.kind is not None}
        assert set(self.sim.cluster.groups()) == set(running)
        for name, line in running.items():
            group = self.sim.cluster.group(name)
            assert group.guaranteed == (line.kind is Kind.GUARANTEED)
            assert group.placement is not None
            assert line.placement is not None
            assert group.placement.pods == line.placement.pods

    @invariant()
    def no_head_of_line_waits_though_it_fits(self) -> None:
        for tenant in self.sim.tenants:
            first = self.first(tenant, outsized=False, kinds=(None, Kind.OPPORTUNISTIC))
            if first is not None:
                assert self.sim.cluster.place(PlacementRequest(replace(first.request, group="another like it"))) is None
                self.check_could_not_be_promoted(first)

    def check_could_not_be_promoted(self, job: TrackedJob) -> None:
        """Check that a job could not be promoted in place."""

    @invariant()
    def no_job_waits_for_a_loan_that_fits(self) -> None:
        for tenant in self.sim.tenants:
            for outsized in (False, True):
                first = self.first(tenant, outsized, kinds=(None,))
                assert first is None or not self.sim.cluster.can_lend(first.loan)

    def first(self, tenant: str, outsized: bool, kinds: tuple[Kind | None, ...]) -> TrackedJob | None:
        jobs = self.sim.tracker.jobs.values()
        return next((j for j in jobs if (j.request.vc, j.outsized) == (tenant, outsized) and j.kind in kinds), None)

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        again = Instant(Cluster(self.spec, self.scheme), YarnCS())
        submitted = 0
        for event, answer in self.log:
            if isinstance(event, Arrival):
                request = JobView(f"job-{submitted}", event.gpus, submitted, submitted)
                assert again.submit(submitted, self.sim.tenants[event.tenant], request) == answer, (
                    "the same events, the same decisions"
                )
                submitted += 1
            else:
                assert again.finish(event) == answer, "and validating changed none"
        while running := self.sim.tracker.running():
            self.sim.finish(*running[: 1 + len(running) // 2])
        left = self.sim.tracker.jobs.values()
        assert all(job.never_runs for job in left) or self.scheme is Sharing.PRIVATE, "no job that fits is left"
        assert all(job.outsized for job in left), "every job had its turn"


class PrivateMachine(SchedulerMachine):
    scheme = Sharing.PRIVATE


class QuotaMachine(SchedulerMachine):
    scheme = Sharing.QUOTA

    def check_could_not_be_promoted(self, job: TrackedJob) -> None:
        """A job can be promoted if the quota has as many GPUs of its type left."""
        if job.placement is None:
            return
        left: Counter[str] = Counter()
        (vc,) = [vc for vc in self.spec.virtual_clusters if vc.name == job.request.vc]
        for cells in vc.cells:
            chain = self.spec.chain(cells.chain)
            left[chain.leaf_type] += cells.number * chain.levels[cells.level - 1].gpus
        for other in self.sim.tracker.jobs.values():
            if other.kind is Kind.GUARANTEED and other.request.vc == vc.name and other.placement is not None:
                held = sum(len(pod.leaf_cells) for pod in other.placement.pods)
                left[self.spec.chain(other.placement.chain).leaf_type] -= held
        wanted = sum(len(pod.leaf_cells) for pod in job.placement.pods)
        assert wanted > left[self.spec.chain(job.placement.chain).leaf_type]


class HivedMachine(SchedulerMachine):
    scheme = Sharing.HIVED


@pytest.mark.parametrize("examples", [12, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.parametrize("machine", [PrivateMachine, QuotaMachine, HivedMachine])
def test_any_events(machine: type[SchedulerMachine], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40))
