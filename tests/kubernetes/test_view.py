"""The engine on Kubernetes on the dashboard and in the status: pictures, updates, and gangs' histories."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest
from fastapi import FastAPI

from hived.engines.kubernetes.gangs.explaining import GangExplainer
from hived.engines.kubernetes.pods import keys
from hived.errors import InvariantError, NotFoundError
from hived.server import live, pictures
from hived.server.dashboard import dashboard_routes
from hived.server.histories import stays
from hived.server.live import VIEW

from ..server import looking
from ..server.api.client import Client
from ..server.looking import applied, in_order
from .fake_kubernetes import World
from .pods import gang_of, pod
from .replica import OTHER_RACKS, RACKS, Replica, looking_at, racks, service_of
from .virtual_time import played
from .walking import Walk


def check_picture(world: World, picture: pictures.Picture, layout: pictures.Layout) -> None:
    spec, nodes = world.gang_scheduler.cluster.spec, world.gang_scheduler.nodes
    devices = {(name, device) for name, of in nodes.devices.items() for device in of}
    shut = {place for place in devices if place[0] in nodes.bad_nodes or place in nodes.bad_devices}
    broken = {(name, device) for name, device in devices if faulty(world, name, device)}
    gangs = list(world.gang_scheduler.gangs.values())
    looking.check_picture(picture, layout, spec, gangs, broken, shut - broken, beyond=False)


def faulty(world: World, name: str, device: int) -> bool:
    """Whether no job may come for a fault, and not for its owner's sake or that of a pod that HiveD did not place."""
    there = world.nodes.get(name)
    if there is None or not there.ready:
        return True
    marks = [mark.strip() for mark in (there.metadata.annotations or {}).get(keys.BAD_DEVICES, "").split(",")]
    return str(device) in marks or "nonsense" in marks


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))])
def test_updates_give_the_next_picture(seed: int) -> None:
    walk = Walk(RACKS, seed, (RACKS, OTHER_RACKS))
    world, choose = walk.world, random.Random(seed)
    source = looking_at(Replica(world))
    picture = source.picture(VIEW)
    drawn = world.gang_scheduler, world.gang_scheduler.cluster.spec
    for _ in range(70):
        walk.event()()
        world.now += choose.random()
        if choose.random() < 0.4:
            continue  # several events in one update
        world.deliver_nodes()
        update = source.update(VIEW, picture.seq)
        whole = source.picture(VIEW)
        # after a new scheduler or a new layout the browser asks for the whole picture
        before, drawn = drawn, (world.gang_scheduler, world.gang_scheduler.cluster.spec)
        assert (update is None) is (before[0] is not drawn[0] or before[1] is not drawn[1])
        picture = whole if update is None else applied(picture, update)
        assert in_order(picture) == in_order(whole)
        check_picture(world, whole, source.layout())
        gangs, ended = world.gang_scheduler.gangs, world.gang_scheduler.ended
        for gang in (*gangs.values(), *ended.values()):
            over = gang.history[-1].at if gangs.get(gang.name) is not gang else None
            looking.check_stays(stays(gang.history), gang, over)
        for gang in gangs.values():
            assert source.story(VIEW, gang.name).stays == stays(gang.history)
        for gang in world.gang_scheduler.waiting(1000):
            found = GangExplainer(world.gang_scheduler).reasons(gang)
            assert not found or gang.decisive is found[0].kind


def test_layout_is_of_the_cluster() -> None:
    layout = looking_at(Replica()).layout()
    assert (layout.title, layout.clock, layout.synthetic, layout.end) == ("the cluster", "unix", False, None)
    assert [(view.key, view.label) for view in layout.views] == [("live", "the cluster")]
    assert [chain.nodes for chain in layout.views[0].chains] == [["a0", "a1", "a2", "a3"], ["b0"]]
    assert layout.views[0].chains[1].devices == {0: [6, 7, 2, 3]}
    assert [(vc.name, vc.gpus) for vc in layout.vcs] == [("vision", 8), ("speech", 4), ("research", 2)]
    assert "hived submit" not in layout.example, "that is of one machine"
    assert "hived.io/vc: NAME" in layout.example


def lent() -> World:
    """Four pods ``loan0``, ``loan1``, ... of ``research`` run on loans."""
    world = racks()
    world.run(*[pod(f"loan{i}", 4, "research", priority="-1") for i in range(4)])
    return world


