"""Whose turn it is, and what is lent meanwhile: lines, loans, jobs that start early, and jobs that were displaced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hived.engines.local.explaining import JobExplainer
from hived.engines.local.model import Job
from hived.spec.compiled import ClusterSpec

from .driver import Driver, job, shares, small_spec, states

# -- lines --------------------------------------------------------------------------------------------------------


def test_line_is_by_priority_then_by_arrival(engine: Driver) -> None:
    engine.submit(job("vision", 4, priority=5))
    waiting = [engine.submit(job("vision", 4, priority=priority)) for priority in (5, 3, 3, 0)]
    before, entries = engine.job_scheduler.scheduler.before, [found.entry for found in waiting]
    assert before("vision", 9, 10) == (0, [])
    assert before("vision", 3, 10) == (3, entries[:3])
    assert before("vision", 0, 10) == (len(entries), entries)
    assert before("vision", 0, 2) == (len(entries), entries[:2])


def test_job_that_fits_no_more_blocks_nobody(engine: Driver) -> None:
    first = engine.submit(job("vision", 4))
    large, small = engine.submit(job("vision", 4)), engine.submit(job("vision", 1))
    engine.reconfigure(shares(("vision", 2), ("speech", 6)))
    engine.end(first)
    assert states(large, small) == "queued running"


def test_new_spec_starts_what_fits_now(engine: Driver) -> None:
    engine.submit(job("speech", 2))
    own, loan = engine.submit(job("speech", 2)), engine.submit(job("research", 8, priority=-1))
    assert states(own) == "queued"
    engine.reconfigure(shares(("speech", 4), ("research", 4)))
    assert states(own, loan) == "running queued"
    engine.reconfigure(shares(("vision", 4), ("speech", 2), ("research", 2), devices=16))
    assert states(loan) == "running"


def test_job_of_a_vc_that_is_no_more_waits(engine: Driver) -> None:
    engine.submit(job("speech", 2))
    late = engine.submit(job("speech", 2))
    engine.reconfigure(shares(("vision", 8)))
    assert states(late) == "queued"
    assert "speech" in engine.explain(late)


# -- before their turn --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_early_job_is_promoted_in_place(engine: Driver, restarted: bool) -> None:
    own, early = engine.submit(job("vision", 4)), engine.submit(job("vision", 4, early=True, grace_s=600.0))
    if restarted:
        own, early = engine.restart(own, early)
    assert (states(early), early.guaranteed) == ("running", False)
    assert "before its turn in vision; it is next in line" in engine.explain(early)
    most = engine.job_scheduler.health.grace_of_loans("vision")
    assert engine.job_scheduler.grace_s(early) == most < 600, "as any loan"
    engine.end(own)
    assert early.guaranteed
    assert engine.job_scheduler.grace_s(early) == 600
    assert engine.kinds(early) == ["submitted", "started", "promoted"]
    engine.check_record()


@pytest.mark.parametrize("restarted", [False, True])
def test_early_job_moves_if_it_cannot_stay(engine: Driver, restarted: bool) -> None:
    stays, ends = engine.submit(job("vision", 2)), engine.submit(job("vision", 2))
    early = engine.submit(job("vision", 2, early=True))
    before = set(early.devices())
    engine.end(ends)
    assert (states(early), early.reason) == ("stopping", "its turn in vision has come, on other GPUs")
    behind = engine.submit(job("vision", 2))
    assert states(behind) == "queued", "the turn is not its own"
    if restarted:
        stays, early, behind = engine.restart(stays, early, behind)
    engine.gone(early)
    assert (states(early, stays, behind), early.guaranteed) == ("running running queued", True)
    assert set(early.devices()).isdisjoint(before)
    assert (early.attempt, early.resumes) == (2, 1)


def test_loan_goes_within_a_lowered_cap(engine: Driver) -> None:
    """Though it is being stopped already, and its preemptor waits for it."""

    def capped(seconds: int) -> ClusterSpec:
        spec = small_spec()
        vcs = tuple(replace(vc, opportunistic_grace_seconds=seconds) for vc in spec.virtual_clusters)
        return replace(spec, virtual_clusters=vcs)

    engine.reconfigure(capped(3600))
    loan = engine.submit(job("research", 8, priority=-1, grace_s=3600.0))
    owner = engine.submit(job("vision", 4))
    assert states(loan, owner) == "stopping reserved"
    assert "it has 3600 s for that" in engine.explain(loan)
    engine.stopped.clear()
    engine.reconfigure(capped(0))
    assert "it has 0 s for that" in engine.explain(loan)
    assert engine.stopped == {(loan.id, 1)}, "it is told again"


def test_what_victims_lose_is_said_before_and_after(engine: Driver) -> None:
    """How long they have run, on how many GPUs, or how they keep it."""
    loan = engine.submit(job("research", 6, priority=-1))
    saves = engine.submit(job("research", 2, priority=-1, checkpoint_signal="USR1"))
    engine.wait(720)
    request = job("vision", 4).request("it")
    explainer = JobExplainer(engine.job_scheduler)
    scheduler = engine.job_scheduler.scheduler
    both = [loan.name, saves.name]
    assert explainer.costs(both, "vision", engine.now) == [
        f"{loan.name} loses 12 m of work on 6 GPUs, but for what it has saved itself",
        f"{saves.name} loses nothing: it is told by SIGUSR1 to save its state",
    ]
    found = explainer.planned(request, scheduler.plan(request), scheduler.plan, "it", at=engine.now)
    assert "12 m of work on 6 GPUs" in found.text
    owner = engine.submit(job("vision", 4))
    assert states(owner) == "reserved"
    assert "loses 12 m of work" in engine.explain(owner)
    engine.gone(loan)
    assert "loses" not in engine.explain(owner)


# -- put off their cells for another ------------------------------------------------------------------------------


def displaced(engine: Driver) -> tuple[Job, Job]:
    """One that runs as opportunistic for another of its VC, which waits for a borrower to go."""
    lazy = engine.submit(job("vision", 1, tasks=2, lazy_preemption=True))
    engine.submit(job("research", 1, priority=-1))
    owner = engine.submit(job("vision", 4, priority=5))
    assert (states(lazy, owner), lazy.guaranteed) == ("running reserved", False)
    return lazy, owner


def test_displaced_job_is_restored(engine: Driver) -> None:
    """Its preemptor is withdrawn."""
    lazy, owner = displaced(engine)
    engine.cancel(owner)
    assert lazy.guaranteed
    assert engine.kinds(lazy)[-1] == "restored"


@pytest.mark.parametrize("restarted", [False, True])
def test_displaced_job_stays_opportunistic(engine: Driver, restarted: bool) -> None:
    """Once the other has started, it is in no line: it is not ended for cells of its own."""
    lazy, owner = displaced(engine)
    engine.gone(engine.job_scheduler.job(2))
    assert (owner.guaranteed, lazy.guaranteed) == (True, False)
    if restarted:
        lazy, owner = engine.restart(lazy, owner)
    engine.end(owner)
    behind = engine.submit(job("vision", 4))
    assert (states(lazy, behind), lazy.guaranteed) == ("running running", False)
    assert "in line" not in engine.explain(lazy)


def test_displaced_job_is_restored_if_hardware_breaks(engine: Driver) -> None:
    # the core restored it without a report to the engine: the job was taken for opportunistic, and stopped as such
    lazy, owner = displaced(engine)
    engine.set_health(list(owner.devices())[:1])
    assert "restored" in engine.kinds(lazy)
    engine.check_record()
