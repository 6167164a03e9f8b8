"""Virtual cells that are bound for good, each to the cell that the order of the spec gives it.

That the contract holds, and that a VC is as safe as with cells bound on demand: tests/cluster/test_any_sequence.py.
"""

from __future__ import annotations

import pytest

from hived import Bind, Cluster, Member, Request
from hived.cluster import BindingKind, Sharing
from hived.spec import ClusterSpec

from ..strategies import NODE, cluster_of, nodes_of_8, racks, vc
from .driver import Driver


def static(spec: ClusterSpec) -> Cluster:
    return Cluster(spec, binding=BindingKind.STATIC)


TWO = nodes_of_8(4)


def test_bound_in_order_pinned_first() -> None:
    spec = cluster_of(TWO, vc("a", (TWO, NODE, 1), pinned=[(TWO, NODE, 0)]), vc("b", (TWO, 2, 3), (TWO, NODE, 1)))
    driver = Driver(spec, static(spec))
    nodes = [("a", 8, None), ("a", 8, "a-pin-0"), ("b", 8, None), ("b", 2, None), ("b", 2, None), ("b", 2, None)]
    found = []
    for number, (tenant, gpus, pin) in enumerate(nodes):
        bound = driver.bind(Request(f"g{number}", tenant, 0, (Member(1, gpus),), pinned_cell_id=pin))
        found.append([(pod.node, pod.leaf_cells[0]) for pod in bound.placement.pods])
    names = [f"node-node-{n}" for n in range(4)]
    assert found[:2] == [[(names[1], 0)], [(names[0], 0)]]
    assert found[2:] == [[(names[3], 0)], [(names[2], 0)], [(names[2], 2)], [(names[2], 4)]]


def test_bad_node_stays_with_its_vc() -> None:
    spec = cluster_of(TWO, vc("a", (TWO, NODE, 1)), vc("b", (TWO, NODE, 2)))
    dynamic, driver = Driver(spec), Driver(spec, static(spec))
    request = Request("g", "a", 0, (Member(1, 8),))
    for each in (dynamic, driver):
        each.set_node("node-node-0", healthy=False)
    assert isinstance(dynamic.ask(request), Bind), "another node is free"
    driver.wait(request)
    assert driver.cluster.unavailable() == {"a": 8, "b": 0}
    assert driver.cluster.doomed() == ()
    assert isinstance(driver.ask(Request("h", "b", 0, (Member(2, 8),))), Bind)
    driver.set_node("node-node-0", healthy=True)
    driver.bind(request)


def test_bound_child_by_child() -> None:
    chain = racks(2, nodes=2)
    spec = cluster_of(chain, vc("a", (chain, 5, 1)), vc("b", (chain, 5, 1)))
    driver = Driver(spec, static(spec))
    for tenant, first in (("a", 0), ("b", 2)):
        for number in (first, first + 1):
            placed = driver.bind(Request(f"{tenant}-{number}", tenant, 0, (Member(1, 8),))).placement
            assert [pod.node for pod in placed.pods] == [f"rack-node-{number}"]


def test_new_spec_binds_in_its_own_order() -> None:
    """Groups elsewhere become opportunistic, and none ends."""
    a, b = vc("a", (TWO, NODE, 1)), vc("b", (TWO, NODE, 1))
    driver = Driver(cluster_of(TWO, a, b), static(cluster_of(TWO, a, b)))
    driver.bind(Request("g", "a", 0, (Member(1, 8),)))
    assert driver.reconfigure(cluster_of(TWO, b, a))["downgraded"] == ["g"]
    assert driver.cluster.binding is BindingKind.STATIC
    assert driver.preempt(Request("h", "b", 0, (Member(1, 8),))).victims == ("g",)


def test_kind_of_binding_by_name() -> None:
    spec = cluster_of(TWO, vc("a", (TWO, NODE, 1)))
    assert Cluster(spec, "hived", binding="static").binding is BindingKind.STATIC  # type: ignore[arg-type]
    assert Cluster(spec).binding is BindingKind.DYNAMIC
    for sharing in (Sharing.QUOTA, Sharing.PRIVATE):
        Cluster(spec, sharing, binding=BindingKind.STATIC).validate()
    with pytest.raises(ValueError, match="loose"):
        Cluster(spec, binding="loose")  # type: ignore[arg-type]
