"""The buddy cell allocator, step by step against one made of plain sets (tests/cells/naive.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from random import Random
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hived.cells import BuddyAllocator, Hierarchy
from hived.cells.checks import check_allocator
from hived.errors import InvariantError
from hived.spec.compiled import ChainSpec

from ..strategies import NODE, RACK, SOCKET, chain_of, chains, racks, tiers
from .naive import Cell, NaiveBuddies


def free_lists(allocator: BuddyAllocator) -> set[Cell]:
    count = allocator.hierarchy.count
    return {(k, cell) for k in allocator.levels for cell in range(count[k]) if allocator.is_free(k, cell)}


class AllocatorMachine(RuleBasedStateMachine):
    """Any sequence of requests and faults on any hierarchy: the allocator does what the naive one does."""

    @initialize(chain=chains(), lowest=st.integers(1, 4), data=st.data())
    def build(self, chain: ChainSpec, lowest: int, data: st.DataObject) -> None:
        self.lowest = min(lowest, chain.node_level)
        # any numbers, also those that no cluster could hold: safety is the caller's business
        levels = range(1, len(chain.levels) + 1)
        numbers = [data.draw(st.integers(0, chain.cells_at(k)) if k >= self.lowest else st.just(0)) for k in levels]
        self.allocator = BuddyAllocator(Hierarchy(chain), lowest, [0, *numbers])
        self.naive = NaiveBuddies(chain, [0, *numbers])
        #: allocated cells, and the children taken of each
        self.allocated: dict[Cell, set[Cell]] = {}
        self.node_size = chain.gpus_per_node
        for node in range(data.draw(st.sampled_from([0, chain.gpus // self.node_size]), label="nodes with faults")):
            self.allocator.set_bad(*self.change(data, self.naive.bad, node))

    def level(self, data: st.DataObject) -> int:
        return data.draw(st.integers(self.lowest, self.naive.top), label="level")

    def a_cell(self, data: st.DataObject, level: int) -> int:
        return data.draw(st.integers(0, self.naive.chain.cells_at(level) - 1), label="cell")

    @rule(data=st.data(), hinted=st.booleans())
    def allocate(self, data: st.DataObject, hinted: bool) -> None:
        level = self.level(data)
        near = self.a_cell(data, level) if hinted else -1
        expected = self.naive.choose(level, near)
        number = self.allocator.allocate(level, near) if hinted else self.allocator.allocate(level)
        if expected is None:
            assert number == -1
            return
        assert (level, number) == expected
        self.naive.take(expected)
        self.allocated[expected] = set()

    @rule(data=st.data())
    def allocate_at(self, data: st.DataObject) -> None:
        level = self.level(data)
        cell = (level, self.a_cell(data, level))
        if self.naive.holder_of(cell) is None:
            with pytest.raises(InvariantError, match=f"cell {cell[1]} at level {level} is not free"):
                self.allocator.allocate_at(*cell)
            return
        self.allocator.allocate_at(*cell)
        self.naive.take(cell)
        self.allocated[cell] = set()

    @precondition(lambda self: self.allocated)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        cell = data.draw(st.sampled_from(sorted(self.allocated)))
        for child in sorted(self.allocated.pop(cell)):
            self.allocator.give_child(*child)
        self.allocator.release(*cell)
        self.naive.give(cell)

    @rule(data=st.data())
    def allocate_bad(self, data: st.DataObject) -> None:
        level = self.level(data)
        expected = self.naive.choose_bad(level)
        number = self.allocator.allocate_bad(level)
        if expected is None:
            assert number == -1
            return
        assert (level, number) == expected
        self.naive.take(expected)
        self.allocated[expected] = set()

    @rule(data=st.data())
    def set_opportunistic(self, data: st.DataObject) -> None:
        self.allocator.set_opportunistic(*self.change(data, self.naive.opportunistic))

    @rule(data=st.data())
    def set_bad(self, data: st.DataObject) -> None:
        self.allocator.set_bad(*self.change(data, self.naive.bad))

    def change(self, data: st.DataObject, marked: set[int], node: int = -1) -> tuple[int, int, int]:
        """Mark other leaves of some node: the node, and the masks of those marked before and after."""
        node = self.a_cell(data, self.naive.chain.node_level) if node < 0 else node
        leaves = self.naive.leaves((self.naive.chain.node_level, node))
        before = sum(1 << i for i, leaf in enumerate(leaves) if leaf in marked)
        full = (1 << self.node_size) - 1
        one = st.integers(0, self.node_size - 1).map(lambda leaf: 1 << leaf)
        after = data.draw(st.just(0) | one | st.just(full) | st.integers(0, full), label="leaves")
        marked.difference_update(leaves)
        marked.update(leaf for i, leaf in enumerate(leaves) if after >> i & 1)
        return node, before, after

    @precondition(lambda self: any(level > self.lowest for level, _ in self.allocated))
    @rule(data=st.data(), hinted=st.booleans())
    def take_child(self, data: st.DataObject, hinted: bool) -> None:
        parent = data.draw(st.sampled_from(sorted(cell for cell in self.allocated if cell[0] > self.lowest)))
        left = [child for child in self.naive.children(parent) if child not in self.allocated[parent]]
        if not left:
            return
        level = parent[0] - 1
        near = self.a_cell(data, level) if hinted else -1
        child = (level, self.allocator.take_child(level, parent[1], near))
        best = self.naive.best(left)
        if (level, near) in left and (not self.naive.badness((level, near)) or self.naive.badness(best)):
            best = level, near
        assert child == best
        self.allocated[parent].add(child)

    @precondition(lambda self: any(level > self.lowest for level, _ in self.allocated))
    @rule(data=st.data())
    def take_child_at(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(sorted(cell for cell in self.allocated if cell[0] > self.lowest)))
        child = data.draw(st.sampled_from(self.naive.children(parent)))
        if child in self.allocated[parent]:
            with pytest.raises(InvariantError, match="taken from its parent before"):
                self.allocator.take_child_at(*child)
            return
        self.allocator.take_child_at(*child)
        self.allocated[parent].add(child)

    @precondition(lambda self: any(self.allocated.values()))
    @rule(data=st.data())
    def give_child(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(sorted(cell for cell, taken in self.allocated.items() if taken)))
        child = data.draw(st.sampled_from(sorted(self.allocated[parent])))
        self.allocator.give_child(*child)
        self.allocated[parent].remove(child)

    @invariant()
    def is_valid(self) -> None:
        check_allocator(self.allocator)

    @invariant()
    def free_lists_are_those_of_the_naive_one(self) -> None:
        assert free_lists(self.allocator) == self.naive.free
        for level in self.allocator.levels:
            assert self.allocator.free[level] == len(self.naive.free_at(level))
            assert self.allocator.allocated[level] == sum(at == level for at, _ in self.allocated)
            for cell in range(self.naive.chain.cells_at(level)):
                assert self.allocator.is_free(level, cell) == ((level, cell) in self.naive.free)
                assert self.allocator.opportunistic[level][cell] == self.naive.lent((level, cell))
                assert self.allocator.bad[level].get(cell, 0) == self.naive.badness((level, cell))
                assert self.allocator.is_bad(level, cell) == (cell in self.allocator.bad[level])

    @invariant()
    def margins_and_bad_cells_are_those_of_the_naive_one(self) -> None:
        naive, allocator = self.naive, self.allocator
        assert allocator.margins() == [0, *(naive.margin(level) for level in range(1, naive.top + 1))]
        assert allocator.margins()[1:] == [row.margin for row in reversed(allocator.safety())]
        assert allocator.bad_leaves == len(naive.bad)
        for level in allocator.levels[1:]:
            for cell in range(naive.chain.cells_at(level)):
                bad = [child for _, child in naive.children((level, cell)) if naive.badness((level - 1, child))]
                assert allocator.bad_children(level - 1, cell) == bad

    @invariant()
    def every_leaf_is_in_one_free_or_one_allocated_cell(self) -> None:
        cells = [*self.naive.free, *self.allocated]
        leaves = [leaf for cell in cells for leaf in self.naive.leaves(cell)]
        assert sorted(leaves) == list(range(self.naive.chain.gpus))

    def teardown(self) -> None:
        if not hasattr(self, "allocated"):
            return
        for cell in reversed(self.allocated):
            for child in self.allocated[cell]:
                self.allocator.give_child(*child)
            self.allocator.release(*cell)
        assert free_lists(self.allocator) == {(self.naive.top, c) for c in range(self.naive.chain.top_cells)}
        assert self.allocator.free == [0] * self.naive.top + [self.naive.chain.top_cells]
        assert not any(self.allocator.allocated)


@tiers(40, 300)
def test_any_requests_and_faults(examples: int) -> None:
    run_state_machine_as_test(AllocatorMachine, settings=settings(max_examples=examples, stateful_step_count=40))


def test_levels_below_the_lowest() -> None:
    allocator = BuddyAllocator(Hierarchy(racks()), NODE)
    assert list(allocator.levels) == [NODE, RACK]
    with pytest.raises(InvariantError, match="level 3 is below"):
        allocator.is_open(SOCKET, 0)
    with pytest.raises(InvariantError, match="level 3 is below"):
        allocator.allocate(SOCKET)
    check_allocator(allocator)


@pytest.mark.parametrize("bad", [0, 1], ids=["healthy", "bad"])
def test_nothing_taken_or_given_twice(bad: int) -> None:
    allocator = BuddyAllocator(Hierarchy(racks(2, nodes=2)), NODE)
    allocator.set_bad(0, 0, bad)
    allocator.allocate_at(RACK, 0)
    for _ in range(2):
        allocator.take_child(NODE, 0)
    with pytest.raises(InvariantError, match="taken from its parent before"):
        allocator.take_child_at(NODE, 0)
    with pytest.raises(InvariantError, match="all children of cell 0 at level 5 were taken before"):
        allocator.take_child(NODE, 0)
    for node in (0, 1):
        allocator.give_child(NODE, node)
    with pytest.raises(InvariantError, match="was not taken from its parent"):
        allocator.give_child(NODE, 0)
    allocator.release(RACK, 0)
    with pytest.raises(InvariantError, match="cell 0 at level 5 is not allocated"):
        allocator.release(RACK, 0)
    check_allocator(allocator)
    assert free_lists(allocator) == {(RACK, 0), (RACK, 1)}


@given(st.integers(1020, 2100), st.randoms(use_true_random=False))
@settings(max_examples=4)
def test_thousands_of_top_cells(tops: int, rng: Random) -> None:
    """The least loaned are taken first."""
    allocator = BuddyAllocator(Hierarchy(chain_of((2,), tops, 2)), 2)
    lent = [rng.choice((0, 1, 3)) for _ in range(tops)]
    bad = {rng.randrange(tops) for _ in range(3)}
    for node, mask in enumerate(lent):
        allocator.set_opportunistic(node, 0, mask)
        allocator.set_bad(node, 0, node in bad)
    order = sorted(range(tops), key=lambda node: (node in bad, lent[node].bit_count(), node))
    taken = order[: rng.randrange(tops)]
    assert [allocator.allocate(2) for _ in taken] == taken
    for node in rng.sample(taken, len(taken) // 2):
        allocator.release(2, node)
        taken.remove(node)
    check_allocator(allocator)
    left = [node for node in order if node not in set(taken)]
    assert [allocator.allocate(2) for _ in left] == left
    assert allocator.allocate(2) == -1


def calls(work: Callable[[], object]) -> int:
    """How many functions ``work`` calls, those written in C included."""
    number = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


def test_cost_does_not_depend_on_fan_out() -> None:
    """Of splitting and merging."""
    costs = set()
    for nodes in (16, 1024):
        allocator = BuddyAllocator(Hierarchy(racks(2, nodes)), NODE)
        for node in range(2 * nodes):  # every node has opportunistic GPUs, of the same numbers in both
            allocator.set_opportunistic(node, 0, (1 << node % 8 + 1) - 1)
        split = calls(partial(allocator.allocate, NODE))
        merge = calls(partial(allocator.release, NODE, 0))
        assert free_lists(allocator) == {(RACK, 0), (RACK, 1)}
        costs.add((split, merge))
    assert len(costs) == 1
