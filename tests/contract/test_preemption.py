"""Preemption has two phases: a placement is reserved, its victims end one by one, and then the group starts there."""

from __future__ import annotations

import pytest

from hived import Bind, Preempt, RequestError
from hived.cluster.states import GroupState

from .driver import Driver, devices, nodes_of, running, states
from .specs import flat, lent, racks, wants

PENDING, PREEMPTING, ALLOCATED = GroupState.PENDING, GroupState.PREEMPTING, GroupState.ALLOCATED
HIGH, TOP = wants("high", "a", 4, priority=5), wants("top", "a", 4, priority=9)


def contended() -> Driver:
    """VC a's node is held by two low groups, and a higher one has reserved it."""
    driver = running(flat({"a": 1}), wants("one", "a", 2), wants("two", "a", 2))
    assert driver.preempt(HIGH).victims == ("one", "two")
    return driver


def beside_loans(vcs: dict[str, int]) -> Driver:
    """Every node has a loan of VC b, ``loan0`` on node ``n0`` and so on."""
    loans = [(lent(f"loan{number}", "b", 4), f"n{number}") for number in range(sum(vcs.values()))]
    return running(flat(vcs), *loans)


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_two_phases(order: tuple[str, str]) -> None:
    """Victims run on and end in any order, nobody else gets in, and what is committed again changes nothing.

    The driver checks the states of all groups, and that the placement and the other victims stay.
    """
    driver = contended()
    assert tuple(driver.cluster.group("one").preempted_by) == ("high",)
    before = driver.cluster.snapshot()
    driver.commit(driver.ask(HIGH))
    assert driver.cluster.snapshot() == before
    driver.release(order[0])
    for request in (lent("thief", "a", 1), wants("equal", "a", 1, priority=5), wants("low", "a", 1)):
        driver.wait(request)
    driver.step(HIGH)
    assert states(driver, "high") == [ALLOCATED]
    before = driver.cluster.snapshot()
    driver.bind(HIGH)
    assert driver.cluster.snapshot() == before


def test_cancel_after_a_victim_has_ended() -> None:
    driver = contended()
    driver.release("one")
    driver.cancel("high")
    alone = running(flat({"a": 1}), wants("one", "a", 2), wants("two", "a", 2))
    alone.release("one")
    assert driver.cluster.snapshot() == alone.cluster.snapshot()
    driver.bind(wants("one", "a", 2))


def test_higher_group_overtakes() -> None:
    driver = contended()
    since = driver.cluster.group("high").since
    assert since > 0
    driver.wait(wants("equal", "a", 4, priority=5))
    decision = driver.preempt(TOP)
    assert (decision.overtaken, set(decision.victims)) == (("high",), {"one", "two"})
    assert states(driver, "high", "top") == [PENDING, PREEMPTING]
    assert tuple(driver.cluster.group("one").preempted_by) == ("top",)
    assert driver.cluster.group("high").since == since, "it waits since it had its placement"
    driver.wait(HIGH)
    driver.step(TOP)
    driver.step(TOP)
    assert "top" in driver.running


def test_two_preemptions_share_a_victim() -> None:
    driver = running(flat({"a": 1, "b": 1}), lent("wide", "a", (2, 4)))
    one, two = wants("one", "a", 4), wants("two", "b", 4)
    assert driver.preempt(one).victims == driver.preempt(two).victims == ("wide",)
    assert set(driver.cluster.group("wide").preempted_by) == {"one", "two"}
    driver.cancel("one")
    assert states(driver, "wide") == [GroupState.BEING_PREEMPTED]
    driver.release("wide")
    driver.bind(two)
    driver.bind(one)


# ---------------------------------------------------------------------------------- decisions out of date


def test_decision_out_of_date() -> None:
    """It is refused, and changes nothing."""
    driver = Driver(flat({"a": 1}))
    late = driver.ask(wants("late", "a", 4))
    broken = driver.ask(wants("broken", "a", 4))
    driver.set_device("n0", 2, healthy=False)
    driver.set_device("n0", 2, healthy=True)
    driver.bind(wants("early", "a", 4))
    preempts = driver.ask(HIGH)
    assert isinstance(preempts, Preempt)
    driver.release("early")
    namesake = driver.ask(wants("job", "a", 4))
    driver.bind(wants("job", "a", 2))
    before = driver.cluster.snapshot()
    for decision in (late, broken, preempts, namesake):
        with pytest.raises(RequestError):
            driver.cluster.commit(decision)
        assert driver.cluster.snapshot() == before
    driver.release("job")
    driver.bind(HIGH)


def test_overtaken_has_started() -> None:
    driver = running(flat({"a": 1}), wants("low", "a", 4))
    driver.preempt(HIGH)
    driver.release("low")
    start, plan = driver.ask(HIGH), driver.ask(TOP)
    assert isinstance(plan, Bind)
    assert plan.overtaken == ("high",)
    driver.commit(start)
    with pytest.raises(RequestError, match="out of date"):
        driver.cluster.commit(plan)
    driver.check()
    assert driver.preempt(TOP).victims == ("high",)


def test_old_answer_with_other_victims() -> None:
    """A reservation that was made for other victims since is not taken for that answer carried out."""
    driver = running(flat({"a": 1}), wants("first", "a", 4))
    old = driver.ask(HIGH)
    assert isinstance(old, Preempt)
    driver.release("first")
    driver.bind(wants("second", "a", 4))
    made = driver.preempt(HIGH)
    assert (made.placement, made.victims) == (old.placement, ("second",))
    with pytest.raises(RequestError, match=r"waits for others by now \(second\)"):
        driver.cluster.commit(old)
    driver.commit(made)  # which was carried out already
    driver.step(HIGH)
    assert set(driver.running) == {"high"}


