"""A distribution summed up by a few quantiles keeps its quantiles, its order and its mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.simulator.traces.philly_statistics import philly
from hived.simulator.traces.quantiles import summarise

SHARES = (0.1, 0.5, 0.9, 0.99)


def middles(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return (np.arange(count) + 0.5) / count


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=300))
def test_a_table_keeps_its_ends_and_rises(data: list[int]) -> None:
    table = summarise(data, SHARES)
    values = table.at(np.linspace(0, 1, 500))
    assert values[0] == min(data)
    assert values[-1] == max(data)
    assert (np.diff(values) >= 0).all()


def test_a_table_of_a_heavy_tail() -> None:
    data = [int(10 * (share / (1 - share)) ** 1.5) + 1 for share in middles(20_000).tolist()]
    table = summarise(data, SHARES)
    assert table.at(np.asarray([0.5]))[0] == sorted(data)[10_000]
    assert table.mean == pytest.approx(sum(data) / len(data))
    assert table.at(middles(200_000)).mean() == pytest.approx(table.mean, rel=0.01)


def test_few_data_make_a_table_too() -> None:
    assert summarise([7, 7, 7], SHARES).at(np.asarray([0.0, 0.5, 1.0])).tolist() == [7, 7, 7]
    assert summarise([3], SHARES).at(np.asarray([0.0, 0.99])).tolist() == [3, 3]
    with pytest.raises(ValueError, match="no data to summarise"):
        summarise([], SHARES)


def test_tables_of_durations_have_real_means() -> None:
    for table in (kind.seconds for kind in philly().durations):
        assert table.at(middles(200_000)).mean() == pytest.approx(table.mean, rel=0.01), table.count
