"""Preemption has two phases: a placement is reserved, its victims end one by one, and then the group starts there."""

from __future__ import annotations

import pytest

from hived import Bind, Preempt, RequestError
from hived.cluster.states import GroupState

from .driver import Driver, devices
from .specs import flat, lent, wants


def states(driver: Driver, *names: str) -> list[GroupState]:
    return [driver.cluster.group(name).state for name in names]


def contended() -> tuple[Driver, Preempt]:
    """VC a's node is held by two low groups, and a higher one has reserved it."""
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("one", "a", 2))
    driver.bind(wants("two", "a", 2))
    return driver, driver.preempt(wants("high", "a", 4, priority=5))


def test_a_committed_preemption_marks_its_victims_and_they_run_on() -> None:
    driver, decision = contended()
    assert set(decision.victims) == {"one", "two"}
    preempting, being = GroupState.PREEMPTING, GroupState.BEING_PREEMPTED
    assert states(driver, "high", "one", "two") == [preempting, being, being]
    assert tuple(driver.cluster.group("one").preempted_by) == ("high",)
    assert set(driver.cluster.group("high").victims) == {"one", "two"}


def test_victims_end_one_by_one_and_then_it_starts_where_it_was_promised() -> None:
    driver, decision = contended()
    request = wants("high", "a", 4, priority=5)
    driver.release("two")
    again = driver.ask(request)
    assert isinstance(again, Preempt)
    assert again.victims == ("one",)
    assert again.placement == decision.placement
    driver.release("one")
    bound = driver.bind(request)
    assert bound.placement == decision.placement
    assert states(driver, "high") == [GroupState.ALLOCATED]


def test_committing_what_was_committed_already_changes_nothing() -> None:
    driver, _ = contended()
    request = wants("high", "a", 4, priority=5)
    before = driver.cluster.snapshot()
    driver.commit(driver.ask(request))
    assert driver.cluster.snapshot() == before
    driver.release("one", "two")
    driver.bind(request)
    before = driver.cluster.snapshot()
    again = driver.bind(request)
    assert again.placement.pods == driver.running["high"].pods
    assert driver.cluster.snapshot() == before


def test_no_other_group_gets_into_a_reservation() -> None:
    driver, _ = contended()
    driver.release("one")
    for request in (lent("thief", "a", 1), wants("equal", "a", 1, priority=5), wants("low", "a", 1)):
        driver.wait(request)
    driver.step(wants("high", "a", 4, priority=5))
    assert "high" in driver.running


def test_the_room_beside_a_reservation_stays_usable() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("left", "b", 2), suggested=["n0"])
    driver.bind(lent("right", "b", 2), suggested=["n1"])
    decision = driver.preempt(wants("high", "a", 4))
    other = "right" if decision.victims == ("left",) else "left"
    assert states(driver, other) == [GroupState.ALLOCATED]
    driver.bind(lent("more", "b", 2))


def test_cancelling_a_preemption_gives_everything_back() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("low", "a", 2))
    driver.bind(lent("borrowed", "b", 2), suggested=[driver.running["low"].pods[0].node])
    driver.bind(lent("far", "b", 4))
    before = driver.cluster.snapshot()
    for request in (wants("high", "a", 4, priority=5), wants("theirs", "b", 3), wants("small", "a", 1)):
        decision = driver.ask(request)
        if isinstance(decision, Preempt):
            driver.commit(decision)
            driver.cancel(request.group)
        assert driver.cluster.snapshot() == before, request.group
    assert states(driver, "low", "borrowed", "far") == [GroupState.ALLOCATED] * 3


def test_cancelling_after_some_victims_have_ended_spares_the_others() -> None:
    driver, _ = contended()
    driver.release("one")
    driver.cancel("high")
    assert states(driver, "two") == [GroupState.ALLOCATED]
    alone = Driver(flat({"a": 1}))
    alone.bind(wants("one", "a", 2))
    alone.bind(wants("two", "a", 2))
    alone.release("one")
    assert driver.cluster.snapshot() == alone.cluster.snapshot()
    driver.bind(wants("one", "a", 2))


def test_cancelling_a_pending_group_forgets_it() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("holder", "a", 4))
    before = driver.cluster.snapshot()
    driver.wait(wants("later", "a", 4))
    assert states(driver, "later") == [GroupState.PENDING]
    driver.cancel("later")
    assert "later" not in driver.cluster.groups()
    assert driver.cluster.snapshot() == before


def test_a_higher_group_overtakes_a_preempting_one() -> None:
    driver, _ = contended()
    top = wants("top", "a", 4, priority=9)
    decision = driver.preempt(top)
    assert decision.overtaken == ("high",)
    assert set(decision.victims) == {"one", "two"}
    assert states(driver, "high", "top") == [GroupState.PENDING, GroupState.PREEMPTING]
    assert tuple(driver.cluster.group("one").preempted_by) == ("top",)
    driver.wait(wants("high", "a", 4, priority=5))
    driver.step(top)
    driver.step(top)
    assert "top" in driver.running


