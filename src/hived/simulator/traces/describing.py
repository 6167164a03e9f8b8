"""Statistics of a trace: number, size, duration and arrival of each tenant's jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...errors import InputError
from .model import MS, Trace, TraceJob
from .table1 import SIZE_CLASSES, size_class

_HOUR_MS = 3600 * MS
_DAY_MS = 24 * _HOUR_MS
_WEEK_MS = 7 * _DAY_MS


@dataclass(frozen=True, slots=True)
class Workload:
    """The jobs of one tenant, or of all."""

    tenant: str | None  #: None: all tenants together
    jobs: int
    jobs_by_size: tuple[int, ...]  #: by :data:`~hived.simulator.traces.table1.SIZE_CLASSES`
    passed: int  #: jobs whose status is "pass"
    gpu_hours: float  #: sum of GPUs times duration
    mean_duration_s: float
    median_duration_s: float  #: the smallest duration that half of the jobs do not exceed
    p95_duration_s: float  #: the smallest duration that 95% of the jobs do not exceed
    largest_gpus: int
    offered_load_gpus: float  #: GPU-hours over the window: GPUs busy on average if no job ever waited


@dataclass(frozen=True, slots=True)
class BusiestWeek:
    """The week (counted from the first submission) whose submissions request the most GPU time."""

    week: int  #: from 0
    jobs: int  #: submitted in it
    gpu_hours: float  #: that these jobs take in all, also after the week
    offered_load_gpus: float  #: GPU-hours over the part of the week that lies in the trace's window


@dataclass(frozen=True, slots=True)
class Description:
    """The statistics of :func:`describe`."""

    name: str
    synthetic: bool
    dropped: tuple[tuple[str, int], ...]  #: (reason, jobs of the file left out for it)
    running: int  #: jobs that had not ended when their log did, with their time so far
    days: float  #: from the first submission to the last
    window_days: float  #: the window of averages: ``days``, or the mean duration if that is longer
    size_classes: tuple[str, ...]  #: names of the classes of ``jobs_by_size``
    total: Workload
    tenants: tuple[Workload, ...]  #: by name
    busiest_week: BusiestWeek

    def to_json(self) -> dict[str, Any]:
        """The statistics as plain dicts, lists, numbers and text, for :func:`json.dumps`."""
        return asdict(self)


def describe(trace: Trace) -> Description:
    """The statistics of ``trace``. O(n log n) in its jobs.

    Raises :class:`~hived.errors.InputError` for a trace without jobs.
    """
    if not trace.jobs:
        raise InputError(f"{trace.name}: a trace without jobs cannot be described: give it at least one")
    first = min(job.submit_ms for job in trace.jobs)
    span_ms = max(job.submit_ms for job in trace.jobs) - first
    window_ms = max(span_ms, sum(job.duration_ms for job in trace.jobs) / len(trace.jobs))
    by_tenant: defaultdict[str, list[TraceJob]] = defaultdict(list)
    for job in trace.jobs:
        by_tenant[job.tenant].append(job)
    return Description(
        name=trace.name,
        synthetic=trace.synthetic,
        dropped=trace.dropped,
        running=trace.running,
        days=span_ms / _DAY_MS,
        window_days=window_ms / _DAY_MS,
        size_classes=SIZE_CLASSES,
        total=_workload(None, trace.jobs, window_ms),
        tenants=tuple(_workload(tenant, jobs, window_ms) for tenant, jobs in sorted(by_tenant.items())),
        busiest_week=_busiest_week(trace.jobs, first, window_ms),
    )


def _workload(tenant: str | None, jobs: Sequence[TraceJob], window_ms: float) -> Workload:
    durations = sorted(job.duration_ms for job in jobs)
    by_size = [0] * len(SIZE_CLASSES)
    for job in jobs:
        by_size[size_class(job.gpus)] += 1
    gpu_ms = sum(job.gpus * job.duration_ms for job in jobs)
    return Workload(
        tenant=tenant,
        jobs=len(jobs),
        jobs_by_size=tuple(by_size),
        passed=sum(job.status == "pass" for job in jobs),
        gpu_hours=gpu_ms / _HOUR_MS,
        mean_duration_s=sum(durations) / len(durations) / MS,
        median_duration_s=_percentile(durations, 50) / MS,
        p95_duration_s=_percentile(durations, 95) / MS,
        largest_gpus=max(job.gpus for job in jobs),
        offered_load_gpus=_load(gpu_ms, window_ms),
    )


def _busiest_week(jobs: Sequence[TraceJob], first: int, window_ms: float) -> BusiestWeek:
    gpu_ms: defaultdict[int, int] = defaultdict(int)
    count: defaultdict[int, int] = defaultdict(int)
    for job in jobs:
        week = (job.submit_ms - first) // _WEEK_MS
        gpu_ms[week] += job.gpus * job.duration_ms
        count[week] += 1
    busiest = min(gpu_ms, key=lambda week: (-gpu_ms[week], week))
    length_ms = min(window_ms - busiest * _WEEK_MS, _WEEK_MS)
    return BusiestWeek(
        week=busiest,
        jobs=count[busiest],
        gpu_hours=gpu_ms[busiest] / _HOUR_MS,
        offered_load_gpus=_load(gpu_ms[busiest], length_ms),
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """Percentile by nearest rank: a value of the data, no interpolation."""
    return ordered[-(-len(ordered) * percent // 100) - 1]


def _load(gpu_ms: int, window_ms: float) -> float:
    return gpu_ms / window_ms if window_ms > 0 else 0.0
