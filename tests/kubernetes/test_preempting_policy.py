"""A policy that preempts in a VC, on Kubernetes: the tick of the engine is its timer."""

from __future__ import annotations

import pytest

from hived.engines.kubernetes.gangs.gang import Evict, GangState

from ..policies import LeastAttained
from . import fake_kubernetes
from .fake_kubernetes import World
from .pods import flat_spec, pod
from .test_gang_scheduler import gang, run


def test_a_gang_yields_to_the_next_one_once_it_has_attained_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_kubernetes, "YarnCS", lambda: LeastAttained((4 * 60.0,)))
    world = World(flat_spec(("a", 1)))
    long, short = pod("long", 4), pod("short", 4)
    run(world, long)
    world.create(short)
    world.ask(short.metadata.uid)
    world.flush()
    assert (gang(world, "long").state, gang(world, "short").state) == (GangState.PLACED, GangState.WAITING)
    review = world.gang_scheduler.scheduler.next_review
    assert world.now < review <= world.now + 60
    world.wait(review - world.now)
    assert (gang(world, "long").state, gang(world, "short").state) == (GangState.PREEMPTED, GangState.RESERVED)
    world.wait(0)
    assert [one.uid for one in world.todo if isinstance(one, Evict)] == [long.metadata.uid]
    world.carry_out_all()
    world.kubelet()
    world.flush()
    assert gang(world, "short").state is GangState.PLACED
    assert gang(world, "short").guaranteed
