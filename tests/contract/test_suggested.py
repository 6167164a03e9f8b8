"""A request may say which nodes it can use: only they are used, and if a placement on them exists it is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived import Bind, Cluster, Preempt, RequestError, Wait
from hived.cluster import suggested
from hived.cluster.binding import Binding
from hived.cluster.explain.reasons import NotSuggested
from hived.cluster.states import GroupState
from hived.installed import form

from .driver import Case, Driver, nodes_of, running, states
from .specs import flat, lent, racks, wants


@pytest.mark.parametrize("node", ["n0", "n1", "n2"])
@pytest.mark.parametrize("priority", [0, -1])
def test_only_suggested_nodes(node: str, priority: int) -> None:
    """Names that are no nodes of the cluster do no harm."""
    driver = Driver(flat({"a": 1, "b": 2}))
    placement = driver.bind(wants("job", "a", 2, priority=priority), ["elsewhere", node, "master"]).placement
    assert placement.pods[0].node == node


@pytest.mark.parametrize("nodes", [[], ["elsewhere"]], ids=["none", "unknown"])
@pytest.mark.parametrize("priority", [0, -1])
def test_no_node_suggested(nodes: list[str], priority: int) -> None:
    driver = Driver(flat({"a": 2}))
    waits = driver.wait(wants("job", "a", 1, priority=priority), suggested=nodes)
    assert NotSuggested(0, searched_all=True) in waits.reasons
    driver.bind(wants("job", "a", 1, priority=priority))


def test_order_of_names_means_nothing() -> None:
    names = ["n2", "n1", "n0"]
    placed = []
    for suggestion in (names, names[::-1], tuple(names), set(names), None):
        driver = Driver(flat({"a": 3}))
        placed.append(driver.bind(wants("job", "a", (2, 3)), suggested=suggestion).placement)
    assert all(placement == placed[0] for placement in placed)


CASES = {
    "a VC that is bound elsewhere": Case(
        flat({"a": 1, "b": 1}), [(wants("first", "a", 1), "n0")], wants("second", "a", 1), None, suggested="n1"
    ),
    "a loan though a node is idle": Case(
        flat({"a": 1, "b": 1}), [(lent("loan", "b", 4), "n1")], wants("job", "a", 4), ("loan",), suggested="n1"
    ),
    "no lower one elsewhere in vain": Case(
        flat({"a": 2}),
        [(wants("low", "a", 4), "n0"), (wants("same", "a", 4, priority=5), "n1")],
        wants("high", "a", 4, priority=5),
        None,
        suggested="n1",
    ),
    "the lower one there": Case(
        flat({"a": 2}),
        [(wants("low", "a", 4), "n0"), (wants("same", "a", 4, priority=5), "n1")],
        wants("high", "a", 4, priority=5),
        ("low",),
        suggested="n0",
    ),
    "a gang that is there in part": Case(
        flat({"a": 2}),
        [wants("wide", "a", (2, 3), priority=1), wants("small", "a", 1, priority=1)],
        wants("high", "a", (2, 2), priority=2),
        ("wide",),
        suggested="n1",
    ),
    "cells of a victim elsewhere": Case(
        racks({"a": {"RACK": 1}}, count=1, nodes=3),
        [(wants("wide", "a", (2, 1), 4, lazy_preemption=True), "r0n2 r0n0"), wants("small", "a", (1, 1), 1)],
        wants("high", "a", (3, 2), priority=2, lazy_preemption=True),
        None,
        suggested="r0n2",
    ),
    "nobody while another is idle": Case(
        flat({"a": 1, "b": 2}),
        [(lent("first", "b", 4), "n0"), (lent("second", "b", 4), "n1")],
        wants("job", "a", 4),
        suggested="n0 n2",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_cost_on_suggested_nodes(case: Case) -> None:
    case.check()


def test_pair_in_the_rack_that_has_it() -> None:
    driver = Driver(racks({"a": {"RACK": 2}}, count=3, nodes=3))
    driver.bind(wants("gang", "a", (2, 4), within="RACK"), suggested=["r0n0", "r1n1", "r2n0", "r2n2"])
    assert sorted(nodes_of(driver, "gang")) == ["r2n0", "r2n2"]


def test_reserved_rack_is_not_broken() -> None:
    """While a's nodes can leave b its rack, they do; when they cannot, they wait."""
    spec = racks({"a": {"RACK.NODE": 2}, "b": {"RACK": 1}}, count=2, nodes=2)
    driver = running(spec, (wants("one", "a", 4), "r0n0"))
    driver.wait(wants("two", "a", 4), suggested=["r1n0", "r1n1"])
    driver.bind(wants("two", "a", 4), suggested=["r1n0", "r0n1"])
    driver.bind(wants("whole", "b", (2, 4), within="RACK"))
    spec = racks({"a": {"RACK.NODE": 3}, "b": {"RACK": 1}}, count=3, nodes=2)
    driver = running(spec, (wants("gang", "a", (3, 4)), "r0n1 r1n0 r1n1 r2n1"))
    assert {*nodes_of(driver, "gang")} >= {"r1n0", "r1n1"}
    driver.bind(wants("whole", "b", (2, 4), within="RACK"))


