"""The API's operations on Kubernetes, on a real gang scheduler: what was found by trying them."""

from __future__ import annotations

import asyncio

import pytest

from hived.access import NOBODY
from hived.cli.formats import exit_code
from hived.engine.job import JobFilter
from hived.engine.states import JobState
from hived.errors import NotFoundError, RequestError, UnsupportedError
from hived.server import schema
from hived.server.kubernetes.engine_service import EngineService

from .pods import gang_of, node, pod
from .replica import Replica, racks, service_of


def test_evicted_gang_is_not_finished() -> None:
    """``hived wait`` said 0 of a gang that was preempted."""
    world = racks()
    world.run(pod("lent", 4, "research", priority="-1"))
    service = service_of(world)
    gang = world.gang_scheduler.gangs["t/lent"]
    world.gone(*gang.pods)
    job = service.job("t/lent")
    assert (job.state, job.finished, exit_code(job)) == (JobState.ENDED, False, 143)
    assert job.why == ["its last pod is gone"]
    assert [one.id for one in service.jobs(JobFilter([JobState.ENDED]), 9, None).jobs] == ["t/lent"]


def test_gang_made_anew_is_listed_once() -> None:
    """A page that ended with the former one left the present one out."""
    world = racks()
    service = service_of(world)
    world.run(pod("first", 4, "vision", more={"group": "own", "group_size": "1"}))
    world.gone("first")
    world.create(pod("second", 4, "vision", more={"group": "own", "group_size": "1"}))
    page = service.jobs(JobFilter([JobState.QUEUED, JobState.ENDED]), 1, None)
    assert ([job.state for job in page.jobs], page.total, page.next) == ([JobState.QUEUED], 1, None)


def test_plan_of_a_job() -> None:
    """Of an unknown virtual cluster it is refused as on one machine; one that may start early is planned so."""
    world = racks()
    service = service_of(world)

    def plan(**fields: object) -> schema.PlannedJob:
        job = schema.Submission.model_validate({"vc": "research", "command": ["true"], **fields})
        (planned,) = service.plan(schema.PlanRequest(job=job), NOBODY).jobs
        return planned

    with pytest.raises(RequestError, match="nobody"):
        plan(vc="nobody")
    assert plan(gpus=4).outcome == "never", "research has cells of two GPUs"
    assert plan(gpus=4, early=True).outcome == "now"
    both = schema.PlanRequest(job=schema.Submission(vc="vision", command=("true",)), manifests=[{"kind": "Pod"}])
    with pytest.raises(RequestError, match="give one of them"):
        service.plan(both, NOBODY)


@pytest.mark.parametrize("replicas", [float("inf"), float("nan"), "many"])
def test_plan_of_endless_replicas(replicas: object) -> None:
    template = {"metadata": {"labels": {"hived.io/vc": "vision"}}, "spec": {}}
    thing = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": replicas, "template": template}}
    request = schema.PlanRequest.model_construct(job=None, manifests=[thing], namespace="default")
    with pytest.raises(RequestError, match="Deployment: it has not the form that Kubernetes wants"):
        service_of(racks()).plan(request, NOBODY)


def test_plan_of_a_deep_object() -> None:
    deep: object = {"hived.io/vc": "vision"}
    for _ in range(5000):
        deep = [deep]
    request = schema.PlanRequest.model_construct(job=None, manifests=[{"kind": "Z", "a": deep}], namespace="default")
    (planned,) = service_of(racks()).plan(request, NOBODY).jobs
    assert (planned.outcome, planned.vc) == ("unknown", "vision")


@pytest.mark.parametrize("more", [{}, {"device": 1}, {"now": True}], ids=str)
def test_drain_of_an_unknown_node(more: dict[str, object]) -> None:
    """What Kubernetes cannot do was said of a node that it has not; and how to do it there."""
    service = EngineService(Replica(), may_change=True)  # type: ignore[arg-type]  # as much as is asked of it

    def drain(node: str) -> None:
        asyncio.run(service.drain(schema.Drain.model_validate({"node": node, **more}), "ann"))

    with pytest.raises(NotFoundError, match="no node 'nope'"):
        drain("nope")
    if more:
        with pytest.raises(UnsupportedError, match="a0"):
            drain("a0")


def test_pod_without_a_group_is_explained() -> None:
    world = racks()
    wrong = pod("wrong", 4, "vision", priority="much")
    world.create(wrong)
    service = service_of(world)
    assert service.explain("t/wrong").task == "t/wrong"
    with pytest.raises(NotFoundError, match="cannot be scheduled: hived explain says why"):
        service.job("t/wrong")


def test_a_wait_is_counted_once() -> None:
    """A gang that was displaced before its pods were bound was counted from its beginning each time."""
    world = racks()
    world.submit(*gang_of("train", 2, 4, "vision"), bind=False)
    first = world.gang_scheduler.waited["vision"].sum
    for _ in range(3):
        world.now += 10
        nodes = {place.node for place in world.gang_scheduler.gangs["t/train"].placement.pods}  # type: ignore[union-attr]
        world.cordon(min(nodes))
        world.set_node(node(min(nodes)))
    assert world.gang_scheduler.waited["vision"].sum <= first + 30
