"""The pager as a library: how it is compiled and loaded, and processes in which it serves the requests of PyTorch.

Its driver is the one without a device (``fake_driver.cpp``). Whole trainings on the pager are in ``test_scripts.py``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hived_runtime.memory import pager as binding

from .plain import ONE_THREAD


def answers(fake: Path, body: str, code: int = 0, **more: Any) -> list[str]:
    """What a script prints in a process of its own; ``DRIVER`` and ``MORE`` are given to it."""
    head = (
        "import ctypes, json, os, sys\n"
        "from hived_runtime.memory.pager import Pager, PagerError, PagerUnavailable\n"
        f"DRIVER, MORE = {str(fake)!r}, {more!r}\n"
    )
    environment = {**os.environ, **ONE_THREAD, "HIVED_RUNTIME": "off"}
    command = [sys.executable, "-c", head + body]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


def answer(fake: Path, body: str, **more: Any) -> Any:
    """What it prints as JSON in its last line."""
    return json.loads(answers(fake, body, **more)[-1])


# -- in a process whose slots are rewritten ---------------------------------------------------------------------------


def test_large_new_tensors_are_paged(fake: Path) -> None:
    """Others are not. Without any memory the error is PyTorch's; what uses a tensor while it is suspended faults."""
    body = """
import torch
old = torch.ones(1 << 18)
pager = Pager(DRIVER, 1 << 20, retry_first=False)
for _ in range(2):
    pager.install("libc10.so", "posix_memalign", "free", 65536)
small, large = torch.ones(1000), torch.ones(1 << 18)
owned = [pager.owns(tensor.data_ptr()) for tensor in (old, small, large)]
segments = [pager.stats().segments]
pager.suspend()
pager.resume()
total = large.sum().item()
del old, small, large
segments.append(pager.stats().segments)
driver, all_, none = ctypes.CDLL(DRIVER), ctypes.c_size_t(1 << 63), ctypes.c_size_t(0)
driver.fake_capacity(none, none, none)
try:
    torch.ones(1 << 18)
except RuntimeError as error:
    said = str(error)
driver.fake_capacity(all_, all_, all_)
print(json.dumps([owned, segments, total, said]))
tensor = torch.ones(1 << 18)
pager.suspend()
print("suspended", flush=True)
tensor.sum()
print("summed")
"""
    first, last = answers(fake, body, code=-signal.SIGSEGV)
    owned, segments, total, said = json.loads(first)
    assert owned == [False, False, True]
    assert segments == [1, 0]
    assert total == 1 << 18
    assert "allocate memory" in said
    assert last == "suspended"


def test_concurrent_allocations(fake: Path) -> None:
    body = """
import random, threading
pager = Pager(DRIVER, 1 << 18, retry_first=True)
c = ctypes.CDLL(pager._library._name)
def work(seed):
    chance, held = random.Random(seed), []
    for _ in range(300):
        if held and chance.random() < 0.5:
            at, value = held.pop(chance.randrange(len(held)))
            assert ctypes.string_at(at, 8) == value
            c.hived_pager_free(ctypes.c_void_p(at))
        else:
            out, size = ctypes.c_void_p(), ctypes.c_size_t(chance.randint(1, 1 << 20))
            if c.hived_pager_alloc(ctypes.byref(out), size):
                assert c.hived_pager_alloc(ctypes.byref(out), size) == 0
            held.append((out.value, chance.randbytes(8)))
            ctypes.memmove(out.value, held[-1][1], 8)
    for at, value in held:
        assert ctypes.string_at(at, 8) == value
        c.hived_pager_free(ctypes.c_void_p(at))
    done.append(seed)
done, threads = [], [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
pager.limit(4 << 20)
for thread in threads: thread.start()
while any(thread.is_alive() for thread in threads):
    pager.limit(random.choice((2, 4, 8)) << 20)
for thread in threads: thread.join()
stats = pager.stats()
print(json.dumps([sorted(done), c.hived_pager_check(), stats.device_bytes, stats.host_bytes, stats.segments]))
"""
    assert answer(fake, body) == [[0, 1, 2, 3], 0, 0, 0, 0]


def test_slots_of_torchs_own_allocator(fake: Path) -> None:
    """PyTorch's own library for CUDA. Its slots are read back; no function of CUDA is called."""
    if not (Path(torch.__file__).parent / "lib" / "libc10_cuda.so").exists():
        pytest.skip("this PyTorch is built without CUDA: it has no libc10_cuda.so")
    body = """
import torch
pager = Pager(DRIVER)
names = ("cudaMalloc", "cudaFree", "cudaMallocAsync")
before = [pager.slots("libc10_cuda.so", name) for name in names]
pager.install("libc10_cuda.so", "cudaMalloc", "cudaFree")
after = [pager.slots("libc10_cuda.so", name) for name in names]
def library(address):
    for line in open("/proc/self/maps"):
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return os.path.basename(line.split()[-1]), line.split()[1]
print(json.dumps([[len(each) for each in before], [[library(value) for value in each] for each in after]]))
"""
    counts, owners = answer(fake, body)
    assert counts == [1, 1, 1]
    for owner in (*owners[0], *owners[1]):
        assert owner[0].startswith("pager-")
        assert owner[1] == "r-xp", "the slot holds a function"
    assert not owners[2][0][0].startswith("pager-"), "other slots are as before"


