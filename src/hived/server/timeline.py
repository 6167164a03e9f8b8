"""Which of many intervals hold at a moment: the question that every picture of a finished simulation begins with.

Intervals are numbered in order of their starts. Every so often the numbers of all that hold at that point are kept, so
a question looks through the last such list before the moment and the intervals that have started since:

    kept at interval 0        kept at 3                  moment
    |  0 ======               |                          :
    |     1 =================== ==================       :           [1, 2]  still hold?
    |        2 ================ =========================:====
    |                         | 3 ======                 :           3, 4    started since: still hold?
    |                         |        4 ================:=======
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_FEWEST_BETWEEN = 1024


class Timeline:
    """Half-open intervals ``start <= moment < end``. Numbers in answers are those of the arrays given.

    Built in O(n log n); memory O(n): after a list of ``m`` numbers at least ``m`` intervals pass before the next one.

    >>> Timeline(np.array([0, 2, 5]), np.array([4, 9, 6])).at(5).tolist()
    [1, 2]
    """

    __slots__ = ("_ends", "_kept", "_kept_at", "_order", "_sorted_ends", "_starts")

    def __init__(self, starts: Ints, ends: Ints) -> None:
        self._order = np.argsort(starts, kind="stable")
        self._starts = starts[self._order]
        self._ends = ends[self._order]
        self._sorted_ends = np.sort(ends[ends > starts])
        #: places in the order before which a list is kept, and the lists: places of those that hold as the last before
        #: it starts
        self._kept_at: list[int] = [0]
        self._kept: list[Ints] = [np.zeros(0, dtype=np.int64)]
        place, count = 0, len(starts)
        while place < count:
            following = min(count, place + max(_FEWEST_BETWEEN, len(self._kept[-1])))
            if following < count:
                hold = np.concatenate((self._kept[-1], np.arange(place, following)))
                self._kept.append(hold[self._ends[hold] > self._starts[following - 1]])  # asked from that moment on
                self._kept_at.append(following)
            place = following

    def at(self, moment: int) -> Ints:
        """Numbers of the intervals that hold, in order of their starts. O(log n + those that hold at about then)."""
        started = int(np.searchsorted(self._starts, moment, side="right"))
        last = int(np.searchsorted(self._kept_at, started, side="right")) - 1
        places = np.concatenate((self._kept[last], np.arange(self._kept_at[last], started)))
        return self._order[places[self._ends[places] > moment]]

    def counts(self, moments: Ints) -> Ints:
        """How many hold at each moment. O(log n) each."""
        first = self._starts[self._ends > self._starts] if len(self._sorted_ends) < len(self._starts) else self._starts
        started = np.searchsorted(first, moments, side="right")
        return np.asarray(started - np.searchsorted(self._sorted_ends, moments, side="right"), dtype=np.int64)
