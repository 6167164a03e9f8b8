"""Plans of manifests: by the code that will decide, and nothing changes for it."""

from __future__ import annotations

from typing import Any

import pytest

from hived.errors import RequestError
from hived.server.kubernetes.planning import plan

from .fake_kubernetes import World
from .pods import gang_of, pod

Json = dict[str, Any]
VERSIONS = {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2", "PyTorchJob": "kubeflow.org/v1"}


def job(name: str, pods: int, gpus: int, vc: str = "a", kind: str = "Job") -> Json:
    """A Job, a JobSet of one, or a PyTorchJob of workers."""
    spec = {"containers": [{"name": "main", "resources": {"limits": {"hived.io/gpu": gpus}}}]}
    template = {"metadata": {"labels": {"hived.io/vc": vc}}, "spec": spec}
    one = {"spec": {"parallelism": pods, "completions": pods, "template": template}}
    specs: Json = {
        "Job": one["spec"],
        "JobSet": {"replicatedJobs": [{"name": "main", "replicas": 1, "template": one}]},
        "PyTorchJob": {"pytorchReplicaSpecs": {"Worker": {"replicas": pods, "template": template}}},
    }
    return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": {"name": name}, "spec": specs[kind]}


@pytest.mark.parametrize("kind", ["Job", "JobSet", "PyTorchJob"])
def test_outcomes(kind: str) -> None:
    """Now, later or never: each group alone, as if the others were not there."""
    world = World(a=2)
    world.run(pod("first", 4))
    before = world.placements()
    jobs = [job("now", 2, 2, kind=kind), job("waits", 2, 4, kind=kind), job("never", 3, 4, kind=kind)]
    now, waits, never = plan(world.gang_scheduler, jobs, "t")
    assert [(one.name, one.vc, one.gpus) for one in (now, waits, never)] == [
        ("t/now", "a", 4), ("t/waits", "a", 8), ("t/never", "a", 12),
    ]  # fmt: skip
    assert (now.outcome, now.victims, now.reasons) == ("now", [], [])
    assert {place.node for place in now.placement} == {"n0", "n1"} - {world.home("first")}
    assert sorted(device for place in now.placement for device in place.devices) == [0, 1, 2, 3]
    assert (waits.outcome, waits.placement) == ("waits", [])
    assert waits.reasons
    (stray,) = plan(world.gang_scheduler, [job("stray", 1, 1, vc="nobody", kind=kind)], "t")
    assert [never.outcome, stray.outcome] == ["never", "never"]
    assert "12" in never.text
    assert "nobody" in stray.text
    assert world.placements() == before
    assert set(world.gang_scheduler.gangs) == {"t/first"}


def test_victims() -> None:
    """They are named, and lose nothing by it."""
    world = World(a=1, b=1)
    world.run(*gang_of("lent", 2, 4, "b", priority="-1"))
    (planned,) = plan(world.gang_scheduler, [job("own", 1, 4)], "t")
    assert (planned.outcome, planned.victims) == ("now", ["t/lent"])
    assert "to be ended: t/lent" in planned.text
    assert world.state("lent") == "running"


def test_what_is_ignored() -> None:
    """Objects without pods, and pods of others; a list is read, and a taken name is planned as another."""
    world = World(a=1)
    world.run(pod("alone", 2))
    stranger = {"kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}}
    assert plan(world.gang_scheduler, [{"kind": "ConfigMap", "metadata": {"name": "x"}}, stranger], "t") == []
    like = job("alone", 1, 2)["spec"]["template"] | {"kind": "Pod"}
    like["metadata"] |= {"name": "alone"}
    (planned,) = plan(world.gang_scheduler, [{"kind": "List", "items": [like]}], "t")
    assert (planned.name, planned.outcome) == ("t/alone", "now")


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [("Pod", {"containers": 3}, "Pod: it has not the form"), ("Job", {}, "'template' is missing")],
)
def test_wrong_object(kind: str, spec: Json, message: str) -> None:
    wrong = {"kind": kind, "metadata": {"name": "x"}, "spec": spec}
    with pytest.raises(RequestError, match=message) as caught:
        plan(World(a=1).gang_scheduler, [job("fine", 1, 1), wrong], "t")
    assert caught.value.field == "manifests.1"


# -- all pods that an object makes -----------------------------------------------------------------------------------


def template(gpus: int, vc: str = "a", **labels: str) -> Json:
    """A template of pods; ``gpus=0``: without a limit."""
    named = {f"hived.io/{key.replace('_', '-')}": value for key, value in {"vc": vc, **labels}.items()}
    limits = {"hived.io/gpu": gpus} if gpus else {}
    return {"metadata": {"labels": named}, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


def of_kind(kind: str, spec: Json, api: str = "apps/v1") -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def replicas(kind: str, number: int, of: Json, **more: object) -> Json:
    return of_kind(kind, {"replicas": number, "template": of, **more})


def outcomes(world: World, *things: Json) -> list[tuple[str, int]]:
    """Outcome and GPUs of each group."""
    return [(one.outcome, one.gpus) for one in plan(world.gang_scheduler, things, "t")]


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"])
def test_each_replica(kind: str) -> None:
    """One pod was planned, whatever the number."""
    world = World(a=2)
    assert outcomes(world, replicas(kind, 2, template(4))) == [("now", 8)]
    (found,) = plan(world.gang_scheduler, [replicas(kind, 10, template(4))], "t")
    assert (found.outcome, found.gpus, len(found.placement)) == ("waits", 40, 2)
    assert "2 of its 10 pods would start now" in found.text
    assert outcomes(world, replicas(kind, 10, template(8))) == [("never", 80)]
    assert outcomes(world, replicas(kind, 0, template(4))) == []


def test_job_that_is_no_gang() -> None:
    world = World(a=2)
    spec = {"parallelism": 3, "completions": 3, "template": template(4, gang="false")}
    assert outcomes(world, of_kind("Job", spec, "batch/v1")) == [("waits", 12)]
    spec["parallelism"] = 2
    assert outcomes(world, of_kind("Job", spec, "batch/v1")) == [("now", 8)]
    cron = of_kind("CronJob", {"schedule": "* * * * *", "jobTemplate": {"spec": spec}}, "batch/v1")
    assert outcomes(world, cron) == [("now", 8)]
    assert outcomes(world, of_kind("Job", {**spec, "suspend": True}, "batch/v1")) == [("waits", 8)]


@pytest.mark.parametrize(("policy", "outcome"), [({}, "never"), ({"podManagementPolicy": "Parallel"}, "now")])
def test_gang_of_a_stateful_set(policy: Json, outcome: str) -> None:
    """Its pods are made one after another, and a gang is placed once all exist."""
    world = World(a=2)
    (found,) = plan(
        world.gang_scheduler, [replicas("StatefulSet", 2, template(4, group="g", group_size="2"), **policy)], "t"
    )
    assert found.outcome == outcome
    assert ("podManagementPolicy: Parallel" in found.text) is (outcome == "never")


@pytest.mark.parametrize(("number", "outcome"), [(1, "waits"), (2, "now"), (3, "waits")])
def test_number_of_a_group(number: int, outcome: str) -> None:
    """Fewer pods than its label says never start, and of more some wait."""
    world = World(a=2)
    assert outcomes(world, replicas("Deployment", number, template(4, group="g", group_size="2"))) == [(outcome, 8)]


def test_jobs_of_a_jobset_in_order() -> None:
    """With one group over jobs of which the second is made after the first."""
    jobs = [{"name": name, "template": {"spec": {"template": template(4, group="g", group_size="2")}}} for name in "ab"]
    spec = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "InOrder"}}
    assert outcomes(World(a=2), of_kind("JobSet", spec, VERSIONS["JobSet"])) == [("never", 8)]


