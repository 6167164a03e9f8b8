"""A waiting group reports its reasons with numbers; what-if questions run the same code and change nothing."""

from __future__ import annotations

from typing import TypeVar

import pytest

from hived import Bind, Preempt, Request, Wait
from hived.cluster.explain.reasons import (
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

from .driver import Driver, running
from .specs import flat, lent, racks, wants

R = TypeVar("R", bound=Reason)


def only(waits: Wait, kind: type[R]) -> R:
    """The one reason of this kind."""
    (reason,) = [reason for reason in waits.reasons if isinstance(reason, kind)]
    return reason


def test_vc_exhausted() -> None:
    """It names the groups that hold the VC's cells, in the order of their starts."""
    driver = running(flat({"a": 2, "b": 1}), wants("z-old", "a", 4), wants("a-new", "a", 3))
    reason = only(driver.wait(wants("job", "a", 4)), VcExhausted)
    assert reason == VcExhausted("a", need=4, have=1, size=8, held_by=(("z-old", 4), ("a-new", 3)), more=0)
    text = driver.cluster.explain("job")
    for part in ("VC a", "4", "1", "8", "z-old"):
        assert part in text
    driver.release("z-old")
    driver.bind(wants("job", "a", 4))
    assert "z-old" not in driver.cluster.explain("job"), "it follows the last answer"


def test_lower_groups_count_as_free() -> None:
    """Whatever order they came in."""
    driver = running(
        flat({"a": 2}),
        wants("two", "a", 4, priority=2),
        wants("five", "a", 2, priority=5),
        wants("one", "a", 2, priority=1),
    )
    reason = driver.wait(wants("job", "a", (2, 4), priority=3)).reasons[0]
    assert reason == VcExhausted("a", need=8, have=6, size=8, held_by=(("five", 2),), more=0)


def test_question_does_not_reorder_holders() -> None:
    driver = running(flat({"a": 3}), *(wants(f"lazy-{i}", "a", 1, lazy_preemption=True) for i in range(10)))
    assert driver.cluster.plan(wants("question", "a", (3, 4), priority=1)).outcome == "now"
    reason = only(driver.wait(wants("job", "a", 4)), VcExhausted)
    assert [name for name, _ in reason.held_by] == [f"lazy-{i}" for i in range(8)]
    assert reason.more == 2


def test_fragmented() -> None:
    """Room that is not close together, or not within the cap."""
    driver = running(flat({"a": 2}), *((wants(f"on-{node}", "a", 2), node) for node in ("n0", "n1")))
    reason = only(driver.wait(wants("job", "a", 3)), Fragmented)
    assert reason == Fragmented("a", need=3, have=4, largest_pod=3, largest_free=2, within=None)
    spec = racks({"a": {"RACK": 2}}, count=2, nodes=2)
    driver = running(spec, *((wants(f"on-{node}", "a", 4), node) for node in ("r0n0", "r1n0")))
    reason = only(driver.wait(wants("job", "a", (2, 4), within="RACK")), Fragmented)
    assert (reason.need, reason.have, reason.within) == (8, 8, "RACK")


@pytest.mark.parametrize(("members", "need", "largest"), [((5,), 5, 5), (((3, 4),), 12, 4), ((4, 4, 1), 9, 4)])
def test_never_fits(members: tuple[int, ...], need: int, largest: int) -> None:
    driver = Driver(flat({"a": 2, "b": 3}))
    waits = driver.wait(wants("job", "a", *members))
    assert waits.reasons[0] == only(waits, NeverFits) == NeverFits("a", need, 8, largest, 4, None)
    assert str(need) in driver.cluster.explain("job")
    assert driver.cluster.plan(wants("job", "a", *members)).outcome == "never"


def test_never_fits_reserved_cells() -> None:
    """A pod is larger than these, although a node would do."""
    driver = Driver(flat({"a": 4}, kind="NODE.SOCKET", nodes=4))
    reason = only(driver.wait(wants("job", "a", 3)), NeverFits)
    assert (reason.need, reason.have, reason.largest_host) == (3, 8, 2)


def test_some_pods_of_a_gang_would_fit() -> None:
    driver = running(flat({"a": 3}), wants("holder", "a", 4))
    assert only(driver.wait(wants("gang", "a", (3, 4))), WaitingForGang) == WaitingForGang(fit=2, pods=3)
    driver = running(flat({"a": 2}), wants("holder", "a", (2, 3)))
    reasons = driver.wait(wants("gang", "a", (2, 2))).reasons
    assert [type(reason) for reason in reasons] == [VcExhausted], "no pod would"


def test_bad_hardware_is_counted() -> None:
    driver = Driver(flat({"a": 2}))
    driver.set_device("n0", 1, healthy=False)
    driver.set_device("n1", 2, healthy=False)
    assert only(driver.wait(wants("job", "a", (2, 4))), BadHardware) == BadHardware(2, ("n0", "n1"), 0)


def test_bad_hardware_under_a_higher_group() -> None:
    """A still higher one reports it, rather than an exhausted VC without holders."""
    driver = running(flat({"a": 1}), wants("high", "a", 4, priority=3))
    driver.set_node("n0", healthy=False)
    assert only(driver.wait(wants("top", "a", 4, priority=9)), BadHardware) == BadHardware(4, ("n0",), 0)


def test_doomed_cell_is_named_by_its_node() -> None:
    driver = Driver(flat({"a": 4}, kind="NODE.SOCKET", nodes=2))
    driver.set_device("n1", 3, healthy=False)
    assert driver.cluster.doomed() == (("a", "NODE", "SOCKET", "n1"),)


def test_behind_others() -> None:
    """Those of its VC that came first, of its priority or a higher one; a repeated request keeps its place."""
    driver = running(flat({"a": 1, "b": 1}), wants("holder", "a", 4, priority=9))
    priorities = {"first": 2, "lower": 0, "second": 1, "last": 0}
    line = [wants(name, "a", 4, priority=priority) for name, priority in priorities.items()]
    for request in line:
        driver.wait(request)
    behind = [[r for r in driver.wait(request).reasons if isinstance(r, BehindOthers)] for request in line]
    one = BehindOthers(1, ("first",))
    assert behind == [[], [one], [one], [BehindOthers(3, ("first", "lower", "second"))]]
    driver.cancel("first")
    assert not [reason for reason in driver.wait(line[2]).reasons if isinstance(reason, BehindOthers)]


def test_nothing_idle() -> None:
    driver = running(flat({"a": 1, "b": 1}), wants("one", "a", 2), wants("two", "b", 3))
    assert only(driver.wait(lent("loan", "a", (1, 3))), NothingIdle) == NothingIdle(need=3, idle=3)


def test_explain_a_preemption() -> None:
    """The one names the other."""
    driver = running(flat({"a": 1}), wants("low", "a", 4))
    driver.preempt(wants("high", "a", 4, priority=1))
    assert "low" in driver.cluster.explain("high")
    assert "high" in driver.cluster.explain("low")


QUESTIONS: list[tuple[Request, str, type]] = [
    (wants("q", "a", 1), "now", Bind),
    (wants("q", "a", 4, priority=5), "now", Preempt),
    (wants("q", "a", 4), "waits", Wait),
    (wants("q", "a", 5), "never", Wait),
    (wants("q", "b", 4), "now", Preempt),
    (lent("q", "b", (2, 4)), "waits", Wait),
    (lent("q", "b", (3, 4)), "never", Wait),
]


@pytest.mark.parametrize(("question", "outcome", "kind"), QUESTIONS)
def test_plan_answers_and_changes_nothing(question: Request, outcome: str, kind: type) -> None:
    driver = running(flat({"a": 1, "b": 1}), wants("low", "a", 3), lent("loan", "a", 4))
    before, groups = driver.cluster.snapshot(), list(driver.cluster.groups())
    plan = driver.cluster.plan(question)
    assert (plan.outcome, type(plan.decision)) == (outcome, kind)
    assert bool(plan.reasons) == (kind is Wait)
    assert (driver.cluster.snapshot(), list(driver.cluster.groups())) == (before, groups)
    driver.check()
    scheduled = driver.ask(question)
    assert type(scheduled) is kind
    if not isinstance(scheduled, Wait) and not isinstance(plan.decision, Wait):
        assert scheduled.placement == plan.decision.placement


@pytest.mark.parametrize("first", [-1, 0])
def test_loan_and_request_of_one_shape(first: int) -> None:
    """They have reasons of their own."""
    driver = running(flat({"a": 1, "b": 1}), wants("holder", "a", 3))
    for priority in (first, -1 - first):
        waits = driver.wait(wants(f"job{priority}", "b", (2, 3), priority=priority))
        assert (waits.reasons[0].kind is ReasonKind.NEVER_FITS) == (priority == 0)
        outcome = driver.cluster.plan(wants("question", "b", (2, 3), priority=priority)).outcome
        assert outcome == ("never" if priority == 0 else "waits")
        driver.cancel(f"job{priority}")
