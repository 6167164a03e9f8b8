"""What becomes of jobs: starting, stopping, failing, being preempted, and coming back."""

from __future__ import annotations

import pytest

from hived import ConflictError
from hived.cluster.reasons import PreemptedBy, VcExhausted
from hived.engines.local.explaining import explain, reasons, shortly
from hived.engines.local.model import JobState

from .driver import FAILED, STOPPED, WELL, Driver, is_in, job


@pytest.fixture
def engine() -> Driver:
    return Driver()


def test_a_job_starts_at_once_on_cells_of_its_own(engine: Driver) -> None:
    train = engine.submit(job("vision", 4))
    assert is_in(train, JobState.RUNNING)
    assert train.guaranteed
    assert train.attempt == 1
    engine.end(train)
    assert is_in(train, JobState.SUCCEEDED)
    assert train.exit_code == 0
    assert engine.kinds(train) == ["submitted", "started", "task_ended", "succeeded"]


def test_a_job_that_does_not_fit_waits_with_its_reason(engine: Driver) -> None:
    first, second = engine.submit(job("vision", 3)), engine.submit(job("vision", 2))
    assert is_in(second, JobState.QUEUED)
    (why,) = reasons(engine.job_scheduler, second)
    assert isinstance(why, VcExhausted)
    assert (why.need, why.have) == (2, 1)
    engine.end(first)
    assert is_in(second, JobState.RUNNING)


def test_a_withdrawn_job_does_not_block_the_line(engine: Driver) -> None:
    engine.submit(job("vision", 3))
    large, small = engine.submit(job("vision", 2)), engine.submit(job("vision", 1))
    engine.do(lambda job_scheduler: job_scheduler.cancel(large, engine.now))
    assert is_in(large, JobState.CANCELLED)
    assert is_in(small, JobState.RUNNING)


