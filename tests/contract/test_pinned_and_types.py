"""Pinned cells, several device types, chains of one device type, nodes in two chains, and cells bound for good."""

from __future__ import annotations

import pytest

from hived import Bind, Cluster, Member, Request
from hived.cluster import BindingKind, Sharing
from hived.spec import ClusterSpec

from ..strategies import NODE, cluster_of, nodes_of_8, racks, vc
from .driver import Driver, devices, nodes_of, running
from .specs import Spec, cell_types, cluster_spec, flat, lent, reserves, wants


def pinned() -> Spec:
    """A rack of three nodes, the middle one pinned for b."""
    rack = {"cellType": "RACK", "cellChildren": [{"cellAddress": f"n{i}"} for i in range(3)]}
    rack["cellChildren"][1]["pinnedCellId"] = "b-pin"  # type: ignore[index]
    vcs = {"a": reserves({"RACK.NODE": 1}), "b": reserves({"RACK.NODE": 1}, ["b-pin"])}
    return cluster_spec(cell_types(3), [rack], vcs)


def two_types() -> Spec:
    """Nodes of two K80 (k0, k1), then of four V100 in two chains (v0; w0 and w1 under one switch)."""
    types: Spec = {
        "K80-NODE": {"childCellType": "K80", "childCellNumber": 2, "isNodeLevel": True},
        "V100-NODE": {"childCellType": "V100", "childCellNumber": 4, "isNodeLevel": True},
        "2-V100-NODE": {"childCellType": "V100-NODE", "childCellNumber": 2},
    }
    cells: list[Spec] = [
        {"cellType": "K80-NODE", "cellAddress": "k0"},
        {"cellType": "K80-NODE", "cellAddress": "k1"},
        {"cellType": "V100-NODE", "cellAddress": "v0"},
        {"cellType": "2-V100-NODE", "cellChildren": [{"cellAddress": "w0"}, {"cellAddress": "w1"}]},
    ]
    vcs = {
        "a": reserves({"K80-NODE": 1, "V100-NODE": 1, "2-V100-NODE.V100-NODE": 1}),
        "b": reserves({"K80-NODE": 1}),
        "c": reserves({"2-V100-NODE.V100-NODE": 1}),
    }
    return cluster_spec(types, cells, vcs)


def mixed() -> Spec:
    """``m0`` has four big devices 0 to 3 and two small ones, 8 and 9; ``m1`` the big ones in odd order."""
    types: Spec = {
        "SMALL-NODE": {"childCellType": "SMALL", "childCellNumber": 2, "isNodeLevel": True},
        "PAIR": {"childCellType": "BIG", "childCellNumber": 2},
        "BIG-NODE": {"childCellType": "PAIR", "childCellNumber": 2, "isNodeLevel": True},
    }
    odd = [
        {"cellAddress": 0, "cellChildren": [{"cellAddress": 2}, {"cellAddress": 0}]},
        {"cellAddress": 1, "cellChildren": [{"cellAddress": 3}, {"cellAddress": 1}]},
    ]
    cells: list[Spec] = [
        {"cellType": "SMALL-NODE", "cellAddress": "m0", "cellChildren": [{"cellAddress": 8}, {"cellAddress": 9}]},
        {"cellType": "BIG-NODE", "cellAddress": "m0"},
        {"cellType": "BIG-NODE", "cellAddress": "m1", "cellChildren": odd},
    ]
    return cluster_spec(types, cells, {"a": reserves({"SMALL-NODE": 1, "BIG-NODE": 1}), "b": reserves({"BIG-NODE": 1})})


def test_cells_that_a_vc_lacks() -> None:
    """The message has what there is."""
    driver = Driver(two_types())
    error = driver.refused(wants("job", "b", 1, leaf_cell_type="V100"), "leaf_cell_type")
    assert error.message == "'b' has no cells of 'V100'; it has 'K80'"
    error = driver.refused(wants("job", "b", 1, leaf_cell_type="T4"), "leaf_cell_type")
    assert error.message == "there is no leaf cell type 'T4'; there are 'K80', 'V100'"


def test_no_other_group_in_a_pinned_cell() -> None:
    driver = Driver(pinned())
    for tenant in "ab":
        driver.bind(wants(f"{tenant}-job", tenant, 4))
        driver.wait(wants(f"{tenant}-more", tenant, 1))
        assert nodes_of(driver, f"{tenant}-job") != ["n1"]


def test_loans_and_pinned_cells() -> None:
    """They run there until it is asked for, and keep off its node while it is in use."""
    driver = running(pinned(), lent("loan", "a", (3, 4)))
    assert driver.preempt(wants("pinned", "b", 2, pinned_cell_id="b-pin")).victims == ("loan",)
    driver.step(wants("pinned", "b", 2, pinned_cell_id="b-pin"))
    assert nodes_of(driver, "pinned") == ["n1"]
    driver.bind(lent("other", "a", 2))
    assert nodes_of(driver, "other") != ["n1"]


