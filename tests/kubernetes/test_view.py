"""The engine on Kubernetes on the dashboard and in the status: pictures, updates, and gangs' histories."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from hived.engines.kubernetes.gangs.explaining import reasons
from hived.engines.kubernetes.pods import keys
from hived.errors import InvariantError, NotFoundError
from hived.server import live, pictures
from hived.server.dashboard import dashboard_routes
from hived.server.kubernetes.engine_service import EngineService
from hived.server.kubernetes.view import AFTER, waiting, why
from hived.server.live import VIEW, stays

from ..server import looking
from ..server.looking import applied, devices_of, in_order
from .scheduler_harness import World, looking_at, one_event


def faulty(world: World, name: str, device: int) -> bool:
    """Whether no job may come for a fault, and not for its owner's sake or that of a pod that HiveD did not place."""
    there = world.nodes.get(name)
    marks = ((there.metadata.annotations or {}).get(keys.BAD_DEVICES) or "") if there is not None else ""
    return there is None or not there.ready or str(device) in marks.split(",")


def check_picture(world: World, picture: pictures.Picture, layout: pictures.Layout) -> None:
    gang_scheduler = world.known
    devices = {(name, device) for name, of in gang_scheduler.nodes.devices.items() for device in of}
    shut = {(name, device) for name, device in devices if name in gang_scheduler.nodes.bad_nodes}
    shut |= set(gang_scheduler.nodes.bad_devices)
    broken = {(name, device) for name, device in devices if faulty(world, name, device)}
    gangs = list(gang_scheduler.gangs.values())
    looking.check_picture(picture, layout, gang_scheduler.cluster.spec, gangs, broken, shut - broken, beyond=False)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_updates_give_the_next_picture(seed: int) -> None:
    choose = random.Random(seed)
    world = World()
    source = looking_at(world)
    picture = source.picture(VIEW)
    drawn, seq = world.known, world.known.seq
    for _ in range(70):
        if choose.random() < 0.03:  # others decided for a while, or this is another process
            world.stand_by()
            world.lead()
        one_event(world, choose)
        world.now += choose.random()
        if choose.random() < 0.4:
            continue  # several events in one update
        update = source.update(VIEW, picture.seq)
        whole = source.picture(VIEW)
        # after a new scheduler or a new layout the browser asks for the whole picture
        new_spec = any(change.kind == "spec" and change.seq > seq for change in drawn.recent)
        assert (update is None) is (drawn is not world.gang_scheduler or new_spec)
        picture = whole if update is None else applied(picture, update)
        drawn, seq = world.known, world.known.seq
        assert in_order(picture) == in_order(whole)
        check_picture(world, whole, source.layout())
        for gang in (*world.known.gangs.values(), *world.known.ended.values()):
            ended = gang.history[-1].at if gang.name not in world.known.gangs else None
            looking.check_stays(stays(gang.history, AFTER), gang, ended)
        for gang in world.known.gangs.values():
            assert source.story(VIEW, gang.name).stays == stays(gang.history, AFTER)
        for gang in waiting(world.known, 1000):
            found = reasons(world.known, gang)
            assert not found or why(gang) is found[0].kind


def test_layout_is_of_the_cluster() -> None:
    layout = looking_at(World()).layout()
    assert (layout.title, layout.clock, layout.synthetic, layout.end) == ("the cluster", "unix", False, None)
    assert [(view.key, view.label) for view in layout.views] == [("live", "the cluster")]
    assert [chain.nodes for chain in layout.views[0].chains] == [["a0", "a1", "a2", "a3"], ["b0"]]
    assert layout.views[0].chains[1].devices == {0: [6, 7, 2, 3]}
    assert [(vc.name, vc.gpus) for vc in layout.vcs] == [("vision", 8), ("speech", 4), ("research", 2)]
    assert "hived submit" not in layout.example, "that is of one machine"
    assert "hived.io/vc: NAME" in layout.example


def test_order_of_the_queue() -> None:
    """Reservations, the heads of lines, the rest of the lines, and gangs in no line."""
    world = World()
    early = world.made("speech", 1)  # kube-scheduler has not asked for it
    loans = [world.runs("research", 4, priority=-1) for _ in range(4)]
    kept = world.come("vision", 4, 2)
    lines = [world.come("vision", 4, 2), world.come("vision", 4, 2), world.come("research", 4, 2, priority=-1)]
    partly = world.come("vision", 1, 2, late=1)
    source = looking_at(world)
    queue = source.picture(VIEW).queue
    expected = [gang.name for gang in (kept, lines[0], lines[2], lines[1], early, partly)]
    assert [row.id for row in queue] == expected
    assert [row.state for row in queue] == ["reserved"] + 5 * ["queued"]
    assert [gang.name for gang in waiting(world.known, 2)] == expected[:2]
    assert "1 of its 2 pods exist" in queue[-1].why[0]
    parts = [source.queue(VIEW, None, offset, 2) for offset in (0, 2, 4, 6)]
    assert [[job.id for job in part.jobs] for part in parts] == [expected[:2], expected[2:4], expected[4:], []]
    assert {part.total for part in parts} == {6}
    stopping = [holder.id for holder in source.picture(VIEW).holders if holder.stopping]
    assert len(stopping) == 2
    assert set(stopping) <= {gang.name for gang in loans}


