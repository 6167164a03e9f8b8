"""The life of a job in virtual time: it starts, is stopped, fails, is tried again, and outlives its engine."""

from __future__ import annotations

import re
from heapq import heappush
from pathlib import Path
from typing import Any

import pytest

from hived import ConflictError
from hived.cluster.explain.reasons import BehindOthers, PreemptedBy, VcExhausted
from hived.engine.sentences import event_text
from hived.engines.local.environment import task_environment
from hived.engines.local.model import Job, default_name

from .driver import FAILED, SHARES, STOPPED, WELL, Driver, job, shares, states

PAGE = next((Path(__file__).parents[2] / "docs").rglob("states.md"))


# -- starting and waiting -----------------------------------------------------------------------------------------


def test_waits_with_its_reason(engine: Driver) -> None:
    first, second = engine.submit(job("vision", 3)), engine.submit(job("vision", 2))
    assert states(second) == "queued"
    (why,) = engine.reasons(second)
    assert isinstance(why, VcExhausted)
    assert (why.need, why.have) == (2, 1)
    engine.end(first)
    assert states(second) == "running"


@pytest.mark.parametrize(("vc", "gpus", "priority"), [("vision", 4, 0), ("speech", 8, -1)], ids=["own", "loan"])
def test_withdrawn_job_blocks_nobody(engine: Driver, vc: str, gpus: int, priority: int) -> None:
    engine.submit(job("vision", 3))
    large, small = engine.submit(job(vc, gpus, priority=priority)), engine.submit(job(vc, 1, priority=priority))
    assert states(large, small) == "queued queued"
    engine.cancel(large)
    assert states(large, small) == "cancelled running"


def test_tasks_are_counted_as_their_ranks(engine: Driver) -> None:
    gang, single = engine.submit(job("vision", 1, tasks=2)), engine.submit(job("speech", 1))
    assert "- task 0: node" in engine.explain(gang)
    assert "- task 1: node" in engine.explain(gang)
    assert "- on node, GPU" in engine.explain(single)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("env A=1 B=2 python3 -u train.py", "train"),
        ("python3.11 -c print()", "python3"),
        ("bash", "bash"),
        ("sh -x", "sh"),
        ("/opt/my+tool.sh", "my-tool"),
        ("深", "job"),
        (f"{'x' * 41}.py", "x" * 40),
    ],
)
def test_name_of_its_script(command: str, name: str) -> None:
    assert default_name(tuple(command.split())) == name


# -- preemption ---------------------------------------------------------------------------------------------------


def test_loan_is_taken_back(engine: Driver) -> None:
    """The borrower keeps its place in line, says who has preempted it and since when it waits, and resumes."""
    loan = engine.submit(job("research", 8, priority=-1))
    engine.wait(10)
    later = engine.submit(job("research", 8, priority=-1))
    assert (states(loan, later), loan.guaranteed) == ("running queued", False)
    owner = engine.submit(job("vision", 4))
    assert states(loan, owner) == "stopping reserved"
    assert owner.reason == f"waits until {loan.name} is gone"
    engine.wait(100)
    engine.gone(loan)
    assert (states(loan, owner), loan.resumes) == ("queued running", 1)
    engine.wait(7)
    assert engine.explain(loan).startswith(f"{loan.name} of research waits for 8 GPUs, for 7 s now:")
    assert engine.explain(loan).count(owner.name) == 1
    assert [why.group for why in engine.reasons(loan) if isinstance(why, PreemptedBy)] == [owner.name]
    assert not [why for why in engine.reasons(loan) if isinstance(why, BehindOthers)]
    assert [why for why in engine.reasons(later) if isinstance(why, BehindOthers)] == [BehindOthers(1, (loan.name,))]
    loan, later, owner = engine.restart(loan, later, owner)
    assert loan.displaced_by == (owner.name, "vision", 0)
    assert owner.name in engine.explain(loan)
    engine.end(owner)
    assert (states(loan, later), loan.attempt) == ("running queued", 2)


@pytest.mark.parametrize(
    ("cancelled", "ending", "after"),
    [
        ("", {**WELL, "stopped": True}, "queued"),  # it has saved, and is not done
        ("", WELL, "succeeded"),  # it was done before it could be stopped
        ("before", STOPPED, "cancelled"),
        ("after", STOPPED, "cancelled"),
    ],
)
def test_end_of_a_victim(engine: Driver, cancelled: str, ending: dict[str, Any], after: str) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    if cancelled == "before":
        engine.cancel(loan)
    owner = engine.submit(job("vision", 4))
    if cancelled == "after":
        engine.cancel(loan)
    engine.end(loan, ending)
    assert states(loan, owner) == f"{after} running"


