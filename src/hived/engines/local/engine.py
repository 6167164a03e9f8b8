"""The engine of one machine: jobs as local processes, scheduled by the core, with nothing lost when it is killed.

Facts (a submission, a task that ended, a device that broke) go to the job scheduler. Its events are stored by the
:class:`~.store.Store`; only then are its instructions carried out. Instructions that a kill cut short are repeated at
the next start: a task is started only once (see :mod:`.supervisor`), and stopping it twice is the same as once.

If events cannot be stored, or an invariant is broken (a bug), the engine ends at once, loudly: tasks run on, and the
next start finds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import asdict

from hived.access import Token, Tokens
from hived.cluster import check_feasible
from hived.cluster.cluster import Cluster
from hived.cluster.explain.queries import PlanAnswer
from hived.cluster.explain.reasons import Misconfigured
from hived.cluster.recovery import Reconfiguration
from hived.cluster.requests import OPPORTUNISTIC
from hived.engine.explaining import given_away
from hived.engine.job import Event
from hived.engine.states import JobState, ended_text
from hived.engine.trading import LiveTrading
from hived.engines.submission import MOST_AWAITED, After, Submission, indexes_of
from hived.errors import (
    ConflictError,
    HivedError,
    InputError,
    InvariantError,
    NeverFitsError,
    NotFoundError,
    PolicyError,
    RequestError,
    StorageError,
)
from hived.events.recorded import RecordedCluster
from hived.exchange import Arbiter
from hived.installed import RUNTIME, command_for
from hived.policies import YarnCS, by_vc
from hived.scheduling import Policies
from hived.scheduling.checked_policy import CheckedPolicy
from hived.spec.compiled import ClusterSpec
from hived.words import counted

from . import containers
from .devices import Devices
from .environment import PREVIOUS, free_port, task_environment
from .explaining import JobExplainer
from .fences import Fence, Fences
from .health import DrainedBy
from .holds import some_fails
from .instructions import (
    Instruction,
    LimitTasks,
    LimitTime,
    ResumeTasks,
    ScaleTasks,
    StartTasks,
    StopTasks,
    SuspendTasks,
    WakeAt,
)
from .job_scheduler import JobScheduler
from .job_users import JobUsers, output_of, own_folder
from .model import MOST_BACKOFF_S, Job, JobSpec
from .ownership import jobs_folder, label, newest_file, next_number
from .store import LastStart, Shares, Store, last_start, new_names, renamed, same
from .strangers import can_be_told, is_of_a_job
from .supervisor import world
from .tasks import Ending, Key, Task, Watching, Work, delete_folder, make_folder
from .training import TrainingJobs, installed_agent, told_by

T = TypeVar("T")
#: how many of the latest events are kept in memory, for followers of the event stream
RECENT = 10_000
#: period of the checks of devices and tasks, in seconds
HEALTH_EVERY_S = 5.0
#: period of the looks for files that are kept no longer, in seconds
DELETE_EVERY_S = 60.0


class Keeping(NamedTuple):
    """How much of jobs is kept."""

    output: int = 0  #: bytes of what a task prints, the last ones; 0: all
    files_s: float = inf  #: for how long files of a job that has ended, in seconds; what is said of it stays


class Engine:
    """Jobs of several tenants as processes on this machine. One asyncio loop; call from its thread only.

    Raises errors of :mod:`hived.errors`; a call that raises has changed nothing.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        store: Store,
        devices: Devices,
        clock: Callable[[], float] = time.time,
        shares: Shares | None = None,
        arbiter: Arbiter | None = None,
        job_users: JobUsers | None = None,
        keeping: Keeping | None = None,
        fences: Collection[Fence] = (),
    ) -> None:
        """Take over the folder of ``store``. ``shares``: the shares that ``spec`` was made of; stored with it.

        ``arbiter``: how offers of cells are matched with requests; None: balanced. ``job_users``: whose jobs it runs;
        None: by the rights of this process. ``keeping``: how much of jobs is kept; None: all. ``fences``: what
        tasks are kept to.

        Raises :class:`~hived.errors.StorageError`, ``ConflictError``, ``InfeasibleError``, and ``InputError`` where
        tasks cannot be fenced so.
        """
        self.store = store
        self.folder = store.folder.absolute()
        self.devices = devices
        self.job_users, self.keeping = job_users or JobUsers.here(), keeping or Keeping()
        self.clock = clock
        self.started_at = clock()
        #: where the spec in force comes from, and since when it is
        self.spec_source, self.spec_loaded_at = spec.source or devices.what, self.started_at
        self._lines: list[str] = []
        check_feasible(spec)
        last = last_start(store) or LastStart(spec)
        _check_devices(last, store, devices)
        #: present names of nodes, by their names at the last start
        self._names = new_names(last.spec, spec)
        self._now = LastStart(spec, devices.simulated, shares)
        policies = Policies(YarnCS(), by_vc(spec))
        self._trading = restored_trades(renamed(last.spec, self._names), store, self.clock(), arbiter)
        cluster = RecordedCluster(self._trading.in_force(), self._lines.append, policies.rank, policies.ranks)
        self._database = database = store.database
        if can_be_told():
            devices.tell_strangers(lambda pid: is_of_a_job(pid, self.folder, self._owner))
        #: of people
        self.tokens = _tokens(store)
        #: None: the runtime of training jobs is not installed
        self._agent = installed_agent(self.folder / "training", database, self.job_users, self.folder / "jobs")
        policies.forbid_sharing(self._why_not_shared)
        self.job_scheduler = JobScheduler(
            cluster, policies, free_port, store.last_event(), self._trading, shares=True, past_use=self._past_use
        )
        self.job_scheduler.holdings.restore(store.open_holdings(), self.clock())
        self._next_job = max(store.next_job(), next_number(self.folder))
        #: the latest events, oldest first
        self.recent: deque[Event] = deque(maxlen=RECENT)
        self._new_events = asyncio.Event()
        self._planned = False
        #: whether what is told is part of a turn that goes on
        self._together = False
        #: whether ``jobs`` is another folder than that of the last engine
        self._replaced = False
        #: to be stored with the events of the next turn
        self._values: dict[str, str] = {}
        # a copy of the folder has the same database, and may run beside this one
        own = f"{database}-{self.folder.stat().st_ino:x}"
        self._fences = Fences(own, fences, submission_of=self._submission_of)
        self._left = containers.Left(self.folder / "containers")
        self._watching = Watching(self._ended, self._fences, self._left)
        self.job_scheduler.held_up = self._watching.held_up
        #: jobs under the runtime
        self.training = TrainingJobs(self._agent, self.job_scheduler, self._act, self.task, self._watching.watches)
        self._timers: set[asyncio.TimerHandle] = set()
        self._review: asyncio.TimerHandle | None = None
        self._checks: tuple[asyncio.Task[None], ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: the error for which the engine cannot go on, once there is one
        self.failed: asyncio.Future[StorageError | InvariantError | PolicyError] | None = None

    def _submission_of(self, number: int) -> str:
        job = self.job_scheduler.jobs.get(number)
        return "" if job is None else job.spec.submission

    def _past_use(self, vc: str, half_life: float) -> tuple[dict[str, float], float]:
        at = self.clock()
        return self.store.decayed_use(vc, half_life, at), at

    @property
    def cluster(self) -> Cluster:
        """The core."""
        return self.job_scheduler.cluster

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over the jobs of an earlier engine, and begin."""
        self._loop = asyncio.get_running_loop()
        self._replaced, labelled = label(jobs_folder(self.folder), self.store.value("jobs"))
        if labelled is not None:
            self._values["jobs"] = labelled
        self.store.mark_newest(newest_file(self.folder))
        self._watching.open()
        self._left.open()
        self.failed = self._loop.create_future()
        at = self.clock()
        self.job_scheduler.note("engine_started", None, at, {"pid": os.getpid(), "devices": self.devices.what})
        self._drain_again()
        self.job_scheduler.health.apply()
        self._take_in(self.devices.health(self._now.spec))
        # first under the former spec, then the new one as a reconfiguration: so a restart takes the same path
        self.job_scheduler.recover(self.store.active(), at, self._names, self.store.virtual())
        again = [job.id for job in self.job_scheduler.jobs.values() if job.resumes]
        for number, why in self.store.stops_of(again).items():
            self.job_scheduler.jobs[number].stopped_why = why
        if not same(self._trading.base, self._now.spec):
            self.job_scheduler.reconfigure(self._now.spec, at)
        for what in self._trading.left_out:
            self.job_scheduler.note("left_out", None, at, {"why": what})
        self.job_scheduler.trading.due(at)
        self._remember(self._now)
        self._advance_or_raise()
        self._checks = (
            self._loop.create_task(self._check_health()),
            self._loop.create_task(self._delete_old_files()),
            self._loop.create_task(self._shut_files()),
        )
        self.training.start()

    def let_go(self) -> None:
        """Watch tasks no longer: first of all when the machine may be shutting down, which ends them too."""
        self._watching.close()

    async def stop(self) -> None:
        """End the engine, not the jobs: the next engine finds them."""
        for check in self._checks:
            check.cancel()
        for failed in await asyncio.gather(*self._checks, return_exceptions=True):
            if isinstance(failed, Exception):  # it has ended before; what is stored here does not depend on it
                asyncio.get_running_loop().call_exception_handler({"message": "a check failed", "exception": failed})
        for timer in (*self._timers, self._review):
            if timer is not None:
                timer.cancel()
        await self.training.stop()
        self.let_go()
        self._left.close()
        self._fences.close()
        self.devices.close()
        with contextlib.suppress(StorageError):
            self._refuse_if_failed()  # there would be a gap before this event
            self.job_scheduler.note("engine_stopped", None, self.clock(), {"pid": os.getpid()})
            self._keep()
        self.store.close()

    # -- requests of users ----------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec, variables: Mapping[int, Mapping[str, str]] = MappingProxyType({})) -> Job:
        """Queue a job. It is on the disk when this returns. ``variables``: more of its environment, by array index.

        Raises :class:`NeverFitsError` where it could not start with everything free, :class:`RequestError` with the
        field that is wrong, and :class:`StorageError` where it cannot be stored.
        """
        self._refuse_if_failed()
        self._check(spec)
        specs = self._each(spec.model_copy(update={"waits_for": self._awaited(spec)}), variables)
        if self._planned:
            self._advance_or_raise()  # so that the turn stored below is this submission alone
        at = self.clock()
        with self._failing():
            jobs = [self.job_scheduler.submit(self._next_job + n, each, at) for n, each in enumerate(specs)]
        self._refuse_if_failed()
        turn = self.job_scheduler.turn()
        try:
            self.store.reserve()
            self.store.keep(turn.events, turn.jobs, virtual=turn.virtual, holdings=turn.holdings)
        except StorageError:
            self.job_scheduler.unsubmit(jobs, len(turn.events))
            raise
        self._next_job += len(jobs)
        self._publish(turn.events)
        self._soon()
        return jobs[0]

    def _check(self, spec: JobSpec) -> None:
        """Whether a job can be run as it asks. Raises :class:`NeverFitsError`, :class:`RequestError`."""
        answer = self.plan(spec)
        self.job_users.check_folder(spec.user, spec.uid, self.folder / "jobs")
        policy = self.job_scheduler.policies[spec.vc]
        if policy.clairvoyant and spec.time_limit_s is None:
            raise RequestError(
                "time_limit_s",
                f"the policy of {spec.vc}, {policy.name}, orders jobs by their duration: give a time limit",
            )
        if self._shares(spec) and self._agent is None:
            raise RequestError("share", f"{RUNTIME} is not installed where the engine runs: {command_for('train')}")
        if self._shares(spec) and self._agent is not None:
            self.job_users.check_runtime(spec.user, spec.uid, self._agent.installed)
        loan = spec.opportunistic or spec.early
        lent = given_away(self.job_scheduler.trading, spec.vc, answer.reasons)  # until a trade ends
        if (
            answer.outcome == "never"
            and not lent
            and not (spec.early and self.plan(spec.model_copy(update={"priority": OPPORTUNISTIC})).outcome != "never")
        ):
            why = "; ".join(map(JobExplainer(self.job_scheduler).say, answer.reasons))
            if not loan and self.plan(spec.model_copy(update={"priority": OPPORTUNISTIC})).outcome != "never":
                why += "; or run it on GPUs that others leave idle: --opportunistic"
            raise NeverFitsError(why)
        if loan and spec.grace_s > (most := self.job_scheduler.health.grace_of_loans(spec.vc)):
            raise RequestError(
                "grace_s",
                f"jobs of {spec.vc} on loan have {most:,} s at most, not {spec.grace_s:g} s; ask for less, run it as "
                "guaranteed and not early, or raise opportunisticGraceSeconds of the virtual cluster in the spec",
            )

    def _each(self, spec: JobSpec, variables: Mapping[int, Mapping[str, str]]) -> list[JobSpec]:
        """The jobs of a submission: one, or those of an array."""
        sequence = self.store.submitted(spec.vc)
        indexes, most = ([0], 0) if spec.array is None else indexes_of(spec.array)
        array = 0 if spec.array is None else self._next_job
        found = []
        for n, index in enumerate(indexes):
            own = {"array_index": index, "sequence": sequence + n, "submission": os.urandom(8).hex()}
            if index in variables:
                own["environment"] = {**spec.environment, **variables[index]}
            found.append(spec.model_copy(update={"array_id": array, "array_most": most, **own}))
        return found

    def _awaited(self, spec: JobSpec) -> tuple[tuple[int, str], ...]:
        """The jobs that have to end before one, without those that have. An array by its id or name is all of it:

        of it ``fail`` is that all have ended, and one has failed at least.

        Raises :class:`NotFoundError`, and :class:`ConflictError` for one that has ended otherwise than it is to.
        """
        every: list[tuple[Job, str]] = []
        many = 1 if spec.array is None else len(indexes_of(spec.array)[0])
        most = MOST_AWAITED // many
        seen: set[After] = set()
        for after in spec.after:
            one = self.find(after.job)
            is_array = after.job in (str(one.spec.array_id), one.spec.name) and one.spec.array_id > 0
            # before they are read: those of all that are named may be many more
            most -= len(indexes_of(one.spec.array)[0]) if is_array and one.spec.array is not None else 1
            if most < 0:
                raise RequestError("after", f"would be more than {MOST_AWAITED:,} waits of one job for another")
            if after in seen:
                continue
            seen.add(after)
            whole = [*self.array(one)] if is_array else []
            how: str = after.when
            if whole and how == "fail":
                ended_badly = any(job.state.ended and job.state is not JobState.SUCCEEDED for job in whole)
                how = "any" if ended_badly else some_fails(one.spec.array_id)
                if not ended_badly and all(job.state.ended for job in whole):
                    raise ConflictError(f"after {after.job}:fail: all of it has succeeded, so this could never run")
            every += [(job, how) for job in whole or [one]]
        found = []
        for job, when in every:
            good = job.state is JobState.SUCCEEDED
            if not job.state.ended:
                found.append((job.id, when))
            elif when in ("ok", "fail") and good is not (when == "ok"):
                ended = ended_text(job.state)
                raise ConflictError(f"after {job.name}:{when}: {job.name} {ended} already, so this could never run")
        return tuple(found)

    def hold(self, ref: str, user: str = "") -> Job:
        """Keep a job that waits out of line, until it is released. Raises as :meth:`cancel`."""
        return self._about(ref, lambda job, at: self.job_scheduler.hold(job, user, at))

    def release(self, ref: str, user: str = "") -> Job:
        """Let a held job go. Raises as :meth:`cancel`."""
        return self._about(ref, lambda job, at: self.job_scheduler.release(job, user, at))

    def requeue(self, ref: str, hold: bool = False, user: str = "") -> Job:
        """Stop a job, and queue it again; ``hold``: held. Raises as :meth:`cancel`."""
        return self._about(ref, lambda job, at: self.job_scheduler.requeue(job, hold, user, at))

    def _about(self, ref: str, act: Callable[[Job, float], object]) -> Job:
        job = self.find(ref)
        self._act(lambda at: act(job, at))
        return job

    def _act(self, act: Callable[[float], object]) -> None:
        """Tell the job scheduler something, and advance; it is on the disk when this returns."""
        with self._failing():
            act(self.clock())
        if self._together:
            self._planned = True
            self._refuse_if_failed()
        else:
            self._advance_or_raise()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make what is told within one turn: one commit at its end, and nothing starts before that.

        Nothing within may await what has to wait. Raises :class:`StorageError` at the end.
        """
        self._refuse_if_failed()
        self._together = True
        try:
            yield
        finally:
            self._together = False
            self._advance()
        self._refuse_if_failed()

    def edit(self, ref: str, changes: Mapping[str, object], user: str = "") -> Job:
        """Change fields of the spec of a job that waits, or the time limit of one that runs.

        Raises as :meth:`submit` and :meth:`cancel`.
        """
        job = self.find(ref)
        told = job.state.stays and "time_limit_s" in changes
        limit_s, before = changes.get("time_limit_s"), job.spec.time_limit_s
        if told:
            self._check_limit(job, limit_s)
        elif not job.state.stays:
            self._check(job.spec.model_copy(update={"priority": job.priority, **changes}))
        try:
            if told:
                self._tell_limit(job, limit_s if isinstance(limit_s, float) else None)
            return self._about(ref, lambda job, at: self.job_scheduler.edit(job, changes, user, at))
        except HivedError:
            if told:
                with contextlib.suppress(StorageError):
                    self._tell_limit(job, before)
            raise

    def limit_array(self, ref: str, most: int, user: str = "") -> Job:
        """Change how many of the array of a job are in line or at work at a time (0: all); that one may have ended.

        Raises :class:`NotFoundError`, :class:`RequestError` for a job of none, and as :meth:`cancel`.
        """
        job = self.find(ref)
        if not job.spec.array_id:
            raise RequestError("at_a_time", f"{job.name} is of no array")
        self._act(lambda at: self.job_scheduler.limit_array(job.spec.array_id, most, user, at))
        return self.find(str(job.id))

    def _check_limit(self, job: Job, limit_s: object) -> None:
        """Whether a job that runs can keep another time limit."""
        has_run = self.clock() - (job.started_at or inf)
        if isinstance(limit_s, float) and limit_s <= has_run:
            raise RequestError(
                "time_limit_s",
                f"{job.name} has run for {has_run:,.0f} s already, and would end at once: hived cancel ends it",
            )
        if any(not self.task(job, rank).takes_time_limits() for rank in range(job.size) if rank not in job.endings):
            raise ConflictError(
                f"{job.name} was started by an earlier version, which keeps the time limit it was started with; hived "
                "requeue --hold stops it, to be edited and released"
            )

    def _tell_limit(self, job: Job, limit_s: float | None) -> None:
        """Tell the supervisors of a job another time limit, before it is said to be in force. Raises StorageError."""
        for rank in range(job.size):
            if rank not in job.endings:
                task = self.task(job, rank)
                try:
                    task.limit_time(limit_s)
                except OSError as error:
                    why = f"{task.folder}: cannot be written ({error.strerror}); {job.name} keeps its time limit"
                    raise StorageError(why) from None

    def prioritize(self, ref: str, priority: int, user: str = "") -> Job:
        """Give a job that takes turns another priority. Raises :class:`NotFoundError`, :class:`ConflictError`."""
        return self._about(ref, lambda job, at: self.job_scheduler.prioritize(job, priority, told_by(user), at))

    def plan(self, spec: Submission) -> PlanAnswer:
        """Dry run of a submission in the core, as if no job were ahead in line."""
        answer = self.job_scheduler.scheduler.plan(spec.request())
        first = answer.reasons[0] if answer.reasons else None
        if isinstance(first, Misconfigured):
            raise RequestError("gpus" if first.field.startswith("members") else first.field, first.message)
        return answer

    def cancel(self, ref: str, user: str = "", now: bool = False) -> Job:
        """Withdraw or stop a job; ``now``: without its grace. Raises :class:`NotFoundError`, :class:`ConflictError`."""
        return self._about(ref, lambda job, at: self.job_scheduler.cancel(job, at, user, now))

    def drain(
        self, node: str | None, device: int | None, undo: bool, now: bool, user: str = "", reason: str = ""
    ) -> list[tuple[str, int]]:
        """Drain devices (None: of all nodes; all of the node), or undo that. Survives a restart."""
        chosen = self.chosen(node, device)
        names = {place[0] for place in chosen}
        where = node or ("the machine" if device is None else next(iter(names)) if len(names) == 1 else "every node")
        what = where if device is None else f"device {device} of {where}"
        self.job_scheduler.drain(chosen, undo, now, what, self.clock(), user, reason, device is None)
        health = self.job_scheduler.health
        layers = ((False, health.drained_alone), (True, health.drained_along))
        drained = [(place, (*by, whole)) for whole, layer in layers for place, by in layer.items()]
        self._values["drained"] = json.dumps([place for place, _ in drained])
        self._values["drained_by"] = json.dumps([by for _, by in drained])
        self._advance_or_raise()
        return chosen

    def _drain_again(self) -> None:
        """Drain what was drained at the last start."""
        places = json.loads(self.store.value("drained") or "[]")
        by = json.loads(self.store.value("drained_by") or "null")
        if by is None:  # of a version by which it was one text
            by = [("", text) for text in json.loads(self.store.value("drained_why") or "[]")]
        by += [("", "")] * (len(places) - len(by))
        of: Counter[tuple[object, ...]] = Counter((node, *who) for (node, _), who in zip(places, by, strict=True))
        for (node, device), who in zip(places, by, strict=True):
            name = self._names.get(node, node)
            # of the version before, which did not tell them apart: all devices of a node, in one way
            along = who[2] if len(who) > 2 else of[node, *who] == len(self.job_scheduler.health.devices.get(name, ()))
            self.job_scheduler.health.set_drained([(name, device)], True, DrainedBy(*who[:2]), along)

    def chosen(self, node: str | None, device: int | None) -> list[tuple[str, int]]:
        """The devices that ``node`` and ``device`` select. Raises :class:`NotFoundError` where there are none."""
        found = [
            place
            for place in self.cluster.spec.devices()
            if (node is None or place[0] == node) and (device is None or place[1] == device)
        ]
        if not found:
            what = f"node {node!r}" if device is None else f"device {device}" + (f" on node {node!r}" if node else "")
            raise NotFoundError(f"no {what}; hived devices shows those there are")
        return found

    @property
    def fences(self) -> frozenset[Fence]:
        """What tasks are kept from by control groups, as it was asked for."""
        return self._fences.asked

    def reconfigure(self, spec: ClusterSpec, user: str = "") -> Reconfiguration:
        """Go on under a new spec (work-preserving), by ``user``. Raises the error for which the spec is refused."""
        self._check_spec(spec)
        before = _readers_of(self.cluster.spec)
        with self._failing():
            report = self.job_scheduler.reconfigure(spec, self.clock(), user)
        if user:
            spec = replace(spec, source=f"the spec that {user} applied")
        self._remember(LastStart(spec, self.devices.simulated))
        self._advance_or_raise()
        self.spec_source, self.spec_loaded_at = spec.source, self.clock()
        if _readers_of(spec) != before:
            self._checks += (asyncio.get_running_loop().create_task(self._shut_files()),)
        return report

    def would_reconfigure(self, spec: ClusterSpec) -> Reconfiguration:
        """What :meth:`reconfigure` would answer. Raises the error for which it would refuse. Nothing changes."""
        self._check_spec(spec)
        return self.job_scheduler.would_reconfigure(spec)

    def _check_spec(self, spec: ClusterSpec) -> None:
        """Raise what is in the way of a new spec on this machine."""
        self.devices.check(spec)
        try:
            self.job_scheduler.check_policies(spec)
        except PolicyError as error:  # it is the spec that is wrong, and no policy at work, for which the engine ends
            raise InputError(f"{spec.source}: {error}") from error
        running = any(job.state.holds for job in self.job_scheduler.jobs.values())
        for was, node in new_names(self.cluster.spec, spec).items() if running else ():
            raise InputError(
                f"{spec.source}: calls the node {node}, and jobs run on it as {was}; "
                "call it that, or stop hived up and start it with this spec"
            )

    # -- tokens of people -----------------------------------------------------------------------------------------

    def create_token(self, user: str, lasts_s: float | None, vcs: tuple[str, ...] | None, by: str) -> tuple[Token, str]:
        """Make a token for a user, limited to ``vcs`` (None: to none), told so by ``by``; and its text.

        Its digest alone is kept, and is on the disk when this returns.
        """
        self._refuse_if_failed()
        made, text = self.tokens.create(os.urandom(4).hex(), os.urandom(32).hex(), user, self.clock(), lasts_s, vcs, by)
        self._tokens_changed("token_created", made, by, {"expires_at": made.expires_at, "vcs": vcs})
        return made, text

    def revoke_token(self, number: str, by: str) -> Token:
        """Revoke a token, told so by ``by``. Raises :class:`NotFoundError`."""
        self._refuse_if_failed()
        gone = self.tokens.revoke(number)
        self._tokens_changed("token_revoked", gone, by, {})
        return gone

    def signed_in(self, user: str, session: str) -> None:
        """Note that a browser acts as somebody from now on."""
        self._refuse_if_failed()
        self.store.reserve()  # a full disk has room for what ends jobs, and not for this
        self.job_scheduler.note("signed_in", None, self.clock(), {"user": user, "id": session})
        self._advance_or_raise()

    def signed_out(self, user: str, session: str, by: str) -> None:
        """Note that a browser acts as somebody no longer, told so by ``by``."""
        self._refuse_if_failed()
        self.job_scheduler.note("signed_out", None, self.clock(), {"of": user, "id": session, "user": by})
        self._advance_or_raise()

    def _tokens_changed(self, kind: str, token: Token, by: str, more: Mapping[str, object]) -> None:
        self._values["tokens"] = json.dumps(self.tokens.plain())
        self.job_scheduler.note(kind, None, self.clock(), {"id": token.id, "of": token.user, "user": by, **more})
        self._advance_or_raise()

    # -- trades of cells ------------------------------------------------------------------------------------------

    @property
    def trading(self) -> LiveTrading:
        """The market, to be read."""
        return self._trading

    def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        """Post or withdraw something at the market, by ``act``; it is on the disk when this returns.

        Raises what ``act`` raises, and :class:`StorageError`.
        """
        self._refuse_if_failed()
        at = self.clock()
        with self._failing():
            self.job_scheduler.trading.due(at)
        answer = act(self._trading, at)
        with self._failing():
            self.job_scheduler.trading.settle(at)
        self._advance_or_raise()
        return answer

    def _remember(self, start: LastStart) -> None:
        """Store the spec for the next start, with the events of this turn."""
        self._now = start
        self._values |= start.values()
        if self.devices.uuids:
            self._values["gpus"] = json.dumps({"world": world(), "uuids": self.devices.uuids})

    def find(self, ref: str) -> Job:
        """A job by number, by full name, the latest submitted under a name, or one of an array (``12_3``).

        Raises :class:`NotFoundError`.
        """
        here = self.job_scheduler.jobs
        if ref.isascii() and ref.isdigit() and len(ref) < 18 and int(ref) in here:
            return here[int(ref)]
        stored = self.store.job(ref) or self._of_array(ref)
        if stored is None:
            raise NotFoundError(f"no job {ref!r}; hived ps --all lists them")
        job = here.get(stored.id, stored)
        if job is stored and not job.state.ended and self._planned:  # it has ended, and that is not stored yet
            self._advance_or_raise()
            return self.store.job(str(job.id)) or job
        return job

    def has_files(self, job: Job) -> bool:
        """Whether the folder of a job is there: it is deleted some time after its end."""
        return self._job_folder(job.id).is_dir()

    def read_by(self, job: Job) -> str:
        """Who beside its owner may read what a job prints, as a sentence; "": nobody."""
        if not self.job_users.becomes(job.spec.uid):
            return ""
        if job.state.waits and (group := self._readers(job.vc)):
            return f"the group {group} may read what it will print (fileGroup of {job.vc})"
        return self.job_users.read_by(self._job_folder(job.id))

    def knows(self, ref: str) -> bool:
        """Whether a job of an array is meant by ``ARRAY_INDEX``. O(log index)."""
        return self._of_array(ref) is not None

    def _of_array(self, ref: str) -> Job | None:
        """The job ``ARRAY_INDEX``, the array by the id or name of a job of it. O(log index)."""
        name, line, text = ref.rpartition("_")
        if not (line and text.isascii() and text.isdigit() and len(text) < 18):
            return None
        of, index = self.store.job(name), int(text)
        array = 0 if of is None else of.spec.array_id
        low, high = array, array + index  # of jobs one after another with ascending indexes
        while array and low <= high:
            middle = (low + high) // 2
            job = self.store.job(str(middle))
            if job is None or job.spec.array_id != array or job.spec.array_index > index:
                high = middle - 1
            elif job.spec.array_index < index:
                low = middle + 1
            else:
                return job
        return None

    def array(self, of: Job) -> Iterator[Job]:
        """The jobs of an array, by index; none for one that is of none. They were submitted one after another."""
        number, here = of.spec.array_id, self.job_scheduler.jobs
        while number:
            job = here.get(number) or self.store.job(str(number))
            if job is None or job.spec.array_id != of.spec.array_id:
                return
            yield job
            number += 1

    # -- following ------------------------------------------------------------------------------------------------

    @property
    def last_event(self) -> int:
        """Number of the latest event."""
        return self.recent[-1].seq if self.recent else 0

    async def changed(self, after: int) -> None:
        """Return once there is an event after number ``after``."""
        while self.last_event <= after:
            await self._new_events.wait()

    def task(self, job: Job, rank: int, attempt: int | None = None) -> Task:
        """A task of a job; by default of its latest attempt. Raises :class:`NotFoundError`."""
        number = job.attempt if attempt is None else attempt
        if not 0 <= rank < job.spec.tasks:
            raise NotFoundError(f"{job.name} has tasks 0 to {job.spec.tasks - 1}, and no task {rank}")
        if not 1 <= number <= job.attempt:
            started = f"was started {job.attempt} times" if job.attempt else "has not been started yet"
            raise NotFoundError(f"{job.name} {started}: there is no attempt {number}")
        mark = job.mark(self._database, rank if number == job.attempt else None)
        folder, uid = self._job_folder(job.id), job.spec.uid
        output = output_of(folder, number, rank) if self.job_users.becomes(uid) else None
        return Task(folder / str(number) / str(rank), mark, output, -1 if output is None else uid)

    def shared_folder(self, job: Job) -> Path:
        """The folder of a job that all its attempts have."""
        folder = self._job_folder(job.id)
        return (own_folder(folder) if self.job_users.becomes(job.spec.uid) else folder) / "shared"

    def _job_folder(self, number: int) -> Path:
        return self.folder / "jobs" / str(number)

    # -- one turn: facts, events, instructions --------------------------------------------------------------------

    def _soon(self) -> None:
        """Advance in the next iteration of the loop: many facts then share one commit."""
        if not self._planned and self._loop is not None:
            self._planned = True
            self._loop.call_soon(self._advance)

    def _advance(self) -> None:
        self._planned = False
        if self.failed is None or self.failed.done():
            return
        with self._failing():
            now = self.clock()
            self.job_scheduler.trading.due(now)
            self.job_scheduler.dispatch(now)
            # if this fails, memory is ahead of the disk: any further action would have no record
            for instruction in self._keep():
                self._carry_out(instruction)
            self._await_review()

    def _await_review(self) -> None:
        """Advance again when the order of a running job changes."""
        if self._review is not None:
            self._review.cancel()
            self._review = None
        at = min(self.job_scheduler.scheduler.next_review, self._trading.next_change)
        if at < inf and self._loop is not None:
            self._review = self._loop.call_later(max(0.0, at - self.clock()), self._soon)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """End the engine for an error beyond repair: it is reported to the engine's owner by :attr:`failed`."""
        try:
            yield
        except (StorageError, InvariantError, PolicyError) as error:
            if self.failed is None:
                raise
            if not self.failed.done():
                self.failed.set_result(error)

    def _advance_or_raise(self) -> None:
        self._advance()
        self._refuse_if_failed()

    def _refuse_if_failed(self) -> None:
        if self.failed is not None and self.failed.done():
            raise self.failed.result()

    def _keep(self) -> tuple[Instruction, ...]:
        turn = self.job_scheduler.turn()
        if self._trading.changed:
            self._values["trades"] = self._trading.record()
        if turn.events or turn.virtual or turn.holdings or self._lines or self._values:
            self.store.keep(turn.events, turn.jobs, self._lines, self._values, turn.virtual, turn.holdings)
            self._lines.clear()
            self._values.clear()
        self._publish(turn.events)
        return turn.instructions

    def _publish(self, events: Sequence[Event]) -> None:
        if events:
            self.recent.extend(events)
            self._new_events.set()
            self._new_events = asyncio.Event()

    def _carry_out(self, instruction: Instruction) -> None:
        job = self.job_scheduler.jobs.get(instruction.job)
        if job is None:
            return
        match instruction:
            case StartTasks(attempt=attempt):
                for rank in range(job.spec.tasks):
                    if attempt == job.attempt and rank not in job.endings:
                        self._ensure(job, rank)
            case StopTasks(attempt=attempt):
                for rank in range(job.spec.tasks):
                    if rank not in job.endings:
                        task, grace_s = self.task(job, rank, attempt), self.job_scheduler.grace_s(job)
                        first = signal.Signals[f"SIG{self.job_scheduler.first_signal(job)}"]
                        self._watching.stop((job.id, attempt, rank), task, grace_s, first)
            case SuspendTasks() | ResumeTasks() | ScaleTasks() | LimitTasks():
                if isinstance(instruction, ResumeTasks | ScaleTasks):
                    self._fence_again(job)
                self.training.carry_out(job, instruction)
            case LimitTime(attempt=attempt):
                for rank in range(job.spec.tasks):
                    if attempt == job.attempt and rank not in job.endings:
                        with contextlib.suppress(OSError):  # the engine ends it by itself then, or its folder is gone
                            self.task(job, rank).limit_time(job.spec.time_limit_s)
            case WakeAt(at=at):
                assert self._loop is not None
                delay = max(0.0, at - self.clock())
                if job.state is JobState.BACKOFF:
                    delay = min(delay, MOST_BACKOFF_S)  # a clock may have been set back
                timer = self._loop.call_later(delay, self._due, job.id, at)
                self._timers = {other for other in self._timers if other.when() > self._loop.time()} | {timer}

    def _due(self, number: int, at: float) -> None:
        with self._failing():
            self.job_scheduler.due(number, max(self.clock(), at))  # a clock may have been set back meanwhile
        self._advance()

    # -- tasks ----------------------------------------------------------------------------------------------------

    def _ensure(self, job: Job, rank: int) -> None:
        """Start or watch a task, or take in its end. Idempotent."""
        key, task = (job.id, job.attempt, rank), self.task(job, rank)

        def work() -> Work:
            spec, folder = job.spec, self._job_folder(job.id)
            numbers = job.placement.pods[rank].leaf_cells if job.placement is not None else ()
            visible = self.devices.visible(numbers, Fence.DEVICES in self._fences.asked)
            own: Mapping[str, str] = os.environ
            shared = self.shared_folder(job)
            if run_as := self.job_users.becomes(spec.uid):
                make_folder(folder, 0o011)
                own = self.job_users.environment(spec.uid)
            else:
                make_folder(shared)
            environment = task_environment(job, rank, self.folder, shared, task.mark, visible, own)
            if self._shares(spec):
                environment |= self.training.environment(job, environment)
            readers = self._readers(spec.vc)
            becomes = self.job_users.run_as(spec.uid, folder, job.attempt, rank, readers) if run_as else None
            warning = (signal.Signals[f"SIG{name}"], spec.limit_signal_s) if (name := spec.limit_signal) else None
            group = self._fence(job, rank)
            fence = None if group is None else str(group)
            return Work(
                spec.command,
                spec.cwd,
                environment,
                spec.grace_s,
                spec.time_limit_s,
                becomes,
                warning,
                fence,
                bool(self._fences.asked),
                self.keeping.output,
                umask=spec.umask,
                docker=self._gate(job, task, environment),
            )

        if job.attempt > 1:  # its environment again, and what is left of it is not its user's to count
            self.task(job, rank, job.attempt - 1).forget_work()
        self._watching.ensure(key, task, work, (job.started_at or 0) < self.started_at, self._replaced)

    def _gate(self, job: Job, task: Task, environment: dict[str, str]) -> dict[str, Any] | None:
        """What stands between a task and Docker; None: nothing."""
        numbers = tuple(map(int, environment["HIVED_DEVICES"].split(","))) if environment["HIVED_DEVICES"] else ()
        names = self.devices.visible(numbers, True).split(",") if numbers else []
        minors = self.devices.minors(numbers) if Fence.DEVICES in self._fences.asked else None
        memory = self._fences.memory(max(1, len(numbers)), self._now.spec.gpus)
        uid = self.job_users.uid if job.spec.uid < 0 else job.spec.uid
        return containers.gate(task.output.parent, environment, uid, numbers, names, minors, memory)

    def _owner(self, mark: str) -> int | None:
        """The user of the running task with a mark."""
        jobs = [job for job in list(self.job_scheduler.jobs.values()) if job.state.holds]
        ours = (job for job in jobs if mark.startswith(job.mark(self._database)))
        return next((job.spec.uid if job.spec.uid >= 0 else self.job_users.uid for job in ours), None)

    def _readers(self, vc: str) -> str:
        """The group that may read the files of jobs of a virtual cluster; "": nobody."""
        return _readers_of(self.cluster.spec).get(vc, "")

    def _fence(self, job: Job, rank: int) -> Path | None:
        """The control group of a task, fenced by the GPUs that it has now; None: there can be none."""
        numbers = job.placement.pods[rank].leaf_cells if job.placement is not None else ()
        minors = self.devices.minors(numbers)
        return self._fences.make(job.id, job.attempt, rank, minors, max(1, len(numbers)), self._now.spec.gpus)

    def _fence_again(self, job: Job) -> None:
        """Have its tasks open the GPUs that it goes on with, and use their share."""
        for rank in range(job.spec.tasks) if self._fences.asked else ():
            if rank not in job.endings:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    self._fence(job, rank)

    def _ended(self, key: Key, ending: Ending) -> None:
        with self._failing():
            now = self.clock()
            # the supervisor has written the time, even if no engine was running then
            at = now if ending.ended is None else min(now, max(ending.ended, ending.started or 0.0))
            self.job_scheduler.task_ended(*key, asdict(ending), at)
        self._soon()

    # -- sharing of GPUs ------------------------------------------------------------------------------------------

    def _shares(self, spec: JobSpec) -> bool:
        """Whether a job is started under the runtime: as it asks, or as the policy of its VC is."""
        if spec.share is not None:
            return spec.share
        return self.job_scheduler.policies[spec.vc].gpu_sharing is not None

    def _why_not_shared(self, policy: CheckedPolicy) -> str:
        """Why the jobs of a policy cannot share GPUs here; "": they can."""
        if policy.gpu_sharing is None or not policy.gpu_sharing.live:
            return "its jobs share GPUs, which is only simulated so far: hived simulate --policy NAME"
        if not self.devices.simulated:
            return "its jobs take turns on GPUs, which is tried on simulated devices only so far: hived up --devices N"
        if self._agent is None:
            return f"its jobs share GPUs, and {RUNTIME} is not installed where the engine runs: {command_for('train')}"
        return ""

    def _promised(self) -> set[Path]:
        """Folders of jobs that were submitted again by their users, as jobs that have not ended. O(jobs here)."""
        jobs, found = self.folder / "jobs", set()
        for job in list(self.job_scheduler.jobs.values()):
            with contextlib.suppress(KeyError, IndexError, ValueError):
                number = Path(job.spec.environment[PREVIOUS]).relative_to(jobs).parts[0]
                before = self.store.job(number)
                if before is not None and before.spec.user == job.spec.user:
                    found.add(jobs / number)
        return found

    # -- files of jobs that have ended ----------------------------------------------------------------------------

    async def _delete_old_files(self) -> None:
        first = 0
        spared: set[Path] = set()

        def old() -> tuple[list[Path], int]:
            ended, then = self.store.ended_before(self.clock() - self.keeping.files_s, first)
            return [folder for number in ended if (folder := self._job_folder(number)).is_dir()], then

        while self.keeping.files_s < inf:
            with contextlib.suppress(StorageError):
                folders, first = await asyncio.to_thread(old)
                over = spared.union(folders)
                spared = over & self._promised() if over else over
                for folder in over - spared:
                    await asyncio.to_thread(delete_folder, folder)
            await asyncio.sleep(DELETE_EVERY_S)

    async def _shut_files(self) -> None:
        """Take from groups what they may read no longer, also where the spec has changed since the last start."""
        groups = _readers_of(self.cluster.spec)
        await asyncio.to_thread(self.job_users.shut, self.folder / "jobs", self.store.vcs_of, groups)

    # -- checks of devices and tasks ------------------------------------------------------------------------------

    async def _check_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)
            try:
                # in a thread, since a driver can hang
                changed = await asyncio.to_thread(self.devices.health, self.cluster.spec)
                self._take_in(changed)
                self._advance_or_raise()
                for job in [job for job in self.job_scheduler.jobs.values() if job.state.holds]:
                    self._carry_out(StartTasks(job.id, job.attempt))  # finds tasks that are not watched
                    if job.state is JobState.STOPPING:  # the task may have frozen its supervisor
                        self._carry_out(StopTasks(job.id, job.attempt))
            except (StorageError, InvariantError, PolicyError):
                return
            except Exception as error:  # a check that fails must not end the checks
                asyncio.get_running_loop().call_exception_handler({"message": "looking failed", "exception": error})

    def _take_in(self, changed: Mapping[tuple[str, int], str | None]) -> None:
        for place, why in changed.items():
            self.job_scheduler.set_health([place], why, self.clock())


