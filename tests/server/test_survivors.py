"""Faults that were put into the server's view of an engine on purpose, and that no test had noticed."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest

from hived.engines.job import Event
from hived.engines.local.devices import spec_for
from hived.engines.local.engine import Engine
from hived.engines.local.model import JobState
from hived.server import pictures, schema
from hived.server.live import VIEW, LiveCurves
from hived.server.local_service import LocalService, local_view
from hived.spec import spec_from_dict

from ..engines.driver import SHARES, Driver, job
from ..engines.living import Lives, printed, shell, state
from .test_live import Seen

STAYS = "echo here; exec sleep 600"


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "state")
    yield made
    made.end()


# -- curves -------------------------------------------------------------------------------------------------------


def totals(guaranteed: int = 0, opportunistic: int = 0) -> pictures.Totals:
    return pictures.Totals(
        gpus=8, guaranteed=guaranteed, opportunistic=opportunistic, reserved=0, bad=0, fragmentation=0.5
    )


def test_a_sample_says_which_part_of_the_gpus_is_in_use() -> None:
    sample = LiveCurves().add(1.0, totals(guaranteed=2, opportunistic=4), 3)
    assert (sample.guaranteed, sample.opportunistic, sample.fragmentation, sample.waiting) == (0.25, 0.5, 0.5, 3)


def test_old_times_are_as_well_remembered_as_new_ones() -> None:
    curves = LiveCurves()
    for second in range(50_000):
        curves.add(float(second), totals(), 0)
    early = sum(at < 25_000 for at in curves.shown().at)
    assert early >= len(curves.shown().at) / 4


def test_samples_that_come_fast_are_about_one_a_second_and_the_last_is_there() -> None:
    curves = LiveCurves()
    for number in range(401):
        curves.add(number / 4, totals(guaranteed=number % 9), 0)
    shown = curves.shown()
    assert 90 <= len(shown.at) <= 150
    assert (shown.at[-1], shown.guaranteed[-1]) == (100.0, (400 % 9) / 8)


# -- pictures -----------------------------------------------------------------------------------------------------


class Forgetful(Seen):
    """Has the latest three events at hand."""

    @property
    def recent(self) -> deque[Event]:
        return deque(self.driver.events, 3)


def test_a_reader_further_behind_than_the_kept_events_needs_a_new_picture() -> None:
    driver = Driver()
    for vc in ("vision", "speech", "research"):
        driver.submit(job(vc, 1))
    source = local_view(Forgetful(driver), "a machine")  # type: ignore[arg-type]
    last = len(driver.events)
    assert source.update(VIEW, last - 4) is None
    update = source.update(VIEW, last - 3)
    assert update is not None
    assert update.seq == last


def test_after_a_new_spec_everything_is_drawn_anew() -> None:
    driver = Driver()
    source = local_view(Seen(driver), "a machine")  # type: ignore[arg-type]
    before = source.picture(VIEW)
    more = spec_for("node", 16, "GPU", SHARES)
    driver.do(lambda job_scheduler: job_scheduler.reconfigure(more, driver.now))
    assert source.update(VIEW, before.seq) is None
    assert source.picture(VIEW).totals.gpus == 16


def test_unreserved_gpus_are_lent_first() -> None:
    driver = Driver(spec_for("node", 8, "GPU", (("vision", 4), ("speech", 2))))
    source = local_view(Seen(driver), "a machine")  # type: ignore[arg-type]
    driver.submit(job("vision", 2, priority=-1))
    assert [row.lent for row in source.picture(VIEW).usage] == [0, 0]
    driver.submit(job("speech", 3, priority=-1))
    assert [row.lent for row in source.picture(VIEW).usage] == [2, 1]


def test_the_queue_begins_with_jobs_that_have_a_reservation() -> None:
    driver = Driver()
    source = local_view(Seen(driver), "a machine")  # type: ignore[arg-type]
    driver.submit(job("vision", 4))
    borrower, owner = driver.submit(job("research", 8, priority=-1)), driver.submit(job("vision", 4))
    assert [row.id for row in source.picture(VIEW).queue] == [str(owner.id), str(borrower.id)]


TWO_NODES = {
    "physicalCluster": {
        "cellTypes": {"NODE": {"childCellType": "GPU", "childCellNumber": 2, "isNodeLevel": True}},
        "physicalCells": [{"cellType": "NODE", "cellAddress": name} for name in ("a", "b")],
    },
    "virtualClusters": {"all": {"virtualCells": [{"cellType": "NODE", "cellNumber": 2}]}},
}


def test_a_reserved_cell_is_of_the_node_that_it_is_on() -> None:
    driver = Driver(spec_from_dict(TWO_NODES))
    source = local_view(Seen(driver), "a machine")  # type: ignore[arg-type]
    for _ in range(2):
        driver.submit(job("all", 2))
    bindings = [text for holder in source.picture(VIEW).holders for text in holder.binding]
    assert sorted(bindings) == ["in all's NODE, bound to a GPUs 0-1", "in all's NODE, bound to b GPUs 0-1"]


# -- the words of the API -----------------------------------------------------------------------------------------


def wish(vc: str, gpus: int, **more: object) -> schema.Submission:
    return schema.Submission.model_validate({"vc": vc, "command": ["true"], "gpus": gpus, **more})


def test_a_plan_counts_those_of_its_own_line(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        service = LocalService(engine)
        for vc, gpus, priority in (("vision", 4, 0), ("vision", 2, 0), ("vision", 8, -1)):
            engine.submit(shell(vc, STAYS, gpus, priority=priority))
        await state(engine, engine.find("1"), JobState.RUNNING)
        assert "job-2" in service.plan(wish("vision", 1)).text
        assert "job-3" not in service.plan(wish("vision", 1)).text
        loan = service.plan(wish("vision", 1, priority=-1))
        assert loan.outcome == "waits"
        assert "job-3" in loan.text
        assert "job-2" not in loan.text

    lives.live(story)


def test_a_job_with_a_reservation_holds_no_gpus_yet(lives: Lives) -> None:
    async def story(engine: Engine) -> tuple[schema.Job, list[schema.Device]]:
        loan = engine.submit(shell("research", f"trap '' TERM; {STAYS}", 8, priority=-1))
        await printed(engine, loan, "here")
        owner = engine.submit(shell("vision", "true", 4))
        await state(engine, owner, JobState.RESERVED)
        return LocalService(engine).shown(owner), LocalService(engine).devices()

    shown, devices = lives.live(story)
    assert (shown.state, shown.kind, len(shown.placement)) == ("reserved", None, 1)
    assert [device.job for device in devices] == [1] * 8, "who has them still"


def test_devices_come_page_by_page(lives: Lives) -> None:
    async def story(engine: Engine) -> list[list[int]]:
        service = LocalService(engine)
        return [[device.device for device in service.devices(None, offset, 3)] for offset in (0, 3, 6, 9)]

    assert lives.live(story) == [[0, 1, 2], [3, 4, 5], [6, 7], []]


def test_the_output_of_an_earlier_start_has_an_end_even_if_it_is_gone(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        script = f"[ $HIVED_RETRIES = 1 ] || exit 1; {STAYS}"
        flaky = engine.submit(shell("vision", script, retries=1, backoff_s=0.01))
        await printed(engine, flaky, "here")
        shutil.rmtree(engine.task(flaky, 0, 1).folder)
        assert LocalService(engine).log("1", 0, 1, 0, 100).end

    lives.live(story)
