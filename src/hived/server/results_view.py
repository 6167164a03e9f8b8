"""One scheme and policy of a finished simulation at any moment: who holds what, who waits and why, and the curves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .mapping import lent_by
from .pictures import Curves, Ended, EndedJobs, Holder, Picture, Queue, Totals, Usage, Waiting
from .places import Places
from .results_files import NEVER, Fates, Jobs, RunSummary, Series, Tenant
from .results_runs import Runs
from .results_words import Life, Span, Wait, length, why
from .timeline import Ints, Timeline

MOST_WAITING = 200  #: jobs of the queue in a picture
MOST_POINTS = 2000  #: of the curves
MOST_AFTER = 500  #: of these, after the time in which jobs arrive
_WORDS = {"private": "Private clusters", "quota": "Quota", "hived": "HiveD"}

Floats = NDArray[np.float64]


class RunView:
    """Times are milliseconds inside and seconds outside. A run holds from its start until just before its end.

    What the end of the simulation cut off still holds then.
    """

    def __init__(
        self, summary: RunSummary, tenants: list[Tenant], jobs: Jobs, fates: Fates, places: Places, runs: Runs,
        series: Series, window_s: float, lends: bool, never_fit: frozenset[int],
    ) -> None:  # fmt: skip
        self.summary = summary
        self.label = f"{_WORDS.get(summary.scheme, summary.scheme)} ({summary.policy})"
        self.end = round(summary.makespan_s * 1000)
        self.jobs, self.fates, self.places, self.runs = jobs, fates, places, runs
        self._tenants = tenants
        self._series = series
        self._window_s = window_s
        self._private = summary.scheme == "private"
        self._quota = summary.scheme == "quota"
        self._lends = lends and not self._private
        cut = (fates.finish[runs.job] == NEVER) & (runs.end == self.end)
        self._held = Timeline(runs.start, runs.end + cut)
        self._alive = Timeline(jobs.submit, fates.finish)
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
        self._outsized = self._never_in_turn(never_fit)

    def _never_in_turn(self, never_fit: frozenset[int]) -> NDArray[np.bool_]:
        """The jobs that are too large for their VC, so that they hold nobody back. (jobs,)"""
        outsized = np.zeros(len(self.jobs.ids), dtype=bool)
        if not self._quota:
            outsized[list(never_fit)] = True
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

    def _has_nodes(self, gpus: int) -> bool:
        """Whether the empty cluster would have room for a job of this size."""
        return any(gpus <= chain.gpus_per_node * len(chain.nodes) for chain in self.places.chains)

    def picture(self, at: float | None) -> Picture:
        """The moment ``at``, of those of the simulation the nearest; ``None``: its end.

        O(runs), without a loop in Python.
        """
        moment = self._moment(at)
        held, waiting = self._at(moment)
        guaranteed = self._by_chain(held, lent=0)
        queue = self._queue(moment, held, waiting, guaranteed, 0, MOST_WAITING)
        lent = self.runs.lent[held] == 1
        mine = self.runs.held[held]
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
                guaranteed=int(mine[~lent].sum()),
                opportunistic=int(mine[lent].sum()),
                reserved=0,
                bad=0,
                fragmentation=self._fragmentation(held[~lent]),
            ),
        )

    def queue(self, at: float | None, offset: int, limit: int) -> Queue:
        """Who waits at a moment, from place ``offset`` of the line on. As a picture costs."""
        moment = self._moment(at)
        held, waiting = self._at(moment)
        jobs = self._queue(moment, held, waiting, self._by_chain(held, lent=0), offset, limit)
        return Queue(jobs=jobs, total=len(waiting))

    def ended(self, at: float | None, offset: int, limit: int) -> EndedJobs:
        """Who has finished by a moment, the latest first. O(log jobs + limit)."""
        number = int(np.searchsorted(self._finishes, self._moment(at), side="right"))
        found = self._finished[max(0, number - offset - limit) : max(0, number - offset)][::-1].tolist()
        return EndedJobs(
            jobs=[
                Ended(
                    **self.of(job),
                    state="finished",
                    at=int(self.fates.finish[job]) / 1000,
                    why=f"waited {length(self.waited(job))}",
                )
                for job in found
            ],
            total=number,
        )

    def of(self, job: int) -> dict[str, Any]:
        """The fields of :class:`~.pictures.Job`."""
        jobs = self.jobs
        vc, gpus = self._tenants[jobs.tenant[job]].name, int(jobs.gpus[job])
        return {"id": jobs.ids[job], "name": jobs.ids[job], "vc": vc, "gpus": gpus, "priority": 0}

    def _moment(self, at: float | None) -> int:
        return self.end if at is None else min(max(math.floor(round(at * 1000, 3)), 0), self.end)

    def _at(self, moment: int) -> tuple[Ints, Ints]:
        """The runs that hold GPUs then, and the jobs that wait."""
        held = self._held.at(moment)
        return held, np.setdiff1d(self._alive.at(moment), self.runs.job[held], assume_unique=True)

    def _by_chain(self, held: Ints, lent: int) -> Ints:
        """GPUs held by VC and chain, of one kind."""
        chosen = held[self.runs.lent[held] == lent]
        found = np.zeros((len(self._tenants), len(self.places.chains)), dtype=np.int64)
        np.add.at(found, (self.jobs.tenant[self.runs.job[chosen]], self._chain[chosen]), self.runs.held[chosen])
        return found

    def _holders(self, held: Ints) -> list[Holder]:
        runs, jobs = self.runs, self.jobs
        return [
            Holder(
                id=jobs.ids[job],
                name=jobs.ids[job],
                vc=self._tenants[tenant].name,
                kind="opportunistic" if lent else "guaranteed",
                gpus=gpus,
                since=start / 1000,
                parts=list(runs.parts[run]),
            )
            for run, job, tenant, lent, gpus, start in zip(
                held.tolist(),
                runs.job[held].tolist(),
                jobs.tenant[runs.job[held]].tolist(),
                runs.lent[held].tolist(),
                runs.held[held].tolist(),
                runs.start[held].tolist(),
                strict=True,
            )
        ]

    def _fragmentation(self, guaranteed: Ints) -> float:
        """As :mod:`hived.simulator.metrics` has it: the share of nodes on which a guaranteed job runs."""
        used = {part[:2] for run in guaranteed.tolist() for part in self.runs.parts[run]}
        return len(used) / max(1, sum(len(chain.nodes) for chain in self.places.chains))

    def _usage(self, held: Ints, waiting: Ints, guaranteed: Ints) -> list[Usage]:
        borrowed = self._by_chain(held, lent=1)
        reserved = self._cells + self._pinned
        chains = (borrowed.sum(axis=0), self._chain_gpus, reserved.T, guaranteed.T)
        by_chain = [lent_by(*chain) for chain in zip(*(column.tolist() for column in chains), strict=True)]
        lent = [sum(shares) for shares in zip(*by_chain, strict=True)]
        jobs = np.bincount(self.jobs.tenant[waiting], minlength=len(self._tenants))
        return [
            Usage(
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
        borrowers = self.runs.job[held[self.runs.lent[held] == 1]]
        in_turn = borrowers[~self._outsized[borrowers]]
        before = [np.sort(in_turn[jobs.tenant[in_turn] == tenant]) for tenant in range(len(self._tenants))]
        found = []
        for number in first.tolist():
            job = int(waiting[number])
            tenant, gpus = int(jobs.tenant[job]), int(jobs.gpus[job])
            since, lost = self._waits_since(job, moment)
            vc, used = self._tenants[tenant], int(guaranteed[tenant].sum())
            wait = Wait(
                vc=vc,
                gpus=gpus,
                quota=self._quota,
                lends=self._lends and self._has_nodes(gpus),
                outsized=bool(outsized[number]),
                ahead=int(place[number]),
                ahead_lent=int(np.searchsorted(before[tenant], job)),
                used=used,
                room=self._within_quota(tenant, gpus, guaranteed) if self._quota else gpus <= vc.usable - used,
                since=moment - since,
                lost=lost,
            )
            found.append(Waiting(**self.of(job), since=since / 1000, state="queued", why=why(wait)))
        return found

    def _waits_since(self, job: int, moment: int) -> tuple[int, bool]:
        """When the present waiting began, and whether the job ran before."""
        low, high = self.runs.of_job[job], self.runs.of_job[job + 1]
        earlier = int(np.searchsorted(self.runs.end[low:high], moment, side="right"))
        return (int(self.runs.end[low + earlier - 1]), True) if earlier else (int(self.jobs.submit[job]), False)

    def finished(self, job: int) -> bool:
        """Whether it ran to its end."""
        return bool(self.fates.finish[job] < NEVER)

    def waited(self, job: int) -> int:
        """``queue_s`` of a finished job, in milliseconds."""
        return int(self.fates.finish[job] - self.jobs.submit[job] - self.jobs.duration[job])

    def outsized(self, job: int) -> bool:
        """Whether it is too large for its VC."""
        return bool(self._outsized[job])

    def life(self, job: int) -> Life:
        """One job from its submission to its end. O(its runs)."""
        runs = self.runs
        spans = [
            Span(int(runs.start[run]), int(runs.end[run]), bool(runs.lent[run]), runs.parts[run], runs.place[run])
            for run in range(runs.of_job[job], runs.of_job[job + 1])
        ]
        return Life(int(self.jobs.submit[job]), int(self.fates.finish[job]), self.end, spans)

    def curves(self) -> Curves:
        """``series.csv``, thinned: shares are means over the time from a point to the next; and who waits at it.

        After the time in which jobs arrive the series has ended, and only those who wait are known.
        """
        series = self._series
        at = np.asarray(series.at)
        step = -(-len(at) // (MOST_POINTS - MOST_AFTER))
        last = max(self._window_s, float(at[-1]))
        widths = np.diff(np.append(at, last)) if last > at[-1] else np.ones(len(at))
        firsts = np.arange(0, len(at), step)
        after = self._after(last, len(firsts))
        unknown: list[float | None] = [None] * len(after)

        def means(share: str) -> Floats:
            weighted = np.add.reduceat(np.asarray(series.shares[share]) * widths, firsts)
            return np.asarray(weighted / np.add.reduceat(widths, firsts))

        lent = means("opportunistic")
        points = np.concatenate((at[firsts], after))
        moments = np.minimum(np.round(points * 1000).astype(np.int64), self.end)
        return Curves(
            at=points.tolist(),
            guaranteed=_plain(np.maximum(0.0, means("utilization") - lent)) + unknown,
            opportunistic=_plain(lent) + unknown,
            fragmentation=_plain(means("fragmentation")) + unknown,
            waiting=[*map(int, self._alive.counts(moments) - self._held.counts(moments))],
            delay={name: _plain(np.asarray(delay)[firsts]) + unknown for name, delay in series.delay.items()},
        )

    def _after(self, last: float, before: int) -> Floats:
        """Points from ``last`` to the end, as far apart as the ``before`` ones until then, unless that is too many."""
        end = self.end / 1000
        if end <= last:
            return np.zeros(0)
        return np.round(np.linspace(last, end, min(MOST_AFTER, max(2, math.ceil((end - last) / last * before)))), 3)


def _plain(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else round(value, 6) for value in values.tolist()]
