"""The engine's mind: facts in, events and instructions out. Pure, as the core that it drives.

    machine.submit(...) / cancel(...) / task_ended(...) / ...     something is a fact
    machine.dispatch(at)                                          whoever can start, does
    machine.turn()                                                the events to keep, and then what to do

Whoever calls keeps the events before carrying an instruction out. Every instruction can be carried out again: so an
engine that was killed in between does it again, and nothing happens twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Bind, PodPlacement, Preempt, Wait
from hived.cluster.recovery import Reconfiguration, Record
from hived.cluster.states import GroupState
from hived.engines.event import Event, placement_data
from hived.engines.lines import Lines
from hived.engines.usage import Usage
from hived.errors import ConflictError, RequestError
from hived.scheduling import Policy
from hived.spec.compiled import ClusterSpec, Device

from .ending import Outcome, outcome
from .health import Health
from .jobs import Job
from .lifecycle import JobEvent
from .model import JobSpec, JobState
from .turns import Instruction, StartTasks, StopTasks, Turn, WakeAt


class Machine:
    """Jobs on a cluster. A fact costs what the core charges for who it lets start, and O(log jobs)."""

    def __init__(self, cluster: Cluster, policy: Policy, free_port: Callable[[], int], last_event: int = 0) -> None:
        self.cluster = cluster
        self._free_port = free_port
        self._seq = last_event
        #: every job that has not ended
        self.jobs: dict[int, Job] = {}
        self.by_group: dict[str, Job] = {}
        self.health = Health(cluster)
        self.lines: Lines[Job] = Lines(policy)
        self.reserved: dict[int, Job] = {}
        self.usage: Usage[Job] = Usage()
        #: what running jobs hold and the core cannot attribute to them, by job: devices that the spec lacks for now
        self.beyond: dict[int, tuple[PodPlacement, ...]] = {}
        self._pausing: dict[int, Job] = {}
        self._events: list[Event] = []
        self._touched: dict[int, Job] = {}
        self._instructions: list[Instruction] = []

    # -- facts ----------------------------------------------------------------------------------------------------

    def submit(self, number: int, spec: JobSpec, at: float) -> Job:
        """A job has come."""
        job = Job(number, spec, at)
        self.jobs[number] = self.by_group[job.name] = job
        self._note("submitted", at, number, {"name": job.name, "vc": spec.vc, "gpus": job.gpus, "user": spec.user})
        self._touched[number] = job
        self.usage.add(job)
        self.lines.add(job)
        return job

    def unsubmit(self, job: Job) -> None:
        """The last call was :meth:`submit`, and it cannot be kept: as if it had never been."""
        self.lines.of(job).remove(job)
        self.usage.remove(job)
        self._end(job)
        self._seq -= 1

    def cancel(self, job: Job, at: float, who: str = "") -> None:
        """Somebody wants it ended. Raises :class:`ConflictError` for one that has, or is being cancelled."""
        if job.state.ended or (job.state is JobState.STOPPING and job.stopping_for == "cancelled"):
            ended = job.state.value if job.state.ended else "being cancelled"
            raise ConflictError(f"{job.name} is {ended} already")
        if job.state.holds:
            self._stop(job, at, "cancelled", f"cancelled by {who}" if who else "cancelled")
            return
        self._forget_group(job, at)
        self._happens(job, JobEvent.CANCELLED, at, {"why": f"cancelled by {who}" if who else "cancelled"})
        self._end(job)

    def task_ended(self, number: int, attempt: int, rank: int, ending: dict[str, Any], at: float) -> None:
        """A task is gone, as :class:`~.tasks.Ending` says in ``ending``. Known ones are ignored."""
        job = self.jobs.get(number)
        if job is None or not job.state.holds or attempt != job.attempt or rank in job.endings:
            return
        self._happens(job, JobEvent.TASK_ENDED, at, {"attempt": attempt, "rank": rank, **ending})
        if len(job.endings) == job.spec.tasks:
            self._all_gone(job, outcome(job), at)
        elif job.state is JobState.RUNNING and (ending["code"] or ending["stopped"]):
            self._stop(job, at, "task_failed", f"task {rank} ended with exit code {ending['code']}")

    def due(self, number: int, at: float) -> None:
        """It is when a job wanted to be looked at: the pause after a failure may be over, or its time."""
        job = self.jobs.get(number)
        if job is None:
            return
        if job.state is JobState.BACKOFF and job.retry_at is not None and at >= job.retry_at:
            self._happens(job, JobEvent.QUEUED, at, {})
            self.lines.add(job)
        elif job.state is JobState.RUNNING and (limit := job.limit_at) is not None and at >= limit:
            self._stop(job, at, "time_limit", f"it ran into its time limit of {job.spec.time_limit_s:g} s")

    def set_health(self, places: Collection[tuple[str, int]], why: str | None, at: float) -> None:
        """Devices were found bad, for this reason, or (None) healthy."""
        for node, device in places:
            if self.health.set_bad((node, device), why):
                kind = "device_healthy" if why is None else "device_bad"
                self._note(kind, at, None, {"node": node, "device": device, "why": why or ""})
        self._hardware_changed(at)

    def drain(self, places: Collection[tuple[str, int]], undo: bool, now: bool, what: str, at: float) -> None:
        """The machine's owner keeps jobs off devices, or lets them come again. ``now``: who is there goes too."""
        if self.health.set_drained(places, not undo):
            data: dict[str, object] = {"places": [list(place) for place in places], "what": what}
            self._note("undrained" if undo else "drained", at, None, data)
        if now and not undo:
            wanted = set(places)
            for job in list(self.jobs.values()):
                if (
                    job.state is JobState.RUNNING
                    and job.placement is not None
                    and wanted & set(job.placement.devices())
                ):
                    self._stop(job, at, "drained", f"{what} is drained by the machine's owner")
        self._hardware_changed(at)

    def reconfigure(self, spec: ClusterSpec, at: float) -> Reconfiguration:
        """A new spec, under running jobs. Raises what :meth:`Cluster.reconfigure` raises; nothing has changed then."""
        report = self.cluster.reconfigure(spec)
        self.health.again()
        self.health.apply()
        data = {"downgraded": [list(pair) for pair in report.downgraded], "lost": [name for name, _ in report.lost]}
        self._note("reconfigured", at, None, {"kept": len(report.kept), **data})
        vcs = {vc.name for vc in spec.virtual_clusters}
        still = {
            job.name: f"the cells that {job.vc} has now cannot stand where it runs"
            if job.vc in vcs
            else f"virtual cluster {job.vc} is no more"
            for job in self.usage.displaced.values()
        }
        self._standing_changed(report, at, still)
        self._lost_reservations("the cluster was reconfigured", at)
        self.lines.stir()
        return report

    def recover(
        self, jobs: Iterable[Job], at: float, names: Mapping[str, str] = MappingProxyType({})
    ) -> Reconfiguration:
        """Take jobs in after a restart: who runs goes on, who waits has its place. The first call, if any.

        ``names``: what nodes are called now, by what they were called before.
        """
        for job in jobs:
            self.jobs[job.id] = self.by_group[job.name] = job
            self.usage.add(job)
            if job.state.holds and job.placement is not None and any(pod.node in names for pod in job.placement.pods):
                pods = tuple(pod._replace(node=names.get(pod.node, pod.node)) for pod in job.placement.pods)
                placement = replace(job.placement, pods=pods)
                why = f"its node is called {pods[0].node} now"
                self._happens(job, JobEvent.REBOUND, at, {"why": why, "placement": placement_data(placement)})
        records = self._records()
        report = self.cluster.recover(records)
        self._note("recovered", at, None, {"running": len(records), "active": len(self.jobs)})
        self._standing_changed(report, at)
        for job in self.jobs.values():
            if job.state is JobState.RESERVED:
                self._happens(job, JobEvent.UNRESERVED, at, {"why": "the engine was started again"})
            if job.state is JobState.QUEUED:
                self.lines.add(job)
            elif job.state is JobState.BACKOFF and job.retry_at is not None:
                self._pausing[job.id] = job
                self._instructions.append(WakeAt(job.id, job.retry_at))
            elif job.state is JobState.RUNNING:
                self._started(job)
            elif job.state is JobState.STOPPING:
                self._instructions += [StartTasks(job.id, job.attempt), StopTasks(job.id, job.attempt)]
        return report

    def _records(self) -> list[Record]:
        """Who runs where, for the core. Of two jobs on one device the one that has run for longer is given it."""
        records: list[Record] = []
        taken: set[Device] = set()
        holding = [job for job in self.jobs.values() if job.state.holds]
        for job in sorted(holding, key=lambda job: (job.started_at or 0.0, job.id)):
            placement = job.placement
            assert placement is not None
            pods = _without(placement.pods, taken)
            taken |= set(placement.devices())
            cut = placement if pods == placement.pods else replace(placement, pods=pods, reserved_levels=())
            records.append(Record(job.name, job.request(), cut))
        return records

    def note(self, kind: str, at: float, data: dict[str, object]) -> None:
        """Something that happened to the engine itself."""
        self._note(kind, at, None, data)

    # -- deciding -------------------------------------------------------------------------------------------------

    def dispatch(self, at: float) -> None:
        """Let start who can: those with a reservation, the lines of the VCs where something changed, then loans."""
        for job in list(self.reserved.values()):
            if job.id in self.reserved and self._stands_otherwise(job):
                self._ask(job, at)
        self.lines.dispatch(lambda job: self._ask(job, at), self._share)

    def _stands_otherwise(self, job: Job) -> bool:
        """Whether a job that has reserved can start by now, there or elsewhere, or can spare victims of its own VC."""
        decision = self.cluster.plan(job.request()).decision
        return not isinstance(decision, Preempt) or decision.placement != job.placement

    def turn(self) -> Turn:
        """What has come of the facts since the last call."""
        turn = Turn(tuple(self._events), tuple(self._touched.values()), tuple(self._instructions))
        self._events.clear()
        self._touched.clear()
        self._instructions.clear()
        return turn

    def _ask(self, job: Job, at: float) -> Bind | Preempt | Wait | None:
        """Ask the core for ``job``, and carry the answer out. ``None``: its request is not right for this cluster."""
        try:
            decision = self.cluster.schedule(job.request(), now=at)
        except RequestError:
            return None
        if isinstance(decision, Wait):
            return decision
        had = job.placement if job.state is JobState.RESERVED else None
        if isinstance(decision, Preempt) and decision.placement == had:
            return decision  # as before: some victims are not gone yet
        self.cluster.commit(decision)
        if had is not None and decision.placement != had:  # what it had reserved is free
            self._restored(at)
            self.lines.freed(job.vc)
            if isinstance(decision, Preempt):
                self._happens(job, JobEvent.UNRESERVED, at, {"why": "other GPUs are reserved for it by now"})
        for name in decision.overtaken:
            self._unreserve(self.by_group[name], f"{job.name}, of a higher priority, took it", at)
        for name in decision.downgraded:
            self._stands(self.by_group[name], f"made room for {job.name}", at)
        if had is None:
            self.lines.of(job).remove(job)
        if isinstance(decision, Bind):
            self.reserved.pop(job.id, None)
            data: dict[str, object] = {"placement": placement_data(decision.placement)}
            data |= {"attempt": job.attempt + 1, "port": self._free_port() if job.spec.tasks > 1 else 0}
            self._happens(job, JobEvent.STARTED, at, data)
            self._started(job)
            return decision
        victims = [self.by_group[name] for name in decision.victims]
        placement = placement_data(decision.placement)
        data = {"placement": placement, "victims": [victim.name for victim in victims]}
        self._happens(job, JobEvent.RESERVED, at, data)
        self.reserved[job.id] = job
        for victim in victims:
            if victim.state is JobState.RUNNING:
                self._stop(victim, at, "preempted", f"preempted by {job.name} of {job.spec.vc}", job)
            else:  # it goes already, and has less time for that from now on if it is a loan
                self._instructions.append(StopTasks(victim.id, victim.attempt))
        return decision

    def _share(self, vc: str) -> float:
        """GPUs that a VC has on loan over those that it reserved: who has the least is asked first."""
        return self.usage.lent.get(vc, 0) / max(1, self.health.reserved_gpus(vc))

    # -- what becomes of jobs -------------------------------------------------------------------------------------

    def _all_gone(self, job: Job, result: Outcome, at: float) -> None:
        """The last task of an attempt has ended: its GPUs are free."""
        self.cluster.release(job.name)
        if self.beyond.pop(job.id, None) is not None:
            self._claim(at)
        self.lines.freed(job.vc)
        self._happens(job, result.event, at, result.data(at))
        if result.event is JobEvent.PREEMPTED:
            self.lines.add(job)
        elif result.event is JobEvent.RETRYING:
            self._instructions.append(WakeAt(job.id, at + result.delay_s))
        else:
            self._end(job)

    def _started(self, job: Job) -> None:
        self._instructions.append(StartTasks(job.id, job.attempt))
        if job.limit_at is not None:
            self._instructions.append(WakeAt(job.id, job.limit_at))

    def _stop(self, job: Job, at: float, cause: str, why: str, by: Job | None = None) -> None:
        data: dict[str, object] = {"cause": cause, "why": why, "attempt": job.attempt}
        if by is not None:
            data["by"] = [by.name, by.spec.vc, by.spec.priority]
        self._happens(job, JobEvent.STOPPING, at, data)
        self._instructions.append(StopTasks(job.id, job.attempt))

    def grace_s(self, job: Job) -> float:
        """How long a job has between SIGTERM and SIGKILL: capped where it is on loan, or somebody waits for that."""
        lent = not job.guaranteed and (job.spec.opportunistic or bool(self.cluster.group(job.name).preempted_by))
        return min(job.spec.grace_s, self.health.grace_of_loans(job.vc)) if lent else job.spec.grace_s

    def backing_off(self) -> list[Job]:
        """Jobs between two tries."""
        return list(self._pausing.values())

    def _forget_group(self, job: Job, at: float) -> None:
        """A job that holds nothing leaves the line, its reservation, and the core's memory."""
        if job.state is JobState.QUEUED:
            self.lines.left(job)
        if self.reserved.pop(job.id, None) is not None:
            self.lines.freed(job.vc)
        try:
            self.cluster.group(job.name)
        except RequestError:
            return  # the core was never asked for it
        self.cluster.cancel(job.name)
        self._restored(at)

    def _end(self, job: Job) -> None:
        del self.jobs[job.id], self.by_group[job.name]

    def _unreserve(self, job: Job, why: str, at: float) -> None:
        self.reserved.pop(job.id, None)
        self._happens(job, JobEvent.UNRESERVED, at, {"why": f"it had GPUs reserved: {why}"})
        self.lines.add(job)
        self._restored(at)

    def _lost_reservations(self, why: str, at: float) -> None:
        for job in list(self.reserved.values()):
            if self.cluster.group(job.name).state is GroupState.PENDING:
                self._unreserve(job, why, at)

    def _hardware_changed(self, at: float) -> None:
        if self.health.apply():
            self._lost_reservations("hardware under them turned bad", at)
            self.lines.stir()

    def _standing_changed(
        self, report: Reconfiguration, at: float, still: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """The core has put all running groups where they are once more: under other cells, perhaps, or none.

        ``still``: why those were not made guaranteed that had lost it before.
        """
        lost = {name: f"the spec lacks devices of it on {', '.join(nodes)}" for name, nodes in report.lost}
        why = {**still, **dict(report.downgraded), **lost}
        self.beyond.clear()
        for job in self.jobs.values():
            if job.state.holds:
                news = "the cluster has a new spec"
                self._stands(job, news if self.cluster.group(job.name).guaranteed else why.get(job.name, news), at)
                if job.name in self.usage.displaced and job.state is JobState.RUNNING:
                    assert job.placement is not None
                    if (reason := why.get(job.name, job.reason)) != job.reason:
                        same = placement_data(job.placement)
                        self._happens(job, JobEvent.REBOUND, at, {"why": reason, "placement": same})
                core = self.cluster.group(job.name).placement
                assert job.placement is not None
                left = _without(job.placement.pods, set() if core is None else set(core.devices()))
                if left:
                    self.beyond[job.id] = left
        self._claim(at)

    def _claim(self, at: float) -> None:
        """What jobs hold beyond the core's knowledge is given to nobody."""
        held = [pod for pods in self.beyond.values() for pod in pods]
        self.health.set_claimed((pod.node, device) for pod in held for device in pod.leaf_cells)
        self._hardware_changed(at)

    def _stands(self, job: Job, why: str, at: float) -> None:
        """Take over how the core has it now, where that is news. Its devices are its own whatever the spec has."""
        core = self.cluster.group(job.name)
        if core.placement is None or job.placement is None or not job.state.holds:
            return
        now = core.placement
        if now.pods != job.placement.pods:
            now = replace(job.placement, reserved_levels=())
        if now == job.placement:
            return
        kind = JobEvent.REBOUND
        if now.guaranteed is not job.guaranteed:
            kind = JobEvent.RESTORED if now.guaranteed else JobEvent.DOWNGRADED
        self._happens(job, kind, at, {"why": why, "placement": placement_data(now)})

    def _restored(self, at: float) -> None:
        """Who was downgraded for a job that is withdrawn, or has lost its reservation, may be guaranteed again."""
        for job in list(self.usage.displaced.values()):
            if self.cluster.group(job.name).guaranteed:
                self._stands(job, "its VC's cells are its own again", at)

    def _happens(self, job: Job, kind: JobEvent, at: float, data: dict[str, object]) -> None:
        """The one place where a job changes, and what is counted over jobs with it."""
        self.usage.remove(job)
        job.apply(self._note(kind.value, at, job.id, data))
        if not job.state.ended:
            self.usage.add(job)
        if job.state is JobState.BACKOFF:
            self._pausing[job.id] = job
        else:
            self._pausing.pop(job.id, None)
        self._touched[job.id] = job

    def _note(self, kind: str, at: float, job: int | None, data: dict[str, object]) -> Event:
        self._seq += 1
        event = Event(self._seq, at, kind, job, data)
        self._events.append(event)
        return event


def _without(pods: Iterable[PodPlacement], taken: Collection[Device]) -> tuple[PodPlacement, ...]:
    """The pods as far as their devices are not among ``taken``."""
    left = [PodPlacement(node, tuple(d for d in devices if (node, d) not in taken)) for node, devices in pods]
    return tuple(pod for pod in left if pod.leaf_cells)
