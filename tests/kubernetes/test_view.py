"""The engine on Kubernetes on the dashboard: pictures, what changed since, and gangs' lives, whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import httpx
import pytest
from fastapi import FastAPI

from hived.cluster.cluster import Cluster
from hived.engines.kubernetes.gangs.explaining import reasons
from hived.engines.kubernetes.gangs.gang import Gang, GangState
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.pods import keys
from hived.errors import InvariantError, NotFoundError
from hived.server import pictures
from hived.server.dashboard import dashboard_routes
from hived.server.kubernetes.engine_service import EngineService
from hived.server.kubernetes.view import AFTER, kubernetes_view, waiting, why
from hived.server.live import VIEW, DashboardView, stays
from hived.spec import spec_from_dict

from ..server import looking
from ..server.looking import applied, devices_of, in_order
from .scheduler_harness import NODES, SPEC, World, other_spec


def looking_at(world: World) -> DashboardView[Gang]:
    return kubernetes_view(world, "the cluster")  # type: ignore[arg-type]  # as much as is read of an engine


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


def check_stays(gang: Gang, ended: bool) -> None:
    looking.check_stays(stays(gang.history, AFTER), gang, gang.history[-1].at if ended else None)


def one_fact(world: World, choose: random.Random) -> None:
    """Something happens."""
    gangs = list(world.known.gangs.values())
    placed = [gang for gang in gangs if gang.state is GangState.PLACED]
    preempted = [gang for gang in gangs if gang.state is GangState.PREEMPTED]
    name = choose.choice(NODES)
    strangers = list(world.known.foreign.pods)
    match choose.randrange(20):
        case 0 | 1 | 2 | 3:
            pods = choose.choice((1, 1, 2, 3))
            world.come(
                choose.choice(("vision", "vision", "speech", "research")),
                choose.choice((1, 2, 4)),
                pods,
                choose.choice((-1, -1, 0, 0, 5)),
                choose.random() < 0.3,
                late=choose.randrange(pods) if choose.random() < 0.4 else 0,
            )
        case 4:
            world.made("vision", 1, choose.choice((1, 2)))
        case 5 | 6 if gangs:
            world.complete(choose.choice(gangs))
        case 7 | 8 | 9 | 10 if placed:
            world.bind(choose.choice(placed), choose.choice((1, 1000)))
        case 11 | 12 if preempted:
            world.end(choose.choice(preempted), choose.choice((1, 1000)))
        case 13 if gangs:
            world.end(choose.choice(gangs), choose.choice((1, 1000, 1000)))
        case 14:
            world.node(name, ready=choose.random() < 0.6, cordoned=choose.random() < 0.3)
        case 15:
            world.node(name, bad=choose.choice(("", "", "0", "2,3,7")))
        case 16 if choose.random() < 0.4:
            world.without_node(name)
        case 17 if choose.random() < 0.5:
            world.reconfigure(other_spec() if choose.random() < 0.5 else spec_from_dict(SPEC))
        case 18:
            world.foreign(choose.choice((1, 2, 4)), name)
        case 19 if strangers:
            world.foreign_ends(choose.choice(strangers))
        case _:
            world.now += choose.uniform(0, 30)


@pytest.mark.parametrize("seed", range(30))
def test_a_picture_and_all_that_changed_are_the_next_picture(seed: int) -> None:
    choose = random.Random(seed)
    world = World()
    source = looking_at(world)
    picture = source.picture(VIEW)
    drawn, seq = world.known, world.known.seq
    for _ in range(70):
        if choose.random() < 0.03:  # others decided for a while, or this is another process
            world.stand_by()
            world.lead()
        one_fact(world, choose)
        world.now += choose.random()
        if choose.random() < 0.4:
            continue  # several facts in one update
        update = source.update(VIEW, picture.seq)
        whole = source.picture(VIEW)
        # after a new scheduler or a new layout the browser asks for the whole picture
        anew = drawn is not world.gang_scheduler or any(
            change.kind == "spec" and change.seq > seq for change in drawn.recent
        )
        assert (update is None) is anew
        picture = whole if update is None else applied(picture, update)
        drawn, seq = world.known, world.known.seq
        assert in_order(picture) == in_order(whole)
        check_picture(world, whole, source.layout())
        for gang in world.known.gangs.values():
            check_stays(gang, ended=False)
            assert source.story(VIEW, gang.name).stays == stays(gang.history, AFTER)
        for gang in world.known.ended.values():
            check_stays(gang, ended=True)
        for gang in waiting(world.known, 1000):
            found = reasons(world.known, gang)
            assert not found or why(gang) is found[0].kind


def test_the_layout_is_that_of_the_cluster() -> None:
    layout = looking_at(World()).layout()
    assert (layout.title, layout.clock, layout.synthetic, layout.end) == ("the cluster", "unix", False, None)
    assert [(view.key, view.label) for view in layout.views] == [("live", "the cluster")]
    assert [chain.nodes for chain in layout.views[0].chains] == [["a0", "a1", "a2", "a3"], ["b0"]]
    assert layout.views[0].chains[1].devices == {0: [6, 7, 2, 3]}
    assert [(vc.name, vc.gpus) for vc in layout.vcs] == [("vision", 8), ("speech", 4), ("research", 2)]
    assert "hived submit" not in layout.example, "that is of one machine"
    assert "hived.io/vc: NAME" in layout.example


def test_the_queue_shows_reservations_then_the_heads_of_lines_then_unqueued_gangs() -> None:
    world = World()
    early = world.made("speech", 1)  # kube-scheduler has not asked for it
    loans = [world.runs("research", 4, priority=-1) for _ in range(4)]
    kept = world.come("vision", 4, 2)
    assert kept.state is GangState.RESERVED
    lines = [world.come("vision", 4, 2), world.come("vision", 4, 2), world.come("research", 4, 2, priority=-1)]
    partly = world.come("vision", 1, 2, late=1)
    source = looking_at(world)
    queue = source.picture(VIEW).queue
    expected = [kept, lines[0], lines[2], lines[1], early, partly]
    assert [row.id for row in queue] == [gang.name for gang in expected]
    assert [row.state for row in queue] == ["reserved"] + 5 * ["queued"]
    assert [gang.name for gang in waiting(world.known, 2)] == [kept.name, lines[0].name]
    assert "1 of its 2 pods exist" in queue[-1].why[0]
    stopping = [holder.id for holder in source.picture(VIEW).holders if holder.stopping]
    assert len(stopping) == 2
    assert set(stopping) <= {gang.name for gang in loans}


def test_a_replica_that_does_not_decide_shows_an_empty_cluster_of_the_right_layout() -> None:
    world = World()
    world.runs("vision", 4)
    source = looking_at(world)
    layout = source.layout()
    world.stand_by()
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


def test_a_picture_of_one_scheduler_is_never_updated_from_another() -> None:
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
    asyncio.run(asyncio.wait_for(source.changed(picture.seq), 5))


def test_a_watcher_is_notified_of_a_change_and_of_a_new_scheduler() -> None:
    world = World()
    source = looking_at(world)

    async def news_after(fact: str) -> None:
        waits = asyncio.create_task(source.changed(source.picture(VIEW).seq))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waits.done()
        if fact == "a gang":
            world.runs("vision", 1)
        else:
            world.stand_by()
            world.lead()
        await asyncio.wait_for(waits, 5)

    asyncio.run(news_after("a gang"))
    asyncio.run(news_after("a new mind"))


def test_a_page_is_emptied_when_the_replica_stops_to_decide_between_two_questions() -> None:
    world = World()
    world.runs("vision", 1)
    source = looking_at(world)
    seq = source.picture(VIEW).seq
    world.stand_by()
    asyncio.run(asyncio.wait_for(source.changed(seq), 5))
    assert source.update(VIEW, seq) is None
    assert source.picture(VIEW).holders == []


def test_an_update_from_nowhere_is_none() -> None:
    world = World()
    world.runs("vision", 1)
    source = looking_at(world)
    assert source.update(VIEW, 10_000) is None
    update = source.update(VIEW, world.known.seq)
    assert update is not None
    assert (update.gone, update.holders, update.bad) == ([], [], None)
    first = source.picture(VIEW).seq
    world.known.recent = deque(list(world.known.recent)[-1:], maxlen=1)
    world.runs("vision", 1)
    assert source.update(VIEW, first) is None, "too long ago"
    for ask in (
        source.picture,
        source.curves,
        lambda view: source.update(view, 0),
        lambda view: source.story(view, "team/job1"),
    ):
        with pytest.raises(NotFoundError, match="no view"):
            ask("other")


def test_a_bad_node_is_shown_whole_and_a_bad_device_alone() -> None:
    world = World()
    source = looking_at(world)
    before = source.picture(VIEW)
    world.node("a1", ready=False)
    world.node("b0", bad="2,7")
    update = source.update(VIEW, before.seq)
    assert update is not None
    assert update.bad == [(0, 1, 0, 4), (1, 0, 1, 2)]
    assert update.totals.bad == 6


def test_a_gang_on_a_node_that_turns_bad_is_counted_once() -> None:
    world = World()
    source = looking_at(world)
    gang = world.runs("vision", 4)
    assert gang.placement is not None
    world.node(gang.placement.pods[0].node, ready=False)
    totals = source.picture(VIEW).totals
    assert (totals.guaranteed, totals.bad, totals.drained) == (4, 0, 0)
    world.end(gang)
    totals = source.picture(VIEW).totals
    assert (totals.guaranteed, totals.bad, totals.drained) == (0, 4, 0)


def test_gpus_of_pods_that_hived_did_not_place_and_of_cordoned_nodes_are_not_drawn_as_faulty() -> None:
    world = World()
    source = looking_at(world)
    before = source.picture(VIEW)
    world.node("a1", cordoned=True)
    world.node("b0", bad="2")
    stranger = world.foreign(1, "a0")
    update = source.update(VIEW, before.seq)
    assert update is not None
    assert update.bad is not None
    assert update.drained is not None
    assert devices_of(source.layout(), update.bad) == {("b0", 2)}
    kept = world.known.foreign.pods[stranger].kept
    assert devices_of(source.layout(), update.drained) == {("a0", kept[0]), *(("a1", device) for device in range(4))}
    assert (update.totals.bad, update.totals.drained) == (1, 5)
    world.foreign_ends(stranger)
    assert source.picture(VIEW).totals.drained == 4


def test_the_history_of_a_gang_has_all_its_events() -> None:
    world = World()
    source = looking_at(world)
    loans = [world.runs("research", 4, priority=-1) for _ in range(4)]
    world.now += 10
    owner = world.come("vision", 4, 2)
    went = next(gang for gang in loans if gang.state is GangState.PREEMPTED)
    place = stays(went.history, AFTER)[-1].where
    assert [(stay.kind, stay.end) for stay in stays(went.history, AFTER)] == [
        ("opportunistic", 1010.0),
        ("stopping", None),
    ]
    world.now += 5
    for gang in loans:
        if gang.state is GangState.PREEMPTED:
            world.end(gang)
    story = source.story(VIEW, went.name)
    assert (story.state, story.command, story.vc, story.gpus, story.priority) == ("ended", "", "research", 4, -1)
    assert [(stay.kind, stay.start, stay.end) for stay in story.stays] == [
        ("opportunistic", 1000.0, 1010.0),
        ("stopping", 1010.0, 1015.0),
    ]
    assert [stay.where for stay in story.stays] == [place, place]
    assert story.moments[-1].text == story.explanation == "its last pod is gone"
    found = source.story(VIEW, owner.name)
    assert found.state == "placed"
    assert [stay.kind for stay in found.stays] == ["reserved", "guaranteed"]
    assert owner.name in found.explanation
    with pytest.raises(NotFoundError, match="nobody"):
        source.story(VIEW, "team/nobody")


def test_a_history_without_its_beginning_still_ends_in_the_present_state() -> None:
    # pods that are bound one by one fill what is remembered of a gang
    world = World()
    gang = world.runs("vision", 1)
    world.now += 50
    for number in range(300):
        gang.remember(world.known.note("bound", gang.name, world.now, {"pod": f"pod {number}", "node": "a0"}))
    (stay,) = stays(gang.history, AFTER)
    assert (stay.kind, stay.start, stay.end) == ("guaranteed", 1000.0, None)


def test_curves_go_on_without_viewers() -> None:
    world = World()
    source = looking_at(world)

    async def watch() -> None:
        sampling = asyncio.create_task(source.sample())
        await asyncio.sleep(0)
        world.now += 60
        world.runs("vision", 4)
        world.stand_by()  # says nothing about the cluster
        await asyncio.sleep(1.1)
        world.lead()
        world.now += 60
        await asyncio.sleep(1.1)
        sampling.cancel()

    asyncio.run(watch())
    shown = source.curves(VIEW)
    assert shown.guaranteed[0] == 0.0
    assert shown.guaranteed[-1] == 4 / 20
    assert shown.at == sorted(shown.at)
    assert shown.at[-1] == 1120.0


def test_the_page_has_its_data_over_http_with_names_that_have_slashes() -> None:
    world = World()
    gang = world.runs("vision", 4)
    app = FastAPI()
    app.include_router(dashboard_routes(looking_at(world)))

    async def ask(*paths: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return [await client.get(path) for path in paths]

    picture, story, curves = asyncio.run(
        ask("/v1/dashboard/picture", "/v1/dashboard/story/team%2Fjob1?view=live", "/v1/dashboard/curves")
    )
    assert [holder["id"] for holder in picture.json()["holders"]] == [gang.name] == ["team/job1"]
    assert story.json()["name"] == gang.name
    assert curves.status_code == 200


class Asked(World):
    """A harness that also serves the status."""

    identity = "hived-0"
    holder = ""
    spec_source = "a test"
    spec_loaded_at = 0.0
    spec_problem = ""

    @property
    def cluster(self) -> Cluster:
        return self.known.cluster

    def active_scheduler(self) -> GangScheduler:
        """The gang scheduler, as an engine that leads has it."""
        return self.known


def test_the_status_reports_broken_sharing_safety() -> None:
    world = Asked()
    world.runs("vision", 4)
    service = EngineService(world, may_change=False)  # type: ignore[arg-type]  # as much as is read of an engine
    margin = service.status().safety_margin
    assert margin is not None
    assert margin >= 0

    def broken() -> None:
        raise InvariantError("a margin is -1")

    world.known.cluster.check_safety = broken  # type: ignore[method-assign,assignment]
    found = service.status()
    assert (found.safety_margin, found.guaranteed) == (-1, 4)


def test_the_preemptor_of_a_lazily_preempted_group_is_reported_with_the_time() -> None:
    world = Asked()
    service = EngineService(world, may_change=False)  # type: ignore[arg-type]  # as much as is read of an engine
    pods = {vc.name: vc.reserved for vc in service.status().vcs}["vision"] // 4
    low = world.runs("vision", 4, pods, lazy=True)
    assert service.lazy_preemption(low.name) is None
    world.now += 10
    high = world.runs("vision", 4, pods, priority=1)
    assert not low.guaranteed
    assert service.lazy_preemption(low.name) == (high.name, "1970-01-01T00:16:50Z")
    assert service.lazy_preemption(high.name) is None
    assert service.lazy_preemption("nobody") is None


def test_bad_reserved_gpus_are_reported_apart_from_safety() -> None:
    world = Asked()
    service = EngineService(world, may_change=False)  # type: ignore[arg-type]  # as much as is read of an engine
    before = service.status()
    assert (before.unavailable, before.doomed) == (0, 0)
    world.runs("vision", 4)
    for name in list(world.known.nodes.devices):
        world.known.node_removed(name, 0.0)
    found = service.status()
    assert found.unavailable == sum(vc.reserved for vc in found.vcs) > 0
    assert found.safety_margin == 0


def test_the_rest_of_the_queue_and_the_ended_gangs_come_in_pages() -> None:
    world = World()
    own = world.runs("vision", 4, pods=2)
    line = [world.come("vision", 4) for _ in range(5)]
    source = looking_at(world)
    parts = [source.queue(VIEW, None, offset, 2) for offset in (0, 2, 4, 6)]
    assert [[job.id for job in part.jobs] for part in parts] == [
        [gang.name for gang in line[first : first + 2]] for first in (0, 2, 4, 6)
    ]
    assert {part.total for part in parts} == {5}
    assert source.ended(VIEW, None, 0, 9).total == 0
    world.end(own)
    world.end(line[4])
    over = source.ended(VIEW, None, 0, 9)
    assert (over.total, [job.id for job in over.jobs]) == (2, [line[4].name, own.name])
    assert over.jobs[1].why == "its last pod is gone"
