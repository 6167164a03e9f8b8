"""Which of many intervals hold at a moment: the question that every picture of a finished simulation begins with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Timeline:
    """Half-open intervals ``start <= moment < end``. Numbers in answers are those of the arrays given.

    >>> Timeline(np.array([0, 2, 5]), np.array([4, 9, 6])).at(5).tolist()
    [1, 2]
    """

    __slots__ = ("_ends", "_order", "_sorted_ends", "_sorted_starts", "_starts")

    def __init__(self, starts: Ints, ends: Ints) -> None:
        self._order = np.argsort(starts, kind="stable")
        self._starts, self._ends = starts[self._order], ends[self._order]
        lasts = self._ends > self._starts
        self._sorted_starts, self._sorted_ends = self._starts[lasts], np.sort(self._ends[lasts])

    def at(self, moment: int) -> Ints:
        """Numbers of the intervals that hold, in order of their starts. O(those that have started)."""
        started = int(np.searchsorted(self._starts, moment, side="right"))
        return self._order[:started][self._ends[:started] > moment]

    def counts(self, moments: Ints) -> Ints:
        """How many hold at each moment. O(log n) each."""
        started = np.searchsorted(self._sorted_starts, moments, side="right")
        return np.asarray(started - np.searchsorted(self._sorted_ends, moments, side="right"), dtype=np.int64)
