"""Real control groups: whatever a task has started ends with it, however it hides."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hived.engine.states import JobState
from hived.engines.local.engine import Engine
from hived.engines.local.fences import Fences
from hived.engines.local.model import Job

from .living import Lives, ended, lose_groups, printed, shell


@pytest.fixture
def made() -> Iterator[Fences]:
    fences = Fences("of-a-test")
    if fences.folder is None:
        pytest.skip("no control groups (version 2) can be made here")
    yield fences
    fences.close()


def alive(word: str) -> list[int]:
    """Processes with this word among their arguments."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if word in process.joinpath("cmdline").read_text().split("\0"):
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def groups(engine: Engine) -> list[str]:
    folder = engine._fences.folder
    assert folder is not None
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


async def running(engine: Engine, script: str) -> Job:
    job = engine.submit(shell("vision", script, grace_s=0.5))
    await printed(engine, job, "here")
    return job


def test_a_task_is_in_a_group_of_its_own(lives: Lives, made: Fences) -> None:
    async def story(engine: Engine) -> None:
        job = await running(engine, "cat /proc/self/cgroup; echo here; exec sleep 600")
        assert groups(engine) == [f"1.1.0.{job.spec.submission}"]
        assert f"/1.1.0.{job.spec.submission}\n" in await printed(engine, job, "here")
        engine.cancel("1")
        await ended(engine, job)
        assert groups(engine) == []

    lives.live(story)


def test_daemons_of_a_killed_supervisor(lives: Lives, made: Fences) -> None:
    """Without the mark in their environment, and in sessions of their own, they outlived it."""

    async def story(engine: Engine) -> None:
        job = await running(engine, "env -i setsid sleep 86399 & env -i setsid sleep 86399 & echo here; exec sleep 600")
        while len(alive("86399")) < 2:
            await asyncio.sleep(0.01)
        os.kill(engine.task(job, 0).pid, signal.SIGKILL)
        await ended(engine, job)
        assert "supervisor was killed" in job.reason
        assert alive("86399") == []
        assert groups(engine) == []

    lives.live(story)


def test_who_forks_faster_than_it_is_killed(lives: Lives, made: Fences) -> None:
    script = "f() { env -i setsid sh -c 'sleep 86398' & }; trap '' TERM; echo here; while :; do f; f; sleep 0.02; done"

    async def story(engine: Engine) -> None:
        job = await running(engine, script)
        while len(alive("86398")) < 20:
            await asyncio.sleep(0.01)
        engine.cancel("1")
        await ended(engine, job)
        assert job.state is JobState.CANCELLED
        assert alive("86398") == []
        assert groups(engine) == []

    lives.live(story)


def test_without_groups_tasks_run_as_before(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        engine._fences = engine._watching._fences = Fences("nothing", mounts=())
        job = await running(engine, "echo here")
        await ended(engine, job)
        assert job.state is JobState.SUCCEEDED

    lives.live(story)


def test_a_group_that_is_gone_keeps_no_task_from_starting(lives: Lives, made: Fences) -> None:
    async def story(engine: Engine) -> None:
        lose_groups(engine)
        job = await running(engine, "echo here")
        await ended(engine, job)
        assert job.state is JobState.SUCCEEDED

    lives.live(story)


def test_leftovers_of_several_levels_are_removed(made: Fences) -> None:
    group = made.make(1, 1, 0)
    assert group is not None
    (group / "inner" / "most").mkdir(parents=True)
    made.end(1, 1, 0)
    assert not group.exists()


def test_a_copy_ends_no_group_of_the_original(lives: Lives, made: Fences, tmp_path: Path) -> None:
    """It has the same database, and gives its jobs the same numbers."""
    lives.ran(shell("vision", "true"))
    copied = Lives(tmp_path / "copy")
    shutil.copytree(lives.folder, copied.folder)

    async def story(engine: Engine) -> None:
        job = await running(engine, "echo here; exec sleep 600")

        async def other(theirs: Engine) -> None:
            (done,) = await ended(theirs, theirs.submit(shell("vision", "true")))
            assert (done.id, done.state) == (job.id, JobState.SUCCEEDED)

        await asyncio.to_thread(copied.live, other)
        await asyncio.sleep(0)
        assert job.state is JobState.RUNNING
        engine.cancel(str(job.id))
        await ended(engine, job)

    lives.live(story)
