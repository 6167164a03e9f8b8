"""The pager, on a driver without a device (``fake_driver.cpp``): memory files for memory, PROT_NONE for no access.

Nothing here meets a GPU. What is shown: contents and addresses, the driver's own count of bytes, what each failing call
of the driver leaves behind, and that a training on the CPU whose tensors are paged ends bit for bit as it does alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("HIVED_RUNTIME", "off")  # the package is imported for its pager, not to manage the tests
    from hived.runtime.memory import pager as binding
    from hived.runtime.memory.pager import Pager, PagerError, PagerUnavailable

HERE = Path(__file__).parent
GRANULE = 4096
CHUNK = 4 * GRANULE
OUT_OF_MEMORY = 2
EVERYTHING = 2**63

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the pager is for Linux")


class Machine:
    """A pager and its driver: copies of both libraries, so that each test has new ones in one process."""

    def __init__(self, folder: Path, fake: Path, patch: pytest.MonkeyPatch, retry_first: bool = True) -> None:
        mine = shutil.copy(binding.build(), folder / "pager.so")
        patch.setattr(binding, "build", lambda: Path(mine))
        self.driver = ctypes.CDLL(str(shutil.copy(fake, folder / "driver.so")))
        for name in ("device_bytes", "host_bytes", "pinned_bytes", "reserved", "calls", "queued"):
            getattr(self.driver, f"fake_{name}").restype = ctypes.c_size_t
        self.driver.fake_fired.restype = ctypes.c_int64
        self.driver.fake_granularity(ctypes.c_size_t(GRANULE))
        self.pager = Pager(str(folder / "driver.so"), CHUNK, retry_first)
        self.c = ctypes.CDLL(str(mine))
        #: what lives: address -> granules and the seed of their contents
        self.alive: dict[int, tuple[int, int]] = {}
        self.seed = 0

    def capacity(self, device: int = EVERYTHING, host: int = EVERYTHING, pinned: int = EVERYTHING) -> None:
        """Granules of each kind of memory."""
        sizes = (ctypes.c_size_t(min(granules * GRANULE, EVERYTHING)) for granules in (device, host, pinned))
        self.driver.fake_capacity(*sizes)

    def fail(self, call: str | None, n: int = 1, times: int = 1, code: int = OUT_OF_MEMORY) -> None:
        """The n-th call of the driver from now fails; None: of any function. ``times`` -1: and all after it."""
        name = call.encode() if call else None
        self.driver.fake_fail(name, ctypes.c_int64(n), ctypes.c_int64(times), code)

    def heal(self) -> int:
        """No call fails any more. How many have."""
        fired = int(self.driver.fake_fired())
        self.driver.fake_fail(None, ctypes.c_int64(0), ctypes.c_int64(0), 0)
        return fired

    def ask(self, granules: int, odd: int = 0) -> int | None:
        """One request, as cudaMalloc gets it; its contents are written. The address, None: out of memory."""
        out = ctypes.c_void_p()
        code = self.c.hived_pager_alloc(ctypes.byref(out), ctypes.c_size_t(granules * GRANULE - odd))
        assert (code == 0) == bool(out.value)
        if out.value is None:
            return None
        assert out.value % GRANULE == 0
        self.seed += 1
        self.alive[out.value] = granules, self.seed
        for granule in range(granules):
            ctypes.memmove(out.value + granule * GRANULE, pattern(self.seed, granule), GRANULE)
        return out.value

    def take(self, granules: int) -> int:
        """A request and, as the caching allocator does, the same once more after it has freed its cache."""
        address = self.ask(granules) or self.ask(granules)
        assert address is not None, self.pager.stats()
        return address

    def free(self, address: int) -> int:
        """Free, as cudaFree does. 0, or the driver's code."""
        code: int = self.c.hived_pager_free(ctypes.c_void_p(address))
        if code == 0:
            del self.alive[address]
        return code

    def device(self) -> int:
        """Granules of the device in the driver's own count."""
        return int(self.driver.fake_device_bytes()) // GRANULE

    def host(self) -> int:
        """Granules of host memory that can be mapped, in the driver's own count."""
        return int(self.driver.fake_host_bytes()) // GRANULE

    def calls(self, name: str) -> int:
        """How often a function of the driver was called."""
        return int(self.driver.fake_calls(name.encode()))

    def check(self, after_failure: bool = False) -> None:
        """Every count is that of the segments and of the driver; unless suspended, every byte is as it was written."""
        assert self.c.hived_pager_check() == 0, "the line of pager.cpp whose invariant is broken"
        stats = self.pager.stats()
        assert (stats.device_bytes, stats.host_bytes) == (self.device() * GRANULE, self.host() * GRANULE)
        assert stats.slab_bytes == self.driver.fake_pinned_bytes()
        assert stats.segments == len(self.alive)
        assert self.driver.fake_queued() == 0, "a copy was not waited for"
        for address, (granules, seed) in self.alive.items():
            for granule in range(granules):
                at = address + granule * GRANULE
                accessible = bool(self.driver.fake_accessible(ctypes.c_uint64(at)))
                assert accessible != stats.suspended or (after_failure and stats.suspended)
                assert stats.suspended or ctypes.string_at(at, GRANULE) == pattern(seed, granule), "contents are lost"


