"""Training jobs of the engine obey: what they are told by hand is a fact that the engine knows, and survives it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hived.engine.states import JobState
from hived.engines.local import engine as engine_module
from hived.engines.local import training as training_module
from hived.engines.local.agent import Agent
from hived.engines.local.engine import Engine
from hived.engines.local.explaining import JobExplainer
from hived.engines.local.instructions import ResumeTasks
from hived.engines.local.model import Job, JobSpec, Limiting
from hived.engines.local.training import ELSEWHERE, LOOK_EVERY_S
from hived.errors import ConflictError, NotFoundError, NotYetError, PolicyError, RequestError, UnavailableError
from hived_control.commands import TrainingJob
from hived_control.folder import JobFolder

from .driver import shares
from .living import STAYS, Lives, ended, noted, printed, record_faults, running, shell, state

TRAINER = Path(__file__).with_name("trainer.py")


def trains(vc: str = "vision", seconds: float = 0.01, code: str = "", **more: Any) -> JobSpec:
    """A job that obeys."""
    command = (sys.executable, str(TRAINER), str(seconds), *((code,) if code else ()))
    known: dict[str, Any] = {"name": "train", "grace_s": 5.0, "share": True, **more}
    return JobSpec.model_construct(vc=vc, command=command, **known)


async def training(engine: Engine, spec: JobSpec) -> Job:
    """A job that has ended a mini-batch."""
    job = engine.submit(spec)
    await printed(engine, job, "2 ")
    return job


def steps(engine: Engine, job: Job) -> int:
    """How many mini-batches it has printed."""
    return engine.task(job, 0).output.read_text().count("\n")


def test_suspended_limited_and_resumed_by_hand(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        job = await training(engine, trains())
        assert (await engine.training.suspend(engine.find("train"), 20.0, user="ann")).state is JobState.SUSPENDED
        before = steps(engine, job)
        said = JobExplainer(engine.job_scheduler).explain(job, None)
        assert "it is suspended: told so by ann" in said
        assert JobExplainer(engine.job_scheduler).shortly(job) == ["it is suspended: told so by ann"]
        await engine.training.limit(engine.find("train"), Limiting(2**30, 0.5), user="ann")
        await asyncio.sleep(0.3)
        assert steps(engine, job) == before, "it trains while it is suspended"
        assert list(job.devices()) == [("node", 0)], "its GPUs stay its own"
        assert (await engine.training.resume(engine.find("train"), 20.0)).state is JobState.RUNNING
        found = await noted(engine, "limited")
        assert found.data == {"memory": 2**30, "share": 0.5, "why": "told so by ann", "by_hand": True}
        assert "it is limited to 50% of the time and 1 GiB: told so by ann" in JobExplainer(
            engine.job_scheduler
        ).explain(job, None)
        status = await engine.training.status(engine.find("train"))
        assert status.processes[0].answer.share == 0.5
        engine.cancel("train")
        await state(engine, job, JobState.CANCELLED)
        while list((lives.folder / "training").iterdir()):
            await asyncio.sleep(0.01)

    lives.live(story)
    kinds = [event.kind for event in lives.events() if event.job == 1]
    assert kinds == [
        "submitted", "started", "suspended", "resumed", "limited", "stopping", "task_ended", "cancelled"
    ]  # fmt: skip
    with lives.store() as store:
        assert record_faults(store)[0] == []


def test_requests_about_jobs_of_one_user_are_bounded(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may wait for a day each, and took the threads by which others take their turns."""
    monkeypatch.setattr(training_module, "_MOST_REQUESTS", 1)

    async def story(engine: Engine) -> None:
        slow, quick = await training(engine, trains()), await training(engine, trains())
        begun, gate = threading.Event(), threading.Event()

        def wait(*_: object) -> None:
            begun.set()
            gate.wait()

        with monkeypatch.context() as patched:
            patched.setattr(Agent, "limit", wait)
            waits = asyncio.create_task(engine.training.limit(slow, Limiting(None, 0.5)))
            while not begun.is_set():
                await asyncio.sleep(0.01)
        with pytest.raises(UnavailableError, match="1 requests about training jobs wait for an answer: try again"):
            await engine.training.suspend(quick, 1.0)
        gate.set()
        await waits
        await engine.training.suspend(quick, 20.0)
        assert quick.state is JobState.SUSPENDED
        for job in (slow, quick):
            engine.cancel(str(job.id))
        await ended(engine, slow, quick)

    lives.live(story)


