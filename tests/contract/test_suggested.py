"""A request may say which nodes it can use: only they are used, and if a placement on them exists it is found."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived import Bind, Preempt, Wait
from hived.cluster.reasons import NotSuggested, ReasonKind
from hived.cluster.states import GroupState

from .driver import Driver
from .specs import flat, lent, racks, wants


@pytest.mark.parametrize("node", ["n0", "n1", "n2"])
@pytest.mark.parametrize("priority", [0, -1])
def test_only_suggested_nodes_are_used(node: str, priority: int) -> None:
    driver = Driver(flat({"a": 1, "b": 2}))
    assert driver.bind(wants("job", "a", 2, priority=priority), suggested=[node]).placement.pods[0].node == node


def test_names_that_are_no_nodes_of_the_cluster_do_no_harm() -> None:
    driver = Driver(flat({"a": 2}))
    decision = driver.bind(wants("job", "a", 1), suggested=["elsewhere", "n1", "master"])
    assert decision.placement.pods[0].node == "n1"


@pytest.mark.parametrize("suggested", [[], ["elsewhere"]])
@pytest.mark.parametrize("priority", [0, -1])
def test_without_a_node_it_waits_and_says_why(suggested: list[str], priority: int) -> None:
    driver = Driver(flat({"a": 2}))
    waits = driver.wait(wants("job", "a", 1, priority=priority), suggested=suggested)
    assert ReasonKind.NOT_SUGGESTED in {reason.kind for reason in waits.reasons}
    driver.bind(wants("job", "a", 1, priority=priority))


def test_the_reason_counts_the_suggested_nodes() -> None:
    driver = Driver(flat({"a": 3}))
    waits = driver.wait(wants("job", "a", (3, 4)), suggested=["n0", "n2", "elsewhere"])
    (reason,) = [reason for reason in waits.reasons if isinstance(reason, NotSuggested)]
    assert reason.suggested == 2
    assert reason.searched_all


def test_an_order_of_suggested_nodes_means_nothing() -> None:
    names = ["n2", "n1", "n0"]
    placed = []
    for suggested in (names, names[::-1], tuple(names), set(names), None):
        driver = Driver(flat({"a": 3}))
        placed.append(driver.bind(wants("job", "a", (2, 3)), suggested=suggested).placement)
    assert all(placement == placed[0] for placement in placed)


def test_a_vc_whose_cells_are_bound_elsewhere_waits() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("first", "a", 1), suggested=["n0"])
    driver.wait(wants("second", "a", 1), suggested=["n1"])
    driver.bind(wants("second", "a", 1), suggested=["n0"])


def test_preempting_on_the_suggested_node_although_another_is_idle() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("loan", "b", 4), suggested=["n1"])
    decision = driver.run(wants("job", "a", 4), suggested=["n1"])
    assert isinstance(decision, Preempt)
    assert decision.victims == ("loan",)


def test_a_low_group_elsewhere_is_not_preempted_in_vain() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("low", "a", 4), suggested=["n0"])
    driver.bind(wants("same", "a", 4, priority=5), suggested=["n1"])
    driver.wait(wants("high", "a", 4, priority=5), suggested=["n1"])
    decision = driver.run(wants("high", "a", 4, priority=5), suggested=["n0"])
    assert isinstance(decision, Preempt)
    assert decision.victims == ("low",)


def test_asking_for_a_node_in_use_by_lower_groups_changes_nothing() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("wide", "a", (2, 3), priority=1))
    driver.bind(wants("small", "a", 1, priority=1))
    decision = driver.ask(wants("high", "a", (2, 2), priority=2), suggested=["n1"])
    assert isinstance(decision, Preempt)
    assert decision.victims == ("wide",)


def test_a_pair_of_suggested_nodes_is_found_in_the_rack_that_has_it() -> None:
    driver = Driver(racks({"a": {"RACK": 2}}, count=3, nodes=3))
    decision = driver.bind(wants("gang", "a", (2, 4), within="RACK"), suggested=["r0n0", "r1n1", "r2n0", "r2n2"])
    assert sorted(pod.node for pod in decision.placement.pods) == ["r2n0", "r2n2"]


def test_a_reserved_rack_is_not_broken_for_a_suggestion() -> None:
    """b reserved a rack: while a's nodes can leave it one, they do; when they cannot, they wait."""
    driver = Driver(racks({"a": {"RACK.NODE": 2}, "b": {"RACK": 1}}, count=2, nodes=2))
    driver.bind(wants("one", "a", 4), suggested=["r0n0"])
    driver.wait(wants("two", "a", 4), suggested=["r1n0", "r1n1"])
    driver.bind(wants("two", "a", 4), suggested=["r1n0", "r0n1"])
    driver.bind(wants("whole", "b", (2, 4), within="RACK"))


