"""A job that waits asks for something else than it was submitted with."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from hived.access import Person
from hived.engine.sentences import event_text
from hived.engine.states import JobState
from hived.engines.local.engine import Engine
from hived.engines.local.instructions import LimitTime
from hived.engines.local.model import Job
from hived.errors import ConflictError, NeverFitsError, RequestError
from hived.server.local_service import LocalService
from hived.server.schema import Editing

from .driver import FAILED, STOPPED, Driver, job, small_spec, states
from .living import STAYS, Lives, ended, running, shell
from .test_any_facts import one_fact
from .test_holds import hold, limited, of, release


def edit(engine: Driver, job: Job, **changes: Any) -> None:
    engine.do(lambda jobs: jobs.edit(job, changes, "ann", engine.now))


def test_a_smaller_one_fits(engine: Driver) -> None:
    """It keeps its id and its place: those behind it do not pass."""
    runs, waits, behind = (engine.submit(job("vision", gpus)) for gpus in (3, 4, 1))
    assert states(runs, waits, behind) == "running queued queued"
    edit(engine, waits, gpus=1, retries=2)
    assert states(runs, waits, behind) == "running running queued"
    assert (waits.gpus, waits.size, waits.spec.retries) == (1, 1, 2)
    said = [event_text(event, waits.name) for event in engine.events if event.kind == "edited"]
    assert said == [f"{waits.name} was edited by ann: GPUs of a task 1 (was 4), retries 2 (was 0)"]
    engine.check_record()


def test_of_more_tasks_over_a_restart(engine: Driver) -> None:
    runs = engine.submit(job("vision", 4))
    waits = engine.submit(job("vision", 1, time_limit_s=60.0))
    edit(engine, waits, tasks=2, time_limit_s=None)
    (runs, waits) = engine.restart(runs, waits)
    assert (waits.gpus, waits.size, waits.spec.time_limit_s, waits.entry.duration) == (2, 2, None, None)
    assert states(runs, waits) == "running queued"
    engine.end(runs)
    assert states(waits) == "running"
    assert waits.placement is not None
    assert len(waits.placement.pods) == 2
    engine.check_record()


def test_what_does_not_wait_is_not_edited(engine: Driver) -> None:
    loan, mine = engine.submit(job("speech", 8, priority=-1)), engine.submit(job("vision", 4))
    assert states(loan, mine) == "stopping reserved"
    with pytest.raises(ConflictError, match=r"is reserved, and only a job that waits in line is edited; hived hold"):
        edit(engine, mine, gpus=1)
    with pytest.raises(ConflictError, match="is stopping, and only a job that waits in line is edited"):
        edit(engine, loan, gpus=1)
    hold(engine, mine)
    with pytest.raises(ConflictError, match="asks for that already"):
        edit(engine, mine, gpus=4)
    edit(engine, mine, gpus=2)
    assert states(mine) == "held"
    engine.gone(loan)
    release(engine, mine)
    assert mine.gpus == 2
    engine.check_record()


def test_the_time_limit_of_one_that_runs(engine: Driver) -> None:
    """It is of this attempt and the next ones; the timers of the earlier limit say nothing any more."""
    runs = engine.submit(job("vision", 4, time_limit_s=60.0, retries=1))
    engine.wait(30)
    edit(engine, runs, time_limit_s=100.0)
    assert engine.limited == [LimitTime(runs.id, 1)]
    engine.wait(60)
    assert states(runs) == "running"
    (runs,) = engine.restart(runs)
    assert engine.limited == [LimitTime(runs.id, 1)] * 2
    edit(engine, runs, time_limit_s=95.0)
    engine.wait(5.4)
    assert states(runs) == "running"  # its supervisor sees to it first
    engine.wait(0.2)
    assert states(runs) == "stopping"
    with pytest.raises(ConflictError, match="is stopping, and only a job that waits in line is edited"):
        edit(engine, runs, time_limit_s=100.0)
    engine.end(runs, STOPPED)
    assert runs.reason == "it ran into its time limit of 95 s"
    engine.check_record()


def test_a_limit_and_then_none(engine: Driver) -> None:
    runs = engine.submit(job("vision", 1, time_limit_s=60.0, retries=1, backoff_s=1.0))
    edit(engine, runs, time_limit_s=None)
    engine.wait(100)
    assert states(runs) == "running"
    with pytest.raises(ConflictError, match="of a job that runs the time limit alone is edited; hived requeue --hold"):
        edit(engine, runs, gpus=2, time_limit_s=60.0)
    engine.end(runs, FAILED)
    engine.wait(2)
    assert (states(runs), runs.attempt, runs.relimited, runs.entry.duration) == ("running", 2, False, None)
    engine.check_record()


def test_a_limit_by_which_it_got_its_turn() -> None:
    """Who says little to be first, and more once it runs, would go before others for nothing."""
    spec = small_spec()
    vcs = tuple(replace(vc, policy="srtf") for vc in spec.virtual_clusters)
    engine = Driver(replace(spec, virtual_clusters=vcs))
    runs = engine.submit(job("vision", 4, time_limit_s=60.0))
    with pytest.raises(
        ConflictError, match="is running: policy srtf of vision has given it its turn by its time limit"
    ):
        edit(engine, runs, time_limit_s=600.0)


def test_the_limit_of_a_member() -> None:
    """Who asks for less is let go, and lets others go; who asks for more waits for room."""
    engine = Driver(limited(3))
    blocks, first, second, third = (
        engine.submit(job("vision", 4, user="bob")),
        engine.submit(of("ann", 1)),
        engine.submit(of("ann", 3)),
        engine.submit(of("ann", 3)),
    )
    assert states(blocks, first, second, third) == "running queued held held"
    edit(engine, second, gpus=2)
    assert states(first, second, third) == "queued queued held"
    edit(engine, first, gpus=3)
    assert states(first, second, third) == "held queued held"
    assert "maxGpus" in engine.explain(first)
    edit(engine, second, gpus=1)
    edit(engine, third, gpus=2)
    assert states(first, second, third) == "held queued queued"
    edit(engine, third, gpus=3)
    edit(engine, first, gpus=2)
    assert states(first, second, third) == "queued queued held"
    engine.check_record()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_edits_among_other_facts(seed: int, exact: bool, engine: Driver) -> None:
    choose = random.Random(seed)
    edited = 0
    for _ in range(150):
        if choose.random() < 0.3:
            waits = [found for found in engine.jobs.values() if found.state in (JobState.QUEUED, JobState.HELD)]
            waits = [found for found in waits if not found.entry.holds]
            if waits:
                found = choose.choice(waits)
                size = {"gpus": choose.randint(1, 2), "time_limit_s": choose.choice((None, 60.0))}
                if {name: getattr(found.spec, name) for name in size} != size:
                    edit(engine, found, **size)
                    edited += 1
            if waits and choose.random() < 0.3:
                found = choose.choice(waits)
                if found.held_by_hand:
                    release(engine, found)
                elif found.state.waits:
                    hold(engine, found)
        else:
            one_fact(engine, choose, exact)
    assert edited
    engine.check_record()


def test_the_limit_of_an_array_goes_alone(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        engine.submit(shell("vision", "sleep 600", array="1-3%1"))
        engine.submit(shell("vision", "sleep 600"))
        ann = Person("ann", owns=True)
        shown = await service.edit("1", Editing(at_a_time=2), ann)
        assert (shown.id, [engine.find(str(n)).state.value for n in (1, 2, 3)]) == ("1", ["running", "running", "held"])
        with pytest.raises(RequestError, match="at_a_time: is of all of the array"):
            await service.edit("1", Editing(at_a_time=3, retries=2), ann)
        with pytest.raises(RequestError, match="at_a_time: job-4 is of no array"):
            await service.edit("4", Editing(at_a_time=3), ann)

    lives.live(story)


def test_a_task_keeps_the_time_limit_of_now(lives: Lives) -> None:
    async def first(engine: Engine) -> Job:
        (runs,) = await running(engine, shell("vision", STAYS, 4, time_limit_s=3600.0))
        engine.edit(str(runs.id), {"time_limit_s": 7200.0})
        limit = engine.task(runs, 0).folder / "limit"
        assert limit.read_text().split()[0] == "7200.0"
        limit.unlink()  # as if the engine had been killed before it came to that
        assert runs.started_at is not None
        with pytest.raises(RequestError, match=r"has run for .* s already, and would end at once: hived cancel"):
            engine.edit(str(runs.id), {"time_limit_s": 1e-9})
        return runs

    async def second(engine: Engine) -> None:
        (runs,) = engine.job_scheduler.jobs.values()
        folder = engine.task(runs, 0).folder
        assert (folder / "limit").read_text().split()[0] == "7200.0"
        assert runs.started_at is not None
        for slack_s in (1.0, 10.0, 100.0):  # a machine may stand still between this and the engine's look
            limit_s = engine.clock() - runs.started_at + slack_s
            with contextlib.suppress(RequestError):
                assert engine.edit(str(runs.id), {"time_limit_s": limit_s}).spec.time_limit_s == limit_s
                break
        await ended(engine, runs)
        assert runs.reason == f"it ran into its time limit of {limit_s:g} s"

    lives.live(first, killed=True)
    lives.live(second)


def test_a_supervisor_of_the_version_before_keeps_its_limit(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        (runs,) = await running(engine, shell("vision", STAYS, 4))
        work = engine.task(runs, 0).folder / "task.json"
        old = json.loads(work.read_text())
        del old["limit_file"]
        work.write_text(json.dumps(old))
        with pytest.raises(ConflictError, match="was started by an earlier version, which keeps the time limit"):
            engine.edit(str(runs.id), {"time_limit_s": 7200.0})
        assert runs.spec.time_limit_s is None
        engine.cancel(str(runs.id))
        await ended(engine, runs)

    lives.live(story)


def test_what_is_asked_of_an_edit(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service, asks = LocalService(engine), Person("ann", owns=True)
        blocks = (await running(engine, shell("vision", STAYS, 4)))[0]
        waits = engine.submit(shell("vision", "true", 4, time_limit_s=60.0, limit_signal="USR1"))
        for wrong, words in (
            (Editing(), "nothing to change"),
            (Editing(time_limit_s=5.0, no_time_limit=True), "a time limit, and none"),
            (Editing(no_time_limit=True), "gets USR1 before its time limit: it has to have one"),
            (Editing(time_limit_s=60.0), "USR1 comes 60 s before its end, and would come at once"),
        ):
            with pytest.raises(RequestError, match=words):
                await service.edit(str(waits.id), wrong, asks)
        assert (await service.edit(waits.name, Editing(gpus=1, tasks=2, grace_s=3.0), asks)).gpus == 2
        assert waits.spec.grace_s == 3.0
        for one in (blocks, waits):
            engine.cancel(str(one.id))
            await ended(engine, one)

    lives.live(story)


def test_checked_as_if_submitted(lives: Lives) -> None:
    async def first(engine: Engine) -> None:
        await running(engine, shell("vision", "echo here; exec sleep 600", 4))
        waits = engine.submit(shell("vision", "echo $HIVED_TASKS", 4))
        with pytest.raises(NeverFitsError):
            engine.edit(str(waits.id), {"gpus": 8})
        assert (waits.gpus, waits.state) == (4, JobState.QUEUED)
        engine.edit(str(waits.id), {"gpus": 1, "time_limit_s": 300.0}, "ann")

    async def second(engine: Engine) -> None:
        waits = engine.find("2")
        assert (waits.gpus, waits.spec.time_limit_s, waits.state) == (1, 300.0, JobState.QUEUED)
        engine.cancel("1")
        await ended(engine, waits)
        assert waits.state is JobState.SUCCEEDED
        with pytest.raises(ConflictError, match="is succeeded, and only a job that waits in line is edited"):
            engine.edit("2", {"gpus": 2})

    lives.live(first, killed=True)
    lives.live(second)
