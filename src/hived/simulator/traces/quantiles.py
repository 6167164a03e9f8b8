"""A distribution summarised by a few quantiles, from which values can be drawn.

value                        Between two quantiles the curve bends, so that the mean of every
|                     .      piece is the mean of the data there: with heavy tails, straight or
|                   .'       log-straight lines would be wrong by tens of percent in the sum.
|               ..'
|       .....'''             value(t) = low + (high - low) * t / (t + bend * (1 - t)),  0 <= t <= 1
+-----------------> rank     bend 1: straight; above 1: low for long, then steep
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEEPEST = 1e6


@dataclass(frozen=True, slots=True)
class QuantileTable:
    """A summary of ``count`` sorted values by those at a few ranks."""

    count: int  #: number of values summarised
    mean: float  #: of all values
    ranks: tuple[int, ...]  #: from 0 to ``count``, increasing
    values: tuple[float, ...]  #: the sorted values at these ranks; the last is the largest
    bends: tuple[float, ...]  #: one for each piece between two ranks; above 0

    def at(self, shares: Floats) -> Floats:
        """The values below which these ``shares`` (0 to 1) of all values lie. Shape kept; O(n log points).

        Only the four basic operations, each correctly rounded: the same bits on every machine.
        """
        ranks = np.asarray(self.ranks, dtype=np.float64)
        values = np.asarray(self.values, dtype=np.float64)
        bends = np.asarray(self.bends, dtype=np.float64)
        wanted = shares * float(self.count)
        piece = np.minimum(np.searchsorted(ranks, wanted, side="right") - 1, len(bends) - 1)
        along = (wanted - ranks[piece]) / (ranks[piece + 1] - ranks[piece])
        curve = along / (along + bends[piece] * (1.0 - along))
        low = values[piece]
        return np.asarray(low + (values[piece + 1] - low) * curve)


def summarise(data: list[int], shares: tuple[float, ...]) -> QuantileTable:
    """The table of ``data`` at these ``shares`` (0 and 1 are added). O(n log n).

    Raises :class:`ValueError` for no data.
    """
    if not data:
        raise ValueError("no data to summarise")
    ordered = sorted(data)
    count = len(ordered)
    ranks = sorted({0, count, *(min(count, int(share * count)) for share in shares)})
    values = [float(ordered[min(rank, count - 1)]) for rank in ranks]
    bends = []
    for first, after, low, high in zip(ranks, ranks[1:], values, values[1:], strict=False):
        mean = sum(ordered[first:after]) / (after - first)
        bends.append(_bend((mean - low) / (high - low)) if high > low else 1.0)
    mean = float(f"{sum(ordered) / count:.7g}")
    return QuantileTable(count, mean, tuple(ranks), tuple(values), tuple(bends))


def _bend(mean: float) -> float:
    """The bend whose curve from 0 to 1 has this ``mean``, by bisection; to 4 digits."""
    low, high = 1 / _STEEPEST, _STEEPEST
    for _ in range(100):
        middle = math.sqrt(low * high)
        if _curve_mean(middle) > mean:
            low = middle
        else:
            high = middle
    return float(f"{math.sqrt(low * high):.4g}")


def _curve_mean(bend: float) -> float:
    """The integral of ``t / (t + bend * (1 - t))`` over 0 to 1."""
    gap = 1 - bend
    if abs(gap) < 1e-4:
        return 0.5 + gap / 6
    return 1 / gap + bend * math.log(bend) / gap**2
