"""Placing for a scheduler with queues of its own: on leaf cells that it names, by a demand made before, at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hived import Bind, Cluster, Preempt, RequestError
from hived.cluster.cluster import compiled_spec
from hived.cluster.sharing import Sharing

from .driver import replays, running
from .specs import flat, lent, racks, wants


def test_leaves_of_another_cluster() -> None:
    """A group takes the leaf cells of its VC that it has in a private cluster, or has its loan promoted on them.

    Any jobs and loans: tests/cluster/test_any_sequence.py.
    """
    spec = racks({"a": {"RACK.NODE": 1}, "b": {"RACK.NODE": 1}})
    driver = running(spec, lent("early", "a", 4), log=True)
    private = Cluster(compiled_spec(spec), Sharing.PRIVATE)
    assert private.place(wants("early", "a", 4), keep=True) is not None
    leaves = private.virtual_leaves("early")
    before = driver.cluster.group("early").placement
    assert driver.cluster.promote(wants("early", "a", 4), leaves)
    after = driver.cluster.group("early").placement
    assert before is not None
    assert after is not None
    assert (before.pods, after.guaranteed) == (after.pods, True)
    assert driver.cluster.place(wants("second", "a", 4), at=leaves) is None, "they are in use"
    driver.cluster.release("early")
    assert driver.cluster.place(wants("second", "a", 4), at=leaves, keep=True) is not None
    assert driver.cluster.virtual_leaves("second") == leaves
    driver.cluster.validate()
    assert replays(driver)


def test_demand_changes_no_answer() -> None:
    """It is made once for requests that differ by name; one of another spec, or a name that is none, is seen."""
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    demand = cluster.demand(wants("any", "b", 4))
    placed = cluster.place(wants("one", "b", 4), demand=demand)
    assert placed == cluster.place(wants("one", "b", 4))
    with pytest.raises(RequestError, match="group"):
        cluster.place(wants("", "b", 4), demand=demand)
    cluster.reconfigure(flat({"b": 1, "a": 1}))  # the tenants have other numbers now
    after = cluster.place(wants("one", "b", 4), demand=demand)
    assert after is not None
    cluster.commit(after)
    assert cluster.group("one").guaranteed
    assert cluster.place(wants("two", "b", 4), demand=demand) is None
    assert cluster.place(wants("three", "a", 4)) is not None


def test_kept_at_once_is_what_a_commit_keeps() -> None:
    """Starts, a lazy group that becomes opportunistic, a loan that has to go: answer by answer and state by state."""
    spec = flat({"a": 1, "b": 1, "c": 1})
    at_once, in_two = Cluster.from_spec(spec), Cluster.from_spec(spec)
    requests = [
        replace(wants("lazy", "a", 4), lazy_preemption=True),
        lent("loan", "a", 4),
        wants("high", "a", 4, priority=5),
        wants("own", "b", 4),
    ]
    seen = []
    for request in requests:
        kept, placed = at_once.place(request, keep=True), in_two.place(request)
        assert placed is not None
        in_two.commit(placed)
        assert kept == placed
        assert at_once.snapshot() == in_two.snapshot()
        at_once.commit(placed)  # carried out already
        assert at_once.snapshot() == in_two.snapshot()
        at_once.validate()
        seen.append((type(placed), placed.downgraded))
    assert seen == [(Bind, ()), (Bind, ()), (Bind, ("lazy",)), (Preempt, ())]
    assert at_once.place(wants("none", "b", 4), keep=True) is None
