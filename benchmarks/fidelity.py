"""Twenty training jobs live, and the same twenty simulated from measured profiles: mean completion, policy by policy.

Real PyTorch training on the CPU. A simulated device is a core: whatever has a device is pinned to its core. Each kind
of job is measured first, alone, beside copies of itself and taking turns with one; a row of a table of job models is
made of that (:mod:`hived.simulator.models`), and nothing of a whole run goes into the simulation of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from hived import simulate
from hived.engines.local.agent import Agent
from hived.engines.local.devices import Simulated, spec_for
from hived.engines.local.engine import Engine
from hived.engines.local.model import Job, JobSpec, Obeying
from hived.engines.local.store import Store
from hived.simulator.models import JobModel, Models
from hived.simulator.traces import Trace, TraceJob
from hived.spec.compiled import ClusterSpec

from .measuring import Figure

TENANTS = ("vision", "nlp")  #: with a device each
JOBS, SPAN_S = 20, 200.0  #: and the time in which they come, uniformly
SHORTEST_S, LONGEST_S = 10.0, 50.0  #: alone
SLICE_S = 5.0
PROFILE_S, TRIAL_S = 8.0, 8.0
WARM_S, LOOK_S = 4.0, 12.0  #: what a profile leaves out, and how long it looks


#: begin and end of each mini-batch of a job
Steps = list[tuple[float, float]]


class Kind(NamedTuple):
    """A kind of training job."""

    net: str
    features: int
    batch: int
    idle_s: float  #: in every mini-batch: it waits for its data


KINDS = {
    "wide": Kind("mlp", 256, 1024, 0.0),
    "loaded": Kind("mlp", 256, 512, 0.02),
    "starved": Kind("mlp", 128, 512, 0.03),
    "recurrent": Kind("lstm", 64, 64, 0.01),
}
SCRIPT = """
import sys, time, torch
net, features, batch, idle, steps = sys.argv[1], *map(int, sys.argv[2:4]), float(sys.argv[4]), int(sys.argv[5])
torch.set_num_threads(1)
torch.manual_seed(1)
if net == "lstm":
    model = torch.nn.LSTM(features, features, batch_first=True)
    data = torch.randn(batch, 24, features)
else:
    layer = lambda: torch.nn.Sequential(torch.nn.Linear(features, features), torch.nn.ReLU())
    model = torch.nn.Sequential(*[layer() for _ in range(8)])
    data = torch.randn(batch, features)
optimizer = torch.optim.Adam(model.parameters())
for step in range(steps):
    began = time.time()
    time.sleep(idle)
    optimizer.zero_grad()
    out = model(data + torch.randn(1))
    (out[0] if net == "lstm" else out).square().mean().backward()
    optimizer.step()
    print(began, time.time(), flush=True)
