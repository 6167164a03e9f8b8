"""Device memory: what decides about the pager, suspend and resume, the memory cycle, a cache that shrinks.

Gandiva (OSDI'18) Figure 5 and 4.1; AntMan (OSDI'20) Figure 11. On a CPU: the same code on the fake driver.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from . import cuda
from .harness import Answers, Measurement, Row, Settings, median, run
from .jobs import JobError, end_of, equal_to_plain, nvml, resumed, suspended, training

_GB = 1e9
_MIB = 1 << 20
_RATE = "50 to 55 GB/s"
#: a limit that nothing reaches: unlike none at all, it lets a boundary bring back what is on the host
UNLIMITED = 1 << 50


# -- the pager under the stock allocator ------------------------------------------------------------------------------


def install(settings: Settings) -> tuple[Callable[[], Any], tuple[str, str, str]]:
    """The pager in this process, before its first tensor on the device: what makes the tier; library and symbols."""
    from hived_runtime.memory.paged import installed

    where = ("libc10_cuda.so", "cudaMalloc", "cudaFree") if settings.cuda else ("libc10.so", "posix_memalign", "free")
    return installed(settings.fake_driver or "cuda"), where


def slots(settings: Settings, answers: Answers) -> None:
    """The import slots of the stock allocator are rewritten, and training gives the same weights."""
    with answers.part("rewritten", "owned"):
        import torch

        make, (library, *symbols) = install(settings)
        pager: Any = make().pager
        found = [value for symbol in symbols for value in pager.slots(library, symbol)]
        answers.put("rewritten", len(found), f"{', '.join(symbols)} of {library}")
        tensor = torch.ones(1 << 20, device=settings.device)
        answers.put("owned", bool(pager.owns(tensor.data_ptr())) and float(tensor.sum()) == 1 << 20)
    with answers.part("equal"):
        steps = int(settings.pick(20, 8, 4))
        with training(settings, "resnet50", "pager", "--deterministic", "--steps", str(steps)) as job:
            job.until(lambda: job.iterations() > 0, "its first mini-batch")
            tier = job.status().answer
            end = end_of(job.result())
        if tier.tier != "pager":
            raise JobError(f"the pager was not in force: {tier.note}")
        answers.put("equal", *equal_to_plain(settings, "resnet50", {"pager": end})["pager"])


SLOTS = (
    Row("rewritten", "slots of the stock allocator that are the pager's now", "slots", target="2"),
    Row("owned", "a tensor lies in memory of the pager, and can be used", "", target="yes"),
    Row("equal", "ResNet-50 under the pager: weights equal to a plain run's", "", target="yes"),
)


# -- rates ------------------------------------------------------------------------------------------------------------


def copies(settings: Settings, answers: Answers) -> None:
    """Copies between the device and pinned memory of the host, by one stream, two, and both ways at once."""
    import torch

    size = int(settings.pick(1 << 30, 1 << 28, 1 << 22))
    device = torch.device(settings.device)
    there = [torch.empty(size // 2, dtype=torch.uint8, device=device) for _ in range(2)]
    here = [torch.empty(size // 2, dtype=torch.uint8, pin_memory=settings.cuda) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)] if settings.cuda else []

    def rate(pairs: list[tuple[torch.Tensor, torch.Tensor]], several: bool) -> float:
        best = float("inf")
        for _ in range(4):
            if settings.cuda:
                torch.cuda.synchronize()
            began = time.perf_counter()
            for turn, (to, from_) in enumerate(pairs):
                if settings.cuda:
                    with torch.cuda.stream(streams[turn % 2 if several else 0]):
                        to.copy_(from_, non_blocking=True)
                else:
                    to.copy_(from_)
            if settings.cuda:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
        return float(sum(to.numel() for to, _ in pairs)) / best / _GB

    out, back = list(zip(here, there, strict=True)), list(zip(there, here, strict=True))
    answers.put("out", rate(out, False))
    answers.put("back", rate(back, False))
    answers.put("out2", rate(out, True))
    answers.put("back2", rate(back, True))
    answers.put("both", rate([out[0], back[1]], True), "sum of both ways")


COPIES = (
    Row("out", "device to pinned host", "GB/s", target=_RATE),
    Row("back", "pinned host to device", "GB/s", target=_RATE),
    Row("out2", "device to pinned host, two streams", "GB/s", target=_RATE),
    Row("back2", "pinned host to device, two streams", "GB/s", target=_RATE),
    Row("both", "both ways at once", "GB/s"),
)

_CHUNKS = {"2": 2 * _MIB, "32": 32 * _MIB, "256": 256 * _MIB}
_STEPS = ("create", "map", "open", "unmap", "release")
_CALLS = {"create": "cuMemCreate", "map": "cuMemMap", "open": "cuMemSetAccess", "unmap": "cuMemUnmap"} | {
    "release": "cuMemRelease"
}


def latencies(driver: cuda.Driver, chunk: int, count: int) -> dict[str, float]:
    """Microseconds of each call for chunks of so many bytes, the middle of three rounds.

    ``open all`` is one cuMemSetAccess for all of them.
    """
    rounds = [_round_of_calls(driver, chunk, count) for _ in range(4)][1:]  # the first is to warm up
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def _round_of_calls(driver: cuda.Driver, chunk: int, count: int) -> dict[str, float]:
    took: dict[str, float] = {}

    @contextlib.contextmanager
    def timed(name: str, calls: int = count) -> Iterator[None]:
        began = time.perf_counter()
        yield
        took[name] = (time.perf_counter() - began) * 1e6 / calls

    with driver.reserved(chunk * count) as base:
        places = [base + index * chunk for index in range(count)]
        with timed("create"):
            handles = [driver.create(cuda.DEVICE, chunk) for _ in places]
        with timed("map"):
            for at, handle in zip(places, handles, strict=True):
                driver.map(at, chunk, handle)
        with timed("open all", 1):
            driver.open(base, chunk * count)
        with timed("unmap"):
            for at in places:
                driver.unmap(at, chunk)
        for at, handle in zip(places, handles, strict=True):
            driver.map(at, chunk, handle)
        with timed("open"):
            for at in places:
                driver.open(at, chunk)
        for at in places:
            driver.unmap(at, chunk)
        with timed("release"):
            for handle in handles:
                driver.release(handle)
    return took


def vmm(settings: Settings, answers: Answers) -> None:
    """The driver's calls for virtual memory, by the size of chunks: the pager's is 32 MiB."""
    driver = cuda.Driver(settings.fake_driver)
    driver.use_device()
    answers.put("granularity", driver.granularity(cuda.DEVICE) / _MIB)
    for name, size in _CHUNKS.items():
        with answers.part(*(f"{step}-{name}" for step in (*_STEPS, "open-all"))):
            count = max(4, min(64, (2 << 30) // size)) if settings.cuda else 4
            bytes_ = size if settings.cuda else max(size >> 9, driver.granularity(cuda.DEVICE))
            found = latencies(driver, bytes_, count)
            note = "" if settings.cuda else f"of {bytes_:,} bytes here"
            for step in _STEPS:
                answers.put(f"{step}-{name}", found[step], note)
            answers.put(f"open-all-{name}", found["open all"], f"{count} chunks{', ' + note if note else ''}")


VMM = (
    Row("granularity", "granularity of device memory", "MiB", target="2"),
    *(
        row
        for name in _CHUNKS
        for row in (
            *(Row(f"{step}-{name}", f"{_CALLS[step]}, a chunk of {name} MiB", "us") for step in _STEPS),
            Row(f"open-all-{name}", f"cuMemSetAccess, all chunks of {name} MiB in one call", "us"),
        )
    ),
)

_KINDS = {"device": cuda.DEVICE, "pinned": 0, "host-numa": cuda.HOST_NUMA, "host": cuda.HOST}


def host_reads(kind: str, settings: Settings, answers: Answers) -> None:
    """Memory of one kind: read by a kernel, and copied by the copy engine."""
    driver = cuda.Driver()
    driver.use_device()
    size = int(settings.pick(1 << 30, 1 << 28, 1 << 22))
    with driver.mapped(cuda.DEVICE, size) as device:
        memory = driver.mapped(_KINDS[kind], size) if _KINDS[kind] else driver.pinned(size)
        with memory as at:
            driver.copy_seconds(at, device, size)  # so that its pages are there
            answers.put("read", size / driver.read_seconds(at, size) / _GB)
            answers.put("copy-in", size / driver.copy_seconds(device, at, size) / _GB)
            answers.put("copy-out", size / driver.copy_seconds(at, device, size) / _GB)


_KIND_NAMES = {
    "device": "device memory",
    "pinned": "pinned host memory",
    "host-numa": "host memory mapped (HOST_NUMA)",
    "host": "host memory mapped (HOST)",
}


def _host_rows(kind: str) -> tuple[Row, ...]:
    name = _KIND_NAMES[kind]
    aim = "as pinned; not 1.5 GB/s as one report has it" if kind.startswith("host") else ""
    return (
        Row("read", f"{name}, read by a kernel", "GB/s", target=aim),
        Row("copy-in", f"{name}, copied to the device", "GB/s", target=aim),
        Row("copy-out", f"{name}, copied from the device", "GB/s", target=aim),
    )


# -- suspend and resume -----------------------------------------------------------------------------------------------

#: model; bytes that live; what the paper has for suspend and resume together; the target
_SIZES = {
    "0.3": ("resnet50", "< 0.1 s, image models", "25 to 50 ms"),
    "1.4": ("lm-117m", "up to 1 s, large language models", "100 ms"),
    "5.7": ("lm-475m", "", "220 ms"),
    "21": ("lm-1750m", "", "0.8 s"),
}
_TIERS = ("pager", "framework")


def suspension(size: str, settings: Settings, answers: Answers) -> None:
    """A job is suspended and resumed several times, by each tier; then its weights are compared with a plain run's."""
    model = _SIZES[size][0]
    ends: dict[str, tuple[int, str]] = {}
    for tier in _TIERS:
        with answers.part(*(row.key for row in _suspension_rows(size) if row.key.startswith(tier))):
            ends[tier] = _suspended_by(tier, model, settings, answers)
    with answers.part(*(f"{tier}-equal" for tier in _TIERS)):
        for tier, found in equal_to_plain(settings, model, ends).items():
            answers.put(f"{tier}-equal", *found)