def test_told_past_the_engine(lives: Lives) -> None:
    """By who is on the machine: it is a fact all the same."""

    async def story(engine: Engine) -> None:
        job = await training(engine, trains())
        training_job = TrainingJob(JobFolder(lives.folder / "training" / "1.1"))
        await asyncio.to_thread(training_job.suspend, 20.0)
        await state(engine, job, JobState.SUSPENDED)
        assert job.suspended_for == ELSEWHERE
        await asyncio.to_thread(training_job.resume, 20.0)
        await state(engine, job, JobState.RUNNING)
        await engine.training.suspend(engine.find("train"), 20.0, lease_s=1.0)  # goes on by itself
        assert job.suspended_for == "told so by hand"
        await state(engine, job, JobState.RUNNING)

    lives.live(story)


def test_outlives_its_engine(lives: Lives) -> None:
    async def first(engine: Engine) -> None:
        await training(engine, trains())
        await engine.training.suspend(engine.find("train"), 20.0)

    async def second(engine: Engine) -> None:
        job = engine.find("train")
        assert (job.state, job.suspended_for) == (JobState.SUSPENDED, "told so by hand")
        before = steps(engine, job)
        await asyncio.sleep(2 * LOOK_EVERY_S)
        assert (job.state, steps(engine, job)) == (JobState.SUSPENDED, before)
        await engine.training.resume(engine.find("train"), 20.0)
        assert job.state is JobState.RUNNING

    lives.live(first, killed=True)
    lives.live(second)


def test_folder_says_whose_it_is(lives: Lives) -> None:
    """Numbers of jobs and attempts come again, in another database: what is another's is told nothing."""

    async def story(engine: Engine) -> None:
        job = await training(engine, trains())
        folder = JobFolder(lives.folder / "training" / "1.1")
        assert folder.about() == {"task": job.mark(engine.store.database), "user": ""}
        await engine.training.suspend(engine.find("train"), 20.0)
        folder.write_about({"task": "another/1."})
        with pytest.raises(ConflictError, match="does not run under the runtime"):
            await engine.training.limit(engine.find("train"), Limiting(None, 0.5))
        folder.write_about({})  # of the version before
        await engine.training.limit(engine.find("train"), Limiting(None, 0.5))
        await engine.training.resume(engine.find("train"), 20.0)

    lives.live(story)


def test_folder_is_deleted_under_a_suspended_job(lives: Lives) -> None:
    """It is woken, and goes on, though it obeys no more."""

    async def story(engine: Engine) -> None:
        job = await training(engine, trains())
        await engine.training.suspend(engine.find("train"), 20.0)
        before = steps(engine, job)
        shutil.rmtree(lives.folder / "training")
        await engine.training.resume(engine.find("train"), 20.0)
        while steps(engine, job) < before + 3:
            await asyncio.sleep(0.01)
        with pytest.raises(ConflictError, match="does not run under the runtime"):
            await engine.training.suspend(engine.find("train"), 1.0)

    lives.live(story)


@pytest.mark.parametrize("how", ["cancelled", "preempted", "killed", "drained"])
def test_end_of_a_suspended_job(lives: Lives, how: str) -> None:
    """It is told to end, and woken for that; one that is killed has failed."""

    async def story(engine: Engine) -> str:
        loan = how == "preempted"
        job = await training(engine, trains("research" if loan else "vision", priority=-1 if loan else 0, gpus=4))
        await engine.training.suspend(engine.find("train"), 20.0)
        match how:
            case "cancelled":
                engine.cancel("train")
            case "preempted":
                others = [engine.submit(shell("vision", STAYS, 4)), engine.submit(shell("speech", STAYS, 2))]
                others.append(engine.submit(shell("research", STAYS, 2)))
                for other in others:
                    await state(engine, other, JobState.RUNNING)
            case "killed":
                (pid,) = (process.pid for process in (await engine.training.status(engine.find("train"))).processes)
                os.kill(pid, signal.SIGKILL)
            case "drained":
                engine.drain(None, None, undo=False, now=True)
        (found,) = (
            await ended(engine, job) if how in ("cancelled", "killed") else [await state(engine, job, JobState.QUEUED)]
        )
        return found.state.value

    expected = {"cancelled": "cancelled", "killed": "failed"}
    assert lives.live(story) == expected.get(how, "queued")