def test_an_overtaken_reservation_without_victims_left_is_taken_at_once() -> None:
    driver, _ = contended()
    driver.release("one", "two")
    decision = driver.bind(wants("top", "a", 4, priority=9))
    assert decision.overtaken == ("high",)
    driver.wait(wants("high", "a", 4, priority=5))
    driver.release("top")
    driver.bind(wants("high", "a", 4, priority=5))


def test_an_equal_group_does_not_overtake() -> None:
    driver, _ = contended()
    driver.wait(wants("equal", "a", 4, priority=5))


def test_an_overtaken_group_preempts_again_elsewhere_or_later() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("one", "a", 4), suggested=["n0"])
    driver.bind(wants("two", "a", 4), suggested=["n1"])
    high = wants("high", "a", 4, priority=5)
    first = driver.preempt(high)
    both = driver.preempt(wants("top", "a", (2, 4), priority=9))
    assert both.overtaken == ("high",)
    driver.cancel("top")
    assert states(driver, "one", "two") == [GroupState.ALLOCATED] * 2
    assert driver.run(high).group == "high"
    assert len(first.victims) == 1


def test_a_guaranteed_group_overtakes_an_opportunistic_preemptor() -> None:
    driver = Driver(flat({"a": 1, "b": 1}, weights={"a": 1, "b": 1}))
    for i in range(4):
        driver.bind(lent(f"much-{i}", "a", 2))
    driver.preempt(lent("little", "b", 2))
    gang = driver.preempt(wants("one", "a", 4))
    rest = driver.preempt(wants("two", "b", 4))
    assert (*gang.overtaken, *rest.overtaken) == ("little",)
    for request in (wants("one", "a", 4), wants("two", "b", 4)):
        for _ in driver.preempting[request.group].victims.copy():
            driver.step(request)
    assert {"one", "two"} == set(driver.running)


def test_two_preemptions_share_a_victim() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("wide", "a", (2, 4)))
    one, two = wants("one", "a", 4), wants("two", "b", 4)
    assert driver.preempt(one).victims == ("wide",)
    assert driver.preempt(two).victims == ("wide",)
    assert set(driver.cluster.group("wide").preempted_by) == {"one", "two"}
    driver.cancel("one")
    assert states(driver, "wide") == [GroupState.BEING_PREEMPTED]
    driver.release("wide")
    driver.bind(two)
    driver.bind(one)


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_partial_releases_in_any_order_never_deadlock(order: tuple[str, str]) -> None:
    driver, _ = contended()
    for name in order:
        driver.ask(wants("high", "a", 4, priority=5))
        driver.release(name)
    driver.bind(wants("high", "a", 4, priority=5))


def test_two_gangs_that_wait_for_each_others_room_both_get_on() -> None:
    driver = Driver(flat({"a": 2, "b": 2}))
    driver.bind(lent("x", "a", (2, 4)))
    driver.bind(lent("y", "b", (2, 4)))
    one, two = wants("one", "a", (2, 4)), wants("two", "b", (2, 4))
    driver.preempt(one)
    driver.preempt(two)
    driver.release("y", "x")
    driver.bind(two)
    driver.bind(one)


def test_a_decision_out_of_date_is_refused_and_changes_nothing() -> None:
    driver = Driver(flat({"a": 1}))
    late = driver.ask(wants("late", "a", 4))
    driver.bind(wants("early", "a", 4))
    before = driver.cluster.snapshot()
    with pytest.raises(RequestError):
        driver.cluster.commit(late)
    assert driver.cluster.snapshot() == before
    driver.check()


def test_a_preemption_whose_victim_has_ended_is_out_of_date() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 4))
    decision = driver.ask(wants("high", "a", 4, priority=1))
    assert isinstance(decision, Preempt)
    driver.release("low")
    with pytest.raises(RequestError):
        driver.cluster.commit(decision)
    driver.bind(wants("high", "a", 4, priority=1))


def test_a_decision_onto_hardware_that_broke_since_is_refused() -> None:
    driver = Driver(flat({"a": 1}))
    decision = driver.ask(wants("job", "a", 4))
    driver.set_device("n0", 2, healthy=False)
    with pytest.raises(RequestError):
        driver.cluster.commit(decision)
    driver.check()


def test_a_decision_of_a_cancelled_request_can_not_outlive_a_running_namesake() -> None:
    driver = Driver(flat({"a": 2}))
    decision = driver.ask(wants("job", "a", 4))
    driver.bind(wants("job", "a", 2))
    with pytest.raises(RequestError):
        driver.cluster.commit(decision)
    driver.check()


def lazy_pair(nodes: int) -> Driver:
    """A lazy group in VC a's only node; ``nodes`` in all, the others b's."""
    driver = Driver(flat({"a": 1, "b": nodes - 1}))
    driver.bind(wants("lazy", "a", 4, lazy_preemption=True))
    return driver


def test_a_lazy_victim_runs_on_as_opportunistic_while_others_leave_room() -> None:
    driver = lazy_pair(2)
    decision = driver.run(wants("high", "a", 4, priority=1))
    assert isinstance(decision, Bind)
    assert decision.downgraded == ("lazy",)
    assert not driver.guaranteed("lazy")
    assert states(driver, "lazy") == [GroupState.ALLOCATED]
    taken = driver.run(wants("theirs", "b", 4))
    assert isinstance(taken, Preempt)
    assert taken.victims == ("lazy",)


