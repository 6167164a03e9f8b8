"""One level of a chain: the least crowded available child of any parent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hived.cells import Siblings


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.data())
def test_the_least_crowded_child_is_what_looking_at_all_gives(
    parents: int, fanout: int, gpus: int, data: st.DataObject
) -> None:
    count = parents * fanout
    siblings = Siblings(count, fanout, gpus)
    available, crowd = [True] * count, [0] * count
    steps = st.lists(st.tuples(st.integers(0, count - 1), st.integers(-1, gpus)), max_size=30)
    for cell, new_crowd in [*data.draw(steps), (0, 0)]:
        if new_crowd >= 0:
            siblings.set_crowd(cell, new_crowd)
            crowd[cell] = new_crowd
        else:
            (siblings.take if available[cell] else siblings.give)(cell)
            available[cell] = not available[cell]
        siblings.validate()
        for parent in range(parents):
            children = [c for c in range(parent * fanout, (parent + 1) * fanout) if available[c]]
            assert siblings.left[parent] == len(children)
            assert siblings.least_crowded(parent) == min(children, key=lambda c: (crowd[c], c), default=-1)


def test_the_crowd_of_a_taken_cell_counts_once_it_is_given_back() -> None:
    siblings = Siblings(2, 2, 8)
    siblings.take(0)
    siblings.set_crowd(0, 5)
    siblings.set_crowd(1, 3)
    siblings.give(0)
    assert siblings.least_crowded(0) == 1
    siblings.set_crowd(1, 6)
    assert siblings.least_crowded(0) == 0
