"""Bad hardware with no sampling: every assignment that fits, every safe state, every set of bad leaves, every request.

Which cells may be taken is found by trying every way to pack what is still reserved beside them; no equation is asked.
"""

from __future__ import annotations

from itertools import product

import pytest

from hived.cells import BuddyAllocator, Hierarchy
from hived.cells.healthy_first import Supply, surely_healthy
from hived.spec.compiled import ChainSpec

from .naive import Cell, NaiveBuddies, packs
from .test_every_small_hierarchy import demands, hierarchies, name_of

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
