"""Whose a state folder and its files are: databases emptied or restored, folders copied or moved."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hived import ConflictError
from hived.engine.job import JobFilter
from hived.engine.states import JobState
from hived.engines.local import ownership
from hived.engines.local.engine import Engine
from hived.engines.local.environment import kill_marked
from hived.engines.local.model import Job
from hived.engines.local.ownership import Home
from hived.engines.local.store import Store, database_at
from hived.engines.local.tasks import Liveness, Task
from hived.errors import NotFoundError, StorageError
from hived.server.local_service import LocalService

from .driver import shares
from .living import STAYS, Lives, ended, printed, running, shell
from .real import lives as alive
from .real import until

#: the database as the last version without ids of submissions has left it: an ended, a running and a waiting job
THIRD_VERSION = (Path(__file__).parent / "third_version.sql").read_text(encoding="utf-8")
ASIDE, ADOPT = {"set_aside": True}, {"adopt_copy": True}


async def nothing(_: Engine) -> None:
    """A life in which nothing happens."""


def refused(lives: Lives, *words: str, **takes: bool) -> str:
    with pytest.raises(ConflictError) as found:
        lives.live(nothing, takes=takes)
    text = str(found.value)
    assert text.startswith(str(lives.folder))
    for word in words:
        assert word in text, text
    return text


def pid_of(lives: Lives, job: Job) -> int:
    """The supervisor of a job that runs, in the last life."""
    return lives.engines[-1].task(job, 0).pid


def output(lives: Lives, job: Job) -> str:
    async def story(engine: Engine) -> str:
        return LocalService(engine).log(str(job.id), 0, None, 0, 1000).text

    found: str = lives.live(story)
    return found


# -- files of jobs that the database does not know ----------------------------------------------------------------


def deleted(folder: Path, before: Path) -> None:
    for path in folder.glob("hived.db*"):
        path.unlink()


def emptied(folder: Path, before: Path) -> None:
    deleted(folder, before)
    (folder / "hived.db").touch()


def restored(folder: Path, before: Path) -> None:
    shutil.copy(before, folder / "hived.db")


@pytest.mark.parametrize("how", [deleted, emptied, restored], ids=lambda how: str(how.__name__))
def test_job_has_its_own_output(lives: Lives, tmp_path: Path, how: Callable[[Path, Path], None]) -> None:
    # the new job took the number of an old one, "succeeded" without running, and showed the old one's output
    lives.live(nothing)
    shutil.copy(lives.folder / "hived.db", tmp_path / "before")
    old = lives.ran(shell("vision", "echo old; touch $HIVED_JOB_DIR/old"))
    how(lives.folder, tmp_path / "before")
    refused(lives, "hived.db has 0 jobs", "knows nothing of jobs/1", "--set-aside-jobs")
    refused(lives)  # and not only the first time
    assert (lives.folder / "jobs" / "1" / "1" / "0" / "output").read_text() == "old\n"
    new = lives.ran(shell("vision", "ls $HIVED_JOB_DIR; echo new"), takes=ASIDE)
    assert (new.state, new.id) == (JobState.SUCCEEDED, old.id + 1)
    assert output(lives, new) == "new\n"
    (aside,) = (lives.folder / "jobs").glob("set-aside-*")
    assert (aside / "1" / "1" / "0" / "output").read_text() == "old\n"
    assert (aside / "1" / "shared" / "old").exists()


def test_unknown_jobs_run_on(lives: Lives, tmp_path: Path) -> None:
    """They are named, and left alone, whatever becomes of the jobs that come."""
    lives.live(nothing)
    shutil.copy(lives.folder / "hived.db", tmp_path / "before")
    (old,) = lives.killed_with(shell("vision", STAYS))
    pid = pid_of(lives, old)
    restored(lives.folder, tmp_path / "before")
    refused(lives, f"pid {pid} still run")
    refused(lives, f"pid {pid} still run")

    async def story(engine: Engine) -> Job:
        new = engine.submit(shell("vision", "echo here; kill -9 $PPID; sleep 600"))
        return (await ended(engine, new))[0]

    new = lives.live(story, takes=ASIDE)
    assert (new.state, new.id) == (JobState.FAILED, 2)
    assert "supervisor was killed" in new.reason
    assert alive(pid)


def test_unknown_attempts_of_a_known_job(lives: Lives, tmp_path: Path) -> None:
    """Numbers of attempts come again too."""
    (job,) = lives.killed_with(shell("vision", STAYS))
    shutil.copy(lives.folder / "hived.db", tmp_path / "before")

    async def again(engine: Engine) -> None:
        engine.drain(None, None, False, True)
        engine.drain(None, None, True, False)
        while engine.find("1").attempt < 2:
            await engine.changed(engine.last_event)
        await printed(engine, engine.find("1"), "here")

    lives.live(again, killed=True)
    pid = Task(lives.folder / "jobs" / "1" / "2" / "0").pid
    restored(lives.folder, tmp_path / "before")
    refused(lives, "knows nothing of jobs/1/2", f"pid {pid}")
    (job,) = lives.see_end(job, takes=ASIDE)
    assert (job.state, job.attempt) == (JobState.FAILED, 1)  # it was stopped before, by an engine of its future
    assert alive(pid)


def test_files_of_another_database_under_known_numbers(lives: Lives, tmp_path: Path) -> None:
    """A job that runs is not taken for ended, and no log shows what another job has printed."""
    done, _ = lives.killed_with(shell("vision", "echo here"), shell("vision", STAYS))
    lives.see_end(done, killed=True)
    other = Lives(tmp_path / "other")
    other.killed_with(shell("vision", "echo here"), shell("vision", "echo here"))
    theirs = [Task(other.folder / "jobs" / number / "1" / "0") for number in "12"]
    until(lambda: all(task.liveness() is Liveness.ENDED for task in theirs))
    other.end()
    shutil.rmtree(lives.folder / "jobs")
    shutil.copytree(other.folder / "jobs", lives.folder / "jobs")
    refused(lives, "knows nothing of jobs/1, jobs/2", "--set-aside-jobs")

    async def story(engine: Engine) -> None:
        with pytest.raises(NotFoundError, match="the files of job-1 are not there any more"):
            LocalService(engine).log(str(done.id), 0, None, 0, 1000)
        engine.cancel("2")
        await ended(engine, engine.find("2"))

    lives.live(story, takes=ASIDE)
    other.end()


def test_folder_of_the_version_without_ids(lives: Lives) -> None:
    """Its jobs go on under their own marks; one of another database is none of them."""
    folder = lives.folder
    folder.mkdir()
    with closing(sqlite3.connect(folder / "hived.db")) as db:
        db.executescript(THIRD_VERSION)
    lives.spec = shares(("vision", 2), devices=2, node="vm")
    for number, printed_, exit_ in (("1", "one\n", {"code": 0}), ("2", "two\n", {"code": 0})):
        task = folder / "jobs" / number / "1" / "0"
        task.mkdir(parents=True)
        mark = f"6e1b673d2ca2/{number}.1.0"
        (task / "task.json").write_text(json.dumps({"environment": {"HIVED_TASK": mark}}))
        (task / "claim").write_text(f"{2**22 + 1} world:1\n")
        (task / "output").write_text(printed_)
        (task / "exit").write_text(json.dumps(exit_))

    async def story(engine: Engine) -> list[Job]:
        return await ended(engine, engine.find("2"), engine.find("3"))

    two, three = lives.live(story)
    assert (two.state, two.attempt) == (JobState.SUCCEEDED, 1)
    assert (three.state, three.attempt) == (JobState.SUCCEEDED, 1)
    for identity, text in ((1, "one\n"), (2, "two\n"), (3, "three\n")):
        with lives.store() as store:
            job = store.job(str(identity))
        assert job is not None
        assert output(lives, job) == text
    assert lives.ran(shell("vision", "true")).id == 4


# -- jobs/ without the files of tasks that run ----------------------------------------------------------------------


def moved_away(jobs: Path) -> None:
    jobs.rename(jobs.parent / "elsewhere")


def removed(jobs: Path) -> None:
    shutil.rmtree(jobs)


def from_a_copy(jobs: Path) -> None:
    shutil.copytree(jobs, jobs.parent / "copy")
    shutil.rmtree(jobs)
    (jobs.parent / "copy").rename(jobs)


@pytest.mark.parametrize("how", [moved_away, removed, from_a_copy], ids=lambda how: str(how.__name__))
def test_tasks_run_without_their_folders(lives: Lives, how: Callable[[Path], None]) -> None:
    # they were killed and started again without a word; without its mark, one ran twice on its GPU
    unmarked = shell("vision", "exec env -i sh -c 'echo here; sleep 600'")
    (job,) = lives.killed_with(unmarked)
    task = lives.engines[-1].task(job, 0)
    pid = task.pid
    how(lives.folder / "jobs")
    refused(lives, f"jobs was deleted, replaced or unmounted while tasks ran: pid {pid} still run", f"kill {pid}")
    refused(lives, f"pid {pid}", **ADOPT)
    assert alive(pid)
    if how is moved_away:
        (lives.folder / "elsewhere").rename(lives.folder / "jobs")
        goes_on(lives, job)
        return
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
    if how is from_a_copy:
        assert "supervisor was killed" in lives.see_end(job)[0].reason
        return

    async def story(engine: Engine) -> Job:
        while engine.find("1").attempt < 2:
            await engine.changed(engine.last_event)
        engine.cancel("1")
        return (await ended(engine, engine.find("1")))[0]

    assert lives.live(story).attempt == 2
    assert any("its files are gone" in str(event.data.get("why")) for event in lives.events())


def test_task_that_deletes_its_folder_is_followed(lives: Lives) -> None:
    """Nobody else's engine is kept from its start by that, and it runs once."""
    go = lives.folder.parent / "go"
    script = (
        f"echo here; until [ -e {go} ]; do sleep 0.02; done; cd /; rm -rf $HIVED_JOB_DIR/../1; exec env -i sleep 600"
    )
    lives.killed_with(shell("vision", script, grace_s=0.2))
    go.touch()
    until(lambda: not (lives.folder / "jobs" / "1" / "1").exists())

    async def story(engine: Engine) -> Job:
        found = engine.find("1")
        assert (found.state, found.attempt) == (JobState.RUNNING, 1)
        assert (1, 1, 0) in engine._watching._watched
        engine.cancel("1")
        return (await ended(engine, found))[0]

    assert lives.live(story).state is JobState.CANCELLED