def pattern(seed: int, granule: int) -> bytes:
    """What a granule contains: its allocation and its place."""
    return seed.to_bytes(4, "little") * 512 + granule.to_bytes(4, "little") * 512


@pytest.fixture
def machine(tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, fake, monkeypatch)


# -- the limit (AntMan 4.1) -------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("seed", range(8))
def test_limit_holds_to_a_granule(machine: Machine, seed: int) -> None:
    chance = random.Random(seed)
    limit = 0
    for _ in range(400):
        before = machine.device()
        event = chance.choices(("alloc", "free", "limit", "boundary", "suspend"), (8, 6, 1, 2, 1))[0]
        if event == "alloc":
            granules = chance.randint(1, 14)
            address = machine.ask(granules, odd=chance.randint(0, GRANULE - 1))
            assert address or not limit or before + granules > limit, "refused, and there was room"
            if address is None and chance.random() < 0.9:
                machine.take(granules)
            assert not limit or machine.device() <= max(limit, before)
            assert limit or machine.host() == 0 or machine.device() >= before
        elif event == "free" and machine.alive:
            assert machine.free(chance.choice(list(machine.alive))) == 0
        elif event == "limit":
            limit = chance.choice((0, chance.randint(1, 80)))
            machine.pager.limit(limit * GRANULE)
            assert machine.device() == before, "what is held moves at a boundary only"
        elif event == "boundary":
            total = machine.device() + machine.host()
            machine.pager.boundary()
            assert machine.device() + machine.host() == total
            assert not limit or machine.device() <= limit
            assert limit or machine.host() == 0, "without a limit all of it comes back"
            room = limit - machine.device() if limit else 0
            assert before > limit or machine.host() == 0 or room < 4, "a whole chunk had room, and stayed on the host"
        elif event == "suspend":
            machine.pager.suspend()
            machine.check()
            assert machine.device() == 0
            machine.pager.resume()
            assert not limit or machine.device() <= limit
        machine.check()
    for address in list(machine.alive):
        assert machine.free(address) == 0
    machine.check()
    assert (machine.device(), machine.host(), machine.driver.fake_reserved()) == (0, 0, 0), "all is given back"


def test_first_request_over_the_limit_fails(machine: Machine) -> None:
    machine.pager.limit(8 * GRANULE)
    machine.take(8)
    assert machine.ask(4) is None
    assert machine.ask(3) is None, "another size is another request"
    assert machine.ask(3) is not None
    assert machine.ask(3) is None, "the retry was answered, this is a new request"
    assert (machine.device(), machine.host()) == (8, 3)
    machine.check()


def test_fitting_request_resets_the_retry(machine: Machine) -> None:
    machine.pager.limit(8 * GRANULE)
    machine.take(6)
    assert machine.ask(4) is None
    assert machine.ask(2) is not None
    assert machine.ask(4) is None
    assert machine.ask(4) is not None


def test_freed_cache_serves_the_retry(machine: Machine) -> None:
    machine.pager.limit(8 * GRANULE)
    cached = machine.take(6)
    assert machine.ask(4) is None
    machine.free(cached)
    assert machine.ask(4) is not None
    assert (machine.device(), machine.host()) == (4, 0)


def test_retry_is_per_thread(machine: Machine) -> None:
    import threading

    machine.pager.limit(GRANULE)
    assert machine.ask(4) is None
    answers: list[int | None] = []
    thread = threading.Thread(target=lambda: answers.append(machine.ask(4)))
    thread.start()
    thread.join()
    assert answers == [None]
    assert machine.ask(4) is not None


def test_no_refusal_without_a_cache(tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, fake, monkeypatch, retry_first=False)
    machine.pager.limit(2 * GRANULE)
    assert machine.ask(5) is not None
    machine.pager.limit(0)
    machine.capacity(device=0)
    assert machine.ask(5) is not None
    assert machine.pager.stats().last_error == 0, "that the device is full is no failure"
    machine.check()


