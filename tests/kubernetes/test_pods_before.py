"""Pods of the version before, as it has written them (``pods_before.json`` says which), are taken over as they are."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from hived.engines.kubernetes.gangs.gang import Annotate, Evict
from hived.engines.kubernetes.pods.objects import Pod

from .checking import validate
from .fake_kubernetes import World
from .pods import pod
from .replica import RACKS

RECORDED = json.loads(Path(__file__).with_name("pods_before.json").read_text(encoding="utf-8"))


def test_every_gang_runs_where_it_ran() -> None:
    world = World(RACKS)
    for plain in RECORDED["pods"]:
        world.write(msgspec.convert(plain, Pod))
    world.restart(compare=False)
    table = world.gang_scheduler
    found = {
        name: {
            "kind": "guaranteed" if gang.guaranteed else "opportunistic",
            "pods": [[place.node, list(place.leaf_cells)] for place in gang.placement.pods],
        }
        for name, gang in table.gangs.items()
        if gang.placement is not None
    }
    assert found == RECORDED["gangs"]
    assert (table.conflicts, table.refused) == ({}, {})
    assert not [one for one in world.todo if isinstance(one, Annotate | Evict)], "nothing of them is written anew"
    validate(table)
    world.submit(pod("next", 4, "vision", priority="-1"))
    assert world.nodes_of("next") == [None], "nobody is given what they have"