def test_task_that_deletes_its_claim_is_followed(lives: Lives) -> None:
    script = "rm $HIVED_JOB_DIR/../1/0/claim; echo here; exec env -i sleep 600"
    lives.killed_with(shell("vision", script, grace_s=0.2))

    async def story(engine: Engine) -> Job:
        (other,) = await running(engine, shell("speech", "rm $HIVED_JOB_DIR/../1/0/claim; echo here; exec sleep 600"))
        engine.cancel(str(other.id))  # it could never be stopped
        await ended(engine, other)
        assert engine.find("1").attempt == 1
        engine.cancel("1")
        return (await ended(engine, engine.find("1")))[0]

    assert lives.live(story).state is JobState.CANCELLED


def test_label_that_cannot_be_written(tmp_path: Path) -> None:
    """On a full disk: the next start is not told that the files are gone."""
    assert ownership.label(tmp_path / "full", None) == (False, None)
    os.mkfifo(tmp_path / ".label")
    assert ownership.label(tmp_path, "known")[0], "and it waits for nobody"


# -- copies -------------------------------------------------------------------------------------------------------


def copied(lives: Lives, name: str = "copy") -> Lives:
    """A copy of the folder, as it is now."""
    folder = lives.folder.parent / name
    shutil.copytree(lives.folder, folder)
    return Lives(folder)


