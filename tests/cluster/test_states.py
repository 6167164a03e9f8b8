"""Both state machines, every pair of state and event: the tables, docs/reference/states.md and what happens are one."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cells import BuddyAllocator, Hierarchy
from hived.cluster.nodes import Nodes
from hived.cluster.states import (
    GROUP_TABLE,
    LEAF_TABLE,
    GroupEvent,
    GroupState,
    LeafEvent,
    LeafState,
    next_group_state,
)
from hived.cluster.undo import Undo
from hived.errors import InvariantError

from ..strategies import chain_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "states.md"
Table = dict[tuple[str, str], str]


def rows_of(title: str) -> Iterator[list[str]]:
    """The cells of all table rows under a heading of the page, without the lines below table heads."""
    (section,) = [part for part in PAGE.read_text(encoding="utf-8").split("\n## ") if part.startswith(title)]
    for line in section.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip().strip("*") for cell in line.strip("|").split("|")]


def shown_transitions(title: str) -> tuple[Table, list[str], list[str]]:
    """What the first table under a heading allows, and the states and events that it has."""
    rows = rows_of(title)
    _, *events = next(rows)
    table: Table = {}
    states = []
    for state, *cells in rows:
        if state == "state":
            break
        states.append(state)
        assert len(cells) == len(events)
        table |= {(state, event): cell for event, cell in zip(events, cells, strict=True) if cell != "-"}
    return table, states, events


def names(kind: type[Enum]) -> list[str]:
    return [member.value for member in kind]


GROUPS_SHOWN, LEAVES_SHOWN = shown_transitions("Affinity groups"), shown_transitions("Leaf cells")

# ---------------------------------------------------------------------------------------------- the page


def test_the_page_shows_the_table_of_groups() -> None:
    in_code = {(state.value, event.value): after.value for (state, event), after in GROUP_TABLE.items()}
    assert (in_code, names(GroupState), names(GroupEvent)) == GROUPS_SHOWN


def test_the_page_shows_the_table_of_leaf_cells() -> None:
    in_code = {(state.value, event.value): after.value for (state, event), after in LEAF_TABLE.items()}
    assert (in_code, names(LeafState), names(LeafEvent)) == LEAVES_SHOWN


@pytest.mark.parametrize(
    ("title", "states", "events"), [("Affinity groups", GroupState, GroupEvent), ("Leaf cells", LeafState, LeafEvent)]
)
def test_the_page_says_what_every_state_and_event_means(title: str, states: type[Enum], events: type[Enum]) -> None:
    rows = list(rows_of(title))
    by_head = {row[0]: number for number, row in enumerate(rows) if row[0] in ("state", "event")}
    assert [row[0] for row in rows[by_head["state"] + 1 : by_head["event"]]] == names(states)
    assert [row[0] for row in rows[by_head["event"] + 1 :]] == names(events)
    assert all(cell.endswith(".") for row in rows[by_head["state"] + 1 :] for cell in row[1:] if row[0] != "event")


# ---------------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize(("state", "event"), list(product(GroupState, GroupEvent)), ids=lambda member: member.value)
def test_a_group_goes_where_the_page_says_or_nowhere(state: GroupState, event: GroupEvent) -> None:
    after = GROUPS_SHOWN[0].get((state.value, event.value))
    if after is None:
        with pytest.raises(InvariantError, match=f"a group that is {state.value} cannot {event.value}"):
            next_group_state(state, event)
    else:
        assert next_group_state(state, event) is GroupState(after)


def test_every_state_of_a_group_can_be_reached_and_all_can_end() -> None:
    reached = {GroupState.PENDING}
    for _ in GroupState:
        reached |= {after for (state, _), after in GROUP_TABLE.items() if state in reached}
    assert reached == set(GroupState)
    ended = {state for (state, event) in GROUP_TABLE if event is GroupEvent.END}
    assert ended == set(GroupState) - {GroupState.DELETED}


# ------------------------------------------------------------------------------------------ leaf cells

#: events that lead from free to each state
WAYS: dict[LeafState, tuple[LeafEvent, ...]] = {
    LeafState.FREE: (),
    LeafState.USED: (LeafEvent.ALLOCATE,),
    LeafState.RESERVING: (LeafEvent.ALLOCATE, LeafEvent.RESERVE),
    LeafState.RESERVED: (LeafEvent.RESERVE,),
}


def free_leaves(nodes: int, leaves: int = 8) -> Nodes:
    """Unused nodes."""
    chain = chain_of((leaves,), nodes, 2)
    return Nodes(0, BuddyAllocator(Hierarchy(chain), 2), Undo())


def one_leaf_in_each_state() -> Nodes:
    """Leaf ``i`` of both nodes in the ``i``-th state."""
    states = free_leaves(2)
    for node in range(2):
        for leaf, state in enumerate(LeafState):
            for event in WAYS[state]:
                states.apply(event, node, 1 << leaf)
    return states


def all_states(states: Nodes, nodes: int, leaves: int) -> list[LeafState]:
    return [states.leaf_state(node, leaf) for node in range(nodes) for leaf in range(leaves)]


def test_all_leaves_are_free_at_first() -> None:
    assert all_states(free_leaves(3), 3, 8) == [LeafState.FREE] * 24


@pytest.mark.parametrize(("state", "event"), list(product(LeafState, LeafEvent)), ids=lambda member: member.value)
def test_a_leaf_goes_where_the_page_says_or_nowhere(state: LeafState, event: LeafEvent) -> None:
    states = one_leaf_in_each_state()
    before = all_states(states, 2, 4)
    assert before == list(LeafState) * 2
    leaf = list(LeafState).index(state)
    after = LEAVES_SHOWN[0].get((state.value, event.value))
    if after is None:
        with pytest.raises(InvariantError, match=f"node 1: {event.value} of leaf cells"):
            states.apply(event, 1, 1 << leaf)
    else:
        states.apply(event, 1, 1 << leaf)
        before[4 + leaf] = LeafState(after)
    assert all_states(states, 2, 4) == before


@pytest.mark.parametrize(
    ("one", "other", "event"), list(product(LeafState, LeafState, LeafEvent)), ids=lambda member: member.value
)
def test_leaves_change_together_or_not_at_all(one: LeafState, other: LeafState, event: LeafEvent) -> None:
    states = one_leaf_in_each_state()
    mask = 1 << list(LeafState).index(one) | 1 << list(LeafState).index(other)
    before = all_states(states, 2, 4)
    if (one, event) in LEAF_TABLE and (other, event) in LEAF_TABLE:
        states.apply(event, 0, mask)
        assert states.leaf_state(0, list(LeafState).index(one)) is LEAF_TABLE[one, event]
        assert states.leaf_state(0, list(LeafState).index(other)) is LEAF_TABLE[other, event]
    else:
        with pytest.raises(InvariantError):
            states.apply(event, 0, mask)
        assert all_states(states, 2, 4) == before


class NaiveLeaves:
    """One state per leaf, moved by the table."""

    def __init__(self, nodes: int, leaves: int) -> None:
        self.leaves = leaves
        self.states = [[LeafState.FREE] * leaves for _ in range(nodes)]

    def fit(self, event: LeafEvent, node: int) -> int:
        """The leaves that ``event`` can happen to."""
        return sum(1 << leaf for leaf, state in enumerate(self.states[node]) if (state, event) in LEAF_TABLE)

    def apply(self, event: LeafEvent, node: int, mask: int) -> bool:
        """Whether ``event`` can happen to all of ``mask``; then it has."""
        if mask & ~self.fit(event, node):
            return False
        for leaf in range(self.leaves):
            if mask >> leaf & 1:
                self.states[node][leaf] = LEAF_TABLE[self.states[node][leaf], event]
        return True


@given(st.data())
def test_masks_do_what_the_table_does_leaf_by_leaf(data: st.DataObject) -> None:
    nodes, leaves = data.draw(st.integers(1, 3), "nodes"), data.draw(st.sampled_from([1, 2, 4, 8, 70]), "leaves")
    masks, naive = free_leaves(nodes, leaves), NaiveLeaves(nodes, leaves)
    for _ in range(data.draw(st.integers(1, 40), "events")):
        event = data.draw(st.sampled_from(LeafEvent))
        node = data.draw(st.integers(0, nodes - 1))
        mask = data.draw(st.integers(0, (1 << leaves) - 1))
        if data.draw(st.integers(0, 4)):  # mostly what can happen
            mask &= naive.fit(event, node)
        if naive.apply(event, node, mask):
            masks.apply(event, node, mask)
        else:
            with pytest.raises(InvariantError):
                masks.apply(event, node, mask)
        assert all_states(masks, nodes, leaves) == [state for row in naive.states for state in row]
        assert all(mask >> leaves == 0 for mask in (*masks.used, *masks.reserved))
