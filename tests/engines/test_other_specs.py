"""Starts under other specs and devices: who holds a device keeps it, and what a spec took it gives back."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from hived.engine.states import JobState
from hived.engines.local.devices import Simulated
from hived.engines.local.engine import Engine, displaced_by
from hived.engines.local.model import Job
from hived.engines.local.store import LastStart, last_start
from hived.errors import ConflictError, InputError
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from ..contract.specs import cell_types, cluster_spec, reserves
from .driver import Driver, job, shares, states
from .living import STAYS, Lives, ended, shell
from .test_trades import pairs_of_two

EIGHT = shares(("vision", 8))
SHARED = shares(("vision", 4), ("speech", 4))
FOUR = shares(("vision", 4), devices=4)


@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
@pytest.mark.parametrize("total", range(2, 8))
def test_a_gang_is_guaranteed_again_where_it_runs(total: int, gpus: int) -> None:
    """A spec that took its cells, and was taken back, had it start anew: leaves of one node were confused."""
    for tasks in range(1, total // gpus + 1):
        with_it = shares(("vision", 8 - total), ("speech", total))
        engine = Driver(with_it)
        gang = engine.submit(job("speech", gpus, tasks=tasks))
        if states(gang) != "running":
            continue
        assert gang.placement is not None
        before = gang.placement.pods
        engine.reconfigure(shares(("vision", 8 - total), ("speech", 1)))
        engine.reconfigure(with_it)
        engine.submit(job("vision"))
        assert gang.placement is not None
        assert (states(gang), gang.attempt, gang.guaranteed, gang.placement.pods) == ("running", 1, True, before)
        engine.check_record()


def test_a_spec_changed_and_put_back_is_as_it_was() -> None:
    """Two jobs of a pair stayed opportunistic for good, and one was stopped for a job that had six idle devices."""
    both = shares(("vision", 5), ("nlp", 3))
    for restarts in (False, True):
        engine = Driver(both)
        first, second, third = [engine.submit(job("nlp")) for _ in range(3)]
        other = engine.submit(job("vision"))
        engine.cancel(first)
        engine.gone(first)
        assert [kept.placement.reserved_levels for kept in (second, third) if kept.placement] == [(2,), (2,)]
        for spec in (shares(("vision", 5)), both):
            engine.reconfigure(spec)
            if restarts:
                second, third, other = engine.restart(second, third, other, spec=spec)
        assert [kept.guaranteed for kept in (second, third, other)] == [True, True, True]
        engine.end(other)
        late = engine.submit(job("vision"))
        assert (states(second, third, late), second.attempt, third.attempt) == ("running running running", 1, 1)
        engine.check_record()


def test_guaranteed_again_once_others_end() -> None:
    """By themselves: until then, jobs of another VC keep their guarantees in the socket around them."""
    both = shares(("vision", 5), ("nlp", 3))
    engine = Driver(both)
    first, second, third = [engine.submit(job("nlp")) for _ in range(3)]
    engine.reconfigure(shares(("vision", 8)))
    engine.end(first)
    wide, *narrow = [engine.submit(job("vision", gpus)) for gpus in (4, 1, 1)]
    engine.end(wide)
    engine.reconfigure(both)
    assert [kept.guaranteed for kept in (second, third, *narrow)] == [False, False, True, True]
    for ends in narrow:
        engine.end(ends)
    assert [kept.guaranteed for kept in (second, third)] == [True, True]
    assert (states(second, third), second.attempt, third.attempt) == ("running running", 1, 1)
    engine.check_record()


def test_a_guaranteed_job_makes_room_for_one_that_was() -> None:
    """The one that kept a guarantee under the spec between had taken the single cell, and so the pair from both."""
    both = shares(("vision", 5), ("nlp", 3))
    engine = Driver(both)
    first, second, third = [engine.submit(job("nlp")) for _ in range(3)]
    engine.cancel(first)
    engine.gone(first)
    engine.reconfigure(shares(("vision", 5), ("nlp", 1)))
    assert [kept.guaranteed for kept in (second, third)] == [True, False]
    second, third = engine.restart(second, third)
    engine.reconfigure(both)
    assert [kept.guaranteed for kept in (second, third)] == [True, True]
    assert second.placement is not None
    assert second.placement.reserved_levels == (2,)
    engine.check_record()
    second, third = engine.restart(second, third)
    assert [kept.guaranteed for kept in (second, third)] == [True, True]


def test_what_a_spec_has_made_a_loan_ends_for_no_loan() -> None:
    """A gang lost its work for one GPU of somebody's opportunistic job; a job that may preempt it still does."""
    engine = Driver(shares(("vision", 5), ("speech", 3)))
    gang = engine.submit(job("speech", 1, tasks=3))
    owner = engine.submit(job("vision", 4))
    engine.reconfigure(shares(("vision", 5), ("speech", 2)))
    assert (states(gang), gang.guaranteed) == ("running", False)
    small, other = engine.submit(job("vision", 1, priority=-1)), engine.submit(job("vision", 1, priority=-1))
    assert states(owner, gang, small, other) == "running running running queued"
    engine.reconfigure(shares(("vision", 5), ("speech", 3)))
    assert (states(gang), gang.attempt, gang.guaranteed) == ("running", 1, True)
    engine.check_record()


