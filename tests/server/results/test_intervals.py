"""Which intervals hold at a moment, against a look at every one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hived.server.results_view import Intervals

Pairs = list[tuple[int, int]]


def check(intervals: Pairs, moments: list[int]) -> None:
    """``at`` and ``counts`` say what a look at every interval says."""
    table = np.asarray([(start, start + width) for start, width in intervals], dtype=np.int64).reshape(-1, 2)
    found = Intervals(table[:, 0], table[:, 1])
    naive = [[n for n, (start, end) in enumerate(table.tolist()) if start <= at < end] for at in moments]
    assert [sorted(found.at(at).tolist()) for at in moments] == naive
    assert found.counts(np.asarray(moments, dtype=np.int64)).tolist() == [len(numbers) for numbers in naive]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=60),
    st.lists(st.integers(-2, 60), min_size=1, max_size=20),
)
def test_an_answer_is_what_a_look_at_every_interval_gives(intervals: Pairs, moments: list[int]) -> None:
    check(intervals, moments)


def test_intervals_come_in_the_order_of_their_starts() -> None:
    found = Intervals(np.array([5, 1, 3]), np.array([9, 9, 9])).at(6)
    assert found.tolist() == [1, 2, 0]
