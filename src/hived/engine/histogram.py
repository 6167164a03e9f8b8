"""A histogram of durations, as Prometheus exports one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

#: upper bounds of its buckets, in seconds: from what nobody notices to a week
WAITS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)


class Histogram:
    """Counts of values by bucket, and their sum. Memory O(buckets); a value costs O(log buckets)."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value; one below 0 (a clock was set back) as 0."""
        value = max(0.0, value)
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Upper bounds as text, the last one ``+Inf``, each with the number of values at most so large.

        >>> waits = Histogram((1.0, 60.0))
        >>> for seconds in (0.5, 30.0, 90.0):
        ...     waits.add(seconds)
        >>> list(waits.cumulative()), waits.sum
        ([('1.0', 1), ('60.0', 2), ('+Inf', 3)], 120.5)
        """
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield bound, total
