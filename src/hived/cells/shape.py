"""The shape of a host: its cell hierarchy as bit masks of leaves.

A *host* is the largest cell whose GPUs one pod can use: a node, or the part of a node that a VC reserved. Hosts have
few leaves (8, 16), so the free leaves of a host are an integer with a bit per leaf, and every query on it is memoized:

    level 3          [ 0 1 2 3 ]            cell 0, mask 0b1111
    level 2       [ 0 1 ]   [ 2 3 ]         cells 1, 2
    level 1       [0] [1]   [2] [3]         cells 3, 4, 5, 6

Cells inside are numbered from the top, level by level, left to right.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple


class Profile(NamedTuple):
    """The free leaves of a host, reduced to what the choice of a host depends on: one value for many masks."""

    size: int  #: leaves of the host
    #: at each level, from the leaf to the host itself, the most free leaves in one cell
    most_free: tuple[int, ...]

    @property
    def free(self) -> int:
        """Free leaves in the whole host."""
        return self.most_free[-1]

    def level_for(self, gpus: int) -> int:
        """The lowest level (1-based) at which one cell has ``gpus`` free leaves; 0 when the host has too few."""
        for level, free in enumerate(self.most_free, 1):
            if free >= gpus:
                return level
        return 0


class Shape:
    """The cell hierarchy inside one host.

    ``fanouts`` are the children per cell from level 2 up to the host: ``(2, 2, 2)`` is 8 leaves in pairs in fours.
    """

    def __init__(self, fanouts: tuple[int, ...]) -> None:
        #: children per cell, from level 2 upward
        self.fanouts = fanouts
        sizes = [1]
        for fanout in fanouts:
            sizes.append(sizes[-1] * fanout)
        #: levels of the host, leaf and host included
        self.depth = len(sizes)
        #: leaves of the host
        self.leaves = sizes[-1]
        #: all leaves
        self.full = (1 << self.leaves) - 1
        #: masks of the cells of each level, from the leaves up, from the left
        self.at_level = tuple(
            tuple(((1 << size) - 1) << (i * size) for i in range(self.leaves // size)) for size in sizes
        )
        #: mask of inner cell ``c``; cell 0 is the host
        self.masks: tuple[int, ...] = tuple(m for level in reversed(self.at_level) for m in level)
        children: list[tuple[int, ...]] = []
        next_cell = 1
        for fanout in reversed(fanouts):
            for _ in range(next_cell - len(children)):
                children.append(tuple(range(next_cell, next_cell + fanout)))
                next_cell += fanout
        children.extend(() for _ in range(self.leaves))
        #: inner cells right below inner cell ``c``; empty for leaves
        self.children: tuple[tuple[int, ...], ...] = tuple(children)
        self._profiles: dict[int, Profile] = {}
        self._chosen: dict[tuple[int, int, int], int] = {}

    def profile(self, free: int) -> Profile:
        """The profile of a host with these free leaves. O(1) when memoized."""
        profile = self._profiles.get(free)
        if profile is None:
            most = tuple(max((free & mask).bit_count() for mask in level) for level in self.at_level)
            profile = self._profiles[free] = Profile(self.leaves, most)
        return profile

    def closest(self, free: int, gpus: int, avoid: int = 0) -> int:
        """Mask of ``gpus`` leaves out of ``free``, as close together as possible; 0 when there are too few.

        They are in a cell of the lowest level that has enough. It is found from the host downward: the child with the
        fewest leaves of ``avoid``, then with the fewest free leaves, then the leftmost; so the leaves that remain free
        form the largest possible cells. O(1) when memoized.
        """
        mask = self._chosen.get((free, gpus, avoid))
        if mask is None:
            mask = self._chosen[free, gpus, avoid] = self._choose(free, gpus, avoid)
        return mask

    def _choose(self, free: int, gpus: int, avoid: int) -> int:
        level = self.profile(free).level_for(gpus)
        if not level or gpus <= 0:
            return 0
        wide_enough = [mask for mask in self.at_level[level - 1] if (mask & free).bit_count() >= gpus]
        cell = self.full
        for k in range(self.depth - 1, level - 1, -1):
            children = (m for m in self.at_level[k - 1] if m & cell and any(m & w for w in wide_enough))
            cell = min(children, key=lambda m: ((m & avoid).bit_count(), (m & free).bit_count(), m))
        return self._part_of(free & cell, gpus, level)

    def _part_of(self, free: int, gpus: int, level: int) -> int:
        """``gpus`` of the ``free`` leaves of one cell, whole children first."""
        chosen = 0
        while gpus:
            parts = [mask & free for mask in self.at_level[level - 2]] if level > 1 else [free]
            parts = [part for part in parts if part]
            enough = [part for part in parts if part.bit_count() >= gpus]
            if not enough:  # no child has enough: take the largest one whole, then continue with the rest
                part = max(parts, key=lambda p: (p.bit_count(), -p))
                chosen |= part
                free &= ~part
                gpus -= part.bit_count()
                continue
            part = min(enough, key=lambda p: (p.bit_count(), p))
            if part.bit_count() == gpus:
                return chosen | part
            free, level = part, level - 1
        return chosen


@cache
def shape_of(fanouts: tuple[int, ...]) -> Shape:
    """The one shape with these fan-outs; all clusters share its memoized answers."""
    return Shape(fanouts)


def leaves_of(mask: int) -> Iterator[int]:
    """The leaf numbers in ``mask``, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