def test_no_retry_while_capturing_a_graph(machine: Machine) -> None:
    machine.pager.limit(GRANULE)
    machine.driver.fake_capture_mode(2)  # relaxed, in which PyTorch allocates then
    assert machine.ask(5) is not None
    assert machine.driver.fake_calls(b"cuThreadExchangeStreamCaptureMode") == 2, "and the mode is as before"
    machine.driver.fake_capture_mode(0)
    assert machine.ask(5) is None


def test_full_device_is_a_limit(machine: Machine) -> None:
    machine.capacity(device=6)
    machine.take(4)
    assert machine.ask(5) is None
    assert machine.ask(5) is not None
    assert (machine.device(), machine.host()) == (4, 5), "its first chunk has four granules"
    machine.check()
    assert machine.pager.boundary().promoted_chunks == 0
    machine.check()
    machine.capacity(device=8)
    assert machine.pager.boundary().promoted_bytes == 4 * GRANULE
    machine.check()


def test_overflow_returns_when_limit_rises(machine: Machine) -> None:
    """AntMan, Figure 7a: in a mini-batch, then the limit rises by as much, and the next one is all on the device."""
    machine.pager.limit(10 * GRANULE)
    held = [machine.take(6), machine.take(6), machine.take(9)]
    assert machine.device() == 10
    stats = machine.pager.stats()
    assert stats.host_bytes == stats.host_bytes_since_boundary == 11 * GRANULE
    assert stats.overflows == 4
    machine.pager.limit(10 * GRANULE + stats.host_bytes_since_boundary)
    assert machine.host() == 11, "not before the boundary"
    moved = machine.pager.boundary()
    assert (moved.promoted_bytes, moved.demoted_bytes) == (11 * GRANULE, 0)
    assert moved.seconds > 0
    assert list(machine.alive) == held
    assert machine.pager.stats().host_bytes_since_boundary == 0
    machine.check()


def test_overflow_is_counted_at_its_most(machine: Machine) -> None:
    machine.pager.limit(GRANULE)
    first = machine.take(5)
    machine.free(first)
    second = machine.take(3)
    assert machine.pager.stats().host_bytes_since_boundary == 5 * GRANULE
    machine.pager.boundary()
    third = machine.take(2)
    assert machine.pager.stats().host_bytes_since_boundary == 2 * GRANULE
    machine.free(second)
    machine.free(third)
    assert machine.pager.stats().host_bytes_since_boundary == 2 * GRANULE
    machine.check()


def test_youngest_leave_oldest_return(machine: Machine) -> None:
    old, young = machine.take(8), machine.take(8)

    def on_device() -> list[bool]:
        return [place(address + at) == "device" for address in (old, young) for at in (0, CHUNK)]

    machine.pager.limit(12 * GRANULE)
    assert machine.pager.boundary().demoted_chunks == 1
    assert on_device() == [True, True, True, False]
    machine.pager.limit(4 * GRANULE)
    assert machine.pager.boundary().demoted_chunks == 2
    assert on_device() == [True, False, False, False]
    machine.pager.limit(8 * GRANULE)
    assert machine.pager.boundary().promoted_chunks == 1
    assert on_device() == [True, True, False, False]
    machine.check()


