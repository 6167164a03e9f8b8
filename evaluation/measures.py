"""What is kept of a simulation: the measures that figures and tables of the papers are made of, as plain data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hived.simulator.fragmentation import Pods, node_use
from hived.simulator.metrics import (
    Usage,
    comparable_jobs,
    delay_over_time,
    interval_means,
    queues,
    series,
    submission_window,
    time_alone,
)
from hived.simulator.record import Record, Run
from hived.simulator.study import Study
from hived.simulator.traces import TraceJob

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
HOUR_MS = 3_600_000
#: for how long a node has to be idle of guaranteed jobs to count (the draft's Figure 10)
IDLE_HOURS = (10, 100)
_SHARES = ("utilization", "guaranteed", "fragmentation")


def measured(studies: Mapping[str, Study], quotas: Mapping[str, int]) -> dict[str, Any]:
    """The measures of one run of each arm, over the jobs that all of them finish and that fit all of them.

    ``quotas``: GPUs of each tenant, whose jobs are those of the first arm. Times are in minutes, moments in days; NaN
    is undefined.
    """
    results = [study.results for study in studies.values()]
    jobs = results[0].trace.jobs
    chosen = np.all([comparable_jobs(one) for one in results], axis=0)
    window = submission_window(results[0])
    private = studies.get("private")
    base = None if private is None else queues(private.record())
    return {
        "jobs": len(jobs),
        "gpus": sum(job.gpus for job in jobs),
        "compared": int(chosen.sum()),
        "never_fit": len(set().union(*(one.never_fit for one in results))),
        "days": round(window / (24 * HOUR_MS), 3),
        "load": sum(job.gpus * job.duration_ms for job in jobs) / window / sum(quotas.values()),
        "tenants": list(quotas),
        "runs": {name: _of_run(study, jobs, chosen, quotas, window, base) for name, study in studies.items()},
    }


def _of_run(
    study: Study,
    jobs: Sequence[TraceJob],
    chosen: NDArray[np.bool_],
    quotas: Mapping[str, int],
    window: int,
    base: Ints | None,
) -> dict[str, Any]:
    results, record = study.results, study.record()
    usage = Usage(results, record)
    shares = series(results, record, usage=usage)
    record.jobs = jobs  # whose tenants may have had one virtual cluster together
    pods, edges, queue = usage.pods, shares.edges, queues(record)
    names = np.asarray([job.tenant for job in jobs], dtype=object)
    several = np.asarray([job.gpus > 1 for job in jobs])
    over_time = delay_over_time(results, record, chosen, list(quotas))
    inside = _within_quota(record, pods, names, quotas) if base is not None else None
    tenants: dict[str, Any] = {}
    for name in quotas:
        mine = np.flatnonzero(chosen & (names == name))
        means = over_time.mean_ms[name] / 60_000
        tenants[name] = {"jobs": len(mine), "delay": _mean(queue[mine]), "over_time": rounded(means)}
        if base is not None and inside is not None:
            worse = queue[mine] > base[mine]
            late = int((worse & inside[mine] & several[mine]).sum())
            tenants[name] |= {"worse": int(worse.sum()), "several": int(several[mine].sum()), "late": late}
    everybody = np.flatnonzero(chosen)
    half_days = np.arange(0, window + 12 * HOUR_MS, 12 * HOUR_MS, dtype=np.int64)
    return {
        "delay": _mean(queue[everybody]),
        "completion": _mean(queue[everybody] + time_alone(record)[everybody]),
        "tenants": tenants,
        "at": rounded(over_time.at / (24 * HOUR_MS)),
        "hours": rounded((edges[:-1] + edges[1:]) / 2 / (24 * HOUR_MS)),
        "widths": rounded(np.diff(edges) / HOUR_MS),
        **{name: rounded(getattr(shares, name)) for name in _SHARES},
        **{f"idle_{hours}": rounded(idle_nodes(pods, record, edges, hours)) for hours in IDLE_HOURS},
        "preempted_gpus": record.preempted_gpus,
        "preempted": _sums(record.preempted_at, half_days),
        # nodes in guaranteed use: under hived with whole nodes the cells that are bound
        "bound": rounded(interval_means(*node_use(pods)[0], half_days) / max(1, len(pods.sizes))),
    }


def _mean(times: Ints) -> float:
    return float(times.mean()) / 60_000 if len(times) else float("nan")


def rounded(values: Floats | Ints) -> list[float]:
    """With six digits, which a figure does not show."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def _sums(moments: list[tuple[int, int]], edges: Ints) -> list[int]:
    """The sum of the numbers whose time is in each bin."""
    times, numbers = np.asarray(moments, dtype=np.int64).reshape(-1, 2).T
    inside = times < edges[-1]
    return [int(value) for value in np.histogram(times[inside], edges, weights=numbers[inside])[0]]


def idle_nodes(pods: Pods, record: Record, edges: Ints, hours: int) -> Floats:
    """The mean share of nodes that guaranteed jobs leave idle for at least so many hours, in each bin. O(n log n)."""
    held, node = pods.held.of(pods.guaranteed), pods.node[pods.guaranteed]
    order = np.lexsort((held.start, node))
    until = [0] * len(pods.sizes)  # when the jobs so far of each node have ended
    gaps = []
    for which, start, end in np.stack((node, held.start, held.end), axis=1)[order].tolist():
        gaps.append((until[which], start))
        until[which] = max(until[which], end)
    gaps += [(since, max(record.end, int(edges[-1]))) for since in until]
    long = [gap for gap in gaps if gap[1] - gap[0] >= hours * HOUR_MS]
    starts, ends = np.asarray(long, dtype=np.int64).reshape(-1, 2).T
    return interval_means(starts, ends, np.ones_like(starts), edges) / max(1, len(pods.sizes))


def _within_quota(record: Record, pods: Pods, names: NDArray[Any], quotas: Mapping[str, int]) -> NDArray[np.bool_]:
    """Jobs at whose submission they and their tenant's guaranteed jobs are within its quota. (jobs,)"""
    found = np.zeros(len(record.jobs), dtype=bool)
    submit = np.asarray([job.submit_ms for job in record.jobs], dtype=np.int64)
    gpus = np.asarray([job.gpus for job in record.jobs], dtype=np.int64)
    held, owner = pods.held.of(pods.guaranteed), names[pods.job[pods.guaranteed]]
    for tenant, quota in quotas.items():
        begun, ended, weight = held.of(owner == tenant)
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


def makespan(record: Record) -> float:
    """Minutes from the first submission to the last end."""
    return (max(record.finish) - record.jobs[0].submit_ms) / 60_000


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
