"""Exact safety on a machine: jobs that end early, restarts, moves and bad devices; and no job is later than alone."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hived import Cluster
from hived.cluster.sharing import Sharing
from hived.engines.local.model import Job
from hived.engines.local.store import Store
from hived.policies import YarnCS
from hived.scheduling import Policies, Policy
from hived.simulator.simulation import simulate
from hived.simulator.traces import TraceJob
from hived.spec.compiled import EXACT, ClusterSpec

from ..policies import LeastAttained
from .driver import Driver, job, shares, small_spec, states
from .test_truth import jobs_of, live_stays, seeds


def exact(spec: ClusterSpec) -> ClusterSpec:
    """All tenants are of exact safety."""
    return replace(spec, virtual_clusters=tuple(replace(vc, safety=EXACT) for vc in spec.virtual_clusters))


def apart(seed: int) -> tuple[ClusterSpec, list[TraceJob]]:
    """A crowded trace, hardly any two things within a millisecond: see docs/explanation/exact-safety.md."""
    spec, jobs = jobs_of(seed)
    choose = random.Random(seed)
    moved = [
        row._replace(submit_ms=row.submit_ms + 7 * number, duration_ms=row.duration_ms + choose.randrange(1, 20_000))
        for number, row in enumerate(jobs)
    ]
    return exact(spec), moved


@pytest.mark.parametrize("policy", [YarnCS(), LeastAttained((30.0, 300.0))], ids=lambda policy: policy.name)
@seeds(12, fast=1)
def test_no_job_is_later_than_alone(seed: int, policy: Policy) -> None:
    """A machine that stops jobs at once, with loans, against private clusters without: to the millisecond."""
    spec, jobs = apart(seed)
    private = simulate(Cluster(spec, Sharing.PRIVATE, rank=Policies(policy).rank), policy, jobs, False)
    stays, _ = live_stays(spec, jobs, True, policy)
    ends = {stay.job: stay.end for stay in sorted(stays, key=lambda stay: stay.end)}
    for number, alone in enumerate(private.finish, 1):
        if alone >= 0:
            assert ends[number] <= alone + 1, f"job {number}: {ends[number]}, alone {alone}"  # the clock is in seconds


def ended_early(spec: ClusterSpec) -> tuple[Driver, Job, Job]:
    """A job ends after 100 s on a loan, before its turn: the one before it in line, and the one behind it."""
    engine = Driver(spec)
    first, early = engine.submit(job("speech", 2)), engine.submit(job("speech", 2, early=True))
    assert (states(early), early.guaranteed) == ("running", False)
    engine.wait(100)
    engine.end(early)
    return engine, first, engine.submit(job("speech", 2))


def test_cells_are_kept_for_a_job_that_ended_early() -> None:
    """And lent meanwhile: alone, that job would run for 100 s from now on."""
    engine, first, last = ended_early(exact(small_spec()))
    assert states(last) == "queued"
    assert "train-1" in engine.explain(last)
    engine.end(first)
    assert states(last) == "queued"
    assert engine.job_scheduler.scheduler.ghosts("speech") == 2
    assert "2 GPUs of VC speech are kept for train-2, which ended early" in engine.explain(last)
    assert "held by" not in engine.explain(last)  # an ended job holds nothing
    assert engine.shortly(last)
    lent, loan = engine.submit(job("vision", 4, early=True)), engine.submit(job("vision", 4, priority=-1))
    assert lent.guaranteed
    assert states(loan) == "running"  # on what is kept, too
    last, loan = engine.restart(last, loan)
    engine.wait(60)
    assert states(last) == "queued"
    assert engine.job_scheduler.scheduler.ghosts("speech") == 2
    engine.wait(41)
    if states(loan) == "stopping":
        engine.gone(loan)
    assert (states(last), last.guaranteed) == ("running", True)
    assert engine.job_scheduler.scheduler.ghosts("speech") == 0
    assert "train-2" not in engine.virtual, "the store forgets it"


def test_without_exact_safety_they_are_given_at_once() -> None:
    engine, first, last = ended_early(small_spec())
    engine.end(first)
    assert states(last) == "running"


def test_a_new_spec_begins_and_ends_it() -> None:
    engine = Driver()
    first, early = engine.submit(job("speech", 2)), engine.submit(job("speech", 2, early=True))
    engine.reconfigure(exact(small_spec()))
    assert first.guaranteed
    engine.wait(100)
    engine.end(early)
    last = engine.submit(job("speech", 2))
    engine.end(first)
    assert states(last) == "queued"
    engine.reconfigure(small_spec())
    assert states(last) == "running"
    assert not engine.virtual


def test_cancelled_job_leaves_no_cells_behind() -> None:
    engine = Driver(exact(small_spec()))
    first, early = engine.submit(job("speech", 2)), engine.submit(job("speech", 2, early=True))
    last = engine.submit(job("speech", 2))
    engine.wait(100)
    engine.cancel(early)
    engine.gone(early)
    engine.end(first)
    assert states(last) == "running"


# -- bad devices --------------------------------------------------------------------------------------------------


def with_a_bad_device() -> tuple[Driver, list[Job]]:
    """One of the four devices of vision is bad, and the other tenants use theirs; their jobs."""
    engine = Driver(exact(small_spec()))
    others = [engine.submit(job(vc, 2)) for vc in ("speech", "research")]
    one = engine.submit(job("vision", 1))
    bad = list(one.devices())
    engine.end(one)
    engine.set_health(bad)
    return engine, others


def test_jobs_run_on_the_healthy_devices() -> None:
    """One bad device keeps no job from them, nor does a large job that waits for it."""
    engine, _ = with_a_bad_device()
    bad = list(engine.job_scheduler.health.bad)
    small = [engine.submit(job("vision", 1)) for _ in range(3)]
    late = engine.submit(job("vision", 1))
    assert [found.guaranteed for found in (*small, late)] == [True, True, True, False]
    engine.set_health(bad, None)
    assert late.guaranteed
    engine, _ = with_a_bad_device()
    large = engine.submit(job("vision", 4))
    small = [engine.submit(job("vision", 1, priority=1)) for _ in range(3)]
    assert (states(large), [found.guaranteed for found in small]) == ("queued", [True] * 3)


def test_refused_cells_are_tried_again() -> None:
    """Once a job of another VC has ended, whose healthy devices may stand in for the bad one."""
    engine = Driver(exact(shares(("vision", 4), ("speech", 4))))
    other = engine.submit(job("speech", 4))
    idle = [place for place in engine.spec.devices() if place not in other.devices()]
    engine.set_health(idle[:1])
    late = engine.submit(job("vision", 4))
    assert states(late) == "queued"
    engine.end(other)
    assert late.guaranteed


def test_no_job_is_stopped_for_cells_that_are_refused() -> None:
    engine, (other, _) = with_a_bad_device()
    low = engine.submit(job("vision", 2))
    high = engine.submit(job("vision", 4, priority=7))
    assert states(high, low) == "queued running"
    engine.end(other)  # they are tried again, and refused again
    assert (states(low), low.guaranteed) == ("running", True)


def test_virtual_jobs_of_the_version_before_go_on(tmp_path: Path) -> None:
    """It stored no number of a job that had ended: that was its ``sequence``, which counted the jobs of all tenants."""
    engine, first, last = ended_early(exact(small_spec()))
    before = [
        state._replace(number=None, view=state.view._replace(sequence=state.number or 0))
        for state in engine.virtual.values()
    ]
    with closing(Store(tmp_path / "state")) as store:
        store.keep([], [], virtual=[(state.name, state) for state in engine.virtual.values()])
        assert sorted(store.virtual()) == sorted(engine.virtual.values())
        with closing(sqlite3.connect(tmp_path / "state" / "hived.db")) as db:
            for name, text in db.execute("SELECT name, state FROM virtual").fetchall():
                plain = json.loads(text)
                plain[2][3] = plain.pop()  # the sequence in the view
                db.execute("UPDATE virtual SET state = ? WHERE name = ?", (json.dumps(plain), name))
            db.commit()
        found = store.virtual()
    assert sorted(found) == sorted(before)
    engine.virtual = {state.name: state for state in found}
    first, last = engine.restart(first, last)
    engine.end(first)
    assert engine.job_scheduler.scheduler.ghosts("speech") == 2, "train-2 goes on"
    assert states(last) == "queued"