def test_withdrawn_preemptor_gives_gpus_back(engine: Driver) -> None:
    loan, owner = engine.submit(job("research", 8, priority=-1)), engine.submit(job("vision", 4))
    engine.cancel(owner)
    assert states(owner) == "cancelled"
    engine.gone(loan)
    assert (states(loan), loan.attempt) == ("running", 2), "it was told to stop already, and is started again"


def test_overtaken_preemptor_waits_again(engine: Driver) -> None:
    loan, low = engine.submit(job("research", 8, priority=-1)), engine.submit(job("vision", 4))
    assert states(low) == "reserved"
    high = engine.submit(job("vision", 4, priority=9))
    assert states(low) == "queued"
    assert high.name in low.reason
    engine.gone(loan)
    assert states(high) == "running"
    engine.end(high)
    assert states(low) == "running"


# -- how an attempt ends ------------------------------------------------------------------------------------------


def test_gang_is_done_when_all_tasks_are(engine: Driver) -> None:
    engine.now = 5.0
    gang = engine.submit(job("vision", 1, tasks=2))
    engine.wait(10)
    engine.end(gang, WELL, rank=0)
    assert (states(gang), gang.since) == ("running", 5.0), "it is where it is since it came there"
    engine.end(gang, WELL, rank=1)
    assert states(gang) == "succeeded"


@pytest.mark.parametrize("ending", [FAILED, {**WELL, "stopped": True}], ids=["failed", "stopped by somebody"])
def test_one_ended_task_stops_its_gang(engine: Driver, ending: dict[str, Any]) -> None:
    gang = engine.submit(job("vision", 1, tasks=3))
    engine.end(gang, ending, rank=1)
    assert states(gang) == "stopping"


@pytest.mark.parametrize(
    ("endings", "code", "reason"),
    [
        ({1: FAILED, 0: STOPPED, 2: STOPPED}, 1, "task 1 ended with exit code 1"),
        # its neighbours' first failure was the cause of the others
        ({2: {**FAILED, "code": 7}, 0: FAILED, 1: STOPPED}, 7, "task 2 ended with exit code 7"),
        # one that was stopped by somebody outside is not to blame where another has failed by itself
        ({0: STOPPED, 1: {**FAILED, "code": 3}}, 3, "task 1 ended with exit code 3"),
        ({0: STOPPED}, 143, "it was told to stop by somebody else"),
        ({0: {**WELL, "code": 137, "signal": 9}}, 137, "it was ended by signal 9"),
        ({0: {**WELL, "code": 127, "error": "no such program"}}, 127, "it could not be started: no such program"),
        (
            {0: {**WELL, "code": 137, "signal": 9, "error": "needed more memory than its share, 1 GiB"}},
            137,
            "it needed more memory than its share, 1 GiB",
        ),
        ({0: {**WELL, "code": 137, "lost": True, "error": "killed"}}, 137, "it could not go on: killed"),
        ({0: {**STOPPED, "limit": True}}, 143, "it ran into its time limit of 60 s"),
    ],
    ids=["one", "first of two", "by itself", "stopped", "signal", "not started", "memory", "lost", "time limit"],
)
def test_who_is_to_blame_for_a_failure(
    engine: Driver, endings: dict[int, dict[str, Any]], code: int, reason: str
) -> None:
    failed = engine.submit(job("vision", 1, tasks=len(endings), time_limit_s=60.0))
    for rank, ending in endings.items():
        engine.end(failed, ending, rank)
    assert (states(failed), failed.exit_code, failed.reason) == ("failed", code, reason)


def test_end_of_a_task_counts_once_for_its_attempt(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=2, retries=1, backoff_s=1.0))
    engine.end(gang, FAILED, rank=0)
    engine.do(lambda job_scheduler: job_scheduler.task_ended(gang.id, 1, 0, WELL, engine.now))
    assert gang.endings[0]["code"] == 1
    engine.gone(gang)
    engine.wait(1)
    assert gang.attempt == 2
    engine.do(lambda job_scheduler: job_scheduler.task_ended(gang.id, 1, 0, FAILED, engine.now))
    assert (states(gang), gang.endings, gang.exit_code) == ("running", {}, None)


def test_running_job_is_cancelled_by_stopping_it(engine: Driver) -> None:
    train = engine.submit(job("vision", 4))
    engine.cancel(train, "ann")
    assert (states(train), train.reason) == ("stopping", "cancelled by ann")
    with pytest.raises(ConflictError, match="being cancelled already"):
        engine.job_scheduler.cancel(train, engine.now)
    engine.gone(train)
    assert states(train) == "cancelled"
    with pytest.raises(ConflictError, match="cancelled already"):
        engine.job_scheduler.cancel(train, engine.now)


