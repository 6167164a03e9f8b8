"""A fresh cluster given the placements of what runs knows all there is to know, in whatever order they arrive."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import pytest

from hived import Cluster, Request, RequestError
from hived.cluster.decisions import Placement, PodPlacement

from .driver import Driver, running
from .specs import Spec, flat, lent, racks, wants


def busy() -> tuple[Spec, Driver]:
    """Gangs, loans, a lazy group that was downgraded, two VCs."""
    spec = flat({"a": 2, "b": 1}, spare=1)
    driver = running(spec, wants("lazy", "a", 4, lazy_preemption=True), wants("gang", "a", 3, 1, priority=2))
    driver.run(wants("high", "a", 4, priority=1))
    driver.bind(wants("b-small", "b", 1))
    driver.bind(lent("loan", "b", 2))
    assert driver.running["lazy"].downgraded
    return spec, driver


def test_any_order_of_records() -> None:
    """It gives the same cluster, where each group is bound where it runs."""
    spec, driver = busy()
    records = driver.cluster.records()
    assert [record[0] for record in records] == sorted(driver.running)
    clusters = [driver.recovered(spec, order) for order in permutations(records)]
    for name in driver.running:
        assert clusters[0].guaranteed(name) == driver.guaranteed(name), name
        assert clusters[0].cluster.group(name).placement == driver.cluster.group(name).placement
    first = clusters[0].cluster.snapshot()
    assert all(other.cluster.snapshot() == first for other in clusters)
    assert all(other.cluster.records() == records for other in clusters)
    other = clusters[-1]
    for name in ("gang", "b-small", "loan"):
        assert other.bind(driver.running[name].request).placement == driver.cluster.group(name).placement
        assert other.cluster.snapshot() == first
    other.run(wants("b-more", "b", 3))
    other.release("high", "gang")
    assert not other.guaranteed("lazy"), "it was downgraded before"


def test_hardware_turns_before_or_after() -> None:
    spec = flat({"a": 2}, spare=1)
    driver = running(spec, (wants("one", "a", 4), "n0"), (wants("two", "a", 2), "n1"))
    driver.set_node("n0", healthy=False)
    driver.set_device("n1", 3, healthy=False)
    records = driver.cluster.records()
    before = driver.recovered(spec, records)
    after = Cluster.from_spec(spec)
    after.recover(records)
    after.set_node_health("n0", healthy=False)
    after.set_device_health("n1", 3, healthy=False)
    after.validate()
    assert after.snapshot() == before.cluster.snapshot()


def test_queries_before_a_recovery() -> None:
    """They bring the doomed cells up to date, and cells of running groups come first."""
    spec = flat({"a": 2, "b": 1, "c": 1})
    (record,) = running(spec, wants("one", "b", 4)).cluster.records()
    clusters = [Cluster.from_spec(spec) for _ in range(2)]
    for cluster, asks in zip(clusters, (False, True), strict=True):
        for other in ("n0", "n1", "n2", "n3"):
            cluster.set_node_health(other, healthy=False)
        if asks:
            assert cluster.snapshot()
        cluster.recover([record])
    assert [cluster.group("one").guaranteed for cluster in clusters] == [True, True]
    assert clusters[0].snapshot() == clusters[1].snapshot()


def test_levels_of_cells_come_back() -> None:
    """A group that runs in a larger cell stays in it, though a smaller one is free by now."""
    spec = racks({"a": {"RACK.NODE": 1, "RACK.NODE.SOCKET": 2}}, count=1, nodes=2)
    driver = running(spec, *(wants(name, "a", 2) for name in ("one", "two", "three")))
    driver.release("one")
    assert driver.recovered(spec, driver.cluster.records()).cluster.records() == driver.cluster.records()


def test_closeness_comes_back() -> None:
    """A recovered group is said to be as close together as it is."""
    single, pair = wants("single", "a", 1), wants("pair", "a", (2, 4))
    driver = running(racks({"a": {"RACK.NODE": 4}}, count=2, nodes=2), (pair, "r0n0 r0n1"), (single, "r1n1"))
    fresh = Cluster.from_spec(driver.cluster.spec)
    fresh.recover(driver.cluster.records())
    for request in (single, pair):
        assert fresh.schedule(request) == driver.cluster.schedule(request)
    assert fresh.schedule(single).within == "GPU"  # type: ignore[union-attr]


@pytest.mark.parametrize(("gpus", "stays"), [(4, False), (3, False), (2, True), (1, True)])
def test_pod_wider_than_the_cells_now(gpus: int, stays: bool) -> None:
    """It is opportunistic, after a recovery as after a new spec."""
    driver = running(flat({"a": 1}), wants("job", "a", gpus))
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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("one", "none", Placement("NODE", ())), "expected (group, request, placement)"),
        (("one", wants("one", "a", 1), "none"), "expected (group, request, placement)"),
        (("two", *record("one", "a", "n0", 0)[1:]), "its request is of group 'one', not 'two'"),
        (("one", wants("one", "a", 1), Placement("NODE", (PodPlacement("n0", ()),))), "no placement: "),
        (record("one", "a", "n0", 0, 0), "a device is given twice"),
        (("one", wants("one", "a", 1), record("one", "a", "n0", 0, 1)[2]), "a pod has more devices than the 1 asked"),
    ],
)
def test_record_that_no_cluster_wrote(wrong: Any, message: str) -> None:
    cluster = Cluster.from_spec(flat({"a": 2}))
    before = cluster.snapshot()
    with pytest.raises(RequestError, match=re.escape(message)):
        cluster.recover([record("first", "a", "n1", 0), wrong])
    assert cluster.snapshot() == before


def test_higher_priority_keeps_its_guarantee() -> None:
    """Where both cannot."""
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    report = cluster.recover([record("one", "a", "n0", 0), record("two", "a", "n1", 0, priority=5)])
    assert report.kept == ("two",)
    assert [name for name, _ in report.downgraded] == ["one"]
    cluster.validate()


def test_device_in_use_is_not_taken_over() -> None:
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    late = cluster.schedule(wants("late", "a", 4))
    cluster.recover([record("one", "a", "n0", 0, 1)])
    with pytest.raises(RequestError, match="out of date"):
        cluster.commit(late)
    before = cluster.snapshot()
    with pytest.raises(RequestError, match="'one'"):
        cluster.recover([record("two", "a", "n0", 1)])
    with pytest.raises(RequestError, match="n1"):
        cluster.recover([record("two", "b", "n1", 1), record("three", "b", "n1", 1, 2)])
    assert cluster.snapshot() == before
    cluster.validate()


def test_waiting_group_is_taken_over() -> None:
    """It waits no longer."""
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    cluster.recover([record("one", "a", "n0", 0, 1, 2, 3)])
    cluster.schedule(wants("two", "a", 1))
    assert cluster.group("two").reasons
    cluster.recover([record("two", "a", "n1", 0)])
    assert cluster.groups() == ("one", "two")
    cluster.validate()


def test_removed_device_is_added_again() -> None:
    """Of two groups recorded on it, one gets it."""
    cluster = Cluster.from_spec(flat({"a": 1}, nodes=1))
    report = cluster.recover([record("one", "a", "n1", 0), record("two", "a", "n1", 0, 1)])
    assert report.lost == (("one", ("n1",)), ("two", ("n1",)))
    report = cluster.reconfigure(flat({"a": 1}, nodes=2))
    assert (report.kept, report.lost) == (("one",), (("two", ("n1",)),))
    cluster.validate()
