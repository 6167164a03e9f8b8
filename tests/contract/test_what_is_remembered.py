"""The memory of a cluster between calls: the last request, outdated answers, restored groups."""

from __future__ import annotations

import pytest

from hived import Bind, Preempt, RequestError
from hived.cluster.states import GroupState

from .driver import Driver
from .specs import flat, racks, wants


def test_a_decision_to_overtake_is_out_of_date_once_the_other_has_started() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 4))
    middle = wants("middle", "a", 4, priority=1)
    driver.preempt(middle)
    driver.release("low")
    start = driver.ask(middle)
    higher = wants("higher", "a", 4, priority=2)
    plan = driver.ask(higher)
    assert isinstance(plan, Bind)
    assert plan.overtaken == ("middle",)
    driver.commit(start)
    with pytest.raises(RequestError, match="out of date"):
        driver.cluster.commit(plan)
    driver.check()
    again = driver.ask(higher)
    assert isinstance(again, Preempt)
    assert again.victims == ("middle",)


def test_a_reservation_made_for_other_victims_is_not_taken_for_an_old_answer_carried_out() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("first", "a", 4))
    high = wants("high", "a", 4, priority=1)
    old = driver.ask(high)
    assert isinstance(old, Preempt)
    driver.release("first")
    driver.bind(wants("second", "a", 4))
    made = driver.preempt(high)
    assert (made.placement, made.victims) == (old.placement, ("second",))
    with pytest.raises(RequestError, match=r"waits for others by now \(second\)"):
        driver.cluster.commit(old)
    driver.commit(made)  # which was carried out already
    driver.step(high)
    assert set(driver.running) == {"high"}


def test_a_group_downgraded_for_one_that_is_overtaken_is_guaranteed_again() -> None:
    driver = Driver(flat({"a": 3, "b": 1}))
    driver.bind(wants("lazy", "a", 4, lazy_preemption=True))
    driver.bind(wants("eager", "a", 4))
    middle = driver.preempt(wants("middle", "a", (3, 4), priority=1))
    assert middle.downgraded == ("lazy",)
    higher = driver.ask(wants("higher", "a", 4, priority=2))
    assert isinstance(higher, Bind)
    assert higher.overtaken == ("middle",)
    driver.commit(higher)
    assert driver.cluster.group("middle").state is GroupState.PENDING
    assert driver.guaranteed("lazy")


def test_a_group_downgraded_for_one_whose_hardware_breaks_is_guaranteed_again() -> None:
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.bind(wants("lazy", "a", 4, lazy_preemption=True))
    driver.bind(wants("eager", "a", 4))
    middle = driver.preempt(wants("middle", "a", (2, 4), priority=1))
    of_eager = driver.running["eager"].pods[0].node
    assert of_eager in {pod.node for pod in middle.placement.pods}
    driver.set_device(of_eager, 0, healthy=False)
    assert driver.cluster.group("middle").state is GroupState.PENDING
    assert driver.guaranteed("lazy")


def test_a_group_that_waits_is_known_by_what_it_asked_for_last_and_since_it_asked_first() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("holder", "a", 4, priority=5))
    driver.wait(wants("job", "a", 4))
    first = driver.cluster.group("job")
    driver.wait(wants("job", "a", 2, priority=3))
    now = driver.cluster.group("job")
    assert (first.priority, now.priority) == (0, 3)
    assert now.since == first.since


def test_an_overtaken_group_waits_since_it_had_its_placement() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 4))
    driver.preempt(wants("middle", "a", 4, priority=1))
    since = driver.cluster.group("middle").since
    assert since > 0
    driver.preempt(wants("higher", "a", 4, priority=2))
    assert driver.cluster.group("middle").since == since


def test_two_pods_in_cells_reserved_apart_are_said_to_be_in_the_rack_they_share() -> None:
    driver = Driver(racks({"a": {"RACK.NODE": 2}, "b": {"RACK": 1}}, count=2, nodes=2))
    decision = driver.bind(wants("pair", "a", (2, 4)))
    assert len({pod.node for pod in decision.placement.pods}) == 2
    assert decision.within == "RACK"
    assert driver.bind(wants("pair", "a", (2, 4))).within == "RACK"


def test_a_lazy_group_that_ends_anyway_is_not_downgraded_besides() -> None:
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.bind(wants("other", "b", 4))
    driver.bind(wants("lazy", "a", (2, 4), lazy_preemption=True))
    first = driver.preempt(wants("first", "a", 4, priority=1))
    assert first.victims == ("lazy",)
    driver.release("other")
    second = driver.preempt(wants("second", "a", 4, priority=1))
    assert (second.victims, second.downgraded) == (("lazy",), ())
    driver.release("lazy")
    driver.bind(wants("first", "a", 4, priority=1))
    driver.bind(wants("second", "a", 4, priority=1))


def test_a_downgraded_group_that_has_ended_is_not_brought_back() -> None:
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.bind(wants("lazy", "a", 4, lazy_preemption=True))
    driver.bind(wants("eager", "a", 4))
    driver.preempt(wants("high", "a", (2, 4), priority=1))
    driver.release("lazy")
    driver.cancel("high")
    assert driver.cluster.groups() == ("eager",)
    driver.bind(wants("next", "a", 4))


def test_of_two_lazy_groups_only_the_one_in_the_way_ends() -> None:
    driver = Driver(flat({"a": 2}, spare=1))
    for name in ("one", "two"):
        driver.bind(wants(name, "a", 4, lazy_preemption=True))
    decision = driver.preempt(wants("high", "a", (2, 4), priority=1))
    assert {*decision.victims, *decision.downgraded} == {"one", "two"}
    assert len(decision.victims) == 1


def test_an_answer_before_the_last_one_is_decided_again_while_nothing_has_changed() -> None:
    driver = Driver(flat({"a": 3}))
    first, second, third = (driver.ask(wants("job", "a", 1), [node]) for node in ("n0", "n1", "n2"))
    driver.commit(second)
    for late in (first, third):
        with pytest.raises(RequestError, match="another placement"):
            driver.cluster.commit(late)
    driver.release("job")
    for late in (first, second, third):
        with pytest.raises(RequestError, match="out of date"):
            driver.cluster.commit(late)
    driver.check()
