"""Theorem 1 (HiveD, OSDI'20, section 3.3) with no sampling: every hierarchy of up to 8 leaves and 4 levels.

Up to three VCs reserve cells in every way that fits. From the empty cluster an adversary binds and unbinds their cells
in any order, and places opportunistic jobs so that the allocator takes any cell that its rule lets it take. In every
state that can be reached, equations 1 and 2 hold and every VC can bind every cell that it reserved.

Two symmetries keep this small. The allocator does not know the VC of a cell, so all assignments with the same cells per
level in all are one case, and each such case is met by some assignment to three VCs; tests/cluster has the VCs
themselves. And what is free depends on what is allocated alone, not on the way there, which is checked in every state.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from hived.cells import BuddyAllocator, Hierarchy, assert_safe, safety
from hived.cells.healthy_first import Supply, surely_healthy
from hived.cluster import shortages
from hived.spec.compiled import ChainSpec

from ..strategies import chain_of, cluster_of, vc
from .naive import Cell, NaiveBuddies, fanouts_of, name_of, packs

MAX_LEAVES, MAX_DEPTH = 8, 4


def hierarchies() -> Iterator[ChainSpec]:
    """A cell with one child only up to 4 leaves; the top cell is a node, so that leaves can be lent one by one."""
    for fanouts, tops in fanouts_of(MAX_LEAVES, MAX_DEPTH, 4):
        yield chain_of(fanouts, tops, len(fanouts) + 1)


def demands(chain: ChainSpec, beyond: int) -> Iterator[tuple[int, ...]]:
    """Numbers of cells per level (index 0 unused), up to all there are and ``beyond``."""
    for numbers in product(*(range(chain.cells_at(k) + beyond + 1) for k in range(1, len(chain.levels) + 1))):
        yield (0, *numbers)


EVERY = [pytest.param(chain, id=name_of(chain)) for chain in hierarchies()]


class Adversary:
    """Drives one allocator through every state that can be reached under one assignment."""

    def __init__(self, chain: ChainSpec, reserved: tuple[int, ...]) -> None:
        self.chain, self.reserved = chain, reserved
        self.hierarchy = Hierarchy(chain)
        self.allocator = BuddyAllocator(self.hierarchy)
        self.naive = NaiveBuddies(chain)
        self.levels = range(1, len(chain.levels) + 1)
        self.lent = [0] * chain.top_cells
        self.state: frozenset[Cell] = frozenset()

    def states(self) -> int:
        """Visit and check every state; how many there are."""
        found = [self.state]
        seen = {self.state}
        for state in found:
            self.go_to(state)
            self.check()
            for following in self.after():
                if following not in seen:
                    seen.add(following)
                    found.append(following)
        return len(found)

    def go_to(self, state: frozenset[Cell]) -> None:
        """Bring the allocator into a state that it can reach, by a short cut."""
        for cell in self.state - state:
            self.allocator.release(*cell)
            self.naive.give(cell)
        for cell in state - self.state:
            self.allocator.allocate_at(*cell)
            self.naive.take(cell)
        self.state = state

    def check(self) -> None:
        """What must hold in every state; that every VC's cells can be bound is checked by binding them."""
        count, is_free = self.hierarchy.count, self.allocator.is_free
        free = {(k, cell) for k in self.levels for cell in range(count[k]) if is_free(k, cell)}
        assert free == self.naive.free, "what is free depends on what is allocated alone"
        assert_safe(safety(self.hierarchy, self.reserved, self.allocator.allocated, self.allocator.free))

    def after(self) -> Iterator[frozenset[Cell]]:
        """Every state that binding or unbinding one cell can give."""
        for cell in self.state:
            yield self.state - {cell}
        for level in self.levels:
            if self.allocator.allocated[level] == self.reserved[level]:
                continue
            k = self.naive.level_to_split(level)
            assert k, "a VC can bind what it reserved"
            choices = [(level, cell) for cell in range(self.chain.cells_at(level))]
            for cell in choices:
                if self.naive.ancestor(cell, k) in self.naive.free:
                    self.lend_everything_but(cell)
                    assert self.allocator.allocate(level) == cell[1]
                    self.allocator.release(*cell)
                    yield self.state | {cell}

    def lend_everything_but(self, cell: Cell) -> None:
        """Opportunistic jobs on all leaves outside ``cell``: the allocator takes it, where it has the choice."""
        size = self.chain.gpus_per_node
        full = (1 << size) - 1
        leaves = self.naive.leaves(cell)
        inside = ((1 << len(leaves)) - 1) << leaves.start
        for node, before in enumerate(self.lent):
            after = self.lent[node] = full & ~(inside >> node * size)
            if after != before:
                self.allocator.set_opportunistic(node, before, after)


@pytest.mark.parametrize("chain", EVERY)
def test_every_reserved_cell_can_be_bound(chain: ChainSpec) -> None:
    for reserved in demands(chain, 0):
        if packs(chain, reserved):
            assert Adversary(chain, reserved).states() > any(reserved)


@pytest.mark.parametrize("chain", EVERY)
def test_feasible_exactly_when_cells_fit(chain: ChainSpec) -> None:
    for reserved in demands(chain, 1):
        cells = [(chain, level, number) for level, number in enumerate(reserved) if number]
        feasible = not shortages(cluster_of(chain, vc("one", *cells[::2]), vc("two", *cells[1::2])))
        assert feasible == packs(chain, reserved), reserved


