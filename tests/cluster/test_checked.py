"""A cluster that re-derives everything after every change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hived import CheckedCluster, Cluster, InvariantError, Member, Request

from ..strategies import NODE, cluster_of, nodes_of_8, vc

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
    "suspend": lambda cluster: cluster.suspend("one"),
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
