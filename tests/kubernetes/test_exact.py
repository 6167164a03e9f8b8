"""Exact safety on Kubernetes, where a victim takes its time to go."""

from __future__ import annotations

from dataclasses import replace

from hived.engines.kubernetes.gangs.gang import GangState
from hived.spec.compiled import EXACT, ClusterSpec

from .fake_kubernetes import World
from .pods import flat_spec, node, pod
from .test_gang_scheduler import gang, gang_of, run


def exact(spec: ClusterSpec) -> ClusterSpec:
    """All tenants are of exact safety."""
    return replace(spec, virtual_clusters=tuple(replace(vc, safety=EXACT) for vc in spec.virtual_clusters))


def test_a_victim_that_a_new_spec_downgrades_and_has_room_for_goes_once_and_starts_anew() -> None:
    world = World(exact(flat_spec(("a", 1), ("b", 1))))
    low, high = gang_of("low", 2, 2), pod("high", 2, priority="5")
    run(world, *low)
    world.create(high)
    world.asked(high.metadata.uid)
    assert gang(world, "low").state is GangState.PREEMPTED
    world.set_node(node("n2"))
    world.respecify(exact(flat_spec(("a", 3), gpus=2)))  # half of what it runs on is no more
    assert gang(world, "low").state is GangState.PREEMPTED
    for one in low:
        world.end(one.metadata.uid)
    world.deliver_all()
    again = gang_of("low", 2, 2, created=1)
    run(world, *(world.recreated(one, 1) for one in again))
    assert gang(world, "low").guaranteed
    assert gang(world, "high").guaranteed