def _tokens(store: Store) -> Tokens:
    """The tokens that were stored. Raises :class:`StorageError`."""
    try:
        return Tokens.restored(json.loads(store.value("tokens") or "[]"))
    except (ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{store.folder}: hived.db is damaged (tokens: {error!r}); give another --state") from None


def restored_trades(spec: ClusterSpec, store: Store, at: float, arbiter: Arbiter | None = None) -> LiveTrading:
    """The market as stored, ``at`` now; ``spec``: the last one, without trades. Raises :class:`StorageError`."""
    trading = LiveTrading(spec, arbiter)
    text = store.value("trades")
    if text is not None:
        try:
            trading.left_out = trading.restore(text, at)
        except InputError as error:
            raise StorageError(f"{store.folder}: hived.db is damaged ({error}); give another --state") from None
    return trading


def _check_devices(last: LastStart, store: Store, devices: Devices) -> None:
    """Raise :class:`ConflictError` for running jobs if devices were simulated and are now real, or the reverse."""
    running = sum(job.state.holds for job in store.active())
    if running and last.simulated not in (None, devices.simulated):
        kinds = ("simulated devices", "the GPUs of this machine")
        theirs, ours = kinds if last.simulated else kinds[::-1]
        raise ConflictError(
            f"{counted(running, 'job')} of the last start still run on {theirs}, and this start is for "
            f"{ours}; hived up without a spec, --devices or --vc takes them over, and hived cancel ends them"
        )


def displaced_by(spec: ClusterSpec, store: Store, at: float) -> list[tuple[Job, str]]:
    """Guaranteed jobs that a start under ``spec`` ``at`` now would make opportunistic, and why. O(cells + jobs)."""
    last = last_start(store) or LastStart(spec)
    names = new_names(last.spec, spec)
    trading = restored_trades(renamed(last.spec, names), store, at)
    if same(trading.base, spec):
        return []
    job_scheduler = JobScheduler(Cluster(trading.in_force()), YarnCS(), int, trading=trading)
    job_scheduler.recover(store.active(), at, names)
    guaranteed = [job for job in job_scheduler.jobs.values() if job.guaranteed]
    job_scheduler.reconfigure(spec, at)
    return [(job, job.reason) for job in guaranteed if not job.guaranteed]


def _readers_of(spec: ClusterSpec) -> dict[str, str]:
    """The groups that may read the files of jobs, by virtual cluster."""
    return {
        vc.name: vc.access.file_group for vc in spec.virtual_clusters if vc.access is not None and vc.access.file_group
    }