def test_refusals(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(engine: Engine) -> None:
        (plain,) = await running(engine, shell("vision", STAYS))
        with pytest.raises(ConflictError, match=r"job-1 does not run under the runtime .*--share"):
            await engine.training.suspend(engine.find("job"), 1.0)
        with pytest.raises(NotFoundError):
            await engine.training.suspend(engine.find("nobody"), 1.0)
        early = engine.submit(trains(seconds=600.0))
        while not (lives.folder / "training" / "2.1").exists():
            await asyncio.sleep(0.01)
        with pytest.raises(ConflictError, match="train-2 has not ended its first mini-batch"):
            await engine.training.suspend(engine.find("train"), 1.0)
        late = engine.submit(trains(gpus=4))
        with pytest.raises(ConflictError, match="train-3 is queued: only what runs"):
            await engine.training.resume(engine.find("train-3"), 1.0)
        engine.cancel(str(late.id))
        engine.cancel(str(early.id))
        engine.cancel(str(plain.id))

    lives.live(story)

    async def not_installed(engine: Engine) -> None:
        with pytest.raises(RequestError, match="share: hived-runtime is not installed where the engine runs"):
            engine.submit(trains())

    monkeypatch.setattr(engine_module, "installed_agent", lambda *_: None)
    lives.live(not_installed)


#: a mini-batch after the second lasts until the gate is open
GATED = """
nap, naps = time.sleep, []
def gated(seconds):
    nap(seconds)
    naps.append(seconds)
    if len(naps) == 3:
        print("waits", flush=True)
    while len(naps) > 2 and not Path({gate!r}).exists():
        nap(0.005)
time.sleep = gated
"""


def test_not_yet(lives: Lives) -> None:
    """A command that meets no end of a mini-batch stays in force."""
    gate = lives.folder / "gate"

    async def story(engine: Engine) -> None:
        job = await training(engine, trains(code=GATED.format(gate=str(gate))))
        await printed(engine, job, "waits")
        with pytest.raises(NotYetError, match=r"train-1 is not suspended after 0\.05 s"):
            await engine.training.suspend(engine.find("train"), 0.05)
        gate.touch()
        await state(engine, job, JobState.SUSPENDED)

    lives.live(story)


TORCH = """
import light_torch, pathlib, time, torch, sys
torch.manual_seed(3)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
steps = torch.optim.AdamW(net.parameters())
for number in range(int(sys.argv[1])):
    steps.zero_grad()
    (net(torch.randn(32, 64)) ** 2).mean().backward()
    steps.step()
    print(number, flush=True)
    if len(sys.argv) > 2 and not pathlib.Path(sys.argv[2]).exists():  # it has not to end before it is told to
        time.sleep(0.05)
print("weights", sum(float(p.double().abs().sum()) for p in net.parameters()), flush=True)
"""


@pytest.mark.torch
def test_pytorch_as_it_is(lives: Lives) -> None:
    """Suspended and limited again and again, it ends with the weights that it has undisturbed."""
    path = {"PYTHONPATH": str(Path(__file__).parents[1] / "runtime" / "light"), "PATH": os.environ["PATH"]}
    gate = lives.folder / "gate"

    def script(share: bool, name: str) -> JobSpec:
        command = (sys.executable, "-c", TORCH, "400", str(gate))
        return JobSpec.model_construct(vc="vision", command=command, name=name, environment=path, share=share)

    async def story(engine: Engine) -> list[str]:
        alone, told = engine.submit(script(False, "alone")), engine.submit(script(True, "told"))
        await printed(engine, told, "2\n")
        for number in range(3):
            assert (await engine.training.suspend(engine.find("told"), 60.0)).state is JobState.SUSPENDED
            tier = (await engine.training.status(engine.find("told"))).processes[0].answer.tier
            assert tier == "framework"
            await engine.training.limit(engine.find("told"), Limiting(None, 0.5 + 0.1 * number))
            await engine.training.resume(engine.find("told"), 60.0)
        gate.touch()
        await ended(engine, alone, told)
        return [engine.task(job, 0).output.read_text().splitlines()[-1] for job in (alone, told)]

    alone, told = lives.live(story)
    assert alone == told
    assert alone.startswith("weights ")


# -- jobs that take turns -----------------------------------------------------------------------------------------


def ran_at_once(engine: Engine, jobs: list[Job], step: float) -> int:
    """The most jobs that were within a mini-batch at one moment, by what they have printed themselves."""
    changes: list[tuple[float, int]] = []
    for job in jobs:
        for line in engine.task(job, 0).output.read_text().splitlines():
            at = float(line.split()[1])
            changes += [(at - step, 1), (at, -1)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def test_take_turns_over_the_death_of_an_engine(lives: Lives) -> None:
    """Four on three devices: never more than three at once, each goes on again and again, and none is started anew."""
    first, *others = lives.spec.virtual_clusters
    two = replace(lives.spec, virtual_clusters=(replace(first, policy="gandiva:packs=false:quantum_s=0.4"), *others))
    lives.spec = two
    step = 0.02

    async def turns(engine: Engine, jobs: list[Job], times: int) -> None:
        """Wait until each of them has gone on so often."""
        while True:
            kinds = Counter((event.job, event.kind) for event in engine.store.events(0, 100_000, None))
            if all(kinds[job.id, "resumed"] >= times for job in jobs):
                return
            await asyncio.sleep(0.05)

    async def begin(engine: Engine) -> None:
        engine.submit(shell("vision", STAYS, share=False))  # what does not obey keeps its own
        jobs = [engine.submit(trains(seconds=step)) for _ in range(4)]
        await turns(engine, jobs, 2)
        assert ran_at_once(engine, jobs, step) == 3

    async def go_on(engine: Engine) -> None:
        jobs = [engine.find(f"train-{number}") for number in (2, 3, 4, 5)]
        plain = engine.find("job-1")
        assert {job.state.value for job in jobs} <= {"running", "suspended"}
        await turns(engine, jobs, 4)
        assert ran_at_once(engine, jobs, step) == 3
        assert [job.attempt for job in (*jobs, plain)] == [1, 1, 1, 1, 1]
        for job in (*jobs, plain):
            engine.cancel(str(job.id))
        await ended(engine, *jobs, plain)

    lives.live(begin, killed=True)
    lives.live(go_on)
    with lives.store() as store:
        events = store.events(0, 100_000, None)
    assert not [event for event in events if event.kind in ("requeued", "failed")]
    assert lives.marked() == {}


def test_called_back_too_late(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told to pause, and then to go on; when it has paused before that, others may be on its GPUs already."""

    async def story(engine: Engine) -> None:
        job = await training(engine, trains())
        await engine.training.suspend(engine.find("train"), 20.0)
        before = steps(engine, job)
        engine.job_scheduler.turns.of[job.id] = None
        monkeypatch.setattr(Agent, "resume", lambda *_: pytest.fail("it is told to go on"))
        engine.training.carry_out(job, ResumeTasks(job.id, job.attempt))
        while engine.training._told[job.id].turn is not None:
            await asyncio.sleep(0.01)
        assert (job.state, steps(engine, job)) == (JobState.SUSPENDED, before)

    lives.live(story)


def test_policy_that_shares_needs_jobs_that_obey(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = lives.spec.virtual_clusters

    async def story(engine: Engine) -> None:
        raise AssertionError("it did not start")

    for policy, why in (
        ("gandiva", "hived-runtime is not installed"),
        ("antman", "hived-runtime is not installed"),
        ("antman:limits=false", "only simulated"),
    ):
        lives.spec = replace(lives.spec, virtual_clusters=(replace(first, policy=policy), *others))
        monkeypatch.setattr(engine_module, "installed_agent", lambda *_: None)
        with pytest.raises(PolicyError, match=why):
            lives.live(story)


@pytest.mark.torch
def test_weights_after_turns_are_as_undisturbed(lives: Lives) -> None:
    """Three PyTorch jobs on two devices, in short slices, and each again with nobody beside it."""
    path = {"PYTHONPATH": str(Path(__file__).parents[1] / "runtime" / "light"), "PATH": os.environ["PATH"]}
    plain = shares(("vision", 2), ("speech", 2), devices=4)
    first, *others = plain.virtual_clusters
    sliced_vc = replace(first, policy="gandiva:packs=false:quantum_s=0.5")
    lives.spec = replace(plain, virtual_clusters=(sliced_vc, *others))

    def script(vc: str, seed: int) -> JobSpec:
        code = TORCH.replace("manual_seed(3)", f"manual_seed({seed})")
        code = code.replace("    steps.step()\n", "    steps.step()\n    time.sleep(0.01)\n")
        return JobSpec.model_construct(vc=vc, command=(sys.executable, "-c", code, "250"), name="j", environment=path)

    async def story(engine: Engine) -> tuple[list[str], list[str], int]:
        sliced = [engine.submit(script("vision", seed)) for seed in (1, 2, 3)]
        await ended(engine, *sliced)
        alone = [engine.submit(script("speech", seed)) for seed in (1, 2, 3)]
        await ended(engine, *alone)
        last = [[engine.task(job, 0).output.read_text().splitlines()[-1] for job in of] for of in (sliced, alone)]
        events = engine.store.events(0, 100_000, None)
        return last[0], last[1], sum(event.kind == "resumed" for event in events)

    sliced, alone, turns = lives.live(story)
    assert sliced == alone
    assert turns > 3
    assert all(line.startswith("weights ") for line in sliced)


ELASTIC = """
import sys, time, torch, hived_runtime
torch.manual_seed(1)
model = torch.nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
team = hived_runtime.elastic(model, optimizer, global_batch=8)
data = torch.utils.data.TensorDataset(torch.randn(4000, 4).double())
for epoch in team.epochs(int(sys.argv[1])):
    for (x,) in team.loader(data, shuffle=True, seed=0):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
        if team.rank == 0:
            print(team.workers, flush=True)
"""


@pytest.mark.torch
def test_elastic_job_grows_and_gives_up(lives: Lives) -> None:
    """By workers of its own; who gets the GPUs starts once these have left."""
    first, *others = lives.spec.virtual_clusters
    policy = "gandiva:packs=false:quantum_s=1:idle_s=1"
    lives.spec = replace(lives.spec, virtual_clusters=(replace(first, policy=policy), *others))

    async def devices(job: Job, number: int) -> None:
        while len(list(job.devices())) != number:
            await asyncio.sleep(0.05)

    async def story(engine: Engine) -> None:
        path = {"PYTHONPATH": str(Path(__file__).parents[1] / "runtime" / "light"), "PATH": os.environ["PATH"]}
        command = (sys.executable, "-c", ELASTIC, "1000")
        grower = engine.submit(JobSpec.model_construct(vc="vision", command=command, name="grows", environment=path))
        await devices(grower, 4)
        await printed(engine, grower, "4\n")
        other = engine.submit(trains(gpus=2, share=None))
        await printed(engine, other, "2 ")
        assert (len(list(grower.devices())), grower.state) == (2, JobState.RUNNING)
        assert set(grower.devices()).isdisjoint(other.devices())
        assert engine.task(grower, 0).output.read_text().endswith("2\n")
        engine.cancel(str(other.id))
        await ended(engine, other)
        await devices(grower, 4)
        engine.cancel(str(grower.id))
        await ended(engine, grower)

    lives.live(story)
    assert lives.marked() == {}
