"""Metrics against the slowest and plainest way to compute them; confidence intervals against a printed table."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.simulator import Sharing
from hived.simulator.intervals import estimate, student_t
from hived.simulator.metrics import comparable_jobs, interval_means, queues, series, window_means

from .hardware import read_hardware
from .helpers import Experiment, nodes_of_8, simulated, trace_text

MS = st.integers(0, 40)


@given(
    st.lists(st.tuples(MS, MS, st.integers(0, 9)), max_size=12),
    st.lists(MS, min_size=2, max_size=6, unique=True).map(sorted),
)
def test_interval_means_average_instants(intervals: list[tuple[int, int, int]], edges: list[int]) -> None:
    spans = [(min(a, b), max(a, b), weight) for a, b, weight in intervals]
    columns = [np.asarray([span[n] for span in spans], dtype=np.int64) for n in range(3)]
    found = interval_means(columns[0], columns[1], columns[2], np.asarray(edges, dtype=np.int64))
    for mean, low, high in zip(found, edges, edges[1:], strict=False):
        area = sum(weight for t in range(low, high) for start, end, weight in spans if start <= t < end)
        assert mean == pytest.approx(area / (high - low), abs=1e-12)


@given(
    st.lists(st.tuples(MS, st.integers(-50, 50)), max_size=15).map(sorted), st.lists(MS, max_size=5),
    st.integers(1, 8).map(lambda half: 2 * half),
)  # fmt: skip
def test_window_means_average_values(points: list[tuple[int, int]], at: list[int], width: int) -> None:
    times, values = (np.asarray([p[n] for p in points], dtype=np.int64) for n in range(2))
    found = window_means(times, values, np.asarray(at, dtype=np.int64), width)
    for mean, middle in zip(found, at, strict=True):
        near = [value for time, value in points if middle - width // 2 <= time < middle + width // 2]
        assert np.isnan(mean) if not near else mean == pytest.approx(sum(near) / len(near), abs=1e-12)


def shares(experiment: Experiment, scheme: str, low: int, high: int) -> tuple[float, float, float, float]:
    """Utilization, of which opportunistic, nodes unable to give all their GPUs, of which partly used; from the CSVs."""
    hardware = read_hardware(experiment.folder / "spec.yaml")
    runs = [run for _, run in experiment[scheme].all_runs()]
    instants = {low, high, *(time for run in runs for time in (run.start, run.end) if low < time < high)}
    held = lent = unable = partly = Fraction(0)
    for start, end in itertools.pairwise(sorted(instants)):
        now = [run for run in runs if run.start <= start < run.end]
        used: dict[str, int] = {}
        for run in now:
            if run.kind == "guaranteed":
                for node, devices in run.placement:
                    used[node] = used.get(node, 0) + len(devices)
        held += (end - start) * sum(len(run.held) for run in now)
        lent += (end - start) * sum(len(run.held) for run in now if run.kind == "opportunistic")
        unable += (end - start) * len(used)
        partly += (end - start) * sum(count < 8 for count in used.values())
    whole, nodes = (high - low) * hardware.gpus, (high - low) * 5
    return float(held / whole), float(lent / whole), float(unable / nodes), float(partly / nodes)


@pytest.mark.parametrize("scheme", list(Sharing))
def test_series_are_what_the_files_say(experiment: Experiment, scheme: Sharing) -> None:
    results = experiment.results
    record = next(record for record in results.records if record.scheme == scheme.value)
    found = series(results, record, bin_ms=50_000)
    assert found.edges[-1] == results.trace.jobs[-1].submit_ms
    bins = zip(found.utilization, found.opportunistic, found.fragmentation, found.partly_used, strict=True)
    for low, high, values in zip(found.edges, found.edges[1:], bins, strict=False):
        assert values == pytest.approx(shares(experiment, scheme.value, int(low), int(high)), abs=1e-12)


def test_jobs_that_every_scheme_finished(experiment: Experiment) -> None:
    """They alone are compared."""
    chosen = comparable_jobs(experiment.results)
    for number, job in enumerate(experiment.results.trace.jobs):
        assert chosen[number] == all(outcome.jobs[job.job_id].finished for outcome in experiment.outcomes.values())
    assert 0 < chosen.sum() < len(chosen)
    for record in experiment.results.records:
        waited = [queue for queue, mine in zip(queues(record), chosen, strict=True) if mine]
        told = zip(experiment[record.scheme].jobs.values(), chosen, strict=True)
        assert waited == [job.queue for job, mine in told if mine]


def test_centuries_are_not_measured_by_the_hour(tmp_path: Path) -> None:
    """Times up to 10**12 s are allowed: an hour each would be 278 million points, more than memory holds."""
    trace = trace_text([("j", "a", 0, 10, 1), ("k", "a", 10**10, 10, 1)])
    found = simulated(tmp_path, nodes_of_8(1, {"a": 1}), trace, schemes=["hived"])
    assert len(series(found.results, found.results.records[0]).edges) < 1_000_000


def test_an_interval_by_hand() -> None:
    """Squares of the deviations from 6: 16 + 4 + 0 + 4 + 16 = 40; s² = 40 / 4; s / √5 = √2; t of 4 is 2.7764."""
    found = estimate([2, 4, 6, 8, 10])
    assert (found.mean, found.values) == (6, 5)
    assert found.half == pytest.approx(2.776445105 * math.sqrt(2))


@pytest.mark.parametrize(
    ("freedom", "t95", "t99"),
    [(1, 12.7062, 63.6567), (2, 4.3027, 9.9248), (9, 2.2622, 3.2498), (10, 2.2281, 3.1693), (120, 1.9799, 2.6174)],
)
def test_students_t_is_that_of_the_tables(freedom: int, t95: float, t99: float) -> None:
    assert student_t(0.95, freedom) == pytest.approx(t95, abs=6e-5)
    assert student_t(0.99, freedom) == pytest.approx(t99, abs=6e-5)


def test_special_values_of_an_interval() -> None:
    """One has no interval, none no mean; an infinite one makes the mean infinite, equal ones the interval zero."""
    assert (estimate([3.5]).mean, estimate([3.5]).half) == (3.5, None)
    assert math.isnan(estimate([]).mean)
    found = estimate([1.0, math.inf])
    assert (found.mean, found.half) == (math.inf, None)
    assert estimate([0.1] * 7).half == 0
