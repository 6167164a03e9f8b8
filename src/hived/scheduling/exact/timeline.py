"""The virtual timeline: the private clusters of some VCs, played while the real jobs run ahead of it on loans.

Every job of such a VC has a *virtual* job, which the VC's policy schedules on a private cluster as if nobody else
existed: it works at private speed, and only while it runs there. A real job is never behind its virtual one. One that
has ended early leaves its virtual job as a *ghost*, which is scheduled on until its work is done. So the timeline is
the private run, event by event, whatever happens outside; it is fair queueing's virtual clock (Demers et al.,
SIGCOMM'89) with cells in place of a link.

What a job will do need not be known: its virtual job cannot finish before the real one has, and from then on the work
of both is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, TypeAlias

from hived.cells import leaves_of
from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Bind, Placement, VirtualLeaves
from hived.cluster.placement_request import ANYWHERE, PlacementConstraint, PlacementRequest
from hived.cluster.requests import Request
from hived.cluster.sharing import Sharing
from hived.errors import InvariantError, PolicyError, RequestError
from hived.spec.compiled import ClusterSpec

from ..checked_policy import Policies
from ..instructions import Instruction, Reserve, Start, Stop
from ..numbers import whole
from ..policy import JobView
from ..queue import Entry
from ..scheduler import PastUse, Scheduler

#: a job's number, when it started and when it stopped, and the GPUs of its private cluster: of every virtual run
OnRun: TypeAlias = Callable[[int, float, float, Placement], None]
#: the work per unit of time of a job on GPUs of its private cluster
Rate: TypeAlias = Callable[[int, Placement], float]
#: stops of one job in a row, with no more work done than before, after which its policy is refused
MAX_STOPS = 10_000


class VirtualState(NamedTuple):
    """A virtual job that has run, or whose real job has ended, as plain values: what a restart needs of it."""

    name: str
    request: Request
    view: JobView
    done: float  #: see :class:`_VirtualJob`
    work: float
    since: float | None
    leaves: VirtualLeaves | None  #: the leaf cells of its VC that it runs on
    attained: float  #: these three: see :class:`~hived.scheduling.Entry`
    kept: float
    settled: float
    number: int | None = None  #: of the real job; None: of a version that did not store it


class _VirtualJob:
    """A job of the virtual timeline. Times and work are in the engine's unit."""

    __slots__ = ("done", "entry", "least", "placement", "rate", "since", "stops", "vain", "work")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        #: work done before ``since``, less what resuming costs
        self.done = 0.0
        #: in all; infinity until the real job has ended
        self.work = inf
        #: since when it runs; None: it does not
        self.since: float | None = None
        self.placement: Placement | None = None
        #: work per unit of time while it runs
        self.rate = 1.0
        #: how often it was stopped: voids its expected finish
        self.stops = 0
        #: the most work it ever had done when it was stopped, and the stops since
        self.least, self.vain = 0.0, 0

    def at(self, now: float) -> float:
        """The work done by now."""
        return self.done if self.since is None else self.done + (now - self.since) * self.rate