def test_pinned_below_the_node() -> None:
    """It leaves its buddy to others."""
    cells: list[Spec] = [{"cellType": "NODE", "cellAddress": "n0", "cellChildren": [{"pinnedCellId": "half"}, {}]}]
    vcs = {"a": reserves(pinned=["half"]), "b": reserves({"NODE.SOCKET": 1})}
    driver = Driver(cluster_spec({k: v for k, v in cell_types().items() if k != "RACK"}, cells, vcs))
    driver.bind(wants("theirs", "b", 2))
    driver.bind(wants("mine", "a", 2, pinned_cell_id="half"))
    assert devices(driver.running["mine"].pods) == {("n0", 0), ("n0", 1)}
    driver.wait(wants("loose", "a", 1))


@pytest.mark.parametrize(
    ("kind", "jobs"),
    [("K80", [(2, "k")]), ("V100", [(4, "v"), (4, "w")]), (None, [(2, "k"), (2, "v"), (4, "w"), (2, "v")])],
)
def test_first_chain_of_the_type(kind: str | None, jobs: list[tuple[int, str]]) -> None:
    """Chains are tried in the order of the spec; a gang never spans two."""
    driver = Driver(two_types())
    driver.wait(wants("gang", "a", (2, 4), leaf_cell_type="V100"))
    driver.cancel("gang")
    for i, (gpus, node) in enumerate(jobs):
        driver.bind(wants(f"job-{i}", "a", gpus, leaf_cell_type=kind))
        assert nodes_of(driver, f"job-{i}")[0].startswith(node)
    driver.wait(wants("last", "a", 1, leaf_cell_type=kind))


def test_loan_in_any_idle_chain() -> None:
    driver = running(two_types(), lent("two", "b", (2, 4)))
    assert {*nodes_of(driver, "two")} == {"w0", "w1"}
    driver.bind(lent("one", "b", 4, leaf_cell_type="V100"))
    assert nodes_of(driver, "one") == ["v0"]
    driver.bind(lent("k", "c", (2, 2), leaf_cell_type="K80"))


def test_free_chain_rather_than_preemption() -> None:
    driver = running(two_types(), wants("low", "a", 4, leaf_cell_type="V100"))
    driver.bind(wants("high", "a", 4, priority=5, leaf_cell_type="V100"))


def test_node_in_two_chains() -> None:
    """Each chain gives its own devices, and one broken device of the other leaves it alone."""
    driver = Driver(mixed())
    driver.bind(wants("small", "a", 2, leaf_cell_type="SMALL"))
    assert devices(driver.running["small"].pods) == {("m0", 8), ("m0", 9)}
    driver.release("small")
    driver.set_device("m0", 8, healthy=False)
    driver.bind(wants("small", "a", 1, leaf_cell_type="SMALL"))
    assert devices(driver.running["small"].pods) == {("m0", 9)}
    driver.bind(wants("big", "a", 4, leaf_cell_type="BIG"), suggested=["m0"])
    assert devices(driver.running["big"].pods) == {("m0", device) for device in range(4)}


def test_odd_device_indices() -> None:
    """They come in the order of the leaves."""
    driver = Driver(mixed())
    driver.bind(wants("pair", "b", 2), suggested=["m1"])
    assert driver.running["pair"].pods[0].leaf_cells in {(2, 0), (3, 1)}
    driver.bind(wants("rest", "b", 2))
    assert devices(driver.running["rest"].pods) | devices(driver.running["pair"].pods) == {("m1", i) for i in range(4)}


def test_broken_node_in_two_chains() -> None:
    driver = Driver(mixed())
    driver.set_node("m0", healthy=False)
    driver.wait(wants("small", "a", 1, leaf_cell_type="SMALL"))
    driver.bind(wants("big", "a", 4, leaf_cell_type="BIG"))
    assert nodes_of(driver, "big") == ["m1"]
    driver.set_node("m0", healthy=True)
    driver.bind(wants("small", "a", 2, leaf_cell_type="SMALL"))


def test_vc_without_cells_borrows_only() -> None:
    driver = Driver(flat({"a": 2, "none": 0}))
    driver.wait(wants("guaranteed", "none", 1))
    driver.bind(lent("loan", "none", 4))


# ------------------------------------------------- bound for good, each to the cell that the order of the spec gives it
# that the contract holds, and that a VC is as safe as with cells bound on demand: tests/cluster/test_any_sequence.py


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
