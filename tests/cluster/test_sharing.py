"""What works whichever way the tenants share: every part of the contract, in each of the three."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hived import Bind, Preempt, RequestError
from hived.cluster import Cluster, Member, Placement, Request, Sharing, Wait
from hived.cluster.reasons import BadHardware, NeverFits, NotSuggested, VcExhausted
from hived.inspection import Inspection, virtual_leaves
from hived.spec.compiled import ClusterSpec

from ..strategies import NODE, RACK, cluster_of, nodes_of_8, racks, vc

TWO_RACKS = racks(2)
#: b's pinned node is the last of the second rack
SPEC = cluster_of(
    TWO_RACKS, vc("a", (TWO_RACKS, RACK, 1)), vc("b", (TWO_RACKS, NODE, 2), pinned=[(TWO_RACKS, NODE, 7)])
)

pytestmark = pytest.mark.parametrize("sharing", Sharing)


def job(name: str, tenant: str, *members: int, priority: int = 0, pinned: str | None = None) -> Request:
    """Each member one pod of so many GPUs."""
    return Request(name, tenant, priority, tuple(Member(1, gpus) for gpus in members), pinned_cell_id=pinned)


def started(cluster: Cluster, request: Request) -> Placement:
    """It has to start at once."""
    decision = cluster.schedule(request)
    assert isinstance(decision, Bind), decision
    cluster.commit(decision)
    return decision.placement


def nodes_of(cluster: Cluster, tenant: str) -> list[str]:
    """The nodes that a tenant's unpinned groups may use."""
    names = [name for _, name, _ in cluster.nodes()]
    return [name for name in names if name.startswith(f"{tenant}-node")] or names[:7]


