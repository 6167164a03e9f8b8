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

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Bind, Preempt
from hived.cluster.requests import Member, Request
from hived.cluster.sharing import Sharing
from hived.errors import InvariantError, ensure

from .instructions import Instruction, Kind, Move, Promote, Start, Stop
from .policy import Displaced, JobView, Policy, Reaction
from .queue import Entry, Status, TenantQueue


class Scheduler:
    """One policy over one cluster. Jobs are numbered by the caller; a number is used once.

    An event costs O(log jobs) for the queues plus what the cluster charges, and O(tenants) when GPUs may be lent.
    """

    def __init__(self, cluster: Cluster, policy: Policy, opportunistic: bool = True) -> None:
        self.cluster = cluster
        self.policy = policy
        self._lends = opportunistic and cluster.sharing is not Sharing.PRIVATE
        #: names of the tenants; everywhere else a tenant is its number here
        self.tenants = tuple(vc.name for vc in cluster.spec.virtual_clusters)
        tenants = range(len(self.tenants))
        self.queues = [TenantQueue() for _ in tenants]
        # GPUs that each reserved, those of pinned cells left out
        self._weights = [
            sum(cells.number * cluster.spec.chain(cells.chain).levels[cells.level - 1].gpus for cells in vc.cells)
            for vc in cluster.spec.virtual_clusters
        ]
        # GPUs that each has on loan
        self._lent = [0 for _ in tenants]
        #: every job that is not done
        self.jobs: dict[int, Entry] = {}
        self._borrowers: dict[str, Entry] = {}
        # tenants whose head may wait for nothing but GPUs of others
        self._between: set[int] = set()
        # per size: the jobs that are first in a backlog
        self._firsts: dict[int, dict[Entry, None]] = {}
        # per tenant (-1: on loan) and number of GPUs: whether a job could not start in an empty cluster
        self._never: dict[tuple[int, int], bool] = {}

    def submit(self, number: int, tenant: int, job: JobView) -> list[Instruction]:
        """A job arrives."""
        if number in self.jobs:
            raise InvariantError(f"job number {number} is used twice")
        members = (Member(1, job.gpus),)
        own = Request(job.job, self.tenants[tenant], 0, members, whole_nodes=True)
        outsized = self._never_fits(tenant, own)
        entry = Entry(number, tenant, self.policy.order(job), job, own, outsized)
        self.jobs[number] = entry
        queue = self.queues[tenant]
        decisions: list[Instruction] = []
        if not outsized:
            head = queue.head()
            its_turn = head is None or entry < head
            if not (its_turn and self._take_turn(entry, decisions)):
                heappush(queue.line, (entry.key, entry))
        if self._lends:
            if entry.status is Status.GUARANTEED:
                if len(decisions) > 1:  # somebody was preempted, and left more GPUs than were needed
                    self._lend(decisions)
            elif not self._never_fits(-1, entry.loan):
                first = queue.backlog_of(entry).first
                if (first is not None and first < entry) or not self._try_to_lend(entry, decisions):
                    self._wait(entry)
        return decisions

    def _never_fits(self, tenant: int, request: Request) -> bool:
        key = tenant, request.members[0].leaf_cells
        known = self._never.get(key)
        if known is None:
            known = self._never[key] = self.cluster.never_fits(request)
        return known

    def finish(self, numbers: Sequence[int]) -> list[Instruction]:
        """Running jobs have ended, all at one instant: they give their GPUs back before anybody gets any."""
        decisions: list[Instruction] = []
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
            self.cluster.release(entry.view.job)
            queue = self.queues[entry.tenant]
            if was is Status.GUARANTEED:
                freed = True
                if queue.line:
                    queues[entry.tenant] = queue
            else:
                self._loan_ends(entry)
                if queue.line and queue.line[0][1] is entry:  # it was its turn: now it is somebody else's
                    queues[entry.tenant] = queue
        if freed and self.cluster.sharing is Sharing.QUOTA:
            self._take_turns_of_all(self._between.union(queues), decisions)
        else:
            for queue in queues.values():
                self._take_turns(queue, decisions)
        if self._firsts:
            self._lend(decisions)
        return decisions

    def _take_turns(self, queue: TenantQueue, decisions: list[Instruction]) -> None:
        """Step 1, for one tenant."""
        head = queue.head()
        while head is not None and self._take_turn(head, decisions):
            head = queue.head()

    def _take_turns_of_all(self, tenants: Iterable[int], decisions: list[Instruction]) -> None:
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

    def _take_turn(self, entry: Entry, decisions: list[Instruction]) -> bool:
        """Whether it is guaranteed now; else it is its tenant's head."""
        if entry.status is Status.LENT:
            promoted = self.cluster.promote(entry.own)
            if promoted:
                self._loan_ends(entry)
                entry.status = Status.GUARANTEED
                decisions.append(Promote(entry.number))
                return True
            if promoted is None:
                return self._waits(entry)
            self.cluster.release(entry.view.job)
            self._loan_ends(entry)
            decision = self.cluster.place(entry.own, near=entry.placement)
            if decision is None:
                raise InvariantError(f"job {entry.number}: its VC had room, and has none")
        else:
            decision = self.cluster.place(entry.own)
            if decision is None:
                return self._waits(entry)
        self._carry_out(decision, entry, decisions)
        was, entry.status = entry.status, Status.GUARANTEED
        if was is Status.WAITING:
            if entry.queued:
                self._stopped_waiting(entry)
            decisions.append(Start(entry.number, Kind.GUARANTEED, decision.placement))
        else:
            decisions.append(Move(entry.number, decision.placement, self._keeps_work(entry, entry)))
        return True

    def _waits(self, entry: Entry) -> bool:
        if self.cluster.within_quota(entry.own):
            self._between.add(entry.tenant)
        else:
            self._between.discard(entry.tenant)
        return False

    def _carry_out(self, decision: Bind | Preempt, entry: Entry, decisions: list[Instruction]) -> None:
        """Start a job in the core; who is in its way loses its GPUs first."""
        self.cluster.commit(decision)
        entry.placement = decision.placement
        entry.held = sum([len(pod.leaf_cells) for pod in decision.placement.pods])
        if isinstance(decision, Preempt):
            for name in decision.victims:
                victim = self._borrowers[name]
                self.cluster.release(name)
                self._loan_ends(victim)
                victim.status = Status.WAITING
                self._wait(victim)
                decisions.append(Stop(victim.number, entry.number, self._keeps_work(victim, entry)))
            self.cluster.commit(self.cluster.schedule(entry.own))

    def _keeps_work(self, victim: Entry, by: Entry) -> bool:
        return self.policy.react(Displaced(victim.view, by.view)) is Reaction.SUSPEND

    def _loan_ends(self, entry: Entry) -> None:
        del self._borrowers[entry.view.job]
        self._lent[entry.tenant] -= entry.held

    def _lend(self, decisions: list[Instruction]) -> None:
        """Step 2. Before it, nobody who waited fitted; so it is called only when GPUs have fallen idle."""
        unsuited: set[int] = set()  # sizes that do not fit; idle GPUs only become fewer here
        while True:
            best: Entry | None = None
            best_share = 0.0
            for gpus, borrowers in self._firsts.items():
                if gpus in unsuited:
                    continue
                if not self.cluster.can_lend(next(iter(borrowers)).loan):
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
        first = backlog.first
        if first is entry:
            backlog.drop_first()
            self._first_changed(entry, backlog.first)

    def _first_changed(self, before: Entry | None, after: Entry | None) -> None:
        if before is not None:
            same_size = self._firsts[before.view.gpus]
            del same_size[before]
            if not same_size:
                del self._firsts[before.view.gpus]
        if after is not None:
            self._firsts.setdefault(after.view.gpus, {})[after] = None

    def _share(self, tenant: int) -> float:
        """GPUs that the tenant has on loan over those that it reserved."""
        weight = self._weights[tenant]
        return self._lent[tenant] / weight if weight else float("inf")

    def _try_to_lend(self, entry: Entry, decisions: list[Instruction]) -> bool:
        decision = self.cluster.place(entry.loan, idle=True)
        if decision is None:
            return False
        self._carry_out(decision, entry, decisions)
        self._borrowers[entry.view.job] = entry
        self._lent[entry.tenant] += entry.held
        entry.status = Status.LENT
        decisions.append(Start(entry.number, Kind.OPPORTUNISTIC, decision.placement))
        return True

    def validate(self) -> None:
        """Queues re-derived from the jobs' status; the cluster too. O(jobs + cluster)."""
        self.cluster.validate()
        groups = set(self.cluster.groups())
        lent = 0
        for number, entry in self.jobs.items():
            ensure(entry.status is not Status.DONE, f"job {number} is not done")
            ensure((entry.view.job in groups) == (entry.status is not Status.WAITING), f"job {number} holds something")
            if entry.view.job in groups:
                guaranteed = self.cluster.group(entry.view.job).guaranteed
                ensure(guaranteed == (entry.status is Status.GUARANTEED), f"job {number} holds what its status says")
            queue = self.queues[entry.tenant]
            if entry.status is not Status.GUARANTEED and not entry.outsized:
                ensure(any(entry is e for _, e in queue.line), f"job {number} is in its tenant's line")
            if entry.status is Status.LENT:
                lent += 1
                ensure(self._borrowers.get(entry.view.job) is entry, f"job {number} is known by what it holds")
            elif entry.status is Status.WAITING and self._lends and not self._never_fits(-1, entry.loan):
                ensure(
                    entry.queued and entry in queue.backlog_of(entry),
                    f"job {number} is in the backlog",
                )
        ensure(lent == len(self._borrowers), "only running jobs borrow")
        ensure(self._lent == [self.cluster.lent(name) for name in self.tenants], "GPUs on loan per tenant")
        firsts = [b.first for q in self.queues for b in (q.backlog, q.outsized) if b.first is not None]
        by_size = {entry: gpus for gpus, entries in self._firsts.items() for entry in entries}
        ensure(by_size == {entry: entry.view.gpus for entry in firsts}, "firsts of the backlogs, by size")
        for tenant, queue in enumerate(self.queues):
            head = queue.head()
            if head is not None and self.cluster.within_quota(head.own):
                ensure(tenant in self._between, f"tenant {tenant}'s head may wait for others")
            if head is not None and head.status is Status.WAITING and not self._lends:
                waiting = [e for e in self.jobs.values() if e.tenant == tenant and e.status is Status.WAITING]
                ensure(head is min(e for e in waiting if not e.outsized), f"tenant {tenant}'s head is its first job")
            if self._lends:
                for backlog in (queue.backlog, queue.outsized):
                    first = backlog.first
                    waiting = [e for e in self.jobs.values() if e in backlog and e.status is Status.WAITING]
                    ensure(first is (min(waiting) if waiting else None), f"tenant {tenant}'s first in the backlog")
                    idle = first is not None and self.cluster.can_lend(first.loan)
                    ensure(not idle, f"tenant {tenant}'s first job could borrow, and waits")
