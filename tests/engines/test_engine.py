"""The engine with real processes: what jobs are given, what becomes of them, and of them when it is gone."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hived import ConflictError, InfeasibleError, RecordedCluster, RequestError, replay
from hived.engines.job import Event
from hived.engines.local import engine as engine_module
from hived.engines.local.devices import Simulated
from hived.engines.local.engine import Engine
from hived.engines.local.explaining import explain
from hived.engines.local.model import Job, JobSpec, JobState
from hived.engines.local.store import Store
from hived.engines.local.tasks import Liveness, Task
from hived.errors import NeverFitsError, NotFoundError, StorageError
from hived.spec.compiled import ClusterSpec

from ..policies import LeastAttained
from .driver import SHARES
from .living import Lives, ended, other_spec, printed, shell, state, variables

#: says who it is, saves how often it was told to stop
RESUMES = (
    "trap 'echo $((1 + $(cat $HIVED_JOB_DIR/told 2>/dev/null || echo 0))) > $HIVED_JOB_DIR/told; exit 0' TERM; "
    'echo "resumes $HIVED_RESUMES attempt $HIVED_ATTEMPT told $(cat $HIVED_JOB_DIR/told 2>/dev/null)"; '
    '[ "$HIVED_RESUMES" -ge 1 ] && exit 0; while :; do sleep 0.02; done'
)
STAYS = "echo here; exec sleep 600"
PRINT_ENVIRONMENT = (sys.executable, "-c", "import json,os; print(json.dumps(dict(os.environ)))")


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "state")
    yield made
    made.end()


# -- what a task is given -----------------------------------------------------------------------------------------


def test_a_task_knows_its_devices_its_job_and_nothing_of_the_engines(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIVED_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")

    async def story(engine: Engine) -> dict[str, str]:
        given = (("MINE", "x y"), ("HIVED_VC", "lie"), ("CUDA_VISIBLE_DEVICES", "0,1,2,3,4"), ("HOME", "/mine"))
        job = engine.submit(JobSpec("vision", PRINT_ENVIRONMENT, gpus=2, environment=given, name="e"))
        await ended(engine, job)
        return variables(engine.task(job, 0).output.read_text())

    found = lives.live(story)
    job_folder = lives.folder / "jobs" / "1" / "shared"
    placed = next(event.data["placement"] for event in lives.events() if event.kind == "started")
    devices = ",".join(map(str, placed["pods"][0][1]))
    assert len(devices) == 3
    assert {name: value for name, value in found.items() if name.startswith(("HIVED_", "CUDA_"))} == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": devices, "HIVED_DEVICES": devices,
        "HIVED_JOB_ID": "1", "HIVED_JOB_NAME": "e-1", "HIVED_JOB_DIR": str(job_folder), "HIVED_VC": "vision",
        "HIVED_PRIORITY": "0", "HIVED_GUARANTEED": "1", "HIVED_NODE": "node", "HIVED_RANK": "0", "HIVED_TASKS": "1",
        "HIVED_ATTEMPT": "1", "HIVED_RESUMES": "0", "HIVED_RETRIES": "0", "HIVED_TASK": found["HIVED_TASK"],
    }  # fmt: skip
    assert (found["MINE"], found["HOME"], found["PATH"]) == ("x y", "/mine", os.environ["PATH"])
    assert "MASTER_ADDR" not in found
    assert job_folder.stat().st_mode & 0o777 == 0o700


MEET = """
import os, socket, time
rank, where = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
assert os.environ["WORLD_SIZE"] == os.environ["PET_NNODES"] == os.environ["HIVED_TASKS"] == "2"
assert os.environ["PET_NODE_RANK"] == os.environ["NODE_RANK"] == os.environ["HIVED_RANK"] == str(rank)
assert os.environ["PET_NPROC_PER_NODE"] == str(len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")))
if rank == 0:
    with socket.create_server(where) as server:
        other, _ = server.accept()
        print("met", other.recv(10).decode())
else:
    while True:
        try:
            other = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.01)
    other.sendall(b"rank 1")
