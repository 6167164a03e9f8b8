"""Who is next: the queues of all virtual clusters over a cluster. Events in, instructions out.

The simulator and both engines drive this object. An engine tells what has happened (:meth:`Scheduler.wait`,
:meth:`~Scheduler.free`, ...), then has it :meth:`~Scheduler.dispatch`; each instruction is given to the engine before
the next is decided. Whoever has to stop still has its GPUs until the engine says :meth:`~Scheduler.free`: a simulator
says so within the instruction, engines when the processes are gone. There is no clock; time only orders submissions.

1. *Reservations.* Who waits for victims is asked for again: it may start by now, there or elsewhere.
2. *Turns.* While the first in a VC's line gets GPUs of its VC, it leaves the line. A job that already runs
   opportunistically stays where it is if the cluster can bind its GPUs there (it is promoted), else it moves.
3. *Loans.* While the first of some VC's jobs that run nowhere gets idle GPUs, it starts there, opportunistically. The
   VC with the smallest share goes first (GPUs that it has on loan over GPUs that it reserved: weighted max-min).

Within a VC nobody passes anybody, on whichever kind of GPUs: the policy's order holds for loans as it does for turns.
The exceptions are jobs that may wait for ever, since they are larger than their VC, or wait for bad hardware, or for
nodes that they may not use: these hold nobody back. Only VCs for which an event can have changed something are looked
at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from heapq import heappop, heappush, merge
from itertools import islice, zip_longest
from math import inf
from typing import NamedTuple

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Bind, Decision, Preempt, Wait
from hived.cluster.demands import Demand
from hived.cluster.reasons import BadHardware, Misconfigured, NeverFits, NotSuggested, Reason, WaitingForPreemption
from hived.cluster.requests import Request
from hived.cluster.sharing import Sharing
from hived.cluster.states import GroupState
from hived.errors import InvariantError, RequestError, ensure
from hived.spec.compiled import ClusterSpec

from .instructions import Downgrade, Hold, Instruction, Kind, Move, Promote, Reserve, Start, Stop, Unreserve
from .policy import Displaced, Policy, Reaction
from .queue import (
    GUARANTEED,
    LEAVING,
    LENT,
    MOVING,
    NOWHERE,
    RESERVED,
    WAITING,
    Entry,
    Key,
    Queue,
    VcQueues,
)

_GUARANTEED, _OPPORTUNISTIC = Kind
#: what a job waits for without holding back who is behind it: it may never come
_HOLDS_NOBODY_BACK = (Misconfigured, NeverFits, BadHardware, NotSuggested)
#: requests of which it is remembered whether they can ever be had
_REMEMBERED = 10_000


class _ShapeInfo(NamedTuple):
    """What is known of jobs of one shape: where they wait, and what they ask for."""

    line: Queue | None  #: for their turn
    backlog: Queue | None  #: for a loan
    turn: Demand | None  #: at their turn, checked; None where it is wrong
    loan: Demand | None  #: before it


class Scheduler:
    """One policy over one cluster. Jobs are numbered by the engine; a number is used once.

    An event costs O(log jobs) for the queues plus what the cluster charges, and O(VCs) when GPUs may be lent.
    """

    def __init__(
        self, cluster: Cluster, policy: Policy, carry_out: Callable[[Instruction], None], explains: bool = True
    ) -> None:
        """``explains``: whether it matters why a job waits. Without that :class:`~.instructions.Hold` is not given."""
        self.cluster = cluster
        self.policy = policy
        self._carry_out = carry_out
        self._explains = explains
        self._quota = cluster.sharing is Sharing.QUOTA
        #: every job that waits or holds something
        self.jobs: dict[int, Entry] = {}
        self._by_name: dict[str, Entry] = {}
        self.queues: dict[str, VcQueues] = {}
        #: who waits for victims to go, in the order in which they reserved
        self.reserved: dict[int, Entry] = {}
        self._weights = _weights(cluster.spec)
        self._now = 0.0
        # what has changed since the last dispatch: who waits anew; whose lines; whether GPUs may have fallen idle
        self._new: dict[int, Entry] = {}
        self._dirty: dict[str, None] = {}
        self._idle = False
        # VCs whose first in line may wait for nothing but GPUs of others (under a quota), all to be asked when some end
        self._between: set[str] = set()
        # the first of each backlog, by what is asked for
        self._fronts: dict[Hashable, dict[Entry, None]] = {}
        # per VC, shape, and whether it may start early: where such jobs wait for their turn, and for a loan
        self._found: dict[tuple[str, Hashable, bool], _ShapeInfo] = {}
        # why others wait that ask for the same, as of a version of the cluster
        self._known: dict[tuple[Hashable, ...], tuple[Reason, ...]] = {}
        self._known_version = -1

    # -- events -------------------------------------------------------------------------------------------------------

    def wait(self, entry: Entry) -> None:
        """A job has come, or waits again. Its place in the order is the one that it had."""
        if self.jobs.get(entry.number, entry) is not entry or entry.status is not NOWHERE:
            raise InvariantError(f"job number {entry.number} is used twice")
        if not entry.key:
            entry.key = self._key(entry)
        entry.status = WAITING
        self.jobs[entry.number] = self._by_name[entry.name] = entry
        self._join(entry)

    def withdraw(self, entry: Entry) -> None:
        """A job that holds nothing waits no more; the core forgets it."""
        if self.jobs.pop(entry.number, None) is None:
            return
        del self._by_name[entry.name]
        self._leave(entry)
        self.reserved.pop(entry.number, None)
        entry.status, entry.placement = NOWHERE, None
        entry.demand = entry.loan_demand = None
        self._touch(entry.vc)
        if self._explains:
            try:
                self.cluster.group(entry.name)
            except RequestError:
                return  # the core was never asked for it
            self.cluster.cancel(entry.name)

    def free(self, entry: Entry, waits: bool = False) -> None:
        """A job holds nothing any more: it has ended, or was stopped. ``waits``: it takes its place in line again."""
        was = entry.status
        if not entry.holds:
            raise InvariantError(f"job {entry.number} ends, and does not run")
        self.cluster.release(entry.name)
        self._idle = True
        first = None if entry.line is None else entry.line.first
        if self._explains or (first is not None and (was is GUARANTEED or (first is entry and not waits))):
            self._dirty[entry.vc] = None
        if self._between and was is GUARANTEED:
            self._dirty.update(dict.fromkeys(self._between))
        if not waits:
            self._leave(entry)
            entry.status = NOWHERE
            entry.demand = entry.loan_demand = None  # they hold the whole state that they are of
            del self.jobs[entry.number], self._by_name[entry.name]
        elif entry.early and entry.line is not None and was in (LENT, MOVING):
            entry.status = WAITING  # it keeps its place in line
            self._queue(entry)
        else:
            self._leave(entry)
            entry.status = NOWHERE
            self.wait(entry)

    def leaving(self, entry: Entry) -> None:
        """A job that runs is going, and not to make room: its turn is somebody else's, though it still has its GPUs."""
        if entry.status in (LENT, MOVING):
            self._leave(entry)
            entry.status, entry.near = LEAVING, None
            self._dirty[entry.vc] = None

    def runs(self, entry: Entry, guaranteed: bool) -> None:
        """The core has taken a job over that runs already."""
        entry.key = entry.key or self._key(entry)
        self.jobs[entry.number] = self._by_name[entry.name] = entry
        self.became(entry, guaranteed)

    def became(self, entry: Entry, guaranteed: bool) -> None:
        """The core has made a job that runs guaranteed or opportunistic, without having been asked for that here.

        One that may start early has its place in line while it is opportunistic.
        """
        self._leave(entry)
        if guaranteed:
            entry.status, entry.near = GUARANTEED, None
        elif entry.status not in (MOVING, LEAVING):
            entry.status = LENT
        entry.placement = self.cluster.group(entry.name).placement
        self._find_queues(entry)
        if entry.status in (LENT, MOVING) and entry.early and entry.line is not None:
            entry.line.add(entry)
            self._new[entry.number] = entry

    def exclude(self, entry: Entry, nodes: frozenset[str]) -> None:
        """A job cannot go to these nodes."""
        waits = entry.status is WAITING
        if waits:
            self._leave(entry)
        entry.excluded = nodes
        entry.kind = (entry.shape, nodes) if nodes else entry.shape
        if waits:
            self._join(entry)
            self._touch(entry.vc)

    def rekey(self, entry: Entry) -> None:
        """The policy gives a job that waits or runs another place in the order."""
        stood = entry.line is not None and entry in entry.line
        self._leave(entry)
        entry.key = self._key(entry)
        if entry.status is WAITING:
            self._join(entry)
        elif stood and entry.line is not None:
            entry.line.add(entry)
        self._touch(entry.vc)

    def touch(self, vc: str) -> None:
        """Something has changed for the jobs of a VC."""
        self._touch(vc)

    def hardware_changed(self) -> list[Entry]:
        """Hardware may be different. Those whose reservation the core has ended for that: they wait no more."""
        self._dirty.update(dict.fromkeys(self.queues))
        self._idle = True
        lost = [e for e in self.reserved.values() if self.cluster.group(e.name).state is GroupState.PENDING]
        for entry in lost:
            self._unreserved(entry)
        return lost

    def reconfigured(self) -> list[Entry]:
        """There is another spec; answers as :meth:`hardware_changed`. O(jobs that wait)."""
        self._weights = _weights(self.cluster.spec)
        self._found.clear()
        self._known.clear()
        for entry in self.jobs.values():
            entry.near = None  # under another spec that may be nowhere
            if entry.status is WAITING:
                self._leave(entry)
                self._join(entry)
            elif entry.holds:
                self.became(entry, self.cluster.group(entry.name).guaranteed)
        return self.hardware_changed()

    # -- deciding -----------------------------------------------------------------------------------------------------

    def dispatch(self, now: float = 0.0) -> None:
        """Let start who can. ``now``: seconds by the engine's clock, as the core keeps them."""
        self._now = now
        while True:
            version = -1  # of the cluster, while somebody has reserved
            if self.reserved:
                version = self.cluster.version
                for entry in list(self.reserved.values()):
                    if entry.status is RESERVED and self._reservation_changed(entry):
                        self._ask(entry)
            while self._dirty or self._new:
                self._take_turns()
            if self._idle:
                self._idle = False
                if self._fronts or self._explains:
                    self._lend()
            if self._dirty or self._new or self._idle:
                continue
            if not self.reserved or version == self.cluster.version:
                return

    def _reservation_changed(self, entry: Entry) -> bool:
        """Whether a job that has reserved can start by now, there or elsewhere, or has to go from there."""
        decision = self.cluster.plan(entry.request, excluded_nodes=entry.excluded).decision
        return not isinstance(decision, Preempt) or decision.placement != entry.placement

    def _take_turns(self) -> None:
        """Step 2 for VCs where something has changed, and for jobs that wait anew; those borrow too if they can."""
        new, self._new = self._new, {}
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            if self._quota:
                self._take_turns_of_all(dirty)
            else:
                for vc in dirty:
                    line = self.queues[vc].line
                    line.restore()
                    while line.first is not None and self._next_turn(line, line.first):
                        pass
        for entry in new.values():
            own, backlog = entry.line, entry.backlog
            while own is not None and own.first is not None and own.first.number in new:
                if not self._next_turn(own, own.first):
                    break
            if entry.status is not WAITING:
                continue
            if backlog is None:
                if own is None and self._explains:
                    self._ask(entry)
                continue
            self._queue(entry)
            if entry.request.opportunistic:
                self._idle = True  # who has on loan more than comes to it may have to give it up for this one
            while not self._idle and backlog.first is not None and backlog.first.number in new:
                if not self._next_loan(backlog, backlog.first):
                    break

    def _take_turns_of_all(self, vcs: dict[str, None]) -> None:
        """Step 2, where guaranteed GPUs of one VC may be another's: the first in the order goes first.

        O(VCs given * log VCs).
        """
        heads: list[tuple[Key, Queue]] = []
        for vc in vcs:
            line = self.queues[vc].line
            line.restore()
            if line.first is not None:
                heappush(heads, (line.first.key, line))
            else:
                self._between.discard(vc)
        while heads:
            _, line = heappop(heads)
            first = line.first
            if first is not None and self._next_turn(line, first) and line.first is not None:
                heappush(heads, (line.first.key, line))

    def _next_turn(self, line: Queue, entry: Entry) -> bool:
        """Ask for the first in a line; whether it is somebody else's turn now."""
        started = self._take_turn(entry)
        if started is None:
            line.pass_by()
            return True
        return started

    def _take_turn(self, entry: Entry) -> bool | None:
        """Whether it has left its line; None: it waits, and holds nobody back."""
        if entry.status is LENT:
            promoted = self.cluster.promote(entry.request, entry.demand)
            if promoted:
                self._leave(entry)
                entry.status = GUARANTEED
                self._carry_out(Promote(entry.number))
                return True
            if promoted is None:
                return self._waits_on_loan(entry)
            if self._explains and self.cluster.group(entry.name).preempted_by:
                return False  # it goes already, and asks again once it is gone
            entry.near = entry.placement
            entry.status = MOVING
            self._carry_out(Move(entry.number, self._keeps_work(entry, entry)))
        if entry.status is MOVING:  # it is not gone yet
            return False
        return self._ask(entry)

    def _waits_on_loan(self, entry: Entry) -> bool | None:
        """Its VC has no room for a job that runs on loan: as :meth:`_take_turn`."""
        if not self._explains:
            return self._waits(entry)
        key = "turn", entry.kind
        reasons = self._why(key)
        if reasons is None:
            like_it = replace(entry.request, group=f"{entry.name} (its turn)")
            reasons = self._known[key] = self.cluster.plan(like_it, excluded_nodes=entry.excluded).reasons
        return None if reasons and isinstance(reasons[0], _HOLDS_NOBODY_BACK) else False

    def _waits(self, entry: Entry) -> bool:
        if self._quota:
            if self.cluster.within_quota(entry.request):
                self._between.add(entry.vc)
            else:
                self._between.discard(entry.vc)
        return False

    def _why(self, key: tuple[Hashable, ...]) -> tuple[Reason, ...] | None:
        """Why the cluster as it is turned down one who asked for the same."""
        if self._known_version != self.cluster.version:
            self._known.clear()
            self._known_version = self.cluster.version
        return self._known.get(key)

    def _ask(self, entry: Entry) -> bool | None:
        """Ask the core for what a job asks for, and carry the answer out: as :meth:`_take_turn`."""
        request, excluded = entry.request, entry.excluded
        if entry.status is not RESERVED and (not self._explains or entry.near is not None):
            keep = entry.may_preempt
            placed = self.cluster.place(request, self._now, entry.near, False, excluded, keep, entry.demand)
            if placed is not None:
                return self._carry(entry, placed, keep)
            if not self._explains:
                return self._waits(entry)
        key = (entry.kind,)
        reasons = self._why(key) if entry.status is WAITING else None
        if reasons is None:
            try:
                decision: Decision = self.cluster.schedule(request, now=self._now, excluded_nodes=excluded)
            except RequestError as error:
                reasons = (Misconfigured(error.field, error.message),)
            else:
                if not isinstance(decision, Wait):
                    return self._carry(entry, decision)
                reasons = self._known[key] = decision.reasons
        self._carry_out(Hold(entry.number, reasons))
        if entry.status is RESERVED:  # the nodes of its reservation are not to be used any more
            self._unreserved(entry)
            self._carry_out(Unreserve(entry.number))
        return None if isinstance(reasons[0], _HOLDS_NOBODY_BACK) else False

    def _carry(self, entry: Entry, decision: Bind | Preempt, kept: bool = False) -> bool:
        """Carry out what the core has answered for a job (and ``kept``); whether it has left its queues."""
        had = entry.placement if entry.status is RESERVED else None
        if isinstance(decision, Preempt) and not kept:
            if decision.placement == had:
                return True  # as before: some victims are not gone yet
            if not entry.may_preempt:
                self._carry_out(Hold(entry.number, (WaitingForPreemption(decision.victims),)))
                return False
        if not kept:
            self.cluster.commit(decision)
        if had is None:
            self._leave(entry)
        elif decision.placement != had:
            self._touch(entry.vc)
        for name in decision.overtaken:
            other = self._by_name[name]
            self._unreserved(other)
            self._carry_out(Unreserve(other.number, entry.number))
        for name in decision.downgraded:
            other = self._by_name[name]
            self.became(other, False)
            self._carry_out(Downgrade(other.number, entry.number))
        entry.placement, entry.near = decision.placement, None
        if isinstance(decision, Preempt):
            return self._reserve(entry, decision)
        if had is not None:
            del self.reserved[entry.number]
        entry.status, kind = LENT, _OPPORTUNISTIC
        if entry.request.priority >= 0:
            entry.status, kind = GUARANTEED, _GUARANTEED
        self._carry_out(Start(entry.number, kind, decision.placement))
        return True

    def _reserve(self, entry: Entry, decision: Preempt) -> bool:
        entry.status = RESERVED
        self.reserved[entry.number] = entry
        self._carry_out(Reserve(entry.number, decision.placement, decision.victims))
        victims = [self._by_name[name] for name in decision.victims]
        for victim in victims:
            self._carry_out(Stop(victim.number, entry.number, self._keeps_work(victim, entry)))
        if not any(victim.holds for victim in victims):  # they are gone at once
            self._ask(entry)
        return True

    def _unreserved(self, entry: Entry) -> None:
        """What was reserved for a job is free."""
        del self.reserved[entry.number]
        entry.status, entry.placement = NOWHERE, None
        entry.demand = entry.loan_demand = None  # the spec may be another when it waits again
        self._touch(entry.vc)

    def _keeps_work(self, victim: Entry, by: Entry) -> bool:
        return self.policy.react(Displaced(victim.view, by.view)) is Reaction.SUSPEND

    # -- loans --------------------------------------------------------------------------------------------------------

    def _lend(self) -> None:
        """Step 3, once GPUs may have fallen idle."""
        if self._explains:
            for queues in self.queues.values():
                for backlog in (queues.backlog, queues.outsized):
                    if backlog.passes:
                        before = backlog.first
                        backlog.restore()
                        self._front_changed(before, backlog.first)
        lacking: set[Hashable] = set()  # idle GPUs only become fewer here
        cluster, weights = self.cluster, self._weights
        while True:
            best: Entry | None = None
            best_share = 0.0
            idle = 0 if self._explains else cluster.idle_gpus
            for kind, entries in self._fronts.items():
                if kind in lacking:
                    continue
                if not self._explains:
                    one = next(iter(entries))
                    few = one.loan_demand is not None and one.loan_demand.least_gpus > idle
                    if few or not cluster.can_lend(one.loan, one.loan_demand):
                        lacking.add(kind)
                        continue
                for entry in entries:
                    weight = weights.get(entry.vc)
                    share = cluster.opportunistic_gpus(entry.vc) / weight if weight else inf
                    if best is None or (share, entry.key) < (best_share, best.key):
                        best, best_share = entry, share
            if best is None:
                return
            assert best.backlog is not None
            if not self._next_loan(best.backlog, best):
                lacking.add(best.kind)

    def _next_loan(self, backlog: Queue, entry: Entry) -> bool:
        """Ask for the first in a backlog; whether it is somebody else's turn now."""
        started = self._borrow(entry) if entry.early else self._ask(entry)
        if started is None:
            backlog.pass_by()
            self._front_changed(entry, backlog.first)
            return True
        return started

    def _borrow(self, entry: Entry) -> bool | None:
        """Start a job on idle GPUs before its turn; None: it waits for them, and holds nobody back."""
        key = "loan", entry.kind
        reasons = self._why(key) if self._explains else None
        decision = None
        if reasons is None:
            loan, excluded = entry.loan, entry.excluded
            decision = self.cluster.place(loan, self._now, None, True, excluded, True, entry.loan_demand)
        if decision is not None:
            self._unqueue(entry)
            entry.status, entry.placement = LENT, decision.placement
            self._carry_out(Start(entry.number, _OPPORTUNISTIC, decision.placement))
            return True
        if not self._explains:
            return False
        if reasons is None:
            reasons = self._known[key] = self.cluster.plan(entry.loan, excluded_nodes=entry.excluded).reasons
        if entry.line is None:  # it waits for nothing else
            self._carry_out(Hold(entry.number, reasons))
        return None if reasons and isinstance(reasons[0], _HOLDS_NOBODY_BACK) else False

    # -- the queues ---------------------------------------------------------------------------------------------------

    def _key(self, entry: Entry) -> Key:
        return (-entry.request.priority, *self.policy.order(entry.view), entry.number)

    def _find_queues(self, entry: Entry) -> None:
        """Where a job waits for its turn, and for a loan, if these can ever come. O(1) for a shape seen before."""
        key = entry.vc, entry.shape, entry.early
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            queues = self.queues.setdefault(entry.vc, VcQueues())
            opportunistic = entry.request.opportunistic
            turn = self._demand(entry.request)
            fits = turn is not None and not self.cluster.never_fits(entry.request)
            line = queues.line if fits and not opportunistic else None
            backlog = loan = None
            if opportunistic or entry.early:
                loan = self._demand(entry.loan)
            if loan is not None and not self.cluster.never_fits(entry.loan):
                backlog = queues.backlog if opportunistic or line is not None else queues.outsized
            found = self._found[key] = _ShapeInfo(line, backlog, turn, loan)
        entry.line, entry.backlog, entry.demand, entry.loan_demand = found

    def _demand(self, request: Request) -> Demand | None:
        """What a request comes to; None where it is wrong."""
        try:
            return self.cluster.demand(request)
        except RequestError:
            return None

    def _join(self, entry: Entry) -> None:
        """A job that waits takes its places: in the backlog only once it has not had its turn at once."""
        self._find_queues(entry)
        if entry.line is not None:
            entry.line.add(entry)
        elif entry.backlog is not None:
            self._queue(entry)
        else:
            self.queues[entry.vc].misfits.add(entry)
        self._new[entry.number] = entry

    def _leave(self, entry: Entry) -> None:
        """A job is in no queue any more."""
        self._new.pop(entry.number, None)
        if entry.status is GUARANTEED:
            return
        if entry.line is not None:
            entry.line.remove(entry)
        if entry.queued:
            self._unqueue(entry)
        elif entry.line is None and entry.backlog is None and entry.vc in self.queues:
            self.queues[entry.vc].misfits.remove(entry)

    def _queue(self, entry: Entry) -> None:
        """``entry`` runs nowhere from now on, and would borrow."""
        backlog = entry.backlog
        if backlog is None or entry.queued:
            return
        entry.queued = True
        before = backlog.first
        backlog.add(entry)
        if backlog.first is not before:
            self._front_changed(before, backlog.first)

    def _unqueue(self, entry: Entry) -> None:
        """``entry`` would borrow no more."""
        backlog = entry.backlog
        assert backlog is not None
        entry.queued = False
        before = backlog.first
        backlog.remove(entry)
        if backlog.first is not before:
            self._front_changed(before, backlog.first)

    def _front_changed(self, before: Entry | None, after: Entry | None) -> None:
        if before is not None:
            alike = self._fronts[before.kind]
            del alike[before]
            if not alike:
                del self._fronts[before.kind]
        if after is not None:
            self._fronts.setdefault(after.kind, {})[after] = None

    def _touch(self, vc: str) -> None:
        if vc in self.queues:
            self._dirty[vc] = None
        self._idle = True

    # -- looking ------------------------------------------------------------------------------------------------------

    def ahead(self, entry: Entry, most: int) -> tuple[int, list[Entry]]:
        """How many may hold back a job that waits (or runs early), and the first ``most``. O(log jobs + most)."""
        queue = entry.backlog if entry.line is None else entry.line
        waits = entry.status is WAITING or (entry.status is LENT and entry.early)
        return queue.ahead(entry.key, most) if waits and queue is not None else (0, [])

    def before(self, vc: str, priority: int, most: int) -> tuple[int, list[Entry]]:
        """The same of a new job with this priority."""
        queues = self.queues.get(vc)
        if queues is None:
            return 0, []
        return (queues.backlog if priority < 0 else queues.line).ahead((-priority + 1,), most)

    def in_turn(self, most: int) -> list[Entry]:
        """The first who waits in every VC, then the second ones, and so on: no tenant's queue hides another's.

        Those who have a turn to come in their VC are before those who can only borrow. At most ``most``. O(VCs + most).
        """
        vcs = [self.queues[vc] for vc in sorted(self.queues)]
        turns = [_waiting(False, queues.line, queues.outsized, queues.misfits) for queues in vcs]
        loans = [_waiting(True, queues.backlog, queues.misfits) for queues in vcs]
        rounds = zip_longest(*turns, *loans)
        return list(islice((entry for one in rounds for entry in one if entry is not None), most))

    # -- checks -------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Queues re-derived from the jobs' status; the cluster too. O(jobs + cluster)."""
        self.cluster.validate()
        groups = set(self.cluster.groups())
        lines: dict[str, list[Entry]] = {vc: [] for vc in self.queues}
        backlogs: dict[Queue, list[Entry]] = {q: [] for qs in self.queues.values() for q in (qs.backlog, qs.outsized)}
        for number, entry in self.jobs.items():
            ensure(entry.number == number and self._by_name[entry.name] is entry, f"{entry} by number and name")
            if entry.holds:
                core = self.cluster.group(entry.name)
                ensure(core.guaranteed is (entry.status is GUARANTEED), f"{entry} holds what its status says")
                at = [placement and placement.pods for placement in (core.placement, entry.placement)]
                ensure(at[0] == at[1], f"{entry} is where it is")
            elif not self._explains:
                ensure(entry.name not in groups, f"{entry} holds nothing")
            ensure((number in self.reserved) is (entry.status is RESERVED), f"{entry} is among those reserved")
            if entry.status is WAITING:
                if entry.line is not None:
                    lines[entry.vc].append(entry)
                if entry.backlog is not None:
                    backlogs[entry.backlog].append(entry)
            elif entry.status in (LENT, MOVING) and entry in self.queues[entry.vc].line:
                lines[entry.vc].append(entry)
        for vc, entries in lines.items():
            line = self.queues[vc].line
            ensure(sorted(entries, key=_by_key) == list(line), f"the line of {vc}: {entries} {list(line)}")
            if line.first is not None and self.cluster.within_quota(line.first.request):
                ensure(vc in self._between, f"the first in line of {vc} may wait for others")
        for backlog, entries in backlogs.items():
            ensure(sorted(entries, key=_by_key) == list(backlog), f"a backlog: {entries}")
            first = backlog.first
            if first is None:
                continue
            ensure(first in self._fronts[first.kind], f"{first} is first of a backlog")
            idle = first.early and not first.excluded and self.cluster.can_lend(first.loan)
            ensure(not idle, f"{first} could borrow, and waits")
        ensure(sum(map(len, self._fronts.values())) == sum(b.first is not None for b in backlogs), "fronts of backlogs")


def _waiting(opportunistic: bool, *queues: Queue) -> Iterator[Entry]:
    """Who waits in any of these, in the policy's order."""
    waiting = (entry for entry in merge(*queues, key=_by_key) if entry.status is WAITING)
    return (entry for entry in waiting if entry.request.opportunistic is opportunistic)


def _by_key(entry: Entry) -> Key:
    return entry.key


def _weights(spec: ClusterSpec) -> dict[str, int]:
    """GPUs that each VC reserved, those of pinned cells too."""
    return {
        vc.name: sum(spec.chain(c.chain).levels[c.level - 1].gpus * c.number for c in vc.cells)
        + sum(spec.chain(p.chain).levels[p.level - 1].gpus for p in vc.pinned)
        for vc in spec.virtual_clusters
    }
