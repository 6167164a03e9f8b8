"""The job scheduler of one machine: facts in, events and instructions out. Pure, as the core that it drives.

    submit(...) / cancel(...) / task_ended(...) / ...     take in a fact
    dispatch(at)                                          start every job that can start
    turn()                                                the events to store, then the instructions to carry out

The caller stores the events before it carries an instruction out. Every instruction is idempotent: an engine that was
killed in between repeats it, and nothing happens twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement, PodPlacement, Record
from hived.cluster.recovery import Reconfiguration
from hived.engine.dispatcher import GHOST, NEW_SPEC, Dispatcher, Goes
from hived.engine.hardware import Hardware
from hived.engine.job import NO_LIMITS, Event
from hived.engine.states import JobEvent, JobState
from hived.engine.trading import LiveTrading
from hived.errors import ConflictError, InputError
from hived.policies import by_vc, make_policy
from hived.policies.antman.guest_scheduler import GuestScheduler
from hived.scheduling import Policy, SomePolicies, Status
from hived.scheduling.exact import VirtualState
from hived.scheduling.instructions import Share
from hived.scheduling.instructions import Turn as SharedTurn
from hived.spec.compiled import ClusterSpec, Device

from .guests import FLOOR, Guests, LimitTasks
from .measured import MeasuredProbe
from .model import Job, JobSpec, Limiting, Obeying, outcome


class Health(Hardware):
    """Health of the devices of one machine. It is remembered while a spec lacks the device."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        #: bad devices, and why
        self.bad: dict[Device, str] = {}
        #: drained devices: an ordered set
        self.drained: dict[Device, None] = {}
        #: devices held by jobs to which the core cannot attribute them
        self.claimed: set[Device] = set()

    def set_bad(self, place: Device, why: str | None) -> bool:
        """Mark a device bad or (None) healthy. Returns whether that is a change."""
        if self.bad.get(place) == why:
            return False
        if why is None:
            del self.bad[place]
        else:
            self.bad[place] = why
        self._changed.add(place[0])
        return True

    def set_drained(self, chosen: Iterable[Device], drained: bool) -> bool:
        """Drain devices, or undo that. Returns whether that is a change."""
        changed = [place for place in chosen if (place in self.drained) is not drained]
        for place in changed:
            if drained:
                self.drained[place] = None
            else:
                del self.drained[place]
            self._changed.add(place[0])
        return bool(changed)

    @property
    def faulty(self) -> Collection[Device]:
        """Bad devices."""
        return self.bad

    @property
    def kept(self) -> Collection[Device]:
        """Drained devices."""
        return self.drained

    def why(self, place: Device) -> str:
        """See :meth:`Hardware.why`."""
        return self.bad.get(place, "")

    def set_claimed(self, places: Iterable[Device]) -> None:
        """Set the devices held by jobs to which the core cannot attribute them."""
        before, self.claimed = self.claimed, set(places)
        self._changed.update(node for node, _ in before ^ self.claimed)

    def beyond(self) -> int:
        """See :meth:`Hardware.beyond`. O(devices of jobs that the core lacks)."""
        return sum(device not in self.devices.get(node, ()) for node, device in self.claimed)

    def wanted(self, node: str) -> tuple[str | None, dict[int, str]]:
        """Devices that take no jobs. The reason is the same for all: a change of it alone is no change to the core."""
        kept = (self.bad, self.drained, self.claimed)
        return None, {device: "kept" for device in self.devices[node] if any((node, device) in of for of in kept)}


@dataclass(frozen=True, slots=True)
class StartTasks:
    """Start the tasks of this attempt that have not been started."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class StopTasks:
    """Stop the tasks of this attempt."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SuspendTasks:
    """Suspend the tasks of this attempt: others have their turn. What comes of it is a fact."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ResumeTasks:
    """Let the tasks of this attempt go on: they have their turn."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call ``JobScheduler.due`` at time ``at``, in seconds since the epoch."""

    job: int
    at: float


