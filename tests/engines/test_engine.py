"""The engine with real processes: what jobs are given, what becomes of them, and of them when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from hived import InfeasibleError, RequestError
from hived.engine.job import Event, JobFilter
from hived.engine.states import JobState
from hived.engines.local import engine as engine_module
from hived.engines.local import supervisor
from hived.engines.local.devices import Simulated
from hived.engines.local.engine import Engine
from hived.engines.local.explaining import JobExplainer
from hived.engines.local.model import Job, JobSpec
from hived.engines.local.store import last_start
from hived.engines.local.tasks import Ending, Liveness, Task
from hived.engines.submission import After
from hived.errors import ConflictError, InputError, NeverFitsError, NotFoundError, StorageError
from hived.server.local_service import LocalService, local_view
from hived.spec.compiled import ClusterSpec, Device

from ..policies import LeastAttained
from .driver import EVERYWHERE, SHARES, shares, small_spec
from .living import STAYS, Clock, Lives, ended, gate, noted, printed, record_faults, running, shell, state
from .real import until

#: says who it is, saves how often it was told to stop
RESUMES = (
    "trap 'echo $((1 + $(cat $HIVED_JOB_DIR/told 2>/dev/null || echo 0))) > $HIVED_JOB_DIR/told; exit 0' TERM; "
    'echo "resumes $HIVED_RESUMES attempt $HIVED_ATTEMPT told $(cat $HIVED_JOB_DIR/told 2>/dev/null)"; '
    '[ "$HIVED_RESUMES" -ge 1 ] && exit 0; while :; do sleep 0.02; done'
)
DEAF = "trap '' TERM; echo here; while :; do sleep 0.02; done"
#: fails, and is well the second time
FLAKY = "[ $HIVED_RETRIES = 1 ]"


# -- what a task is given -----------------------------------------------------------------------------------------


def test_environment_of_a_task(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows its devices and its job, and nothing of the engine's secrets."""
    monkeypatch.setenv("HIVED_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    program = (sys.executable, "-c", "import json,os; print(json.dumps(dict(os.environ)))")
    given = {"MINE": "x y", "HIVED_VC": "lie", "CUDA_VISIBLE_DEVICES": "0,1,2,3,4", "HOME": "/mine"}
    job = lives.ran(JobSpec(vc="vision", command=program, gpus=2, environment=given, name="e"))
    found = json.loads(lives.engines[0].task(job, 0).output.read_text())
    job_folder = lives.folder / "jobs" / "1" / "shared"
    placed = next(event.data["placement"] for event in lives.events() if event.kind == "started")
    devices = ",".join(map(str, placed["pods"][0][1]))
    assert len(devices) == 3
    assert {name: value for name, value in found.items() if name.startswith(("HIVED_", "CUDA_"))} == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": devices, "HIVED_DEVICES": devices,
        "HIVED_STATE": str(lives.folder),
        "HIVED_JOB_ID": "1", "HIVED_JOB_NAME": "e-1", "HIVED_JOB_DIR": str(job_folder), "HIVED_VC": "vision",
        "HIVED_PRIORITY": "0", "HIVED_GUARANTEED": "1", "HIVED_NODE": "node", "HIVED_RANK": "0", "HIVED_TASKS": "1",
        "HIVED_ATTEMPT": "1", "HIVED_GRACE": "30", "HIVED_RESUMES": "0", "HIVED_RETRIES": "0",
        "HIVED_TASK": found["HIVED_TASK"],
    }  # fmt: skip
    assert (found["MINE"], found["HOME"], found["PATH"]) == ("x y", "/mine", os.environ["PATH"])
    assert found["PYTHONUNBUFFERED"] == "1"
    assert "MASTER_ADDR" not in found


