"""Which intervals hold at a moment, against a look at every one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.server import timeline
from hived.server.timeline import Timeline

Intervals = list[tuple[int, int]]


def check(intervals: Intervals, moments: list[int]) -> None:
    """``at`` and ``counts`` say what a look at every interval says."""
    table = np.asarray([(start, start + width) for start, width in intervals], dtype=np.int64).reshape(-1, 2)
    found = Timeline(table[:, 0], table[:, 1])
    naive = [[n for n, (start, end) in enumerate(table.tolist()) if start <= at < end] for at in moments]
    assert [sorted(found.at(at).tolist()) for at in moments] == naive
    assert found.counts(np.asarray(moments, dtype=np.int64)).tolist() == [len(numbers) for numbers in naive]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=60),
    st.lists(st.integers(-2, 60), min_size=1, max_size=20),
    st.sampled_from([1, 2, 7, 1024]),
)
def test_an_answer_is_what_a_look_at_every_interval_gives(
    intervals: Intervals, moments: list[int], between: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "_FEWEST_BETWEEN", between)
        check(intervals, moments)


def test_many_intervals_with_long_ones_among_them_are_found_too() -> None:
    """More than are looked through in one go, so that kept lists are used."""
    intervals = [(n * 37 % 5003, 5000 if n % 50 == 0 else n % 30) for n in range(6000)]
    check(intervals, [0, 1, 36, 2500, 4999, 5002, 7000, 20_000])


def test_intervals_come_in_the_order_of_their_starts() -> None:
    found = Timeline(np.array([5, 1, 3]), np.array([9, 9, 9])).at(6)
    assert found.tolist() == [1, 2, 0]
