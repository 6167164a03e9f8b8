"""An allocation holds cells, and jobs run on it: it is suspended, and goes on."""

from __future__ import annotations

import pytest

from hived import Bind, Preempt, RequestError
from hived.cluster.reasons import BehindOthers, PreemptedBy, Suspended
from hived.cluster.states import GroupState, LeafState

from .driver import Driver
from .specs import flat, lent, wants

# -------------------------------------------------------------------------------------------- suspending


def test_a_suspended_group_gives_its_leaf_cells_up_and_starts_again_when_it_is_scheduled_again() -> None:
    driver = Driver(flat({"a": 1}), log=True)
    first, second = wants("first", "a", 4), wants("second", "a", 4)
    driver.bind(first)
    driver.suspend("first")
    group = driver.cluster.group("first")
    assert (group.state, group.placement, group.reasons) == (GroupState.PENDING, None, (Suspended(4),))
    assert driver.cluster.leaf_state("n0", 0) is LeafState.FREE
    assert "it is suspended" in driver.cluster.explain("first")
    driver.bind(second)
    driver.wait(first)
    driver.suspend("second")
    assert isinstance(driver.run(first), Bind)


def test_it_keeps_its_place_in_line() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("first", "a", 4))
    since = driver.cluster.group("first").since
    driver.wait(wants("later", "a", 4))
    driver.suspend("first")
    driver.bind(wants("between", "a", 4))
    assert driver.wait(wants("later", "a", 4)).reasons[-1] == BehindOthers(1, ("first",))
    assert not any(isinstance(reason, BehindOthers) for reason in driver.wait(wants("first", "a", 4)).reasons)
    assert driver.cluster.groups() == ("between", "first", "later")
    assert driver.cluster.group("first").since == since


def test_a_victim_that_is_suspended_hands_its_leaf_cells_over_and_is_told_for_whom() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("loan", "b", 4))
    driver.bind(lent("other", "b", 4))
    high = wants("high", "a", 4)
    (victim,) = driver.preempt(high).victims
    driver.suspend(victim)
    assert driver.cluster.group(victim).reasons == (Suspended(4), PreemptedBy("high", "a", 0, -1, ended=True))
    assert isinstance(driver.run(high), Bind)
    assert "had to go for high" not in driver.cluster.explain("high")


def test_a_group_that_was_downgraded_asks_for_its_guarantee_again() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    patient = wants("patient", "a", 4, lazy_preemption=True)
    driver.bind(patient)
    driver.bind(wants("high", "a", 4, priority=1))
    assert not driver.guaranteed("patient")
    driver.suspend("patient")
    driver.release("high")
    driver.bind(patient)
    assert driver.guaranteed("patient")


def test_only_what_runs_can_be_suspended_and_a_refusal_changes_nothing() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 4))
    assert isinstance(driver.start(wants("high", "a", 4, priority=1)), Preempt)
    driver.wait(wants("waits", "a", 4))
    before = driver.cluster.snapshot()
    for name, message in {
        "high": "'high' has only reserved; cancel\\(\\) withdraws it",
        "waits": "'waits': it waits, and holds nothing",
        "nobody": "'nobody': no such group; nothing to suspend",
    }.items():
        with pytest.raises(RequestError, match=message):
            driver.cluster.suspend(name)
    assert driver.cluster.snapshot() == before


def test_a_suspended_group_waits_on_under_a_new_spec() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("job", "a", 4))
    driver.suspend("job")
    since = driver.cluster.group("job").since
    assert driver.cluster.reconfigure(flat({"a": 2})).cancelled == ()
    group = driver.cluster.group("job")
    assert (group.reasons, group.since) == ((Suspended(4),), since)