def test_a_gang_on_the_very_nodes_that_leave_another_vc_its_rack() -> None:
    driver = Driver(racks({"a": {"RACK.NODE": 3}, "b": {"RACK": 1}}, count=3, nodes=2))
    suggested = ["r0n1", "r1n0", "r1n1", "r2n1"]
    decision = driver.bind(wants("gang", "a", (3, 4)), suggested=suggested)
    assert {pod.node for pod in decision.placement.pods} >= {"r1n0", "r1n1"}
    driver.bind(wants("whole", "b", (2, 4), within="RACK"))


def packings(pods: list[int], free: tuple[int, ...]) -> Iterator[None]:
    """All ways to put the pods into bins with so much room."""
    if not pods:
        yield
        return
    for i, room in enumerate(free):
        if room >= pods[0] and room not in free[:i]:
            yield from packings(pods[1:], (*free[:i], room - pods[0], *free[i + 1 :]))


def fits_on(driver: Driver, vc: str, pods: list[int], suggested: set[str]) -> bool:
    """By trying everything: the VC's bound nodes have their free leaves, unbound cells can use any free node."""
    used: dict[str, dict[str, int]] = {}
    for run in driver.running.values():
        for pod in run.pods:
            users = used.setdefault(pod.node, {})
            users[run.request.vc] = users.get(run.request.vc, 0) + len(pod.leaf_cells)
    bound = [node for node, users in used.items() if vc in users]
    size = sum(n for (name, _, _), n in driver.hardware.reserved.items() if name == vc)
    room = [4 - used[node][vc] for node in bound if node in suggested]
    idle = [node for node in suggested if node not in used]
    room += [4] * min(size - len(bound), len(idle))
    return next(packings(sorted(pods, reverse=True), tuple(room)), True) is None


NODES = [f"n{i}" for i in range(5)]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(NODES), st.integers(1, 4)), max_size=6),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.sets(st.sampled_from(NODES), min_size=1),
)
def test_a_placement_on_the_suggested_nodes_is_found_if_there_is_one(
    before: list[tuple[str, str, int]], pods: list[int], suggested: set[str]
) -> None:
    driver = Driver(flat({"a": 3, "b": 2}))
    for i, (vc, node, gpus) in enumerate(before):
        driver.run(wants(f"before-{i}", vc, gpus), suggested=[node])
    expected = fits_on(driver, "a", pods, suggested)
    decision = driver.run(wants("gang", "a", *pods), suggested=sorted(suggested))
    assert isinstance(decision, Wait) != expected


@given(
    st.sets(st.sampled_from(NODES), max_size=4),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.sets(st.sampled_from(NODES), min_size=1),
)
def test_a_loan_on_the_suggested_nodes_is_found_if_there_is_one(
    busy: set[str], pods: list[int], suggested: set[str]
) -> None:
    driver = Driver(flat({"a": 3, "b": 2}))
    for i, node in enumerate(sorted(busy)):
        driver.run(wants(f"busy-{i}", "ab"[i % 2], 2), suggested=[node])
    used = {pod.node for run in driver.running.values() for pod in run.pods}
    room = tuple(2 if node in used else 4 for node in suggested)
    expected = next(packings(sorted(pods, reverse=True), room), True) is None
    decision = driver.run(lent("gang", "b", *pods), suggested=sorted(suggested))
    assert isinstance(decision, Wait) != expected


