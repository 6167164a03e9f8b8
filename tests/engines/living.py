"""A real engine for tests: simulated devices, real processes; its lives follow one another in one folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hived import Cluster, RecordedCluster, replay
from hived.engine.job import Event, JobFilter
from hived.engine.states import JobState
from hived.engines.local.devices import Devices, Simulated
from hived.engines.local.engine import Engine
from hived.engines.local.environment import MARK, environments
from hived.engines.local.model import Job, JobSpec
from hived.engines.local.ownership import take_over
from hived.engines.local.store import Store
from hived.errors import NotFoundError
from hived.policies import YarnCS, by_vc
from hived.scheduling import Policies
from hived.spec.compiled import ClusterSpec

from .driver import replayed, small_spec
from .real import PATIENCE_S

#: a line of shell that says that it runs, and runs on
STAYS = "echo here; exec sleep 600"


class Clock:
    """A clock that stands still until a test moves it: what waits for a time looks at it again and again."""

    def __init__(self, now: float = 1e9) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Lives:
    """One state folder, and the engines that have it one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spec = small_spec()
        self.engines: list[Engine] = []

    def live(
        self,
        story: Callable[[Engine], Awaitable[Any]],
        killed: bool = False,
        wrong: int = 0,
        devices: Devices | None = None,
        takes: Mapping[str, bool] = MappingProxyType({}),
        **options: Any,
    ) -> Any:
        """One life of an engine. ``killed``: it ends where the story does, and does nothing more.

        ``wrong``: how often something may go wrong that nobody was there to be told of; ``takes``: of ``take_over``.
        """

        async def life() -> Any:
            loop = asyncio.get_running_loop()
            unhandled: list[dict[str, Any]] = []
            loop.set_exception_handler(lambda _, context: unhandled.append(context))
            store = Store(self.folder)
            try:
                take_over(store, **takes)
                engine = Engine(self.spec, store, devices or Simulated(), **options)
            except BaseException:
                store.close()
                raise
            self.engines.append(engine)
            try:
                await engine.start()
                async with asyncio.timeout(PATIENCE_S):
                    answer = await story(engine)
            finally:
                if not killed:
                    await engine.stop()
            assert len(unhandled) == wrong, unhandled
            return answer

        try:
            return asyncio.run(life())
        finally:
            if self.engines:
                self._as_the_kernel_does(self.engines[-1])

    def ran(self, spec: JobSpec, **more: Any) -> Job:
        """A life in which one job comes and ends."""

        async def story(engine: Engine) -> Job:
            return (await ended(engine, engine.submit(spec)))[0]

        found: Job = self.live(story, **more)
        return found

    def killed_with(self, *specs: JobSpec) -> list[Job]:
        """A life in which jobs come, print ``here`` and run on; then the engine is killed."""

        async def story(engine: Engine) -> list[Job]:
            return await running(engine, *specs)

        found: list[Job] = self.live(story, killed=True)
        return found

    def see_end(self, *jobs: Job, **more: Any) -> list[Job]:
        """A life that lasts until jobs of an earlier one have ended."""

        async def story(engine: Engine) -> list[Job]:
            return await ended(engine, *jobs)

        found: list[Job] = self.live(story, **more)
        return found

    def _as_the_kernel_does(self, engine: Engine) -> None:
        """What is open of a killed process is closed."""
        engine.store.close()
        for fd in engine._watching._watched.values():
            os.close(fd)
        engine._watching._watched.clear()

    def store(self) -> closing[Store]:
        """What was kept, to be looked at while no engine has it."""
        return closing(Store(self.folder))

    def events(self) -> list[Event]:
        """All that was kept."""
        with self.store() as store:
            return store.events(0, 100_000, None)

    def marked(self) -> dict[int, str]:
        """Processes of tasks of this folder, and the task of each."""
        mark = f"{self.engines[-1]._database}/"
        found = {}
        for pid, environment in environments():
            for variable in environment:
                if variable.startswith(f"{MARK}={mark}".encode()):
                    found[pid] = variable.decode().partition("/")[2]
        return found

    def end(self) -> None:
        """Nobody is left behind."""
        for engine in self.engines:
            for child in engine._watching._children.values():
                child.kill()
                child.wait(PATIENCE_S)
        while self.engines and (left := self.marked()):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for engine in self.engines:
            engine._fences.close()


def lose_groups(engine: Engine) -> None:
    """From now on control groups of tasks are gone before the tasks are in them."""
    make = engine._fences.make

    def vanishing(*task: Any) -> Path | None:
        group = make(*task)
        assert group is not None
        group.rmdir()
        return group

    engine._fences.make = vanishing  # type: ignore[method-assign, assignment]  # as a test wants it


def shell(vc: str, script: str, gpus: int = 1, **more: Any) -> JobSpec:
    """A job that is a line of shell."""
    return JobSpec.model_construct(
        vc=vc, command=("sh", "-c", script), gpus=gpus, **{"name": "job", "grace_s": 5.0, **more}
    )


def record_faults(store: Store) -> tuple[list[str], Counter[str]]:
    """What does not agree in a store, in words, and counts: no gaps, jobs are as events say, every life replays."""
    faults: list[str] = []
    events = store.events(0, 1 << 40, None)
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        faults.append("event numbers have gaps")
    kept = {job.id: job for job in store.jobs(JobFilter(), 1 << 40, None)[0]}
    jobs = replayed(events, {number: job.spec for number, job in kept.items()})
    different = [n for n, job in jobs.items() if json.dumps(job.status()) != json.dumps(kept[n].status())]
    if different:
        faults.append(f"{len(different)} jobs are not what their events say: {different[:5]}")
    lives: list[list[str]] = []
    for line in store.decisions():
        if '"is":"Opened"' in line[:60]:
            lives.append([])
        lives[-1].append(line)
    for life in lives:
        logged: list[str] = []

        def made(spec: ClusterSpec, logged: list[str] = logged) -> Cluster:
            policies = Policies(YarnCS(), by_vc(spec))
            return RecordedCluster(spec, logged.append, policies.rank, policies.ranks)

        replay(life, made)
        if logged != life:
            faults.append("a life of the core does not replay")
    return faults, Counter(events=len(events), lives=len(lives))


async def state(engine: Engine, job: Job, *wanted: JobState) -> Job:
    """The job, once it is in one of these states."""
    while True:
        found = engine.find(str(job.id))
        if found.state in wanted:
            return found
        await asyncio.sleep(0.005)


async def ended(engine: Engine, *jobs: Job) -> list[Job]:
    """The jobs, once all have ended."""
    over = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    return [await state(engine, job, *over) for job in jobs]


async def printed(engine: Engine, job: Job, text: str, rank: int = 0) -> str:
    """All that a task has printed, once this is in it."""
    while True:
        with suppress(OSError, NotFoundError):
            found = engine.task(job, rank).output.read_text()
            if text in found:
                return found
        await asyncio.sleep(0.005)


async def running(engine: Engine, *specs: JobSpec) -> list[Job]:
    """The jobs, once each has printed ``here``."""
    jobs = [engine.submit(spec) for spec in specs]
    for job in jobs:
        await printed(engine, job, "here")
    return jobs


async def noted(engine: Engine, kind: str) -> Event:
    """The latest event of this kind, once there is one."""
    while True:
        for event in reversed(engine.recent):
            if event.kind == kind:
                return event
        await engine.changed(engine.last_event)


def gate(path: Path) -> str:
    """A line of shell: wait until the test makes this file."""
    return f"while ! [ -e {path} ]; do sleep 0.02; done"
