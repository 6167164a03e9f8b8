"""Metrics of records: delays, completion times, anomalies, lost work, utilization and fragmentation.

All are derived after the simulation from the intervals in ``runs.csv``, so that a reader of that file can check them.
Times are in milliseconds until they are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .experiment import Results
from .fragmentation import Pods, Reservations, Spans, node_use, pods_of, reservations
from .record import Record
from .shared_gpus import work_done
from .traces import TraceJob

HOUR_MS = 3_600_000
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Delay:
    """Queueing delay and completion time of a group of finished jobs, in seconds. NaN for no jobs.

    The delay is what is left of the completion time (submission to end) without the duration, so it has the time of
    lost work in it. Percentiles are interpolated linearly between the two nearest values.
    """

    jobs: int
    mean_s: float
    median_s: float
    p95_s: float
    completion_mean_s: float
    preemptions: int
    p90_s: float
    p99_s: float
    completion_median_s: float
    completion_p90_s: float
    completion_p95_s: float
    completion_p99_s: float
    lost_gpu_s: float  #: see :func:`lost_work`; 0 for no jobs


@dataclass(frozen=True, slots=True)
class Anomalies:
    """Sharing anomalies: jobs that wait longer than in their tenant's private cluster, and by how much."""

    jobs: int
    minutes: float  #: sum
    worst_minutes: float


def comparable_jobs(results: Results) -> NDArray[np.bool_]:
    """Jobs that every run finished and that fit their private cluster, so that they can be compared. (jobs,)

    O(jobs * runs).
    """
    mask = np.ones(len(results.trace.jobs), dtype=bool)
    mask[list(results.never_fit)] = False
    for record in results.records:
        mask &= np.asarray(record.finish, dtype=np.int64) >= 0
    return mask


def time_alone(record: Record) -> Ints:
    """Milliseconds that every job takes alone at best affinity: its duration, where jobs run without models. (jobs,)

    O(jobs).
    """
    return np.asarray(record.alone or [job.duration_ms for job in record.jobs], dtype=np.int64)


def queues(record: Record) -> Ints:
    """Queueing delay of every job in milliseconds: submission to end, without the time that it takes alone. (jobs,)

    Meaningless for unfinished jobs. O(jobs), once for a record.
    """
    if record.waits is None:
        finish = np.asarray(record.finish, dtype=np.int64)
        submit = np.asarray([job.submit_ms for job in record.jobs], dtype=np.int64)
        record.waits = finish - submit - time_alone(record)
    return record.waits


def lost_work(record: Record, pods: Pods) -> Ints:
    """GPU time of every job that came to nothing, in GPU-milliseconds; 0 for unfinished jobs. (jobs,)

    For a job that finished: its GPUs (the ``gpus`` of ``jobs.csv``) times the difference of the time in which it held
    GPUs (the sum of ``end_s - start_s`` of its rows in ``runs.csv``) and the work it had to do (``duration_s``). That
    is work done again after a restart, and time paid to suspend and resume. What an unfinished job will have to do
    again is not known.

    Where jobs run by models, the time is that of its work, the sum of ``rate * (end_s - start_s)``, with the time in
    which it held GPUs at the rate 0, by its ``share`` of them: it was migrated. That a job works slower beside others
    or apart is no lost work: it is in its rate.
    """
    work, gpus = time_alone(record), np.asarray([job.gpus for job in record.jobs], dtype=np.int64)
    held = np.zeros(len(record.jobs), dtype=np.int64)
    if record.alone:  # a finish is rounded up to milliseconds, so at least the work
        held = np.maximum(np.rint(work_done(record)).astype(np.int64), work)
    else:
        np.add.at(held, *pods.runs())
    return np.where(np.asarray(record.finish, dtype=np.int64) >= 0, gpus * (held - work), 0)


_PERCENTILES = (50, 90, 95, 99)


