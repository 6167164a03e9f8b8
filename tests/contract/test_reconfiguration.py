"""A new spec under running groups: nothing dies for it, what fits stays guaranteed, the rest becomes opportunistic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived import Bind, Cluster, Preempt, RequestError, Wait
from hived.cluster.states import GroupState

from ..strategies import feasible_specs
from .driver import Driver, devices
from .specs import Spec, cell_types, cluster_spec, flat, lent, reserves, wants


def names(listed: Any) -> list[str]:
    """The groups a report lists; it may say more of each after the name."""
    return [entry if isinstance(entry, str) else entry[0] for entry in listed]


def reconfigured(driver: Driver, spec: Any) -> dict[str, list[str]]:
    """Give the cluster a new spec and check what must hold whatever is in it. What the report says, by kind."""
    running, preempting = dict(driver.running), set(driver.preempting)
    report = driver.cluster.reconfigure(spec)
    kept, downgraded = names(report.kept), names(report.downgraded)
    lost, cancelled = names(report.lost), names(report.cancelled)
    there = driver.respecified(spec)
    for name, run in running.items():
        if devices(run.whole) <= there:
            assert name in kept or name in downgraded, f"{name} is not reported as running on"
        else:
            assert name in lost, f"{name} ran on removed devices, and is not reported as lost"
    for name in {*lost, *downgraded}:  # the scheduler ends no group: the rest of it runs on until it is released
        driver.running[name].downgraded = True
        assert not driver.guaranteed(name)
    assert preempting <= {*cancelled, *driver.cluster.groups(), *lost}
    for name in preempting - set(cancelled):
        if name in driver.cluster.groups() and driver.cluster.group(name).state is GroupState.PREEMPTING:
            raise AssertionError(f"{name} is still preempting; this checker expects it to ask again")
    driver.check()
    assert not set(kept) & set(downgraded)
    return {"kept": sorted(kept), "downgraded": sorted(downgraded), "lost": sorted(lost)}


def pools(small: int = 4, big: int = 1, a: int = 1, a_big: int = 1, b: int | None = 2, first: int = 0) -> Spec:
    """A pool of ``small`` nodes (k0, ...) and one of ``big`` nodes (m0, ...), for VCs a and b."""
    types: Spec = {
        "K80-2": {"childCellType": "K80", "childCellNumber": 2},
        "K80-NODE": {"childCellType": "K80-2", "childCellNumber": 2, "isNodeLevel": True},
        "K80-POOL": {"childCellType": "K80-NODE", "childCellNumber": small},
        "M60-NODE": {"childCellType": "M60", "childCellNumber": 4, "isNodeLevel": True},
        "M60-POOL": {"childCellType": "M60-NODE", "childCellNumber": max(big, 1)},
    }
    k80 = [{"cellAddress": f"k{i}"} for i in range(first, first + small)]
    cells: list[Spec] = [{"cellType": "K80-POOL", "cellChildren": k80}]
    if big:
        m60 = [{"cellAddress": f"m{i}"} for i in range(big)]
        cells.append({"cellType": "M60-POOL", "cellChildren": m60})
    mine = {"K80-POOL.K80-NODE": a} | ({"M60-POOL.M60-NODE": a_big} if big else {})
    vcs = {"a": reserves(mine)}
    if b is not None:
        vcs["b"] = reserves({"K80-POOL.K80-NODE": b})
    return cluster_spec(types, cells, vcs)


def running() -> Driver:
    """Groups on every reserved cell: a on k0 and m0, b on k1 and k2; k3 is spare."""
    driver = Driver(pools())
    driver.bind(wants("a-k80", "a", 4, leaf_cell_type="K80"), suggested=["k0"])
    driver.bind(wants("a-m60", "a", 4, leaf_cell_type="M60"))
    driver.bind(wants("b-1", "b", 4), suggested=["k1"])
    driver.bind(wants("b-2", "b", 4, leaf_cell_type="K80"), suggested=["k2"])
    return driver


def test_the_same_spec_changes_nothing() -> None:
    driver = running()
    before = driver.cluster.snapshot()
    assert reconfigured(driver, pools())["kept"] == ["a-k80", "a-m60", "b-1", "b-2"]
    assert driver.cluster.snapshot() == before


def test_a_node_is_added() -> None:
    driver = running()
    assert reconfigured(driver, pools(big=2, a_big=2))["kept"] == ["a-k80", "a-m60", "b-1", "b-2"]
    driver.bind(wants("a-more", "a", 4, leaf_cell_type="M60"))


def test_an_idle_node_is_removed() -> None:
    driver = running()
    assert reconfigured(driver, pools(small=3))["kept"] == ["a-k80", "a-m60", "b-1", "b-2"]
    driver.wait(lent("loan", "a", 1))


def test_a_node_in_use_is_removed_and_its_group_reported_lost() -> None:
    driver = running()
    report = reconfigured(driver, pools(small=3, first=1, b=2))
    assert report["lost"] == ["a-k80"]
    assert report["kept"] == ["a-m60", "b-1", "b-2"]
    driver.release("a-k80")
    driver.bind(wants("a-again", "a", 4, leaf_cell_type="K80"))


def test_all_cells_of_a_type_are_removed() -> None:
    driver = running()
    report = reconfigured(driver, pools(big=0))
    assert report["lost"] == ["a-m60"]
    assert report["kept"] == ["a-k80", "b-1", "b-2"]
    driver.release("a-m60")


@pytest.mark.parametrize("after", [pools(a=4, b=None), pools(a=3, b=1), pools(a=4, b=0), pools(big=0)])
def test_a_restart_after_a_reconfiguration_takes_over_all_that_still_runs_whole(after: Spec) -> None:
    driver = running()
    lost = reconfigured(driver, after)["lost"]
    driver.release(*lost)
    fresh = Cluster.from_spec(after)
    fresh.recover(driver.cluster.records())
    fresh.validate()
    assert fresh.records() == driver.cluster.records()
    assert fresh.snapshot() == driver.cluster.snapshot()


def test_a_gang_that_lost_one_of_its_nodes_goes_on_with_the_rest_and_can_be_recovered() -> None:
    driver = Driver(pools())
    driver.bind(wants("gang", "b", (2, 3)), suggested=["k0", "k1"])
    driver.bind(wants("other", "a", 4, leaf_cell_type="K80"))
    after = pools(small=3, first=1)
    assert reconfigured(driver, after)["lost"] == ["gang"]
    assert {node for node, _ in devices(driver.running["gang"].pods)} == {"k1"}
    fresh = Cluster.from_spec(after)
    fresh.recover(driver.cluster.records())
    fresh.validate()
    assert fresh.snapshot() == driver.cluster.snapshot()
    driver.release("gang")
    driver.bind(wants("again", "b", (2, 4)))


def test_a_vc_is_removed_and_its_groups_run_on_as_opportunistic() -> None:
    driver = running()
    report = reconfigured(driver, pools(a=4, b=None))
    assert report["downgraded"] == ["b-1", "b-2"]
    driver.bind(wants("a-2", "a", 4, leaf_cell_type="K80"))
    for i in (3, 4):
        decision = driver.run(wants(f"a-{i}", "a", 4, leaf_cell_type="K80"))
        assert isinstance(decision, Preempt)
    assert {"b-1", "b-2"}.isdisjoint(driver.running)
    driver.refused(wants("b-3", "b", 1), "vc")


def test_a_cell_moves_to_another_vc_and_only_then_its_group_ends_when_it_is_needed() -> None:
    driver = running()
    report = reconfigured(driver, pools(a=3, b=1))
    assert len(report["downgraded"]) == 1
    assert report["downgraded"][0].startswith("b-")
    assert len(report["kept"]) == 3
    assert isinstance(driver.run(wants("a-2", "a", 4, leaf_cell_type="K80")), Bind)
    decision = driver.run(wants("a-3", "a", 4, leaf_cell_type="K80"))
    assert isinstance(decision, Preempt)
    assert list(decision.victims) == report["downgraded"]


def test_groups_that_fit_stay_guaranteed_the_higher_priority_before_the_lower() -> None:
    driver = Driver(flat({"a": 3, "b": 1}))
    for i, priority in enumerate([1, 9, 5]):
        driver.bind(wants(f"a-{i}", "a", 4, priority=priority))
    report = reconfigured(driver, flat({"a": 1, "b": 3}))
    assert report["kept"] == ["a-1"]
    assert report["downgraded"] == ["a-0", "a-2"]


def test_a_node_that_loses_some_devices_does_not_give_the_others_away_under_a_running_pod() -> None:
    def spec(kind: str, gpus: int) -> Spec:
        types: Spec = {kind: {"childCellType": "GPU", "childCellNumber": gpus, "isNodeLevel": True}}
        return cluster_spec(types, [{"cellType": kind, "cellAddress": "n0"}], {"a": reserves({kind: 1})})

    driver = Driver(spec("FOUR", 4))
    driver.bind(wants("wide", "a", 4))
    driver.cluster.reconfigure(spec("TWO", 2))
    new = driver.cluster.schedule(wants("new", "a", 1))
    assert not isinstance(new, Bind), "wide runs on these devices, and has not ended"


def test_levels_above_the_nodes_come_and_go() -> None:
    def spec(racked: bool) -> Spec:
        nodes = [{"cellAddress": f"n{i}"} for i in range(4)]
        if racked:
            cells: list[Spec] = [{"cellType": "RACK", "cellChildren": nodes[i : i + 2]} for i in (0, 2)]
        else:
            cells = [{"cellType": "NODE", **node} for node in nodes]
        return cluster_spec(
            cell_types(2), cells, {"a": reserves({"RACK.NODE" if racked else "NODE": 2}), "b": reserves({})}
        )

    driver = Driver(spec(racked=False))
    driver.bind(wants("one", "a", 4), suggested=["n1"])
    driver.bind(wants("two", "a", 3), suggested=["n2"])
    driver.bind(lent("loan", "b", 2), suggested=["n0"])
    for racked in (True, False):
        assert reconfigured(driver, spec(racked))["kept"] == ["loan", "one", "two"]
        assert driver.guaranteed("one")
    driver.wait(wants("three", "a", 2))


def test_a_vc_that_changes_from_nodes_to_a_rack_keeps_what_is_together() -> None:
    def spec(kind: str, number: int) -> Spec:
        nodes = [{"cellAddress": f"n{i}"} for i in range(4)]
        cells: list[Spec] = [{"cellType": "RACK", "cellChildren": nodes[i : i + 2]} for i in (0, 2)]
        return cluster_spec(cell_types(2), cells, {"a": reserves({kind: number}), "b": reserves({"RACK": 1})})

    driver = Driver(spec("RACK.NODE", 2))
    driver.bind(wants("one", "a", 4), suggested=["n0"])
    driver.bind(wants("two", "a", 4), suggested=["n1"])
    assert reconfigured(driver, spec("RACK", 1))["kept"] == ["one", "two"]
    driver.bind(wants("rack", "b", (2, 4), within="RACK"))


def test_a_pinned_cell_goes_to_another_vc() -> None:
    def spec(owner: str) -> Spec:
        made = flat({"a": 1, "b": 1}, spare=1)
        made["physicalCluster"]["physicalCells"][2]["pinnedCellId"] = f"{owner}-pin"
        made["virtualClusters"][owner]["pinnedCells"] = [{"pinnedCellId": f"{owner}-pin"}]
        return made

    driver = Driver(spec("a"))
    driver.bind(wants("pinned", "a", 4, pinned_cell_id="a-pin"))
    driver.bind(wants("b", "b", 4))
    report = reconfigured(driver, spec("b"))
    assert "b" in report["kept"]
    assert {*report["kept"], *report["downgraded"]} == {"pinned", "b"}
    decision = driver.run(wants("new", "b", 4, pinned_cell_id="b-pin"))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("pinned",)


def test_a_node_that_becomes_pinned_drives_out_only_when_asked_for() -> None:
    def spec(pinned: bool) -> Spec:
        made = flat({"a": 1, "b": 1}, spare=1)
        if pinned:
            made["physicalCluster"]["physicalCells"][0]["pinnedCellId"] = "pin"
            made["virtualClusters"]["b"]["pinnedCells"] = [{"pinnedCellId": "pin"}]
        return made

    driver = Driver(spec(pinned=False))
    driver.bind(wants("a", "a", 4), suggested=["n0"])
    assert reconfigured(driver, spec(pinned=True))["downgraded"] == ["a"]
    decision = driver.run(wants("b", "b", 4, pinned_cell_id="pin"))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("a",)


def test_preempting_groups_wait_again_after_a_new_spec() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 4))
    driver.preempt(wants("high", "a", 4, priority=1))
    reconfigured(driver, flat({"a": 1}, spare=1))
    assert driver.cluster.group("low").state is GroupState.ALLOCATED
    assert isinstance(driver.run(wants("high", "a", 4, priority=1)), Preempt)


def test_a_decision_from_before_a_reconfiguration_is_refused() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    late = driver.ask(lent("late", "a", 1), suggested=["n1"])
    driver.bind(wants("b", "b", 4), suggested=["n1"])
    reconfigured(driver, flat({"a": 2}))
    before = driver.cluster.snapshot()
    with pytest.raises(RequestError):
        driver.cluster.commit(late)
    assert driver.cluster.snapshot() == before
    driver.check()


def test_a_group_whose_nodes_are_removed_and_added_again_keeps_its_devices() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("job", "a", 4), suggested=["n1"])
    driver.cluster.reconfigure(flat({"a": 1}))
    driver.cluster.reconfigure(flat({"a": 2}))
    driver.cluster.validate()
    decision = driver.cluster.schedule(wants("new", "a", (2, 4)))
    assert not isinstance(decision, Bind), "job runs on n1, and has not ended"


def test_bad_hardware_stays_bad() -> None:
    driver = Driver(flat({"a": 2}))
    driver.set_node("n0", healthy=False)
    reconfigured(driver, flat({"a": 2}, spare=1))
    driver.bind(wants("job", "a", (2, 4)))


@pytest.mark.parametrize("broken", [{"a": 9}, {"a": 1, "b": 2}])
def test_a_spec_that_does_not_fit_is_refused_and_changes_nothing(broken: dict[str, int]) -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("job", "a", 4))
    before = driver.cluster.snapshot()
    with pytest.raises(Exception, match=r"."):
        driver.cluster.reconfigure(flat(broken, nodes=2))
    assert driver.cluster.snapshot() == before
    driver.check()


@given(
    feasible_specs(max_gpus=16),
    feasible_specs(max_gpus=16),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(-1, 2), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
        max_size=12,
    ),
)
def test_any_spec_may_follow_any_other(old: Any, new: Any, events: list[tuple[int, int, list[int]]]) -> None:
    driver = Driver(old)
    for turn, spec in enumerate((old, new, old)):
        if turn:
            reconfigured(driver, spec)
        vcs = [vc.name for vc in spec.virtual_clusters]
        for i, (vc, priority, pods) in enumerate(events):
            name = f"{turn}-{i}"
            if not isinstance(driver.ask(wants(name, vcs[vc % len(vcs)], *pods, priority=priority)), Wait):
                driver.run(wants(name, vcs[vc % len(vcs)], *pods, priority=priority))
