"""A job that saves its state by a signal, where it makes room: it goes on from that, elsewhere or later."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from hived.engine.states import JobState
from hived.engines.local.engine import Engine
from hived.engines.local.explaining import JobExplainer
from hived.engines.local.model import Job, JobSpec

from .living import STAYS, Lives, ended, printed, shell, state

#: saves what it has at USR1, and goes on from that; a child of it that knows no signal is not told
SAVES = """
trap 'echo $n > saved; echo saved $n; exit {code}' USR1
trap 'echo ended; exit 1' TERM
sleep 600 & n=$(cat saved 2>/dev/null || echo 0)
echo begins at $n
while true; do n=$((n+1)); echo at $n; sleep 0.02; done
"""


def saving(lives: Lives, code: int = 0, **more: Any) -> JobSpec:
    return shell(
        "vision", SAVES.format(code=code), 4, checkpoint_signal="USR1", cwd=str(lives.folder), grace_s=3600.0, **more
    )


@pytest.mark.parametrize("code", [0, 3])
def test_goes_on_from_what_it_has_saved(lives: Lives, code: int) -> None:
    """Whatever its exit code: it was told to make room. What it has started ends with it, long before its grace."""

    async def story(engine: Engine) -> None:
        job = engine.submit(saving(lives, code))
        await printed(engine, job, "at 3\n")
        engine.drain(None, None, undo=False, now=True)
        await state(engine, job, JobState.QUEUED)
        first = engine.task(job, 0).output.read_text()
        assert "saved" in first
        assert "ended" not in first
        engine.drain(None, None, undo=True, now=False)
        await printed(engine, job, "begins at")
        second = engine.task(job, 0).output.read_text()
        assert second.splitlines()[0] == f"begins at {first.split('saved ')[1].split()[0]}"
        engine.cancel(str(job.id))  # as ever
        await ended(engine, job)
        assert "ended" in engine.task(job, 0).output.read_text()

    lives.live(story)


def test_cancelled_while_it_saves(lives: Lives) -> None:
    """It is told to end then, and not waited for."""

    async def story(engine: Engine) -> Job:
        slow = SAVES.format(code=0).replace("echo $n > saved;", "echo saves; while true; do sleep 0.02; done;")
        job = engine.submit(shell("vision", slow, 4, checkpoint_signal="USR1", cwd=str(lives.folder), grace_s=3600.0))
        await printed(engine, job, "at 3\n")
        engine.drain(None, None, undo=False, now=True)
        said = JobExplainer(engine.job_scheduler).explain(job, None)
        assert any("told by SIGUSR1 to save its state" in line for line in said)
        await printed(engine, job, "saves")
        engine.cancel(str(job.id))
        await ended(engine, job)
        return job

    assert lives.live(story).state is JobState.CANCELLED


def test_saves_after_the_engine_has_changed(lives: Lives) -> None:
    async def first(engine: Engine) -> None:
        await printed(engine, engine.submit(saving(lives)), "at 3\n")

    async def second(engine: Engine) -> None:
        job = engine.find("job-1")
        engine.submit(shell("vision", STAYS, 4, priority=5))
        await state(engine, job, JobState.QUEUED)
        assert (lives.folder / "saved").exists()

    lives.live(first, killed=True)
    lives.live(second)


#: a program in its own process that saves for a second, and what is a copy of it
PYTHON = """
import os, signal, sys, time
def save(*_):
    print("saving", flush=True); time.sleep(1.0); print("saved", flush=True); sys.exit(0)
signal.signal(signal.{signal}, save)
own = os.getpid()
if os.fork() == 0:
    while os.getppid() == own: time.sleep(0.05)
    os._exit(0)
print("begins", flush=True)
while True: time.sleep(0.05)
"""
#: scripts around it: a plain one, one that goes on after it, and one in a pipeline of one that handles another signal
WRAPPERS = ["{0}", "set -e; {0}; echo after", "trap 'echo hup' HUP; sh -c '. /dev/null; {0}; true' | cat"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", ["USR1", "INT"])
def test_a_script_around_it_passes_it_on(lives: Lives, wrapper: str, name: Any) -> None:
    """The script has no handler, and would have ended by it: its program would have had two seconds then."""
    (lives.folder.parent / "program.py").write_text(PYTHON.format(signal=f"SIG{name}"))
    script = wrapper.format(f"{sys.executable} ../program.py")

    async def story(engine: Engine) -> None:
        spec = JobSpec.model_construct(
            vc="vision", command=("bash", "-c", script + "; exit 0"), name="job", cwd=str(lives.folder),
            checkpoint_signal=name, grace_s=3600.0,
        )  # fmt: skip
        job = engine.submit(spec)
        await printed(engine, job, "begins")
        engine.drain(None, None, undo=False, now=True)
        await state(engine, job, JobState.QUEUED)
        said = engine.task(job, 0).output.read_text().split()
        assert said.count("saving") == said.count("saved") == 1

    lives.live(story)


def test_nobody_handles_it(lives: Lives) -> None:
    """It is told to end as any, and has its grace, also after the script around it is gone."""
    (lives.folder.parent / "program.py").write_text(PYTHON.format(signal="SIGTERM"))

    async def story(engine: Engine) -> None:
        script = f"{sys.executable} ../program.py; exit 0"
        spec = JobSpec.model_construct(
            vc="vision", command=("bash", "-c", script), name="job", cwd=str(lives.folder), checkpoint_signal="USR2",
            grace_s=10.0,
        )  # fmt: skip
        job = engine.submit(spec)
        await printed(engine, job, "begins")
        engine.drain(None, None, undo=False, now=True)
        await state(engine, job, JobState.QUEUED)
        assert "saved" in engine.task(job, 0).output.read_text()

    lives.live(story)


def test_signal_before_the_limit_through_a_script(lives: Lives) -> None:
    """The same for --signal; where nobody handles that, the job runs to its limit."""
    (lives.folder.parent / "program.py").write_text(PYTHON.format(signal="SIGUSR1"))

    async def story(engine: Engine) -> None:
        known: dict[str, Any] = {"vc": "vision", "cwd": str(lives.folder), "grace_s": 0.1}
        saves = JobSpec.model_construct(
            command=("bash", "-c", f"{sys.executable} ../program.py; exit 0"), name="saves", limit_signal="USR1",
            limit_signal_s=3600.0, time_limit_s=7200.0, **known,
        )  # fmt: skip
        plain = JobSpec.model_construct(
            command=("bash", "-c", "sleep 100; exit 0"), name="plain", limit_signal="USR1", limit_signal_s=1.5,
            time_limit_s=2.0, **known,
        )  # fmt: skip
        jobs = [engine.submit(saves), engine.submit(plain)]
        await printed(engine, jobs[0], "begins")  # it has a handler by now: its time is to come at once
        engine.edit(str(jobs[0].id), {"time_limit_s": 3600.5})
        await ended(engine, *jobs)
        assert jobs[0].state is JobState.SUCCEEDED
        assert "saved" in engine.task(jobs[0], 0).output.read_text()
        assert jobs[1].state is JobState.FAILED
        assert "time limit" in JobExplainer(engine.job_scheduler).explain(jobs[1], None)[0]

    lives.live(story)
