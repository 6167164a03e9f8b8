"""Jobs that take turns live, under Gandiva (OSDI'18, 4.2.2): judged by what they themselves print of every mini-batch.

Real PyTorch training on the CPU, on simulated devices. A job is within a mini-batch from its beginning to its print.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from hived.engines.local.devices import Simulated, spec_for
from hived.engines.local.engine import Engine
from hived.engines.local.model import Job, JobSpec
from hived.engines.local.store import Store
from hived.engines.local.tasks import Liveness

from .measuring import Figure

JOBS, DEVICES = 6, 4
SLICE_S = 10.0
CYCLES = 10  #: of three slices, in which each of six jobs has four GPUs for two
#: a mini-batch is mostly a nap, as on a GPU, where the processor waits: so devices are not bound by two cores
SCRIPT = """
import time, torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
steps = torch.optim.AdamW(net.parameters())
while True:
    began = time.time()
    steps.zero_grad()
    (net(torch.randn(32, 64)) ** 2).mean().backward()
    steps.step()
    time.sleep(0.05)
    print(began, time.time(), flush=True)
"""


def measure() -> list[Figure]:
    """The share of the time of each job, and how many were in a mini-batch at once at most."""
    folder = Path(tempfile.mkdtemp(prefix="hived-turns-"))
    try:
        ran, window, most, changes = asyncio.run(_run(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ideal = DEVICES / JOBS
    shares = [seconds / window for seconds in ran]
    return [
        Figure("least share of six jobs on four devices, over 4/6", min(shares) / ideal, "of 1"),
        Figure("largest share of six jobs on four devices, over 4/6", max(shares) / ideal, "of 1"),
        Figure("time of four devices that six jobs use, taking turns", sum(shares) / DEVICES, "of 1"),
        Figure("jobs in a mini-batch at once, at most, on four devices", most, "jobs"),
        Figure("changes of turns in the meantime", changes, "changes"),
    ]


async def _run(folder: Path) -> tuple[list[float], float, int, int]:
    spec = spec_for("node", DEVICES, "GPU", [("team", DEVICES)])
    policy = f"gandiva:packs=false:quantum_s={SLICE_S:g}"
    spec = replace(spec, virtual_clusters=tuple(replace(vc, policy=policy) for vc in spec.virtual_clusters))
    engine = Engine(spec, Store(folder), Simulated())
    await engine.start()
    path = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    command = (sys.executable, "-c", SCRIPT)
    jobs = [engine.submit(JobSpec(vc="team", command=command, name="train", environment=path)) for _ in range(JOBS)]
    while any(job.attempt == 0 or len(_printed(engine, job)) < 10 for job in jobs):
        await asyncio.sleep(0.5)
    first, start = engine.last_event, time.time()
    window = CYCLES * 3 * SLICE_S
    await asyncio.sleep(window)
    end, last = time.time(), engine.last_event
    events = engine.store.events(first, last - first, None)
    steps = [_printed(engine, job) for job in jobs]
    for job in jobs:
        engine.cancel(str(job.id))
    while any(engine.task(job, 0).liveness() is Liveness.ALIVE for job in jobs):
        await asyncio.sleep(0.1)
    await engine.stop()
    within = [[(max(a, start), min(b, end)) for a, b in of if a < end and b > start] for of in steps]
    return (
        [sum(b - a for a, b in of if b - a < SLICE_S / 2) for of in within],
        end - start,
        _at_once([one for of in within for one in of if one[1] - one[0] < SLICE_S / 2]),
        sum(event.kind == "resumed" for event in events),
    )


def _printed(engine: Engine, job: Job) -> list[tuple[float, float]]:
    lines = [line.split() for line in engine.task(job, 0).output.read_text().splitlines() if job.attempt]
    return [(float(words[0]), float(words[1])) for words in lines if len(words) == 2]


def _at_once(intervals: list[tuple[float, float]]) -> int:
    most = now = 0
    for _, change in sorted([(a, 1) for a, _ in intervals] + [(b, -1) for _, b in intervals]):
        now += change
        most = max(most, now)
    return most