@pytest.mark.parametrize(
    "act",
    [
        lambda engine: engine.cancel("1"),
        lambda engine: engine.hold("1"),
        lambda engine: engine.release("1"),
        lambda engine: engine.requeue("1"),
        lambda engine: engine.prioritize("1", 5),
        lambda engine: engine.edit("1", {"gpus": 2}),
    ],
    ids=["cancel", "hold", "release", "requeue", "prioritize", "edit"],
)
def test_told_something_in_the_moment_of_its_end(lives: Lives, act: Callable[[Engine], object]) -> None:
    """Its end was not stored yet, and so it was read as it had been stored: a job that nobody knew any more."""

    async def story(engine: Engine) -> None:
        job = engine.submit(shell("vision", "echo here; exec sleep 600"))
        await printed(engine, job, "here")
        engine._ended((job.id, job.attempt, 0), Ending(0))
        with pytest.raises(ConflictError, match=r"(is|has) succeeded"):
            act(engine)
        assert engine.find("1").state is JobState.SUCCEEDED
        again = engine.submit(shell("vision", "true", gpus=4))
        await ended(engine, again)

    lives.live(story)


def test_output_of_python_is_there_at_once(lives: Lives) -> None:
    # what a plain script printed was to be seen when it had ended, and never of one that was killed
    go = lives.folder.parent / "go"
    program = f"import os, time; print('here')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)"

    async def story(engine: Engine) -> None:
        jobs = [
            JobSpec(vc="vision", command=(sys.executable, "-c", program), environment=environment, name="e")
            for environment in ({}, {"PYTHONUNBUFFERED": ""})
        ]
        at_once, as_told = await running(engine, jobs[0]), engine.submit(jobs[1])
        await state(engine, as_told, JobState.RUNNING)
        go.touch()
        await ended(engine, *at_once, as_told)

    lives.live(story)


def test_group_may_read_what_a_job_writes(lives: Lives) -> None:
    """Whoever is let into ``jobs`` may read output and HIVED_JOB_DIR, but no environments: they may hold secrets."""
    before = os.umask(0o077)
    try:
        lives.ran(shell("vision", "umask 027; echo saved > $HIVED_JOB_DIR/state"))
    finally:
        os.umask(before)
    jobs = lives.folder / "jobs"
    assert jobs.stat().st_mode & 0o7777 == 0o700, "nobody is, unless hived up --group says so"
    for name in ("1", "1/shared", "1/1", "1/1/0"):
        assert (jobs / name).stat().st_mode & 0o777 == 0o750, name
    modes = {path.name: path.stat().st_mode & 0o777 for path in (jobs / "1" / "1" / "0").iterdir()}
    assert modes == dict.fromkeys(("claim", "exit", "task.json", "supervisor.log"), 0o600) | {"output": 0o640}
    assert (jobs / "1" / "shared" / "state").stat().st_mode & 0o777 == 0o640


def test_hostile_name_is_a_name(lives: Lives) -> None:
    names = ["../../etc/passwd", "a\nb", "\x1b[31m", "я" * 60, "%s%n", "; rm -rf /"]

    async def story(engine: Engine) -> list[Job]:
        return await ended(engine, *(engine.submit(shell("vision", "true", name=n, time_limit_s=600.0)) for n in names))

    jobs = lives.live(story)
    assert [job.name for job in jobs] == [f"{name}-{number}" for number, name in enumerate(names, 1)]
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert sorted(path.name for path in lives.folder.parent.iterdir()) == ["state"]


# -- from start to end --------------------------------------------------------------------------------------------


def test_preempted_job_resumes_from_its_saved_state(lives: Lives) -> None:
    async def story(engine: Engine) -> tuple[Job, str, str]:
        loan = engine.submit(shell("research", RESUMES, 8, priority=-1))
        first = await printed(engine, loan, "attempt 1")
        done, _ = await ended(engine, loan, engine.submit(shell("vision", "true", 4)))
        return done, first, engine.task(loan, 0).output.read_text()

    loan, first, second = lives.live(story)
    assert (loan.state, loan.resumes, loan.attempt, loan.retries) == (JobState.SUCCEEDED, 1, 2, 0)
    assert (first, second) == ("resumes 0 attempt 1 told \n", "resumes 1 attempt 2 told 1\n")


