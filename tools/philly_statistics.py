"""Compute ``src/hived/simulator/traces/philly_statistics.py`` anew from a Philly trace.

    python tools/philly_statistics.py philly-2017-oct-nov.csv.gz > statistics.py
    mv statistics.py src/hived/simulator/traces/philly_statistics.py

The trace is a CSV with the tenants of HiveD's Table 1, its clock starting on Sunday 2017-10-01 at midnight. How each
statistic is computed stands in the docstring of the module that this writes.
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter, defaultdict
from itertools import pairwise

from hived.simulator.traces import MS, Trace, TraceJob, read_trace
from hived.simulator.traces.quantiles import QuantileTable, summarise
from hived.simulator.traces.table1 import SIZE_CLASSES, TABLE1, size_class

DURATION_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
SWEEP_SHARES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995)
GAP_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
SWEEP_GAP_S = 60  # jobs of one tenant and size class at most this far apart are one sweep
UP_TO_GPUS = (1, 2, 4, 8, 16, 10**6)  # duration classes: their largest jobs
POOLED_FROM = 5  # from this duration class on, research and production are too few to tell apart

HEADER = '''"""What the synthetic trace knows of the real one: summary statistics of the Philly trace, no job of it.

Source: "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", Jeon et al., USENIX
ATC'19; trace published under CC-BY-4.0 at https://github.com/msr-fiddle/philly-traces. Computed by
``tools/philly_statistics.py`` from {jobs:,} of its jobs in {days} days (2017-10-01 to 12-01), their virtual clusters
named after HiveD's tenants; do not edit by hand.

* :data:`DURATIONS`: the seconds a job held its GPUs (all attempts summed), for jobs of one range of GPUs and one
  group of tenants (``res`` or ``prod``, the name's first word; none: both together, where jobs are few). Of the
  sorted seconds, those at up to 17 ranks; for each piece between two ranks, the bend that gives it its real mean.
* :data:`PASS_SHARES`: by size class, the share of jobs whose status is ``pass``.
* :data:`LARGE_JOBS`: how many jobs have each multiple of 8 GPUs from 16 on. Other sizes (12, 20) are left out.
* :data:`SUBMISSIONS`: a *sweep* is a longest run of jobs of one tenant and size class, each submitted at most
  {gap} s after the one before. By tenant: jobs per sweep for 1-GPU jobs and for larger ones (none where a tenant
  has no larger ones), and the seconds between two jobs of a sweep.
* :data:`HOUR_WEIGHTS`, :data:`DAY_WEIGHTS`: how many sweeps begin in each hour of the day (the log's clock), and
  on each day of the week, Sunday first (count over how often the day occurs in the trace, times 1,000).
"""

from __future__ import annotations

from dataclasses import dataclass

from .quantiles import QuantileTable


@dataclass(frozen=True, slots=True)
class Durations:
    """How long jobs of ``from_gpus`` to ``to_gpus`` GPUs run, in seconds."""

    group: str | None  #: "res", "prod", or both
    from_gpus: int
    to_gpus: int
    seconds: QuantileTable


@dataclass(frozen=True, slots=True)
class Submissions:
    """How a tenant submits."""

    tenant: str
    small_sweeps: QuantileTable  #: jobs in a sweep of 1-GPU jobs
    large_sweeps: QuantileTable | None  #: jobs in a sweep of larger jobs
    gaps: QuantileTable  #: seconds from one job of a sweep to the next


# fmt: off'''


def main() -> None:
    """Read the trace named on the command line, write the module to standard output."""
    trace = read_trace(sys.argv[1])
    days = max(job.submit_ms for job in trace.jobs) // (86_400 * MS) + 1
    print(HEADER.format(jobs=len(trace.jobs), days=days, gap=SWEEP_GAP_S))
    print("DURATIONS: tuple[Durations, ...] = (")
    for group, first, last, table in durations(trace):
        print(f"    Durations({group!r}, {first}, {last},\n        {source(table)}),")
    print(")\n")
    print(f"PASS_SHARES = {pass_shares(trace)}\n")
    print(f"LARGE_JOBS = {large_jobs(trace)}  #: (GPUs, jobs)\n")
    runs = sweeps(trace)
    print("SUBMISSIONS: tuple[Submissions, ...] = (")
    for row in TABLE1:
        mine = [run for run in runs if run[0].tenant == row.tenant]
        small = [len(run) for run in mine if run[0].gpus == 1]
        large = [len(run) for run in mine if run[0].gpus > 1]
        gaps = [(b.submit_ms - a.submit_ms) // MS for run in mine for a, b in pairwise(run)]
        larger = source(summarise(large, SWEEP_SHARES)) if large else "None"
        print(f"    Submissions({row.tenant!r},")
        print(f"        {source(summarise(small, SWEEP_SHARES))},\n        {larger},")
        print(f"        {source(summarise(gaps, GAP_SHARES))}),")
    print(")\n")
    starts = [run[0].submit_ms // MS for run in runs]
    hours = Counter(start // 3600 % 24 for start in starts)
    weekdays = Counter(start // 86_400 % 7 for start in starts)
    occurs = Counter(day % 7 for day in range(days))
    print(wrapped(f"HOUR_WEIGHTS = {tuple(hours[hour] for hour in range(24))}"))
    print(f"\nDAY_WEIGHTS = {tuple(round(1000 * weekdays[day] / occurs[day]) for day in range(7))}")


def durations(trace: Trace) -> list[tuple[str | None, int, int, QuantileTable]]:
    """For every duration class and group: (group, fewest GPUs, most GPUs, table of seconds)."""
    data: defaultdict[tuple[int, str | None], list[int]] = defaultdict(list)
    for job in trace.jobs:
        place = next(place for place, most in enumerate(UP_TO_GPUS) if job.gpus <= most)
        group = None if place >= POOLED_FROM else job.tenant.split("-")[0]
        data[place, group].append(job.duration_ms // MS)
    starts = (1, *(most + 1 for most in UP_TO_GPUS))
    ordered = sorted(data.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    return [
        (group, starts[place], UP_TO_GPUS[place], summarise(values, DURATION_SHARES))
        for (place, group), values in ordered
    ]


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


def source(table: QuantileTable) -> str:
    """The Python expression of ``table``, with whole values as integers."""
    values = tuple(int(value) for value in table.values)
    text = f"QuantileTable({table.count}, {table.mean}, {table.ranks}, {values}, {table.bends})"
    return wrapped(text)


def wrapped(text: str) -> str:
    """``text`` on lines that are short enough."""
    return "\n".join(textwrap.wrap(text, 100, subsequent_indent=" " * 8))


if __name__ == "__main__":
    main()
