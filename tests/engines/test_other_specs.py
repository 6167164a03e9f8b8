"""Starts under other specs and devices: who holds a device keeps it, and what a spec took it gives back."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hived.engines.local.devices import Simulated
from hived.engines.local.engine import Engine, displaced_by
from hived.engines.local.explaining import explain
from hived.engines.local.model import Job, JobState
from hived.engines.local.store import LastStart, Store, last_start
from hived.errors import ConflictError, InputError
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

from . import driver
from .driver import Driver
from .living import Lives, ended, other_spec, printed, shell

STAYS = "echo here; sleep 1000"
EIGHT = other_spec(("vision", 8))


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "state")
    made.spec = EIGHT
    yield made
    made.end()


def devices(job: Job) -> set[int]:
    """What it holds."""
    assert job.placement is not None
    return {device for pod in job.placement.pods for device in pod.leaf_cells}


def begin(lives: Lives, *gpus: int) -> list[Job]:
    """Jobs of so many GPUs run (below 0: as opportunistic), and the engine is killed."""

    async def story(engine: Engine) -> list[Job]:
        jobs = [engine.submit(shell("vision", STAYS, abs(n), priority=0 if n > 0 else -1)) for n in gpus]
        for job in jobs:
            await printed(engine, job, "here")
        return jobs

    found: list[Job] = lives.live(story, killed=True)
    return found


def look(lives: Lives, spec: ClusterSpec, more: int = 0) -> list[Job]:
    """A life under ``spec``: all jobs as they are then, and a loan more of ``more`` GPUs."""
    lives.spec = spec

    async def story(engine: Engine) -> list[Job]:
        if more:
            engine.submit(shell("vision", STAYS, more, priority=-1))
            engine._advance()
        held: dict[tuple[str, int], str] = {}
        for job in engine.job_scheduler.jobs.values():
            if job.state.holds and job.placement is not None:
                for pod in job.placement.pods:
                    for device in pod.leaf_cells:
                        other = held.setdefault((pod.node, device), job.name)
                        assert other == job.name, f"{pod.node}:{device} is given to {other} and to {job.name}"
            assert job.name in explain(engine.job_scheduler, job, 0.0)
        engine.cluster.validate()
        return list(engine.job_scheduler.jobs.values())

    found: list[Job] = lives.live(story, killed=True)
    return found


def two_nodes(*names: str) -> ClusterSpec:
    """Nodes of four, of which vision has one."""
    nodes = [{"cellType": "NODE", "cellAddress": name} for name in names]
    types = {"NODE": {"childCellType": "GPU", "childCellNumber": 4, "isNodeLevel": True}}
    physical = {"cellTypes": types, "physicalCells": nodes}
    vision = {"virtualCells": [{"cellType": "NODE", "cellNumber": 1}]}
    return spec_from_dict({"physicalCluster": physical, "virtualClusters": {"vision": vision}})


def in_other_order() -> ClusterSpec:
    """Pairs of devices that are far apart by number."""
    types = {
        "NODE": {"childCellType": "PAIR", "childCellNumber": 4, "isNodeLevel": True},
        "PAIR": {"childCellType": "GPU", "childCellNumber": 2},
    }
    pairs = [{"cellChildren": [{"cellAddress": n}, {"cellAddress": n + 4}]} for n in (3, 1, 2, 0)]
    physical = {
        "cellTypes": types,
        "physicalCells": [{"cellType": "NODE", "cellAddress": "node", "cellChildren": pairs}],
    }
    vision = {"virtualCells": [{"cellType": "NODE.PAIR", "cellNumber": 4}]}
    return spec_from_dict({"physicalCluster": physical, "virtualClusters": {"vision": vision}})


def shown(spec: ClusterSpec) -> str:
    names = [name for chain in spec.chains for name in chain.node_names]
    return f"{'+'.join(names)} of {spec.chains[0].gpus_per_node}"


class Real(Simulated):
    """As if there were any."""

    simulated = False


async def nothing(engine: Engine) -> None:
    """It starts, and that is all."""


def finish(lives: Lives) -> None:
    """A life in which all jobs end."""

    async def story(engine: Engine) -> None:
        jobs = list(engine.job_scheduler.jobs.values())
        for job in jobs:
            engine.cancel(str(job.id))
        await ended(engine, *jobs)

    lives.live(story)


def test_a_job_on_devices_that_one_spec_lacks_keeps_them_for_the_next(lives: Lives) -> None:
    # they were cut off its placement, so the next life gave them to somebody else
    begin(lives, 4, 2, -2)
    four = look(lives, other_spec(("vision", 4), devices=4))
    assert [devices(job) for job in four] == [{0, 1, 2, 3}, {4, 5}, {6, 7}]
    assert [job.guaranteed for job in four] == [True, False, False]
    eight = look(lives, EIGHT, more=2)
    assert [devices(job) for job in eight[:3]] == [{0, 1, 2, 3}, {4, 5}, {6, 7}]
    assert [job.guaranteed for job in eight[:3]] == [True, True, False]
    assert eight[3].state is JobState.QUEUED
    finish(lives)


SHARED = other_spec(("vision", 4), ("speech", 4))
ORDERS = [
    [other_spec(("vision", 4), devices=4), EIGHT],
    [other_spec(("vision", 1), devices=1), other_spec(("vision", 6), devices=6), EIGHT],
    [other_spec(("vision", 8), node="other"), EIGHT],
    [other_spec(("vision", 2), devices=2, node="other"), other_spec(("vision", 8), node="third"), EIGHT],
    [other_spec(("other", 8)), other_spec(("vision", 4), devices=4), EIGHT],
    [in_other_order(), EIGHT],
    [two_nodes("a", "b"), EIGHT],
    [two_nodes("node", "b"), EIGHT],
]


@pytest.mark.parametrize("specs", ORDERS, ids=lambda specs: " then ".join(map(shown, specs)))
def test_running_jobs_keep_devices_and_guarantees_whatever_specs_come_in_between(
    lives: Lives, specs: list[ClusterSpec]
) -> None:
    begin(lives, 4, 2, -1)
    for spec in [*specs, SHARED, EIGHT]:
        jobs = look(lives, spec, more=int(spec.virtual_clusters[0].name == "vision"))
        assert [devices(job) for job in jobs[:3]] == [{0, 1, 2, 3}, {4, 5}, {6}]
    assert [job.guaranteed for job in jobs[:3]] == [True, True, False]
    finish(lives)


def test_jobs_that_a_spec_took_the_cells_of_have_them_again_under_one_that_fits(lives: Lives) -> None:
    # they stayed opportunistic for good, and were stopped for whoever came
    lives.spec = SHARED

    async def story(engine: Engine) -> None:
        for vc in ("vision", "speech"):
            await printed(engine, engine.submit(shell(vc, STAYS, 4)), "here")

    lives.live(story)
    assert [job.guaranteed for job in look(lives, other_spec(("default", 8)))] == [False, False]
    assert [job.guaranteed for job in look(lives, other_spec(("default", 8)))] == [False, False]
    again = look(lives, SHARED)
    assert [(job.guaranteed, job.reason) for job in again] == [(True, "the cluster has a new spec")] * 2
    finish(lives)


def test_a_start_that_would_take_cells_names_the_jobs_before_anything_has_changed(lives: Lives) -> None:
    begin(lives, 4, 2, -2)
    for spec, names in (
        (other_spec(("other", 8)), ["job-1", "job-2"]),
        (other_spec(("vision", 4), devices=4), ["job-2"]),
        (other_spec(("vision", 8), node="other"), []),
        (EIGHT, []),
    ):
        with closing(Store(lives.folder)) as store:
            before = store.last_event()
            found = displaced_by(spec, store, time.time())
            assert [job.name for job, _ in found] == names
            assert all(why for _, why in found)
            assert store.last_event() == before
    assert [job.guaranteed for job in look(lives, EIGHT)] == [True, True, False]
    finish(lives)


def test_jobs_on_simulated_devices_are_not_taken_over_as_if_they_were_on_real_ones(lives: Lives) -> None:
    begin(lives, 2)
    with pytest.raises(ConflictError, match=r"1 job of the last start still runs? on simulated devices"):
        lives.live(nothing, devices=Real())
    finish(lives)
    lives.live(nothing, devices=Real())


def test_the_node_keeps_its_name_while_jobs_run_on_it(lives: Lives) -> None:
    # by its new name all of it was free, and was given twice
    begin(lives, 2)

    async def story(engine: Engine) -> None:
        with pytest.raises(InputError, match="calls the node other, and jobs run on it as node"):
            engine.reconfigure(other_spec(("vision", 8), node="other"))
        job = engine.find("1")
        assert job.guaranteed
        engine.cancel("1")
        await ended(engine, job)
        engine.reconfigure(other_spec(("vision", 8), node="other"))

    lives.live(story)


def test_a_live_spec_is_the_last_one_of_the_next_start(lives: Lives) -> None:
    begin(lives, 4)

    async def story(engine: Engine) -> None:
        engine.reconfigure(SHARED)

    lives.live(story)
    with closing(Store(lives.folder)) as store:
        last = last_start(store)
    assert last == LastStart(SHARED, simulated=True)
    finish(lives)


def test_a_device_that_was_given_twice_stays_idle_until_both_jobs_have_ended(lives: Lives) -> None:
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


def test_devices_that_a_job_holds_beyond_the_spec_are_explained_without_blame() -> None:
    engine = Driver(EIGHT)
    for _ in range(2):
        engine.submit(driver.job("vision", 4))
    _, last = engine.jobs.values()
    engine.restart(other_spec(("vision", 4), devices=4))
    told = explain(engine.job_scheduler, engine.jobs[last.id], engine.now)
    for words in (
        "runs on 4 GPUs", "on node GPUs 4-7", "the spec of now lacks node GPUs 4-7", "it asked to be guaranteed",
        "nobody else is given them",
    ):  # fmt: skip
        assert words in told
    engine.restart(other_spec(("speech", 8)))
    told = explain(engine.job_scheduler, engine.jobs[last.id], engine.now)
    assert "no cells of its VC stand under it now" in told
    assert "why: virtual cluster vision is no more" in told
    assert "others" not in told
    engine.submit(driver.job("speech", 8))
    engine.gone(engine.jobs[last.id])
    told = explain(engine.job_scheduler, engine.jobs[last.id], engine.now)
    assert "it is opportunistic and had to go for train-3 of VC speech" in told
    engine.check_record()
