"""Training jobs of other users obey an engine of root, which touches nothing that they can put into their folders."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hived_control
from hived.cli.up import open_jobs
from hived.engine.job import NO_LIMITS
from hived.engine.states import JobState
from hived.engines.local.agent import Agent
from hived.engines.local.engine import Engine
from hived.engines.local.model import Job, Limiting
from hived.engines.local.user_agents import UserAgent
from hived.errors import ForbiddenError, HivedError
from hived.server.local_service import LocalService
from hived.spec.compiled import ClusterSpec
from hived_control import errors, serving

from ..engines.living import Lives, ended
from ..engines.test_training import TRAINER
from .test_job_users import ANN, BOB, PYTHON, needs_python, output, prints, submit

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users"), needs_python]


@pytest.fixture
def lives(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lives]:
    """Beside its folder ``trainer.py`` and what it imports, for everybody."""
    made = Lives(open_folder / "state")
    made.folder.mkdir()
    open_jobs(made.folder, None, False)
    shutil.copy(TRAINER, open_folder)
    shutil.copytree(Path(hived_control.__file__).parent, open_folder / "hived_control")
    for path in open_folder.rglob("*"):
        if path.is_relative_to(made.folder):
            continue
        path.chmod(0o755 if path.is_dir() else 0o644)
    monkeypatch.setattr(Agent, "installed", open_folder)
    yield made
    made.end()


async def training(engine: Engine, user: pwd.struct_passwd, before: str = "", **more: Any) -> Job:
    """A training job of a user that has ended two mini-batches; ``before`` is run by its shell before."""
    there = engine.folder.parent
    script = f"export PYTHONPATH={there}; {before} exec {PYTHON} {there}/trainer.py 0.02"
    job = await submit(engine, user, script, share=True, **more)
    await prints(engine, job, "\n2 ")
    return job


def pages(engine: Engine, job: Job) -> Path:
    """The folder of its pages."""
    return engine.folder / "jobs" / str(job.id) / "own" / "training" / f"{job.id}.{job.attempt}"


def agent_of(user: pwd.struct_passwd) -> list[int]:
    """The processes that command the jobs of a user, of this process."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and b"hived_control.serving" in (process / "cmdline").read_bytes():
                status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
                uid, parent = int(status["Uid"].split()[0]), int(status["PPid"])
                found += [int(process.name)] if (uid, parent) == (user.pw_uid, os.getpid()) else []
        except OSError:
            continue
    return found


def limits(job: Job) -> tuple[int, float]:
    """Those in force: device bytes, and part of the time."""
    found = job.limits or NO_LIMITS
    return found.memory, found.share


async def until(what: Callable[[], object]) -> None:
    while not what():
        await asyncio.sleep(0.02)


