"""An IndexSet is a set of small integers that knows its smallest member."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cells import IndexSet


@st.composite
def edits(draw: st.DrawFn) -> tuple[int, list[tuple[bool, int]]]:
    """A universe, and members to add (True) or to remove."""
    universe = draw(st.integers(1, 5000))
    # few distinct members, so that they meet; neighbours of word borders among them
    pool = draw(st.lists(st.integers(0, universe - 1), min_size=1, max_size=12))
    pool += [m for m in (0, 31, 32, 63, 64, universe - 1) if m < universe]
    return universe, draw(st.lists(st.tuples(st.booleans(), st.sampled_from(pool)), max_size=60))


@given(edits())
def test_behaves_as_a_plain_set(case: tuple[int, list[tuple[bool, int]]]) -> None:
    universe, steps = case
    members, model = IndexSet(universe), set[int]()
    for adds, index in steps:
        if adds:
            members.add(index)
            model.add(index)
        elif index in model:
            members.remove(index)
            model.remove(index)
        else:
            with pytest.raises(KeyError):
                members.remove(index)
        assert list(members) == sorted(model)
        assert len(members) == len(model)
        assert bool(members) == bool(model)
        assert members.first() == min(model, default=-1)
        assert (index in members) == (index in model)
        for start in (0, index, index + 1, universe - 1, universe, universe + 7):
            assert members.first_from(start) == min((m for m in model if m >= start), default=-1)


@pytest.mark.parametrize("universe", [1, 2, 1023, 1024, 1025, 1 << 20, (1 << 25) + 3])
def test_ends_of_any_universe(universe: int) -> None:
    members = IndexSet(universe)
    members.add(universe - 1)
    assert members.first() == members.first_from(0) == members.first_from(universe - 1) == universe - 1
    members.add(0)
    assert list(members) == sorted({0, universe - 1})
    members.remove(universe - 1)
    assert members.first_from(1) == -1


def test_equal_when_members_are() -> None:
    """Whatever the universe; and a set that changes cannot be a key."""
    small, large = IndexSet(10), IndexSet(4000)
    small.add(7)
    assert small != large
    large.add(7)
    assert small == large
    assert small != {7}
    with pytest.raises(TypeError):
        hash(small)