def test_a_loan_is_taken_back_and_the_borrower_comes_back(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    assert is_in(loan, JobState.RUNNING)
    assert not loan.guaranteed
    owner = engine.submit(job("vision", 4))
    assert is_in(owner, JobState.RESERVED)
    assert is_in(loan, JobState.STOPPING)
    engine.gone(loan)
    assert is_in(owner, JobState.RUNNING)
    assert is_in(loan, JobState.QUEUED)
    assert loan.resumes == 1
    assert any(isinstance(why, PreemptedBy) and why.group == owner.name for why in reasons(engine.job_scheduler, loan))
    engine.end(owner)
    assert is_in(loan, JobState.RUNNING)
    assert loan.attempt == 2


def test_a_preempted_job_that_leaves_with_0_is_not_done(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    engine.submit(job("vision", 4))
    engine.end(loan, {**WELL, "stopped": True})
    assert is_in(loan, JobState.QUEUED)


def test_a_job_that_was_done_before_it_could_be_stopped_is_done(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    owner = engine.submit(job("vision", 4))
    engine.end(loan)
    assert is_in(loan, JobState.SUCCEEDED)
    assert is_in(owner, JobState.RUNNING)


def test_a_failed_job_is_tried_again_after_longer_and_longer_pauses(engine: Driver) -> None:
    flaky = engine.submit(job("vision", 1, retries=2, backoff_s=10))
    engine.end(flaky, FAILED)
    assert is_in(flaky, JobState.BACKOFF)
    assert "exit code 1" in shortly(engine.job_scheduler, flaky)[0]
    engine.wait(9.9)
    assert is_in(flaky, JobState.BACKOFF)
    engine.wait(0.1)
    assert is_in(flaky, JobState.RUNNING)
    engine.end(flaky, FAILED)
    engine.wait(19.9)
    assert is_in(flaky, JobState.BACKOFF)
    engine.wait(0.2)
    engine.end(flaky, FAILED)
    assert is_in(flaky, JobState.FAILED)
    assert flaky.exit_code == 1
    assert flaky.attempt == 3


def test_a_job_in_backoff_does_not_block_the_line(engine: Driver) -> None:
    flaky = engine.submit(job("speech", 2, retries=1))
    other = engine.submit(job("speech", 2))
    engine.end(flaky, FAILED)
    assert is_in(other, JobState.RUNNING)


def test_one_failed_task_ends_its_gang(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=3))
    engine.end(gang, FAILED, rank=1)
    assert is_in(gang, JobState.STOPPING)
    engine.gone(gang)
    assert is_in(gang, JobState.FAILED)
    assert gang.exit_code == 1
    assert "task 1" in gang.reason


def test_a_gang_is_done_when_all_its_tasks_are(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=2))
    engine.end(gang, WELL, rank=0)
    assert is_in(gang, JobState.RUNNING)
    engine.end(gang, WELL, rank=1)
    assert is_in(gang, JobState.SUCCEEDED)


def test_a_time_limit_ends_a_job_for_good(engine: Driver) -> None:
    long = engine.submit(job("vision", 1, time_limit_s=60.0, retries=3))
    engine.end(long, {**STOPPED, "limit": True})
    assert is_in(long, JobState.FAILED)
    assert "time limit of 60 s" in long.reason


def test_a_running_job_is_cancelled_by_stopping_it(engine: Driver) -> None:
    train = engine.submit(job("vision", 4))
    engine.do(lambda job_scheduler: job_scheduler.cancel(train, engine.now))
    assert is_in(train, JobState.STOPPING)
    with pytest.raises(ConflictError, match="being cancelled already"):
        engine.job_scheduler.cancel(train, engine.now)
    engine.gone(train)
    assert is_in(train, JobState.CANCELLED)
    with pytest.raises(ConflictError, match="cancelled already"):
        engine.job_scheduler.cancel(train, engine.now)


def test_a_preempted_job_that_is_cancelled_does_not_come_back(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    owner = engine.submit(job("vision", 4))
    engine.do(lambda job_scheduler: job_scheduler.cancel(loan, engine.now))
    engine.gone(loan)
    assert is_in(loan, JobState.CANCELLED)
    assert is_in(owner, JobState.RUNNING)


def test_a_preemptor_that_is_withdrawn_leaves_the_gpus_to_others(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    owner = engine.submit(job("vision", 4))
    engine.do(lambda job_scheduler: job_scheduler.cancel(owner, engine.now))
    assert is_in(owner, JobState.CANCELLED)
    engine.gone(loan)
    assert is_in(loan, JobState.RUNNING)  # it was told to stop already, and started again
    assert loan.attempt == 2


def test_a_drained_machine_takes_no_jobs_and_says_so(engine: Driver) -> None:
    places = [("node", device) for device in range(8)]
    running = engine.submit(job("vision", 2))
    engine.do(lambda job_scheduler: job_scheduler.drain(places, False, False, "the machine", engine.now))
    late = engine.submit(job("vision", 1))
    assert is_in(running, JobState.RUNNING)
    assert is_in(late, JobState.QUEUED)
    assert "drained by the machine's owner" in explain(engine.job_scheduler, late, engine.now)
    engine.do(lambda job_scheduler: job_scheduler.drain(places, True, False, "the machine", engine.now))
    assert is_in(late, JobState.RUNNING)


def test_draining_at_once_sends_jobs_back_in_line(engine: Driver) -> None:
    running = engine.submit(job("vision", 2))
    assert running.placement is not None
    places = [("node", device) for device in range(8)]
    engine.do(lambda job_scheduler: job_scheduler.drain(places, False, True, "the machine", engine.now))
    engine.gone(running)
    assert is_in(running, JobState.QUEUED)
    assert running.resumes == 1


def test_a_device_that_is_both_bad_and_drained_needs_both_undone(engine: Driver) -> None:
    places = [("node", device) for device in range(8)]
    engine.do(lambda job_scheduler: job_scheduler.set_health(places, "NVML: lost", engine.now))
    engine.do(lambda job_scheduler: job_scheduler.drain(places, False, False, "the machine", engine.now))
    waiting = engine.submit(job("vision", 1))
    engine.do(lambda job_scheduler: job_scheduler.set_health(places, None, engine.now))
    assert is_in(waiting, JobState.QUEUED)
    engine.do(lambda job_scheduler: job_scheduler.drain(places, True, False, "the machine", engine.now))
    assert is_in(waiting, JobState.RUNNING)


def test_a_job_that_waits_for_bad_hardware_does_not_block_the_line(engine: Driver) -> None:
    engine.do(
        lambda job_scheduler: job_scheduler.set_health(
            [("node", device) for device in range(2, 8)], "NVML: lost", engine.now
        )
    )
    large, small = engine.submit(job("vision", 4)), engine.submit(job("vision", 1))
    assert is_in(large, JobState.QUEUED)
    assert is_in(small, JobState.RUNNING)


def test_a_reservation_on_hardware_that_turns_bad_is_lost_and_the_place_kept(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    owner = engine.submit(job("vision", 4))
    assert is_in(owner, JobState.RESERVED)
    assert owner.placement is not None
    node, devices = owner.placement.pods[0]
    engine.do(lambda job_scheduler: job_scheduler.set_health([(node, devices[0])], "NVML: XID 79", engine.now))
    assert "unreserved" in engine.kinds(owner)
    engine.gone(loan)
    engine.do(lambda job_scheduler: job_scheduler.set_health([(node, devices[0])], None, engine.now))
    assert owner.state in (JobState.RUNNING, JobState.RESERVED)


@pytest.mark.parametrize("how", ["bad", "drained"])
def test_a_reservation_moves_as_soon_as_a_device_of_it_is_kept_from_jobs_though_its_victim_is_still_there(
    engine: Driver, how: str
) -> None:
    loans = [engine.submit(job("research", 2, priority=-1)) for _ in range(4)]
    owner = engine.submit(job("vision", 2))
    assert is_in(owner, JobState.RESERVED)
    assert owner.placement is not None
    node, devices = owner.placement.pods[0]
    if how == "bad":
        engine.do(lambda job_scheduler: job_scheduler.set_health([(node, devices[0])], "NVML: XID 79", engine.now))
    else:
        engine.do(lambda job_scheduler: job_scheduler.drain([(node, devices[0])], False, False, "a GPU", engine.now))
    assert is_in(owner, JobState.RESERVED)
    assert owner.placement is not None
    assert not set(owner.placement.pods[0].leaf_cells) & set(devices)
    now = owner.placement.pods
    second = next(loan for loan in loans if loan.placement is not None and loan.placement.pods == now)
    assert is_in(second, JobState.STOPPING)
    engine.gone(second)
    assert is_in(owner, JobState.RUNNING)


def test_a_restart_keeps_running_jobs_running_and_waiting_jobs_in_place(engine: Driver) -> None:
    first = engine.submit(job("vision", 4))
    second, third = engine.submit(job("vision", 4)), engine.submit(job("vision", 4))
    place = first.placement
    engine.restart()
    first, second, third = (engine.jobs[n] for n in (first.id, second.id, third.id))
    assert is_in(first, JobState.RUNNING)
    assert first.placement == place
    assert engine.started[first.id, 1] == 2  # asked for again: whoever starts tasks sees that they run
    engine.end(first)
    assert is_in(second, JobState.RUNNING)
    assert is_in(third, JobState.QUEUED)


def test_a_restart_in_the_middle_of_a_preemption_ends_it_well(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    owner = engine.submit(job("vision", 4))
    engine.restart()
    loan, owner = engine.jobs[loan.id], engine.jobs[owner.id]
    assert is_in(loan, JobState.STOPPING)
    assert is_in(owner, JobState.RESERVED)
    engine.gone(loan)
    assert is_in(owner, JobState.RUNNING)


def test_a_machine_that_was_started_anew_puts_its_jobs_back_in_line(engine: Driver) -> None:
    train = engine.submit(job("vision", 4))
    lost = {**WELL, "code": 137, "lost": True, "rebooted": True, "error": "the machine was started anew under it"}
    engine.end(train, lost)
    assert is_in(train, JobState.RUNNING)
    assert (train.attempt, train.resumes, train.retries) == (2, 1, 0)
