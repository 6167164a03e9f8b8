"""Jobs that know nothing of hived are suspended by the driver's checkpoints: here by a fake of its functions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from hived.control.checkpoint import Checkpoints
from hived.errors import ConflictError, UnavailableError

from .jobs import until

#: what the driver would know of each process: its state, and the GPU that it stands on
FAKE = r"""
#include <map>
#include <string.h>
struct Uuid { unsigned char of[16]; };
struct Lock { unsigned timeout_ms, zero; unsigned long long rest[7]; };
struct Pair { Uuid old_, new_; };
struct Restore { Pair *pairs; unsigned count; char rest[52 - sizeof(Pair *)]; unsigned long long more; };
static std::map<int, int> state, gpu;
static int refused;
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int *count) { *count = 3; return 0; }
int cuDeviceGetUuid(Uuid *uuid, int device) { memset(uuid->of, 10 + device, 16); return 0; }
void fake_uses(int pid, int device) { state[pid] = 0; gpu[pid] = device; }
void fake_refuse(int pid) { refused = pid; }
int fake_gpu(int pid) { return gpu[pid]; }
int fake_state(int pid) { return state[pid]; }
int cuCheckpointProcessGetState(int pid, int *out) {
  auto found = state.find(pid);
  if (found == state.end()) return 3;
  *out = found->second;
  return 0;
}
int cuCheckpointProcessLock(int pid, Lock *lock) {
  if (state[pid] != 0 || lock->timeout_ms == 0) return 1;
  state[pid] = 1;
  return 0;
}
int cuCheckpointProcessCheckpoint(int pid, void *) {
  if (state[pid] != 1 || pid == refused) return 801;
  state[pid] = 2;
  return 0;
}
int cuCheckpointProcessRestore(int pid, Restore *how) {
  if (state[pid] != 2) return 1;
  if (how) for (unsigned i = 0; i < how->count; ++i)
    if (how->pairs[i].old_.of[0] == 10 + gpu[pid]) { gpu[pid] = how->pairs[i].new_.of[0] - 10; break; }
  state[pid] = 1;
  return 0;
}
int cuCheckpointProcessUnlock(int pid, void *) {
  if (state[pid] != 1) return 1;
  state[pid] = 0;
  return 0;
}
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "fake.cpp").write_text(FAKE)
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "fake.so", folder / "fake.cpp"], check=True)
    return folder / "fake.so"


@pytest.fixture
def tree() -> Iterator[tuple[int, int]]:
    """A process and its child, neither of which knows of hived."""
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process.pid, child
    subprocess.run(["kill", "-9", str(process.pid), str(child)], check=False)
    process.wait()
    process.stdout.close()


def how(pid: int) -> bytes:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


def test_tree_of_processes_is_suspended(driver: Path, tree: tuple[int, int]) -> None:
    parent, child = tree
    fake = ctypes.CDLL(str(driver))
    fake.fake_uses(child, 0)
    checkpoints = Checkpoints(str(driver))
    assert checkpoints.suspend(parent) == 1
    assert fake.fake_state(child) == 2
    until(lambda: how(parent) == how(child) == b"T")
    assert checkpoints.resume(parent) == 1
    assert fake.fake_state(child) == 0
    until(lambda: how(parent) != b"T" != how(child))


def test_it_is_restored_on_another_gpu(driver: Path, tree: tuple[int, int]) -> None:
    parent, _ = tree
    fake = ctypes.CDLL(str(driver))
    fake.fake_uses(parent, 0)
    checkpoints = Checkpoints(str(driver))
    checkpoints.move(parent, "cuda:2")
    assert fake.fake_gpu(parent) == 2
    with pytest.raises(ConflictError, match="no GPU 'cuda:7' here: there are cuda:0 to cuda:2, and their UUIDs"):
        checkpoints.move(parent, "cuda:7", "cuda:2")
    assert (fake.fake_state(parent), how(parent)) == (0, b"S")
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
    assert how(parent) != b"T" != how(child)


def test_needed_driver_is_named() -> None:
    with pytest.raises(UnavailableError, match="only NVIDIA's driver 570 or later could suspend it"):
        Checkpoints("libnosuch.so")
