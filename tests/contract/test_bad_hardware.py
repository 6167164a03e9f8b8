"""Bad nodes and devices: never placed on, lived with, absorbed by spare capacity, and forgotten once they heal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived import Bind, Preempt, RequestError, Wait
from hived.cluster.reasons import BadHardware
from hived.cluster.states import GroupState

from .driver import Driver, devices
from .specs import flat, lent, racks, wants


def nodes(driver: Driver, name: str) -> list[str]:
    return sorted(pod.node for pod in driver.running[name].pods)


@pytest.mark.parametrize("bad", ["n0", "n1", "n2"])
@pytest.mark.parametrize("priority", [0, -1])
def test_healthy_nodes_are_taken_and_bad_ones_never(bad: str, priority: int) -> None:
    driver = Driver(flat({"a": 2}, spare=1))
    driver.set_node(bad, healthy=False)
    driver.bind(wants("job", "a", (2, 4), priority=priority))
    assert bad not in nodes(driver, "job")


def test_a_vc_uses_the_healthy_devices_of_a_partly_bad_node() -> None:
    driver = Driver(flat({"a": 1}))
    driver.set_device("n0", 1, healthy=False)
    waits = driver.wait(wants("whole", "a", 4))
    (reason,) = [reason for reason in waits.reasons if isinstance(reason, BadHardware)]
    assert (reason.leaf_cells, reason.nodes, reason.more) == (1, ("n0",), 0)
    driver.bind(wants("most", "a", 3))
    assert devices(driver.running["most"].pods) == {("n0", 0), ("n0", 2), ("n0", 3)}


def test_a_pair_keeps_off_the_socket_with_the_bad_device() -> None:
    driver = Driver(flat({"a": 1}))
    driver.set_device("n0", 0, healthy=False)
    driver.bind(wants("pair", "a", 2))
    assert devices(driver.running["pair"].pods) == {("n0", 2), ("n0", 3)}


def test_with_all_nodes_bad_it_waits_and_names_them() -> None:
    driver = Driver(flat({"a": 1}, spare=1))
    for bad in ("n0", "n1"):
        driver.set_node(bad, healthy=False)
    waits = driver.wait(wants("job", "a", 1))
    (reason,) = [reason for reason in waits.reasons if isinstance(reason, BadHardware)]
    assert reason.leaf_cells >= 1
    assert set(reason.nodes) <= {"n0", "n1"}
    driver.set_node("n1", healthy=True)
    driver.bind(wants("job", "a", 4))
    assert nodes(driver, "job") == ["n1"]


def test_a_group_on_a_node_that_turns_bad_runs_on() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("mine", "a", 2), suggested=["n0"])
    driver.bind(lent("loan", "b", 1), suggested=["n0"])
    driver.set_node("n0", healthy=False)
    assert driver.cluster.group("mine").state is GroupState.ALLOCATED
    assert driver.cluster.group("loan").state is GroupState.ALLOCATED
    assert driver.bind(wants("mine", "a", 2)).placement.pods == driver.running["mine"].pods
    driver.release("loan")
    driver.wait(lent("loan", "b", 1), suggested=["n0"])


def test_a_node_that_turned_bad_in_use_is_not_used_again_until_it_heals() -> None:
    driver = Driver(flat({"a": 1}, spare=1))
    driver.bind(wants("first", "a", 4), suggested=["n0"])
    driver.set_device("n0", 0, healthy=False)
    driver.release("first")
    driver.bind(wants("second", "a", 4))
    assert nodes(driver, "second") == ["n1"]
    driver.release("second")
    driver.set_device("n0", 0, healthy=True)
    driver.bind(wants("third", "a", 4), suggested=["n0"])


def test_a_reservation_on_hardware_that_breaks_ends_and_spares_its_victims() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 2))
    driver.preempt(wants("high", "a", 4, priority=1))
    driver.set_device("n0", 3, healthy=False)
    assert driver.cluster.group("high").state is GroupState.PENDING
    assert driver.cluster.group("low").state is GroupState.ALLOCATED
    driver.wait(wants("high", "a", 4, priority=1))
    driver.set_device("n0", 3, healthy=True)
    assert isinstance(driver.run(wants("high", "a", 4, priority=1)), Preempt)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_reservation_that_broke_is_had_elsewhere_on_the_next_ask(lazy: bool) -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("wide", "a", (2, 3), lazy_preemption=lazy))
    high = wants("high", "a", 4, priority=5)
    first = driver.preempt(high).placement.pods[0].node
    driver.set_device(first, 0, healthy=False)
    second = driver.preempt(high)
    assert second.victims == ("wide",)
    assert second.placement.pods[0].node != first
    driver.release("wide")
    driver.bind(high)


def test_a_victim_on_bad_hardware_is_not_preempted_for_a_group_that_cannot_start_there() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 4))
    driver.set_node("n0", healthy=False)
    driver.wait(wants("high", "a", 4, priority=1))
    assert driver.cluster.group("low").state is GroupState.ALLOCATED


def test_a_pinned_cell_gone_bad_waits_for_healing() -> None:
    spec = flat({"a": 1}, spare=1)
    spec["physicalCluster"]["physicalCells"][1]["pinnedCellId"] = "pin"
    spec["virtualClusters"]["a"]["pinnedCells"] = [{"pinnedCellId": "pin"}]
    driver = Driver(spec)
    driver.set_node("n1", healthy=False)
    waits = driver.wait(wants("job", "a", 1, pinned_cell_id="pin"))
    assert any(isinstance(reason, BadHardware) for reason in waits.reasons)
    driver.set_node("n1", healthy=True)
    driver.bind(wants("job", "a", 4, pinned_cell_id="pin"))


def test_marking_twice_is_marking_once() -> None:
    driver = Driver(flat({"a": 1}, spare=1))
    before = driver.cluster.snapshot()
    driver.set_node("n0", healthy=True)
    assert driver.cluster.snapshot() == before
    driver.set_node("n0", healthy=False)
    broken = driver.cluster.snapshot()
    driver.set_node("n0", healthy=False)
    assert driver.cluster.snapshot() == broken
    driver.set_node("n0", healthy=True)
    assert driver.cluster.snapshot() == before


def test_hardware_that_does_not_exist_is_an_error() -> None:
    driver = Driver(flat({"a": 1}))
    with pytest.raises(RequestError):
        driver.cluster.set_node_health("elsewhere", healthy=False)
    for node, device in (("elsewhere", 0), ("n0", 4), ("n0", -1)):
        with pytest.raises(RequestError):
            driver.cluster.set_device_health(node, device, healthy=False)
    driver.check()


def test_a_rack_reserved_by_a_vc_moves_to_the_healthy_rack() -> None:
    driver = Driver(racks({"a": {"RACK": 1}, "b": {"RACK.NODE": 1}}, count=2, nodes=2))
    driver.set_node("r0n1", healthy=False)
    driver.bind(wants("whole", "a", (2, 4), within="RACK"))
    assert nodes(driver, "whole") == ["r1n0", "r1n1"]
    driver.bind(wants("one", "b", 4))
    assert nodes(driver, "one") == ["r0n0"]


DEVICE = st.tuples(st.integers(0, 4), st.integers(0, 3))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("break"), DEVICE),
            st.tuples(st.just("heal"), DEVICE),
            st.tuples(st.just("node"), DEVICE),
            st.tuples(st.sampled_from(["a", "b", "lent"]), st.tuples(st.integers(0, 3), st.integers(1, 4))),
            st.tuples(st.just("end"), DEVICE),
        ),
        max_size=20,
    )
)
def test_whatever_broke_everything_fits_again_after_healing(events: list[tuple[str, tuple[int, int]]]) -> None:
    driver = Driver(flat({"a": 2, "b": 2}, spare=1))
    for i, (what, (x, y)) in enumerate(events):
        if what in ("break", "heal"):
            driver.set_device(f"n{x}", y, healthy=what == "heal")
        elif what == "node":
            driver.set_node(f"n{x}", healthy=y % 2 == 0)
        elif what == "end":
            if driver.running:
                driver.release(sorted(driver.running)[x % len(driver.running)])
        else:
            vc, priority = ("b", -1) if what == "lent" else (what, x)
            driver.run(wants(f"job-{i}", vc, (1 + x % 2, y), priority=priority))
    for node in driver.hardware.nodes:
        driver.set_node(node, healthy=True)
    for vc in "ab":
        decision = driver.run(wants(f"all-{vc}", vc, (2, 4), priority=1000))
        assert not isinstance(decision, Wait)


@given(st.sets(DEVICE, max_size=8), st.integers(1, 4))
def test_with_enough_healthy_nodes_left_a_vc_never_notices(broken: set[tuple[int, int]], gpus: int) -> None:
    driver = Driver(flat({"a": 2}, spare=3))
    for node, device in sorted(broken):
        driver.set_device(f"n{node}", device, healthy=False)
    whole = 5 - len({node for node, _ in broken})
    decision = driver.run(wants("job", "a", (2, gpus)))
    if whole >= 2:
        assert isinstance(decision, Bind)


def test_a_loan_uses_what_is_left_of_broken_nodes() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    for node in ("n0", "n1"):
        driver.set_device(node, 0, healthy=False)
    driver.wait(lent("whole", "a", 4))
    driver.bind(lent("rest", "a", (2, 3)))


def test_what_all_vcs_cannot_have_at_once_is_counted_before_any_asks() -> None:
    driver = Driver(flat({"a": 2, "b": 2}))
    driver.set_node("n0", healthy=False)
    driver.set_device("n1", 2, healthy=False)
    assert driver.cluster.unavailable() == {"a": 0, "b": 0}, "each could have all of its own, were it first"
    assert driver.cluster.unavailable_to_all() == 5
    driver.set_node("n0", healthy=True)
    assert driver.cluster.unavailable_to_all() == 1


def test_what_a_vc_cannot_have_now_is_counted_apart_from_safety() -> None:
    driver = Driver(flat({"a": 2, "b": 2}))
    assert driver.cluster.unavailable() == {"a": 0, "b": 0}
    driver.bind(wants("job", "a", 4), suggested=["n0"])
    driver.set_node("n0", healthy=False)
    assert driver.cluster.unavailable() == {"a": 4, "b": 0}
    for name in ("n1", "n2", "n3"):
        driver.set_node(name, healthy=False)
    assert driver.cluster.unavailable() == {"a": 8, "b": 8}
    assert min(row.margin for row in driver.cluster.check_safety()) == 0
