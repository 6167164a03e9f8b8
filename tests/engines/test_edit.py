"""A job that waits asks for something else than it was submitted with."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hived.access import Person
from hived.engine.sentences import event_text
from hived.engine.states import JobState
from hived.engines.local.engine import Engine
from hived.engines.local.model import Job
from hived.errors import ConflictError, NeverFitsError, RequestError
from hived.server.local_service import LocalService
from hived.server.schema import Editing

from .driver import Driver, job, states
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
