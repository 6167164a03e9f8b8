"""The scheduler: the queues of all virtual clusters over one cluster, as a state machine. Events in, instructions out.

The simulator and both engines drive it. An engine reports events (:meth:`Scheduler.wait`, :meth:`~Scheduler.release`,
...), then calls :meth:`~Scheduler.dispatch`; the engine carries out each instruction before the next is decided. An
evicted job holds its GPUs until the engine calls :meth:`~Scheduler.release`: a simulator does so within the
instruction, an engine once the processes have ended. There is no clock: the engine dispatches when
:attr:`~Scheduler.next_review` has come. A dispatch has three steps:

1. *Reservations.* Each preemptor that waits for victims is scheduled again: it may now fit, there or elsewhere.
2. *Turns.* The head of each VC's line leaves it while the VC has cells for it. A job that already runs on a loan is
   promoted in place if the cluster can bind its GPUs to the VC's cells, and moves otherwise. Where the VC has none, and
   the policy preempts, the head reserves cells of running jobs behind it in the order; these are stopped and requeued.
3. *Loans.* The head of a VC's backlog starts opportunistically while idle GPUs fit it. The VC with the smallest share
   goes first (GPUs on loan over its weight: weighted max-min fairness).

Both queues of a VC are strict head-of-line: the policy's order holds for loans as for turns. The exceptions are jobs
that may wait for ever (larger than their VC, or waiting for bad hardware or for nodes they may not use): these do not
block the jobs behind them. A dispatch visits only the VCs that an event has marked dirty.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush, merge
from itertools import islice, zip_longest
from math import inf
from typing import NamedTuple, Protocol, TypeAlias

from hived.cluster.cluster import Cluster, fitting
from hived.cluster.decisions import Bind, Decision, Preempt, VirtualLeaves, Wait
from hived.cluster.demands import Demand
from hived.cluster.explain.queries import PlanAnswer
from hived.cluster.explain.reasons import (
    BadHardware,
    Misconfigured,
    NeverFits,
    NotSuggested,
    Reason,
    WaitingForPreemption,
)
from hived.cluster.placement_request import ANYWHERE, ON_IDLE, Over, PlacementRequest
from hived.cluster.requests import Request
from hived.cluster.sharing import Sharing
from hived.cluster.states import GroupState
from hived.cluster.trade import TradeEffect
from hived.errors import InvariantError, PolicyError, RequestError
from hived.spec.compiled import ClusterSpec

from .checked_policy import CheckedPolicy, Policies, SomePolicies
from .decayed_use import REVIEW_S, DecayedUse
from .extension import Extension
from .instructions import Downgrade, Instruction, Kind, Move, Promote, Reserve, Start, Stop, Unreserve, Unschedulable
from .loan_heads import LoanHeads
from .policy import GpuSharing
from .probe import Probe
from .queue import BackfillQueue, Entry, Key, Queue, VcQueues
from .running import RunningJobs, work_left
from .states import (
    DOWNGRADE,
    GUARANTEED,
    LEAVE,
    LEND,
    LENT,
    LOSE,
    MOVE,
    MOVING,
    NOWHERE,
    PROMOTE,
    RESERVE,
    RESERVED,
    RESTORE,
    SHARING,
    START,
    STOP,
    WAIT,
    WAITING,
    WITHDRAW,
)

_GUARANTEED, _OPPORTUNISTIC, _ = Kind
#: reasons to wait that do not block the jobs behind: the wait may never end
NON_BLOCKING = (Misconfigured, NeverFits, BadHardware, NotSuggested)
#: reasons to wait that may be over once a job of another VC has ended
_OTHERS_MAY_END = (BadHardware, NotSuggested)
#: how many classes of requests are cached
_MAX_REQUEST_CLASSES = 10_000


class _RequestClass(NamedTuple):
    """The queues and checked demands of all jobs of one class of requests."""

    line: Queue | None  #: where they wait for their turn
    backlog: Queue | None  #: where they wait for a loan
    turn: Demand | None  #: of the request at their turn; None for an invalid request
    loan: Demand | None  #: of the request before it
    first: Entry  #: the job that it was made for


class ExactVcs(Protocol):
    """The VCs of exact safety (:mod:`.exact`)."""

    @property
    def vcs(self) -> frozenset[str]:
        """Their names."""

    @property
    def ghost_gpus(self) -> Mapping[str, int]:
        """Of each: GPUs of its cells that are kept for jobs which have ended early."""

    @property
    def ghosts_changed(self) -> dict[str, None]:
        """The VCs whose number of these may have changed since the caller last cleared this."""


#: of a VC, with a half-life in the engine's unit of time: the decayed GPU time of each user, and as of when
PastUse: TypeAlias = Callable[[str, float], tuple[Mapping[str, float], float]]


class Scheduler:
    """The policies of all VCs over one cluster. The engine numbers the jobs; a number is used once.

    An event costs O(log jobs) for the queues plus the cluster's own cost, and O(kinds of loans) when GPUs may be lent.
    """

    #: whether jobs that are stopped have ended before the next is decided, and nothing else happens to the cluster
    simulated = True

    def __init__(
        self,
        cluster: Cluster,
        policies: SomePolicies,
        carry_out: Callable[[Instruction], None],
        explains: bool = True,
        per_second: float = 1.0,
        probe: Probe | None = None,
        exact: ExactVcs | None = None,
        past_use: PastUse | None = None,
    ) -> None:
        """``explains``: whether jobs that wait get reasons; without it no :class:`.Unschedulable` is issued.

        ``per_second``: how many of the engine's units of time a second has; ``probe``: what is measured of jobs, for
        policies under which they share GPUs. Raises :class:`~hived.errors.PolicyError` for such a policy without it,
        and for two that share in different ways.
        ``exact``: the VCs whose jobs take cells only by :meth:`start_on`, and lose them only by :meth:`displace`.
        ``past_use``: what users have had before, where a policy counts it; None: nothing.
        """
        self.cluster = cluster
        self.policies = policies if isinstance(policies, Policies) else Policies(policies)
        self.per_second = per_second
        self.carry_out = carry_out
        self._explains = explains
        self._quota = cluster.sharing is Sharing.QUOTA
        #: every job that waits or holds GPUs, by number
        self.jobs: dict[int, Entry] = {}
        self.by_name: dict[str, Entry] = {}
        self._of_vc: dict[str, dict[int, Entry]] = {}
        self.queues: dict[str, VcQueues] = {}
        #: preemptors that wait for their victims to end, in the order of their reservations
        self.reserved: dict[int, Entry] = {}
        # those that wait for jobs of their own VC, by VC, and those that wait for loans alone
        self._reserved_in: dict[str, dict[int, Entry]] = {}
        self._reserved_on_loans: dict[int, Entry] = {}
        # since the last look at them: VCs that were given GPUs back; whether any GPUs may be idle, or all may be
        # otherwise
        self._regained: dict[str, None] = {}
        self._any_regained = self._all_otherwise = False
        #: version of the cluster when those that wait for loans were last looked at
        self._reserved_at = -1
        # how many were made
        self._reservations = 0
        self._weights = _weights(cluster.spec)
        self._exact = exact
        self.now = 0.0
        # whether some policy lets jobs pass each other
        self._passing = False
        # None: no policy preempts
        self._running = self._follow_running()
        self._past_use = past_use
        # of the VCs whose policy has a half-life; and when ranks are due where jobs wait, earliest first
        self._use: dict[str, DecayedUse] = {}
        self._use_due: list[tuple[float, str]] = []
        self._use_watched: set[str] = set()
        self._follow_use()
        #: None: no policy has jobs that share GPUs
        self.probe = probe
        if probe is None:
            self.policies.forbid_sharing()
        # the job that a policy is asked about
        self._asked: Entry | None = None
        # changed since the last dispatch: jobs that joined a queue; VCs marked dirty; whether GPUs may have become idle
        self._new: dict[int, Entry] = {}
        self._dirty: dict[str, None] = {}
        self._idle = False
        # VCs a head of whose line may wait only for GPUs that other VCs hold: it is within its quota (quota sharing),
        # or too few are healthy or not excluded; all become dirty when guaranteed jobs give GPUs back
        self._await_others: set[str] = set()
        # VCs in whose line a job stays on its loan, though its turn has come on other GPUs: they become dirty when a
        # job joins the line, and when guaranteed jobs give GPUs back
        self._staying: set[str] = set()
        # backlogs with jobs that were passed by
        self._passed: dict[Queue, None] = {}
        # the head of each backlog
        self._heads = LoanHeads(self._share_of)
        # opportunistic jobs in backlogs, which may take loans of VCs above their share
        self._takers = 0
        # by VC, class of the request, and whether the job may start early
        self._request_classes: dict[tuple[str, Hashable, bool], _RequestClass] = {}
        # reasons to wait per equivalence class, valid for one version of the cluster
        self._reasons: dict[tuple[Hashable, ...], tuple[Reason, ...]] = {}
        self._reasons_version = -1
        #: guests that the core has requeued, and that have not been stopped yet
        self.evicted: set[str] = set()
        # None: no jobs share GPUs
        self._extension = self._extended()

    def _extended(self) -> Extension | None:
        """The extension of the policies whose jobs share GPUs. Raises :class:`PolicyError` if they need two."""
        sharing = sharing_of(self.policies)
        extension: Extension | None = None if sharing is None else sharing.extend(self, sharing.parameters)
        return extension

    # -- events -------------------------------------------------------------------------------------------------------

    def wait(self, entry: Entry) -> None:
        """Queue a job that was submitted or requeued. A requeued job keeps its place in the order."""
        if self.jobs.get(entry.number, entry) is not entry or entry.status is not NOWHERE:
            raise InvariantError(f"job number {entry.number} is used twice")
        policy = entry.policy
        if policy is not self.policies[entry.vc]:  # None, or changed while the job was in no queue
            policy, entry.key = self._introduce(entry), ()
        assert policy is not None
        if policy.preempts and entry.view.running:
            entry.view = entry.view._replace(running=False)
        if not entry.key or policy.preempts or policy.half_life_s:
            entry.key = self._key(entry)
        entry.status = WAIT[entry.status]
        entry.made_way = False
        self._know(entry)
        self._join(entry)

    def withdraw(self, entry: Entry) -> None:
        """Remove a job that holds no GPUs from the queues and from the core."""
        if entry.number not in self.jobs:
            return
        self._forget(entry)
        self.leave_queues(entry)
        if entry.number in self.reserved:
            self._end_reservation(entry)
            self._given_back()
        entry.status = WITHDRAW[entry.status]
        entry.placement = None
        entry.demand = entry.loan_demand = None
        self.mark_dirty(entry.vc)
        if self._explains:
            try:
                self.cluster.group(entry.name)
            except RequestError:
                return  # it never reached the core
            self.cluster.cancel(entry.name)

    def release(self, entry: Entry, waits: bool = False, now: float = 0.0) -> None:
        """Release the GPUs of a job that has ended or was stopped, at ``now``.

        ``waits``: it is requeued, at its old place; where the policy preempts, at the place that it has by now.
        """
        was = entry.status
        self.now = max(self.now, now)
        if was is SHARING:
            self._free_shared(entry)
            if waits:
                self.wait(entry)
            return
        if not entry.holds:
            raise InvariantError(f"job {entry.number} ends, and does not run")
        extension = self._extension
        if extension is not None:
            extension.leaves(entry, self.now)
        if (use := self._use.get(entry.vc)) is not None:
            use.hold(entry, self.now, False)
        if entry.name in self.evicted:
            self.evicted.discard(entry.name)
        else:
            self.cluster.release(entry.name)
        if extension is not None and extension.left(entry, self.now):
            self._dirty[entry.vc] = None
        self._idle = self._any_regained = True
        if was is GUARANTEED:
            self._regained[entry.vc] = None
        line, policy = entry.line, entry.policy
        preempts = policy is not None and policy.preempts
        if self._explains or (self._quota and self._may_preempt_in(entry.vc)):
            self._dirty[entry.vc] = None  # under a quota preemptors wait for GPUs of loans of their VC, too
        elif line is not None and (line.first is not None or line.passes):
            if waits and not preempts:  # at its old place, and what it may not do while it runs, it may now
                again = not entry.early or entry.request.priority > 0
            else:
                again = line.first is entry or line.holds_back_some
            if was is GUARANTEED or again:
                self._dirty[entry.vc] = None
        entry.yields = False
        if was is GUARANTEED:
            self._given_back()
        if not waits:
            self.leave_queues(entry)
            entry.status = LEAVE[entry.status]
            entry.demand = entry.loan_demand = None  # a demand refers to the whole cluster state
            self._forget(entry)
            if self._running is not None and preempts:
                self._running.follow(entry, now)
        elif entry.place_in is not None and was in (LENT, MOVING) and not preempts:
            entry.status = LEAVE[entry.status]  # and keeps its place in line
            entry.status = WAIT[entry.status]
            entry.made_way = False
            if not self.simulated:  # as which it was there, it may be no more
                self._mark_guest(entry)
            self.enqueue(entry)
            if self._extension is not None and not self.simulated:
                self._extension.queued(entry)
        else:
            self.leave_queues(entry)
            entry.status = LEAVE[entry.status]
            if self._running is not None and preempts:
                self._running.follow(entry, now)
                self._settle_work(entry)
            self.wait(entry)

    def _may_preempt_in(self, vc: str) -> bool:
        """Whether jobs in a VC's line may preempt jobs of its VC: by the policy, or by their priority."""
        line = self.queues[vc].line
        first = line.first  # the priorities are in order, but for jobs that were passed
        return self._running is not None or line.passes or (first is not None and first.request.priority > 0)

    def _given_back(self) -> None:
        """GPUs of a guaranteed job, or reserved ones, were given back: other VCs may have waited for them."""
        self._dirty.update(dict.fromkeys(self._await_others))
        self._dirty.update(dict.fromkeys(self._staying))  # it may be guaranteed where it is

    def _free_shared(self, entry: Entry) -> None:
        """A job that held no GPUs of its own has ended."""
        assert self._extension is not None
        self._extension.left(entry, self.now)
        entry.status = LEAVE[entry.status]
        entry.demand = entry.loan_demand = None
        self._forget(entry)
        self._dirty[entry.vc] = None

    def set_priority(self, entry: Entry, priority: int, now: float) -> None:
        """Change the priority of a job among those that share GPUs with it; its place in line stays.

        Raises :class:`~hived.errors.InvariantError` where jobs do not share GPUs by priority.
        """
        self.now = max(self.now, now)
        entry.priority = priority
        if self._extension is None or not self._extension.reprioritized(entry, self.now):
            raise InvariantError(f"job {entry.number} does not share GPUs")

    def leaving(self, entry: Entry) -> None:
        """A running job is being stopped for good: it leaves its queues, and holds its GPUs until it has ended."""
        if entry.status in (LENT, MOVING):
            self.leave_queues(entry)
            entry.status = STOP[entry.status]
            entry.near = None
            self._dirty[entry.vc] = None
            self.follow(entry)

    def adopt(self, entry: Entry, guaranteed: bool, now: float = 0.0) -> None:
        """Adopt at ``now`` a job that already runs and that the core has recovered."""
        self.now = max(self.now, now)
        if entry.policy is None:
            self._introduce(entry)
        entry.key = entry.key or self._key(entry)
        self._know(entry)
        # nobody says any more what has made a loan of it
        entry.made_way = entry.request.lazy_preemption and not guaranteed
        self.became(entry, guaranteed)

    def loan(self, entry: Entry) -> Request:
        """The request of a job before its turn, which this does not know yet: for a loan, or as a guest."""
        if entry.policy is None:
            self._introduce(entry)
        self._mark_guest(entry)
        return entry.loan

    def _mark_guest(self, entry: Entry) -> None:
        """Whether a job is a guest before its turn; one that is there as such stays so."""
        guest = self._extension is not None and self._extension.is_guest(entry)
        if guest is not entry.guest and (guest or not entry.holds):
            entry.become_guest(guest)

    def became(self, entry: Entry, guaranteed: bool) -> None:
        """Follow a running job that the core made guaranteed or opportunistic on its own.

        It is in line while it is opportunistic, whatever has made it so: a trade, a new spec, a start before its turn.
        The exception is lazy preemption (decision 0022).
        """
        self.leave_queues(entry)
        self._regained[entry.vc] = None
        if self._extension is not None:
            self._extension.invalidate()
        entry.status = (RESTORE if guaranteed else DOWNGRADE)[entry.status]
        if guaranteed:
            entry.near, entry.made_way = None, False
        entry.placement = None if entry.name in self.evicted else self.cluster.group(entry.name).placement
        if not guaranteed and entry.view.running:
            entry.view = entry.view._replace(running=False)
            entry.key = self._key(entry)
        elif not guaranteed and entry.vc in self._use:
            entry.key = self._key(entry)
        self._find_queues(entry)
        if entry.status in (LENT, MOVING) and (line := entry.place_in) is not None:
            line.add(entry)
            self._new[entry.number] = entry
            self._watch_use(entry.vc)
        self.follow(entry)

    def resized(self, entry: Entry, request: Request, gpus: int, guaranteed: bool) -> None:
        """Follow a running job that has other members by now, or other GPUs."""
        self.leave_queues(entry)
        entry.resize(request, gpus)
        self.became(entry, guaranteed)
        self.mark_dirty(entry.vc)

    def exclude(self, entry: Entry, nodes: frozenset[str]) -> None:
        """Exclude nodes for a job."""
        waits, lent = entry.status is WAITING, entry.status in (LENT, MOVING)
        if waits or lent:  # its queues find it by its class
            self.leave_queues(entry)
        self._regained[entry.vc] = None
        entry.exclude(nodes)
        if lent and (line := entry.place_in) is not None:
            line.add(entry)
        if waits:
            self._join(entry)
            self.mark_dirty(entry.vc)

    def rekey(self, entry: Entry) -> None:
        """Update the place of a waiting or running job after the policy has changed its sort key."""
        self.leave_queues(entry)
        entry.key = self._key(entry)
        if entry.status is WAITING:
            self._join(entry)
        elif entry.status in (LENT, MOVING) and (line := entry.place_in) is not None:
            line.add(entry)
        if entry.holds:
            self.follow(entry)
        self.mark_dirty(entry.vc)

    def mark_dirty(self, vc: str) -> None:
        """Have the next dispatch visit the queues of a VC."""
        if vc in self.queues:
            self._dirty[vc] = None
        self._regained[vc] = None
        self._idle = self._any_regained = True

    def hardware_changed(self) -> list[Entry]:
        """Mark every VC dirty after a change of hardware.

        Returns the jobs whose reservation the core has ended because of it; they are in no queue any more.
        """
        self._dirty.update(dict.fromkeys(self.queues))
        self._idle = self._all_otherwise = True
        if self._extension is not None:
            self._extension.invalidate()
        lost = [e for e in self.reserved.values() if self.cluster.group(e.name).state is GroupState.PENDING]
        for entry in lost:
            self._drop_reservation(entry)
        return lost

    def reconfigured(self) -> list[Entry]:
        """Rebuild the queues under a new spec, or other policies; returns as :meth:`hardware_changed`. O(jobs)."""
        self._weights = _weights(self.cluster.spec)
        self._request_classes.clear()
        self._reasons.clear()
        self._follow_use()
        for entry in self.jobs.values():
            entry.near = None  # those nodes may not exist in the new spec
            if entry.holds and self._running is not None:
                self._running.count(entry, self.now)
            entry.line = entry.backlog = None
            entry.queued = False
            self._introduce(entry)
            entry.key = self._key(entry)
        self.queues.clear()
        self._heads.clear()
        self._takers = 0
        self._passed.clear()
        self._new.clear()
        self._dirty.clear()  # some VCs may be no more
        self._await_others.clear()
        self._staying.clear()
        self._running = self._follow_running()
        before, self._extension = self._extension, self._extended()
        if before is not None and (self._extension is None or type(self._extension) is not type(before)):
            for entry in [entry for entry in self.jobs.values() if entry.status is SHARING]:
                entry.status = LEAVE[entry.status]  # it has turns no more
                entry.status = WAIT[entry.status]
        elif before is not None and self._extension is not None:
            self._extension.succeed(before)
        for entry in self.jobs.values():
            if entry.status is WAITING:
                self._join(entry)
            elif entry.holds:
                group = None if entry.name in self.evicted else self.cluster.group(entry.name)
                if group is not None and group.state is GroupState.PENDING:  # it is no guest any more, and is stopped
                    self.evict(entry)
                self.became(entry, group is not None and group.guaranteed)
        return self.hardware_changed()

    def traded(self, effect: TradeEffect) -> list[Entry]:
        """Go on after a trade of cells; the jobs that became opportunistic by it, in order of names.

        O(VCs + classes of requests), and O(jobs) where jobs of a class fit a VC that they did not fit, or the reverse.
        """
        self._weights = _weights(self.cluster.spec)
        self._heads.share_changed(effect.vcs)
        again: set[tuple[str, Hashable, bool]] = set()
        for key, info in list(self._request_classes.items()):
            if key[0] in effect.vcs:
                found = self._request_classes[key] = self._request_class_of(info.first)
                if (found.line, found.backlog) != (info.line, info.backlog):
                    again.add(key)
        changed = [self.by_name[name] for name in effect.downgraded]
        for entry in changed:
            self.became(entry, False)
        for entry in list(self.jobs.values()) if again else ():
            if (entry.vc, entry.request_class, entry.early) in again:
                if entry.status is WAITING:
                    self.leave_queues(entry)
                    self._join(entry)
                elif entry.holds:
                    self.became(entry, entry.status is GUARANTEED)
        self._dirty.update(dict.fromkeys(vc for vc in effect.vcs if vc in self.queues))
        self._idle = self._all_otherwise = True
        if self._extension is not None:
            self._extension.invalidate()
        return changed

    def stranded(self, vc: str, spec: ClusterSpec, reserved: ClusterSpec, aside: Iterable[Entry] = ()) -> list[str]:
        """The jobs of a VC that fit its cells in ``reserved``, and not those in ``spec``; names, in order.

        Those that run as well: who loses its cells is in line again; and those that are ``aside``, and will be in line.
        O(its jobs + cells).
        """
        its = (*self._of_vc.get(vc, {}).values(), *aside)
        entries = [entry for entry in its if not entry.request.opportunistic]
        if not entries:
            return []
        before, after = fitting(reserved, vc), fitting(spec, vc)
        requests = {entry.request_class: entry.request for entry in entries}
        lacks = {of_class for of_class, request in requests.items() if before(request) and not after(request)}
        return [entry.name for entry in sorted(entries, key=_by_key) if entry.request_class in lacks]

    def _follow_running(self) -> RunningJobs | None:
        self._passing = any(policy.patience > 0 for policy in self.policies.all)
        preempts = any(policy.preempts for policy in self.policies.all)
        return RunningJobs(self._key, self.per_second) if preempts else None

    def _follow_use(self) -> None:
        """Count the use of the VCs whose policies ask for it; what was counted before goes on. O(jobs)."""
        before, self._use = self._use, {}
        self._use_due.clear()
        self._use_watched.clear()
        for vc in self.cluster.spec.virtual_clusters:
            half_life = self.policies[vc.name].half_life_s * self.per_second
            known = before.get(vc.name)
            if known is not None and known.half_life == half_life:
                self._use[vc.name] = known
            elif half_life:
                use = self._use[vc.name] = DecayedUse(half_life)
                if self._past_use is not None:
                    use.restore(*self._past_use(vc.name, half_life))
                for entry in self._of_vc.get(vc.name, {}).values():
                    use.know(entry)
                    use.hold(entry, self.now)

    def _review_use(self, now: float) -> None:
        """Place the jobs of users who have had GPUs anew, in VCs where any wait. O(log VCs + these users' jobs)."""
        due, pause = self._use_due, REVIEW_S * self.per_second
        if due and due[0][0] > now + pause:  # a clock was set back
            due[:] = [(now, vc) for _, vc in due]
        while due and due[0][0] <= now:
            vc = heappop(due)[1]
            queues = self.queues.get(vc)
            if queues is None or not (len(queues.line) or len(queues.backlog) or len(queues.outsized)):
                self._use_watched.discard(vc)  # until a job waits there
                continue
            heappush(due, (now + pause, vc))
            for user in self._use[vc].review(now):
                for entry in list(self._use[vc].jobs.get(user, {}).values()):
                    if entry.status is RESERVED:
                        entry.key = self._key(entry)
                    elif entry.status is not GUARANTEED or (entry.policy is not None and entry.policy.preempts):
                        self.rekey(entry)

    def _watch_use(self, vc: str) -> None:
        """A job waits in a VC: have the ranks of its users looked at, as soon as that is due."""
        use = self._use.get(vc)
        if use is not None and vc not in self._use_watched:
            self._use_watched.add(vc)
            heappush(self._use_due, (use.reviewed + REVIEW_S * self.per_second, vc))

    def used(self, entry: Entry, now: float) -> float | None:
        """GPU time of the user of a job as it counts at ``now``; None: the policy of its VC does not count it."""
        use = self._use.get(entry.vc)
        return None if use is None else use.used(entry.view.user, now)

    def _introduce(self, entry: Entry) -> CheckedPolicy:
        """Give a job its policy, and the policy what it may see of the job."""
        policy = entry.policy = self.policies[entry.vc]
        view = entry.view
        if not policy.clairvoyant:
            if view.duration is not None:
                entry.view = view._replace(duration=None, remaining=None)
        elif view.remaining is None:  # a job whose duration nobody knows is the longest
            duration = inf if entry.duration is None else entry.duration
            entry.view = view._replace(duration=duration, remaining=duration)
        if policy.preempts and not entry.attained and view.reviewed != view.submitted:
            entry.view = entry.view._replace(reviewed=view.submitted)
        return policy

    @property
    def extension(self) -> Extension | None:
        """What lets jobs share GPUs; None: no policy does."""
        return self._extension

    # -- deciding -----------------------------------------------------------------------------------------------------

    def dispatch(self, now: float = 0.0) -> None:
        """Start every job that can start. ``now``: by the engine's clock, in its unit of time; the core records it.

        Raises :class:`~hived.errors.PolicyError`; nothing may be asked of this scheduler after that.
        """
        try:
            self.now = now
            for entry in () if self._running is None else self._running.due(now):
                self.rekey(entry)
            if self._use_due:
                self._review_use(now)
            extension = self._extension
            if extension is not None:
                extension.wake(now)
            while True:
                for entry in self._reservations_due() if self.reserved else ():
                    self._asked = entry
                    if entry.status is RESERVED and self._reservation_changed(entry):
                        self._schedule(entry)
                while self._dirty or self._new:
                    self._take_turns()
                if self._idle:
                    self._idle = False
                    if extension is not None:
                        extension.before_loans(now)
                    if self._heads or self._passed:
                        self._lend()
                if self._dirty or self._new or self._idle:
                    continue
                if extension is not None:
                    extension.settle(now)
                    if self._dirty or self._new or self._idle:
                        continue
                if not (self.reserved and self._regains):
                    break
            if extension is not None:
                extension.publish(now)
        except PolicyError as error:
            if error.at is not None or self._asked is None:
                raise
            raise PolicyError(error.policy, error.what, self._asked.name, now / self.per_second) from error

    @property
    def next_review(self) -> float:
        """When the order of a running job changes, or its turns, and the engine has to dispatch; infinity for never."""
        review = inf if self._extension is None else self._extension.next_wake
        return review if self._running is None else min(review, self._running.next_review)

    @property
    def _regains(self) -> bool:
        return self._all_otherwise or self._any_regained or bool(self._regained) or self._loans_otherwise

    @property
    def _loans_otherwise(self) -> bool:
        """Whether a reservation that waits for loans may be otherwise, since anything has changed."""
        return bool(self._reserved_on_loans) and self._reserved_at != self.cluster.version

    def _reservations_due(self) -> list[Entry]:
        """The reservations that may be otherwise since this was last asked, in their order. O(these).

        One that waits for jobs of its own VC is, once that was given GPUs back; one that waits for loans alone, once
        any GPUs are idle, or others have started: it may have had no idle cells but those that stood before better
        ones, which are taken now. Under a quota all VCs wait for the same GPUs.
        """
        found: dict[int, Entry] = {}
        if self._all_otherwise or self._quota or (self._extension is not None and self._extension.frees_cells):
            found = self.reserved
        else:
            for vc in self._regained:
                found |= self._reserved_in.get(vc, {})
            if self._any_regained or self._regained or self._loans_otherwise:
                found |= self._reserved_on_loans
        self._regained.clear()
        self._any_regained = self._all_otherwise = False
        self._reserved_at = self.cluster.version
        return sorted(found.values(), key=_by_reservation)

    def _reservation_changed(self, entry: Entry) -> bool:
        """Whether the placement of a preemptor can start now, has moved, or is no longer possible."""
        return self._is_otherwise(entry, self.cluster.plan(entry.request, excluded_nodes=entry.excluded).decision)

    def _is_otherwise(self, entry: Entry, decision: Decision | None) -> bool:
        if not isinstance(decision, Preempt) or decision.placement != entry.placement:
            return True
        self._index_reservation(entry, decision.victims)
        return False

    def _index_reservation(self, entry: Entry, victims: Iterable[str]) -> None:
        """Note whom a reservation waits for."""
        self._reserved_in.get(entry.vc, {}).pop(entry.number, None)
        self._reserved_on_loans.pop(entry.number, None)
        if any(self.by_name[name].status is GUARANTEED for name in victims):
            self._reserved_in.setdefault(entry.vc, {})[entry.number] = entry
        else:
            self._reserved_on_loans[entry.number] = entry

    def _end_reservation(self, entry: Entry) -> None:
        """A job has no reservation any more; what it had reserved may be another one's."""
        del self.reserved[entry.number]
        self._reserved_in.get(entry.vc, {}).pop(entry.number, None)
        self._reserved_on_loans.pop(entry.number, None)
        self._regained[entry.vc] = None

    def _take_turns(self) -> None:
        """Step 2 for dirty VCs and newly queued jobs; new jobs without a turn may start on loans at once."""
        new, self._new = self._new, {}
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            if self._quota:
                self._take_turns_of_all(dirty)
            else:
                for vc in dirty:
                    self._await_others.discard(vc)
                    self._staying.discard(vc)
                    line = self.queues[vc].line
                    if self._running is not None:
                        self._refresh(self._running, vc, line)
                    line.restore()
                    while line.first is not None and self._next_turn(line, line.first):
                        pass
        for entry in new.values():
            own, backlog = entry.line, entry.backlog
            first = None if own is None else own.first
            if first is not None and first.number in self._new and first.number not in new:
                self._new[entry.number] = entry  # one that has lost its loan just now has its turn first
                continue
            while own is not None and own.first is not None and own.first.number in new:
                if not self._next_turn(own, own.first):
                    break
            if entry.status is not WAITING:
                continue
            if backlog is None:
                if own is None and self._explains:
                    self._schedule(entry)
                continue
            if self._extension is not None and self._extension.is_patient(entry, self.now):
                continue
            self.enqueue(entry)
            if entry.guest:
                continue
            if entry.request.opportunistic or (entry.policy is not None and entry.policy.preempts):
                self._idle = True  # a VC above its fair share, or a later job of its own, may have to give loans up
            while not self._idle and backlog.first is not None and backlog.first.number in new:
                if self._held_back(backlog.first):
                    break
                if not self._next_loan(backlog, backlog.first) and not self._pass_loan(backlog):
                    break

    def _refresh(self, running: RunningJobs, vc: str, line: Queue) -> None:
        """Update the places in line of jobs on loan whose order changes all the time. O(those jobs)."""
        for entry in running.drifting_loans(vc, self.now):
            if entry.place_in is line:
                line.remove(entry)
                entry.key = self._key(entry)
                line.add(entry)

    def _take_turns_of_all(self, vcs: dict[str, None]) -> None:
        """Step 2 under quota sharing, where VCs compete for the same GPUs: heads of line in the global order.

        O(dirty VCs * log VCs).
        """
        heads: list[tuple[Key, Queue]] = []
        for vc in vcs:
            self._await_others.discard(vc)
            self._staying.discard(vc)
            line = self.queues[vc].line
            if self._running is not None:
                self._refresh(self._running, vc, line)
            line.restore()
            if line.first is not None:
                heappush(heads, (self._key_among_vcs(line.first), line))
        while heads:
            _, line = heappop(heads)
            first = line.first
            if first is not None and self._next_turn(line, first) and line.first is not None:
                heappush(heads, (self._key_among_vcs(line.first), line))

    def _key_among_vcs(self, entry: Entry) -> Key:
        """The place of a head of line among those of all VCs: in the policy's order or, of several, by submission."""
        if len(self.policies.all) == 1:
            return entry.key
        return -entry.request.priority, entry.view.submitted, entry.number

    def _next_turn(self, line: Queue, entry: Entry) -> bool:
        """Try the head of a line; whether the next job may be tried."""
        self._asked = entry
        if isinstance(line, BackfillQueue):
            return self._next_backfilled_turn(line, entry)
        started = self._take_turn(entry)
        if started is None:
            line.pass_by()
            return True
        return started or (self._running is not None and self._preempt_behind(self._running, entry))

    def _next_backfilled_turn(self, line: BackfillQueue, entry: Entry) -> bool:
        """The same, where the head may be passed by jobs that fit."""
        seconds = self.now / self.per_second
        if line.holds_back(entry, seconds):
            return self.blocked(entry)
        demand = entry.demand
        preempts = entry.request.priority > 0  # jobs of lower priorities, whatever the policy
        shrinks = self._extension is not None and self._extension.may_shrink(entry.vc)
        few = demand is not None and demand.least_gpus > self.cluster.free_gpus(demand)
        # most of those that are passed are blocked without a look at hosts
        tries = self._explains or preempts or shrinks or not few
        started = self._take_turn(entry) if tries else self.blocked(entry)
        if started is None:
            line.pass_by()
            return True
        if started or (self._running is not None and self._preempt_behind(self._running, entry)):
            return True
        if entry.status is MOVING:  # the cells that it moves to are kept for it
            return False
        if line.first is entry:
            if not line.may_pass(seconds):
                return False
            line.pass_by()
        return True

    def _preempt_behind(self, running: RunningJobs, entry: Entry) -> bool:
        """Preempt running jobs behind the head of a line; whether to look at the line again.

        That is so where the head has a reservation or runs, and where it has given up its loan.
        """
        if not (entry.policy is not None and entry.policy.preempts and entry.may_preempt):
            return False
        if entry.status not in (WAITING, LENT) or entry.yields:
            return False
        if entry.status is LENT and not entry.early:
            return False  # it runs, and did not ask to run elsewhere: it preempts once it waits
        behind = running.behind(entry, True, self.now)
        if not behind:
            return False
        if entry.demand is not None:  # most that are passed are blocked without a trial
            most = self.cluster.free_gpus(entry.demand) + sum([other.held for other in behind])
            if most < entry.demand.least_gpus:
                return False
        names = [other.name for other in behind]
        victims = self.cluster.select_victims(entry.request, names, entry.excluded, entry.demand)
        if not victims:
            return False
        if entry.status is LENT:  # it gives its loan up, and then takes its turn as any job that waits
            return self._move(entry)
        asked = PlacementRequest(entry.request, Over(victims), self.now, entry.near, entry.excluded, entry.demand)
        placed = self.cluster.place(asked, True)
        return placed is not None and self._apply(entry, placed, True)

    def _preempt_loans(self, running: RunningJobs, entry: Entry) -> bool:
        """Preempt loans of the same VC behind the head of a backlog; whether the head runs then.

        It reserves nothing: GPUs of victims that need time to end are lent anew once these have ended.
        """
        if not (entry.policy is not None and entry.policy.preempts and entry.may_preempt):
            return False
        behind = [other for other in running.behind(entry, False, self.now) if not other.yields]
        if not behind:
            return False
        by_name = {other.name: other for other in behind}
        victims = self.cluster.select_victims(entry.loan, list(by_name), entry.excluded, entry.loan_demand)
        for name in victims or ():
            victim = by_name[name]
            victim.yields = True
            self.stop(victim, entry)
        if not victims or entry.status is not WAITING or not entry.queued:
            return False
        return bool(self._start_on_loan(entry) if entry.early else self._schedule(entry))

    def _take_turn(self, entry: Entry) -> bool | None:
        """Try to give a job its turn: whether to look at its line again; None if it waits without blocking others."""
        if entry.yields:  # it is being stopped already, and is scheduled again once it has ended
            return False
        if entry.status is LENT:
            promoted = self.cluster.promote(entry.request, None, (), entry.demand)
            if promoted is False and self._extension is not None:
                promoted = self._extension.promote(entry)
            if promoted:
                self._become_guaranteed(entry)
                return True
            if promoted is None:
                return self._blocked_on_loan(entry)
            if entry.guest and self._extension is not None and not self._extension.moves(entry):
                return None
            if not entry.early and not self._is_in_the_way(entry):
                self._staying.add(entry.vc)
                return False  # it loses nothing where it is: who takes its loan finds it first in line
            if not self._move(entry):
                if entry.status is LENT:  # it is being evicted, and may be spared
                    self._staying.add(entry.vc)
                return False
            if entry.status is not WAITING or (entry.policy is not None and entry.policy.preempts):
                return True  # it has left the line, or what it has attained may have cost it its place
        if entry.status is MOVING:  # its processes have not ended yet
            return False
        return self._schedule(entry)

    def _is_in_the_way(self, entry: Entry) -> bool:
        """Whether a job behind this one in its line could take the cells that are free for it. A dry run per class.

        That is a job that waits, one that runs early, or one that stays on its loan too and can be bound there.
        """
        line = entry.line
        assert line is not None
        strict, tried = not isinstance(line, BackfillQueue), set[Hashable]()
        for other in line:
            if other.key <= entry.key or other.yields or other.status is MOVING:
                continue
            if other.status is LENT:
                promoted = self.cluster.promotable(other.request, other.demand)
                if promoted or (promoted is False and other.early):
                    return True
                continue
            if other.equivalence_class in tried:
                continue
            tried.add(other.equivalence_class)
            answer = self.cluster.plan(other.request, excluded_nodes=other.excluded)
            if answer.outcome == "now":
                return True
            self._awaits(other, answer.reasons)
            if strict and not isinstance(answer.reasons[0], NON_BLOCKING):
                break
        return False

    def _become_guaranteed(self, entry: Entry) -> None:
        """The core has promoted a job on its loan."""
        self.leave_queues(entry)
        entry.status = PROMOTE[entry.status]
        self.follow(entry)
        self.carry_out(Promote(entry.number))
        if self._extension is not None:
            self._extension.placed(entry, self.now)

    def _move(self, entry: Entry) -> bool:
        """Have a job give its loan up, since its turn has come on other GPUs; whether it has ended there already."""
        if self._explains and self.cluster.group(entry.name).preempted_by:
            return False  # it is being evicted already, and is scheduled again once it has ended
        entry.near = entry.placement
        entry.status = MOVE[entry.status]
        self.carry_out(Move(entry.number, self._keeps_work(entry, entry)))
        return entry.status is not MOVING

    def _blocked_on_loan(self, entry: Entry) -> bool | None:
        """The VC has no room for a job that runs on a loan. Returns as :meth:`_take_turn`."""
        if not self._explains:
            return self.blocked(entry)
        key = "turn", entry.vc, entry.equivalence_class
        reasons = self._cached_reasons(key)
        if reasons is None:
            trial = replace(entry.request, group=f"{entry.name} (its turn)")
            reasons = self._reasons[key] = self.cluster.plan(trial, excluded_nodes=entry.excluded).reasons
        self._awaits(entry, reasons)
        return None if reasons and isinstance(reasons[0], NON_BLOCKING) else False

    def _awaits(self, entry: Entry, reasons: Iterable[Reason]) -> None:
        """A head of a line waits, for these reasons."""
        if any(isinstance(reason, _OTHERS_MAY_END) for reason in reasons):
            self._await_others.add(entry.vc)
        self.blocked(entry)

    def blocked(self, entry: Entry) -> bool:
        """The head of a line waits and blocks the jobs behind it: always False."""
        if self._quota and self.cluster.within_quota(entry.request):
            self._await_others.add(entry.vc)
        return False

    def _cached_reasons(self, key: tuple[Hashable, ...]) -> tuple[Reason, ...] | None:
        """The reasons that the present version of the cluster gave for the same equivalence class."""
        if self._reasons_version != self.cluster.version:
            self._reasons.clear()
            self._reasons_version = self.cluster.version
        return self._reasons.get(key)

    def _schedule(self, entry: Entry) -> bool | None:
        """Submit a job's request to the core and carry out the decision. Returns as :meth:`_take_turn`."""
        if self._extension is not None:
            started = self._extension.start(entry, self.now)
            if started is not None:
                return started or self.blocked(entry)
        request, excluded = entry.request, entry.excluded
        if entry.status is not RESERVED and (not self._explains or entry.near is not None):
            keep = entry.may_preempt
            asked = PlacementRequest(request, ANYWHERE, self.now, entry.near, excluded, entry.demand)
            placed = self.cluster.place(asked, keep)
            if placed is not None:
                return self._apply(entry, placed, keep)
            if not self._explains:
                return self.blocked(entry)
        key = entry.vc, entry.equivalence_class
        reasons = self._cached_reasons(key) if entry.status is WAITING else None
        if reasons is None:
            try:
                decision: Decision = self.cluster.schedule(request, now=self.now, excluded_nodes=excluded)
            except RequestError as error:
                reasons = (Misconfigured(error.field, error.message),)
            else:
                if not isinstance(decision, Wait):
                    return self._apply(entry, decision)
                reasons = self._reasons[key] = decision.reasons
        if entry.line is not None:
            self._awaits(entry, reasons)
        self.carry_out(Unschedulable(entry.number, reasons))
        if entry.status is RESERVED:  # the nodes of its reservation are not usable any more
            self._drop_reservation(entry)
            self.carry_out(Unreserve(entry.number))
        return None if isinstance(reasons[0], NON_BLOCKING) else False

    def _apply(self, entry: Entry, decision: Bind | Preempt, kept: bool = False) -> bool:
        """Carry out a decision (``kept``: committed already); whether the job has left its queues."""
        had = entry.placement if entry.status is RESERVED else None
        if isinstance(decision, Preempt) and not kept:
            if decision.placement == had:
                return True  # unchanged: some victims have not ended yet
            if not entry.may_preempt:
                self.carry_out(Unschedulable(entry.number, (WaitingForPreemption(decision.victims),)))
                return False
        if not kept:
            self.cluster.commit(decision)
        if had is None:
            self.leave_queues(entry)
        elif decision.placement != had:
            self.mark_dirty(entry.vc)
        for name in decision.overtaken:
            other = self.by_name[name]
            self._drop_reservation(other)
            self.carry_out(Unreserve(other.number, entry.number))
        for name in decision.downgraded:
            other = self.by_name[name]
            other.made_way = True
            self.became(other, False)
            self.carry_out(Downgrade(other.number, entry.number))
        entry.placement, entry.near = decision.placement, None
        if isinstance(decision, Preempt):
            return self._reserve(entry, decision)
        if had is not None:
            self._end_reservation(entry)
        kind = _OPPORTUNISTIC if entry.request.priority < 0 else _GUARANTEED
        entry.status = (LEND if entry.request.priority < 0 else START)[entry.status]
        self.follow(entry)
        self.carry_out(Start(entry.number, kind, decision.placement))
        if self._extension is not None and entry.status is GUARANTEED:
            self._extension.placed(entry, self.now)
        return True

    def _reserve(self, entry: Entry, decision: Preempt) -> bool:
        entry.status = RESERVE[entry.status]
        if entry.number not in self.reserved:
            self._reservations += 1
            entry.reservation = self._reservations
        self.reserved[entry.number] = entry
        self._index_reservation(entry, decision.victims)
        self.carry_out(Reserve(entry.number, decision.placement, decision.victims))
        victims = [self.by_name[name] for name in decision.victims]
        for victim in [*victims]:
            if self._extension is not None and self._extension.stays(victim, entry):
                victims.remove(victim)
            else:
                self.stop(victim, entry)
        if not any(victim.holds for victim in victims):  # all ended within the instruction
            self._schedule(entry)
        return True

    def _drop_reservation(self, entry: Entry) -> None:
        """Forget a reservation that the core has released."""
        self._end_reservation(entry)
        entry.status = LOSE[entry.status]
        entry.placement = None
        entry.demand = entry.loan_demand = None  # the spec may have changed when it waits again
        self.mark_dirty(entry.vc)
        self._given_back()

    def follow(self, entry: Entry) -> None:
        """A job has GPUs, or has them otherwise than before."""
        if (use := self._use.get(entry.vc)) is not None:
            use.hold(entry, self.now)
        if self._running is not None and entry.policy is not None and entry.policy.preempts:
            self._running.follow(entry, self.now)
        if self._extension is not None:
            self._extension.follow(entry, self.now)

    def stop(self, victim: Entry, by: Entry) -> None:
        """Have a running job give up its GPUs for another."""
        self.carry_out(Stop(victim.number, by.number, self._keeps_work(victim, by)))

    def lent_otherwise(self) -> None:
        """Have reservations looked at again: a guest has become a loan, or the reverse."""
        self._all_otherwise = True

    def evict(self, guest: Entry) -> None:
        """Follow the core, which has requeued a guest: its processes are there until they are stopped."""
        if guest.name not in self.evicted:
            self.cluster.cancel(guest.name)
            self.evicted.add(guest.name)
            guest.yields = not self.simulated

    def _keeps_work(self, victim: Entry, by: Entry) -> bool:
        policy = victim.policy
        assert policy is not None
        if self._running is not None:
            self._running.count(victim, self.now)  # the policy sees what it has attained
        keeps = victim.keeps = policy.keeps_work(victim.view, by.view, self.now / self.per_second)
        return keeps

    def _settle_work(self, entry: Entry) -> None:
        """The work that is left of a job that has left its GPUs."""
        duration = entry.view.duration
        assert entry.policy is not None
        if not entry.keeps:
            entry.kept = 0.0
        elif entry.kept > entry.settled:  # it ran
            entry.kept -= entry.policy.resume_s * self.per_second
        entry.settled = entry.kept
        if duration is not None:
            entry.view = entry.view._replace(remaining=work_left(duration, entry.kept, self.per_second))

    # -- exact safety -------------------------------------------------------------------------------------------------

    def start_on(self, entry: Entry, at: VirtualLeaves, now: float) -> None:
        """Give a job these leaf cells of its VC: its virtual job has started there. The engine has it wait, or run.

        Raises :class:`~hived.errors.InvariantError` where they are not free; bad hardware is not provided for yet.
        """
        self.now = max(self.now, now)
        if entry.status is LENT:
            if self.cluster.promote(entry.request, at, (), entry.demand):
                self._become_guaranteed(entry)
                return
            if not self._move(entry):
                raise InvariantError(f"job {entry.number} does not leave its loan at once")
        asked = PlacementRequest(entry.request, at, now, entry.near, entry.excluded, entry.demand)
        placed = self.cluster.place(asked, True)
        if placed is None:
            raise InvariantError(f"job {entry.number} does not get the cells of its VC: safety is broken")
        self._apply(entry, placed, True)

    def displace(self, entry: Entry, stop: Stop, now: float) -> None:
        """Take its cells from a job whose virtual job was stopped."""
        self.now = max(self.now, now)
        entry.keeps = stop.keeps_work
        self.carry_out(stop)

    # -- for an extension ---------------------------------------------------------------------------------------------

    def look_again(self, vc: str) -> None:
        """Have this dispatch look at the turns of a VC once more, and at loans."""
        self._dirty[vc], self._idle = None, True

    # -- loans --------------------------------------------------------------------------------------------------------

    def _lend(self) -> None:
        """Step 3, once GPUs may have become idle."""
        idle_is_all = self._running is None and not self._explains and not self._takers
        if idle_is_all and self._passing and not self.cluster.idle_gpus:
            return
        passed, self._passed = self._passed, {}
        for backlog in passed:
            before = backlog.first
            backlog.restore()
            if backlog.first is not before:
                self._head_changed(before, backlog.first)
        lacking: set[Hashable] = set()  # classes that do not fit
        cluster, heads = self.cluster, self._heads
        while True:
            self._update_shares()
            best = None
            idle = cluster.idle_gpus
            for loan_class, items in heads.classes():
                if loan_class in lacking:
                    continue
                one = items[0][2]
                if one.early and not self._explains:  # the others may take loans of VCs above their share
                    too_few = one.loan_demand is not None and one.loan_demand.least_gpus > idle
                    if too_few or not cluster.can_lend(one.loan, one.loan_demand):
                        lacking.add(loan_class)
                        continue
                for item in items:
                    if best is not None and best < item:
                        break
                    if not self._held_back(item[2]):
                        best = item
                        break
            if best is None:
                if not self._pass_loans(idle):
                    return
                continue
            entry = best[2]
            assert entry.backlog is not None
            if not self._next_loan(entry.backlog, entry):
                lacking.add(entry.loan_class)
            elif not entry.early:  # it may have taken more loans than it needs
                lacking.clear()

    def _share_of(self, vc: str) -> float:
        """GPUs on loan to a VC over its weight; what is lent of its own cells is lent to it first."""
        lent, weight = self.cluster.opportunistic_gpus(vc), self._weights.get(vc)
        if self._exact is not None:
            lent -= self._exact.ghost_gpus.get(vc, 0)
        return lent / weight if weight else inf

    def _update_shares(self) -> None:
        """Order the heads of backlogs by the present shares. O(log heads) per VC whose share has changed."""
        self._heads.share_changed(self.cluster.loans_changed())
        if self._exact is not None and self._exact.ghosts_changed:
            self._heads.share_changed(self._exact.ghosts_changed)
            self._exact.ghosts_changed.clear()

    def _pass_loans(self, idle: int) -> bool:
        """No head of a backlog fits on idle GPUs: it takes loans of its VC, or is passed; whether there are new heads.

        Only policies that preempt do the former, and only those that let jobs pass the latter.
        """
        changed = False
        if self._passing or self._running is not None:
            for entry in list(self._heads):
                backlog = entry.backlog
                if backlog is None or backlog.first is not entry or self._held_back(entry):
                    continue
                if self._running is not None and self._preempt_loans(self._running, entry):
                    changed = True
                elif backlog.first is entry and (idle or self._running is not None):
                    changed = self._pass_loan(backlog) or changed
        return changed

    def _held_back(self, entry: Entry) -> bool:
        """Whether a job of its backlog that was passed by, and is out of patience, is before the head of it."""
        backlog = entry.backlog
        return isinstance(backlog, BackfillQueue) and backlog.holds_back(entry, self.now / self.per_second)

    def _pass_loan(self, backlog: Queue) -> bool:
        """Let jobs pass the head of a backlog that does not fit, where the policy lets them; whether it does."""
        first = backlog.first
        if first is None or not (isinstance(backlog, BackfillQueue) and backlog.may_pass(self.now / self.per_second)):
            return False
        self._pass_by(backlog, first)
        return True

    def _pass_by(self, backlog: Queue, first: Entry) -> None:
        backlog.pass_by()
        self._passed[backlog] = None
        self._head_changed(first, backlog.first)

    def _next_loan(self, backlog: Queue, entry: Entry) -> bool:
        """Try the head of a backlog; whether the next job may be tried."""
        started = self._start_on_loan(entry) if entry.early else self._schedule(entry)
        if started is None:
            self._pass_by(backlog, entry)
            return True
        return started

    def _start_on_loan(self, entry: Entry) -> bool | None:
        """Start a job on idle GPUs before its turn. Returns as :meth:`_take_turn`."""
        key = "loan", entry.vc, entry.equivalence_class
        reasons = self._cached_reasons(key) if self._explains else None
        decision = None
        if reasons is None:
            asked = PlacementRequest(entry.loan, ON_IDLE, self.now, None, entry.excluded, entry.loan_demand)
            decision = self.cluster.place(asked, True)
        if decision is not None:
            self.dequeue(entry)
            entry.status = LEND[entry.status]
            entry.placement = decision.placement
            self.follow(entry)
            self.carry_out(Start(entry.number, _OPPORTUNISTIC, decision.placement))
            return True
        if not self._explains or (entry.line is not None and not entry.excluded):
            return False  # it waits for its turn as well, and for no nodes in particular
        if reasons is None:
            reasons = self._reasons[key] = self.cluster.plan(entry.loan, excluded_nodes=entry.excluded).reasons
        if entry.line is None and reasons:  # it waits for nothing else
            self.carry_out(Unschedulable(entry.number, reasons))
        return None if reasons and isinstance(reasons[0], NON_BLOCKING) else False

    # -- the queues ---------------------------------------------------------------------------------------------------

    def _key(self, entry: Entry) -> Key:
        policy = entry.policy
        assert policy is not None
        if (use := self._use.get(entry.vc)) is not None:
            entry.view = entry.view._replace(use_rank=use.rank(entry.view.user))
        return (-entry.request.priority, *policy.order(entry.view, self.now / self.per_second), entry.number)

    def _find_queues(self, entry: Entry) -> None:
        """Find a job's line and backlog, None where its request can never fit. O(1) for a cached class."""
        if self._extension is not None or entry.guest:
            self._mark_guest(entry)
        key = entry.vc, entry.request_class, entry.early
        found = self._request_classes.get(key)
        if found is None:
            if len(self._request_classes) >= _MAX_REQUEST_CLASSES:
                self._request_classes.clear()
            found = self._request_classes[key] = self._request_class_of(entry)
        entry.line, entry.backlog, entry.demand, entry.loan_demand, _ = found
        if entry.guest and self._extension is not None and entry.backlog is not None:
            entry.backlog = self._extension.backlog(entry)

    def _request_class_of(self, entry: Entry) -> _RequestClass:
        """The queues and demands of all jobs of a job's class of requests, under the present spec."""
        queues = self.queues_of(entry.vc)
        opportunistic = entry.request.opportunistic
        turn = self._demand(entry.request)
        fits = turn is not None and not self.cluster.never_fits(entry.request)
        follows = self._exact is not None and entry.vc in self._exact.vcs
        line = queues.line if fits and not opportunistic and not follows else None
        backlog = loan = None
        if opportunistic or entry.early:
            loan = self._demand(entry.loan)
        if loan is not None and not self.cluster.never_fits(entry.loan):
            backlog = queues.backlog if opportunistic or line is not None or (follows and fits) else queues.outsized
        return _RequestClass(line, backlog, turn, loan, entry)

    def queues_of(self, vc: str) -> VcQueues:
        queues = self.queues.get(vc)
        if queues is None:
            policy = self.policies[vc]
            queues = self.queues[vc] = VcQueues(policy.patience, policy.preempts, policy.by_submission)
        return queues

    def _demand(self, request: Request) -> Demand | None:
        """The checked demand of a request; None if it is invalid."""
        try:
            return self.cluster.demand(request)
        except RequestError:
            return None

    def _know(self, entry: Entry) -> None:
        """Note a job that waits or holds GPUs from now on."""
        self.jobs[entry.number] = self.by_name[entry.name] = entry
        self._of_vc.setdefault(entry.vc, {})[entry.number] = entry
        if (use := self._use.get(entry.vc)) is not None:
            use.know(entry)

    def _forget(self, entry: Entry) -> None:
        """A job has ended, or was withdrawn."""
        del self.jobs[entry.number], self.by_name[entry.name], self._of_vc[entry.vc][entry.number]
        if (use := self._use.get(entry.vc)) is not None:
            use.forget(entry)

    def _join(self, entry: Entry) -> None:
        """Queue a waiting job. A job with a line joins its backlog only if it does not get its turn at once."""
        self._find_queues(entry)
        if entry.line is not None:
            entry.line.add(entry)
            policy = entry.policy
            comes_first = policy is not None and not policy.by_submission and 0.0 < policy.patience < inf
            if entry.vc in self._staying or comes_first:
                self._dirty[entry.vc] = None  # what stays may be in its way, or who holds others back is passed with it
        elif entry.backlog is not None:
            self.enqueue(entry)
        else:
            self.queues[entry.vc].misfits.add(entry)
        self._new[entry.number] = entry
        self._watch_use(entry.vc)
        if self._extension is not None:
            self._extension.queued(entry)

    def leave_queues(self, entry: Entry) -> None:
        """Remove a job from its queues."""
        self._new.pop(entry.number, None)
        if entry.status is GUARANTEED or entry.status is SHARING:
            return
        if entry.line is not None:
            entry.line.remove(entry)
        if entry.queued:
            self.dequeue(entry)
        elif entry.line is None and entry.backlog is None and entry.vc in self.queues:
            self.queues[entry.vc].misfits.remove(entry)

    def enqueue(self, entry: Entry) -> None:
        """Add a job that does not run to its backlog."""
        backlog = entry.backlog
        if backlog is None or entry.queued:
            return
        entry.queued = True
        self._takers += not entry.early
        before = backlog.first
        backlog.add(entry)
        if backlog.first is not before and not entry.guest:
            self._head_changed(before, backlog.first)

    def dequeue(self, entry: Entry) -> None:
        """Remove a job from its backlog."""
        backlog = entry.backlog
        assert backlog is not None
        entry.queued = False
        self._takers -= not entry.early
        before = backlog.first
        backlog.remove(entry)
        if backlog.first is not before and not entry.guest:
            self._head_changed(before, backlog.first)

    def _head_changed(self, before: Entry | None, after: Entry | None) -> None:
        if before is not None:
            self._heads.remove(before)
        if after is not None:
            self._heads.add(after)

    # -- queries ------------------------------------------------------------------------------------------------------

    def ahead(self, entry: Entry, most: int) -> tuple[int, list[Entry]]:
        """Count the jobs that may block a job in its queue, and list the first ``most``. O(log jobs + most)."""
        queue = entry.backlog if entry.line is None else entry.line
        waits = entry.status is WAITING or (entry.status is LENT and entry.place_in is not None)
        return queue.ahead(entry.key, most) if waits and queue is not None else (0, [])

    def blocking(self, entry: Entry, most: int) -> tuple[int, list[Entry]]:
        """The same, without those that let it pass now, as soon as it fits."""
        queue = entry.backlog if entry.line is None else entry.line
        waits = entry.status is WAITING or (entry.status is LENT and entry.place_in is not None)
        if not waits or queue is None:
            return 0, []
        return queue.blocking(entry.key, most, self.now / self.per_second)

    def diagnose(self, entry: Entry) -> PlanAnswer:
        """What the core answers a waiting job, as if it were first in line. It costs one dry run."""
        return self.cluster.plan(entry.awaited, excluded_nodes=entry.excluded)

    def before(self, vc: str, priority: int, most: int, fits: bool = False) -> tuple[int, list[Entry]]:
        """The same for a new job of this priority; ``fits``: those alone that do not let a job pass that fits."""
        queues = self.queues.get(vc)
        if queues is None:
            return 0, []
        queue, key = queues.backlog if priority < 0 else queues.line, (-priority + 1,)
        return queue.blocking(key, most, self.now / self.per_second) if fits else queue.ahead(key, most)

    def in_turn(self, most: int) -> list[Entry]:
        """Waiting jobs interleaved by VC: the first of every VC, then the second, so no tenant's queue hides another's.

        In each round, guaranteed requests precede opportunistic ones. At most ``most``. O(VCs + most).
        """
        vcs = [self.queues[vc] for vc in sorted(self.queues)]
        follow = (
            set()
            if self._exact is None
            else {self.queues[vc].backlog for vc in self._exact.vcs.intersection(self.queues)}
        )
        turns = [
            # jobs that follow a timeline have no line here
            _waiting(
                False, queues.backlog if queues.backlog in follow else queues.line, queues.outsized, queues.misfits
            )
            for queues in vcs
        ]
        loans = [_waiting(True, queues.backlog, queues.misfits) for queues in vcs]
        rounds = zip_longest(*turns, *loans)
        return list(islice((entry for one in rounds for entry in one if entry is not None), most))