"""


def test_the_tasks_of_a_gang_find_each_other(lives: Lives) -> None:
    async def story(engine: Engine) -> tuple[list[Job], str]:
        job = engine.submit(JobSpec("vision", (sys.executable, "-c", MEET), gpus=2, tasks=2))
        return await ended(engine, job), engine.task(job, 0).output.read_text()

    (job,), text = lives.live(story)
    assert job.state is JobState.SUCCEEDED
    assert text == "met rank 1\n"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            JobSpec("vision", ("no-such-program",)),
            "it could not be started: no-such-program: No such file",
        ),
        (JobSpec("vision", ("true",), cwd="/nowhere"), "it could not be started: /nowhere: No such file or directory"),
        (JobSpec("vision", ("true",), environment=(("A", "a\0b"),)), "it could not be started: embedded null byte"),
        (JobSpec("vision", ("true", "x" * 200_000)), "it could not be started: true: Argument list too long"),
    ],
)
def test_a_job_that_cannot_be_started_fails_with_the_reason(lives: Lives, spec: JobSpec, why: str) -> None:
    async def story(engine: Engine) -> Job:
        return (await ended(engine, engine.submit(spec)))[0]

    job = lives.live(story)
    assert (job.state, job.exit_code) == (JobState.FAILED, 127)
    assert job.reason.startswith(why)


# -- from start to end --------------------------------------------------------------------------------------------


def test_a_cancelled_job_may_save_first(lives: Lives) -> None:
    async def story(engine: Engine) -> tuple[Job, str]:
        job = engine.submit(shell("vision", "trap 'echo saved; exit 0' TERM; echo here; while :; do sleep 0.02; done"))
        await printed(engine, job, "here")
        assert engine.cancel(str(job.id), "ann").state is JobState.STOPPING
        with pytest.raises(ConflictError, match="being cancelled already"):
            engine.cancel(str(job.id))
        (job,) = await ended(engine, job)
        with pytest.raises(ConflictError, match="cancelled already"):
            engine.cancel(str(job.id))
        return job, engine.task(job, 0).output.read_text()

    job, text = lives.live(story)
    assert (job.state, job.reason) == (JobState.CANCELLED, "cancelled by ann")
    assert text.splitlines()[-1] == "saved"


def test_a_preempted_job_resumes_from_its_saved_state(lives: Lives) -> None:
    async def story(engine: Engine) -> tuple[Job, str, list[str]]:
        loan = engine.submit(shell("research", RESUMES, 8, priority=-1))
        first = await printed(engine, loan, "attempt 1")
        owner = engine.submit(shell("vision", "true", 4))
        done, _ = await ended(engine, loan, owner)
        return done, first, [engine.task(loan, 0).output.read_text()]

    loan, first, (second,) = lives.live(story)
    assert (loan.state, loan.resumes, loan.attempt, loan.retries) == (JobState.SUCCEEDED, 1, 2, 0)
    assert first == "resumes 0 attempt 1 told \n"
    assert second == "resumes 1 attempt 2 told 1\n"


def test_a_request_that_never_fits_or_is_invalid_is_refused_and_leaves_no_trace(lives: Lives) -> None:
    async def story(engine: Engine) -> int:
        last = engine.last_event
        with pytest.raises(NeverFitsError, match="4"):
            engine.submit(shell("vision", "true", 5))
        with pytest.raises(RequestError, match="vc"):
            engine.submit(shell("no such", "true"))
        with pytest.raises(RequestError, match="gpus"):
            engine.submit(shell("vision", "true", 0))
        for ref in ("1", "job", "\ud800", ""):
            with pytest.raises(NotFoundError):
                engine.find(ref)
        assert engine.last_event == last
        return engine.submit(shell("vision", "true")).id

    assert lives.live(story) == 1


# -- one engine after another -------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_the_next_engine_takes_over_running_ended_and_waiting_jobs(lives: Lives, killed: bool) -> None:
    go = lives.folder.parent / "go"

    async def first(engine: Engine) -> list[Job]:
        until_then = f"echo here; while ! [ -e {go} ]; do sleep 0.02; done;"
        runs = engine.submit(shell("vision", f"{until_then} echo on", 2, priority=9))
        ends = engine.submit(shell("vision", f"{until_then} exit 3", 2, priority=9))
        waits = [engine.submit(shell("vision", "true", 4, priority=priority)) for priority in (0, 0, 5)]
        for job in (runs, ends):
            await printed(engine, job, "here")
        return [runs, ends, *waits]

    runs, ends, *waits = lives.live(first, killed=killed)
    before = set(lives.marked())
    assert before
    go.touch()
    task = lives.engines[0].task(ends, 0)
    while task.liveness().value == "alive":
        pass

    async def second(engine: Engine) -> list[Job]:
        return await ended(engine, runs, ends, *waits)

    runs, ends, *waits = lives.live(second)
    assert (runs.state, runs.attempt, runs.exit_code) == (JobState.SUCCEEDED, 1, 0)
    assert (ends.state, ends.attempt, ends.exit_code) == (JobState.FAILED, 1, 3)
    assert lives.engines[1].task(runs, 0).output.read_text() == "here\non\n"
    order = [event.job for event in lives.events() if event.kind == "started"]
    assert order == [runs.id, ends.id, waits[2].id, waits[0].id, waits[1].id]
    told = [event.kind for event in lives.events() if event.job is None]
    assert told == ["engine_started", "recovered", *([] if killed else ["engine_stopped"]), "engine_started",
                    "recovered", "engine_stopped"]  # fmt: skip


def test_a_job_that_was_stopping_when_the_engine_was_killed_is_stopped_by_the_next(lives: Lives) -> None:
    async def first(engine: Engine) -> Job:
        job = engine.submit(shell("vision", "trap '' TERM; echo here; while :; do sleep 0.02; done", grace_s=0.5))
        await printed(engine, job, "here")
        engine.job_scheduler.cancel(job, engine.clock(), "ann")
        engine._keep()  # it is written, and not done
        return job

    job = lives.live(first, killed=True)

    async def second(engine: Engine) -> Job:
        return (await ended(engine, job))[0]

    assert lives.live(second).state is JobState.CANCELLED


def nothing(instruction: object) -> None:
    """What a killed engine does."""


def test_a_job_about_to_start_when_the_engine_was_killed_is_started_by_the_next_once(lives: Lives) -> None:
    ran = lives.folder.parent / "ran"

    async def first(engine: Engine) -> Job:
        engine._carry_out = nothing  # type: ignore[method-assign]  # killed before it came to that
        job = engine.submit(shell("vision", f"echo ran >> {ran}"))
        return await state(engine, job, JobState.RUNNING)

    job = lives.live(first, killed=True)
    assert not ran.exists()

    async def second(engine: Engine) -> Job:
        return (await ended(engine, job))[0]

    assert lives.live(second).attempt == 1
    assert ran.read_text() == "ran\n"


def test_a_pause_goes_on_in_the_next_life(lives: Lives) -> None:
    async def first(engine: Engine) -> Job:
        job = engine.submit(shell("vision", "[ $HIVED_RETRIES = 1 ]", retries=1, backoff_s=0.3))
        return await state(engine, job, JobState.BACKOFF)

    job = lives.live(first)

    async def second(engine: Engine) -> Job:
        return (await ended(engine, job))[0]

    assert lives.live(second).state is JobState.SUCCEEDED


def test_a_clock_that_was_set_back_does_not_make_a_pause_last_for_days(lives: Lives) -> None:
    # the pause was over at a moment that was by then a day away
    async def first(engine: Engine) -> Job:
        job = engine.submit(shell("vision", "[ $HIVED_RETRIES = 1 ]", retries=1, backoff_s=0.01))
        return await state(engine, job, JobState.BACKOFF)

    job = lives.live(first, clock=lambda: 1e9 + 86_400)
    delays: list[float] = []

    async def second(engine: Engine) -> None:
        loop = asyncio.get_running_loop()
        delays.extend(timer.when() - loop.time() for timer in engine._timers)

    lives.live(second, clock=lambda: 1e9)
    assert job.id
    assert len(delays) == 1
    assert max(delays) <= 300


def test_drained_devices_stay_so(lives: Lives) -> None:
    async def first(engine: Engine) -> None:
        assert len(engine.drain("node", None, False, False)) == 8
        assert engine.drain(None, 3, True, False) == [("node", 3)]

    lives.live(first, killed=True)

    async def second(engine: Engine) -> tuple[list[tuple[str, int]], Job]:
        job = engine.submit(shell("speech", "true", 2))
        await asyncio.sleep(0.05)
        drained = list(engine.job_scheduler.health.drained)
        assert engine.find("1").state is JobState.QUEUED
        engine.drain(None, None, True, False)
        return drained, (await ended(engine, job))[0]

    drained, job = lives.live(second)
    assert drained == [("node", device) for device in (0, 1, 2, 4, 5, 6, 7)]
    assert job.state is JobState.SUCCEEDED


def test_a_policy_that_preempts_is_heard_when_the_order_of_a_running_job_changes(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else happens at that moment: the engine has to wake by itself."""
    monkeypatch.setattr(engine_module, "YarnCS", lambda: LeastAttained((4 * 0.5,)))

    async def story(engine: Engine) -> tuple[Job, Job]:
        long, short = engine.submit(shell("vision", STAYS, 4)), engine.submit(shell("vision", "true", 4))
        assert (engine.find(str(long.id)).state.holds, engine.find(str(short.id)).state) == (True, JobState.QUEUED)
        (later,) = await ended(engine, short)
        await printed(engine, long, "here")
        return engine.find(str(long.id)), later

    long, short = lives.live(story)
    assert short.state is JobState.SUCCEEDED
    assert (long.state.holds, long.resumes) == (True, 1)