def test_lower_gangs_on_and_off_the_suggested_nodes_are_weighed_without_a_trace() -> None:
    driver = Driver(racks({"a": {"RACK": 1}}, count=1, nodes=3))
    driver.bind(wants("wide", "a", (2, 3), lazy_preemption=True), suggested=["r0n1", "r0n2"])
    driver.bind(wants("small", "a", (2, 1)), suggested=["r0n0", "r0n2"])
    driver.run(wants("high", "a", (2, 3), priority=1, lazy_preemption=True), suggested=["r0n2", "r0n0"])


def test_cells_of_a_victim_off_the_suggested_nodes_are_not_taken() -> None:
    driver = Driver(racks({"a": {"RACK": 1}}, count=1, nodes=3))
    driver.bind(wants("wide", "a", (2, 1), 4, lazy_preemption=True), suggested=["r0n2", "r0n0"])
    driver.bind(wants("small", "a", (1, 1), 1))
    driver.wait(wants("high", "a", (3, 2), priority=2, lazy_preemption=True), suggested=["r0n2"])


@settings(max_examples=150)
@given(st.integers(0, 1_000_000))
def test_a_preemptor_keeps_to_the_suggested_nodes(seed: int) -> None:
    random = Random(seed)
    driver = Driver(racks({"a": {"RACK": 1}}, count=1, nodes=3) if seed % 2 else flat({"a": 3}))
    for i in range(5):
        nodes = driver.hardware.nodes
        suggested = random.sample(nodes, random.randint(1, 2)) if random.random() < 0.6 else None
        members: list[int | tuple[int, int]] = [(random.randint(1, 3), random.randint(1, 4))]
        members += [random.randint(1, 4)] if random.random() < 0.3 else []
        lazy = random.random() < 0.5
        request = wants(f"job-{i}", "a", *members, priority=random.choice([0, 0, 1, 2]), lazy_preemption=lazy)
        driver.run(request, suggested)


def nodes_of(decision: Bind | Preempt) -> list[str]:
    """Node per pod."""
    return [pod.node for pod in decision.placement.pods]


def reserved_beside_loans() -> tuple[Driver, Preempt]:
    """Four nodes full of loans, and a gang of VC a that has reserved two of them."""
    driver = Driver(flat({"a": 2, "b": 2}))
    for number in range(4):
        driver.bind(lent(f"loan{number}", "b", 4), suggested=[f"n{number}"])
    return driver, driver.preempt(wants("gang", "a", (2, 4)))


def test_a_reservation_that_is_not_suggested_any_more_ends_and_its_victims_are_spared() -> None:
    driver, decision = reserved_beside_loans()
    kept, _ = nodes_of(decision)
    driver.wait(wants("gang", "a", (2, 4)), suggested=[kept])
    assert driver.cluster.group("gang").state is GroupState.PENDING
    assert all(driver.cluster.group(f"loan{n}").state is GroupState.ALLOCATED for n in range(4))


def test_a_reservation_that_is_not_suggested_any_more_moves_to_nodes_that_are() -> None:
    driver, decision = reserved_beside_loans()
    kept, lost = nodes_of(decision)
    there = {f"n{n}" for n in range(4)} - {lost}
    again = driver.preempt(wants("gang", "a", (2, 4)), suggested=there)
    assert kept in nodes_of(again)
    assert set(nodes_of(again)) <= there
    spared = f"loan{lost[1:]}"
    assert driver.cluster.group(spared).state is GroupState.ALLOCATED
    assert spared not in again.victims


def test_a_group_whose_victims_have_ended_starts_on_a_suggested_node_and_not_on_its_reservation() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("left", "b", 4), suggested=["n0"])
    driver.bind(lent("right", "b", 4), suggested=["n1"])
    (reserved,) = nodes_of(driver.preempt(wants("job", "a", 4)))
    other = "n1" if reserved == "n0" else "n0"
    driver.release("left", "right")
    bound = driver.bind(wants("job", "a", 4), suggested=[other])
    assert nodes_of(bound) == [other]
    driver.bind(wants("theirs", "b", 4))


def test_a_reservation_on_suggested_nodes_stays_whatever_else_is_suggested() -> None:
    driver, decision = reserved_beside_loans()
    again = driver.ask(wants("gang", "a", (2, 4)), suggested=nodes_of(decision))
    assert isinstance(again, Preempt)
    assert again.placement.pods == decision.placement.pods
