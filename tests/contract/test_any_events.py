"""Any events in any order: the driver's model holds, decisions can be carried out, and the log replays the cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from hived import Wait
from hived.spec import ClusterSpec

from ..strategies import given_in_tiers
from .walks import SEEDS, SPECS, Walk


@given_in_tiers(12, 100, SPECS, SEEDS, st.booleans())
def test_any_events(spec: ClusterSpec, seed: int, breaks: bool) -> None:
    Walk(spec, seed, breaks=breaks).go(60)


@given_in_tiers(8, 60, SPECS, SPECS, SEEDS)
def test_any_events_and_new_specs(spec: ClusterSpec, other: ClusterSpec, seed: int) -> None:
    Walk(spec, seed, [spec, other]).go(60)


@given_in_tiers(12, 120, SPECS, SEEDS, st.booleans())
def test_any_events_and_trades(spec: ClusterSpec, seed: int, breaks: bool) -> None:
    """VCs trade cells while everything else happens."""
    Walk(spec, seed, breaks=breaks, trades=True).go(60)


@settings(max_examples=3)
@given(SPECS, SEEDS)
def test_same_calls_same_answers(spec: ClusterSpec, seed: int) -> None:
    walks = [Walk(spec, seed), Walk(spec, seed)]
    for walk in walks:
        walk.go(30)
    assert walks[0].driver.lines == walks[1].driver.lines
    assert walks[0].driver.cluster.snapshot() == walks[1].driver.cluster.snapshot()


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


@given_in_tiers(5, 60, SPECS, SEEDS)
def test_questions_change_no_answer(spec: ClusterSpec, seed: int) -> None:
    """Two clusters get the same events; one of them answers many questions besides."""
    asked, quiet = Walk(spec, seed), Walk(spec, seed)
    asker = Walk(spec, seed + 1)
    asker.driver = asked.driver
    dice = Random(seed)
    for _ in range(25):
        for _ in range(2):
            asked.driver.cluster.plan(replace(asker.request(), group="question"), asker.suggestion())
        for reservation in asked.driver.preempting.values():
            asked.driver.cluster.plan(reservation.request)
        happens: list[Callable[[Walk], None]] = [ask, ask, ask, end, break_or_heal, give_up]
        what = dice.choice(happens)
        what(asked)
        what(quiet)
        assert asked.driver.lines == quiet.driver.lines
        assert asked.driver.cluster.snapshot() == quiet.driver.cluster.snapshot()
        assert asked.driver.cluster.doomed() == quiet.driver.cluster.doomed()
