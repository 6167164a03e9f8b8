"""Gangs are placed all or none, as close together as possible, and as close as they ask."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived import Bind, Member, Wait
from hived.cluster.explain.reasons import ReasonKind

from .driver import Driver, nodes_of, running
from .specs import flat, lent, racks, wants


def sizes(decision: Bind) -> list[int]:
    return [len(pod.leaf_cells) for pod in decision.placement.pods]


def level_of(driver: Driver, decision: Bind) -> int | None:
    """The lowest level that holds the whole group."""
    return driver.hardware.group_level(decision.placement)


def test_gang_that_does_not_fit_whole() -> None:
    """No pod of it starts."""
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.wait(wants("three", "a", (3, 4)))
    driver.bind(wants("one", "a", 4))
    before = driver.cluster.records()
    waits = driver.wait(wants("two", "a", (2, 4)))
    assert ReasonKind.WAITING_FOR_GANG in {reason.kind for reason in waits.reasons}
    driver.wait(lent("many", "b", (3, 4)))
    assert driver.cluster.records() == before
    assert sizes(driver.bind(lent("some", "b", (2, 4)))) == [4, 4]


def test_members_of_several_shapes() -> None:
    """They start together in the order of the members, and a small one does not take the room of a large one."""
    driver = Driver(flat({"a": 2}, size=8))
    assert sizes(driver.bind(wants("gang", "a", 7, 5))) == [7, 5]
    assert len({*nodes_of(driver, "gang")}) == 2
    driver.bind(wants("rest", "a", 1, 3))
    driver.release("gang", "rest")
    assert sizes(driver.bind(wants("gang", "a", 1, (1, 8), 7))) == [1, 8, 7]
    first, _, last = nodes_of(driver, "gang")
    assert first == last


@pytest.mark.parametrize("priority", [0, -1])
def test_pair_is_a_switch(priority: int) -> None:
    """Even when single GPUs are free; these land beside each other."""
    driver = running(flat({"a": 1}, size=8), *(wants(f"single-{i}", "a", 1) for i in range(3)))
    one, two = (driver.running[f"single-{i}"].pods[0].leaf_cells[0] for i in range(2))
    assert one // 2 == two // 2
    assert level_of(driver, driver.bind(wants("pair", "a", 2, priority=priority))) == 2


def test_small_reserved_cell_first() -> None:
    """A small request takes it, and leaves the node whole."""
    spec = racks({"a": {"RACK.NODE": 1, "RACK.NODE.SOCKET": 2}, "b": {"RACK": 1}}, count=2, nodes=2)
    driver = running(spec, wants("small", "a", 2), wants("node", "a", 4), wants("one", "a", 1), wants("rest", "a", 1))
    driver.wait(wants("more", "a", 1))
    driver.bind(wants("rack", "b", (2, 4), within="RACK"))


def test_small_pods_share_a_socket() -> None:
    driver = Driver(flat({"a": 2}))
    decision = driver.bind(wants("gang", "a", (2, 1)))
    assert (level_of(driver, decision), decision.within) == (2, "SOCKET")


def test_cap() -> None:
    """It is kept where it can be had, else the gang waits; soft affinity gives it up only then, and says so."""
    driver = running(racks({"a": {"RACK": 2}}, count=2, nodes=2), (wants("left", "a", 4), "r0n0"))
    pair, soft = (wants("pair", "a", (2, 4), within="RACK", soft_affinity=soft) for soft in (False, True))
    for request in (pair, soft):
        kept = driver.bind(request)
        assert (level_of(driver, kept), kept.relaxed) == (4, ())
        driver.release("pair")
    driver.bind(wants("right", "a", 4), suggested=["r1n0"])
    waits = driver.wait(pair)
    assert ReasonKind.FRAGMENTED in {reason.kind for reason in waits.reasons}
    loose = driver.bind(soft)
    assert (level_of(driver, loose), loose.relaxed, loose.within) == (None, ("RACK",), None)
    driver.release("pair")
    assert level_of(driver, driver.bind(wants("pair", "a", (2, 4)))) is None


def test_cap_relaxed_level_by_level() -> None:
    driver = Driver(racks({"a": {"RACK": 2}}, count=2, nodes=2))
    decision = driver.bind(wants("job", "a", (2, 4), within="NODE", soft_affinity=True))
    assert (decision.relaxed, decision.within, level_of(driver, decision)) == (("NODE",), "RACK", 4)


def test_cap_below_the_node() -> None:
    driver = running(flat({"a": 1}, size=8), wants("one", "a", 1))
    for members in ((2, 2), 3):
        assert level_of(driver, driver.bind(wants(f"{members}", "a", members, within="SOCKET"))) == 3


def test_pod_larger_than_its_cap() -> None:
    driver = Driver(flat({"a": 2}, size=8))
    waits = driver.wait(wants("job", "a", 5, within="SOCKET"))
    assert waits.reasons[0].kind is ReasonKind.NEVER_FITS
    assert driver.bind(wants("soft", "a", 5, within="SOCKET", soft_affinity=True)).relaxed == ("SOCKET",)


@pytest.mark.parametrize(("cell_type", "gpus"), [("GPU", 1), ("SOCKET", 2), ("NODE", 4)])
def test_named_cell_is_allocated_whole(cell_type: str, gpus: int) -> None:
    driver = running(flat({"a": 2}), wants("other", "a", 1))
    if cell_type == "NODE":
        driver.wait(wants("job", "a", Member(pods=2, cell_type=cell_type)))
        driver.release("other")
    assert sizes(driver.bind(wants("job", "a", Member(pods=2, cell_type=cell_type)))) == [gpus, gpus]


def test_one_pod_groups_start_pod_by_pod() -> None:
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
def test_pod_no_wider_than_it_has_to_be(events: list[tuple[bool, int]], gpus: int) -> None:
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
def test_gang_of_nodes_at_the_lowest_level(busy: set[int], pods: int) -> None:
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


@pytest.mark.parametrize(("members", "levels"), [((2, 2), [2, 2]), ((3, 1), [3, 1])])
def test_host_where_pods_are_closest(members: tuple[int, int], levels: list[int]) -> None:
    """Among partly used ones. n0 has one GPU free in every pair; n1, with one more, has whole pairs."""
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