def place(address: int) -> str:
    """Whether an address is on the device or the host: the memory file that the kernel says is mapped there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return "device" if "fake_device" in line else "host" if "fake_host" in line else line
    raise AssertionError(f"{address:#x} is not mapped")


def test_memory_returned_when_limit_falls(machine: Machine) -> None:
    held = [machine.take(granules) for granules in (9, 1, 14, 4, 3, 40)]
    machine.pager.limit(20 * GRANULE)
    moved = machine.pager.boundary()
    assert machine.device() <= 20
    assert moved.demoted_bytes == 71 * GRANULE - machine.device() * GRANULE
    assert list(machine.alive) == held
    machine.check()


def test_driver_without_numa_locations(machine: Machine) -> None:
    machine.driver.fake_numa(0)
    machine.pager.limit(GRANULE)
    machine.take(4)
    assert machine.calls("cuMemCreate") == 2
    machine.take(4)
    assert machine.calls("cuMemCreate") == 3, "what the driver does not know is asked once"
    assert (machine.device(), machine.host()) == (0, 8)
    machine.check()


def test_free_waits_for_queued_work(machine: Machine) -> None:
    first, second = machine.take(1), machine.take(1)
    before = machine.calls("cuCtxSynchronize")
    machine.free(first)
    assert machine.calls("cuCtxSynchronize") == before + 1
    machine.fail("cuCtxSynchronize", code=700)
    assert machine.free(second) == 700, "the error of a kernel before it"
    machine.heal()
    machine.check()  # it is still there


def test_an_address_of_others_is_not_freed(machine: Machine) -> None:
    inside = machine.take(3) + GRANULE
    for address in (inside, 0, 12345):
        assert machine.c.hived_pager_free(ctypes.c_void_p(address)) == 1
    machine.check()
    assert machine.pager.owns(inside)
    assert not machine.pager.owns(inside + 2 * GRANULE)


# -- suspend and resume -----------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_suspend_empties_resume_restores(
    machine: Machine,
) -> None:
    held = [machine.take(granules) for granules in (1, 4, 9, 33)]
    for _ in range(3):
        assert machine.pager.suspend() == 47 * GRANULE
        assert machine.device() == 0
        assert machine.pager.stats().suspended
        machine.check()
        assert machine.pager.suspend() == 0, "it is suspended"
        assert machine.pager.resume() == 47 * GRANULE
        assert machine.pager.resume() == 0, "it is not suspended"
        assert machine.device() == 47
        assert list(machine.alive) == held
        machine.check()
    assert machine.calls("cuMemHostAlloc") == 1, "the slab is kept"


def test_a_slab_grows_with_the_job(machine: Machine) -> None:
    for granules in (3, 9, 21):
        machine.take(granules)
        machine.pager.suspend()
        machine.check()
        machine.pager.resume()
        machine.check()
    assert machine.calls("cuMemHostAlloc") == 3
    assert machine.pager.stats().slab_bytes <= (3 + 12 + 33) * GRANULE


def test_suspended_host_memory_faults(machine: Machine) -> None:
    machine.pager.limit(4 * GRANULE)
    machine.take(10)
    assert machine.pager.suspend() == 4 * GRANULE
    assert (machine.device(), machine.host()) == (0, 6)
    machine.check()  # and nothing of it can be accessed
    machine.pager.resume()
    machine.check()


def test_allocations_and_frees_while_suspended(machine: Machine) -> None:
    kept, dropped, overflown = machine.take(9), machine.take(5), 0
    machine.pager.limit(14 * GRANULE)
    overflown = machine.take(2)
    machine.pager.suspend()
    assert machine.ask(1) is None
    assert machine.ask(1) is None, "again, and not on the host either"
    assert machine.free(dropped) == 0
    assert machine.free(overflown) == 0
    machine.check()
    assert machine.host() == 0
    assert machine.pager.resume() == 9 * GRANULE
    assert list(machine.alive) == [kept]
    machine.check()
    assert machine.ask(1) is not None


def test_suspended_boundary_moves_nothing(machine: Machine) -> None:
    machine.pager.limit(4 * GRANULE)
    machine.take(9)
    machine.pager.suspend()
    machine.pager.limit(0)
    assert machine.pager.boundary().promoted_bytes == 0
    machine.check()
    machine.pager.limit(GRANULE)
    machine.pager.resume()
    assert machine.device() <= 1, "what comes back keeps the limit"
    machine.check()


def test_resume_on_a_full_device(machine: Machine) -> None:
    old, young = machine.take(4), machine.take(8)
    machine.pager.suspend()
    machine.capacity(device=7)
    assert machine.pager.resume() == 12 * GRANULE
    assert (place(old), place(young)) == ("device", "host")
    machine.check()
    assert machine.pager.boundary().promoted_bytes == 0
    machine.capacity()
    assert machine.pager.boundary().promoted_bytes == 8 * GRANULE
    machine.check()


def test_no_memory_for_the_slab(machine: Machine) -> None:
    machine.take(9)
    machine.capacity(pinned=8)
    with pytest.raises(PagerError, match=r"cuMemHostAlloc failed with code 2: out of memory"):
        machine.pager.suspend()
    stats = machine.pager.stats()
    assert (stats.last_call, stats.last_error, stats.suspended) == ("cuMemHostAlloc", 2, False)
    machine.check()
    machine.capacity()
    assert machine.pager.suspend() == 9 * GRANULE


def test_callers_context_stays_current(machine: Machine) -> None:
    def current() -> int | None:
        context = ctypes.c_void_p()
        machine.driver.cuCtxGetCurrent(ctypes.byref(context))
        return context.value

    machine.take(5)
    machine.driver.fake_context(ctypes.c_void_p(0x2000))
    second = machine.take(6)
    for context in (0x1000, 0x2000):
        machine.driver.fake_context(ctypes.c_void_p(context))
        for limit in (2, 0):
            machine.pager.suspend()
            assert current() == context
            machine.pager.resume()
            machine.pager.limit(limit * GRANULE)
            machine.pager.boundary()
            assert current() == context
            machine.check()
    machine.driver.fake_context(ctypes.c_void_p(0x1000))
    machine.free(second)
    assert current() == 0x1000


def test_thread_without_a_context(machine: Machine) -> None:
    machine.driver.fake_context(None)
    machine.take(3)
    assert machine.calls("cuDevicePrimaryCtxRetain") == 1
    machine.check()


# -- the driver fails -------------------------------------------------------------------------------------------------


def alloc_on_both(machine: Machine) -> None:
    machine.pager.limit(24 * GRANULE)
    if machine.ask(9) is None:
        machine.ask(9)


def demotion(machine: Machine) -> None:
    machine.pager.limit(3 * GRANULE)
    machine.pager.boundary()


def promotion(machine: Machine) -> None:
    machine.pager.limit(0)
    machine.pager.boundary()


def prepared(machine: Machine, operation: str) -> None:
    """Three segments, of them one and a half on the host; suspended if the operation is to resume."""
    machine.pager.limit(19 * GRANULE)
    for granules in (2, 17, 9):
        machine.take(granules)
    if operation == "resume":
        machine.pager.suspend()
    if operation == "resume, with less room":
        machine.pager.suspend()
        machine.pager.limit(9 * GRANULE)
    machine.check()


OPERATIONS: dict[str, Callable[[Machine], object]] = {
    "alloc": lambda machine: machine.ask(1) or machine.ask(1),
    "alloc on both": alloc_on_both,
    "free": lambda machine: machine.free(list(machine.alive)[1]),
    "suspend": lambda machine: machine.pager.suspend(),
    "resume": lambda machine: machine.pager.resume(),
    "resume, with less room": lambda machine: machine.pager.resume(),
    "demotion": demotion,
    "promotion": promotion,
}


@pytest.mark.smoke
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, 999])
@pytest.mark.parametrize("times", [1, 2, -1], ids=["once", "twice", "from then on"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_failing_driver_call_loses_nothing(tmp_path: Path, fake: Path, operation: str, times: int, code: int) -> None:
    """The n-th call fails, for every n; then the driver is well again, and all goes on."""
    failures = 0
    for n in range(1, 1000):
        folder = tmp_path / str(n)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            machine = Machine(folder, fake, patch)
        prepared(machine, operation)
        machine.fail(None, n, times, code)
        error: PagerError | None = None
        try:
            OPERATIONS[operation](machine)
        except PagerError as raised:
            error = raised
        reached, failed = machine.heal() > 0, error is not None
        assert error is None or (error.code == code and error.call.startswith("cu")), "it names the call of the driver"
        failures += failed
        stats = machine.pager.stats()
        if operation.startswith("resume"):
            assert stats.suspended == failed
            assert not failed or times != 1 or machine.device() == 0, "as before"
        elif operation == "suspend" and not failed:
            assert machine.device() == 0
        elif times == 1:
            assert not stats.suspended, "one failure is undone: training goes on"
        machine.check(after_failure=True)
        # the driver is well again
        if stats.suspended:
            machine.pager.resume()
        machine.pager.limit(0)
        machine.pager.boundary()
        machine.check()
        assert machine.host() == 0
        machine.pager.suspend()
        assert machine.device() == 0
        machine.pager.resume()
        machine.check()
        for address in list(machine.alive):
            assert machine.free(address) == 0
        assert (machine.device(), machine.host(), machine.driver.fake_reserved()) == (0, 0, 0), "nothing leaks"
        if not reached:
            break
    else:
        raise AssertionError("each run reached its failure")
    assert n > 5
    assert failures or operation.startswith("alloc") or operation == "free"


# -- in a process whose slots are rewritten ---------------------------------------------------------------------------


def run(fake: Path, body: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, with this interpreter; ``DRIVER`` and ``MORE`` are given to it."""
    head = (
        "import ctypes, json, os, sys\n"
        "from hived.runtime.memory.pager import Pager\n"
        f"DRIVER, MORE = {str(fake)!r}, json.loads({json.dumps(json.dumps(more))})\n"
    )
    environ = {**os.environ, "HIVED_RUNTIME": "off", "OMP_NUM_THREADS": "2"}
    environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1] / "src"), environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", head + body]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=100)


