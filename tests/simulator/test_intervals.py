"""Means and their confidence intervals, against cases computed by hand and against a printed table."""

from __future__ import annotations

import math
import statistics

import pytest

from hived.simulator.intervals import estimate, student_t


def test_a_case_computed_by_hand() -> None:
    """Squares of the deviations from 6: 16 + 4 + 0 + 4 + 16 = 40; s² = 40 / 4; s / √5 = √2; t of 4 is 2.7764."""
    found = estimate([2, 4, 6, 8, 10])
    assert (found.mean, found.values) == (6, 5)
    assert found.half == pytest.approx(2.776445105 * math.sqrt(2))


@pytest.mark.parametrize(
    ("freedom", "t95", "t99"),
    [(1, 12.7062, 63.6567), (2, 4.3027, 9.9248), (3, 3.1824, 5.8409), (4, 2.7764, 4.6041), (5, 2.5706, 4.0321),
     (9, 2.2622, 3.2498), (10, 2.2281, 3.1693), (19, 2.0930, 2.8609), (30, 2.0423, 2.7500), (120, 1.9799, 2.6174)],
)  # fmt: skip
def test_students_t_is_that_of_the_tables(freedom: int, t95: float, t99: float) -> None:
    assert student_t(0.95, freedom) == pytest.approx(t95, abs=6e-5)
    assert student_t(0.99, freedom) == pytest.approx(t99, abs=6e-5)


def test_with_much_freedom_it_is_normal() -> None:
    assert student_t(0.95, 100_000) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), abs=1e-4)


def test_special_values() -> None:
    """One has no interval, none no mean; an infinite one makes the mean infinite, equal ones the interval zero."""
    assert (estimate([3.5]).mean, estimate([3.5]).half) == (3.5, None)
    assert math.isnan(estimate([]).mean)
    found = estimate([1.0, math.inf])
    assert (found.mean, found.half) == (math.inf, None)
    assert estimate([0.1] * 7).half == 0
