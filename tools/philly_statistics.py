"""Compute ``src/hived/simulator/traces/philly_statistics.json`` anew from a Philly trace.

    python tools/philly_statistics.py philly-2017-oct-nov.csv.gz > statistics.json
    mv statistics.json src/hived/simulator/traces/philly_statistics.json

The trace is a CSV with the tenants of HiveD's Table 1, its clock starting on Sunday 2017-10-01 at midnight. Each
statistic is described in :mod:`hived.simulator.traces.philly_statistics`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from itertools import pairwise

from hived.simulator.traces import MS, Trace, TraceJob, read_trace
from hived.simulator.traces.philly_statistics import Durations, Statistics, Submissions
from hived.simulator.traces.quantiles import summarise
from hived.simulator.traces.table1 import SIZE_CLASSES, TABLE1, size_class

DURATION_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
SWEEP_SHARES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995)
GAP_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
SWEEP_GAP_S = 60  # jobs of one tenant and size class at most this far apart are one sweep
UP_TO_GPUS = (1, 2, 4, 8, 16, 10**6)  # duration classes: their largest jobs
POOLED_FROM = 5  # from this duration class on, research and production are too few to tell apart


def main() -> None:
    """Read the trace named on the command line, write the statistics to standard output: a line per row."""
    plain = asdict(statistics(read_trace(sys.argv[1])))
    tables = [f'"{name}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in plain.items()]
    print("{" + ",\n".join(tables) + "}")


def statistics(trace: Trace) -> Statistics:
    """All statistics of ``trace``. O(jobs log jobs)."""
    days = max(job.submit_ms for job in trace.jobs) // (86_400 * MS) + 1
    runs = sweeps(trace)
    starts = [run[0].submit_ms // MS for run in runs]
    hours = Counter(start // 3600 % 24 for start in starts)
    weekdays = Counter(start // 86_400 % 7 for start in starts)
    occurs = Counter(day % 7 for day in range(days))
    return Statistics(
        durations(trace),
        pass_shares(trace),
        large_jobs(trace),
        tuple(submissions(row.tenant, [run for run in runs if run[0].tenant == row.tenant]) for row in TABLE1),
        tuple(hours[hour] for hour in range(24)),
        tuple(round(1000 * weekdays[day] / occurs[day]) for day in range(7)),
    )


def submissions(tenant: str, runs: list[list[TraceJob]]) -> Submissions:
    """How a tenant submits, by its sweeps."""
    small = [len(run) for run in runs if run[0].gpus == 1]
    large = [len(run) for run in runs if run[0].gpus > 1]
    gaps = [(b.submit_ms - a.submit_ms) // MS for run in runs for a, b in pairwise(run)]
    return Submissions(
        tenant,
        summarise(small, SWEEP_SHARES),
        summarise(large, SWEEP_SHARES) if large else None,
        summarise(gaps, GAP_SHARES),
    )


def durations(trace: Trace) -> tuple[Durations, ...]:
    """For every duration class and group."""
    data: defaultdict[tuple[int, str | None], list[int]] = defaultdict(list)
    for job in trace.jobs:
        place = next(place for place, most in enumerate(UP_TO_GPUS) if job.gpus <= most)
        group = None if place >= POOLED_FROM else job.tenant.split("-")[0]
        data[place, group].append(job.duration_ms // MS)
    starts = (1, *(most + 1 for most in UP_TO_GPUS))
    ordered = sorted(data.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    return tuple(
        Durations(group, starts[place], UP_TO_GPUS[place], summarise(values, DURATION_SHARES))
        for (place, group), values in ordered
    )


def pass_shares(trace: Trace) -> tuple[float, ...]:
    """By size class, the share of jobs that passed, to 4 decimals."""
    jobs = Counter(size_class(job.gpus) for job in trace.jobs)
    passed = Counter(size_class(job.gpus) for job in trace.jobs if job.status == "pass")
    return tuple(round(passed[place] / jobs[place], 4) for place in range(len(SIZE_CLASSES)))


def large_jobs(trace: Trace) -> tuple[tuple[int, int], ...]:
    """(GPUs, jobs) for every multiple of 8 from 16 on."""
    return tuple(sorted(Counter(j.gpus for j in trace.jobs if j.gpus >= 16 and j.gpus % 8 == 0).items()))


def sweeps(trace: Trace) -> list[list[TraceJob]]:
    """All sweeps, in order of their first job's tenant and size class, then time."""
    lines: defaultdict[tuple[str, int], list[TraceJob]] = defaultdict(list)
    for job in trace.jobs:
        lines[job.tenant, size_class(job.gpus)].append(job)
    runs: list[list[TraceJob]] = []
    for _, line in sorted(lines.items()):
        previous = None
        for job in line:
            if previous is None or job.submit_ms - previous.submit_ms > SWEEP_GAP_S * MS:
                runs.append([])
            runs[-1].append(job)
            previous = job
    return runs


if __name__ == "__main__":
    main()