@pytest.mark.parametrize("chain", EVERY)
def test_pinned_cell_is_counted_anywhere(chain: ChainSpec) -> None:
    for level in range(1, len(chain.levels) + 1):
        for index in {0, chain.cells_at(level) // 2, chain.cells_at(level) - 1}:
            for reserved in demands(chain, 0):
                cells = [(chain, k, number) for k, number in enumerate(reserved) if number]
                spec = cluster_of(chain, vc("pins", pinned=[(chain, level, index)]), vc("other", *cells))
                assert (not shortages(spec)) == packs(chain, reserved, [(level, index)]), (level, index, reserved)


# -- bad hardware: every assignment that fits, every safe state, every set of bad leaves, every request ----------------
# which cells may be taken is found by trying every way to pack what is still reserved beside them; no equation is asked

SMALL = [
    pytest.param(chain, id=name_of(chain), marks=pytest.mark.slow if name_of(chain) in ("2x3", "3x2") else ())
    for chain in hierarchies()
    if chain.gpus <= (2 if 1 in [level.fanout for level in chain.levels[1:]] else 4) or name_of(chain) in ("3x2", "2x3")
]


@pytest.mark.parametrize("chain", SMALL)
def test_request_gets_the_best_that_is_safe(chain: ChainSpec) -> None:
    levels = range(1, len(chain.levels) + 1)
    for reserved in demands(chain, 0):
        if not packs(chain, reserved):
            continue
        found: list[frozenset[Cell]] = [frozenset()]
        seen = set(found)
        for state in found:
            left = [number - sum(k == level for k, _ in state) for level, number in enumerate(reserved)]
            allocator = BuddyAllocator(Hierarchy(chain), 1, reserved)
            for cell in sorted(state):
                allocator.allocate_at(*cell)
            safe: set[Cell] = set()
            for level in levels:
                if left[level]:
                    fewer = [number - (k == level) for k, number in enumerate(left)]
                    for number in range(chain.cells_at(level)):
                        cell = level, number
                        may = stands_apart(chain, cell, state) and packs(chain, fewer, state | {cell})
                        assert allocator.can_take(*cell) == may
                        if may:
                            safe.add(cell)
                            if state | {cell} not in seen:
                                seen.add(state | {cell})
                                found.append(state | {cell})
            for bad in product(range(1 << chain.gpus_per_node), repeat=chain.top_cells):
                check_requests(allocator, safe, left, bad)


def stands_apart(chain: ChainSpec, cell: Cell, others: frozenset[Cell]) -> bool:
    naive = NaiveBuddies(chain)
    return all(set(naive.leaves(cell)).isdisjoint(naive.leaves(other)) for other in others)


def check_requests(allocator: BuddyAllocator, safe: set[Cell], left: list[int], bad: tuple[int, ...]) -> None:
    """With ``bad`` leaves per top cell, every request gets one of the ``safe`` cells, healthy if one of them is."""
    for node, mask in enumerate(bad):
        allocator.set_bad(node, 0, mask)
    for level in range(1, len(left)):
        if left[level]:
            healthy = {cell for k, cell in safe if k == level and not allocator.is_bad(k, cell)}
            unhealthy = {cell for k, cell in safe if k == level} - healthy
            cell = allocator.allocate(level)
            assert cell in (healthy or unhealthy)
            allocator.release(level, cell)
            if len(healthy) > 1:
                check_what_is_split(allocator, level, cell, healthy)
            cell = allocator.allocate_bad(level)
            if unhealthy:
                assert cell in unhealthy
                assert allocator.bad[level][cell] == min(allocator.bad[level][c] for c in unhealthy)
                allocator.release(level, cell)
            else:
                assert cell == -1
    for highest in range(1, len(left)):
        wanted = [number if level <= highest else 0 for level, number in enumerate(left)]
        short = Supply(allocator).shortage(wanted)
        got = [(level, allocator.allocate(level)) for level in range(highest, 0, -1) for _ in range(wanted[level])]
        bad_at = [level for level, cell in got if allocator.is_bad(level, cell)]
        assert short == [bad_at.count(level) for level in range(len(left))]
        for level, cell in got:
            allocator.release(level, cell)
        assert not (any(short) and surely_healthy(allocator, wanted))
    for node, mask in enumerate(bad):
        allocator.set_bad(node, mask, 0)


def check_what_is_split(allocator: BuddyAllocator, level: int, chosen: int, healthy: set[int]) -> None:
    """That ``chosen`` comes from the lowest free cells, and out of healthy ones only where no bad ones hold any.

    ``healthy``: the cells that it is one of, all as good for the request.
    """
    size = [number // allocator.hierarchy.gpus[level] for number in allocator.hierarchy.gpus]
    k = level
    while not (rivals := [cell for cell in healthy if allocator.is_free(k, cell // size[k])]):
        k += 1
    assert chosen in rivals
    for j in range(k, level, -1):
        in_bad = [cell for cell in rivals if allocator.is_bad(j, cell // size[j])]
        assert chosen in in_bad or not in_bad
        rivals = [cell for cell in rivals if cell // size[j] == chosen // size[j]]
