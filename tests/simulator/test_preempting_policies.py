"""Policies that preempt in a VC: least attained service and shortest remaining time, against a scheduler by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.cluster import Cluster, Sharing
from hived.scheduling import JobView, Kind, Policy, Reaction, Scheduler
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob

from ..policies import LeastAttained
from ..strategies import NODE, cluster_of, nodes_of_8, vc


class ShortestRemaining(Policy):
    """The job with the least work left is next; it knows the durations."""

    name = "shortest-remaining"
    preempts = True
    clairvoyant = True

    def order(self, job: JobView) -> tuple[float, ...]:
        return round((job.remaining or 0) * 1000), job.sequence

    def review_after(self, job: JobView) -> float | None:
        return None  # the work that is left becomes less: a running job only gains by it


class SecondLosesItsPlace(LeastAttained):
    """First come, first served, but the second job is last once it has run; the order is never reviewed."""

    def __init__(self) -> None:
        super().__init__(())

    def order(self, job: JobView) -> tuple[float, ...]:
        return int(job.sequence == 1 and job.attained > 0), job.sequence


def by_hand(jobs: Sequence[TraceJob], gpus: int, order: Callable[[int, int], tuple[int, ...]]) -> list[int]:
    """When jobs of one GPU each end on ``gpus`` GPUs, one millisecond after another: the first in the order run.

    ``order``: of a job that has run for so long.
    """
    ran, ended = [0] * len(jobs), [-1] * len(jobs)
    now = 0
    while any(end < 0 for end in ended):
        for job, end in enumerate(ended):
            if end < 0 and ran[job] == jobs[job].duration_ms and jobs[job].submit_ms <= now:
                ended[job] = now
        there = [job for job, end in enumerate(ended) if end < 0 and jobs[job].submit_ms <= now]
        for job in sorted(there, key=lambda job: order(job, ran[job]))[:gpus]:
            ran[job] += 1
        now += 1
    return ended


def traces(gpus: st.SearchStrategy[int], most: int = 12) -> st.SearchStrategy[list[TraceJob]]:
    row = st.tuples(st.integers(0, 30), st.integers(1, 40), gpus, st.sampled_from("ab"))

    def jobs(rows: list[tuple[int, int, int, str]]) -> list[TraceJob]:
        ordered = sorted(rows, key=lambda row: row[0])
        return [TraceJob(f"job-{n}", vc, at, ms, size, "pass") for n, (at, ms, size, vc) in enumerate(ordered)]

    return st.lists(row, min_size=1, max_size=most).map(jobs)


def checked(scheduler: Scheduler) -> None:
    scheduler.validate()


def run(policy: Policy, jobs: Sequence[TraceJob], sharing: Sharing, lending: bool) -> Record:
    chain = nodes_of_8(2)
    spec = cluster_of(chain, vc("a", (chain, chain.node_level, 1)), vc("b", (chain, chain.node_level, 1)))
    return simulate(Cluster(spec, sharing), policy, jobs, lending, after_event=checked)


@settings(max_examples=60)
@given(traces(st.just(1), most=24))
def test_least_attained_service_runs_the_first_in_the_order_at_every_moment(jobs: list[TraceJob]) -> None:
    limits = (3, 11, 20)
    record = run(LeastAttained(tuple(limit / 1000 for limit in limits)), jobs, Sharing.HIVED, lending=False)
    for tenant in "ab":
        numbers = [n for n, job in enumerate(jobs) if job.tenant == tenant]
        own = [jobs[n] for n in numbers]

        def order(job: int, ran: int, own: Sequence[TraceJob] = own) -> tuple[int, ...]:
            return sum(ran >= limit for limit in limits), own[job].submit_ms, job

        assert [record.finish[n] for n in numbers] == by_hand(own, 8, order)


@settings(max_examples=60)
@given(traces(st.just(1), most=24))
def test_shortest_remaining_time_runs_the_first_in_the_order_at_every_moment(jobs: list[TraceJob]) -> None:
    record = run(ShortestRemaining(), jobs, Sharing.HIVED, lending=False)
    for tenant in "ab":
        numbers = [n for n, job in enumerate(jobs) if job.tenant == tenant]
        own = [jobs[n] for n in numbers]

        def order(job: int, ran: int, own: Sequence[TraceJob] = own) -> tuple[int, ...]:
            return own[job].duration_ms - ran, job

        assert [record.finish[n] for n in numbers] == by_hand(own, 8, order)


@settings(max_examples=100)
@given(traces(st.integers(1, 8)), st.sampled_from([Reaction.SUSPEND, Reaction.RESTART]))
def test_a_preempting_policy_runs_every_job_as_on_a_private_cluster(jobs: list[TraceJob], displaced: Reaction) -> None:
    """Second for second, preemptions included, while nothing is lent."""
    policy = LeastAttained((0.010, 0.060), displaced)
    hived, private = (run(policy, jobs, sharing, lending=False) for sharing in (Sharing.HIVED, Sharing.PRIVATE))
    assert (hived.first_start, hived.finish, hived.preemptions) == (
        private.first_start,
        private.finish,
        private.preemptions,
    )


@settings(max_examples=60)
@given(traces(st.integers(1, 8)), st.sampled_from(Sharing))
def test_a_preempting_policy_lends_and_every_job_ends(jobs: list[TraceJob], sharing: Sharing) -> None:
    record = run(LeastAttained((0.010, 0.060)), jobs, sharing, lending=True)
    assert all(finish >= 0 for finish in record.finish)


@pytest.mark.parametrize("sharing", Sharing)
def test_the_last_jobs_in_the_order_are_suspended_and_no_more_than_suffice(sharing: Sharing) -> None:
    """Two jobs of four GPUs and a later one of two, which needs half of what either has."""
    rows = [(0, 100, 4), (1, 100, 4), (10, 5, 2)]
    jobs = [TraceJob(f"job-{n}", "a", at, ms, gpus, "pass") for n, (at, ms, gpus) in enumerate(rows)]
    record = run(LeastAttained((0.030,)), jobs, sharing, lending=False)
    # at 10 ms both have attained more than 30; the later one is behind, gives way for 5 ms, and goes on
    assert record.first_start == [0, 1, 10]
    assert record.finish == [100, 106, 15]
    assert record.preemptions == [0, 1, 0]


def test_a_job_that_loses_its_place_in_line_with_its_loan_leaves_its_turn_to_the_next_one() -> None:
    """The head of the line runs on a loan and wants more than its VC has free; the next one would fit there."""
    chain = nodes_of_8(5)
    spec = cluster_of(chain, vc("v", (chain, NODE, 2)), vc("w", (chain, NODE, 3)))
    rows = [(0, 500, 8, "v"), (1, 400, 16, "v"), (2, 400, 8, "v"), (50, 100, 16, "w")]
    jobs = [TraceJob(f"job-{n}", tenant, at, ms, gpus, "pass") for n, (at, ms, gpus, tenant) in enumerate(rows)]
    record = simulate(Cluster(spec), SecondLosesItsPlace(), jobs, True, after_event=checked)
    kinds = {(run.job, run.kind) for run in record.runs}
    assert (1, Kind.OPPORTUNISTIC) in kinds, "it has lost a loan"
    assert all(run.start == 50 for run in record.runs if (run.job, run.kind) == (2, Kind.GUARANTEED))
    assert (2, Kind.GUARANTEED) in kinds
