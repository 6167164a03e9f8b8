"""What a task's folder says, whatever is in it: it may have been left by a kill, by another machine, or by the task."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import json
import os
import select
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from hived.engines.local import environment, supervisor, tasks
from hived.engines.local.environment import MARK, kill_marked
from hived.engines.local.fences import Fences
from hived.engines.local.tasks import Ending, Liveness, Task, Watching, Work

from .real import PATIENCE_S, RealTask, marked, until


@pytest.fixture
def old(task: RealTask) -> RealTask:
    """One that has been claimed, and whose supervisor is gone."""
    task.ready("true")
    claim(task, 2**22 + 1)
    return task


def claim(task: Task, pid: int, world: str | None = None, mark: str | None = None) -> None:
    words = f"{pid} {world or supervisor.world()} {task.mark if mark is None else mark}"
    (task.folder / "claim").write_text(f"{words}\n")


# -- watching and telling -----------------------------------------------------------------------------------------


def test_supervisor_is_watched_to_its_end(task: RealTask) -> None:
    task.shell("echo here; sleep 600").started()
    fd = task.watch()
    assert fd is not None
    task.stop()
    assert select.select([fd], [], [], PATIENCE_S)[0]
    task.end()
    os.close(fd)
    assert task.watch() is None


def test_closed_engine_leaves_its_supervisors_in_peace(task: RealTask) -> None:
    """They run on when it is closed: no warning says that one was forgotten, and the next engine reaps it."""
    work = Work(("sleep", "600"), "/", {"PATH": os.environ["PATH"], MARK: task.mark}, 1.0, None)

    async def story() -> None:
        watching = Watching(lambda *_: None, Fences("test", mounts=()))
        watching.open()
        watching.ensure((1, 1, 0), task, lambda: work, inherited=False, replaced=False)
        while task.liveness() is not Liveness.ALIVE:
            await asyncio.sleep(0.005)
        watching.close()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(story())
        gc.collect()
    (child,) = [child for child in tasks._running_on if child.poll() is None and str(task.folder) in str(child.args)]
    told = [str(one.message) for one in found if issubclass(one.category, ResourceWarning)]
    assert not [text for text in told if f"subprocess {child.pid} " in text]  # others are of other tests
    task.stop(0.0)
    child.wait()


def test_pid_of_another_world_is_not_told(task: RealTask) -> None:
    """The claim is locked, so somebody runs the task; who has its pid here is somebody else."""
    task.shell("echo here; exec sleep 600").started()
    pid, claim_of = task.pid, (task.folder / "claim").read_text()
    with subprocess.Popen(["sleep", "600"]) as bystander:
        (task.folder / "claim").write_text(claim_of.replace(str(pid), str(bystander.pid), 1))
        assert task.liveness() is Liveness.ALIVE
        assert task.watch() is None
        task.stop(0.0)
        assert bystander.poll() is None
        bystander.kill()
    (task.folder / "claim").write_text(claim_of)
    task.stop(0.0)


def test_reused_pid_is_no_supervisor(old: RealTask) -> None:
    with subprocess.Popen(["sleep", "600"]) as bystander:
        claim(old, bystander.pid)
        assert old.watch() is None
        old.stop()
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.parametrize("text", ["", "0 x", "-1 x", "a b", "1", "9" * 30 + " x", "\udcff"])
def test_unreadable_claim_is_no_supervisors(old: RealTask, text: str) -> None:
    (old.folder / "claim").write_bytes(os.fsencode(text))
    assert old.watch() is None
    old.stop()
    assert old.liveness() is Liveness.LOST
    assert old.ending().lost


def test_full_disk_keeps_no_task_from_being_stopped(task: RealTask, monkeypatch: pytest.MonkeyPatch) -> None:
    # writing the stop file failed, and no signal was sent: the job that had filled the disk could not be stopped
    opened = os.open

    def no_room_to_stop(path: Path, *rest: int, **more: int) -> int:
        if Path(path).name == "stop":
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "open", no_room_to_stop)
    task.shell("echo here; exec sleep 600")
    with pytest.raises(OSError, match="No space"):
        task.stop()
    task.started().stop()
    assert task.end().stopped


def test_task_claimed_while_stopped_does_not_begin(task: RealTask, monkeypatch: pytest.MonkeyPatch) -> None:
    task.shell("echo began; exec sleep 600")
    look = task.watch

    def just_before() -> int | None:
        """The look sees no supervisor; then comes one."""
        seen = look()
        task.start()
        until(lambda: task.supervisors[0].poll() is not None or task.output.exists())
        return seen

    monkeypatch.setattr(task, "watch", just_before)
    task.stop()
    assert not task.output.read_bytes()
    assert task.end().stopped


def test_scarce_files_do_not_make_a_task_lost(task: RealTask, monkeypatch: pytest.MonkeyPatch) -> None:
    task.shell("echo here; exec sleep 600").started()

    def scarce(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", scarce)
        with pytest.raises(OSError, match="Too many"):
            task.liveness()
    assert task.liveness() is Liveness.ALIVE


@pytest.mark.parametrize("version", ["this", "the last"])
def test_claim_of_another_submission(task: RealTask, version: str) -> None:
    """Its end and its supervisor are none of this task, whatever the number of the folder is."""
    task.shell("echo here; exec sleep 600").started()
    if version == "the last":  # the mark was in the work alone; the claim is written in place, so it stays locked
        claim(task, task.pid, mark="")
    again = Task(task.folder, "database/submission.1.0@2.5")
    assert again.liveness() is Liveness.FOREIGN
    assert again.watch() is None
    assert task.liveness() is Liveness.ALIVE
    task.stop()
    assert task.end().stopped
    assert again.liveness() is Liveness.FOREIGN
    assert again.ending() == Ending(137, error=f"{task.folder} has the files of another job", lost=True)


def test_copied_claim_is_not_killed_for(task: RealTask, tmp_path: Path) -> None:
    """A copy of its folder does not have the lock, and was taken for a task whose supervisor was killed."""
    task.shell("echo here; exec sleep 600").started()
    shutil.copytree(task.folder, tmp_path / "copy")
    copy = Task(tmp_path / "copy", task.mark)
    assert copy.liveness() is Liveness.ELSEWHERE
    assert copy.watch() is None
    assert copy.ending().lost
    os.kill(task.pid, 9)
    task.supervisors[0].wait(PATIENCE_S)
    assert copy.liveness() is Liveness.LOST


# -- how it ended -------------------------------------------------------------------------------------------------


def written(task: Task, /, **more: object) -> Ending:
    """Its ending, where its supervisor has written this."""
    plain = {"code": 143, "signal": 15, "stopped": True, "limit": False, "error": None, "started": 1.0, "ended": 2.0}
    (task.folder / "exit").write_text(json.dumps({**plain, **more}))
    return task.ending()


def test_supervisor_of_the_version_before_reads_the_stop(old: RealTask) -> None:
    """It reads 64 bytes: a grace, and a signal, which are followed by a mark that may be cut."""
    old.mark = "database/" + "x" * 100
    for grace, first, words in ((None, 15, ("inf", "15")), (2.5, 10, ("2.5", "10"))):
        old.stop(grace, first)
        read = (old.folder / "stop").read_bytes()[:64].split()
        assert tuple(word.decode() for word in read[:2]) == words


def test_end_of_another_task_is_none(old: RealTask) -> None:
    """Numbers of jobs come again, in another database; the version before did not say whose end it was."""
    assert written(old, task=old.mark).code == written(old).code == 143
    assert written(old, task="database/another.1.0").lost


def test_claim_of_this_boot_was_killed(old: RealTask) -> None:
    """It says what its supervisor said last."""
    (old.folder / "supervisor.log").write_text("Traceback\n" * 100_000 + "OSError: oh\n\n")
    assert old.ending() == Ending(137, error="its supervisor was killed: OSError: oh", lost=True)
    assert not written(old).rebooted


def test_claim_of_another_boot(old: RealTask) -> None:
    # an orderly reboot sends SIGTERM to every process: such a task was taken for one that had failed
    claim(old, 1, "another")
    assert old.ending() == Ending(137, error="the machine was started anew under it", lost=True, rebooted=True)
    ending = written(old)
    assert (ending.rebooted, ending.error) == (True, "the machine was shut down under it")
    assert not written(old, stopped=False, code=1, signal=None).rebooted
    assert not written(old, limit=True).rebooted


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "3", '"code"', "{}", '{"code": "0"}', '{"code": null}', '{"code": true}',
        '{"code": 0, "more": 1}', '{"code": 0, "error": {}}', '{"code": 0, "stopped": "yes"}',
        '{"code": 0, "started": "now"}', "[" * 100_000, "\0" * 100, '{"code": 0' + " " * 1_000_000 + "}",
    ],
)  # fmt: skip
def test_end_by_no_supervisor_counts_for_nothing(old: RealTask, text: str) -> None:
    (old.folder / "exit").write_text(text)
    assert old.liveness() is Liveness.ENDED
    assert old.ending().lost


IN_ITS_PLACE: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,  # it would have held up the engine for good
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("made", IN_ITS_PLACE.values(), ids=IN_ITS_PLACE)
@pytest.mark.parametrize("name", ["exit", "claim", "supervisor.log"])
def test_reading_never_blocks(old: RealTask, name: str, made: Callable[[Path], None]) -> None:
    path = old.folder / name
    path.unlink(missing_ok=True)
    made(path)
    assert old.liveness() in (Liveness.LOST, Liveness.ENDED), "it is no reason to run the task again"
    assert old.ending().lost
    assert old.watch() is None
    old.never_started()


def test_task_that_deletes_its_claim(task: RealTask) -> None:
    # it had run to its end, and was said never to have started
    task.shell(f"rm {task.folder}/claim; exit 3")
    assert task.spawn().wait() == 0
    assert task.liveness() is Liveness.UNCLAIMED
    assert task.never_started().code == 3


def test_error_can_always_be_encoded(old: RealTask) -> None:
    assert str(written(old, error="\ud800", code=127).error).encode() == b"?"


def test_lock_by_the_task_itself_hides_no_end(old: RealTask) -> None:
    with (old.folder / "claim").open() as claimed:
        fcntl.flock(claimed, fcntl.LOCK_EX)
        assert old.liveness() is Liveness.ALIVE
        assert old.watch() is None
        assert written(old, stopped=False, code=0, signal=None).code == 0


# -- clearing -----------------------------------------------------------------------------------------------------


def test_only_the_whole_mark_is_killed(task: RealTask) -> None:
    marks = [task.mark, task.mark + "0", "x" + task.mark]
    processes = [subprocess.Popen(["sleep", "600"], env={MARK: mark, "PATH": os.environ["PATH"]}) for mark in marks]
    try:
        until(lambda: all(marked(mark) for mark in marks))
        kill_marked(task.mark)
        assert [process.poll() for process in processes] == [-9, None, None]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_process_that_keeps_forking_is_killed(task: RealTask, tmp_path: Path) -> None:
    program = """