def sharing_of(policies: Policies) -> GpuSharing | None:
    """How jobs share GPUs under these policies; None: they do not. Raises :class:`PolicyError` if in two ways."""
    sharing = [(policy, policy.gpu_sharing) for policy in policies.all if policy.gpu_sharing is not None]
    for policy, other in sharing:
        if other.extend is not sharing[0][1].extend:
            first = sharing[0][0].name
            what = f"its jobs cannot share GPUs in one cluster with those of {first}, which do it otherwise"
            raise PolicyError(policy.name, what)
    return sharing[0][1] if sharing else None


def _waiting(opportunistic: bool, *queues: Queue) -> Iterator[Entry]:
    """Waiting jobs of these queues, in the policy's order."""
    waiting = (entry for entry in merge(*queues, key=_by_key) if entry.status is WAITING)
    return (entry for entry in waiting if entry.request.opportunistic is opportunistic)


def _by_key(entry: Entry) -> Key:
    return entry.key


def _by_reservation(entry: Entry) -> int:
    return entry.reservation


def _weights(spec: ClusterSpec) -> dict[str, float]:
    """The weight of each VC where loans are shared: its own, else the GPUs that it has reserved (decision 0007)."""
    return {
        vc.name: spec.reserved(vc) if vc.opportunistic_weight is None else float(vc.opportunistic_weight)
        for vc in spec.virtual_clusters
    }
