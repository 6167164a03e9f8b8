"""Real control groups: whatever a task has started ends with it, however it hides."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hived.engine.states import JobState
from hived.engines.local import delegation
from hived.engines.local.engine import Engine
from hived.engines.local.fences import Fence, Fences
from hived.engines.local.model import Job
from hived.errors import InputError

from .living import STAYS, Lives, ended, lose_groups, printed, shell
from .living import running as running_all


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


def test_daemons_in_no_group_of_a_killed_supervisor(lives: Lives) -> None:
    """And what these have started: their supervisor has written which it had. Others run on."""

    async def story(engine: Engine) -> None:
        engine._fences = engine._watching._fences = Fences("nothing", mounts=())
        daemon = "(env -i setsid sh -c 'sleep 86395 & sleep 86395' &)"
        job = await running(engine, f"{daemon}; echo here; exec sleep 600")
        other = await running(engine, "(env -i setsid sleep 86394 &); echo here; exec sleep 600")
        adopted = [engine.task(one, 0).folder / "adopted" for one in (job, other)]
        while not all(file.exists() and len(file.read_text().split()) == 3 for file in adopted):
            await asyncio.sleep(0.02)
        while len(alive("86395")) < 2:
            await asyncio.sleep(0.01)
        # of another task, as in a copy of its folder: not ended
        other_lines = adopted[1].read_text()
        os.kill(engine.task(job, 0).pid, signal.SIGKILL)
        await ended(engine, job)
        assert alive("86395") == []
        assert alive("86394")
        adopted[1].write_text(other_lines.replace(engine.task(other, 0).mark, "of another"))
        os.kill(engine.task(other, 0).pid, signal.SIGKILL)
        await ended(engine, other)
        (left,) = alive("86394")
        os.kill(left, signal.SIGKILL)

    lives.live(story)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root makes namespaces here")
def test_a_container_of_a_killed_supervisor(lives: Lives, made: Fences) -> None:
    """In namespaces and a control group of its own, below that of the task."""

    async def story(engine: Engine) -> None:
        all_of_them = engine._fences.folder
        assert all_of_them is not None
        inner = 'echo $$ > "$0"; exec setsid env -i unshare --fork --pid --mount-proc /bin/sleep 1000'
        script = (
            f"own=$(echo {all_of_them}/*/); mkdir ${{own}}container; "
            f"sh -c '{inner}' ${{own}}container/cgroup.procs & echo here; exec sleep 1000"
        )
        job = await running(engine, script)
        procs = all_of_them / groups(engine)[0] / "container" / "cgroup.procs"
        while len(inside := procs.read_text().split()) < 2:  # unshare, and what it has started
            await asyncio.sleep(0.02)
        supervisor = int((engine.task(job, 0).folder / "claim").read_text().split()[0])
        os.kill(supervisor, signal.SIGKILL)
        await ended(engine, job)
        while groups(engine) or [pid for pid in inside if Path(f"/proc/{pid}").exists()]:
            await asyncio.sleep(0.02)

    lives.live(story)


def test_daemons_in_a_group_of_an_engine_that_was_started_otherwise(lives: Lives, made: Fences) -> None:
    """As with `--fence memory` from now on: the groups are in another folder, and the daemons outlived it."""

    async def story(engine: Engine) -> None:
        job = await running(engine, "env -i setsid sleep 86396 & echo here; exec sleep 600")
        while not alive("86396"):
            await asyncio.sleep(0.01)
        engine._fences = engine._watching._fences = Fences("otherwise", submission_of=engine._submission_of)
        os.kill(engine.task(job, 0).pid, signal.SIGKILL)
        await ended(engine, job)
        assert alive("86396") == []

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


# -- shares of memory and processors ------------------------------------------------------------------------------

DIVIDED = {Fence.MEMORY, Fence.CPU}
#: prints what the group of a task has been given
SAYS = "cd /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup); head -n 1 memory.max cpu.weight memory.oom.group"


@pytest.fixture
def dividing() -> Iterator[Fences]:
    try:
        fences = Fences("of-a-test-of-shares", DIVIDED)
    except InputError as error:
        pytest.skip(str(error))
    yield fences
    fences.close()


def given(group: Path) -> list[str]:
    """Memory, weight and memory to swap of a group."""
    return [(group / name).read_text().strip() for name in ("memory.max", "cpu.weight", "memory.swap.max")]


def test_share_of_a_group(dividing: Fences) -> None:
    """It grows with its GPUs; what it may be using is not taken back."""
    page = os.sysconf("SC_PAGE_SIZE")
    dividing._memory = 4096 * page
    shares = []
    for gpus in (1, 2, 1):
        group = dividing.make(1, 1, 0, gpus=gpus, of=4)
        assert group is not None
        shares.append(given(group))
    assert shares == [
        [str(1024 * page), "100", "0"],
        [str(2048 * page), "200", "0"],
        [str(2048 * page), "100", "0"],
    ]
    dividing.end(1, 1, 0)


def test_task_has_the_share_of_its_gpus(lives: Lives, dividing: Fences) -> None:
    async def story(engine: Engine) -> None:
        job = engine.submit(shell("speech", f"{SAYS}; echo here", gpus=2))
        said = (await printed(engine, job, "here")).split()
        share = engine._fences._memory * 2 // lives.spec.gpus
        assert abs(int(said[3]) - share) < os.sysconf("SC_PAGE_SIZE")
        assert [said[7], said[11]] == ["200", "1"]
        await ended(engine, job)
        assert groups(engine) == []

    lives.live(story, fences=DIVIDED)


def test_who_needs_more_memory_than_its_share(lives: Lives, dividing: Fences) -> None:
    """All of it is ended, and says why; its neighbour runs on."""
    grows = f"{sys.executable} -c 'bytearray(1 << 30)' & sleep 86397 & wait"

    async def story(engine: Engine) -> None:
        engine._fences._memory = lives.spec.gpus << 27
        other = await running(engine, "echo here; exec sleep 600")
        (job,) = await ended(engine, engine.submit(shell("vision", grows)))
        assert job.state is JobState.FAILED
        assert "it needed more memory than its share, 0.12 GiB" in job.reason
        assert alive("86397") == []
        assert other.state is JobState.RUNNING
        engine.cancel(str(other.id))
        await ended(engine, other)

    lives.live(story, fences=DIVIDED)


def test_groups_outlive_the_engine(lives: Lives, dividing: Fences) -> None:
    (job,) = lives.live(lambda engine: running_all(engine, shell("vision", STAYS)), killed=True, fences=DIVIDED)

    async def story(engine: Engine) -> None:
        found = engine.find(str(job.id))
        assert (found.state, found.attempt) == (JobState.RUNNING, 1)
        assert groups(engine) == [f"1.1.0.{job.spec.submission}"]
        os.kill(engine.task(found, 0).pid, signal.SIGKILL)
        await ended(engine, found)
        assert groups(engine) == []

    lives.live(story, fences=DIVIDED)


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is no file system of the kernel's, so nothing comes of what is written: the group we are in."""
    monkeypatch.setattr(delegation, "_group_of", lambda _: "user.slice/shell.scope")
    monkeypatch.setattr(delegation, "_SYSTEMD", tmp_path / "systemd")
    here = tmp_path / "mount" / "user.slice" / "shell.scope"
    here.mkdir(parents=True)
    (tmp_path / "mount" / "cgroup.controllers").write_text("cpu memory")
    (here / "cgroup.procs").write_text("1\n2\n")
    return here