import os, time
for n in range(60):  # bounded
    if os.fork():
        time.sleep(600)
    time.sleep(0.002)
    if n == 5:
        open("far", "w").close()
time.sleep(600)
"""
    command = [sys.executable, "-S", "-c", program]
    environment = {MARK: task.mark, "PATH": os.environ["PATH"]}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    until((tmp_path / "far").exists)
    kill_marked(task.mark)
    first.wait()
    assert not marked(task.mark)


def test_process_in_the_middle_of_an_exec_is_killed(task: RealTask, tmp_path: Path) -> None:
    # in the middle of execve(2) a process shows no environment: what a lost task had left was passed over, and ran on
    program = tmp_path / "becomes"
    program.write_text('#!/bin/sh\nexec "$0"\n')
    program.chmod(0o755)
    for _ in range(40):
        process = subprocess.Popen([program], env={MARK: task.mark, "PATH": os.environ["PATH"]})
        try:
            kill_marked(task.mark)
            assert process.wait(PATIENCE_S) == -9
        finally:
            process.kill()
            process.wait()


def test_an_environment_without_end(tmp_path: Path) -> None:
    """A process may say that its environment has any length, and root read all of it."""
    endless = tmp_path / "1"
    endless.mkdir()
    with (endless / "environ").open("wb") as file:
        file.truncate(1 << 40)
    assert sum(map(len, environment._environment(endless, 0.0))) <= 8 << 20