def test_replica_that_stands_by() -> None:
    """It shows an empty cluster of the right layout; watchers are told."""
    world = World()
    world.runs("vision", 4)
    source = looking_at(world)
    layout, seq = source.layout(), source.picture(VIEW).seq
    world.stand_by()
    asyncio.run(asyncio.wait_for(source.changed(seq), 120))
    assert source.update(VIEW, seq) is None
    picture = source.picture(VIEW)
    assert (picture.holders, picture.queue, picture.bad, picture.queue_total) == ([], [], [], 0)
    assert picture.totals.gpus == 20
    assert [(row.vc, row.reserved, row.used) for row in picture.usage] == [
        ("vision", 8, 0),
        ("speech", 4, 0),
        ("research", 2, 0),
    ]
    assert source.layout() == layout
    assert source.update(VIEW, picture.seq) is None
    assert source.curves(VIEW).at == []
    with pytest.raises(NotFoundError, match="job1"):
        source.story(VIEW, "team/job1")


def test_no_update_from_another_scheduler() -> None:
    # both count their changes from 1: the numbers of the second have passed those of the first by then
    world = World()
    gone = world.runs("vision", 4)
    source = looking_at(world)
    picture = source.picture(VIEW)
    world.stand_by()
    world.pods.clear()
    world.lead()
    while world.known.seq <= picture.seq + 5:
        world.runs("vision", 1)
        world.end(next(iter(world.known.gangs.values())))
    assert source.update(VIEW, picture.seq) is None
    whole = source.picture(VIEW)
    assert whole.seq > picture.seq
    assert gone.name not in {holder.id for holder in whole.holders if holder.gpus == 4}
    asyncio.run(asyncio.wait_for(source.changed(picture.seq), 120))


def test_update_without_news() -> None:
    world = World()
    world.runs("vision", 1)
    source = looking_at(world)
    assert source.update(VIEW, 10_000) is None, "of no scheduler"
    update = source.update(VIEW, world.known.seq)
    assert update is not None
    assert (update.gone, update.holders, update.bad) == ([], [], None)
    for ask in (
        source.picture,
        source.curves,
        lambda view: source.update(view, 0),
        lambda view: source.story(view, "team/job1"),
    ):
        with pytest.raises(NotFoundError, match="no view"):
            ask("other")


@pytest.mark.parametrize("new", ["gang", "scheduler"])
def test_watcher_is_notified(new: str) -> None:
    world = World()
    source = looking_at(world)

    async def story() -> None:
        waits = asyncio.create_task(source.changed(source.picture(VIEW).seq))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waits.done()
        if new == "gang":
            world.runs("vision", 1)
        else:
            world.stand_by()
            world.lead()
        await asyncio.wait_for(waits, 120)

    asyncio.run(story())


def test_faulty_gpus_and_those_kept_otherwise() -> None:
    """GPUs of cordoned nodes and of foreign pods are not drawn as faulty; a gang on bad hardware is counted once."""
    world = World()
    source = looking_at(world)
    before = source.picture(VIEW)
    world.node("a1", cordoned=True)
    world.node("b0", bad="2,7")
    stranger = world.foreign(1, "a0")
    update = source.update(VIEW, before.seq)
    assert update is not None
    assert update.bad == [(1, 0, 1, 2)]
    assert update.drained is not None
    kept = world.known.foreign.pods[stranger].kept
    assert devices_of(source.layout(), update.drained) == {("a0", kept[0]), *(("a1", device) for device in range(4))}
    assert (update.totals.bad, update.totals.drained) == (2, 5)
    world.foreign_ends(stranger)
    assert source.picture(VIEW).totals.drained == 4
    gang = world.runs("vision", 4)
    assert gang.placement is not None
    world.node(gang.placement.pods[0].node, ready=False)
    totals = source.picture(VIEW).totals
    assert (totals.guaranteed, totals.bad, totals.drained) == (4, 2, 4)
    world.end(gang)
    totals = source.picture(VIEW).totals
    assert (totals.guaranteed, totals.bad, totals.drained) == (0, 6, 4)


