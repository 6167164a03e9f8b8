"""The pager, on a driver without a device (``fake_driver.cpp``): memory files for memory, PROT_NONE for no access.

Nothing here meets a GPU. What is shown: contents and addresses, the driver's own count of bytes, and what each failing
call of the driver leaves behind.
"""

from __future__ import annotations

import ctypes
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from hived_runtime.memory import pager as binding
from hived_runtime.memory.pager import Pager, PagerError

GRANULE = 4096
CHUNK = 4 * GRANULE
OUT_OF_MEMORY = 2
EVERYTHING = 2**63


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

    def gets(self, *granules: int) -> list[bool]:
        """Which of these requests, one after the other, get memory."""
        return [self.ask(each) is not None for each in granules]

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
def machine(tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Whatever a test has done with it, nothing is lost."""
    made = Machine(tmp_path, fake, monkeypatch)
    yield made
    made.check()


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
            moved = machine.pager.boundary()
            assert moved.demoted_bytes - moved.promoted_bytes == (before - machine.device()) * GRANULE
            assert machine.device() + machine.host() == total
            assert not limit or machine.device() <= limit
            assert limit or machine.host() == 0, "without a limit all of it comes back"
            room = limit - machine.device() if limit else 0
            assert before > limit or machine.host() == 0 or room < 4, "a whole chunk had room, and stayed on the host"
        elif event == "suspend":
            assert machine.pager.suspend() == before * GRANULE
            machine.check()
            assert machine.device() == 0
            assert machine.pager.resume() == before * GRANULE
            assert not limit or machine.device() <= limit
        machine.check()
    for address in list(machine.alive):
        assert machine.free(address) == 0
    machine.check()
    assert (machine.device(), machine.host(), machine.driver.fake_reserved()) == (0, 0, 0), "all is given back"


def test_first_request_over_limit_fails(machine: Machine) -> None:
    """So the caching allocator frees what it can, and asks for the same once more: that is answered, on the host."""
    machine.pager.limit(8 * GRANULE)
    cached = machine.take(6)
    assert machine.gets(4, 2) == [False, True], "one that fits comes in between: the next is no retry"
    assert machine.gets(4, 3, 3, 3) == [False, False, True, False], "nor is one of another size, nor a third"
    assert (machine.device(), machine.host()) == (8, 3)
    machine.free(cached)
    assert machine.gets(3) == [True]
    assert (machine.device(), machine.host()) == (5, 3), "what was freed serves the retry"


def test_retry_is_per_thread(machine: Machine) -> None:
    machine.pager.limit(GRANULE)
    answers = machine.gets(4)
    thread = Thread(target=lambda: answers.extend(machine.gets(4)))
    thread.start()
    thread.join()
    assert answers == [False, False]
    assert machine.gets(4) == [True]


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
    assert machine.gets(5, 5) == [False, True]
    assert (machine.device(), machine.host()) == (4, 5), "its first chunk has four granules"
    machine.check()
    assert machine.pager.boundary().promoted_chunks == 0
    machine.check()
    machine.capacity(device=8)
    assert machine.pager.boundary().promoted_bytes == 4 * GRANULE


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


def place(address: int) -> str:
    """Whether an address is on the device or the host: the memory file that the kernel says is mapped there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return "device" if "fake_device" in line else "host" if "fake_host" in line else line
    raise AssertionError(f"{address:#x} is not mapped")


def test_driver_without_numa_locations(machine: Machine) -> None:
    machine.driver.fake_numa(0)
    machine.pager.limit(GRANULE)
    machine.take(4)
    assert machine.calls("cuMemCreate") == 2
    machine.take(4)
    assert machine.calls("cuMemCreate") == 3, "what the driver does not know is asked once"
    assert (machine.device(), machine.host()) == (0, 8)


def test_free_waits_for_queued_work(machine: Machine) -> None:
    first, second = machine.take(1), machine.take(1)
    before = machine.calls("cuCtxSynchronize")
    machine.free(first)
    assert machine.calls("cuCtxSynchronize") == before + 1
    machine.fail("cuCtxSynchronize", code=700)
    assert machine.free(second) == 700, "the error of a kernel before it"
    machine.heal()


def test_foreign_address_is_not_freed(machine: Machine) -> None:
    inside = machine.take(3) + GRANULE
    for address in (inside, 0, 12345):
        assert machine.c.hived_pager_free(ctypes.c_void_p(address)) == 1
    machine.check()
    assert machine.pager.owns(inside)
    assert not machine.pager.owns(inside + 2 * GRANULE)


# -- suspend and resume -----------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_suspend_empties_resume_restores(machine: Machine) -> None:
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


def test_slab_grows_with_the_job(machine: Machine) -> None:
    for granules in (3, 9, 21):
        machine.take(granules)
        machine.pager.suspend()
        machine.check()
        machine.pager.resume()
        machine.check()
    assert machine.calls("cuMemHostAlloc") == 3
    assert machine.pager.stats().slab_bytes <= (3 + 12 + 33) * GRANULE


def test_requests_while_suspended(machine: Machine) -> None:
    kept, dropped = machine.take(9), machine.take(5)
    machine.pager.limit(14 * GRANULE)
    overflown = machine.take(2)
    machine.pager.suspend()
    assert machine.gets(1, 1) == [False, False], "again, and not on the host either"
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


@pytest.mark.parametrize(
    ("times", "code"),
    [pytest.param(1, OUT_OF_MEMORY, marks=pytest.mark.smoke), (1, 999), (2, 999), (-1, OUT_OF_MEMORY), (-1, 999)],
    ids=["no memory", "once", "twice", "no memory from then on", "from then on"],
)
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
