"""The ways in which pods ask: upstream's annotation, Jobs, JobSets, PyTorchJobs, priorities, pinned cells."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.kubernetes.cluster import MERGE, Cluster, RefusedError
from tests.kubernetes.service import Service

from . import scenes

UPSTREAM = "hivedscheduler.microsoft.com"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def spec(nodes: list[str]) -> scenes.Json:
    """Two nodes are a's; b has one somewhere, and n3 for good."""
    made = scenes.spec(nodes, {"a": 2, "b": 1})
    made["physicalCluster"]["physicalCells"][3]["pinnedCellId"] = "b-own"
    made["virtualClusters"]["b"]["pinnedCells"] = [{"pinnedCellId": "b-own"}]
    return made


def annotated(name: str, **said: Any) -> scenes.Json:
    return scenes.upstream_pod(name, yaml.safe_dump({"virtualCluster": "a", "leafCellNumber": 4, **said}))


def bind_info(pod: scenes.Json) -> scenes.Json:
    found: scenes.Json = yaml.safe_load(pod["metadata"]["annotations"][f"{UPSTREAM}/pod-bind-info"])
    return found


# -- upstream's annotation --------------------------------------------------------------------------------------------


def test_a_gang_of_upstreams_annotation_gets_upstreams_annotations(cluster: Cluster, service: Service) -> None:
    members = [{"podNumber": 1, "leafCellNumber": 4}, {"podNumber": 2, "leafCellNumber": 2}]
    group = {"name": "upstream-train", "members": members}
    for name, cells in (("chief", 4), ("worker-0", 2), ("worker-1", 2)):
        cluster.create_pod(annotated(name, priority=10, leafCellNumber=cells, leafCellType="GPU", affinityGroup=group))
    scenes.wait_for_places(cluster, "chief", "worker-0", "worker-1")
    pods = cluster.pods()
    scenes.nobody_shares(pods)
    infos = {name: bind_info(pod) for name, pod in pods.items()}
    for name, info in infos.items():
        assert list(info) == ["node", "leafCellIsolation", "cellChain", "affinityGroupBindInfo"]
        assert info["node"] == pods[name]["spec"]["nodeName"]
        assert [(info["node"], device) for device in info["leafCellIsolation"]] == scenes.devices(pods[name])
        assert info["cellChain"] == "NODE"
        assert info["affinityGroupBindInfo"] == infos["chief"]["affinityGroupBindInfo"]
    members_told = infos["chief"]["affinityGroupBindInfo"]
    assert [len(member["podPlacements"]) for member in members_told] == [1, 2]
    placements = [placement for member in members_told for placement in member["podPlacements"]]
    for placement in placements:
        assert sorted(placement) == ["physicalLeafCellIndices", "physicalNode", "preassignedCellTypes"]
        assert placement["preassignedCellTypes"] == ["NODE"] * len(placement["physicalLeafCellIndices"])
    assert [len(placement["physicalLeafCellIndices"]) for placement in placements] == [4, 2, 2]
    told = {(p["physicalNode"], tuple(p["physicalLeafCellIndices"])) for p in placements}
    assert told == {(info["node"], tuple(info["leafCellIsolation"])) for info in infos.values()}
    shown = service.get("/v1/inspect/affinitygroups/upstream-train")
    assert shown["metadata"]["name"] == "upstream-train"
    assert shown["status"]["state"] == "Allocated"


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu"])
def test_gpus_are_asked_for_by_their_vendors_names_too(cluster: Cluster, service: Service, resource: str) -> None:
    pod = scenes.pod("vendor", "a", 2)
    pod["spec"]["containers"][0]["resources"] = {"limits": {resource: "2"}}
    cluster.create_pod(pod)
    scenes.wait_for_places(cluster, "vendor")
    assert len(scenes.devices(cluster.pod("vendor"))) == 2


def test_a_kube_scheduler_that_sends_nodes_whole_is_understood(
    cluster: Cluster, ground: Cluster, service: Service
) -> None:
    ground.plane.start_scheduler(service.extender, "whole", extender={"nodeCacheCapable": False})
    try:
        for pod in scenes.gang("train", "a", 2, 4):
            pod["spec"]["schedulerName"] = "whole"
            cluster.create_pod(pod)
        scenes.wait_for_places(cluster, "train-0", "train-1")
        scenes.nobody_shares(cluster.pods())
    finally:
        ground.plane.stop_scheduler("whole")


