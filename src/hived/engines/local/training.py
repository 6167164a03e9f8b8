"""Training jobs of an engine, by their control pages: they are told what to do, and what they do is taken in.

What may wait for a job is done in threads of a pool of its own, so that jobs that do not answer keep nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hived.engine.states import JobState
from hived.errors import (
    ConflictError,
    HivedError,
    InvariantError,
    NotFoundError,
    NotYetError,
    PolicyError,
    StorageError,
    UnavailableError,
)

from .environment import wake_marked
from .instructions import LimitTasks, ResumeTasks, ScaleTasks, SuspendTasks
from .job_scheduler import JobScheduler
from .model import Job, Limiting, Obeying, RefusedError
from .tasks import Key, Task

if TYPE_CHECKING:
    from .agent import Agent, JobStatus
    from .job_users import JobUsers

T = TypeVar("T")
#: period of the looks at what training jobs do, in seconds
LOOK_EVERY_S = 0.5
#: how long a job that takes turns is waited for at a time, in seconds
TURN_S = 5.0
#: how long one may be out of reach that is to pause or to go on: its control pages are gone, or are not to be read
LOST_S = 20.0
#: and one that grows or shrinks: new workers start first
SCALE_S = 60.0
#: requests about jobs of one user that wait for an answer, at a time
_MOST_REQUESTS = 6
#: why a training job does other than the engine has told it
ELSEWHERE = "told so on its machine, not by the engine"


@dataclass(slots=True)
class _Told:
    """What one job is told."""

    times: int = 0  #: how often it was: what was seen before that says nothing of what it does now
    #: what it was told last, by its name in :class:`Obeying`, and why
    said: dict[str, tuple[object, str]] = field(default_factory=dict)
    turn: asyncio.Task[None] | None = None  #: tells it to pause or to go on
    limits: LimitTasks | None = None  #: that it is to be told next

    def say(self, wish: Mapping[str, object], why: str) -> None:
        """Note what it is told, except for what is None."""
        self.said |= {name: (value, why) for name, value in wish.items() if value is not None}


class TrainingJobs:
    """Tells training jobs what to do, and takes in what they do. One event loop; call from its thread only.

    Raises errors of :mod:`hived.errors`.
    """

    def __init__(
        self,
        agent: Agent | None,
        job_scheduler: JobScheduler,
        take_in: Callable[[Callable[[float], object]], None],
        task: Callable[[Job, int], Task],
        watches: Callable[[Key], bool],
    ) -> None:
        """``agent``: None: the runtime of training jobs is not installed.

        ``take_in`` calls what tells the job scheduler a fact, with the time, and has what follows from it stored and
        carried out; it raises what the engine cannot go on for.
        """
        self._agent, self._job_scheduler, self._take_in = agent, job_scheduler, take_in
        self._task, self._watches = task, watches
        self._threads = ThreadPoolExecutor(128, "training")  # for what the scheduler wants, and looks
        self._for_users = ThreadPoolExecutor(64, "commands")  # for requests, which may wait for a day
        self._requests = Counter[int]()  # that wait, by the user whose job it is
        self._told: defaultdict[int, _Told] = defaultdict(_Told)  # by job
        self._at_work: set[asyncio.Task[None]] = set()
        self._looks: dict[int, asyncio.Task[None]] = {}  # by user

    def start(self) -> None:
        """Begin to look at what training jobs do, in the running loop."""
        if self._agent is not None:
            self._begin(self._look(self._agent))

    async def stop(self) -> None:
        """Look no longer, and tell nothing more."""
        for task in tuple(self._at_work):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._for_users.shutdown(wait=False, cancel_futures=True)
        if self._agent is not None:
            self._agent.close()

    def environment(self, job: Job, environment: Mapping[str, str]) -> Mapping[str, str]:
        """What a task's environment has in addition, to be started under the runtime."""
        return {} if self._agent is None else self._agent.environment(job, environment)

    # -- instructions of the scheduler ----------------------------------------------------------------------------

    def carry_out(self, job: Job, wanted: SuspendTasks | ResumeTasks | ScaleTasks | LimitTasks) -> None:
        """Have a job do what the scheduler has decided. Returns at once; idempotent."""
        if self._agent is None:
            return
        match wanted:
            case LimitTasks():
                self._limit_tasks(self._agent, job, wanted)
            case ScaleTasks():
                self._begin(self._scale_tasks(self._agent, job, wanted))
            case _:
                told = self._told[job.id]
                told.times += 1
                has_turn = isinstance(wanted, ResumeTasks)
                told.turn = self._begin(self._turn_after(told.turn, self._agent, job, wanted.attempt, has_turn))

    async def _turn_after(
        self, before: asyncio.Task[None] | None, agent: Agent, job: Job, attempt: int, has: bool
    ) -> None:
        """Have a job that takes turns go on or pause, after what it was told before."""
        if before is not None:
            await asyncio.wait([before])
        try:
            await self._turn(agent, job, attempt, has)
        finally:
            told = self._told[job.id]
            if told.turn is asyncio.current_task():
                told.turn = None

    async def _turn(self, agent: Agent, job: Job, attempt: int, has: bool) -> None:
        """Tell it until it does so: one that is starting, or in a long phase without mini-batches, is not able yet."""
        first, told_last = time.monotonic(), time.monotonic()
        while job.state.stays and job.attempt == attempt:
            if self._job_scheduler.turns.wishes(job.id) is (not has):
                return  # it has paused before it was called back, say, and others have its GPUs by now
            try:
                if has:
                    await self._off_the_loop(agent.resume, job, TURN_S)
                else:
                    await self._off_the_loop(agent.suspend, job, TURN_S)
                break
            except (HivedError, OSError) as error:
                if not isinstance(error, NotFoundError | UnavailableError) or isinstance(error, NotYetError):
                    told_last = time.monotonic()  # it has pages that can be read
                if has and not agent.obeys(job):  # its folder was deleted: it goes on by itself, once it is woken
                    for rank in range(job.spec.tasks):
                        await self._off_the_loop(wake_marked, self._task(job, rank).mark)
                    break
                if time.monotonic() - told_last > LOST_S:
                    self._take_in(lambda at: self._job_scheduler.cannot_be_told(job, at))
                    return
                await asyncio.sleep(LOOK_EVERY_S)
                if self._job_scheduler.turns.wishes(job.id) is not has:
                    return
                if not has and time.monotonic() - first > self._job_scheduler.patience_s(job):
                    self._take_in(lambda at: self._job_scheduler.does_not_obey(job, at))
                    return
        doing = await self._off_the_loop(agent.look, job)
        if doing is not None:
            self._does(job, attempt, doing)

    async def _scale_tasks(self, agent: Agent, job: Job, wanted: ScaleTasks) -> None:
        """Have an elastic job change its number of workers, until it has, or refuses."""
        first, turns = time.monotonic(), self._job_scheduler.turns
        while job.attempt == wanted.attempt and turns.scaling.get(job.id) == wanted.workers:
            refused = time.monotonic() - first > self._job_scheduler.patience_s(job)
            try:
                await self._off_the_loop(agent.scale, job, wanted.workers, SCALE_S)
            except (HivedError, OSError) as error:
                refused = refused or isinstance(error, RefusedError)
                await asyncio.sleep(0.0 if refused else LOOK_EVERY_S)
            if refused and turns.scaling.get(job.id) == wanted.workers:
                self._take_in(lambda at: self._job_scheduler.does_not_scale(job, at))
                return
            doing = await self._off_the_loop(agent.look, job)
            if doing is not None:
                self._does(job, wanted.attempt, doing)

    def _limit_tasks(self, agent: Agent, job: Job, wanted: LimitTasks) -> None:
        told = self._told[job.id]
        told.say({"memory": wanted.limiting.memory, "share": wanted.limiting.share}, wanted.why)
        is_being_told, told.limits = told.limits is not None, wanted
        if not is_being_told:
            self._begin(self._tell_limits(agent, job, told))

    async def _tell_limits(self, agent: Agent, job: Job, told: _Told) -> None:
        """Tell a job its limits, the latest ones last. One that cannot be told them now is told the next ones."""
        while (latest := told.limits) is not None:
            try:
                if job.state.stays and job.attempt == latest.attempt:
                    with contextlib.suppress(HivedError, OSError):
                        await self._off_the_loop(agent.limit, job, latest.limiting)
            finally:
                if told.limits is latest:
                    told.limits = None

    # -- requests of users ----------------------------------------------------------------------------------------

    async def suspend(self, job: Job, timeout_s: float, lease_s: float = 0.0, user: str = "") -> Job:
        """Suspend a training job at the end of a mini-batch; ``lease_s``: for so long, 0: until it is resumed.

        It keeps its GPUs. Raises :class:`ConflictError` for one that does not run under the runtime, or has ended no
        mini-batch yet, and :class:`~hived.errors.NotYetError` after ``timeout_s``.
        """
        await self._tell(job, {"suspended": True}, user, lambda agent: agent.suspend(job, timeout_s))

        def suspended(at: float) -> None:
            self._job_scheduler.turns.hold(job, told_by(user), at + lease_s if lease_s else None, at)

        self._take_in(suspended)
        return job

    async def resume(self, job: Job, timeout_s: float, user: str = "") -> Job:
        """Let a suspended job go on. Raises as :meth:`suspend`."""
        if job.state is not JobState.SUSPENDED:  # it may have been told to pause, and has not yet
            return await self._tell(job, {"suspended": False}, user, lambda agent: agent.resume(job, timeout_s))
        self._take_in(lambda at: self._job_scheduler.turns.goes_on(job, told_by(user), at))
        if (turn := self._told[job.id].turn) is not None:
            await asyncio.wait([turn], timeout=timeout_s)
            if not turn.done():
                raise NotYetError(f"{job.name} has not gone on after {timeout_s:g} s; it is told so")
        return job

    async def limit(self, job: Job, limiting: Limiting, user: str = "") -> Job:
        """Limit a training job from its next mini-batch on. Raises as :meth:`suspend`."""
        wish = {"memory": limiting.memory, "share": limiting.share}
        return await self._tell(job, wish, user, lambda agent: agent.limit(job, limiting))

    async def scale(self, job: Job, workers: int, timeout_s: float, user: str = "") -> Job:
        """Have an elastic job go on with so many workers on the GPUs that it has. Raises as :meth:`suspend`."""
        return await self._tell(job, {}, user, lambda agent: agent.scale(job, workers, timeout_s))

    async def status(self, job: Job) -> JobStatus:
        """What the processes of a training job say of themselves. Raises as :meth:`suspend`."""
        return await self._for(job, self._agent_of(job).status, job)

    async def _for(self, job: Job, work: Callable[..., T], *of: Any) -> T:
        """Carry a request about a job out in a thread. Raises :class:`UnavailableError` where too many wait."""
        uid = job.spec.uid
        if self._requests[uid] >= _MOST_REQUESTS:
            whose = f"training jobs of {job.spec.user}" if job.spec.user else "training jobs"
            raise UnavailableError(f"{_MOST_REQUESTS} requests about {whose} wait for an answer: try again later")
        self._requests[uid] += 1
        future = self._for_users.submit(work, *of)
        # also where nobody waits for it any more: the thread does
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _call_soon(loop, self._requests.subtract, [uid]))
        return await asyncio.wrap_future(future)

    async def _tell(self, job: Job, wish: Mapping[str, object], user: str, tell: Callable[[Agent], None]) -> Job:
        agent, attempt, told = self._agent_of(job), job.attempt, self._told[job.id]
        told.say(wish, told_by(user))
        told.times += 1
        try:
            await self._for(job, tell, agent)
        finally:
            await self._see(agent, job, attempt)
        return job

    def _agent_of(self, job: Job) -> Agent:
        """What tells a job something. Raises :class:`ConflictError` for one that nothing can be told."""
        if not job.state.stays:
            raise ConflictError(f"{job.name} is {job.state.value}: only what runs can be told something")
        if self._agent is None or not self._agent.obeys(job):
            raise ConflictError(f"{job.name} does not run under the runtime of training jobs; submit it with --share")
        return self._agent

    # -- what they do ---------------------------------------------------------------------------------------------

    async def _look(self, agent: Agent) -> None:
        jobs = self._job_scheduler.jobs
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                holding = [job for job in jobs.values() if job.state.holds]
                for number in [number for number in self._told if number not in jobs]:
                    del self._told[number]
                if self._job_scheduler.guests is not None:
                    self._take_in(lambda _: None)  # time alone may raise what guests may use
                over = agent.idle(holding)  # now, so that no folder is among them that is made meanwhile
                await self._off_the_loop(agent.delete, over)
                for uid, theirs in _by_user(holding).items():
                    if (before := self._looks.get(uid)) is None or before.done():  # who does not answer keeps nobody
                        self._looks[uid] = self._begin(self._look_at(agent, theirs))
            except (StorageError, InvariantError, PolicyError):
                raise
            except Exception as error:  # a look that fails must not end the looks
                _report(error)

    async def _look_at(self, agent: Agent, jobs: list[tuple[Job, int]]) -> None:
        """Look at what the jobs of one user do, one after another."""
        for job, attempt in jobs:
            # only what is known to be ours: in a copied folder the pages are of the jobs of the original
            if self._watches((job.id, attempt, 0)) and self._told[job.id].turn is None and agent.obeys(job):
                try:
                    await self._see(agent, job, attempt)
                except (StorageError, InvariantError, PolicyError):
                    raise
                except Exception as error:
                    _report(error)

    async def _see(self, agent: Agent, job: Job, attempt: int) -> None:
        """Look at what a job does, and take it in, unless it was told something meanwhile."""
        told = self._told[job.id]
        times = told.times
        doing = await self._off_the_loop(agent.look, job)
        if doing is not None and times == told.times:
            self._does(job, attempt, doing)

    def _does(self, job: Job, attempt: int, doing: Obeying) -> None:
        """Take in what a job does, and why."""
        said = self._told[job.id].said

        def why(*names: str) -> str:
            """Of what it does, if it is what it was told."""
            known = [(getattr(doing, name), *said[name]) for name in names if name in said]
            return known[0][2] if known and all(now == wanted for now, wanted, _ in known) else ELSEWHERE

        paused, limited = why("suspended"), why("memory", "share")
        self._take_in(lambda at: self._job_scheduler.obeys(job.id, attempt, doing, paused, limited, at))

    # -- parts ----------------------------------------------------------------------------------------------------

    async def _off_the_loop(self, work: Callable[..., T], *of: Any) -> T:
        """Do what may wait for a job in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *of)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        async def until_the_engine_fails() -> None:
            with contextlib.suppress(StorageError, InvariantError, PolicyError):
                await work

        self._at_work.add(task := asyncio.get_running_loop().create_task(until_the_engine_fails()))
        task.add_done_callback(self._at_work.discard)
        task.add_done_callback(lambda _: work.close())  # it may have been cancelled before it began
        return task


def _by_user(holding: list[Job]) -> dict[int, list[tuple[Job, int]]]:
    """What runs, with its attempt, by the user whose it is."""
    found: dict[int, list[tuple[Job, int]]] = {}
    for job in holding:
        if job.state.stays:
            found.setdefault(job.spec.uid, []).append((job, job.attempt))
    return found


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *of: Any) -> None:
    """Call something in a loop, from any thread, while there is the loop."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *of)


def _report(error: Exception) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": "looking failed", "exception": error})


def told_by(user: str) -> str:
    """Why a job does what somebody has told it."""
    return f"told so by {user or 'hand'}"


def installed_agent(folder: Path, database: str, users: JobUsers, jobs: Path) -> Agent | None:
    """The agent, where the runtime of training jobs is installed."""
    try:
        from .agent import Agent
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("hived_control"):
            raise
        return None
    return Agent(folder, database, users, jobs)
