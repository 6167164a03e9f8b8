"""The job scheduler of one machine: facts in, events and instructions out. Pure, as the core that it drives.

    submit(...) / cancel(...) / task_ended(...) / ...     take in a fact
    dispatch(at)                                          start every job that can start
    turn()                                                the events to store, then the instructions to carry out

The caller stores the events before it carries an instruction out. Every instruction is idempotent: an engine that was
killed in between repeats it, and nothing happens twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement, PodPlacement, Record
from hived.cluster.recovery import Reconfiguration
from hived.cluster.requests import Member
from hived.engine.dispatcher import GHOST, NEW_SPEC, Dispatcher, Goes
from hived.engine.hardware import Hardware
from hived.engine.holdings import Holding, Holdings
from hived.engine.job import NO_LIMITS, Event
from hived.engine.states import JobEvent, JobState, ended_text
from hived.engine.trading import LiveTrading
from hived.errors import ConflictError, InputError
from hived.policies import by_vc, make_policy
from hived.policies.antman.guest_scheduler import GuestScheduler
from hived.scheduling import Policy, SomePolicies, Status
from hived.scheduling.exact import VirtualState
from hived.scheduling.instructions import Share
from hived.scheduling.instructions import Turn as SharedTurn
from hived.scheduling.scheduler import PastUse
from hived.spec.compiled import ClusterSpec, Device

from .counters import Counts
from .guests import FLOOR, Guests
from .health import DrainedBy, Health
from .holds import Holds
from .instructions import Instruction, LimitTasks, LimitTime, StartTasks, StopTasks, WakeAt
from .measured import MeasuredProbe
from .model import REQUEUES, Job, JobSpec, Limiting, Obeying, outcome
from .turns import (
    GOES_ELSEWHERE,
    NO_GUESTS,
    NOT_ALONE,
    NOT_READY,
    OBEYS_WITHIN_S,
    ONCE_HELD,
    OTHERS_TURN,
    OUT_OF_REACH,
    RIGID,
    Turns,
    by_task,
    was_beside,
)


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of some facts."""

    events: tuple[Event, ...]  #: to be stored first
    jobs: tuple[Job, ...]  #: the jobs of the events
    instructions: tuple[Instruction, ...]  #: to be carried out after that
    #: virtual jobs that have changed, by name, to be stored first too; None: nothing of it (exact safety)
    virtual: tuple[tuple[str, VirtualState | None], ...] = ()
    #: what has ended and begun of who has GPUs, likewise
    holdings: tuple[Holding, ...] = ()