def _suspended_by(tier: str, model: str, settings: Settings, answers: Answers) -> tuple[int, str]:
    card = nvml(settings)
    before = card.used() if card is not None else 0
    outs, backs, least = [], [], 0
    with training(settings, model, tier, "--deterministic") as job:
        job.trains()
        for _ in range(4 if settings.cuda else 2):
            out, moved = suspended(job, tier)
            outs.append(out)
            if card is not None:
                found = card.bytes_of(job.pid, before)
                least = max(least, found.value)
                answers.put(f"{tier}-bytes", found.value / _MIB, found.way)
            backs.append(resumed(job))
            job.trains(2)
        result = job.stop()
    pairs = [out + back for out, back in zip(outs, backs, strict=True)]
    typical = median(pairs[1:])
    answers.put(
        f"{tier}-together",
        1000 * typical,
        f"{moved / _GB:.2f} GB; out {1000 * median(outs[1:]):.0f}, back {1000 * median(backs[1:]):.0f} ms; "
        f"{2 * moved / typical / _GB:.1f} GB/s",
    )
    answers.put(f"{tier}-first", 1000 * pairs[0], "it pins memory of the host")
    if card is None:
        answers.needs_gpu(f"{tier}-bytes")
    if tier == "pager":
        answers.put("pager-addresses", bool(result["same_addresses"]))
    return end_of(result)


