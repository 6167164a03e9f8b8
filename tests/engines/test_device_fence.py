"""Real control groups with a real program of the kernel's: a task opens the GPUs that are its own, and no others."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hived.engine.states import JobState
from hived.engines.local.delegation import OwnGroups
from hived.engines.local.device_fence import allow_only, program
from hived.engines.local.devices import Simulated
from hived.engines.local.engine import Engine
from hived.engines.local.fences import Fence, Fences
from hived.engines.local.store import Store
from hived.errors import InputError

from .driver import small_spec
from .living import Lives, ended, lose_groups, printed, shell

#: what a process is answered that opens a GPU's file where there is no driver
ALLOWED, DENIED = (errno.ENXIO, errno.ENODEV, 0), (errno.EPERM,)
OPENS = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDWR))
        print(0)
    except OSError as error:
        print(error.errno)
"""


@pytest.fixture
def fences() -> Iterator[Fences]:
    try:
        made = Fences("of-a-test-of-devices", {Fence.DEVICES})
    except InputError as error:
        pytest.skip(str(error))
    yield made
    made.close()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The files of four GPUs that are not there, of their control file, and another device."""
    made = []
    for minor in (0, 1, 2, 3, 255):
        path = tmp_path / f"nvidia{minor}"
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
        except PermissionError:
            pytest.skip("no device files can be made here")
        made.append(str(path))
    return [*made, "/dev/null"]


def opened(group: Path, files: Sequence[str]) -> list[int]:
    """What a process in a group is answered for each file."""
    enter = f"open('{group}/cgroup.procs', 'w').write('0')\n"
    asked = subprocess.run(
        [sys.executable, "-c", enter + OPENS, *files], capture_output=True, text=True, check=True, timeout=60
    )
    return [int(line) for line in asked.stdout.split()]


@pytest.mark.parametrize("own", [(), (1,), (0, 3), (0, 1, 2, 3), tuple(range(128))])
def test_own_gpus_alone_are_opened(fences: Fences, files: list[str], own: tuple[int, ...]) -> None:
    """Control files and other devices are open to all; a second start of the task changes what it may open."""
    group = fences.make(1, 1, 0, (2,))
    assert group is not None
    assert fences.make(1, 1, 0, own) == group
    try:
        *gpus, control, null = opened(group, files)
        assert [found in DENIED for found in gpus] == [minor not in own for minor in range(4)]
        assert all(found in ALLOWED for minor, found in enumerate(gpus) if minor in own)
        assert control in ALLOWED
        assert null == 0
    finally:
        fences.end(1, 1, 0)


def test_without_a_fence_all_are_opened(fences: Fences, files: list[str]) -> None:
    group = fences.make(1, 1, 0)
    assert group is not None
    assert all(found in ALLOWED for found in opened(group, files))
    fences.end(1, 1, 0)


def test_group_below_is_fenced_too(fences: Fences, files: list[str]) -> None:
    """Root may make groups below its own; they open no more, and no other program takes its place."""
    group = fences.make(1, 1, 0, (1,))
    assert group is not None
    (group / "below").mkdir()
    with pytest.raises(PermissionError):
        allow_only(group / "below", (0, 1, 2, 3))
    assert [found in DENIED for found in opened(group / "below", files)[:4]] == [True, False, True, True]
    fences.end(1, 1, 0)


def test_program_is_one_line_more_for_a_gpu() -> None:
    assert len(program(range(100))) - len(program(())) == 800


class Cards(Simulated):
    """Devices with files: their minor numbers are the other way round."""

    def minors(self, numbers: Sequence[int]) -> list[int] | None:
        return [3 - number for number in numbers]


def test_task_is_fenced(lives: Lives, fences: Fences, files: list[str]) -> None:
    """By the engine, with the files of the GPUs that it has."""

    async def story(engine: Engine) -> None:
        script = f"{sys.executable} -c '{OPENS}' {' '.join(files)}; echo here; exec sleep 600"
        job = engine.submit(shell("speech", script, gpus=2, grace_s=0.5))
        found = [int(line) for line in (await printed(engine, job, "here")).split()[:6]]
        assert job.placement is not None
        own = {3 - number for number in job.placement.pods[0].leaf_cells}
        assert [code in DENIED for code in found[:4]] == [minor not in own for minor in range(4)]
        assert own & set(range(4))
        engine.cancel("1")

    lives.live(story, devices=Cards(), fences={Fence.DEVICES})


def test_task_does_not_run_outside_of_its_fence(lives: Lives, fences: Fences) -> None:
    async def story(engine: Engine) -> None:
        lose_groups(engine)
        (job,) = await ended(engine, engine.submit(shell("vision", "echo here")))
        assert job.state is JobState.FAILED
        assert "cgroup.procs: No such file or directory" in job.reason

    lives.live(story, devices=Cards(), fences={Fence.DEVICES})


def test_where_it_cannot_be_the_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnGroups, "plain", lambda *_: None)
    store = Store(tmp_path)
    with pytest.raises(InputError, match=r"--fence devices: .*may make no control groups; run hived up as root"):
        Engine(small_spec(), store, Simulated(), fences={Fence.DEVICES})
    store.close()
