"""Plans of manifests: by the code that will decide, and nothing changes for it."""

from __future__ import annotations

from typing import Any

import pytest

from hived.errors import RequestError
from hived.server.kubernetes.engine_service import plan

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
    assert [(one.group, one.vc, one.gpus) for one in (now, waits, never)] == [
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
    assert world.state("lent") == "placed"


def test_what_is_ignored() -> None:
    """Objects without pods, and pods of others; a list is read, and a taken name is planned as another."""
    world = World(a=1)
    world.run(pod("alone", 2))
    stranger = {"kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}}
    assert plan(world.gang_scheduler, [{"kind": "ConfigMap", "metadata": {"name": "x"}}, stranger], "t") == []
    like = job("alone", 1, 2)["spec"]["template"] | {"kind": "Pod"}
    like["metadata"] |= {"name": "alone"}
    (planned,) = plan(world.gang_scheduler, [{"kind": "List", "items": [like]}], "t")
    assert (planned.group, planned.outcome) == ("t/alone", "now")


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [("Pod", {"containers": 3}, "Pod: it has not the form"), ("Job", {}, "'template' is missing")],
)
def test_wrong_object(kind: str, spec: Json, message: str) -> None:
    wrong = {"kind": kind, "metadata": {"name": "x"}, "spec": spec}
    with pytest.raises(RequestError, match=message) as caught:
        plan(World(a=1).gang_scheduler, [job("fine", 1, 1), wrong], "t")
    assert caught.value.field == "objects.1"
