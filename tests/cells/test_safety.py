"""Sharing safety as arithmetic; and bad hardware: a reserved cell is healthy where that is safe, and always available.

Which cell a request gets is in test_buddy.py, what is safe in test_every_small_hierarchy.py; here are equations 1 and 2
of the paper, against a recursion written as they are printed, and the shortage: how many bad cells a VC would be given,
for legal requests only, at each level never more than reserved.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cells import BuddyAllocator, Hierarchy, assert_safe, safety
from hived.cells.healthy_first import Supply, surely_healthy
from hived.errors import InvariantError
from hived.spec.compiled import ChainSpec

from ..strategies import NODE, RACK, chains, given_in_tiers, racks
from .naive import Cell


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


@st.composite
def reservations(draw: st.DrawFn, chain: ChainSpec) -> list[int]:
    """Cells per level that fit side by side, from the top down."""
    reserved = [0] * (len(chain.levels) + 1)
    spare = chain.top_cells
    for level in range(len(chain.levels), 0, -1):
        reserved[level] = draw(st.integers(0, spare) | st.just(spare // 2))
        spare = (spare - reserved[level]) * chain.levels[level - 1].fanout
    return reserved


def masks(size: int) -> st.SearchStrategy[int]:
    """Bad leaves of a node of ``size``: none, one, all, any."""
    one = st.integers(0, size - 1).map(lambda leaf: 1 << leaf)
    return st.just(0) | one | st.just((1 << size) - 1) | st.integers(0, (1 << size) - 1)


def bad_ones_got(allocator: BuddyAllocator, wanted: list[int]) -> list[int]:
    """How many bad cells per level really asking for all of ``wanted`` gives, higher levels first; all go back."""
    got = [0] * len(wanted)
    taken: list[Cell] = []
    for level in range(len(wanted) - 1, 0, -1):
        for _ in range(wanted[level]):
            cell = allocator.allocate(level)
            assert cell >= 0
            assert min(allocator.margins()) >= 0
            got[level] += allocator.is_bad(level, cell)
            taken.append((level, cell))
    for level, cell in reversed(taken):
        allocator.release(level, cell)
    return got


@given_in_tiers(60, 600, chains(max_gpus=64), st.data())
def test_shortage_is_what_asking_meets(chain: ChainSpec, data: st.DataObject) -> None:
    """In a cluster with many faults."""
    reserved = data.draw(reservations(chain), label="reserved")
    allocator = BuddyAllocator(Hierarchy(chain), 1, reserved)
    for node in range(allocator.hierarchy.nodes):
        allocator.set_bad(node, 0, data.draw(masks(chain.gpus_per_node), label="bad"))
        allocator.set_opportunistic(node, 0, data.draw(masks(chain.gpus_per_node), label="opportunistic"))
    for level in data.draw(st.lists(st.integers(1, len(chain.levels)), max_size=6), label="taken before"):
        if allocator.allocated[level] < reserved[level]:
            allocator.allocate(level)
    left = [r - a for r, a in zip(reserved, allocator.allocated, strict=True)]
    for highest in range(1, len(left)):  # what is wanted at the levels above is for the other VCs
        wanted = [number if level <= highest else 0 for level, number in enumerate(left)]
        for of_vc in (wanted, [data.draw(st.integers(0, number), label="wanted") for number in wanted]):
            before = [set(bad) for bad in allocator.free_bad]
            short = Supply(allocator).shortage(of_vc)
            assert allocator.free_bad == before, "nothing is touched by asking"
            assert short == bad_ones_got(allocator, of_vc)
            assert not (surely_healthy(allocator, of_vc) and any(short))


def test_broken_rack_before_a_healthy_one() -> None:
    """A node is taken from the one rather than from the other."""
    allocator = BuddyAllocator(Hierarchy(racks(2, nodes=2)), NODE, [0, 0, 0, 0, 1, 1])
    allocator.set_bad(0, 0, 1)
    research, prod = [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]
    assert not any(Supply(allocator).shortage(research) + Supply(allocator).shortage(prod))
    assert allocator.allocate(NODE) == 1, "the healthy node of rack 0, which is of no use for a whole rack"
    assert not any(Supply(allocator).shortage(prod))
    assert allocator.allocate(RACK) == 1
    assert not allocator.is_bad(RACK, 1)


def test_parts_of_a_rack_meet_the_shortage() -> None:
    """Of two requests for the healthy rack, the one for the whole is surely served."""
    allocator = BuddyAllocator(Hierarchy(racks(2, nodes=2)), NODE, [0, 0, 0, 0, 2, 1])
    allocator.set_bad(0, 0, 1)
    parts, whole = [0, 0, 0, 0, 2, 0], [0, 0, 0, 0, 0, 1]
    assert Supply(allocator).shortage(parts) == bad_ones_got(allocator, parts) == [0, 0, 0, 0, 1, 0]
    assert not any(Supply(allocator).shortage(whole))
    assert not surely_healthy(allocator, parts), "rack 1 could give both, but rack 0 is broken up first"
    assert surely_healthy(allocator, whole)
