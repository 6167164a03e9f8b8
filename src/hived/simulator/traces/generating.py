"""A synthetic trace: the jobs of HiveD's Table 1, with the durations and arrivals of the Philly trace.

The paper's own trace is not public. Its published numbers, jobs by tenant and size, are kept exactly
(:mod:`.table1`); the rest is drawn from summary statistics of a public trace of the same family of clusters:
"Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", Jeon et al., USENIX ATC'19,
CC-BY-4.0 (:mod:`.philly_statistics` documents how each statistic was computed). Nothing is tuned to a result.

* **Sizes.** Table 1's counts, scaled to the wanted number of jobs by largest remainder; 16+ is split over 16,
  24, 32 and 48 GPUs as in Philly.
* **Durations.** By inverse CDF, for the job's size and group of tenants. One value is drawn from each of as many
  equal slices as there are jobs, so that the sum (GPU-hours) follows the real mean although the tails are heavy.
* **Arrivals.** Tenants submit sweeps (several equal jobs in quick succession) of the sizes in Philly, at a rate
  that depends on the hour of day and day of week. Day 0 is a Sunday.
* **Status.** Philly's share of passed jobs by size class.

Not modelled: that the jobs of a sweep take similar times, that failed jobs are shorter, that tenants have busy and
quiet weeks, and that one tenant's jobs run longer than those of another tenant of its group.

Note the load: Table 1 has more large jobs than Philly, so with Philly's durations the default trace offers about 3,300
busy GPUs, 1.5 times the paper's cluster of 2,232. It is not adjusted; fewer ``jobs`` or more ``days`` lower it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from .formats import KILLED_OR_FAILED, PASS
from .model import MS, SYNTHETIC_PREFIX, Trace, TraceJob
from .philly_statistics import philly
from .quantiles import Floats, QuantileTable
from .table1 import SIZE_CLASSES, TABLE1, TOTAL_JOBS

Ints = npt.NDArray[np.int64]

MAX_JOBS = 10_000_000
MAX_DAYS = 10_000
_HOUR_S = 3600
_DAY_S = 86_400
_CLASS_GPUS = (1, 2, 4, 8)  #: the size of the jobs of a class; 16+ is split


def generate_table1(jobs: int = TOTAL_JOBS, days: int = 60, seed: int = 1) -> Trace:
    """A synthetic trace of Table 1's ``jobs`` over ``days`` days, submissions in whole seconds from 0.

    The same arguments give the same jobs on every machine: the generator's raw numbers (numpy's PCG64) are
    turned into jobs by exactly rounded operations only. O(jobs log jobs), about a second for the paper's
    141,950.

    Raises :class:`~hived.errors.InputError` for ``jobs`` not in 1 to 10,000,000, ``days`` not in 1 to
    10,000, or a negative ``seed``.
    """
    if not 1 <= jobs <= MAX_JOBS:
        raise InputError(f"{jobs} jobs cannot be generated: give 1 to {MAX_JOBS}")
    if not 1 <= days <= MAX_DAYS:
        raise InputError(f"a trace of {days} days cannot be generated: give 1 to {MAX_DAYS}")
    if seed < 0:
        raise InputError(f"{seed} is no seed: give a whole number from 0 on")
    draws = _Draws(seed)
    cells = [(row.tenant, place) for row in TABLE1 for place in range(len(SIZE_CLASSES))]
    counts = apportion([count for row in TABLE1 for count in row.jobs], jobs)
    tenant = np.repeat(np.asarray([name for name, _ in cells]), counts)
    place = np.repeat(np.asarray([place for _, place in cells]), counts)
    gpus = _gpus(draws, place)
    duration = _durations(draws, tenant, gpus)
    passed = _passed(draws, place)
    rate = _Rate(days)
    submit = np.concatenate(
        [_submissions(draws, name, place, count, rate) for (name, place), count in zip(cells, counts, strict=True)]
    )
    order = np.lexsort((np.arange(jobs), submit)).tolist()
    columns = (tenant.tolist(), submit.tolist(), duration.tolist(), gpus.tolist(), passed.tolist())
    names, submits, seconds, sizes, passes = columns
    width = len(str(jobs))
    return Trace(
        name=f"table1-{jobs}-jobs-{days}-days-seed-{seed}",
        jobs=tuple(
            TraceJob(
                f"{SYNTHETIC_PREFIX}{number:0{width}}",
                names[at],
                submits[at] * MS,
                seconds[at] * MS,
                sizes[at],
                PASS if passes[at] else KILLED_OR_FAILED,
            )
            for number, at in enumerate(order, start=1)
        ),
        synthetic=True,
    )


def apportion(weights: Sequence[int], total: int) -> list[int]:
    """``total`` split in proportion to ``weights`` by largest remainder (ties: the earlier one). O(n log n).

    The parts sum to ``total``; none differs from its exact share by 1 or more.
    """
    whole = sum(weights)
    parts = [total * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda at: (-(total * weights[at] % whole), at))
    for at in by_remainder[: total - sum(parts)]:
        parts[at] += 1
    return parts


class _Draws:
    """Random numbers that depend on the seed alone.

    Only PCG64's raw stream is used: numpy guarantees that it never changes; its distributions may.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def shares(self, count: int) -> Floats:
        """``count`` numbers from 0 on, below 1."""
        raw = np.asarray(self._bits.random_raw(count), dtype=np.uint64)
        return np.asarray((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53)

    def sliced_shares(self, count: int) -> Floats:
        """One number from each of ``count`` equal slices of 0 to 1, in random order."""
        inside = (np.arange(count, dtype=np.float64) + self.shares(count)) / float(count)
        return np.asarray(np.minimum(inside, 1.0 - 2.0**-53)[self.order(count)])

    def order(self, count: int) -> Ints:
        """The numbers 0 to ``count - 1`` in random order."""
        return np.argsort(self.shares(count), kind="stable").astype(np.int64)

    def whole(self, table: QuantileTable, shares: Floats, least: int) -> Ints:
        """The table's values at ``shares``, rounded half up, at least ``least``."""
        return np.maximum(np.floor(table.at(shares) + 0.5), float(least)).astype(np.int64)


class _Rate:
    """The arrival rate of sweeps, for each hour of the trace."""

    def __init__(self, days: int) -> None:
        of_day, of_hour = (np.asarray(w, dtype=np.int64) for w in (philly().day_weights, philly().hour_weights))
        self.weights: Ints = np.resize(np.outer(of_day, of_hour), (days, len(of_hour))).ravel()
        self.before: Ints = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(self.weights)))
        self.end_s = days * _DAY_S

    def times(self, shares: Floats) -> Ints:
        """The seconds at which these shares of the whole are reached."""
        wanted = shares * float(self.before[-1])
        hour = np.searchsorted(self.before, wanted, side="right") - 1
        inside = (wanted - self.before[hour]) / self.weights[hour]
        return np.asarray(hour * _HOUR_S + np.floor(inside * float(_HOUR_S)), dtype=np.int64)