def answer(fake: Path, body: str, **more: Any) -> Any:
    """What such a script prints as JSON in its last line."""
    result = run(fake, body, **more)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(result.stdout.splitlines()[-1])


PAGED = """
import torch
pager = Pager(DRIVER, 1 << 20, retry_first=False)
pager.install("libc10.so", "posix_memalign", "free", 65536)
"""

TRAINING = """
import hashlib, random, torch
torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
if MORE["paged"]:
    pager = Pager(DRIVER, 1 << 18, retry_first=False)
    pager.install("libc10.so", "posix_memalign", "free", 65536)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * 14 * 14, 256),
    torch.nn.ReLU(), torch.nn.Linear(256, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
chance = random.Random(MORE["seed"])
losses, done = [], {"suspended": 0, "demoted": 0, "promoted": 0, "host": 0}
for step in range(24):
    inputs, labels = torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,))
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())
    if not MORE["paged"]:
        continue
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    if chance.random() < 0.5:
        pager.limit(chance.choice((0, 2 << 20, 8 << 20, 16 << 20)))
    if chance.random() < 0.7:
        moved = pager.boundary()
        done["demoted"] += moved.demoted_bytes
        done["promoted"] += moved.promoted_bytes
    done["host"] = max(done["host"], pager.stats().host_bytes)
    if chance.random() < 0.4:
        done["suspended"] += pager.suspend()
        assert pager.stats().device_bytes == 0
        pager.resume()
    assert addresses == [parameter.data_ptr() for parameter in model.parameters()]
state = hashlib.sha256()
for parameter in model.parameters():
    for tensor in (parameter, *(optimizer.state[parameter][name] for name in ("exp_avg", "exp_avg_sq"))):
        state.update(tensor.detach().numpy().tobytes())
print(json.dumps([losses, state.hexdigest(), done]))
"""


