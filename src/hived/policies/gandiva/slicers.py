"""The slicers of all VCs: who is called when, and which of them have something to do before a dispatch ends.

Under a quota the VCs share the servers of the cluster, so every guaranteed job counts on them, also one of a VC whose
jobs do not take turns. Else each VC has servers of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush
from math import inf

from hived.cluster.decisions import Bind, Placement, Preempt
from hived.cluster.demands import Demand
from hived.cluster.placement_request import OnHosts, PlacementRequest
from hived.cluster.requests import Request
from hived.cluster.sharing import Sharing
from hived.errors import InvariantError
from hived.scheduling.extension import Extension, TakingTurns
from hived.scheduling.probe import Served
from hived.scheduling.queue import BackfillQueue, Entry, Queue
from hived.scheduling.scheduler import Scheduler
from hived.scheduling.states import GUARANTEED, LEAVE, RESERVED, SHARING, WAIT, WAITING

from .parameters import TimeSlicing
from .servers import Host, Servers
from .slicer import Slicer


class Slicers(Extension):
    """One slicer per VC whose jobs take turns, made when its first job comes. Calls cost O(1) beyond the slicers'."""

    def __init__(self, scheduler: Scheduler, parameters: TimeSlicing) -> None:
        """``parameters``: those of the first policy; each VC has its own."""
        self._scheduler, self._cluster = scheduler, scheduler.cluster
        self._of: dict[str, Slicer | None] = {}
        # under a quota: of all VCs
        self._servers: Servers | None = None
        # VCs whose slicers have something to do before the dispatch ends, and those of them with new jobs in line
        self._restless: dict[str, None] = {}
        self._new: set[str] = set()
        # when a slicer is called, and its VC, earliest first
        self._wakes: list[tuple[float, str]] = []
        # live: whether all slicers are made anew; and jobs with processes that took turns, with the node of these
        self._is_stale = False
        self._returning: dict[int, str] = {}

    def of(self, vc: str) -> Slicer | None:
        """The slicer of a VC; None where its jobs do not share GPUs. O(nodes) for the first time."""
        try:
            return self._of[vc]
        except KeyError:
            slicer = self._of[vc] = self._made(vc)
            return slicer

    def _made(self, vc: str) -> Slicer | None:
        if self._servers is None and self._cluster.sharing is Sharing.QUOTA:
            self._servers = Servers(self._cluster.hosts(vc))
        scheduler = self._scheduler
        sharing = scheduler.policies[vc].gpu_sharing
        if sharing is None or scheduler.probe is None:
            return None
        parameters = sharing.parameters if scheduler.simulated else replace(sharing.parameters, exact=True)
        return Slicer(
            parameters,
            self._servers or Servers(self._cluster.hosts(vc) if scheduler.simulated else self._hosts(vc)),
            self._cluster,
            self._take_hosts,
            scheduler.carry_out,
            scheduler.probe,
            lambda at: heappush(self._wakes, (at, vc)),
            lambda: self._restless.setdefault(vc),
            scheduler.per_second,
            None if scheduler.simulated or not isinstance(scheduler.probe, Served) else scheduler.probe,
        )

    def _hosts(self, vc: str) -> list[tuple[Host, int, int]]:
        """The hosts of a VC as they are without its guaranteed jobs, which are allocated then. O(hosts + jobs)."""
        held: Counter[Host] = Counter()
        for entry in self._scheduler.jobs.values():
            if entry.vc == vc and entry.status is GUARANTEED:
                held.update(dict(self._cluster.hosts_of(entry.name)))
        return [(host, free + held[host], free + held[host]) for host, _, free in self._cluster.hosts(vc)]

    # -- jobs come and go ---------------------------------------------------------------------------------------------

    def queued(self, entry: Entry) -> None:
        """A job has joined its VC's line."""
        if self.of(entry.vc) is not None:
            self._new.add(entry.vc)
            self._restless[entry.vc] = None

    def start(self, entry: Entry, now: float) -> bool | None:
        """Start a job on GPUs that its slicer chooses."""
        slicer = None if entry.request.opportunistic else self.of(entry.vc)
        if slicer is None or entry.status is RESERVED:
            return None
        if not self._scheduler.simulated and entry.request.priority > 0 and slicer.can_oversubscribe(entry):
            return False  # those of lower priorities are suspended for it, and not stopped
        # live, loans are not stopped within the instruction: the scheduler reserves their GPUs
        return slicer.start(entry, now) or (False if self._scheduler.simulated else None)

    def may_shrink(self, vc: str) -> bool:
        """Whether elastic jobs have grown."""
        slicer = self.of(vc)
        return slicer is not None and slicer.grown

    def reprioritized(self, entry: Entry, now: float) -> bool:
        """Its priority decides who has turns (Gandiva, 4.2); its place in line stays."""
        slicer = self.of(entry.vc)
        if slicer is not None and entry.number in slicer.seats:
            slicer.set_priority(entry, entry.priority, now)
        return slicer is not None

    def placed(self, entry: Entry, now: float) -> None:
        """A loan was promoted, or a job started in a VC without a slicer."""
        slicer = self.of(entry.vc)
        if slicer is not None:
            slicer.adopt(entry, now)
        elif self._servers is not None:
            self._servers.allocate(self._cluster.hosts_of(entry.name), entry.view.gpus)

    def leaves(self, entry: Entry, now: float) -> None:
        """A job is about to release its GPUs, guaranteed ones if a server is to know."""
        if entry.status is GUARANTEED and self._servers is not None and self.of(entry.vc) is None:
            self._servers.release(self._cluster.hosts_of(entry.name))

    def left(self, entry: Entry, now: float) -> bool:
        """A job has left its GPUs, or its turns on those of others: its VC is looked at if it has a slicer."""
        slicer = self.of(entry.vc) if entry.status is GUARANTEED or entry.status is SHARING else None
        if slicer is not None:
            slicer.leave(entry, now)
        return slicer is not None

    def _take_hosts(
        self,
        entry: Entry,
        request: Request,
        hosts: tuple[Host, ...],
        near: Placement | None,
        demand: Demand | None,
    ) -> Placement | None:
        """Take free GPUs of these hosts for a job, and loans there back; None where a quota has too few left."""
        scheduler, cluster = self._scheduler, self._cluster
        asked = PlacementRequest(request, OnHosts(hosts), scheduler.now, near, (), demand)
        placed = cluster.place(asked, scheduler.simulated)
        if placed is None:
            return None
        if not scheduler.simulated:
            if isinstance(placed, Preempt):
                return None
            cluster.commit(placed)
        if entry.status is WAITING:
            scheduler.leave_queues(entry)
        if isinstance(placed, Preempt):
            for name in placed.victims:
                scheduler.stop(scheduler.by_name[name], entry)
            bound = cluster.schedule(request, now=scheduler.now)
            if not isinstance(bound, Bind):
                raise InvariantError(f"job {entry.number} waits for victims that have ended")
            cluster.commit(bound)
            return bound.placement
        return placed.placement

    # -- a dispatch ---------------------------------------------------------------------------------------------------

    @property
    def next_wake(self) -> float:
        """When :meth:`wake` has something to do; infinity for never."""
        return self._wakes[0][0] if self._wakes else inf

    def wake(self, now: float) -> None:
        """Call the slicers whose time has come."""
        if self._is_stale:
            self._renew(now)
        while self._wakes and self._wakes[0][0] <= now:
            slicer = self._of[heappop(self._wakes)[1]]
            if slicer is not None:
                slicer.wake(now)

    def settle(self, now: float) -> None:
        """Let jobs that found no GPUs take turns. O(jobs in line)."""
        scheduler = self._scheduler
        for vc, slicer in self._unsettled():
            for entry in slicer.settle(now):
                entry.status = LEAVE[entry.status]
                entry.may_preempt = scheduler.simulated  # live, it has processes yet
                scheduler.wait(entry)
            line = scheduler.queues_of(vc).line
            if len(line):
                self._share_waiting(slicer, line, now)
            if slicer.moved:  # GPUs elsewhere are idle now
                slicer.moved = False
                scheduler.look_again(vc)

    def _share_waiting(self, slicer: Slicer, line: Queue, now: float) -> None:
        """The jobs in line take turns where they can, in their order. O(kinds of requests * jobs on loan)."""
        scheduler = self._scheduler
        seconds = now / scheduler.per_second
        for entry in line.of_classes(WAITING):
            if slicer.can_oversubscribe(entry) and not (
                isinstance(line, BackfillQueue) and line.holds_back(entry, seconds)
            ):
                scheduler.leave_queues(entry)
                slicer.oversubscribe(entry, now)
                scheduler.look_again(entry.vc)  # those behind it are tried now
                break
            if not isinstance(line, BackfillQueue) or seconds - entry.view.submitted >= line.patience:
                break
        if line.first is not None:
            scheduler.blocked(line.first)

    def _unsettled(self) -> list[tuple[str, Slicer]]:
        """VCs in which GPUs have become free or jobs have come since the last call."""
        found = []
        for vc in self._restless:
            slicer = self._of[vc]
            if slicer is not None and (slicer.changed or slicer.moved or vc in self._new):
                self._new.discard(vc)
                found.append((vc, slicer))
        return found

    def publish(self, now: float) -> None:
        """Tell the engine of the jobs whose turns have changed."""
        for vc in self._restless:
            slicer = self._of[vc]
            if slicer is not None:
                slicer.publish(now)
        self._restless.clear()

    # -- in a live engine -------------------------------------------------------------------------------------------

    def invalidate(self) -> None:
        """All slicers are made anew at the next dispatch: rare, and so O(jobs)."""
        self._is_stale = not self._scheduler.simulated

    def succeed(self, before: Extension) -> None:
        """See :meth:`Extension.succeed`."""
        if isinstance(before, Slicers):
            self._returning = before._sharers()
            self.invalidate()

    def set_elastic(self, entry: Entry, now: float) -> None:
        """See :meth:`Extension.set_elastic`."""
        slicer = self.of(entry.vc)
        if slicer is not None and entry.number in slicer.seats:
            slicer.set_elastic(entry, now)

    def returns(self, entry: Entry, node: str) -> None:
        """See :meth:`Extension.returns`."""
        self._returning[entry.number] = node
        self.invalidate()

    def describe(self, entry: Entry) -> TakingTurns | None:
        """See :meth:`Extension.describe`."""
        slicer = self._of.get(entry.vc)
        return None if slicer is None else slicer.describe(entry)

    def _sharers(self) -> dict[int, str]:
        """The jobs that hold no GPUs, each with the node on which it takes turns."""
        found = dict(self._returning)
        for slicer in self._of.values():
            for number, seat in {} if slicer is None else slicer.seats.items():
                if not seat.spread and seat.queue is not None:
                    found[number] = seat.queue.node
        return found

    def _renew(self, now: float) -> None:
        """Make all slicers anew, of the jobs that hold GPUs and of those that take turns beside them. O(jobs)."""
        sharers, scheduler = self._sharers(), self._scheduler
        turns = {seat.job: seat.turns for of in self._of.values() if of is not None for seat in of.seats.values()}
        self._is_stale = False
        self._returning, self._of, self._wakes, self._servers = {}, {}, [], None
        self._restless.clear()
        self._new.clear()
        jobs = scheduler.jobs
        for entry in list(jobs.values()):
            slicer = self.of(entry.vc) if entry.status is GUARANTEED else None
            if slicer is not None:
                entry.placement = self._cluster.group(entry.name).placement
                slicer.adopt(entry, now)
        for number, node in sharers.items():
            sharer = jobs.get(number)
            if sharer is None or sharer.status not in (SHARING, WAITING):
                continue
            slicer = None if sharer.alone else self.of(sharer.vc)
            host = None if slicer is None else slicer.server_at(node, sharer.view.gpus)
            if sharer.status is SHARING:
                sharer.status = LEAVE[sharer.status]
                if host is None:
                    sharer.may_preempt = False  # it has processes yet
                    scheduler.wait(sharer)
                    continue
                sharer.status = WAIT[sharer.status]
            elif host is not None:
                scheduler.leave_queues(sharer)
            if slicer is not None and host is not None:
                slicer.oversubscribe(sharer, now, host)
        for of in self._of.values():
            for seat in () if of is None else of.seats.values():
                seat.turns = turns.get(seat.job, seat.whole)  # who runs keeps its GPUs

    def before_loans(self, now: float) -> None:
        """Live, loans do not leave at once: what is idle is for jobs that take turns before it is lent."""
        for slicer in () if self._scheduler.simulated else self._of.values():
            if slicer is not None and slicer.sharers and slicer.servers.idle:
                slicer.promote(now)

    def validate(self) -> None:
        """Check every slicer. O(jobs)."""
        for slicer in self._of.values():
            if slicer is not None:
                slicer.validate()
