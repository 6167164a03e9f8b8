"""What both engines share around the one scheduler: usage per tenant, the event log, and carrying out instructions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Generic, TypeVar

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.cluster.explain.queries import GroupStatus
from hived.cluster.explain.reasons import NeverFits, Reason
from hived.cluster.recovery import Reconfiguration
from hived.errors import InvariantError, RequestError
from hived.scheduling import Entry, Policies, Policy, SomePolicies, Status
from hived.scheduling import instructions as decided
from hived.scheduling.exact import ExactScheduler, check_together
from hived.scheduling.probe import Probe
from hived.scheduling.scheduler import PastUse
from hived.spec.changes import changes
from hived.spec.compiled import ClusterSpec, Device

from .hardware import Hardware
from .histogram import WAITS_S, Histogram
from .holdings import Holdings
from .job import EngineJob, Event, placement_data
from .states import Effect, JobEvent, JobState, transition
from .trading import LiveTrading

#: in place of a preemptor of this VC
GHOST = "a job of {0} that ended early, and has its turn now (exact safety)"

#: why a job runs on in other cells of its VC, or in none; or why its reservation has ended
NEW_SPEC = "the cluster has a new spec"
TRADED = "cells of its VC were traded"

#: a policy that displaces one job so often in a row, each time after a shorter run than these seconds, may swap jobs
#: for ever without work being done; the simulator, which knows the work, refuses one that does
VAIN_RUNS, VAIN_RUN_S = 20, 60.0
_MOST_VAIN = 1000  #: jobs of which it is counted, those displaced last

J = TypeVar("J", bound=EngineJob)
#: an instruction of the engine to its surroundings: start or stop processes, bind or delete pods
D = TypeVar("D")


class Goes(Enum):
    """How a job goes on that has given up its GPUs; so does its virtual job (exact safety)."""

    ENDED = "ended"  #: by itself
    WAITS = "waits"  #: in line at once
    RETURNS = "returns"  #: it will be submitted again under its name, or lined up
    WITHDRAWN = "withdrawn"  #: cancelled


class Usage(Generic[J]):
    """Sums over jobs that have not ended. Call :meth:`remove` before a job changes, :meth:`add` after. O(its GPUs)."""

    def __init__(self) -> None:
        #: GPUs in guaranteed use, per virtual cluster
        self.used: Counter[str] = Counter()
        #: GPUs held opportunistically, per virtual cluster
        self.lent: Counter[str] = Counter()
        #: jobs that hold no GPUs, per virtual cluster
        self.waiting: Counter[str] = Counter()
        #: jobs per virtual cluster and state
        self.states: Counter[tuple[str, str]] = Counter()
        #: jobs, and GPUs that guaranteed ones have or are in line for that nobody holds, per virtual cluster and user
        self.jobs_of: Counter[tuple[str, str]] = Counter()
        self.gpus_of: Counter[tuple[str, str]] = Counter()
        #: guests, and jobs with limits, per virtual cluster
        self.guests: Counter[str] = Counter()
        self.limited: Counter[str] = Counter()
        #: jobs with guests beside them, by name
        self.hosts: dict[str, J] = {}
        #: GPUs in guaranteed use, per node that has any
        self.nodes: Counter[str] = Counter()
        #: guaranteed jobs that run as opportunistic at present, by name
        self.displaced: dict[str, J] = {}
        #: jobs that wait for something else than GPUs, by name, the latest last
        self.aside: dict[str, J] = {}
        #: the job that holds each device, of several there the latest that is guaranteed
        self.at: dict[Device, J] = {}
        self._on: dict[Device, list[J]] = {}
        #: the VC that each device is counted for, and whether as guaranteed
        self._counted: dict[Device, tuple[str, bool]] = {}

    def add(self, job: J) -> None:
        """Count a job."""
        self._count(job, 1)
        if job.state.aside:
            self.aside[job.name] = job
        if job.holds:
            if job.beside and not job.guest:
                self.hosts[job.name] = job
            if not job.guaranteed and job.priority >= 0:
                self.displaced[job.name] = job
            for place in job.devices():
                self._on.setdefault(place, []).append(job)
                self._count_device(place)

    def remove(self, job: J) -> None:
        """Subtract a job."""
        if job.holds:
            for place in job.devices():
                others = self._on[place]
                others.remove(job)
                if not others:
                    del self._on[place], self.at[place]
                self._count_device(place)
        self._count(job, -1)
        for of in self.displaced, self.aside, self.hosts:
            of.pop(job.name, None)

    def on(self, place: Device) -> Sequence[J]:
        """The jobs that hold a device: one, or those that take turns there or run beside each other."""
        return self._on.get(place, ())

    def others(self, known: Container[str]) -> list[str]:
        """Virtual clusters that have GPUs and are not ``known``, since they were removed; by name. O(VCs)."""
        return sorted(vc for vc in {*+self.used, *+self.lent} if vc not in known)

    def per_state(self) -> Counter[str]:
        """Jobs per state. O(virtual clusters)."""
        found: Counter[str] = Counter()
        for (_, state), number in self.states.items():
            found[state] += number
        return found

    def _count(self, job: J, sign: int) -> None:
        vc = job.vc
        self.states[vc, job.state.value] += sign
        of = vc, job.entry.view.user
        self.jobs_of[of] += sign
        self.gpus_of[of] += sign * job.gpus * (job.state is not JobState.HELD and job.priority >= 0)
        if not self.jobs_of[of]:
            del self.jobs_of[of], self.gpus_of[of]
        if not job.holds:
            self.waiting[vc] += sign
        self.guests[vc] += sign * job.guest
        self.limited[vc] += sign * (job.limits is not None)

    def _count_device(self, place: Device) -> None:
        """Count a device for one of the jobs there: a guaranteed one, if there is any."""
        on, before = self._on.get(place, ()), self._counted.pop(place, None)
        if before is not None:
            self._count_for(place[0], *before, -1)
        if on:
            first = self.at[place] = next((job for job in reversed(on) if job.guaranteed), on[-1])
            self._counted[place] = first.vc, first.guaranteed
            self._count_for(place[0], first.vc, first.guaranteed, 1)

    def _count_for(self, node: str, vc: str, guaranteed: bool, sign: int) -> None:
        if not guaranteed:
            self.lent[vc] += sign
            return
        self.used[vc] += sign
        self.nodes[node] += sign
        if not self.nodes[node]:
            del self.nodes[node]


#: changes of a new spec that are said
_CHANGES = 12


class Dispatcher(ABC, Generic[J, D]):
    """The jobs of an engine. A fact costs O(log jobs), and the core's placement cost of each job that starts."""

    #: why a reservation has ended, where no other job has taken it
    nodes_refused = "its nodes are not to be used any more"

    def __init__(
        self,
        cluster: Cluster,
        policies: SomePolicies,
        last_event: int = 0,
        most_events: int | None = None,
        trading: LiveTrading | None = None,
        probe: Probe | None = None,
        past_use: PastUse | None = None,
    ) -> None:
        """``last_event``: number of the latest event so far; ``most_events``: how many are kept in memory.

        ``trading``: whose spec in force the cluster has; ``probe``: what is measured of jobs that share GPUs;
        ``past_use``: see :class:`~hived.scheduling.Scheduler`.
        """
        self.cluster = cluster
        self.cluster.spare_work(True)
        #: those that the tenants have chosen
        self.policies = policies if isinstance(policies, Policies) else Policies(policies)
        self.scheduler = ExactScheduler(cluster, self.policies, self._carry_out, probe, past_use)
        self.trading = LiveTrading(cluster.spec) if trading is None else trading
        self.trading.attach(self)
        self.usage: Usage[J] = Usage()
        #: number of the latest event
        self.seq = last_event
        #: the latest events, oldest first
        self.recent: deque[Event] = deque(maxlen=most_events)
        #: number of jobs that have ended since it decides, by their VC and how
        self.ended_as: Counter[tuple[str, JobState]] = Counter()
        #: number of preempted jobs, by their VC and the VC of the preemptor
        self.preempted: Counter[tuple[str, str]] = Counter()
        #: how long the jobs that were started had waited, by VC
        self.waited: dict[str, Histogram] = {}
        self._instructions: list[D] = []
        #: who has GPUs, and since when
        self.holdings = Holdings()
        self._reserved_by: ClusterSpec | None = None
        self._now = 0.0
        #: by the name of a job: how often in a row its policy has displaced it after a short run, the last one last
        self._vain: dict[str, int] = {}

    # -- what an engine implements ------------------------------------------------------------------------------------

    @abstractmethod
    def job(self, number: int) -> J:
        """The job with this number, which waits or holds GPUs."""

    @abstractmethod
    def active(self) -> Iterable[J]:
        """The jobs that have not ended."""

    @property
    @abstractmethod
    def hardware(self) -> Hardware:
        """The nodes and devices of the cluster."""

    @abstractmethod
    def _goes(self, job: J, event: JobEvent) -> Goes:
        """How a job goes on that gives up the GPUs that it holds by this event."""

    @abstractmethod
    def _changed(self, job: J, event: Event, held: bool, before: Placement | None) -> None:
        """An event has changed a job, which ``held`` GPUs before or not: follow it."""

    @abstractmethod
    def guarantee_changed(self, job: J, why: str, at: float, by: str | None = None) -> None:
        """Take over the core's binding of a job, if it has changed. ``by``: the job that it made room for."""

    @abstractmethod
    def _start(self, job: J, placement: Placement, at: float) -> None:
        """Start a job on the GPUs of ``placement``, which it now holds."""

    def _reserve(self, job: J, placement: Placement, victims: Sequence[str], at: float) -> None:
        """These GPUs are reserved for a job until victims have ended, in place of others, if it had any."""
        if job.reserved:
            self.becomes(job, JobEvent.UNRESERVED, None, at, {"why": "other GPUs are reserved for it by now"})
        self.becomes(job, JobEvent.RESERVED, placement, at, {"victims": list(victims)})

    @abstractmethod
    def _preempt(self, job: J, by: J | None, at: float) -> None:
        """Evict a victim for the preemptor ``by``; None: for one that has ended early (exact safety)."""

    @abstractmethod
    def _move(self, job: J, why: str, at: float) -> None:
        """Evict a job from its GPUs, so that it starts on other ones."""

    @abstractmethod
    def _policies_of(self, spec: ClusterSpec) -> Mapping[str, Policy]:
        """The policies that the tenants of a spec have chosen. Raises :class:`~hived.errors.InputError`."""

    @abstractmethod
    def _reconfigured(self, report: Reconfiguration, why: str, at: float) -> None:
        """Take over what the core has made of the jobs under another spec; ``why``: of those with other cells."""

    def _share(self, job: J, share: decided.Share, at: float) -> None:
        """A job has other turns on GPUs that it shares with others."""
        raise InvariantError(f"{job.name} takes turns, which this engine does not carry out")

    def _where_it_runs(self, job: J, core: Placement) -> Placement:
        """The placement of a job that the core has promoted at its own."""
        return core

    def _promoted(self, job: J) -> None:
        """A job was promoted: it is guaranteed on the GPUs that it holds."""

    def _hold(self, job: J, reasons: tuple[Reason, ...]) -> None:
        """A job stays in the queue, for these reasons."""
        job.reasons = reasons

    # -- what both engines share --------------------------------------------------------------------------------------

    def becomes(self, job: J, event: JobEvent, placement: Placement | None, at: float, data: dict[str, object]) -> None:
        """Apply an event to a job: the one place where a job changes, and the usage counts and the scheduler with it.

        ``placement``: the GPUs that the event gives it. Those that it releases are free for others from here on. Raises
        :class:`~hived.errors.InvariantError` for an event that is not in :data:`.states.JOB_TABLE`.
        """
        before, held, was = job.placement, job.holds, job.state
        releases = transition(was, event)[1] is Effect.RELEASE
        # a job that takes turns may hold what others run on, or have cells before its tasks run
        has = job.entry.holds or job.entry.status is Status.SHARING
        if releases and held and not has:
            job.entry.yields = False
            if self._goes(job, event) is not Goes.WAITS:
                self.scheduler.withdraw(job.entry)
            elif job.entry.status is Status.NOWHERE:
                self.scheduler.wait(job.entry)
        elif releases and (held or has):
            goes = self._goes(job, event)
            self.scheduler.release(job.entry, goes is Goes.WAITS, at)
            if goes is Goes.RETURNS:
                self.scheduler.returns(job.entry, at)
            elif goes is Goes.WITHDRAWN:
                self.scheduler.withdraw(job.entry)
        self.usage.remove(job)
        if placement is not None:
            data["placement"] = placement_data(placement)
        happened = self.note(event, job.ref, at, data)
        job.apply(happened)
        if not job.state.ended:
            self.usage.add(job)
        elif not was.ended:
            self.ended_as[job.vc, job.state] += 1
        if not held and not has and (job.state.ended or job.state.aside):
            self.scheduler.withdraw(job.entry)
        self._changed(job, happened, held, before)
        self.holdings.follow(job, at)
        if was is JobState.RESERVED and (job.state.ended or job.state.aside):
            self.spared(at)
        if was.aside and job.state.waits and not job.state.aside:
            self.line_up(job)

    def note(self, kind: str, job: object, at: float, data: dict[str, object]) -> Event:
        """Record an event of ``job``, by number or name, or (None) of hardware or the engine."""
        self.seq += 1
        event = Event(self.seq, at, str(kind), job, data)
        self.recent.append(event)
        return event

    def instruct(self, *instructions: D) -> None:
        """Queue instructions to be carried out."""
        self._instructions += instructions

    def dispatch(self, at: float) -> None:
        """Run the scheduler: start every job that can start."""
        self._now = at
        if (spec := self.cluster.spec) is not self._reserved_by:
            self._reserved_by = spec
            self.holdings.reserve({vc.name: spec.reserved(vc) for vc in spec.virtual_clusters}, at)
        self.scheduler.dispatch(at)

    def reserved(self) -> list[J]:
        """Jobs that wait with a reservation, in the order in which they got it."""
        return [self.job(number) for number in self.scheduler.reserved]

    def waiting(self, most: int) -> list[J]:
        """Jobs without GPUs: with a reservation, in line by their turns, aside, and not in line yet. At most ``most``.

        O(most), and O(jobs) where some are not in line yet.
        """
        found = self.reserved()
        found += (self.job(entry.number) for entry in self.scheduler.in_turn(max(0, most - len(found))))
        found += islice(self.usage.aside.values(), max(0, most - len(found)))
        # the rest waits for pods that do not exist yet, or for kube-scheduler to ask
        if left := min(most, self.usage.waiting.total()) - len(found):
            known = {job.name for job in found}
            rest = (job for job in self.active() if job.state.waits and job.name not in known)
            found += islice(rest, max(0, left))
        return found[:most]

    def note_displaced(self, job: J, by: J | None, at: float) -> None:
        """Count a running job that is displaced for ``by``; record it, once in a row, if it may be in vain."""
        self.preempted[job.vc, job.vc if by is None else by.vc] += 1
        if by is not None and (by.vc != job.vc or by.priority > job.priority):
            return  # not by its policy: its cells were another's, or a higher priority takes them
        runs = self._vain.pop(job.name, 0) + 1
        if at - (job.started_at or job.since) >= VAIN_RUN_S:
            return
        self._vain[job.name] = runs
        if len(self._vain) > _MOST_VAIN:
            del self._vain[next(iter(self._vain))]
        if runs == VAIN_RUNS:
            of = {"vc": job.vc, "policy": self.policies[job.vc].name, "job": job.name}
            self.note("no_progress", None, at, {**of, "runs": runs, "run_s": VAIN_RUN_S})

    def count_wait(self, job: J, at: float) -> None:
        """Count how long a job that is started has waited."""
        # one that was displaced before its tasks ran has waited all along, and since its last start here
        since = max(job.since, job.started_at or job.since)
        self.waited.setdefault(job.vc, Histogram(WAITS_S)).add(at - since)

    def _group(self, job: J) -> GroupStatus | None:
        """A job as the core has it; None: it has no cells of its own, and takes turns on those of others."""
        try:
            return self.cluster.group(job.name)
        except RequestError:
            return None

    def line_up(self, job: J) -> None:
        """Put a job into the scheduler's queue."""
        self.scheduler.wait(job.entry)

    def lost_reservations(self, lost: Iterable[Entry], why: str, at: float) -> None:
        """Requeue the jobs whose reservations the core has ended."""
        for entry in lost:
            self.unreserve(self.job(entry.number), why, at)

    def unreserve(self, job: J, why: str, at: float) -> None:
        """Requeue a job whose reservation the core has ended."""
        self.becomes(job, JobEvent.UNRESERVED, None, at, {"why": f"it had GPUs reserved: {why}"})
        self.line_up(job)
        self.spared(at)

    def spared(self, at: float) -> None:
        """Restore guarantees after a reservation has ended: jobs that made room for it may be guaranteed again."""
        for job in list(self.usage.displaced.values()):
            group = self._group(job)
            if group is not None and group.guaranteed:
                self.guarantee_changed(job, "its VC's cells are its own again", at)

    def reconfigure(self, spec: ClusterSpec, at: float, user: str = "") -> Reconfiguration:
        """Change the spec and the policies of VCs under running jobs, told so by ``user``; trades go on if they can.

        Raises what the policies of the spec and :meth:`Cluster.reconfigure` raise; nothing changes then.
        """
        policies = self.check_policies(spec)
        changed = list(map(list, islice(changes(self.trading.base, spec), _CHANGES)))
        rebased = self.trading.market.under(spec)
        report = self.cluster.reconfigure(rebased.trades.in_force())
        self.policies.assign(policies)
        self.trading.adopt(rebased, at)
        down, lost = [list(pair) for pair in report.downgraded], [name for name, _ in report.lost]
        data: dict[str, object] = {"kept": len(report.kept), "downgraded": down, "lost": lost, "changes": changed}
        data |= {"user": user} if user else {}
        self.note("reconfigured", None, at, data)
        self.trading.tell(at)
        self._reconfigured(report, NEW_SPEC, at)
        return report

    def check_policies(self, spec: ClusterSpec) -> Mapping[str, Policy]:
        """The policies of VCs of a spec. Raises :class:`~hived.errors.InputError` where they cannot be gone by."""
        policies = self._policies_of(spec)
        self.policies.check(policies)
        check_together(Policies(self.policies.default.policy, policies), spec)
        return policies

    def would_reconfigure(self, spec: ClusterSpec) -> Reconfiguration:
        """What :meth:`reconfigure` would answer, and the errors that it would raise. Nothing changes."""
        self.check_policies(spec)
        return self.cluster.would_reconfigure(self.trading.market.under(spec).trades.in_force())

    # -- what the market asks, see :class:`.trading.Door` ------------------------------------------------------------

    def cells_in_use(self, tenant: str) -> Mapping[tuple[str, int], int]:
        """Cells of a tenant that it cannot give: in use, or such that no healthy ones are left for them."""
        found, spec = dict(self.cluster.cells_in_use(tenant)), self.trading.base
        for vc, chain, cell_type, _ in self.cluster.doomed():
            if vc == tenant:
                levels = [level.cell_type for level in spec.chain(chain).levels]
                kind = chain, levels.index(cell_type) + 1
                found[kind] = found.get(kind, 0) + 1
        return found

    def would_displace(self, spec: ClusterSpec) -> tuple[str, ...]:
        """Guaranteed jobs that would lose their cells under this spec."""
        return self.cluster.would_downgrade(spec)

    def stranded(self, tenant: str, spec: ClusterSpec, reserved: ClusterSpec) -> list[str]:
        """Jobs of a tenant that fit its cells in ``reserved``, and not those in ``spec``."""
        aside = [job.entry for job in self.usage.aside.values() if job.vc == tenant]
        return self.scheduler.stranded(tenant, spec, reserved, aside)

    def follow(self, spec: ClusterSpec, at: float) -> None:
        """Have the core follow a spec that differs by trades alone. O(cells of the virtual clusters) if it does not."""
        now = self.cluster.spec
        if spec.virtual_clusters != now.virtual_clusters or spec.withheld != now.withheld:
            effect = self.cluster.trade(spec)
            if effect is None:
                self._reconfigured(self.cluster.reconfigure(spec), TRADED, at)
                return
            self.hardware.resized()
            for entry in self.scheduler.traded(effect):
                self.guarantee_changed(self.job(entry.number), TRADED, at)

    def _carry_out(self, instruction: decided.Instruction) -> None:
        """Carry out an instruction of the scheduler."""
        if isinstance(instruction, decided.Shares):
            for share in instruction.jobs:
                self._share(self.job(share.job), share, self._now)
            return
        job, at = self.job(instruction.job), self._now
        elsewhere = False  # whether its reservation was on other GPUs than it is given now
        match instruction:
            case decided.Start(placement=placement):
                elsewhere = job.reserved and placement != job.placement
                self.count_wait(job, at)
                self._start(job, placement, at)
            case decided.Reserve(placement=placement, victims=victims):
                elsewhere = job.reserved
                self._reserve(job, placement, victims, at)
            case decided.Stop(by=number):
                self._preempt(job, None if number is None else self.job(number), at)
            case decided.Unreserve(by=None):
                self.unreserve(job, self.nodes_refused, at)
            case decided.Unreserve(by=int(number)):
                other = self.job(number).name
                own = f"its turn in {job.vc} is over"
                self.unreserve(job, own if other == job.name else f"{other}, of a higher priority, took it", at)
            case decided.Downgrade(by=number):
                by = self.job(number).name
                self.guarantee_changed(job, f"made room for {by}", at, by)
            case decided.Promote() if job.state.waits:
                pass  # others are on its GPUs yet
            case decided.Promote():
                core = self.cluster.group(job.name).placement
                at_it = None if core is None else self._where_it_runs(job, core)
                self.becomes(job, JobEvent.PROMOTED, at_it, at, {"why": f"its turn in {job.vc} has come"})
                self._promoted(job)
            case decided.Move():
                self._move(job, f"its turn in {job.vc} has come, on other GPUs", at)
            case decided.Unschedulable(reasons=reasons):
                if isinstance(reasons[0], NeverFits):
                    self.trading.short(job.vc)
                self._hold(job, reasons)
        if elsewhere:
            self.spared(at)
