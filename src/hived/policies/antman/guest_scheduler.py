"""Guests: jobs on idle GPUs or beside the owners, limited in place of preempted (AntMan, OSDI'20, 3.3).

A job whose turn has not come, or that is opportunistic, runs on the GPUs that are used least: below a utilization by
owner and guests together, with room for its least memory. It keeps its place in line. When its turn comes it becomes
guaranteed where it runs, once no other job has its GPUs. It goes on when the owner of its GPUs ends, and when a
guaranteed job gets them; this one's cells and speed come first, by the limits of :class:`GuestSharing`. While it is
alone on its GPUs it holds their cells as a loan, so that guaranteed jobs take other idle ones first.

The choices that the paper leaves open:

- A job is tried as a guest as soon as it finds no turn: no queueing time is predicted.
- A guest that finds no room lets those behind it pass, in its VC and in others.
- A guest whose least memory does not fit beside an owner that has come stops, all on the host, until it fits.
- A guest on several GPUs is as fast as on the one with the least room, and has the limit of the latest owner.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import NamedTuple

from hived.cluster.decisions import Bind, PodPlacement, Preempt
from hived.cluster.demands import Demand
from hived.cluster.guests import MAX_GUESTS
from hived.cluster.placement_request import Beside, PlacementRequest
from hived.errors import ensure
from hived.scheduling.extension import Extension
from hived.scheduling.instructions import Kind, Share, Shares, Start, Turn
from hived.scheduling.probe import Probe
from hived.scheduling.queue import Entry, Queue
from hived.scheduling.scheduler import Scheduler
from hived.scheduling.states import GUARANTEED, LEND, WAITING
from hived.spec.compiled import NO_GUESTS

from .parameters import GuestSharing

#: so many GPUs, and four times those that it asks for, are tried for a guest before all are
_MAX_FREE = 16
#: of the latest wait in the mean of those of its kind
_WEIGHT = 0.1


class GuestQueue(Queue):
    """Jobs that wait and fit where the first of them does."""

    __slots__ = ("_lacking", "_trying")

    def __init__(self, trying: dict[GuestQueue, None], lacking: dict[GuestQueue, None]) -> None:
        """``trying``: the queues that are tried next, which it joins with its first job, unless it is ``lacking``."""
        super().__init__()
        self._trying, self._lacking = trying, lacking

    def add(self, entry: Entry) -> None:
        """Insert ``entry`` by its key."""
        super().add(entry)
        if self not in self._lacking:
            self._trying[self] = None


class _Leaf:
    """A GPU with its jobs."""

    __slots__ = ("guests", "has_room", "load", "memory", "number", "owner", "past", "pod", "rests_at")

    def __init__(self, number: int, pod: PodPlacement) -> None:
        self.number = number
        self.pod = pod
        #: who has its cell
        self.owner: Entry | None = None
        #: in the order in which they came
        self.guests: list[Entry] = []
        #: utilization by all of them
        self.load = 0.0
        #: (since when, utilization) within the last window of measurement
        self.past: list[tuple[float, float]] = []
        #: whether one more job may come; else when, if its jobs stay
        self.has_room = True
        self.rests_at = inf
        #: GiB: the most that the owner needs, and the least that each guest does or, without limits, the most
        self.memory = 0.0

    def others(self, entry: Entry) -> tuple[int, ...]:
        """The numbers of the other jobs, the owner first."""
        jobs = self.guests if self.owner is None else (self.owner, *self.guests)
        return tuple([job.number for job in jobs if job is not entry])


class _Shared(NamedTuple):
    """Beside whom a job runs, as an instruction has it."""

    kind: Kind
    beside: tuple[int, ...] = ()
    owner: int | None = None
    limit: float = 1.0


def guests_of(scheduler: Scheduler, parameters: GuestSharing) -> GuestScheduler | None:
    """The guests of a scheduler; None where no VC accepts any."""
    accept = any(vc.guests != NO_GUESTS for vc in scheduler.cluster.spec.virtual_clusters)
    return GuestScheduler(scheduler, parameters, scheduler.probe) if accept and scheduler.probe is not None else None


class GuestScheduler(Extension):
    """All guests of a cluster. An event costs O(GPUs of the job * jobs there), a guest's start O(GPUs with room)."""

    frees_cells = True

    def __init__(self, scheduler: Scheduler, parameters: GuestSharing, probe: Probe) -> None:
        cluster = scheduler.cluster
        self.parameters, self._scheduler, self._cluster, self._probe = parameters, scheduler, cluster, probe
        self._per_second = scheduler.per_second
        #: whose guests the jobs of each VC accept
        self._accepts = {vc.name: vc.guests for vc in cluster.spec.virtual_clusters}
        self._leaves = [_Leaf(number, pod) for number, pod in enumerate(cluster.leaves())]
        self._by_name = {(leaf.pod.node, leaf.pod.leaf_cells[0]): leaf for leaf in self._leaves}
        #: GPUs with room, the freest first
        self._room: list[tuple[float, int]] = [(0.0, leaf.number) for leaf in self._leaves]
        #: how many of them each node has, and how many nodes have so many
        self._on_node = Counter(leaf.pod.node for leaf in self._leaves)
        self._nodes_with = Counter(self._on_node.values())
        #: the GPUs of each job
        self._at: dict[Entry, list[_Leaf]] = {}
        #: per owner: when it came; per guest: when its limit begins, or has begun, to rise
        self._since: dict[Entry, float] = {}
        #: as each job was last published
        self._shared: dict[Entry, _Shared] = {}
        self._changed: dict[Entry, None] = {}
        #: jobs that wait, by what decides whether they fit
        self._waiting: dict[Hashable, GuestQueue] = {}
        #: those with a job, but for those that found no room since a job last left its GPUs
        self._trying: dict[GuestQueue, None] = {}
        self._lacking: dict[GuestQueue, None] = {}
        # those of the job that left last
        self._left: list[_Leaf] = []
        #: (time, number of the job, job): when a limit changes
        self._steps: list[tuple[float, int, Entry]] = []
        #: (time, number of the GPU): when a GPU that was busy has room, unless its jobs change before
        self._rests: list[tuple[float, int]] = []
        #: by VC and GPUs: the mean wait for a turn, the latest jobs counting most, in the engine's unit
        self._waits: dict[tuple[str, int], float] = {}
        #: (time, number of the job): when a job that was to wait for its turn has waited for long
        self._patient: list[tuple[float, int]] = []

    # -- jobs come and go ---------------------------------------------------------------------------------------------

    def is_guest(self, entry: Entry) -> bool:
        """Whether a job may start before its turn, or has none."""
        sharing = None if entry.policy is None else entry.policy.gpu_sharing
        return sharing is not None and not entry.alone and (entry.early or entry.request.opportunistic)

    def backlog(self, entry: Entry) -> GuestQueue:
        """The queue of the jobs that fit where this one does."""
        probe, number = self._probe, entry.number
        need = probe.memory_min_gib(number) if self.parameters.limits else probe.memory_gib(number)
        kind: Hashable = entry.vc, entry.equivalence_class, need
        queue = self._waiting.get(kind)
        if queue is None:
            queue = self._waiting[kind] = GuestQueue(self._trying, self._lacking)
        return queue

    def is_patient(self, entry: Entry, now: float) -> bool:
        """Whether a job waits for its turn for now, since its wait is predicted to be short: the automatic mode (3.3).

        The prediction is the mean of what jobs of its VC and size have waited lately, or what it has waited itself.
        :meth:`wake` queues it when that is long.
        """
        if not entry.guest:
            return False
        least = self.parameters.wait_s * self._per_second
        if not least or entry.request.opportunistic or self._waits.get((entry.vc, entry.view.gpus), 0.0) >= least:
            return False
        long = entry.view.submitted * self._per_second + least
        if long <= now:
            return False
        heappush(self._patient, (long, entry.number))
        return True

    def _got_turn(self, entry: Entry, now: float) -> None:
        waited, kind = now - entry.view.submitted * self._per_second, (entry.vc, entry.view.gpus)
        before = self._waits.get(kind, waited)
        self._waits[kind] = before + (waited - before) * _WEIGHT

    def follow(self, entry: Entry, now: float) -> None:
        """A job has GPUs, or has them otherwise than before; guests that its VC does not accept have to go."""
        for name in self._cluster.evicted():
            victim = self._scheduler.by_name[name]
            self._scheduler.evict(victim)
            self._scheduler.stop(victim, entry)
        guest, before = entry.runs_as_guest, self._at.get(entry)
        if entry.status is GUARANTEED:
            self._got_turn(entry, now)
        if before is not None:
            if not guest and entry in self._since and all(leaf.owner is entry for leaf in before):
                return  # it was an owner before
            self._gone(entry, now)
        by_name = self._by_name
        pods = () if entry.placement is None else entry.placement.pods  # None, live: see Scheduler.reconfigured
        leaves = [by_name[node, leaf] for node, of_pod in pods for leaf in of_pod]
        self._at[entry] = leaves
        settles = now + self.parameters.settle_s * self._per_second
        since = now
        for leaf in leaves:
            if guest:
                if leaf.owner is not None:
                    since = max(since, self._since[leaf.owner] + settles - now)
                leaf.guests.append(entry)
            else:
                leaf.owner = entry
                for other in leaf.guests:
                    self._since[other] = settles
            self._count(leaf, now)
        self._since[entry] = since
        if before is None:
            self._shared[entry] = _Shared(self._kind(entry))
        elif not guest:  # promoted
            self._shared[entry] = self._shared[entry]._replace(kind=Kind.GUARANTEED)
            self._changed[entry] = None

    def measured(self, entry: Entry, now: float) -> None:
        """Count the GPUs of a job anew: there may be room for more guests."""
        for leaf in self._at.get(entry, ()):
            self._count(leaf, now)
        self._try_again()

    def invalidate(self) -> None:
        """Have waiting jobs tried again."""
        self._try_again()

    def _gone(self, entry: Entry, now: float) -> None:
        """A job has left its GPUs."""
        for leaf in self._at.pop(entry):
            if leaf.owner is entry:
                leaf.owner = None
            else:
                leaf.guests.remove(entry)
            self._count(leaf, now)
        self._changed.pop(entry, None)
        del self._since[entry]
        self._try_again()

    def _try_again(self) -> None:
        """There is more room than before."""
        if self._lacking:
            self._trying.update(self._lacking)
            self._lacking.clear()

    def leaves(self, entry: Entry, now: float) -> None:
        """A job runs no more."""
        self._left = [] if entry.name in self._scheduler.evicted else self._at[entry]
        self._gone(entry, now)
        del self._shared[entry]

    def left(self, entry: Entry, now: float) -> bool:
        """On the GPUs that a job has left, have guests hold the cells as loans: other jobs take these last."""
        for leaf in self._left:
            if leaf.owner is None:
                for guest in leaf.guests:
                    if self._hold(guest, True):
                        break
        self._left = []
        return False

    def accepts(self, guest: Entry, vc: str) -> bool:
        """Whether a VC accepts a guest beside its jobs."""
        accepted = self._accepts.get(vc)
        return accepted == "all" or (accepted == "own" and vc == guest.vc)

    def stays(self, victim: Entry, owner: Entry) -> bool:
        """Have a victim stay as a guest of the job that gets its GPUs, where that one's VC accepts it."""
        return self.accepts(victim, owner.vc) and self._hold(victim, False)

    def _hold(self, guest: Entry, loan: bool) -> bool:
        held = guest.name not in self._scheduler.evicted and self._cluster.hold(guest.name, loan)
        if held and self._scheduler.reserved:
            self._scheduler.lent_otherwise()
        return held

    def promote(self, entry: Entry) -> bool | None:
        """Upgrade a guest where it runs, and have those who hold its GPUs as loans stay as its guests."""
        beside = {guest: None for leaf in self._at[entry] for guest in leaf.guests if guest is not entry}
        held = [other for other in beside if self.stays(other, entry)]
        promoted = self._cluster.promote(entry.request, None, (), entry.demand) if held else False
        for other in held if not promoted else ():
            self._hold(other, True)
        return promoted

    def moves(self, entry: Entry) -> bool:
        """Whether a guest whose turn has come leaves the GPUs that an owner has for free cells of its VC."""
        sharing = None if entry.policy is None else entry.policy.gpu_sharing
        return sharing is not None and bool(sharing.parameters.moves) and not entry.halted

    def _count(self, leaf: _Leaf, now: float) -> None:
        """The jobs of a GPU have changed."""
        probe, limits = self._probe, self.parameters.limits
        load, memory = 0.0, 0.0
        for guest in leaf.guests:
            load += probe.utilization(guest.number)
            memory += probe.memory_min_gib(guest.number) if limits else probe.memory_gib(guest.number)
            self._changed[guest] = None
        if leaf.owner is not None:
            load += 1.0 if self._is_apart(leaf.owner) else probe.utilization(leaf.owner.number)
            memory += probe.memory_gib(leaf.owner.number)
            if leaf.guests or self._shared.get(leaf.owner, _ALONE).beside:
                self._changed[leaf.owner] = None
        had = leaf.has_room
        if had:
            del self._room[bisect_left(self._room, (leaf.load, leaf.number))]
        leaf.load, leaf.memory = load, memory
        at = leaf.rests_at = self._rested(leaf, now)
        leaf.has_room = at <= now
        if leaf.has_room:
            insort(self._room, (load, leaf.number))
        elif at < inf:
            heappush(self._rests, (at, leaf.number))
        if had is not leaf.has_room:
            self._room_changed(leaf)

    def _is_apart(self, owner: Entry) -> bool:
        """Whether a job shares its GPUs with nobody, so that guests there are held."""
        return owner.alone or (
            not self._scheduler.simulated and owner.policy is not None and owner.policy.gpu_sharing is None
        )

    def _room_changed(self, leaf: _Leaf) -> None:
        here, node = self._on_node, leaf.pod.node
        self._nodes_with[here[node]] -= 1
        here[node] += 1 if leaf.has_room else -1
        self._nodes_with[here[node]] += 1

    def _rested(self, leaf: _Leaf, now: float) -> float:
        """When a GPU has room: it, and its mean over the window of measurement, are below the most utilization.

        Infinity for not before its jobs change. One without jobs has room at once: there is nothing to measure.
        """
        most, window, past = self.parameters.most_utilization, self.parameters.window_s * self._per_second, leaf.past
        while len(past) > 1 and past[1][0] <= now - window:
            del past[0]
        past.append((now, leaf.load))
        if leaf.load >= most or len(leaf.guests) >= MAX_GUESTS:
            return inf
        if not window or (leaf.owner is None and not leaf.guests) or max([load for _, load in past]) < most:
            return now
        # the mean is linear between the moments at which the window leaves a step of the past behind
        before = now
        mean = _mean(past, now, window)
        for moment in sorted({max(now, since + window) for since, _ in past}):
            if mean < most:
                return before
            after = _mean(past, moment, window)
            if after < most:
                return before + (moment - before) * (mean - most) / (mean - after)
            before, mean = moment, after
        return before

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _start_waiting(self, now: float) -> None:
        """Start waiting jobs where there is room, in their order; a kind that finds none lets the others pass."""
        if not self._trying:
            return
        heads = []
        may_fit: dict[int, bool] = {}  # few, shared by many queues; none fits that does not now
        for queue in self._trying:
            first = queue.first
            if first is not None:
                demand = first.loan_demand
                fits = may_fit.get(id(demand))
                if fits is None:
                    fits = may_fit[id(demand)] = demand is not None and self._may_fit(demand)
                if fits:
                    heads.append((first.key, first))
                else:
                    self._lacking[queue] = None
        self._trying.clear()
        heapify(heads)  # keys end with the number of the job
        while heads:
            _, entry = heappop(heads)
            backlog = entry.backlog
            assert isinstance(backlog, GuestQueue)
            if not self._start(entry, now):
                self._lacking[backlog] = None
            elif backlog.first is not None:
                heappush(heads, (backlog.first.key, backlog.first))

    def _start(self, entry: Entry, now: float) -> bool:
        demand = entry.loan_demand
        if demand is None or not self._may_fit(demand):
            return False
        fit = self._with_room(entry)
        first = list(islice(fit, _MAX_FREE + 4 * demand.gpus))  # of thousands
        placed = self._place(entry, demand, first, now)
        if placed is None and len(first) == _MAX_FREE + 4 * demand.gpus:
            placed = self._place(entry, demand, [*first, *fit], now)
        if placed is None:
            return False
        at = [self._by_name[node, leaf] for node, of_pod in placed.placement.pods for leaf in of_pod]
        kind = Kind.GUEST if any(leaf.owner is not None for leaf in at) else Kind.OPPORTUNISTIC
        scheduler = self._scheduler
        scheduler.dequeue(entry)
        entry.status = LEND[entry.status]
        entry.placement = placed.placement
        self._hold(entry, True)
        scheduler.follow(entry)
        scheduler.carry_out(Start(entry.number, kind, placed.placement))
        return True

    def _with_room(self, entry: Entry) -> Iterator[PodPlacement]:
        """GPUs below the most utilization with the memory for one more job, the freest first."""
        probe, number, leaves, limits = self._probe, entry.number, self._leaves, self.parameters.limits
        most = self.parameters.gpu_memory_gib - (probe.memory_min_gib(number) if limits else probe.memory_gib(number))
        for _, at in self._room:
            leaf = leaves[at]
            if leaf.memory <= most:
                yield leaf.pod

    def _may_fit(self, demand: Demand) -> bool:
        """Whether enough GPUs have room, on few enough nodes, memory aside. O(GPUs of a node)."""
        return _suffice(demand, self._nodes_with)

    def _place(self, entry: Entry, demand: Demand, beside: list[PodPlacement], now: float) -> Bind | Preempt | None:
        if demand.gpus > 1 and not _suffice(demand, Counter(Counter([pod.node for pod in beside]).values())):
            return None
        asked = PlacementRequest(entry.loan, Beside(beside), now, None, entry.excluded, demand)
        return self._cluster.place(asked, True)

    def obstacles(self, entry: Entry) -> tuple[int, int]:
        """How many GPUs have no room for a guest, since they are used, and how many too little memory. O(GPUs)."""
        most = self.parameters.gpu_memory_gib - self._probe.memory_min_gib(entry.number)
        room = [leaf.memory <= most for leaf in self._leaves if leaf.has_room]
        return len(self._leaves) - len(room), room.count(False)

    # -- limits -------------------------------------------------------------------------------------------------------

    @property
    def next_wake(self) -> float:
        """When a limit changes, a GPU that was busy has room, or a job has waited for long."""
        step = self._steps[0][0] if self._steps else inf
        if self._patient:
            step = min(step, self._patient[0][0])
        return min(step, self._rests[0][0]) if self._rests else step

    def wake(self, now: float) -> None:
        """Limits have risen, GPUs have room again, and the wait of some jobs has become long."""
        long = []
        while self._patient and self._patient[0][0] <= now:
            long.append(heappop(self._patient)[1])
        while self._rests and self._rests[0][0] <= now:
            at, number = heappop(self._rests)
            leaf = self._leaves[number]
            if leaf.rests_at == at and not leaf.has_room:
                leaf.has_room = True
                insort(self._room, (leaf.load, leaf.number))
                self._room_changed(leaf)
                self._try_again()
        while self._steps and self._steps[0][0] <= now:
            _, _, entry = heappop(self._steps)
            for leaf in self._at.get(entry, ()) if entry.runs_as_guest else ():
                self._changed[entry] = None
                if leaf.owner is not None:
                    self._changed[leaf.owner] = None
        jobs = self._scheduler.jobs
        for number in long:
            if number in jobs and jobs[number].status is WAITING:
                self._scheduler.enqueue(jobs[number])

    def publish(self, now: float) -> None:
        """Start guests, and issue what has changed for each job, guests before owners."""
        self._start_waiting(now)
        if not self._changed:
            return
        changed = [entry for entry in self._changed if entry in self._at]
        self._changed.clear()
        changed.sort(key=lambda entry: (entry.status is GUARANTEED, entry.number))
        for entry in changed:
            if not self.parameters.limits:
                shared = self._packed(entry)
            else:
                shared = self._as_guest(entry, now) if entry.runs_as_guest else self._as_owner(entry)
            if shared != self._shared[entry]:
                self._shared[entry] = shared
                assert entry.placement is not None
                turn = Turn(entry.placement, 1.0, shared.beside, shared.owner)
                self._scheduler.carry_out(Shares((Share(entry.number, shared.kind, (turn,), limit=shared.limit),)))

    def _kind(self, entry: Entry) -> Kind:
        if not entry.runs_as_guest:
            return Kind.GUARANTEED if entry.status is GUARANTEED else Kind.OPPORTUNISTIC
        return Kind.GUEST if any(leaf.owner is not None for leaf in self._at[entry]) else Kind.OPPORTUNISTIC

    def _packed(self, entry: Entry) -> _Shared:
        """Without limits all jobs of a GPU are equal; a job is as fast as on its slowest."""
        beside = [leaf.others(entry) for leaf in self._at[entry]]
        slowest = min(beside, key=lambda others: self._probe.packed(entry.number, others))
        return _Shared(self._kind(entry), slowest)

    def _as_owner(self, entry: Entry) -> _Shared:
        guests = {guest.number: guest for leaf in self._at[entry] for guest in leaf.guests}
        if not guests:
            return _Shared(self._kind(entry))
        limit = max([self._shared[guest].limit for guest in guests.values()])
        return _Shared(self._kind(entry), tuple(sorted(guests)), entry.number, limit)

    def _as_guest(self, entry: Entry, now: float) -> _Shared:
        kind, limit, least, gpu_memory = Kind.OPPORTUNISTIC, 1.0, inf, self.parameters.gpu_memory_gib
        busiest: _Leaf | None = None
        for leaf in self._at[entry]:
            idle = 1.0  # of the time of the GPU: what an owner leaves
            if leaf.owner is not None:
                kind = Kind.GUEST
                idle -= self._probe.utilization(leaf.owner.number)
            part = idle / max(leaf.load - (1.0 - idle), 1e-9)  # of what guests would use
            if part < least:
                busiest, least = leaf, part
            if leaf.memory > gpu_memory and not self._fits(entry, leaf):
                limit = 0.0
        assert busiest is not None
        if limit and kind is Kind.GUEST:
            since = now - self._since[entry]
            limit = self.parameters.limit(since, self._per_second)
            after = self.parameters.next_step(since, self._per_second)
            if after < inf:
                heappush(self._steps, (now + after, entry.number, entry))
        owner, others = busiest.owner, [guest.number for guest in busiest.guests if guest is not entry]
        if owner is None:
            return _Shared(kind, tuple(others), None, limit)
        return _Shared(kind, (owner.number, *others), owner.number, limit)

    def _fits(self, entry: Entry, leaf: _Leaf) -> bool:
        """Whether a guest's least memory fits on a GPU, after that of the owner and of the guests before it."""
        memory = 0.0 if leaf.owner is None else self._probe.memory_gib(leaf.owner.number)
        for guest in leaf.guests:
            memory += self._probe.memory_min_gib(guest.number)
            if guest is entry:
                break
        return memory <= self.parameters.gpu_memory_gib

    # -- checks -------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Check the GPUs against the jobs that hold some. O(GPUs * jobs there)."""
        entries = list(self._scheduler.jobs.values())
        ensure(set(self._at) == {entry for entry in entries if entry.holds}, "the jobs on GPUs")
        for entry, leaves in self._at.items():
            pods = () if entry.placement is None else entry.placement.pods
            names = [(node, leaf) for node, of_pod in pods for leaf in of_pod]
            ensure([self._by_name[name] for name in names] == leaves, f"{entry} is where it is")
            for leaf in leaves:
                ensure((leaf.owner is entry) is not entry.runs_as_guest, f"{entry} on {leaf.pod}")
                ensure((entry in leaf.guests) is entry.runs_as_guest, f"{entry} on {leaf.pod}")
        most = self.parameters.most_utilization
        room = sorted((leaf.load, leaf.number) for leaf in self._leaves if leaf.has_room)
        ensure(room == self._room, "the GPUs with room")
        rests = {number for _, number in self._rests}
        for leaf in self._leaves:
            may = leaf.load < most and len(leaf.guests) < MAX_GUESTS
            ensure(may if leaf.has_room else not may or leaf.number in rests, f"room of {leaf.pod}")
        on_node = Counter(leaf.pod.node for leaf in self._leaves if leaf.has_room)
        ensure(+on_node == +self._on_node, "the GPUs with room per node")
        nodes_with = Counter(n for n in self._on_node.values() if n)
        ensure({n: many for n, many in self._nodes_with.items() if n and many} == nodes_with, "nodes by GPUs with room")
        waiting = {entry for entry in entries if entry.guest and entry.queued}
        queued = [entry for queue in self._waiting.values() for entry in queue]
        ensure(set(queued) == waiting and len(queued) == len(waiting), "the jobs that wait to be guests")
        ensure(all(entry.status is WAITING for entry in queued), f"{queued} wait")
        ensure(not self._trying, "all were tried")


def _suffice(demand: Demand, nodes_with: Mapping[int, int]) -> bool:
    """Whether there may be room for a demand. ``nodes_with``: how many nodes have so many GPUs."""
    for choice in demand.choices:
        size = min([need.gpus for need in choice.needs])
        if sum([nodes * (gpus // size) for gpus, nodes in nodes_with.items()]) >= len(choice.needs):
            return True
    return False


def _mean(past: Sequence[tuple[float, float]], at: float, window: float) -> float:
    """The mean over a window that ends ``at``, of steps that hold until the next one; 0 before the first."""
    ends = [since for since, _ in past[1:]] + [at]
    return (
        sum([load * max(0.0, end - max(since, at - window)) for (since, load), end in zip(past, ends, strict=True)])
        / window
    )


_ALONE = _Shared(Kind.GUARANTEED)