def _gpus(draws: _Draws, place: Ints) -> Ints:
    gpus = np.zeros(len(place), dtype=np.int64)
    for at, size in enumerate(_CLASS_GPUS):
        gpus[place == at] = size
    large = np.flatnonzero(place == len(_CLASS_GPUS))
    counts = apportion([jobs for _, jobs in philly().large_jobs], len(large))
    sizes = np.repeat(np.asarray([size for size, _ in philly().large_jobs], dtype=np.int64), counts)
    gpus[large[draws.order(len(large))]] = sizes
    return gpus


def _durations(draws: _Draws, tenant: npt.NDArray[np.str_], gpus: Ints) -> Ints:
    duration = np.zeros(len(gpus), dtype=np.int64)
    for kind in philly().durations:
        mine = (gpus >= kind.from_gpus) & (gpus <= kind.to_gpus)
        if kind.group is not None:
            mine &= np.char.startswith(tenant, f"{kind.group}-")
        at = np.flatnonzero(mine)
        duration[at] = draws.whole(kind.seconds, draws.sliced_shares(len(at)), 1)
    return duration


def _passed(draws: _Draws, place: Ints) -> npt.NDArray[np.bool_]:
    passed = np.zeros(len(place), dtype=np.bool_)
    for at, share in enumerate(philly().pass_shares):
        mine = np.flatnonzero(place == at)
        passed[mine[draws.order(len(mine))[: int(share * len(mine) + 0.5)]]] = True
    return passed


def _submissions(draws: _Draws, tenant: str, place: int, count: int, rate: _Rate) -> Ints:
    """The submission times, in seconds, of one tenant's ``count`` jobs of one size class."""
    if not count:
        return np.zeros(0, dtype=np.int64)
    kind = next(kind for kind in philly().submissions if kind.tenant == tenant)
    table = kind.large_sweeps if place and kind.large_sweeps else kind.small_sweeps
    sizes = np.zeros(0, dtype=np.int64)
    while sizes.sum() < count:
        few = int((count - sizes.sum()) / table.mean) + 1
        sizes = np.concatenate((sizes, draws.whole(table, draws.shares(few), 1)))
    ends = np.cumsum(sizes)
    sweeps = int(np.searchsorted(ends, count)) + 1
    first = np.concatenate((np.zeros(1, dtype=np.int64), ends[: sweeps - 1]))  # each sweep's first job
    last = np.append(first[1:], count) - 1
    gaps = draws.whole(kind.gaps, draws.shares(count), 0)
    gaps[first] = 0
    since = np.cumsum(gaps)
    lengths = since[last] - since[first]
    begin = np.maximum(np.minimum(rate.times(draws.shares(sweeps)), rate.end_s - 1 - lengths), 0)
    return np.asarray(np.repeat(begin - since[first], last - first + 1) + since)
