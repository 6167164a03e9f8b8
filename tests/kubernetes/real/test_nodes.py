"""Nodes that fail, are drained, come and go, and pods that HiveD did not place, on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tools.control_plane.cluster import MERGE, STRATEGIC, Cluster, Json, RefusedError
from tools.control_plane.service import Service
from tools.control_plane.workloads import make_gang, make_pod, make_upstream_pod

from ..witness import snapshot

#: pods that stay as they are over a restart of the service, and the reason of their Events
_SAME = {"serve": "HivedForeign", "late": "HivedWaiting"}


@pytest.fixture(autouse=True)
def all_nodes_are_well(ground: Cluster, nodes: list[str]) -> Iterator[None]:
    """After each test."""
    yield
    for name in nodes:
        try:
            ground.node(name)
        except RefusedError:
            ground.create_nodes([name])
        ground.set_ready(name, True)
        ground.cordon(name, False)
        ground.annotate_node(name, bad_devices=None)
        ground.allocatable(name, {"nvidia.com/gpu": None})


def jobs_in(answer: Json) -> set[str]:
    """The jobs on the nodes of an answer."""
    return {job for node in answer["nodes"] for one in node["devices"] for job in one["jobs"]}


def reasons(service: Service) -> int:
    """How many nodes and single GPUs there are of which it is said why they take no jobs."""
    nodes = service.get("/v1/nodes")["nodes"]
    return sum(1 if node["why"] else sum(bool(one["why"]) for one in node["devices"]) for node in nodes)


def test_drain(cluster: Cluster, service: Service, nodes: list[str]) -> None:
    """A drained node gets no new pods until that is undone."""

    def drain(node: str, undo: bool = False) -> tuple[int, Json]:
        answer = service.http.post("/v1/drain", json={"node": node, "undo": undo})
        return answer.status_code, answer.json()

    cluster.create_pod(make_pod("first", "a", 4))
    home = cluster.wait_placed("first")["first"]
    drained, *others = (name for name in nodes if name != home)
    for name in others:
        cluster.cordon(name)
    status, answer = drain(drained)
    (node,) = answer["nodes"]
    assert (status, node["name"], answer["undone"], jobs_in(answer)) == (200, drained, False, set())
    assert cluster.node(drained)["spec"]["unschedulable"] is True
    cluster.create_pod(make_pod("second", "a", 4))
    cluster.wait_event("second", "cordoned", drained)
    assert cluster.placed() == {"first": home}

    assert drain(drained, undo=True)[1]["undone"] is True
    assert "unschedulable" not in cluster.node(drained)["spec"]
    assert cluster.wait_placed("second")["second"] == drained
    assert jobs_in(drain(home)[1]) == {f"{cluster.namespace}/first"}, "it stays there"
    assert set(cluster.placed()) == {"first", "second"}

    cluster.delete_node(others[0])
    for node, lacks in (("n9", "the spec has no node 'n9'"), (others[0], f"Kubernetes has no node '{others[0]}'")):
        status, answer = drain(node)
        assert (status, lacks in answer["error"]["message"]) == (404, True)


def test_restart_on_bad_nodes(cluster: Cluster, service: Service, nodes: list[str]) -> None:
    """The next process finds pods on nodes that are bad by now, and nothing has changed for them."""
    names = [f"own-{number}" for number in range(4)]
    cluster.create_pods(*(make_pod(name, "ab"[rank % 2], 4) for rank, name in enumerate(names)))
    placed = cluster.wait_placed(*names)
    assert sorted(placed.values()) == nodes
    cluster.set_ready(nodes[0], False)
    cluster.cordon(nodes[1])
    cluster.annotate_node(nodes[2], bad_devices="0,3")
    cluster.delete_node(nodes[3])
    cluster.wait_until(lambda: reasons(service) == 5, "the service knows")
    before = snapshot(service)
    assert {group[:2] for group in before.values()} == {("running", "guaranteed")}
    service.restart()
    assert snapshot(service) == before
    assert reasons(service) == 5
    assert service.metric("hived_conflicts") == 0

    cluster.delete_pod("own-0", force=True)
    cluster.create_pod(make_pod("next", "a", 4))
    cluster.wait_event("next", placed["own-0"])
    assert "next" not in cluster.placed()
    cluster.set_ready(nodes[0], True)
    cluster.cordon(nodes[1], False)
    cluster.annotate_node(nodes[2], bad_devices=None)
    cluster.create_nodes([nodes[3]])
    assert cluster.wait_placed("next")["next"] == placed["own-0"]


GROUP = "{name: own, members: [{podNumber: 2, leafCellNumber: 4}]}"
UPSTREAM = f"{{virtualCluster: a, leafCellNumber: 4, affinityGroup: {GROUP}}}"


@pytest.mark.parametrize("said", ["", UPSTREAM], ids=["labels", "upstream"])
def test_member_leaves_lost_node(cluster: Cluster, service: Service, nodes: list[str], said: str) -> None:
    """The pod that replaces a member gets another node; it was bound to the lost one by upstream's annotation."""
    pods = make_gang("own", "a", 2, 4)
    if said:
        pods = [make_upstream_pod(f"own-{rank}", said) for rank in range(2)]
    cluster.create_pods(*pods)
    before = cluster.wait_placed("own-0", "own-1")
    cluster.set_ready(before["own-1"], False)
    cluster.cordon(before["own-1"])
    cluster.delete_pod("own-1", force=True)
    cluster.create_pod(pods[1])
    placed = cluster.wait_placed("own-0", "own-1")
    assert placed["own-0"] == before["own-0"]
    assert placed["own-1"] not in before.values()
    assert set(service.groups()) == {f"{cluster.namespace}/own"}
    now = snapshot(service)
    service.restart()
    assert snapshot(service) == now


