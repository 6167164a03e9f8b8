"""A compressed clock moves submissions, exactly, and nothing else."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.errors import InputError
from hived.simulator.traces import Trace, compress_clock

from .helpers import job


def test_submissions_come_closer_and_durations_stay() -> None:
    trace = Trace("t", (job("a", 0, 7), job("b", 3000, 9)), synthetic=True, dropped=(("why", 1),))
    faster = compress_clock(trace, 1.5)
    assert [(job.submit_ms, job.duration_ms) for job in faster.jobs] == [(0, 7), (2000, 9)]
    assert (faster.name, faster.synthetic, faster.dropped) == ("t, clock x1.5", True, (("why", 1),))


def test_a_factor_of_one_changes_nothing() -> None:
    trace = Trace("t", (job(),))
    assert compress_clock(trace, 1.0) is trace


def test_halves_of_a_millisecond_are_rounded_up() -> None:
    trace = Trace("t", tuple(job(str(ms), ms) for ms in (1, 2, 3)))
    assert [job.submit_ms for job in compress_clock(trace, 2).jobs] == [1, 1, 2]


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0.01, 1000))
def test_every_time_is_within_half_a_millisecond_of_the_exact_one(times: list[int], factor: float) -> None:
    trace = Trace("t", tuple(job(str(at), ms) for at, ms in enumerate(sorted(times))))
    moved = [job.submit_ms for job in compress_clock(trace, factor).jobs]
    assert moved == sorted(moved)
    for before, after in zip(sorted(times), moved, strict=True):
        assert abs(after - before / Fraction(factor)) <= Fraction(1, 2)


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), -0.0])
def test_a_factor_that_is_no_positive_number_is_refused(factor: float) -> None:
    with pytest.raises(InputError, match=r"the clock cannot be compressed by .*: give a finite factor above 0"):
        compress_clock(Trace("t", (job(),)), factor)


def test_a_factor_that_throws_times_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="runs past 1000000000000 seconds: give a larger factor"):
        compress_clock(Trace("t", (job(submit_ms=1),)), 1e-300)