@pytest.fixture(scope="session")
def plain(fake: Path) -> Any:
    """The same training without a pager: its losses, and the hash of what it has learnt."""
    pytest.importorskip("torch")
    losses, state, _ = answer(fake, TRAINING, paged=False, seed=0)
    return losses, state


@pytest.mark.parametrize("seed", range(2))
def test_paged_training_is_bit_for_bit(fake: Path, plain: Any, seed: int) -> None:
    losses, state, done = answer(fake, TRAINING, paged=True, seed=seed)
    assert all(each > 1 << 20 for each in done.values()), f"it was disturbed: {done}"
    assert (losses, state) == plain


def test_use_while_suspended_faults(fake: Path) -> None:
    pytest.importorskip("torch")
    body = PAGED + "tensor = torch.ones(1 << 18)\nassert pager.owns(tensor.data_ptr())\npager.suspend()\n"
    good = run(fake, body + "pager.resume()\nprint(json.dumps(tensor.sum().item()))")
    assert (good.returncode, good.stdout.strip()) == (0, "262144.0"), good.stderr
    bad = run(fake, body + "print('suspended', flush=True)\ntensor.sum()")
    assert bad.stdout == "suspended\n", bad.stderr
    assert bad.returncode == -11, "SIGSEGV"


def test_small_and_old_tensors_are_not_paged(fake: Path) -> None:
    pytest.importorskip("torch")
    body = """
import torch
before = torch.ones(1 << 18)
pager = Pager(DRIVER, 1 << 20, retry_first=False)
pager.install("libc10.so", "posix_memalign", "free", 65536)
pager.install("libc10.so", "posix_memalign", "free", 65536)
small, large = torch.ones(1000), torch.ones(1 << 18)
owned = [pager.owns(tensor.data_ptr()) for tensor in (before, small, large)]
segments = [pager.stats().segments]
del before, small, large
segments.append(pager.stats().segments)
print(json.dumps([owned, segments]))
"""
    assert answer(fake, body) == [[False, False, True], [1, 0]]


def test_no_memory_at_all_is_torchs_error(fake: Path) -> None:
    pytest.importorskip("torch")
    body = (
        PAGED
        + """
none = ctypes.c_size_t(0)
ctypes.CDLL(DRIVER).fake_capacity(none, none, none)
try:
    torch.ones(1 << 18)
except RuntimeError as error:
    print(json.dumps(str(error)))
"""
    )
    assert "allocate memory" in answer(fake, body)


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
    torch = pytest.importorskip("torch")
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


