"""The queues of all tenants over a shared cluster: events in, decisions out.

This is what the simulator drives, and what a live engine will. It has no clock; time only orders submissions. After
every event the same two steps run to their end (as far as the event can have changed anything):

1. *Turns.* While the first in a tenant's line gets guaranteed GPUs, it leaves the line. A job that already runs
   opportunistically stays where it is if the cluster can bind its GPUs, else it moves: whoever started early does not
   pay for it.
2. *Loans.* While the first of a tenant's jobs that run nowhere fits on idle GPUs, it starts there, opportunistically.
   The tenant with the smallest share goes first (GPUs it has on loan over GPUs it reserved: weighted max-min
   fairness).

Within a tenant nobody passes anybody, on whichever kind of GPUs: the policy's order holds for loans as it does for
turns. So what differs between the sharing schemes is the sharing, and never the order. The one exception are jobs
larger than their tenant's cluster. Their turn never comes; they borrow when they fit, and hold nobody back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from hived.cluster import Allocation, Kind, SharedCluster
from hived.errors import InvariantError, ensure

from .decisions import Decision, Move, Preempt, Promote, Start
from .protocols import Displaced, Policy, Reaction, Request
from .queues import Entry, Status, TenantQueue


class Scheduler:
    """One policy over one cluster. Jobs are numbered by the caller; a number is used once.

    An event costs O(log jobs) for the queues plus what the cluster charges, and O(tenants) when GPUs may be lent.
    """

    def __init__(self, cluster: SharedCluster, policy: Policy, opportunistic: bool = True) -> None:
        self.cluster = cluster
        self.policy = policy
        self._lends = opportunistic and cluster.lends
        self._place = policy.place
        tenants = range(len(cluster.tenants))
        self.queues = [TenantQueue() for _ in tenants]
        self._views = [cluster.view(tenant) for tenant in tenants]
        self._weights = [view.gpus for view in self._views]
        #: every job that is not done
        self.jobs: dict[int, Entry] = {}
        self._borrowers: dict[Allocation, Entry] = {}
        # tenants whose head may wait for nothing but GPUs of others
        self._between: set[int] = set()
        # per size: the jobs that are first in a backlog
        self._firsts: dict[int, dict[Entry, None]] = {}

    def submit(self, number: int, tenant: int, request: Request) -> list[Decision]:
        """A job arrives."""
        if number in self.jobs:
            raise InvariantError(f"job number {number} is used twice")
        outsized = not self._views[tenant].can_ever_fit(request.gpus)
        entry = Entry(number, tenant, self.policy.order(request), request, outsized)
        self.jobs[number] = entry
        queue = self.queues[tenant]
        decisions: list[Decision] = []
        if not outsized:
            head = queue.head()
            its_turn = head is None or entry < head
            if not (its_turn and self._take_turn(entry, decisions)):
                heappush(queue.line, (entry.key, entry))
        if self._lends:
            if entry.status is Status.GUARANTEED:
                if len(decisions) > 1:  # somebody was preempted, and left more GPUs than were needed
                    self._lend(decisions)
            elif self.cluster.can_ever_lend(request.gpus):
                first = queue.backlog_of(entry).first
                if (first is not None and first < entry) or not self._try_to_lend(entry, decisions):
                    self._wait(entry)
        return decisions

    def finish(self, numbers: Sequence[int]) -> list[Decision]:
        """Running jobs have ended, all at one instant: they give their GPUs back before anybody gets any."""
        decisions: list[Decision] = []
        queues: dict[int, TenantQueue] = {}  # of the tenants whose next turn may have come
        freed = False
        ended = [self.jobs[number] for number in numbers]
        for entry in ended:
            if entry.status is Status.WAITING:
                raise InvariantError(f"job {entry.number} ends, and does not run")
        for entry in ended:
            del self.jobs[entry.number]
            was = entry.status
            entry.status = Status.DONE
            self.cluster.release(entry.allocation)
            queue = self.queues[entry.tenant]
            if was is Status.GUARANTEED:
                freed = True
                if queue.line:
                    queues[entry.tenant] = queue
            else:
                del self._borrowers[entry.allocation]
                if queue.line and queue.line[0][1] is entry:  # it was its turn: now it is somebody else's
                    queues[entry.tenant] = queue
        if freed and not self.cluster.independent:
            self._take_turns_of_all(self._between.union(queues), decisions)
        else:
            for queue in queues.values():
                self._take_turns(queue, decisions)
        if self._firsts:
            self._lend(decisions)
        return decisions

    def _take_turns(self, queue: TenantQueue, decisions: list[Decision]) -> None:
        """Step 1, for one tenant."""
        head = queue.head()
        while head is not None and self._take_turn(head, decisions):
            head = queue.head()

    def _take_turns_of_all(self, tenants: Iterable[int], decisions: list[Decision]) -> None:
        """Step 1, where one tenant's guaranteed GPUs may be another's: the first in the order goes first.

        ``tenants``: all of whose heads the turn may have come. O(tenants given * log tenants).
        """
        heads: list[tuple[tuple[int, ...], Entry]] = []

        def next_of(tenant: int) -> None:
            head = self.queues[tenant].head()
            if head is not None:
                heappush(heads, (head.key, head))
            else:
                self._between.discard(tenant)

        for tenant in tenants:
            next_of(tenant)
        while heads:
            _, head = heappop(heads)
            if self._take_turn(head, decisions):
                next_of(head.tenant)

    def _take_turn(self, entry: Entry, decisions: list[Decision]) -> bool:
        """Whether it is guaranteed now; else it is its tenant's head."""
        allocation = entry.allocation
        grant = self.cluster.guarantee(allocation, self._place)
        if grant is None:
            if self.cluster.waits_for_others(entry.tenant, entry.request.gpus):
                self._between.add(entry.tenant)
            else:
                self._between.discard(entry.tenant)
            return False
        if grant.victims:
            self._displace(grant.victims, entry, decisions)
        was = entry.status
        entry.status = Status.GUARANTEED
        if was is Status.WAITING:
            if entry.queued:
                self._stopped_waiting(entry)
            decisions.append(Start(entry.number, Kind.GUARANTEED, allocation.parts))
        else:
            del self._borrowers[allocation]
            if grant.in_place:
                decisions.append(Promote(entry.number))
            else:
                decisions.append(Move(entry.number, allocation.parts, self._keeps_work(entry, entry)))
        return True

    def _displace(self, victims: Iterable[Allocation], by: Entry, decisions: list[Decision]) -> None:
        for allocation in victims:
            victim = self._borrowers.pop(allocation)
            victim.status = Status.WAITING
            self._wait(victim)
            decisions.append(Preempt(victim.number, by.number, self._keeps_work(victim, by)))

    def _keeps_work(self, victim: Entry, by: Entry) -> bool:
        reaction = self.policy.react(self._views[victim.tenant], Displaced(victim.request, by.request))
        return reaction is Reaction.SUSPEND

    def _lend(self, decisions: list[Decision]) -> None:
        """Step 2. Before it, nobody who waited fitted; so it is called only when GPUs have fallen idle."""
        unsuited: set[int] = set()  # sizes that do not fit; idle GPUs only become fewer here
        while True:
            best: Entry | None = None
            best_share = 0.0
            for gpus, borrowers in self._firsts.items():
                if gpus in unsuited:
                    continue
                if not self.cluster.can_lend(gpus):
                    unsuited.add(gpus)
                    continue
                for entry in borrowers:
                    share = self._share(entry.tenant)
                    if best is None or (share, entry) < (best_share, best):
                        best, best_share = entry, share
            if best is None:
                return
            if not self._try_to_lend(best, decisions):
                raise InvariantError(f"job {best.number} fits on idle GPUs, and could not start there")
            self._stopped_waiting(best)

    def _wait(self, entry: Entry) -> None:
        """``entry`` runs nowhere from now on, and would borrow."""
        backlog = self.queues[entry.tenant].backlog_of(entry)
        before = backlog.first
        backlog.add(entry)
        if backlog.first is not before:
            self._first_changed(before, backlog.first)

    def _stopped_waiting(self, entry: Entry) -> None:
        """``entry`` has started: its status says so already."""
        backlog = self.queues[entry.tenant].backlog_of(entry)
        if backlog.first is entry:
            backlog.drop_first()
            self._first_changed(entry, backlog.first)

    def _first_changed(self, before: Entry | None, after: Entry | None) -> None:
        if before is not None:
            same_size = self._firsts[before.request.gpus]
            del same_size[before]
            if not same_size:
                del self._firsts[before.request.gpus]
        if after is not None:
            self._firsts.setdefault(after.request.gpus, {})[after] = None

    def _share(self, tenant: int) -> float:
        """GPUs that the tenant has on loan over those that it reserved."""
        weight = self._weights[tenant]
        return self.cluster.lent(tenant) / weight if weight else float("inf")

    def _try_to_lend(self, entry: Entry, decisions: list[Decision]) -> bool:
        allocation = entry.allocation
        if not self.cluster.lend(allocation):
            return False
        self._borrowers[allocation] = entry
        entry.status = Status.LENT
        decisions.append(Start(entry.number, Kind.OPPORTUNISTIC, allocation.parts))
        return True

    def validate(self) -> None:
        """Queues re-derived from the jobs' status; the cluster too. O(jobs + cluster)."""
        self.cluster.validate()
        kinds = {Status.WAITING: None, Status.LENT: Kind.OPPORTUNISTIC, Status.GUARANTEED: Kind.GUARANTEED}
        lent = 0
        for number, entry in self.jobs.items():
            ensure(entry.status is not Status.DONE, f"job {number} is not done")
            ensure(entry.allocation.kind is kinds[entry.status], f"job {number} holds what its status says")
            queue = self.queues[entry.tenant]
            if entry.status is not Status.GUARANTEED and not entry.outsized:
                ensure(any(entry is e for _, e in queue.line), f"job {number} is in its tenant's line")
            if entry.status is Status.LENT:
                lent += 1
                ensure(self._borrowers.get(entry.allocation) is entry, f"job {number} is known by what it holds")
            elif entry.status is Status.WAITING and self._lends and self.cluster.can_ever_lend(entry.request.gpus):
                ensure(
                    entry.queued and entry in queue.backlog_of(entry),
                    f"job {number} is in the backlog",
                )
        ensure(lent == len(self._borrowers), "only running jobs borrow")
        firsts = [b.first for q in self.queues for b in (q.backlog, q.outsized) if b.first is not None]
        by_size = {entry: gpus for gpus, entries in self._firsts.items() for entry in entries}
        ensure(by_size == {entry: entry.request.gpus for entry in firsts}, "firsts of the backlogs, by size")
        for tenant, queue in enumerate(self.queues):
            head = queue.head()
            if head is not None and self.cluster.waits_for_others(tenant, head.request.gpus):
                ensure(tenant in self._between, f"tenant {tenant}'s head may wait for others")
            if head is not None and head.status is Status.WAITING and not self._lends:
                waiting = [e for e in self.jobs.values() if e.tenant == tenant and e.status is Status.WAITING]
                ensure(head is min(e for e in waiting if not e.outsized), f"tenant {tenant}'s head is its first job")
            if self._lends:
                for backlog in (queue.backlog, queue.outsized):
                    first = backlog.first
                    waiting = [e for e in self.jobs.values() if e in backlog and e.status is Status.WAITING]
                    ensure(first is (min(waiting) if waiting else None), f"tenant {tenant}'s first in the backlog")
                    idle = first is not None and self.cluster.can_lend(first.request.gpus)
                    ensure(not idle, f"tenant {tenant}'s first job could borrow, and waits")
