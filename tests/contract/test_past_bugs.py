"""Bugs of the past, one test each: what broke, and must not again."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from hived import Bind, Cluster, Member, Preempt, RecordedCluster, Request, RequestError, Wait
from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.explain.reasons import BadHardware, NeverFits, VcExhausted
from hived.cluster.sharing import Sharing
from hived.errors import InfeasibleError

from .driver import Driver, running
from .specs import Spec, cluster_spec, flat, lent, racks, reserves, two_chains, wants


def opened(spec: dict[str, Any], logged: bool) -> Cluster:
    """A cluster, with an event log or without."""
    return RecordedCluster.from_spec(spec, lambda line: None) if logged else Cluster.from_spec(spec)


def test_gang_of_more_hosts_than_python_recurses() -> None:
    """It is placed on suggested nodes."""
    cluster = Cluster.from_spec(flat({"a": 1200}))
    decision = cluster.schedule(wants("gang", "a", (1100, 4)), [f"n{i}" for i in range(1199)])
    assert isinstance(decision, Bind)
    cluster.check_safety()


def doomed_cells_turned(look: bool) -> object:
    """The present doomed cells were not those of the next answer."""
    cluster = Cluster.from_spec(flat({"a": 3, "b": 1}))
    cluster.set_device_health("n1", 0, healthy=False)
    cluster.commit(cluster.schedule(lent("loan", "a", 1)))
    cluster.set_device_health("n0", 0, healthy=False)
    if look:
        cluster.doomed()
    cluster.release("loan")
    return cluster.schedule(wants("job", "a", (3, 4)))


def downgraded_groups_turned(look: bool) -> object:
    """A rollback left them in another order."""
    lazy = [wants(name, "a", 1, lazy_preemption=True) for name in ("one", "two")]
    cluster = running(flat({"a": 1, "b": 1}), *lazy).cluster
    if look:
        cluster.plan(wants("question", "a", 4, priority=1))
    return cluster.schedule(wants("job", "a", 4, priority=1))


def reservation_planned_again(look: bool) -> object:
    """It did not see hardware that another group had left."""
    cluster = Cluster.from_spec(flat({"a": 2, "b": 1}))
    cluster.set_node_health("n0", healthy=False)
    for request in (wants("theirs", "b", 4), wants("low", "a", 4), wants("high", "a", 4, priority=5)):
        cluster.commit(cluster.schedule(request))
    cluster.release("theirs")
    if look:
        cluster.plan(wants("question", "a", 4, priority=1))
    answer = cluster.schedule(wants("high", "a", 4, priority=5))
    assert isinstance(answer, Bind)
    return answer


def next_group_moved(look: bool) -> object:
    """After a question about a wide one, whose nodes it was placed beside."""
    driver = running(flat({"a": 2}), wants("gone", "a", 4, priority=2))
    driver.release("gone")
    driver.bind(wants("wide", "a", (2, 2), (1, 4), priority=1, lazy_preemption=True))
    if look:
        driver.cluster.plan(wants("what-if", "a", (2, 1), 2, priority=2))
    return driver.preempt(wants("next", "a", 3, priority=2)).placement


@pytest.mark.parametrize(
    "outcome", [doomed_cells_turned, downgraded_groups_turned, reservation_planned_again, next_group_moved]
)
def test_looking_changes_no_answer(outcome: Callable[[bool], object]) -> None:
    assert outcome(True) == outcome(False)


def test_doomed_cells_depend_on_each_other() -> None:
    """A VC that can have no healthy cell once others are doomed says so, and one that comes into use dooms others."""
    driver = Driver(racks({"a": {"RACK.NODE": 1}, "b": {"RACK.NODE": 1, "RACK": 1}}, count=2, nodes=2))
    driver.set_device("r1n0", 3, healthy=False)
    driver.set_device("r1n1", 3, healthy=False)
    assert any(isinstance(reason, BadHardware) for reason in driver.wait(wants("whole", "a", 4)).reasons)
    driver.cancel("whole")
    driver.bind(wants("in-doomed", "b", 1))
    before = driver.cluster.snapshot()
    driver.cluster.plan(wants("question", "a", 1))
    assert driver.cluster.snapshot() == before


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        Request("x", "a", 0, (Member(1.0, 1),)),  # type: ignore[arg-type]
        Request("x", "a", 0, (Member(1, True),)),
        Request("x", "a", 0, (Member(1, 1),), soft_affinity=0),  # type: ignore[arg-type]
    ],
)
def test_wrong_type_whatever_was_asked_before(wrong: Request, first: bool) -> None:
    cluster = Cluster.from_spec(flat({"a": 1}))
    if first:
        cluster.schedule(wants("before", "a", 1))
    with pytest.raises(RequestError):
        cluster.schedule(wrong)


def test_pods_around_one_in_another_cell() -> None:
    driver = Driver(racks({"a": {"RACK.NODE": 3}, "b": {"RACK": 1}}, count=3, nodes=3))
    decision = driver.bind(wants("gang", "a", 2, 4, 2))  # it was said to be in no cell
    assert {pod.node for pod in decision.placement.pods} == {"r0n0", "r0n1"}
    assert decision.within == "RACK"


def test_room_spread_over_chains() -> None:
    """It is not what an exhausted VC has: two nodes alone, and two under one switch, all of one device type."""
    spec = two_chains(4, {"a": reserves({"NODE": 2, "2-NODE": 1})})
    driver = running(spec, wants("one", "a", 4, priority=5), (wants("two", "a", 4, priority=5), "m0"))
    reason = driver.wait(wants("pair", "a", (2, 4))).reasons[0]
    assert isinstance(reason, VcExhausted)
    assert reason.have < reason.need


def test_never_fits_speaks_of_the_cluster() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    reason = driver.wait(lent("job", "a", (3, 4))).reasons[0]
    assert isinstance(reason, NeverFits)
    assert "the cluster has 8" in driver.cluster.explain("job")


def test_group_that_ended_well() -> None:
    """It was said to have been preempted, as it was once before."""
    driver = running(flat({"a": 1, "b": 1}), lent("job", "a", (2, 4)))
    driver.run(wants("owner", "b", 4))
    driver.release("owner")
    driver.bind(lent("job", "a", 1))
    driver.release("job")
    with pytest.raises(RequestError, match="no such group"):
        driver.cluster.explain("job")


def test_offer_before_a_recovery() -> None:
    cluster = Cluster.from_spec(flat({"a": 1}))
    request = wants("job", "a", 1)
    offer = cluster.schedule(request)
    assert isinstance(offer, Bind)
    cluster.recover([("job", request, offer.placement)])
    cluster.release("job")
    with pytest.raises(RequestError, match="has not got it since the cluster changed"):
        cluster.commit(offer)


def test_committed_again_after_a_downgrade() -> None:
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    low = cluster.schedule(wants("low", "a", 4, lazy_preemption=True))
    cluster.commit(low)
    cluster.commit(cluster.schedule(wants("high", "a", 4, priority=1)))
    cluster.commit(low)


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize("now", [10**400, 2**53 + 1])
def test_time_that_is_no_float(now: Any, logged: bool) -> None:
    cluster = opened(flat({"a": 1}), logged)
    before = cluster.snapshot()
    with pytest.raises(RequestError, match="now"):
        cluster.schedule(wants("job", "a", 5), now=now)
    assert cluster.snapshot() == before


@pytest.mark.parametrize("logged", [False, True])
def test_suggested_nodes_no_collection(logged: bool) -> None:
    cluster = opened(flat({"a": 1}), logged)
    with pytest.raises(RequestError, match="suggested_nodes"):
        cluster.schedule(wants("job", "a", 1), 5)  # type: ignore[arg-type]
    answer = cluster.schedule(wants("job", "a", 1), (name for name in ["n0"]))  # type: ignore[arg-type]
    assert not isinstance(answer, Wait)


AT = PodPlacement("n0", (0,))


@pytest.mark.parametrize("logged", [False, True])
@pytest.mark.parametrize(
    "record",
    [
        ("job", None, Placement("NODE", (AT,), (3,))),
        (5, wants("job", "a", 1), Placement("NODE", (AT,), (3,))),
        ("job", wants("job", "a", 1), Placement("NODE", 5)),  # type: ignore[arg-type]
        ("job", wants("job", "a", 1), Placement("NODE", (5,))),  # type: ignore[arg-type]
        ("job", wants("job", "a", 1), Placement("NODE", (PodPlacement("n0", "0"),))),  # type: ignore[arg-type]
        ("job", wants("job", "a", 1), Placement("NODE", (AT,), ("3",))),  # type: ignore[arg-type]
        ("job", wants("job", "a", 2), Placement("NODE", (PodPlacement("n0", (0, 0)),), (3,))),
        ("job", wants("job", "a", 1), Placement("NODE", (PodPlacement("n0", (0, 1, 2)),), (3,))),
    ],
)
def test_record_that_no_cluster_wrote(record: Any, logged: bool) -> None:
    cluster = opened(flat({"a": 1, "b": 1}), logged)
    before = cluster.snapshot()
    with pytest.raises(RequestError):
        cluster.recover([record, ("other", wants("other", "b", 1), Placement("NODE", (PodPlacement("n1", (0,)),)))])
    assert cluster.snapshot() == before


def test_decision_is_plain_data() -> None:
    cluster = Cluster.from_spec(flat({"a": 500, "b": 500}))
    decision = cluster.schedule(wants("job", "a", 1))
    assert len(pickle.dumps(decision)) < 2_000  # and not the whole cluster
    assert copy.deepcopy(decision) == decision


def racks_named(**racks_of: list[str]) -> Spec:
    """A rack of nodes of 4 GPUs for each type: ``A``, ``B``."""
    types: Spec = {}
    for kind, names in racks_of.items():
        types[kind] = {"childCellType": "GPU", "childCellNumber": 4, "isNodeLevel": True}
        types[f"{kind}R"] = {"childCellType": kind, "childCellNumber": len(names)}
    cells = [
        {"cellType": f"{kind}R", "cellChildren": [{"cellAddress": name} for name in names]}
        for kind, names in racks_of.items()
    ]
    return cluster_spec(types, cells, {"a": reserves({f"{kind}R": 1 for kind in racks_of})})


def test_split_loan_survives_a_rollback() -> None:
    """The way back changed the nodes of another chain by the numbers of this one, and broke every later call."""
    before = racks_named(B=["x0", "x1", "x2", "x3", "x4", "x5"])
    after = racks_named(A=["x0", "x1"], B=["y0", "y1", "y2", "y3", "x5", "x4"])
    driver = Driver(before)
    request = lent("loan", "a", (6, 4))
    driver.cluster.commit(driver.cluster.schedule(request))
    driver.cluster.reconfigure(after)
    seen = driver.cluster.snapshot()
    with driver.cluster.what_if():
        driver.cluster.release("loan")
    assert driver.cluster.snapshot() == seen
    driver.cluster.validate()
    driver.cluster.release("loan")
    driver.cluster.validate()


@pytest.mark.parametrize("sharing", [Sharing.QUOTA, Sharing.HIVED])
def test_no_promotion_on_nothing(sharing: Sharing) -> None:
    cluster = Cluster.from_spec(racks_named(A=["x0", "x1"]), sharing)
    cluster.commit(cluster.schedule(lent("loan", "a", 4)))
    cluster.reconfigure(racks_named(A=["y0", "y1"]))
    assert not cluster.promote(wants("loan", "a", 4))
    cluster.validate()


def test_no_promotion_of_a_reservation() -> None:
    """What it waits for was given up as if it ran there."""
    cluster = running(flat({"a": 1, "b": 1}), *(lent(f"loan-{node}", "b", 4) for node in range(2))).cluster
    decision = cluster.schedule(lent("first", "a", 4))
    assert isinstance(decision, Preempt)
    cluster.commit(decision)
    before = cluster.snapshot()
    with pytest.raises(RequestError, match="'first' does not run as an opportunistic group"):
        cluster.promote(wants("first", "a", 4))
    assert cluster.snapshot() == before


def test_guest_recorded_twice_on_a_device() -> None:
    """Without a record of another group, it was no guest, and its second pod found the leaf cell in use."""
    pod = PodPlacement("n0", (0, 1))
    guest = lent("guest", "a", (2, 2), guest=True)
    with pytest.raises(RequestError, match="a device is given twice"):
        Cluster.from_spec(flat({"a": 1})).recover([("guest", guest, Placement("NODE", (pod, pod), ()))])


def test_private_clusters_without_vcs() -> None:
    cluster = Cluster.from_spec(flat({"a": 1}), Sharing.PRIVATE)
    cluster.commit(cluster.schedule(wants("job", "a", 4)))
    before = cluster.snapshot()
    with pytest.raises(InfeasibleError, match="no virtual cluster has cells"):
        cluster.reconfigure(flat({"a": 0}, spare=1))
    assert cluster.snapshot() == before
