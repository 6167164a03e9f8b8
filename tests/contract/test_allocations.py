"""An allocation holds cells, and jobs run on it: they come and go; it moves; it is suspended, and goes on."""

from __future__ import annotations

import pytest

from hived import Bind, Cluster, Preempt, RequestError, replay
from hived.cluster.reasons import BehindOthers, PreemptedBy, Suspended
from hived.cluster.states import GroupState, LeafState

from .driver import Driver
from .specs import flat, lent, racks, wants

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


# ----------------------------------------------------------------------------------------------- moving


def nodes_of(driver: Driver, name: str) -> list[str]:
    placement = driver.cluster.group(name).placement
    assert placement is not None
    return [pod.node for pod in placement.pods]


def test_a_group_moves_off_a_node_with_its_jobs_and_no_other_group_is_affected() -> None:
    driver = Driver(flat({"a": 2}), log=True)
    driver.bind(wants("job", "a", 2))
    driver.bind(wants("other", "a", 2))
    driver.join("job", "mate")
    (node,) = nodes_of(driver, "job")
    assert nodes_of(driver, "other") == [node]
    decision = driver.ask_to_move("job", [node])
    assert isinstance(decision, Bind)
    driver.move("job", decision)
    assert nodes_of(driver, "job") != [node]
    assert driver.cluster.group("job").jobs == ("job", "mate")
    assert nodes_of(driver, "other") == [node]
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_where_it_cannot_be_placed_nothing_has_changed() -> None:
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.bind(wants("low", "a", 4))
    driver.bind(wants("high", "a", 4, priority=5))
    driver.bind(lent("loan", "a", 4))
    assert driver.ask_to_move("high", ["n0", "n1", "n2"]) is None
    assert driver.ask_to_move("loan", nodes_of(driver, "loan")) is None
    driver.release("loan")
    driver.bind(wants("mine", "b", 4))
    assert driver.ask_to_move("high", nodes_of(driver, "high")) is None, "not even for a lower priority"


def test_its_own_leaf_cells_are_free_to_it() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("first", "a", 1))
    driver.bind(wants("gang", "a", 3))
    driver.release("first")
    decision = driver.ask_to_move("gang")
    assert isinstance(decision, Bind)
    assert decision.placement == driver.cluster.group("gang").placement, "it is as well off where it is"
    driver.move("gang", decision)
    driver.bind(wants("pair", "a", 1))
    assert driver.ask_to_move("pair", ["n0"]) is None


def test_a_guaranteed_group_that_moves_preempts_loans_of_others_and_waits_for_them() -> None:
    driver = Driver(flat({"a": 2}))
    job = wants("job", "a", 4)
    driver.bind(job)
    driver.bind(lent("loan", "a", 4))
    decision = driver.ask_to_move("job", nodes_of(driver, "job"))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("loan",)
    driver.move("job", decision)
    assert driver.cluster.group("job").state is GroupState.PREEMPTING
    driver.bind(wants("next", "a", 4))  # what it had is free
    assert isinstance(driver.ask(job), Preempt)
    driver.release("loan")
    assert isinstance(driver.run(job), Bind)


def test_a_victim_that_moves_away_need_not_end() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(lent("loan", "b", 4))
    driver.bind(lent("other", "b", 4))
    high = wants("high", "a", 4)
    (victim,) = driver.preempt(high).victims
    driver.release(*({"loan", "other"} - {victim}))
    decision = driver.ask_to_move(victim)
    assert isinstance(decision, Bind)
    driver.move(victim, decision)
    assert driver.cluster.group(victim).state is GroupState.ALLOCATED
    assert isinstance(driver.run(high), Bind)


def test_a_group_that_was_downgraded_moves_back_into_its_vc() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("patient", "a", 4, lazy_preemption=True))
    driver.bind(wants("high", "a", 4, priority=1))
    assert driver.ask_to_move("patient") is None
    driver.release("high")
    decision = driver.ask_to_move("patient")
    assert isinstance(decision, Bind)
    driver.move("patient", decision)
    assert driver.guaranteed("patient")


def test_a_loan_is_promoted_where_it_runs_or_moves_into_its_vc() -> None:
    driver = Driver(racks({"a": {"RACK.NODE": 1}, "b": {"RACK": 1}}))
    driver.bind(lent("job", "a", 4))
    in_place = driver.ask_to_move("job", promotes=True)
    assert isinstance(in_place, Bind)
    assert [pod.node for pod in in_place.placement.pods] == nodes_of(driver, "job")
    moved = driver.ask_to_move("job", nodes_of(driver, "job"), promotes=True)
    assert isinstance(moved, Bind)
    driver.move("job", moved)
    assert driver.guaranteed("job")


def test_a_move_is_decided_again_if_another_was_asked_between_and_refused_once_something_has_changed() -> None:
    driver = Driver(flat({"a": 3}), log=True)
    driver.bind(wants("job", "a", 4))
    driver.bind(wants("other", "a", 4))
    off = driver.ask_to_move("job", nodes_of(driver, "job"))
    assert isinstance(off, Bind)
    driver.ask_to_move("other", nodes_of(driver, "other"))
    driver.move("job", off)
    again = driver.ask_to_move("job", nodes_of(driver, "job"))
    assert isinstance(again, Bind)
    driver.bind(wants("third", "a", 4))
    with pytest.raises(RequestError, match="has another placement by now"):
        driver.move("job", again)
    driver.check()
    assert replay(driver.lines, Cluster).snapshot() == driver.cluster.snapshot()


def test_only_a_running_group_can_move_and_only_by_its_own_request() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 4))
    driver.start(wants("high", "a", 4, priority=1))
    for name in ("high", "nobody"):
        with pytest.raises(RequestError, match=f"'{name}' does not run"):
            driver.cluster.move(wants(name, "a", 4))
    with pytest.raises(RequestError, match="use another group name"):
        driver.cluster.move(lent("low", "a", 4))
    driver.check()


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


def test_a_suspended_victim_hands_its_leaf_cells_over_and_reports_the_preemptor() -> None:
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


def test_only_a_running_group_can_be_suspended_and_a_refusal_changes_nothing() -> None:
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