# ------------------------------------------------------------------------------ which of several ways is taken


def test_bad_hardware_rather_than_a_loan() -> None:
    """Among idle nodes the healthy one is taken, and one with some bad hardware rather than a loan's."""
    for loan, node in ((True, "n0"), (False, "n1")):
        driver = running(flat({"a": 1, "b": 2}), *([(lent("loan", "b", 1), "n1")] if loan else []))
        driver.set_device("n0", 3, healthy=False)
        driver.bind(wants("job", "a", 3), suggested=["n0", "n1"])
        assert nodes_of(driver, "job") == [node]


def test_search_that_was_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(flat({"a": 3}))
    gang = wants("gang", "a", (2, 4))
    monkeypatch.setattr(suggested, "MAX_STEPS", -1)  # with the one that each of two hosts has, one choice in all
    assert driver.wait(gang, suggested=["n1", "n2"]).reasons[0] == NotSuggested(2, searched_all=False)
    monkeypatch.undo()
    driver.bind(gang, suggested=["n1", "n2"])


def test_free_choice_is_taken_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node in the middle was missing, and all the others were looked at before the same one was taken."""
    cluster = Cluster.from_spec(flat({"a": 100, "b": 100}))
    monkeypatch.setattr(suggested, "MAX_STEPS", -1_000)  # whatever is searched for is not found
    others = [f"n{number}" for number in range(200) if number != 100]
    for request in (wants("job", "a", 3), wants("gang", "b", (2, 4)), lent("loan", "a", 2), lent("loans", "a", (2, 4))):
        free = cluster.plan(request).decision
        assert cluster.plan(request, others).decision == free
        assert cluster.schedule(request, excluded_nodes=["n100"]) == free
        cluster.commit(free)


@pytest.mark.skipif(form() == "compiled", reason="a native class cannot be patched")
def test_few_cells_are_tried_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.from_spec(flat({"a": 100, "b": 100}))
    cluster.commit(cluster.schedule(wants("other", "b", (50, 4))))
    tried: list[int] = []
    can_bind = Binding.can_bind

    def counted(self: Binding, host: int, cell: int) -> bool:
        tried.append(cell)
        return can_bind(self, host, cell)

    monkeypatch.setattr(Binding, "can_bind", counted)
    request = wants("job", "a", 4)
    free = cluster.plan(request).decision
    assert isinstance(free, Bind)
    preferred = free.placement.pods[0].node
    found = cluster.schedule(request, excluded_nodes=[preferred])
    assert isinstance(found, Bind)
    assert found.placement.pods[0].node != preferred
    assert len(tried) <= 2


def test_excluded_are_not_suggested() -> None:
    cluster = Cluster.from_spec(flat({"a": 3}))
    waits = cluster.schedule(wants("job", "a", (3, 4)), excluded_nodes=["n1", "elsewhere"])
    assert isinstance(waits, Wait)
    assert waits.reasons[0] == NotSuggested(2, searched_all=True)
    found = cluster.schedule(wants("small", "a", 4), ["n0", "n1", "elsewhere"], excluded_nodes=["n0"])
    assert isinstance(found, Bind)
    assert found.placement.pods[0].node == "n1"
    assert cluster.plan(wants("small", "a", 4), ["n0", "n1"], ["n0"]).decision == found
    cluster.schedule(wants("other", "a", 1), ["n2"])  # so that the decision is worked out again
    cluster.commit(found)
    with pytest.raises(RequestError, match="names of nodes") as caught:
        cluster.schedule(wants("wrong", "a", 1), excluded_nodes="n1")
    assert caught.value.field == "excluded_nodes"
    with pytest.raises(RequestError, match="names of nodes"):
        cluster.schedule(wants("wrong", "a", 1), excluded_nodes=[1])  # type: ignore[list-item]


# ------------------------------------------------------------------------------------- any nodes, any groups


def packings(pods: list[int], free: tuple[int, ...]) -> Iterator[None]:
    """All ways to put the pods into bins with so much room."""
    if not pods:
        yield
        return
    for i, room in enumerate(free):
        if room >= pods[0] and room not in free[:i]:
            yield from packings(pods[1:], (*free[:i], room - pods[0], *free[i + 1 :]))


def fits_on(driver: Driver, vc: str | None, size: int, pods: list[int], nodes: set[str]) -> bool:
    """By trying everything: the VC's bound nodes have their free leaves, unbound cells can use any free node.

    A loan, of no VC, can use whatever is free.
    """
    used: dict[str, dict[str, int]] = {node: {} for node in nodes}
    for run in driver.running.values():
        for pod in run.pods:
            users = used.setdefault(pod.node, {})
            users[run.request.vc] = users.get(run.request.vc, 0) + len(pod.leaf_cells)
    if vc is None:
        room = [4 - sum(used[node].values()) for node in nodes]
    else:
        bound = [node for node, users in used.items() if vc in users]
        room = [4 - used[node][vc] for node in bound if node in nodes]
        room += [4] * min(size - len(bound), len([node for node in nodes if not used[node]]))
    return next(packings(sorted(pods, reverse=True), tuple(room)), True) is None


NODES = [f"n{i}" for i in range(5)]
SOME_NODES = st.sets(st.sampled_from(NODES), min_size=1)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(NODES), st.integers(1, 4)), max_size=6),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    SOME_NODES,
    st.booleans(),
)
def test_found_if_there_is_a_placement(
    before: list[tuple[str, str, int]], pods: list[int], nodes: set[str], loan: bool
) -> None:
    driver = Driver(flat({"a": 3, "b": 2}))
    for i, (vc, node, gpus) in enumerate(before):
        driver.run(wants(f"before-{i}", vc, gpus), suggested=[node])
    expected = fits_on(driver, None if loan else "a", 3, pods, nodes)
    decision = driver.run(wants("gang", "a", *pods, priority=-loan), suggested=sorted(nodes))
    assert isinstance(decision, Wait) != expected


# --------------------------------------------------------------------------- reservations and later suggestions

RESERVING = wants("gang", "a", (2, 4))


def reserved_beside_loans() -> tuple[Driver, Preempt]:
    """Four nodes full of loans, and a gang of VC a that has reserved two of them."""
    driver = running(flat({"a": 2, "b": 2}), *((lent(f"loan{n}", "b", 4), f"n{n}") for n in range(4)))
    return driver, driver.preempt(RESERVING)


def test_reservation_not_suggested_any_more() -> None:
    """It ends and its victims are spared; with other nodes suggested it moves there."""
    driver, decision = reserved_beside_loans()
    kept, lost = (pod.node for pod in decision.placement.pods)
    there = {f"n{n}" for n in range(4)} - {lost}
    again = driver.preempt(RESERVING, suggested=there)
    nodes = {pod.node for pod in again.placement.pods}
    assert kept in nodes <= there
    assert states(driver, f"loan{lost[1:]}") == [GroupState.ALLOCATED]
    assert f"loan{lost[1:]}" not in again.victims
    driver.wait(RESERVING, suggested=[kept])
    assert states(driver, "gang", *(f"loan{n}" for n in range(4))) == [GroupState.PENDING] + 4 * [GroupState.ALLOCATED]


def test_starts_on_suggested_not_reserved_node() -> None:
    """When its victims have ended."""
    driver = running(flat({"a": 1, "b": 1}), (lent("left", "b", 4), "n0"), (lent("right", "b", 4), "n1"))
    (reserved,) = driver.preempt(wants("job", "a", 4)).placement.pods
    other = "n1" if reserved.node == "n0" else "n0"
    driver.release("left", "right")
    driver.bind(wants("job", "a", 4), suggested=[other])
    assert nodes_of(driver, "job") == [other]
    driver.bind(wants("theirs", "b", 4))


def test_reservation_on_suggested_nodes_stays() -> None:
    driver, decision = reserved_beside_loans()
    again = driver.ask(RESERVING, suggested=[pod.node for pod in decision.placement.pods])
    assert isinstance(again, Preempt)
    assert again.placement.pods == decision.placement.pods