def goes_on(lives: Lives, job: Job) -> None:
    """The job is where it was: it runs, in its first attempt."""

    async def story(engine: Engine) -> Job:
        found = engine.find(str(job.id))
        assert engine.task(found, 0).liveness() is Liveness.ALIVE
        return found

    found = lives.live(story)
    assert (found.state, found.attempt) == (JobState.RUNNING, 1)


def test_copy_touches_nothing_of_the_original(lives: Lives) -> None:
    # a copy of the folder, started, killed the jobs of the original
    (job,) = lives.killed_with(shell("vision", STAYS))
    copy = copied(lives)
    refused(copy, f"is a copy of {lives.folder}", "jobs (1, 1 of them running)", "--adopt-copy")
    refused(copy, f"its original is still there: {lives.folder}", **ADOPT)
    assert alive(pid_of(lives, job))
    goes_on(lives, job)


def test_copy_takes_over_from_an_original_that_is_gone(lives: Lives) -> None:
    (job,) = lives.killed_with(shell("vision", STAYS, retries=1, backoff_s=0.01))
    copy = copied(lives)
    pid, mark = pid_of(lives, job), lives.engines[-1].task(job, 0).mark
    shutil.rmtree(lives.folder)
    refused(copy, "still run: pid ", "end them first", **ADOPT)
    assert alive(pid)
    kill_marked(mark)
    until(lambda: not alive(pid))

    async def story(engine: Engine) -> None:
        while engine.find("1").attempt < 2:
            await engine.changed(engine.last_event)
        await printed(engine, engine.find("1"), "here")
        engine.cancel("1")
        await ended(engine, engine.find("1"))

    copy.live(story, takes=ADOPT)
    copy.live(nothing)  # it is the folder of its jobs from now on