def _suspension_rows(size: str) -> tuple[Row, ...]:
    model, paper, target = _SIZES[size]
    rows = []
    for tier in _TIERS:
        head = f"{size} GB ({model}), {tier}:"
        where = "Gandiva 4.1" if paper else ""
        rows += [
            Row(f"{tier}-together", f"{head} suspend + resume", "ms", paper, target, where),
            Row(f"{tier}-first", f"{head} the first time", "ms"),
            Row(f"{tier}-bytes", f"{head} device bytes while suspended", "MiB", target="the context's, 500 to 1000"),
            Row(f"{tier}-equal", f"{head} weights equal to a plain run's", "", target="yes"),
        ]
    rows.append(Row("pager-addresses", f"{size} GB ({model}), pager: the same addresses", "", target="yes"))
    return tuple(rows)


# -- the memory cycle (Gandiva, Figure 5) -----------------------------------------------------------------------------


def lowest(start: int, events: Iterable[tuple[str, int]]) -> int:
    """The least bytes in use over a trace of the allocator: ``alloc`` and ``free_completed``, with sizes.

    >>> lowest(10, [("alloc", 5), ("free_completed", 12), ("segment_free", 9), ("alloc", 20)])
    3
    """
    least = now = start
    for action, size in events:
        now += size if action == "alloc" else -size if action == "free_completed" else 0
        least = min(least, now)
    return least