# -- owners -----------------------------------------------------------------------------------------------------------


def template(gpus: int) -> scenes.Json:
    """Of pods, with a tenant's label."""
    pod = scenes.pod("template", "a", gpus)
    return {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": {**pod["spec"], "restartPolicy": "Never"}}


def places(cluster: Cluster) -> set[tuple[str, int]]:
    found = [place for pod in cluster.pods().values() for place in scenes.devices(pod)]
    assert len(set(found)) == len(found)
    return set(found)


def owned(pod: scenes.Json, owner: scenes.Json) -> scenes.Json:
    """The same, made by a controller for ``owner``."""
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {key: owner["metadata"][key] for key in
                 ("name", "uid")}  # fmt: skip
    pod["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
    return pod


def define(cluster: Cluster, group: str, version: str, kind: str) -> str:
    """A kind of objects, whatever they contain; the path of those in the test's namespace."""
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    body = {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }
    try:
        cluster.api("POST", CRDS, body)
    except RefusedError as error:
        if error.reason != "AlreadyExists":
            raise
    path = f"/apis/{group}/{version}/namespaces/{cluster.namespace}/{plural}"

    def served() -> bool:
        try:
            cluster.api("GET", path)
        except (RefusedError, ValueError):
            return False
        return True

    cluster.wait_until(served, f"{kind} is a kind")
    return path


def make_job(cluster: Cluster, numbers: dict[str, int]) -> None:
    """A Job ``train`` whose pods have two GPUs."""
    spec = {**numbers, "template": template(2)}
    path = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
    cluster.api("POST", path, {"metadata": {"name": "train"}, "spec": spec})


def end_job(cluster: Cluster) -> None:
    """It goes, and its pods."""
    cluster.api("DELETE", f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs/train", propagationPolicy="Background")
    cluster.wait_until(lambda: not cluster.pods(), "the Job's pods are gone")


def test_the_pods_of_a_job_are_a_gang_and_new_ones_come_back_to_the_places_of_old_ones(
    cluster: Cluster, service: Service, controller_manager: None
) -> None:
    make_job(cluster, {"parallelism": 4, "completions": 4})
    cluster.wait_until(lambda: len(cluster.placed()) == 4, "all four are placed")
    before, names = places(cluster), set(cluster.pods())
    group = service.groups()[f"{cluster.namespace}/train"]
    assert (group["state"], group["size"], len(group["pods"])) == ("placed", 4, 4)

    for name in sorted(names)[:2]:
        cluster.delete_pod(name, force=True)
    cluster.wait_until(
        lambda: len(placed := cluster.placed()) == 4 and len(names & set(placed)) == 2, "the Job made two anew"
    )
    assert places(cluster) == before
    end_job(cluster)


def test_the_master_and_the_workers_of_a_pytorchjob_are_one_gang(cluster: Cluster, service: Service) -> None:
    path = define(cluster, "kubeflow.org", "v1", "PyTorchJob")
    roles = {"Worker": {"replicas": 2, "template": template(2)}, "Master": {"replicas": 1, "template": template(4)}}
    job = cluster.api(
        "POST",
        path,
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "torch"},
            "spec": {"pytorchReplicaSpecs": roles},
        },
    )
    for name, gpus in (("torch-worker-0", 2), ("torch-worker-1", 2)):
        cluster.create_pod(owned(scenes.pod(name, "a", gpus), job))
    # of the second one: the first was told already that one exists, and is not told again of every pod that comes
    scenes.wait_for_words(cluster, "torch-worker-1", "2 of its 3 pods exist")
    assert cluster.placed() == {}
    cluster.create_pod(owned(scenes.pod("torch-master-0", "a", 4), job))
    cluster.wait_until(lambda: len(cluster.placed()) == 3, "all three are placed")
    assert [len(scenes.devices(cluster.pod(name))) for name in ("torch-master-0", "torch-worker-0")] == [4, 2]
    group = service.groups()[f"{cluster.namespace}/torch"]
    assert (group["state"], group["gpus"], group["size"]) == ("placed", 8, 3)


# -- priorities -------------------------------------------------------------------------------------------------------


def test_a_lazily_preempted_gang_runs_on_where_others_leave_gpus_idle(cluster: Cluster, service: Service) -> None:
    group = {"name": "lazy", "members": [{"podNumber": 2, "leafCellNumber": 4}]}
    for rank in range(2):
        cluster.create_pod(annotated(f"lazy-{rank}", priority=1, lazyPreemptionEnable=True, affinityGroup=group))
    home = scenes.wait_for_places(cluster, "lazy-0", "lazy-1")
    cluster.create_pod(scenes.pod("high", "a", 4, priority="9"))
    assert scenes.wait_for_places(cluster, "high")["high"] not in home.values()
    assert {name: node for name, node in cluster.placed().items() if name != "high"} == home

    def types() -> set[str]:
        info = bind_info(cluster.pod("lazy-0"))["affinityGroupBindInfo"]
        return {kind for member in info for pod in member["podPlacements"] for kind in pod["preassignedCellTypes"]}

    cluster.wait_until(lambda: types() == {""}, "its annotation says that it stands in no reserved cell")
    assert service.groups()[f"{cluster.namespace}/lazy"]["kind"] == "opportunistic"
    shown = service.get("/v1/inspect/affinitygroups/lazy")["status"]
    assert shown["lazyPreemptionStatus"]["preemptor"] == f"{cluster.namespace}/high"


def test_gpus_of_terminating_pods_are_given_to_no_gang(
    cluster: Cluster, ground: Cluster, service: Service, nodes: list[str]
) -> None:
    for pod in scenes.gang("lent", "b", 4, 4, opportunistic=True):
        pod["spec"]["terminationGracePeriodSeconds"] = 30
        cluster.create_pod(pod)
    cluster.wait_until(lambda: len(cluster.placed()) == 4, "the loan is placed on all nodes")
    kubelet = ground.finish_deletions()
    kubelet.silent.update(nodes)
    try:
        cluster.create_pod(scenes.pod("own", "a", 4))
        scenes.wait_for_words(cluster, "own", f"{cluster.namespace}/lent")
        cluster.wait_until(
            lambda: all("deletionTimestamp" in cluster.pod(f"lent-{rank}")["metadata"] for rank in range(4)),
            "all of them are told to go",
        )
        group = service.groups()[f"{cluster.namespace}/own"]
        assert (group["state"], group["victims"]) == ("reserved", [f"{cluster.namespace}/lent"])
        service.kill()
        service.start()
        scenes.wait_for_words(cluster, "own", f"{cluster.namespace}/lent")

        cluster.delete_pod("own", force=True)
        cluster.create_pod(scenes.pod("other", "b", 4))
        scenes.wait_for_words(cluster, "other", f"{cluster.namespace}/lent")
        assert len(cluster.placed()) == 4
    finally:
        kubelet.silent.clear()
    scenes.wait_for_places(cluster, "other")
    cluster.wait_until(lambda: set(cluster.pods()) == {"other"}, "those that were told to go are gone")


# -- nodes that kube-scheduler would not take -------------------------------------------------------------------------


def test_ignoring_suggested_nodes_is_what_the_annotation_says(cluster: Cluster, service: Service) -> None:
    """Pinned to a node that kube-scheduler does not take for it."""

    def taint(*taints: dict[str, str]) -> None:
        cluster.api("PATCH", "/api/v1/nodes/n3", {"spec": {"taints": taints or None}}, MERGE)

    taint({"key": "special", "effect": "NoSchedule"})
    try:
        for name, ignore in (("anywhere", True), ("suggested", False)):
            said = {"virtualCluster": "b", "leafCellNumber": 2, "pinnedCellId": "b-own"}
            cluster.create_pod(annotated(name, **said, ignoreK8sSuggestedNodes=ignore))
        assert scenes.wait_for_places(cluster, "anywhere") == {"anywhere": "n3"}
        scenes.wait_for_words(cluster, "suggested", "kube-scheduler takes 3 of the cluster's nodes")
        assert set(cluster.placed()) == {"anywhere"}
        taint()
        assert scenes.wait_for_places(cluster, "suggested")["suggested"] == "n3"
    finally:
        taint()