def test_suspended_limited_and_resumed(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        job, other = await training(engine, ANN), await training(engine, BOB)
        assert pages(engine, job).stat().st_uid == ANN.pw_uid
        await engine.training.suspend(job, 20.0, user="ann")
        assert job.state is JobState.SUSPENDED
        assert job.suspended_for == "told so by ann"
        before = output(engine, job)
        await engine.training.limit(job, Limiting(2**30, 0.5), user="ann")
        await asyncio.sleep(0.3)
        assert output(engine, job) == before, "it trains while it is suspended"
        await engine.training.resume(job, 20.0)
        assert str(job.state) == "running"
        await until(lambda: limits(job) == (2**30, 0.5))
        shown = await LocalService(engine).training(str(job.id))
        assert (shown.processes[0].state, shown.processes[0].share, shown.processes[0].device) == (
            "running", 0.5, "cpu",
        )  # fmt: skip
        assert other.state is JobState.RUNNING
        assert len(agent_of(ANN)) == len(agent_of(BOB)) == 1
        assert Path(f"/proc/{agent_of(ANN)[0]}/fd").stat().st_uid == 0, "its user may look into it"
        engine.cancel(str(job.id))
        await ended(engine, job)
        await until(lambda: not agent_of(ANN))  # and nobody needs it
        assert len(agent_of(BOB)) == 1

    lives.live(story)
    assert not agent_of(BOB), "it outlives its engine"


def test_an_engine_that_is_killed_finds_them_again(lives: Lives) -> None:
    async def first(engine: Engine) -> None:
        await engine.training.suspend(await training(engine, ANN), 20.0)

    async def second(engine: Engine) -> None:
        job = engine.find("1")
        assert job.state is JobState.SUSPENDED
        before = output(engine, job)
        await asyncio.sleep(1.2)
        assert output(engine, job) == before
        await engine.training.resume(job, 20.0)
        await until(lambda: output(engine, job) != before)

    lives.live(first, killed=True)
    lives.live(second)


def by_turns(spec: ClusterSpec) -> ClusterSpec:
    """The same, where jobs of the first virtual cluster take turns."""
    first, *others = spec.virtual_clusters
    return replace(spec, virtual_clusters=(replace(first, policy="gandiva:packs=false:quantum_s=0.5"), *others))


def test_users_take_turns(lives: Lives) -> None:
    """Four jobs of two users on three devices: each goes on again and again, and none is started anew."""
    lives.spec = by_turns(lives.spec)

    async def story(engine: Engine) -> None:
        await submit(engine, BOB, "exec sleep 1000", share=False)
        there = engine.folder.parent
        script = f"PYTHONPATH={there} exec {PYTHON} {there}/trainer.py 0.02"
        jobs = [await submit(engine, user, script, grace_s=5.0) for user in (ANN, BOB, ANN, BOB)]

        def resumed() -> Counter[int | None]:
            events = engine.store.events(0, 100_000, None)
            return Counter(event.job for event in events if event.kind == "resumed")

        while min(resumed()[job.id] for job in jobs) < 2:
            await asyncio.sleep(0.05)
        assert [job.attempt for job in jobs] == [1, 1, 1, 1]
        for job in jobs:
            engine.cancel(str(job.id))
        await ended(engine, *jobs)

    lives.live(story)


def _links(engine: Engine, job: Job) -> None:
    """Pages of root's, by links, and the lock of a file that is nobody's to lock."""
    secret = engine.folder.parent / "secret"
    secret.write_bytes(b"of root")
    secret.chmod(0o600)
    for name in ("job.json", "7.page", "lock"):
        (pages(engine, job) / name).unlink(missing_ok=True)
        (pages(engine, job) / name).symlink_to(secret)


def _shrinks(engine: Engine, job: Job) -> None:
    """Pages that end while they are mapped."""
    for page in pages(engine, job).glob("*.page"):
        os.truncate(page, 0)


def _pipe(engine: Engine, job: Job) -> None:
    """What nobody ever writes."""
    (pages(engine, job) / "job.json").unlink(missing_ok=True)
    os.mkfifo(pages(engine, job) / "job.json")
    os.chown(pages(engine, job) / "job.json", ANN.pw_uid, ANN.pw_gid)


def _large(engine: Engine, job: Job) -> None:
    """A description of a terabyte, without a block."""
    with (pages(engine, job) / "job.json").open("wb") as file:
        file.truncate(1 << 40)


def _stopped(engine: Engine, job: Job) -> None:
    """The process that is to command them."""
    for pid in agent_of(ANN):
        os.kill(pid, signal.SIGSTOP)


def _killed(engine: Engine, job: Job) -> None:
    for pid in agent_of(ANN):
        os.kill(pid, signal.SIGKILL)


def _gone(engine: Engine, job: Job) -> None:
    """The folder is a link to that of another user's job."""
    own = pages(engine, job).parent
    own.rename(own.with_name("away"))
    own.symlink_to(pages(engine, engine.find("2")).parent)


@pytest.mark.parametrize("harm", [_links, _shrinks, _pipe, _large, _stopped, _killed, _gone])
def test_a_user_who_harms_what_is_theirs(
    lives: Lives, harm: Callable[[Engine, Job], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Harms their own jobs alone: others obey meanwhile, the engine lives, and nothing of root's is written."""
    monkeypatch.setattr("hived.engines.local.user_agents._ANSWER_S", 3.0)
    faults: list[object] = []

    async def story(engine: Engine) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        job, other = await training(engine, ANN), await training(engine, BOB)
        harm(engine, job)
        with contextlib.suppress(HivedError):  # none but ours
            await engine.training.suspend(job, 1.0)
        await engine.training.suspend(other, 20.0)
        await engine.training.resume(other, 20.0)
        await engine.training.limit(other, Limiting(None, 0.5))
        await until(lambda: limits(other) == (0, 0.5))
        for of in (job, other):
            if not of.state.ended:  # pages that shrink end their own job
                engine.cancel(str(of.id))
            await ended(engine, of)
        assert other.state is JobState.CANCELLED
        secret = engine.folder.parent / "secret"
        assert not secret.exists() or secret.read_bytes() == b"of root"

    lives.live(story)
    assert not faults


def test_what_a_job_says_of_itself_is_bounded(lives: Lives) -> None:
    """Numbers that are none, negative or beyond any machine, and a text that is none, are no fact of the engine's."""
    code = """
import os, time
from hived_control.folder import JobFolder
from hived_control.page import Answer, Command, Sample, State
from pathlib import Path
page = JobFolder(Path(os.environ["HIVED_JOBS"]) / os.environ["HIVED_RUN_JOB"]).join(os.getpid(), Command())
page.report_answer(Answer(
    state=State.RUNNING, tier="\\x1b[2J", note="\\n" + "x" * 400, memory_limit=-5, share=-1e308,
    moved_bytes=2**62, seconds=float("nan"), ranks=2**40,
))
page.report_sample(Sample(float("inf"), 2**62, -1, 2**63 - 1, -2**63, 0, float("nan")))
page.report_progress(-7, float("inf"), 1e300)
page.publish()
print("said", flush=True)
time.sleep(60)
"""

    async def story(engine: Engine) -> None:
        there = engine.folder.parent
        (there / "lies.py").write_text(code)
        job = await submit(engine, ANN, f"PYTHONPATH={there} exec {PYTHON} {there}/lies.py", share=True)
        await prints(engine, job, "said")
        await until(lambda: limits(job) == (0, 0.0))
        assert engine.training  # it is looked at again, and the engine goes on
        shown = await LocalService(engine).training(str(job.id))
        said = shown.processes[0]
        assert said.tier == " [2J"
        assert said.note == " " + "x" * 400
        assert said.last_change_s == said.utilization == 0.0
        engine.cancel(str(job.id))
        await ended(engine, job)

    lives.live(story)


def test_a_runtime_that_users_cannot_load(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(engine: Engine) -> None:
        shut = engine.folder.parent / "shut"
        shut.mkdir(mode=0o700)
        monkeypatch.setattr(Agent, "installed", shut)
        with pytest.raises(ForbiddenError, match=rf"{shut} is shut to other users.*--no-share"):
            await submit(engine, BOB, "true", share=True)

    lives.live(story)


def test_a_process_that_does_not_answer_is_started_again(open_folder: Path) -> None:
    agent = UserAgent(ANN.pw_uid)
    with pytest.raises(errors.UnavailableError):
        agent.ask("no such thing", open_folder)
    first = agent_of(ANN)
    assert agent.ask("status", open_folder)["processes"] == []
    assert agent_of(ANN) == first
    os.kill(first[0], signal.SIGKILL)
    deadline = time.monotonic() + 60
    found = None
    while found is None:  # not at once: one that dies at once would be started all the time
        assert time.monotonic() < deadline
        time.sleep(0.1)
        with contextlib.suppress(errors.UnavailableError):
            found = agent.ask("status", open_folder)
    assert agent_of(ANN) != first
    agent.end()
    with pytest.raises(errors.UnavailableError):
        agent.ask("status", open_folder)


def test_requests_of_one_user_are_bounded(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stops the process that commands their jobs leaves threads to other users."""
    monkeypatch.setattr("hived.engines.local.user_agents._ANSWER_S", 5.0)
    agent = UserAgent(ANN.pw_uid)
    assert agent.ask("status", open_folder)["processes"] == []
    os.kill(agent_of(ANN)[0], signal.SIGSTOP)
    with ThreadPoolExecutor(40) as threads:
        asked = [threads.submit(agent.ask, "status", open_folder) for _ in range(40)]
        said = Counter(str(one.exception()) for one in asked)
    assert said == {
        f"8 training jobs of user {ANN.pw_uid} are being told something": 32,
        f"the process that commands training jobs of user {ANN.pw_uid} does not answer": 8,
    }
    agent.end()


def test_answers_that_are_none() -> None:
    with pytest.raises(errors.NotFoundError, match="gone"):
        serving.found_in({"error": "NotFoundError", "text": "gone"})
    with pytest.raises(errors.UnavailableError, match="odd"):
        serving.found_in({"error": "no error of ours", "text": "odd"})
    for plain in ({}, {"processes": [{}], "name": "", "command": "", "launching": False}, {"processes": 3}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            serving.status_of(plain)


def test_who_takes_their_pages_away_keeps_no_turn(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder moved away, and a job kept its GPU for five minutes, and had one for itself from then on."""
    monkeypatch.setattr("hived.engines.local.training.LOST_S", 1.0)
    lives.spec = by_turns(lives.spec)

    async def story(engine: Engine) -> None:
        await submit(engine, BOB, "exec sleep 1000", share=False)
        there = engine.folder.parent
        script = f"PYTHONPATH={there} exec {PYTHON} {there}/trainer.py 0.02"
        mine, *theirs = [await submit(engine, user, script, grace_s=1.0) for user in (ANN, BOB, BOB, BOB)]
        events = 0

        def resumed() -> set[int | None]:
            return {event.job for event in engine.store.events(events, 100_000, None) if event.kind == "resumed"}

        await until(lambda: mine.id in resumed())
        own = pages(engine, mine).parent
        own.rename(own.with_name("away"))
        await until(lambda: mine.attempt == 2)
        assert "its control pages are gone" in mine.stopped_why
        events = engine.last_event
        await until(lambda: resumed() >= {mine.id, *(job.id for job in theirs)})
        for job in (mine, *theirs):
            engine.cancel(str(job.id))
        await ended(engine, mine, *theirs)

    lives.live(story)