@pytest.mark.parametrize("binding_time", ["lazy", "now"])
def test_read_only_slots_are_rewritten(fake: Path, tmp_path: Path, binding_time: str) -> None:
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
    protections = {}
    for line in open("/proc/self/maps"):
        if line.rstrip().endswith("library.so"):
            protections[line.split()[0]] = line.split()[1]
    return protections
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
    for early in (False, True):
        assert answer(fake, body, library=str(tmp_path / "library.so"), early=early) == [[False, True], 0, 0]


def test_library_without_slots(fake: Path) -> None:
    body = """
from hived.runtime.memory.pager import PagerError
pager, said = Pager(DRIVER), []
for arguments in (("libnone.so", "cudaMalloc", "cudaFree"), (MORE["library"], "cudaMalloc", "cudaFree"),
                  (MORE["library"], "malloc", "free")):
    try:
        pager.install(*arguments)
    except PagerError as error:
        said.append(error.code)
print(json.dumps(said))
"""
    assert answer(fake, body, library=fake.name) == [-3, -3, -3]


def test_forked_child_leaves_parents_pager(fake: Path) -> None:
    pytest.importorskip("torch")
    body = (
        PAGED
        + """
from hived.runtime.memory.pager import PagerError
torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
driver = ctypes.CDLL(DRIVER)
tensor = torch.full((1 << 18,), 7.0)
names = ("cuMemCreate", "cuMemUnmap", "cuMemRelease", "cuCtxSynchronize", "cuMemAddressFree")
def calls(): return [driver.fake_calls(name.encode()) for name in names]
before = calls()
child = os.fork()
if child == 0:
    mine = [torch.ones(1 << 18) for _ in range(10)]
    assert not any(pager.owns(each.data_ptr()) for each in mine)
    del mine, tensor
    try:
        pager.suspend()
    except PagerError as error:
        os._exit(0 if error.code == -4 and calls() == before else 3)
    os._exit(4)
_, status = os.waitpid(child, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), tensor.sum().item(), pager.stats().segments]))
"""
    )
    assert answer(fake, body) == [0, 7.0 * (1 << 18), 1]


def test_early_fork_has_its_own_pager(fake: Path) -> None:
    pytest.importorskip("torch")
    body = (
        PAGED
        + """
torch.set_num_threads(1)
child = os.fork()
if child == 0:
    tensor = torch.ones(1 << 18)
    pager.suspend()
    pager.resume()
    os._exit(0 if pager.owns(tensor.data_ptr()) and tensor.sum() == 1 << 18 else 3)
_, status = os.waitpid(child, 0)
print(json.dumps(os.waitstatus_to_exitcode(status)))
"""
    )
    assert answer(fake, body) == 0


# -- compiling, loading, and what is not covered ----------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hived"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The compiler's command of each time that it ran."""
    ran: list[str] = []
    original = subprocess.run

    def spied(command: list[str], **options: Any) -> Any:
        ran.append(command[0])
        return original(command, **options)

    monkeypatch.setattr(subprocess, "run", spied)
    return ran


def test_the_library_is_compiled_once(cache: Path, compiled: list[str]) -> None:
    first = binding.build()
    assert len(compiled) == 1
    assert binding.build() == first
    assert len(compiled) == 1
    assert cache.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in cache.iterdir()] == [first.name], "nothing else is left"
    ctypes.CDLL(str(first))


@pytest.mark.parametrize("damage", ["cut", "a byte", "empty"])
def test_damaged_cache_is_compiled_again(cache: Path, compiled: list[str], damage: str) -> None:
    made = binding.build()
    content = made.read_bytes()
    half = len(content) // 2
    made.write_bytes(
        {"cut": content[:half], "a byte": content[:half] + b"?" + content[half + 1 :], "empty": b""}[damage]
    )
    assert binding.build() == made
    assert len(compiled) == 2
    assert hasattr(ctypes.CDLL(str(made)), "hived_pager_init")


def test_another_source_is_another_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = binding.build()
    changed = cache / "changed.cpp"
    changed.write_text(binding._SOURCE.read_text() + "// another\n")
    monkeypatch.setattr(binding, "_SOURCE", changed)
    assert binding.build() != first


def test_missing_compiler_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(PagerUnavailable, match=r"no C\+\+ compiler: .*install g\+\+"):
        binding.build()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PagerUnavailable, match="no-such-compiler not found"):
        binding.build()


def test_failing_compiler_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(PagerUnavailable, match="cannot compile the pager"):
        binding.build()
    assert list(cache.iterdir()) == []


def test_cache_folder_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PagerUnavailable, match="no cache folder"):
        binding.build()


