"""One level of a chain: the least crowded available child of any parent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cells import Siblings


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.data())
def test_the_least_crowded_child_is_what_looking_at_all_gives(
    parents: int, fanout: int, gpus: int, data: st.DataObject
) -> None:
    count = parents * fanout
    siblings = Siblings(count, fanout, gpus)
    available, crowd, bad = [True] * count, [0] * count, [0] * count
    steps = st.lists(st.tuples(st.integers(0, count - 1), st.integers(-1, gpus), st.booleans()), max_size=30)
    for cell, number, is_health in [*data.draw(steps), (0, 0, False)]:
        if number >= 0 and is_health:
            siblings.set_bad(cell, number)
            bad[cell] = number
        elif number >= 0:
            siblings.set_crowd(cell, number)
            crowd[cell] = number
        else:
            (siblings.take if available[cell] else siblings.give)(cell)
            available[cell] = not available[cell]
        siblings.validate()
        for parent in range(parents):
            children = [c for c in range(parent * fanout, (parent + 1) * fanout) if available[c]]
            assert siblings.left[parent] == len(children)
            in_order = sorted(children, key=lambda c: (bad[c], crowd[c], c))
            assert list(siblings.by_crowd(parent)) == in_order
            assert siblings.least_crowded(parent) == (in_order[0] if in_order else -1)
            assert siblings.healthy(parent) == (in_order[0] if in_order and not bad[in_order[0]] else -1)


def test_the_crowd_of_a_taken_cell_counts_once_it_is_given_back() -> None:
    siblings = Siblings(2, 2, 8)
    siblings.take(0)
    siblings.set_crowd(0, 5)
    siblings.set_crowd(1, 3)
    siblings.give(0)
    assert siblings.least_crowded(0) == 1
    siblings.set_crowd(1, 6)
    assert siblings.least_crowded(0) == 0


def test_a_bad_child_comes_last_however_idle_it_is() -> None:
    siblings = Siblings(3, 3, 8)
    siblings.set_bad(0, 2)
    siblings.set_bad(1, 1)
    siblings.set_crowd(2, 8)
    assert list(siblings.by_crowd(0)) == [2, 1, 0]
    siblings.take(2)
    siblings.set_crowd(1, 8)
    assert siblings.healthy(0) == -1
    assert siblings.least_crowded(0) == 1, "one bad leaf is better than two"
    siblings.set_bad(1, 2)
    assert siblings.least_crowded(0) == 0, "of equally bad ones the least crowded"


@pytest.mark.parametrize("bad", [0, 1])
def test_a_cell_cannot_be_taken_twice(bad: int) -> None:
    siblings = Siblings(2, 2, 1)
    siblings.set_bad(0, bad)
    siblings.take(0)
    with pytest.raises(KeyError):
        siblings.take(0)
    siblings.validate()
