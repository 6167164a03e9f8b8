"""Bad hardware: a reserved cell is healthy wherever that is safe, and always available.

Legal requests only: at each level never more cells than reserved, and reservations that fit. Whether hardware is bad
plays no part in safety, so bad cells count as cells there.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hived.cells import BuddyAllocator, Hierarchy
from hived.cells.healthy_first import Supply, surely_healthy
from hived.spec.compiled import ChainSpec

from ..strategies import NODE, RACK, SOCKET, chains, racks
from .naive import Cell, NaiveBuddies


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


def is_healthy(allocator: BuddyAllocator, level: int, cell: int) -> bool:
    return cell not in allocator.bad[level]


def takeable(allocator: BuddyAllocator, level: int, healthy: bool) -> list[int]:
    """The cells of ``level`` that may be taken, of those that are healthy, or of those that are not."""
    cells = range(allocator.hierarchy.count[level])
    return [c for c in cells if is_healthy(allocator, level, c) == healthy and allocator.can_take(level, c)]


def bad_ones_got(allocator: BuddyAllocator, wanted: list[int]) -> list[int]:
    """How many bad cells per level really asking for all of ``wanted`` gives, higher levels first; all go back."""
    got = [0] * len(wanted)
    taken: list[Cell] = []
    for level in range(len(wanted) - 1, 0, -1):
        for _ in range(wanted[level]):
            cell = allocator.allocate(level)
            assert cell >= 0
            assert min(allocator.margins()) >= 0
            got[level] += not is_healthy(allocator, level, cell)
            taken.append((level, cell))
    for level, cell in reversed(taken):
        allocator.release(level, cell)
    return got


class LegalMachine(RuleBasedStateMachine):
    """Tenants ask for what they reserved and give it back while leaves turn bad and good."""

    @initialize(chain=chains(max_gpus=32), lowest=st.integers(1, 4), data=st.data())
    def build(self, chain: ChainSpec, lowest: int, data: st.DataObject) -> None:
        reserved = data.draw(reservations(chain), label="reserved")
        lowest = min(lowest, *(k for k, number in enumerate(reserved) if number), len(chain.levels))
        self.allocator = BuddyAllocator(Hierarchy(chain), lowest, reserved)
        self.chain = chain
        self.allocated: list[Cell] = []
        self.bad = [data.draw(masks(chain.gpus_per_node), label="bad") for _ in range(self.allocator.hierarchy.nodes)]
        for node, mask in enumerate(self.bad):
            self.allocator.set_bad(node, 0, mask)
        self.lent = [0] * self.allocator.hierarchy.nodes

    def left(self) -> list[int]:
        """What may still be asked for, per level."""
        return [r - a for r, a in zip(self.allocator.reserved, self.allocator.allocated, strict=True)]

    def some_level(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([k for k, number in enumerate(self.left()) if number]), label="level")

    @precondition(lambda self: any(self.left()))
    @rule(data=st.data())
    def a_request_is_served_and_with_a_healthy_cell_if_any_may_be_taken(self, data: st.DataObject) -> None:
        level = self.some_level(data)
        near = data.draw(st.integers(-1, self.chain.cells_at(level) - 1), label="near")
        healthy = takeable(self.allocator, level, healthy=True)
        cell = self.allocator.allocate(level, near)
        assert cell >= 0
        assert cell in healthy or not healthy
        self.allocated.append((level, cell))

    @precondition(lambda self: any(self.left()))
    @rule(data=st.data())
    def a_bad_cell_is_found_if_any_may_be_taken(self, data: st.DataObject) -> None:
        level = self.some_level(data)
        bad = takeable(self.allocator, level, healthy=False)
        cell = self.allocator.allocate_bad(level)
        assert cell in bad if bad else cell == -1
        if bad:
            self.allocated.append((level, cell))

    @precondition(lambda self: any(self.left()))
    @rule(data=st.data())
    def a_cell_may_be_taken_exactly_when_taking_it_leaves_all_safe(self, data: st.DataObject) -> None:
        level = self.some_level(data)
        cell = data.draw(st.integers(0, self.chain.cells_at(level) - 1), label="cell")
        count, is_free = self.allocator.hierarchy.count, self.allocator.is_free
        free = {(k, c) for k in self.allocator.levels for c in range(count[k]) if is_free(k, c)}
        naive = NaiveBuddies(self.chain)
        naive.free = free
        safe = naive.holder_of((level, cell)) is not None
        if safe:
            self.allocator.allocate_at(level, cell)
            safe = all(row.margin >= 0 for row in self.allocator.safety())
            self.allocator.release(level, cell)
        assert self.allocator.can_take(level, cell) == safe
        if safe:
            self.allocator.allocate_at(level, cell)
            self.allocated.append((level, cell))

    @precondition(lambda self: self.allocated)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        cell = data.draw(st.sampled_from(sorted(self.allocated)))
        self.allocated.remove(cell)
        self.allocator.release(*cell)

    @rule(data=st.data(), node=st.integers(0, 31))
    def leaves_turn_bad_or_good(self, data: st.DataObject, node: int) -> None:
        node %= len(self.bad)
        after = data.draw(masks(self.chain.gpus_per_node), label="bad")
        self.allocator.set_bad(node, self.bad[node], after)
        self.bad[node] = after

    @rule(data=st.data(), node=st.integers(0, 31))
    def opportunistic_jobs_come_and_go(self, data: st.DataObject, node: int) -> None:
        node %= len(self.lent)
        after = data.draw(masks(self.chain.gpus_per_node), label="opportunistic")
        self.allocator.set_opportunistic(node, self.lent[node], after)
        self.lent[node] = after

    @rule(data=st.data())
    def the_shortage_of_one_vc_is_what_it_would_meet(self, data: st.DataObject) -> None:
        wanted = [data.draw(st.integers(0, number) | st.just(number), label="wanted") for number in self.left()]
        before = [set(bad) for bad in self.allocator.free_bad]
        short = Supply(self.allocator).shortage(wanted)
        assert short == bad_ones_got(self.allocator, wanted)
        assert not (surely_healthy(self.allocator, wanted) and any(short))
        assert self.allocator.free_bad == before, "nothing is touched by asking"

    @invariant()
    def all_is_safe(self) -> None:
        self.allocator.validate()
        assert min(self.allocator.margins()) >= 0


LegalMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestAnyLegalRequestsAndFaults = LegalMachine.TestCase


@given(chains(max_gpus=64), st.data())
@settings(max_examples=200)
def test_the_shortage_in_a_cluster_with_many_faults_is_what_asking_for_the_cells_meets(
    chain: ChainSpec, data: st.DataObject
) -> None:
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
        assert Supply(allocator).shortage(wanted) == bad_ones_got(allocator, wanted)


def test_a_higher_cell_is_split_around_a_bad_one_while_the_others_can_spare_it() -> None:
    allocator = BuddyAllocator(Hierarchy(racks(2)), NODE, [0, 0, 0, 0, 5, 0])
    assert allocator.allocate(NODE) == 0
    for node in (1, 2, 3):
        allocator.set_bad(node, 0, 1)
    assert allocator.margins()[NODE:] == [3, 1]
    assert allocator.allocate(NODE) == 4, "rack 0 has only bad nodes, and rack 1 is free"
    assert allocator.margins()[NODE:] == [3, 0]


def test_a_node_is_taken_from_a_broken_rack_before_a_healthy_rack_is_broken_up_for_it() -> None:
    allocator = BuddyAllocator(Hierarchy(racks(2, nodes=2)), NODE, [0, 0, 0, 0, 1, 1])
    allocator.set_bad(0, 0, 1)
    research, prod = [0, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]
    assert not any(Supply(allocator).shortage(research) + Supply(allocator).shortage(prod))
    assert allocator.allocate(NODE) == 1, "the healthy node of rack 0, which is of no use for a whole rack"
    assert not any(Supply(allocator).shortage(prod))
    assert allocator.allocate(RACK) == 1
    assert not allocator.is_bad(RACK, 1)


def test_of_two_requests_for_a_healthy_rack_the_one_for_its_parts_meets_the_shortage() -> None:
    allocator = BuddyAllocator(Hierarchy(racks(2, nodes=2)), NODE, [0, 0, 0, 0, 2, 1])
    allocator.set_bad(0, 0, 1)
    parts, whole = [0, 0, 0, 0, 2, 0], [0, 0, 0, 0, 0, 1]
    assert Supply(allocator).shortage(parts) == bad_ones_got(allocator, parts) == [0, 0, 0, 0, 1, 0]
    assert not any(Supply(allocator).shortage(whole))
    assert not surely_healthy(allocator, parts), "rack 1 could give both, but rack 0 is broken up first"
    assert surely_healthy(allocator, whole)


def test_a_bad_hint_is_ignored_while_there_is_a_healthy_cell() -> None:
    allocator = BuddyAllocator(Hierarchy(racks(2)), NODE)
    allocator.set_bad(6, 0, 1)
    assert allocator.allocate(NODE, near=6) == 4
    assert allocator.allocate(NODE, near=7) == 7
    assert allocator.allocate(NODE, near=3) == 5, "rack 1 is split, so the hint leads nowhere"
    assert allocator.allocate(NODE, near=6) == 0
    assert [allocator.allocate(NODE) for _ in range(3)] == [1, 2, 3]
    allocator.release(NODE, 1)
    allocator.set_bad(1, 0, 1)
    assert allocator.allocate(NODE, near=6) == 6, "both are bad"


@given(chains(max_gpus=64), st.data())
def test_where_every_node_is_bad_the_least_bad_parts_are_found(chain: ChainSpec, data: st.DataObject) -> None:
    reserved = data.draw(reservations(chain), label="reserved")
    allocator, naive = BuddyAllocator(Hierarchy(chain), 1, reserved), NaiveBuddies(chain, reserved)
    size = chain.gpus_per_node
    for node in range(allocator.hierarchy.nodes):
        mask = data.draw(st.integers(1, (1 << size) - 1), label="bad")
        allocator.set_bad(node, 0, mask)
        naive.bad.update(node * size + leaf for leaf in range(size) if mask >> leaf & 1)
    for level in data.draw(st.permutations([k for k, number in enumerate(reserved) for _ in range(number)])):
        expected = naive.choose(level)
        assert expected == (level, allocator.allocate(level))
        naive.take(expected)


def test_a_bad_child_of_an_allocated_cell_is_taken_last() -> None:
    allocator = BuddyAllocator(Hierarchy(racks()), NODE)
    allocator.allocate(RACK)
    allocator.set_bad(0, 0, 1)
    allocator.set_bad(2, 0, 1)
    assert allocator.take_child(NODE, 0, near=2) == 1
    assert allocator.take_child(NODE, 0) == 3
    assert allocator.take_child(NODE, 0, near=2) == 2, "now bad ones are all there is"
    assert allocator.take_child(NODE, 0) == 0


def test_of_bad_children_the_least_bad_is_taken_then_the_least_loaned() -> None:
    allocator = BuddyAllocator(Hierarchy(racks(nodes=3)), NODE)
    allocator.allocate(RACK)
    allocator.set_bad(0, 0, 0b11)
    allocator.set_bad(1, 0, 0b01)
    allocator.set_opportunistic(2, 0, 0xFF)
    assert allocator.take_child(NODE, 0) == 2, "healthy, however crowded"
    allocator.set_opportunistic(1, 0, 0xFF)
    assert allocator.take_child(NODE, 0) == 1, "one bad leaf is better than two"
    allocator.give_child(NODE, 1)
    allocator.set_bad(1, 0b01, 0b11)
    assert allocator.take_child(NODE, 0) == 0, "of equally bad ones the least crowded"


def test_a_doomed_cell_gets_the_least_bad_one_that_is_safe() -> None:
    allocator = BuddyAllocator(Hierarchy(racks(2)), SOCKET, [0, 0, 0, 2, 0, 1])
    assert allocator.allocate_bad(SOCKET) == -1, "nothing is bad"
    allocator.set_bad(0, 0, 0b0011_0001)
    assert allocator.allocate_bad(SOCKET) == 0, "one bad leaf, not two"
    allocator.set_bad(4, 0, 1)
    assert allocator.allocate_bad(SOCKET) == 1, "socket 8 has fewer bad leaves, but rack 1 is allocated now"
    assert allocator.allocate_bad(RACK) == 1
