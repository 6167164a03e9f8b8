"""What pods ask for, in all the ways there are, and what they get wrong: the reason is where their owners look."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tools.control_plane.cluster import MERGE, Cluster, Json, RefusedError
from tools.control_plane.service import Service
from tools.control_plane.workloads import PREFIX, make_gang, make_pod, make_spec, make_upstream_pod, places

from ..witness import nobody_shares

SPEC_KEY = f"{PREFIX}/pod-scheduling-spec"


@pytest.fixture(scope="module")
def spec(nodes: list[str]) -> Json:
    """Two nodes are a's; b has one somewhere, and n3 for good."""
    made = make_spec(nodes, {"a": 2, "b": 1})
    made["physicalCluster"]["physicalCells"][3]["pinnedCellId"] = "b-own"
    made["virtualClusters"]["b"]["pinnedCells"] = [{"pinnedCellId": "b-own"}]
    return made


def annotated(name: str, **said: Any) -> Json:
    return make_upstream_pod(name, yaml.safe_dump({"virtualCluster": "a", "leafCellNumber": 4, **said}))


# -- upstream's annotation --------------------------------------------------------------------------------------------


def test_upstream_annotations(cluster: Cluster, service: Service) -> None:
    """A gang of upstream's annotation gets upstream's annotations, in each of its pods the same."""
    members = [{"podNumber": 1, "leafCellNumber": 4}, {"podNumber": 2, "leafCellNumber": 2}]
    group = {"name": "upstream-train", "members": members}
    for name, cells in (("chief", 4), ("worker-0", 2), ("worker-1", 2)):
        cluster.create_pod(annotated(name, priority=10, leafCellNumber=cells, leafCellType="GPU", affinityGroup=group))
    cluster.wait_placed("chief", "worker-0", "worker-1")
    pods = cluster.pods()
    nobody_shares(pods)
    infos = [yaml.safe_load(pod["metadata"]["annotations"][f"{PREFIX}/pod-bind-info"]) for pod in pods.values()]
    for pod, info in zip(pods.values(), infos, strict=True):
        assert list(info) == ["node", "leafCellIsolation", "cellChain", "affinityGroupBindInfo"]
        assert info["node"] == pod["spec"]["nodeName"]
        assert [(info["node"], device) for device in info["leafCellIsolation"]] == places(pod)
        assert info["affinityGroupBindInfo"] == infos[0]["affinityGroupBindInfo"]
    placed = [member["podPlacements"] for member in infos[0]["affinityGroupBindInfo"]]
    assert [[len(one["physicalLeafCellIndices"]) for one in member] for member in placed] == [[4], [2, 2]]
    assert {(one["physicalNode"], *one["physicalLeafCellIndices"]) for member in placed for one in member} == {
        (info["node"], *info["leafCellIsolation"]) for info in infos
    }
    shown = service.get("/v1/inspect/affinitygroups/upstream-train")
    assert (shown["metadata"]["name"], shown["status"]["state"]) == ("upstream-train", "Allocated")


def test_suggested_nodes(cluster: Cluster, service: Service) -> None:
    """Two pods are pinned to a node that kube-scheduler does not take: the annotation says whether that counts."""

    def taint(*taints: dict[str, str]) -> None:
        cluster.api("PATCH", "/api/v1/nodes/n3", {"spec": {"taints": taints or None}}, MERGE)

    taint({"key": "special", "effect": "NoSchedule"})
    try:
        for name, ignore in (("anywhere", True), ("suggested", False)):
            said = {"virtualCluster": "b", "leafCellNumber": 2, "pinnedCellId": "b-own"}
            cluster.create_pod(annotated(name, **said, ignoreK8sSuggestedNodes=ignore))
        assert cluster.wait_placed("anywhere") == {"anywhere": "n3"}
        cluster.wait_event("suggested", "kube-scheduler takes 3 of the cluster's nodes")
        assert set(cluster.placed()) == {"anywhere"}
    finally:
        taint()
    assert cluster.wait_placed("suggested")["suggested"] == "n3"


def test_nodes_sent_whole(cluster: Cluster, ground: Cluster, service: Service) -> None:
    """A kube-scheduler without ``nodeCacheCapable``, as deployed ones are."""
    ground.plane.start_scheduler(service.extender, "whole", extender={"nodeCacheCapable": False})
    try:
        for pod in make_gang("train", "a", 2, 4):
            pod["spec"]["schedulerName"] = "whole"
            cluster.create_pod(pod)
        cluster.wait_placed("train-0", "train-1")
        nobody_shares(cluster.pods())
    finally:
        ground.plane.stop_scheduler("whole")


# -- owners -----------------------------------------------------------------------------------------------------------


