"""Policies of the spec's virtual clusters, on Kubernetes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hived.engines.kubernetes.gangs.gang import GangState
from hived.errors import InputError
from hived.spec.compiled import ClusterSpec

from .fake_kubernetes import World
from .pods import flat_spec, pod
from .test_gang_scheduler import gang, run


def with_policy(name: str) -> ClusterSpec:
    spec = flat_spec(("a", 1))
    return replace(spec, virtual_clusters=(replace(spec.virtual_clusters[0], policy=name),))


def test_a_new_spec_brings_its_policy_and_one_that_needs_durations_is_refused() -> None:
    world = World(flat_spec(("a", 1)))
    first, large, small = pod("first", 3), pod("large", 4), pod("small", 1)
    run(world, first)
    for one in (large, small):
        world.create(one)
        world.ask(one.metadata.uid)
        world.flush()
    assert (gang(world, "large").state, gang(world, "small").state) == (GangState.WAITING, GangState.WAITING)
    with pytest.raises(InputError, match="policy sjf of a orders jobs by their duration"):
        world.gang_scheduler.reconfigure(with_policy("sjf"), world.now)
    world.gang_scheduler.reconfigure(with_policy("greedy"), world.now)
    world.flush()
    world.ask(small.metadata.uid)
    world.flush()
    assert (gang(world, "large").state, gang(world, "small").state) == (GangState.WAITING, GangState.PLACED)