def cycle(model: str, settings: Settings, answers: Answers) -> None:
    """Most and least bytes in each mini-batch, the least at our boundary and at the true minimum."""
    import torch

    from hived_runtime.boundaries import Boundaries

    from .models import make

    if settings.cuda:

        def look() -> tuple[int, int]:
            found = torch.cuda.memory_stats()
            torch.cuda.reset_peak_memory_stats()
            return found["allocated_bytes.all.current"], found["allocated_bytes.all.peak"]

    else:
        tier = install(settings)[0]()

        def look() -> tuple[int, int]:
            found = tier.held()
            tier.pager.reset_peaks()
            return found.device, found.peak

    device = torch.device(settings.device)
    task, optimizer = make(model, settings.size, device)
    seen: list[tuple[int, int]] = []
    at: list[float] = []
    traced: list[tuple[int, int]] = []  # requested bytes at the boundary, and the least of the mini-batch after it
    steps = int(settings.pick(20, 10, 4))

    def act() -> None:
        seen.append(look())
        at.append(time.monotonic())
        if not settings.cuda:
            return
        if len(seen) == steps - 2:
            traced.append((torch.cuda.memory_stats()["requested_bytes.all.current"], 0))
            torch.cuda.memory._record_memory_history("all", context=None, max_entries=1 << 20)
        elif len(seen) == steps - 1:
            events = torch.cuda.memory._snapshot()["device_traces"][device.index or 0]
            torch.cuda.memory._record_memory_history(None)
            begin = traced[0][0]
            traced[0] = (begin, lowest(begin, ((each["action"], each["size"]) for each in events)))

    boundaries = Boundaries(lambda: None, act)
    for step in range(steps):
        batch = task.batch(step, device)
        optimizer.zero_grad(set_to_none=True)
        loss = task.loss(*batch)
        loss.backward()
        optimizer.step()
        loss.item()
    boundaries.remove()
    usual = seen[2:]
    most, least = max(peak for _, peak in usual), min(current for current, _ in usual)
    note = "" if settings.cuda else "tensors of 64 KiB or more"
    answers.put("most", most / _GB, note)
    answers.put("least", least / _GB, note)
    answers.put("ratio", most / least)
    answers.put("seconds", median([b - a for a, b in itertools.pairwise(at[1:])]))
    if traced:
        begin, true = traced[0]
        answers.put("above", (begin - true) / _MIB, f"{begin / _MIB:.0f} MiB at the boundary")
    else:
        answers.needs_gpu("above")


def _cycle_rows(image: bool) -> tuple[Row, ...]:
    name = "ResNet-50, batch 128" if image else "a transformer, lengths 16 to 128"
    most, least, ratio, took = ("23 GB, 4 GPUs", "0.3 GB", "77", "1.5 s") if image else ("", "0.4 GB model", "3", "")
    where = "Gandiva Figure 5"
    return (
        Row("most", f"{name}: most bytes in a mini-batch", "GB", most, "", where),
        Row("least", f"{name}: least, at our boundary", "GB", least, "", where),
        Row("ratio", f"{name}: most over least", "x", ratio, "", where),
        Row("seconds", f"{name}: one cycle", "s", took, "", where),
        Row("above", f"{name}: at our boundary above the true minimum", "MiB", target="no more than a batch of data"),
    )


