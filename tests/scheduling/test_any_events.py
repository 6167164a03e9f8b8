"""Any sequence of jobs over any cluster, however they share: instructions can be carried out, and none is missing.

The instructions alone are followed in a book (helpers.py), as an engine would follow them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import ClassVar, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hived.cluster import Cluster, Sharing
from hived.scheduling import Instruction, JobView, Kind, Start, YarnCS
from hived.spec.compiled import ClusterSpec

from ..strategies import feasible_specs
from .helpers import Desk, Instant, Line


class Arrival(NamedTuple):
    """A job is submitted."""

    tenant: int
    gpus: int


def some_of(running: list[int]) -> st.SearchStrategy[tuple[int, ...]]:
    """Up to three of the running jobs, in any order."""
    return st.lists(st.sampled_from(running), min_size=1, max_size=3, unique=True).map(tuple)


class SchedulerMachine(RuleBasedStateMachine):
    """Jobs are submitted and end."""

    scheme: ClassVar[Sharing]

    @initialize(spec=feasible_specs(max_gpus=24))
    def build(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.desk = Desk(self.scheme, spec)
        sizes = [chain.gpus_per_node for chain in spec.chains]
        self.sizes = sorted({1, 2, 3, *sizes, *(2 * n for n in sizes), *(3 * n for n in sizes)})
        #: every event and its answer: the job's (tenant, GPUs), or the numbers of those that ended
        self.log: list[tuple[Arrival | tuple[int, ...], list[Instruction]]] = []

    @rule(tenant=st.integers(0, 3), gpus=st.integers(0, 19))
    def submit(self, tenant: int, gpus: int) -> None:
        event = Arrival(tenant % len(self.spec.virtual_clusters), self.sizes[gpus % len(self.sizes)])
        self.desk.submit(event.tenant, event.gpus)
        self.log.append((event, self.desk.said))

    @precondition(lambda self: self.desk.book.running())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        numbers = data.draw(some_of(self.desk.book.running()))
        self.desk.finish(*numbers)
        self.log.append((numbers, self.desk.said))

    @invariant()
    def the_book_and_the_cluster_agree(self) -> None:
        if hasattr(self, "desk"):
            running = {line.request.group: line for line in self.desk.book.jobs.values() if line.kind is not None}
            assert set(self.desk.cluster.groups()) == set(running)
            for name, line in running.items():
                group = self.desk.cluster.group(name)
                assert group.guaranteed == (line.kind is Kind.GUARANTEED)
                assert group.placement is not None
                assert line.placement is not None
                assert group.placement.pods == line.placement.pods

    @invariant()
    def no_tenants_first_job_waits_though_it_fits(self) -> None:
        if hasattr(self, "desk"):
            for tenant in self.desk.tenants:
                first = self.first(tenant, outsized=False, kinds=(None, Kind.OPPORTUNISTIC))
                if first is not None:
                    assert self.desk.cluster.place(replace(first.request, group="another like it")) is None
                    self.check_could_not_be_promoted(first)

    def check_could_not_be_promoted(self, job: Line) -> None:
        """What else could make a job guaranteed where it is."""

    @invariant()
    def no_job_waits_that_could_borrow(self) -> None:
        if hasattr(self, "desk"):
            for tenant in self.desk.tenants:
                for outsized in (False, True):
                    first = self.first(tenant, outsized, kinds=(None,))
                    assert first is None or not self.desk.cluster.can_lend(first.loan)

    def first(self, tenant: str, outsized: bool, kinds: tuple[Kind | None, ...]) -> Line | None:
        jobs = self.desk.book.jobs.values()
        return next((j for j in jobs if (j.request.vc, j.outsized) == (tenant, outsized) and j.kind in kinds), None)

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        again = Instant(Cluster(self.spec, self.scheme), YarnCS())
        submitted = 0
        for event, answer in self.log:
            if isinstance(event, Arrival):
                request = JobView(f"job-{submitted}", event.gpus, submitted, submitted)
                assert again.submit(submitted, self.desk.tenants[event.tenant], request) == answer, (
                    "the same events, the same decisions"
                )
                submitted += 1
            else:
                assert again.finish(event) == answer, "and validating changed none"
        while running := self.desk.book.running():
            self.desk.finish(*running[: 1 + len(running) // 2])
        left = self.desk.book.jobs.values()
        assert all(job.hopeless for job in left) or self.scheme is Sharing.PRIVATE, "only what can never run is left"
        assert all(job.outsized for job in left), "everybody had a turn"


class PrivateMachine(SchedulerMachine):
    scheme = Sharing.PRIVATE


class QuotaMachine(SchedulerMachine):
    scheme = Sharing.QUOTA

    def check_could_not_be_promoted(self, job: Line) -> None:
        """It has GPUs of a type of which the quota has as many left."""
        if job.placement is None:
            return
        left: Counter[str] = Counter()
        (vc,) = [vc for vc in self.spec.virtual_clusters if vc.name == job.request.vc]
        for cells in vc.cells:
            chain = self.spec.chain(cells.chain)
            left[chain.leaf_type] += cells.number * chain.levels[cells.level - 1].gpus
        for other in self.desk.book.jobs.values():
            if other.kind is Kind.GUARANTEED and other.request.vc == vc.name and other.placement is not None:
                held = sum(len(pod.leaf_cells) for pod in other.placement.pods)
                left[self.spec.chain(other.placement.chain).leaf_type] -= held
        wanted = sum(len(pod.leaf_cells) for pod in job.placement.pods)
        assert wanted > left[self.spec.chain(job.placement.chain).leaf_type]


class HivedMachine(SchedulerMachine):
    scheme = Sharing.HIVED


class TheoremMachine(RuleBasedStateMachine):
    """Without loans, hived starts every job at the event at which private does: sharing safety, seen from outside."""

    @initialize(spec=feasible_specs())
    def build(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.hived = Desk(Sharing.HIVED, spec, opportunistic=False)
        self.private = Instant(Cluster(spec, Sharing.PRIVATE), YarnCS())
        sizes = [chain.gpus_per_node for chain in spec.chains]
        self.sizes = sorted({1, 2, 3, *sizes, *(2 * n for n in sizes), *(3 * n for n in sizes)})

    @rule(tenant=st.integers(0, 3), gpus=st.integers(0, 19))
    def submit(self, tenant: int, gpus: int) -> None:
        who, wanted = tenant % len(self.spec.virtual_clusters), self.sizes[gpus % len(self.sizes)]
        number = self.hived.submit(who, wanted)
        self.compare(
            self.private.submit(number, self.hived.tenants[who], JobView(f"job-{number}", wanted, number, number))
        )

    @precondition(lambda self: self.hived.book.running())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        numbers = data.draw(some_of(self.hived.book.running()))
        self.hived.finish(*numbers)
        self.compare(self.private.finish(numbers))

    def compare(self, alone: list[Instruction]) -> None:
        assert [d.job for d in self.hived.said] == [d.job for d in alone]
        for ours, theirs in zip(self.hived.said, alone, strict=True):
            assert isinstance(ours, Start)
            assert isinstance(theirs, Start)
            assert ours.kind is theirs.kind is Kind.GUARANTEED
            assert sizes(ours) == sizes(theirs)


def sizes(start: Start) -> list[int]:
    """GPUs on each node."""
    return sorted(len(pod.leaf_cells) for pod in start.placement.pods)


for machine in (PrivateMachine, QuotaMachine, HivedMachine, TheoremMachine):
    machine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestPrivate = PrivateMachine.TestCase
TestQuota = QuotaMachine.TestCase
TestHived = HivedMachine.TestCase
TestHivedStartsWhatPrivateStarts = TheoremMachine.TestCase
