"""What is kept of a simulation: the measures that figures and tables of the papers are made of, as plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inside import (
    HOUR_MS,
    WINDOW_MS,
    Pods,
    Record,
    Results,
    Run,
    Spans,
    Trace,
    Usage,
    arrival_window,
    comparable_jobs,
    interval_means,
    queues,
    series,
    step,
    time_alone,
    window_means,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
#: for how long a node has to be idle of guaranteed jobs to count (the draft's Figure 10)
IDLE_HOURS = (10, 100)
_SHARES = ("utilization", "guaranteed", "fragmentation")


def measured(trace: Trace, runs: Mapping[str, Results], quotas: Mapping[str, int]) -> dict[str, Any]:
    """The measures of all ``runs`` on ``trace``, over the jobs that all of them finish and that fit all of them.

    ``quotas``: GPUs of each tenant. Times are in minutes, moments in days; NaN is undefined.
    """
    jobs = trace.jobs
    chosen = np.all([comparable_jobs(results) for results in runs.values()], axis=0)
    window = arrival_window(jobs)
    names = np.asarray([job.tenant for job in jobs], dtype=object)
    private = runs.get("private")
    base = None if private is None else queues(private.records[0])
    return {
        "jobs": len(jobs),
        "gpus": sum(job.gpus for job in jobs),
        "compared": int(chosen.sum()),
        "never_fit": len(set().union(*(results.never_fit for results in runs.values()))),
        "days": round(window / (24 * HOUR_MS), 3),
        "load": sum(job.gpus * job.duration_ms for job in jobs) / window / sum(quotas.values()),
        "tenants": list(quotas),
        "runs": {name: _of_run(trace, results, chosen, names, quotas, window, base) for name, results in runs.items()},
    }


def _of_run(
    trace: Trace,
    results: Results,
    chosen: NDArray[np.bool_],
    names: NDArray[Any],
    quotas: Mapping[str, int],
    window: int,
    base: Ints | None,
) -> dict[str, Any]:
    record = results.records[0]
    usage = Usage(results, record)
    queue = queues(record)
    submit = np.asarray([job.submit_ms for job in trace.jobs], dtype=np.int64)
    alone = time_alone(record)
    several = np.asarray([job.gpus > 1 for job in trace.jobs])
    at = np.arange(0, window + 1, step(window), dtype=np.int64)
    shares = series(results, record, usage=usage)
    edges = shares.edges
    inside = _within_quota(trace, usage.pods, names, quotas) if base is not None else None
    tenants: dict[str, Any] = {}
    for name in quotas:
        mine = np.flatnonzero(chosen & (names == name))
        means = window_means(submit[mine], queue[mine], at, WINDOW_MS) / 60_000
        tenants[name] = {"jobs": len(mine), "delay": _mean(queue[mine]), "over_time": rounded(means)}
        if base is not None and inside is not None:
            worse = queue[mine] > base[mine]
            late = int((worse & inside[mine] & several[mine]).sum())
            tenants[name] |= {"worse": int(worse.sum()), "several": int(several[mine].sum()), "late": late}
    everybody = np.flatnonzero(chosen)
    half_days = np.arange(0, window + WINDOW_MS, WINDOW_MS, dtype=np.int64)
    return {
        "delay": _mean(queue[everybody]),
        "completion": _mean(queue[everybody] + alone[everybody]),
        "tenants": tenants,
        "at": rounded(at / (24 * HOUR_MS)),
        "hours": rounded((edges[:-1] + edges[1:]) / 2 / (24 * HOUR_MS)),
        "widths": rounded(np.diff(edges) / HOUR_MS),
        **{name: rounded(getattr(shares, name)) for name in _SHARES},
        **{f"idle_{hours}": rounded(_idle(usage.pods, record, edges, hours)) for hours in IDLE_HOURS},
        "preempted_gpus": record.preempted_gpus,
        "preempted": _sums(record.preempted_at, half_days),
        "bound": rounded(_in_use(usage.pods, half_days)),
    }


def _mean(times: Ints) -> float:
    return float(times.mean()) / 60_000 if len(times) else float("nan")


def rounded(values: Floats | Ints) -> list[float]:
    """With six digits, which a figure does not show."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _sums(moments: list[tuple[int, int]], edges: Ints) -> list[int]:
    """The sum of the numbers whose time is in each bin."""
    if not moments:
        return [0] * (len(edges) - 1)
    times, numbers = np.asarray(moments, dtype=np.int64).T
    inside = (times >= edges[0]) & (times < edges[-1])
    bins = np.searchsorted(edges, times[inside], side="right") - 1
    return [int(value) for value in np.bincount(bins, numbers[inside], len(edges) - 1)]


