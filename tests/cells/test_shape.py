"""The inside of a host: which of its free leaves are closest together, checked against every choice there is."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cells import Shape, leaves_of, shape_of

from ..strategies import given_in_tiers
from .spaces import cells

SHAPES = [(), (1,), (4,), (2, 2), (3, 2), (2, 3), (2, 1, 2), (2, 2, 2)]


def cells_by_level(shape: Shape) -> list[list[int]]:
    """The masks of all cells: per level, leaf to host, left to right."""
    return [cells(shape, level) for level in range(1, shape.depth + 1)]


def lowest_level(levels: list[list[int]], free: int, gpus: int) -> int:
    """The lowest level (1-based) where one cell has enough; 0 when none has."""
    for level, masks in enumerate(levels, 1):
        if any((mask & free).bit_count() >= gpus for mask in masks):
            return level
    return 0


def descended_cell(levels: list[list[int]], level: int, free: int, gpus: int, avoid: int) -> int:
    """From the host down to a cell of ``level``: fewest to avoid, then fewest free, then leftmost."""
    suitable = [mask for mask in levels[level - 1] if (mask & free).bit_count() >= gpus]
    cell = levels[-1][0]
    for k in range(len(levels) - 2, level - 2, -1):
        children = [mask for mask in levels[k] if mask & cell == mask and any(mask & s == s for s in suitable)]
        cell = min(children, key=lambda m: ((m & avoid).bit_count(), (m & free).bit_count(), m))
    return cell


def check_closest(shape: Shape, levels: list[list[int]], free: int, gpus: int, avoid: int = 0) -> None:
    chosen = shape.closest(free, gpus, avoid)
    level = lowest_level(levels, free, gpus)
    if not level:
        assert chosen == 0
        return
    assert chosen & free == chosen
    assert chosen.bit_count() == gpus
    cell = descended_cell(levels, level, free, gpus, avoid)
    assert chosen & cell == chosen, "inside the cell that the rule names, which is of the lowest level"
    if level > 1:
        children = [mask & free for mask in levels[level - 2] if mask & cell]
        touched = sum(bool(child & chosen) for child in children)
        fewest = next(
            n
            for n in range(1, len(children) + 1)
            if any(sum(c.bit_count() for c in some) >= gpus for some in combinations(children, n))
        )
        assert touched == fewest, "spread over as few children as can be"
        broken = sum(0 < (child & chosen).bit_count() < child.bit_count() for child in children)
        assert broken <= 1, "at most one child is left with a part of what it had"


@pytest.mark.parametrize("fanouts", SHAPES)
def test_closest_leaves_of_every_mask(fanouts: tuple[int, ...]) -> None:
    shape = Shape(fanouts)
    levels = cells_by_level(shape)
    assert shape.closest(shape.full, 0) == 0, "none for a job without GPUs"
    for free in range(shape.full + 1):
        for gpus in range(1, shape.leaves + 1):
            check_closest(shape, levels, free, gpus)


@pytest.mark.parametrize("fanouts", [(4,), (2, 2), (3, 2), (2, 3)])
def test_leaves_to_avoid(fanouts: tuple[int, ...]) -> None:
    shape = Shape(fanouts)
    levels = cells_by_level(shape)
    for free in range(shape.full + 1):
        for avoid in range(shape.full + 1):
            for gpus in range(1, 1 + min(3, shape.leaves)):
                check_closest(shape, levels, free, gpus, avoid)


@given_in_tiers(40, 800, st.data())
def test_closest_leaves_of_sixteen(data: st.DataObject) -> None:
    fanouts = data.draw(st.sampled_from([(2, 2, 2, 2), (4, 4), (8, 2), (2, 2, 4)]))
    shape = shape_of(fanouts)
    levels = cells_by_level(shape)
    free = data.draw(st.integers(0, shape.full))
    avoid = data.draw(st.integers(0, shape.full)) & ~free
    for gpus in range(1, 17):
        check_closest(shape, levels, free, gpus, avoid)


@pytest.mark.parametrize("fanouts", [*SHAPES, (2, 2, 2, 2)])
def test_inner_cells_nest(fanouts: tuple[int, ...]) -> None:
    shape = Shape(fanouts)
    levels = cells_by_level(shape)
    assert list(shape.masks) == [mask for masks in reversed(levels) for mask in masks], "numbered from the top"
    assert shape.masks[0] == shape.full
    assert (shape.leaves, shape.depth) == (len(levels[0]), len(levels))
    for cell, children in enumerate(shape.children):
        if shape.masks[cell].bit_count() == 1 and cell >= len(shape.masks) - shape.leaves:
            assert children == (), "a leaf has no children"
            continue
        union = 0
        for child in children:
            assert not union & shape.masks[child], "children are disjoint"
            union |= shape.masks[child]
        assert union == shape.masks[cell], "children make up their parent"
    everyone = [child for children in shape.children for child in children]
    assert everyone == list(range(1, len(shape.masks))), "every cell but the host has one parent"


@pytest.mark.parametrize("fanouts", SHAPES)
def test_profile(fanouts: tuple[int, ...]) -> None:
    shape = Shape(fanouts)
    levels = cells_by_level(shape)
    for free in range(shape.full + 1):
        profile = shape.profile(free)
        assert profile.size == shape.leaves
        assert profile.free == free.bit_count()
        assert profile.most_free == tuple(max((m & free).bit_count() for m in masks) for masks in levels)
        for gpus in range(1, shape.leaves + 2):
            assert profile.level_for(gpus) == lowest_level(levels, free, gpus)


@given(st.sets(st.integers(0, 80)))
def test_leaves_of_a_mask_ascend(leaves: set[int]) -> None:
    assert list(leaves_of(sum(1 << leaf for leaf in leaves))) == sorted(leaves)
