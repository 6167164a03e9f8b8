"""An allocation holds cells, and jobs run on it: they come and go; it moves; it is suspended, and goes on."""

from __future__ import annotations

import pytest

from hived import Bind, Cluster, Preempt, RequestError
from hived.cluster.reasons import BehindOthers, PreemptedBy, Suspended
from hived.cluster.states import GroupState, LeafState

from .driver import Driver, nodes_of, replays, running
from .specs import flat, lent, racks, wants

# ------------------------------------------------------------------------------------------------- jobs


def test_jobs_join_and_leave() -> None:
    """An allocation lives until its last job has left, through suspensions, a restart and a new spec."""
    spec = flat({"a": 1, "b": 1})
    driver = running(spec, wants("alone", "b", 4), wants("first", "a", 4), log=True)
    cluster = driver.cluster
    assert cluster.group("first").jobs == ("first",)
    cluster.join("first", "second")
    cluster.join("first", "third")
    assert cluster.group("first").jobs == ("first", "second", "third")
    assert "jobs on its allocation: first, second, third" in cluster.explain("first")
    cluster.leave("first", "first")
    cluster.leave("first", "third")
    cluster.validate()
    records = cluster.records()
    assert [record.jobs for record in records] == [(), ("second",)]
    alone, first = records
    for wrong, message in (
        ([alone._replace(jobs=("first", "alone")), first], "or a job on it, runs already, or is given twice"),
        ([alone, first._replace(jobs=("x", "x"))], "or a job on it, runs already, or is given twice"),
        ([first._replace(jobs=("", "first"))], "jobs are names"),
    ):
        with pytest.raises(RequestError, match=message):
            Cluster.from_spec(spec).recover(wrong)
    with pytest.raises(RequestError, match="runs already"):
        cluster.recover([alone])
    fresh = Cluster.from_spec(spec)
    fresh.recover(records)
    assert (fresh.records(), fresh.snapshot()) == (records, cluster.snapshot())
    cluster.reconfigure(flat({"b": 1, "a": 2}))
    cluster.suspend("first")
    cluster.commit(cluster.schedule(wants("first", "a", 4)))
    assert cluster.group("first").jobs == ("second",)
    cluster.join("first", "first")
    cluster.leave("first", "first")
    cluster.leave("first", "second")
    assert cluster.groups() == ("alone",)
    cluster.commit(cluster.schedule(wants("first", "a", 4)))
    cluster.suspend("first")
    cluster.leave("first", "first")
    assert cluster.groups() == ("alone",)
    cluster.validate()
    assert replays(driver)


def test_job_on_one_allocation() -> None:
    driver = running(flat({"a": 2}), wants("one", "a", 4), wants("two", "a", 2))
    driver.wait(wants("waits", "a", 4))
    driver.cluster.join("one", "job")
    before = driver.cluster.snapshot()
    for group, job, message in (
        ("one", "one", "'one' is on the allocation of 'one' already"),
        ("one", "job", "'job' is on the allocation of 'one' already; it has to end first there"),
        ("one", "two", "'two' is a group of its own"),
        ("one", "waits", "'waits' is a group of its own"),
        ("one", "", "a name, not ''"),
        ("two", "job", "is on the allocation of 'one' already"),
        ("waits", "new", "'waits': it waits, and holds nothing"),
    ):
        with pytest.raises(RequestError, match=message):
            driver.cluster.join(group, job)
    with pytest.raises(RequestError, match="'job' is not on the allocation of 'two'; there are two"):
        driver.cluster.leave("two", "job")
    with pytest.raises(RequestError, match="'nobody': no such group; nothing to leave"):
        driver.cluster.leave("nobody", "job")
    with pytest.raises(RequestError, match="is a job on the allocation of 'one'"):
        driver.cluster.schedule(wants("job", "a", 1))
    assert driver.cluster.snapshot() == before


# ----------------------------------------------------------------------------------------------- moving


def moves(driver: Driver, name: str, *excluded: str) -> Bind | Preempt:
    """Move a group, off some nodes if any are given."""
    decision = driver.ask_to_move(name, excluded)
    assert decision is not None
    driver.move(name, decision)
    return decision


def test_move_off_a_node() -> None:
    driver = running(flat({"a": 2}), wants("job", "a", 2), wants("other", "a", 2), log=True)
    driver.cluster.join("job", "mate")
    (node,) = nodes_of(driver, "job")
    assert nodes_of(driver, "other") == [node]
    assert isinstance(driver.cluster.move(wants("job", "a", 2), excluded_nodes=[node]), Bind)
    driver.cluster.commit(driver.cluster.move(wants("job", "a", 2), excluded_nodes=[node]))  # type: ignore[arg-type]
    assert nodes_of(driver, "job") != [node]
    assert driver.cluster.group("job").jobs == ("job", "mate")
    assert nodes_of(driver, "other") == [node]
    assert replays(driver)