# -- a cache that shrinks and grows (AntMan, Figure 11) ---------------------------------------------------------------


def cache(tier_name: str, settings: Settings, answers: Answers) -> None:
    """Shrink the cache of a job at a boundary, let it grow back in the next mini-batch; the middle of three times."""
    import torch

    from hived_runtime.memory.framework import FrameworkTier

    from .models import make

    device = torch.device(settings.device)
    make_pager = install(settings)[0] if tier_name == "pager" else None
    task, optimizer = make("resnet50-cache", settings.size, device)
    tier: Any = make_pager() if make_pager is not None else FrameworkTier(device, lambda: [optimizer])

    def mini_batch(step: int) -> float:
        began = time.monotonic()
        loss = task.loss(*task.batch(step, device))
        loss.backward()
        optimizer.step()
        loss.item()
        optimizer.zero_grad(set_to_none=True)
        return time.monotonic() - began

    usual = median([mini_batch(step) for step in range(10 if settings.cuda else 5)][3:])
    shrunk, extra, before, after = [], [], 0, 0
    for round_ in range(3):
        held = tier.held()
        before = held.device
        # with room for segments that are used in part; on a CPU there is no cache, and tensors go to the host
        limit = int(held.used * 1.25) + 256 * _MIB if settings.cuda else held.used // 2
        began = time.monotonic()
        tier.limit(limit, limit)
        tier.boundary()
        shrunk.append(time.monotonic() - began)
        after = tier.held().device
        began = time.monotonic()
        tier.limit(UNLIMITED, UNLIMITED)
        tier.boundary()
        extra.append(time.monotonic() - began + mini_batch(100 + 3 * round_) - usual)
        mini_batch(101 + 3 * round_)
    answers.put("shrink", 1000 * median(shrunk), f"from {before / _GB:.2f} to {after / _GB:.2f} GB")
    answers.put("grow", 1000 * median(extra), f"a mini-batch takes {1000 * usual:.0f} ms")
    answers.put("minute", 100 * (median(shrunk) + max(median(extra), 0.0)) / 60)


def _cache_rows(tier: str) -> tuple[Row, ...]:
    return (
        Row("shrink", f"{tier}: shrink a cache of 16 GB", "ms", "17 ms", "20 to 60 ms", "AntMan Figure 11a"),
        Row("grow", f"{tier}: extra time of the next mini-batch", "ms", "115 ms", "< 115 ms", "AntMan Figure 11a"),
        Row("minute", f"{tier}: both, of a minute", "%", "<= 0.4%", "<= 0.4%", "AntMan Figure 11b"),
    )


def alive(settings: Settings, answers: Answers) -> None:
    """After all of it the driver serves a new process."""
    import torch

    answers.put("alive", float(torch.ones(1 << 20, device=settings.device).sum()) == 1 << 20)


MEASUREMENTS = (
    Measurement("slots", slots, SLOTS, 90),
    Measurement("copies", copies, COPIES, 40),
    Measurement("vmm", vmm, VMM, 40),
    *(Measurement(f"reads-{kind}", partial(host_reads, kind), _host_rows(kind), 30, gpu_only=True) for kind in _KINDS),
    *(
        Measurement(
            f"suspend-{size}",
            partial(suspension, size),
            _suspension_rows(size),
            budget,
            like="" if size == "0.3" else "suspend-0.3",
        )
        for size, budget in (("0.3", 90), ("1.4", 90), ("5.7", 110), ("21", 170))
    ),
    Measurement("cycle-resnet50", partial(cycle, "resnet50"), _cycle_rows(True), 50),
    Measurement("cycle-transformer", partial(cycle, "lm-varying"), _cycle_rows(False), 50, like="cycle-resnet50"),
    Measurement("cache-pager", partial(cache, "pager"), _cache_rows("pager"), 50),
    Measurement("cache-framework", partial(cache, "framework"), _cache_rows("framework"), 50, gpu_only=True),
    Measurement("alive", alive, (Row("alive", "a new process can use the GPU", "", target="yes"),), 30, gpu_only=True),
)

if __name__ == "__main__":
    sys.exit(run("memory", __doc__ or "", MEASUREMENTS))
