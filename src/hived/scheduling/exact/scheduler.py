"""The scheduler of live engines: jobs in VCs of exact safety follow a virtual timeline, all others wait in queues.

It is :class:`~hived.scheduling.Scheduler` for the engine, which reports the same events and carries out the same
instructions. Two things are otherwise than in a simulation. Stopping a job takes time, so a job gets its cells once
whatever is there has ended; until then they are *owed* to it. And hardware can refuse cells: the timeline is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import TypeVar

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import VirtualLeaves, Wait
from hived.cluster.explain.queries import PlanAnswer
from hived.cluster.explain.reasons import KeptForEnded, Reason, VcExhausted
from hived.cluster.placement_request import PlacementRequest
from hived.cluster.requests import Request
from hived.spec.compiled import EXACT, ClusterSpec

from ..checked_policy import Policies
from ..instructions import Instruction, Start, Stop, Unreserve
from ..probe import Probe
from ..queue import Entry
from ..scheduler import PastUse, Scheduler
from ..states import GUARANTEED, LENT, RESERVED, WAITING
from .following import borrowing_policies, check_exact
from .timeline import VirtualState, VirtualTimeline

R = TypeVar("R")

#: seconds for which the virtual job of an evicted one goes on until that is submitted again
RETURN_S = 600.0


class _Work:
    """The work of a real job, in seconds."""

    __slots__ = ("borrows", "done", "entry", "since")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        #: whether it may take loans at all
        self.borrows = entry.early
        #: done before ``since``, less what resuming costs
        self.done = 0.0
        #: since when it runs; None: it does not
        self.since: float | None = None

    def at(self, now: float) -> float:
        """What it has done by now."""
        return self.done if self.since is None else self.done + max(0.0, now - self.since)


class ExactScheduler(Scheduler):
    """A scheduler some of whose VCs, perhaps none, are of exact safety by the spec."""

    simulated = False

    def __init__(
        self,
        cluster: Cluster,
        policies: Policies,
        carry_out: Callable[[Instruction], None],
        probe: Probe | None = None,
        past_use: PastUse | None = None,
    ) -> None:
        """``policies``: those that the tenants have chosen; ``past_use``: of virtual jobs as of real ones.

        Raises :class:`~hived.errors.PolicyError`.
        """
        if probe is None:
            policies.forbid_sharing()
        self._told = carry_out
        self.timeline = _timeline(cluster.spec, policies, past_use)
        #: names of virtual jobs that have changed since :meth:`take_states`
        self.touched: dict[str, None] = {}
        own = _own(policies, self.timeline)
        super().__init__(cluster, own, self._observe, probe=probe, exact=self.timeline, past_use=past_use)
        self._chosen = policies
        self._work: dict[str, _Work] = {}
        # facts since the last dispatch: jobs that came or left, by name, and the work of those that ended by themselves
        self._moved: dict[str, Entry] = {}
        self._ended: dict[str, float] = {}
        # jobs whose virtual jobs run, and which have not got these cells yet
        self._owed: dict[str, VirtualLeaves] = {}
        # evicted jobs that may be submitted again, and until when their virtual jobs wait for that
        self._returning: dict[str, float] = {}
        # whether cells that hardware has refused may be bound by now
        self._heals = False
        # the states of an earlier timeline, until the next dispatch
        self._restored: dict[str, VirtualState] | None = None

    def restore(self, states: Iterable[VirtualState]) -> None:
        """Go on with the timeline of an earlier process; before the first dispatch."""
        self._restored = {state.name: state for state in states}

    def follows(self, entry: Entry) -> bool:
        """Whether a job is in a VC of exact safety, and not opportunistic."""
        timeline = self.timeline
        return timeline is not None and entry.vc in timeline.vcs and not entry.request.opportunistic

    # -- events -------------------------------------------------------------------------------------------------------

    def wait(self, entry: Entry) -> None:
        """See :meth:`Scheduler.wait`."""
        if self.follows(entry):
            self._moved[entry.name] = entry
            work = self._work_of(entry)
            entry.early = work.borrows and self._pays(entry, work)
        super().wait(entry)

    def withdraw(self, entry: Entry) -> None:
        """See :meth:`Scheduler.withdraw`. A job that has just been freed is cancelled by this."""
        if self.follows(entry):
            self._moved[entry.name] = entry
            self._ended.pop(entry.name, None)
        super().withdraw(entry)

    def returns(self, entry: Entry, now: float) -> None:
        """A job that was freed has been evicted, and will be submitted again under its name."""
        if self.follows(entry):
            self._ended.pop(entry.name, None)
            self._charge(entry, self._work_of(entry))
            self._returning[entry.name] = now + RETURN_S

    def release(self, entry: Entry, waits: bool = False, now: float = 0.0) -> None:
        """See :meth:`Scheduler.release`."""
        if self.follows(entry):
            self._moved[entry.name] = entry
            work = self._work_of(entry)
            work.done, work.since = work.at(now), None
            if waits:
                self._charge(entry, work)
            else:
                self._ended[entry.name] = work.done
        super().release(entry, waits, now)

    def adopt(self, entry: Entry, guaranteed: bool, now: float = 0.0) -> None:
        """See :meth:`Scheduler.adopt`."""
        super().adopt(entry, guaranteed, now)
        if self.follows(entry):
            self._moved[entry.name] = entry
            self._work_of(entry).since = now

    def resized(self, entry: Entry, request: Request, gpus: int, guaranteed: bool) -> None:
        """See :meth:`Scheduler.resized`."""
        super().resized(entry, request, gpus, guaranteed)
        if self.follows(entry):
            self._moved[entry.name] = entry

    def _work_of(self, entry: Entry) -> _Work:
        work = self._work.get(entry.name)
        if work is None:
            work = self._work[entry.name] = _Work(entry)
        elif work.entry is not entry:  # submitted again
            work.entry, work.borrows = entry, entry.early
        return work

    def _charge(self, entry: Entry, work: _Work) -> None:
        """A job was stopped: what is left of its work when it goes on."""
        resume = self._chosen[entry.vc].resume_s
        work.done = max(0.0, work.done - resume) if entry.keeps else 0.0

    def _pays(self, entry: Entry, work: _Work) -> bool:
        """Whether the head start of a job pays for giving a loan back at once (docs/explanation/exact-safety.md)."""
        timeline = self.timeline
        number = None if timeline is None else timeline.number_of(entry.name)
        virtual = 0.0 if timeline is None or number is None else timeline.done(number, self.now)
        policy = self._chosen[entry.vc]
        return virtual <= 0 or (policy.always_keeps_work and work.done - policy.resume_s >= virtual)

    def reconfigured(self) -> list[Entry]:
        """See :meth:`Scheduler.reconfigured`; ``policies`` of the constructor, and the spec, are others by now."""
        if self._restored is None:
            states = [] if self.timeline is None else list(self.timeline.states())
            self.restore(states)
            self.touched |= dict.fromkeys([state.name for state in states])
        self.timeline = self._exact = _timeline(self.cluster.spec, self._chosen, self._past_use)
        self.policies = _own(self._chosen, self.timeline)
        self._owed.clear()
        for entry in self.jobs.values():
            if self.follows(entry):
                self._moved[entry.name] = entry
                work = self._work_of(entry)
                if entry.holds and work.since is None:
                    work.since = self.now
        return super().reconfigured()

    def hardware_changed(self) -> list[Entry]:
        """See :meth:`Scheduler.hardware_changed`."""
        self._heals = True
        return super().hardware_changed()

    def _given_back(self) -> None:
        self._heals = True
        super()._given_back()

    # -- deciding -----------------------------------------------------------------------------------------------------

    def dispatch(self, now: float = 0.0) -> None:
        """See :meth:`Scheduler.dispatch`."""
        timeline = self.timeline
        if timeline is None:
            self._moved.clear()
            self._ended.clear()
            self._restored = None
            super().dispatch(now)
            return
        self.now = now
        if self._restored is not None:
            self._adopt(timeline, self._restored, now)
        while True:
            self._take_in(timeline, now)
            if self._heals:
                self._heals = False
                timeline.heal()
            timeline.finish(now)
            timeline.review(now)
            self._settle(timeline, now)
            version = self.cluster.version
            super().dispatch(now)
            # a reservation that has ended may have been in the way of cells that are owed
            changed = self._owed and version != self.cluster.version
            if not (changed or self._heals or self._moved or timeline.has_changed):
                break
        self.touched |= timeline.touched
        timeline.touched.clear()

    @property
    def next_review(self) -> float:
        """See :meth:`Scheduler.next_review`."""
        review, timeline = super().next_review, self.timeline
        if timeline is not None:
            review = min(review, timeline.next_finish, timeline.next_review, *self._returning.values())
        return review

    def _adopt(self, timeline: VirtualTimeline, states: dict[str, VirtualState], now: float) -> None:
        """Begin a timeline with jobs that are there already. O(jobs).

        Jobs on cells of their VC first, with these cells; a virtual job that is not known has done what they have.
        """
        self._restored = None
        here = {entry.name: entry for entry in self.jobs.values() if self.follows(entry)}

        def before(entry: Entry) -> tuple[bool, int]:  # those of which the timeline knew that they run
            state = states.get(entry.name)
            return state is None or state.leaves is None, entry.number

        for entry in sorted(here.values(), key=before):
            if entry.status is GUARANTEED:
                self._adopt_running(timeline, entry, states.pop(entry.name, None), now)
                self._moved.pop(entry.name, None)
        later = [state for state in states.values() if state.request.vc in timeline.vcs]
        for state in sorted(later, key=lambda state: (state.leaves is None, _number_of(state))):
            job = here.get(state.name)
            if job is None and state.work == inf:
                self.touched[state.name] = None
                continue  # it was cancelled meanwhile
            timeline.restore(_number_of(state) if job is None else job.number, state, now)
            self._moved.pop(state.name, None)

    def _adopt_running(self, timeline: VirtualTimeline, entry: Entry, state: VirtualState | None, now: float) -> None:
        """A job has cells of its VC, which the timeline does not know of."""
        leaves = self.cluster.virtual_leaves(entry.name)
        if state is None:
            view = entry.view._replace(running=False)
            state = VirtualState(entry.name, entry.request, view, 0.0, inf, now, leaves, 0.0, 0.0, 0.0)
            self._work_of(entry).done = 0.0
        elif state.leaves is not None or not entry.yields:
            state = state._replace(leaves=leaves, since=now if state.since is None else state.since)
        timeline.restore(entry.number, state, now, None if entry.yields else leaves)

    def _take_in(self, timeline: VirtualTimeline, now: float) -> None:
        """Tell the timeline which jobs have come and gone since the last dispatch."""
        moved, self._moved = self._moved, {}
        ended, self._ended = self._ended, {}
        for name, entry in moved.items():
            known = timeline.number_of(name)
            ghost = known is not None and timeline.is_ghost(known)
            if entry.number in self.jobs:
                runs = entry.status is GUARANTEED and not entry.yields
                # a ghost: the job was started again, and has lost its head start; others have come back on other cells
                if known is not None and (
                    ghost or timeline.request(name) != entry.request or (runs and not self.is_in_place(entry))
                ):
                    timeline.withdraw(known, now)
                    known = None
                    self._owed.pop(name, None)
                if known is None and runs:
                    self._adopt_running(timeline, entry, None, now)
                elif known is None:
                    timeline.enqueue(entry, now)
                leaves = timeline.runs_on(name)
                if leaves is not None and not runs:
                    self._owed[name] = leaves  # it has lost them for another reason
                self._returning.pop(name, None)
                continue
            self._owed.pop(name, None)
            if name in self._returning:
                continue
            self._work.pop(name, None)
            if known is not None and name in ended and not ghost:
                timeline.ended(known, ended[name], now)
            elif known is not None:
                timeline.withdraw(known, now)
        for name in [name for name, until in self._returning.items() if until <= now]:
            del self._returning[name]
            self._work.pop(name, None)
            known = timeline.number_of(name)
            if known is not None:
                timeline.withdraw(known, now)

    def _settle(self, timeline: VirtualTimeline, now: float) -> None:
        """Carry out what the timeline has decided, and give jobs the cells that are owed to them."""
        while True:
            self._refuse(timeline, now)
            stops, starts = timeline.changes(now)
            for stop in stops:
                entry = self.by_name.get(timeline.name_of(stop.job))
                if entry is not None:
                    by = self.by_name.get(timeline.name_of(stop.by)) if stop.by is not None else None
                    self._stop(entry, Stop(entry.number, None if by is None else by.number, stop.keeps_work), now)
            for number, leaves in starts:
                if not timeline.is_ghost(number):
                    self._owed[timeline.name_of(number)] = leaves
            for name, leaves in list(self._owed.items()):
                entry = self.by_name.get(name)
                if entry is not None and self._give(timeline, entry, leaves, now):
                    del self._owed[name]
                    if timeline.has_changed:  # hardware has refused them
                        break
            else:
                return

    def _refuse(self, timeline: VirtualTimeline, now: float) -> None:
        """Have hardware refuse cells before any job is stopped for them: those that would be may go on then."""
        while True:
            for name, leaves in timeline.starts():
                entry = self.by_name.get(name)
                refused = () if entry is None else self.cluster.refused(entry.request, leaves)
                if refused:
                    timeline.refuse(name, refused, now)
                    break
            else:
                return

    def _stop(self, entry: Entry, stop: Stop, now: float) -> None:
        """The virtual job was stopped."""
        if self._owed.pop(entry.name, None) is not None:
            self._idle = True  # it may take a loan again
        if entry.status is GUARANTEED:
            entry.yields = True
            self.displace(entry, stop, now)
        elif entry.status is RESERVED:
            self._drop_reservation(entry)
            self.cluster.cancel(entry.name)
            self._told(Unreserve(entry.number, entry.number))

    def _give(self, timeline: VirtualTimeline, entry: Entry, leaves: VirtualLeaves, now: float) -> bool:
        """Give a job its cells, or begin to; whether nothing is owed to it any more."""
        if entry.yields:
            return False  # it is being stopped already, and is given them once it has ended
        if entry.status is GUARANTEED:
            return self.cluster.virtual_leaves(entry.name).cells == leaves.cells
        promoted, placed, keep = None, None, entry.may_preempt
        if entry.status is LENT:
            promoted = self.cluster.promote(entry.request, leaves, (), entry.demand)
            if promoted:
                self._become_guaranteed(entry)
            elif promoted is False:
                if entry.excluded and self.cluster.promote(entry.request, leaves, entry.excluded, entry.demand) is None:
                    return False  # it goes on where it is: it may not use the nodes to which it would move
                self._move(entry)
        elif entry.status is not WAITING:
            return False  # its processes have not ended yet
        if entry.status is WAITING and entry.demand is not None:
            asked = PlacementRequest(entry.request, leaves, now, entry.near, entry.excluded, entry.demand)
            placed = self.cluster.place(asked, keep)
            if placed is not None:
                self._apply(entry, placed, keep)
        if promoted is None and placed is None and not entry.excluded:
            refused = self.cluster.refused(entry.request, leaves)
            if refused:
                timeline.refuse(entry.name, refused, now)
                self._idle = True  # it may take a loan again
                return True
        return entry.status is GUARANTEED

    def _reservation_changed(self, entry: Entry) -> bool:
        """See :meth:`Scheduler._reservation_changed`."""
        if not self.follows(entry):
            return super()._reservation_changed(entry)
        # on its leaf cells: they are of the timeline
        return self._is_otherwise(entry, self.cluster.plan(entry.request).decision)

    def _schedule(self, entry: Entry) -> bool | None:
        """See :meth:`Scheduler._schedule`: a job that follows the timeline gets no cells but by that."""
        if not self.follows(entry):
            return super()._schedule(entry)
        if entry.status is not RESERVED:
            return False
        decision = self.cluster.schedule(entry.request, now=self.now)
        if not isinstance(decision, Wait):
            return self._apply(entry, decision)
        self._drop_reservation(entry)
        self._told(Unreserve(entry.number))
        return False

    def _held_back(self, entry: Entry) -> bool:
        """See :meth:`Scheduler._held_back`: a job that waits for leave to preempt would leave a loan at once."""
        return (entry.name in self._owed and not entry.may_preempt) or super()._held_back(entry)

    def _observe(self, instruction: Instruction) -> None:
        if isinstance(instruction, Start):
            entry = self.jobs[instruction.job]
            work = self._work.get(entry.name)
            if work is not None:
                work.since = self.now
        self._told(instruction)

    # -- queries ------------------------------------------------------------------------------------------------------

    def ahead(self, entry: Entry, most: int) -> tuple[int, list[Entry]]:
        """See :meth:`Scheduler.ahead`: in the private cluster, where jobs that ended early are still in line."""
        timeline = self.timeline
        if timeline is None or not self.follows(entry):
            return super().ahead(entry, most)
        return timeline.ahead(entry.name, most)

    def before(self, vc: str, priority: int, most: int, fits: bool = False) -> tuple[int, list[Entry]]:
        """See :meth:`Scheduler.before`."""
        timeline = self.timeline
        if timeline is None or vc not in timeline.vcs or priority < 0:
            return super().before(vc, priority, most, fits)
        return timeline.before(vc, priority, most, fits)

    def diagnose(self, entry: Entry) -> PlanAnswer:
        """See :meth:`Scheduler.diagnose`; by its private cluster where its turn there has not come."""
        timeline = self.timeline
        if timeline is None or not self.follows(entry):
            return super().diagnose(entry)
        cluster = self.cluster if entry.name in self._owed else timeline.cluster
        return cluster.plan(replace(entry.request, group=f"{entry.name} (its turn)"))

    def plan(self, request: Request) -> PlanAnswer:
        """What the core answers a new request, as if it were first in line: a dry run."""
        timeline = self.timeline
        if timeline is not None and request.vc in timeline.vcs and not request.opportunistic:
            answer = timeline.cluster.plan(request)
            if answer.outcome != "now":
                return answer
        return self.cluster.plan(request)

    def ghosts(self, vc: str) -> int:
        """How many GPUs of a VC are kept for jobs that ended early; loans use them."""
        return 0 if self.timeline is None else self.timeline.ghost_gpus.get(vc, 0)

    def with_ended(self, entry: Entry, reasons: Iterable[R], most: int) -> list[R | Reason]:
        """The reasons of a waiting job, with jobs that ended early and keep GPUs; ``most``: how many are named."""
        found: list[R | Reason] = list(reasons)
        gpus = self.ghosts(entry.vc) if self.follows(entry) else 0
        if not gpus or self.timeline is None:
            return found
        ended = self.timeline.ghosts(entry.vc)
        kept = KeptForEnded(entry.vc, gpus, tuple(ended[:most]), max(0, len(ended) - most))
        for place, reason in enumerate(found):
            if isinstance(reason, VcExhausted):  # jobs that have ended hold nothing
                held_by = tuple([pair for pair in reason.held_by if pair[0] not in ended])
                there = [replace(reason, held_by=held_by)] if held_by or reason.more else []
                return [*found[:place], *there, kept, *found[place + 1 :]]
        return [*found, kept]

    def take_states(self) -> list[tuple[str, VirtualState | None]]:
        """What is to be stored of each virtual job that has changed since the last call; None: nothing (any more)."""
        touched, self.touched = self.touched, {}
        timeline = self.timeline
        return [(name, None if timeline is None else timeline.state(name)) for name in touched]

    def is_in_place(self, entry: Entry) -> bool:
        """Whether a guaranteed job has the cells of its virtual job."""
        leaves = None if self.timeline is None else self.timeline.runs_on(entry.name)
        return leaves is not None and self.cluster.virtual_leaves(entry.name).cells == leaves.cells


def _timeline(spec: ClusterSpec, policies: Policies, past_use: PastUse | None) -> VirtualTimeline | None:
    vcs = frozenset(vc.name for vc in spec.virtual_clusters if vc.safety == EXACT)
    if not vcs:
        return None
    check_exact(policies, vcs)
    return VirtualTimeline(spec, policies, vcs, past_use=past_use)


def _own(policies: Policies, timeline: VirtualTimeline | None) -> Policies:
    return policies if timeline is None else borrowing_policies(policies, timeline)


def _number_of(state: VirtualState) -> int:
    """The number of the job of a stored virtual job; the version that did not store it counted all jobs as one line."""
    return state.view.sequence if state.number is None else state.number