def two_nodes(*names: str) -> ClusterSpec:
    """Nodes of four, of which vision has one."""
    nodes = [{"cellType": "NODE", "cellAddress": name} for name in names]
    return spec_from_dict(cluster_spec(cell_types(), nodes, {"vision": reserves({"NODE": 1})}))


def in_other_order() -> ClusterSpec:
    """Pairs of devices that are far apart by number."""
    types = {
        "NODE": {"childCellType": "PAIR", "childCellNumber": 4, "isNodeLevel": True},
        "PAIR": {"childCellType": "GPU", "childCellNumber": 2},
    }
    pairs = [{"cellChildren": [{"cellAddress": n}, {"cellAddress": n + 4}]} for n in (3, 1, 2, 0)]
    node = {"cellType": "NODE", "cellAddress": "node", "cellChildren": pairs}
    return spec_from_dict(cluster_spec(types, [node], {"vision": reserves({"NODE.PAIR": 4})}))


def numbers(*jobs: Job) -> list[set[int]]:
    """The devices that each holds."""
    return [{device for _, device in found.devices()} for found in jobs]


# -- in virtual time ----------------------------------------------------------------------------------------------


ORDERS = {
    # devices that a spec lacks were cut off a job's placement, so the next life gave them to somebody else
    "fewer": [FOUR],
    "fewer and fewer": [shares(("vision", 1), devices=1), shares(("vision", 6), devices=6)],
    "renamed": [shares(("vision", 8), node="other")],
    "renamed twice": [shares(("vision", 2), devices=2, node="other"), shares(("vision", 8), node="third")],
    # jobs stayed opportunistic for good, and were stopped for any other job
    "no such VC": [shares(("other", 8)), shares(("other", 8)), FOUR],
    "other order": [in_other_order()],
    "two nodes": [two_nodes("a", "b")],
    "one more node": [two_nodes("node", "b")],
}


@pytest.mark.parametrize("specs", ORDERS.values(), ids=ORDERS)
def test_jobs_keep_devices_whatever_specs_come_between(specs: list[ClusterSpec]) -> None:
    """And their guarantees."""
    engine = Driver(EIGHT)
    jobs = [engine.submit(job("vision", gpus, priority=priority)) for gpus, priority in ((4, 0), (2, 0), (1, -1))]
    for spec in [*specs, EIGHT, SHARED, EIGHT]:
        jobs = engine.restart(*jobs, spec=spec)
        if spec.virtual_clusters[0].name == "vision":
            engine.submit(job("vision", 1, priority=-1))
        assert numbers(*jobs) == [{0, 1, 2, 3}, {4, 5}, {6}]
        assert [found for found in engine.jobs.values() if found.name not in engine.explain(found)] == []
    assert [found.guaranteed for found in jobs] == [True, True, False]
    assert jobs[1].reason == "its turn in vision has come", "it had no cells where vision had four"


def test_devices_beyond_the_spec_are_explained() -> None:
    """Without blame."""
    engine = Driver(EIGHT)
    first, last = (engine.submit(job("vision", 4)) for _ in range(2))
    first, last = engine.restart(first, last, spec=FOUR)
    assert first.guaranteed
    for words in (
        "runs on 4 GPUs", "on node GPUs 4-7", "the spec of now lacks node GPUs 4-7", "it asked to be guaranteed",
        "nobody else is given them",
    ):  # fmt: skip
        assert words in engine.explain(last)
    (last,) = engine.restart(last, spec=shares(("speech", 8)))
    told = engine.explain(last)
    assert "no cells of its VC stand under it now" in told
    assert "why: virtual cluster vision is no more" in told
    assert "others" not in told
    engine.submit(job("speech", 8))
    engine.gone(last)
    assert "it is opportunistic and had to go for train-3 of VC speech" in engine.explain(last)
    engine.check_record()


@pytest.mark.parametrize("behind", [None, 1])
def test_job_that_a_new_spec_has_made_a_loan_is_in_line(behind: int | None) -> None:
    """It leaves the GPUs that it has for cells of its VC only when a job behind it could take these."""
    engine = Driver(pairs_of_two())
    jobs = [engine.submit(job(vc, 2)) for vc in ("vision", "speech")]
    assert sorted(numbers(*jobs), key=min) == [{0, 1}, {2, 3}], "in one socket"
    engine.reconfigure(SHARED)
    (lost,) = [found for found in jobs if not found.guaranteed]
    assert states(lost) == "running"
    assert "it runs on a loan until its turn" in engine.explain(lost)
    if behind is None:
        loans = [engine.submit(job(lost.vc, 2, priority=-1)) for _ in range(2)]
        assert states(lost, *loans) == "running running running"
        engine.submit(job("speech" if lost.vc == "vision" else "vision", 4))
        engine.wait(0.0)
        assert not lost.guaranteed, "its VC has other cells for it"
        return
    later = engine.submit(job(lost.vc, behind))
    assert states(lost, later) == "stopping queued"
    assert f"its turn in {lost.vc} has come, on other GPUs" in engine.explain(lost)
    engine.gone(lost)
    assert (lost.guaranteed, later.guaranteed) == (True, True)