class VirtualTimeline:
    """The VCs of exact safety, each alone. An event costs what it costs in a private cluster."""

    def __init__(
        self,
        spec: ClusterSpec,
        policies: Policies,
        vcs: Collection[str],
        per_second: float = 1.0,
        on_run: OnRun | None = None,
        rate: Rate | None = None,
        past_use: PastUse | None = None,
    ) -> None:
        """``vcs``: those of exact safety; ``per_second``: the engine's units of time in a second. O(cells).

        ``rate``: how fast jobs run; None: always at the rate 1. ``past_use``: see :class:`.Scheduler`.
        """
        policies = policies.only(vcs)
        self.vcs = frozenset(vcs)
        self.cluster = Cluster(spec, Sharing.PRIVATE, policies.rank, ranks=policies.ranks)
        self._scheduler = Scheduler(
            self.cluster, policies, self._carry_out, explains=False, per_second=per_second, past_use=past_use
        )
        self._policies, self._per_second = policies, per_second
        self._on_run, self._rate = on_run, rate
        # simulated time is in whole units, so that equal moments are equal
        self._whole = per_second > 1
        self._now = 0.0
        self._jobs: dict[int, _VirtualJob] = {}
        # the count of stops with which a job begins: a number is used again where a real job was submitted again
        self._first_stop = 0
        self._by_name: dict[str, _VirtualJob] = {}
        #: (time, job, number of its stops)
        self._finishes: list[tuple[float, int, int]] = []
        # of this instant: jobs that lost their GPUs, with their start, GPUs, work done, and work kept by the scheduler
        self._preempted: dict[int, tuple[float, Placement, float, float]] = {}
        #: the jobs whose GPUs may have changed since :meth:`changes` was last asked, with who preempted them
        self._changed: dict[int, Stop | None] = {}
        # the leaves of each running job when it was
        self._known: dict[int, VirtualLeaves] = {}
        #: leaf cells that count as bad
        self._refused: list[tuple[str, int]] = []
        #: the names of jobs whose :meth:`state` may have changed since the caller last cleared this
        self.touched: dict[str, None] = {}
        #: per VC: GPUs of its cells that ghosts hold
        self.ghost_gpus: dict[str, int] = dict.fromkeys(self.vcs, 0)
        #: the VCs whose number of these may have changed since the caller last cleared this
        self.ghosts_changed: dict[str, None] = {}

    # -- events -------------------------------------------------------------------------------------------------------

    def submit(self, entry: Entry, now: float, work: float = inf) -> None:
        """Submit the virtual job of a real one, which has the same number and request.

        ``work``: of a job without any, 0: its virtual job ends as it starts, whether or not the real one has.
        """
        self.enqueue(entry, now, work)
        self._scheduler.dispatch(now)

    def enqueue(self, entry: Entry, now: float, work: float = inf) -> None:
        """The same; the caller dispatches, by :meth:`review`, after others that are submitted at once."""
        self._now = now
        view = entry.view._replace(attained=0.0, running=False)
        virtual = Entry(entry.number, entry.request, view, False, entry.request_class)
        virtual.duration = entry.duration
        self._add(virtual).work = work
        self._scheduler.wait(virtual)

    def restore(self, number: int, state: VirtualState, now: float, has: VirtualLeaves | None = None) -> None:
        """Add a virtual job as it was under an earlier timeline, perhaps of another spec; the caller dispatches.

        Where its cells are not there any more it gets others, or is requeued with the work that it has done. ``has``:
        the leaf cells that the real job has.
        """
        self._now = now
        entry = Entry(number, state.request, state.view, False)
        entry.duration = state.view.duration
        entry.attained, entry.kept, entry.settled = state.attained, state.kept, state.settled
        job = self._add(entry)
        job.done, job.work = state.done, state.work
        self.touched[state.name] = None
        leaves, placed = state.leaves, None
        if has is not None:
            self._known[number] = has
            self._changed[number] = Stop(number, None, True)  # unless it has the same again
        if leaves is not None:
            placed = self._placed(state.request, leaves, now)
        if placed is None or state.since is None:
            self._scheduler.wait(entry)
            return
        job.since, job.placement = state.since, placed
        self._scheduler.adopt(entry, True, now)
        self._changed.setdefault(number, None)
        if job.work < inf:
            self._count_ghost(job, 1)
            self._expect(job, now)

    def _add(self, entry: Entry) -> _VirtualJob:
        job = self._jobs[entry.number] = self._by_name[entry.name] = _VirtualJob(entry)
        job.stops = self._first_stop
        return job

    def _placed(self, request: Request, leaves: VirtualLeaves, now: float) -> Placement | None:
        """The placement on these leaf cells, else on any that are free."""
        cluster, either = self.cluster, list[PlacementConstraint]((leaves, ANYWHERE))
        for constraint in either:
            try:
                placed = cluster.place(PlacementRequest(request, constraint, now))
            except RequestError:
                return None  # its VC is no more, or is too small for it
            if isinstance(placed, Bind):
                cluster.commit(placed)
                return placed.placement
        return None

    def refuse(self, name: str, leaves: Collection[tuple[int, int]], now: float) -> None:
        """Hardware refuses these leaf cells of a virtual job that has just started: hosts of the VC, with one bit each.

        Its private cluster has no hardware of its own: they count as bad there until :meth:`heal`, and the job is
        requeued with the work that it has done. Jobs that were stopped for it at this instant go on.
        """
        job, bad = self._by_name[name], dict(leaves)
        assert job.placement is not None
        self._now = now
        spots = self.cluster.virtual_leaves(name).spots
        devices = [
            (node, device)
            for (host, mask), (node, of_pod) in zip(spots, job.placement.pods, strict=True)
            for device, bit in zip(of_pod, leaves_of(mask), strict=True)
            if bad.get(host, 0) >> bit & 1
        ]
        self._changed.setdefault(job.entry.number, None)
        self.touched[name] = None
        done, job.entry.keeps = job.done, True
        self._preempt(job, True)
        job.done = max(done, job.done)
        self._scheduler.release(job.entry, True, now)
        for number, stop in self._changed.items():
            if stop is not None and stop.by == job.entry.number:
                self._put_back(number, now)
        for node, device in devices:
            self.cluster.set_device_health(node, device, False)
        self._refused += devices
        self._scheduler.hardware_changed()
        self._scheduler.dispatch(now)

    def _put_back(self, number: int, now: float) -> None:
        """Give a job that was stopped at this instant its leaf cells again, if they are free: it never lost them."""
        job, had = self._jobs.get(number), self._known.get(number)
        if job is None or job.since is not None or had is None:
            return
        placed = self.cluster.place(PlacementRequest(job.entry.request, had, now), True)
        if placed is None:
            return
        self._scheduler.withdraw(job.entry)
        job.since, job.placement = now, placed.placement
        job.vain = max(0, job.vain - 1)
        self._scheduler.adopt(job.entry, True, now)
        if job.work < inf:
            self._count_ghost(job, 1)
            self._expect(job, now)

    def heal(self) -> None:
        """Try again what was refused: hardware has changed, or cells were given back. The caller dispatches."""
        refused, self._refused = self._refused, []
        for node, device in refused:
            self.cluster.set_device_health(node, device, True)
        if refused:
            self._scheduler.hardware_changed()

    def ended(self, number: int, work: float, now: float) -> None:
        """The real job has ended, and has done ``work`` in all: that of its virtual job too."""
        job = self._jobs.get(number)
        if job is None:  # it had no work, and its virtual job has ended before it
            return
        known, job.work = job.work < inf, work
        self.touched[job.entry.name] = None
        if job.entry.line is None:  # too large for its VC: it never runs there
            self._scheduler.withdraw(job.entry)
            self._forget(job)
        elif job.since is not None and not known:
            self._count_ghost(job, 1)
            self._expect(job, now)

    def withdraw(self, number: int, now: float) -> None:
        """A job was cancelled: it would have been in a private cluster too."""
        job = self._jobs.get(number)
        if job is None:
            return
        self._now = now
        if job.since is None:
            self._scheduler.withdraw(job.entry)
        else:
            self._end(job, now)
        self._forget(job)
        self._scheduler.dispatch(now)

    @property
    def next_finish(self) -> float:
        """When the next ghost ends; infinity for never. O(1) amortised."""
        finishes, jobs = self._finishes, self._jobs
        while finishes:
            at, number, stops = finishes[0]
            if number in jobs and jobs[number].stops == stops:
                return at
            heappop(finishes)
        return inf

    @property
    def next_review(self) -> float:
        """When the order of a virtual job changes; infinity for never."""
        return self._scheduler.next_review

    def finish(self, now: float) -> None:
        """End the virtual jobs that are due."""
        if self.next_finish > now:
            return
        self._now = now
        while self.next_finish <= now:
            job = self._jobs[heappop(self._finishes)[1]]
            self._end(job, now)
            self._forget(job)
        self._scheduler.dispatch(now)

    def review(self, now: float) -> None:
        """Dispatch, once :attr:`next_review` has come."""
        self._now = now
        self._scheduler.dispatch(now)

    @property
    def has_changed(self) -> bool:
        """Whether :meth:`changes` has something to tell."""
        return bool(self._changed)

    def changes(self, now: float) -> tuple[list[Stop], list[tuple[int, VirtualLeaves]]]:
        """The jobs that have lost their GPUs, and those that have some, since this was last asked: of an instant.

        An instant has no length: a job that lost its GPUs and has got the same back has neither. O(changes).
        """
        self._end_instant(now)
        stops, starts = [], []
        for number, stop in self._changed.items():
            job = self._jobs.get(number)
            before = self._known.pop(number, None)
            if job is None:  # it has finished, as the real one has
                continue
            leaves = None
            if job.since is not None:
                leaves = self._known[number] = self.cluster.virtual_leaves(job.entry.name)
            if leaves == before:
                continue
            if before is not None and stop is not None:
                stops.append(stop)
            if leaves is not None:
                starts.append((number, leaves))
        self._changed.clear()
        return stops, starts

    def starts(self) -> list[tuple[str, VirtualLeaves]]:
        """What :meth:`changes` would tell of jobs whose real ones have not ended: those that have other leaf cells."""
        running = [job for number in self._changed if (job := self._jobs.get(number)) and job.since is not None]
        there = [(job, self.cluster.virtual_leaves(job.entry.name)) for job in running if job.work == inf]
        return [(job.entry.name, at) for job, at in there if at != self._known.get(job.entry.number)]

    # -- queries ------------------------------------------------------------------------------------------------------

    def view(self, name: str) -> JobView | None:
        """What the policy sees of a virtual job."""
        job = self._by_name.get(name)
        return None if job is None else job.entry.view

    def done(self, number: int, now: float) -> float:
        """The work that the virtual job has done, less what its next start costs."""
        return self._jobs[number].at(now)

    def has(self, number: int) -> bool:
        """Whether the virtual job has not ended."""
        return number in self._jobs

    def is_ghost(self, number: int) -> bool:
        """Whether the real job has ended, and the virtual one has not."""
        return number in self._jobs and self._jobs[number].work < inf

    def ghosts(self, vc: str) -> list[str]:
        """The jobs of a VC that have ended early, and whose virtual jobs run. O(virtual jobs that run)."""
        running = [self._jobs[number] for number in self._known if number in self._jobs]
        return [job.entry.name for job in running if job.entry.vc == vc and job.work < inf and job.since is not None]

    def number_of(self, name: str) -> int | None:
        """The number of a virtual job by its name; None: there is none."""
        job = self._by_name.get(name)
        return None if job is None else job.entry.number

    def name_of(self, number: int) -> str:
        """The name of a virtual job; "" where there is none."""
        job = self._jobs.get(number)
        return "" if job is None else job.entry.name

    def request(self, name: str) -> Request:
        """The request of a virtual job."""
        return self._by_name[name].entry.request

    def runs_on(self, name: str) -> VirtualLeaves | None:
        """The leaf cells of its VC that a virtual job has; None: it does not run."""
        job = self._by_name.get(name)
        return None if job is None or job.since is None else self.cluster.virtual_leaves(name)

    def ahead(self, name: str, most: int) -> tuple[int, list[Entry]]:
        """As :meth:`Scheduler.ahead`, of a virtual job."""
        job = self._by_name.get(name)
        return (0, []) if job is None else self._scheduler.ahead(job.entry, most)

    def before(self, vc: str, priority: int, most: int, fits: bool) -> tuple[int, list[Entry]]:
        """As :meth:`Scheduler.before`."""
        return self._scheduler.before(vc, priority, most, fits)

    def state(self, name: str) -> VirtualState | None:
        """A virtual job as :meth:`restore` takes it; None where a new submission is the same: it has never run."""
        job = self._by_name.get(name)
        if job is None or (job.since is None and job.done <= 0 and job.work == inf):
            return None
        entry, leaves = job.entry, self.runs_on(name)
        view = entry.view._replace(running=False)
        return VirtualState(
            name, entry.request, view, job.done, job.work, job.since, leaves, entry.attained, entry.kept, entry.settled,
            entry.number,
        )  # fmt: skip

    def states(self) -> list[VirtualState]:
        """All of them, in the order of the numbers. O(jobs)."""
        found = [self.state(job.entry.name) for _, job in sorted(self._jobs.items())]
        return [state for state in found if state is not None]

    # -- the private clusters -----------------------------------------------------------------------------------------

    def _carry_out(self, instruction: Instruction) -> None:
        now = self._now
        if isinstance(instruction, Start):
            job = self._jobs[instruction.job]
            job.since, job.placement = now, instruction.placement
            if self._rate is not None:
                job.rate = self._rate(instruction.job, instruction.placement)
            self._changed.setdefault(instruction.job, None)
            self.touched[job.entry.name] = None
            if job.work < inf:
                self._count_ghost(job, 1)
                self._expect(job, now)
        elif isinstance(instruction, Stop):
            job = self._jobs[instruction.job]
            self._changed[instruction.job] = instruction
            self.touched[job.entry.name] = None
            self._preempt(job, instruction.keeps_work)
            self._count_stop(job)
            self._scheduler.release(job.entry, True, now)
        elif not isinstance(instruction, Reserve):
            raise InvariantError(f"{instruction} in a private cluster, which lends nothing")

    def _preempt(self, job: _VirtualJob, keeps_work: bool) -> None:
        now, since, placement = self._now, job.since, job.placement
        assert since is not None
        assert placement is not None
        if job.work < inf:
            self._count_ghost(job, -1)
        if since < now:
            done = job.at(now)
            self._preempted[job.entry.number] = since, placement, done, job.entry.kept
            resume = round(self._policies[job.entry.vc].resume_s * self._per_second)
            job.done = done - resume if keeps_work else 0.0
        job.since = job.placement = None
        job.stops += 1

    def _count_stop(self, job: _VirtualJob) -> None:
        if job.done > job.least:
            job.least, job.vain = job.done, 0
            return
        job.vain += 1
        if job.vain >= MAX_STOPS:
            what = f"the job was stopped {MAX_STOPS:,} times in a row and makes no progress"
            raise PolicyError(self._policies[job.entry.vc].name, what, job.entry.name, self._now / self._per_second)

    def _end_instant(self, now: float) -> None:
        """A job that got its GPUs back within the instant never lost them."""
        for number, (since, placement, done, kept) in self._preempted.items():
            job = self._jobs.get(number)
            again = None if job is None else job.placement
            if job is not None and again is not None and set(again.pods) == set(placement.pods):
                job.since, job.done, job.placement = since, done - (now - since) * job.rate, again
                job.entry.kept = kept
                job.stops += 1
                if job.work < inf:
                    self._expect(job, now)
            elif self._on_run is not None:
                self._on_run(number, since, now, placement)
        self._preempted.clear()

    def _expect(self, job: _VirtualJob, now: float) -> None:
        """Expect the end of a running job whose work is known; at once, if it is ahead of the real one."""
        assert job.since is not None
        left = (job.work - job.done) / job.rate
        at = max(now, job.since + (whole(left) if self._whole else left))
        heappush(self._finishes, (at, job.entry.number, job.stops))

    def _end(self, job: _VirtualJob, now: float) -> None:
        """A running job ends."""
        assert job.since is not None
        assert job.placement is not None
        if job.work < inf:
            self._count_ghost(job, -1)
        if self._on_run is not None and job.since < now:
            self._on_run(job.entry.number, job.since, now, job.placement)
        job.since = job.placement = None
        self._changed.setdefault(job.entry.number, None)
        self._scheduler.release(job.entry, False, now)

    def _count_ghost(self, job: _VirtualJob, sign: int) -> None:
        self.ghost_gpus[job.entry.vc] += sign * job.entry.view.gpus
        self.ghosts_changed[job.entry.vc] = None

    def _forget(self, job: _VirtualJob) -> None:
        del self._jobs[job.entry.number], self._by_name[job.entry.name]
        self._known.pop(job.entry.number, None)
        self._first_stop = max(self._first_stop, job.stops + 1)
        self.touched[job.entry.name] = None