def test_copy_without_jobs_is_a_folder(lives: Lives) -> None:
    lives.ran(shell("vision", "echo old"))
    copy = copied(lives)
    assert copy.ran(shell("vision", "true")).id == 2
    copy.live(nothing)


def test_moved_folder_is_the_same(lives: Lives) -> None:
    (job,) = lives.killed_with(shell("vision", STAYS))
    pid = pid_of(lives, job)
    lives.folder = lives.folder.rename(lives.folder.parent / "moved")
    goes_on(lives, job)
    assert alive(pid)


def test_restored_in_its_place(lives: Lives) -> None:
    """The same path, and another folder: the one with the jobs was moved away."""
    (job,) = lives.killed_with(shell("vision", STAYS))
    pid = pid_of(lives, job)
    original = lives.folder.rename(lives.folder.parent / "original")
    shutil.copytree(original, lives.folder)
    refused(lives, "is a copy of another folder")
    refused(lives, "still run: pid ", **ADOPT)
    assert alive(pid)
    shutil.rmtree(lives.folder)
    lives.folder = original
    goes_on(lives, job)


def test_copy_of_a_folder_that_does_not_know_itself(lives: Lives) -> None:
    """One of an earlier version: its supervisors say where they run."""
    (job,) = lives.killed_with(shell("vision", STAYS))
    with closing(sqlite3.connect(lives.folder / "hived.db")) as db:
        db.execute("DELETE FROM meta WHERE name = 'home'")
        db.commit()
    refused(copied(lives), "is a copy of another folder")
    assert alive(pid_of(lives, job))
    goes_on(lives, job)


#: a folder that was /s, inode 7 of device 1, in the first boot of machine m
BEFORE = Home("/s", 1, 7, "m", "boot")


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({}, True),
        ({"path": "/moved"}, True),
        ({"inode": 8}, False),  # restored under jobs that run
        ({"device": 2}, False),
        ({"machine": "n"}, False),
        ({"machine": ""}, True),  # a container that has no id
        ({"boot": "next"}, True),
        ({"boot": "next", "device": 2}, True),
        ({"boot": "next", "inode": 8}, True),  # restored after the machine went down
        ({"boot": "next", "path": "/moved"}, True),
        ({"boot": "next", "path": "/copy", "inode": 8}, False),
        ({"boot": "next", "machine": "n"}, False),
    ],
)
def test_what_makes_a_folder_the_same(changed: dict[str, Any], same: bool) -> None:
    now = Home(**{**asdict(BEFORE), **changed})
    assert BEFORE.is_now(now, "mark") is same


