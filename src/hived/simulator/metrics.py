"""Metrics of records: delays, anomalies, utilization and fragmentation.

All are derived after the simulation from the intervals in ``runs.csv``, so that a reader of that file can check them.
Times are in milliseconds until they are reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hived.scheduling import Kind

from .experiment import NodeSizes, Results
from .record import Record
from .traces import TraceJob

HOUR_MS = 3_600_000
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Delay:
    """Queueing delay and completion time of a group of finished jobs, in seconds. NaN for no jobs."""

    jobs: int
    mean_s: float
    median_s: float
    p95_s: float
    completion_mean_s: float  #: mean job completion time, from submission to end
    preemptions: int


@dataclass(frozen=True, slots=True)
class Anomalies:
    """Sharing anomalies: jobs that wait longer than in their tenant's private cluster, and by how much."""

    jobs: int
    minutes: float  #: sum
    worst_minutes: float


def comparable_jobs(results: Results) -> NDArray[np.bool_]:
    """Jobs that every run finished and that fit their private cluster, so that they can be compared. (jobs,)"""
    mask = np.ones(len(results.trace.jobs), dtype=bool)
    mask[list(results.never_fit)] = False
    for record in results.records:
        mask &= np.asarray(record.finish, dtype=np.int64) >= 0
    return mask


def queues(record: Record) -> Ints:
    """Queueing delay of every job of a simulation; meaningless for unfinished jobs. (jobs,)"""
    if record.waits is None:
        finish = np.asarray(record.finish, dtype=np.int64)
        submit = np.asarray([job.submit_ms for job in record.jobs], dtype=np.int64)
        duration = np.asarray([job.duration_ms for job in record.jobs], dtype=np.int64)
        record.waits = finish - submit - duration
    return record.waits


def delay(record: Record, chosen: NDArray[np.bool_]) -> Delay:
    """Delays of the chosen jobs."""
    numbers = np.flatnonzero(chosen)
    if not len(numbers):
        return Delay(0, float("nan"), float("nan"), float("nan"), float("nan"), 0)
    queue = queues(record)[numbers] / 1000
    duration = np.asarray([record.jobs[int(n)].duration_ms for n in numbers]) / 1000
    return Delay(
        len(numbers),
        float(queue.mean()),
        float(np.median(queue)),
        float(np.percentile(queue, 95)),
        float((queue + duration).mean()),
        sum(record.preemptions[n] for n in numbers),
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


def delay_over_time(results: Results, record: Record, chosen: NDArray[np.bool_]) -> DelayOverTime:
    """Delay over time of the chosen jobs, per tenant of the cluster. O(jobs * tenants)."""
    submit = np.asarray([job.submit_ms for job in record.jobs], dtype=np.int64)
    names = np.asarray([job.tenant for job in record.jobs], dtype=object)
    queue = queues(record)
    window = submission_window(results)
    at = np.arange(0, window + 1, step(window), dtype=np.int64)
    means = {}
    for vc in results.spec.virtual_clusters:
        mine = np.flatnonzero(chosen & (names == vc.name))
        means[vc.name] = window_means(submit[mine], queue[mine], at, WINDOW_MS)
    return DelayOverTime(at, means)


@dataclass(frozen=True, slots=True)
class Series:
    """A record over time. All but ``edges`` (m + 1,) have one value per bin (m,), between 0 and 1."""

    edges: Ints
    utilization: Floats  #: GPUs held, as a share of the shared cluster
    opportunistic: Floats  #: GPUs held opportunistically, as a share of the same
    #: share of nodes that cannot give all their GPUs to one guaranteed job, since some are in guaranteed use
    fragmentation: Floats
    partly_used: Floats  #: share of nodes with some but not all GPUs in guaranteed use: what packing could avoid


def submission_window(results: Results) -> int:
    """The length of the window that averages are taken over, in milliseconds, at least a second.

    The time of the last submission, or the mean duration if that is longer (a load needs a time to be spread over), but
    at most ``--until``.
    """
    until = results.options.until_ms
    window = arrival_window(results.trace.jobs)
    return window if until is None else max(1, min(window, until))


def arrival_window(jobs: Sequence[TraceJob]) -> int:
    """The submission window of ``jobs``, in order of submission, where no time ends it."""
    mean = sum(job.duration_ms for job in jobs) // max(1, len(jobs))
    return max(jobs[-1].submit_ms if jobs else 0, mean, 1000)


def step(window: int) -> int:
    """The distance between points in time: an hour; less for short traces, more for those of many years."""
    width = HOUR_MS
    while window // width < _FEWEST_POINTS and width > 1000:
        width //= 2
    while window // width > _MOST_POINTS:
        width *= 2
    return width


def series(results: Results, record: Record, bin_ms: int | None = None) -> Series:
    """Utilization and fragmentation over the submission window. O(runs log runs)."""
    window = submission_window(results)
    edges = np.append(np.arange(0, window, bin_ms or step(window), dtype=np.int64), window)
    sizes = results.node_sizes[results.records.index(record)]
    gpus = results.spec.gpus  # nodes that no VC reserved count in every scheme
    held = _columns(record, None)
    lent = _columns(record, Kind.OPPORTUNISTIC)
    unable, partly = _node_use(record, sizes)
    nodes = max(1, len(sizes))
    return Series(
        edges,
        interval_means(*held, edges) / max(1, gpus),
        interval_means(*lent, edges) / max(1, gpus),
        interval_means(*unable, edges) / nodes,
        interval_means(*partly, edges) / nodes,
    )


def _columns(record: Record, kind: Kind | None) -> tuple[Ints, Ints, Ints]:
    runs = [run for run in record.runs if kind is None or run.kind is kind]
    held = [run.gpus for run in runs]
    return (
        np.asarray([run.start for run in runs], dtype=np.int64),
        np.asarray([run.end for run in runs], dtype=np.int64),
        np.asarray(held, dtype=np.int64),
    )


def _node_use(record: Record, sizes: NodeSizes) -> tuple[tuple[Ints, Ints, Ints], tuple[Ints, Ints, Ints]]:
    """Intervals in which a node has GPUs in guaranteed use, and those in which some but not all are."""
    numbers = {node: number for number, node in enumerate(sizes)}
    flat = list(sizes.values())
    rows = [
        (numbers[run.placement.chain, pod.node], run.start, run.end, len(pod.leaf_cells))
        for run in record.runs
        if run.kind is Kind.GUARANTEED
        for pod in run.placement.pods
    ]
    if not rows:
        empty = np.zeros(0, dtype=np.int64)
        return (empty, empty, empty), (empty, empty, empty)
    table = np.asarray(rows, dtype=np.int64)
    node = np.concatenate((table[:, 0], table[:, 0]))
    time = np.concatenate((table[:, 1], table[:, 2]))
    change = np.concatenate((table[:, 3], -table[:, 3]))
    order = np.lexsort((time, node))
    node, time, change = node[order], time[order], change[order]
    used = np.cumsum(change)  # every node starts and ends at 0, so one running sum serves all nodes
    until = np.append(time[1:], 0)
    same = np.append(node[1:] == node[:-1], False) & (until > time)
    size = np.asarray(flat, dtype=np.int64)[node]
    unable = same & (used > 0)
    partly = same & (used > 0) & (used < size)
    ones = np.ones(len(time), dtype=np.int64)
    return (time[unable], until[unable], ones[unable]), (time[partly], until[partly], ones[partly])
