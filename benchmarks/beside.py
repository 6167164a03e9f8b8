"""A guaranteed job beside two guests, live, under AntMan (OSDI'20, 5.3): judged by what the jobs themselves print.

Real PyTorch training on the CPU. One simulated device is one core: the jobs are pinned to it. The owner loads its data
between mini-batches for part of the time, in which it leaves the device idle; guests train as fast as they may.
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

GUESTS = 2
WINDOW_S = 60.0
#: a mini-batch of some 40 ms on the core, after IDLE_S in which the owner waits for its data
SCRIPT = """
import os, sys, time, torch
idle = float(sys.argv[1])
os.sched_setaffinity(0, {os.cpu_count() - 1})
torch.set_num_threads(1)
net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(8)])
steps = torch.optim.SGD(net.parameters(), lr=0.01)
data = torch.randn(1024, 256)
while True:
    time.sleep(idle)
    began, worked = time.time(), time.process_time()
    steps.zero_grad()
    net(data).mean().backward()
    steps.step()
    print(began, time.time(), time.process_time() - worked, flush=True)
"""
IDLE_S = 0.06


def measure() -> list[Figure]:
    """Mini-batch times of the owner beside guests over alone, and the work of guests over the time that it leaves."""
    folder = Path(tempfile.mkdtemp(prefix="hived-beside-"))
    try:
        alone, beside, guests, left = asyncio.run(_run(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [
        Figure("mini-batch of an owner alone, median", 1000 * _part(alone, 0.5), "ms"),
        Figure(
            "mini-batch of an owner beside two guests over alone, median", _part(beside, 0.5) / _part(alone, 0.5), ""
        ),
        Figure(
            "mini-batch of an owner beside two guests over alone, 99%", _part(beside, 0.99) / _part(alone, 0.99), ""
        ),
        Figure("work of two guests over the time that their owner leaves", guests / left, "of 1"),
    ]


async def _run(folder: Path) -> tuple[list[float], list[float], float, float]:
    spec = spec_for("node", 1, "GPU", [("team", 1)])
    vcs = tuple(
        replace(vc, policy="antman:window_s=0:most_utilization=0.95", guests="all") for vc in spec.virtual_clusters
    )
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # jobs go to another core: a device is not the engine's
    engine = Engine(replace(spec, virtual_clusters=vcs), Store(folder), Simulated())
    await engine.start()
    path = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}

    def job(idle: float, priority: int) -> Job:
        command = (sys.executable, "-c", SCRIPT, str(idle))
        return engine.submit(JobSpec(vc="team", command=command, name="train", environment=path, priority=priority))

    owner = job(IDLE_S, 0)
    while owner.attempt == 0 or len(_printed(engine, owner)) < 10:
        await asyncio.sleep(0.5)
    start = time.time()
    await asyncio.sleep(WINDOW_S)
    alone = [b - a for a, b, _ in _printed(engine, owner) if a > start]
    others = [job(0.0, -1) for _ in range(GUESTS)]
    began = time.time()
    while time.time() < began + 60 and not all(other.limits is not None for other in others):
        await asyncio.sleep(0.5)
    await asyncio.sleep(30)
    start = time.time()
    await asyncio.sleep(WINDOW_S)
    end = time.time()
    beside = [(a, b, work) for a, b, work in _printed(engine, owner) if start < a < end]
    worked = sum(work for other in others for a, _, work in _printed(engine, other) if start < a < end)
    for of in (owner, *others):
        if not of.state.ended:
            engine.cancel(str(of.id))
    while any(engine.task(of, 0).liveness() is Liveness.ALIVE for of in (owner, *others) if of.attempt):
        await asyncio.sleep(0.1)
    await engine.stop()
    return alone, [b - a for a, b, _ in beside], worked, end - start - sum(work for _, _, work in beside)


def _printed(engine: Engine, job: Job) -> list[tuple[float, float, float]]:
    if not job.attempt:
        return []
    lines = [line.split() for line in engine.task(job, 0).output.read_text().splitlines()]
    return [(float(words[0]), float(words[1]), float(words[2])) for words in lines if len(words) == 3]


def _part(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(part * len(times)))]