# -- pauses and time limits ---------------------------------------------------------------------------------------


def test_retried_after_longer_and_longer_pauses(engine: Driver) -> None:
    flaky, other = engine.submit(job("speech", 2, retries=2, backoff_s=10)), engine.submit(job("speech", 2))
    engine.end(flaky, FAILED)
    assert states(flaky, other) == "backoff running", "it holds up nobody"
    engine.end(other)
    assert "exit code 1" in engine.shortly(flaky)
    assert "(try 2 of 3)" in engine.explain(flaky)
    heappush(engine.wakes, (9.0, flaky.id))  # somebody wakes too early
    engine.wait(9.9)
    assert states(flaky) == "backoff"
    engine.wait(0.1)
    assert states(flaky) == "running"
    assert "preempted" not in engine.explain(flaky)
    engine.end(flaky, FAILED)
    engine.wait(19.9)
    assert states(flaky) == "backoff"
    engine.wait(0.2)
    engine.end(flaky, FAILED)
    assert (states(flaky), flaky.exit_code, flaky.attempt) == ("failed", 1, 3)


def test_no_pause_is_longer_than_five_minutes(engine: Driver) -> None:
    flaky = engine.submit(job("vision", 1, retries=10_000, backoff_s=200.0))
    engine.end(flaky, FAILED)
    assert flaky.retry_at == 200.0
    engine.wait(200)
    engine.end(flaky, FAILED)
    assert flaky.retry_at == 500.0
    engine.wait(300)
    assert (states(flaky), flaky.status()["retry_at"]) == ("running", None)
    flaky.retries = 1_100  # 2.0 to that is more than a float can say
    engine.end(flaky, FAILED)
    assert flaky.retry_at == 800.0


def test_cancelled_at_once(engine: Driver) -> None:
    """Nobody could end a job before its own grace, which may be an hour."""
    stubborn = engine.submit(job("vision", 1, grace_s=3600.0))
    engine.cancel(stubborn, "ann")
    with pytest.raises(ConflictError, match="already; it has 3600 s for that, hived cancel --now ends it at once"):
        engine.cancel(stubborn, "ann")
    engine.do(lambda jobs: jobs.cancel(stubborn, engine.now, "olga", now=True))
    assert engine.job_scheduler.grace_s(stubborn) == 0.0
    (stubborn,) = engine.restart(stubborn)
    assert engine.job_scheduler.grace_s(stubborn) == 0.0
    with pytest.raises(ConflictError, match=r"is being cancelled already$"):
        engine.do(lambda jobs: jobs.cancel(stubborn, engine.now, "olga", now=True))
    engine.gone(stubborn)
    assert (states(stubborn), stubborn.reason) == ("cancelled", "cancelled by olga")
    engine.check_record()


def test_a_victim_that_may_take_long(engine: Driver) -> None:
    slow = engine.submit(job("vision", 4, grace_s=3600.0))
    urgent = engine.submit(job("vision", 4, priority=1))
    said = engine.explain(urgent)
    assert f"it starts once {slow.name} has ended, which is being stopped for it" in said
    assert f"{slow.name} has up to 1 h to end" in said


def test_not_queued_again(engine: Driver) -> None:
    """What is stopped for others ends so; by hand it is queued again all the same."""
    loan = engine.submit(job("speech", 8, priority=-1, requeue=False))
    mine = engine.submit(job("vision", 4))
    engine.gone(loan)
    assert (states(loan, mine), loan.reason) == ("cancelled running", f"preempted by {mine.name} of vision")
    other = engine.submit(job("speech", 1, requeue=False))
    engine.do(lambda jobs: jobs.requeue(other, False, "ann", engine.now))
    engine.gone(other)
    assert states(other) == "running"
    engine.check_record()


def test_time_limit_ends_a_job_for_good(engine: Driver) -> None:
    slow = engine.submit(job("vision", 1, time_limit_s=60.0, retries=3))
    engine.wait(60.4)
    assert states(slow) == "running"  # its supervisor sees to it first
    engine.wait(0.2)
    assert states(slow) == "stopping"
    assert "it ran into its time limit of 60 s" in engine.explain(slow)
    engine.end(slow, STOPPED)
    assert (states(slow), slow.reason) == ("failed", "it ran into its time limit of 60 s")


