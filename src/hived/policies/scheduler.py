"""The queues of all tenants over a shared cluster: events in, decisions out.

This is what the simulator drives, and what a live engine will. It has no clock; time only orders submissions. After
every event the same two steps run to their end:

1. *Turns.* While the first in a tenant's line gets guaranteed GPUs, it leaves the line. A job that already runs
   opportunistically stays where it is if the cluster can bind its GPUs, else it moves: whoever started early does not
   pay for it.
2. *Loans.* While the first of a tenant's jobs that run nowhere fits on idle GPUs, it starts there, opportunistically.
The    tenant with the smallest share goes first (GPUs it has on loan over GPUs it reserved: weighted max-min fairness).

Within a tenant nobody passes anybody, on whichever kind of GPUs: the policy's order holds for loans as it does for
turns. So what differs between the sharing schemes is the sharing, and never the order. The one exception are jobs
larger than their tenant's cluster. Their turn never comes; they borrow when they fit, and hold nobody back.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappush

from hived.cluster import Allocation, Kind, SharedCluster
from hived.errors import ensure

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
        tenants = range(len(cluster.tenants))
        self.queues = [TenantQueue() for _ in tenants]
        self._everyone = tuple(tenants)
        self._views = [cluster.view(tenant) for tenant in tenants]
        self._weights = [view.gpus for view in self._views]
        #: every job that is not done
        self.jobs: dict[int, Entry] = {}
        self._borrowers: dict[Allocation, Entry] = {}

    def submit(self, number: int, tenant: int, request: Request) -> list[Decision]:
        """A job arrives."""
        ensure(number not in self.jobs, f"job number {number} is new")
        outsized = not self._views[tenant].can_ever_fit(request.gpus)
        entry = Entry(number, tenant, self.policy.order(request), request, outsized)
        self.jobs[number] = entry
        queue = self.queues[tenant]
        decisions: list[Decision] = []
        if not outsized:
            first = queue.head()
            heappush(queue.line, entry)
            if first is None or entry < first:
                self._take_turns((tenant,), decisions)
        if self._lends:
            if entry.status is Status.GUARANTEED:
                if len(decisions) > 1:  # somebody was preempted, and left more GPUs than were needed
                    self._lend(decisions)
            elif self.cluster.can_ever_lend(request.gpus):
                queue.wait(entry)
                if queue.next_borrower(self.cluster.can_lend, {}) is entry:
                    self._try_to_lend(entry, decisions)
                    queue.stop_waiting(entry)
        return decisions

    def finish(self, number: int) -> list[Decision]:
        """A running job has ended, and gives its GPUs back."""
        entry = self.jobs.pop(number)
        was = entry.status
        ensure(was is Status.LENT or was is Status.GUARANTEED, f"job {number} runs")
        entry.status = Status.DONE
        self.cluster.release(entry.allocation)
        decisions: list[Decision] = []
        line = self.queues[entry.tenant].line
        if was is Status.GUARANTEED:
            self._take_turns((entry.tenant,) if self.cluster.independent else self._everyone, decisions)
        else:
            del self._borrowers[entry.allocation]
            if line and line[0] is entry:  # it was its turn: now it is somebody else's
                self._take_turns((entry.tenant,), decisions)
        if self._lends:
            self._lend(decisions)
        return decisions

    def _take_turns(self, tenants: Iterable[int], decisions: list[Decision]) -> None:
        """Step 1, for these tenants; among several, the first in the order goes first."""
        heads = [head for tenant in tenants if (head := self.queues[tenant].head()) is not None]
        while heads:
            entry = min(heads) if len(heads) > 1 else heads[0]
            heads.remove(entry)
            grant = self.cluster.guarantee(entry.allocation, self.policy.place)
            if grant is None:
                continue
            if grant.victims:
                self._displace(grant.victims, entry, decisions)
            if entry.status is Status.WAITING:
                decisions.append(Start(entry.number, Kind.GUARANTEED, entry.allocation.parts))
            else:
                del self._borrowers[entry.allocation]
                if grant.in_place:
                    decisions.append(Promote(entry.number))
                else:
                    decisions.append(Move(entry.number, entry.allocation.parts, self._keeps_work(entry, entry)))
            entry.status = Status.GUARANTEED
            following = self.queues[entry.tenant].head()
            if following is not None:
                heads.append(following)

    def _displace(self, victims: Iterable[Allocation], by: Entry, decisions: list[Decision]) -> None:
        for allocation in victims:
            victim = self._borrowers.pop(allocation)
            victim.status = Status.WAITING
            self.queues[victim.tenant].wait(victim)
            decisions.append(Preempt(victim.number, by.number, self._keeps_work(victim, by)))

    def _keeps_work(self, victim: Entry, by: Entry) -> bool:
        reaction = self.policy.react(self._views[victim.tenant], Displaced(victim.request, by.request))
        return reaction is Reaction.SUSPEND

    def _lend(self, decisions: list[Decision]) -> None:
        """Step 2. Before it, nobody who waited fitted; so it is called only when GPUs have fallen idle."""
        cluster = self.cluster
        fits: dict[int, bool] = {}
        while True:
            best: Entry | None = None
            best_share = 0.0
            for queue in self.queues:
                if not (queue.backlog or queue.outsized):
                    continue
                entry = queue.next_borrower(cluster.can_lend, fits)
                if entry is not None:
                    weight = self._weights[entry.tenant]
                    share = cluster.lent(entry.tenant) / weight if weight else float("inf")
                    if best is None or share < best_share:
                        best, best_share = entry, share
            if best is None:
                return
            ensure(self._try_to_lend(best, decisions), f"job {best.number} fits on idle GPUs")
            self.queues[best.tenant].stop_waiting(best)
            fits = {gpus: False for gpus, suits in fits.items() if not suits}  # idle GPUs have only become fewer

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
                ensure(entry in queue.line, f"job {number} is in its tenant's line")
            if entry.status is Status.LENT:
                lent += 1
                ensure(self._borrowers.get(entry.allocation) is entry, f"job {number} is known by what it holds")
            elif entry.status is Status.WAITING and self._lends and self.cluster.can_ever_lend(entry.request.gpus):
                ensure(
                    entry.queued and entry in (queue.outsized if entry.outsized else queue.backlog),
                    f"job {number} is in the backlog",
                )
        ensure(lent == len(self._borrowers), "only running jobs borrow")
        for tenant, queue in enumerate(self.queues):
            head = queue.head()
            if head is not None and head.status is Status.WAITING and not self._lends:
                waiting = [e for e in self.jobs.values() if e.tenant == tenant and e.status is Status.WAITING]
                ensure(head is min(e for e in waiting if not e.outsized), f"tenant {tenant}'s head is its first job")
            if self._lends:
                borrower = queue.next_borrower(self.cluster.can_lend, {})
                ensure(borrower is None, f"tenant {tenant}'s first job could borrow, and waits")
