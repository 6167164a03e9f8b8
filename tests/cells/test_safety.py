"""Sharing safety as arithmetic: equations 1 and 2 of the paper, against a recursion written as they are printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cells import Hierarchy, assert_safe, safety
from hived.errors import InvariantError
from hived.spec.compiled import ChainSpec

from ..strategies import chains, racks


@given(chains(), st.data())
def test_margins_of_the_paper(chain: ChainSpec, data: st.DataObject) -> None:
    top = len(chain.levels)
    numbers = st.lists(st.integers(0, 9), min_size=top + 1, max_size=top + 1)
    r, a, f = (data.draw(numbers, label=name) for name in ("reserved", "allocated", "free"))

    def obtainable(k: int) -> int:  # F of equation 2
        if k == top:
            return 0
        return (f[k + 1] + obtainable(k + 1) - (r[k + 1] - a[k + 1])) * chain.levels[k].fanout

    rows = safety(Hierarchy(chain), r, a, f)
    assert [row.level for row in rows] == list(range(top, 0, -1))
    for row in rows:
        k = row.level
        assert (row.chain, row.cell_type) == (chain.name, chain.levels[k - 1].cell_type)
        assert (row.reserved, row.allocated, row.free, row.obtainable) == (r[k], a[k], f[k], obtainable(k))
        assert row.margin == f[k] + obtainable(k) - (r[k] - a[k])
    if all(r[k] - a[k] <= f[k] + obtainable(k) for k in range(1, top + 1)):
        assert_safe(rows)
    else:
        with pytest.raises(InvariantError):
            assert_safe(rows)


def test_breach_is_reported() -> None:
    rows = safety(Hierarchy(racks(2)), [0, 0, 0, 3, 8, 0], [0, 0, 0, 0, 3, 0], [0, 0, 0, 0, 1, 1])
    assert [row.margin for row in rows] == [1, 0, -3, -6, -12]
    with pytest.raises(InvariantError, match=r"chain RACK at level 3 \(RACK-3\): 3 cells .* 0 are free and 0 obtain"):
        assert_safe(rows)
