"""Placement of pods inside one host: whether several fit together, and which leaves each one gets.

Whole cells of one host are nested, so packing them needs no search: with the largest placed first, any cell of level
``k`` uses up one cell of level ``k`` and a fixed number of each lower level. The remaining capacity of a set of leaves
is therefore a few counts, a *room*:

    (costless leaves, leaves, whole cells of the highest requested level, ..., of the lowest)

*Costless* leaves need no preemption. The choice of cells and leaves matters for closeness and preemption, never for
what fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from .shape import Shape

#: remaining capacity of some leaves of one host; in every position a larger number is more capacity
Room = tuple[int, ...]


class Need(NamedTuple):
    """The leaves that one pod requests, always on one host."""

    gpus: int  #: leaves, at least 1
    level: int = 0  #: 0: any ``gpus`` leaves; above 0: one whole cell of this level, which has ``gpus`` leaves


def cells_at(shape: Shape, level: int) -> tuple[int, ...]:
    """Masks of the cells of a level inside a host, from the left; empty above the host's own level."""
    return shape.at_level[level - 1] if 1 <= level <= shape.depth else ()


def count_of(shape: Shape, mask: int, need: Need) -> int:
    """How many pods of this need fit on the leaves of ``mask``. O(cells of the level)."""
    if need.level:
        return sum(cell & mask == cell for cell in cells_at(shape, need.level))
    return mask.bit_count() // need.gpus


def level_of(shape: Shape, mask: int) -> int:
    """The lowest level with one cell that has all leaves of ``mask``. O(1) when memoized."""
    return shape.profile(mask).level_for(mask.bit_count())


def apart(shape: Shape, masks: Sequence[int]) -> int:
    """How far apart the leaves of each pod are: the sum of the pods' levels. O(pods) when memoized."""
    return sum([level_of(shape, mask) for mask in masks])


