"""Inside a VC the higher preempt the lower; across VCs only opportunistic groups ever end for another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived import Bind, Preempt, Wait
from hived.cluster.reasons import ReasonKind

from .driver import Driver
from .specs import flat, lent, wants


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 1000), (999, 1000), (4, 5)])
def test_a_higher_priority_preempts_a_lower_one_of_its_vc(low: int, high: int) -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 4, priority=low))
    decision = driver.run(wants("high", "a", 4, priority=high))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("low",)


@pytest.mark.parametrize(("holder", "asker"), [(0, 0), (5, 5), (1000, 1000), (5, 4), (1000, 0), (1, 0)])
def test_an_equal_or_lower_priority_waits(holder: int, asker: int) -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("holder", "a", 1, priority=holder))
    waits = driver.wait(wants("asker", "a", 4, priority=asker))
    assert waits.reasons[0].kind in {ReasonKind.VC_EXHAUSTED, ReasonKind.FRAGMENTED}


def test_no_group_is_preempted_while_free_cells_suffice() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("low", "a", 4))
    assert isinstance(driver.run(wants("high", "a", 4, priority=9)), Bind)


def test_the_lowest_priority_goes_first() -> None:
    driver = Driver(flat({"a": 3}))
    for name, priority in (("middle", 3), ("low", 1), ("high", 5)):
        driver.bind(wants(name, "a", 4, priority=priority))
    decision = driver.run(wants("top", "a", 4, priority=9))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("low",)
    decision = driver.run(wants("next", "a", 4, priority=8))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("middle",)


def test_a_middle_priority_takes_only_what_is_below_it() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("low", "a", 4, priority=1))
    driver.bind(wants("high", "a", 4, priority=3))
    assert isinstance(driver.ask(wants("both", "a", (2, 4), priority=2)), Wait)
    decision = driver.run(wants("one", "a", 4, priority=2))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("low",)


def test_a_vc_never_preempts_guaranteed_groups_of_another() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("theirs", "b", 4, priority=0))
    driver.bind(wants("mine", "a", 4, priority=1000))
    waits = driver.wait(wants("more", "a", 4, priority=1000))
    assert waits.reasons[0].kind is ReasonKind.VC_EXHAUSTED


def test_any_guaranteed_group_preempts_an_opportunistic_one_of_any_vc() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("theirs", "b", 4))
    driver.bind(lent("mine", "a", 4))
    first = driver.run(wants("one", "a", 4))
    second = driver.run(wants("two", "b", 4))
    assert isinstance(first, Preempt)
    assert isinstance(second, Preempt)
    assert {*first.victims, *second.victims} == {"theirs", "mine"}


def test_idle_gpus_are_taken_before_opportunistic_ones() -> None:
    driver = Driver(flat({"a": 1, "b": 2}))
    driver.bind(lent("borrowed", "b", 4))
    for i, vc in enumerate("ab"):
        driver.bind(wants(f"mine-{i}", vc, 4))


def test_the_fewest_opportunistic_gpus_are_taken() -> None:
    driver = Driver(flat({"a": 1, "b": 2}))
    for node, gpus in (("n0", 3), ("n1", 1), ("n2", 2)):
        driver.bind(lent(f"borrowed-{gpus}", "b", gpus), suggested=[node])
    decision = driver.run(wants("mine", "a", 4))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("borrowed-1",)


def test_victims_are_named_in_the_order_in_which_they_started() -> None:
    driver = Driver(flat({"a": 1}))
    names = ["z", "b", "y", "a"]
    for name in names:
        driver.bind(wants(name, "a", 1))
    decision = driver.run(wants("high", "a", 4, priority=1))
    assert isinstance(decision, Preempt)
    assert list(decision.victims) == names


def test_an_opportunistic_group_never_preempts_its_own_tenant() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("first", "a", 4))
    driver.bind(lent("second", "a", 4))
    assert isinstance(driver.ask(lent("third", "a", 4)), Wait)


def test_an_opportunistic_group_never_preempts_a_guaranteed_one() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("one", "a", 4))
    driver.bind(wants("two", "b", 4))
    waits = driver.wait(lent("third", "b", 1))
    assert ReasonKind.NOTHING_IDLE in {reason.kind for reason in waits.reasons}


def test_a_gang_is_preempted_whole() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("gang", "a", (2, 4)))
    decision = driver.run(wants("high", "a", 1, priority=1))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("gang",)
    driver.bind(wants("after", "a", 4))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 3), st.integers(1, 4)), min_size=3, max_size=14),
)
def test_whatever_is_asked_the_strongest_groups_of_a_vc_never_lose_to_weaker_ones(
    asked: list[tuple[str, int, int]],
) -> None:
    """The driver checks the victims; here: the reserved cells of a VC go to its highest priorities first."""
    driver = Driver(flat({"a": 2, "b": 1}))
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


def test_a_reservation_is_overtaken_rather_than_a_running_group_of_equal_priority_ended() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("runs", "a", 4, priority=2))
    driver.bind(wants("low", "a", 4))
    driver.preempt(wants("reserves", "a", 4, priority=2))
    decision = driver.preempt(wants("top", "a", 4, priority=5))
    assert (decision.victims, decision.overtaken) == (("low",), ("reserves",))


def test_a_reservation_none_of_whose_vc_is_in_the_way_counts_as_if_it_ran() -> None:
    """A private cluster would run it: loans of other tenants must not change the victims in the VC."""
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.bind(wants("runs", "a", 4, priority=2))
    for number in range(2):
        driver.bind(lent(f"loan{number}", "b", 4))
    driver.preempt(wants("reserves", "a", 4, priority=2))
    decision = driver.preempt(wants("top", "a", 4, priority=5))
    assert (decision.victims, decision.overtaken) == (("runs",), ())


def test_a_lazy_group_is_downgraded_rather_than_another_of_equal_priority_ended() -> None:
    driver = Driver(flat({"a": 2}, spare=1))
    driver.bind(wants("eager", "a", 4))
    driver.bind(wants("lazy", "a", 4, lazy_preemption=True))
    decision = driver.bind(wants("top", "a", 4, priority=5))
    assert decision.downgraded == ("lazy",)
    assert set(driver.running) == {"eager", "lazy", "top"}


def test_a_lazy_group_of_higher_priority_is_left_alone_where_a_lower_one_will_do() -> None:
    driver = Driver(flat({"a": 2}, spare=1))
    driver.bind(wants("lazy", "a", 4, priority=1, lazy_preemption=True))
    driver.bind(wants("low", "a", 4))
    assert driver.preempt(wants("top", "a", 4, priority=5)).victims == ("low",)


@pytest.mark.parametrize(
    ("groups", "gpus", "victims"),
    [
        ([("pair", 2, 0), ("other", 1, 7)], 2, {"pair"}),  # with the third leaf the pair would be ended all the same
        ([("pair", 2, 0), ("single", 1, 0)], 2, {"single"}),
        ([("two", 2, 0), ("one", 1, 0), ("more", 1, 0)], 1, {"one"}),
        ([("three", 3, 0), ("one", 1, 0)], 1, {"one"}),
    ],
)
def test_in_a_host_the_fewest_gpus_of_others_are_lost_and_then_the_closest_are_taken(
    groups: list[tuple[str, int, int]], gpus: int, victims: set[str]
) -> None:
    driver = Driver(flat({"a": 1}))
    for name, size, priority in groups:
        driver.bind(wants(name, "a", size, priority=priority))
    decision = driver.preempt(wants("high", "a", gpus, priority=5))
    assert set(decision.victims) == victims
    (pod,) = decision.placement.pods
    assert driver.hardware.group_level(decision.placement) == (1 if gpus == 1 else 2), pod


def test_the_leaves_of_a_gang_that_ends_anyway_are_free_to_take_on_every_host() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("gang", "a", (2, 3)))
    driver.bind(wants("left", "a", 1))
    driver.bind(wants("right", "a", 1))
    decision = driver.preempt(wants("high", "a", (2, 3), priority=5))
    assert decision.victims == ("gang",)


def test_between_hosts_too_the_fewest_gpus_of_groups_that_end_are_lost() -> None:
    driver = Driver(flat({"a": 3}, size=8))
    driver.bind(wants("large", "a", 4, 8, 8))
    driver.bind(wants("small", "a", 4))
    assert driver.preempt(wants("high", "a", 2, priority=5)).victims == ("small",)
    driver = Driver(flat({"a": 3}, size=8))
    driver.bind(wants("two", "a", (2, 8)))
    driver.bind(wants("one", "a", 8))
    assert driver.preempt(wants("high", "a", 8, priority=5)).victims == ("one",)
    driver = Driver(flat({"a": 2}, size=8))
    driver.bind(wants("six", "a", 6), suggested=["n0"])
    for number in range(8):
        driver.bind(wants(f"single{number}", "a", 1), suggested=["n1"])
    assert len(driver.preempt(wants("high", "a", 3, priority=5)).victims) == 3


@pytest.mark.parametrize("offered", [None, [f"n{i}" for i in range(7)]])
def test_a_gang_on_several_hosts_ends_the_fewest_gpus_over_all_of_them(offered: list[str] | None) -> None:
    """Its pods may have the nodes of one gang, or of two single groups: not one of each."""
    driver = Driver(flat({"a": 4, "b": 4}, size=8))
    driver.bind(wants("full", "b", (4, 8)), suggested=["n4", "n5", "n6", "n7"])
    driver.bind(wants("first", "a", 8), suggested=["n0"])
    driver.bind(wants("pair", "a", (2, 8)), suggested=["n1", "n2"])
    driver.bind(wants("last", "a", 8), suggested=["n3"])
    decision = driver.preempt(wants("high", "a", (2, 8), priority=5), offered)
    assert decision.victims in {("pair",), ("first", "last")}


def test_no_group_ends_beside_one_that_ends_on_another_host_anyway() -> None:
    """With the leaves of the gang of six the pod of four has a host, and the other pod two leaves beside the single."""
    driver = Driver(flat({"a": 4}))
    driver.bind(wants("left", "a", 2, 2), suggested=["n0"])
    driver.bind(wants("single", "a", 1), suggested=["n1"])
    driver.bind(wants("six", "a", 2, 1, 3), suggested=["n1", "n2"])
    driver.bind(wants("right", "a", 4), suggested=["n3"])
    assert driver.preempt(wants("high", "a", 2, 4, priority=5)).victims == ("six",)


@pytest.mark.parametrize("members", [(4, 8), (8, 4)])
def test_the_order_of_the_members_does_not_decide_which_loans_end(members: tuple[int, int]) -> None:
    driver = Driver(flat({"a": 2, "b": 2}, size=8))
    driver.bind(wants("full", "b", 8), suggested=["n3"])
    driver.bind(lent("small", "b", 2), suggested=["n0"])
    driver.bind(lent("large", "b", 8, 3), suggested=["n1", "n2"])
    decision = driver.preempt(wants("high", "a", *members))
    assert decision.victims == ("small",)
    assert tuple(len(pod.leaf_cells) for pod in decision.placement.pods) == members


def test_pods_on_one_host_go_where_less_is_lost_though_as_much_has_to_be_taken() -> None:
    driver = Driver(flat({"a": 2}, size=8))
    for name, gpus, node in (("three", 3, "n0"), ("more", 3, "n0"), ("pair", 2, "n1"), ("y", 3, "n1"), ("x", 1, "n1")):
        driver.bind(wants(name, "a", gpus), suggested=[node])
    assert set(driver.preempt(wants("high", "a", (2, 3), priority=5)).victims) == {"x", "y"}
