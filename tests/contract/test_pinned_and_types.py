"""Pinned cells, several device types, several chains of one device type, and nodes that are in two chains."""

from __future__ import annotations

import pytest

from hived import Preempt, Wait

from .driver import Driver, devices
from .specs import Spec, cell_types, cluster_spec, flat, lent, reserves, wants


def pinned(vcs: dict[str, Spec] | None = None) -> Spec:
    """A rack of three nodes, the middle one pinned for b."""
    rack = {"cellType": "RACK", "cellChildren": [{"cellAddress": f"n{i}"} for i in range(3)]}
    rack["cellChildren"][1]["pinnedCellId"] = "b-pin"  # type: ignore[index]
    default = {"a": reserves({"RACK.NODE": 1}), "b": reserves({"RACK.NODE": 1}, ["b-pin"])}
    return cluster_spec(cell_types(3), [rack], vcs or default)


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


def nodes(driver: Driver, name: str) -> list[str]:
    return [pod.node for pod in driver.running[name].pods]


def test_a_request_for_a_pinned_cell_gets_it() -> None:
    driver = Driver(pinned())
    driver.bind(wants("pinned", "b", 3, pinned_cell_id="b-pin"))
    assert nodes(driver, "pinned") == ["n1"]
    driver.bind(wants("rest", "b", 1, pinned_cell_id="b-pin"))
    driver.wait(wants("more", "b", 1, pinned_cell_id="b-pin"))


def test_no_other_guaranteed_group_enters_a_pinned_cell() -> None:
    driver = Driver(pinned())
    for vc in "ab":
        driver.bind(wants(f"{vc}-job", vc, 4))
        driver.wait(wants(f"{vc}-more", vc, 1))
        assert nodes(driver, f"{vc}-job") != ["n1"]


def test_only_the_pinned_cell_serves_a_request_for_it() -> None:
    driver = Driver(pinned())
    driver.wait(wants("large", "b", (2, 4), pinned_cell_id="b-pin"))
    driver.bind(wants("holder", "b", 4, priority=3, pinned_cell_id="b-pin"))
    driver.wait(wants("low", "b", 4, priority=2, pinned_cell_id="b-pin"))
    decision = driver.run(wants("high", "b", 4, priority=4, pinned_cell_id="b-pin"))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("holder",)


def test_loans_run_in_a_pinned_cell_until_it_is_asked_for() -> None:
    driver = Driver(pinned())
    driver.bind(lent("loan", "a", (3, 4)))
    decision = driver.run(wants("pinned", "b", 1, pinned_cell_id="b-pin"))
    assert isinstance(decision, Preempt)
    assert nodes(driver, "pinned") == ["n1"]


def test_a_loan_avoids_the_node_of_a_pinned_cell_in_use() -> None:
    driver = Driver(pinned())
    driver.bind(wants("pinned", "b", 2, pinned_cell_id="b-pin"))
    driver.bind(lent("loan", "a", 2))
    assert nodes(driver, "loan") != ["n1"]


def test_a_pinned_cell_below_the_node_leaves_its_buddy_to_others() -> None:
    cells: list[Spec] = [
        {"cellType": "NODE", "cellAddress": "n0", "cellChildren": [{"pinnedCellId": "half"}, {}]},
    ]
    vcs = {"a": reserves(pinned=["half"]), "b": reserves({"NODE.SOCKET": 1})}
    driver = Driver(cluster_spec({k: v for k, v in cell_types().items() if k != "RACK"}, cells, vcs))
    driver.bind(wants("theirs", "b", 2))
    driver.bind(wants("mine", "a", 2, pinned_cell_id="half"))
    assert devices(driver.running["mine"].pods) == {("n0", 0), ("n0", 1)}
    driver.wait(wants("loose", "a", 1))


@pytest.mark.parametrize(("leaf_type", "gpus", "where"), [("K80", 2, "k"), ("V100", 4, "vw")])
def test_a_named_device_type_is_had(leaf_type: str, gpus: int, where: str) -> None:
    driver = Driver(two_types())
    driver.bind(wants("job", "a", gpus, leaf_cell_type=leaf_type))
    assert nodes(driver, "job")[0][0] in where