@pytest.mark.parametrize("early", [False, True], ids=["later", "called before"])
@pytest.mark.parametrize("binding_time", ["lazy", "now"])
def test_read_only_slots_are_rewritten(fake: Path, tmp_path: Path, binding_time: str, early: bool) -> None:
    source = tmp_path / "library.c"
    source.write_text(
        "#include <stdlib.h>\n"
        "void *take(size_t bytes) { void *out = 0; return posix_memalign(&out, 64, bytes) ? 0 : out; }\n"
        "void give(void *at) { free(at); }\n"
        "void (*pointer(void))(void *) { return free; }\n"
    )
    flags = ["-Wl,-z,relro", f"-Wl,-z,{binding_time}", "-fno-builtin", "-fPIC", "-shared"]
    subprocess.run(["gcc", *flags, "-o", tmp_path / "library.so", source], check=True)
    body = """
dlopen = ctypes.CDLL(None).dlopen  # unlike CDLL, it can bind lazily
dlopen.restype = ctypes.c_void_p
library = ctypes.CDLL(MORE["library"], handle=dlopen(MORE["library"].encode(), os.RTLD_LAZY))
library.take.restype = library.pointer.restype = ctypes.c_void_p
early = ctypes.c_void_p(library.take(ctypes.c_size_t(100000))) if MORE["early"] else None
def writable():
    lines = [line.split() for line in open("/proc/self/maps") if line.rstrip().endswith("library.so")]
    return {line[0]: line[1] for line in lines}
before = writable()
pager = Pager(DRIVER, 1 << 20, retry_first=False)
pager.install("library.so", "posix_memalign", "free", 4096)
assert writable() == before, "pages that were read-only are so again"
found = []
for size in (100, 100000):
    at = ctypes.c_void_p(library.take(ctypes.c_size_t(size)))
    found.append(pager.owns(at.value))
    ctypes.memset(at, 1, size)
    library.give(at)
at = ctypes.c_void_p(library.take(ctypes.c_size_t(100000)))
ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.pointer())(at)
if early:
    library.give(early)
print(json.dumps([found, pager.stats().segments, pager.stats().last_error]))
"""
    assert answer(fake, body, library=str(tmp_path / "library.so"), early=early) == [[False, True], 0, 0]


def test_forks_and_the_pager(fake: Path) -> None:
    """A child of before the first request has a pager of its own; a later one leaves that of its parent alone."""
    body = """
import torch
torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
pager = Pager(DRIVER, 1 << 20, retry_first=False)
pager.install("libc10.so", "posix_memalign", "free", 65536)
driver = ctypes.CDLL(DRIVER)
names = ("cuMemCreate", "cuMemUnmap", "cuMemRelease", "cuCtxSynchronize", "cuMemAddressFree")
def calls(): return [driver.fake_calls(name.encode()) for name in names]
def code(child): return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

early = os.fork()
if early == 0:
    tensor = torch.ones(1 << 18)
    pager.suspend()
    pager.resume()
    os._exit(0 if pager.owns(tensor.data_ptr()) and tensor.sum() == 1 << 18 else 3)
codes = [code(early)]
tensor = torch.full((1 << 18,), 7.0)
before = calls()
late = os.fork()
if late == 0:
    mine = [torch.ones(1 << 18) for _ in range(10)]
    assert not any(pager.owns(each.data_ptr()) for each in mine)
    del mine, tensor
    try:
        pager.suspend()
    except PagerError as error:
        os._exit(0 if error.code == -4 and calls() == before else 3)
    os._exit(4)
codes.append(code(late))
print(json.dumps([codes, tensor.sum().item(), pager.stats().segments]))
"""
    assert answer(fake, body) == [[0, 0], 7.0 * (1 << 18), 1]


# -- compiling and loading --------------------------------------------------------------------------------------------


def test_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each version of the source, and again when the cached one is damaged."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ran: list[object] = []
    original = subprocess.run

    def spied(command: list[str], **options: Any) -> Any:
        ran.append(command)
        return original(command, **options)

    monkeypatch.setattr(subprocess, "run", spied)
    made = binding.build()
    assert binding.build() == made
    assert len(ran) == 1
    cache = tmp_path / "hived"
    assert cache.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in cache.iterdir()] == [made.name], "nothing else is left"

    content = made.read_bytes()
    half = len(content) // 2
    for damaged in (content[:half], content[:half] + b"?" + content[half + 1 :], b""):
        ran.clear()
        made.write_bytes(damaged)
        assert binding.build() == made
        assert len(ran) == 1
    assert hasattr(ctypes.CDLL(str(made)), "hived_pager_init")

    changed = tmp_path / "changed.cpp"
    changed.write_text(binding._SOURCE.read_text() + "// another\n")
    monkeypatch.setattr(binding, "_SOURCE", changed)
    assert binding.build() != made


def test_missing_driver_or_slots_are_named(fake: Path, tmp_path: Path, compiled: Callable[[Path], Path]) -> None:
    (tmp_path / "poor.cpp").touch()
    body = """
said = []
for driver in ("/nonexistent/driver.so", MORE["poor"], DRIVER, DRIVER):
    try:
        pager = Pager(driver)
    except PagerUnavailable as error:
        said.append(str(error))
for arguments in (("libnone.so", "cudaMalloc", "cudaFree"), (MORE["library"], "cudaMalloc", "cudaFree"),
                  (MORE["library"], "malloc", "free")):
    try:
        pager.install(*arguments)
    except PagerError as error:
        said.append(error.code)
print(json.dumps(said))
"""
    poor = compiled(tmp_path / "poor.cpp")
    none, lacking, second, *codes = answer(fake, body, poor=str(poor), library=fake.name)
    assert "cannot be loaded" in none
    assert "cuInit" in lacking
    assert "has a pager already" in second
    assert codes == [-3, -3, -3]
