"""What users of deployed HiveD clusters know it does, said again with nodes of our own."""

from __future__ import annotations

from hived import Preempt, Wait

from .driver import Driver, devices
from .specs import Spec, cell_types, cluster_spec, flat, lent, racks, reserves, wants


def test_a_second_single_gpu_lands_on_the_buddy_of_the_first() -> None:
    driver = Driver(flat({"a": 2, "b": 1}, size=8))
    one = driver.bind(wants("one", "a", 1)).placement.pods[0]
    two = driver.bind(wants("two", "a", 1)).placement.pods[0]
    assert one.node == two.node
    assert {one.leaf_cells[0] // 2} == {two.leaf_cells[0] // 2}


def test_single_gpus_leave_whole_nodes_to_groups_that_need_them() -> None:
    driver = Driver(flat({"a": 3}))
    for i in range(4):
        driver.bind(wants(f"single-{i}", "a", 1))
    driver.bind(wants("pair", "a", (2, 4)))


def test_a_vc_that_reserved_two_nodes_can_not_have_a_third_by_asking_for_pieces() -> None:
    driver = Driver(flat({"a": 2, "b": 2}))
    for i in range(8):
        driver.bind(wants(f"piece-{i}", "a", 1))
    assert len({pod.node for run in driver.running.values() for pod in run.pods}) == 2
    driver.wait(wants("ninth", "a", 1))


def test_a_node_is_given_back_when_nothing_of_the_vc_runs_there() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("one", "a", 1), suggested=["n0"])
    driver.release("one")
    driver.bind(wants("two", "b", 1), suggested=["n0"])
    driver.bind(wants("three", "a", 4))


def test_a_rack_comes_back_together_after_pieces_of_it_were_used() -> None:
    driver = Driver(racks({"a": {"RACK.NODE": 2}, "b": {"RACK": 1}}, count=2, nodes=2))
    for turn in range(3):
        for i in range(2):
            driver.bind(wants(f"piece-{turn}-{i}", "a", 4))
        driver.bind(wants(f"whole-{turn}", "b", (2, 4), within="RACK"))
        driver.release(f"piece-{turn}-0", f"whole-{turn}", f"piece-{turn}-1")


def test_loans_are_taken_back_at_once_by_the_owner_of_the_cells() -> None:
    driver = Driver(flat({"a": 2, "b": 2}))
    driver.bind(lent("everything", "a", (4, 4)))
    decision = driver.run(wants("mine", "b", 1))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("everything",)


def test_different_groups_of_one_vc_and_several_levels_of_reservation() -> None:
    spec = racks({"a": {"RACK.NODE": 1, "RACK.NODE.SOCKET": 2}, "b": {"RACK": 1}}, count=2, nodes=2)
    driver = Driver(spec)
    driver.bind(wants("node", "a", 4))
    driver.bind(wants("socket-1", "a", 2))
    driver.bind(wants("socket-2", "a", 1))
    driver.bind(wants("rest", "a", 1))
    assert isinstance(driver.ask(wants("more", "a", 1)), Wait)
    driver.bind(wants("rack", "b", (2, 4), within="RACK"))


def test_a_small_request_takes_the_small_reserved_cell_and_leaves_the_node_whole() -> None:
    driver = Driver(racks({"a": {"RACK.NODE": 1, "RACK.NODE.SOCKET": 1}}, count=1, nodes=2))
    driver.bind(wants("small", "a", 2))
    driver.bind(wants("whole", "a", 4))


def test_quarters_of_a_node_are_reserved_by_four_tenants() -> None:
    cells: list[Spec] = [{"cellType": "NODE", "cellAddress": "n0"}]
    types = {kind: of for kind, of in cell_types().items() if kind != "RACK"}
    spec = cluster_spec(types, cells, {vc: reserves({"NODE.SOCKET.GPU": 1}) for vc in "abcd"})
    driver = Driver(spec)
    for vc in "abcd":
        driver.bind(wants(vc, vc, 1))
        driver.wait(wants(f"{vc}-more", vc, 1))
    assert devices(tuple(pod for run in driver.running.values() for pod in run.pods)) == {("n0", i) for i in range(4)}