def test_a_new_spec_comes_under_running_jobs(lives: Lives) -> None:
    whole = other_spec(("vision", 8))
    twice = replace(whole, virtual_clusters=(*whole.virtual_clusters, replace(whole.virtual_clusters[0], name="again")))

    async def story(engine: Engine) -> tuple[Job, Job]:
        job = engine.submit(shell("vision", STAYS, 4))
        other = engine.submit(shell("speech", "true", 4, priority=-1))
        await printed(engine, job, "here")
        await ended(engine, other)
        with pytest.raises(InfeasibleError):
            engine.reconfigure(twice)
        assert engine.find("1").guaranteed
        report = engine.reconfigure(other_spec(("vision", 2), ("speech", 6)))
        assert [name for name, _ in report.downgraded] == [job.name]
        assert not engine.find("1").guaranteed
        owner = engine.submit(shell("speech", "true", 2, tasks=3))
        await ended(engine, owner)
        return engine.find("1"), engine.find(str(owner.id))

    job, owner = lives.live(story)
    assert owner.state is JobState.SUCCEEDED
    assert (job.state, job.resumes) == (JobState.QUEUED, 1)


@pytest.mark.parametrize(
    "shares",
    [
        {"shares": (("speech", 8),)},
        {"shares": (("vision", 2), ("new", 4)), "devices": 6},
        {"shares": (("vision", 4),), "node": "renamed"},
        {"shares": (("vision", 1),), "devices": 1},
    ],
    ids=["no such VC", "fewer devices", "another node", "one device"],
)
def test_an_engine_that_starts_under_another_spec_takes_all_jobs_over(lives: Lives, shares: dict[str, object]) -> None:
    async def first(engine: Engine) -> list[Job]:
        found = [engine.submit(shell(vc, STAYS, 2)) for vc in ("vision", "vision", "speech", "vision")]
        found.append(engine.submit(shell("research", STAYS, 2, priority=-1)))
        for job in (*found[:3], found[4]):
            await printed(engine, job, "here")
        return found

    jobs = lives.live(first)
    given = dict(shares)
    lives.spec = other_spec(*given.pop("shares"), **given)  # type: ignore[misc,arg-type]

    async def second(engine: Engine) -> list[Job]:
        for job in jobs:
            assert job.id in engine.job_scheduler.jobs
            engine.cancel(str(job.id))
        return await ended(engine, *jobs)

    assert {job.state for job in lives.live(second)} == {JobState.CANCELLED}
    assert not lives.marked()