def define_pytorchjobs(cluster: Cluster) -> str:
    """Make the kind known to the API server, whatever is in it; returns the path of its objects."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    body = {
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "scope": "Namespaced",
            "names": {"plural": "pytorchjobs", "singular": "pytorchjob", "kind": "PyTorchJob"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    cluster.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    path = f"/apis/kubeflow.org/v1/namespaces/{cluster.namespace}/pytorchjobs"

    def served() -> bool:
        try:
            return bool(cluster.api("GET", path))
        except (RefusedError, ValueError):
            return False

    cluster.wait_until(served, "PyTorchJob is a kind")
    return path


def test_pytorchjob_is_one_gang(cluster: Cluster, service: Service) -> None:
    """The size is that of master and workers together, read from an object of a kind that others define."""
    path = define_pytorchjobs(cluster)
    roles = {
        role: {"replicas": number, "template": {"spec": make_pod("template", "a", gpus)["spec"]}}
        for role, number, gpus in (("Worker", 2, 2), ("Master", 1, 4))
    }
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
    job = cluster.api("POST", path, {**head, "metadata": {"name": "torch"}, "spec": {"pytorchReplicaSpecs": roles}})
    owner = {**head, "name": "torch", "uid": job["metadata"]["uid"], "controller": True}
    worker, other, master = (
        make_pod(name, "a", gpus)
        for name, gpus in (("torch-worker-0", 2), ("torch-worker-1", 2), ("torch-master-0", 4))
    )
    for pod in (worker, other, master):
        pod["metadata"]["ownerReferences"] = [owner]
    cluster.create_pods(worker, other)
    # of the second one: the first was told already that one exists, and is not told again of every pod that comes
    cluster.wait_event("torch-worker-1", "2 of its 3 pods exist")
    assert cluster.placed() == {}
    cluster.create_pod(master)
    cluster.wait_placed("torch-worker-0", "torch-worker-1", "torch-master-0")
    assert [len(places(cluster.pod(name))) for name in ("torch-master-0", "torch-worker-0")] == [4, 2]
    group = service.groups()[f"{cluster.namespace}/torch"]
    assert (group["state"], group["gpus"], group["size"]) == ("running", 8, 3)


# -- what is wrong ----------------------------------------------------------------------------------------------------


def relabel(cluster: Cluster, name: str, **labels: str) -> None:
    named = {f"hived.io/{key.replace('_', '-')}": value for key, value in labels.items()}
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{name}"
    cluster.api("PATCH", path, {"metadata": {"labels": named}}, MERGE)


def test_wrong_requests(cluster: Cluster, service: Service) -> None:
    """They are refused in an Event of the pod; a label that is mended is read again."""
    no_tenant = make_pod("no-tenant", "a", 1)
    del no_tenant["metadata"]["labels"]
    gone = {"apiVersion": "batch/v1", "kind": "Job", "name": "gone", "uid": "no-such-uid", "controller": True}
    orphan = make_pod("orphan", "a", 2)
    orphan["metadata"]["ownerReferences"] = [gone]
    cases = {
        "no-size": (make_pod("no-size", "a", 1, group="g"), ["hived.io/group-size"]),
        "priority": (make_pod("priority", "a", 1, priority="high"), ["hived.io/priority", "high"]),
        "no-yaml": (make_upstream_pod("no-yaml", "virtualCluster: ["), [SPEC_KEY]),
        "no-tenant": (no_tenant, ["hived.io/vc", SPEC_KEY]),
        "orphan": (orphan, [f"Job {cluster.namespace}/gone", "NotFound", "hived.io/group-size"]),
    }
    cluster.create_pods(*(pod for pod, _ in cases.values()))
    for name, (_, words) in cases.items():
        cluster.wait_event(name, *words, reason="HivedRefused")
    assert cluster.placed() == {}
    assert service.metric("hived_refused_pods") == len(cases)
    told = service.get(f"/v1/explain/{cluster.namespace}/no-yaml")
    assert (told["reasons"][0]["kind"], SPEC_KEY in told["text"]) == ("misconfigured", True)
    told = service.get(f"/v1/explain/{cluster.namespace}/orphan")
    assert all(word in told["text"] for word in cases["orphan"][1])
    relabel(cluster, "no-size", group_size="1")
    relabel(cluster, "priority", priority="7")
    relabel(cluster, "orphan", group="orphans", group_size="1")
    assert set(cluster.wait_placed("no-size", "priority", "orphan")) == {"no-size", "priority", "orphan"}


@pytest.mark.parametrize("resource", ["hived.io/gpu", "nvidia.com/gpu"])
def test_pod_of_no_gpus(cluster: Cluster, service: Service, resource: str) -> None:
    """kube-scheduler asks about a limit of 0 as well; the pod waited for ever."""
    cpu = make_pod("cpu", "a", 0)
    cpu["spec"]["containers"][0]["resources"] = {"limits": {resource: "0"}}
    cluster.create_pod(cpu)
    assert cluster.wait_placed("cpu")
    assert service.groups() == {}
    assert service.metric("hived_refused_pods") == 0
    assert not [event for event in cluster.events() if event["reason"].startswith("Hived")]


def test_hostile_questions(cluster: Cluster, service: Service) -> None:
    """A question about a pod that is not as the question says changes nothing, and an enormous one is not read."""
    plain = cluster.create_pod({"metadata": {"name": "plain"}, "spec": {"schedulerName": "nobody"}})
    forged = make_pod("plain", "a", 4, priority="1000")
    forged["metadata"] |= {key: plain["metadata"][key] for key in ("namespace", "name", "uid")}
    nodes = list(service.get("/v1/dashboard/layout")["views"][0]["chains"][0]["nodes"])
    answer = service.http.post("/v1/extender/filter", json={"Pod": forged, "NodeNames": nodes})
    assert answer.json() == {"NodeNames": nodes}, "the pod that there is asks for no GPUs"
    assert service.groups() == {}
    assert "plain" not in {event["involvedObject"]["name"] for event in cluster.events()}
    answer = service.http.post("/v1/extender/filter", content=b"{" + b" " * (5 * 1024 * 1024))
    assert answer.status_code == 413
    assert "4,194,304 bytes" in answer.json()["error"]["message"]
