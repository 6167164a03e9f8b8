"""A waiting group reports its reasons with numbers; what-if questions run the same code and change nothing."""

from __future__ import annotations

from typing import TypeVar

import pytest

from hived import Bind, Preempt, Request, Wait
from hived.cluster.reasons import (
    BadHardware,
    BehindOthers,
    Fragmented,
    NeverFits,
    NothingIdle,
    Reason,
    ReasonKind,
    VcExhausted,
    WaitingForGang,
)

from .driver import Driver
from .specs import flat, lent, racks, wants

R = TypeVar("R", bound=Reason)


def only(waits: Wait, kind: type[R]) -> R:
    """The one reason of this kind."""
    (reason,) = [reason for reason in waits.reasons if isinstance(reason, kind)]
    return reason


def test_a_vc_in_full_use_names_the_holding_groups() -> None:
    driver = Driver(flat({"a": 2, "b": 1}))
    driver.bind(wants("z-old", "a", 4))
    driver.bind(wants("a-new", "a", 3))
    reason = only(driver.wait(wants("job", "a", 4)), VcExhausted)
    assert (reason.vc, reason.need, reason.have, reason.size, reason.more) == ("a", 4, 1, 8, 0)
    assert reason.held_by == (("z-old", 4), ("a-new", 3))


def test_room_that_is_not_close_together_is_fragmented() -> None:
    driver = Driver(flat({"a": 2}))
    for node in ("n0", "n1"):
        driver.bind(wants(f"on-{node}", "a", 2), suggested=[node])
    reason = only(driver.wait(wants("job", "a", 3)), Fragmented)
    assert (reason.vc, reason.need, reason.have, reason.largest_pod, reason.largest_free) == ("a", 3, 4, 3, 2)
    assert reason.within is None


def test_a_cap_that_prevents_a_placement_is_named() -> None:
    driver = Driver(racks({"a": {"RACK": 2}}, count=2, nodes=2))
    for node in ("r0n0", "r1n0"):
        driver.bind(wants(f"on-{node}", "a", 4), suggested=[node])
    reason = only(driver.wait(wants("job", "a", (2, 4), within="RACK")), Fragmented)
    assert (reason.need, reason.have, reason.within) == (8, 8, "RACK")


@pytest.mark.parametrize(("members", "need", "largest"), [((5,), 5, 5), (((3, 4),), 12, 4), ((4, 4, 1), 9, 4)])
def test_a_request_that_never_fits_is_reported_at_once(members: tuple[int, ...], need: int, largest: int) -> None:
    driver = Driver(flat({"a": 2, "b": 3}))
    waits = driver.wait(wants("job", "a", *members))
    reason = only(waits, NeverFits)
    assert waits.reasons[0] == reason
    assert (reason.vc, reason.need, reason.have) == ("a", need, 8)
    assert (reason.largest_pod, reason.largest_host) == (largest, 4)
    assert driver.cluster.plan(wants("job", "a", *members)).outcome == "never"


def test_a_pod_larger_than_the_reserved_cells_never_fits_although_a_node_would() -> None:
    driver = Driver(flat({"a": 4}, kind="NODE.SOCKET", nodes=4))
    reason = only(driver.wait(wants("job", "a", 3)), NeverFits)
    assert (reason.need, reason.have, reason.largest_host) == (3, 8, 2)


def test_a_gang_of_which_some_pods_would_fit() -> None:
    driver = Driver(flat({"a": 3}))
    driver.bind(wants("holder", "a", 4))
    reason = only(driver.wait(wants("gang", "a", (3, 4))), WaitingForGang)
    assert (reason.fit, reason.pods) == (2, 3)


def test_bad_hardware_is_counted() -> None:
    driver = Driver(flat({"a": 2}))
    driver.set_device("n0", 1, healthy=False)
    driver.set_device("n1", 2, healthy=False)
    reason = only(driver.wait(wants("job", "a", (2, 4))), BadHardware)
    assert (reason.leaf_cells, reason.nodes, reason.more) == (2, ("n0", "n1"), 0)


def test_groups_ahead_in_the_same_vc_are_named() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("holder", "a", 4, priority=9))
    driver.wait(wants("first", "a", 4, priority=2))
    driver.wait(wants("lower", "a", 4))
    reason = only(driver.wait(wants("second", "a", 4, priority=1)), BehindOthers)
    assert (reason.position, reason.ahead) == (1, ("first",))
    driver.cancel("first")
    waits = driver.wait(wants("second", "a", 4, priority=1))
    assert not [reason for reason in waits.reasons if isinstance(reason, BehindOthers)]


def test_nothing_idle_says_how_much_is() -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("one", "a", 2))
    driver.bind(wants("two", "b", 3))
    reason = only(driver.wait(lent("loan", "a", (1, 3))), NothingIdle)
    assert (reason.need, reason.idle) == (3, 3)