def test_history_of_a_gang() -> None:
    world = World()
    source = looking_at(world)
    loans = [world.runs("research", 4, priority=-1) for _ in range(4)]
    world.now += 10
    owner = world.come("vision", 4, 2)
    went, other = [gang for gang in loans if gang.state.value == "preempted"]
    assert went.placement is not None
    place = looking.where(went.placement)
    assert [(stay.kind, stay.end) for stay in stays(went.history, AFTER)] == [
        ("opportunistic", 1010.0),
        ("stopping", None),
    ]
    world.now += 5
    world.end(went)
    world.end(other)
    story = source.story(VIEW, went.name)
    assert (story.state, story.command, story.vc, story.gpus, story.priority) == ("ended", "", "research", 4, -1)
    assert [(stay.kind, stay.start, stay.end, stay.where) for stay in story.stays] == [
        ("opportunistic", 1000.0, 1010.0, place),
        ("stopping", 1010.0, 1015.0, place),
    ]
    assert story.moments[-1].text == story.explanation == "its last pod is gone"
    found = source.story(VIEW, owner.name)
    assert found.state == "placed"
    assert [stay.kind for stay in found.stays] == ["reserved", "guaranteed"]
    assert owner.name in found.explanation
    over = source.ended(VIEW, None, 0, 9)
    assert (over.total, [job.id for job in over.jobs]) == (2, [other.name, went.name])
    assert over.jobs[1].why == "its last pod is gone"
    with pytest.raises(NotFoundError, match="nobody"):
        source.story(VIEW, "team/nobody")


def test_history_without_its_beginning() -> None:
    """Pods that are bound one by one fill what is remembered of a gang; it still ends in the present state."""
    world = World()
    gang = world.runs("vision", 1)
    world.now += 50
    for number in range(300):
        gang.remember(world.known.note("bound", gang.name, world.now, {"pod": f"pod {number}", "node": "a0"}))
    (stay,) = stays(gang.history, AFTER)
    assert (stay.kind, stay.start, stay.end) == ("guaranteed", 1000.0, None)


def test_curves_without_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    source = looking_at(world)
    monkeypatch.setattr(live, "asyncio", SimpleNamespace(sleep=lambda _: asyncio.sleep(0)))

    async def sampled() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def watch() -> None:
        sampling = asyncio.create_task(source.sample())
        await sampled()
        world.now += 60
        world.runs("vision", 4)
        world.stand_by()  # says nothing about the cluster
        await sampled()
        world.lead()
        world.now += 60
        await sampled()
        sampling.cancel()

    asyncio.run(watch())
    shown = source.curves(VIEW)
    assert shown.guaranteed[0] == 0.0
    assert shown.guaranteed[-1] == 4 / 20
    assert set(shown.at) == {1000.0, 1120.0}
    assert shown.at == sorted(shown.at)


def test_names_with_slashes_over_http() -> None:
    world = World()
    gang = world.runs("vision", 4)
    app = FastAPI()
    app.include_router(dashboard_routes(looking_at(world)))

    async def ask(*paths: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return [await client.get(f"/v1/dashboard/{path}") for path in paths]

    picture, story, curves = asyncio.run(ask("picture", "story/team%2Fjob1?view=live", "curves"))
    assert [holder["id"] for holder in picture.json()["holders"]] == [gang.name] == ["team/job1"]
    assert story.json()["name"] == gang.name
    assert curves.status_code == 200


# -- the status -------------------------------------------------------------------------------------------------------


def service_of(world: World) -> EngineService:
    return EngineService(world, may_change=False)  # type: ignore[arg-type]  # as much as is read of an engine


def test_broken_safety_in_the_status() -> None:
    world = World()
    world.runs("vision", 4)
    service = service_of(world)
    margin = service.status().safety_margin
    assert margin is not None
    assert margin >= 0

    def broken() -> None:
        raise InvariantError("a margin is -1")

    world.known.cluster.check_safety = broken  # type: ignore[method-assign,assignment]
    found = service.status()
    assert (found.safety_margin, found.guaranteed) == (-1, 4)


def test_bad_reserved_gpus_in_the_status() -> None:
    """Apart from safety."""
    world = World()
    service = service_of(world)
    before = service.status()
    assert (before.unavailable, before.doomed) == (0, 0)
    world.runs("vision", 4)
    for name in list(world.known.nodes.devices):
        world.known.node_removed(name, 0.0)
    found = service.status()
    assert found.unavailable == sum(vc.reserved for vc in found.vcs) > 0
    assert found.safety_margin == 0


def test_lazy_preemptor_is_named_with_the_time() -> None:
    world = World()
    service = service_of(world)
    low = world.runs("vision", 4, 2, lazy=True)
    assert service.lazy_preemption(low.name) is None
    world.now += 10
    high = world.runs("vision", 4, 2, priority=1)
    assert not low.guaranteed
    assert service.lazy_preemption(low.name) == (high.name, "1970-01-01T00:16:50Z")
    assert service.lazy_preemption(high.name) is None
    assert service.lazy_preemption("nobody") is None