# -- how long a loan may take to go -------------------------------------------------------------------------------

DEAF = "trap '' TERM; echo here; while :; do sleep 0.02; done"


def capped(seconds: int, *shares: tuple[str, int]) -> ClusterSpec:
    """All loans have this many seconds at most."""
    spec = other_spec(*shares)
    vcs = tuple(replace(vc, opportunistic_grace_seconds=seconds) for vc in spec.virtual_clusters)
    return replace(spec, virtual_clusters=vcs)


def test_a_loan_cannot_ask_for_more_grace_than_its_vc_allows(lives: Lives) -> None:
    lives.spec = other_spec(("vision", 8))

    async def story(engine: Engine) -> None:
        with pytest.raises(RequestError, match=r"grace_s: .*vision.* 30 s at most, not 3600 s; ask for less"):
            engine.submit(shell("vision", "true", priority=-1, grace_s=3600.0))
        assert not engine.job_scheduler.jobs
        engine.submit(shell("vision", "true", priority=-1, grace_s=30.0))
        engine.submit(shell("vision", "true", grace_s=3600.0))  # of its own cells, for its own VC to wait for
        engine.reconfigure(capped(3600, ("vision", 8)))
        engine.submit(shell("vision", "true", priority=-1, grace_s=3600.0))

    lives.live(story)