def test_chains_of_one_device_type_are_tried_in_the_order_of_the_spec() -> None:
    driver = Driver(two_types())
    for i, node in enumerate(("v0", "w")):
        driver.bind(wants(f"job-{i}", "a", 4, leaf_cell_type="V100"))
        assert nodes(driver, f"job-{i}")[0].startswith(node)
    driver.wait(wants("third", "a", 4, leaf_cell_type="V100"))


def test_without_a_type_the_first_chain_that_fits_is_had() -> None:
    driver = Driver(two_types())
    for i, (gpus, node) in enumerate([(2, "k"), (2, "v"), (4, "w"), (2, "v")]):
        driver.bind(wants(f"job-{i}", "a", gpus))
        assert nodes(driver, f"job-{i}")[0].startswith(node)
    driver.wait(wants("last", "a", 1))


def test_a_gang_never_spans_two_chains() -> None:
    driver = Driver(two_types())
    assert isinstance(driver.ask(wants("gang", "a", (2, 4), leaf_cell_type="V100")), Wait)


def test_a_loan_goes_to_any_chain_of_the_cluster_that_is_idle() -> None:
    driver = Driver(two_types())
    driver.bind(lent("two", "b", (2, 4)))
    assert set(nodes(driver, "two")) == {"w0", "w1"}
    driver.bind(lent("one", "b", 4, leaf_cell_type="V100"))
    assert nodes(driver, "one") == ["v0"]
    driver.bind(lent("k", "c", (2, 2), leaf_cell_type="K80"))


def test_a_higher_group_rather_takes_a_free_chain_than_preempts() -> None:
    driver = Driver(two_types())
    driver.bind(wants("low", "a", 4, leaf_cell_type="V100"))
    driver.bind(wants("high", "a", 4, priority=5, leaf_cell_type="V100"))


def test_each_chain_of_a_mixed_node_gives_its_own_devices() -> None:
    driver = Driver(mixed())
    driver.bind(wants("small", "a", 2, leaf_cell_type="SMALL"))
    assert devices(driver.running["small"].pods) == {("m0", 8), ("m0", 9)}
    driver.bind(wants("big", "a", 4, leaf_cell_type="BIG"), suggested=["m0"])
    assert devices(driver.running["big"].pods) == {("m0", device) for device in range(4)}


def test_odd_device_indices_come_in_the_order_of_the_leaves() -> None:
    driver = Driver(mixed())
    driver.bind(wants("pair", "b", 2), suggested=["m1"])
    assert driver.running["pair"].pods[0].leaf_cells in {(2, 0), (3, 1)}
    driver.bind(wants("rest", "b", 2))
    assert devices(driver.running["rest"].pods) | devices(driver.running["pair"].pods) == {("m1", i) for i in range(4)}


def test_one_broken_device_of_a_mixed_node_leaves_the_other_chain_alone() -> None:
    driver = Driver(mixed())
    driver.set_device("m0", 8, healthy=False)
    driver.bind(wants("small", "a", 1, leaf_cell_type="SMALL"))
    assert devices(driver.running["small"].pods) == {("m0", 9)}
    driver.bind(wants("big", "a", 4, leaf_cell_type="BIG"), suggested=["m0"])


def test_a_broken_mixed_node_is_broken_in_both_chains() -> None:
    driver = Driver(mixed())
    driver.set_node("m0", healthy=False)
    driver.wait(wants("small", "a", 1, leaf_cell_type="SMALL"))
    driver.bind(wants("big", "a", 4, leaf_cell_type="BIG"))
    assert nodes(driver, "big") == ["m1"]
    driver.set_node("m0", healthy=True)
    driver.bind(wants("small", "a", 2, leaf_cell_type="SMALL"))


def test_a_vc_without_cells_borrows_only() -> None:
    driver = Driver(flat({"a": 2, "none": 0}))
    driver.wait(wants("guaranteed", "none", 1))
    driver.bind(lent("loan", "none", 4))
