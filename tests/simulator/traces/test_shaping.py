"""A compressed clock moves submissions, exactly, and nothing else; windows, samples and filters choose jobs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.errors import InputError
from hived.simulator.traces import Trace, TraceJob, compress_clock, cut_window, filter_jobs, read_window, sample_jobs

from .helpers import job


def test_submissions_come_closer() -> None:
    """Rounded half up; a factor of one changes nothing."""
    trace = Trace("t", (job("a", 0, 7), job("b", 3000, 9)), synthetic=True, dropped=(("why", 1),))
    faster = compress_clock(trace, 1.5)
    assert [(job.submit_ms, job.duration_ms) for job in faster.jobs] == [(0, 7), (2000, 9)]
    assert (faster.name, faster.synthetic, faster.dropped) == ("t, clock x1.5", True, (("why", 1),))
    near = Trace("t", tuple(job(str(ms), ms) for ms in (1, 2, 3)))
    assert [job.submit_ms for job in compress_clock(near, 2).jobs] == [1, 1, 2]
    assert compress_clock(trace, 1.0) is trace


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0.01, 1000))
def test_times_are_within_half_a_millisecond(times: list[int], factor: float) -> None:
    trace = Trace("t", tuple(job(str(at), ms) for at, ms in enumerate(sorted(times))))
    moved = [job.submit_ms for job in compress_clock(trace, factor).jobs]
    assert moved == sorted(moved)
    for before, after in zip(sorted(times), moved, strict=True):
        assert abs(after - before / Fraction(factor)) <= Fraction(1, 2)


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), -0.0])
def test_a_wrong_factor_is_refused(factor: float) -> None:
    with pytest.raises(InputError, match=r"the clock cannot be compressed by .*: give a finite factor above 0"):
        compress_clock(Trace("t", (job(),)), factor)
    with pytest.raises(InputError, match="runs past 1000000000000 seconds: give a larger factor"):
        compress_clock(Trace("t", (job(submit_ms=1),)), 1e-300)


DAY = 86_400_000
WEEK = Trace(
    "week",
    tuple(
        job(f"j{n}", n * DAY // 2, (n + 1) * 1_800_000, n % 4 + 1, "ab"[n % 2])._replace(
            user=("", "ann", "bob's")[n % 3], model="BERT" if n % 2 else "", priority=n
        )
        for n in range(14)
    ),
    synthetic=True,
    dropped=(("why", 1),),
)


@pytest.mark.parametrize(
    ("text", "jobs", "name"),
    [
        ("1:2", ["j2", "j3"], "week, days 1:2"),
        ("0.5:1", ["j1"], "week, days 0.5:1"),
        (":1", ["j0", "j1"], "week, days 0:1"),
        ("6:", ["j12", "j13"], "week, days from 6 on"),
    ],
)
def test_a_window_has_the_jobs_of_its_days(text: str, jobs: list[str], name: str) -> None:
    first, last = read_window(text)
    cut = cut_window(WEEK, first, last)
    assert [job.job_id for job in cut.jobs] == jobs
    by_id = {job.job_id: job for job in WEEK.jobs}
    assert all(by_id[job.job_id].submit_ms - job.submit_ms == first * DAY for job in cut.jobs)
    assert (cut.name, cut.synthetic, cut.dropped) == (name, True, (("why", 1),))


def test_a_wrong_window_is_refused() -> None:
    for text in ("", "5", "1-2", "x:2", "1:2:3"):
        with pytest.raises(InputError, match=r"window .*: give two days, DAY:DAY, for example 10:20"):
            read_window(text)
    for first, last in ((2, 1), (1, 1), (-1, 3), (float("nan"), 3), (0, float("inf"))):
        with pytest.raises(InputError, match=r"window .*: give two days from 0 on, the earlier one first"):
            cut_window(WEEK, first, last)
    with pytest.raises(InputError) as caught:
        cut_window(WEEK, 70, 80)
    assert str(caught.value) == (
        "week: no job is submitted on days 70:80: the trace has 14 jobs, submitted on days 0.00 to 6.50, "
        "of 1 to 4 GPUs and 1800 to 25200 s"
    )


def test_a_sample_is_the_same_everywhere() -> None:
    kept = [job.job_id for job in sample_jobs(WEEK, 0.5, 3).jobs]
    assert kept == ["j0", "j1", "j2", "j8", "j9", "j11", "j13"]
    later = cut_window(WEEK, 3, 7)
    assert [job.job_id for job in sample_jobs(later, 0.5, 3).jobs] == kept[-4:]


def test_a_larger_sample_keeps_the_smaller() -> None:
    many = Trace("t", tuple(job(str(n), n) for n in range(5000)))
    small, large = sample_jobs(many, 0.04, 3), sample_jobs(many, 0.2, 3)
    assert set(small.jobs) < set(large.jobs)
    assert 150 < len(small.jobs) < 250
    assert 900 < len(large.jobs) < 1100
    assert len({*small.jobs, *sample_jobs(many, 0.04, 4).jobs}) > 1.8 * len(small.jobs)
    assert small.name == "t, sample 0.04 seed 3"
    assert sample_jobs(many, 1, 3).jobs == many.jobs


def test_a_wrong_sample_is_refused() -> None:
    for share in (0, -0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="give the share of the jobs to keep, above 0, at most 1"):
            sample_jobs(WEEK, share, 1)
    with pytest.raises(InputError, match="week: a sample of 1e-09 with seed 1 has no job: the trace has 14 jobs"):
        sample_jobs(WEEK, 1e-9, 1)


@pytest.mark.parametrize(
    ("expression", "meets"),
    [
        ("gpus >= 3 and duration > 3600", lambda job: job.gpus >= 3 and job.duration_ms > 3_600_000),
        ("gpus in (1, 4)", lambda job: job.gpus in (1, 4)),
        ("user = 'ann' or user is null", lambda job: job.user == "ann"),
        ("user == 'bob''s'", lambda job: job.user == "bob's"),
        ("\"user\" like '%user%' or tenant = 'a'", lambda job: job.tenant == "a"),
        ("model like 'B%' and not priority between 3 and 7", lambda job: job.model and not 3 <= job.priority <= 7),
        ("submit < 86400", lambda job: job.submit_ms < DAY),
        ("job_id <> 'j0' and status = 'pass'", lambda job: job.job_id != "j0"),
        ("1 = 1", lambda job: True),
    ],
)
def test_a_filter_keeps_jobs(expression: str, meets: Callable[[TraceJob], bool]) -> None:
    kept = filter_jobs(WEEK, expression)
    assert kept.jobs == tuple(job for job in WEEK.jobs if meets(job))
    assert kept.name == f"week, {expression}"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("gpus >=", "unable to parse"),
        ("", "unable to parse"),
        ("colour = 3", 'unable to find column "colour"; columns are job_id, tenant, user, model, gpus, priority'),
        ('tenant = "a"', 'unable to find column "a"; .*; text is in single quotes'),
        ("gpus > 'many'", "cannot compare string with numeric type"),
        ("gpus + 1", "is not true or false of a job; compare something"),
        ("select gpus from jobs", "expected an expression"),
        ("read_csv('/etc/passwd') = 1", "unsupported function 'read_csv'"),
        ("columns('[a-z]*')", "is not true or false of a job"),
        ("greatest() rlike not null", "filter 'greatest"),  # Polars panicked
        ("gpus > 100", "week: no job meets the filter 'gpus > 100': the trace has 14 jobs"),
    ],
)
def test_a_wrong_filter_is_refused(expression: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        filter_jobs(WEEK, expression)
    assert "\n" not in str(caught.value)
