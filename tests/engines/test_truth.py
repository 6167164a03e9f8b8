"""The engine and the simulator decide alike: the same trace, both without a clock of the world.

An engine's tasks here end to the millisecond, cost nothing to start, and are gone at the moment at which they are told
to stop; a job that was stopped has the work left that it had. Then every stay of every job is the same: when it began
and ended, where, guaranteed or on loan. ``python -m benchmarks live`` measures the same with real processes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, inf
from typing import Any, NamedTuple

import pytest
from benchmarks.live import as_submitted, small

from hived import Cluster
from hived.cluster import Placement
from hived.engines.local.instructions import StartTasks
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.model import Job
from hived.policies import YarnCS
from hived.scheduling import Instruction, Kind, Move, Policies, Policy, Promote, Reserve, Stop
from hived.scheduling.checks import check_scheduler
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob, generate_table1
from hived.spec.compiled import ClusterSpec

from ..policies import LeastAttained
from ..strategies import NODE, cluster_of, nodes_of_8, vc
from .driver import STOPPED, WELL

NEVER = 1 << 62
YARN_CS = YarnCS()


class Stay(NamedTuple):
    """A job on some GPUs, from and to in milliseconds."""

    job: int
    start: int
    end: int
    kind: Kind
    where: frozenset[tuple[str, int]]


class Virtual(JobScheduler):
    """A machine whose tasks are gone as soon as they are told to stop; what it decided is counted."""

    def __init__(self, spec: ClusterSpec, policy: Policy) -> None:
        super().__init__(Cluster(spec, rank=Policies(policy).rank), policy, lambda: 29_500)
        self.decided: Counter[type] = Counter()

    def _carry_out(self, instruction: Instruction) -> None:
        self.decided[type(instruction)] += 1
        super()._carry_out(instruction)

    def stop(self, job: Job, at: float, cause: str, why: str, *more: Any, **named: Any) -> None:
        super().stop(job, at, cause, why, *more, **named)
        for rank in range(job.spec.tasks):
            self.task_ended(job.id, job.attempt, rank, STOPPED, at)


def live_stays(
    spec: ClusterSpec, jobs: Sequence[TraceJob], early: bool, policy: Policy = YARN_CS
) -> tuple[list[Stay], Counter[type]]:
    """What an engine makes of the jobs, and how often it decided what."""
    job_scheduler = Virtual(spec, policy)
    left = {number: row.duration_ms for number, row in enumerate(jobs, 1)}
    ends: list[tuple[int, int, int]] = []  # time, job, attempt
    stays: list[Stay] = []
    open_: dict[int, Stay] = {}

    def close(number: int, now: int) -> None:
        stay = open_.pop(number)
        stays.append(stay._replace(end=now))
        left[number] -= now - stay.start

    def settle(now: int) -> None:
        at, due = now / 1000, job_scheduler.scheduler.next_review
        job_scheduler.dispatch(due if at < due < at + 1e-6 else at)  # seconds of a clock are no whole numbers
        turn = job_scheduler.turn()
        for event in turn.events:
            if event.kind in ("started", "promoted"):
                plain = event.data["placement"]
                kind = Kind.GUARANTEED if plain["levels"] else Kind.OPPORTUNISTIC
                if event.kind == "promoted":
                    close(event.job, now)
                where = frozenset((node, device) for node, devices in plain["pods"] for device in devices)
                open_[event.job] = Stay(event.job, now, now, kind, where)
            elif event.kind in ("requeued", "succeeded"):
                close(event.job, now)
        for one in turn.instructions:
            if (
                isinstance(one, StartTasks)
                and one.job in job_scheduler.jobs
                and job_scheduler.jobs[one.job].attempt == one.attempt
            ):
                heappush(ends, (now + left[one.job], one.job, one.attempt))
        check_scheduler(job_scheduler.scheduler)

    def review() -> int:
        """When the order of a running job changes, in milliseconds."""
        at = job_scheduler.scheduler.next_review
        return NEVER if at == inf else ceil(at * 1000 - 1e-3)

    for number, row in enumerate([*jobs, None], 1):
        submitted = NEVER if row is None else row.submit_ms
        while (now := min(ends[0][0] if ends else NEVER, review())) <= submitted and now < NEVER:
            if now == submitted and not (ends and ends[0][0] == now):
                break  # jobs that arrive at that instant come first
            while ends and ends[0][0] == now:  # all that end at one instant, before anybody starts
                _, done, attempt = heappop(ends)
                job = job_scheduler.jobs.get(done)
                if job is not None and job.state.holds and job.attempt == attempt:
                    for rank in range(job.spec.tasks):
                        job_scheduler.task_ended(done, attempt, rank, WELL, now / 1000)
            settle(now)
        if row is not None:
            job_scheduler.submit(number, as_submitted(row).model_copy(update={"early": early}), row.submit_ms / 1000)
            settle(row.submit_ms)
    assert not open_
    return stays, job_scheduler.decided


def simulated_stays(spec: ClusterSpec, jobs: Sequence[TraceJob], early: bool, policy: Policy = YARN_CS) -> list[Stay]:
    """What the simulator makes of them."""
    cluster = Cluster(spec, rank=Policies(policy).rank)
    cluster.spare_work(True)  # as the engines do
    record = simulate(cluster, policy, jobs, early)
    return [Stay(run.job + 1, run.start, run.end, run.kind, devices(run.placement)) for run in record.runs]


def devices(placement: Placement) -> frozenset[tuple[str, int]]:
    """The devices of a placement, by node."""
    return frozenset((pod.node, device) for pod in placement.pods for device in pod.leaf_cells)


def told(stays: Sequence[Stay]) -> list[Stay]:
    """Stays in order; what lasted no time is none, and GPUs lost and had again at one moment were never lost."""
    found: list[Stay] = []
    for stay in sorted(stay for stay in stays if stay.end > stay.start):
        if found and found[-1]._replace(start=stay.start, end=stay.end) == stay and found[-1].end == stay.start:
            found[-1] = found[-1]._replace(end=stay.end)
        else:
            found.append(stay)
    return found


def jobs_of(seed: int) -> tuple[ClusterSpec, list[TraceJob]]:
    """A small cluster and a trace that crowds it, both by chance."""
    choose = random.Random(seed)
    shares = [choose.randint(1, 2) for _ in range(choose.randint(2, 4))]
    chain = nodes_of_8(sum(shares) + choose.randint(0, 1))
    spec = cluster_of(chain, *(vc(f"t{number}", (chain, NODE, cells)) for number, cells in enumerate(shares)))
    jobs, at = [], 0
    for number in range(120):
        at += choose.choice((0, 0, 1, 5_000, 40_000, 90_000))
        gpus = choose.choice((1, 1, 2, 3, 4, 8, 8, 16))
        tenant = f"t{choose.randrange(len(shares))}"
        jobs.append(TraceJob(f"j{number}", tenant, at, choose.choice((1, 60_000, 90_000, 400_000)), gpus, "pass"))
    return spec, jobs


def seeds(number: int, fast: int) -> pytest.MarkDecorator:
    """So many of them, of which the first are of the fast tier."""
    slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(fast, number)]
    return pytest.mark.parametrize("seed", [*range(fast), *slow])


@pytest.mark.slow
@pytest.mark.parametrize("early", [False, True], ids=["nothing lent", "lent"])
@pytest.mark.parametrize("seed", range(3))
def test_agree_on_a_trace_like_the_papers(seed: int, early: bool) -> None:
    spec, trace = small(generate_table1(jobs=20_000, seed=seed + 1))
    simulated = simulated_stays(spec, trace.jobs, early)
    assert any(stay.start > trace.jobs[stay.job - 1].submit_ms for stay in simulated), "nobody waits"
    assert told(live_stays(spec, trace.jobs, early)[0]) == told(simulated)


@seeds(29, fast=3)
def test_agree_on_loans_and_preemptions(seed: int) -> None:
    spec, jobs = jobs_of(seed)
    live, decided = live_stays(spec, jobs, early=True)
    assert told(live) == told(simulated_stays(spec, jobs, early=True))
    assert min(decided[Promote], decided[Move], decided[Stop]) > 0, "too little happens"


@pytest.mark.parametrize("early", [False, True], ids=["nothing lent", "lent"])
@seeds(8, fast=1)
def test_agree_on_a_policy_that_preempts(seed: int, early: bool) -> None:
    """The engine counts in seconds, the simulator in milliseconds."""
    spec, jobs = jobs_of(seed)
    live, decided = live_stays(spec, jobs, early, LeastAttained((60, 600)))
    assert told(live) == told(simulated_stays(spec, jobs, early, LeastAttained((60, 600))))
    assert decided[Reserve]
