"""The numbers in reasons, where several groups, priorities, chains or nodes come together."""

from __future__ import annotations

from hived.cluster.reasons import BehindOthers, VcExhausted

from .driver import Driver
from .specs import flat, wants


def test_all_lower_groups_count_as_free_whatever_order_they_came_in() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("two", "a", 4, priority=2))
    driver.bind(wants("five", "a", 2, priority=5))
    driver.bind(wants("one", "a", 2, priority=1))
    reason = driver.wait(wants("job", "a", (2, 4), priority=3)).reasons[0]
    assert reason == VcExhausted("a", need=8, have=6, size=8, held_by=(("five", 2),), more=0)


def test_a_question_about_lazy_groups_does_not_change_the_group_named_first() -> None:
    driver = Driver(flat({"a": 3}))
    for i in range(10):
        driver.bind(wants(f"lazy-{i}", "a", 1, lazy_preemption=True))
    assert driver.cluster.plan(wants("question", "a", (3, 4), priority=1)).outcome == "now"
    reason = driver.wait(wants("job", "a", 4)).reasons[0]
    assert isinstance(reason, VcExhausted)
    assert [name for name, _ in reason.held_by] == [f"lazy-{i}" for i in range(8)]
    assert reason.more == 2


def test_a_repeated_request_is_not_behind_later_ones() -> None:
    driver = Driver(flat({"a": 1}))
    driver.bind(wants("holder", "a", 4, priority=5))
    for name in ("first", "second", "third"):
        driver.wait(wants(name, "a", 4))
    ahead = {}
    for name in ("first", "second", "third"):
        reasons = driver.wait(wants(name, "a", 4)).reasons
        ahead[name] = [reason.ahead for reason in reasons if isinstance(reason, BehindOthers)]
    assert ahead == {"first": [], "second": [("first",)], "third": [("first", "second")]}


def test_a_gang_of_which_no_pod_would_fit_is_not_said_to_wait_for_the_rest() -> None:
    driver = Driver(flat({"a": 2}))
    driver.bind(wants("holder", "a", (2, 3)))
    reasons = driver.wait(wants("gang", "a", (2, 2))).reasons
    assert [type(reason) for reason in reasons] == [VcExhausted]


def test_a_doomed_cell_smaller_than_a_node_is_named_by_its_node() -> None:
    driver = Driver(flat({"a": 4}, kind="NODE.SOCKET", nodes=2))
    driver.set_device("n1", 3, healthy=False)
    assert driver.cluster.doomed() == (("a", "NODE", "SOCKET", "n1"),)