def test_master_without_gpus() -> None:
    """Such a PyTorchJob runs, and was refused."""
    roles = {"Master": {"replicas": 1, "template": template(0)}, "Worker": {"replicas": 2, "template": template(4)}}
    thing = of_kind("PyTorchJob", {"pytorchReplicaSpecs": roles}, VERSIONS["PyTorchJob"])
    assert outcomes(World(a=2), thing) == [("now", 8)]


def test_launcher_of_a_group() -> None:
    """It is counted in the group, and needs no GPUs."""
    labels = {"group": "g", "group_size": "3"}
    launcher = {"apiVersion": "v1", "kind": "Pod"} | template(0, **labels)
    workers = replicas("ReplicaSet", 2, template(4, **labels))
    assert outcomes(World(a=2), launcher, workers) == [("now", 8)]
    assert outcomes(World(a=2), workers) == [("waits", 12)]


@pytest.mark.parametrize("kind", ["MPIJob", "RayCluster", "DaemonSet"])
def test_kind_that_is_not_read(kind: str) -> None:
    """It was taken for something that is not for HiveD."""
    thing = of_kind(kind, {"roles": {"worker": {"replicas": 2, "template": template(4)}}}, "any/v1")
    (found,) = plan(World(a=2).gang_scheduler, [thing], "t")
    assert (found.name, found.vc, found.outcome) == ("t/x", "a", "unknown")
    assert kind in found.text


def test_groups_beside_each_other() -> None:
    """Each fits alone, and not beside the others; running pods stay as they are."""
    world = World(a=2, b=1)
    world.run(*gang_of("lent", 1, 4, "b", priority="-1"))
    before = world.placements()
    assert outcomes(world, job("one", 1, 4), job("two", 1, 4), job("three", 1, 4)) == [
        ("now", 4), ("now", 4), ("waits", 4),
    ]  # fmt: skip
    assert world.placements() == before
    world.step()


def test_request_that_may_start_early() -> None:
    """It does not wait while GPUs are idle."""
    world = World(a=1, b=1)
    world.run(pod("first", 4))
    like = {"apiVersion": "v1", "kind": "Pod"} | template(4, mode="either")
    assert outcomes(world, like) == [("now", 4)]


def test_sizes_that_differ() -> None:
    things = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}} | template(gpus, group="g", group_size="2")
        for gpus in (4, 2)
    ]
    with pytest.raises(RequestError, match="affinityGroup"):
        plan(World(a=2).gang_scheduler, things, "t")
