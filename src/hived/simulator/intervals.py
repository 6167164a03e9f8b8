"""Means of repeated runs, with confidence intervals by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and half the width of its confidence interval."""

    mean: float  #: NaN for no values
    half: float | None  #: None for fewer than two values, or one that is infinite
    values: int


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The mean of independent values and its interval: mean ± t s / √n, t of n - 1 degrees of freedom. O(n).

    >>> two = estimate([2.0, 4.0])
    >>> two.mean, round(two.half or 0, 3), two.values
    (3.0, 12.706, 2)
    """
    number = len(values)
    if not number:
        return Estimate(math.nan, None, 0)
    mean = math.fsum(values) / number if all(map(math.isfinite, values)) else sum(values) / number
    if number < 2 or not math.isfinite(mean):
        return Estimate(mean, None, number)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (number - 1))
    return Estimate(mean, student_t(confidence, number - 1) * deviation / math.sqrt(number), number)


@lru_cache
def student_t(confidence: float, freedom: int) -> float:
    """The t that a variable of ``freedom`` degrees of freedom exceeds neither up nor down with this probability.

    By bisection of the distribution. ``freedom`` is at least 1.

    >>> [round(student_t(0.95, freedom), 3) for freedom in (1, 2, 19, 1000)]
    [12.706, 4.303, 2.093, 1.962]
    """
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """P(-t <= T <= t): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for step in range(odd, freedom - 1, 2):
        total += term
        term *= square * (step + 1) / (step + 2)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
