"""The engine on the dashboard: pictures, what changed since, jobs' lives, and curves, whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from itertools import groupby

import pytest

from hived.engine.job import Event
from hived.engine.states import JobState
from hived.engine.trading import LiveTrading
from hived.engines.local.devices import Simulated, spec_for
from hived.engines.local.engine import Engine, Keeping
from hived.engines.local.fences import Fence
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.job_users import JobUsers
from hived.engines.local.model import Job
from hived.server import pictures
from hived.server.histories import stays
from hived.server.live import VIEW, DashboardView, LiveCurves
from hived.server.local_service import LocalService, local_view
from hived.spec import spec_from_dict

from ..engines.driver import SHARES, STOPPED, Driver, job
from ..engines.living import ended, printed, shell
from ..engines.test_any_facts import one_fact
from ..engines.test_guests import SETTLE_S, Hosts, hosting
from ..engines.test_taking_turns import Turns, sliced
from . import looking
from .looking import applied, in_order


class Seen:
    """A machine without an engine, as one that a dashboard looks at. ``kept``: so many events are at hand."""

    devices = Simulated()
    started_at = spec_loaded_at = 0.0
    spec_source = "a test"
    keeping, job_users, fences = Keeping(), JobUsers.here(), frozenset[Fence]()
    read_by = staticmethod(lambda _: "")

    def __init__(self, driver: Driver, kept: int | None = None) -> None:
        self.driver = driver
        self.kept = kept
        self.store = self

    @property
    def job_scheduler(self) -> JobScheduler:
        return self.driver.job_scheduler

    @property
    def cluster(self):  # type: ignore[no-untyped-def]
        return self.driver.job_scheduler.cluster

    @property
    def trading(self) -> LiveTrading:
        return self.driver.job_scheduler.trading

    @property
    def recent(self) -> deque[Event]:
        return deque(self.driver.events, self.kept)

    @property
    def last_event(self) -> int:
        return len(self.driver.events)

    async def changed(self, seq: int) -> None:
        while self.last_event <= seq:
            await asyncio.sleep(0.05)

    def clock(self) -> float:
        return self.driver.now

    def find(self, ref: str) -> Job:
        return self.driver.jobs[int(ref)]

    def events(self, after: int, limit: int, number: int | None) -> list[Event]:
        return [event for event in self.driver.events if event.job == number and event.seq > after][:limit]

    def histories(self, start: float, end: float) -> dict[int, list[Event]]:
        return {number: self.events(0, len(self.driver.events), number) for number in self.driver.jobs}


def looking_at(driver: Driver, kept: int | None = None) -> DashboardView[Job]:
    return local_view(LocalService(Seen(driver, kept)), "a machine")  # type: ignore[arg-type]


def check_picture(driver: Driver, picture: pictures.Picture, layout: pictures.Layout) -> None:
    health, jobs = driver.job_scheduler.health, [found for found in driver.jobs.values() if not found.state.ended]
    spec = driver.job_scheduler.cluster.spec
    looking.check_picture(picture, layout, spec, jobs, set(health.bad), set(health.drained), beyond=True)


def check_stays(driver: Driver) -> None:
    """Every life is covered, from when it was submitted."""
    for found in driver.jobs.values():
        life = stays([event for event in driver.events if event.job == found.id])
        assert life[0].start == found.submitted_at
        assert all(stay.where for stay in life if stay.kind not in ("waiting", "backoff", "held"))
        looking.check_stays(life, found, found.ended_at)


# -- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 25))])
def test_picture_and_changes_are_the_next(seed: int) -> None:
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


def test_what_is_too_old_is_drawn_anew() -> None:
    """A reader further behind than the events at hand, and everybody after a new spec, needs a new picture."""
    driver = Driver()
    for vc in ("vision", "speech", "research"):
        driver.submit(job(vc, 1))
    source = looking_at(driver, kept=3)
    last = len(driver.events)
    assert source.update(VIEW, last - 4) is None
    update = source.update(VIEW, last - 3)
    assert update is not None
    assert update.seq == last
    driver.reconfigure(spec_for("node", 16, "GPU", SHARES))
    assert source.update(VIEW, last) is None
    assert source.picture(VIEW).totals.gpus == 16


def test_only_changes_are_made_anew() -> None:
    """Holders are shared by the readers of pictures."""
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
    driver.cancel(driver.jobs[2])
    assert next(holder for holder in source.picture(VIEW).holders if holder.id == "2").stopping


def test_reserved_gpus_in_use_are_not_idle() -> None:
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


def test_order_of_loans_and_of_the_queue() -> None:
    """Unreserved GPUs are lent first; reservations come first in the queue."""
    driver = Driver(spec_for("node", 8, "GPU", (("vision", 4), ("speech", 2))))
    source = looking_at(driver)
    driver.submit(job("vision", 2, priority=-1))
    assert [row.lent for row in source.picture(VIEW).usage] == [0, 0]
    driver.submit(job("speech", 3, priority=-1))
    assert [row.lent for row in source.picture(VIEW).usage] == [2, 1]
    driver = Driver()
    driver.submit(job("vision", 4))
    borrower, owner = driver.submit(job("research", 8, priority=-1)), driver.submit(job("vision", 4))
    assert [row.id for row in looking_at(driver).picture(VIEW).queue] == [str(owner.id), str(borrower.id)]


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


def test_devices_are_where_they_are() -> None:
    """On several nodes, of several kinds, with numbers of their own."""
    driver = Driver(spec_from_dict(TWO_CHAINS))
    source = looking_at(driver)
    gang = driver.submit(job("rack", 4, tasks=2))
    half = driver.submit(job("half", 2))
    assert gang.state is half.state is JobState.RUNNING
    driver.set_health([("b0", 6), ("a1", 3)])
    picture = source.picture(VIEW)
    check_picture(driver, picture, source.layout())
    shown = {holder.id: holder for holder in picture.holders}
    assert shown[str(gang.id)].binding[0].startswith("in rack's RACK, bound to number 0 of 1")
    assert shown[str(half.id)].binding[0] in [f"in half's B-HALF, bound to b0 GPUs {gpus}" for gpus in ("2-3", "6-7")]
    layout = source.layout()
    assert [vc.name for vc in layout.vcs] == ["rack", "half"]
    assert [vc.gpus for vc in layout.vcs] == [8, 2]
    # and a cell is of the node that it is on
    nodes = {name: {"cellType": "NODE", "cellAddress": name} for name in ("a", "b")}
    types = {"NODE": {"childCellType": "GPU", "childCellNumber": 2, "isNodeLevel": True}}
    spec = {
        "physicalCluster": {"cellTypes": types, "physicalCells": list(nodes.values())},
        "virtualClusters": {"all": {"virtualCells": [{"cellType": "NODE", "cellNumber": 2}]}},
    }
    driver = Driver(spec_from_dict(spec))
    for _ in range(2):
        driver.submit(job("all", 2))
    bindings = [text for holder in looking_at(driver).picture(VIEW).holders for text in holder.binding]
    assert sorted(bindings) == ["in all's NODE, bound to a GPUs 0-1", "in all's NODE, bound to b GPUs 0-1"]


# -- jobs that share GPUs ---------------------------------------------------------------------------------------------


def followed(source: DashboardView[Job], picture: pictures.Picture) -> pictures.Picture:
    """The picture with what has changed since, which is the whole of now."""
    update = source.update(VIEW, picture.seq)
    assert update is not None
    whole = source.picture(VIEW)
    assert in_order(applied(picture, update)) == in_order(whole)
    return whole


def test_turns_change_as_jobs_come_and_go() -> None:
    """Those of jobs to which nothing has happened too."""
    driver = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    source = looking_at(driver)
    jobs = [driver.submit(job("vision")) for _ in range(2)]
    picture = source.picture(VIEW)
    shares = []
    for _ in range(3):
        jobs.append(driver.submit(job("vision")))
        picture = followed(source, picture)
        driver.pass_time(35)
        picture = followed(source, picture)
        shares.append({round(holder.share, 3) for holder in picture.holders})
    assert shares == [{0.667}, {0.5}, {0.4}]
    assert {holder.suspended for holder in picture.holders} == {True, False}
    for found in jobs[:3]:
        driver.end(found)
        picture = followed(source, picture)
    assert {holder.share for holder in picture.holders} == {1.0}
    packing = Turns(sliced(("vision", 1), ("speech", 1), devices=2, policy="gandiva:quantum_s=10"))
    for _ in range(2):
        packing.submit(job("vision"))
    packing.pass_time(300)
    assert sorted(holder.packed_with for holder in looking_at(packing).picture(VIEW).holders) == [
        ("train-1",), ("train-2",),
    ]  # fmt: skip


def test_guest_its_limits_and_its_story() -> None:
    driver = Hosts(hosting(("vision", 1), ("speech", 1), devices=2))
    source = looking_at(driver)
    owner, other = driver.submit(job("vision")), driver.submit(job("speech"))
    driver.busy[other.id] = 0.9
    driver.pass_time(SETTLE_S + 20)
    picture = source.picture(VIEW)
    guest = driver.submit(job("speech", early=True))
    for _ in range(60):
        driver.pass_time(1)
        picture = followed(source, picture)
    shown = {holder.id: holder for holder in picture.holders}
    limits = shown[guest.key].limits
    assert limits is not None
    assert (shown[guest.key].kind, limits.share, limits.by_hand) == ("guest", 0.7, False)
    assert (shown[owner.key].kind, shown[owner.key].parts) == ("guaranteed", shown[guest.key].parts)
    told = source.story(VIEW, guest.key)
    assert told.stays[-1].kind == "guest"
    assert "it is limited to 70% of the time" in told.explanation
    assert f"it runs as a guest beside {owner.name}" in told.explanation
    driver.do(lambda jobs: jobs.does_not_obey(guest, driver.now))
    driver.gone(guest)
    driver.pass_time(5)
    driver.end(other)
    driver.pass_time(5)
    assert guest.guaranteed
    kinds = [kind for kind, _ in groupby(stay.kind for stay in source.story(VIEW, guest.key).stays)]
    assert kinds == ["guest", "waiting", "guaranteed"], "it is a guest no more"


# -- lives ------------------------------------------------------------------------------------------------------------


def test_downgraded_while_stopping() -> None:
    # its life said that it ran on as opportunistic
    driver = Driver()
    runs = driver.submit(job("vision", 4))
    driver.cancel(runs)
    driver.reconfigure(spec_for("node", 8, "GPU", (("speech", 8),)))
    assert runs.state is JobState.STOPPING
    assert not runs.guaranteed
    check_stays(driver)
    driver.end(runs, STOPPED)
    check_stays(driver)


def test_clock_that_is_set_back() -> None:
    """It makes no stretch of less than nothing, and does not stop the curves."""
    events = [Event(1, 100.0, "submitted", 1, {}), Event(2, 50.0, "cancelled", 1, {})]
    (stay,) = stays(events)
    assert (stay.start, stay.end) == (100.0, 100.0)
    # there was no point until the clock had come to where it had been, a day later
    curves = LiveCurves()
    for second in range(100):
        curves.add(1000.0 + second, totals(1), 0)
    for second in range(10):
        curves.add(500.0 + second, totals(8), 0)
    shown = curves.shown()
    assert shown.at == sorted(shown.at)
    assert shown.guaranteed[-1] == 1.0


def test_what_keeps_its_gpus_keeps_its_place() -> None:
    """An event that leaves a job its GPUs need not say where they are: the preemption that is called off does not."""
    own = {"pods": [["node", [0, 1]]], "levels": [1], "chain": "GPU"}
    told = [
        Event(1, 1.0, "submitted", "train"),
        Event(2, 2.0, "started", "train", {"placement": own}),
        Event(3, 3.0, "stopping", "train"),
        Event(4, 4.0, "stop_cancelled", "train"),
        Event(5, 5.0, "downgraded", "train", {"placement": {**own, "levels": []}}),
        Event(6, 6.0, "stopping", "train"),
        Event(7, 7.0, "stop_cancelled", "train"),
        Event(8, 8.0, "requeued", "train"),
    ]
    found = [(stay.kind, stay.where) for stay in stays(told)]
    here = "node:0,1"
    before = [("waiting", ""), ("guaranteed", here), ("stopping", here), ("guaranteed", here)]
    assert found == [*before, ("opportunistic", here), ("stopping", here), ("opportunistic", here), ("waiting", "")]


def test_long_story_is_whole() -> None:
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


# -- curves -----------------------------------------------------------------------------------------------------------


def totals(guaranteed: int, opportunistic: int = 0) -> pictures.Totals:
    return pictures.Totals(
        gpus=8, guaranteed=guaranteed, opportunistic=opportunistic, reserved=0, bad=0, fragmentation=0.5
    )


def test_sample_is_a_part_of_the_gpus() -> None:
    sample = LiveCurves().add(1.0, totals(guaranteed=2, opportunistic=4), 3)
    assert (sample.guaranteed, sample.opportunistic, sample.fragmentation, sample.waiting) == (0.25, 0.5, 0.5, 3)


def test_curves_of_a_long_time() -> None:
    """They stay small and in order, and old times are as well remembered as new ones."""
    curves = LiveCurves()
    for second in range(50_000):
        curves.add(float(second), totals(second % 9), second)
    shown = curves.shown()
    assert 500 <= len(shown.at) <= 2000
    assert shown.at == sorted(shown.at)
    assert shown.at[-1] > 49_900
    assert len({len(shown.at), len(shown.guaranteed), len(shown.fragmentation), len(shown.waiting)}) == 1
    assert sum(at < 25_000 for at in shown.at) >= len(shown.at) / 4
    # of fast samples there is about one a second, and the last
    curves = LiveCurves()
    for number in range(401):
        curves.add(number / 4, totals(guaranteed=number % 9), 0)
    shown = curves.shown()
    assert 90 <= len(shown.at) <= 150
    assert (shown.at[-1], shown.guaranteed[-1]) == (100.0, (400 % 9) / 8)


# -- a real engine ----------------------------------------------------------------------------------------------------


async def test_real_engine(engine: Engine) -> None:
    """Update by update, part by part, and a job's story."""
    source = local_view(LocalService(engine), "here")
    picture = source.picture(VIEW)

    async def follow() -> None:
        nonlocal picture
        while picture.queue_total < 5:
            await source.changed(picture.seq)
            update = source.update(VIEW, picture.seq)
            assert update is not None
            picture = applied(picture, update)

    following = asyncio.create_task(follow())
    over = [engine.submit(shell("vision", "exit 0")), engine.submit(shell("vision", "exit 3"))]
    await ended(engine, *over)
    stays_on = engine.submit(shell("vision", "echo here; exec sleep 600", gpus=4))
    await printed(engine, stays_on, "here")
    line = [engine.submit(shell("vision", "true")) for _ in range(5)]
    await following
    whole = source.picture(VIEW)
    assert in_order(picture.model_copy(update={"at": whole.at})) == in_order(whole)
    assert [holder.id for holder in whole.holders] == [str(stays_on.id)]
    parts = [source.queue(VIEW, None, offset, 2) for offset in (0, 2, 4, 6)]
    assert [[job.id for job in part.jobs] for part in parts] == [
        [str(one.id) for one in line[first : first + 2]] for first in (0, 2, 4, 6)
    ]
    assert {part.total for part in parts} == {5}
    found = source.ended(VIEW, None, 0, 1)
    assert (found.total, [(job.id, job.state) for job in found.jobs]) == (2, [(str(over[1].id), "failed")])
    assert [job.state for job in source.ended(VIEW, None, 1, 9).jobs] == ["succeeded"]
    engine.cancel(str(stays_on.id))
    await ended(engine, stays_on)
    told = source.story(VIEW, str(stays_on.id))
    assert (told.state, told.command) == ("cancelled", "sh -c echo here; exec sleep 600")
    assert [stay.kind for stay in told.stays][-2:] == ["guaranteed", "stopping"]
    assert source.curves(VIEW).at
