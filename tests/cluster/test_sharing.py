"""What works whichever way the tenants share. Most of it is in test_any_sequence.py; here are names and numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hived import Bind, Preempt, RequestError
from hived.cluster import Cluster, Placement, Request, Sharing, Wait
from hived.cluster.explain.reasons import BadHardware, NeverFits, VcExhausted

from ..contract.specs import wants
from ..strategies import NODE, RACK, cluster_of, nodes_of_8, racks, vc

TWO_RACKS = racks(2)
#: b's pinned node is the last of the second rack
SPEC = cluster_of(
    TWO_RACKS, vc("a", (TWO_RACKS, RACK, 1)), vc("b", (TWO_RACKS, NODE, 2), pinned=[(TWO_RACKS, NODE, 7)])
)

pytestmark = pytest.mark.parametrize("sharing", Sharing)


def started(cluster: Cluster, request: Request) -> Placement:
    """It has to start at once."""
    decision = cluster.schedule(request)
    assert isinstance(decision, Bind), decision
    cluster.commit(decision)
    return decision.placement


def test_pinned_cell(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    placement = started(cluster, wants("in-pin", "b", 8, pinned_cell_id="b-pin-0"))
    (pod,) = placement.pods
    if sharing is Sharing.HIVED:
        assert pod.node == "rack-node-7"
    elif sharing is Sharing.PRIVATE:
        assert pod.node == "b-b-pin-0-0"
    waits = cluster.schedule(wants("behind", "b", 1, pinned_cell_id="b-pin-0"))
    assert isinstance(waits, Wait)
    assert waits.reasons[0] == VcExhausted("b", 1, 0, 8, (("in-pin", 8),), 0)
    high = cluster.schedule(wants("high", "b", 1, priority=3, pinned_cell_id="b-pin-0"))
    assert isinstance(high, Preempt)
    assert high.victims == ("in-pin",)
    started(cluster, wants("beside", "b", 8, 8))
    with pytest.raises(RequestError, match="pinned_cell_id"):
        cluster.schedule(wants("wrong", "a", 1, pinned_cell_id="b-pin-0"))


def test_gang_is_held_together(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    decision = cluster.schedule(wants("gang", "a", (3, 8), within="RACK"))
    assert isinstance(decision, Bind)
    assert decision.within == "RACK"
    assert len({pod.node for pod in decision.placement.pods}) == 3


def test_reasons(sharing: Sharing) -> None:
    cluster = Cluster(SPEC, sharing)
    started(cluster, wants("mine", "a", 8, 8, 8, 8))
    full, large = wants("full", "a", 8), wants("large", "a", 8, 8, 8, 8, 8)
    waits, never = cluster.schedule(full), cluster.schedule(large)
    assert isinstance(waits, Wait)
    assert isinstance(never, Wait)
    assert waits.reasons[0] == VcExhausted("a", 8, 0, 32, (("mine", 32),), 0)
    assert never.reasons == (NeverFits("a", 40, 32, 8, 8, None),)
    assert "VC a has 0 of the 8 GPUs it needs" in cluster.explain("full")
    assert "VC a has 32 of that kind in all" in cluster.explain("large")
    assert "mine runs on 32 GPUs" in cluster.explain("mine")
    if sharing is Sharing.PRIVATE:
        loan = cluster.schedule(wants("loan", "b", 8, priority=-1))
        assert isinstance(loan, Wait)
        assert loan.reasons == (NeverFits("", 8, 0, 8, 0, None),), "there is nothing to be lent"


def test_bad_hardware(sharing: Sharing) -> None:
    chain = nodes_of_8(1)
    cluster = Cluster(cluster_of(chain, vc("a", (chain, NODE, 1))), sharing)
    ((_, node, _),) = cluster.nodes()
    running = started(cluster, wants("runs", "a", 2))
    cluster.set_device_health(node, 7, healthy=False)
    assert cluster.unavailable() == {"a": 1}
    assert cluster.unavailable_to_all() == 1
    waits = cluster.schedule(wants("waits", "a", 6))
    assert isinstance(waits, Wait)
    assert BadHardware(1, (node,), 0) in waits.reasons
    assert cluster.group("runs").placement == running
    cluster.set_node_health(node, healthy=True)
    assert cluster.unavailable() == {"a": 0}
    started(cluster, wants("waits", "a", 6))


def test_hardware_that_is_left_over(sharing: Sharing) -> None:
    cluster = Cluster(cluster_of(TWO_RACKS, vc("a", (TWO_RACKS, NODE, 3))), sharing)
    cluster.set_node_health(next(cluster.nodes())[1], healthy=False)
    missed = 8 if sharing is Sharing.PRIVATE else 0
    assert (cluster.unavailable(), cluster.unavailable_to_all()) == ({"a": missed}, missed)


def test_new_spec(sharing: Sharing) -> None:
    """No group ends for it."""
    cluster = Cluster(SPEC, sharing)
    started(cluster, wants("a-1", "a", 8))
    first, second = started(cluster, wants("b-1", "b", 8)), started(cluster, wants("b-2", "b", 8))
    # one of b's nodes, and no rack
    report = cluster.reconfigure(cluster_of(TWO_RACKS, vc("a", (TWO_RACKS, NODE, 4)), vc("b", (TWO_RACKS, NODE, 1))))
    cluster.validate()
    assert cluster.sharing is sharing
    if sharing is Sharing.PRIVATE:  # where b has one node less, its second job has lost what it ran on
        assert [name for name, _ in report.lost] == ["b-2"]
    else:
        assert report.lost == ()
        assert cluster.group("b-2").placement == replace(second, reserved_levels=()), "opportunistic, where it ran"
    assert (report.kept, [name for name, _ in report.downgraded]) == (("a-1", "b-1"), ["b-2"])
    assert cluster.group("b-1").placement == first
    assert isinstance(cluster.schedule(wants("b-3", "b", 1)), Wait)
    cluster.release("b-1")
    started(cluster, wants("b-3", "b", 8))