def delay(record: Record, chosen: NDArray[np.bool_], lost: Ints) -> Delay:
    """Delays of the chosen jobs. ``lost``: GPU-milliseconds of each job (jobs,)."""
    numbers = np.flatnonzero(chosen)
    nan = float("nan")
    if not len(numbers):
        return Delay(0, nan, nan, nan, nan, 0, nan, nan, nan, nan, nan, nan, 0.0)
    queue = queues(record)[numbers] / 1000
    completion = queue + time_alone(record)[numbers] / 1000
    median, p90, p95, p99 = np.percentile(queue, _PERCENTILES).tolist()
    completion_median, completion_p90, completion_p95, completion_p99 = np.percentile(completion, _PERCENTILES).tolist()
    return Delay(
        len(numbers),
        float(queue.mean()),
        median,
        p95,
        float(completion.mean()),
        sum([record.preemptions[n] for n in numbers.tolist()]),
        p90,
        p99,
        completion_median,
        completion_p90,
        completion_p95,
        completion_p99,
        float(lost[numbers].sum()) / 1000,
    )


def anomalies(record: Record, private: Record, chosen: NDArray[np.bool_]) -> Anomalies:
    """Sharing anomalies among the chosen jobs: those that wait longer in ``record`` than in ``private``."""
    worse = (queues(record) - queues(private))[chosen]
    worse = worse[worse > 0]
    if not len(worse):
        return Anomalies(0, 0.0, 0.0)
    return Anomalies(len(worse), float(worse.sum()) / 60_000, float(worse.max()) / 60_000)