def test_a_loan_that_runs_when_the_cap_is_lowered_goes_within_the_new_one(lives: Lives) -> None:
    lives.spec = capped(3600, *SHARES)

    async def story(engine: Engine) -> None:
        loan = engine.submit(shell("research", DEAF, 8, priority=-1, grace_s=3600.0))
        await printed(engine, loan, "here")
        owner = engine.submit(shell("vision", "true", 4))
        await state(engine, loan, JobState.STOPPING)
        assert "3600 s" in explain(engine.job_scheduler, loan, 0.0)
        engine.reconfigure(capped(0, *SHARES))
        assert "has 0 s" in explain(engine.job_scheduler, loan, 0.0)
        await ended(engine, owner)
        engine.cancel(str(loan.id))

    lives.live(story)


def test_a_job_that_a_spec_made_a_loan_goes_as_one(lives: Lives) -> None:
    lives.spec = other_spec(("vision", 8))

    async def story(engine: Engine) -> None:
        lent, leaving = [engine.submit(shell("vision", DEAF, 4, grace_s=3600.0)) for _ in range(2)]
        for job in (lent, leaving):
            await printed(engine, job, "here")
        engine.cancel(str(leaving.id))
        assert "3600 s" in explain(engine.job_scheduler, leaving, 0.0)  # nobody waits for it
        engine.reconfigure(capped(0, ("vision", 2), ("speech", 6)))
        await ended(engine, engine.submit(shell("speech", "true", 2, tasks=3)))
        assert (await ended(engine, leaving))[0].state is JobState.CANCELLED
        assert (await state(engine, lent, JobState.QUEUED)).resumes == 1
        engine.cancel(str(lent.id))

    lives.live(story)


# -- the record ---------------------------------------------------------------------------------------------------


