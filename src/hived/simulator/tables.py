"""The tables of a simulation, as frames of Polars: what the CSV files have, column by column.

Times are seconds, exact to the millisecond. Texts of placements name each node once: ``node:0,1,2,3;node2:0,1``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import polars as pl

from hived.cluster.decisions import Placement, PodPlacement
from hived.words import encoded

from .experiment import Results
from .record import Record
from .report import Report
from .traces import Trace
from .traces.hived_csv import OPTIONAL

Types = dict[str, type[pl.DataType]]
_KEY: Types = {"scheme": pl.String, "policy": pl.String}
#: a row per scheme, policy and job of the trace, in the order of the trace. Times of a job that did not finish are
#: null, and so is ``alone_s``, the time that it takes alone at best affinity, where jobs run without models
JOBS: Types = {
    **_KEY, "job_id": pl.String, "tenant": pl.String, "gpus": pl.Int64, "submit_s": pl.Float64,
    "duration_s": pl.Float64, "start_s": pl.Float64, "finish_s": pl.Float64, "queue_s": pl.Float64,
    "preemptions": pl.Int64, "finished": pl.Boolean, "alone_s": pl.Float64,
}  # fmt: skip
#: a row per interval in which a job held GPUs, by scheme and policy, then by start and job. ``share``: the fraction of
#: the time for which it has them; ``rate``: its work per second there, against running alone at best affinity
RUNS: Types = {
    **_KEY, "job_id": pl.String, "start_s": pl.Float64, "end_s": pl.Float64, "kind": pl.String, "placement": pl.String,
    "share": pl.Float64, "rate": pl.Float64,
}  # fmt: skip
#: columns of :func:`series_table`, as in :class:`~.metrics.Series`
SHARES = (
    "utilization", "opportunistic", "fragmentation", "partly_used", "guaranteed", "internal", "external", "guests",
)  # fmt: skip


def series_types(tenants: Iterable[str]) -> Types:
    """The columns of :func:`series_table`."""
    numbers = ("time_s", *SHARES, *(f"delay_s {tenant}" for tenant in tenants))
    return {**_KEY, **dict.fromkeys(numbers, pl.Float64)}


def trace_table(trace: Trace) -> pl.DataFrame:
    """A row per job: the columns of our CSV, the optional ones where a job has a value in it. "" is null. O(jobs)."""
    more = [name for name in OPTIONAL if any(getattr(job, name) for job in trace.jobs)]
    columns: dict[str, list[Any]] = {name: [getattr(job, name) for job in trace.jobs] for name in ("job_id", "tenant")}
    columns["submit_s"] = _seconds([job.submit_ms for job in trace.jobs])
    columns["duration_s"] = _seconds([job.duration_ms for job in trace.jobs])
    for name in ("gpus", "status", *more):
        values = [getattr(job, name) for job in trace.jobs]
        columns[name] = [None if value == "" else value for value in values]
    return pl.DataFrame(columns)


def jobs_table(results: Results) -> pl.DataFrame:
    """The table of :data:`JOBS`. O(jobs) per scheme and policy."""
    return _tables(JOBS, results.records, _jobs)


def _jobs(record: Record) -> dict[str, Any]:
    numbers = range(len(record.jobs))
    ends = [record.finish[number] if record.finish[number] >= 0 else None for number in numbers]
    starts = [None if end is None else record.first_start[number] for number, end in zip(numbers, ends, strict=True)]
    queues = [None if end is None else record.queue(number) for number, end in zip(numbers, ends, strict=True)]
    return {
        "job_id": [job.job_id for job in record.jobs],
        "tenant": [job.tenant for job in record.jobs],
        "gpus": [job.gpus for job in record.jobs],
        "submit_s": _seconds([job.submit_ms for job in record.jobs]),
        "duration_s": _seconds([job.duration_ms for job in record.jobs]),
        "start_s": _seconds(starts),
        "finish_s": _seconds(ends),
        "queue_s": _seconds(queues),
        "preemptions": list(record.preemptions),
        "finished": [end is not None for end in ends],
        "alone_s": _seconds(list(record.alone) if record.alone else [None] * len(record.jobs)),
    }


def runs_table(results: Results) -> pl.DataFrame:
    """The table of :data:`RUNS`. O(runs log runs)."""
    place = _Placements()

    def runs(record: Record) -> dict[str, Any]:
        found = sorted(record.runs, key=lambda run: (run.start, run.job))
        return {
            "job_id": [record.jobs[run.job].job_id for run in found],
            "start_s": _seconds([run.start for run in found]),
            "end_s": _seconds([run.end for run in found]),
            "kind": [run.kind.value for run in found],
            "placement": [place.text(run.placement) for run in found],
            "share": [_rounded(run.share, 9) for run in found],  # to a second in 30 years
            "rate": [_rounded(run.rate, 9) for run in found],
        }

    return _tables(RUNS, results.records, runs)


def series_table(report: Report) -> pl.DataFrame:
    """The time series of the figures, by the hour (less in short traces, more in those of many years).

    Shares (0 to 1) are means over the time from ``time_s`` to the next row's; delays (seconds, one column per tenant)
    are means of the jobs submitted within 6 hours of it, NaN if there are none.
    """
    tenants = [vc.name for vc in report.results.spec.virtual_clusters]

    def series(run: Any) -> dict[str, Any]:
        hours = range(len(run.series.edges) - 1)
        delays = run.delay_over_time.mean_ms
        return {
            "time_s": _seconds([int(start) for start in run.series.edges[:-1]]),
            **{share: [_rounded(getattr(run.series, share)[hour], 6) for hour in hours] for share in SHARES},
            **{f"delay_s {tenant}": [_rounded(delays[tenant][hour] / 1000, 6) for hour in hours] for tenant in tenants},
        }

    return _tables(series_types(tenants), report.runs, series)


def _tables(types: Types, runs: Sequence[Any], columns: Callable[[Any], dict[str, Any]]) -> pl.DataFrame:
    """One table of all runs, each a scheme and a policy."""
    found = []
    for run in runs:
        own = columns(run)
        rows = len(next(iter(own.values())))
        found.append(pl.DataFrame({"scheme": [run.scheme] * rows, "policy": [run.policy] * rows} | own, schema=types))
    return pl.concat(found)


def _seconds(times: Sequence[int | None]) -> list[float | None]:
    return [None if time is None else time / 1000 for time in times]


def _rounded(value: float, digits: int) -> float:
    """To so many significant digits."""
    return 1.0 if value == 1.0 else float(f"{value:.{digits}g}")


class _Placements:
    """Placements as text. The texts of pods are cached."""

    def __init__(self) -> None:
        self._known: dict[PodPlacement, str] = {}

    def text(self, placement: Placement) -> str:
        words = []
        for pod in _by_node(placement.pods):
            word = self._known.get(pod)
            if word is None:
                word = self._known[pod] = f"{encoded(pod.node)}:{','.join(map(str, pod.leaf_cells))}"
            words.append(word)
        return ";".join(words)


def _by_node(pods: Sequence[PodPlacement]) -> Sequence[PodPlacement]:
    """The pods, with those of one node joined, as a job of soft affinity has them. O(pods + GPUs)."""
    nodes = dict.fromkeys([pod.node for pod in pods])
    if len(nodes) == len(pods):
        return pods
    leaves: dict[str, list[int]] = {node: [] for node in nodes}
    for pod in pods:
        leaves[pod.node] += pod.leaf_cells
    return [PodPlacement(node, tuple(sorted(of_node))) for node, of_node in leaves.items()]