def test_a_lazy_victim_ends_when_its_gpus_are_needed() -> None:
    driver = lazy_pair(2)
    driver.bind(wants("theirs", "b", 4))
    decision = driver.run(wants("high", "a", 4, priority=1))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("lazy",)
    assert decision.downgraded == ()


def test_a_victim_that_is_not_lazy_ends_although_there_is_room() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("eager", "a", 4))
    decision = driver.run(wants("high", "a", 4, priority=1))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("eager",)


def test_cancelling_restores_a_downgraded_group() -> None:
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.bind(wants("lazy", "a", 4, lazy_preemption=True))
    driver.bind(wants("eager", "a", 4))
    before = driver.cluster.snapshot()
    decision = driver.preempt(wants("high", "a", (2, 4), priority=1))
    assert decision.downgraded == ("lazy",)
    assert decision.victims == ("eager",)
    assert not devices(decision.placement.pods) & devices(driver.running["lazy"].pods)
    assert not driver.guaranteed("lazy")
    driver.cancel("high")
    assert driver.guaranteed("lazy")
    assert driver.cluster.snapshot() == before


def test_what_was_given_up_for_a_placement_is_still_said_when_it_starts() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(lent("loan", "a", (2, 4)))
    request = wants("gang", "a", (2, 4), within="NODE", soft_affinity=True)
    assert driver.preempt(request).relaxed == ("NODE",)
    driver.release("loan")
    assert driver.bind(request).relaxed == ("NODE",)


def test_a_preempting_group_starts_elsewhere_once_there_is_room_and_spares_the_remaining_victims() -> None:
    """Twenty nodes full of loans that take their time; a gang reserves two of them; sixteen others end."""
    driver = Driver(flat({"a": 2, "b": 18}))
    for number in range(20):
        driver.bind(lent(f"loan{number}", "b", 4))
    gang = wants("gang", "a", (2, 4))
    slow = driver.preempt(gang).victims
    others = [f"loan{n}" for n in range(20) if f"loan{n}" not in slow]
    driver.release(*others[:16])
    started = driver.bind(gang)
    assert not {pod.node for pod in started.placement.pods} & {
        pod.node for name in slow for pod in driver.running[name].pods
    }
    assert states(driver, "gang", *slow) == [GroupState.ALLOCATED] * 3


def test_a_reservation_stays_where_it_is_while_there_is_no_room_elsewhere() -> None:
    driver = Driver(flat({"a": 2, "b": 2}))
    for number in range(4):
        driver.bind(lent(f"loan{number}", "b", 4))
    gang = wants("gang", "a", (2, 4))
    decision = driver.preempt(gang)
    other = next(f"loan{n}" for n in range(4) if f"loan{n}" not in decision.victims)
    driver.release(other)
    again = driver.ask(gang)
    assert isinstance(again, Preempt)
    assert again.placement.pods == decision.placement.pods
    driver.release(decision.victims[0])
    started = driver.bind(gang)
    assert states(driver, "gang", decision.victims[1]) == [GroupState.ALLOCATED] * 2, "one is spared"
    assert len({pod.node for pod in started.placement.pods}) == 2


def test_a_preemptor_in_its_own_vc_starts_elsewhere_in_it_once_there_is_room() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("slow", "a", 4))
    driver.bind(wants("other", "a", 4))
    high = wants("high", "a", 4, priority=5)
    (victim,) = driver.preempt(high).victims
    (ends,) = {"slow", "other"} - {victim}
    driver.release(ends)
    driver.bind(high)
    assert states(driver, "high", victim) == [GroupState.ALLOCATED] * 2


def test_an_opportunistic_group_that_preempts_starts_on_idle_gpus_once_there_are() -> None:
    driver = Driver(flat({"a": 2, "b": 2}))
    for number in range(4):
        driver.bind(lent(f"loan{number}", "b", 4))
    borrower = lent("borrower", "a", 4)
    (victim,) = driver.preempt(borrower).victims
    driver.release(next(f"loan{n}" for n in range(4) if f"loan{n}" != victim))
    driver.bind(borrower)
    assert states(driver, "borrower", victim) == [GroupState.ALLOCATED] * 2


def test_a_reservation_planned_again_and_not_committed_is_as_it_was() -> None:
    driver = Driver(flat({"a": 1, "b": 2}))
    for number in range(3):
        driver.bind(lent(f"loan{number}", "b", 4))
    job = wants("job", "a", 4)
    decision = driver.preempt(job)
    driver.release(next(f"loan{n}" for n in range(3) if f"loan{n}" not in decision.victims))
    elsewhere = driver.ask(job)
    assert isinstance(elsewhere, Bind)
    driver.release(*decision.victims)
    again = driver.ask(job)
    assert isinstance(again, Bind)
    assert again.placement.pods == decision.placement.pods, "its own victims have ended"
    with pytest.raises(RequestError, match="out of date"):
        driver.commit(elsewhere)
    driver.commit(again)
