"""Guests run on idle leaf cells or beside the owners of theirs, and take none from other groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from hypothesis import event, given, settings
from hypothesis import strategies as st

from hived import Bind, Cluster, Preempt, RecordedCluster, Request, Wait, replay
from hived.cluster.decisions import PodPlacement
from hived.cluster.guests import MOST_GUESTS
from hived.cluster.reasons import Suspended
from hived.cluster.states import GroupState, LeafState
from hived.spec import ClusterSpec
from hived.spec.compiled import GuestsOf

from .driver import Driver
from .specs import Spec, flat, lent, wants
from .walks import SEEDS, SPECS, Walk, with_guests


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


def test_a_guest_runs_beside_an_owner_and_counts_as_nothing() -> None:
    driver = Driver(taking({"a": 1, "b": 1}, {"a": "all"}), log=True)
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


def test_a_vc_says_whose_guests_it_has() -> None:
    for sharing, accepted in (None, []), ("none", []), ("own", ["a"]), ("all", ["a", "b"]):
        driver = Driver(taking({"a": 1, "b": 1}, {"b": "own"} if sharing is None else {"a": sharing, "b": "own"}))
        driver.bind(wants("own-a", "a", 4))
        for vc in "a", "b":
            answer = driver.ask(guest(f"of-{vc}", vc, 4), suggested=[places(driver, "own-a")[0][0]])
            assert isinstance(answer, Bind) == (vc in accepted), (sharing, vc)


def test_a_cluster_none_of_whose_vcs_has_guests_starts_none_even_on_idle_leaf_cells() -> None:
    driver = Driver(taking({"a": 1}, {}))
    driver.wait(guest("guest", "a", 1))


def test_a_request_without_the_option_is_no_guest() -> None:
    driver = Driver(taking({"a": 1}, {"a": "all"}))
    driver.bind(wants("own", "a", 4))
    driver.wait(lent("loan", "a", 1))


def test_idle_leaf_cells_come_first_and_then_those_with_the_fewest_guests() -> None:
    driver = Driver(taking({"a": 2}, {"a": "own"}))
    driver.bind(wants("own", "a", 4))
    taken = []
    for number in range(2 * 2 * MOST_GUESTS):
        driver.bind(guest(str(number), "a", 2))
        taken += places(driver, str(number))
    owned = places(driver, "own")[0][0]
    assert [node == owned for node, _ in taken[:6]] == [False, False, True, True, *[taken[4][0] == owned] * 2]
    assert len(set(taken[:4])) == 4
    driver.wait(guest("more", "a", 1))
    driver.release("3")
    driver.bind(guest("more", "a", 2))


def test_the_caller_says_which_leaf_cells_a_guest_prefers_and_may_have() -> None:
    driver = Driver(taking({"a": 2}, {"a": "own"}), log=True)
    driver.bind(wants("own", "a", 4, 4))
    one, other = (PodPlacement("n1", (3,)), PodPlacement("n0", (2,)))
    place = driver.cluster.place
    last = place(guest("last", "a", 1), beside=(other, one))
    assert last is not None
    assert last.placement.pods == (other,)
    assert place(guest("first", "a", 1), keep=True, beside=(one, other)).placement.pods == (one,)  # type: ignore
    assert place(guest("pair", "a", 2), beside=(one, other)) is None, "these are on two nodes"
    pair = place(guest("pair", "a", 2), keep=True, beside=(one, other, PodPlacement("n0", (0, 1))))
    assert pair is not None
    assert {pod.node for pod in pair.placement.pods} == {"n0"}
    assert place(guest("nowhere", "a", 1), beside=()) is None
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_loans_and_reservations_are_no_owners() -> None:
    driver = Driver(taking({"a": 1, "b": 1}, {"a": "all", "b": "all"}))
    driver.bind(lent("loan", "a", 4))
    driver.bind(lent("other", "a", 4))
    driver.wait(guest("guest", "a", 1))
    high = wants("high", "b", 4)
    (victim,) = driver.preempt(high).victims
    driver.wait(guest("guest", "a", 1))
    driver.release(victim)
    driver.run(high)
    driver.bind(guest("guest", "a", 1))


def test_a_guest_stays_when_the_owner_ends_and_when_the_next_comes() -> None:
    driver = Driver(taking({"a": 1, "b": 0}, {"a": "all"}), log=True)
    driver.bind(wants("own", "a", 2))
    driver.bind(guest("beside", "b", 4))
    at = places(driver, "beside")
    driver.release("own")
    assert (driver.cluster.group("beside").guest, places(driver, "beside")) == (True, at)
    driver.bind(wants("next", "a", 4))
    assert (driver.cluster.group("beside").guest, places(driver, "beside")) == (True, at)
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_a_guest_waits_again_when_a_group_that_has_no_guests_gets_its_leaf_cells() -> None:
    driver = Driver(taking({"a": 1, "b": 1}, {"a": "all"}), log=True)
    driver.bind(wants("own", "a", 4))
    driver.bind(guest("guest", "a", 4))
    assert places(driver, "guest") != places(driver, "own")
    driver.bind(wants("other", "b", 4))
    group = driver.cluster.group("guest")
    assert (group.state, group.guest, group.reasons) == (GroupState.PENDING, False, (Suspended(4, "other"),))
    assert "it was a guest on 4 GPUs, and other has some of them now" in driver.cluster.explain("guest")
    driver.bind(guest("guest", "a", 2))
    assert places(driver, "guest")[0][0] == places(driver, "own")[0][0]
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_evicted_guests_are_reported_once_and_not_before_a_commit() -> None:
    cluster = Cluster.from_spec(taking({"a": 1, "b": 1}, {"a": "all"}))
    cluster.commit(cluster.schedule(guest("one", "a", 4)))
    cluster.commit(cluster.schedule(guest("two", "a", 4)))
    first = cluster.schedule(wants("first", "b", 4))
    assert cluster.evicted() == (), "it was rolled back"
    cluster.commit(cluster.schedule(wants("first", "b", 4)))
    assert isinstance(first, Bind)
    assert len(cluster.evicted()) == 1
    assert cluster.evicted() == ()


def test_a_guest_is_promoted_on_its_leaf_cells_once_it_is_alone_there() -> None:
    driver = Driver(taking({"a": 2}, {"a": "own"}), log=True)
    driver.bind(wants("own", "a", 4))
    driver.bind(wants("next", "a", 4))
    driver.bind(guest("guest", "a", 4))
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
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_a_guest_is_in_no_groups_way() -> None:
    driver = Driver(taking({"a": 1}, {"a": "own"}))
    driver.bind(wants("low", "a", 4))
    driver.bind(guest("guest", "a", 4))
    high = wants("high", "a", 4, priority=1)
    assert driver.preempt(high).victims == ("low",)
    assert driver.cluster.group("guest").guest, "while its owner is there"
    driver.release("low")
    assert isinstance(driver.run(high), Bind)
    assert driver.cluster.group("guest").guest


def test_no_new_guest_goes_to_bad_or_excluded_nodes_and_present_guests_stay() -> None:
    driver = Driver(taking({"a": 2}, {"a": "own"}))
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


def test_guests_outlive_a_restart_and_a_new_spec_as_long_as_they_are_accepted() -> None:
    spec = taking({"a": 1, "b": 1}, {"a": "all"})
    driver = Driver(spec, log=True)
    driver.bind(wants("own", "a", 4))
    driver.bind(lent("loan", "b", 4))
    driver.bind(guest("a-guest", "a", 4))
    driver.bind(guest("b-guest", "b", 2))
    fresh = Cluster.from_spec(spec)
    assert fresh.recover(reversed(driver.cluster.records())).kept == ("a-guest", "b-guest", "loan", "own")
    assert fresh.snapshot() == driver.cluster.snapshot()
    fresher = Cluster.from_spec(flat({"a": 1, "b": 1}))
    assert fresher.recover(driver.cluster.records()).cancelled == ("a-guest", "b-guest")
    assert driver.cluster.reconfigure(spec).kept == ("a-guest", "b-guest", "loan", "own")
    assert driver.cluster.group("a-guest").guest
    report = driver.cluster.reconfigure(taking({"a": 1, "b": 1}, {"a": "own"}))
    assert (report.kept, report.cancelled) == (("a-guest", "loan", "own"), ("b-guest",))
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_a_gang_of_guests_is_placed_all_or_none_and_as_close_as_it_asks() -> None:
    driver = Driver(taking({"a": 2}, {"a": "own"}))
    driver.bind(wants("one", "a", 4))
    driver.bind(wants("two", "a", 2))
    driver.bind(lent("loan", "a", 2))
    driver.wait(guest("large", "a", 4, 4))
    driver.wait(guest("apart", "a", 4, 2, within="NODE"))
    driver.bind(guest("gang", "a", 4, 2))
    assert driver.cluster.group("gang").guest


def test_a_guest_is_opportunistic() -> None:
    driver = Driver(taking({"a": 1}, {"a": "own"}))
    driver.refused(wants("own", "a", 4, guest=True), "guest")
    driver.refused(lent("own", "a", 4, guest=1), "guest")


@settings(max_examples=40)
@given(SPECS, st.lists(st.sampled_from(["own", "all"]), min_size=1, max_size=3), SEEDS)
def test_with_guests_and_without_everybody_else_is_answered_the_same(
    spec: ClusterSpec, sharing: list[GuestsOf], seed: int
) -> None:
    """Two clusters are asked the same, and one has guests besides: sharing safety holds with them as without."""
    walk, dice = Walk(with_guests(spec, sharing), seed, breaks=False), Random(seed)
    full, bare = walk.driver, Driver(with_guests(spec, ["none"]), careful=False)
    guests = 0
    for _ in range(40):
        request = replace(walk.new_request(), guest=False)
        if request.opportunistic and dice.random() < 0.6:
            decision = full.ask(replace(request, guest=True))
            if isinstance(decision, Bind):
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


def test_a_guest_alone_holds_its_leaf_cells_as_a_loan_and_stays_as_a_guest_where_it_is_a_victim() -> None:
    lines: list[str] = []
    cluster = RecordedCluster.from_spec(taking({"a": 1, "b": 1}, {"a": "all", "b": "all"}), lines.append)

    def bind(request: Request) -> tuple[PodPlacement, ...]:
        decision = cluster.schedule(request)
        assert isinstance(decision, Bind)
        cluster.commit(decision)
        cluster.validate()
        return decision.placement.pods

    one, two = bind(guest("one", "a", 4)), bind(guest("two", "a", 4))
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
    assert replay(lines, Cluster).snapshot() == cluster.snapshot()


def test_only_guests_are_held_on_and_given_up() -> None:
    driver = Driver(taking({"a": 2}, {"a": "own"}))
    driver.bind(wants("own", "a", 4))
    driver.bind(lent("loan", "a", 4))
    assert [driver.cluster.hold(name, loan) for name in ("own", "loan") for loan in (True, False)] == [False] * 4
    driver.check()


def test_a_guest_is_not_promoted_where_another_holds_its_leaf_cells_as_a_loan() -> None:
    lines: list[str] = []
    cluster = RecordedCluster.from_spec(taking({"a": 1, "b": 1}, {"a": "all", "b": "all"}), lines.append)
    for request in (wants("own", "a", 4), guest("loan", "b", 4)):
        decision = cluster.schedule(request)
        cluster.commit(decision)
        if request.opportunistic:
            assert cluster.hold("loan", True)
    loan = cluster.group("loan").placement
    assert loan is not None
    beside = cluster.place(guest("next", "a", 4), keep=True, beside=loan.pods)
    assert beside is not None
    assert beside.placement.pods == loan.pods
    cluster.release("own")
    assert cluster.promote(wants("next", "a", 4)) is False, "it would have a victim, and wait"
    assert cluster.group("next").state is GroupState.ALLOCATED
    cluster.validate()
    assert cluster.hold("loan", False)
    assert cluster.promote(wants("next", "a", 4)) is True
    cluster.validate()
    assert replay(lines, Cluster).snapshot() == cluster.snapshot()
