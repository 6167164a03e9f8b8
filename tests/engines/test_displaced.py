"""Jobs that were put off their cells for another, and what becomes of them when that does not come."""

from __future__ import annotations

from hived.engines.local.model import Job, JobState

from .driver import Driver, job


def displaced() -> tuple[Driver, Job, Job]:
    """One that runs as opportunistic for another of its VC, which waits for a borrower to go."""
    engine = Driver()
    lazy = engine.submit(job("vision", 1, tasks=2, lazy_preemption=True))
    engine.submit(job("research", 1, priority=-1))
    owner = engine.submit(job("vision", 4, priority=5))
    assert owner.state is JobState.RESERVED
    assert lazy.state is JobState.RUNNING
    assert not lazy.guaranteed
    return engine, lazy, owner


def test_a_job_displaced_for_a_preemptor_whose_hardware_breaks_has_its_cells_again() -> None:
    # the core restored them without a report to the engine: the job was taken for opportunistic, and stopped as such
    engine, lazy, owner = displaced()
    assert owner.placement is not None
    placed = owner.placement.pods[0]
    engine.do(
        lambda job_scheduler: job_scheduler.set_health([(placed.node, placed.leaf_cells[0])], "NVML: lost", engine.now)
    )
    assert "restored" in engine.kinds(lazy)
    engine.check_record()


def test_a_job_displaced_for_a_preemptor_that_is_withdrawn_has_its_cells_again() -> None:
    engine, lazy, owner = displaced()
    engine.do(lambda job_scheduler: job_scheduler.cancel(owner, engine.now))
    assert lazy.guaranteed
    assert engine.kinds(lazy)[-1] == "restored"


def test_a_job_displaced_for_a_preemptor_that_is_overtaken_has_the_state_of_the_core() -> None:
    engine, lazy, _ = displaced()
    engine.submit(job("vision", 2, priority=9))
    engine.submit(job("vision", 4, priority=10))
    assert lazy.state is JobState.RUNNING
    engine.check_record()