Instruction = StartTasks | StopTasks | SuspendTasks | ResumeTasks | LimitTasks | WakeAt


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of some facts."""

    events: tuple[Event, ...]  #: to be stored first
    jobs: tuple[Job, ...]  #: the jobs of the events
    instructions: tuple[Instruction, ...]  #: to be carried out after that
    #: virtual jobs that have changed, by name, to be stored first too; None: nothing of it (exact safety)
    virtual: tuple[tuple[str, VirtualState | None], ...] = ()


#: why a job that takes turns is suspended, or goes on
OTHERS_TURN, ITS_TURN = "others of its VC have their turn on these GPUs", "its turn has come"

ONCE_HELD = "it was to pause when it was a guest, and is to go on"
NO_TURNS = "its VC has no GPUs on which it could take turns any more"
NO_GUESTS = "it ran beside others, where no guests are accepted any more"
#: a job that does not pause for so long, in seconds, does not take turns: it is no training job, or evaluates for long
OBEYS_WITHIN_S = 300.0
NOT_ALONE = "it does not pause for others, whose GPUs these are; it waits for some of its own"

#: how a job goes on after these events; it has ended by itself after any other that releases its GPUs
_GOES = {JobEvent.REQUEUED: Goes.WAITS, JobEvent.UNRESERVED: Goes.WAITS, JobEvent.CANCELLED: Goes.WITHDRAWN}


class JobScheduler(Dispatcher[Job, Instruction]):
    """The jobs of one machine on its cluster."""

    def __init__(
        self,
        cluster: Cluster,
        policies: SomePolicies,
        free_port: Callable[[], int],
        last_event: int = 0,
        trading: LiveTrading | None = None,
        shares: bool = False,
    ) -> None:
        """``shares``: whether jobs obey, so that policies may have them share GPUs."""
        #: what is measured of jobs that obey
        self.probe = MeasuredProbe()
        self._shares = shares
        super().__init__(cluster, policies, last_event, trading=trading, probe=self.probe if shares else None)
        self._free_port = free_port
        #: every job that has not ended
        self.jobs: dict[int, Job] = {}
        self.health = Health(cluster)
        #: by job, devices that it holds and the core cannot attribute to it: the present spec lacks them
        self.beyond: dict[int, tuple[PodPlacement, ...]] = {}
        #: by job, attempt and rank, why a task has not been started yet, though its job has its GPUs
        self.held_up: Mapping[tuple[int, int, int], str] = {}
        self._touched: dict[int, Job] = {}
        #: by job that takes turns with others of its VC, or may: its turn now, None while others have it
        self._turns: dict[int, SharedTurn | None] = {}
        #: jobs that were told to let others have their turn, and are not known to have paused; those of them that were
        #: told to go on since
        self.told_to_pause: set[int] = set()
        self._called_back: set[int] = set()
        #: jobs of an earlier engine, which may have told them to pause
        self._unsure: set[int] = set()
        #: guests that did not pause: they share no GPUs once they have ended there
        self._apart: set[int] = set()
        #: None: no VC has guests
        self.guests = self._guests_now(None)

    @property
    def hardware(self) -> Hardware:
        """The devices of the machine."""
        return self.health

    def _guests_now(self, before: Guests | None) -> Guests | None:
        """What carries out the guests of the present policies; ``before``: that of the former ones."""
        extension = self.scheduler.extension
        if not self._shares or not isinstance(extension, GuestScheduler):
            return None
        same = before is not None and before.sharing == extension.parameters
        return before if same else Guests(self, extension.parameters)

    # -- facts ----------------------------------------------------------------------------------------------------

    def submit(self, number: int, spec: JobSpec, at: float) -> Job:
        """Queue a new job."""
        job = Job(number, spec, at)
        if spec.share is False:
            job.entry.stand_alone()
        self.jobs[number] = job
        self.note("submitted", number, at, {"name": job.name, "vc": spec.vc, "gpus": job.gpus, "user": spec.user})
        self._touched[number] = job
        self.usage.add(job)
        self.line_up(job)
        return job

    def unsubmit(self, job: Job) -> None:
        """Undo :meth:`submit`, the last call, when its event cannot be stored."""
        self.scheduler.withdraw(job.entry)
        self.usage.remove(job)
        del self.jobs[job.id]
        self.seq -= 1

    def cancel(self, job: Job, at: float, user: str = "") -> None:
        """Cancel a job. Raises :class:`ConflictError` for a job that has ended or is being cancelled."""
        if job.state.ended or (job.state is JobState.STOPPING and job.stopping_for == "cancelled"):
            ended = job.state.value if job.state.ended else "being cancelled"
            raise ConflictError(f"{job.name} is {ended} already")
        why = f"cancelled by {user}" if user else "cancelled"
        if job.state.holds:
            self._stop(job, at, "cancelled", why)
            return
        self.becomes(job, JobEvent.CANCELLED, None, at, {"why": why})

    def task_ended(self, number: int, attempt: int, rank: int, ending: dict[str, Any], at: float) -> None:
        """Take in the end of a task; ``ending``: the fields of :class:`~.tasks.Ending`. Known ends are ignored."""
        job = self.jobs.get(number)
        if job is None or not job.state.holds or attempt != job.attempt or rank in job.endings:
            return
        self.becomes(job, JobEvent.TASK_ENDED, None, at, {"attempt": attempt, "rank": rank, **ending})
        if len(job.endings) == job.spec.tasks:
            event, data = outcome(job, at)
            self.becomes(job, event, None, at, data)
        elif job.state.stays and (ending["code"] or ending["stopped"]):
            self._stop(job, at, "task_failed", f"task {rank} ended with exit code {ending['code']}")

    def due(self, number: int, at: float) -> None:
        """Handle a timer of a job: the end of its backoff, or its time limit."""
        job = self.jobs.get(number)
        if job is None:
            return
        if job.state is JobState.BACKOFF and job.retry_at is not None and at >= job.retry_at:
            self.becomes(job, JobEvent.QUEUED, None, at, {})
        elif job.by_hand and job.resumes_at is not None and at >= job.resumes_at:
            self.goes_on(job, "its time is over", at)
        elif job.state.stays and (limit := job.limit_at) is not None and at >= limit:
            if any(held[:2] == (number, job.attempt) for held in self.held_up):
                return  # it has not begun: its supervisors see to the limit once it has
            self._stop(job, at, "time_limit", f"it ran into its time limit of {job.spec.time_limit_s:g} s")

    def obeys(self, number: int, attempt: int, doing: Obeying, why: str, why_limited: str, at: float) -> None:
        """Take in what a training job does by its control pages, and why that, and its limits, are as they are."""
        job = self.jobs.get(number)
        if job is None or not job.state.stays or attempt != job.attempt:
            return
        changed = self.probe.measure(number, doing, not self.beside(number), at)
        if changed and self.scheduler.extension is not None:
            self.scheduler.extension.measured(job.entry, at)
        if doing.suspended is not (job.state is JobState.SUSPENDED):
            took = {"tier": doing.tier, "bytes": doing.moved_bytes, "seconds": doing.took_s}
            if not doing.suspended:
                self.becomes(job, JobEvent.RESUMED, job.placement, at, {"why": why, **took})
            elif number in self.told_to_pause or number in self._unsure:
                self._forget_pause(number)
                because = OTHERS_TURN if self.guests is None else self.guests.why(number) or ONCE_HELD
                self.becomes(job, JobEvent.SUSPENDED, None, at, {"why": because, "by_hand": False, **took})
                if self.guests is not None:
                    self._give_turns_as_guest(job)
                elif job.entry.holds and job.placement is not None:
                    self._turns.setdefault(number, SharedTurn(job.placement))
            else:
                self.becomes(job, JobEvent.SUSPENDED, None, at, {"why": why, "by_hand": True, **took})
        elif number in self._called_back and not doing.suspended:
            self._forget_pause(number)
        limits = job.limits or NO_LIMITS
        if (doing.memory, doing.share) != (limits.memory, limits.share):
            ours = doing.share == job.floor or (self.guests is not None and self.guests.is_ours(job, doing))
            if self.guests is not None and job.entry.runs_as_guest:
                why_limited = self.guests.why_limited(number, doing) or why_limited
            data = {"memory": doing.memory, "share": doing.share, "why": why_limited, "by_hand": not ours}
            self.becomes(job, JobEvent.LIMITED, None, at, data)
        if self.guests is not None:
            self.guests.measure(job, doing, at)
        elif job.limits is not None and not job.limits.by_hand:  # of guests that there are no more
            self.instruct(LimitTasks(job.id, job.attempt, Limiting(0, 1.0), "its GPUs have no guests any more"))

    def set_health(self, places: Collection[tuple[str, int]], why: str | None, at: float) -> None:
        """Take in the health of devices: bad, for this reason, or (None) healthy."""
        for node, device in places:
            if self.health.set_bad((node, device), why):
                kind = "device_healthy" if why is None else "device_bad"
                self.note(kind, None, at, {"node": node, "device": device, "why": why or ""})
        self._hardware_changed(at)

    def drain(self, places: Collection[tuple[str, int]], undo: bool, now: bool, what: str, at: float) -> None:
        """Drain devices, so that no new jobs start there, or undo that. ``now``: stop the jobs there too."""
        if self.health.set_drained(places, not undo):
            data: dict[str, object] = {"places": [list(place) for place in places], "what": what}
            self.note("undrained" if undo else "drained", None, at, data)
        if now and not undo:
            wanted = set(places)
            for job in list(self.jobs.values()):
                if job.state.stays and not wanted.isdisjoint(job.devices()):
                    self._stop(job, at, "drained", f"{what} is drained")
        self._hardware_changed(at)

    def _policies_of(self, spec: ClusterSpec) -> dict[str, Policy]:
        return by_vc(spec)

    def _reconfigured(self, report: Reconfiguration, why: str, at: float) -> None:
        self.health.again()
        self.health.apply()
        vcs = {vc.name for vc in self.cluster.spec.virtual_clusters}
        still = {
            job.name: f"the cells that {job.vc} has now cannot stand where it runs"
            if job.vc in vcs
            else f"virtual cluster {job.vc} is no more"
            for job in self.usage.displaced.values()
        }
        self._guarantees_changed(report, at, still, why)
        lost = self.scheduler.reconfigured()
        before, self.guests = self.guests, self._guests_now(self.guests)
        for job in list(self.jobs.values()) if before is not None else ():
            if job.state.waits and job.entry.holds:  # it waits for others to leave GPUs, which may be no more
                self._give_back(job, at)
        for job in list(self.jobs.values()) if self._shares else ():
            if job.state.stays and (job.name in report.cancelled or (self.guests is None and job.entry.runs_as_guest)):
                self._stop(job, at, "moved", NO_GUESTS)
            elif self.guests is not None and job.holds and job.entry.holds and job.placement is not None:
                self.guests.follow(job, job.placement, at)
        self.lost_reservations(lost, why, at)

    def recover(
        self,
        jobs: Iterable[Job],
        at: float,
        names: Mapping[str, str] = MappingProxyType({}),
        virtual: Iterable[VirtualState] = (),
    ) -> Reconfiguration:
        """Take over jobs after a restart: running jobs go on, queued jobs keep their place. The first call, if any.

        ``names``: present names of nodes, by their former names; ``virtual``: what was stored of virtual jobs.
        """
        self.scheduler.restore(virtual)
        jobs = list(jobs)
        for job in jobs:
            self.jobs[job.id] = job
            if job.spec.share is False:
                job.entry.stand_alone()
            job.entry.halted = job.by_hand
            self.usage.add(job)
            if job.holds and job.state is not JobState.SUSPENDED:
                self.probe.runs(job.id, at)
            if job.state.holds and job.placement is not None and any(pod.node in names for pod in job.placement.pods):
                pods = tuple(pod._replace(node=names.get(pod.node, pod.node)) for pod in job.placement.pods)
                placement = replace(job.placement, pods=pods)
                why = f"its node is called {pods[0].node} now"
                self.becomes(job, JobEvent.REBOUND, placement, at, {"why": why})
        records, sharers = self._records()
        report = self.cluster.recover(records)
        numbers = {job.name: job.id for job in jobs}
        for name in (*report.cancelled, *self.cluster.evicted()):  # it is stopped, and has no turns
            self.cluster.cancel(name)
            sharers.add(numbers[name])
        self.note("recovered", None, at, {"running": len(records), "active": len(self.jobs)})
        self._guarantees_changed(report, at)
        for job in self.jobs.values():
            if job.state is JobState.RESERVED:
                self.becomes(job, JobEvent.UNRESERVED, None, at, {"why": "the engine was started again"})
            if job.id in sharers:
                if job.state.stays:
                    self._returns(job, at)
            elif job.state.holds:
                self.scheduler.adopt(job.entry, self.cluster.group(job.name).guaranteed, at)
                if self.guests is not None and job.placement is not None:
                    self.guests.recovered(job)
                    self.guests.follow(job, job.placement, at)
            if job.state is JobState.QUEUED:
                self.line_up(job)
            elif job.state is JobState.BACKOFF and job.retry_at is not None:
                self.instruct(WakeAt(job.id, job.retry_at))
            elif job.state.stays:
                self._started(job)
                if job.state is JobState.SUSPENDED and job.resumes_at is not None:
                    self.instruct(WakeAt(job.id, job.resumes_at))
                if job.state is JobState.RUNNING and (self._may_take_turns(job) or job.entry.runs_as_guest):
                    self._unsure.add(job.id)
                if self.guests is not None and not job.by_hand:
                    self._give_turns_as_guest(job)
            elif job.state is JobState.STOPPING:
                self._left_line(job)
                job.entry.yields = True
                self.instruct(StartTasks(job.id, job.attempt), StopTasks(job.id, job.attempt))
        return report

    def _records(self) -> tuple[list[Record], set[int]]:
        """Records of running jobs, for the core. A device that two jobs hold goes to the job that started first.

        And the jobs that have no cells of their own, since they take turns with others: those that are suspended, or
        run beside one that started before.
        """
        records: list[Record] = []
        sharers: set[int] = set()
        taken: set[Device] = set()
        holding = [job for job in self.jobs.values() if job.state.holds]
        # those that run first: the others may be where these have their turn, suspended or woken to be stopped
        later = {job.id for job in holding if self._shares and (_was_beside(job) or job.state is not JobState.RUNNING)}
        for job in sorted(holding, key=lambda job: (job.id in later, job.started_at or 0.0, job.id)):
            placement = job.placement
            assert placement is not None
            before_turn = not placement.guaranteed and (job.spec.early or job.spec.opportunistic)
            if before_turn and (loan := self.scheduler.loan(job.entry)).guest:
                records.append(Record(job.name, loan, placement))
                continue
            # whatever its policy is by now
            pauses = job.state is JobState.SUSPENDED and not (job.by_hand and taken.isdisjoint(job.devices()))
            beside = (self._took_turns(job) or _was_beside(job)) and not taken.isdisjoint(job.devices())
            if self._shares and (pauses or beside):
                sharers.add(job.id)
                continue
            pods = _without(placement.pods, taken)
            taken |= set(job.devices())
            cut = placement if pods == placement.pods else replace(placement, pods=pods, reserved_levels=())
            request = job.entry.loan if job.spec.early and not cut.guaranteed else job.entry.request
            records.append(Record(job.name, request, cut))
        return records, sharers

    # -- deciding -------------------------------------------------------------------------------------------------

    def turn(self) -> Turn:
        """The events, changed jobs and instructions since the last call."""
        virtual = tuple(self.scheduler.take_states())
        turn = Turn(tuple(self.recent), tuple(self._touched.values()), tuple(self._instructions), virtual)
        self.recent.clear()
        self._touched.clear()
        self._instructions.clear()
        return turn

    def dispatch(self, at: float) -> None:
        """Run the scheduler, and have jobs that take turns start, go on and pause as it has decided."""
        super().dispatch(at)
        if self.guests is not None:
            self.guests.pass_time(at)
        if self._turns:
            self._take_turns(at)
            super().dispatch(at)
        if self.guests is not None:
            self.guests.tell(at)

    def active(self) -> Iterable[Job]:
        """All jobs that have not ended."""
        return self.jobs.values()

    def job(self, number: int) -> Job:
        """A job that has not ended."""
        return self.jobs[number]

    # -- turns on GPUs that jobs share --------------------------------------------------------------------------------

    def _may_take_turns(self, job: Job) -> bool:
        return job.priority >= 0 and self.guests is None and self.policies[job.vc].gpu_sharing is not None

    def shares_gpus(self, job: Job) -> bool:
        """Whether a job runs under the runtime, and may have guests beside it."""
        shares = self.policies[job.vc].gpu_sharing is not None if job.spec.share is None else job.spec.share
        return shares and not job.entry.alone

    def _took_turns(self, job: Job) -> bool:
        """Whether the jobs of its VC share GPUs, or did so by the spec that the core has still."""
        if not self._shares or job.priority < 0 or job.spec.share is False:
            return False
        names = [vc.policy for vc in self.cluster.spec.virtual_clusters if vc.name == job.vc and vc.policy]
        with suppress(InputError):  # a policy that is no more
            return self._may_take_turns(job) or any(make_policy(name).gpu_sharing for name in names)
        return False

    def _returns(self, job: Job, at: float) -> None:
        """A job whose processes are there takes turns again, after a restart."""
        assert job.placement is not None
        if self.guests is not None:
            self._stop(job, at, "moved", NO_GUESTS)
            return
        self._turns[job.id] = None
        job.entry.may_preempt = False  # where it finds no turns it is stopped
        self.scheduler.wait(job.entry)
        if self.scheduler.extension is not None:
            self.scheduler.extension.returns(job.entry, job.placement.pods[0].node)

    def _share(self, job: Job, share: Share, at: float) -> None:
        if self.guests is not None:
            self.guests.share(job, share)
            return
        self._turns[job.id] = share.turns[0] if share.turns else None

    def beside(self, number: int) -> tuple[int, ...]:
        """The jobs that are packed with one on its GPUs, or run there as its guests."""
        if self.guests is not None:
            job = self.jobs.get(number)
            on = () if job is None else [other for place in job.devices() for other in self.usage.on(place)]
            return tuple(sorted({other.id for other in on} - {number}))
        turn = self._turns.get(number)
        return () if turn is None else turn.beside

    def prioritize(self, job: Job, priority: int, why: str, at: float) -> None:
        """Change the priority of a job among those that share its GPUs; its place in line, if it waits again, stays.

        Raises :class:`ConflictError` for a job that shares none.
        """
        if not (job.state.stays and job.id in self._turns and self._may_take_turns(job)) or job.entry.alone:
            raise ConflictError(
                f"{job.name} does not share its GPUs: only jobs that take turns get another priority while they run"
            )
        self.becomes(job, JobEvent.PRIORITIZED, None, at, {"priority": priority, "why": why})
        self.scheduler.set_priority(job.entry, priority, at)

    def patience_s(self, job: Job) -> float:
        """For how long a job that is told to pause may go on: a guest as long as a loan may, that is to end."""
        return float(self.health.grace_of_loans(job.vc)) if job.entry.runs_as_guest else OBEYS_WITHIN_S

    def does_not_obey(self, job: Job, at: float) -> None:
        """A job that did not pause, and shares no GPUs any more."""
        if job.entry.runs_as_guest and job.state.stays:
            self._apart.add(job.id)
            self._stop(job, at, "moved", NOT_ALONE)
            return
        if job.entry.status not in (Status.GUARANTEED, Status.SHARING):
            return
        job.entry.stand_alone()
        self._forget_pause(job.id)
        if self.scheduler.extension is not None:
            self.scheduler.extension.invalidate()

    def takes_turns(self, job: Job) -> bool:
        """Whether a job runs, by its turns, on GPUs where others of its VC have their cells."""
        if not job.holds or not self._shares:
            return False
        group = self._group(job)
        if group is not None and job.id not in self._turns:
            return False
        own = None if group is None else group.placement
        return own is None or set(own.devices()) != set(job.devices())

    def _forget_pause(self, number: int) -> None:
        self.told_to_pause.discard(number)
        self._called_back.discard(number)
        self._unsure.discard(number)

    def wishes(self, number: int) -> bool | None:
        """Whether a job is to run by its turns; None: it takes none."""
        job = self.jobs.get(number)
        if job is None or number not in self._turns:
            return None
        return number in self._called_back or (number not in self.told_to_pause and job.state is not JobState.SUSPENDED)

    def _where_it_runs(self, job: Job, core: Placement) -> Placement:
        if job.placement is None or set(core.devices()) == set(job.devices()):
            return by_task(core, job.spec)
        return replace(job.placement, reserved_levels=core.reserved_levels[:1] * len(job.placement.pods))

    def goes_on(self, job: Job, why: str, at: float) -> None:
        """Have a suspended job go on, as soon as nobody else is on its GPUs, or at its turn."""
        if job.state is JobState.SUSPENDED and job.placement is not None:
            if job.id not in self._turns and not self._is_taken(job, job.placement):
                self._begin_turn(job, job.placement, at, why)
                return
            self._turns.setdefault(job.id, SharedTurn(job.placement))
            if job.by_hand:
                self.becomes(job, JobEvent.SUSPENDED, None, at, {"why": f"it is to go on: {why}", "by_hand": False})

    def hold(self, job: Job, why: str, until: float | None, at: float) -> None:
        """A job was suspended by hand: it has no turns until it is to go on, at ``until`` by itself."""
        if job.state is JobState.SUSPENDED and not (job.by_hand and until is None):
            self.becomes(job, JobEvent.SUSPENDED, None, at, {"why": why, "by_hand": True, "until": until})

    def _take_turns(self, at: float) -> None:
        """Pause the jobs whose turn is over; start and resume those whose GPUs are free of others.

        A job is on its GPUs until it is known to be suspended, or has ended; so no two are on one that may not be.
        """
        for number in list(self._turns):
            job = self.jobs[number]
            turn = self._turn_of(job)
            if job.state.stays and job.entry.status in (Status.WAITING, Status.NOWHERE):
                self.scheduler.withdraw(job.entry)
                self._stop(job, at, "moved", NO_GUESTS if _was_beside(job) else NO_TURNS)
            elif job.state is JobState.RUNNING:
                here = turn is not None and set(turn.placement.devices()) == set(job.devices())
                if number in self._unsure:
                    self._unsure.discard(number)
                    self.told_to_pause.add(number)
                    if here:
                        self._called_back.add(number)
                    self.instruct((ResumeTasks if here else SuspendTasks)(number, job.attempt))
                elif here and number in self.told_to_pause:
                    if number not in self._called_back:  # it may have paused, which is not known yet
                        self._called_back.add(number)
                        self.instruct(ResumeTasks(number, job.attempt))
                elif not here and job.entry.alone:
                    self._stop(job, at, "moved", NOT_ALONE)
                elif not here and (number not in self.told_to_pause or number in self._called_back):
                    self.told_to_pause.add(number)
                    self._called_back.discard(number)
                    self.instruct(SuspendTasks(number, job.attempt))
            elif job.entry.status in (Status.WAITING, Status.NOWHERE, Status.RESERVED):
                if job.state.waits:
                    del self._turns[number]
            elif turn is None or job.state is JobState.STOPPING or job.by_hand:
                continue
            elif not self._is_taken(job, turn.placement, turn.beside):
                self._begin_turn(job, turn.placement, at)

    def _give_turns_as_guest(self, job: Job) -> None:
        """Have a guest pause and go on as its coordinators say, and who was one go on."""
        if job.entry.placement is not None and (
            job.entry.runs_as_guest or job.id in self.told_to_pause or job.state is JobState.SUSPENDED
        ):
            self._turns[job.id] = SharedTurn(job.entry.placement)

    def _turn_of(self, job: Job) -> SharedTurn | None:
        """The turn of a job now; of one that shares no GPUs any more, those that are its own."""
        if self.guests is not None and job.entry.holds:
            return None if self.guests.may_run(job) is False else self._turns[job.id]
        if job.entry.holds and not (job.entry.status is Status.GUARANTEED and self._may_take_turns(job)):
            group = self._group(job)
            own = None if group is None else group.placement
            if own is not None and own.gpus == job.gpus:
                return SharedTurn(own)
            if job.placement is not None:  # the spec lacks some
                return SharedTurn(job.placement)
        return self._turns[job.id]

    def _begin_turn(self, job: Job, placement: Placement, at: float, why: str = "") -> None:
        if job.state.waits:
            self.count_wait(job, at)
            self._start_on(job, placement, at)
        else:
            why = why or (self.guests.why(job.id) if self.guests is not None else "") or ITS_TURN
            self.becomes(job, JobEvent.RESUMED, by_task(placement, job.spec), at, {"why": why})
            self.instruct(ResumeTasks(job.id, job.attempt))

    def _start(self, job: Job, placement: Placement, at: float) -> None:
        if self.guests is not None and job.holds and set(placement.devices()) != set(job.devices()):
            self.scheduler.release(job.entry, False, at)
            self._stop(job, at, "moved", "it has other GPUs now")
            return
        if self.guests is not None:
            self.guests.follow(job, placement, at)
            self._give_turns_as_guest(job)
        if job.holds or ((self._turns or self.guests is not None) and self._is_taken(job, placement)):
            # it was in line with its processes, and goes on there; or others run there yet, though it is its own by now
            self._turns[job.id] = SharedTurn(placement)
        else:
            self._start_on(job, placement, at)

    def _is_taken(self, job: Job, placement: Placement, beside: Collection[int] = ()) -> bool:
        """Whether others than those ``beside`` a job are on these GPUs, and are not known to be suspended."""
        return any(
            other is not job
            and other.id not in beside
            and other.state is not JobState.SUSPENDED
            and not self._may_meet(job, other)
            for place in placement.devices()
            for other in self.usage.on(place)
        )

    def in_the_way(self, job: Job) -> list[Job]:
        """The guests that have not paused yet on the GPUs on which a job is about to start."""
        turn = self._turns.get(job.id)
        if self.guests is None or turn is None or not job.state.waits:
            return []
        on = {other.id: other for place in turn.placement.devices() for other in self.usage.on(place)}
        return [other for other in on.values() if other is not job and other.state is not JobState.SUSPENDED]

    def _may_meet(self, job: Job, other: Job) -> bool:
        """Whether a job may run where another runs: a guest does; an owner starts once guests there have paused."""
        if self.guests is None or (other.state is JobState.STOPPING and other.stopping_for == "preempted"):
            return False
        return job.entry.runs_as_guest or (job.holds and other.entry.runs_as_guest)

    def _start_on(self, job: Job, placement: Placement, at: float) -> None:
        placement = by_task(placement, job.spec)
        port = self._free_port() if job.spec.tasks > 1 else 0
        floor = {"floor": FLOOR} if job.entry.runs_as_guest else {}
        self.becomes(job, JobEvent.STARTED, placement, at, {"attempt": job.attempt + 1, "port": port, **floor})
        self._started(job)

    def _preempt(self, job: Job, by: Job | None, at: float) -> None:
        if job.state.waits:  # others were on its GPUs until now
            self._give_back(job, at)
        elif job.state.stays:
            self.note_displaced(job, by, at)
            who = GHOST.format(job.vc) if by is None else f"{by.name} of {by.vc}"
            self._stop(job, at, "preempted", f"preempted by {who}", by)
        else:  # it is being stopped already: its grace may be shorter from now on, if it is on a loan
            self.instruct(StopTasks(job.id, job.attempt))

    def _move(self, job: Job, why: str, at: float) -> None:
        if job.state.waits:
            self._give_back(job, at)
        else:
            self._stop(job, at, "moved", why)

    def _give_back(self, job: Job, at: float) -> None:
        """A job that has got GPUs, and was not started on them yet, waits again."""
        self._turns.pop(job.id, None)
        if job.state is JobState.RESERVED:  # this releases them too
            self.becomes(job, JobEvent.UNRESERVED, None, at, {"why": "others were on its GPUs until now"})
        else:
            self.scheduler.release(job.entry, True, at)
        if self.guests is not None:
            self.guests.left(job, at)

    # -- transitions of jobs --------------------------------------------------------------------------------------

    def _started(self, job: Job) -> None:
        self.instruct(StartTasks(job.id, job.attempt))
        if job.limit_at is not None:
            self.instruct(WakeAt(job.id, job.limit_at))

    def _stop(self, job: Job, at: float, cause: str, why: str, by: Job | None = None) -> None:
        data: dict[str, object] = {"cause": cause, "why": why, "attempt": job.attempt}
        if by is not None:
            data["by"] = [by.name, by.vc, by.priority]
        self.becomes(job, JobEvent.STOPPING, None, at, data)
        self._left_line(job)
        self.instruct(StopTasks(job.id, job.attempt))

    def _left_line(self, job: Job) -> None:
        """Take a job that is being stopped out of the line, unless it is requeued at once."""
        if job.stopping_for not in ("preempted", "moved"):
            self.scheduler.leaving(job.entry)

    def grace_s(self, job: Job) -> float:
        """Seconds of a job between SIGTERM and SIGKILL: capped for a loan, or if a preemptor waits for its GPUs."""
        loan = job.spec.opportunistic or job.spec.early
        group = self._group(job)
        capped = not job.guaranteed and (loan or (group is not None and bool(group.preempted_by)))
        return min(job.spec.grace_s, self.health.grace_of_loans(job.vc)) if capped else job.spec.grace_s

    def first_signal(self, job: Job) -> str:
        """The signal with which a job is stopped: one by which it saves its state, where it starts anew elsewhere."""
        saves = job.spec.checkpoint_signal if job.stopping_for in ("preempted", "moved", "drained") else None
        return saves or "TERM"

    def _hardware_changed(self, at: float) -> None:
        if self.health.apply():
            self.lost_reservations(self.scheduler.hardware_changed(), "hardware under them turned bad", at)

    def _guarantees_changed(
        self,
        report: Reconfiguration,
        at: float,
        still: Mapping[str, str] = MappingProxyType({}),
        why: str = NEW_SPEC,
    ) -> None:
        """Take over the bindings of all running groups after the core has bound them anew, to other cells or none.

        ``still``: by name, why a job that was downgraded before has not become guaranteed again; ``why``: of any other.
        """
        lost = {name: f"the spec lacks devices of it on {', '.join(nodes)}" for name, nodes in report.lost}
        reasons = {**still, **dict(report.downgraded), **lost}
        self.beyond.clear()
        for job in self.jobs.values():
            if job.state.holds and (group := self._group(job)) is not None:
                guaranteed = group.guaranteed
                self.guarantee_changed(job, why if guaranteed else reasons.get(job.name, why), at)
                reason = reasons.get(job.name, job.reason)
                if reason != job.reason and job.name in self.usage.displaced and job.state.stays:
                    self.becomes(job, JobEvent.REBOUND, job.placement, at, {"why": reason})
                if (job.id in self._turns and self.guests is None) or job.name in report.cancelled:
                    continue
                core = self.cluster.group(job.name).placement
                assert job.placement is not None
                left = _without(job.placement.pods, set() if core is None else set(core.devices()))
                if left:
                    self.beyond[job.id] = left
        self._claim(at)

    def _claim(self, at: float) -> None:
        """Keep the devices that jobs hold beyond the core's knowledge from all other jobs."""
        held = [pod for pods in self.beyond.values() for pod in pods]
        self.health.set_claimed((pod.node, device) for pod in held for device in pod.leaf_cells)
        self._hardware_changed(at)

    def guarantee_changed(self, job: Job, why: str, at: float, by: str | None = None) -> None:
        """See :meth:`Dispatcher.guarantee_changed`. A job keeps its devices even where the spec lacks them."""
        group = self._group(job) if job.holds else None
        now = None if group is None else group.placement
        if now is None or job.placement is None:
            return
        if job.id in self._turns and self.guests is None and set(now.devices()) != set(job.devices()):
            # it runs where others of its VC have their cells
            if not now.guaranteed and job.state.stays:
                self._stop(job, at, "moved", why)
            return
        now = by_task(now, job.spec)
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
                self._left_line(job)

    def _goes(self, job: Job, event: JobEvent) -> Goes:
        return _GOES.get(event, Goes.ENDED)

    def _changed(self, job: Job, event: Event, held: bool, before: Placement | None) -> None:
        self._touched[job.id] = job
        if self.guests is not None:
            self._follow_guests(job, event)
        if job.holds and job.state is not JobState.SUSPENDED:
            self.probe.runs(job.id, event.at)
        else:
            self.probe.stands(job.id, event.at)
        if job.by_hand is not job.entry.halted:
            job.entry.halted = job.by_hand
            if self.scheduler.extension is not None:
                self.scheduler.extension.invalidate()
        if job.resumes_at is not None and event.kind == JobEvent.SUSPENDED:
            self.instruct(WakeAt(job.id, job.resumes_at))
        if event.kind == JobEvent.RETRYING and job.retry_at is not None:
            self.instruct(WakeAt(job.id, job.retry_at))
        if not job.holds:
            self._forget_pause(job.id)
            if held:
                self._turns.pop(job.id, None)
                job.entry.may_preempt = True
        if job.state.ended:
            self._turns.pop(job.id, None)
            self.probe.forget(job.id)
            del self.jobs[job.id]
        if not job.holds and self.beyond.pop(job.id, None) is not None:
            self._claim(event.at)

    def _follow_guests(self, job: Job, event: Event) -> None:
        assert self.guests is not None
        if job.holds and job.entry.holds and job.placement is not None and event.kind != JobEvent.SHARED:
            self.guests.follow(job, job.placement, event.at)
            if event.kind == JobEvent.PROMOTED and job.state.stays:
                self._give_turns_as_guest(job)
        elif not job.entry.holds:
            self.guests.left(job, event.at)
        if job.id in self._apart and not job.holds:
            self._apart.discard(job.id)
            if not job.state.ended:
                self.scheduler.withdraw(job.entry)
                job.entry.stand_alone()
                self.line_up(job)


def _was_beside(job: Job) -> bool:
    """Whether a job ran beside others, and not as their owner."""
    return bool(job.beside) and not job.guaranteed


def by_task(placement: Placement, spec: JobSpec) -> Placement:
    """A placement with a pod for each task: where jobs take turns they have GPUs of a server, whosever these are."""
    if len(placement.pods) == spec.tasks and all(len(pod.leaf_cells) == spec.gpus for pod in placement.pods):
        return placement
    devices = list(placement.devices())
    if len(devices) != spec.tasks * spec.gpus:
        return placement  # some are no more
    tasks = [devices[at : at + spec.gpus] for at in range(0, len(devices), spec.gpus)]
    pods = tuple(PodPlacement(of[0][0], tuple(device for _, device in of)) for of in tasks)
    return replace(placement, pods=pods, reserved_levels=placement.reserved_levels[:1] * len(pods))


def _without(pods: Iterable[PodPlacement], taken: Collection[Device]) -> tuple[PodPlacement, ...]:
    """The pods without the devices of ``taken``; a pod left without devices is dropped."""
    left = [PodPlacement(node, tuple(d for d in devices if (node, d) not in taken)) for node, devices in pods]
    return tuple(pod for pod in left if pod.leaf_cells)
