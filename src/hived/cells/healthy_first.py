"""Choosing around bad hardware: a healthy cell wherever sharing safety leaves one to be had.

HiveD's Algorithm 1 (OSDI'20, section 3.3) takes from the lowest level that has a free cell. What is free there may be
bad while higher cells are healthy. To take from level j for a request at level k, although lower cells are free, costs
safety something: by equations 1 and 2 (:mod:`hived.cells.safety`) the margin at j falls by one since a free cell is
gone, at every level between by one since it gets all children but one of a cell that could have been split for it
later, and at k not at all, since the request was counted as reserved:

    level    margin falls by                   free bad cell at level 1, healthy ones at level 3, a request at level 1:
    j        1                                 it may be served from level 3 when the margins at levels 3 and 2 are 1 or
    ...      1                                 more, and must be served with the bad cell else
    k        0

So a request at ``k`` may be served from ``j`` exactly when the margins at k+1 .. j are at least one; where nothing is
free below ``j`` that is so for every legal request (it is why Algorithm 1 is safe). The paper has no bad hardware in
its algorithm; Microsoft's scheduler of that name binds what cannot be healthy to *doomed bad* cells, told by
:meth:`Supply.shortage`.

Of the cells of one level that may be split, a bad one with a healthy cell of the level asked for goes first, and so on
down. The margins fall alike; but whoever reserved such a cell whole has no use for a bad one:

    rack 0   rack 1     one VC reserved a node, another a rack; node x is bad. Who asks for the node gets the one
    [x o]    [o o]      beside x: were it one of rack 1, the other VC would be left with a bad rack

A healthy cell is as good as any other of its level here, so they are counted; bad cells are few, and each is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .buddy import BuddyAllocator


class Source(NamedTuple):
    """The free cell that serves a request."""

    level: int  #: its own level
    cell: int  #: -1: any healthy one of that level
    healthy: bool  #: whether it is, or has inside, a healthy cell of the level asked for


def holds_healthy(cells: BuddyAllocator, k: int, cell: int, level: int) -> bool:
    """Whether a cell at ``k`` is, or has inside, a healthy cell of ``level``. O(bad cells inside)."""
    if cell not in cells.bad[k]:
        return True
    if k == level:
        return False
    inside = cells.bad_under[k - 1][cell]
    return len(inside) < cells.hierarchy.fanout[k] or any(holds_healthy(cells, k - 1, child, level) for child in inside)


def bad_child_towards(cells: BuddyAllocator, k: int, cell: int, level: int) -> int:
    """The bad child of a bad cell at ``k`` to go on with towards ``level``; -1 when that is to be a healthy one.

    The least bad of those that hold a healthy cell of ``level`` (above it only: at ``level`` none does); where none
    does, a healthy child if there is one, else the least bad. O(bad cells inside).
    """
    inside = cells.bad_under[k - 1][cell]
    useful = [child for child in inside if holds_healthy(cells, k - 1, child, level)]
    if not useful and len(inside) < cells.hierarchy.fanout[k]:
        return -1
    return min(cells.badness(k - 1, child) for child in useful or inside)[2]


def surely_healthy(cells: BuddyAllocator, wanted: Sequence[int]) -> bool:
    """Whether nothing of ``wanted`` would come out bad, told without looking at bad cells one by one. O(levels).

    ``False`` may be wrong: healthy cells inside bad ones are not counted, but every bad one that may be split around
    one, before a healthy one is, is taken off the margin of its level.
    """
    hierarchy, margins = cells.hierarchy, cells.margins()
    spare = splits = 0
    lower = sum(wanted)
    for k in range(hierarchy.top, cells.levels.start - 1, -1):
        left = cells.free[k] - len(cells.free_bad[k]) + spare - wanted[k]
        if left < 0:
            return False
        lower -= wanted[k]
        # bad cells at k that will be split: of those free now and those in bad ones above, one per lower request
        splits = min(len(cells.bad[k]), len(cells.free_bad[k]) + hierarchy.fanout[k + 1] * splits, lower)
        spare = hierarchy.fanout[k] * min(left, max(0, margins[k] - splits))
    return True


class Supply:
    """What is free in a chain, for one decision or for trying out many without touching the allocator."""

    def __init__(self, cells: BuddyAllocator) -> None:
        self._cells = cells
        # per level: the free bad cells (the allocator's own, until many requests are tried), and how many healthy ones
        self._bad = cells.free_bad
        self._healthy = [number - len(bad) for number, bad in zip(cells.free, cells.free_bad, strict=True)]
        self._margin = cells.margins()
        self._level = 0
        # per level, once asked for: its free bad cells as (holds no healthy cell of the level aimed at, badness)
        self._queues: dict[int, list[tuple[bool, tuple[int, int, int]]]] = {}

    def _rank(self, k: int, cell: int) -> tuple[bool, tuple[int, int, int]]:
        return not holds_healthy(self._cells, k, cell, self._level), self._cells.badness(k, cell)

    def _queue(self, k: int) -> list[tuple[bool, tuple[int, int, int]]]:
        if k not in self._queues:
            self._queues[k] = sorted([self._rank(k, cell) for cell in self._bad[k]])  # which is a heap
        return self._queues[k]

    def highest(self, level: int) -> int:
        """The highest level whose free cells may serve a request at ``level``: safely, or as Algorithm 1 does."""
        top = self._cells.hierarchy.top
        safe = next((k for k in range(level, top) if self._margin[k + 1] <= 0), top)
        lowest = next((k for k in range(level, top) if self._healthy[k] or self._bad[k]), top)
        return max(safe, lowest)

    def source(self, level: int) -> Source | None:
        """What serves a request at ``level``; ``None`` when nothing is free. O(levels + bad cells in free ones).

        The lowest level that may be split and gives a healthy cell of ``level``: of the bad cells there that have one
        inside the least bad, else a healthy one. Where there is none, the lowest level with a free cell, and the least
        bad there.
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
        """How many of ``wanted`` cells per level come out bad when all are taken, higher levels first.

        Does what the allocator would do, but takes healthy cells by the number and bad ones one by one.
        O(levels^2 + levels * b log b) for b bad cells.
        """
        short = [0] * len(wanted)
        self._bad = [set(cells) for cells in self._bad]
        for level in range(len(wanted) - 1, 0, -1):
            left = wanted[level]
            while left > 0:
                source = self.source(level)
                if source is None:  # more than there are cells, healthy or not
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
        """Serve requests from healthy cells at ``k``, the best source there is; how many it served.

        As many whole cells as will be used up, and may be; else one cell of the level aimed at from one of ``k``. The
        source stays the best meanwhile: what a healthy cell is split into is healthy, so no bad cell becomes useful.
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
        """One healthy cell, taken at ``k``, is split down to one of the level aimed at."""
        for i in range(k, self._level, -1):
            self._margin[i] -= 1
            self._healthy[i - 1] += self._cells.hierarchy.fanout[i] - 1

    def _take_bad(self, k: int, cell: int) -> None:
        """Take the first bad cell in the queue of ``k``, split down to one of the level aimed at."""
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
