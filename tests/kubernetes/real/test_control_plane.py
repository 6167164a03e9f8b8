"""The tests' own control plane does what the other tests count on."""

from __future__ import annotations

import httpx
import pytest

from ..cluster import Api, Cluster, RefusedError
from ..control_plane import ControlPlane


def bind(cluster: Cluster, pod: str, node: str) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/binding"
    cluster.api("POST", path, {"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}})


def test_a_node_is_ready_until_its_kubelet_says_otherwise(cluster: Cluster) -> None:
    cluster.create_nodes(["node-1"], resources={"nvidia.com/gpu": "8"})
    cluster.set_ready("node-1", False)
    cluster.cordon("node-1")
    node = cluster.node("node-1")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert [condition["status"] for condition in node["status"]["conditions"]] == ["False"]
    assert node["spec"]["unschedulable"] is True


def test_a_bound_pod_runs_and_goes_when_it_is_deleted(cluster: Cluster) -> None:
    cluster.create_nodes(["node-1"])
    cluster.finish_deletions()
    cluster.create_pod({"metadata": {"name": "pod"}})
    bind(cluster, "pod", "node-1")
    cluster.wait_until(lambda: cluster.pod("pod")["status"]["phase"] == "Running", "the pod runs")
    cluster.delete_pod("pod")
    cluster.wait_until(lambda: not cluster.pods(), "the pod is gone")


def test_a_pod_on_a_node_whose_kubelet_is_silent_stays_terminating(cluster: Cluster) -> None:
    cluster.create_nodes(["node-1", "node-2"])
    cluster.finish_deletions().silent.add("node-1")
    for number in (1, 2):
        cluster.create_pod({"metadata": {"name": f"pod-{number}"}})
        bind(cluster, f"pod-{number}", f"node-{number}")
        cluster.delete_pod(f"pod-{number}")
    cluster.wait_until(lambda: len(cluster.pods()) == 1, "one is gone")
    assert "deletionTimestamp" in cluster.pod("pod-1")["metadata"]


def test_a_failed_wait_shows_the_pods(cluster: Cluster) -> None:
    cluster.create_pod({"metadata": {"name": "lonely"}, "spec": {"schedulerName": "nobody"}})
    with pytest.raises(AssertionError, match=r"(?s)it runs; last seen: False.*pod lonely: Pending, no node"):
        cluster.wait_until(lambda: False, "it runs", timeout=0.1)


def test_objects_outlive_the_api_server(control_plane: ControlPlane, cluster: Cluster) -> None:
    cluster.create_pod({"metadata": {"name": "pod"}})
    control_plane.restart_api_server()
    assert list(cluster.pods()) == ["pod"]


def test_an_api_server_that_ends_or_begins_and_does_nothing_is_asked_again(control_plane: ControlPlane) -> None:
    answers = [(503, "apiserver is shutting down"), (429, "storage is (re)initializing"), (201, "done")]

    def answer(_: httpx.Request) -> httpx.Response:
        status, words = answers.pop(0)
        return httpx.Response(status, json={"kind": "Status", "message": words})

    api = Api(control_plane)
    api.close()
    api._client = httpx.Client(base_url=control_plane.url, transport=httpx.MockTransport(answer))
    assert api("POST", "/api/v1/nodes", {})["message"] == "done"
    api.close()


def test_jobs_get_pods_while_the_controllers_run(controller_manager: None, cluster: Cluster) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}}
    job = {"metadata": {"name": "job"}, "spec": {"parallelism": 3, "template": template}}
    cluster.api("POST", f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs", job)
    cluster.wait_until(lambda: len(cluster.pods()) == 3, "the job has its pods")
    cluster.api("DELETE", f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs/job", propagationPolicy="Background")
    cluster.wait_until(lambda: not cluster.pods(), "the job's pods are gone")


def test_a_pod_that_is_not_there_is_not_found(cluster: Cluster) -> None:
    with pytest.raises(RefusedError) as caught:
        cluster.pod("nobody")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
