"""Jobs that start before their turn: on a loan, and promoted in place or moved when it comes."""

from __future__ import annotations

import pytest

from hived.engines.local.explaining import explain
from hived.engines.local.model import JobState

from .driver import Driver, is_in, job


@pytest.fixture
def engine() -> Driver:
    return Driver()


def test_a_job_that_starts_early_is_guaranteed_where_it_is_when_its_turn_comes(engine: Driver) -> None:
    own, early = engine.submit(job("vision", 4)), engine.submit(job("vision", 4, early=True))
    assert is_in(early, JobState.RUNNING)
    assert not early.guaranteed
    assert "before its turn in vision; it is next in line" in explain(engine.job_scheduler, early, engine.now)
    engine.end(own)
    assert early.guaranteed
    assert engine.kinds(early) == ["submitted", "started", "promoted"]
    engine.check_record()


def test_a_job_that_started_early_moves_where_its_cells_cannot_be_had_in_place(engine: Driver) -> None:
    stays, ends = engine.submit(job("vision", 2)), engine.submit(job("vision", 2))
    early = engine.submit(job("vision", 2, early=True))
    assert early.placement is not None
    before = early.placement.pods
    engine.end(ends)
    assert is_in(early, JobState.STOPPING)
    assert early.reason == "its turn in vision has come, on other GPUs"
    behind = engine.submit(job("vision", 2))
    assert is_in(behind, JobState.QUEUED), "the turn is not its own"
    engine.gone(early)
    assert is_in(early, JobState.RUNNING)
    assert early.guaranteed
    assert early.placement is not None
    assert early.placement.pods != before
    assert (early.attempt, early.resumes) == (2, 1)
    assert is_in(stays, JobState.RUNNING)


def test_a_job_on_a_loan_is_still_promoted_after_a_restart(engine: Driver) -> None:
    own, early = engine.submit(job("vision", 4)), engine.submit(job("vision", 4, early=True))
    engine.restart()
    own, early = engine.jobs[own.id], engine.jobs[early.id]
    assert is_in(early, JobState.RUNNING)
    assert not early.guaranteed
    engine.end(own)
    assert early.guaranteed
    assert engine.kinds(early)[-1] == "promoted"


def test_a_job_that_was_moving_when_the_engine_was_killed_comes_to_its_own_cells(engine: Driver) -> None:
    engine.submit(job("vision", 2))
    ends, early = engine.submit(job("vision", 2)), engine.submit(job("vision", 2, early=True))
    engine.end(ends)
    assert is_in(early, JobState.STOPPING)
    engine.restart()
    early = engine.jobs[early.id]
    engine.gone(early)
    assert is_in(early, JobState.RUNNING)
    assert early.guaranteed


def test_its_grace_is_that_of_a_loan_until_its_turn_has_come(engine: Driver) -> None:
    own = engine.submit(job("vision", 4))
    early = engine.submit(job("vision", 4, early=True, grace_s=600.0))
    most = engine.job_scheduler.health.grace_of_loans("vision")
    assert engine.job_scheduler.grace_s(early) == most < 600
    engine.end(own)
    assert engine.job_scheduler.grace_s(early) == 600