def test_earlier_answers_are_decided_again() -> None:
    """An answer before the last one holds while nothing has changed."""
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


def test_waiting_group_asks_for_something_else() -> None:
    """It is known by what it asked for last, and since it asked first."""
    driver = running(flat({"a": 1}), wants("holder", "a", 4, priority=5))
    driver.wait(wants("job", "a", 4))
    first = driver.cluster.group("job")
    driver.wait(wants("job", "a", 2, priority=3))
    now = driver.cluster.group("job")
    assert (first.priority, now.priority) == (0, 3)
    assert now.since == first.since


# ------------------------------------------------------------------------------------------- lazy victims


def lazy_and_eager(vcs: dict[str, int]) -> Driver:
    """A lazy group and one that is not have a node of VC a each."""
    return running(flat(vcs), wants("lazy", "a", 4, lazy_preemption=True), wants("eager", "a", 4))


def test_lazy_victim_runs_on() -> None:
    """As opportunistic, while others leave room."""
    driver = running(flat({"a": 1, "b": 1}), wants("lazy", "a", 4, lazy_preemption=True))
    assert driver.bind(wants("high", "a", 4, priority=1)).downgraded == ("lazy",)
    assert (driver.guaranteed("lazy"), states(driver, "lazy")) == (False, [ALLOCATED])
    assert driver.preempt(wants("theirs", "b", 4)).victims == ("lazy",)


def test_lazy_victim_on_a_split_rack_ends() -> None:
    """The cell that it frees is of the lowest level with a free one, and no rack is split for a victim (0016, 0022)."""
    node = {"RACK.NODE": 1}
    lazy = wants("lazy", "a", 4, lazy_preemption=True)
    driver = running(racks({"a": node, "b": node}), (wants("beside", "b", 4), "r0n0"), (lazy, "r0n1"))
    decision = driver.preempt(wants("high", "a", 4, priority=1))
    assert (decision.victims, nodes_of(driver, "lazy")) == (("lazy",), ["r0n1"])
    assert [pod.node for pod in decision.placement.pods] == ["r0n1"]


def test_lazy_victim_that_ends_anyway() -> None:
    """It is not downgraded besides."""
    driver = running(flat({"a": 2, "b": 1}), wants("other", "b", 4), wants("lazy", "a", (2, 4), lazy_preemption=True))
    first, second = wants("first", "a", 4, priority=1), wants("second", "a", 4, priority=1)
    assert driver.preempt(first).victims == ("lazy",)
    driver.release("other")
    decision = driver.preempt(second)
    assert (decision.victims, decision.downgraded) == (("lazy",), ())
    driver.release("lazy")
    driver.bind(first)
    driver.bind(second)


def test_downgraded_group_is_guaranteed_again() -> None:
    """Where the one that it was downgraded for is withdrawn or overtaken, or its hardware breaks."""
    middle, gang = wants("middle", "a", (2, 4), priority=1), wants("gang", "a", (3, 4), priority=1)
    driver = lazy_and_eager({"a": 2, "b": 1})
    before = driver.cluster.snapshot()
    decision = driver.preempt(middle)
    assert (decision.downgraded, decision.victims) == (("lazy",), ("eager",))
    assert not devices(decision.placement.pods) & devices(driver.running["lazy"].pods)
    assert not driver.guaranteed("lazy")
    driver.cancel("middle")
    assert driver.guaranteed("lazy")
    assert driver.cluster.snapshot() == before
    driver.preempt(middle)
    driver.set_device(nodes_of(driver, "eager")[0], 0, healthy=False)
    assert (states(driver, "middle"), driver.guaranteed("lazy")) == ([PENDING], True)
    driver = lazy_and_eager({"a": 3, "b": 1})
    assert driver.preempt(gang).downgraded == ("lazy",)
    assert driver.bind(TOP).overtaken == ("gang",)
    assert (states(driver, "gang"), driver.guaranteed("lazy")) == ([PENDING], True)


# --------------------------------------------------------------------------------------- reservations move


@pytest.mark.parametrize("kind", ["of its VC", "loan", "owner"])
def test_starts_elsewhere_once_there_is_room(kind: str) -> None:
    """A group that preempts lower ones of its VC, a loan that preempts loans, and an owner of cells."""
    spec = flat({"a": 2, "b": 2})
    if kind == "of its VC":
        driver = running(spec, *(wants(f"job{n}", "a", 4) for n in range(2)), *(wants(f"b{n}", "b", 4) for n in "01"))
    else:
        driver = running(spec, *(lent(f"job{n}", "b", 4) for n in range(4)))
    request = {"of its VC": HIGH, "loan": lent("high", "a", 4), "owner": wants("high", "a", 4)}[kind]
    (victim,) = driver.preempt(request).victims
    driver.ask(request)
    assert states(driver, "high", victim) == [PREEMPTING, GroupState.BEING_PREEMPTED], "while there is no room"
    driver.release(next(name for name in driver.running if name.startswith("job") and name != victim))
    driver.bind(request)
    assert states(driver, "high", victim) == [ALLOCATED] * 2


def test_rescheduled_and_not_committed() -> None:
    """The reservation is as it was."""
    driver = beside_loans({"a": 1, "b": 2})
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


@pytest.mark.parametrize("loan", [False, True])
def test_relaxed_cap_is_said_throughout(loan: bool) -> None:
    """With the answer that preempts, and when it starts."""
    driver = running(flat({"a": 2, "b": 2}), *(lent(f"much-{number}", "a", 4) for number in range(4)))
    request = wants("gang", "b", (2, 4), priority=-loan, within="NODE", soft_affinity=True)
    decision = driver.preempt(request)
    driver.release(*decision.victims)
    assert decision.relaxed == driver.bind(request).relaxed == ("NODE",)
