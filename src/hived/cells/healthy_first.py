"""Allocation around bad hardware: a healthy cell wherever sharing safety leaves one obtainable.

HiveD's Algorithm 1 (OSDI'20, section 3.3) takes from the lowest level that has a free cell. The free cells there may be
bad while higher cells are healthy. Taking from level j for a request at level k, although lower cells are free, reduces
the margins of equations 1 and 2 (:mod:`hived.cells.safety`): at j by one, since a free cell is taken; at every level
between by one, since it gets all children but one of a cell that could have been split for it later; at k not at all,
since the request was counted as reserved:

    level    margin falls by                   free bad cell at level 1, healthy ones at level 3, a request at level 1:
    j        1                                 it may be served from level 3 when the margins at levels 3 and 2 are 1 or
    ...      1                                 more, and must be served with the bad cell otherwise
    k        0

So a request at ``k`` may be served from ``j`` exactly when the margins at k+1 .. j are at least one; if nothing is free
below ``j``, that holds for every legal request (which is why Algorithm 1 is safe). The paper has no bad hardware in its
algorithm; Microsoft's implementation of HiveD binds virtual cells that cannot get healthy hardware to *doomed bad*
cells, which :meth:`Supply.shortage` counts.

Of the cells of one level that may be split, a bad one that contains a healthy cell of the requested level goes first,
and so on down. The margins fall alike, but a VC that reserved such a cell whole has no use for a bad one:

    rack 0   rack 1     one VC reserved a node, another a rack; node x is bad. The request for the node gets the one
    [x o]    [o o]      beside x: with one of rack 1 it would leave the other VC a bad rack

Healthy cells of a level are equivalent here, so they are counted; bad cells are few and handled one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from .hierarchy import Hierarchy


class FreeCells(Protocol):
    """What is read of the allocator of a chain (:class:`~.buddy.BuddyAllocator`)."""

    @property
    def hierarchy(self) -> Hierarchy: ...
    @property
    def levels(self) -> range: ...
    @property
    def free(self) -> list[int]: ...
    @property
    def free_bad(self) -> list[set[int]]: ...
    @property
    def bad(self) -> list[dict[int, int]]: ...
    @property
    def bad_under(self) -> list[dict[int, set[int]]]: ...
    def margins(self) -> list[int]: ...
    def badness(self, level: int, cell: int) -> tuple[int, int, int]: ...


class Source(NamedTuple):
    """The free cell that serves a request."""

    level: int  #: the level of the free cell
    cell: int  #: -1: any healthy one of that level
    healthy: bool  #: whether it is, or contains, a healthy cell of the requested level


def holds_healthy(cells: FreeCells, k: int, cell: int, level: int) -> bool:
    """Whether a cell at ``k`` is, or contains, a healthy cell of ``level``. O(bad cells inside)."""
    if cell not in cells.bad[k]:
        return True
    if k == level:
        return False
    inside = cells.bad_under[k - 1][cell]
    return len(inside) < cells.hierarchy.fanout[k] or any(holds_healthy(cells, k - 1, child, level) for child in inside)


def bad_child_towards(cells: FreeCells, k: int, cell: int, level: int) -> int:
    """The bad child of a bad cell at ``k`` to split next towards ``level``; -1 for a healthy child.

    The least bad of those that contain a healthy cell of ``level`` (above it only: at ``level`` none does); if none
    does, a healthy child if there is one, else the least bad. O(bad cells inside).
    """
    inside = cells.bad_under[k - 1][cell]
    useful = [child for child in inside if holds_healthy(cells, k - 1, child, level)]
    if not useful and len(inside) < cells.hierarchy.fanout[k]:
        return -1
    return min(cells.badness(k - 1, child) for child in useful or inside)[2]


def surely_healthy(cells: FreeCells, wanted: Sequence[int]) -> bool:
    """A sufficient condition that no cell of ``wanted`` would be bad, without a scan of the bad cells. O(levels).

    ``False`` may be wrong: healthy cells inside bad ones are not counted, but every bad cell that may be split for one,
    before a healthy cell is split, is subtracted from the margin of its level.
    """
    hierarchy, margins = cells.hierarchy, cells.margins()
    spare = splits = 0
    lower = sum(wanted)
    for k in range(hierarchy.top, cells.levels.start - 1, -1):
        left = cells.free[k] - len(cells.free_bad[k]) + spare - wanted[k]
        if left < 0:
            return False
        lower -= wanted[k]
        # bad cells at k that will be split: of the free ones and those in bad cells above, one per lower request
        splits = min(len(cells.bad[k]), len(cells.free_bad[k]) + hierarchy.fanout[k + 1] * splits, lower)
        spare = hierarchy.fanout[k] * min(left, max(0, margins[k] - splits))
    return True


class Supply:
    """The free cells of a chain, for one decision or for a trial of many without a change of the allocator."""

    def __init__(self, cells: FreeCells) -> None:
        self._cells = cells
        # per level: the free bad cells (the allocator's own sets, except in a trial), and the number of healthy ones
        self._bad = cells.free_bad
        self._healthy = [number - len(bad) for number, bad in zip(cells.free, cells.free_bad, strict=True)]
        self._margin = cells.margins()
        self._level = 0
        # per level, lazily: a heap of its free bad cells as (contains no healthy cell of the target level, badness)
        self._queues: dict[int, list[tuple[bool, tuple[int, int, int]]]] = {}

    def _rank(self, k: int, cell: int) -> tuple[bool, tuple[int, int, int]]:
        return not holds_healthy(self._cells, k, cell, self._level), self._cells.badness(k, cell)

    def _queue(self, k: int) -> list[tuple[bool, tuple[int, int, int]]]:
        if k not in self._queues:
            self._queues[k] = sorted([self._rank(k, cell) for cell in self._bad[k]])  # which is a heap
        return self._queues[k]

    def highest(self, level: int) -> int:
        """The highest level whose free cells may serve a request at ``level``: within margins, or by Algorithm 1."""
        top = self._cells.hierarchy.top
        safe = next((k for k in range(level, top) if self._margin[k + 1] <= 0), top)
        lowest = next((k for k in range(level, top) if self._healthy[k] or self._bad[k]), top)
        return max(safe, lowest)

    def source(self, level: int) -> Source | None:
        """The free cell that serves a request at ``level``; ``None`` if none is. O(levels + bad cells in free ones).

        On the lowest level that may be split and has a healthy cell of ``level``: the least bad of the bad cells that
        contain one, else a healthy cell. Without such a level: the least bad cell of the lowest level with a free one.
        """
        if level != self._level:
            self._level = level
            self._queues.clear()
        last_resort = None
        for k in range(level, self.highest(level) + 1):
            if self._bad[k] and (k > level or not self._healthy[k]):
                useless, (_, _, cell) = self._queue(k)[0]
                if not useless:
                    return Source(k, cell, True)
                if last_resort is None:
                    last_resort = Source(k, cell, False)
            if self._healthy[k]:
                return Source(k, -1, True)
        return last_resort

    def shortage(self, wanted: Sequence[int]) -> list[int]:
        """How many of ``wanted`` cells per level are bad when all are taken, higher levels first.

        Simulates the allocator, but takes healthy cells in bulk and bad ones one by one.
        O(levels^2 + levels * b log b) for b bad cells.
        """
        short = [0] * len(wanted)
        self._bad = [set(cells) for cells in self._bad]
        for level in range(len(wanted) - 1, 0, -1):
            left = wanted[level]
            while left > 0:
                source = self.source(level)
                if source is None:  # more cells are wanted than are free
                    break
                if source.cell < 0:
                    left -= self._take_healthy(source.level, left)
                    continue
                self._take_bad(source.level, source.cell)
                left -= 1
                if not source.healthy:
                    short[level] += 1
        return short

    def _take_healthy(self, k: int, wanted: int) -> int:
        """Serve requests from healthy cells at ``k``, the best source; returns the number served.

        Takes as many whole cells as will be used up and the margins allow; else one cell of the target level from one
        cell of ``k``. The source stays the best meanwhile: children of a healthy cell are healthy, so no bad cell
        becomes useful.
        """
        level, gpus, margin = self._level, self._cells.hierarchy.gpus, self._margin
        whole = min(self._healthy[k], wanted * gpus[level] // gpus[k])
        for i in range(level + 1, k + 1):
            whole = min(whole, margin[i] * gpus[i] // gpus[k])
        if whole < 1:
            self._healthy[k] -= 1
            self._split_healthy(k)
            return 1
        self._healthy[k] -= whole
        for i in range(level + 1, k + 1):
            margin[i] -= whole * (gpus[k] // gpus[i])
        return whole * (gpus[k] // gpus[level])

    def _split_healthy(self, k: int) -> None:
        """Split one healthy cell, taken at ``k``, down to one of the target level."""
        for i in range(k, self._level, -1):
            self._margin[i] -= 1
            self._healthy[i - 1] += self._cells.hierarchy.fanout[i] - 1

    def _take_bad(self, k: int, cell: int) -> None:
        """Take the first bad cell in the queue of ``k``, split down to one of the target level."""
        heappop(self._queue(k))
        self._bad[k].remove(cell)
        while k > self._level:
            child = bad_child_towards(self._cells, k, cell, self._level)
            self._margin[k] -= 1
            inside = self._cells.bad_under[k - 1][cell]
            self._healthy[k - 1] += self._cells.hierarchy.fanout[k] - len(inside)
            k -= 1
            for bad in inside:
                if bad != child:
                    self._bad[k].add(bad)
                    if k in self._queues:
                        heappush(self._queues[k], self._rank(k, bad))
            if child < 0:
                self._healthy[k] -= 1
                self._split_healthy(k)
                return
            cell = child
