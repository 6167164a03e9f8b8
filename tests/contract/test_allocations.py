"""An allocation holds cells, and jobs run on it: they come and go, and it is suspended, and goes on."""

from __future__ import annotations

import pytest

from hived import Bind, Cluster, Preempt, RequestError, replay
from hived.cluster.reasons import BehindOthers, PreemptedBy, Suspended
from hived.cluster.states import GroupState, LeafState

from .driver import Driver
from .specs import flat, lent, wants

# ------------------------------------------------------------------------------------------------- jobs


def test_an_allocation_lives_until_its_last_job_has_left() -> None:
    driver = Driver(flat({"a": 1}), log=True)
    driver.bind(wants("first", "a", 4))
    assert driver.cluster.group("first").jobs == ("first",)
    driver.join("first", "second")
    driver.join("first", "third")
    assert driver.cluster.group("first").jobs == ("first", "second", "third")
    assert "jobs on its allocation: first, second, third" in driver.cluster.explain("first")
    driver.leave("first", "first")
    driver.leave("first", "third")
    assert driver.cluster.group("first").jobs == ("second",)
    assert driver.cluster.leaf_state("n0", 0) is LeafState.USED
    driver.join("first", "first")
    driver.leave("first", "first")
    driver.leave("first", "second")
    assert driver.cluster.groups() == ()
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_jobs_come_back_with_the_allocation_that_was_suspended() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("first", "a", 4))
    driver.join("first", "second")
    driver.suspend("first")
    driver.leave("first", "first")
    driver.bind(wants("first", "a", 4))
    assert driver.cluster.group("first").jobs == ("second",)
    driver.suspend("first")
    driver.leave("first", "second")
    assert driver.cluster.groups() == ()


def test_jobs_are_in_the_records_and_outlive_a_restart_and_a_new_spec() -> None:
    driver = Driver(flat({"a": 1, "b": 1}), log=True)
    driver.bind(wants("alone", "b", 4))
    driver.bind(wants("first", "a", 4))
    driver.join("first", "second")
    driver.leave("first", "first")
    records = driver.cluster.records()
    assert [record.jobs for record in records] == [(), ("second",)]
    fresh = Cluster.from_spec(flat({"a": 1, "b": 1}))
    fresh.recover(records)
    assert (fresh.records(), fresh.snapshot()) == (records, driver.cluster.snapshot())
    driver.cluster.reconfigure(flat({"b": 1, "a": 2}))
    assert driver.cluster.group("first").jobs == ("second",)
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_a_job_is_on_one_allocation() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("one", "a", 4))
    driver.bind(wants("two", "a", 2))
    driver.wait(wants("waits", "a", 4))
    driver.join("one", "job")
    before = driver.cluster.snapshot()
    for job, message in {
        "one": "'one' is on the allocation of 'one' already",
        "job": "'job' is on the allocation of 'one' already; it has to end first there",
        "two": "'two' is a group of its own",
        "waits": "'waits' is a group of its own",
        "": "a name, not ''",
    }.items():
        with pytest.raises(RequestError, match=message):
            driver.cluster.join("one", job)
    with pytest.raises(RequestError, match="is on the allocation of 'one' already"):
        driver.cluster.join("two", "job")
    with pytest.raises(RequestError, match="'waits': it waits, and holds nothing"):
        driver.cluster.join("waits", "new")
    with pytest.raises(RequestError, match="'job' is not on the allocation of 'two'; there are two"):
        driver.cluster.leave("two", "job")
    with pytest.raises(RequestError, match="'nobody': no such group; nothing to leave"):
        driver.cluster.leave("nobody", "job")
    driver.refused(wants("job", "a", 1), "group")
    assert driver.cluster.snapshot() == before


def test_records_with_a_job_on_two_allocations_are_refused_and_the_log_has_them() -> None:
    driver = Driver(flat({"a": 2}), log=True)
    driver.bind(wants("one", "a", 4))
    driver.bind(wants("two", "a", 4))
    one, two = driver.cluster.records()
    driver.release("one", "two")
    for wrong in ([one, two._replace(jobs=("two", "one"))], [one._replace(jobs=("x", "x")), two]):
        with pytest.raises(RequestError, match="or a job on it, runs already, or is given twice"):
            driver.cluster.recover(wrong)
    with pytest.raises(RequestError, match="jobs are names"):
        driver.cluster.recover([one._replace(jobs=("", "one"))])
    driver.cluster.recover([one._replace(jobs=("one", "job"))])
    with pytest.raises(RequestError, match="runs already"):
        driver.cluster.recover([two._replace(jobs=("two", "job"))])
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


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
