"""Guests run on idle leaf cells or beside the owners of theirs, and take none from other groups."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hived import Bind, Cluster, Preempt, Request
from hived.cluster.decisions import PodPlacement
from hived.cluster.explain.reasons import Suspended
from hived.cluster.guests import MAX_GUESTS
from hived.cluster.placement_request import Beside, PlacementRequest
from hived.cluster.states import GroupState, LeafState

from .driver import Driver, nodes_of, replays, running
from .specs import Spec, flat, lent, wants


def taking(vcs: Mapping[str, int], guests: Mapping[str, str], spare: int = 0) -> Spec:
    """Nodes of 4 for these VCs, some of which have guests."""
    spec = flat(vcs, spare)
    for name, whose in guests.items():
        spec["virtualClusters"][name]["guests"] = whose
    return spec


def guest(name: str, vc: str, *members: int, **options: str) -> Request:
    return lent(name, vc, *members, guest=True, **options)


def places(driver: Driver, name: str) -> list[tuple[str, tuple[int, ...]]]:
    placement = driver.cluster.group(name).placement
    assert placement is not None
    return [(pod.node, pod.leaf_cells) for pod in placement.pods]


def test_guest_beside_an_owner() -> None:
    """It counts as nothing."""
    own = [wants(f"own-{vc}", vc, 4) for vc in "ab"]
    driver = running(taking({"a": 1, "b": 1}, {"a": "all"}), *own, guest("guest", "b", 2), log=True)
    group = driver.cluster.group("guest")
    assert (group.guest, group.guaranteed, group.state) == (True, False, GroupState.ALLOCATED)
    assert nodes_of(driver, "guest") == nodes_of(driver, "own-a")
    assert driver.cluster.opportunistic_gpus("b") == 0
    assert driver.cluster.leaf_state(nodes_of(driver, "own-a")[0], 0) is LeafState.USED
    assert "it is a guest there" in driver.cluster.explain("guest")
    driver.release("guest")
    assert replays(driver)


@pytest.mark.parametrize(("sharing", "accepted"), [(None, ""), ("none", ""), ("own", "a"), ("all", "ab")])
def test_whose_guests_a_vc_has(sharing: str | None, accepted: str) -> None:
    spec = taking({"a": 1, "b": 1}, {"b": "own"} if sharing is None else {"a": sharing, "b": "own"})
    driver = running(spec, wants("own-a", "a", 4))
    for vc in "ab":
        answer = driver.ask(guest(f"of-{vc}", vc, 4), suggested=nodes_of(driver, "own-a"))
        assert isinstance(answer, Bind) == (vc in accepted)


def test_who_is_no_guest() -> None:
    """Anyone where no VC has guests, even on idle leaf cells; a loan; and a guaranteed group cannot ask for it."""
    Driver(taking({"a": 1}, {})).wait(guest("guest", "a", 1))
    driver = running(taking({"a": 1}, {"a": "all"}), wants("own", "a", 4))
    driver.wait(lent("loan", "a", 1))
    driver.refused(wants("other", "a", 4, guest=True), "guest")
    driver.refused(lent("other", "a", 4, guest=1), "guest")


def test_idle_leaves_then_fewest_guests() -> None:
    driver = running(taking({"a": 2}, {"a": "own"}), wants("own", "a", 4))
    taken = []
    for number in range(2 * 2 * MAX_GUESTS):
        driver.bind(guest(str(number), "a", 2))
        taken += places(driver, str(number))
    (owned,) = nodes_of(driver, "own")
    assert [node == owned for node, _ in taken[:6]] == [False, False, True, True, *[taken[4][0] == owned] * 2]
    assert len(set(taken[:4])) == 4
    driver.wait(guest("more", "a", 1))
    driver.release("3")
    driver.bind(guest("more", "a", 2))


def test_leaves_that_the_caller_prefers() -> None:
    driver = running(taking({"a": 2}, {"a": "own"}), wants("own", "a", 4, 4), log=True)
    one, other = (PodPlacement("n1", (3,)), PodPlacement("n0", (2,)))
    place = driver.cluster.place
    last = place(PlacementRequest(guest("last", "a", 1), Beside((other, one))))
    assert last is not None
    assert last.placement.pods == (other,)
    assert place(PlacementRequest(guest("first", "a", 1), Beside((one, other))), True).placement.pods == (one,)  # type: ignore
    assert place(PlacementRequest(guest("pair", "a", 2), Beside((one, other)))) is None, "these are on two nodes"
    pair = place(PlacementRequest(guest("pair", "a", 2), Beside((one, other, PodPlacement("n0", (0, 1))))), keep=True)
    assert pair is not None
    assert {pod.node for pod in pair.placement.pods} == {"n0"}
    assert place(PlacementRequest(guest("nowhere", "a", 1), Beside(()))) is None
    assert replays(driver)


def test_guest_of_a_vc_that_has_none() -> None:
    """It waits again when such a group gets its leaf cells."""
    driver = running(taking({"a": 1, "b": 1}, {"a": "all"}), wants("own", "a", 4), guest("guest", "a", 4), log=True)
    assert places(driver, "guest") != places(driver, "own")
    driver.bind(wants("other", "b", 4))
    group = driver.cluster.group("guest")
    assert (group.state, group.guest, group.reasons) == (GroupState.PENDING, False, (Suspended(4, "other"),))
    assert "it was a guest on 4 GPUs, and other has some of them now" in driver.cluster.explain("guest")
    driver.bind(guest("guest", "a", 2))
    assert nodes_of(driver, "guest") == nodes_of(driver, "own")
    assert replays(driver)


def test_guests_after_a_restart_or_new_spec() -> None:
    """They run on as long as they are accepted."""
    spec = taking({"a": 1, "b": 1}, {"a": "all"})
    loan, guests = lent("loan", "b", 4), (guest("a-guest", "a", 4), guest("b-guest", "b", 2))
    driver = running(spec, wants("own", "a", 4), loan, *guests, log=True)
    fresh = Cluster.from_spec(spec)
    assert fresh.recover(reversed(driver.cluster.records())).kept == ("a-guest", "b-guest", "loan", "own")
    assert fresh.snapshot() == driver.cluster.snapshot()
    fresher = Cluster.from_spec(flat({"a": 1, "b": 1}))
    assert fresher.recover(driver.cluster.records()).cancelled == ("a-guest", "b-guest")
    assert driver.cluster.reconfigure(spec).kept == ("a-guest", "b-guest", "loan", "own")
    assert driver.cluster.group("a-guest").guest
    report = driver.cluster.reconfigure(taking({"a": 1, "b": 1}, {"a": "own"}))
    assert (report.kept, report.cancelled) == (("a-guest", "loan", "own"), ("b-guest",))
    assert replays(driver)


def test_guest_is_promoted_where_it_is_alone() -> None:
    spec = taking({"a": 2}, {"a": "own"})
    driver = running(spec, wants("own", "a", 4), wants("next", "a", 4), guest("guest", "a", 4), log=True)
    at = places(driver, "guest")
    mine, other = ("own", "next") if places(driver, "own") == at else ("next", "own")
    request = wants("guest", "a", 4)
    assert driver.cluster.promote(request) is None, "its VC has no room"
    driver.release(other)
    assert driver.cluster.promote(request) is False, "it has to move"
    driver.release(mine)
    assert driver.cluster.promote(request) is True
    group = driver.cluster.group("guest")
    assert (group.guest, group.guaranteed, places(driver, "guest")) == (False, True, at)
    driver.cluster.validate()
    assert replays(driver)


def test_guest_held_as_a_loan() -> None:
    """Alone it holds its leaf cells, and stays as a guest where it is a victim."""
    spec = taking({"a": 1, "b": 1}, {"a": "all", "b": "all"})
    driver = running(spec, guest("one", "a", 4), guest("two", "a", 4), log=True)
    cluster = driver.cluster

    def bind(request: Request) -> list[str]:
        cluster.commit(cluster.schedule(request))
        cluster.validate()
        return nodes_of(driver, request.group)

    one, two = nodes_of(driver, "one"), nodes_of(driver, "two")
    assert one != two
    assert cluster.hold("one", True)
    assert not cluster.hold("one", True), "it is one"
    assert (cluster.group("one").guest, cluster.opportunistic_gpus("a")) == (False, 4)
    assert bind(guest("beside", "b", 4)) == one, "nobody is a guest there yet"
    assert bind(wants("own", "a", 4)) == two, "a loan is taken last"
    preempts = cluster.schedule(wants("other", "b", 4))
    assert isinstance(preempts, Preempt)
    assert preempts.victims == ("one",)
    cluster.commit(preempts)
    assert cluster.hold("one", False)
    assert (cluster.group("one").guest, cluster.opportunistic_gpus("a")) == (True, 0)
    assert bind(wants("other", "b", 4)) == one
    assert not cluster.hold("one", True), "an owner has them"
    assert cluster.evicted() == ()
    assert replays(driver)


def test_only_guests_are_held() -> None:
    driver = running(taking({"a": 2}, {"a": "own"}), wants("own", "a", 4), lent("loan", "a", 4))
    assert [driver.cluster.hold(name, loan) for name in ("own", "loan") for loan in (True, False)] == [False] * 4
    driver.check()


def test_no_promotion_beside_a_held_loan() -> None:
    """It would have a victim, and wait."""
    spec = taking({"a": 1, "b": 1}, {"a": "all", "b": "all"})
    driver = running(spec, wants("own", "a", 4), guest("loan", "b", 4), log=True)
    cluster = driver.cluster
    assert cluster.hold("loan", True)
    loan = cluster.group("loan").placement
    assert loan is not None
    beside = cluster.place(PlacementRequest(guest("next", "a", 4), Beside(loan.pods)), keep=True)
    assert beside is not None
    assert beside.placement.pods == loan.pods
    cluster.release("own")
    assert cluster.promote(wants("next", "a", 4)) is False
    assert cluster.group("next").state is GroupState.ALLOCATED
    cluster.validate()
    assert cluster.hold("loan", False)
    assert cluster.promote(wants("next", "a", 4)) is True
    cluster.validate()
    assert replays(driver)