print("weights", *[float(p.double().sum()).hex() for p in model.parameters()])
"""


class Arm(NamedTuple):
    """A policy, and how jobs are submitted under it."""

    policy: str
    early: bool = False  #: on idle GPUs of others before their turn, or as guests
    guests: Literal["none", "all"] = "none"


ARMS = {
    "YARN-CS": Arm("yarn-cs"),
    "YARN-CS with loans": Arm("yarn-cs", early=True),
    "Gandiva": Arm(f"gandiva:quantum_s={SLICE_S:g}:profile_s={PROFILE_S:g}:trial_s={TRIAL_S:g}"),
    "AntMan": Arm("antman:window_s=5:settle_s=5:step_s=2", early=True, guests="all"),
}
BASELINE = "YARN-CS"


class Profile(NamedTuple):
    """What is measured of a kind."""

    start_s: float  #: from its submission to its first mini-batch, and from its last one to its end
    model: JobModel

    def steps(self, seconds: float) -> int:
        """Mini-batches of a job that takes so long alone."""
        return max(1, round((seconds - self.start_s) / self.model.batch_s))

    def alone_s(self, steps: int) -> float:
        """How long so many take alone."""
        return self.start_s + steps * self.model.batch_s


class Arriving(NamedTuple):
    """A job of the experiment."""

    tenant: str
    kind: str
    at_s: float
    steps: int


def measure() -> list[Figure]:
    """Mean completion of each arm, simulated and live, and how far apart they are."""
    folder = Path(tempfile.mkdtemp(prefix="hived-fidelity-"))
    try:
        profiles, lives = asyncio.run(_run(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    jobs = arriving(profiles)
    figures = []
    for name, live in lives.items():
        simulated = simulation(ARMS[name], profiles, jobs)
        print(name, [(round(a), round(b)) for a, b in zip(live.times, simulated, strict=True)], file=sys.stderr)
        mean, expected = sum(live.times) / len(jobs), sum(simulated) / len(jobs)
        figures += [
            Figure(f"mean completion of twenty training jobs under {name}, live", mean, "s"),
            Figure(f"mean completion of twenty training jobs under {name}, simulated", expected, "s"),
            Figure(f"mean completion of twenty training jobs under {name}, live over simulated", mean / expected, ""),
            Figure(f"work of twenty training jobs that was lost and done again under {name}, live", live.lost_s, "s"),
        ]
    undisturbed = lives[BASELINE].weights
    same = [sum(one == other for one, other in zip(of.weights, undisturbed, strict=True)) for of in lives.values()]
    figures.append(Figure("jobs of twenty with the weights of a run alone, least of all policies", min(same), "jobs"))
    return figures


def arriving(profiles: dict[str, Profile]) -> list[Arriving]:
    """Twenty jobs, drawn once."""
    draw = random.Random(2)
    times = sorted(draw.uniform(0, SPAN_S) for _ in range(JOBS))
    kinds = [*KINDS] * (JOBS // len(KINDS))
    draw.shuffle(kinds)
    found = []
    for number, (at, kind) in enumerate(zip(times, kinds, strict=True)):
        # by turns three of one tenant's jobs, then one of the other's: each has its busy time
        tenant = TENANTS[(number // 5 + (number % 4 == 0)) % 2]
        seconds = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** draw.random()
        found.append(Arriving(tenant, kind, at, profiles[kind].steps(seconds)))
    return found


# -- simulated -------------------------------------------------------------------------------------------------------


def spec_of(arm: Arm) -> ClusterSpec:
    """A server with a device per tenant."""
    spec = spec_for("node", len(TENANTS), "GPU", [(tenant, 1) for tenant in TENANTS])
    vcs = tuple(replace(vc, policy=arm.policy, guests=arm.guests) for vc in spec.virtual_clusters)
    return replace(spec, virtual_clusters=vcs)


def simulation(arm: Arm, profiles: dict[str, Profile], jobs: Sequence[Arriving]) -> list[float]:
    """Completion times, in seconds."""
    trace = [
        TraceJob(
            str(number),
            job.tenant,
            round(1000 * job.at_s),
            round(1000 * profiles[job.kind].alone_s(job.steps)),
            1,
            "pass",
            model=job.kind,
        )
        for number, job in enumerate(jobs)
    ]
    known = [profile.model for profile in profiles.values()]
    models = Models([*known, Models.load().of("*")])
    study = simulate(
        spec_of(arm),
        Trace("twenty jobs", tuple(trace)),
        schemes="hived",
        policy=arm.policy,
        opportunistic=arm.early,
        preempted="restart",
        victims="least-work",
        models=models,
    )
    record = study.record()
    return [(finish - job.submit_ms) / 1000 for finish, job in zip(record.finish, trace, strict=True)]


# -- live ------------------------------------------------------------------------------------------------------------


class Lived(NamedTuple):
    """What was seen of an arm."""

    times: list[float]  #: of completion, by job, in seconds
    weights: list[str]  #: at the end
    lost_s: float  #: for which jobs ran in attempts that were ended for others


async def _run(folder: Path) -> tuple[dict[str, Profile], dict[str, Lived]]:
    profiles = {kind: await _profile(folder / f"profile-{kind}", kind) for kind in KINDS}
    jobs = arriving(profiles)
    return profiles, {name: await _live(folder / name.replace(" ", "-"), arm, jobs) for name, arm in ARMS.items()}


async def _live(folder: Path, arm: Arm, jobs: Sequence[Arriving]) -> Lived:
    async with _engine(folder, spec_of(arm)) as engine:
        start, submitted = time.time() + 1, []
        for one in jobs:
            await asyncio.sleep(max(0.0, start + one.at_s - time.time()))
            submitted.append(_submit(engine, one.tenant, one.kind, one.steps, arm.early))
        while engine.job_scheduler.jobs:
            await engine.changed(engine.last_event)
        times = []
        for job in submitted:
            assert job.exit_code == 0, f"{job.name} {job.state}: {job.reason}"
            assert job.ended_at is not None
            times.append(job.ended_at - job.submitted_at)
        weights = [engine.task(job, 0).output.read_text().splitlines()[-1] for job in submitted]
        began: dict[int | None, float] = {}
        lost = 0.0
        for event in engine.store.events(0, engine.last_event, None):
            if event.kind == "started":
                began[event.job] = event.at
            elif event.kind == "requeued":
                lost += event.at - began[event.job]
                print(f"job {event.job} lost {event.at - began[event.job]:.1f} s: {event}", file=sys.stderr)
        return Lived(times, weights, lost)


async def _profile(folder: Path, kind: str) -> Profile:
    """Measure a kind alone, packed with copies of itself, and taking turns with one."""
    one = spec_for("node", 1, "GPU", [("team", 1)])
    async with _engine(folder / "alone", one) as engine:
        job = _submit(engine, "team", kind, 10**6, share=True)
        await _trains(engine, [job])
        steps, (doing,) = await _look(engine, [job])
        (batch,) = [(of[-1][1] - of[0][0]) / len(of) for of in steps]
        short = _submit(engine, "team", kind, round(3 / batch))
        engine.cancel(str(job.id))
        while not short.state.ended:
            await engine.changed(engine.last_event)
        assert short.started_at is not None
        assert short.ended_at is not None
        start = short.ended_at - short.started_at - round(3 / batch) * batch
    copies = max(2, round(1 / doing.utilization))
    async with _engine(folder / "packed", spec_for("node", copies, "GPU", [("team", copies)]), [0] * copies) as engine:
        packed = [_submit(engine, "team", kind, 10**6, share=True) for _ in range(copies)]
        await _trains(engine, packed)
        steps, _ = await _look(engine, packed)
        together = sum(len(of) / (of[-1][1] - of[0][0]) for of in steps) * batch
    turns = replace(one.virtual_clusters[0], policy=f"gandiva:packs=false:quantum_s={SLICE_S:g}")
    async with _engine(folder / "turns", replace(one, virtual_clusters=(turns,))) as engine:
        both = [_submit(engine, "team", kind, 10**6) for _ in range(2)]
        await _trains(engine, both)
        first = engine.last_event
        steps, _ = await _look(engine, both, 4 * SLICE_S)
        changes = sum(event.kind == "resumed" for event in engine.store.events(first, engine.last_event - first, None))
        idle = 4 * SLICE_S - sum(b - a for of in steps for a, b in of if b - a < SLICE_S / 2)
    gib = doing.peak_bytes / 2**30
    model = JobModel(
        kind,
        "other",
        min(1.0, doing.utilization),
        min(1.0, doing.utilization) * together,
        max(gib, 0.25),
        min(doing.least_bytes / 2**30, gib),
        batch,
        1.0,
        1.0,
        max(0.0, idle / max(1, changes)),
        0.0,
    )
    print(f"{kind}: start {start:.2f} s, {copies} copies together {together:.2f} of alone, {model}", file=sys.stderr)
    return Profile(start, model)


def _submit(engine: Engine, vc: str, kind: str, steps: int, early: bool = False, share: bool | None = None) -> Job:
    path = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    command = (sys.executable, "-c", SCRIPT, *map(str, KINDS[kind]), str(steps))
    return engine.submit(JobSpec(vc=vc, command=command, name=kind, environment=path, early=early, share=share))


@asynccontextmanager
async def _engine(folder: Path, spec: ClusterSpec, cores: Sequence[int] | None = None) -> AsyncIterator[Engine]:
    """An engine, whose device n is the n-th of these ``cores``; by default the last ones, which it uses the least."""
    here = sorted(os.sched_getaffinity(0), reverse=True)
    folder.mkdir(parents=True)
    engine = Engine(spec, Store(folder), Simulated())
    await engine.start()
    pinning = asyncio.create_task(_pin(engine, [here[core] for core in cores or range(len(here))]))
    try:
        yield engine
    finally:
        for job in list(engine.job_scheduler.jobs.values()):
            engine.cancel(str(job.id))
        while engine.job_scheduler.jobs:
            await engine.changed(engine.last_event)
        pinning.cancel()
        await engine.stop()


async def _pin(engine: Engine, cores: Sequence[int]) -> None:
    """Keep the processes of every job on the cores of its devices."""
    while True:
        for job in list(engine.job_scheduler.jobs.values()):
            if job.holds and job.placement is not None:
                on = {cores[device] for _, device in job.placement.devices()}
                with contextlib.suppress(OSError, ValueError):
                    for process in _processes(engine.task(job, 0).pid):
                        if os.sched_getaffinity(process) != on:
                            os.sched_setaffinity(process, on)
        await asyncio.sleep(0.1)


def _processes(root: int) -> list[int]:
    """A process, the threads of it, and its children."""
    found = [int(thread.name) for thread in Path(f"/proc/{root}/task").iterdir()]
    for thread in list(found):
        children = Path(f"/proc/{root}/task/{thread}/children").read_text().split()
        found += [one for child in children for one in _processes(int(child))]
    return found


async def _trains(engine: Engine, jobs: Sequence[Job]) -> None:
    while any(job.attempt == 0 or len(_printed(engine, job)) < 10 for job in jobs):
        await asyncio.sleep(0.2)
    await asyncio.sleep(WARM_S)


async def _look(engine: Engine, jobs: Sequence[Job], seconds: float = LOOK_S) -> tuple[list[Steps], list[Obeying]]:
    """The mini-batches of each in a window, and what its pages say at the end."""
    start = time.time()
    await asyncio.sleep(seconds)
    end = time.time()
    agent = Agent(engine.folder / "training", engine.store.database, engine.job_users, engine.folder / "jobs")
    pages = [page for job in jobs if (page := await asyncio.to_thread(agent.look, job)) is not None]
    return [[(a, b) for a, b in _printed(engine, job) if a > start and b < end] for job in jobs], pages


def _printed(engine: Engine, job: Job) -> Steps:
    try:
        lines = [line.split() for line in engine.task(job, 0).output.read_text().splitlines()]
    except FileNotFoundError:  # it has not begun
        return []
    return [(float(words[0]), float(words[1])) for words in lines if len(words) == 2 and words[0] != "weights"]