def busy_spans(pods: Pods) -> tuple[Ints, Spans]:
    """The longest intervals in which a node has GPUs in guaranteed use: its number, the interval. O(pods log pods)."""
    held, node = pods.held.of(pods.guaranteed), pods.node[pods.guaranteed]
    order = np.lexsort((held.start, node))
    nodes: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    rows = zip(node[order].tolist(), held.start[order].tolist(), held.end[order].tolist(), strict=True)
    for which, start, end in rows:
        if nodes and nodes[-1] == which and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            nodes.append(which)
            starts.append(start)
            ends.append(end)
    ones = np.ones(len(nodes), dtype=np.int64)
    return np.asarray(nodes, dtype=np.int64), Spans(np.asarray(starts, np.int64), np.asarray(ends, np.int64), ones)


def _in_use(pods: Pods, edges: Ints) -> Floats:
    """The mean share of nodes in guaranteed use in each bin: under hived with whole nodes, the cells that are bound."""
    return interval_means(*busy_spans(pods)[1], edges) / max(1, len(pods.sizes))


def _idle(pods: Pods, record: Record, edges: Ints, hours: int) -> Floats:
    """The mean share of nodes that guaranteed jobs leave idle for at least so many hours, in each bin."""
    nodes, busy = busy_spans(pods)
    end = max(record.end, int(edges[-1]))
    starts: list[int] = []
    ends: list[int] = []
    for node in range(len(pods.sizes)):
        mine = nodes == node
        since = np.append(0, busy.end[mine])
        until = np.append(busy.start[mine], end)
        long = until - since >= hours * HOUR_MS
        starts += since[long].tolist()
        ends += until[long].tolist()
    found = np.asarray(starts, np.int64), np.asarray(ends, np.int64), np.ones(len(starts), np.int64)
    return interval_means(*found, edges) / max(1, len(pods.sizes))


def _within_quota(trace: Trace, pods: Pods, names: NDArray[Any], quotas: Mapping[str, int]) -> NDArray[np.bool_]:
    """Jobs at whose submission they and their tenant's guaranteed jobs are within its quota. (jobs,)"""
    found = np.zeros(len(trace.jobs), dtype=bool)
    submit = np.asarray([job.submit_ms for job in trace.jobs], dtype=np.int64)
    gpus = np.asarray([job.gpus for job in trace.jobs], dtype=np.int64)
    held, owner = pods.held.of(pods.guaranteed), names[pods.job[pods.guaranteed]]
    for tenant, quota in quotas.items():
        of_tenant = owner == tenant
        begun, ended = held.start[of_tenant], held.end[of_tenant]
        weight = held.weight[of_tenant]
        mine = np.flatnonzero(names == tenant)
        used = np.zeros(len(mine), dtype=np.int64)
        for times, sign in ((begun, 1), (ended, -1)):
            order = np.argsort(times, kind="stable")
            sums = np.append(0, np.cumsum(weight[order]))
            used += sign * sums[np.searchsorted(times[order], submit[mine], side="left")]
        found[mine] = used + gpus[mine] <= quota
    return found


def completion(record: Record, tenant: str = "") -> float:
    """Mean completion time in minutes of the jobs that ended, of a tenant or all."""
    ended = zip(record.jobs, record.finish, strict=True)
    times = [end - one.submit_ms for one, end in ended if end >= 0 and tenant in ("", one.tenant)]
    return float(np.mean(times)) / 60_000 if times else float("nan")


def gpu_time(record: Record, first: int, last: int, weight: Callable[[Run], float], above: float) -> int:
    """GPU-milliseconds from ``first`` to ``last`` in which the weights of the runs on a GPU exceed ``above``."""
    changes: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    for run in record.runs:
        for pod in run.placement.pods:
            for leaf in pod.leaf_cells:
                changes[pod.node, leaf] += [(run.start, weight(run)), (run.end, -weight(run))]
    total = 0
    for of_gpu in changes.values():
        since, sum_of_weights = 0, 0.0
        for time, change in sorted(of_gpu):
            if sum_of_weights > above:
                total += max(0, min(time, last) - max(since, first))
            since, sum_of_weights = time, sum_of_weights + change
    return total