# -- real engines -------------------------------------------------------------------------------------------------


@pytest.fixture
def lives(lives: Lives) -> Lives:
    lives.spec = EIGHT
    return lives


def begin(lives: Lives, *gpus: int) -> list[Job]:
    """Jobs of so many GPUs run (below 0: as opportunistic), and the engine is killed."""
    return lives.killed_with(*(shell("vision", STAYS, abs(n), priority=0 if n > 0 else -1) for n in gpus))


def finish(lives: Lives) -> None:
    """A life in which all jobs end."""

    async def story(engine: Engine) -> None:
        jobs = list(engine.job_scheduler.jobs.values())
        for found in jobs:
            engine.cancel(str(found.id))
        assert {found.state for found in await ended(engine, *jobs)} == {JobState.CANCELLED}

    lives.live(story)
    assert not lives.marked()


def test_real_jobs_keep_their_devices(lives: Lives) -> None:
    begin(lives, 4, 2, -1)

    async def story(engine: Engine) -> list[Job]:
        engine.submit(shell("vision", STAYS, 1, priority=-1))
        engine._advance()
        engine.cluster.validate()
        return list(engine.job_scheduler.jobs.values())

    for spec in (shares(("vision", 2), devices=2, node="other"), shares(("vision", 8), node="third"), SHARED, EIGHT):
        lives.spec = spec
        jobs = lives.live(story, killed=True)
        assert numbers(*jobs[:3]) == [{0, 1, 2, 3}, {4, 5}, {6}]
    assert [found.guaranteed for found in jobs[:3]] == [True, True, False]
    finish(lives)


def test_start_names_the_jobs_that_it_would_displace(lives: Lives) -> None:
    """Before anything has changed."""
    begin(lives, 4, 2, -2)
    for spec, names in (
        (shares(("other", 8)), ["job-1", "job-2"]),
        (FOUR, ["job-2"]),
        (shares(("vision", 8), node="other"), []),
        (EIGHT, []),
    ):
        with lives.store() as store:
            before = store.last_event()
            found = displaced_by(spec, store, 1e9)
            assert [job.name for job, _ in found] == names
            assert all(why for _, why in found)
            assert store.last_event() == before


class Real(Simulated):
    """As if there were any."""

    simulated = False


async def nothing(engine: Engine) -> None:
    """It starts, and that is all."""


def test_simulated_devices_are_not_taken_for_real_ones(lives: Lives) -> None:
    begin(lives, 2)
    with pytest.raises(ConflictError, match=r"1 job of the last start still runs? on simulated devices"):
        lives.live(nothing, devices=Real())
    finish(lives)
    lives.live(nothing, devices=Real())


def test_node_keeps_its_name_while_jobs_run_on_it(lives: Lives) -> None:
    # by its new name all of it was free, and was given twice
    begin(lives, 2)

    async def story(engine: Engine) -> None:
        with pytest.raises(InputError, match="calls the node other, and jobs run on it as node"):
            engine.reconfigure(shares(("vision", 8), node="other"))
        found = engine.find("1")
        assert found.guaranteed
        engine.cancel("1")
        await ended(engine, found)
        engine.reconfigure(shares(("vision", 8), node="other"))

    lives.live(story)


def test_live_spec_is_the_last_one_of_the_next_start(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        engine.reconfigure(SHARED)

    lives.live(story)
    with lives.store() as store:
        assert last_start(store) == LastStart(SHARED, simulated=True)


def test_device_given_twice_is_idle_after_both(lives: Lives) -> None:
    begin(lives, 2, 2)
    with closing(sqlite3.connect(lives.folder / "hived.db")) as db:
        for number, text in db.execute("SELECT id, status FROM jobs").fetchall():
            status = json.loads(text)
            status["placement"]["pods"] = [["node", [0, 1]]]
            db.execute("UPDATE jobs SET status = ? WHERE id = ?", (json.dumps(status), number))
        db.commit()

    async def story(engine: Engine) -> None:
        one, two = engine.find("1"), engine.find("2")
        assert (one.guaranteed, two.guaranteed) == (True, False)
        for gone, runs in ((one, two), (two, None)):
            engine.cancel(str(gone.id))
            await ended(engine, gone)
            whole = engine.plan(shell("vision", "true", 8))
            assert (whole.outcome == "now") is (runs is None)

    lives.live(story)
