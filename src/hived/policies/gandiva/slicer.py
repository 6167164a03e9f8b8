"""Time-slicing in one VC: where jobs start, and what becomes of them as others come and go (Gandiva, OSDI'18, 4.2).

*Reactive*: a job that arrives takes free GPUs by Algorithm 1 (:class:`~.servers.Servers`), else turns on those of a
server of its own affinity (4.2.1); a departure lowers the height of the most loaded server. *Introspective*:
jobs are packed, migrated, grown and shrunk by what is measured of them (Gandiva, 4.2.2). Both at once: each event does
what its change allows, and a timer the rest.

The choices that the paper leaves open:

- A job on several servers has its GPUs for itself: else all its servers would have to switch at one moment.
- Packing stays on a server, and packs jobs of one number of GPUs: so it costs no migration.
- A GPU that becomes free goes to the next in line first, then to a sharer, from the server with the greatest height.
- Migration and packing never cross VCs. Loans have their GPUs for themselves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from math import inf

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.cluster.demands import Demand
from hived.cluster.requests import Member, Request
from hived.errors import InvariantError, ensure
from hived.scheduling.extension import TakingTurns
from hived.scheduling.instructions import Instruction, Kind, Share, Shares, Turn
from hived.scheduling.probe import Probe, Served
from hived.scheduling.queue import Entry
from hived.scheduling.states import GUARANTEED, SHARE, SHARING, START

from .packing import members, next_packing, throughput
from .parameters import TimeSlicing
from .run_queue import RunQueue, Seat
from .servers import Host, Servers, Spread

#: takes free leaf cells of hosts for a job: the entry, its request, the hosts, where it runs now, and its demand
Take = Callable[[Entry, Request, tuple[Host, ...], Placement | None, Demand | None], Placement | None]


_GUARANTEED = Kind.GUARANTEED


class Slicer:
    """The jobs of one VC on its servers. An event costs O(jobs on the servers that it changes)."""

    def __init__(
        self,
        parameters: TimeSlicing,
        servers: Servers,
        cluster: Cluster,
        take: Take,
        carry_out: Callable[[Instruction], None],
        probe: Probe,
        call_at: Callable[[float], None],
        on_change: Callable[[], None],
        per_second: float,
        served: Served | None = None,
    ) -> None:
        """``call_at``: have :meth:`wake` called at a time; ``on_change``: :meth:`settle` and :meth:`publish`, soon.

        ``served``: live, how long jobs have really run.
        """
        self.parameters, self.servers, self.probe = parameters, servers, probe
        self._cluster, self._take, self._carry_out = cluster, take, carry_out
        self._call_at, self._on_change = call_at, on_change
        self._per_second, self._served = per_second, served
        #: live: the jobs of which the engine was told, since it may have known others before
        self._told: set[int] = set()
        self._now = 0.0
        #: every job here, by number
        self.seats: dict[int, Seat] = {}
        #: servers on which jobs of this VC may take turns
        self.queues: dict[Host, RunQueue] = {}
        # per affinity: servers by height, lowest first; and each server's affinity and height in there
        self._heights_of: dict[int, list[tuple[float, Host]]] = {}
        self._height_of: dict[Host, tuple[int, float]] = {}
        # servers whose heights may be others
        self._stale: dict[Host, None] = {}
        #: number of sharers
        self.sharers = 0
        #: servers whose turns may have changed, and jobs that are new or were moved
        self._dirty: dict[Host, None] = {}
        self._moved: dict[Seat, bool] = {}
        #: jobs on several servers that would fit one
        self._apart: dict[Seat, None] = {}
        #: jobs that will migrate: where to, and when that is warmed up
        self._arriving: dict[Seat, tuple[Spread, float]] = {}
        #: elastic jobs
        self._elastic: dict[Seat, None] = {}
        #: when a server is looked at again
        self._wake_at: dict[Host, float] = {}
        #: when elastic jobs may grow; infinity where none could
        self._grow_at = inf
        #: whether GPUs became free, or jobs came, since the last :meth:`settle`
        self.changed = False
        #: whether jobs gave up GPUs for others, since the scheduler last looked
        self.moved = False

    # -- jobs come and go ---------------------------------------------------------------------------------------------

    def start(self, entry: Entry, now: float) -> bool:
        """Start a job on GPUs of its own, if there are any; elastic jobs give up what they have grown into for it."""
        self._now = now
        gpus = entry.view.gpus
        spread = self.servers.choose(gpus)
        if spread is None and self._shrink_for(gpus):
            spread = self.servers.choose(gpus)
        if spread is None:
            return False
        placement = self._placed(entry, spread, None)
        if placement is None:
            return False
        entry.status = START[entry.status]
        entry.placement = placement
        self._seat(Seat(entry, gpus, spread, placement))
        return True

    def adopt(self, entry: Entry, now: float) -> None:
        """A loan was promoted where it runs."""
        self._now = now
        spread = self._cluster.hosts_of(entry.name)
        seat = Seat(entry, entry.view.gpus, spread, entry.placement)
        seat.gpus = max(seat.base, sum([number for _, number in spread]))  # live, it may have grown before
        self._seat(seat)

    def _seat(self, seat: Seat) -> None:
        self.seats[seat.job] = seat
        self.servers.allocate(seat.spread, seat.gpus)
        self._settled(seat)
        self._moved[seat] = False
        if seat.entry.view.elastic:
            self._elastic[seat] = None
        self._touched()

    def _settled(self, seat: Seat) -> None:
        """An owner joins the queue of its server, if it is on one."""
        if seat.entry.alone:
            return
        if len(seat.spread) == 1:
            self._join(self._queue(seat.spread[0][0]), seat)
            self._changed(seat.spread[0][0])
        elif seat.gpus <= self.servers.widest:
            self._apart[seat] = None

    def can_oversubscribe(self, entry: Entry) -> bool:
        """Whether a server of its own affinity has room for one more job to take turns. O(servers full of jobs)."""
        return not entry.alone and self._least_loaded(entry.view.gpus) is not None

    def server_at(self, node: str, gpus: int) -> Host | None:
        """The server at a node, if its owners have so many GPUs. O(servers)."""
        return next((host for host, queue in self.queues.items() if queue.node == node and queue.gpus >= gpus), None)

    def oversubscribe(self, entry: Entry, now: float, host: Host | None = None) -> None:
        """Let a job take turns on the least loaded server of its own affinity, or on this one."""
        self._now = now
        gpus = entry.view.gpus
        host = self._least_loaded(gpus) if host is None else host
        assert host is not None
        seat = self.seats[entry.number] = Seat(entry, gpus)
        entry.status = SHARE[entry.status]
        entry.placement = None
        self.sharers += 1
        self._join(self.queues[host], seat)
        self._moved[seat] = False
        if entry.view.elastic:
            self._elastic[seat] = None
        self._changed(host)
        self._touched()

    def _least_loaded(self, gpus: int) -> Host | None:
        for _, host in self._heights().get(gpus, ()):
            queue = self.queues[host]
            if queue.gpus >= gpus and queue.requested_gpus + gpus <= self.parameters.most_height * queue.gpus:
                return host
        return None

    def leave(self, entry: Entry, now: float) -> None:
        """A job has ended; the core has released what it held."""
        self._now = now
        seat = self.seats.pop(entry.number)
        self._told.discard(seat.job)
        self._stays(seat)
        self._elastic.pop(seat, None)
        self._moved.pop(seat, None)
        self._unseat(seat)
        self._touched()

    def _unseat(self, seat: Seat) -> None:
        """A job leaves its server; its GPUs are free already."""
        queue = seat.queue
        self._apart.pop(seat, None)
        if seat.spread:
            self.servers.release(seat.spread)
        else:
            self.sharers -= 1
        if queue is None:
            return
        queue.remove(seat)
        seat.hold((), None)
        self._changed(queue.host)
        if queue.alone:
            return
        # sharers need GPUs to take turns on: these are not for the next in line
        while (widest := max([s.gpus for s in queue.sharers()], default=0)) > queue.gpus:
            host = queue.host
            waiting = [s for s in queue.sharers() if s.gpus <= self.servers.free[host]]
            if not waiting or not self._own(waiting[0], ((host, waiting[0].gpus),)):
                break
            if widest <= queue.gpus:
                break

    def _queue(self, host: Host) -> RunQueue:
        queue = self.queues.get(host)
        if queue is None:
            queue = self.queues[host] = RunQueue(host, self._served is not None)
        return queue

    def _join(self, queue: RunQueue, seat: Seat) -> None:
        """A job joins a server; live, as if it had run as long as who has run least there."""
        others = list(queue.seats)
        queue.add(seat)
        if self._served is not None and others:
            seat.credit = 0.0
            seat.credit = min(map(self._service, others)) - self._service(seat)

    def _changed(self, host: Host) -> None:
        """The jobs or GPUs of a server have changed."""
        self._dirty[host] = None
        self._on_change()
        queue = self.queues[host]
        queue.changed_at = self._now
        self._stale[host] = None
        if not queue.seats:
            del self.queues[host]
            self._wake_at.pop(host, None)

    def _heights(self) -> dict[int, list[tuple[float, Host]]]:
        """Per affinity: servers by height, lowest first. O(changes since the last call)."""
        stale, self._stale = self._stale, {}
        for host in stale:
            known = self._height_of.pop(host, None)
            if known is not None:
                heights = self._heights_of[known[0]]
                del heights[bisect_left(heights, (known[1], host))]
            queue = self.queues.get(host)
            if queue is not None:
                affinity, height = self._height_of[host] = self.servers.affinity[host], queue.height
                insort(self._heights_of.setdefault(affinity, []), (height, host))
        return self._heights_of

    def _touched(self) -> None:
        self.changed = True
        self._on_change()
        self._grow_at = inf
        if self._elastic and self.parameters.grows:
            self._grow_at = self._now + self.parameters.idle_s * self._per_second
            self._call_at(self._grow_at)

    def set_priority(self, entry: Entry, priority: int, now: float) -> None:
        """Change the priority of a job while it runs (Gandiva, 4.2)."""
        self._now = now
        seat = self.seats[entry.number]
        seat.priority = priority
        if seat.queue is not None:
            self._changed(seat.queue.host)
        self._touched()

    def set_elastic(self, entry: Entry, now: float) -> None:
        """A job has declared that it grows and shrinks; or it does not, and goes on with what it asked for."""
        self._now = now
        seat = self.seats[entry.number]
        if entry.view.elastic:
            self._elastic[seat] = None
            self.moved |= seat.gpus > seat.base  # from before a restart: those in line may have what it gives up
        else:
            self._elastic.pop(seat, None)
            if seat.spread and seat.gpus > seat.base and self._may_resize(seat, seat.spread[0][0], seat.base):
                self._move(seat, ((seat.spread[0][0], seat.base),))
        self._touched()

    # -- GPUs ---------------------------------------------------------------------------------------------------------

    def _placed(self, entry: Entry, spread: Spread, near: Placement | None) -> Placement | None:
        request, demand = entry.request, entry.demand
        members = tuple([Member(1, number) for _, number in spread])
        if request.members != members:
            demand = None
            request = Request(request.group, request.vc, request.priority, members, request.leaf_cell_type)
        return self._take(entry, request, tuple([host for host, _ in spread]), near, demand)

    def _own(self, seat: Seat, spread: Spread) -> bool:
        """A sharer becomes the owner of free GPUs, of its own server or others."""
        placement = self._placed(seat.entry, spread, None)
        if placement is None:
            return False
        queue = seat.queue
        assert queue is not None
        self.sharers -= 1
        if len(spread) == 1 and spread[0][0] == queue.host:
            queue.own(seat, spread, placement)
            self.servers.allocate(spread, seat.gpus)
            self._changed(queue.host)
        else:
            queue.remove(seat)
            self._changed(queue.host)
            self._settle_on(seat, spread, placement)
        seat.entry.status = START[seat.entry.status]
        seat.entry.placement = placement
        return True

    def _settle_on(self, seat: Seat, spread: Spread, placement: Placement) -> None:
        seat.hold(spread, placement)
        seat.entry.placement = placement
        self.servers.allocate(spread, seat.gpus)
        self._moved[seat] = True
        self._settled(seat)

    def _migrate(self, seat: Seat, spread: Spread) -> None:
        """An owner migrates to free GPUs of other servers, once these are warmed up: it holds both until then (4.1)."""
        warm = self.parameters.warm_s * self._per_second
        hosts = {host for host, _ in spread}
        if not warm or not hosts.isdisjoint([host for host, _ in seat.spread]):  # its own GPUs are among them
            self._move(seat, spread)
            return
        of = seat.entry.request
        members = tuple([Member(1, number) for _, number in spread])
        request = Request(_arrival(seat), of.vc, of.priority, members, of.leaf_cell_type)
        if self._take(seat.entry, request, tuple([host for host, _ in spread]), None, None) is None:
            return  # of a quota less is left than both need
        self.servers.allocate(spread, seat.gpus)
        self._arriving[seat] = spread, self._now + warm
        self._call_at(self._now + warm)

    def _stays(self, seat: Seat) -> Spread:
        """A job migrates no more: what was held for it is free. Returns that."""
        spread, _ = self._arriving.pop(seat, ((), 0.0))
        if spread:
            self._cluster.release(_arrival(seat))
            self.servers.release(spread)
            self.moved = True
        return spread

    def _move(self, seat: Seat, spread: Spread) -> None:
        """An owner gives its GPUs up for others, or for another number of them."""
        self._stays(seat)
        near, queue = seat.placement, seat.queue
        self._cluster.release(seat.entry.name)
        self.moved = True
        self.servers.release(seat.spread)
        self._apart.pop(seat, None)
        if queue is not None:
            queue.remove(seat)
            self._changed(queue.host)
        seat.gpus = sum([number for _, number in spread])
        same = len(spread) == 1 and queue is not None and queue.host == spread[0][0]
        placement = self._placed(seat.entry, spread, near if same else None)
        if placement is None:
            raise InvariantError(f"{seat} cannot have {spread}, which is free")
        self._settle_on(seat, spread, placement)

    # -- after the turns ----------------------------------------------------------------------------------------------

    def settle(self, now: float) -> list[Entry]:
        """Use what is free once nobody in line can: for sharers, packed jobs, jobs that are not co-located.

        Returns jobs that have no GPUs to take turns on any more, which are to wait in line again.
        """
        self._now = now
        self.changed = False
        if self.servers.idle:
            self._promote_sharers()
            if self.parameters.migrates:
                self._co_locate()
                self._defragment()
        for host in self._dirty:
            queue = self.queues.get(host)
            if queue is not None and not queue.alone:
                return self._rearrange()
        return []

    def _rearrange(self) -> list[Entry]:
        """Unpack, evade jobs of higher priority, and find the jobs that have no turns on their server any more."""
        self._separate()
        if self.parameters.migrates:
            self._evade()
        homeless = []
        for host in list(self._dirty):
            queue = self.queues.get(host)
            for seat in list(queue.sharers()) if queue is not None else ():
                assert queue is not None
                if seat.gpus > queue.gpus:
                    homeless.append(seat.entry)
                    self.sharers -= 1
                    del self.seats[seat.job]
                    self._told.discard(seat.job)
                    self._elastic.pop(seat, None)
                    self._moved.pop(seat, None)
                    queue.remove(seat)
                    self._changed(host)
                    self._carry_out(Shares((Share(seat.job, Kind.GUARANTEED, ()),)))
        return homeless

    def promote(self, now: float) -> None:
        """Sharers take free GPUs before others do."""
        self._now = now
        self._promote_sharers()

    def describe(self, entry: Entry) -> TakingTurns | None:
        """How a job takes turns now. O(jobs * GPUs of its server)."""
        seat = self.seats.get(entry.number)
        queue = None if seat is None else seat.queue
        if seat is None or queue is None or not (queue.overloaded or len(queue.units) < len(queue.seats)):
            return None
        unit = next(unit for unit in queue.units if seat in unit)
        packed = tuple([other.entry.name for other in unit if other is not seat])
        share = 0.0 if entry.halted else queue.share(unit)
        return TakingTurns(share, len(queue.seats), queue.gpus, self.parameters.quantum_s, packed)

    def _promote_sharers(self) -> None:
        """Sharers take free GPUs, from the server with the greatest height first (Gandiva, 4.2.1, on departures)."""
        while self.sharers and self.servers.idle:
            found = self._next_owner()
            if found is None or not self._own(*found):
                return

    def _next_owner(self) -> tuple[Seat, Spread] | None:
        free = self.servers.free
        for _, host in self._by_height():
            sizes: set[int] = set()
            for seat in self.queues[host].sharers():
                if seat.gpus in sizes:
                    continue
                sizes.add(seat.gpus)
                if free[host] >= seat.gpus:
                    return seat, ((host, seat.gpus),)
                spread = self.servers.choose(seat.gpus, together=True) if self.parameters.migrates else None
                if spread is not None:
                    return seat, spread
        return None

    def _by_height(self) -> Iterator[tuple[float, Host]]:
        """Servers whose jobs ask for more GPUs than it has, the greatest height first."""
        found = []
        for heights in self._heights().values():
            found += heights[bisect_left(heights, (1.0, (1 << 60, 0))) :]
        return iter(sorted(found, key=lambda one: (-one[0], one[1])))

    def _co_locate(self) -> None:
        """Migrate jobs whose GPUs are on several servers to a single one (Gandiva, 4.2.2, Figure 8)."""
        for seat in list(self._apart):
            if seat in self._arriving:
                continue
            self.servers.release(seat.spread)
            spread = self.servers.choose(seat.gpus, together=True)
            self.servers.allocate(seat.spread, seat.gpus)
            if spread is not None:
                self._migrate(seat, spread)

    def _defragment(self) -> None:
        """Move jobs off nearly empty servers, to servers with fewer free GPUs (Gandiva, 4.2.2).

        Jobs on one server lose nothing by it. It ends when every server in use has fewer than 3 of 4 GPUs free.
        """
        servers = self.servers
        if not servers.nearly_empty:
            return
        for host in list(servers.by_free()):
            if 4 * servers.free[host] < 3 * servers.gpus[host]:
                return
            queue = self.queues.get(host)
            if queue is None or len(queue.seats) != servers.jobs[host]:
                continue  # jobs of others are here, or of several servers
            for seat in list(queue.seats):
                if seat in self._arriving:
                    continue
                others = [
                    (servers.free[other], other)
                    for other in servers.by_free()
                    if other != host
                    and seat.gpus <= servers.free[other]
                    and (servers.free[other], other) < (servers.free[host], host)
                ]
                if not others or not seat.spread:
                    break
                self._migrate(seat, ((min(others)[1], seat.gpus),))

    def _separate(self) -> None:
        """Unpack where GPUs suffice again (Gandiva, 4.1)."""
        for host in list(self._dirty):
            queue = self.queues.get(host)
            if queue is None:
                continue
            for unit in [unit for unit in queue.units if len(unit) > 1]:
                for seat in unit[:0:-1]:
                    if queue.trial is None and queue.needed + seat.gpus <= queue.gpus:
                        queue.unpack(seat)

    def _evade(self) -> None:
        """A job that those of higher priority suspend migrates to a server where it has turns (Gandiva, 4.2.2)."""
        for host in list(self._dirty):
            queue = self.queues.get(host)
            if queue is None or len({seat.priority for seat in queue.seats}) < 2:
                continue
            for seat, turns, _ in queue.turns():
                if turns or seat not in queue.seats:
                    continue
                target = next((other for other in self._less_urgent(seat) if other != host), None)
                if target is None:
                    continue
                if seat.spread:
                    self._stays(seat)
                    self._cluster.release(seat.entry.name)
                    self.moved = True
                    seat.entry.status = SHARE[seat.entry.status]
                    seat.entry.placement = None
                    self._unseat_owner(seat, queue)
                else:
                    queue.remove(seat)
                    self._changed(host)
                self._join(self.queues[target], seat)
                self._moved[seat] = True
                self._changed(target)
                self._promote_sharers()

    def _unseat_owner(self, seat: Seat, queue: RunQueue) -> None:
        """An owner becomes a sharer; its GPUs are free already."""
        self.servers.release(seat.spread)
        self.sharers += 1
        queue.remove(seat)
        seat.hold((), None)
        self._changed(queue.host)

    def _less_urgent(self, seat: Seat) -> Iterator[Host]:
        """Servers of its affinity on which jobs of its priority and above leave turns for it."""
        for _, host in self._heights().get(seat.gpus, ()):
            queue = self.queues[host]
            above = sum([other.gpus for other in queue.seats if other.priority > seat.priority])
            if queue.gpus - above >= seat.gpus:
                yield host

    # -- introspection ------------------------------------------------------------------------------------------------

    def wake(self, now: float) -> None:
        """Do what is due by ``now``: trials end and begin, exact slices change, jobs migrate, elastic jobs grow.

        A call at another time than asked for does nothing. O(servers waited for).
        """
        self._now = now
        for host, at in list(self._wake_at.items()):
            if at <= now:
                del self._wake_at[host]
                self._dirty[host] = None
                self._on_change()
        for seat in [seat for seat, (_, at) in self._arriving.items() if at <= now]:
            self._move(seat, self._stays(seat))
            self._touched()
        if self._grow_at <= now:
            self._grow_at = inf
            self._grow()

    def _wake(self, host: Host, at: float) -> None:
        if at < self._wake_at.get(host, inf):
            self._wake_at[host] = at
            self._call_at(at)

    def _pack(self, queue: RunQueue) -> None:
        """End the trial that is due, and begin the next one (Gandiva, 4.2.2)."""
        now, second = self._now, self._per_second
        if queue.trial is not None:
            unit, newest, before = queue.trial
            if now < queue.trial_ends:
                self._wake(queue.host, queue.trial_ends)
                return
            queue.trial = None
            if throughput(unit, self.probe) <= before * (1 + 1e-9):
                queue.unpack(newest)
                newest.trials += 1
                queue.undone.add(members(unit[:-1], newest))
        if not queue.overloaded:
            return
        packing, profiled = next_packing(queue, self.probe, self.parameters, now, second)
        if packing is not None:
            seat, unit = packing
            before = (throughput(unit, self.probe) + throughput((seat,), self.probe)) / 2  # taking turns
            queue.trial = queue.pack(seat, unit), seat, before
            queue.trial_ends = now + self.parameters.trial_s * second
            self._wake(queue.host, queue.trial_ends)
        elif profiled < inf:
            self._wake(queue.host, profiled)

    def _grow(self) -> None:
        """Elastic jobs double their GPUs while their servers have free ones, who progresses most first (4.2.2)."""
        if self.sharers:
            return
        seats = sorted(self._elastic, key=lambda seat: (-self.probe.rate(seat.job) / seat.gpus, seat.job))
        grown = True
        while grown:
            grown = False
            for seat in seats:
                if seat.queue is None or self.servers.free[seat.queue.host] < seat.gpus:
                    continue
                demand = seat.entry.demand  # of a quota less may be left
                if demand is None or self._cluster.free_gpus(demand) < seat.gpus:
                    continue
                if self._may_resize(seat, seat.queue.host, 2 * seat.gpus):
                    self._move(seat, ((seat.queue.host, 2 * seat.gpus),))
                    grown = True

    def _may_resize(self, seat: Seat, host: Host, gpus: int) -> bool:
        """Whether a job may have so many GPUs of its server. Live, loans leave only for jobs that wait for GPUs."""
        if self._served is None:
            return True
        with self._cluster.what_if():
            self._cluster.release(seat.entry.name)
            return self._placed(seat.entry, ((host, gpus),), seat.placement) is not None

    @property
    def grown(self) -> bool:
        """Whether elastic jobs have GPUs to give up. O(elastic jobs)."""
        return any(seat.gpus > seat.base for seat in self._elastic)

    def _shrink_for(self, gpus: int) -> bool:
        """Elastic jobs give up GPUs until ``gpus`` are free together, those that have grown most first."""
        shrunk = False
        seats = [seat for seat in self._elastic if seat.gpus > seat.base]
        while seats and self.servers.choose(gpus) is None:
            seat = max(seats, key=lambda seat: (seat.gpus / seat.base, seat.job))
            assert seat.queue is not None
            if seat.gpus == seat.base or not self._may_resize(seat, seat.queue.host, seat.gpus // 2):
                seats.remove(seat)
                continue
            self._move(seat, ((seat.queue.host, seat.gpus // 2),))
            shrunk = True
        return shrunk

    # -- to the engine ------------------------------------------------------------------------------------------------

    def publish(self, now: float) -> None:
        """Tell the engine of every job whose turns have changed. O(jobs of the servers that have changed)."""
        self._now = now
        dirty, self._dirty = self._dirty, {}
        exact = self.parameters.exact
        quantum = self.parameters.quantum_s * self._per_second
        for host in dirty:
            queue = self.queues.get(host)
            if queue is None:
                continue
            if self.parameters.packs and (queue.trial is not None or queue.requested_gpus > queue.gpus):
                self._pack(queue)
            number = -1
            if exact and queue.overloaded:
                number = round((now - queue.changed_at) / quantum)
                self._wake(host, queue.changed_at + (number + 1) * quantum)
            if self._served is not None:
                found = queue.by_service(self._service)
            elif queue.alone:
                found = [(seat, seat.whole, 0.0) for seat in queue.seats if seat.turns is not seat.whole]
            else:
                found = queue.turns(number)
            if found:
                self._tell(found)
        if self._moved:
            self._tell([(seat, seat.whole, 0.0) for seat in self._moved if seat.queue is None and seat.spread])
            self._moved.clear()

    def _service(self, seat: Seat) -> float:
        assert self._served is not None
        return self._served.served(seat.job, self._now) + seat.credit

    def _tell(self, found: list[tuple[Seat, tuple[Turn, ...], float]]) -> None:
        now, new, of_moved, quantum = self._now, [], self._moved, self.parameters.quantum_s
        for seat, turns, resumes in found:
            moved = of_moved.pop(seat, False) if of_moved else False
            untold = self._served is not None and seat.job not in self._told
            if (turns is seat.turns or turns == seat.turns) and not moved and not untold:
                continue
            if untold:
                self._told.add(seat.job)
            seat.ran += seat.share * (now - seat.since)
            seat.since, seat.turns = now, turns
            seat.share = turns[0][1] if len(turns) == 1 else sum([turn[1] for turn in turns])
            new.append(Share(seat.entry.number, _GUARANTEED, turns, resumes / quantum, moved))
        if new:
            self._carry_out(Shares(tuple(new)))

    # -- checks -------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Re-derive every index from the seats. O(jobs)."""
        ensure(self.sharers == sum(not seat.spread for seat in self.seats.values()), "number of sharers")
        for seat in self.seats.values():
            held = self._cluster.hosts_of(seat.entry.name) if seat.spread else ()
            ensure(tuple(sorted(held)) == tuple(sorted(seat.spread)), f"{seat} holds {seat.spread}, not {held}")
            ensure(seat.entry.status is (GUARANTEED if seat.spread else SHARING), f"status of {seat}")
            apart = len(seat.spread) > 1 or seat.entry.alone
            ensure((seat.queue is None) is apart, f"{seat} takes turns on one server")
        members: dict[Host, set[Seat]] = {}
        for seat in self.seats.values():
            if seat.queue is not None:
                members.setdefault(seat.queue.host, set()).add(seat)
        ensure({host: set(queue.seats) for host, queue in self.queues.items()} == members, "jobs of servers")
        self._heights()
        for seat, (spread, _) in self._arriving.items():
            ensure(self.seats.get(seat.job) is seat and bool(seat.spread), f"{seat} is about to migrate")
            held = self._cluster.hosts_of(_arrival(seat))
            ensure(tuple(sorted(held)) == tuple(sorted(spread)), f"{seat} holds {held} to arrive at")
        for host, queue in self.queues.items():
            ensure(queue.requested_gpus == sum(seat.gpus for seat in queue.seats), f"GPUs asked for on {host}")
            ensure(queue.gpus == sum(seat.gpus for seat in queue.seats if seat.spread), f"GPUs of {host}")
            packed = [seat for unit in queue.units for seat in unit]
            ensure(len(packed) == len(queue.seats) and set(packed) == set(queue.seats), f"units of {host}")
            for unit in queue.units:
                ensure(len({seat.gpus for seat in unit}) == 1, f"{unit} are of one number of GPUs")
                memory = sum(self.probe.memory_gib(seat.job) for seat in unit)
                ensure(len(unit) == 1 or memory <= self.parameters.gpu_memory_gib, f"memory of {unit}")
            known = self._height_of[host]
            ensure(known == (self.servers.affinity[host], queue.height), f"height of {host}")
            ensure((queue.height, host) in self._heights_of[known[0]], f"{host} by height")
            ensure(all(seat.gpus <= queue.gpus for seat in queue.sharers()), f"sharers of {host} have turns")
        ensure(sum(map(len, self._heights().values())) == len(self.queues), "servers by height")


def _arrival(seat: Seat) -> str:
    """What the core knows the GPUs by that are held for a job until it arrives."""
    return f"{seat.entry.name} (arrives)"
