"""Exact safety on a machine: jobs that end early, restarts, moves and bad devices; and no job is later than alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hived import Cluster
from hived.cluster.sharing import Sharing
from hived.engines.local.devices import spec_for
from hived.engines.local.explaining import explain, shortly
from hived.engines.local.model import Job, JobState
from hived.policies import YarnCS
from hived.scheduling import Policy
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.spec.compiled import EXACT, ClusterSpec

from ..policies import LeastAttained
from .driver import Driver, is_in, job, small_spec
from .test_truth import jobs_of, live_stays


def exact(spec: ClusterSpec) -> ClusterSpec:
    """All tenants are of exact safety."""
    return replace(spec, virtual_clusters=tuple(replace(vc, safety=EXACT) for vc in spec.virtual_clusters))


def apart(seed: int) -> tuple[ClusterSpec, list[TraceJob]]:
    """A crowded trace, hardly any two things within a millisecond: see docs/explanation/exact-safety.md."""
    spec, jobs = jobs_of(seed)
    choose = random.Random(seed)
    moved = [
        row._replace(submit_ms=row.submit_ms + 7 * number, duration_ms=row.duration_ms + choose.randrange(1, 20_000))
        for number, row in enumerate(jobs)
    ]
    return exact(spec), moved


@pytest.mark.parametrize("policy", [YarnCS(), LeastAttained((30.0, 300.0))])
@pytest.mark.parametrize("seed", range(12))
def test_no_job_is_later_than_alone(seed: int, policy: Policy) -> None:
    """A machine that stops jobs at once, with loans, against private clusters without: to the millisecond."""
    spec, jobs = apart(seed)
    private = simulate(Cluster(spec, Sharing.PRIVATE, rank=policy.rank), policy, jobs, False)
    stays, _ = live_stays(spec, jobs, True, policy)
    ends = {stay.job: stay.end for stay in sorted(stays, key=lambda stay: stay.end)}
    for number, alone in enumerate(private.finish, 1):
        if alone >= 0:
            assert ends[number] <= alone + 1, f"job {number}: {ends[number]}, alone {alone}"  # the clock is in seconds


def test_cells_are_kept_for_a_job_that_ended_early_and_lent_meanwhile() -> None:
    engine = Driver(exact(small_spec()))
    first = engine.submit(job("speech", 2))
    early = engine.submit(job("speech", 2, early=True))
    assert is_in(early, JobState.RUNNING)
    assert not early.guaranteed
    engine.wait(100)
    engine.end(early)  # after 100 s on a loan, and its turn has not come
    last = engine.submit(job("speech", 2))
    assert is_in(last, JobState.QUEUED)
    assert "train-1" in explain(engine.job_scheduler, last, engine.now)
    engine.end(first)
    # alone, the second job would run for 100 s now
    assert is_in(last, JobState.QUEUED)
    assert engine.job_scheduler.scheduler.ghosts("speech") == 2
    text = explain(engine.job_scheduler, last, engine.now)
    assert "2 GPUs of VC speech are kept for train-2, which ended early" in text
    assert "held by" not in text  # an ended job holds nothing
    assert shortly(engine.job_scheduler, last)
    lent = engine.submit(job("vision", 4, early=True))
    loan = engine.submit(job("vision", 4, priority=-1))
    assert lent.guaranteed
    assert is_in(loan, JobState.RUNNING)  # on what is kept, too
    engine.restart()
    engine.wait(60)
    assert is_in(last, JobState.QUEUED)
    assert engine.job_scheduler.scheduler.ghosts("speech") == 2
    engine.wait(41)
    last, loan = engine.jobs[last.id], engine.jobs[loan.id]
    if is_in(loan, JobState.STOPPING):
        engine.gone(loan)
    assert is_in(last, JobState.RUNNING)
    assert last.guaranteed
    assert engine.job_scheduler.scheduler.ghosts("speech") == 0
    assert not [name for name in engine.virtual if name == early.name], "the store forgets it"


def test_without_exact_safety_they_are_given_at_once() -> None:
    engine = Driver()
    first = engine.submit(job("speech", 2))
    early = engine.submit(job("speech", 2, early=True))
    engine.wait(100)
    engine.end(early)
    last = engine.submit(job("speech", 2))
    engine.end(first)
    assert is_in(last, JobState.RUNNING)


def test_a_new_spec_can_end_it_and_begin_it() -> None:
    engine = Driver()
    first = engine.submit(job("speech", 2))
    early = engine.submit(job("speech", 2, early=True))
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(exact(small_spec()), engine.now))
    assert first.guaranteed
    engine.wait(100)
    engine.end(early)
    last = engine.submit(job("speech", 2))
    engine.end(first)
    assert is_in(last, JobState.QUEUED)
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(small_spec(), engine.now))
    assert is_in(last, JobState.RUNNING)
    assert not engine.virtual


def test_a_cancelled_job_leaves_no_cells_behind() -> None:
    engine = Driver(exact(small_spec()))
    first = engine.submit(job("speech", 2))
    early = engine.submit(job("speech", 2, early=True))
    last = engine.submit(job("speech", 2))
    engine.wait(100)
    engine.do(lambda job_scheduler: job_scheduler.cancel(early, engine.now))
    engine.gone(early)
    engine.end(first)
    assert is_in(last, JobState.RUNNING)


def test_a_bad_device_does_not_keep_a_job_from_the_healthy_ones() -> None:
    engine = Driver(exact(small_spec()))
    engine.submit(job("speech", 2))
    engine.submit(job("research", 2))
    one = engine.submit(job("vision", 1))
    assert one.placement is not None
    node, (device,) = one.placement.pods[0]
    engine.end(one)
    engine.do(lambda job_scheduler: job_scheduler.set_health([(node, device)], "NVML: lost", engine.now))
    others = [engine.submit(job("vision", 1)) for _ in range(3)]
    assert all(other.guaranteed for other in others)
    late = engine.submit(job("vision", 1))
    assert is_in(late, JobState.QUEUED)
    engine.do(lambda job_scheduler: job_scheduler.set_health([(node, device)], None, engine.now))
    assert late.guaranteed


def with_a_bad_device() -> tuple[Driver, list[Job]]:
    """One of the four devices of vision is bad, and the other tenants use theirs; their jobs."""
    engine = Driver(exact(small_spec()))
    others = [engine.submit(job(vc, 2)) for vc in ("speech", "research")]
    one = engine.submit(job("vision", 1))
    assert one.placement is not None
    node, (device,) = one.placement.pods[0]
    engine.end(one)
    engine.do(lambda job_scheduler: job_scheduler.set_health([(node, device)], "NVML: lost", engine.now))
    return engine, others


def test_a_large_job_that_hardware_refuses_does_not_make_its_healthy_devices_unusable() -> None:
    engine, _ = with_a_bad_device()
    large = engine.submit(job("vision", 4))
    assert is_in(large, JobState.QUEUED)
    small = [engine.submit(job("vision", 1, priority=1)) for _ in range(3)]
    assert all(found.guaranteed for found in small)


def test_refused_cells_are_tried_again_once_a_job_of_another_vc_has_ended() -> None:
    engine = Driver(exact(spec_for("node", 8, "GPU", (("vision", 4), ("speech", 4)))))
    other = engine.submit(job("speech", 4))
    idle = [place for place in engine.spec.devices() if place not in other.devices()]
    engine.do(lambda job_scheduler: job_scheduler.set_health(idle[:1], "NVML: lost", engine.now))
    late = engine.submit(job("vision", 4))
    assert is_in(late, JobState.QUEUED)
    engine.end(other)
    assert late.guaranteed


def test_no_job_is_stopped_for_cells_that_hardware_refuses() -> None:
    engine, (other, _) = with_a_bad_device()
    low = engine.submit(job("vision", 2))
    high = engine.submit(job("vision", 4, priority=7))
    assert is_in(high, JobState.QUEUED)
    assert is_in(low, JobState.RUNNING)
    engine.end(other)  # they are tried again, and refused again
    assert is_in(low, JobState.RUNNING)
    assert low.guaranteed
