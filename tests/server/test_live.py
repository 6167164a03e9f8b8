"""The engine on the dashboard: pictures, what changed since, and jobs' lives, whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from hived.engines.job import Event
from hived.engines.local.devices import Simulated, spec_for
from hived.engines.local.engine import Engine
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.model import Job, JobState
from hived.server import pictures
from hived.server.live import VIEW, DashboardView, LiveCurves, stays
from hived.server.local_service import AFTER, local_view
from hived.spec import spec_from_dict

from ..engines.driver import STOPPED, Driver, job
from ..engines.living import Lives, ended, printed, shell, state
from ..engines.test_any_facts import one_fact
from . import looking
from .looking import applied, in_order


class Seen:
    """A machine without an engine, as one that a dashboard looks at."""

    devices = Simulated()
    started_at = 0.0

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.store = self

    @property
    def job_scheduler(self) -> JobScheduler:
        return self.driver.job_scheduler

    @property
    def cluster(self):  # type: ignore[no-untyped-def]
        return self.driver.job_scheduler.cluster

    @property
    def recent(self) -> deque[Event]:
        return deque(self.driver.events)

    @property
    def last_event(self) -> int:
        return len(self.driver.events)

    def clock(self) -> float:
        return self.driver.now

    def find(self, ref: str) -> Job:
        return self.driver.jobs[int(ref)]

    def events(self, after: int, limit: int, number: int | None) -> list[Event]:
        return [event for event in self.driver.events if event.job == number and event.seq > after][:limit]


def looking_at(driver: Driver) -> DashboardView[Job]:
    return local_view(Seen(driver), "a machine")  # type: ignore[arg-type]


def check_picture(driver: Driver, picture: pictures.Picture, layout: pictures.Layout) -> None:
    health, jobs = driver.job_scheduler.health, [found for found in driver.jobs.values() if not found.state.ended]
    spec = driver.job_scheduler.cluster.spec
    looking.check_picture(picture, layout, spec, jobs, set(health.bad), set(health.drained), beyond=True)


def check_stays(driver: Driver) -> None:
    """Every life is covered, from when it was submitted."""
    for found in driver.jobs.values():
        life = stays([event for event in driver.events if event.job == found.id], AFTER)
        assert life[0].start == found.submitted_at
        assert all(stay.where for stay in life if stay.kind not in ("waiting", "backoff"))
        looking.check_stays(life, found, found.ended_at)


@pytest.mark.parametrize("seed", range(25))
def test_a_picture_and_all_that_changed_are_the_next_picture(seed: int) -> None:
    choose = random.Random(seed)
    driver = Driver()
    source = looking_at(driver)
    picture, layout = source.picture(VIEW), source.layout()
    for _ in range(60):
        one_fact(driver, choose, True)
        driver.now += choose.random()
        if choose.random() < 0.4:
            continue  # several facts in one update
        update = source.update(VIEW, picture.seq)
        whole = source.picture(VIEW)
        if update is None:  # a new layout: the browser asks for everything
            anew = ("reconfigured", "recovered", "trade_begun", "trade_over", "trade_ended")
            new = any(e.kind in anew for e in driver.events[picture.seq :])
            assert not driver.events or new or source.layout() != layout
            picture, layout = whole, source.layout()
        else:
            assert source.layout() == layout, "nobody was told of another layout"
            picture = applied(picture, update)
        assert in_order(picture) == in_order(whole)
        check_picture(driver, whole, source.layout())
    check_stays(driver)


def test_a_job_that_is_downgraded_while_stopping_is_still_being_stopped() -> None:
    # its life said that it ran on as opportunistic
    driver = Driver()
    runs = driver.submit(job("vision", 4))
    driver.do(lambda job_scheduler: job_scheduler.cancel(runs, driver.now))
    other = spec_for("node", 8, "GPU", (("speech", 8),))
    driver.do(lambda job_scheduler: job_scheduler.reconfigure(other, driver.now))
    assert runs.state is JobState.STOPPING
    assert not runs.guaranteed
    check_stays(driver)
    driver.end(runs, STOPPED)
    check_stays(driver)


def test_a_clock_that_is_set_back_makes_no_stretch_of_less_than_nothing() -> None:
    events = [Event(1, 100.0, "submitted", 1, {}), Event(2, 50.0, "cancelled", 1, {})]
    (stay,) = stays(events, AFTER)
    assert (stay.start, stay.end) == (100.0, 100.0)


def test_reserved_gpus_that_are_still_in_use_are_not_idle() -> None:
    # they were counted twice: as held by who has to go, and as idle and reserved
    driver = Driver()
    loan = driver.submit(job("research", 6, priority=-1))
    owner = driver.submit(job("vision", 4))
    assert owner.state is JobState.RESERVED
    source = looking_at(driver)
    totals = source.picture(VIEW).totals
    assert totals.opportunistic == 6
    assert totals.reserved + totals.opportunistic <= totals.gpus
    check_picture(driver, source.picture(VIEW), source.layout())
    driver.gone(loan)
    check_picture(driver, source.picture(VIEW), source.layout())


def test_a_story_is_whole_however_long_it_is() -> None:
    # of a job with more than 10,000 events its end was missing
    driver = Driver()
    found = driver.submit(job("vision", 1))
    driver.end(found)
    *before, last = driver.events
    many = [Event(len(before) + n, 1.0, "task_ended", found.id, {"rank": 0, "code": 0}) for n in range(1, 11_001)]
    driver.events = [*before, *many, Event(len(before) + 11_001, last.at, last.kind, last.job, last.data)]
    story = looking_at(driver).story(VIEW, "1")
    assert story.stays[-1].end is not None
    assert story.moments[-1].text == f"{found.name} succeeded"


TWO_CHAINS = {
    "physicalCluster": {
        "cellTypes": {
            "A": {"childCellType": "V100", "childCellNumber": 4, "isNodeLevel": True},
            "B-HALF": {"childCellType": "K80", "childCellNumber": 2},
            "B": {"childCellType": "B-HALF", "childCellNumber": 2, "isNodeLevel": True},
            "RACK": {"childCellType": "A", "childCellNumber": 2},
        },
        "physicalCells": [
            {"cellType": "RACK", "cellAddress": "r", "cellChildren": [{"cellAddress": "a0"}, {"cellAddress": "a1"}]},
            {"cellType": "B", "cellAddress": "b0", "cellChildren": [
                {"cellAddress": "0", "cellChildren": [{"cellAddress": "6"}, {"cellAddress": "7"}]},
                {"cellAddress": "1", "cellChildren": [{"cellAddress": "2"}, {"cellAddress": "3"}]},
            ]},
        ],
    },
    "virtualClusters": {
        "rack": {"virtualCells": [{"cellType": "RACK", "cellNumber": 1}]},
        "half": {"virtualCells": [{"cellType": "B.B-HALF", "cellNumber": 1}]},
    },
}  # fmt: skip


def test_devices_of_several_nodes_kinds_and_numbers_are_where_they_are() -> None:
    driver = Driver(spec_from_dict(TWO_CHAINS))
    source = looking_at(driver)
    gang = driver.submit(job("rack", 4, tasks=2))
    half = driver.submit(job("half", 2))
    assert gang.state is half.state is JobState.RUNNING
    driver.do(lambda job_scheduler: job_scheduler.set_health([("b0", 6), ("a1", 3)], "NVML: lost", driver.now))
    picture = source.picture(VIEW)
    check_picture(driver, picture, source.layout())
    shown = {holder.id: holder for holder in picture.holders}
    assert shown[str(gang.id)].binding[0].startswith("in rack's RACK, bound to number 0 of 1")
    assert shown[str(half.id)].binding == ["in half's B-HALF, bound to b0 GPUs 2-3"] or shown[str(half.id)].binding == [
        "in half's B-HALF, bound to b0 GPUs 6-7"
    ]
    layout = source.layout()
    assert [vc.name for vc in layout.vcs] == ["rack", "half"]
    assert [vc.gpus for vc in layout.vcs] == [8, 2]


# -- curves -------------------------------------------------------------------------------------------------------


def totals(guaranteed: int) -> pictures.Totals:
    return pictures.Totals(gpus=8, guaranteed=guaranteed, opportunistic=0, reserved=0, bad=0, fragmentation=0.0)


def test_curves_stay_small_and_in_order_however_long_an_engine_runs() -> None:
    curves = LiveCurves()
    for second in range(50_000):
        curves.add(float(second), totals(second % 9), second)
    shown = curves.shown()
    assert 500 <= len(shown.at) <= 2000
    assert shown.at == sorted(shown.at)
    assert shown.at[-1] > 49_900
    assert len({len(shown.at), len(shown.guaranteed), len(shown.fragmentation), len(shown.waiting)}) == 1


def test_a_clock_that_is_set_back_does_not_stop_the_curves() -> None:
    # there was no point until the clock had come to where it had been, a day later
    curves = LiveCurves()
    for second in range(100):
        curves.add(1000.0 + second, totals(1), 0)
    for second in range(10):
        curves.add(500.0 + second, totals(8), 0)
    shown = curves.shown()
    assert shown.at == sorted(shown.at)
    assert shown.guaranteed[-1] == 1.0


# -- a real engine ------------------------------------------------------------------------------------------------


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "state")
    yield made
    made.end()


def test_a_real_engine_is_followed_update_by_update(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        source = local_view(engine, "here")
        picture = source.picture(VIEW)
        stop = asyncio.Event()
        seen: list[pictures.Picture] = []

        async def follow() -> None:
            nonlocal picture
            while not stop.is_set() or picture.seq < engine.last_event:
                await source.changed(picture.seq)
                update = source.update(VIEW, picture.seq)
                assert update is not None
                picture = applied(picture, update)
                seen.append(picture)

        following = asyncio.create_task(follow())
        loan = engine.submit(shell("research", "echo here; exec sleep 600", 8, priority=-1))
        await printed(engine, loan, "here")
        jobs = [engine.submit(shell("vision", "true", gpus)) for gpus in (4, 2, 1)]
        await ended(engine, *jobs)
        engine.drain(None, 0, False, False)
        await state(engine, loan, JobState.QUEUED, JobState.RUNNING)
        engine.cancel(str(loan.id))
        await ended(engine, loan)
        stop.set()
        engine.drain(None, 0, True, False)
        await asyncio.wait_for(following, 10)
        whole = source.picture(VIEW)
        assert in_order(picture.model_copy(update={"at": whole.at})) == in_order(whole)
        assert not whole.holders
        assert any(holder.kind == "reserved" for shown in seen for holder in shown.holders)
        told = source.story(VIEW, str(loan.id))
        assert told.state == "cancelled"
        assert [stay.kind for stay in told.stays][:3] == ["waiting", "opportunistic", "stopping"]
        assert told.command == "sh -c echo here; exec sleep 600"
        assert source.curves(VIEW).at

    lives.live(story)


def test_a_picture_is_made_anew_only_of_changes_and_shared_by_its_readers() -> None:
    driver = Driver()
    for _ in range(3):
        driver.submit(job("vision", gpus=1))
    source = looking_at(driver)
    before = source.picture(VIEW)
    assert all(a is b for a, b in zip(before.holders, source.picture(VIEW).holders, strict=True))
    driver.submit(job("vision", gpus=1))
    driver.end(driver.jobs[1])
    shown = {holder.id: holder for holder in source.picture(VIEW).holders}
    assert list(shown) == ["2", "3", "4"]
    assert all(shown[holder.id] is holder for holder in before.holders if holder.id != "1")
    assert driver.jobs[2].placement is not None
    driver.do(lambda job_scheduler: job_scheduler.cancel(driver.jobs[2], driver.now))
    assert next(holder for holder in source.picture(VIEW).holders if holder.id == "2").stopping


def test_the_rest_of_the_queue_and_what_has_ended_are_had_part_by_part(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        source = local_view(engine, "a machine")
        over = [engine.submit(shell("vision", "exit 0")), engine.submit(shell("vision", "exit 3"))]
        for one in over:
            await ended(engine, one)
        runs = engine.submit(shell("vision", "sleep 60", gpus=4))
        line = [engine.submit(shell("vision", "true")) for _ in range(5)]
        parts = [source.queue(VIEW, None, offset, 2) for offset in (0, 2, 4, 6)]
        assert [[job.id for job in part.jobs] for part in parts] == [
            [str(one.id) for one in line[first : first + 2]] for first in (0, 2, 4, 6)
        ]
        assert {part.total for part in parts} == {5}
        found = source.ended(VIEW, None, 0, 1)
        assert (found.total, [(job.id, job.state) for job in found.jobs]) == (2, [(str(over[1].id), "failed")])
        assert [job.state for job in source.ended(VIEW, None, 1, 9).jobs] == ["succeeded"]
        for one in (*line, runs):
            engine.cancel(str(one.id))
        await ended(engine, runs)

    lives.live(story)
