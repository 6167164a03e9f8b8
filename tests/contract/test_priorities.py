"""Inside a VC the higher preempt the lower; across VCs only opportunistic groups ever end for another."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hived import Bind, CheckedCluster, Cluster, Preempt, Wait
from hived.cells import HostClass
from hived.cluster.explain.reasons import ReasonKind
from hived.cluster.pool import MAX_VIEWS
from hived.cluster.sharing import Sharing

from ..strategies import given_in_tiers
from .driver import Case, running
from .specs import flat, lent, wants


@pytest.mark.parametrize(
    ("holder", "asker", "preempts"),
    [(0, 1, True), (999, 1000, True), (0, 0, False), (1000, 1000, False), (5, 4, False)],
)
def test_higher_priority_preempts(holder: int, asker: int, preempts: bool) -> None:
    driver = running(flat({"a": 1}), wants("holder", "a", 1, priority=holder))
    request = wants("asker", "a", 4, priority=asker)
    if preempts:
        assert driver.preempt(request).victims == ("holder",)
    else:
        assert driver.wait(request).reasons[0].kind in {ReasonKind.VC_EXHAUSTED, ReasonKind.FRAGMENTED}


CASES = {
    "none while cells are free": Case(flat({"a": 2}), [wants("low", "a", 4)], wants("high", "a", 4, priority=9)),
    "lowest first": Case(
        flat({"a": 3}),
        [wants("middle", "a", 4, priority=3), wants("low", "a", 4, priority=1), wants("high", "a", 4, priority=5)],
        wants("top", "a", 4, priority=9),
        ("low",),
    ),
    "only what is below": Case(
        flat({"a": 2}),
        [wants("low", "a", 4, priority=1), wants("high", "a", 4, priority=3)],
        wants("middle", "a", 4, priority=2),
        ("low",),
    ),
    "not enough below": Case(
        flat({"a": 2}),
        [wants("low", "a", 4, priority=1), wants("high", "a", 4, priority=3)],
        wants("both", "a", (2, 4), priority=2),
        None,
    ),
    "loans of any VC": Case(
        flat({"a": 2, "b": 2}), [lent("everything", "a", (4, 4))], wants("mine", "b", 1), ("everything",)
    ),
    "idle GPUs before loans": Case(
        flat({"a": 1, "b": 2}), [lent("borrowed", "b", 4), wants("first", "b", 4)], wants("mine", "a", 4)
    ),
    "fewest lent GPUs": Case(
        flat({"a": 1, "b": 2}),
        [(lent("three", "b", 3), "n0"), (lent("one", "b", 1), "n1"), (lent("two", "b", 2), "n2")],
        wants("mine", "a", 4),
        ("one",),
    ),
    "in the order of starts": Case(
        flat({"a": 1}),
        [wants(name, "a", 1) for name in ("z", "b", "y", "a")],
        wants("high", "a", 4, priority=1),
        ("z", "b", "y", "a"),
    ),
    "a gang as one": Case(flat({"a": 2}), [wants("gang", "a", (2, 4))], wants("high", "a", 1, priority=1), ("gang",)),
    "a lazy one rather than an equal": Case(
        flat({"a": 2}, spare=1),
        [wants("eager", "a", 4), wants("lazy", "a", 4, lazy_preemption=True)],
        wants("top", "a", 4, priority=5),
        (),
        downgraded=("lazy",),
    ),
    "a lower one rather than a lazy": Case(
        flat({"a": 2}, spare=1),
        [wants("lazy", "a", 4, priority=1, lazy_preemption=True), wants("low", "a", 4)],
        wants("top", "a", 4, priority=5),
        ("low",),
    ),
    # the leaves of a gang that ends anyway are free to take on every host
    "one gang on two hosts": Case(
        flat({"a": 2}),
        [wants("gang", "a", (2, 3)), wants("left", "a", 1), wants("right", "a", 1)],
        wants("high", "a", (2, 3), priority=5),
        ("gang",),
    ),
    "a small group rather than a pod": Case(
        flat({"a": 3}, size=8),
        [wants("large", "a", 4, 8, 8), wants("small", "a", 4)],
        wants("high", "a", 2, priority=5),
        ("small",),
    ),
    "one node rather than a gang": Case(
        flat({"a": 3}, size=8),
        [wants("two", "a", (2, 8)), wants("one", "a", 8)],
        wants("high", "a", 8, priority=5),
        ("one",),
    ),
    "three singles rather than six": Case(
        flat({"a": 2}, size=8),
        [(wants("six", "a", 6), "n0"), *((wants(f"single{number}", "a", 1), "n1") for number in range(8))],
        wants("high", "a", 3, priority=5),
        ("single0", "single1", "single2"),
    ),
    # with the leaves of the gang of six the pod of four has a host, and the other pod two leaves beside the single
    "none beside a gang that ends": Case(
        flat({"a": 4}),
        [
            (wants("left", "a", 2, 2), "n0"),
            (wants("single", "a", 1), "n1"),
            (wants("six", "a", 2, 1, 3), "n1 n2"),
            (wants("right", "a", 4), "n3"),
        ],
        wants("high", "a", 2, 4, priority=5),
        ("six",),
    ),
    # as many leaves have to be taken on the other host, where more would be lost
    "pods on the host of least loss": Case(
        flat({"a": 2}, size=8),
        [
            (wants("three", "a", 3), "n0"),
            (wants("more", "a", 3), "n0"),
            (wants("pair", "a", 2), "n1"),
            (wants("y", "a", 3), "n1"),
            (wants("x", "a", 1), "n1"),
        ],
        wants("high", "a", (2, 3), priority=5),
        ("y", "x"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_victims(case: Case) -> None:
    case.check()


@pytest.mark.parametrize(
    ("groups", "gpus", "victims"),
    [
        ([("pair", 2, 0), ("other", 1, 7)], 2, {"pair"}),  # with the third leaf the pair would be ended all the same
        ([("pair", 2, 0), ("single", 1, 0)], 2, {"single"}),
        ([("two", 2, 0), ("one", 1, 0), ("more", 1, 0)], 1, {"one"}),
        ([("three", 3, 0), ("one", 1, 0)], 1, {"one"}),
    ],
)
def test_least_loss_then_closest(groups: list[tuple[str, int, int]], gpus: int, victims: set[str]) -> None:
    """In a host the fewest GPUs of others are lost, and then the closest are taken."""
    driver = running(flat({"a": 1}), *(wants(name, "a", size, priority=priority) for name, size, priority in groups))
    decision = driver.preempt(wants("high", "a", gpus, priority=5))
    assert set(decision.victims) == victims
    assert driver.hardware.group_level(decision.placement) == (1 if gpus == 1 else 2)


@pytest.mark.parametrize("offered", [None, [f"n{i}" for i in range(7)]], ids=["anywhere", "suggested"])
def test_least_loss_over_all_hosts(offered: list[str] | None) -> None:
    """The pods may have the nodes of one gang, or of two single groups: not one of each."""
    driver = running(
        flat({"a": 4, "b": 4}, size=8),
        (wants("full", "b", (4, 8)), "n4 n5 n6 n7"),
        (wants("first", "a", 8), "n0"),
        (wants("pair", "a", (2, 8)), "n1 n2"),
        (wants("last", "a", 8), "n3"),
    )
    decision = driver.preempt(wants("high", "a", (2, 8), priority=5), offered)
    assert decision.victims in {("pair",), ("first", "last")}


@pytest.mark.parametrize("members", [(4, 8), (8, 4)])
def test_order_of_members_costs_nothing(members: tuple[int, int]) -> None:
    driver = running(
        flat({"a": 2, "b": 2}, size=8),
        (wants("full", "b", 8), "n3"),
        (lent("small", "b", 2), "n0"),
        (lent("large", "b", 8, 3), "n1 n2"),
    )
    decision = driver.preempt(wants("high", "a", *members))
    assert decision.victims == ("small",)
    assert tuple(len(pod.leaf_cells) for pod in decision.placement.pods) == members


def test_reservation_overtaken_before_equals() -> None:
    """A reservation whose victims are of its VC is taken rather than a running group of its priority ended."""
    driver = running(flat({"a": 2}), wants("runs", "a", 4, priority=2), wants("low", "a", 4))
    driver.preempt(wants("reserves", "a", 4, priority=2))
    decision = driver.preempt(wants("top", "a", 4, priority=5))
    assert (decision.victims, decision.overtaken) == (("low",), ("reserves",))


def test_reservation_over_loans_counts_as_running() -> None:
    """A private cluster would run it: loans of other tenants must not change the victims in the VC."""
    loans = [lent(f"loan{number}", "b", 4) for number in range(2)]
    driver = running(flat({"a": 2, "b": 1}), wants("runs", "a", 4, priority=2), *loans)
    driver.preempt(wants("reserves", "a", 4, priority=2))
    decision = driver.preempt(wants("top", "a", 4, priority=5))
    assert (decision.victims, decision.overtaken) == (("runs",), ())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 3), st.integers(1, 4)), min_size=3, max_size=14))
def test_cells_go_to_the_highest_priorities(asked: list[tuple[str, int, int]]) -> None:
    """The driver checks the victims; here: the reserved cells of a VC go to its highest priorities first."""
    driver = running(flat({"a": 2, "b": 1}))
    for i, (vc, priority, gpus) in enumerate(asked):
        driver.run(wants(f"job-{i}", vc, gpus, priority=priority))
    for vc, size in (("a", 8), ("b", 4)):
        for priority in range(4):
            held = sum(
                run.request.members[0].leaf_cells
                for run in driver.running.values()
                if run.request.vc == vc and run.request.priority >= priority
            )
            probe = driver.ask(wants(f"probe-{vc}-{priority}", vc, 1, priority=priority))
            assert isinstance(probe, Wait) == (held == size)


# ---------------------------------------------------------- more priorities in use than spaces are kept for in a VC

MANY = MAX_VIEWS + 14


def full() -> CheckedCluster:
    """Every node has one group, each of a priority of its own: 0, 2, 4, ..."""
    cluster = CheckedCluster.from_spec(flat({"a": MANY}))
    for priority in range(0, 2 * MANY, 2):
        cluster.commit(cluster.schedule(wants(f"p{priority}", "a", 4, priority=priority)))
    return cluster


def victims_of(cluster: Cluster, pods: int, priority: int) -> list[str] | None:
    """Of such a gang of nodes; None: it has to wait."""
    answer = cluster.schedule(wants(f"asks-{priority}-{pods}", "a", (pods, 4), priority=priority))
    return sorted(answer.victims) if isinstance(answer, Preempt) else None


def test_lowest_of_many_priorities() -> None:
    cluster, order = full(), list(range(1, 2 * MANY, 2))
    Random(1).shuffle(order)
    for priority in order:
        for pods in (1, 2, 5):
            lowest = sorted(f"p{2 * number}" for number in range(pods))
            assert victims_of(cluster, pods, priority) == (lowest if pods <= (priority + 1) // 2 else None)
    cluster.validate()


def test_lowest_right_after_groups_have_changed() -> None:
    cluster = full()
    for priority in range(1, 60, 2):
        victims_of(cluster, 1, priority)
    cluster.release("p0")
    answer = cluster.schedule(wants("low", "a", 4))
    assert isinstance(answer, Bind)
    cluster.commit(answer)
    assert victims_of(cluster, 2, 59) == ["low", "p2"]


def test_unused_view_is_dropped() -> None:
    cluster = full()
    victims_of(cluster, 1, 59)
    (pool,) = cluster._state.pools[0]
    assert pool._views
    for _ in range(100):
        cluster.release("p0")
        cluster.commit(cluster.schedule(wants("p0", "a", 4)))
    assert not pool._views


# -- ranks of policies ------------------------------------------------------------------------------------------------

HELD = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=6)


@given_in_tiers(60, 1_500, HELD, st.integers(1, 4), st.integers(0, 4), st.integers(0, 3))
@example([(0, 2), (1, 2), (0, 2), (1, 2)], 2, 4, 2)
def test_rank_that_refuses_hosts(held: list[tuple[int, int]], gpus: int, priority: int, most: int) -> None:
    """It takes no host where more than ``most`` GPUs could be preempted: the lowest priorities that suffice yield."""

    def rank(host: HostClass, gpus: int) -> tuple[int, ...] | None:
        return None if host.free.free - host.idle.free > most else (max(0, gpus - host.idle.free),)

    cluster = Cluster.from_spec(flat({"a": 2}), Sharing.HIVED, rank)
    at: dict[str, list[tuple[int, int]]] = {"n0": [], "n1": []}
    for number, (of, size) in enumerate(held):
        decision = cluster.schedule(wants(f"held-{number}", "a", size, priority=of))
        if isinstance(decision, Bind):
            cluster.commit(decision)
            at[decision.placement.pods[0].node].append((of, size))
    answer = cluster.schedule(wants("asks", "a", gpus, priority=priority))

    def takes(up_to: int) -> bool:
        idle = [4 - sum(size for _, size in groups) for groups in at.values()]
        lower = [sum(size for of, size in groups if of <= up_to) for groups in at.values()]
        return any(free + more >= gpus and more <= most for free, more in zip(idle, lower, strict=True))

    used = {of for groups in at.values() for of, _ in groups if of < priority}
    right = next((up_to for up_to in (-1, *sorted(used)) if takes(up_to)), None)
    if right is None:
        assert isinstance(answer, Wait)
    elif right == -1:
        assert isinstance(answer, Bind)
    else:
        assert isinstance(answer, Preempt)
        assert max(held[int(name.removeprefix("held-"))][0] for name in answer.victims) == right


@given_in_tiers(
    60, 1_500, HELD, st.sets(st.integers(0, 3), max_size=3), st.integers(1, 6), st.integers(0, 4), st.integers(1, 12)
)
@example([(0, 4), (0, 2)], {3}, 2, 0, 1)
@example([(0, 4), (0, 2)], {3}, 3, 0, 2)
def test_rank_that_raises_changes_nothing(
    held: list[tuple[int, int]], bad: set[int], gpus: int, priority: int, at: int
) -> None:
    """Wherever it does: while leaf cells are chosen, or while reasons are collected."""
    left = inf

    def rank(host: HostClass, gpus: int) -> tuple[int, ...] | None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ZeroDivisionError
        return (host.free.free,)

    def made() -> CheckedCluster:
        cluster = CheckedCluster.from_spec(flat({"a": 2}), Sharing.HIVED, rank)
        for number in bad:
            cluster.set_device_health("n1", number, healthy=False)
        for number, (of, size) in enumerate(held):
            decision = cluster.schedule(wants(f"held-{number}", "a", size, priority=of))
            if isinstance(decision, Bind):
                cluster.commit(decision)
        return cluster

    request = wants("asks", "a", gpus, priority=priority)
    cluster, other = made(), made()
    before = cluster.snapshot()
    left = at
    with suppress(ZeroDivisionError):
        cluster.schedule(request)
    raised, left = left < 0, inf
    if raised:
        cluster.validate()
        assert cluster.snapshot() == before
        assert cluster.schedule(request) == other.schedule(request)