def refusal(here: Path) -> str:
    with pytest.raises(InputError) as found:
        Fences("x", DIVIDED, (here.parent.parent,))
    return str(found.value)


def test_memory_that_cannot_be_divided(hierarchy: Path) -> None:
    said = refusal(hierarchy)
    assert said.startswith(
        f"--fence cpu,memory: cpu and memory cannot be divided among the groups in {hierarchy}: start"
    )
    assert said.endswith("or leave it out (--fence none)")


def test_no_control_groups_at_all() -> None:
    with pytest.raises(InputError, match="--fence memory: control groups of version 2 are not mounted here"):
        Fences("x", {Fence.MEMORY}, ())


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "systemd makes no scope hived-x.scope: there is no busctl"),
        ("echo 'Call failed: Access denied' >&2; exit 1", "hived-x.scope: Call failed: Access denied"),
        ("exit 0", "hived-x.scope: it puts no process into it"),
    ],
)
def test_systemd_makes_no_scope(
    hierarchy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    (tmp_path / "systemd").mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    cat = shutil.which("cat")
    assert cat is not None
    (programs / "cat").symlink_to(cat)
    if script is not None:
        (programs / "busctl").write_text(f"#!/bin/sh\n{script}\n")
        (programs / "busctl").chmod(0o700)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(delegation, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(delegation, "MOUNTS", (tmp_path / "mount",))
    assert said in refusal(hierarchy)