def test_refused_request_leaves_no_trace(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
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
        assert engine.submit(shell("vision", "true")).id == 1
        engine.cancel("1")
        with pytest.raises(ConflictError, match="cancelled already"):
            engine.cancel("1")

    lives.live(story)


def test_follower_sleeps_until_a_new_event(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        following = asyncio.create_task(engine.changed(engine.last_event))
        await asyncio.sleep(0)
        assert not following.done()
        engine.submit(shell("vision", "true"))
        await following
        again = asyncio.create_task(engine.changed(engine.last_event + 1_000))
        await ended(engine, engine.find("1"))
        assert not again.done()
        again.cancel()

    lives.live(story)


def test_facts_are_not_lost_over_a_submission(lives: Lives) -> None:
    # what had just happened was kept with the submission, and what was to be done about it was not done
    async def story(engine: Engine) -> list[Job]:
        flaky = engine.submit(shell("vision", f"{FLAKY} || exec sleep 600", retries=1, backoff_s=0.01))
        await state(engine, flaky, JobState.RUNNING)
        engine.job_scheduler.task_ended(flaky.id, 1, 0, asdict(Ending(1)), engine.clock())
        engine._soon()
        return await ended(engine, flaky, engine.submit(shell("speech", "true")))

    flaky, other = lives.live(story)
    assert (flaky.state, flaky.attempt) == (JobState.SUCCEEDED, 2)
    assert other.state is JobState.SUCCEEDED


def nothing(instruction: object) -> None:
    """What a killed engine does."""


def test_one_tenants_queue_does_not_hide_anothers(lives: Lives) -> None:
    async def story(engine: Engine) -> list[str]:
        engine._carry_out = nothing  # type: ignore[method-assign]  # it is about the line
        for vc, gpus in (("research", 2), ("speech", 2), ("vision", 4)):
            for _ in range(80):
                engine.submit(shell(vc, STAYS, gpus))
        engine.submit(shell("vision", "true", 8, priority=-1, name="loan"))
        engine._advance()
        return [
            f"{waiting.vc}{waiting.priority:+d}"
            for waiting in local_view(LocalService(engine), "here").picture("live").queue
        ]

    shown = lives.live(story, killed=True)
    assert len(shown) == 200
    assert {*shown} == {"research+0", "speech+0", "vision+0", "vision-1"}
    assert min(shown.count(vc) for vc in ("research+0", "speech+0", "vision+0")) >= 66


@pytest.mark.parametrize("leads", [True, False], ids=["a link to nowhere", "a file"])
def test_jobs_is_no_folder(lives: Lives, leads: bool) -> None:
    """A disk that is not mounted: one clear error."""

    async def story(engine: Engine) -> None:
        raise AssertionError("it has started")

    jobs = lives.folder / "jobs"
    lives.folder.mkdir(exist_ok=True)
    if leads:
        jobs.symlink_to(lives.folder / "unmounted")
    else:
        jobs.touch()
    with pytest.raises(StorageError, match="jobs: is no folder"):
        lives.live(story)


def test_submissions_are_counted_per_tenant(lives: Lives) -> None:
    """So that a policy that counts them decides by what happens in its VC, in every life of the engine."""

    async def more(engine: Engine) -> list[tuple[str, int]]:
        for vc in ("vision", "speech", "speech"):
            engine.submit(shell(vc, "true", 1))
        return [(job.vc, job.entry.view.sequence) for job in engine.store.jobs(JobFilter(), 9, None)[0]]

    first = [("speech", 1), ("speech", 0), ("vision", 0)]
    assert lives.live(more, killed=True) == first
    assert lives.live(more) == [("speech", 3), ("speech", 2), ("vision", 1), *first]


# -- one engine after another -------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_next_engine_takes_all_jobs_over(lives: Lives, killed: bool) -> None:
    """Those that run, those that end meanwhile, and those that wait, in their order."""
    go = lives.folder.parent / "go"

    async def first(engine: Engine) -> list[Job]:
        held = await running(
            engine,
            shell("vision", f"echo here; {gate(go)}; echo on", 2, priority=9),
            shell("vision", f"echo here; {gate(go)}; exit 3", 2, priority=9),
        )
        return held + [engine.submit(shell("vision", "true", 4, priority=priority)) for priority in (0, 0, 5)]

    runs, ends, *waits = lives.live(first, killed=killed)
    assert lives.marked()
    go.touch()
    until(lambda: lives.engines[0].task(ends, 0).liveness() is Liveness.ENDED)
    later = Clock(1e10)
    runs, ends, *waits = lives.see_end(runs, ends, *waits, clock=later)
    assert (runs.state, runs.attempt, runs.exit_code) == (JobState.SUCCEEDED, 1, 0)
    assert (ends.state, ends.attempt, ends.exit_code) == (JobState.FAILED, 1, 3)
    assert ends.ended_at is not None
    assert ends.ended_at < later.now, "it ended when it did, not when an engine saw it"
    assert lives.engines[1].task(runs, 0).output.read_text() == "here\non\n"
    order = [event.job for event in lives.events() if event.kind == "started"]
    assert order == [runs.id, ends.id, waits[2].id, waits[0].id, waits[1].id]
    told = [event.kind for event in lives.events() if event.job is None]
    assert told == ["engine_started", "recovered", *([] if killed else ["engine_stopped"]), "engine_started",
                    "recovered", "engine_stopped"]  # fmt: skip


@pytest.mark.parametrize("power_cut", [False, True])
def test_starting_job_is_started_once(lives: Lives, power_cut: bool) -> None:
    ran = lives.folder.parent / "ran"

    async def first(engine: Engine) -> Job:
        engine._carry_out = nothing  # type: ignore[method-assign]  # killed before it came to that
        return await state(engine, engine.submit(shell("vision", f"echo ran >> {ran}")), JobState.RUNNING)

    job = lives.live(first, killed=True)
    assert not ran.exists()
    if power_cut:  # task.json is not waited for, so it may be there and empty: the job failed
        folder = lives.folder / "jobs" / "1" / "1" / "0"
        folder.mkdir(parents=True)
        (folder / "task.json").touch()
    (job,) = lives.see_end(job)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert ran.read_text() == "ran\n"


def test_pause_goes_on_in_the_next_life(lives: Lives) -> None:
    clock = Clock()

    async def first(engine: Engine) -> list[Job]:
        jobs = [engine.submit(shell("vision", FLAKY, retries=1, backoff_s=250.0)) for _ in range(2)]
        return [await state(engine, job, JobState.BACKOFF) for job in jobs]

    async def early(engine: Engine) -> list[float]:
        return [timer.when() - asyncio.get_running_loop().time() for timer in engine._timers]

    jobs = lives.live(first, clock=clock)
    clock.now -= 86_400  # it was set back: the pause would have lasted for a day
    delays = lives.live(early, clock=clock)
    assert len(delays) == 2
    assert max(delays) <= 300
    clock.now += 86_400 + 250
    jobs = lives.see_end(*jobs, clock=clock)
    assert [(job.state, job.attempt) for job in jobs] == [(JobState.SUCCEEDED, 2)] * 2


def test_pause_ends_though_the_clock_stands_still(lives: Lives) -> None:
    assert lives.ran(shell("vision", FLAKY, retries=1, backoff_s=0.01), clock=Clock()).state is JobState.SUCCEEDED


def test_drained_devices_stay_so(lives: Lives) -> None:
    async def first(engine: Engine) -> None:
        assert len(engine.drain("node", None, False, False)) == 8
        assert engine.drain(None, 3, True, False) == [("node", 3)]

    async def second(engine: Engine) -> Job:
        job = engine.submit(shell("speech", "true", 2))
        engine._advance()
        assert list(engine.job_scheduler.health.drained) == EVERYWHERE[:3] + EVERYWHERE[4:]
        assert engine.find("1").state is JobState.QUEUED
        engine.drain(None, None, True, False)
        return (await ended(engine, job))[0]

    lives.live(first, killed=True)
    assert lives.live(second).state is JobState.SUCCEEDED


def test_engine_wakes_when_an_order_changes(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else happens at that moment: a policy that preempts would not be heard."""
    monkeypatch.setattr(engine_module, "YarnCS", lambda: LeastAttained((4 * 0.1,)))
    clock = Clock()

    async def story(engine: Engine) -> tuple[Job, Job]:
        (long,) = await running(engine, shell("vision", STAYS, 4))
        short = engine.submit(shell("vision", "true", 4))
        engine._advance()
        assert (engine.find("1").state, engine.find("2").state) == (JobState.RUNNING, JobState.QUEUED)
        clock.now += 1.0
        (short,) = await ended(engine, short)
        await state(engine, long, JobState.RUNNING)
        return engine.find("1"), short

    long, short = lives.live(story, clock=clock)
    assert (short.state, long.resumes) == (JobState.SUCCEEDED, 1)


def test_decisions_of_every_life_replay(lives: Lives) -> None:
    """And the jobs are what their events say."""

    async def first(engine: Engine) -> None:
        engine.submit(shell("speech", RESUMES, 8, priority=-1))
        await ended(engine, *(engine.submit(shell("vision", "true", gpus)) for gpus in (4, 1, 2)))
        engine.drain(None, 0, False, True)

    async def second(engine: Engine) -> None:
        engine.drain(None, 0, True, False)
        engine.reconfigure(shares(("vision", 2), ("speech", 6)))
        engine.submit(shell("speech", "true", 2, tasks=3))
        await ended(engine, *engine.job_scheduler.jobs.values())

    lives.live(first, killed=True)
    lives.live(second)
    with lives.store() as store:
        faults, counts = record_faults(store)
    assert (faults, counts["lives"]) == ([], 2)


# -- how long a loan may take to go -------------------------------------------------------------------------------


def capped(seconds: int, *of: tuple[str, int]) -> ClusterSpec:
    """All loans have this many seconds at most."""
    spec = shares(*of)
    vcs = tuple(replace(vc, opportunistic_grace_seconds=seconds) for vc in spec.virtual_clusters)
    return replace(spec, virtual_clusters=vcs)


def test_loan_asks_for_no_more_than_the_cap(lives: Lives) -> None:
    lives.spec = shares(("vision", 8))

    async def story(engine: Engine) -> None:
        with pytest.raises(RequestError, match=r"grace_s: .*vision.* 30 s at most, not 3600 s; ask for less"):
            engine.submit(shell("vision", "true", priority=-1, grace_s=3600.0))
        assert not engine.job_scheduler.jobs
        engine.submit(shell("vision", "true", priority=-1, grace_s=30.0))
        engine.submit(shell("vision", "true", grace_s=3600.0))  # of its own cells, for its own VC to wait for
        engine.reconfigure(capped(3600, ("vision", 8)))
        engine.submit(shell("vision", "true", priority=-1, grace_s=3600.0))

    lives.live(story)


def test_job_that_a_spec_made_a_loan_goes_as_one(lives: Lives) -> None:
    lives.spec = shares(("vision", 8))
    (vision,) = lives.spec.virtual_clusters
    twice = replace(lives.spec, virtual_clusters=(vision, replace(vision, name="again")))

    async def story(engine: Engine) -> None:
        lent, leaving = await running(engine, *[shell("vision", DEAF, 4, grace_s=3600.0)] * 2)
        engine.cancel(str(leaving.id))
        assert "3600 s" in " ".join(JobExplainer(engine.job_scheduler).explain(leaving, 0.0))  # nobody waits for it
        with pytest.raises(InfeasibleError):
            engine.reconfigure(twice)
        assert engine.find(str(lent.id)).guaranteed
        report = engine.reconfigure(capped(0, ("vision", 2), ("speech", 6)))
        assert [name for name, _ in report.downgraded] == [lent.name, leaving.name]
        await ended(engine, engine.submit(shell("speech", "true", 2, tasks=3)))
        assert (await ended(engine, leaving))[0].state is JobState.CANCELLED
        assert (await state(engine, lent, JobState.QUEUED)).resumes == 1
        engine.cancel(str(lent.id))

    lives.live(story)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine looks after its tasks and devices many times a second."""
    monkeypatch.setattr(engine_module, "HEALTH_EVERY_S", 0.05)


def test_source_of_the_spec_is_kept_over_a_restart(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        engine.reconfigure(replace(shares(("vision", 2), ("speech", 6)), source="the new spec"))

    lives.live(story)
    with lives.store() as store:
        last = last_start(store)
    assert last is not None
    lives.spec = last.spec

    async def look(engine: Engine) -> str:
        return engine.spec_source

    assert lives.live(look) == "the new spec"


# -- when nothing can be kept -------------------------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise StorageError("the disk is full")


def test_unkept_submission_has_never_been(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_engine_that_cannot_keep_facts_stops(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(engine: Engine) -> None:
        (runs,) = await running(engine, shell("vision", STAYS, 4))
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
            lambda: engine.reconfigure(shares(("vision", 8))),
        ):
            with pytest.raises(StorageError, match="disk is full"):
                ask()
        engine._advance()

    lives.live(story)
    assert lives.marked(), "it was told to stop, and nobody has written that down"
    events = lives.events()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "started"


@pytest.mark.usefixtures("often")
def test_tasks_wait_for_space(small_disk: Path) -> None:
    """A full disk fails nobody's job: what waits begins once there is space, or ends when it is cancelled."""
    lives, filler = Lives(small_disk / "state"), small_disk / "all"

    async def story(engine: Engine) -> list[Job]:
        engine.drain(None, None, False, False)  # so that they begin once the disk is full, and not before
        jobs = [engine.submit(shell("vision", "true", 4)), engine.submit(shell("speech", "true"))]
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        engine.drain(None, None, True, False)
        while len(engine._watching.held_up) < 2:
            await asyncio.sleep(0.005)
        service = LocalService(engine)
        assert "it cannot be started yet, and is tried again" in service.explain("1").text
        assert "No space left on device" in service.job("1").why[0]
        with pytest.raises(StorageError, match="free some space"):
            engine.submit(shell("vision", "true"))
        engine.cancel("2")
        await ended(engine, jobs[1])
        filler.unlink()
        return await ended(engine, *jobs)

    done, cancelled = lives.live(story)
    assert (done.state, done.attempt, cancelled.state) == (JobState.SUCCEEDED, 1, JobState.CANCELLED)


def test_job_that_filled_the_disk_is_cancelled(small_disk: Path, tmp_path: Path) -> None:
    # it ended the engine, for all users, and could not be cancelled before somebody else had made space
    lives, full = Lives(small_disk / "state"), tmp_path / "full"
    fills = f"while :; do cat /dev/zero >> $HIVED_JOB_DIR/all 2>/dev/null; touch {full}; sleep 0.02; done"

    async def story(engine: Engine) -> Job:
        (other,) = await running(engine, shell("speech", "echo here; exec sleep 600"))
        filler = engine.submit(shell("vision", fills, 4))
        waits = engine.submit(shell("vision", "true", 4))
        while not full.exists():
            await asyncio.sleep(0.005)
        engine.cancel(str(waits.id))
        engine.drain(None, 7, False, False)
        engine.cancel(str(filler.id))
        found = (await ended(engine, filler))[0]
        with pytest.raises(StorageError, match="free some space"):  # noqa: PT012
            for _ in range(1000):
                engine.submit(shell("vision", "true" + " " * 10_000, 4))
        assert engine.failed is not None
        assert not engine.failed.done()
        for job in list(engine.job_scheduler.jobs.values()):
            engine.cancel(str(job.id))
        await ended(engine, other)
        (lives.folder / "jobs" / str(filler.id) / "shared" / "all").unlink()
        assert (await ended(engine, engine.submit(shell("vision", "true"))))[0].state is JobState.SUCCEEDED
        return found

    try:
        assert lives.live(story).state is JobState.CANCELLED
    finally:
        lives.end()


@pytest.mark.usefixtures("often")
def test_end_that_cannot_be_kept_is_found_later(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    go = lives.folder.parent / "go"

    async def first(engine: Engine) -> Job:
        (job,) = await running(engine, shell("vision", f"echo here; {gate(go)}; exit 4"))
        monkeypatch.setattr(engine.store, "keep", full)
        go.touch()
        assert engine.failed is not None
        await engine.failed
        await asyncio.gather(*engine._checks)  # it looks after nothing any more
        return job

    (job,) = lives.see_end(lives.live(first))
    assert (job.state, job.exit_code, job.attempt) == (JobState.FAILED, 4, 1)


# -- harm and bad luck --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("often")
def test_job_that_freezes_its_supervisor(lives: Lives) -> None:
    # its owner could not have its GPUs back
    async def story(engine: Engine) -> Job:
        freezes = "trap 'kill -STOP $PPID' TERM; echo here; kill -STOP $PPID; while :; do sleep 0.02; done"
        (job,) = await running(engine, shell("vision", freezes, grace_s=0.1))
        engine.cancel(str(job.id))
        return (await ended(engine, job))[0]

    assert lives.live(story).state is JobState.CANCELLED
    assert not lives.marked()


def test_job_that_kills_its_supervisor_has_failed(lives: Lives) -> None:
    """And no process is left of it."""
    there = lives.folder.parent / "there"
    leaves = f"(trap '' TERM; setsid sh -c 'touch {there}; exec sleep 600') & {gate(there)}; kill -9 $PPID; sleep 600"
    job = lives.ran(shell("vision", leaves))
    assert job.state is JobState.FAILED
    assert "supervisor was killed" in job.reason
    assert not lives.marked()


def test_job_that_deletes_its_folder_has_failed(lives: Lives) -> None:
    job = lives.ran(shell("vision", f"echo here; rm -rf {lives.folder}/jobs/1"))
    assert (job.state, job.reason) == (JobState.FAILED, "it could not go on: its folder was deleted")


def test_job_whose_folder_was_deleted_can_be_stopped(lives: Lives) -> None:
    async def story(engine: Engine) -> Job:
        (job,) = await running(engine, shell("vision", STAYS, 2, grace_s=0.2))
        shutil.rmtree(engine.task(job, 0).folder)
        engine.cancel("1")
        return (await ended(engine, job))[0]

    assert lives.live(story).state is JobState.CANCELLED
    assert not lives.marked()


@pytest.mark.usefixtures("often")
def test_task_is_watched_though_files_are_scarce(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    # reading a task's liveness failed in a callback of the loop, and the task was watched no more
    asked: list[Task] = []
    liveness = Task.liveness
    go = lives.folder.parent / "go"

    def once_too_many(task: Task) -> Liveness:
        asked.append(task)
        if len(asked) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return liveness(task)

    async def story(engine: Engine) -> Job:
        (job,) = await running(engine, shell("vision", f"echo here; {gate(go)}"))
        monkeypatch.setattr(Task, "liveness", once_too_many)
        go.touch()
        return (await ended(engine, job))[0]

    assert lives.live(story).state is JobState.SUCCEEDED
    assert len(asked) > 1


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOSPC, None])
def test_task_is_started_later_if_files_are_scarce(
    lives: Lives, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """None: it is the supervisor that finds no space."""
    # with 1024 open files every job beyond the thousandth failed for good
    tried: list[Task] = []
    spawn = Task.spawn

    def full_at_first(task: Task) -> subprocess.Popen[bytes]:
        tried.append(task)
        if len(tried) >= 3:
            return spawn(task)
        if number is None:
            return subprocess.Popen(["sh", "-c", f"exit {supervisor.NO_SPACE}"])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Task, "spawn", full_at_first)
    job = lives.ran(shell("vision", "true"))
    assert (job.state, job.attempt, len(tried)) == (JobState.SUCCEEDED, 1, 3)


@pytest.mark.usefixtures("often")
def test_task_that_finds_no_space_is_stopped(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop comes while its supervisor looks for space: it is not started again and again."""
    go = lives.folder.parent / "go"
    wait = f"until [ -e {go} ]; do sleep 0.01; done; exit {supervisor.NO_SPACE}"
    monkeypatch.setattr(Task, "spawn", lambda _: subprocess.Popen(["sh", "-c", wait]))

    async def story(engine: Engine) -> Job:
        job = await state(engine, engine.submit(shell("vision", "true")), JobState.RUNNING)
        while not engine._watching._watched:
            await asyncio.sleep(0.005)
        monkeypatch.setattr("hived.engines.local.tasks._has_begun", lambda _: False)  # the stand-in has children
        engine.cancel("1")
        go.touch()
        return (await ended(engine, job))[0]

    assert lives.live(story).state is JobState.CANCELLED


@pytest.mark.usefixtures("often")
def test_task_that_could_not_be_watched_is_stopped(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, though the engine had no open file left to watch it: a stop that comes then is its end, not before."""
    opened: list[int] = []
    pidfd_open = os.pidfd_open

    def once_too_many(pid: int) -> int:
        opened.append(pid)
        if len(opened) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return pidfd_open(pid)

    monkeypatch.setattr(os, "pidfd_open", once_too_many)

    async def story(engine: Engine) -> Job:
        job = engine.submit(shell("vision", STAYS, grace_s=0.2))
        await printed(engine, job, "here")
        assert "cannot be started" not in LocalService(engine).explain("1").text
        engine.cancel("1")
        assert (await ended(engine, job))[0].state is JobState.CANCELLED
        assert not lives.marked()
        return job

    lives.live(story)


# -- devices ------------------------------------------------------------------------------------------------------


class Sick(Simulated):
    """Devices that answer so, one time after another; an error: they cannot be asked."""

    def __init__(self, *answers: Mapping[Device, str | None] | OSError) -> None:
        super().__init__()
        self.answers = list(answers)

    def health(self, spec: ClusterSpec) -> Mapping[Device, str | None]:
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, OSError):
            raise answer
        return answer


def test_devices_are_looked_at_before_the_first_job(lives: Lives) -> None:
    async def story(engine: Engine) -> Job:
        assert len(engine.job_scheduler.health.bad) == 8
        job = engine.submit(shell("vision", "true"))
        engine._advance()
        return job

    assert lives.live(story, devices=Sick(dict.fromkeys(EVERYWHERE, "NVML: lost"))).state is JobState.QUEUED


@pytest.mark.usefixtures("often")
def test_devices_are_asked_again_after_an_error(lives: Lives) -> None:
    # one error, and nobody looked at the devices any more
    async def story(engine: Engine) -> Event:
        return await noted(engine, "device_bad")

    sick = Sick({}, {}, OSError("the driver is gone"), {}, {("node", 0): "NVML: lost"})
    assert lives.live(story, devices=sick, wrong=1).data["why"] == "NVML: lost"


def test_spec_of_other_devices_is_refused(lives: Lives) -> None:
    class Two(Simulated):
        def check(self, spec: ClusterSpec) -> None:
            if sum(chain.gpus for chain in spec.chains) != 8:
                raise InputError("this machine has 8")

    async def story(engine: Engine) -> None:
        last = engine.last_event
        with pytest.raises(InputError, match="has 8"):
            engine.reconfigure(shares(*SHARES, devices=16))
        assert engine.last_event == last
        assert engine.cluster.spec == small_spec()

    lives.live(story, devices=Two())


# -- several at once --------------------------------------------------------------------------------------------------


def test_what_is_done_together_is_one_commit(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing starts in between: what waited for the first had started before it was cancelled itself."""

    async def story(engine: Engine) -> None:
        first = engine.submit(shell("vision", STAYS, hold=True))
        then = engine.submit(shell("vision", STAYS, after=(After(job="1"),)))
        await asyncio.sleep(0)
        commits: list[int] = []
        keep = engine.store.keep

        def counting(events: Sequence[Event], *more: Any) -> None:
            commits.append(len(events))
            keep(events, *more)

        monkeypatch.setattr(engine.store, "keep", counting)
        with engine.together():
            engine.cancel("1")
            engine.cancel("2")
            with pytest.raises(ConflictError, match="cancelled already"):
                engine.cancel("1")
        assert len(commits) == 1
        assert [job.state for job in (first, then)] == ["cancelled", "cancelled"]

    lives.live(story)
    assert "started" not in {event.kind for event in lives.events()}