def test_the_decisions_of_every_life_replay_and_jobs_are_what_their_events_say(lives: Lives) -> None:
    async def first(engine: Engine) -> None:
        engine.submit(shell("speech", RESUMES, 8, priority=-1))
        jobs = [engine.submit(shell("vision", "true", gpus)) for gpus in (4, 1, 2)]
        await ended(engine, *jobs)
        engine.drain(None, 0, False, True)

    async def second(engine: Engine) -> None:
        engine.drain(None, 0, True, False)
        engine.reconfigure(other_spec(("vision", 2), ("speech", 6)))
        await ended(engine, engine.submit(shell("speech", "true", 2, tasks=3)))
        while engine.job_scheduler.jobs:
            await asyncio.sleep(0.01)

    lives.live(first, killed=True)
    lives.live(second)
    opened: list[list[str]] = []
    for line in lives.lines():
        if json.loads(line)["is"] == "Opened":
            opened.append([])
        opened[-1].append(line)
    assert len(opened) == 2
    for life in opened:
        logged: list[str] = []
        replay(life, lambda spec, logged=logged: RecordedCluster(spec, logged.append))  # type: ignore[misc]
        assert logged == life
    events = lives.events()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    store = Store(lives.folder)
    kept = {job.id: job for job in store.jobs((), None, 100, None)[0]}
    store.close()
    told: dict[int, Job] = {}
    for event in events:
        if event.kind == "submitted":
            assert event.job is not None
            told[event.job] = Job(event.job, kept[event.job].spec, event.at)
        elif event.job is not None:
            told[event.job].apply(event)
    assert {n: json.dumps(job.status()) for n, job in told.items()} == {
        n: json.dumps(job.status()) for n, job in kept.items()
    }


# -- when nothing can be kept -------------------------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise StorageError("the disk is full")


