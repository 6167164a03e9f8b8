"""Asking changes nothing, also while hardware breaks and preemptions are under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings

from hived import Bind, Cluster, Preempt, RequestError, Wait
from hived.spec import ClusterSpec

from .specs import flat, wants
from .test_any_events import SEEDS, SPECS, Walk


def told_the_same(spec: ClusterSpec, seed: int, turns: int, questions: int) -> None:
    """Two clusters get the same events; one of them answers many questions besides."""
    asked, quiet = Walk(spec, seed), Walk(spec, seed)
    asker = Walk(spec, seed + 1)
    asker.driver = asked.driver
    dice = Random(seed)
    for _ in range(turns):
        for _ in range(questions):
            asked.driver.cluster.plan(replace(asker.request(), group="question"), asker.suggestion())
        happens: list[Callable[[Walk], None]] = [ask, ask, ask, end, break_or_heal, give_up]
        what = dice.choice(happens)
        what(asked)
        what(quiet)
        assert asked.driver.lines == quiet.driver.lines
        assert asked.driver.cluster.snapshot() == quiet.driver.cluster.snapshot()
        assert asked.driver.cluster.doomed() == quiet.driver.cluster.doomed()


def ask(walk: Walk) -> None:
    """A group is requested, and takes the answer."""
    decision = walk.driver.ask(walk.new_request(), walk.suggestion())
    if not isinstance(decision, Wait):
        walk.driver.commit(decision)


def end(walk: Walk) -> None:
    """A group ends."""
    if walk.driver.running:
        walk.end()


def give_up(walk: Walk) -> None:
    """A preempting group ends a victim, or is withdrawn."""
    if walk.driver.preempting:
        walk.end_a_victim() if walk.random.random() < 0.7 else walk.give_up()


def break_or_heal(walk: Walk) -> None:
    """Hardware turns."""
    walk.a_device_turns() if walk.random.random() < 0.8 else walk.a_node_turns()


@settings(max_examples=20)
@given(SPECS, SEEDS)
def test_a_question_changes_no_later_answer_while_hardware_breaks(spec: ClusterSpec, seed: int) -> None:
    told_the_same(spec, seed, turns=25, questions=2)


def test_a_demand_spares_the_checks_of_a_request_and_changes_no_answer() -> None:
    """It is made once for requests that differ by name; one of another spec, or a name that is none, is seen."""
    cluster = Cluster.from_spec(flat({"a": 1, "b": 1}))
    demand = cluster.demand(wants("any", "b", 4))
    placed = cluster.place(wants("one", "b", 4), demand=demand)
    assert placed == cluster.place(wants("one", "b", 4))
    with pytest.raises(RequestError, match="group"):
        cluster.place(wants("", "b", 4), demand=demand)
    cluster.reconfigure(flat({"b": 1, "a": 1}))  # the tenants have other numbers now
    after = cluster.place(wants("one", "b", 4), demand=demand)
    assert after is not None
    cluster.commit(after)
    assert cluster.group("one").guaranteed
    assert cluster.place(wants("two", "b", 4), demand=demand) is None
    assert cluster.place(wants("three", "a", 4)) is not None


def test_what_is_kept_at_once_is_what_a_commit_keeps() -> None:
    """Starts, a lazy group that becomes opportunistic, a loan that has to go: answer by answer and state by state."""
    spec = flat({"a": 1, "b": 1, "c": 1})
    at_once, in_two = Cluster.from_spec(spec), Cluster.from_spec(spec)
    requests = [
        replace(wants("lazy", "a", 4), lazy_preemption=True),
        replace(wants("loan", "a", 4), priority=-1),
        replace(wants("high", "a", 4), priority=5),
        wants("own", "b", 4),
    ]
    seen = []
    for request in requests:
        kept, placed = at_once.place(request, keep=True), in_two.place(request)
        assert placed is not None
        in_two.commit(placed)
        assert kept == placed
        assert at_once.snapshot() == in_two.snapshot()
        at_once.commit(placed)  # carried out already
        assert at_once.snapshot() == in_two.snapshot()
        at_once.validate()
        seen.append((type(placed), placed.downgraded))
    assert seen == [(Bind, ()), (Bind, ()), (Bind, ("lazy",)), (Preempt, ())]
    assert at_once.place(wants("none", "b", 4), keep=True) is None
