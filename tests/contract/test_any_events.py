"""Any events in any order: the driver's model holds, decisions can be carried out, and the log replays the cluster."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

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


@given_in_tiers(5, 60, SPECS, SEEDS)
def test_questions_change_no_answer(spec: ClusterSpec, seed: int) -> None:
    """The same calls give the same answers, whatever is asked between."""
    asked, quiet, asker = Walk(spec, seed), Walk(spec, seed), Walk(spec, seed + 1)
    asker.driver = asked.driver
    for _ in range(25):
        for _ in range(2):
            asked.driver.cluster.plan(replace(asker.request(), group="question"), asker.suggestion())
        for reservation in asked.driver.preempting.values():
            asked.driver.cluster.plan(reservation.request)
        for walk in (asked, quiet):
            walk.event()()
        assert asked.driver.lines == quiet.driver.lines
        assert asked.driver.cluster.snapshot() == quiet.driver.cluster.snapshot()
        assert asked.driver.cluster.doomed() == quiet.driver.cluster.doomed()
