"""What the version before has written on Kubernetes (``pods_before.json`` says which) is taken over as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hived.engines.kubernetes.gangs.gang import Annotate, Evict
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Pod
from hived.spec import spec_from_dict

from .checking import validate
from .fake_kubernetes import World
from .pods import devices_of, pod
from .test_trades import HOUR, Api, Market
from .virtual_time import played

RECORDED = json.loads(Path(__file__).with_name("pods_before.json").read_text(encoding="utf-8"))
PODS = [msgspec.convert(plain, Pod) for plain in RECORDED["pods"]]


@pytest.fixture
def world() -> World:
    """A service that starts, and finds the recorded pods."""
    made = World(spec_from_dict(RECORDED["spec"]))
    for one in PODS:
        made.write(one)
    made.restart(compare=False)
    return made


def gangs(world: World) -> dict[str, Any]:
    """Every gang as it is recorded: kind, cells, and node and devices of each pod."""
    found = {}
    for name, gang in world.gang_scheduler.gangs.items():
        pods = {
            entry.pod.metadata.name: [entry.given.node, list(entry.given.leaf_cells)]
            for entry in gang.pods.values()
            if entry.given is not None
        }
        kind = "guaranteed" if gang.guaranteed else "opportunistic"
        placement = world.placement(name.removeprefix("t/"))
        levels = list(placement.reserved_levels)
        found[name] = {"kind": kind, "chain": placement.chain, "levels": levels, "pods": pods}
    return found


def untouched(world: World) -> bool:
    """Whether the recorded pods are there, with the annotations that they had."""
    now = {uid: there.metadata.annotations for uid, there in world.pods.items()}
    gone = [one for one in PODS if one.metadata.uid not in now or world.deleted(one)]
    return not gone and all(now[one.metadata.uid] == one.metadata.annotations for one in PODS)


def test_recorded_are_all_kinds_of_pods() -> None:
    """Nobody records fewer by mistake."""
    assert all(one.spec.node_name and one.annotation(keys.BIND_INFO) for one in PODS)
    labels = {key for one in PODS for key in one.metadata.labels or {}}
    assert {keys.GROUP, keys.PRIORITY, keys.PINNED_CELL, keys.LEAF_CELL_TYPE, keys.LAZY_PREEMPTION} <= labels
    assert any(one.annotation(keys.POD_SPEC) for one in PODS)
    assert {gang["kind"] for gang in RECORDED["gangs"].values()} == {"guaranteed", "opportunistic"}


def test_every_gang_runs_where_it_ran(world: World) -> None:
    table = world.gang_scheduler
    assert gangs(world) == RECORDED["gangs"]
    assert {gang.state.value for gang in table.gangs.values()} == {"running"}
    assert (table.conflicts, table.refused) == ({}, {})
    assert not [one for one in world.todo if isinstance(one, Annotate | Evict)], "nothing of them is written anew"
    assert not table.nodes.bad_devices
    validate(table)
    world.quiesce()
    world.restart()
    assert gangs(world) == RECORDED["gangs"]
    assert untouched(world)


def test_nobody_is_given_what_they_have(world: World) -> None:
    crowd = [pod(f"greedy-{number}", 1, "vision", priority="-1", created=900) for number in range(40)]
    world.create(*crowd)
    world.quiesce()
    free = set(world.spec.devices()).difference(*map(devices_of, PODS))
    assert {place for one in crowd for place in devices_of(world.there(one))} == free, "all that is idle, and no more"
    assert untouched(world)


@played
async def test_trades_go_on() -> None:
    """One in force, an offer and a request that wait: until the trade is over, its cells are the taker's."""
    api = Api()
    api.stored.create(RECORDED["trades"])
    market = await Market(api).next_leader()
    trading = market.restored()
    assert not market.stored.problem
    assert json.loads(trading.record()) == json.loads(RECORDED["trades"]["data"]["trades.json"])
    (trade,) = trading.market.trades.records()
    assert (trade.giver, trade.taker, trading.market.trades.is_on(trade)) == ("a", "b", True)
    assert (len(trading.market.board.offers), len(trading.market.board.requests)) == (1, 1)
    cells = {vc.name: sum(of.number for of in vc.cells) for vc in trading.in_force().virtual_clusters}
    assert cells == {"a": 1, "b": 3}
    market.world.now += HOUR
    assert market.restored().in_force() == market.world.spec