def test_a_submission_that_cannot_be_kept_has_never_been(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(engine: Engine) -> Job:
        last = engine.last_event
        with monkeypatch.context() as broken:
            broken.setattr(engine.store, "keep", full)
            with pytest.raises(StorageError):
                engine.submit(shell("vision", "true"))
        assert not engine.job_scheduler.jobs
        assert engine.last_event == last
        assert engine.failed is not None
        assert not engine.failed.done()
        job = engine.submit(shell("vision", "true"))
        assert job.id == 1
        return (await ended(engine, job))[0]

    assert lives.live(story).state is JobState.SUCCEEDED
    assert [event.seq for event in lives.events()] == list(range(1, 1 + len(lives.events())))


def test_an_engine_that_cannot_keep_what_happened_ends_and_does_nothing_more(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(engine: Engine) -> Job:
        runs = engine.submit(shell("vision", STAYS, 4))
        await printed(engine, runs, "here")
        assert engine.failed is not None
        with monkeypatch.context() as broken:
            broken.setattr(engine.store, "keep", full)
            with pytest.raises(StorageError, match="disk is full"):
                engine.cancel(str(runs.id))
            assert isinstance(engine.failed.result(), StorageError)
        # there is space again; but what is in memory is ahead of what is on the disk
        for ask in (
            lambda: engine.submit(shell("vision", "true")),
            lambda: engine.drain(None, None, False, True),
            lambda: engine.reconfigure(other_spec(("vision", 8))),
        ):
            with pytest.raises(StorageError, match="disk is full"):
                ask()
        await asyncio.sleep(0.1)
        return runs

    job = lives.live(story)
    assert lives.marked(), "it was told to stop, and nobody has written that down"
    events = lives.events()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.kind for event in events][-1] == "started"

    async def second(engine: Engine) -> Job:
        assert engine.find(str(job.id)).state is JobState.RUNNING
        engine.cancel(str(job.id))
        return (await ended(engine, job))[0]

    assert lives.live(second).state is JobState.CANCELLED


def test_an_end_that_cannot_be_kept_is_found_by_the_next_engine(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    async def first(engine: Engine) -> Job:
        job = engine.submit(shell("vision", "echo here; sleep 0.1; exit 4"))
        await printed(engine, job, "here")
        monkeypatch.setattr(engine.store, "keep", full)
        assert engine.failed is not None
        await engine.failed
        return job

    job = lives.live(first)

    async def second(engine: Engine) -> Job:
        return (await ended(engine, job))[0]

    found = lives.live(second)
    assert (found.state, found.exit_code, found.attempt) == (JobState.FAILED, 4, 1)


def test_an_engine_whose_folder_is_deleted_ends_and_starts_nothing_more(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        shutil.rmtree(engine.folder)
        with pytest.raises(StorageError, match="moved or deleted"):
            engine.submit(shell("vision", "true"))
        assert not engine.folder.exists()

    lives.live(story)


# -- harm and bad luck --------------------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine looks after its tasks and devices many times a second."""
    monkeypatch.setattr(engine_module, "HEALTH_EVERY_S", 0.05)


@pytest.mark.usefixtures("often")
def test_a_job_that_keeps_freezing_its_supervisor_is_signalled_again_and_again(lives: Lives) -> None:
    # its owner could not have its GPUs back
    async def story(engine: Engine) -> Job:
        script = "trap 'kill -STOP $PPID' TERM; echo here; kill -STOP $PPID; while :; do sleep 0.02; done"
        job = engine.submit(shell("vision", script, grace_s=0.1))
        await printed(engine, job, "here")
        engine.cancel(str(job.id))
        return (await ended(engine, job))[0]

    assert lives.live(story).state is JobState.CANCELLED
    assert not lives.marked()


def test_a_job_that_kills_its_supervisor_leaves_no_process_and_has_failed(lives: Lives) -> None:
    async def story(engine: Engine) -> Job:
        script = "(trap '' TERM; setsid sleep 600) & echo here; sleep 0.1; kill -9 $PPID; sleep 600"
        return (await ended(engine, engine.submit(shell("vision", script))))[0]

    job = lives.live(story)
    assert job.state is JobState.FAILED
    assert "supervisor was killed" in job.reason
    assert not lives.marked()


def test_a_job_that_stops_itself_through_its_supervisor_has_failed(lives: Lives) -> None:
    async def story(engine: Engine) -> Job:
        return (await ended(engine, engine.submit(shell("vision", "kill $PPID; exec sleep 600"))))[0]

    job = lives.live(story)
    assert (job.state, job.exit_code) == (JobState.FAILED, 143)


def test_a_job_that_writes_its_own_end_gets_what_it_deserves(lives: Lives) -> None:
    lie = json.dumps({"code": 0, "error": "\ud800", "more": 1})

    async def story(engine: Engine) -> Job:
        folder = lives.folder / "jobs" / "1" / "1" / "0"
        script = f"echo '{lie}' > {folder}/exit; kill -9 $PPID; sleep 600"
        return (await ended(engine, engine.submit(shell("vision", script))))[0]

    job = lives.live(story)
    assert job.state is JobState.FAILED
    assert "supervisor was killed" in job.reason


def test_a_job_whose_folder_was_deleted_is_not_run_twice(lives: Lives) -> None:
    # "cleaning up" the state folder under running jobs: the next engine knew nothing of them, and started them again
    async def first(engine: Engine) -> Job:
        job = engine.submit(shell("vision", STAYS, 2))
        await printed(engine, job, "here")
        return job

    job = lives.live(first, killed=True)
    before = set(lives.marked())
    shutil.rmtree(lives.folder / "jobs")

    async def second(engine: Engine) -> set[int]:
        await printed(engine, job, "here")
        return set(lives.marked())

    now = lives.live(second)
    assert len(before) == len(now) == 1
    assert not before & now


def test_a_job_that_deletes_its_folder_fails_with_that_reason(lives: Lives) -> None:
    async def story(engine: Engine) -> Job:
        script = f"echo here; rm -rf {lives.folder}/jobs/1"
        return (await ended(engine, engine.submit(shell("vision", script))))[0]

    job = lives.live(story)
    assert (job.state, job.reason) == (JobState.FAILED, "it could not go on: its folder was deleted")


def test_a_file_that_a_power_cut_left_empty_is_written_anew(lives: Lives) -> None:
    # task.json is not waited for, so it may be there and empty; the job failed, though nothing was wrong with it
    async def first(engine: Engine) -> Job:
        engine._carry_out = nothing  # type: ignore[method-assign]
        job = engine.submit(shell("vision", "echo ran"))
        return await state(engine, job, JobState.RUNNING)

    job = lives.live(first, killed=True)
    folder = lives.folder / "jobs" / "1" / "1" / "0"
    folder.mkdir(parents=True)
    (folder / "task.json").touch()

    async def second(engine: Engine) -> Job:
        return (await ended(engine, job))[0]

    assert lives.live(second).state is JobState.SUCCEEDED


@pytest.mark.usefixtures("often")
def test_an_engine_that_had_no_files_to_open_left_forgets_no_task(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    # reading a task's liveness failed in a callback of the loop, and the task was watched no more
    asked: list[Task] = []
    liveness = Task.liveness

    def once_too_many(task: Task) -> Liveness:
        asked.append(task)
        if len(asked) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return liveness(task)

    async def story(engine: Engine) -> Job:
        job = engine.submit(shell("vision", "echo here; sleep 0.1"))
        await printed(engine, job, "here")
        monkeypatch.setattr(Task, "liveness", once_too_many)
        return (await ended(engine, job))[0]

    assert lives.live(story).state is JobState.SUCCEEDED
    assert len(asked) > 1


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN])
def test_a_task_that_cannot_be_started_for_want_of_files_or_processes_is_started_later(
    lives: Lives, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    # with 1024 open files every job beyond the thousandth failed for good
    tried: list[Task] = []
    spawn = Task.spawn

    def full_at_first(task: Task) -> subprocess.Popen[bytes]:
        tried.append(task)
        if len(tried) < 3:
            raise OSError(number, os.strerror(number))
        return spawn(task)

    monkeypatch.setattr(Task, "spawn", full_at_first)

    async def story(engine: Engine) -> Job:
        return (await ended(engine, engine.submit(shell("vision", "true"))))[0]

    job = lives.live(story)
    assert (job.state, job.attempt, len(tried)) == (JobState.SUCCEEDED, 1, 3)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a\nb", "\x1b[31m", "я" * 60, "%s%n", "; rm -rf /"])
def test_a_hostile_name_is_a_name(lives: Lives, name: str) -> None:
    async def story(engine: Engine) -> Job:
        return (await ended(engine, engine.submit(shell("vision", "echo $HIVED_JOB_NAME", name=name))))[0]

    job = lives.live(story)
    assert (job.name, job.state) == (f"{name}-1", JobState.SUCCEEDED)
    assert sorted(path.name for path in lives.folder.parent.iterdir()) == ["state"]


def test_many_forks_of_one_job_all_go_with_it(lives: Lives) -> None:
    async def story(engine: Engine) -> Job:
        script = "n=0; while [ $n -lt 40 ]; do (trap '' TERM; setsid sleep 600) & n=$((n+1)); done; echo all; exit 0"
        return (await ended(engine, engine.submit(shell("vision", script, grace_s=0.1))))[0]

    assert lives.live(story).state is JobState.SUCCEEDED
    assert not lives.marked()


class Sick(Simulated):
    """Devices that cannot always be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def health(self, spec: ClusterSpec) -> dict[tuple[str, int], str | None]:
        self.asked += 1
        if self.asked == 3:
            raise OSError("the driver is gone")
        return {("node", 0): "NVML: lost"} if self.asked == 5 else {}


@pytest.mark.usefixtures("often")
def test_devices_that_once_cannot_be_asked_are_asked_again(lives: Lives) -> None:
    # one error, and nobody looked at the devices any more
    async def story(engine: Engine) -> Event:
        while not engine.job_scheduler.health.bad:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return engine.recent[-1]

    assert lives.live(story, devices=Sick(), wrong=1).kind == "device_bad"


def test_signals_of_a_terminal_do_not_reach_jobs(lives: Lives) -> None:
    async def story(engine: Engine) -> int:
        job = engine.submit(shell("vision", STAYS))
        await printed(engine, job, "here")
        (pid,) = lives.marked()
        assert os.getsid(pid) != os.getsid(0)
        os.kill(pid, signal.SIGKILL)
        await ended(engine, job)
        return pid

    assert lives.live(story)
