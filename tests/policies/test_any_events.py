"""Any sequence of jobs over any cluster, in the three schemes: decisions can be carried out, and none is missing.

The decisions alone are followed in a book (tests/policies/helpers.py), as an engine would follow them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hived.cluster import HivedCluster, Kind, PrivateClusters, QuotaCluster
from hived.policies import Decision, Request, Scheduler, Start, YarnCS
from hived.spec.compiled import ClusterSpec

from ..strategies import feasible_specs
from .helpers import Desk, Line, Scheme


class Arrival(NamedTuple):
    """A job is submitted."""

    tenant: int
    gpus: int


def some_of(running: list[int]) -> st.SearchStrategy[tuple[int, ...]]:
    """Up to three of the running jobs, in any order."""
    return st.lists(st.sampled_from(running), min_size=1, max_size=3, unique=True).map(tuple)


class SchedulerMachine(RuleBasedStateMachine):
    """Jobs are submitted and end."""

    @property
    @abstractmethod
    def scheme(self) -> Scheme:
        """The scheme under test."""

    @initialize(spec=feasible_specs(max_gpus=24))
    def build(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.desk = Desk(self.scheme, spec)
        sizes = [chain.gpus_per_node for chain in spec.chains]
        self.sizes = sorted({1, 2, 3, *sizes, *(2 * n for n in sizes), *(3 * n for n in sizes)})
        #: every event and its answer: the job's (tenant, GPUs), or the numbers of those that ended
        self.log: list[tuple[Arrival | tuple[int, ...], list[Decision]]] = []

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
            for number, line in self.desk.book.jobs.items():
                allocation = self.desk.scheduler.jobs[number].allocation
                assert (allocation.kind, tuple(allocation.parts)) == (line.kind, tuple(line.parts))

    @invariant()
    def no_tenants_first_job_waits_though_it_fits(self) -> None:
        if hasattr(self, "desk"):
            for tenant in range(len(self.spec.virtual_clusters)):
                first = self.first(tenant, outsized=False, kinds=(None, Kind.OPPORTUNISTIC))
                if first is not None:
                    view = self.desk.cluster.view(tenant)
                    assert YarnCS().place(view, first.gpus) is None
                    self.check_could_not_be_promoted(first)

    def check_could_not_be_promoted(self, job: Line) -> None:
        """A scheme's own reasons to guarantee a job where it is."""

    @invariant()
    def no_job_waits_that_could_borrow(self) -> None:
        if hasattr(self, "desk"):
            for tenant in range(len(self.spec.virtual_clusters)):
                for outsized in (False, True):
                    first = self.first(tenant, outsized, kinds=(None,))
                    assert first is None or not self.desk.cluster.can_lend(first.gpus)

    def first(self, tenant: int, outsized: bool, kinds: tuple[Kind | None, ...]) -> Line | None:
        jobs = self.desk.book.jobs.values()
        return next((j for j in jobs if (j.tenant, j.outsized) == (tenant, outsized) and j.kind in kinds), None)

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        again = Scheduler(self.scheme(self.spec), YarnCS())
        submitted = 0
        for event, answer in self.log:
            if isinstance(event, Arrival):
                request = Request(f"job-{submitted}", event.gpus, submitted, submitted)
                assert again.submit(submitted, event.tenant, request) == answer, "the same events, the same decisions"
                submitted += 1
            else:
                assert again.finish(event) == answer, "and validating changed none"
        while running := self.desk.book.running():
            self.desk.finish(*running[: 1 + len(running) // 2])
        assert (
            all(job.outsized and not self.desk.cluster.can_ever_lend(job.gpus) for job in self.desk.book.jobs.values())
            or not self.desk.cluster.lends
        ), "once everything has run, only what can never run is left"
        assert not any(not job.outsized for job in self.desk.book.jobs.values()), "everybody had a turn"


class PrivateMachine(SchedulerMachine):
    @property
    def scheme(self) -> Scheme:
        return PrivateClusters


class QuotaMachine(SchedulerMachine):
    @property
    def scheme(self) -> Scheme:
        return QuotaCluster

    def check_could_not_be_promoted(self, job: Line) -> None:
        cluster = self.desk.cluster
        assert isinstance(cluster, QuotaCluster)
        assert not job.parts or not cluster.within_quota(job.tenant, job.parts[0].chain, job.gpus)


class HivedMachine(SchedulerMachine):
    @property
    def scheme(self) -> Scheme:
        return HivedCluster


class TheoremMachine(RuleBasedStateMachine):
    """Without loans, hived starts every job at the event at which private does: sharing safety, seen from outside."""

    @initialize(spec=feasible_specs())
    def build(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.hived = Desk(HivedCluster, spec, opportunistic=False)
        self.private = Scheduler(PrivateClusters(spec), YarnCS())
        sizes = [chain.gpus_per_node for chain in spec.chains]
        self.sizes = sorted({1, 2, 3, *sizes, *(2 * n for n in sizes), *(3 * n for n in sizes)})

    @rule(tenant=st.integers(0, 3), gpus=st.integers(0, 19))
    def submit(self, tenant: int, gpus: int) -> None:
        who, wanted = tenant % len(self.spec.virtual_clusters), self.sizes[gpus % len(self.sizes)]
        number = self.hived.submit(who, wanted)
        self.compare(self.private.submit(number, who, Request(f"job-{number}", wanted, number, number)))

    @precondition(lambda self: self.hived.book.running())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        numbers = data.draw(some_of(self.hived.book.running()))
        self.hived.finish(*numbers)
        self.compare(self.private.finish(numbers))

    def compare(self, alone: list[Decision]) -> None:
        assert [d.job for d in self.hived.said] == [d.job for d in alone]
        for ours, theirs in zip(self.hived.said, alone, strict=True):
            assert isinstance(ours, Start)
            assert isinstance(theirs, Start)
            assert ours.kind is theirs.kind is Kind.GUARANTEED
            assert sorted(p.mask.bit_count() for p in ours.parts) == sorted(p.mask.bit_count() for p in theirs.parts)


for machine in (PrivateMachine, QuotaMachine, HivedMachine, TheoremMachine):
    machine.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestPrivate = PrivateMachine.TestCase
TestQuota = QuotaMachine.TestCase
TestHived = HivedMachine.TestCase
TestHivedStartsWhatPrivateStarts = TheoremMachine.TestCase
