"""A VC with more priorities in use than spaces are kept for."""

from __future__ import annotations

import random

from hived import Bind, CheckedCluster, Member, Preempt, Request
from hived.cluster.pool import VIEWS

from ..strategies import NODE, cluster_of, nodes_of_8, vc

NODES = nodes_of_8(VIEWS + 14)


def full() -> CheckedCluster:
    """Every node has one group, each of a priority of its own: 0, 2, 4, ..."""
    cluster = CheckedCluster(cluster_of(NODES, vc("a", (NODES, NODE, VIEWS + 14))))
    for number in range(VIEWS + 14):
        answer = cluster.schedule(Request(f"p{2 * number}", "a", 2 * number, (Member(1, 8),)))
        assert isinstance(answer, Bind)
        cluster.commit(answer)
    return cluster


def test_lowest_priorities_are_preempted() -> None:
    cluster = full()
    order = list(range(1, 2 * (VIEWS + 14) + 1, 2))
    random.Random(1).shuffle(order)
    for priority in order:
        for pods in (1, 2, 5):
            answer = cluster.schedule(Request(f"asks-{priority}-{pods}", "a", priority, (Member(pods, 8),)))
            lower = (priority + 1) // 2
            if pods > lower:
                assert not isinstance(answer, Preempt | Bind)
            else:
                assert isinstance(answer, Preempt)
                assert sorted(answer.victims) == sorted(f"p{2 * number}" for number in range(pods))
    cluster.validate()


def test_right_after_groups_have_changed() -> None:
    cluster = full()
    for priority in range(1, 60, 2):
        cluster.schedule(Request(f"asks-{priority}", "a", priority, (Member(1, 8),)))
    cluster.release("p0")
    answer = cluster.schedule(Request("low", "a", 0, (Member(1, 8),)))
    assert isinstance(answer, Bind)
    cluster.commit(answer)
    answer = cluster.schedule(Request("high", "a", 59, (Member(2, 8),)))
    assert isinstance(answer, Preempt)
    assert sorted(answer.victims) == ["low", "p2"]


def test_unused_view_is_dropped() -> None:
    cluster = full()
    cluster.schedule(Request("once", "a", 59, (Member(1, 8),)))
    (pool,) = cluster._state.pools[0]
    assert pool._views
    for _ in range(100):
        cluster.release("p0")
        cluster.commit(cluster.schedule(Request("p0", "a", 0, (Member(1, 8),))))
    assert not pool._views