#: how a job goes on after these events; it has ended by itself after any other that releases its GPUs
#: jobs of an array whose limit is changed, at most: each is an event
MOST_LIMITED = 2_000
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
        past_use: PastUse | None = None,
    ) -> None:
        """``shares``: whether jobs obey, so that policies may have them share GPUs.

        ``past_use``: see :class:`~hived.scheduling.Scheduler`.
        """
        #: what is measured of jobs that obey, and what is counted of them
        self.probe, self.counts = MeasuredProbe(), Counts()
        self._shares = shares
        probe = self.probe if shares else None
        super().__init__(cluster, policies, last_event, trading=trading, probe=probe, past_use=past_use)
        self._free_port = free_port
        #: every job that has not ended
        self.jobs: dict[int, Job] = {}
        self.health = Health(cluster)
        #: by job, devices that it holds and the core cannot attribute to it: the present spec lacks them
        self.beyond: dict[int, tuple[PodPlacement, ...]] = {}
        #: by job, attempt and rank, why a task has not been started yet, though its job has its GPUs
        self.held_up: Mapping[tuple[int, int, int], str] = {}
        self._touched: dict[int, Job] = {}
        self.holdings = Holdings(records=True)
        #: who may run of those that share GPUs
        self.turns = Turns(self)
        #: guests that did not pause: they share no GPUs once they have ended there
        self._apart: set[int] = set()
        #: elastic jobs that did not grow or shrink when they were told to
        self._rigid: set[int] = set()
        self.holds = Holds(self)
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
        self.holds.add(job)
        self.line_up(job)
        if why := "it was submitted so" if spec.hold else self.holds.why(job):
            self.holds.hold(job, why, spec.hold, at)
        return job

    def unsubmit(self, jobs: Sequence[Job], events: int) -> None:
        """Undo the last calls of :meth:`submit`, and their ``events``, when these cannot be stored."""
        for job in jobs:
            if not job.state.aside:
                self.scheduler.withdraw(job.entry)
            self.holds.forget(job)
            self.usage.remove(job)
            del self.jobs[job.id]
        self.seq -= events

    def hold(self, job: Job, user: str, at: float) -> None:
        """Take a job that waits out of line, until it is released. Raises :class:`ConflictError` for any other.

        What its owner holds somebody else may hold in their place: then the owner does not release it.
        """
        if not job.state.waits:
            tells = "hived requeue --hold stops it and holds it" if job.state.holds else "it has ended"
            raise ConflictError(f"{job.name} is {job.state.value}, and only a job that waits is held; {tells}")
        if job.held_by_hand and user in (job.held_by, job.spec.user):
            raise ConflictError(f"{job.name} is held already" + (f" by {job.held_by}" if job.held_by else ""))
        self.holds.hold(job, f"by {user or 'hand'}", True, at, user)

    def release(self, job: Job, user: str, at: float) -> None:
        """Let a job go that somebody holds. Raises :class:`ConflictError` for one that nobody does."""
        if job.state is not JobState.HELD or not job.held_by_hand:
            other = f": {job.reason}" if job.state is JobState.HELD else ""
            raise ConflictError(f"{job.name} is {job.state.value}{other}; nobody holds it")
        self.holds.returns(job)
        if why := self.holds.why(job):
            self.holds.hold(job, why, False, at)
        else:
            self.becomes(job, JobEvent.QUEUED, None, at, {})

    def requeue(self, job: Job, hold: bool, user: str, at: float) -> None:
        """Stop a job, to start anew. Raises :class:`ConflictError` for one that does not run."""
        if not job.state.stays:
            way = "; hived release lets it into line" if job.state is JobState.HELD else ""
            raise ConflictError(f"{job.name} is {job.state.value}: only what runs can be queued again{way}")
        self.stop(job, at, "requeued", f"queued again by {user or 'hand'}", hold=hold, held_by=user)

    def cancel(self, job: Job, at: float, user: str = "", now: bool = False) -> None:
        """Cancel a job; ``now``: without its grace. Raises :class:`ConflictError` where that is so already."""
        if job.state.ended:
            raise ConflictError(f"{job.name} {ended_text(job.state)} already")
        if job.state is JobState.STOPPING and job.stopping_for == "cancelled" and (job.at_once or not now):
            hint = (
                "" if job.at_once else f"; it has {self.grace_s(job):g} s for that, hived cancel --now ends it at once"
            )
            raise ConflictError(f"{job.name} is being cancelled already{hint}")
        why = f"cancelled by {user}" if user else "cancelled"
        if job.state.holds:
            self.stop(job, at, "cancelled", why, at_once=now)
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
            self.stop(job, at, "task_failed", f"task {rank} ended with exit code {ending['code']}")

    def due(self, number: int, at: float) -> None:
        """Handle a timer of a job: the end of its backoff, or its time limit."""
        job = self.jobs.get(number)
        if job is None:
            return
        if job.state is JobState.BACKOFF and job.retry_at is not None and at >= job.retry_at:
            self.becomes(job, JobEvent.QUEUED, None, at, {})
        elif job.by_hand and job.resumes_at is not None and at >= job.resumes_at:
            self.turns.goes_on(job, "its time is over", at)
        elif job.state.stays and (limit := job.limit_at) is not None and at >= limit:
            if any(held[:2] == (number, job.attempt) for held in self.held_up):
                return  # it has not begun: its supervisors see to the limit once it has
            self.stop(job, at, "time_limit", f"it ran into its time limit of {job.spec.time_limit_s:g} s")

    def obeys(self, number: int, attempt: int, doing: Obeying, why: str, why_limited: str, at: float) -> None:
        """Take in what a training job does by its control pages, and why that, and its limits, are as they are."""
        job = self.jobs.get(number)
        if job is None or not job.state.stays or attempt != job.attempt:
            return
        changed = self.probe.measure(number, doing, not self.beside(number), at)
        if changed and self.scheduler.extension is not None:
            self.scheduler.extension.measured(job.entry, at)
        if doing.elastic and doing.workers and number not in self._rigid and self.may_take_turns(job):
            self.turns.has_workers(job, doing.workers)
            if not job.entry.view.elastic and job.spec.tasks == 1:
                self._set_elastic(job, True, at)
        if doing.suspended is not (job.state is JobState.SUSPENDED):
            took = {"tier": doing.tier, "bytes": doing.moved_bytes, "seconds": doing.took_s}
            if not doing.suspended:
                self.becomes(job, JobEvent.RESUMED, job.placement, at, {"why": why, **took})
            elif number in self.turns.told_to_pause or number in self.turns.unsure:
                self.turns.forget(number)
                because = OTHERS_TURN if self.guests is None else self.guests.why(number) or ONCE_HELD
                if job.entry.status is Status.MOVING:
                    because = GOES_ELSEWHERE
                self.becomes(job, JobEvent.SUSPENDED, None, at, {"why": because, "by_hand": False, **took})
                if job.entry.status is Status.MOVING:
                    self._moves_on(job, at)
                elif self.guests is not None:
                    self.turns.give_to_guest(job)
                elif job.entry.holds and job.placement is not None:
                    self.turns.of.setdefault(number, SharedTurn(job.placement))
            else:
                self.becomes(job, JobEvent.SUSPENDED, None, at, {"why": why, "by_hand": True, **took})
        elif number in self.turns.called_back and not doing.suspended:
            self.turns.forget(number)
        self.counts.look(job, doing)
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

    def drain(
        self,
        places: Collection[tuple[str, int]],
        undo: bool,
        now: bool,
        what: str,
        at: float,
        user: str = "",
        reason: str = "",
        whole: bool = False,
    ) -> None:
        """Drain devices, so that no new jobs start there, or undo that. ``now``: stop the jobs there too.

        ``whole``: they are those of a node, or of the machine.
        """
        if self.health.set_drained(places, not undo, DrainedBy(user, reason), whole):
            data: dict[str, object] = {"places": [list(place) for place in places], "what": what}
            data |= {"user": user} if user else {}
            data |= {"reason": reason} if reason else {}
            self.note("undrained" if undo else "drained", None, at, data)
        if now and not undo:
            wanted = set(places)
            for job in list(self.jobs.values()):
                if job.state.stays and not wanted.isdisjoint(job.devices()):
                    self.stop(job, at, "drained", f"{what} is drained")
        self._hardware_changed(at)

    def _policies_of(self, spec: ClusterSpec) -> dict[str, Policy]:
        return by_vc(spec)

    def _reconfigured(self, report: Reconfiguration, why: str, at: float) -> None:
        self.health.again()
        self.health.apply()
        self.holds.limits_changed()
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
            goes = job.entry.runs_as_guest or job.entry.status is Status.MOVING
            if job.state.stays and (job.name in report.cancelled or (self.guests is None and goes)):
                self.stop(job, at, "moved", NO_GUESTS)
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
                    self.guests.beside_nobody(job)
                    self.guests.follow(job, job.placement, at)
            if job.state is JobState.QUEUED:
                self.line_up(job)
            elif job.state is JobState.BACKOFF and job.retry_at is not None:
                self.instruct(WakeAt(job.id, job.retry_at))
            elif job.state.stays:
                self._started(job)
                if job.state is JobState.SUSPENDED and job.resumes_at is not None:
                    self.instruct(WakeAt(job.id, job.resumes_at))
                if job.state is JobState.RUNNING and (self.may_take_turns(job) or job.entry.runs_as_guest):
                    self.turns.unsure.add(job.id)
                if self.guests is not None and not job.by_hand:
                    self.turns.give_to_guest(job)
            elif job.state is JobState.STOPPING:
                self._left_line(job)
                job.entry.yields = True
                self.instruct(StartTasks(job.id, job.attempt), StopTasks(job.id, job.attempt))
        self.holds.take_over(at)
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
        later = {job.id for job in holding if self._shares and (was_beside(job) or job.state is not JobState.RUNNING)}
        for job in sorted(holding, key=lambda job: (job.id in later, job.started_at or 0.0, job.id)):
            placement = job.placement
            assert placement is not None
            before_turn = not placement.guaranteed and (job.spec.early or job.spec.opportunistic)
            if before_turn and (loan := self.scheduler.loan(job.entry)).guest:
                records.append(Record(job.name, loan, placement, job.started_at or 0.0))
                continue
            # whatever its policy is by now
            pauses = job.state is JobState.SUSPENDED and not (job.by_hand and taken.isdisjoint(job.devices()))
            beside = (self._took_turns(job) or was_beside(job)) and not taken.isdisjoint(job.devices())
            if self._shares and (pauses or beside):
                sharers.add(job.id)
                continue
            pods = _without(placement.pods, taken)
            taken |= set(job.devices())
            cut = placement if pods == placement.pods else replace(placement, pods=pods, reserved_levels=())
            request = job.entry.loan if job.spec.early and not cut.guaranteed else job.entry.request
            if cut.gpus > job.gpus:  # it has grown
                request = replace(request, members=tuple(Member(1, len(pod.leaf_cells)) for pod in cut.pods))
            records.append(Record(job.name, request, cut, job.started_at or 0.0))
        return records, sharers

    # -- deciding -------------------------------------------------------------------------------------------------

    def turn(self) -> Turn:
        """The events, changed jobs and instructions since the last call."""
        virtual = tuple(self.scheduler.take_states())
        holdings = tuple(self.holdings.take())
        turn = Turn(tuple(self.recent), tuple(self._touched.values()), tuple(self._instructions), virtual, holdings)
        self.recent.clear()
        self._touched.clear()
        self._instructions.clear()
        return turn

    def dispatch(self, at: float) -> None:
        """Run the scheduler, and have jobs that take turns start, go on and pause as it has decided."""
        self.holds.settle(at)
        super().dispatch(at)
        if self.guests is not None:
            self.guests.pass_time(at)
        if self.turns.of:
            self.turns.take(at)
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

    def may_take_turns(self, job: Job) -> bool:
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
            return self.may_take_turns(job) or any(make_policy(name).gpu_sharing for name in names)
        return False

    def _returns(self, job: Job, at: float) -> None:
        """A job whose processes are there takes turns again, after a restart."""
        assert job.placement is not None
        if self.guests is not None:
            self.stop(job, at, "moved", NO_GUESTS)
            return
        self.turns.of[job.id] = None
        job.entry.may_preempt = False  # where it finds no turns it is stopped
        self.scheduler.wait(job.entry)
        if self.scheduler.extension is not None:
            self.scheduler.extension.returns(job.entry, job.placement.pods[0].node)

    def _share(self, job: Job, share: Share, at: float) -> None:
        if self.guests is not None:
            self.guests.share(job, share)
            return
        self.turns.of[job.id] = share.turns[0] if share.turns else None

    def beside(self, number: int) -> tuple[int, ...]:
        """The jobs that are packed with one on its GPUs, or run there as its guests."""
        if self.guests is not None:
            job = self.jobs.get(number)
            on = () if job is None else [other for place in job.devices() for other in self.usage.on(place)]
            return tuple(sorted({other.id for other in on} - {number}))
        turn = self.turns.of.get(number)
        return () if turn is None else turn.beside

    def prioritize(self, job: Job, priority: int, why: str, at: float) -> None:
        """Change the priority of a job that waits, or among those that share its GPUs: its place in line stays then.

        Raises :class:`ConflictError` for any other.
        """
        if job.state.waits and job.priority >= 0 and job.state is not JobState.RESERVED and not job.entry.holds:
            self.scheduler.withdraw(job.entry)
            self.becomes(job, JobEvent.PRIORITIZED, None, at, {"priority": priority, "why": why})
            if job.state is JobState.QUEUED:
                self.line_up(job)
            return
        if job.priority < 0:
            raise ConflictError(f"{job.name} is opportunistic, which is below all priorities; submit it without that")
        if not (job.state.stays and job.id in self.turns.of and self.may_take_turns(job)) or job.entry.alone:
            raise ConflictError(
                f"{job.name} is {job.state.value}: a job gets another priority while it waits in line for its turn, or "
                "takes turns with others"
            )
        self.becomes(job, JobEvent.PRIORITIZED, None, at, {"priority": priority, "why": why})
        self.scheduler.set_priority(job.entry, priority, at)

    def edit(self, job: Job, changes: Mapping[str, object], user: str, at: float) -> None:
        """Change fields of the spec of a job that waits, or the time limit of one that runs.

        One that waits keeps its place where its policy looks at none of them. Raises :class:`ConflictError` for any
        other job, and where nothing changes.
        """
        found = {name: [was, has] for name, has in changes.items() if (was := getattr(job.spec, name)) != has}
        runs, policy = job.state.stays, self.policies[job.vc]
        if runs and (changes.keys() != {"time_limit_s"} or policy.clairvoyant):
            why = (
                f"policy {policy.name} of {job.vc} has given it its turn by its time limit"
                if policy.clairvoyant
                else "of a job that runs the time limit alone is edited"
            )
            raise ConflictError(
                f"{job.name} is {job.state.value}: {why}; hived requeue --hold stops it, to be edited and released"
            )
        if not runs and (not job.state.waits or job.state is JobState.RESERVED or job.entry.holds):
            hint = "; hived hold takes it out of line first" if job.state is JobState.RESERVED else ""
            raise ConflictError(f"{job.name} is {job.state.value}, and only a job that waits in line is edited{hint}")
        if not found:
            raise ConflictError(f"{job.name} asks for that already")
        if not runs:
            self.scheduler.withdraw(job.entry)
            self.holds.resizes(job)
        self.becomes(job, JobEvent.EDITED, None, at, {"changes": found, "user": user})
        if runs:
            self._limit_time(job)
            return
        if job.state is JobState.QUEUED:
            self.line_up(job)
        self.holds.resized(job, at)

    def limit_array(self, array: int, most: int, user: str, at: float) -> None:
        """Change how many jobs of an array are in line or at work at a time (0: all). O(jobs that have not ended).

        Those beyond it that have GPUs keep them. Raises :class:`ConflictError` where nothing changes.
        """
        jobs = [job for job in self.jobs.values() if job.spec.array_id == array]
        if not jobs:
            raise ConflictError(f"all of array {array} has ended")
        if all(job.spec.array_most == most for job in jobs):
            raise ConflictError(f"array {array} has that limit already")
        if len(jobs) > MOST_LIMITED:  # an event each, and another of who is held
            raise ConflictError(
                f"array {array} has {len(jobs):,} jobs that have not ended, and of {MOST_LIMITED:,} at most the limit "
                "is changed: hived hold keeps some of them out of line"
            )
        for job in jobs:
            changes = {"array_most": [job.spec.array_most, most]}
            self.becomes(job, JobEvent.EDITED, None, at, {"changes": changes, "user": user})
        self.holds.array_limited(array, jobs, at)

    def patience_s(self, job: Job) -> float:
        """For how long a job that is told to pause may go on: a guest as long as a loan may, that is to end."""
        return float(self.health.grace_of_loans(job.vc)) if job.entry.runs_as_guest else OBEYS_WITHIN_S

    def does_not_obey(self, job: Job, at: float) -> None:
        """A job that did not pause, and shares no GPUs any more."""
        if job.entry.runs_as_guest and job.state.stays:
            if self.probe.knows(job.id) or at - (job.started_at or at) > OBEYS_WITHIN_S:
                self._apart.add(job.id)
                self.stop(job, at, "moved", NOT_ALONE)
            else:
                self.stop(job, at, "moved", NOT_READY)
            return
        if job.entry.status not in (Status.GUARANTEED, Status.SHARING):
            return
        job.entry.stand_alone()
        self.turns.forget(job.id)
        if self.scheduler.extension is not None:
            self.scheduler.extension.invalidate()

    def cannot_be_told(self, job: Job, at: float) -> None:
        """A job that is to pause or to go on, and is out of reach: it starts anew."""
        if job.state.stays:
            self.stop(job, at, "requeued", OUT_OF_REACH)

    def _set_elastic(self, job: Job, elastic: bool, at: float) -> None:
        job.entry.view = job.entry.view._replace(elastic=elastic)
        if self.scheduler.extension is not None:
            self.scheduler.extension.set_elastic(job.entry, at)

    def does_not_scale(self, job: Job, at: float) -> None:
        """An elastic job did not grow, or did not shrink, and keeps its number of workers."""
        if job.id in self._rigid or not job.state.stays:
            return
        self._rigid.add(job.id)
        shrinks = self.turns.shrinks(job)
        self.turns.stays_as_it_is(job.id)
        self._set_elastic(job, False, at)
        if shrinks:
            self.stop(job, at, "moved", RIGID)

    def takes_turns(self, job: Job) -> bool:
        """Whether a job runs, by its turns, on GPUs where others of its VC have their cells."""
        if not job.holds or not self._shares:
            return False
        if self._group(job) is not None and job.id not in self.turns.of:
            return False
        own = self.own_placement(job)
        return own is None or set(own.devices()) != set(job.devices())

    def own_placement(self, job: Job) -> Placement | None:
        """Its own cells; None: it has none, and takes turns on those of others."""
        group = self._group(job)
        return None if group is None else group.placement

    def _where_it_runs(self, job: Job, core: Placement) -> Placement:
        if job.placement is None or set(core.devices()) == set(job.devices()):
            return by_task(core, job.spec)
        return replace(job.placement, reserved_levels=core.reserved_levels[:1] * len(job.placement.pods))

    def _start(self, job: Job, placement: Placement, at: float) -> None:
        elsewhere = job.holds and set(placement.devices()) != set(job.devices())
        if self.guests is not None and elsewhere and job.state is not JobState.SUSPENDED:
            self.scheduler.release(job.entry, False, at)
            self.stop(job, at, "moved", "it has other GPUs now")
            return
        if self.guests is not None:
            self.guests.follow(job, placement, at)
            self.turns.give_to_guest(job)
        if job.holds or ((self.turns.of or self.guests is not None) and self.turns.is_taken(job, placement)):
            # it was in line with its processes, and goes on there; or others run there yet, though it is its own by now
            self.turns.of[job.id] = SharedTurn(placement)
        else:
            self.start_on(job, placement, at)

    def start_on(self, job: Job, placement: Placement, at: float) -> None:
        """Start a job on these GPUs, on which nobody else is but those beside it."""
        placement = by_task(placement, job.spec)
        port = self._free_port() if job.spec.tasks > 1 else 0
        floor = {"floor": FLOOR} if job.entry.runs_as_guest else {}
        self.becomes(job, JobEvent.STARTED, placement, at, {"attempt": job.attempt + 1, "port": port, **floor})
        self._started(job)

    def _reserve(self, job: Job, placement: Placement, victims: Sequence[str], at: float) -> None:
        if not job.holds:  # else it has paused elsewhere: it is started here at once, or stopped there
            super()._reserve(job, placement, victims, at)

    def _preempt(self, job: Job, by: Job | None, at: float) -> None:
        if job.state.waits:  # others were on its GPUs until now
            self._give_back(job, at)
        elif job.state.stays:
            self.note_displaced(job, by, at)
            who = GHOST.format(job.vc) if by is None else f"{by.name} of {by.vc}"
            self.stop(job, at, "preempted", f"preempted by {who}", by)
        else:  # it is being stopped already: its grace may be shorter from now on, if it is on a loan
            self.instruct(StopTasks(job.id, job.attempt))

    def _move(self, job: Job, why: str, at: float) -> None:
        if job.state.waits:
            self._give_back(job, at)
        elif self.guests is not None and job.state.stays and self.shares_gpus(job) and self.probe.knows(job.id):
            self.turns.of[job.id] = None  # it pauses here and goes on there, and keeps its work
            if job.state is JobState.SUSPENDED:
                self._moves_on(job, at)
        else:
            self.stop(job, at, "moved", why)

    def _moves_on(self, job: Job, at: float) -> None:
        """A guest whose turn has come on other GPUs has paused: it is in line, its processes where they were."""
        assert self.guests is not None
        self.turns.moved.add(job.id)
        self.scheduler.release(job.entry, True, at)
        self.guests.left(job, at)
        self.guests.beside_nobody(job)

    def _give_back(self, job: Job, at: float) -> None:
        """A job that has got GPUs, and was not started on them yet, waits again."""
        self.turns.of.pop(job.id, None)
        if job.state is JobState.RESERVED:  # this releases them too
            self.becomes(job, JobEvent.UNRESERVED, None, at, {"why": "others were on its GPUs until now"})
        else:
            self.scheduler.release(job.entry, True, at)
        if self.guests is not None:
            self.guests.left(job, at)

    # -- transitions of jobs --------------------------------------------------------------------------------------

    def _started(self, job: Job) -> None:
        self.instruct(StartTasks(job.id, job.attempt))
        if job.relimited:
            self._limit_time(job)
        elif job.limit_at is not None:
            self.instruct(WakeAt(job.id, job.limit_at))

    def _limit_time(self, job: Job) -> None:
        self.instruct(LimitTime(job.id, job.attempt))
        if job.limit_at is not None:
            self.instruct(WakeAt(job.id, job.limit_at))

    def stop(
        self,
        job: Job,
        at: float,
        cause: str,
        why: str,
        by: Job | None = None,
        hold: bool = False,
        at_once: bool = False,
        held_by: str = "",
    ) -> None:
        """Have the tasks of a job stopped, for this cause; ``by``: the job that it makes room for.

        ``hold``: it is held once it is back in line, by ``held_by``. ``at_once``: it has no grace.
        """
        data: dict[str, object] = {"cause": cause, "why": why, "attempt": job.attempt}
        data |= {"hold": True, "held_by": held_by} if hold else {}
        data |= {"at_once": True} if at_once else {}
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
        if job.at_once:
            return 0.0
        loan = job.spec.opportunistic or job.spec.early
        group = self._group(job)
        capped = not job.guaranteed and (loan or (group is not None and bool(group.preempted_by)))
        return min(job.spec.grace_s, self.health.grace_of_loans(job.vc)) if capped else job.spec.grace_s

    def first_signal(self, job: Job) -> str:
        """The signal with which a job is stopped: one by which it saves its state, where it starts anew elsewhere."""
        saves = job.spec.checkpoint_signal if job.stopping_for in REQUEUES else None
        return saves or "TERM"

    def _hardware_changed(self, at: float) -> None:
        if self.health.apply():
            self.lost_reservations(self.scheduler.hardware_changed(), "GPUs of them take no jobs any more", at)

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
                if (job.id in self.turns.of and self.guests is None) or job.name in report.cancelled:
                    continue
                core = self.cluster.group(job.name).placement
                assert job.placement is not None
                left = _without(job.placement.pods, set() if core is None else set(core.devices()))
                if left:
                    self.beyond[job.id] = left
        self._claim()
        self.health.apply()  # the scheduler does not know the new virtual clusters yet, and looks at all then

    def _claim(self) -> None:
        """Keep the devices that jobs hold beyond the core's knowledge from all other jobs."""
        held = [pod for pods in self.beyond.values() for pod in pods]
        self.health.set_claimed((pod.node, device) for pod in held for device in pod.leaf_cells)

    def guarantee_changed(self, job: Job, why: str, at: float, by: str | None = None) -> None:
        """See :meth:`Dispatcher.guarantee_changed`. A job keeps its devices even where the spec lacks them."""
        group = self._group(job) if job.holds else None
        now = None if group is None else group.placement
        if now is None or job.placement is None:
            return
        if job.id in self.turns.of and self.guests is None and set(now.devices()) != set(job.devices()):
            # it runs where others of its VC have their cells
            if not now.guaranteed and job.state.stays:
                self.stop(job, at, "moved", why)
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
        self.holds.changed(job)
        self.counts.follow(job, event, before, self.guests is not None)
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
            self.turns.left(job.id)
            if held:
                self.turns.of.pop(job.id, None)
                job.entry.may_preempt = True
        if event.kind == JobEvent.REQUEUED and job.held_by_hand:
            self.holds.requeued(job)
        if job.state.ended:
            self.holds.ended(job)
            self.turns.of.pop(job.id, None)
            self._rigid.discard(job.id)
            self.probe.forget(job.id)
            del self.jobs[job.id]
        if not job.holds and self.beyond.pop(job.id, None) is not None:
            self._claim()
            self._hardware_changed(event.at)

    def _follow_guests(self, job: Job, event: Event) -> None:
        assert self.guests is not None
        if job.holds and job.entry.holds and job.placement is not None and event.kind != JobEvent.SHARED:
            self.guests.follow(job, job.placement, event.at)
            if event.kind == JobEvent.PROMOTED and job.state.stays:
                self.turns.give_to_guest(job)
        elif not job.entry.holds:
            self.guests.left(job, event.at)
        if job.id in self._apart and not job.holds:
            self._apart.discard(job.id)
            if not job.state.ended:
                self.scheduler.withdraw(job.entry)
                job.entry.stand_alone()
                self.line_up(job)


def _without(pods: Iterable[PodPlacement], taken: Collection[Device]) -> tuple[PodPlacement, ...]:
    """The pods without the devices of ``taken``; a pod left without devices is dropped."""
    left = [PodPlacement(node, tuple(d for d in devices if (node, d) not in taken)) for node, devices in pods]
    return tuple(pod for pod in left if pod.leaf_cells)