def test_missing_driver_is_named(fake: Path, tmp_path: Path) -> None:
    body = """
from hived.runtime.memory.pager import PagerUnavailable
said = []
for driver in ("/nonexistent/driver.so", MORE["poor"], DRIVER, DRIVER):
    try:
        Pager(driver)
    except PagerUnavailable as error:
        said.append(str(error))
print(json.dumps(said))
"""
    poor = tmp_path / "poor.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-o", poor, "/dev/null"], check=True)
    none, lacking, second = answer(fake, body, poor=str(poor))
    assert "cannot be loaded" in none
    assert "cuInit" in lacking
    assert "has a pager already" in second


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True"}, "expandable_segments"),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:true"}, "expandable_segments"),
        ({"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, "cudaMallocAsync"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    ],
)
def test_bypassing_settings_are_named(environ: dict[str, str], word: str) -> None:
    assert word in (binding.unsupported(environ) or "")


def test_other_settings_are_supported() -> None:
    conf = "backend:native,expandable_segments:False,roundup_power2_divisions:[256:1,512:2]"
    assert binding.unsupported({"PYTORCH_ALLOC_CONF": conf, "PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}) is None
    assert binding.unsupported({}) is None


def test_structures_are_the_headers(tmp_path: Path) -> None:
    """The declarations of pager.cpp against cuda.h, where a package of CUDA brings it."""
    header = next((path for root in sys.path for path in Path(root).glob("nvidia/cu*/include/cuda.h")), None)
    if header is None:
        pytest.skip("no cuda.h in this environment")
    pairs = {
        "AllocationProp": (
            "CUmemAllocationProp",
            {"type": "type", "location": "location", "win32": "win32HandleMetaData", "flags": "allocFlags"},
        ),
        "AccessDesc": ("CUmemAccessDesc", {"location": "location", "flags": "flags"}),
    }
    constants = {
        "kInvalidValue": "CUDA_ERROR_INVALID_VALUE",
        "kOutOfMemory": "CUDA_ERROR_OUT_OF_MEMORY",
        "kNotSupported": "CUDA_ERROR_NOT_SUPPORTED",
        "kOnDevice": "CU_MEM_LOCATION_TYPE_DEVICE",
        "kOnHost": "CU_MEM_LOCATION_TYPE_HOST",
        "kOnHostNuma": "CU_MEM_LOCATION_TYPE_HOST_NUMA",
        "kPinned": "CU_MEM_ALLOCATION_TYPE_PINNED",
        "kReadWrite": "CU_MEM_ACCESS_FLAGS_PROT_READWRITE",
        "kNonBlocking": "CU_STREAM_NON_BLOCKING",
        "kPortable": "CU_MEMHOSTALLOC_PORTABLE",
        "kRelaxed": "CU_STREAM_CAPTURE_MODE_RELAXED",
    }
    lines = [f'#include "{header}"', f'#include "{binding._SOURCE}"', "#include <type_traits>"]
    for mine, (theirs, fields) in pairs.items():
        lines.append(f"static_assert(sizeof({mine}) == sizeof({theirs}));")
        lines += [f"static_assert(offsetof({mine}, {a}) == offsetof({theirs}, {b}));" for a, b in fields.items()]
    lines += [f"static_assert(int({mine}) == int({theirs}));" for mine, theirs in constants.items()]
    # the same number of arguments, each of the same size and passed alike
    lines.append("template <class... A> constexpr size_t arity(int (*)(A...)) { return sizeof...(A); }")
    lines.append("template <class... A> constexpr size_t arity(CUresult (*)(A...)) { return sizeof...(A); }")
    lines.append("template <class... A> constexpr size_t bytes(int (*)(A...)) { return (0 + ... + sizeof(A)); }")
    lines.append("template <class... A> constexpr size_t bytes(CUresult (*)(A...)) { return (0 + ... + sizeof(A)); }")
    lines.append(
        "#define SAME(name, arguments) static_assert(arity(decltype(Driver::name)()) == arity(decltype(&::name)()));"
    )
    lines.append("DRIVER_CALLS(SAME)")
    lines.append("#undef SAME")
    lines.append(
        "#define SAME(name, arguments) static_assert(bytes(decltype(Driver::name)()) == bytes(decltype(&::name)()));"
    )
    lines.append("DRIVER_CALLS(SAME)")
    source = tmp_path / "check.cpp"
    source.write_text("\n".join(lines))
    result = subprocess.run(["g++", "-std=c++17", "-fsyntax-only", source], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