def test_time_limit_is_not_of_a_task_that_waits_for_space(engine: Driver) -> None:
    waits = engine.submit(job("vision", 1, time_limit_s=60.0))
    engine.job_scheduler.held_up = {(waits.id, 1, 0): "No space left on device"}
    engine.wait(61.0)
    assert states(waits) == "running"
    assert "cannot be started yet" in engine.explain(waits)


def test_time_limit_is_of_one_attempt(engine: Driver) -> None:
    flaky = engine.submit(job("vision", 1, time_limit_s=60.0, retries=1, backoff_s=10.0))
    engine.wait(30)
    engine.end(flaky, FAILED)
    engine.wait(40)  # at 61 s the first attempt would have had its time
    assert states(flaky) == "running"
    (flaky,) = engine.restart(flaky)
    engine.wait(40)
    assert states(flaky) == "stopping"


# -- what a task finds in its environment -------------------------------------------------------------------------


def told(found: Job, names: str, rank: int = 0) -> list[str]:
    variables = task_environment(found, rank, Path("/state"), Path("/nowhere"), "mark", "0", {})
    return [variables[name] for name in names.split()]


def test_environment_counts_resumes_and_retries(engine: Driver) -> None:
    count = "HIVED_RESUMES HIVED_RETRIES HIVED_ATTEMPT HIVED_GUARANTEED HIVED_PRIORITY"
    loan = engine.submit(job("research", 8, priority=-1, retries=1, backoff_s=1.0))
    engine.end(loan, FAILED)
    engine.wait(1)
    assert told(loan, count) == ["0", "1", "2", "0", "-1"]
    owner = engine.submit(job("vision", 4))
    engine.gone(loan)
    assert told(owner, count) == ["0", "0", "1", "1", "0"]
    engine.end(owner)
    assert told(loan, count) == ["1", "1", "3", "0", "-1"]