def window_means(times: Ints, values: Ints, at: Ints, width: int) -> Floats:
    """Mean of the values whose time is within ``width / 2`` of each point of ``at``; NaN if there are none.

    ``times`` ascend. Shapes: times and values (n,), at and the result (m,).
    """
    sums = np.concatenate(([0], np.cumsum(values)))
    low = np.searchsorted(times, at - width // 2, side="left")
    high = np.searchsorted(times, at + width // 2, side="left")
    count = high - low
    total = sums[high] - sums[low]
    means = np.full(len(at), np.nan)
    np.divide(total, count, out=means, where=count > 0)
    return means


def interval_means(starts: Ints, ends: Ints, weights: Ints, edges: Ints) -> Floats:
    """Time average, in each bin, of the total weight of the intervals that cover an instant.

    Shapes: starts, ends, weights (n,); edges (m + 1,); result (m,). Exact in integers; O((n + m) log n).
    """

    def area(times: Ints) -> Ints:
        """Integral up to each edge of the weight begun at ``times``."""
        order = np.argsort(times, kind="stable")
        sorted_times, sorted_weights = times[order], weights[order]
        weight = np.concatenate(([0], np.cumsum(sorted_weights)))
        moment = np.concatenate(([0], np.cumsum(sorted_weights * sorted_times)))
        n = np.searchsorted(sorted_times, edges, side="right")
        return np.asarray(weight[n] * edges - moment[n], dtype=np.int64)

    integral = area(starts) - area(ends)
    return np.diff(integral) / np.diff(edges)


WINDOW_MS = 12 * HOUR_MS
_FEWEST_POINTS, _MOST_POINTS = 24, 20_000


@dataclass(frozen=True, slots=True)
class DelayOverTime:
    """Mean queueing delay of the jobs submitted in a moving 12-hour window."""

    at: Ints  #: middle of the window, in milliseconds (m,)
    mean_ms: dict[str, Floats]  #: per tenant; NaN where no job was submitted (m,)


def delay_over_time(
    results: Results, record: Record, chosen: NDArray[np.bool_], tenants: Sequence[str] | None = None
) -> DelayOverTime:
    """Delay over time of the chosen jobs (jobs,), per tenant: those given, or all of the cluster. O(jobs * tenants)."""
    submit = np.asarray([job.submit_ms for job in record.jobs], dtype=np.int64)
    names = np.asarray([job.tenant for job in record.jobs], dtype=object)
    queue = queues(record)
    window = submission_window(results)
    at = np.arange(0, window + 1, step(window), dtype=np.int64)
    means = {}
    for tenant in [vc.name for vc in results.spec.virtual_clusters] if tenants is None else tenants:
        mine = np.flatnonzero(chosen & (names == tenant))
        means[tenant] = window_means(submit[mine], queue[mine], at, WINDOW_MS)
    return DelayOverTime(at, means)


@dataclass(frozen=True, slots=True)
class Series:
    """A record over time. All but ``edges`` (m + 1,) have one value per bin (m,), between 0 and 1."""

    edges: Ints
    utilization: Floats  #: GPUs held, as a share of the shared cluster; one that jobs share counts once
    guaranteed: Floats  #: of which by guaranteed jobs
    opportunistic: Floats  #: and by opportunistic ones
    #: share of nodes that cannot give all their GPUs to one guaranteed job, since some are in guaranteed use
    fragmentation: Floats
    partly_used: Floats  #: share of nodes with some but not all GPUs in guaranteed use: what packing could avoid
    #: GPUs that tenants cannot have as whole nodes because of their own jobs, and because of others', as shares of the
    #: shared cluster: see :mod:`~.fragmentation`
    internal: Floats
    external: Floats
    guests: Floats  #: GPUs on which guests run; they hold none, so it is no part of the utilization


def submission_window(results: Results) -> int:
    """The length of the window that averages are taken over, in milliseconds, at least a second.

    The time of the last submission, or the mean duration if that is longer (a load needs a time to be spread over), but
    at most ``--until``. O(jobs).
    """
    until = results.scenario.until_ms
    window = arrival_window(results.trace.jobs)
    return window if until is None else max(1, min(window, until))


def arrival_window(jobs: Sequence[TraceJob]) -> int:
    """The submission window of ``jobs`` where no time ends it. O(jobs)."""
    mean = sum(job.duration_ms for job in jobs) // max(1, len(jobs))
    return max(max([job.submit_ms for job in jobs], default=0), mean, 1000)


def step(window: int) -> int:
    """The distance between points in time: an hour; less for short traces, more for those of many years."""
    width = HOUR_MS
    while window // width < _FEWEST_POINTS and width > 1000:
        width //= 2
    while window // width > _MOST_POINTS:
        width *= 2
    return width


class Usage:
    """Who held what in one record, for the metrics that need it: ``window``, ``pods`` and ``reservations``."""

    def __init__(self, results: Results, record: Record) -> None:
        """``record``: one of the ``results``. O(pods log pods + tenants * pods)."""
        sizes = results.node_sizes[results.records.index(record)]
        self.window = submission_window(results)
        self.pods: Pods = pods_of(record, sizes)
        self.reservations: Reservations = reservations(results.spec, record, sizes, self.pods, self.window)


def series(results: Results, record: Record, bin_ms: int | None = None, usage: Usage | None = None) -> Series:
    """Utilization and fragmentation over the submission window, in bins of ``bin_ms``: an hour, unless given.

    Bins are shorter for short traces, longer for those of many years. ``usage``: that of the record, where it is there
    already. O(pods log pods).
    """
    usage = usage or Usage(results, record)
    pods, window = usage.pods, usage.window
    edges = np.append(np.arange(0, window, bin_ms or step(window), dtype=np.int64), window)
    gpus = max(1, results.spec.gpus)  # nodes that no VC reserved count in every scheme
    nodes = max(1, len(pods.sizes))
    unable, partly = node_use(pods)

    def mean(spans: Spans, of: int) -> Floats:
        return interval_means(*spans, edges) / of

    return Series(
        edges,
        mean(pods.held, gpus),
        mean(pods.held.of(pods.guaranteed), gpus),
        mean(pods.held.of(~pods.guaranteed), gpus),
        mean(unable, nodes),
        mean(partly, nodes),
        mean(usage.reservations.internal.spans, gpus),
        mean(usage.reservations.external.spans, gpus),
        mean(pods.guests, gpus),
    )