class Demand:
    """The pods of a gang in the order in which they are placed: whole cells from large to small, then loose pods."""

    def __init__(self, needs: Sequence[Need]) -> None:
        #: for each pod in that order, its index in the given needs
        self.order = sorted(range(len(needs)), key=lambda i: (-needs[i].level, -needs[i].gpus, i))
        #: the needs in that order
        self.needs = tuple(needs[i] for i in self.order)
        #: leaves of all pods together
        self.gpus = sum(need.gpus for need in needs)
        #: leaves of the smallest pod from the ``i``-th on
        self.smallest = [*accumulate((need.gpus for need in reversed(self.needs)), min)][::-1]
        #: leaves of the pods from the ``i``-th on together
        self.left = [*accumulate(need.gpus for need in reversed(self.needs))][::-1]
        sizes = {need.level: need.gpus for need in self.needs if need.level}
        self._whole = tuple(Need(size, level) for level, size in sizes.items())

    def room(self, shape: Shape, mask: int, costless: int) -> Room:
        """The room on the leaves of ``mask``, of which those in ``costless`` need no preemption."""
        whole = (count_of(shape, mask, need) for need in self._whole)
        return ((mask & costless).bit_count(), mask.bit_count(), *whole)

    def without(self, room: Room, at: int) -> Room | None:
        """The room left after the ``at``-th pod is placed in ``room``; ``None`` when it does not fit.

        Pods are placed in order, so counts of levels above the pod's own no longer matter; they become 0.
        """
        need = self.needs[at]
        costless, leaves, *whole = room
        if leaves < need.gpus:
            return None
        if need.level:
            own = self._whole.index(need)
            if not whole[own]:
                return None
            after = [0] * own + [whole[j] - need.gpus // self._whole[j].gpus for j in range(own, len(whole))]
        else:
            after = [0] * len(whole)
        return (max(0, costless - need.gpus), leaves - need.gpus, *after)

    def fits(self, room: Room | None) -> bool:
        """Whether one room holds all pods."""
        for at in range(len(self.needs)):
            room = None if room is None else self.without(room, at)
        return room is not None


class Leaves(NamedTuple):
    """The leaves of one host, as its requester sees them."""

    shape: Shape
    obtainable: int  #: leaves that the requester can obtain
    costless: int  #: those of them that need no preemption
    avoid: int  #: leaves to keep away from where there is a choice


def place(leaves: Leaves, needs: Sequence[Need], cap: int = 0) -> tuple[int, ...] | None:
    """Disjoint masks for pods on one host, in the order given; ``None`` when they do not fit.

    On costless leaves if they fit there, in the lowest cell that holds them, and each pod as close together as
    possible; else with the fewest leaves preempted. ``cap``: all in one cell of at most this level (0: anywhere in the
    host). O(pods * cells of the host): callers cache the answer.
    """
    shape = leaves.shape
    demand = Demand(needs)
    top = min(cap, shape.depth) if cap else shape.depth
    if leaves.costless.bit_count() >= demand.gpus:
        for level in range(1, top + 1):
            masks = _in_best_cell(leaves._replace(obtainable=leaves.costless), demand, level)
            if masks is not None:
                return masks
    return None if leaves.obtainable == leaves.costless else _in_best_cell(leaves, demand, top)


def _in_best_cell(leaves: Leaves, demand: Demand, level: int) -> tuple[int, ...] | None:
    """The pods in the cell of exactly this level with the fewest preempted leaves, then with the closest pods.

    Ties are broken by the rule of :meth:`Shape.closest`.
    """
    shape, obtainable, costless, avoid = leaves
    cells = [cell for cell in cells_at(shape, level) if demand.fits(demand.room(shape, obtainable & cell, costless))]
    if len(demand.needs) == 1 and not demand.needs[0].level and obtainable == costless:  # memoized by the shape
        if not cells:
            return None
        chosen = shape.closest(obtainable, demand.gpus, avoid)
        return _in_cell(leaves, demand, next(cell for cell in cells if cell & chosen))
    tried = []
    for cell in cells:
        masks = _in_cell(leaves, demand, cell)
        cost = sum((mask & ~costless).bit_count() for mask in masks)
        tried.append((cost, apart(shape, masks), _nearly_free(leaves, level, cell), cell, masks))
    return min(tried)[-1] if tried else None


def _in_cell(leaves: Leaves, demand: Demand, cell: int) -> tuple[int, ...]:
    """Masks, in the order given, of the pods in a cell that is known to hold them: one by one, the largest first.

    The leaves of each pod are as close together as the rest of the cell allows.
    """
    shape, left = leaves.shape, leaves.obtainable & cell
    masks = [0] * len(demand.needs)
    for at, need in zip(demand.order, demand.needs, strict=True):
        if need.level:
            mask = _cheapest_cell(leaves._replace(obtainable=left), need.level)
        else:
            idle = left & leaves.costless
            spare = idle.bit_count()
            if spare >= need.gpus:
                mask = shape.closest(idle, need.gpus, leaves.avoid)
            else:
                mask = idle | shape.closest(left & ~idle, need.gpus - spare, leaves.avoid)
        masks[at] = mask
        left &= ~mask
    return tuple(masks)


def _cheapest_cell(leaves: Leaves, level: int) -> int:
    """The whole obtainable cell with the fewest preempted leaves, then by the rule of :meth:`Shape.closest`."""
    whole = (cell for cell in cells_at(leaves.shape, level) if cell & leaves.obtainable == cell)
    return min(whole, key=lambda cell: ((cell & ~leaves.costless).bit_count(), _nearly_free(leaves, level, cell), cell))


def _nearly_free(leaves: Leaves, level: int, cell: int) -> list[tuple[int, int]]:
    """Numbers of leaves to avoid and obtainable leaves in ``cell`` and the cells around it, from below the host down.

    The cell with the smallest is the choice of :meth:`Shape.closest`: a larger free cell is split only if no cell that
    is in part used will do.
    """
    shape, obtainable, _, avoid = leaves
    around = (mask for k in range(shape.depth - 1, level - 1, -1) for mask in cells_at(shape, k) if mask & cell)
    return [((mask & avoid).bit_count(), (mask & obtainable).bit_count()) for mask in around]
