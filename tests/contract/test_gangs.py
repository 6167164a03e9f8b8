"""Gangs are placed all or none, as close together as possible, and as close as they ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived import Bind, Member, Preempt, Wait
from hived.cluster.reasons import ReasonKind

from .driver import Driver
from .specs import flat, lent, racks, wants


def sizes(decision: Bind) -> list[int]:
    """GPUs per pod."""
    return [len(pod.leaf_cells) for pod in decision.placement.pods]


def nodes_of(decision: Bind) -> list[str]:
    """Node per pod."""
    return [pod.node for pod in decision.placement.pods]


def level_of(driver: Driver, decision: Bind) -> int | None:
    """The lowest level that holds the whole group."""
    return driver.hardware.group_level(decision.placement)


def test_a_gang_that_does_not_fit_whole_starts_no_pod_at_all() -> None:
    driver = Driver(flat({"a": 2}))
    assert isinstance(driver.run(wants("three", "a", (3, 4))), Wait)
    driver.bind(wants("one", "a", 4))
    before = driver.cluster.records()
    waits = driver.wait(wants("two", "a", (2, 4)))
    assert ReasonKind.WAITING_FOR_GANG in {reason.kind for reason in waits.reasons}
    assert driver.cluster.records() == before


def test_members_of_several_shapes_start_together_in_the_order_of_the_members() -> None:
    driver = Driver(flat({"a": 2}, size=8))
    decision = driver.bind(wants("gang", "a", 7, 5))
    assert sizes(decision) == [7, 5]
    assert len(set(nodes_of(decision))) == 2
    driver.bind(wants("rest", "a", 1, 3))


def test_a_small_member_named_first_does_not_take_the_room_of_a_large_one() -> None:
    driver = Driver(flat({"a": 2}, size=8))
    decision = driver.bind(wants("gang", "a", 1, (1, 8), 7))
    assert sizes(decision) == [1, 8, 7]
    assert nodes_of(decision)[0] == nodes_of(decision)[2]


@pytest.mark.parametrize("priority", [0, -1])
def test_a_pair_of_gpus_is_a_switch_even_when_single_ones_are_free(priority: int) -> None:
    driver = Driver(flat({"a": 1}, size=8))
    for i in range(3):
        driver.bind(wants(f"single-{i}", "a", 1))
    decision = driver.bind(wants("pair", "a", 2, priority=priority))
    assert level_of(driver, decision) == 2


def test_a_gang_of_whole_nodes_stays_in_one_rack() -> None:
    driver = Driver(racks({"a": {"RACK": 2}}, count=2, nodes=3))
    driver.bind(wants("one", "a", 4))
    three = driver.bind(wants("three", "a", (3, 4)))
    assert level_of(driver, three) == 4
    assert three.within == "RACK"


def test_two_small_pods_share_a_socket_when_they_fit_there() -> None:
    driver = Driver(flat({"a": 2}))
    decision = driver.bind(wants("gang", "a", (2, 1)))
    assert level_of(driver, decision) == 2
    assert decision.within == "SOCKET"


def test_a_cap_that_cannot_be_had_now_waits_and_a_cap_that_can_is_kept() -> None:
    driver = Driver(racks({"a": {"RACK": 2}}, count=2, nodes=2))
    first = driver.bind(wants("left", "a", 4))
    second = driver.bind(wants("pair", "a", (2, 4), within="RACK"))
    assert level_of(driver, second) == 4
    driver.release("pair")
    other = "r1n0" if nodes_of(first)[0].startswith("r0") else "r0n0"
    driver.bind(wants("right", "a", 4), suggested=[other])
    waits = driver.wait(wants("pair", "a", (2, 4), within="RACK"))
    assert ReasonKind.FRAGMENTED in {reason.kind for reason in waits.reasons}
    assert level_of(driver, driver.bind(wants("loose", "a", (2, 4)))) is None


def test_soft_affinity_gives_the_cap_up_only_when_it_must_and_reports_it() -> None:
    driver = Driver(racks({"a": {"RACK": 2}}, count=2, nodes=2))
    kept = driver.bind(wants("kept", "a", (2, 4), within="RACK", soft_affinity=True))
    assert kept.relaxed == ()
    assert level_of(driver, kept) == 4
    driver.release("kept")
    driver.bind(wants("left", "a", 4), suggested=["r0n0"])
    driver.bind(wants("right", "a", 4), suggested=["r1n0"])
    loose = driver.bind(wants("loose", "a", (2, 4), within="RACK", soft_affinity=True))
    assert loose.relaxed == ("RACK",)
    assert loose.within is None


def test_soft_affinity_relaxes_level_by_level() -> None:
    driver = Driver(racks({"a": {"RACK": 2}}, count=2, nodes=2))
    decision = driver.bind(wants("job", "a", (2, 4), within="NODE", soft_affinity=True))
    assert decision.relaxed == ("NODE",)
    assert decision.within == "RACK"
    assert level_of(driver, decision) == 4


def test_a_cap_below_the_node_keeps_a_pod_inside() -> None:
    driver = Driver(flat({"a": 1}, size=8))
    driver.bind(wants("one", "a", 1))
    two = driver.bind(wants("two", "a", (2, 2), within="SOCKET"))
    assert level_of(driver, two) == 3
    assert level_of(driver, driver.bind(wants("three", "a", 3, within="SOCKET"))) == 3


def test_a_pod_larger_than_its_cap_never_fits() -> None:
    driver = Driver(flat({"a": 2}, size=8))
    waits = driver.wait(wants("job", "a", 5, within="SOCKET"))
    assert waits.reasons[0].kind is ReasonKind.NEVER_FITS
    relaxed = driver.bind(wants("soft", "a", 5, within="SOCKET", soft_affinity=True))
    assert relaxed.relaxed == ("SOCKET",)


@pytest.mark.parametrize(("cell_type", "gpus"), [("GPU", 1), ("SOCKET", 2), ("NODE", 4)])
def test_a_named_cell_is_allocated_whole(cell_type: str, gpus: int) -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("other", "a", 1))
    if cell_type == "NODE":
        driver.wait(wants("job", "a", Member(pods=2, cell_type=cell_type)))
        driver.release("other")
    assert sizes(driver.bind(wants("job", "a", Member(pods=2, cell_type=cell_type)))) == [gpus, gpus]


def test_named_cells_and_numbers_mix_in_a_gang() -> None:
    driver = Driver(flat({"a": 2}))
    decision = driver.bind(wants("job", "a", 1, Member(pods=1, cell_type="NODE"), Member(pods=1, cell_type="SOCKET")))
    assert sizes(decision) == [1, 4, 2]


def test_an_opportunistic_gang_is_all_or_none_too() -> None:
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.bind(wants("mine", "a", 4))
    driver.wait(lent("many", "b", (3, 4)))
    assert sizes(driver.bind(lent("some", "b", (2, 4)))) == [4, 4]


def test_a_gang_as_one_pod_groups_starts_pod_by_pod() -> None:
    driver = Driver(flat({"a": 2}))
    answers = [driver.run(single) for single in wants("job", "a", (3, 4)).one_by_one()]
    assert [isinstance(answer, Bind) for answer in answers] == [True, True, False]


def lowest_level_with_room(driver: Driver, gpus: int) -> int | None:
    """By trying every cell of every level up to the node: the lowest one with so many devices unused."""
    chain = driver.hardware.spec.chains[0]
    used = {
        leaf for run in driver.running.values() for pod in run.pods for leaf in driver.hardware.leaves(chain.name, pod)
    }
    for level in range(1, chain.node_level + 1):
        size = chain.levels[level - 1].gpus
        for cell in range(chain.cells_at(level)):
            if len(set(range(cell * size, cell * size + size)) - used) >= gpus:
                return level
    return None


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=14), st.integers(1, 8))
def test_within_a_node_a_pod_is_never_wider_than_it_has_to_be(events: list[tuple[bool, int]], gpus: int) -> None:
    driver = Driver(flat({"a": 2}, size=8))
    for i, (ends, size) in enumerate(events):
        if ends and driver.running:
            driver.release(sorted(driver.running)[size % len(driver.running)])
        else:
            driver.run(wants(f"job-{i}", "a", size))
    expected = lowest_level_with_room(driver, gpus)
    decision = driver.run(wants("last", "a", gpus))
    assert (level_of(driver, decision) if isinstance(decision, Bind) else None) == expected


@given(st.sets(st.integers(0, 8), max_size=8), st.integers(1, 5))
def test_across_pods_a_gang_of_nodes_takes_the_lowest_common_level(busy: set[int], pods: int) -> None:
    driver = Driver(racks({"a": {"RACK": 3}}, count=3, nodes=3))
    for node in sorted(busy):
        driver.bind(wants(f"busy-{node}", "a", 4), suggested=[f"r{node // 3}n{node % 3}"])
    idle = [3 - len([node for node in busy if node // 3 == rack]) for rack in range(3)]
    decision = driver.run(wants("gang", "a", (pods, 4)))
    if pods > sum(idle):
        assert isinstance(decision, Wait)
        return
    assert isinstance(decision, Bind)
    expected = 3 if pods == 1 else (4 if pods <= max(idle) else None)
    assert level_of(driver, decision) == expected


def test_a_loan_that_preempts_says_which_cap_it_gave_up() -> None:
    driver = Driver(racks({"a": {"RACK": 1}, "b": {"RACK": 1}}, count=2, nodes=2))
    for i in range(4):
        driver.bind(lent(f"much-{i}", "a", 4))
    decision = driver.ask(lent("loan", "b", (2, 4), within="NODE", soft_affinity=True))
    assert isinstance(decision, Preempt)
    assert decision.relaxed == ("NODE",)


@pytest.mark.parametrize(("members", "levels"), [((2, 2), [2, 2]), ((3, 1), [3, 1])])
def test_among_partly_used_hosts_a_gang_gets_the_one_where_its_pods_are_closest(
    members: tuple[int, int], levels: list[int]
) -> None:
    """n0 has one GPU free in every pair; n1, with one more, has whole pairs."""
    driver = Driver(flat({"a": 2}, size=8))
    for node, kept in (("n0", {1, 3, 5, 7}), ("n1", {2, 3, 7})):
        names = [f"{node}-{i}" for i in range(8)]
        for name in names:
            driver.bind(wants(name, "a", 1), suggested=[node])
        driver.release(*[name for name in names if kept.isdisjoint(driver.running[name].pods[0].leaf_cells)])
    decision = driver.bind(wants("gang", "a", *members))
    pods = decision.placement.pods
    assert {pod.node for pod in pods} == {"n1"}
    hardware = driver.hardware
    assert [hardware.common_level("NODE", hardware.leaves("NODE", pod)) for pod in pods] == levels
