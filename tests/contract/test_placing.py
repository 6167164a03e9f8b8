"""Placing for a scheduler with queues of its own: on leaf cells, by a demand, or for victims that it names."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import event

from hived import Bind, Cluster, Preempt, RecordedCluster, RequestError, Wait, replay
from hived.cluster.cluster import compiled_spec
from hived.cluster.placement_request import Over, PlacementRequest
from hived.cluster.sharing import Sharing
from hived.cluster.states import GroupState
from hived.spec import ClusterSpec

from ..strategies import given_in_tiers
from .driver import replays, running
from .specs import flat, lent, racks, wants
from .walks import SEEDS, SPECS, any_request


def test_leaves_of_another_cluster() -> None:
    """A group takes the leaf cells of its VC that it has in a private cluster, or has its loan promoted on them.

    Any jobs and loans: tests/cluster/test_any_sequence.py.
    """
    spec = racks({"a": {"RACK.NODE": 1}, "b": {"RACK.NODE": 1}})
    driver = running(spec, lent("early", "a", 4), log=True)
    private = Cluster(compiled_spec(spec), Sharing.PRIVATE)
    assert private.place(PlacementRequest(wants("early", "a", 4)), keep=True) is not None
    leaves = private.virtual_leaves("early")
    before = driver.cluster.group("early").placement
    assert driver.cluster.promote(wants("early", "a", 4), leaves)
    after = driver.cluster.group("early").placement
    assert before is not None
    assert after is not None
    assert (before.pods, after.guaranteed) == (after.pods, True)
    assert driver.cluster.place(PlacementRequest(wants("second", "a", 4), leaves)) is None, "they are in use"
    driver.cluster.release("early")
    assert driver.cluster.place(PlacementRequest(wants("second", "a", 4), leaves), keep=True) is not None
    assert driver.cluster.virtual_leaves("second") == leaves
    driver.cluster.validate()
    assert replays(driver)


def test_demand_changes_no_answer() -> None:
    """It is made once for requests that differ by name; one of another spec, or a name that is none, is seen."""
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    demand = cluster.demand(wants("any", "b", 4))
    placed = cluster.place(PlacementRequest(wants("one", "b", 4), demand=demand))
    assert placed == cluster.place(PlacementRequest(wants("one", "b", 4)))
    with pytest.raises(RequestError, match="group"):
        cluster.place(PlacementRequest(wants("", "b", 4), demand=demand))
    cluster.reconfigure(flat({"b": 1, "a": 1}))  # the tenants have other numbers now
    after = cluster.place(PlacementRequest(wants("one", "b", 4), demand=demand))
    assert after is not None
    cluster.commit(after)
    assert cluster.group("one").guaranteed
    assert cluster.place(PlacementRequest(wants("two", "b", 4), demand=demand)) is None
    assert cluster.place(PlacementRequest(wants("three", "a", 4))) is not None


def test_kept_at_once_is_what_a_commit_keeps() -> None:
    """Starts, a lazy group that becomes opportunistic, a loan that has to go: answer by answer and state by state."""
    spec = flat({"a": 1, "b": 1, "c": 1})
    at_once, in_two = Cluster.from_spec(spec), Cluster.from_spec(spec)
    requests = [
        replace(wants("lazy", "a", 4), lazy_preemption=True),
        lent("loan", "a", 4),
        wants("high", "a", 4, priority=5),
        wants("own", "b", 4),
    ]
    seen = []
    for request in requests:
        kept, placed = at_once.place(PlacementRequest(request), keep=True), in_two.place(PlacementRequest(request))
        assert placed is not None
        in_two.commit(placed)
        assert kept == placed
        assert at_once.snapshot() == in_two.snapshot()
        at_once.commit(placed)  # carried out already
        assert at_once.snapshot() == in_two.snapshot()
        at_once.validate()
        seen.append((type(placed), placed.downgraded))
    assert seen == [(Bind, ()), (Bind, ()), (Bind, ("lazy",)), (Preempt, ())]
    assert at_once.place(PlacementRequest(wants("none", "b", 4)), keep=True) is None


# ----------------------------------------------- victims of the same priority, which a policy names, the core selects


def filled() -> Cluster:
    """A VC of two nodes of 4 GPUs: jobs of 1, 1 and 2 GPUs on one, of 4 on the other."""
    sizes = {"one": 1, "other": 1, "two": 2, "four": 4}
    return running(flat({"a": 2, "b": 1}), *(wants(name, "a", gpus) for name, gpus in sizes.items())).cluster


@pytest.mark.parametrize(
    ("gpus", "candidates", "victims"),
    [
        ((1,), ["four", "two", "other", "one"], ("four",)),
        ((1,), ["one", "four"], ("one",)),
        ((4,), ["two", "other", "one", "four"], ("two", "other", "one")),
        ((4,), ["two", "four", "other", "one"], ("four",)),
        ((4,), ["two", "one"], None),
        ((4, 4), ["two", "four", "other", "one"], ("two", "four", "other", "one")),
        ((1,), [], None),
    ],
)
def test_shortest_prefix(gpus: tuple[int, ...], candidates: list[str], victims: tuple[str, ...] | None) -> None:
    """The shortest prefix of the candidates is taken, and groups in it that are not needed are spared."""
    cluster = filled()
    before = cluster.snapshot()
    assert cluster.select_victims(wants("next", "a", *gpus), candidates) == victims
    assert cluster.snapshot() == before


def test_victim_is_no_candidate_again() -> None:
    cluster = filled()
    cluster.commit(cluster.place(PlacementRequest(wants("next", "a", 4), Over(("four",)))))  # type: ignore[arg-type]
    assert cluster.group("four").state is GroupState.BEING_PREEMPTED
    assert cluster.select_victims(wants("third", "a", 4), ["four"]) is None


def test_own_loan_counts_as_given_up() -> None:
    cluster = filled()
    cluster.commit(cluster.schedule(lent("next", "a", 4)))
    assert cluster.select_victims(wants("next", "a", 4), ["two", "four"]) == ("four",)


@pytest.mark.parametrize("bad", [True, False], ids=["bad", "excluded"])
def test_victim_on_unusable_node(bad: bool) -> None:
    """It is passed over for the next.

    Its cell stays bound while it runs: a trial that bound it to the idle node found what no preemption can have.
    """
    cluster = running(flat({"a": 2}, spare=1), wants("last", "a", 4), wants("next-to-last", "a", 4)).cluster
    placement = cluster.group("last").placement
    assert placement is not None
    node = placement.pods[0].node
    if bad:
        cluster.set_node_health(node, False)
    excluded = () if bad else (node,)
    request = wants("head", "a", 4)
    victims = cluster.select_victims(request, ["last", "next-to-last"], excluded)
    assert victims == ("next-to-last",)
    decision = cluster.place(PlacementRequest(request, Over(victims), excluded_nodes=excluded))
    assert isinstance(decision, Preempt)
    assert decision.victims == victims
    assert decision.placement.pods[0].node != node


@pytest.mark.parametrize(
    ("name", "message"),
    [("higher", "priority of at most 0"), ("foreign", "no running guaranteed group"), ("none", "no such group")],
)
def test_wrong_candidates(name: str, message: str) -> None:
    cluster = running(flat({"a": 1, "b": 1}), wants("higher", "a", 4, priority=1), wants("foreign", "b", 4)).cluster
    with pytest.raises(RequestError, match=message):
        cluster.select_victims(wants("next", "a", 4), [name])
    with pytest.raises(RequestError, match=message):
        cluster.place(PlacementRequest(wants("next", "a", 4), Over([name])))
    with pytest.raises(RequestError, match="opportunistic"):
        cluster.select_victims(lent("next", "a", 4), ["higher"])


@given_in_tiers(15, 100, SPECS, SEEDS)
def test_victims_suffice_and_all_are_needed(spec: ClusterSpec, seed: int) -> None:
    """On any cluster; each decision is carried out, and the log of all of it replays."""
    random, lines = Random(seed), list[str]()
    cluster = RecordedCluster(spec, lines.append)
    for number in range(40):
        request = any_request(random, spec, f"job-{number}")
        groups = [r for r in cluster.records() if r.placement.guaranteed and r.request.vc == request.vc]
        candidates = [r.group for r in groups if r.request.priority <= request.priority]
        random.shuffle(candidates)
        decision = cluster.schedule(request, now=float(number))
        if isinstance(decision, Wait) and request.priority >= 0 and candidates:
            victims = cluster.select_victims(request, candidates)
            event(f"victims: {victims and len(victims)}")
            if victims:
                for victim in victims:
                    rest = [name for name in victims if name != victim]
                    assert cluster.select_victims(request, rest) is None, f"{victim} is not needed"
                placed = cluster.place(PlacementRequest(request, Over(victims), float(number)))
                assert placed is not None
                ended = placed.victims if isinstance(placed, Preempt) else ()
                assert {*ended, *placed.downgraded} >= set(victims), "lazy ones run on"
                cluster.commit(placed)
                cluster.validate()
                for victim in ended:
                    cluster.release(victim)
                decision = cluster.schedule(request, now=float(number))
                assert isinstance(decision, Bind)
        if isinstance(decision, Bind):
            cluster.commit(decision)
        cluster.validate()
    assert replay(lines, Cluster).snapshot() == cluster.snapshot()
