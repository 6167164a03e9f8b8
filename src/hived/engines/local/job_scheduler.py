"""What decides about the jobs of one machine: facts in, events and instructions out. Pure, as the core that it drives.

    submit(...) / cancel(...) / task_ended(...) / ...     something is a fact
    dispatch(at)                                          whoever can start, does
    turn()                                                the events to keep, and then what to do

Whoever calls keeps the events before carrying an instruction out. Every instruction can be carried out again: so an
engine that was killed in between does it again, and nothing happens twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement, PodPlacement, Record
from hived.cluster.recovery import Reconfiguration
from hived.engines.dispatcher import Dispatcher
from hived.engines.hardware import Hardware
from hived.engines.job import Event, placement_data
from hived.errors import ConflictError
from hived.scheduling import Policy
from hived.spec.compiled import ClusterSpec, Device

from .model import Job, JobEvent, JobSpec, JobState, outcome


class Health(Hardware):
    """Devices of one machine. Facts stay known while a spec lacks the device."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        #: why, by device
        self.bad: dict[Device, str] = {}
        #: an ordered set
        self.drained: dict[Device, None] = {}
        #: held by jobs to which the core cannot attribute them
        self.claimed: set[Device] = set()

    def set_bad(self, place: Device, why: str | None) -> bool:
        """It was found bad or (None) healthy; whether that is news."""
        if self.bad.get(place) == why:
            return False
        if why is None:
            del self.bad[place]
        else:
            self.bad[place] = why
        self._changed.add(place[0])
        return True

    def set_drained(self, chosen: Iterable[Device], drained: bool) -> bool:
        """Keep jobs off, or not any more; whether that changes anything."""
        news = [place for place in chosen if (place in self.drained) is not drained]
        for place in news:
            if drained:
                self.drained[place] = None
            else:
                del self.drained[place]
            self._changed.add(place[0])
        return bool(news)

    def set_claimed(self, places: Iterable[Device]) -> None:
        """These are held by jobs to which the core cannot attribute them, and no others."""
        before, self.claimed = self.claimed, set(places)
        self._changed.update(node for node, _ in before ^ self.claimed)

    def wanted(self, node: str) -> tuple[str | None, dict[int, str]]:
        """Single devices; why they are kept from jobs is no news to the core."""
        kept = (self.bad, self.drained, self.claimed)
        return None, {device: "kept" for device in self.devices[node] if any((node, device) in of for of in kept)}


@dataclass(frozen=True, slots=True)
class StartTasks:
    """Start the tasks of this attempt, unless they have been."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StopTasks:
    """Tell the tasks of this attempt to end."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Say so (``JobScheduler.due``) when it is ``at``, in seconds since the epoch."""

    job: int
    at: float