def test_own_leaves_are_free_to_a_move() -> None:
    driver = running(flat({"a": 1}), wants("first", "a", 1), wants("gang", "a", 3))
    driver.release("first")
    at = driver.cluster.group("gang").placement
    assert moves(driver, "gang").placement == at, "it is as well off where it is"
    driver.bind(wants("pair", "a", 1))
    assert driver.ask_to_move("pair", ["n0"]) is None


def test_move_preempts_loans() -> None:
    job = wants("job", "a", 4)
    driver = running(flat({"a": 2}), job, lent("loan", "a", 4))
    decision = moves(driver, "job", *nodes_of(driver, "job"))
    assert isinstance(decision, Preempt)
    assert decision.victims == ("loan",)
    driver.bind(wants("next", "a", 4))  # what it had is free
    assert isinstance(driver.ask(job), Preempt)
    driver.release("loan")
    assert isinstance(driver.run(job), Bind)


def test_downgraded_group_moves_back() -> None:
    driver = running(
        flat({"a": 1, "b": 1}), wants("patient", "a", 4, lazy_preemption=True), wants("high", "a", 4, priority=1)
    )
    assert driver.ask_to_move("patient") is None
    driver.release("high")
    moves(driver, "patient")
    assert driver.guaranteed("patient")


def test_move_promotes_a_loan() -> None:
    """Where it runs, or by a move into its VC."""
    driver = running(racks({"a": {"RACK.NODE": 1}, "b": {"RACK": 1}}), lent("job", "a", 4))
    in_place = driver.ask_to_move("job", promotes=True)
    assert isinstance(in_place, Bind)
    assert [pod.node for pod in in_place.placement.pods] == nodes_of(driver, "job")
    moved = driver.ask_to_move("job", nodes_of(driver, "job"), promotes=True)
    assert isinstance(moved, Bind)
    driver.move("job", moved)
    assert driver.guaranteed("job")


def test_late_move() -> None:
    """It is decided again if another was asked for between, and refused once something has changed."""
    driver = running(flat({"a": 3}), wants("job", "a", 4), wants("other", "a", 4), log=True)
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
    assert replays(driver)


def test_only_running_groups_move() -> None:
    driver = running(flat({"a": 1}), wants("low", "a", 4))
    driver.start(wants("high", "a", 4, priority=1))
    for name in ("high", "nobody"):
        with pytest.raises(RequestError, match=f"'{name}' does not run"):
            driver.cluster.move(wants(name, "a", 4))
    with pytest.raises(RequestError, match="use another group name"):
        driver.cluster.move(lent("low", "a", 4))
    driver.check()


# -------------------------------------------------------------------------------------------- suspending


def test_suspended_group_starts_again() -> None:
    first, second = wants("first", "a", 4), wants("second", "a", 4)
    driver = running(flat({"a": 1}), first, log=True)
    since = driver.cluster.group("first").since
    driver.wait(wants("later", "a", 4))
    driver.suspend("first")
    group = driver.cluster.group("first")
    assert (group.state, group.placement, group.reasons) == (GroupState.PENDING, None, (Suspended(4),))
    assert driver.cluster.leaf_state("n0", 0) is LeafState.FREE
    assert "it is suspended" in driver.cluster.explain("first")
    driver.bind(second)
    assert driver.wait(wants("later", "a", 4)).reasons[-1] == BehindOthers(1, ("first",)), "it keeps its place in line"
    assert not any(isinstance(reason, BehindOthers) for reason in driver.wait(first).reasons)
    assert driver.cluster.groups() == ("second", "first", "later")
    driver.suspend("second")
    assert driver.cluster.reconfigure(flat({"a": 2})).cancelled == ()
    group = driver.cluster.group("second")
    assert (group.reasons, driver.cluster.group("first").since) == ((Suspended(4),), since)
    driver.cluster.reconfigure(flat({"a": 1}))
    assert isinstance(driver.run(first), Bind)


def test_suspended_victim() -> None:
    """It hands its leaf cells over, and says to whom."""
    driver = running(flat({"a": 1, "b": 1}), lent("loan", "b", 4), lent("other", "b", 4))
    high = wants("high", "a", 4)
    (victim,) = driver.preempt(high).victims
    driver.suspend(victim)
    assert driver.cluster.group(victim).reasons == (Suspended(4), PreemptedBy("high", "a", 0, -1, ended=True))
    assert isinstance(driver.run(high), Bind)
    assert "had to go for high" not in driver.cluster.explain("high")


def test_only_running_groups_are_suspended() -> None:
    driver = running(flat({"a": 1}), wants("low", "a", 4))
    driver.preempt(wants("high", "a", 4, priority=1))
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