def test_a_group_is_placed_on_suggested_nodes_alone_and_off_excluded_ones(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    names = nodes_of(cluster, "b")
    for number, node in enumerate((names[-2], names[-1])):
        decision = cluster.schedule(job(f"on-{number}", "b", 4), suggested_nodes=[node, "elsewhere"])
        assert isinstance(decision, Bind)
        assert [pod.node for pod in decision.placement.pods] == [node]
        cluster.commit(decision)
    waits = cluster.schedule(job("nowhere", "b", 4), suggested_nodes=names, excluded_nodes=names)
    assert isinstance(waits, Wait)
    assert isinstance(waits.reasons[0], NotSuggested)
    assert isinstance(cluster.schedule(job("nowhere", "b", 4)), Bind)


def test_a_cell_smaller_than_a_node_is_on_a_node_too(sharing: Sharing) -> None:
    chain = nodes_of_8(1)
    cluster = Cluster(cluster_of(chain, vc("a", (chain, 1, 2))), sharing)
    first, second = started(cluster, job("one", "a", 1)).pods, started(cluster, job("two", "a", 1)).pods
    cluster.release("one")
    cluster.release("two")
    for pods in (first, second):
        decision = cluster.schedule(job("again", "a", 1), suggested_nodes=[pods[0].node])
        assert isinstance(decision, Bind)
        assert decision.placement.pods[0].node == pods[0].node


def test_a_pinned_cell_is_had_by_its_id_and_has_queues_and_priorities_of_its_own(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    placement = started(cluster, job("in-pin", "b", 8, pinned="b-pin-0"))
    (pod,) = placement.pods
    if sharing is Sharing.HIVED:
        assert pod.node == "rack-node-7"
    elif sharing is Sharing.PRIVATE:
        assert pod.node == "b-b-pin-0-0"
    waits = cluster.schedule(job("behind", "b", 1, pinned="b-pin-0"))
    assert isinstance(waits, Wait)
    assert waits.reasons[0] == VcExhausted("b", 1, 0, 8, (("in-pin", 8),), 0)
    high = cluster.schedule(job("high", "b", 1, priority=3, pinned="b-pin-0"))
    assert isinstance(high, Preempt)
    assert high.victims == ("in-pin",)
    started(cluster, job("beside", "b", 8, 8))
    with pytest.raises(RequestError, match="pinned_cell_id"):
        cluster.schedule(job("wrong", "a", 1, pinned="b-pin-0"))


def test_a_gang_is_held_together_where_it_asks_for_it(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    decision = cluster.schedule(Request("gang", "a", 0, (Member(3, 8),), within="RACK"))
    assert isinstance(decision, Bind)
    assert decision.within == "RACK"
    assert len({pod.node for pod in decision.placement.pods}) == 3


def test_a_plan_says_what_schedule_would_and_changes_nothing(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    started(cluster, job("low", "a", 8, 8, 8, 8))
    before = cluster.snapshot()
    plans = {gpus: cluster.plan(job("high", "a", gpus, priority=2)) for gpus in (8, 9)}
    assert [(plan.outcome, type(plan.decision)) for plan in plans.values()] == [("now", Preempt), ("never", Wait)]
    assert cluster.plan(job("same", "a", 8)).outcome == "waits"
    assert cluster.plan(job("typo", "nobody", 8)).outcome == "never"
    assert cluster.snapshot() == before
    assert cluster.schedule(job("high", "a", 8, priority=2)) == plans[8].decision


def test_reasons_count_what_the_tenant_has(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    started(cluster, job("mine", "a", 8, 8, 8, 8))
    full, large = job("full", "a", 8), job("large", "a", 8, 8, 8, 8, 8)
    waits, never = cluster.schedule(full), cluster.schedule(large)
    assert isinstance(waits, Wait)
    assert isinstance(never, Wait)
    assert waits.reasons[0] == VcExhausted("a", 8, 0, 32, (("mine", 32),), 0)
    assert never.reasons == (NeverFits("a", 40, 32, 8, 8, None),)
    assert "VC a has 0 of the 8 GPUs it needs" in cluster.explain("full")
    assert "VC a has 32 of that kind in all" in cluster.explain("large")
    assert "mine runs on 32 GPUs" in cluster.explain("mine")


def test_a_loan_is_had_where_something_is_lent(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    loan = job("loan", "b", 8, priority=-1)
    decision = cluster.schedule(loan)
    if sharing is Sharing.PRIVATE:
        assert isinstance(decision, Wait)
        assert decision.reasons == (NeverFits("", 8, 0, 8, 0, None),), "there is nothing to be lent"
    else:
        assert isinstance(decision, Bind)


def test_bad_hardware_is_left_out_reported_and_used_again(sharing: Sharing) -> None:
    chain = nodes_of_8(1)
    cluster = Cluster(cluster_of(chain, vc("a", (chain, NODE, 1))), sharing)
    ((_, node, _),) = cluster.nodes()
    running = started(cluster, job("runs", "a", 2))
    cluster.set_device_health(node, 7, healthy=False)
    assert cluster.unavailable() == {"a": 1}
    assert cluster.unavailable_to_all() == 1
    waits = cluster.schedule(job("waits", "a", 6))
    assert isinstance(waits, Wait)
    assert BadHardware(1, (node,), 0) in waits.reasons
    assert cluster.group("runs").placement == running
    cluster.set_node_health(node, healthy=True)
    assert cluster.unavailable() == {"a": 0}
    started(cluster, job("waits", "a", 6))


def test_hardware_that_is_left_over_is_missed_by_no_tenant(sharing: Sharing) -> None:
    cluster = Cluster(cluster_of(TWO_RACKS, vc("a", (TWO_RACKS, NODE, 3))), sharing)
    cluster.set_node_health(nodes_of(cluster, "a")[0], healthy=False)
    missed = 8 if sharing is Sharing.PRIVATE else 0
    assert (cluster.unavailable(), cluster.unavailable_to_all()) == ({"a": missed}, missed)


def smaller() -> ClusterSpec:
    """SPEC with one of b's nodes, and no rack."""
    return cluster_of(TWO_RACKS, vc("a", (TWO_RACKS, NODE, 4)), vc("b", (TWO_RACKS, NODE, 1)))


def test_running_groups_are_taken_over_unchanged(sharing: Sharing) -> None:
    """Priorities, pinned cells, whole nodes, and bad hardware under a running group."""
    cluster = Cluster(SPEC, sharing)
    started(cluster, job("high", "a", 3, 5, 8, priority=4))
    started(cluster, job("low", "b", 1))
    started(cluster, job("in-pin", "b", 2, pinned="b-pin-0"))
    whole = Request("whole", "a", 0, (Member(1, 9),), whole_nodes=True)
    assert len(started(cluster, whole).pods) == 2
    again = Cluster(SPEC, sharing)
    again.set_node_health(nodes_of(again, "b")[0], healthy=False)
    report = again.recover(reversed(cluster.records()))
    again.validate()
    assert report.kept == ("high", "in-pin", "low", "whole")
    assert again.records() == cluster.records()
    assert all(again.group(name).guaranteed for name in again.groups())
    full = again.schedule(job("full", "b", 1, pinned="b-pin-0"))
    assert isinstance(full, Bind)


def test_no_group_ends_for_a_new_spec(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    started(cluster, job("a-1", "a", 8))
    first, second = started(cluster, job("b-1", "b", 8)), started(cluster, job("b-2", "b", 8))
    report = cluster.reconfigure(smaller())
    cluster.validate()
    assert cluster.sharing is sharing
    if sharing is Sharing.PRIVATE:  # where b has one node less, its second job has lost what it ran on
        assert [name for name, _ in report.lost] == ["b-2"]
    else:
        assert report.lost == ()
        assert cluster.group("b-2").placement == replace(second, reserved_levels=()), "opportunistic, where it ran"
    assert (report.kept, [name for name, _ in report.downgraded]) == (("a-1", "b-1"), ["b-2"])
    assert cluster.group("b-1").placement == first
    assert isinstance(cluster.schedule(job("b-3", "b", 1)), Wait)
    cluster.release("b-1")
    started(cluster, job("b-3", "b", 8))


def test_all_cells_can_be_looked_at(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    started(cluster, job("a-1", "a", 8))
    started(cluster, job("in-pin", "b", 2, pinned="b-pin-0"))
    seen = Inspection(cluster)
    leaves = [cell for cell in seen.physical() if cell.level == 1]
    assert len(leaves) == sum(gpus for _, _, gpus in cluster.nodes())
    assert sum(cell.priority == 0 for cell in leaves) == 10
    for tenant, gpus, taken in (("a", 32, 8), ("b", 24, 2)):
        mine = [cell.priority for cell in seen.virtual(tenant) if cell.level == 1]
        assert (len(mine), mine.count(0)) == ((gpus, taken) if sharing is not Sharing.QUOTA else (0, 0))
    assert len(virtual_leaves(cluster, "in-pin")) == (2 if sharing is not Sharing.QUOTA else 0)