def test_no_reason_is_given_twice() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("holder", "a", 4))
    waits = driver.wait(wants("job", "a", (2, 4)))
    assert len(set(waits.reasons)) == len(waits.reasons)
    assert len({reason.kind for reason in waits.reasons}) == len(waits.reasons)


def test_explain_says_the_numbers() -> None:
    driver = Driver(flat({"research": 2, "b": 1}))
    driver.bind(wants("holder", "research", 4))
    driver.bind(wants("other", "research", 3))
    driver.wait(wants("job", "research", 4))
    text = driver.cluster.explain("job")
    for part in ("research", "4", "1", "8", "holder"):
        assert part in text
    driver.wait(wants("giant", "research", (13, 4)))
    assert "52" in driver.cluster.explain("giant")


def test_explain_of_a_preemption_names_the_preemptor_and_the_cause() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("low", "a", 4))
    driver.preempt(wants("high", "a", 4, priority=1))
    assert "low" in driver.cluster.explain("high")
    assert "high" in driver.cluster.explain("low")


def test_explain_follows_the_last_answer() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("holder-1", "a", 4))
    driver.bind(wants("holder-2", "a", 4))
    driver.wait(wants("job", "a", 4))
    assert "holder-1" in driver.cluster.explain("job")
    driver.release("holder-1")
    driver.bind(wants("job", "a", 4))
    assert "holder-1" not in driver.cluster.explain("job")


QUESTIONS: list[tuple[Request, set[str], type]] = [
    (wants("q", "a", 1), {"now"}, Bind),
    (wants("q", "a", 4, priority=5), {"now", "waits"}, Preempt),
    (wants("q", "a", 4), {"waits"}, Wait),
    (wants("q", "a", 5), {"never"}, Wait),
    (wants("q", "b", 4), {"now", "waits"}, Preempt),
    (lent("q", "b", (2, 4)), {"waits"}, Wait),
    (lent("q", "b", (3, 4)), {"never"}, Wait),
]


@pytest.mark.parametrize(("question", "outcomes", "kind"), QUESTIONS)
def test_a_plan_answers_and_changes_nothing(question: Request, outcomes: set[str], kind: type) -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("low", "a", 3))
    driver.bind(lent("loan", "a", 4))
    before, groups = driver.cluster.snapshot(), list(driver.cluster.groups())
    plan = driver.cluster.plan(question)
    assert plan.outcome in outcomes
    assert isinstance(plan.decision, kind)
    if isinstance(plan.decision, Wait):
        assert plan.reasons
    assert driver.cluster.snapshot() == before
    assert list(driver.cluster.groups()) == groups
    driver.check()
    scheduled = driver.ask(question)
    assert type(scheduled) is type(plan.decision)
    if not isinstance(scheduled, Wait) and not isinstance(plan.decision, Wait):
        assert scheduled.placement == plan.decision.placement


@pytest.mark.parametrize("first", [-1, 0])
def test_a_loan_and_a_guaranteed_request_of_one_shape_have_reasons_of_their_own(first: int) -> None:
    driver = Driver(flat({"a": 1, "b": 1}))
    driver.bind(wants("holder", "a", 3))
    for priority in (first, -1 - first):
        waits = driver.wait(wants(f"job{priority}", "b", (2, 3), priority=priority))
        assert (waits.reasons[0].kind is ReasonKind.NEVER_FITS) == (priority == 0)
        outcome = driver.cluster.plan(wants("question", "b", (2, 3), priority=priority)).outcome
        assert outcome == ("never" if priority == 0 else "waits")
        driver.cancel(f"job{priority}")


def test_a_plan_does_not_change_where_the_next_group_goes() -> None:
    placed = []
    for question in (False, True):
        driver = Driver(flat({"a": 2}))
        driver.bind(wants("gone", "a", 4, priority=2))
        driver.release("gone")
        driver.bind(wants("wide", "a", (2, 2), (1, 4), priority=1, lazy_preemption=True))
        if question:
            driver.cluster.plan(wants("what-if", "a", (2, 1), 2, priority=2))
        placed.append(driver.preempt(wants("next", "a", 3, priority=2)).placement)
    assert placed[0] == placed[1]


def test_a_group_in_the_way_on_bad_hardware_is_no_exhaustion_without_holders() -> None:
    """high runs on a node that broke: a higher group gets a placement elsewhere, or reports the bad hardware."""
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("high", "a", 4, priority=3))
    driver.set_node("n0", healthy=False)
    reason = only(driver.wait(wants("top", "a", 4, priority=9)), BadHardware)
    assert (reason.leaf_cells, reason.nodes) == (4, ("n0",))
