"""Virtual cells that are bound for good: the contract holds, and a VC is as safe as with cells bound on demand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived import Bind, Cluster, Member, Preempt, Request
from hived.cluster import BindingKind, Sharing
from hived.spec import ClusterSpec

from ..strategies import NODE, cluster_of, feasible_specs, nodes_of_8, racks, vc
from .driver import Driver
from .test_safety_differential import Worlds, tight_specs
from .walks import SEEDS, SPECS, Walk


def static(spec: ClusterSpec) -> Cluster:
    return Cluster(spec, binding=BindingKind.STATIC)


class StaticWalk(Walk):
    """Any events on cells that are bound for good."""

    def __init__(self, spec: ClusterSpec, seed: int, *more: Any) -> None:
        super().__init__(spec, seed, *more)
        self.driver = Driver(spec, static(spec))

    def restart(self) -> None:
        """From the records: every group runs on, and guaranteed, since the cells are the same again."""
        records = self.driver.cluster.records()
        if any(len(run.pods) != run.request.pods for run in self.driver.running.values()):
            return  # a new spec has left some of it out
        again = static(self.spec)
        for node, device in sorted(self.driver.bad):
            again.set_device_health(node, device, healthy=False)
        report = again.recover(records)
        assert not report.downgraded
        assert again.records() == records

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.event()()
            self.driver.lines.append("")  # by their number it names jobs


@settings(max_examples=60)
@given(SPECS, SEEDS)
def test_any_events(spec: ClusterSpec, seed: int) -> None:
    StaticWalk(spec, seed).play(40)


@settings(max_examples=40)
@given(st.lists(feasible_specs(max_gpus=16), min_size=2, max_size=3), SEEDS)
def test_any_events_and_new_specs(specs: list[ClusterSpec], seed: int) -> None:
    """Under a new spec the cells are bound in its order, so groups elsewhere become opportunistic, and none ends."""
    walk = StaticWalk(specs[0], seed, specs)
    walk.play(30)
    assert walk.driver.cluster.binding is BindingKind.STATIC


@settings(max_examples=30)
@given(st.one_of(tight_specs(), feasible_specs(max_gpus=16)), SEEDS, st.booleans())
def test_no_vc_notices_the_others(spec: ClusterSpec, seed: int, slow: bool) -> None:
    worlds = Worlds(spec, seed, slow)
    worlds.shared = Driver(spec, static(spec))
    for _ in range(40):
        worlds.play()
    worlds.probe()


TWO = nodes_of_8(4)


def test_cells_are_bound_in_the_order_of_the_spec_and_pinned_ones_first() -> None:
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


def test_a_bad_node_stays_with_its_vc_which_waits_as_in_private() -> None:
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


def test_a_loan_ends_where_the_vc_lands_though_other_nodes_are_idle() -> None:
    spec = cluster_of(TWO, vc("a", (TWO, NODE, 2)), vc("b", (TWO, NODE, 2)))
    driver = Driver(spec, static(spec))
    loan = Request("loan", "b", -1, (Member(1, 8),))
    (pod,) = driver.bind(loan).placement.pods
    assert pod.node == "node-node-0"
    decision = driver.ask(Request("g", "a", 0, (Member(1, 8),)))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("loan",)


def test_cells_above_nodes_are_bound_child_by_child() -> None:
    chain = racks(2, nodes=2)
    spec = cluster_of(chain, vc("a", (chain, 5, 1)), vc("b", (chain, 5, 1)))
    driver = Driver(spec, static(spec))
    for tenant, first in (("a", 0), ("b", 2)):
        for number in (first, first + 1):
            placed = driver.bind(Request(f"{tenant}-{number}", tenant, 0, (Member(1, 8),))).placement
            assert [pod.node for pod in placed.pods] == [f"rack-node-{number}"]


def test_the_kind_of_binding_is_given_by_name_too() -> None:
    spec = cluster_of(TWO, vc("a", (TWO, NODE, 1)))
    assert Cluster(spec, "hived", binding="static").binding is BindingKind.STATIC  # type: ignore[arg-type]
    assert Cluster(spec).binding is BindingKind.DYNAMIC
    for sharing in (Sharing.QUOTA, Sharing.PRIVATE):
        Cluster(spec, sharing, binding=BindingKind.STATIC).validate()
    with pytest.raises(ValueError, match="loose"):
        Cluster(spec, binding="loose")  # type: ignore[arg-type]
