"""A fresh cluster given the placements of what runs knows all there is to know, in whatever order they arrive."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hived import Cluster, Wait

from ..strategies import feasible_specs
from .driver import Driver, Run
from .specs import Spec, flat, lent, racks, wants


def recovered(driver: Driver, spec: Any, records: Any) -> Driver:
    """A driver of a fresh cluster that has recovered these records, with the same hardware broken."""
    cluster = Cluster.from_spec(spec)
    for node, device in sorted(driver.bad):
        cluster.set_device_health(node, device, healthy=False)
    cluster.recover(records)
    other = Driver(spec, cluster)
    other.bad = set(driver.bad)
    other.running = {name: Run(run.request, run.pods, run.downgraded) for name, run in driver.running.items()}
    other.check()
    for name in driver.running:
        assert other.guaranteed(name) == driver.guaranteed(name), name
        assert other.cluster.group(name).placement == driver.cluster.group(name).placement
    return other


def busy() -> tuple[Spec, Driver]:
    """Gangs, loans, a lazy group that was downgraded, two VCs."""
    spec = flat({"a": 2, "b": 1}, spare=1)
    driver = Driver(spec)
    driver.bind(wants("lazy", "a", 4, lazy_preemption=True))
    driver.bind(wants("gang", "a", 3, 1, priority=2))
    driver.run(wants("high", "a", 4, priority=1))
    driver.bind(wants("b-small", "b", 1))
    driver.bind(lent("loan", "b", 2))
    return spec, driver


def test_every_order_of_records_gives_the_same_cluster() -> None:
    spec, driver = busy()
    records = driver.cluster.records()
    assert [record[0] for record in records] == sorted(driver.running)
    clusters = [recovered(driver, spec, order) for order in permutations(records)]
    first = clusters[0].cluster.snapshot()
    assert all(other.cluster.snapshot() == first for other in clusters)
    assert all(other.cluster.records() == records for other in clusters)


def test_a_downgraded_group_stays_opportunistic() -> None:
    spec, driver = busy()
    assert driver.running["lazy"].downgraded
    other = recovered(driver, spec, driver.cluster.records())
    assert not other.guaranteed("lazy")
    other.run(wants("b-more", "b", 3))
    other.release("high", "gang")


def test_a_recovered_group_is_asked_again_and_bound_where_it_runs() -> None:
    spec, driver = busy()
    other = recovered(driver, spec, driver.cluster.records())
    for name in ("gang", "b-small", "loan"):
        request = driver.running[name].request
        before = other.cluster.snapshot()
        assert other.bind(request).placement == driver.cluster.group(name).placement
        assert other.cluster.snapshot() == before


def test_a_preemption_under_way_is_asked_for_again_after_recovery() -> None:
    spec = flat({"a": 1})
    driver = Driver(spec)
    driver.bind(wants("low", "a", 4))
    driver.preempt(wants("high", "a", 4, priority=1))
    running = [record for record in driver.cluster.records() if record[0] in driver.running]
    other = recovered(driver, spec, running)
    assert other.preempt(wants("high", "a", 4, priority=1)).victims == ("low",)


def test_hardware_may_turn_bad_before_or_after_recovery() -> None:
    spec = flat({"a": 2}, spare=1)
    driver = Driver(spec)
    driver.bind(wants("one", "a", 4), suggested=["n0"])
    driver.bind(wants("two", "a", 2), suggested=["n1"])
    driver.set_node("n0", healthy=False)
    driver.set_device("n1", 3, healthy=False)
    records = driver.cluster.records()
    before = recovered(driver, spec, records)
    after = Cluster.from_spec(spec)
    after.recover(records)
    after.set_node_health("n0", healthy=False)
    after.set_device_health("n1", 3, healthy=False)
    after.validate()
    assert after.snapshot() == before.cluster.snapshot()


def test_queries_before_a_recovery_make_no_difference_to_it() -> None:
    """They bring the doomed cells up to date, and cells of running groups come first."""
    spec = flat({"a": 2, "b": 1, "c": 1})
    driver = Driver(spec)
    driver.bind(wants("one", "b", 4))
    (record,) = driver.cluster.records()
    clusters = [Cluster.from_spec(spec) for _ in range(2)]
    for cluster, asks in zip(clusters, (False, True), strict=True):
        for other in ("n0", "n1", "n2", "n3"):
            cluster.set_node_health(other, healthy=False)
        if asks:
            assert cluster.snapshot()
        cluster.recover([record])
    assert [cluster.group("one").guaranteed for cluster in clusters] == [True, True]
    assert clusters[0].snapshot() == clusters[1].snapshot()


def test_pinned_and_capped_groups_come_back() -> None:
    spec = racks({"a": {"RACK": 1}, "b": {"RACK.NODE": 1}}, count=2, nodes=2)
    spec["physicalCluster"]["physicalCells"][1]["cellChildren"][1]["pinnedCellId"] = "pin"
    spec["virtualClusters"]["b"]["pinnedCells"] = [{"pinnedCellId": "pin"}]
    driver = Driver(spec)
    driver.bind(wants("pinned", "b", 4, pinned_cell_id="pin"))
    driver.bind(wants("pair", "a", (2, 3), within="RACK"))
    driver.bind(wants("plain", "b", 2))
    snapshots = [recovered(driver, spec, order).cluster.snapshot() for order in permutations(driver.cluster.records())]
    assert all(snapshot == driver.cluster.snapshot() for snapshot in snapshots)


def test_a_record_of_missing_hardware_is_reported_and_holds_up_no_group() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("job", "a", 4), suggested=["n1"])
    driver.bind(wants("other", "a", 4))
    smaller = Cluster.from_spec(flat({"a": 1}))
    report = smaller.recover(driver.cluster.records())
    assert report.lost == (("job", ("n1",)),)
    assert report.kept == ("other",)
    smaller.validate()


@given(
    feasible_specs(max_gpus=16),
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(-1, 2),
            st.lists(st.integers(1, 4), min_size=1, max_size=3),
            st.booleans(),
            st.integers(0, 4),
        ),
        max_size=14,
    ),
    st.randoms(),
)
def test_whatever_runs_is_recovered_in_any_order(
    spec: Any, events: list[tuple[int, int, list[int], bool, int]], order: Random
) -> None:
    driver = Driver(spec)
    vcs = [vc.name for vc in spec.virtual_clusters]
    for i, (vc, priority, pods, lazy, end) in enumerate(events):
        if end == 0 and driver.running:
            driver.release(sorted(driver.running)[vc % len(driver.running)])
        else:
            driver.run(wants(f"job-{i}", vcs[vc % len(vcs)], *pods, priority=priority, lazy_preemption=lazy))
    records = list(driver.cluster.records())
    one = recovered(driver, spec, records)
    order.shuffle(records)
    two = recovered(driver, spec, records)
    assert one.cluster.snapshot() == two.cluster.snapshot()
    for vc in vcs:
        for priority in (-1, 0, 2):
            for count in (1, 2):
                probe = wants("probe", vc, (count, 2), priority=priority)
                answers = [type(other.cluster.schedule(probe)) for other in (driver, one, two)]
                assert len(set(answers)) == 1, (probe, answers)
                if answers[0] is Wait:
                    for other in (driver, one, two):
                        other.cluster.cancel("probe")
