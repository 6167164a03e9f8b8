"""Jobs that know nothing of hived are suspended by the driver's checkpoints: here by a fake of its functions."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from hived_control.checkpoint import Checkpoints
from hived_control.errors import ConflictError

from .jobs import state_of, until


@pytest.fixture(scope="module")
def driver(compiled: Callable[[Path], Path]) -> Path:
    return compiled(Path(__file__).with_name("fake_checkpoints.cpp"))


@pytest.fixture
def tree() -> Iterator[tuple[int, int]]:
    """A process and its child, neither of which knows of hived."""
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process.pid, child
    subprocess.run(["kill", "-9", str(process.pid), str(child)], check=False)
    process.wait()
    process.stdout.close()


def test_tree_of_processes_is_suspended(driver: Path, tree: tuple[int, int]) -> None:
    parent, child = tree
    fake = ctypes.CDLL(str(driver))
    fake.fake_uses(child, 0)
    checkpoints = Checkpoints(str(driver))
    assert checkpoints.suspend(parent) == 1
    assert fake.fake_state(child) == 2
    until(lambda: state_of(parent) == state_of(child) == "T")
    assert checkpoints.resume(parent) == 1
    assert fake.fake_state(child) == 0
    until(lambda: state_of(parent) != "T" != state_of(child))


def test_restored_on_another_gpu(driver: Path, tree: tuple[int, int]) -> None:
    parent, _ = tree
    fake = ctypes.CDLL(str(driver))
    fake.fake_uses(parent, 0)
    checkpoints = Checkpoints(str(driver))
    checkpoints.move(parent, "cuda:2")
    assert fake.fake_gpu(parent) == 2
    with pytest.raises(ConflictError, match="no GPU 'cuda:7' here: there are cuda:0 to cuda:2, and their UUIDs"):
        checkpoints.move(parent, "cuda:7", "cuda:2")
    assert (fake.fake_state(parent), state_of(parent)) == (0, "S")
    checkpoints.move(parent, f"GPU-{UUID(bytes=checkpoints.uuids()[1])}", "cuda:2")
    assert fake.fake_gpu(parent) == 1


def test_refused_checkpoint_is_undone(driver: Path, tree: tuple[int, int]) -> None:
    parent, child = tree
    fake = ctypes.CDLL(str(driver))
    fake.fake_uses(parent, 0)
    fake.fake_uses(child, 0)
    fake.fake_refuse(child)
    with pytest.raises(ConflictError, match="cuCheckpointProcessCheckpoint of NVIDIA's driver failed with code 801"):
        Checkpoints(str(driver)).suspend(parent)
    fake.fake_refuse(0)
    assert (fake.fake_state(parent), fake.fake_state(child)) == (0, 0)
    assert state_of(parent) != "T" != state_of(child)