def test_folder_of_another_machine(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that both machines see: its jobs run there."""
    (job,) = lives.killed_with(shell("vision", STAYS))
    with monkeypatch.context() as there:
        there.setattr(ownership, "_machine", lambda: "another")
        refused(lives, "on another machine", "--adopt-copy")
    goes_on(lives, job)


def test_original_found_after_a_boot(tmp_path: Path) -> None:
    """A folder with the inode of the original is a copy all the same where the original is at its place."""
    now = Home(str(tmp_path / "copy"), 1, 7, "m", "next")
    assert not Home(str(tmp_path), 1, 7, "m", "boot").is_now(now, "mark")


@pytest.mark.parametrize("boot", [None, "next"])
def test_another_engine_is_where_the_original_was(
    lives: Lives, boot: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was called the original, to be started or deleted: its database says that it is not."""
    (job,) = lives.killed_with(shell("vision", STAYS, retries=1, backoff_s=0.01))
    copy = copied(lives)
    pid, mark = pid_of(lives, job), lives.engines[-1].task(job, 0).mark
    kill_marked(mark)
    until(lambda: not alive(pid))
    shutil.rmtree(lives.folder)
    Lives(lives.folder).ran(shell("speech", "true"))
    if boot is not None:
        monkeypatch.setattr(ownership, "world", lambda: f"{boot}:1")
    assert database_at(copy.folder / "jobs") is None
    assert not (copy.folder / "jobs" / "hived.db").exists(), "nothing is made by looking"
    text = refused(copy, f"is a copy of the folder that was {lives.folder}, where another engine has its own now")
    assert "delete" not in text
    assert "start" not in text

    async def story(engine: Engine) -> None:
        engine.cancel("1")
        await ended(engine, engine.find("1"))

    copy.live(story, takes=ADOPT)


def test_database_of_another_engine_whose_jobs_have_ended(lives: Lives, tmp_path: Path) -> None:
    """Their numbers are known there, and so the GPUs of those that run here were given a second time."""
    other = Lives(tmp_path / "other")
    other.see_end(*other.killed_with(shell("vision", "echo here"), shell("vision", "echo here")), killed=False)
    jobs = lives.killed_with(shell("vision", STAYS), shell("speech", STAYS))
    for path in lives.folder.glob("hived.db*"):
        path.rename(tmp_path / path.name)
    for path in other.folder.glob("hived.db*"):
        shutil.copy(path, lives.folder / path.name)
    refused(lives, "knows nothing of jobs/1, jobs/2", "of which pid", "still run", "--set-aside-jobs")
    for path in lives.folder.glob("hived.db*"):
        path.unlink()
    for path in tmp_path.glob("hived.db*"):
        path.rename(lives.folder / path.name)

    async def story(engine: Engine) -> None:
        for job in jobs:
            assert engine.find(str(job.id)).state is JobState.RUNNING
            engine.cancel(str(job.id))
            await ended(engine, engine.find(str(job.id)))

    lives.live(story)
    other.end()


def test_log_without_its_database_is_kept(lives: Lives, tmp_path: Path) -> None:
    """A new database would be made in the place of the one that is away, and the log of that be lost with it."""
    lives.ran(shell("vision", "true"))
    database, log_ = lives.folder / "hived.db", lives.folder / "hived.db-wal"
    database.rename(tmp_path / "away")
    log_.write_bytes(b"what was stored last")
    for there, is_made in (("is not there", False), ("is empty", True)):
        if is_made:
            database.touch()
        with pytest.raises(StorageError, match=f"hived.db {there}, and hived.db-wal has what was stored in it last"):
            lives.live(nothing)
        assert log_.read_bytes() == b"what was stored last"
        assert not database.exists() or not database.stat().st_size


def test_moved_folder_whose_jobs_are_taken_away(lives: Lives) -> None:
    """The supervisor says the path that the folder had before: it was not found, and its job was killed."""
    (job,) = lives.killed_with(shell("vision", STAYS))
    pid = pid_of(lives, job)
    lives.folder = lives.folder.rename(lives.folder.parent / "moved")
    lives.live(nothing, killed=True)
    jobs = lives.folder / "jobs"
    moved_away(jobs)
    refused(lives, f"jobs was deleted, replaced or unmounted while tasks ran: pid {pid} still run", f"kill {pid}")
    assert alive(pid)
    shutil.rmtree(jobs, ignore_errors=True)
    (lives.folder / "elsewhere").rename(jobs)
    goes_on(lives, job)


def test_folder_in_the_place_of_a_moved_one(lives: Lives, tmp_path: Path) -> None:
    """Its jobs are at the paths that supervisors of the moved one were started with; they are not theirs."""
    lives.killed_with(shell("vision", STAYS))
    moved = Lives(tmp_path / "moved")
    lives.folder.rename(moved.folder)
    (job,) = lives.killed_with(shell("vision", STAYS))
    theirs, task = (Task(one.folder / "jobs" / "1" / "1" / "0") for one in (moved, lives))
    os.kill(task.pid, signal.SIGKILL)
    until(lambda: task.liveness() is Liveness.LOST)

    async def story(engine: Engine) -> None:
        (found,) = await ended(engine, engine.find("1"))
        assert (found.id, found.state) == (job.id, JobState.FAILED)
        assert "its supervisor was killed" in found.reason

    lives.live(story)
    assert theirs.liveness() is Liveness.ALIVE, "the job of the moved folder runs on"

    async def end(engine: Engine) -> None:
        engine.cancel("1")
        await ended(engine, engine.find("1"))

    moved.live(end)


def test_older_database_whose_newer_jobs_have_no_files(lives: Lives, tmp_path: Path) -> None:
    """What was cancelled would be in line again, and what was submitted be gone, without a word."""

    async def first(engine: Engine) -> None:
        for _ in range(2):
            engine.submit(shell("vision", STAYS, gpus=4))
        await printed(engine, engine.find("1"), "here")

    async def second(engine: Engine) -> None:
        engine.cancel("2")
        engine.submit(shell("vision", STAYS, gpus=4))

    lives.live(first)
    shutil.copy(lives.folder / "hived.db", tmp_path / "before")
    lives.live(second)
    for path in lives.folder.glob("hived.db*"):
        path.rename(tmp_path / path.name)
    shutil.copy(tmp_path / "before", lives.folder / "hived.db")
    refused(lives, "hived.db is older than the files of its jobs: its last event is number", "--set-aside-jobs")
    for path in lives.folder.glob("hived.db*"):
        path.unlink()
    for path in tmp_path.glob("hived.db*"):
        shutil.copy(path, lives.folder / path.name)
    assert lives.live(states_of) == {1: "running", 2: "cancelled", 3: "queued"}
    for path in lives.folder.glob("hived.db*"):
        path.unlink()
    shutil.copy(tmp_path / "before", lives.folder / "hived.db")
    assert lives.live(states_of, takes=ASIDE) == {1: "running", 2: "queued"}
    assert lives.live(states_of) == {1: "running", 2: "queued"}, "it is the newest from then on"


async def states_of(engine: Engine) -> dict[int, str]:
    return {job.id: job.state.value for job in engine.store.jobs(JobFilter(), 100, None)[0]}


def test_folder_of_links_to_another(lives: Lives, tmp_path: Path) -> None:
    """Two engines wrote one database: each numbered its events as if it were alone."""
    linked = tmp_path / "linked"
    linked.mkdir()
    with lives.store():
        for name in ("hived.db", "jobs"):
            (linked / name).symlink_to(lives.folder / name)
        with pytest.raises(ConflictError, match=f"another engine has {lives.folder / 'hived.db'}; give its own folder"):
            Store(linked)
    Store(linked).close()
