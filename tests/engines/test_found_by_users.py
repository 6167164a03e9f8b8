"""What people who tried it stumbled over, one story each."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from hived.engines.local.engine import Engine
from hived.engines.local.explaining import explain, shortly
from hived.engines.local.model import Job, JobState
from hived.server.local_service import local_view

from .driver import STOPPED, WELL, Driver, is_in, job
from .living import Lives, ended, printed, shell


@pytest.fixture
def engine() -> Driver:
    return Driver()


def everything(engine: Driver, undo: bool = False) -> None:
    places = [("node", device) for device in range(8)]
    engine.do(lambda job_scheduler: job_scheduler.drain(places, undo, False, "the machine", engine.now))


def test_a_job_past_its_time_is_seen_to_be_stopped_before_its_grace_is_over(engine: Driver) -> None:
    slow = engine.submit(job("vision", 1, time_limit_s=60.0, grace_s=30.0))
    engine.wait(60.4)
    assert is_in(slow, JobState.RUNNING)  # its supervisor sees to it first
    engine.wait(0.2)
    assert is_in(slow, JobState.STOPPING)
    assert "it ran into its time limit of 60 s" in explain(engine.job_scheduler, slow, engine.now)
    engine.end(slow, STOPPED)
    assert is_in(slow, JobState.FAILED)
    assert "time limit of 60 s" in slow.reason


def test_the_time_of_one_attempt_is_not_that_of_the_next(engine: Driver) -> None:
    flaky = engine.submit(job("vision", 1, time_limit_s=60.0, retries=1, backoff_s=10.0))
    engine.wait(30)
    engine.end(flaky, {**WELL, "code": 1})
    engine.wait(40)  # at 61 s the first attempt would have had its time
    assert is_in(flaky, JobState.RUNNING)
    engine.wait(40)
    assert is_in(flaky, JobState.STOPPING)


def test_a_time_limit_outlives_a_restart(engine: Driver) -> None:
    slow = engine.submit(job("vision", 1, time_limit_s=60.0))
    engine.wait(30)
    engine.restart()
    engine.wait(31)
    assert is_in(engine.jobs[slow.id], JobState.STOPPING)


def test_what_is_drained_is_not_called_broken(engine: Driver) -> None:
    everything(engine)
    late = engine.submit(job("vision", 1))
    for text in (explain(engine.job_scheduler, late, engine.now), "; ".join(shortly(engine.job_scheduler, late))):
        assert "8 GPUs are drained by the machine's owner; hived drain --undo" in text
        assert "healthy" not in text
        assert "repaired" not in text


def test_what_is_broken_as_well_is_still_said(engine: Driver) -> None:
    everything(engine)
    engine.do(lambda job_scheduler: job_scheduler.set_health([("node", 0)], "NVML: lost", engine.now))
    late = engine.submit(job("vision", 1))
    assert "healthy" in explain(engine.job_scheduler, late, engine.now)


def test_tasks_are_counted_as_their_ranks_are(engine: Driver) -> None:
    gang, single = engine.submit(job("vision", 1, tasks=2)), engine.submit(job("speech", 1))
    text = explain(engine.job_scheduler, gang, engine.now)
    assert "- task 0: node" in text
    assert "- task 1: node" in text
    assert "- on node, GPU" in explain(engine.job_scheduler, single, engine.now)


def test_a_job_that_ended_while_no_engine_ran_ended_when_it_did(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "state")

    async def begin(engine: Engine) -> Job:
        found = engine.submit(shell("vision", "sleep 0.3"))
        await asyncio.sleep(0.05)
        return found

    async def later(engine: Engine) -> Job:
        (found,) = await ended(engine, engine.find("1"))
        return found

    file = tmp_path / "state" / "jobs" / "1" / "1" / "0" / "exit"
    try:
        lives.live(begin, killed=True)
        while not file.exists():
            time.sleep(0.02)
        time.sleep(0.7)
        found = lives.live(later)
    finally:
        lives.end()
    assert found.ended_at is not None
    assert found.ended_at < lives.engines[-1].started_at - 0.5


def test_one_tenants_queue_does_not_hide_anothers(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "state")

    async def story(engine: Engine) -> list[str]:
        for vc in ("research", "speech", "vision"):
            gpus = 4 if vc == "vision" else 2
            for _ in range(120):
                engine.submit(shell(vc, "sleep 60", gpus))
        engine.submit(shell("vision", "true", 8, priority=-1, name="loan"))
        await asyncio.sleep(0.05)
        queue = local_view(engine, "here").picture("live").queue
        for one in list(engine.job_scheduler.jobs.values()):
            engine.cancel(str(one.id))
        return [f"{waiting.vc}{waiting.priority:+d}" for waiting in queue]

    try:
        shown = lives.live(story)
    finally:
        lives.end()
    assert len(shown) == 200
    assert {*shown} == {"research+0", "speech+0", "vision+0", "vision-1"}
    assert min(shown.count(vc) for vc in ("research+0", "speech+0", "vision+0")) >= 66


def test_a_job_whose_folder_was_deleted_can_still_be_stopped(tmp_path: Path) -> None:
    lives = Lives(tmp_path / "state")

    async def story(engine: Engine) -> Job:
        found = engine.submit(shell("vision", "echo here; exec sleep 600", grace_s=0.2))
        await printed(engine, found, "here")
        shutil.rmtree(engine.task(found, 0).folder)
        engine.cancel("1")
        (found,) = await ended(engine, found)
        return found

    try:
        assert lives.live(story).state is JobState.CANCELLED
        assert not lives.marked()
    finally:
        lives.end()