def test_environment_is_the_pages(engine: Driver) -> None:
    """Every variable of a task, and no other."""
    page = PAGE.with_name("environment.md").read_text(encoding="utf-8")
    section = page.partition("## What a task sees")[2].partition("\n## ")[0]
    named = {
        name
        for line in section.splitlines()
        if line[:3] == "| `"
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    gang = engine.submit(job("vision", 2, tasks=2, array_id=1, array_index=3))
    assert named == set(task_environment(gang, 0, Path("/state"), Path("/nowhere"), "mark", "0", {}))


def test_environment_of_a_gang(engine: Driver) -> None:
    """As torchrun and torch.distributed want it; every task is the first of its own node."""
    gang = engine.submit(job("vision", 2, tasks=2))
    for rank in ("0", "1"):
        assert told(gang, "RANK NODE_RANK PET_NODE_RANK HIVED_RANK", int(rank)) == [rank] * 4
        assert told(gang, "WORLD_SIZE PET_NNODES HIVED_TASKS PET_NPROC_PER_NODE", int(rank)) == ["2"] * 4
        assert told(gang, "LOCAL_RANK LOCAL_WORLD_SIZE", int(rank)) == ["0", "1"]
        assert told(gang, "MASTER_ADDR MASTER_PORT", int(rank)) == ["127.0.0.1", "29500"]


# -- the event log in words ---------------------------------------------------------------------------------------


def test_story_of_jobs_in_words(engine: Driver) -> None:
    flaky = engine.submit(job("vision", 1, tasks=2, retries=1, backoff_s=10.0, user="ann"))
    engine.end(flaky, {**WELL, "code": 137, "signal": 9}, rank=1)
    engine.gone(flaky)
    loan = engine.submit(job("research", 8, priority=-1))
    owner = engine.submit(job("speech", 1))
    engine.gone(loan)
    engine.end(owner)
    engine.cancel(loan, "bob")
    engine.reconfigure(shares(("speech", 8)))
    engine.gone(loan)
    assert [event_text(event, engine.jobs[event.job].name if event.job else "") for event in engine.events] == [
        "train-1 was submitted by ann: 2 GPUs of vision",
        "train-1 runs on node GPU 0; node GPU 1, guaranteed",
        "task 1 of train-1 ended with signal 9",
        "train-1 is told to stop: task 1 ended with exit code 137",
        "task 0 of train-1 ended with signal 15",
        "train-1 failed (task 1 was ended by signal 9), and is tried again in 10 s",
        "train-2 was submitted: 8 GPUs of research",
        "train-2 runs on node GPUs 0-7, opportunistic",
        "train-3 was submitted: 1 GPU of speech",
        "train-3 has node GPU 0 reserved, and starts when train-2 has made room",
        "train-2 is told to stop: preempted by train-3 of speech",
        "task 0 of train-2 ended with signal 15",
        "train-2 is back in line: preempted by train-3 of speech",
        "train-3 runs on node GPU 0, guaranteed",
        "task 0 of train-3 ended with exit code 0",
        "train-3 succeeded",
        "train-2 runs on node GPUs 0-7, opportunistic (start number 2)",
        "train-2 is told to stop: cancelled by bob",
        "the cluster has a new spec (speech: 8 reserved GPUs (was 2); vision is no more; research is no more); 1 job "
        "went on as before",
        "task 0 of train-2 ended with signal 15",
        "train-2 was cancelled by bob",
    ]
    assert [engine.explain(found) for found in engine.jobs.values()] == [
        "train-1 of vision waits, for 0 s now:\n- it failed: task 1 was ended by signal 9\n"
        "- it is queued again in 10 s (try 2 of 2)\n- submitted by ann",
        "train-2 was cancelled after 0 s: cancelled by bob\n- it was started 2 times",
        "train-3 succeeded after 0 s",
    ]


# -- one engine after another -------------------------------------------------------------------------------------


def test_restart_keeps_jobs_and_their_order(engine: Driver) -> None:
    first, second, third = (engine.submit(job("vision", 4)) for _ in range(3))
    place = first.placement
    first, second, third = engine.restart(first, second, third)
    assert (states(first), first.placement) == ("running", place)
    assert engine.started[first.id, 1] == 2  # asked for again: whoever starts tasks sees that they run
    engine.end(first)
    assert states(second, third) == "running queued"


def test_restart_in_the_middle_of_a_preemption(engine: Driver) -> None:
    loan, owner = engine.submit(job("research", 8, priority=-1)), engine.submit(job("vision", 4))
    loan, owner = engine.restart(loan, owner)
    assert states(loan, owner) == "stopping reserved"
    engine.gone(loan)
    assert states(owner) == "running"


def test_share_is_no_reason_without_loans_to_take(engine: Driver) -> None:
    """All is in guaranteed use: a larger share would change nothing."""
    held = [engine.submit(job(vc, gpus)) for vc, gpus in SHARES]
    loan = engine.submit(job("speech", 3, priority=-1))
    assert [reason.kind.value for reason in engine.reasons(loan)] == ["nothing idle"]
    assert "share" not in engine.shortly(loan)
    for found in held[:1]:
        engine.end(found)
    assert states(loan) == "running"
    more = engine.submit(job("research", 4, priority=-1))
    assert "more than the fair share of VC research, which is 2 now" in engine.explain(more)


def test_stopping_job_is_stopped_again_after_a_restart(engine: Driver) -> None:
    run = engine.submit(job("vision", 4))
    engine.cancel(run)
    engine.stopped.clear()
    engine.restart()
    assert engine.stopped == {(run.id, 1)}


def test_gang_keeps_port_and_endings_over_a_restart(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=2))
    engine.end(gang, WELL, rank=1)
    (gang,) = engine.restart(gang)
    assert (gang.port, list(gang.endings)) == (29_500, [1])
    engine.end(gang, WELL, rank=0)
    assert states(gang) == "succeeded"


def test_restart_under_another_spec_reports_downgrades(engine: Driver) -> None:
    run = engine.submit(job("vision", 4))
    engine.spec = shares(("speech", 8))
    (run,) = engine.restart(run)
    assert (states(run), run.guaranteed, engine.kinds(run)[-1]) == ("running", False, "downgraded")
    assert run.reason not in ("", "the cluster has a new spec")


def test_jobs_of_a_rebooted_machine_wait_again(engine: Driver) -> None:
    train = engine.submit(job("vision", 4))
    lost = {**WELL, "code": 137, "lost": True, "rebooted": True, "error": "the machine was started anew under it"}
    engine.end(train, lost)
    assert (states(train), train.attempt, train.resumes, train.retries) == ("running", 2, 1, 0)


def test_what_the_first_in_line_waits_for_is_said(engine: Driver) -> None:
    """Who waited behind others was told that they are there, and nothing of what holds them up."""
    engine.submit(job("vision", 3))
    gang = engine.submit(job("vision", 4, name="gang"))
    small = engine.submit(job("vision", 1))
    said = engine.explain(small)
    assert (
        f"by policy yarn-cs of vision it does not pass the first of them, {gang.name}: VC vision has 1 of the 4" in said
    )
    assert "does not pass" not in engine.explain(gang)


def test_why_it_was_stopped_before_is_said(engine: Driver) -> None:
    low = engine.submit(job("vision", 4))
    high = engine.submit(job("vision", 4, priority=5))
    engine.gone(low)
    engine.end(high)
    assert states(low) == "running"
    assert f"it was stopped and queued again once before, last: preempted by {high.name}" in engine.explain(low)