Instruction = StartTasks | StopTasks | WakeAt


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of some facts."""

    events: tuple[Event, ...]  #: to be kept first
    jobs: tuple[Job, ...]  #: that the events are about
    instructions: tuple[Instruction, ...]  #: to be carried out then


class JobScheduler(Dispatcher[Job, Instruction]):
    """Jobs on a cluster."""

    def __init__(self, cluster: Cluster, policy: Policy, free_port: Callable[[], int], last_event: int = 0) -> None:
        super().__init__(cluster, policy, last_event)
        self._free_port = free_port
        #: every job that has not ended
        self.jobs: dict[int, Job] = {}
        self.health = Health(cluster)
        #: what running jobs hold and the core cannot attribute to them, by job: devices that the spec lacks for now
        self.beyond: dict[int, tuple[PodPlacement, ...]] = {}
        self._pausing: dict[int, Job] = {}
        self._touched: dict[int, Job] = {}

    # -- facts ----------------------------------------------------------------------------------------------------

    def submit(self, number: int, spec: JobSpec, at: float) -> Job:
        """A job has come."""
        job = Job(number, spec, at)
        self.jobs[number] = job
        self.note("submitted", number, at, {"name": job.name, "vc": spec.vc, "gpus": job.gpus, "user": spec.user})
        self._touched[number] = job
        self.usage.add(job)
        self.line_up(job)
        return job

    def unsubmit(self, job: Job) -> None:
        """The last call was :meth:`submit`, and it cannot be kept: as if it had never been."""
        self.scheduler.withdraw(job.entry)
        self.usage.remove(job)
        del self.jobs[job.id]
        self.seq -= 1

    def cancel(self, job: Job, at: float, who: str = "") -> None:
        """Somebody wants it ended. Raises :class:`ConflictError` for one that has, or is being cancelled."""
        if job.state.ended or (job.state is JobState.STOPPING and job.stopping_for == "cancelled"):
            ended = job.state.value if job.state.ended else "being cancelled"
            raise ConflictError(f"{job.name} is {ended} already")
        why = f"cancelled by {who}" if who else "cancelled"
        if job.state.holds:
            self._stop(job, at, "cancelled", why)
            return
        self.scheduler.withdraw(job.entry)
        self.spared(at)
        self.becomes(job, JobEvent.CANCELLED, None, at, {"why": why})
        del self.jobs[job.id]

    def task_ended(self, number: int, attempt: int, rank: int, ending: dict[str, Any], at: float) -> None:
        """A task is gone, as :class:`~.tasks.Ending` says in ``ending``. Known ones are ignored."""
        job = self.jobs.get(number)
        if job is None or not job.state.holds or attempt != job.attempt or rank in job.endings:
            return
        self.becomes(job, JobEvent.TASK_ENDED, None, at, {"attempt": attempt, "rank": rank, **ending})
        if len(job.endings) == job.spec.tasks:
            self._all_gone(job, at)
        elif job.state is JobState.RUNNING and (ending["code"] or ending["stopped"]):
            self._stop(job, at, "task_failed", f"task {rank} ended with exit code {ending['code']}")

    def due(self, number: int, at: float) -> None:
        """It is when a job wanted to be looked at: the pause after a failure may be over, or its time."""
        job = self.jobs.get(number)
        if job is None:
            return
        if job.state is JobState.BACKOFF and job.retry_at is not None and at >= job.retry_at:
            self.becomes(job, JobEvent.QUEUED, None, at, {})
            self.line_up(job)
        elif job.state is JobState.RUNNING and (limit := job.limit_at) is not None and at >= limit:
            self._stop(job, at, "time_limit", f"it ran into its time limit of {job.spec.time_limit_s:g} s")

    def set_health(self, places: Collection[tuple[str, int]], why: str | None, at: float) -> None:
        """Devices were found bad, for this reason, or (None) healthy."""
        for node, device in places:
            if self.health.set_bad((node, device), why):
                kind = "device_healthy" if why is None else "device_bad"
                self.note(kind, None, at, {"node": node, "device": device, "why": why or ""})
        self._hardware_changed(at)

    def drain(self, places: Collection[tuple[str, int]], undo: bool, now: bool, what: str, at: float) -> None:
        """The machine's owner keeps jobs off devices, or lets them come again. ``now``: who is there goes too."""
        if self.health.set_drained(places, not undo):
            data: dict[str, object] = {"places": [list(place) for place in places], "what": what}
            self.note("undrained" if undo else "drained", None, at, data)
        if now and not undo:
            wanted = set(places)
            for job in list(self.jobs.values()):
                if job.state is JobState.RUNNING and not wanted.isdisjoint(job.devices()):
                    self._stop(job, at, "drained", f"{what} is drained by the machine's owner")
        self._hardware_changed(at)

    def reconfigure(self, spec: ClusterSpec, at: float) -> Reconfiguration:
        """A new spec, under running jobs. Raises what :meth:`Cluster.reconfigure` raises; nothing has changed then."""
        report = self.cluster.reconfigure(spec)
        self.health.again()
        self.health.apply()
        data = {"downgraded": [list(pair) for pair in report.downgraded], "lost": [name for name, _ in report.lost]}
        self.note("reconfigured", None, at, {"kept": len(report.kept), **data})
        vcs = {vc.name for vc in spec.virtual_clusters}
        still = {
            job.name: f"the cells that {job.vc} has now cannot stand where it runs"
            if job.vc in vcs
            else f"virtual cluster {job.vc} is no more"
            for job in self.usage.displaced.values()
        }
        self._guarantees_changed(report, at, still)
        self.lost_reservations(self.scheduler.reconfigured(), "the cluster was reconfigured", at)
        return report

    def recover(
        self, jobs: Iterable[Job], at: float, names: Mapping[str, str] = MappingProxyType({})
    ) -> Reconfiguration:
        """Take jobs in after a restart: who runs goes on, who waits has its place. The first call, if any.

        ``names``: what nodes are called now, by what they were called before.
        """
        for job in jobs:
            self.jobs[job.id] = job
            self.usage.add(job)
            if job.state.holds and job.placement is not None and any(pod.node in names for pod in job.placement.pods):
                pods = tuple(pod._replace(node=names.get(pod.node, pod.node)) for pod in job.placement.pods)
                placement = replace(job.placement, pods=pods)
                why = f"its node is called {pods[0].node} now"
                self.becomes(job, JobEvent.REBOUND, placement, at, {"why": why})
        records = self._records()
        report = self.cluster.recover(records)
        self.note("recovered", None, at, {"running": len(records), "active": len(self.jobs)})
        self._guarantees_changed(report, at)
        for job in self.jobs.values():
            if job.state is JobState.RESERVED:
                self.becomes(job, JobEvent.UNRESERVED, None, at, {"why": "the engine was started again"})
            if job.state.holds:
                self.scheduler.runs(job.entry, self.cluster.group(job.name).guaranteed)
            if job.state is JobState.QUEUED:
                self.line_up(job)
            elif job.state is JobState.BACKOFF and job.retry_at is not None:
                self._pausing[job.id] = job
                self.instruct(WakeAt(job.id, job.retry_at))
            elif job.state is JobState.RUNNING:
                self._started(job)
            elif job.state is JobState.STOPPING:
                self._is_going(job)
                self.instruct(StartTasks(job.id, job.attempt), StopTasks(job.id, job.attempt))
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
            taken |= set(job.devices())
            cut = placement if pods == placement.pods else replace(placement, pods=pods, reserved_levels=())
            request = job.entry.loan if job.spec.early and not cut.guaranteed else job.entry.request
            records.append(Record(job.name, request, cut))
        return records

    # -- deciding -------------------------------------------------------------------------------------------------

    def turn(self) -> Turn:
        """What has come of the facts since the last call."""
        turn = Turn(tuple(self.recent), tuple(self._touched.values()), tuple(self._instructions))
        self.recent.clear()
        self._touched.clear()
        self._instructions.clear()
        return turn

    def job(self, number: int) -> Job:
        """A job that has not ended."""
        return self.jobs[number]

    def _start(self, job: Job, placement: Placement, at: float) -> None:
        port = self._free_port() if job.spec.tasks > 1 else 0
        self.becomes(job, JobEvent.STARTED, placement, at, {"attempt": job.attempt + 1, "port": port})
        self._started(job)

    def _preempt(self, job: Job, by: Job, at: float) -> None:
        if job.state is JobState.RUNNING:
            self._stop(job, at, "preempted", f"preempted by {by.name} of {by.vc}", by)
        else:  # it goes already, and has less time for that from now on if it is a loan
            self.instruct(StopTasks(job.id, job.attempt))

    def _move(self, job: Job, why: str, at: float) -> None:
        self._stop(job, at, "moved", why)

    # -- what becomes of jobs -------------------------------------------------------------------------------------

    def _all_gone(self, job: Job, at: float) -> None:
        """The last task of an attempt has ended: its GPUs are free."""
        event, data = outcome(job, at)
        self.scheduler.free(job.entry, waits=event is JobEvent.PREEMPTED)
        if self.beyond.pop(job.id, None) is not None:
            self._claim(at)
        self.becomes(job, event, None, at, data)
        if job.retry_at is not None:
            self.instruct(WakeAt(job.id, job.retry_at))
        elif job.state.ended:
            del self.jobs[job.id]

    def _started(self, job: Job) -> None:
        self.instruct(StartTasks(job.id, job.attempt))
        if job.limit_at is not None:
            self.instruct(WakeAt(job.id, job.limit_at))

    def _stop(self, job: Job, at: float, cause: str, why: str, by: Job | None = None) -> None:
        data: dict[str, object] = {"cause": cause, "why": why, "attempt": job.attempt}
        if by is not None:
            data["by"] = [by.name, by.vc, by.priority]
        self.becomes(job, JobEvent.STOPPING, None, at, data)
        self._is_going(job)
        self.instruct(StopTasks(job.id, job.attempt))

    def _is_going(self, job: Job) -> None:
        """One that is not to come back at once has no turn any more."""
        if job.stopping_for not in ("preempted", "moved"):
            self.scheduler.leaving(job.entry)

    def grace_s(self, job: Job) -> float:
        """How long a job has between SIGTERM and SIGKILL: capped where it is on loan, or somebody waits for that."""
        borrows = job.spec.opportunistic or job.spec.early
        lent = not job.guaranteed and (borrows or bool(self.cluster.group(job.name).preempted_by))
        return min(job.spec.grace_s, self.health.grace_of_loans(job.vc)) if lent else job.spec.grace_s

    def backing_off(self) -> list[Job]:
        """Jobs between two tries."""
        return list(self._pausing.values())

    def _hardware_changed(self, at: float) -> None:
        if self.health.apply():
            self.lost_reservations(self.scheduler.hardware_changed(), "hardware under them turned bad", at)

    def _guarantees_changed(
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
                self.guarantee_changed(
                    job, news if self.cluster.group(job.name).guaranteed else why.get(job.name, news), at
                )
                reason = why.get(job.name, job.reason)
                if reason != job.reason and job.name in self.usage.displaced and job.state is JobState.RUNNING:
                    self.becomes(job, JobEvent.REBOUND, job.placement, at, {"why": reason})
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

    def guarantee_changed(self, job: Job, why: str, at: float, by: str | None = None) -> None:
        """See :meth:`Dispatcher.stands`. Its devices are its own whatever the spec has."""
        now = self.cluster.group(job.name).placement if job.holds else None
        if now is None or job.placement is None:
            return
        if now.pods != job.placement.pods:
            now = replace(job.placement, reserved_levels=())
        if now == job.placement:
            return
        kind = JobEvent.REBOUND
        if now.guaranteed is not job.guaranteed:
            kind = JobEvent.RESTORED if now.guaranteed else JobEvent.DOWNGRADED
        self.becomes(job, kind, now, at, {"why": why})
        if job.entry.holds:
            self.scheduler.became(job.entry, now.guaranteed)
            if job.state is JobState.STOPPING:
                self._is_going(job)

    def becomes(self, job: Job, event: str, placement: Placement | None, at: float, data: dict[str, object]) -> None:
        """See :meth:`Dispatcher.becomes`. ``placement``: where that is news."""
        self.usage.remove(job)
        if placement is not None:
            data["placement"] = placement_data(placement)
        job.apply(self.note(event, job.id, at, data))
        if not job.state.ended:
            self.usage.add(job)
        if job.state is JobState.BACKOFF:
            self._pausing[job.id] = job
        else:
            self._pausing.pop(job.id, None)
        self._touched[job.id] = job


def _without(pods: Iterable[PodPlacement], taken: Collection[Device]) -> tuple[PodPlacement, ...]:
    """The pods as far as their devices are not among ``taken``."""
    left = [PodPlacement(node, tuple(d for d in devices if (node, d) not in taken)) for node, devices in pods]
    return tuple(pod for pod in left if pod.leaf_cells)
