"""Groups taken over under cells of other sizes, in other chains, and beside each other."""

from __future__ import annotations

import pytest

from hived import Cluster, Request, RequestError
from hived.cluster.decisions import Placement, PodPlacement

from .driver import Driver
from .specs import flat, racks, wants


@pytest.mark.parametrize(("gpus", "stays"), [(4, False), (3, False), (2, True), (1, True)])
def test_a_pod_wider_than_the_cells_its_vc_has_now_is_opportunistic(gpus: int, stays: bool) -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("job", "a", gpus))
    after = flat({"a": 2}, kind="NODE.SOCKET", nodes=1)
    fresh = Cluster.from_spec(after)
    fresh.recover(driver.cluster.records())
    fresh.validate()
    report = driver.cluster.reconfigure(after)
    assert [name for name, _ in report.downgraded] == ([] if stays else ["job"])
    assert driver.cluster.group("job").guaranteed == fresh.group("job").guaranteed == stays
    driver.cluster.validate()


def record(name: str, vc: str, node: str, *devices: int, priority: int = 0) -> tuple[str, Request, Placement]:
    """A group of one pod in a reserved node."""
    levels = (3,) if priority >= 0 else ()
    request = wants(name, vc, len(devices), priority=priority)
    return name, request, Placement("NODE", (PodPlacement(node, devices),), levels)


def test_the_higher_priority_keeps_its_guarantee_where_both_cannot() -> None:
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    report = cluster.recover([record("one", "a", "n0", 0), record("two", "a", "n1", 0, priority=5)])
    assert report.kept == ("two",)
    assert [name for name, _ in report.downgraded] == ["one"]
    cluster.validate()


def test_a_device_in_use_is_not_taken_over_by_another() -> None:
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    cluster.recover([record("one", "a", "n0", 0, 1)])
    before = cluster.snapshot()
    with pytest.raises(RequestError, match="'one'"):
        cluster.recover([record("two", "a", "n0", 1)])
    with pytest.raises(RequestError, match="n1"):
        cluster.recover([record("two", "b", "n1", 1), record("three", "b", "n1", 1, 2)])
    assert cluster.snapshot() == before
    cluster.validate()


def test_a_group_that_waited_is_taken_over_and_waits_no_longer() -> None:
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    cluster.recover([record("one", "a", "n0", 0, 1, 2, 3)])
    cluster.schedule(wants("two", "a", 1, priority=0))
    assert cluster.group("two").reasons
    cluster.recover([record("two", "a", "n1", 0)])
    assert cluster.groups() == ("one", "two")
    cluster.validate()


def test_a_decision_from_before_a_recovery_is_out_of_date() -> None:
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    decision = cluster.schedule(wants("late", "a", 4))
    cluster.recover([record("one", "a", "n0", 0)])
    with pytest.raises(RequestError, match="out of date"):
        cluster.commit(decision)
    cluster.validate()


def test_of_two_groups_recorded_on_a_removed_device_one_gets_it_when_it_is_added_again() -> None:
    cluster = Cluster.from_spec(flat({"a": 1}, nodes=1))
    report = cluster.recover([record("one", "a", "n1", 0), record("two", "a", "n1", 0, 1)])
    assert report.lost == (("one", ("n1",)), ("two", ("n1",)))
    report = cluster.reconfigure(flat({"a": 1}, nodes=2))
    assert report.kept == ("one",)
    assert report.lost == (("two", ("n1",)),)
    cluster.validate()


def test_a_recovered_group_is_said_to_be_as_close_together_as_it_is() -> None:
    driver = Driver(racks({"a": {"RACK.NODE": 4}}, count=2, nodes=2))
    single = wants("single", "a", 1)
    pair = wants("pair", "a", (2, 4))
    driver.bind(pair, suggested=["r0n0", "r0n1"])
    driver.bind(single, suggested=["r1n1"])
    fresh = Cluster.from_spec(driver.cluster.spec)
    fresh.recover(driver.cluster.records())
    for request in (single, pair):
        assert fresh.schedule(request) == driver.cluster.schedule(request)
    assert fresh.schedule(single).within == "GPU"  # type: ignore[union-attr]
