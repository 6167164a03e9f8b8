"""Who has the GPUs of a running engine, and when: boxes made of the events of its jobs."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from hived.engine.job import Event
from hived.engine.states import JobState
from hived.engines.local import store as stores
from hived.engines.local.engine import Engine
from hived.engines.local.store import Store
from hived.errors import InputError, NotFoundError
from hived.server.app import make_app
from hived.server.histories import spells
from hived.server.live import VIEW
from hived.server.live_timeline import GUESTS, Life, node_timeline
from hived.server.local_service import LocalService, local_view
from hived.server.pictures import MOST_BOXES, GpuBox, GpuTimeline

from ..engines.driver import Driver, job
from ..engines.living import ended, printed, shell
from ..engines.test_accounts import Machine
from ..engines.test_accounts import life as lived
from ..engines.test_guests import SETTLE_S, Hosts, hosting
from ..engines.test_taking_turns import Turns, sliced
from .test_live import looking_at

#: of a box: job, start, end, way
Told = tuple[str, float, float, str]


def lives(driver: Driver) -> list[Life]:
    return [
        Life(number, str(number), one.name, one.vc, one.gpus, [event for event in driver.events if event.job == number])
        for number, one in driver.jobs.items()
    ]


def life(number: int, *events: tuple[float, str, dict[str, Any]]) -> Life:
    """A job of one GPU by its events after the submission at 0."""
    told = [Event(at, since, kind, number, data) for at, (since, kind, data) in enumerate(events, 2)]
    return Life(number, str(number), f"train-{number}", "vision", 1, [Event(1, 0.0, "submitted", number), *told])


def on(*devices: int, node: str = "node", levels: Sequence[int] = (1,)) -> dict[str, Any]:
    return {"placement": {"chain": "GPU", "pods": [[node, list(devices)]], "levels": list(levels)}}


def shown(start: float, end: float, *of: Life, now: float = 1e6, devices: int = 2) -> GpuTimeline:
    found = node_timeline("node", range(devices), of, start, end, now)
    check(found, min(end, now))
    return found


def check(found: GpuTimeline, until: float) -> None:
    """Boxes are in the window and do not cover each other."""
    for lane in found.lanes:
        for box in lane.boxes:
            assert found.start <= box.start < box.end <= until
            assert 0 <= box.bottom < box.top <= 1 + GUESTS + 1e-4
            assert (box.way == "guest") is (box.bottom >= 1)
        for one in lane.boxes:
            for other in lane.boxes:
                apart = one.end <= other.start + 1e-6 or other.end <= one.start + 1e-6
                apart = apart or one.top <= other.bottom + 1e-4 or other.top <= one.bottom + 1e-4
                assert one is other or apart
    assert {box.job for lane in found.lanes for box in lane.boxes} - {None} == set(range(len(found.jobs)))


def user(found: GpuTimeline, box: GpuBox) -> str:
    return "several" if box.job is None else found.jobs[box.job].id


def told(found: GpuTimeline, device: int = 0) -> list[Told]:
    boxes = sorted(found.lanes[device].boxes, key=lambda box: (box.start, box.bottom))
    return [(user(found, box), box.start, box.end, box.way) for box in boxes]


def seconds(found: GpuTimeline, of: Callable[[GpuBox], float], device: int | None = None) -> dict[str, float]:
    """Of each job, summed over time."""
    sums: defaultdict[str, float] = defaultdict(float)
    for lane in found.lanes if device is None else [found.lanes[device]]:
        for box in lane.boxes:
            sums[user(found, box)] += (box.end - box.start) * of(box)
    return dict(sums)


def height(box: GpuBox) -> float:
    return box.top - box.bottom


# -- from events to boxes ---------------------------------------------------------------------------------------------


def test_waiting_for_a_turn_is_on_no_gpu() -> None:
    first = life(1, (10, "started", on(0)), (20, "suspended", {"why": "", "by_hand": False}), (30, "resumed", on(1)))
    second = life(2, (20, "started", on(0)), (40, "succeeded", {}))
    found = shown(0, 50, first, second)
    assert told(found) == [("1", 10, 20, "whole"), ("2", 20, 40, "whole")]
    assert told(found, 1) == [("1", 30, 50, "whole")]
    assert [user.name for user in found.jobs] == ["train-1", "train-2"]
    assert found.jobs[0].colour != found.jobs[1].colour


def test_packed_jobs_are_there_at_the_same_time() -> None:
    found = shown(0, 50, life(1, (10, "started", on(0))), life(2, (20, "started", on(0)), (30, "succeeded", {})))
    assert told(found) == [
        ("1", 10, 20, "whole"),
        ("1", 20, 30, "packed"),
        ("2", 20, 30, "packed"),
        ("1", 30, 50, "whole"),
    ]
    assert seconds(found, height) == {"1": pytest.approx(35), "2": pytest.approx(5)}


def test_guest_has_the_height_of_its_limit() -> None:
    owner = life(1, (10, "started", on(0)), (40, "succeeded", {}))
    guest = life(
        2, (20, "started", {**on(0, levels=()), "floor": 0.05}), (20, "shared", {"guest": True, "beside": ["train-1"]}),
        (25, "limited", {"memory": 1, "share": 0.5, "why": ""}), (30, "stopping", {}), (35, "requeued", {}),
        (36, "started", on(0, levels=())),
    )  # fmt: skip
    found = shown(0, 50, owner, guest)
    assert told(found)[:3] == [("1", 10, 36, "whole"), ("2", 20, 25, "guest"), ("2", 25, 35, "guest")]
    first, then = [box for box in found.lanes[0].boxes if box.way == "guest"]
    assert [first.limit, first.bottom, first.top] == pytest.approx([0.05, 1.0, 1 + GUESTS * 0.05])
    assert [then.limit, then.share, then.top] == pytest.approx([0.5, 1.0, 1 + GUESTS * 0.5])
    assert told(found)[3:] == [("1", 36, 40, "packed"), ("2", 36, 40, "packed"), ("2", 40, 50, "whole")], (
        "a guest no more"
    )


def test_guests_share_their_band() -> None:
    def guest(number: int, share: float) -> Life:
        limited = {"memory": 0, "share": share, "why": ""}
        return life(number, (0, "started", on(0)), (0, "shared", {"guest": True}), (0, "limited", limited))

    found = shown(0, 50, life(1, (0, "started", on(0))), guest(2, 0.9), guest(3, 0.6))
    assert [box.way for box in found.lanes[0].boxes] == ["whole", "guest", "guest"]
    assert [height(box) for box in found.lanes[0].boxes] == pytest.approx([1.0, GUESTS * 0.6, GUESTS * 0.4], abs=1e-5)


def test_suspended_by_hand_is_paused_where_nobody_else_is() -> None:
    paused = life(
        1, (10, "started", on(0)), (20, "suspended", {"why": "", "by_hand": False}),
        (25, "suspended", {"why": "", "by_hand": True}), (40, "resumed", on(0)),
    )  # fmt: skip
    found = shown(0, 50, paused, life(2, (30, "started", on(0)), (35, "succeeded", {})))
    assert told(found) == [
        ("1", 10, 20, "whole"), ("1", 25, 30, "whole"), ("2", 30, 35, "whole"),
        ("1", 35, 40, "whole"), ("1", 40, 50, "whole"),
    ]  # fmt: skip
    assert [box.rate for box in found.lanes[0].boxes if box.job == 0] == [1, 0, 0, 1]


def test_edges_of_the_window() -> None:
    """A job from before it to after it is in all of it, and nobody is there after now."""
    all_the_time = life(1, (10, "started", on(0)), (90, "succeeded", {}))
    before, behind = life(2, (1, "started", on(1)), (20, "succeeded", {})), life(3, (60, "started", on(1)))
    found = shown(20, 60, before, all_the_time, behind)
    assert (told(found), told(found, 1)) == ([("1", 20, 60, "whole")], [])
    assert [user.id for user in found.jobs] == ["1"]
    found = shown(50, 100, all_the_time, behind, now=70)
    assert (told(found), told(found, 1)) == ([("1", 50, 70, "whole")], [("3", 60, 70, "whole")])
    assert not shown(100, 200, behind, now=70).jobs


def test_moved_reshaped_and_being_stopped() -> None:
    """A job is where its placement was at the time, until it has ended there; a reservation is no use."""
    waits = life(2, (15, "reserved", {**on(0), "victims": ["train-1"]}), (35, "started", on(0)))
    moves = life(
        1, (10, "started", on(0)), (20, "stopping", {}), (30, "requeued", {}), (40, "started", on(1, node="else"))
    )
    grows = life(3, (10, "started", on(1)), (20, "rebound", on(1)), (30, "reshaped", on(0, 1)), (32, "failed", {}))
    found = shown(0, 50, moves, waits, grows)
    assert told(found) == [("1", 10, 30, "whole"), ("3", 30, 32, "whole"), ("2", 35, 50, "whole")]
    assert told(found, 1) == [("3", 10, 32, "whole")]
    assert told(shown(0, 50, grows, devices=1)) == [("3", 30, 32, "whole")], "a GPU that is no more"


def test_clock_that_is_set_back() -> None:
    """Turns of the time that was twice are of no length, and no box is."""
    first = life(
        1, (100, "started", on(0)), (60, "suspended", {"why": ""}), (70, "resumed", on(0)), (120, "succeeded", {})
    )
    second = life(2, (60, "started", on(0)), (70, "suspended", {"why": ""}), (110, "cancelled", {}))
    found = shown(0, 200, first, second)
    assert told(found) == [("2", 60, 70, "whole"), ("1", 100, 120, "whole")]
    assert told(shown(0, 200, first, second, now=90)) == [("2", 60, 70, "whole")]


# -- many of them -----------------------------------------------------------------------------------------------------


def test_many_short_turns_are_shares() -> None:
    """What is too narrow to be drawn becomes a share of the time; areas are GPU time, whatever the window."""
    driver = Turns(sliced(("vision", 4), ("speech", 4)))
    six = [driver.submit(job("vision")) for _ in range(6)]
    driver.pass_time(3600)
    exact = shown(0, 3600, *lives(driver), now=driver.now, devices=8)
    assert {box.way for lane in exact.lanes for box in lane.boxes} == {"whole"}
    ran = {found.key: driver.ran[found.id] / 1000 for found in six}
    assert seconds(exact, height) == pytest.approx(ran, abs=1)
    mixed = shown(0, 24 * 3600, *lives(driver), now=driver.now, devices=8)
    assert seconds(mixed, height) == pytest.approx(ran, rel=0.01)
    assert seconds(mixed, lambda box: box.share) == pytest.approx(ran, rel=0.01)
    for device in range(8):
        assert seconds(mixed, height, device) == pytest.approx(seconds(exact, height, device), rel=0.01)
    assert sum(len(lane.boxes) for lane in mixed.lanes) <= 24
    assert {box.way for lane in mixed.lanes for box in lane.boxes} == {"sliced"}
    assert {round(box.share, 1) for box in mixed.lanes[2].boxes} <= {0.3, 0.4}


def test_short_turns_beside_what_lasts() -> None:
    """A guest that is held for moments leaves its owner one box, and two that are always packed are packed."""
    owner, other = life(1, (0, "started", on(0))), life(2, (0, "started", on(1)), (500, "succeeded", {}))
    switches = [
        (0.25 * n, *(("suspended", {"why": ""}) if n % 4 else ("resumed", on(0))))
        for n in range(4000)
        if n % 4 in (0, 1)
    ]  # on its GPU for the first quarter of each second
    guest = life(3, (0, "started", on(0)), (0, "shared", {"guest": True}), *switches)
    packed = life(4, (0, "started", on(1)), (500, "succeeded", {}))
    found = shown(0, 1000, owner, other, guest, packed)
    of_guest = [box for box in found.lanes[0].boxes if box.way == "guest"]
    assert [box for box in told(found) if box[0] == "1"] == [("1", 0, 1000, "whole")]
    assert len(of_guest) <= 14
    assert sum((box.end - box.start) * height(box) for box in of_guest) == pytest.approx(250 * GUESTS, rel=0.01)
    assert sum((box.end - box.start) * box.share for box in of_guest) == pytest.approx(250, rel=0.01)
    assert told(found, 1) == [("2", 0, 500, "packed"), ("4", 0, 500, "packed")]


def test_boxes_are_bounded() -> None:
    """However many GPUs there are, and changes on them."""
    number, many = 0, []
    for device in range(16):
        for since in range(0, 3600, 3):
            number += 1
            many.append(life(number, (since, "started", on(device)), (since + 2.9, "succeeded", {})))
    found = shown_fast(many)
    assert sum(len(lane.boxes) for lane in found.lanes) <= MOST_BOXES
    for lane in found.lanes:
        used = sum((box.end - box.start) * height(box) for box in lane.boxes)
        assert used == pytest.approx(3600 * 2.9 / 3, rel=0.05)


def shown_fast(of: Sequence[Life]) -> GpuTimeline:
    """Unchecked: that takes the square of the number of boxes."""
    return node_timeline("node", range(16), of, 0, 3600, 1e6)


def test_colours_stay_when_the_window_moves() -> None:
    jobs = [life(n, (n, "started", on(0)), (n + 1, "succeeded", {})) for n in range(1, 30)]
    found = {(user.id, user.colour) for start in range(25) for user in shown(start, start + 8, *jobs).jobs}
    assert len(found) == 29


# -- policies that share GPUs -----------------------------------------------------------------------------------------


async def test_guest_that_becomes_an_owner() -> None:
    """It is above its owner with what it may use, and then in the band of its own GPU."""
    driver = Hosts(hosting(("vision", 1), ("speech", 1), devices=2))
    owner, other = driver.submit(job("vision")), driver.submit(job("speech"))
    driver.busy[other.id] = 0.9
    driver.pass_time(SETTLE_S + 20)
    guest = driver.submit(job("speech", early=True))
    driver.pass_time(60)
    driver.busy[owner.id] = 1.0
    driver.pass_time(60)
    assert guest.state is JobState.SUSPENDED
    driver.busy[owner.id] = 0.3
    driver.pass_time(60)
    driver.end(other)
    driver.pass_time(30)
    assert guest.guaranteed
    source = looking_at(driver)
    found = await source.timeline(VIEW, "node", 0.0, driver.now + 10)
    check(found, driver.now)
    here = next(lane.device for lane in found.lanes if any(box.way == "guest" for box in lane.boxes))
    assert {(user, way) for user, _, _, way in told(found, here)} == {(owner.key, "whole"), (guest.key, "guest")}
    assert {(user, way) for user, _, _, way in told(found, 1 - here)} == {(other.key, "whole"), (guest.key, "whole")}
    limits = [box.limit for box in found.lanes[here].boxes if box.way == "guest"]
    assert 0.7 in limits
    assert limits[0] == 0.05, "before it was told that it may use more"
    life = source.story(VIEW, guest.key).stays
    assert [stay.limit for stay in life if stay.kind == "guest"][:2] == [0.05, pytest.approx(0.17, abs=0.02)]
    assert (life[-1].kind, life[-1].limit) == ("guaranteed", 1.0)


async def test_what_is_asked_for_wrongly() -> None:
    source = looking_at(Driver())
    with pytest.raises(NotFoundError, match="no node 'nowhere'"):
        await source.timeline(VIEW, "nowhere", 0, 1)
    with pytest.raises(NotFoundError, match="no view"):
        await source.timeline("other", "node", 0, 1)
    with pytest.raises(InputError, match="give an earlier start than end"):
        await source.timeline(VIEW, "node", 5, 5)


# -- what the store has -----------------------------------------------------------------------------------------------


async def test_real_engine_over_http(engine: Engine) -> None:
    """Its jobs are there from when they were started until they ended, in all windows."""
    service = LocalService(engine)
    app = make_app(service, local_view(service, "here"), token=None, hosts=(), local=True)
    before = engine.clock()
    first = engine.submit(shell("vision", "true", gpus=2))
    second = engine.submit(shell("vision", "echo here; sleep 600", gpus=2, hold=True))
    engine.edit(str(second.id), {"gpus": 1})  # it was shown with the GPUs that it was submitted with
    engine.release(str(second.id))
    await ended(engine, first)
    await printed(engine, second, "here")
    await asyncio.sleep(0.05)
    now = engine.clock()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hived") as client:

        async def ask(start: float, end: float, node: str = "node", status: int = 200) -> Any:
            answer = await client.get("/v1/dashboard/timeline", params={"node": node, "start": start, "end": end})
            assert answer.status_code == status
            return GpuTimeline.model_validate(answer.json()) if status == 200 else answer.json()["error"]["message"]

        found = await ask(before - 1, now + 10)
        check(found, engine.clock())
        boxes = {user: (start, end) for lane in range(8) for user, start, end, _ in told(found, lane)}
        assert boxes[first.key] == (first.started_at, first.ended_at)
        assert boxes[second.key][0] == second.started_at
        assert [(job.name, job.vc, job.gpus) for job in found.jobs] == [
            (first.name, "vision", 2), (second.name, "vision", 1),
        ]  # fmt: skip
        (lane,) = (lane for lane in (await ask(now, now + 10)).lanes if lane.boxes)
        assert lane.boxes[0].start == now, "its events are all before"
        assert not (await ask(before - 10, before - 1)).jobs
        assert not (await ask(now + 60, now + 70)).jobs, "of a time that has not come"
        assert "give an earlier start than end" in await ask(now, now, status=422)
        assert "no node 'nowhere'" in await ask(now, now + 1, "nowhere", 404)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    store = Store(tmp_path / "state")
    yield store
    store.close()


def keep(store: Store, driver: Driver) -> None:
    store.keep(driver.events, driver.jobs.values())


def test_any_window_is_as_of_all_events(store: Store) -> None:
    """What is read of a time suffices to know what its jobs did then."""
    driver = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    jobs = [driver.submit(job("vision")) for _ in range(3)]
    driver.pass_time(300)
    driver.end(jobs[0])
    driver.pass_time(300)
    keep(store, driver)
    whole = shown(0, 600, *lives(driver), now=driver.now, devices=4)
    for start in range(0, 600, 37):
        histories = store.histories(start, start + 60)
        assert set(histories) <= set(driver.jobs)
        read = [one._replace(events=histories[one.number]) for one in lives(driver) if one.number in histories]
        found = shown(start, start + 60, *read, now=driver.now, devices=4)
        assert {job.id for job in read} >= {user.id for user in found.jobs}
        for lane, of in zip(found.lanes, whole.lanes, strict=True):
            cut = [(max(start, box.start), min(start + 60, box.end)) for box in of.boxes]
            assert sorted((box.start, box.end) for box in lane.boxes) == sorted(one for one in cut if one[0] < one[1])
    assert jobs[0].id not in store.histories(400, 500), "it has ended before"
    assert store.histories(-100, -50) == {}


def test_any_window_of_jobs_that_come_back(tmp_path: Path) -> None:
    """Of jobs that were preempted, failed and ran again, the window may know an end without its start."""
    machine = Machine(tmp_path / "state")
    lived(machine, random.Random(7), 150, 3)
    store, end = machine.store, machine.now
    whole = {number: spells(events, end) for number, events in store.histories(0.0, end + 1).items()}
    assert any(len(of) > 4 for of in whole.values())
    for start in sorted({event.at + 1e-4 for event in store.events(0, 10**6, None)}):
        for number, events in store.histories(start, end + 1).items():
            found, cut = (
                [(max(start, one.start), one.end, one.doing) for one in of if one.end is not None and one.end > start]
                for of in (spells(events, end), whole[number])
            )
            assert found == cut, number
    store.close()


def test_clock_that_was_wrong_once(store: Store) -> None:
    """What is asked of the last hour is of that, though older events are of a later time."""
    driver = Driver()
    driver.now = 1e9
    driver.submit(job("speech"))
    driver.now = 1000.0
    for _ in range(50):
        driver.end(driver.submit(job("vision")))
        driver.now += 10
    keep(store, driver)
    assert len(store.histories(1400, 1500)) == 11, "ten jobs, and the one that is there all the time"
    (first, *_) = store.histories(1400, 1500).values()
    assert {event.at for event in first} == {1400}
    assert store.histories(1e8, 2e8).keys() == {1}


def test_too_many_events_for_a_picture(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MOST_EVENTS", 20)
    monkeypatch.setattr(stores, "_PAGE", 3)
    driver = Driver()
    for _ in range(10):
        driver.end(driver.submit(job("vision")))
        driver.now += 10
    keep(store, driver)
    with pytest.raises(InputError, match="40 events are too many for one picture; choose a shorter time"):
        store.histories(0, 100)
    found = store.histories(0, 50)
    assert [[event.kind for event in events] for events in found.values()] == 5 * [
        ["submitted", "started", "task_ended", "succeeded"]
    ]