def test_rejected_pod_goes_elsewhere(cluster: Cluster, service: Service) -> None:
    """The reason is in the last version of the pod, which a watch of pods that have not failed does not bring."""
    cluster.create_pod(make_pod("first", "a", 4, group="g", group_size="1"))
    home = cluster.wait_placed("first")["first"]
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/first/status"
    cluster.api("PATCH", path, {"status": status}, STRATEGIC)
    cluster.create_pod(make_pod("second", "a", 4, group="g", group_size="1"))
    assert cluster.wait_placed("second")["second"] != home


def test_job_grows_on_smaller_nodes(cluster: Cluster, service: Service, nodes: list[str]) -> None:
    """It stays one gang; no node has more of its pods than it advertises GPUs for."""
    for name in nodes:
        cluster.allocatable(name, {"nvidia.com/gpu": "3"})
    resources = {"limits": {"nvidia.com/gpu": "2"}}
    template = make_pod("train", "a", 2)
    template["spec"] |= {
        "restartPolicy": "Never",
        "containers": [{"name": "m", "image": "none", "resources": resources}],
    }
    path = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
    spec = {"parallelism": 1, "completions": 5, "suspend": True, "template": template}
    job = cluster.api("POST", path, {"metadata": {"name": "train"}, "spec": spec})
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "train",
        "uid": job["metadata"]["uid"],
        "controller": True,
    }

    def create(name: str) -> None:
        """As its controller does, which does not run here."""
        metadata = {**template["metadata"], "name": name, "ownerReferences": [owner]}
        cluster.create_pod({"metadata": metadata, "spec": template["spec"]})

    create("train-0")
    first = cluster.wait_placed("train-0")["train-0"]
    cluster.api("PATCH", f"{path}/train", {"spec": {"parallelism": 2}}, MERGE)
    create("train-1")
    assert cluster.wait_placed("train-0", "train-1")["train-1"] != first
    assert set(service.groups()) == {f"{cluster.namespace}/train"}


def test_pod_of_another_scheduler(cluster: Cluster, service: Service, nodes: list[str]) -> None:
    """Its GPUs are given to no gang; a restart repeats no Event about what is as it was."""
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    serve = f"{cluster.namespace}/serve"
    cluster.create_pod({"metadata": {"name": "serve"}, "spec": {"nodeName": nodes[1], "containers": [container]}})
    cluster.wait_event("serve", "HiveD did not place it", reason="HivedForeign")
    cluster.create_pods(*make_gang("train", "a", 2, 4), make_pod("other", "b", 4))
    placed = cluster.wait_placed("train-0", "train-1", "other")
    assert nodes[1] not in {where for name, where in placed.items() if name != "serve"}
    cluster.create_pod(make_pod("late", "b", 4))
    cluster.wait_event("late", f"{serve}, which HiveD did not place, has 4 of its GPUs")
    status = service.cli("status").stdout
    assert "4 of pods that HiveD did not place" in status
    assert f"{nodes[1]}: pod {serve}" in status
    assert service.metric('hived_gpus{state="foreign"}') == 4
    assert f"{serve} is not HiveD's" in service.cli("explain", serve).stdout

    before = {name: cluster.messages(name, reason) for name, reason in _SAME.items()}
    service.restart()
    cluster.wake_pod("late")
    cluster.wait_until(lambda: service.metric("hived_requests_total"), "it is asked about late again")
    cluster.create_pod(make_pod("last", "b", 4))
    cluster.wait_event("last", "GPUs")
    assert {name: cluster.messages(name, reason) for name, reason in _SAME.items()} == before
    cluster.delete_pod("serve")
    assert cluster.wait_placed("late")["late"] == nodes[1]
