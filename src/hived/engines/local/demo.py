"""``hived up --demo``: three tenants on eight simulated devices, with short real processes.

The first minute is scripted: a loan, its preemption by the owner, a wait with its reason. After it, jobs are random.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable

from hived.errors import HivedError
from hived.spec.compiled import ClusterSpec

from . import demo_job
from .devices import spec_for
from .model import JobSpec

DEVICES = 8
SHARES = (("vision", 4), ("speech", 2), ("research", 2))

#: second, tenant, name, GPUs, priority, steps of half a second, exit code
_SCRIPT: tuple[tuple[float, str, str, int, int, int, int], ...] = (
    (0, "speech", "asr", 2, 0, 60, 0),
    (1, "research", "ablation", 1, 0, 80, 0),
    (2, "research", "sweep", 4, -1, 50, 0),  # on vision's idle GPUs
    (10, "vision", "resnet", 2, 0, 60, 0),  # vision needs its GPUs: the sweep is preempted
    (16, "vision", "detection", 4, 0, 40, 0),  # more than vision has free: waits
    (19, "vision", "segmentation", 1, 0, 30, 0),  # in line behind it
    (22, "research", "probe", 1, 0, 24, 1),  # fails, and is retried
    (34, "vision", "hotfix", 2, 10, 16, 0),  # a higher priority
)
#: how many jobs may wait or run before the next one is submitted
_MOST = 12
_NAMES = {
    "vision": ("resnet", "vit", "detection", "segmentation", "clip"),
    "speech": ("asr", "tts", "wav2vec", "diarize"),
    "research": ("ablation", "sweep", "probe", "distill"),
}


def demo_spec() -> ClusterSpec:
    """One node of eight: vision has a socket, speech and research a pair each."""
    return spec_for("demo", DEVICES, "GPU", SHARES)


async def play(submit: Callable[[JobSpec], object], active: Callable[[], int], folder: str) -> None:
    """Submit the scripted jobs at their seconds, then one every few seconds, until cancelled."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    for at, vc, name, gpus, priority, steps, code in _SCRIPT:
        await asyncio.sleep(max(0.0, start + at - loop.time()))
        with contextlib.suppress(HivedError):  # the user may have drained or reconfigured the cluster
            submit(_job(folder, vc, name, gpus, priority, steps, code))
    generator = random.Random(1)
    while True:
        await asyncio.sleep(generator.uniform(3, 7))
        if active() >= _MOST:
            continue
        vc, size = generator.choice(SHARES)
        gpus = generator.choice([gpus for gpus in (1, 1, 2, 4) if gpus <= size])
        priority = generator.choice((0, 0, 0, 5, -1))
        name = generator.choice(_NAMES[vc])
        with contextlib.suppress(HivedError):
            submit(_job(folder, vc, name, gpus, priority, generator.randint(20, 70), 0))


def _job(folder: str, vc: str, name: str, gpus: int, priority: int, steps: int, code: int) -> JobSpec:
    command = (sys.executable, demo_job.__file__, str(steps), *([str(code)] if code else []))
    return JobSpec(
        vc=vc,
        command=command,
        gpus=gpus,
        priority=priority,
        name=name,
        cwd=folder,
        retries=1,
        backoff_s=6.0,
        grace_s=5.0,
        user="demo",
    )
