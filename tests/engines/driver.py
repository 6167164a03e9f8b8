"""The job scheduler without an engine: a machine under a simulated clock, checked after every fact."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from hived import CheckedCluster
from hived.cluster.explain.reasons import Reason
from hived.cluster.explain.sentences import in_lines
from hived.cluster.feasibility import shortages
from hived.engine.dispatcher import Usage
from hived.engine.job import Event
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.engines.local.devices import spec_for
from hived.engines.local.explaining import JobExplainer
from hived.engines.local.instructions import (
    Instruction,
    LimitTime,
    ResumeTasks,
    ScaleTasks,
    StartTasks,
    StopTasks,
    SuspendTasks,
    WakeAt,
)
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.model import Job, JobSpec
from hived.engines.local.store import new_names, renamed
from hived.policies import YarnCS, by_vc
from hived.scheduling import Policies, Status
from hived.scheduling.checks import check_scheduler
from hived.scheduling.exact import VirtualState
from hived.scheduling.scheduler import PastUse
from hived.spec.compiled import ClusterSpec, Device

#: vision has a socket of 4, speech and research a pair each, of 8 devices
SHARES = (("vision", 4), ("speech", 2), ("research", 2))
WELL = {"code": 0, "signal": None, "stopped": False, "limit": False, "error": None, "lost": False, "rebooted": False}
STOPPED = {**WELL, "code": 143, "signal": 15, "stopped": True}
FAILED = {**WELL, "code": 1}
#: all devices of :func:`small_spec`
EVERYWHERE = [("node", device) for device in range(8)]


def small_spec() -> ClusterSpec:
    """Eight devices, three tenants."""
    return spec_for("node", 8, "GPU", SHARES)


def job(vc: str, gpus: int = 1, **rest: Any) -> JobSpec:
    """A job of one virtual cluster."""
    return JobSpec.model_construct(vc=vc, command=("train",), gpus=gpus, **rest)


def shares(*of: tuple[str, int], devices: int = 8, node: str = "node") -> ClusterSpec:
    """One node, shared out so."""
    return spec_for(node, devices, "GPU", of)


def states(*jobs: Job) -> str:
    """The states of the jobs now, as words."""
    return " ".join(job.state.value for job in jobs)


def replayed(events: Iterable[Event], specs: Mapping[int, JobSpec]) -> dict[int, Job]:
    """All jobs, as their events alone say."""
    jobs: dict[int, Job] = {}
    for event in events:
        if event.kind == "submitted" and event.job is not None:
            jobs[event.job] = Job(event.job, specs[event.job], event.at)
        elif event.job is not None:
            jobs[event.job].apply(event)
    return jobs


class Driver:
    """Facts in by its methods; ``alive`` and ``stopped`` have the effect of instructions, ``events`` all events."""

    def __init__(self, spec: ClusterSpec | None = None, shares: bool = False, past_use: PastUse | None = None) -> None:
        """``shares``: jobs obey, and take turns where their VC's policy is so; ``past_use``: of the store."""
        self.shares, self.past_use = shares, past_use
        self.told: list[SuspendTasks | ResumeTasks | ScaleTasks] = []  #: what jobs that take turns have to do yet
        self.limited: list[LimitTime] = []  #: which tasks have to keep other time limits
        self.spec = spec or small_spec()
        self.now = 0.0
        self.events: list[Event] = []
        self.jobs: dict[int, Job] = {}  #: all jobs ever submitted
        self.alive: set[tuple[int, int, int]] = set()  #: tasks that run: job, attempt, rank
        self.started: Counter[tuple[int, int]] = Counter()  #: how often each attempt was to be started
        self.stopped: set[tuple[int, int]] = set()  #: attempts that were to be stopped
        self.wakes: list[tuple[float, int]] = []
        self.virtual: dict[str, VirtualState] = {}  #: what the store has of virtual jobs
        self.trades: str | None = None  #: what it has of the market
        self.job_scheduler = self._job_scheduler()

    def _job_scheduler(self) -> JobScheduler:
        trading = LiveTrading(self.spec)
        if self.trades is not None:
            assert trading.restore(self.trades, self.now) == []
        policies = Policies(YarnCS(), by_vc(self.spec))
        cluster = CheckedCluster(trading.in_force(), rank=policies.rank, ranks=policies.ranks)
        return JobScheduler(cluster, policies, lambda: 29_500, len(self.events), trading, self.shares, self.past_use)

    # -- facts ----------------------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec) -> Job:
        """Submit a job."""
        before = sum(known.vc == spec.vc for known in self.jobs.values())
        spec = spec.model_copy(update={"sequence": before})
        found = self.job_scheduler.submit(len(self.jobs) + 1, spec, self.now)
        self.jobs[found.id] = found
        self.settle()
        return found

    def end(self, job: Job, ending: dict[str, Any] = WELL, rank: int | None = None) -> None:
        """All running tasks of a job (or one) end so."""
        for key in sorted(self.alive):
            if key[0] == job.id and rank in (None, key[2]):
                self.alive.discard(key)
                self.job_scheduler.task_ended(*key, ending, self.now)
                self.settle()

    def gone(self, job: Job) -> None:
        """The tasks of a job that is being stopped end."""
        assert (job.id, job.attempt) in self.stopped, f"{job.name} is not being stopped"
        self.end(job, STOPPED)

    def do(self, fact: Callable[[JobScheduler], object]) -> None:
        """Any other fact."""
        fact(self.job_scheduler)
        self.settle()

    def cancel(self, job: Job, user: str = "") -> None:
        """A user withdraws or stops a job."""
        self.do(lambda job_scheduler: job_scheduler.cancel(job, self.now, user))

    def drain(self, places: Sequence[Device] = EVERYWHERE, undo: bool = False, now: bool = False) -> None:
        """The owner of the machine drains devices, or undoes that."""
        self.do(lambda job_scheduler: job_scheduler.drain(places, undo, now, "the machine", self.now))

    def set_health(self, places: Sequence[Device], why: str | None = "NVML: lost") -> None:
        """Devices break, or (None) are healthy again."""
        self.do(lambda job_scheduler: job_scheduler.set_health(places, why, self.now))

    def reconfigure(self, spec: ClusterSpec) -> None:
        """A new spec comes under the jobs."""
        self.do(lambda job_scheduler: job_scheduler.reconfigure(spec, self.now))

    def wait(self, seconds: float) -> None:
        """Time passes, and pauses end."""
        until = self.now + seconds
        while True:
            review = min(self.job_scheduler.scheduler.next_review, self.job_scheduler.trading.next_change)
            if self.wakes and self.wakes[0][0] <= min(until, review):
                self.now, number = heappop(self.wakes)
                self.job_scheduler.due(number, self.now)
            elif review <= until:
                self.now = max(self.now, review)
            else:
                break
            self.settle()
        self.now = until

    def restart(self, *jobs: Job, spec: ClusterSpec | None = None) -> list[Job]:
        """The engine is killed, and another takes over what the store has: rows of the jobs that have not ended.

        ``spec``: what it is started with, if not with the same. Returns the jobs as the new engine has them.
        """
        rows = [
            (found.id, json.dumps(found.spec.stored()), json.dumps(found.status()))
            for found in self.jobs.values()
            if not found.state.ended
        ]
        health = self.job_scheduler.health
        names = {} if spec is None else new_names(self.spec, spec)
        self.spec = renamed(self.spec, names)
        self.job_scheduler = self._job_scheduler()
        now = self.job_scheduler.health
        now.set_drained([(names.get(node, node), device) for node, device in health.drained], True)
        for (node, device), why in health.bad.items():
            now.set_bad((names.get(node, node), device), why)
        now.apply()
        self.wakes.clear()
        taken = [Job.restored(n, json.loads(spec), json.loads(status)) for n, spec, status in rows]
        self.jobs |= {found.id: found for found in taken}
        self.job_scheduler.recover(taken, self.now, names, list(self.virtual.values()))
        if spec is not None:
            self.job_scheduler.reconfigure(spec, self.now)
            self.spec = spec
        self.settle()
        return [self.jobs[found.id] for found in jobs]

    # -- what comes of them ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Run the scheduler, carry out the instructions, check all invariants; again where a trade ends by that."""
        self._settle()
        for _ in range(9):
            if self.job_scheduler.trading.next_change > self.now:
                return
            self._settle()
        raise AssertionError("trades end without an end")

    def _settle(self) -> None:
        self.job_scheduler.trading.due(self.now)
        self.job_scheduler.dispatch(self.now)
        turn = self.job_scheduler.turn()
        if self.job_scheduler.trading.changed:
            self.trades = self.job_scheduler.trading.record()
        self.events += turn.events
        for name, state in turn.virtual:
            self.virtual.pop(name, None)
            if state is not None:
                self.virtual[name] = state
        for instruction in turn.instructions:
            self.carry_out(instruction)
        self.check()

    def carry_out(self, instruction: Instruction) -> None:
        """Have an instruction's effect."""
        found = self.jobs[instruction.job]
        match instruction:
            case StartTasks(attempt=attempt):
                self.started[found.id, attempt] += 1
                if self.started[found.id, attempt] == 1:
                    self.alive |= {(found.id, attempt, rank) for rank in range(found.spec.tasks)}
            case StopTasks(attempt=attempt):
                self.stopped.add((found.id, attempt))
            case SuspendTasks() | ResumeTasks() | ScaleTasks():
                self.told.append(instruction)
            case LimitTime():
                self.limited.append(instruction)
            case WakeAt(at=at):
                heappush(self.wakes, (at, found.id))

    def check(self) -> None:
        """Check the invariants that hold after every fact."""
        job_scheduler = self.job_scheduler
        check_scheduler(job_scheduler.scheduler)
        job_scheduler.trading.validate()
        job_scheduler.cluster.check_safety()
        assert job_scheduler.cluster.spec.virtual_clusters == job_scheduler.trading.in_force().virtual_clusters
        assert not shortages(job_scheduler.cluster.spec)
        assert [event.seq for event in self.events] == list(range(1, len(self.events) + 1))
        held: Counter[tuple[str, int]] = Counter()
        known = set(job_scheduler.cluster.spec.devices())
        counted: Usage[Job] = Usage()
        for found in self.jobs.values():
            assert (found.id in job_scheduler.jobs) is not found.state.ended
            if not found.state.ended:
                counted.add(found)
            waits = found.state is JobState.QUEUED
            assert (found.entry.status is Status.WAITING) is waits
            assert (found.id in job_scheduler.scheduler.reserved) is (found.state is JobState.RESERVED)
            assert found.entry.holds is found.state.holds
            runs = {key for key in self.alive if key[0] == found.id}
            assert found.state.holds or not runs, f"{found.name} is {found.state} and runs"
            if found.state.holds:
                assert runs, f"{found.name} is {found.state}, and none of its tasks is left"
                assert all(attempt == found.attempt for _, attempt, _ in runs)
                own = set(found.devices())
                assert len(own) == found.gpus, f"{found.name} has lost some of its devices"
                held.update(own)
                core = job_scheduler.cluster.group(found.name)
                assert core.guaranteed is found.guaranteed
                assert core.placement is not None
                if own <= known:
                    assert core.placement == found.placement
                else:
                    beyond = {(pod.node, device) for pod in job_scheduler.beyond[found.id] for device in pod.leaf_cells}
                    assert beyond == own - known
                    assert not found.guaranteed
            assert found.id not in job_scheduler.beyond or found.state.holds
        assert max(held.values(), default=1) == 1, "a device is held twice"
        for name in ("used", "lent", "waiting", "nodes", "displaced", "states"):
            ours, theirs = getattr(counted, name), getattr(job_scheduler.usage, name)
            assert {k: v for k, v in ours.items() if v} == {k: v for k, v in theirs.items() if v}, name

    def check_record(self) -> None:
        """Check that events alone determine every job."""
        jobs = replayed(self.events, {number: found.spec for number, found in self.jobs.items()})
        assert [found.status() for found in jobs.values()] == [found.status() for found in self.jobs.values()]

    def kinds(self, job: Job) -> list[str]:
        """Kinds of a job's events, in order."""
        return [event.kind for event in self.events if event.job == job.id]

    def explain(self, job: Job) -> str:
        """What a user is told of a job now."""
        return in_lines(JobExplainer(self.job_scheduler).explain(job, self.now))

    def reasons(self, job: Job) -> tuple[Reason, ...]:
        """Why a job waits."""
        return tuple(JobExplainer(self.job_scheduler).reasons(job))

    def shortly(self, job: Job) -> str:
        """The same in a list of jobs."""
        return "; ".join(JobExplainer(self.job_scheduler).shortly(job))
