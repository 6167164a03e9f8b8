"""Both state machines are the tables of the page, masks of leaves obey them, and broken state is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived import CheckedCluster, Cluster, Member, Request
from hived.cells import BuddyAllocator, Hierarchy
from hived.cluster.nodes import Nodes
from hived.cluster.states import GROUP_TABLE, LEAF_TABLE, GroupEvent, GroupState, LeafEvent, LeafState, next_group_state
from hived.cluster.undo import Undo
from hived.errors import InvariantError

from ..strategies import NODE, chain_of, cluster_of, nodes_of_8, vc

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "states.md"
Table = dict[tuple[str, str], str]


def rows_of(title: str) -> Iterator[list[str]]:
    """The cells of all table rows under a heading of the page, without the lines below table heads."""
    (section,) = [part for part in PAGE.read_text(encoding="utf-8").split("\n## ") if part.startswith(title)]
    for line in section.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip().strip("*") for cell in line.strip("|").split("|")]


def names(kind: type[Enum]) -> list[str]:
    return [member.value for member in kind]


@pytest.mark.parametrize(
    ("title", "states", "events", "table"),
    [("Affinity groups", GroupState, GroupEvent, GROUP_TABLE), ("Leaf cells", LeafState, LeafEvent, LEAF_TABLE)],
)
def test_page_shows_the_table(title: str, states: type[Enum], events: type[Enum], table: dict[object, Enum]) -> None:
    """And says in a sentence what each state and event means."""
    rows = list(rows_of(title))
    (_, *columns), shown = rows[0], rows[1 : 1 + len(states)]
    assert columns == names(events)
    assert [row[0] for row in shown] == names(states)
    on_page = {(state, event): cell for state, *cells in shown for event, cell in zip(columns, cells, strict=True)}
    assert on_page == {
        (state.value, event.value): table[state, event].value if (state, event) in table else "-"
        for state in states
        for event in events
    }
    meanings = rows[1 + len(states) :]
    assert [row[0] for row in meanings] == ["state", *names(states), "event", *names(events)]
    assert all(cell.endswith(".") for head, *cells in meanings for cell in cells if head not in ("state", "event"))


def test_next_state_of_a_group() -> None:
    """The one of the table, and an error where it has none."""
    assert next_group_state(GroupState.ALLOCATED, GroupEvent.CHOOSE) is GroupState.BEING_PREEMPTED
    with pytest.raises(InvariantError, match="a group that is preempting cannot spare"):
        next_group_state(GroupState.PREEMPTING, GroupEvent.SPARE)


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
def test_masks_obey_the_table_leaf_by_leaf(data: st.DataObject) -> None:
    """Leaves change together or not at all."""
    nodes, leaves = data.draw(st.integers(1, 3), "nodes"), data.draw(st.sampled_from([1, 2, 4, 8, 70]), "leaves")
    masks = Nodes(0, BuddyAllocator(Hierarchy(chain_of((leaves,), nodes, 2)), 2), Undo())
    naive = NaiveLeaves(nodes, leaves)
    for _ in range(data.draw(st.integers(1, 40), "events")):
        event = data.draw(st.sampled_from(LeafEvent))
        node = data.draw(st.integers(0, nodes - 1))
        mask = data.draw(st.integers(0, (1 << leaves) - 1))
        if data.draw(st.integers(0, 4)):  # mostly what can happen
            mask &= naive.fit(event, node)
        if naive.apply(event, node, mask):
            masks.apply(event, node, mask)
        else:
            with pytest.raises(InvariantError, match=f"node {node}: {event.value} of leaf cells"):
                masks.apply(event, node, mask)
        states = [[masks.leaf_state(node, leaf) for leaf in range(leaves)] for node in range(nodes)]
        assert states == naive.states
        assert all(mask >> leaves == 0 for mask in (*masks.used, *masks.reserved))


# -- a cluster that re-derives everything after every change -----------------------------------------------------------

NODES = nodes_of_8(2)
SPEC = cluster_of(NODES, vc("a", (NODES, NODE, 2)))


def job(name: str) -> Request:
    return Request(name, "a", members=(Member(1, 8),))


def test_answer_is_checked_too() -> None:
    cluster = CheckedCluster(SPEC)
    cluster._state.chains[0].used[0] = 1  # a deliberate fault
    with pytest.raises(InvariantError, match="leaf cells"):
        cluster.schedule(job("one"))


CHANGES: dict[str, Callable[[CheckedCluster], Any]] = {
    "commit": lambda cluster: cluster.commit(cluster.schedule(job("two"))),
    "release": lambda cluster: cluster.release("one"),
    "cancel": lambda cluster: cluster.cancel("large"),
    "node": lambda cluster: cluster.set_node_health(NODES.node_names[1], healthy=False),
    "device": lambda cluster: cluster.set_device_health(NODES.node_names[1], 0, healthy=False),
    "recover": lambda cluster: cluster.recover(()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_broken_invariant_is_found(change: Callable[[CheckedCluster], Any]) -> None:
    cluster = CheckedCluster(SPEC)
    cluster.commit(cluster.schedule(job("one")))
    cluster.schedule(Request("large", "a", members=(Member(2, 8),)))
    cluster._state.opportunistic_gpus[0][0] = 1  # a deliberate fault
    with pytest.raises(InvariantError, match="lent"):
        change(cluster)


def test_failed_call_leaves_nothing_behind() -> None:
    cluster = Cluster(SPEC)
    cluster.commit(cluster.schedule(job("one")))
    nodes = cluster._state.chains[0]
    names, nodes.names = nodes.names, ()  # a deliberate fault: leaf cells are bound before they are named
    with pytest.raises(IndexError):
        cluster.schedule(job("two"))
    nodes.names = names
    cluster.validate()
    assert cluster.groups() == ("one",)
    cluster.commit(cluster.schedule(job("two")))
    cluster.validate()
    assert cluster.groups() == ("one", "two")
