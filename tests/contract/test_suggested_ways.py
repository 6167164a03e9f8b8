"""Which of several ways onto suggested nodes is taken, and what is said when not all were tried."""

from __future__ import annotations

import pytest

from hived import Bind, Cluster, RequestError, Wait
from hived.cluster import suggested
from hived.cluster.binding import Binding
from hived.cluster.reasons import NotSuggested
from hived.installed import form

from .driver import Driver
from .specs import flat, lent, wants


def test_beside_bad_hardware_rather_than_onto_a_loan() -> None:
    driver = Driver(flat({"a": 1, "b": 2}))
    driver.bind(lent("loan", "b", 1), suggested=["n1"])
    driver.set_device("n0", 3, healthy=False)
    job = driver.bind(wants("job", "a", 3), suggested=["n0", "n1"])
    assert job.placement.pods[0].node == "n0"


def test_among_idle_nodes_the_healthy_one() -> None:
    driver = Driver(flat({"a": 1, "b": 2}))
    driver.set_device("n0", 3, healthy=False)
    job = driver.bind(wants("job", "a", 3), suggested=["n0", "n1"])
    assert job.placement.pods[0].node == "n1"


def test_a_search_that_was_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(flat({"a": 3}))
    gang = wants("gang", "a", (2, 4))
    monkeypatch.setattr(suggested, "STEPS", -1)  # with the one that each of two hosts has, one choice in all
    assert driver.wait(gang, suggested=["n1", "n2"]).reasons[0] == NotSuggested(2, searched_all=False)
    monkeypatch.undo()
    driver.bind(gang, suggested=["n1", "n2"])


def test_the_free_choice_is_taken_where_it_lies_on_the_nodes_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # one node in the middle was missing, and all the others were looked at before the same one was taken
    cluster = Cluster.from_spec(flat({"a": 100, "b": 100}))
    monkeypatch.setattr(suggested, "STEPS", -1_000)  # whatever is searched for is not found
    others = [f"n{number}" for number in range(200) if number != 100]
    for request in (wants("job", "a", 3), wants("gang", "b", (2, 4)), lent("loan", "a", 2), lent("loans", "a", (2, 4))):
        free = cluster.plan(request).decision
        assert cluster.plan(request, others).decision == free
        assert cluster.schedule(request, excluded_nodes=["n100"]) == free
        cluster.commit(free)


@pytest.mark.skipif(form() == "compiled", reason="a native class cannot be patched")
def test_where_it_does_not_only_as_many_cells_are_tried_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_group_is_ended_for_a_free_choice_while_another_suggested_node_is_idle() -> None:
    driver = Driver(flat({"a": 1, "b": 2}))
    driver.bind(lent("first", "b", 4), suggested=["n0"])
    driver.bind(lent("second", "b", 4), suggested=["n1"])
    driver.bind(wants("job", "a", 4), suggested=["n0", "n2"])


def test_excluded_nodes_are_those_that_are_not_suggested() -> None:
    cluster = Cluster.from_spec(flat({"a": 3}))
    waits = cluster.schedule(wants("job", "a", (3, 4)), excluded_nodes=["n1", "elsewhere"])
    assert isinstance(waits, Wait)
    assert waits.reasons[0] == NotSuggested(2, searched_all=True)
    found = cluster.schedule(wants("small", "a", 4), ["n0", "n1"], excluded_nodes=["n0"])
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
