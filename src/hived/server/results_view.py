"""One scheme and policy of a finished simulation at any moment: holders, the queue with its reasons, and the curves."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hived.words import counted

from .mapping import lent_by
from .pictures import (
    Curves,
    Ended,
    EndedJobs,
    Holder,
    Picture,
    Places,
    Queue,
    Stretch,
    Totals,
    VcTotals,
    Waiting,
)
from .results_files import (
    GUARANTEED,
    GUEST,
    NEVER,
    OPPORTUNISTIC,
    Fates,
    Floats,
    Ints,
    Jobs,
    Runs,
    RunSummary,
    Summary,
    Tenant,
)
from .results_story import KINDS, Stories, joined, length
from .results_timeline import Timelines


class Intervals:
    """Half-open intervals ``start <= moment < end``. Numbers in answers are those of the arrays given.

    >>> Intervals(np.array([0, 2, 5]), np.array([4, 9, 6])).at(5).tolist()
    [1, 2]
    """

    __slots__ = ("_ends", "_order", "_sorted_ends", "_sorted_starts", "_starts")

    def __init__(self, starts: Ints, ends: Ints) -> None:
        self._order = np.argsort(starts, kind="stable")
        self._starts, self._ends = starts[self._order], ends[self._order]
        lasts = self._ends > self._starts
        self._sorted_starts, self._sorted_ends = self._starts[lasts], np.sort(self._ends[lasts])

    def at(self, moment: int) -> Ints:
        """Numbers of the intervals that hold, in order of their starts. O(those that have started)."""
        started = int(np.searchsorted(self._starts, moment, side="right"))
        return self._order[:started][self._ends[:started] > moment]

    def counts(self, moments: Ints) -> Ints:
        """How many hold at each moment. O(log n) each."""
        started = np.searchsorted(self._sorted_starts, moments, side="right")
        return np.asarray(started - np.searchsorted(self._sorted_ends, moments, side="right"), dtype=np.int64)


MOST_WAITING = 200  #: jobs of the queue in a picture
MOST_POINTS = 2000  #: of the curves
MOST_AFTER = 500  #: of these, after the time in which jobs arrive
_WORDS = {"private": "Private clusters", "quota": "Quota", "hived": "HiveD"}


class RunView:
    """Times are milliseconds inside and seconds outside. A run holds from its start until just before its end.

    What the end of the simulation cut off still holds then.
    """

    def __init__(
        self, summary: RunSummary, whole: Summary, tenants: list[Tenant], jobs: Jobs, fates: Fates, places: Places,
        runs: Runs, series: dict[str, Floats],
    ) -> None:  # fmt: skip
        self.summary = summary
        self.label = f"{_WORDS.get(summary.scheme, summary.scheme)} ({summary.policy})"
        self.end = round(summary.makespan_s * 1000)
        self.jobs, self.fates, self.places, self.runs = jobs, fates, places, runs
        self._tenants = tenants
        self._series = series
        self._window_s = whole.window_s
        self._private = summary.scheme == "private"
        self._quota = summary.scheme == "quota"
        self._lends = whole.lends and not self._private
        cut = (fates.finish[runs.job] == NEVER) & (runs.end == self.end)
        self._held = Intervals(runs.start, runs.end + cut)
        self._running = self._held
        if jobs.modelled:  # turns on several sets of GPUs are rows of one time
            first = np.ones(len(runs.job), dtype=bool)
            first[1:] = (np.diff(runs.job) != 0) | (np.diff(runs.start) != 0)
            self._running = Intervals(runs.start[first], (runs.end + cut)[first])
        self._alive = Intervals(jobs.submit, fates.finish)
        finished = np.flatnonzero(fates.finish < NEVER)
        #: those that finished, in order, and when
        self._finished = finished[np.argsort(fates.finish[finished], kind="stable")]
        self._finishes = fates.finish[self._finished]
        self._chain = np.asarray([parts[0][0] for parts in runs.parts], dtype=np.int64)
        # GPUs per VC and chain of the shared cluster, pinned cells apart
        shape = (len(tenants), len(places.chains))
        self._cells, self._pinned = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        if not self._private:
            for number, tenant in enumerate(tenants):
                for cells in tenant.reserved:
                    kept = self._cells if cells.pinned is None else self._pinned
                    kept[number, cells.chain] += cells.gpus * cells.number
        self._chain_gpus = np.asarray(
            [chain.gpus_per_node * len(chain.nodes) for chain in places.chains], dtype=np.int64
        )
        self._outsized = self._never_in_turn(whole)
        self.stories = Stories(tenants, jobs, fates, places, runs, self._outsized, self.end)
        self.timelines = Timelines(self.label, tenants, jobs, places, runs, self.end)

    def _never_in_turn(self, whole: Summary) -> NDArray[np.bool_]:
        """Which jobs are too large for their VC, so that they do not block the line. (jobs,)"""
        outsized = np.zeros(len(self.jobs.ids), dtype=bool)
        if not self._quota:
            known = self.jobs.number
            outsized[[known[job.job_id] for job in whole.never_fit_private if job.job_id in known]] = True
            return outsized
        for tenant, gpus in set(zip(self.jobs.tenant.tolist(), self.jobs.gpus.tolist(), strict=True)):
            if not self._within_quota(tenant, gpus, np.zeros_like(self._cells)):
                outsized |= (self.jobs.tenant == tenant) & (self.jobs.gpus == gpus)
        return outsized

    def _within_quota(self, tenant: int, gpus: int, used: Ints) -> bool:
        """Whether some chain has the nodes, and the VC the number of GPUs of its type. ``used``: by VC and chain."""
        types = [chain.levels[0].cell_type for chain in self.places.chains]
        for number, chain in enumerate(self.places.chains):
            alike = [other for other, leaf_type in enumerate(types) if leaf_type == types[number]]
            nodes = -(-gpus // chain.gpus_per_node)
            needs = gpus if nodes == 1 else nodes * chain.gpus_per_node
            left = self._cells[tenant, alike].sum() - used[tenant, alike].sum()
            if needs <= left and nodes <= len(chain.nodes):
                return True
        return False

    def picture(self, at: float | None) -> Picture:
        """The moment ``at``, of those of the simulation the nearest; ``None``: its end.

        O(runs), without a loop in Python.
        """
        moment = self._moment(at)
        held, waiting = self._at(moment)
        guaranteed = self._by_chain(held, GUARANTEED)
        queue = self._queue(moment, held, waiting, guaranteed, 0, MOST_WAITING)
        kinds = self.runs.kind[held]
        mine = held[kinds == GUARANTEED]
        return Picture(
            seq=0,
            at=moment / 1000 if at is None else at,
            holders=self._holders(held),
            bad=[],
            queue=queue,
            queue_total=len(waiting),
            usage=self._usage(held, waiting, guaranteed),
            totals=Totals(
                gpus=int(self._chain_gpus.sum()),
                guaranteed=self._gpus(mine),
                opportunistic=self._gpus(held[kinds == OPPORTUNISTIC]),
                guests=self._gpus(held[kinds == GUEST]),
                reserved=0,
                bad=0,
                fragmentation=self._fragmentation(mine),
            ),
        )

    def queue(self, at: float | None, offset: int, limit: int) -> Queue:
        """Jobs that wait at a moment, from place ``offset`` of the line on. The cost is that of a picture."""
        moment = self._moment(at)
        held, waiting = self._at(moment)
        jobs = self._queue(moment, held, waiting, self._by_chain(held, GUARANTEED), offset, limit)
        return Queue(jobs=jobs, total=len(waiting))

    def ended(self, at: float | None, offset: int, limit: int) -> EndedJobs:
        """Jobs that have finished by a moment, the latest first. O(log jobs + limit)."""
        number = int(np.searchsorted(self._finishes, self._moment(at), side="right"))
        found = self._finished[max(0, number - offset - limit) : max(0, number - offset)][::-1].tolist()
        return EndedJobs(
            jobs=[
                Ended(
                    **self.stories.of(job),
                    state="finished",
                    at=int(self.fates.finish[job]) / 1000,
                    why=f"waited {self.stories.waited(job)}",
                )
                for job in found
            ],
            total=number,
        )

    def _moment(self, at: float | None) -> int:
        return self.end if at is None else min(max(math.floor(round(at * 1000, 3)), 0), self.end)

    def _at(self, moment: int) -> tuple[Ints, Ints]:
        """The runs that hold GPUs at a moment, and the jobs that wait."""
        held = self._held.at(moment)
        jobs = self.runs.job[held]
        return held, np.setdiff1d(
            self._alive.at(moment), np.unique(jobs) if self.jobs.modelled else jobs, assume_unique=True
        )

    def _gpus(self, held: Ints) -> int:
        """GPUs of these runs, each once. O(runs)."""
        if not self.jobs.modelled:
            return int(self.runs.held[held].sum())
        return sum(part[3] for part in joined([part for run in held.tolist() for part in self.runs.parts[run]]))

    def _by_chain(self, held: Ints, kind: int) -> Ints:
        """GPUs held by VC and chain, of one kind, each once."""
        chosen = held[self.runs.kind[held] == kind]
        found = np.zeros((len(self._tenants), len(self.places.chains)), dtype=np.int64)
        if self.jobs.modelled:
            parts: dict[int, list[Stretch]] = {}
            for run, tenant in zip(chosen.tolist(), self.jobs.tenant[self.runs.job[chosen]].tolist(), strict=True):
                parts.setdefault(tenant, []).extend(self.runs.parts[run])
            for tenant, of_tenant in parts.items():
                for chain, _, _, number in joined(of_tenant):
                    found[tenant, chain] += number
            return found
        np.add.at(found, (self.jobs.tenant[self.runs.job[chosen]], self._chain[chosen]), self.runs.held[chosen])
        return found

    def _holders(self, held: Ints) -> list[Holder]:
        runs = self.runs
        turns: dict[int, list[int]] = {}  # a job's runs, several where it takes turns on several sets of GPUs
        for run, job in zip(held.tolist(), runs.job[held].tolist(), strict=True):
            turns.setdefault(job, []).append(run)
        return [
            Holder(
                **self.stories.of(job) | {"gpus": int(runs.held[of[0]])},
                kind=KINDS[runs.kind[of[0]]],
                since=int(runs.start[of[0]]) / 1000,
                share=float(runs.share[of].sum()),
                rate=float(runs.rate[of].sum()),
                parts=list(runs.parts[of[0]] if len(of) == 1 else joined([p for run in of for p in runs.parts[run]])),
            )
            for job, of in turns.items()
        ]

    def _fragmentation(self, guaranteed: Ints) -> float:
        """Fragmentation as in :mod:`hived.simulator.metrics`: the share of nodes on which a guaranteed job runs."""
        used = {part[:2] for run in guaranteed.tolist() for part in self.runs.parts[run]}
        return len(used) / max(1, sum(len(chain.nodes) for chain in self.places.chains))

    def _usage(self, held: Ints, waiting: Ints, guaranteed: Ints) -> list[VcTotals]:
        borrowed = self._by_chain(held, OPPORTUNISTIC)
        reserved = self._cells + self._pinned
        chains = (borrowed.sum(axis=0), self._chain_gpus, reserved.T, guaranteed.T)
        by_chain = [lent_by(*chain) for chain in zip(*(column.tolist() for column in chains), strict=True)]
        lent = [sum(shares) for shares in zip(*by_chain, strict=True)]
        jobs = np.bincount(self.jobs.tenant[waiting], minlength=len(self._tenants))
        return [
            VcTotals(
                vc=tenant.name,
                reserved=tenant.gpus,
                used=int(guaranteed[number].sum()),
                lent=lent[number],
                borrowed=int(borrowed[number].sum()),
                waiting=int(jobs[number]),
            )
            for number, tenant in enumerate(self._tenants)
        ]

    def _queue(
        self, moment: int, held: Ints, waiting: Ints, guaranteed: Ints, offset: int, limit: int
    ) -> list[Waiting]:
        """The first of every VC's line, then the second ones, and so on; those too large for their VC come last."""
        jobs, outsized = self.jobs, self._outsized[waiting]
        line = jobs.tenant[waiting] + len(self._tenants) * outsized
        order = np.lexsort((waiting, line))
        sorted_line = line[order]
        place = np.empty(len(waiting), dtype=np.int64)
        place[order] = np.arange(len(waiting)) - np.searchsorted(sorted_line, sorted_line)
        first = np.lexsort((waiting, place, outsized))[offset : offset + limit]
        borrowers = self.runs.job[held[self.runs.kind[held] == OPPORTUNISTIC]]
        in_turn = borrowers[~self._outsized[borrowers]]
        before = [np.sort(in_turn[jobs.tenant[in_turn] == tenant]) for tenant in range(len(self._tenants))]
        found = []
        for number in first.tolist():
            job, ahead = int(waiting[number]), int(place[number])
            since, lost = self._waits_since(job, moment)
            # idle GPUs are lent where the cluster has the nodes for this job
            lends = self._lends and any(
                jobs.gpus[job] <= chain.gpus_per_node * len(chain.nodes) for chain in self.places.chains
            )
            if outsized[number]:
                why = [self._too_large(job, ahead, lends)]
            else:
                why = self._in_line(job, ahead, int(np.searchsorted(before[jobs.tenant[job]], job)), guaranteed)
            if lends and not ahead:
                why.append("no idle GPUs suit it as a loan")
            why.append(f"has waited {length(moment - since)}" + (" since it lost its lent GPUs" if lost else ""))
            found.append(Waiting(**self.stories.of(job), since=since / 1000, kind="waiting", why=why))
        return found

    def _too_large(self, job: int, ahead: int, lends: bool) -> str:
        """Why a job that is too large for its VC waits; ``ahead``: such jobs that come first."""
        vc = self._tenants[self.jobs.tenant[job]].name
        limit = f"the quota of {vc} allows" if self._quota else f"the cells of {vc} can ever hold for one job"
        words = f"{counted(int(self.jobs.gpus[job]), 'GPU')} are more than {limit}"
        if not lends:
            return f"{words}: it never starts"
        return f"{words}: it can only borrow" + (f", after {counted(ahead, 'such job')} of {vc}" if ahead else "")

    def _in_line(self, job: int, ahead: int, ahead_lent: int, guaranteed: Ints) -> list[str]:
        """Why any other job waits.

        ``ahead``: jobs of its VC that wait and come first; ``ahead_lent``: those that run on lent GPUs and come first
        when the VC's own fall free; ``guaranteed``: GPUs in guaranteed use by VC and chain.
        """
        tenant, gpus = int(self.jobs.tenant[job]), int(self.jobs.gpus[job])
        vc, used = self._tenants[tenant], int(guaranteed[tenant].sum())
        use = f"{vc.name} uses {used:,} of its {'quota of ' if self._quota else ''}{vc.usable:,} GPUs"
        if vc.pinned:
            use += f" (and has {vc.pinned:,} in pinned cells, which only jobs that name them use)"
        if not ahead and not ahead_lent:
            if self._within_quota(tenant, gpus, guaranteed) if self._quota else gpus <= vc.usable - used:
                return [f"{use}; what is free is not as close together as the {gpus:,} of this job have to be"]
            return [f"{use}, and this job asks for {gpus:,}"]
        found = [use]
        if ahead:
            found.append(f"{counted(ahead, 'job')} of {vc.name} {'is' if ahead == 1 else 'are'} ahead")
        if ahead_lent:
            run = "runs on lent GPUs and comes" if ahead_lent == 1 else "run on lent GPUs and come"
            found.append(f"{counted(ahead_lent, 'job')} of {vc.name} {run} first when its own fall free")
        return found

    def _waits_since(self, job: int, moment: int) -> tuple[int, bool]:
        """When the present waiting began, and whether the job ran before."""
        low, high = self.runs.of_job[job], self.runs.of_job[job + 1]
        earlier = int(np.searchsorted(self.runs.end[low:high], moment, side="right"))
        return (int(self.runs.end[low + earlier - 1]), True) if earlier else (int(self.jobs.submit[job]), False)

    def curves(self) -> Curves:
        """``series.csv``, thinned: shares are means from a point to the next; waiting jobs are counted at the point.

        After the time in which jobs arrive the series has ended, and only the number of waiting jobs is known.
        """
        series = self._series
        at = series["time_s"]
        step = -(-len(at) // (MOST_POINTS - MOST_AFTER))
        last = max(self._window_s, float(at[-1]))
        widths = np.diff(np.append(at, last)) if last > at[-1] else np.ones(len(at))
        firsts = np.arange(0, len(at), step)
        after = self._after(last, len(firsts))
        unknown: list[float | None] = [None] * len(after)

        def means(share: str) -> Floats:
            weighted = np.add.reduceat(series[share] * widths, firsts)
            return np.asarray(weighted / np.add.reduceat(widths, firsts))

        lent = means("opportunistic")
        points = np.concatenate((at[firsts], after))
        moments = np.minimum(np.round(points * 1000).astype(np.int64), self.end)
        return Curves(
            at=points.tolist(),
            guaranteed=_plain(np.maximum(0.0, means("utilization") - lent)) + unknown,
            opportunistic=_plain(lent) + unknown,
            fragmentation=_plain(means("fragmentation")) + unknown,
            waiting=[*map(int, self._alive.counts(moments) - self._running.counts(moments))],
            delay={vc.name: _plain(series[f"delay_s {vc.name}"][firsts]) + unknown for vc in self._tenants},
        )

    def _after(self, last: float, before: int) -> Floats:
        """Points from ``last`` to the end, as far apart as the ``before`` ones until then, unless that is too many."""
        end = self.end / 1000
        if end <= last:
            return np.zeros(0)
        return np.round(np.linspace(last, end, min(MOST_AFTER, max(2, math.ceil((end - last) / last * before)))), 3)


def _plain(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]
