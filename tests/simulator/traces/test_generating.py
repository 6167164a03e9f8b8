"""The synthetic trace: Table 1 exactly, the real statistics nearly, the same bytes always."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.errors import InputError
from hived.simulator.traces import MS, SIZE_CLASSES, TABLE1, Trace, generate_table1, size_class, write_trace
from hived.simulator.traces.generating import apportion
from hived.simulator.traces.philly_statistics import philly
from hived.simulator.traces.table1 import TOTAL_JOBS

from ...strategies import given_in_tiers


@cache
def whole() -> Trace:
    return generate_table1()


def test_table_1_is_the_papers() -> None:
    assert sum(sum(row.jobs) for row in TABLE1) == TOTAL_JOBS == 141_950
    assert [sum(row.jobs[place] for row in TABLE1) for place in range(5)] == [115203, 2926, 10726, 10795, 2300]
    assert sum(row.quota_percent for row in TABLE1) == pytest.approx(100)


def test_the_whole_trace_is_table_1s() -> None:
    """Its jobs exactly, in order, in whole seconds within the days; and it says that it is synthetic."""
    trace = whole()
    counts = Counter((job.tenant, size_class(job.gpus)) for job in trace.jobs)
    assert counts == +Counter({(row.tenant, place): row.jobs[place] for row in TABLE1 for place in range(5)})
    assert {job.gpus for job in trace.jobs} == {1, 2, 4, 8, 16, 24, 32, 48}
    assert trace.synthetic
    assert trace.name == "table1-141950-jobs-60-days-seed-1"
    assert all(job.job_id.startswith("synthetic-") for job in trace.jobs)
    assert len({job.job_id for job in trace.jobs}) == TOTAL_JOBS
    submits = [job.submit_ms for job in trace.jobs]
    assert submits == sorted(submits)
    assert 0 <= submits[0] < submits[-1] < 60 * 86_400 * MS
    assert all(job.submit_ms % MS == job.duration_ms % MS == 0 < job.duration_ms for job in trace.jobs)


def test_mean_durations_are_the_real_ones() -> None:
    for kind in philly().durations:
        seconds = [
            job.duration_ms / MS
            for job in whole().jobs
            if kind.from_gpus <= job.gpus <= kind.to_gpus
            and (kind.group is None or job.tenant.startswith(f"{kind.group}-"))
        ]
        assert sum(seconds) / len(seconds) == pytest.approx(kind.seconds.mean, rel=0.03), kind


def test_shares_of_passed_jobs_are_real() -> None:
    jobs = Counter(size_class(job.gpus) for job in whole().jobs)
    passed = Counter(size_class(job.gpus) for job in whole().jobs if job.status == "pass")
    assert {job.status for job in whole().jobs} == {"pass", "killed_or_failed"}
    assert [passed[place] / jobs[place] for place in range(5)] == pytest.approx(philly().pass_shares, abs=0.001)


def test_sweeps_and_fewer_jobs_at_weekends() -> None:
    sweepers = [job.submit_ms for job in whole().jobs if job.tenant == "res-c"]
    gaps = [after - before for before, after in pairwise(sweepers)]
    assert sum(gap <= 60 * MS for gap in gaps) > 0.8 * len(gaps)
    weekday = Counter(job.submit_ms // (86_400 * MS) % 7 for job in whole().jobs)
    assert weekday[0] < min(weekday[day] for day in range(1, 6))  # day 0 is a Sunday


def test_a_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """On every machine; and another seed gives other jobs."""
    write_trace(generate_table1(5000, 7, 3), tmp_path / "t.csv")
    digest = hashlib.sha256((tmp_path / "t.csv").read_bytes()).hexdigest()
    assert digest == "aefb67eeb408d8b6de42ae8b8ce7a088db6d3fc7b9eae204afb002de8e33b5f8"
    assert generate_table1(1000, 7, 1).jobs != generate_table1(1000, 7, 2).jobs


@given_in_tiers(8, 60, st.integers(1, 3000), st.integers(1, 400), st.integers(0, 2**70))
def test_any_number_of_jobs_and_days(jobs: int, days: int, seed: int) -> None:
    trace = generate_table1(jobs, days, seed)
    assert len(trace.jobs) == jobs
    assert all(0 <= job.submit_ms < days * 86_400 * MS for job in trace.jobs)
    assert all(job.gpus >= 1 and job.duration_ms >= MS for job in trace.jobs)
    for row in TABLE1:
        mine = sum(job.tenant == row.tenant for job in trace.jobs)
        assert abs(mine - jobs * sum(row.jobs) / TOTAL_JOBS) < len(SIZE_CLASSES)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20).filter(any), st.integers(0, 10_000))
def test_parts_by_largest_remainder(weights: list[int], total: int) -> None:
    parts = apportion(weights, total)
    assert sum(parts) == total
    shares = [total * weight / sum(weights) for weight in weights]
    assert all(abs(part - share) < 1 for part, share in zip(parts, shares, strict=True))


@pytest.mark.parametrize(
    ("jobs", "days", "seed", "message"),
    [
        (0, 60, 1, "0 jobs cannot be generated: give 1 to 10000000"),
        (10**8, 60, 1, "100000000 jobs cannot be generated: give 1 to 10000000"),
        (10, 0, 1, "a trace of 0 days cannot be generated: give 1 to 10000"),
        (10, 10**5, 1, "a trace of 100000 days cannot be generated: give 1 to 10000"),
        (10, 60, -1, "-1 is no seed: give a whole number from 0 on"),
    ],
)
def test_senseless_wishes_are_refused(jobs: int, days: int, seed: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate_table1(jobs, days, seed)
