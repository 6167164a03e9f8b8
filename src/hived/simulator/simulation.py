"""The event loop: an engine whose victims end at once, and whose clock is a heap.

Events are ordered by ``(time, finishes before submissions before reviews, job number)``: all jobs that finish at one
instant release their GPUs before any job is placed. An instant has no length, so only the state of a job before and
after it counts:
intervals of length 0 are not recorded, and a job that loses its GPUs and gets the same ones back is not preempted.

The work of a job is its duration, the time that it takes alone at best affinity. It is done at a rate, which changes
only at events, so the time of its finish is known in between (:mod:`.work`).
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from math import ceil

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import Placement
from hived.cluster.requests import OPPORTUNISTIC, Member, Request
from hived.cluster.sharing import Sharing
from hived.errors import InvariantError, PolicyError
from hived.scheduling import (
    Entry,
    Instruction,
    JobView,
    Kind,
    Move,
    Policies,
    Promote,
    Scheduler,
    Share,
    Shares,
    SomePolicies,
    Start,
    Status,
    Stop,
)
from hived.scheduling.exact import OnRun, TimelineFollower, VirtualTimeline, borrowing_policies, check_exact
from hived.scheduling.numbers import whole
from hived.spec.compiled import ClusterSpec

from .driver import Driver
from .exchange import Trading
from .models import Models
from .record import Record, Run, gpus_of
from .traces import TraceJob
from .traces.model import MS
from .work import ALONE, Progress, Work

_NEVER = 1 << 62
#: in place of a number of stops: the next event is a review of the order (a submission: -1)
_REVIEW = -2
#: the same: the driver wants to be called
_WAKE = -3
#: the same: tenants may trade cells
_TRADES = -6
#: the same: something happens in the virtual timeline of VCs of exact safety
_GHOST, _VIRTUAL_REVIEW = -4, -5
#: stops of one job in a row, with no more work done than before, after which its policy is refused
MAX_STOPS = 10_000
#: an interval in which a job holds GPUs: start, kind, placement
_Interval = tuple[int, Kind, Placement]


class Simulation:
    """One scheduler on one trace. O(log jobs) per event plus the scheduler's own cost."""

    def __init__(
        self,
        cluster: Cluster,
        policies: Policies,
        record: Record,
        opportunistic: bool,
        soft: Collection[int] = (),
        work: Work | None = None,
        driver: Driver | None = None,
        timeline: VirtualTimeline | None = None,
        trading: Trading | None = None,
    ) -> None:
        """``opportunistic``: whether jobs may start on idle GPUs before their turn; ``soft``: jobs of soft affinity.

        ``work``: how fast jobs run; None: always at the rate 1. ``driver``: what submits the jobs of ``record`` after
        those of the trace, and ends jobs; with ``work``. ``timeline``: that of the VCs whose safety is exact;
        ``trading``: how tenants trade cells.
        """
        own = policies if timeline is None else borrowing_policies(policies, timeline)
        self._scheduler = Scheduler(
            cluster, own, self._carry_out, explains=False, per_second=MS, probe=work, exact=timeline
        )
        # None: no VC is of exact safety
        self._following = None if timeline is None else TimelineFollower(timeline, self._scheduler)
        self._work = work
        # by job that does not run at the rate 1 on GPUs of its own
        self._progress: dict[int, Progress] = {}
        # by job that holds GPUs and does no work yet: what it will do
        self._pauses: dict[int, Progress] = {}
        self._policies = policies
        self._early = opportunistic
        self._quota = cluster.sharing is Sharing.QUOTA
        self._soft = soft
        self._record = record
        self._jobs = record.jobs
        self._now = 0
        n = len(record.jobs)
        self._driver = driver
        self._trading = trading
        # the work left of a job at which its driver is told
        self._told_at: dict[int, float] = {}
        self._submitted: Counter[str] = Counter()
        # the members of a request, by its number of GPUs, negated under soft affinity
        self._members: dict[int, tuple[Member, ...]] = {}
        # work left, in milliseconds at the rate 1
        self._left: list[float] = [job.duration_ms for job in record.jobs]
        # open intervals by job: the jobs that hold GPUs
        self._intervals: dict[int, _Interval] = {}
        # (time, job, number of stops of the job): an entry is void if the job was stopped since
        self._finishes: list[tuple[int, int, int]] = []
        self._stops = [0] * n
        # jobs that were stopped: the least work that was ever left, and the stops since
        self._futile: dict[int, tuple[float, int]] = {}
        # jobs preempted at this instant: the interval, the work left after it, and kept (as the scheduler counts it)
        # and the cells that it had
        self._preempted: dict[int, tuple[_Interval, float, float, float, object]] = {}
        record.alone = [job.duration_ms for job in record.jobs] if work is not None else []
        record.first_start = [-1] * n
        record.finish = [-1] * n
        record.preemptions = [0] * n

    def run(
        self,
        until: int | None = None,
        progress: Callable[[int], None] | None = None,
        after_event: Callable[[Scheduler], None] | None = None,
    ) -> Record:
        """Play the trace to its end, or up to ``until``. ``progress`` is called with the number of jobs submitted."""
        with _no_garbage_collection():
            self._play(_NEVER if until is None else until, progress, after_event)
        return self._record

    def _play(
        self, until: int, progress: Callable[[int], None] | None, after_event: Callable[[Scheduler], None] | None
    ) -> None:
        jobs, scheduler, finishes, stops = self._jobs, self._scheduler, self._finishes, self._stops
        now = 0
        driver, following, trading = self._driver, self._following, self._trading
        timeline = None if following is None else following.timeline
        number, total = 0, len(jobs) if driver is None else len(jobs) - len(driver.jobs)
        next_submit = jobs[0].submit_ms if total else _NEVER
        finish, entries = self._record.finish, scheduler.jobs
        reviews = any(policy.preempts or policy.gpu_sharing for policy in self._policies.all)
        while True:
            time, stopped = next_submit, -1
            if finishes and finishes[0][0] <= time:
                time, job, stopped = finishes[0]
            if reviews and (review := scheduler.next_review) < time and ceil(review) < time:
                time, stopped = ceil(review), _REVIEW
            if driver is not None and driver.next_wake < time:
                time, stopped = driver.next_wake, _WAKE
            if trading is not None and trading.next_look < time and (finishes or next_submit < _NEVER):
                time, stopped = trading.next_look, _TRADES
            if timeline is not None and following is not None:
                ghost = timeline.next_finish
                if ghost < time or (ghost == time and stopped < 0):
                    time, stopped = int(ghost), _GHOST
                if (review := timeline.next_review) < time and ceil(review) < time:
                    time, stopped = ceil(review), _VIRTUAL_REVIEW
                if time > now and following.has_changed:
                    for job in following.settle(now):
                        self._record.first_start[job] = finish[job] = now
                    scheduler.dispatch(now)
                    if after_event is not None:
                        after_event(scheduler)
                    continue  # it may have started jobs
            if time > now and self._preempted:
                self._end_instant(now)
                continue  # it may have restored a finish
            if time == _NEVER or time > until:
                break
            if stopped == _REVIEW:
                now = self._now = time
            elif stopped == _WAKE and driver is not None:
                now = self._now = time
                driver.wake(self)
            elif stopped == _TRADES and trading is not None:
                now = self._now = time
                self._trade(trading.look(now, scheduler))
            elif timeline is not None and stopped == _GHOST:
                now = self._now = time
                timeline.finish(now)
            elif timeline is not None and stopped == _VIRTUAL_REVIEW:
                now = self._now = time
                timeline.review(now)
            elif stopped < 0:
                now = self._now = time
                entry = self._entry(number)
                if following is not None and following.follows(entry):
                    following.submit(entry, now, not jobs[number].duration_ms)
                else:
                    if timeline is not None and entry.vc in timeline.vcs:  # opportunistic: an event of its VC, too
                        timeline.review(now)
                    scheduler.wait(entry)
                    if trading is not None and entry.line is None and entry.request.priority >= 0:
                        self._trade(trading.recall(entry.vc, now, scheduler))
                number += 1
                next_submit = jobs[number].submit_ms if number < total else _NEVER
                if progress is not None and not number & 0x3FF:
                    progress(number)
            else:
                ended = False
                while finishes and finishes[0][0] == time:
                    _, job, stopped = heappop(finishes)
                    if stopped == stops[job]:
                        if job in self._pauses:
                            self._go_on(job, time)
                            continue
                        ended, now = True, time
                        if job in self._told_at:
                            self._tell(job, now)
                            continue
                        self._close(job, now)
                        finish[job] = now
                        entry = entries[job]
                        scheduler.release(entry, False, now)
                        if following is not None and following.follows(entry):
                            following.ended(job, jobs[job].duration_ms, now)
                        if driver is not None:
                            self._now = now
                            driver.finished(job, self)
                if not ended:
                    continue
                self._now = now
                if timeline is not None:
                    timeline.finish(now)
            scheduler.dispatch(now)
            if after_event is not None:
                after_event(scheduler)
        self._end_instant(now)
        self._record.end = now if time == _NEVER else until
        self._check_progress()
        for job in sorted(self._intervals):
            self._close(job, self._record.end)
        if progress is not None:
            progress(number)

    def _entry(self, number: int) -> Entry:
        name, tenant, submitted, duration, gpus, _, user, model, priority, mode, soft, elastic = self._jobs[number]
        policy, at = self._policies[tenant], submitted / MS
        lasts = duration / MS if policy.clairvoyant else None
        # by position, which is faster than by name
        before = self._submitted[tenant]  # of its tenant alone: a policy decides by what happens in its VC
        self._submitted[tenant] += 1
        view = JobView(name, gpus, at, before, tenant, user, model, priority, 0.0, False, at, lasts, lasts, elastic)
        soft = soft or number in self._soft or (policy.relaxes and policy.relax(view, at))
        shape = -gpus if soft else gpus
        members = self._members.get(shape)
        if members is None:
            members = self._members[shape] = members_of(gpus, soft=shape < 0)
        if mode == "opportunistic":
            priority = OPPORTUNISTIC
        request = Request(name, tenant, priority, members, whole_nodes=True)
        early = self._early and mode != "guaranteed"
        entry = Entry(number, request, view, early, (shape, priority) if priority else shape)
        entry.policy = policy  # what it may see is in the view
        return entry

    def _carry_out(self, instruction: Instruction) -> None:
        """Carry out an instruction; a stopped job ends at once."""
        now = self._now
        if isinstance(instruction, Start):
            job = instruction.job
            self._intervals[job] = (now, instruction.kind, instruction.placement)
            if self._record.first_start[job] < 0:
                self._record.first_start[job] = now
            if self._work is None:
                heappush(self._finishes, (now + int(self._left[job]), job, self._stops[job]))
            else:
                self._set_progress(job, self._work.alone_on(job, instruction.placement))
        elif isinstance(instruction, Shares):
            for share in instruction.jobs:
                self._share(share)
        elif isinstance(instruction, Promote):  # the finish does not change
            job = instruction.job
            progress = self._progress.get(job)
            self._intervals[job] = (now, Kind.GUARANTEED, self._close(job, now))
            if progress is not None:
                self._progress[job] = progress
        elif isinstance(instruction, (Stop, Move)):
            job = instruction.job
            if isinstance(instruction, Move):
                self._stop(job, now, instruction.keeps_work)
            else:
                by = instruction.by  # what others take back, no policy of its VC has decided
                own = by is None or self._jobs[by].tenant == self._jobs[job].tenant
                self._preempt(job, now, instruction.keeps_work, own)
            entry = self._scheduler.jobs[job]
            if self._following is not None and self._following.follows(entry):
                self._charge(self._following, entry)
            self._scheduler.release(entry, True, now)

    def _preempt(self, job: int, now: int, keeps_work: bool, own: bool) -> None:
        """Take the GPUs of a job; it counts as preempted only if it has not got them back at the end of the instant.

        ``own``: for a job of its own VC.
        """
        interval = self._intervals.pop(job)
        since = interval[0]
        rate = self._progress.pop(job, ALONE).rate
        if since < now:
            left = self._left[job] - (now - since) * rate
            self._preempted[job] = (interval, left, self._scheduler.jobs[job].kept, rate, self._cells(job))
            self._left[job] = left + self._resume(job) if keeps_work else self._jobs[job].duration_ms
        elif self._record.first_start[job] == now:
            self._record.first_start[job] = -1
        self._stops[job] += 1
        if own:
            self._count_stop(job)

    def _cells(self, job: int) -> object:
        """The leaf cells of its VC that a job has, or the GPUs of its loan: what it has again, it never lost."""
        entry = self._scheduler.jobs[job]
        if entry.status is Status.GUARANTEED and not self._quota:
            return self._scheduler.cluster.virtual_leaves(entry.name).cells
        return entry.status is Status.GUARANTEED, frozenset(entry.placement.pods if entry.placement is not None else ())

    def _end_instant(self, now: int) -> None:
        """End the instant ``now``: record as preempted the jobs that lost their GPUs and did not get the same back."""
        for job, ((since, kind, placement), left, kept, rate, cells) in self._preempted.items():
            interval = self._intervals.get(job)
            again = interval is not None and self._cells(job) == cells
            if interval is not None and again and self._progress.get(job, ALONE).rate == rate and rate:
                if set(interval[2].pods) == set(placement.pods):
                    self._intervals[job] = (since, kind, interval[2])
                    self._left[job] = left + (now - since) * rate
                else:  # the same cells of its VC, bound elsewhere
                    self._record.runs.append(Run(job, since, now, kind, placement, 1.0, rate))
                    self._left[job] = left
                self._scheduler.jobs[job].kept = kept
                self._stops[job] += 1
                left -= self._told_at.get(job, 0.0)
                heappush(self._finishes, (now + whole(left / rate), job, self._stops[job]))
            else:
                self._record.runs.append(Run(job, since, now, kind, placement, 1.0, rate))
                self._record.preemptions[job] += 1
                gpus = gpus_of(placement)
                self._record.preempted_gpus += gpus
                self._record.preempted_at.append((now, gpus))
        self._preempted.clear()

    def _stop(self, job: int, now: int, keeps_work: bool = True) -> None:
        """Stop a job and void its expected finish."""
        ran = self._intervals[job][0] < now
        self._close(job, now)
        if not keeps_work:
            self._left[job] = self._jobs[job].duration_ms
        elif ran:
            self._left[job] += self._resume(job)
        self._stops[job] += 1
        self._count_stop(job)

    def _charge(self, following: TimelineFollower, entry: Entry) -> None:
        """Charge what it costs a job of exact safety to go on against its head start; it starts anew without one."""
        job, duration = entry.number, self._jobs[entry.number].duration_ms
        left = self._left[job] = min(self._left[job], duration)
        following.check(job, duration - left, self._now)
        entry.early = following.may_borrow(job, duration - left, self._resume(job), self._now)

    def _resume(self, job: int) -> int:
        """Milliseconds for which a job that kept its work occupies GPUs before it goes on."""
        return round(self._policies[self._jobs[job].tenant].resume_s * MS)

    def _count_stop(self, job: int) -> None:
        least, times = self._futile.get(job, (self._jobs[job].duration_ms, 0))
        if self._left[job] < least:
            self._futile[job] = self._left[job], 0
            return
        self._futile[job] = least, times + 1
        if times + 1 >= MAX_STOPS:
            what = (
                f"the job was stopped {MAX_STOPS:,} times in a row and makes no progress; a job that starts must keep "
                "its place before those that it displaces, for longer than resume_s"
            )
            raise self._wrong(job, what)

    def _wrong(self, job: int, what: str) -> PolicyError:
        name, tenant = self._jobs[job].job_id, self._jobs[job].tenant
        return PolicyError(self._policies[tenant].name, what, name, self._now / MS)

    def _check_progress(self) -> None:
        """Raise :class:`~hived.errors.PolicyError` if a job waits in a VC all of whose GPUs are free, at the end."""
        entries = self._scheduler.jobs.values()
        busy = {entry.vc for entry in entries if entry.status is Status.GUARANTEED}
        if self._quota and busy:
            return  # it may wait for other VCs
        waiting = [e for e in entries if e.status is Status.WAITING and e.line is not None and e.vc not in busy]
        if waiting:
            first = min(waiting, key=lambda entry: entry.number)
            what = f"the job waits while nothing runs in {first.vc}, where it fits: rank refuses every host"
            raise self._wrong(first.number, what)

    def _close(self, job: int, now: int) -> Placement:
        """Close the interval of a job and account for the work done in it; returns its placement."""
        if job not in self._intervals:
            raise InvariantError(f"job {job} stops, and does not run")
        since, kind, placement = self._intervals.pop(job)
        progress = self._progress.pop(job, None)
        if now > since:  # intervals of length 0 are not recorded
            if progress is None:
                self._record.runs.append(Run(job, since, now, kind, placement))
                self._left[job] -= now - since
            else:
                runs = self._record.runs
                for (place, share, _, _), rate in zip(progress.turns, progress.rates, strict=True):
                    runs.append(Run(job, since, now, kind, place, share, rate))
                self._left[job] -= (now - since) * progress.rate
        return placement

    # -- what a driver does -------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The time, in milliseconds."""
        return self._now

    def submit(self, job: int) -> None:
        """Submit a job of the driver now."""
        assert isinstance(self._jobs, list)
        self._jobs[job] = self._jobs[job]._replace(submit_ms=self._now)
        self._scheduler.wait(self._entry(job))

    def end(self, job: int) -> None:
        """End a job before it has done its work; it never finishes. Nothing if it has ended."""
        entry = self._scheduler.jobs.get(job)
        if entry is None:
            return
        self._pauses.pop(job, None)
        self._told_at.pop(job, None)
        self._stops[job] += 1
        if job in self._intervals:
            self._close(job, self._now)
        if entry.status is Status.SHARING or entry.holds:
            self._scheduler.release(entry, False, self._now)
        else:
            self._scheduler.withdraw(entry)

    def set_priority(self, job: int, priority: int) -> None:
        """Change the priority of a job among those that take turns."""
        self._scheduler.set_priority(self._scheduler.jobs[job], priority, self._now)

    def tell(self, job: int, work_ms: float) -> None:
        """Have the driver told once a job has done so much work, at least what it has done by now."""
        self._told_at[job] = self._jobs[job].duration_ms - work_ms
        self._expect(job)

    def _tell(self, job: int, now: int) -> None:
        """A job has done the work at which its driver is told."""
        del self._told_at[job]
        self._now = now
        assert self._driver is not None
        self._expect(job)
        self._driver.reached(job, self)

    def _expect(self, job: int) -> None:
        """Expect anew what comes next for a running job: that its driver is told, or its end."""
        interval = self._intervals.get(job)
        if interval is None or job in self._pauses:
            return
        rate = self._progress.get(job, ALONE).rate
        self._stops[job] += 1
        if rate:
            left = self._left[job] - (self._now - interval[0]) * rate - self._told_at.get(job, 0.0)
            heappush(self._finishes, (self._now + max(0, whole(left / rate)), job, self._stops[job]))

    # -- sharing GPUs -------------------------------------------------------------------------------------------------

    def _share(self, instruction: Share) -> None:
        """A job has other turns from now on, or starts."""
        job, now, work = instruction.job, self._now, self._work
        assert work is not None
        if job in self._intervals:
            if instruction.turns and not instruction.moved and job not in self._pauses:
                _, kind, placement = self._intervals[job]
                same = (kind, placement) == (instruction.kind, instruction.turns[0].placement)
                if same and self._progress.get(job, ALONE) == _or_alone(work.shared(instruction)):
                    return  # it may use more, and needs no more
            self._close(job, now)
        self._stops[job] += 1  # voids its expected finish
        self._pauses.pop(job, None)
        if not instruction.turns:  # suspended
            return
        if self._record.first_start[job] < 0:
            self._record.first_start[job] = now
        progress = work.shared(instruction)
        self._intervals[job] = (now, instruction.kind, instruction.turns[0].placement)
        pause = work.pause_ms(instruction) if instruction.moved else 0
        if pause:
            self._pauses[job] = progress
            self._progress[job] = progress._replace(rates=(0.0,) * len(progress.turns), rate=0.0)
            heappush(self._finishes, (now + pause, job, self._stops[job]))
        else:
            self._set_progress(job, progress)

    def _trade(self, spec: ClusterSpec | None) -> None:
        """Go on under a new spec: jobs run where they are, and some as loans that had cells, or the reverse."""
        if spec is None:
            return
        now, scheduler = self._now, self._scheduler
        effect = scheduler.cluster.trade(spec)
        if effect is not None:
            jobs = [entry.number for entry in scheduler.traded(effect)]
        else:
            scheduler.cluster.reconfigure(spec)
            scheduler.reconfigured()
            jobs = list(self._intervals)
        for job in jobs:
            entry, (_, kind, _) = scheduler.jobs[job], self._intervals[job]
            of = Kind.GUARANTEED if entry.status is Status.GUARANTEED else Kind.OPPORTUNISTIC
            if of is not kind and entry.holds and entry.placement is not None:
                progress = self._progress.get(job)
                self._close(job, now)
                self._intervals[job] = (now, of, entry.placement)
                if progress is not None:
                    self._progress[job] = progress

    def _set_progress(self, job: int, progress: Progress) -> None:
        """Its work from now on, and so its finish."""
        rate = progress.rate
        if _or_alone(progress) is ALONE:
            self._progress.pop(job, None)
        else:
            self._progress[job] = progress
        if rate:
            left = self._left[job] - (self._told_at.get(job, 0.0) if self._told_at else 0.0)
            heappush(self._finishes, (self._now + whole(left / rate), job, self._stops[job]))

    def _go_on(self, job: int, now: int) -> None:
        """A job that held its GPUs without working goes on."""
        self._now = now
        progress = self._pauses.pop(job)
        _, kind, placement = self._intervals[job]
        self._close(job, now)
        self._intervals[job] = (now, kind, placement)
        self._stops[job] += 1
        self._set_progress(job, progress)