def test_order_of_the_queue() -> None:
    """Reservations, the heads of lines, the rest of the lines, and gangs in no line."""
    world = lent()
    world.create(pod("early", 1, "speech"))  # kube-scheduler has not asked for it
    for name, vc, priority in [("kept", "vision", "0"), ("own", "vision", "0"), ("next", "vision", "0")]:
        world.submit(*gang_of(name, 2, 4, vc, priority=priority))
    world.submit(*gang_of("lent", 2, 4, "research", priority="-1"))
    world.submit(gang_of("partly", 2, 1, "vision")[0])
    source = looking_at(Replica(world))
    queue = source.picture(VIEW).queue
    expected = ["t/kept", "t/own", "t/lent", "t/next", "t/early", "t/partly"]
    assert [row.id for row in queue] == expected
    assert [row.kind for row in queue] == ["reserved"] + 5 * ["waiting"]
    assert [gang.name for gang in world.gang_scheduler.waiting(2)] == expected[:2]
    assert "1 of its 2 pods exist" in queue[-1].why[0]
    parts = [source.queue(VIEW, None, offset, 2) for offset in (0, 2, 4, 6)]
    assert [[job.id for job in part.jobs] for part in parts] == [expected[:2], expected[2:4], expected[4:], []]
    assert {part.total for part in parts} == {6}
    stopping = [holder.id for holder in source.picture(VIEW).holders if holder.stopping]
    assert len(stopping) == 2
    assert set(stopping) <= {f"t/loan{i}" for i in range(4)}


@played
async def test_who_has_the_gpus_of_a_node() -> None:
    """Jobs that have ended too, as far as they are remembered; a replica that stands by remembers none."""
    world = racks()
    replica = Replica(world)
    source = looking_at(replica)
    world.run(pod("own", 4, "vision"))
    world.now += 60
    world.run(pod("loan", 4, "research", priority="-1"))
    world.ended("own")
    world.now += 60
    seen: dict[str, list[tuple[float, float, str]]] = {}
    for node in ("a0", "a1", "a2", "a3", "b0"):
        found = await source.timeline(VIEW, node, 0, 2000)
        assert len(found.lanes) == 4
        seen |= {
            job.id: [(box.start, box.end, box.way) for box in lane.boxes] for job in found.jobs for lane in found.lanes
        }
    assert seen == {"t/own": [(1000, 1060, "whole")], "t/loan": [(1060, 1120, "whole")]}
    assert not (await source.timeline(VIEW, "a0", 0, 1000)).jobs
    replica.stand_by()
    assert not (await source.timeline(VIEW, "a0", 0, 2000)).jobs


@played
async def test_replica_that_stands_by() -> None:
    """It shows an empty cluster of the right layout; watchers are told, as they are of any event."""
    replica = Replica()
    source = looking_at(replica)
    waits = asyncio.create_task(source.changed(source.picture(VIEW).seq))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waits.done()
    replica.world.create(pod("own", 4, "vision"))
    await asyncio.wait_for(waits, 120)
    layout, seq = source.layout(), source.picture(VIEW).seq
    replica.stand_by()
    await asyncio.wait_for(source.changed(seq), 120)
    assert source.update(VIEW, seq) is None
    picture = source.picture(VIEW)
    assert (picture.holders, picture.queue, picture.bad, picture.queue_total) == ([], [], [], 0)
    assert picture.totals.gpus == 20
    assert {row.used for row in picture.usage} == {0}
    assert source.layout() == layout
    assert source.update(VIEW, picture.seq) is None
    assert source.curves(VIEW).at == []
    with pytest.raises(NotFoundError, match="own"):
        source.story(VIEW, "t/own")


def test_no_update_from_another_scheduler() -> None:
    # both count their changes from 1: the numbers of the second have passed those of the first by then
    world = racks()
    world.run(pod("own", 4, "vision"))
    replica = Replica(world)
    source = looking_at(replica)
    picture = source.picture(VIEW)
    assert source.update(VIEW, 10_000) is None, "of no scheduler"
    without_news = source.update(VIEW, picture.seq)
    assert without_news is not None
    assert (without_news.gone, without_news.holders, without_news.bad) == ([], [], None)
    replica.stand_by()
    world.end("own")
    replica.lead()
    while (seq := world.gang_scheduler.seq) <= picture.seq + 5:
        world.run(pod(f"one{seq}", 1, "vision"))
        world.gone(f"one{seq}")
    assert source.update(VIEW, picture.seq) is None
    whole = source.picture(VIEW)
    assert whole.seq > picture.seq
    assert "t/own" not in {holder.id for holder in whole.holders}
    asyncio.run(asyncio.wait_for(source.changed(picture.seq), 120))


