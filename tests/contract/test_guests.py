"""Guests run beside the owners of their leaf cells, take none from other groups, and are evicted with the owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from hived import Bind, Cluster, Request, Wait, replay
from hived.cluster.decisions import PodPlacement
from hived.cluster.reasons import Suspended
from hived.cluster.states import GroupState, LeafState
from hived.spec import ClusterSpec

from .driver import Driver, devices
from .specs import Spec, flat, lent, wants
from .test_any_events import SEEDS, SPECS, Walk, with_guests


def taking(vcs: Mapping[str, int], guests: Mapping[str, int], spare: int = 0) -> Spec:
    """Nodes of 4 for these VCs, which take so many guests in."""
    spec = flat(vcs, spare)
    for name, number in guests.items():
        spec["virtualClusters"][name]["guests"] = number
    return spec


def guest(name: str, vc: str, *members: int, **options: str) -> Request:
    return lent(name, vc, *members, guest=True, **options)


def places(driver: Driver, name: str) -> list[tuple[str, tuple[int, ...]]]:
    placement = driver.cluster.group(name).placement
    assert placement is not None
    return [(pod.node, pod.leaf_cells) for pod in placement.pods]


def test_a_guest_runs_beside_an_owner_and_counts_as_nothing() -> None:
    driver = Driver(taking({"a": 1, "b": 1}, {"a": 1}), log=True)
    driver.bind(wants("own-a", "a", 4))
    driver.bind(wants("own-b", "b", 4))
    driver.bind(guest("guest", "b", 2))
    group = driver.cluster.group("guest")
    assert (group.guest, group.guaranteed, group.state) == (True, False, GroupState.ALLOCATED)
    assert places(driver, "guest")[0][0] == places(driver, "own-a")[0][0]
    assert driver.cluster.opportunistic_gpus("b") == 0
    assert driver.cluster.leaf_state(*places(driver, "own-a")[0][:1], 0) is LeafState.USED
    assert "it is a guest there" in driver.cluster.explain("guest")
    driver.release("guest")
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


@pytest.mark.parametrize("guests", [{}, {"a": 0}])
def test_a_vc_without_the_setting_accepts_no_guests(guests: dict[str, int]) -> None:
    driver = Driver(taking({"a": 1}, guests))
    driver.bind(wants("own", "a", 4))
    driver.wait(guest("guest", "a", 1))


def test_a_request_without_the_option_is_no_guest() -> None:
    driver = Driver(taking({"a": 1}, {"a": 1}))
    driver.bind(wants("own", "a", 4))
    driver.wait(lent("loan", "a", 1))


def test_idle_leaf_cells_come_first_and_then_those_with_the_fewest_guests() -> None:
    driver = Driver(taking({"a": 2}, {"a": 2}))
    driver.bind(wants("own", "a", 4))
    driver.bind(guest("loan", "a", 4))
    assert not driver.cluster.group("loan").guest
    taken = []
    for name in "one", "two", "three", "four":
        driver.bind(guest(name, "a", 2))
        taken.append(places(driver, name)[0][1])
    assert sorted(taken) == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert taken[0] != taken[1]
    driver.wait(guest("five", "a", 1))
    driver.release("two")
    driver.bind(guest("five", "a", 1))
    driver.wait(guest("six", "a", 2))


def test_loans_and_reservations_are_no_owners() -> None:
    driver = Driver(taking({"a": 1, "b": 1}, {"a": 1, "b": 1}))
    driver.bind(lent("loan", "a", 4))
    driver.bind(lent("other", "a", 4))
    driver.wait(guest("guest", "a", 1))
    high = wants("high", "b", 4)
    (victim,) = driver.preempt(high).victims
    driver.wait(guest("guest", "a", 1))
    driver.release(victim)
    driver.wait(guest("guest", "a", 1))
    driver.run(high)
    driver.bind(guest("guest", "a", 1))


def test_guests_wait_again_when_the_owner_ends_and_may_borrow_then() -> None:
    driver = Driver(taking({"a": 1}, {"a": 2}), log=True)
    driver.bind(wants("own", "a", 4))
    driver.bind(guest("first", "a", 2))
    driver.bind(guest("second", "a", 4))
    driver.release("own")
    assert driver.cluster.groups() == ("first", "second")
    group = driver.cluster.group("first")
    assert (group.state, group.guest, group.reasons) == (GroupState.PENDING, False, (Suspended(2, "own"),))
    assert "it was a guest on 2 GPUs, and own owns them no longer" in driver.cluster.explain("first")
    driver.bind(guest("first", "a", 2))
    assert not driver.cluster.group("first").guest
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_evicted_guests_are_reported() -> None:
    cluster = Cluster.from_spec(taking({"a": 2}, {"a": 1}, spare=1))
    own, other = wants("own", "a", 4, lazy_preemption=True), guest("guest", "a", 4)
    cluster.commit(cluster.schedule(wants("neighbour", "a", 4)))
    cluster.commit(cluster.schedule(own))

    def beside() -> None:
        cluster.commit(cluster.schedule(own))
        cluster.commit(cluster.schedule(lent("idle", "a", 4)))
        answer = cluster.schedule(other, excluded_nodes=[pod.node for pod in where("neighbour")])
        cluster.commit(answer)
        assert cluster.group("guest").guest
        cluster.release("idle")

    def where(name: str) -> tuple[PodPlacement, ...]:
        placement = cluster.group(name).placement
        assert placement is not None
        return placement.pods

    for ends in (cluster.suspend, cluster.release, lambda name: cluster.leave(name, name)):
        beside()
        ends("own")
        assert cluster.evicted() == ("guest",)
    beside()
    moved = cluster.move(own, excluded_nodes=[node for node, _ in where("own")])
    assert moved is not None
    assert cluster.group("guest").guest, "not yet"
    cluster.commit(moved)
    assert cluster.evicted() == ("guest",)
    beside()
    assert cluster.evicted() == ()
    high = cluster.schedule(wants("high", "a", 4, priority=1))
    assert isinstance(high, Bind)
    assert high.downgraded == ("own",)
    assert cluster.evicted() == (), "it was rolled back"
    cluster.commit(high)
    assert cluster.evicted() == ("guest",)


def test_a_guest_is_in_no_groups_way() -> None:
    driver = Driver(taking({"a": 1}, {"a": 1}))
    driver.bind(wants("low", "a", 4))
    driver.bind(guest("guest", "a", 4))
    high = wants("high", "a", 4, priority=1)
    assert driver.preempt(high).victims == ("low",)
    assert driver.cluster.group("guest").guest, "while its owner is there"
    driver.release("low")
    assert driver.cluster.group("guest").state is GroupState.PENDING
    assert isinstance(driver.run(high), Bind)


def test_no_new_guest_goes_to_bad_or_excluded_nodes_and_present_guests_stay() -> None:
    driver = Driver(taking({"a": 2}, {"a": 1}))
    driver.bind(wants("own", "a", 4, 4))
    driver.bind(guest("here", "a", 4))
    ((node, _),) = places(driver, "here")
    driver.set_node(node, healthy=False)
    assert driver.cluster.group("here").guest
    (other,) = {"n0", "n1"} - {node}
    assert isinstance(driver.cluster.schedule(guest("new", "a", 1), excluded_nodes=[other]), Wait)
    driver.bind(guest("new", "a", 1))
    assert places(driver, "new")[0][0] == other
    assert driver.ask_to_move("new", [other]) is None


def test_guests_outlive_a_restart_and_a_new_spec_as_long_as_they_are_taken_in() -> None:
    spec = taking({"a": 1, "b": 1}, {"a": 2})
    driver = Driver(spec, log=True)
    driver.bind(wants("own", "a", 4))
    driver.bind(lent("loan", "b", 4))
    driver.bind(guest("a-guest", "b", 4))
    driver.bind(guest("b-guest", "b", 2))
    fresh = Cluster.from_spec(spec)
    assert fresh.recover(reversed(driver.cluster.records())).kept == ("a-guest", "b-guest", "loan", "own")
    assert fresh.snapshot() == driver.cluster.snapshot()
    fresher = Cluster.from_spec(flat({"a": 1, "b": 1}))
    assert fresher.recover(driver.cluster.records()).cancelled == ("a-guest", "b-guest")
    assert driver.cluster.reconfigure(spec).kept == ("a-guest", "b-guest", "loan", "own")
    assert driver.cluster.group("a-guest").guest
    report = driver.cluster.reconfigure(taking({"a": 1, "b": 1}, {"a": 1}))
    assert (report.kept, report.cancelled) == (("a-guest", "loan", "own"), ("b-guest",))
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_a_gang_of_guests_is_placed_all_or_none_and_as_close_as_it_asks() -> None:
    driver = Driver(taking({"a": 2}, {"a": 1}))
    driver.bind(wants("one", "a", 4))
    driver.bind(wants("two", "a", 2))
    driver.bind(lent("loan", "a", 2))
    driver.wait(guest("large", "a", 4, 4))
    driver.wait(guest("apart", "a", 4, 2, within="NODE"))
    driver.bind(guest("gang", "a", 4, 2))
    assert driver.cluster.group("gang").guest


def test_a_guest_is_opportunistic() -> None:
    driver = Driver(taking({"a": 1}, {"a": 1}))
    driver.refused(wants("own", "a", 4, guest=True), "guest")
    driver.refused(lent("own", "a", 4, guest=1), "guest")


@settings(max_examples=40)
@given(SPECS, st.lists(st.integers(1, 3), min_size=1, max_size=3), SEEDS)
def test_with_guests_and_without_everybody_else_is_answered_the_same(
    spec: ClusterSpec, numbers: list[int], seed: int
) -> None:
    """Two clusters are asked the same, and one has guests besides: sharing safety holds with them as without."""
    walk, dice = Walk(with_guests(spec, numbers), seed, breaks=False), Random(seed)
    full, bare = walk.driver, Driver(with_guests(spec, [0]), careful=False)
    guests = 0
    for _ in range(40):
        request = replace(walk.new_request(), guest=False)
        if request.opportunistic and dice.random() < 0.6:
            decision = full.ask(replace(request, guest=True))
            if isinstance(decision, Bind) and devices(decision.placement.pods) & full.user_of().keys():
                full.commit(decision)
                guests += 1
            elif isinstance(decision, Wait):
                full.cancel(request.group)
            continue
        answers = [driver.ask(request) for driver in (full, bare)]
        assert answers[0] == answers[1]
        for driver, answer in zip((full, bare), answers, strict=True):
            if isinstance(answer, Wait):
                driver.cancel(request.group)
            else:
                driver.run(request)
        shared = sorted(bare.running)
        assert {name for name, run in full.running.items() if not run.guest} == set(shared)
        if shared and dice.random() < 0.4:
            name = dice.choice(shared)
            full.release(name)
            bare.release(name)
        for name in full.cluster.groups():
            if full.cluster.group(name).state is GroupState.PENDING:  # a guest no more
                full.cancel(name)
    assert full.cluster.check_safety() == bare.cluster.check_safety()
    event(f"{min(guests, 3)} guests or more")