def members_of(gpus: int, soft: bool) -> tuple[Member, ...]:
    """The pods of a job: one, of which whole nodes are made where it is larger; or one per GPU under soft affinity.

    The pods of a gang are placed as near to each other as possible, in the first place on one node, so a soft job is
    spread only as far as the free GPUs are.
    """
    return (Member(gpus, 1) if soft else Member(1, gpus),)


def _or_alone(progress: Progress) -> Progress:
    """How a job gets on, or the one object for a job that has its GPUs all the time, at full speed."""
    turns, _, rate = progress
    return progress if rate != 1.0 or len(turns) > 1 or (turns and turns[0].share != 1.0) else ALONE


def _alone(work: Work, job: int, placement: Placement) -> float:
    return work.alone_on(job, placement).rate


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection: the loop makes no cycles, and the collector would traverse every job repeatedly."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def simulate(
    cluster: Cluster,
    policies: SomePolicies,
    jobs: Sequence[TraceJob],
    opportunistic: bool = True,
    until: int | None = None,
    progress: Callable[[int], None] | None = None,
    after_event: Callable[[Scheduler], None] | None = None,
    soft: Collection[int] = (),
    work: Work | None = None,
    driver: Driver | None = None,
    exact: Collection[str] = (),
    on_virtual_run: OnRun | None = None,
    trading: Trading | None = None,
) -> Record:
    """Play ``jobs`` (in order of submission; every tenant known to the cluster) on a fresh ``cluster``.

    ``soft``: the numbers of jobs that accept any GPUs, beside those of the trace; ``work``: how fast jobs run; without
    it at the rate 1 or, under a policy by which they share GPUs, by the models of :mod:`.models`. ``driver``: what
    submits jobs of its own, which are numbered after these; ``work`` is of all. ``exact``: the VCs whose safety is
    exact under ``hived``; ``on_virtual_run`` is called with each run of their virtual jobs. Raises
    :class:`~hived.errors.PolicyError` for a policy under which it cannot be. ``trading``: how tenants trade cells;
    not with ``exact``.
    """
    policies = policies if isinstance(policies, Policies) else Policies(policies)
    if driver is not None:
        jobs = [*jobs, *driver.jobs]
    if work is None and (driver is not None or any(policy.gpu_sharing for policy in policies.all)):
        work = Work(jobs, cluster.spec, Models.load())
    record = Record(cluster.sharing.value, policies.name, jobs)
    timeline = None
    if exact and cluster.sharing is Sharing.HIVED:
        check_exact(policies, frozenset(exact))
        rate = None if work is None else partial(_alone, work)
        timeline = VirtualTimeline(cluster.spec, policies, exact, MS, on_virtual_run, rate)
    simulation = Simulation(cluster, policies, record, opportunistic, soft, work, driver, timeline, trading)
    return simulation.run(until, progress, after_event)