def test_history_of_a_gang() -> None:
    world = lent()
    source = looking_at(Replica(world))
    world.now += 10
    world.wants(*gang_of("owner", 2, 4, "vision"))
    went, other = world.gang_scheduler.evicting.values()
    place = looking.where(went.placement)
    assert source.story(VIEW, went.name).stays[-1].end is None
    world.now += 5
    world.gone(*went.pods)
    world.gone(*other.pods)
    story = source.story(VIEW, went.name)
    assert (story.state, story.command, story.vc) == ("ended", "", "research")
    assert [(stay.kind, stay.start, stay.end, stay.where) for stay in story.stays] == [
        ("opportunistic", 1000.0, 1010.0, place),
        ("stopping", 1010.0, 1015.0, place),
    ]
    assert story.moments[-1].text == "t/loan0 has ended: its last pod is gone"
    ended = "t/loan0 ended after 0 s: its last pod is gone"  # the clock of the test is behind its pods
    assert story.explanation == f"{ended}\n- its pods were evicted or deleted"
    found = source.story(VIEW, "t/owner")
    assert found.state == "running"
    assert [stay.kind for stay in found.stays] == ["reserved", "guaranteed"]
    assert "t/owner" in found.explanation
    over = source.ended(VIEW, None, 0, 9)
    assert (over.total, [job.id for job in over.jobs]) == (2, [other.name, went.name])
    assert over.jobs[1].why == "its last pod is gone"
    with pytest.raises(NotFoundError, match="nobody"):
        source.story(VIEW, "t/nobody")


def test_history_without_its_beginning() -> None:
    """Pods that are bound one by one fill what is remembered of a gang; it still ends in the present state."""
    world = racks()
    world.run(pod("own", 1, "vision"))
    gang = world.gang("own")
    for number in range(300):
        data: dict[str, object] = {"pod": f"pod {number}", "node": "a0"}
        gang.remember(world.gang_scheduler.note("bound", gang.name, world.now + 50, data))
    (stay,) = stays(gang.history)
    assert (stay.kind, stay.start, stay.end) == ("guaranteed", 1000.0, None)


@played
async def test_curves_without_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica()
    source = looking_at(replica)
    monkeypatch.setattr(live, "asyncio", SimpleNamespace(sleep=lambda _: asyncio.sleep(0)))

    async def sampled() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    sampling = asyncio.create_task(source.sample())
    await sampled()
    replica.world.now += 60
    replica.world.create(pod("own", 4, "vision"))
    replica.world.ask("own")
    replica.stand_by()  # says nothing about the cluster
    await sampled()
    replica.lead()
    replica.world.now += 60
    await sampled()
    sampling.cancel()
    shown = source.curves(VIEW)
    assert shown.guaranteed[0] == 0.0
    assert shown.guaranteed[-1] == 4 / 20
    assert set(shown.at) == {1000.0, 1120.0}
    assert shown.at == sorted(shown.at)


def test_names_with_slashes_over_http() -> None:
    world = racks()
    world.run(pod("own", 4, "vision"))
    app = FastAPI()
    app.include_router(dashboard_routes(looking_at(Replica(world))))
    assert Client(app).get("/v1/dashboard/story/t%2Fown?view=live").json()["name"] == "t/own"


# -- usage ----------------------------------------------------------------------------------------------------------


def test_bad_hardware_and_safety() -> None:
    """They are told apart."""
    world = racks()
    world.run(pod("own", 4, "vision"))
    service = service_of(world)
    before = service.usage()
    assert (before.unavailable, before.doomed, before.safety_margin) == (0, 0, 1)
    for name in list(world.nodes):
        world.remove_node(name)
    found = service.usage()
    assert found.unavailable == sum(vc.reserved for vc in found.vcs) > 0
    assert found.safety_margin == 0

    def broken() -> None:
        raise InvariantError("a margin is -1")

    world.gang_scheduler.cluster.check_safety = broken  # type: ignore[method-assign,assignment]
    found = service.usage()
    assert (found.safety_margin, found.guaranteed) == (-1, 4)
