"""Nodes that fail, are drained, come and go, on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster, RefusedError
from tests.kubernetes.service import Service

from . import scenes

#: pods that stay as they are over a restart of the service, and why they were told of
_STANDS = {"serve": "HivedForeign", "late": "HivedWaiting"}


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


def test_a_drained_node_gets_no_new_pods_until_that_is_undone(
    cluster: Cluster, service: Service, nodes: list[str]
) -> None:
    cluster.create_pod(scenes.pod("first", "a", 4))
    home = scenes.wait_for_places(cluster, "first")["first"]
    others = [name for name in nodes if name != home]
    for name in others[1:]:
        cluster.cordon(name)
    told = service.cli("drain", others[0])
    assert (told.returncode, told.stderr) == (0, "")
    assert others[0] in told.stdout
    assert cluster.node(others[0])["spec"]["unschedulable"] is True
    cluster.create_pod(scenes.pod("second", "a", 4))
    scenes.wait_for_words(cluster, "second", "cordoned", others[0])
    assert cluster.placed() == {"first": home}

    assert service.cli("drain", others[0], "--undo").returncode == 0
    assert "unschedulable" not in cluster.node(others[0])["spec"]
    assert scenes.wait_for_places(cluster, "second")["second"] == others[0]

    told = service.cli("drain", home)
    assert f"{cluster.namespace}/first" in told.stdout, "who is still there is told"
    assert cluster.pod("first")["status"]["phase"] in ("Pending", "Running")


def test_a_drain_of_a_node_that_the_spec_or_kubernetes_lacks_is_refused_by_name(
    cluster: Cluster, service: Service, nodes: list[str]
) -> None:
    cluster.delete_node(nodes[3])
    for node, lacks in (("n9", "the spec has no node 'n9'"), (nodes[3], f"Kubernetes has no node '{nodes[3]}'")):
        told = service.cli("drain", node)
        assert (told.returncode, told.stdout) == (4, "")
        assert lacks in told.stderr


def test_a_restart_finds_pods_on_nodes_that_are_bad_by_now(
    cluster: Cluster, service: Service, nodes: list[str]
) -> None:
    for number in range(4):
        cluster.create_pod(scenes.pod(f"own-{number}", "ab"[number % 2], 4))
    placed = scenes.wait_for_places(cluster, *(f"own-{number}" for number in range(4)))
    assert sorted(placed.values()) == nodes
    cluster.set_ready(nodes[0], False)
    cluster.cordon(nodes[1])
    cluster.annotate_node(nodes[2], bad_devices="0,3")
    cluster.delete_node(nodes[3])
    cluster.wait_until(lambda: len(service.get("/v1/status")["nodes"]["why"]) == 5, "the service knows")

    def standing() -> dict[str, tuple[str, str]]:
        return {name: (group["state"], group["kind"]) for name, group in service.groups().items()}

    before = standing()
    assert set(before.values()) == {("placed", "guaranteed")}
    service.kill()
    service.start()
    assert standing() == before
    assert len(service.get("/v1/status")["nodes"]["why"]) == 5
    assert service.metric("hived_conflicts") == 0

    cluster.delete_pod("own-0", force=True)
    cluster.create_pod(scenes.pod("next", "a", 4))
    scenes.wait_for_words(cluster, "next", placed["own-0"])
    assert "next" not in cluster.placed()
    cluster.set_ready(nodes[0], True)
    cluster.cordon(nodes[1], False)
    cluster.annotate_node(nodes[2], bad_devices=None)
    cluster.create_nodes([nodes[3]])
    assert scenes.wait_for_places(cluster, "next")["next"] == placed["own-0"]


def test_gpus_of_a_pod_that_another_scheduler_has_bound_are_given_to_no_gang(
    cluster: Cluster, service: Service, nodes: list[str]
) -> None:
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "4"}}}
    cluster.create_pod({"metadata": {"name": "serve"}, "spec": {"nodeName": nodes[1], "containers": [container]}})
    scenes.wait_for_words(cluster, "serve", "HiveD did not place it", reason="HivedForeign")
    for pod in [*scenes.gang("train", "a", 2, 4), scenes.pod("other", "b", 4)]:
        cluster.create_pod(pod)
    placed = scenes.wait_for_places(cluster, "train-0", "train-1", "other")
    assert nodes[1] not in {where for name, where in placed.items() if name != "serve"}
    cluster.create_pod(scenes.pod("late", "b", 4))
    scenes.wait_for_words(cluster, "late", f"{cluster.namespace}/serve, which HiveD did not place, has 4 of its GPUs")
    status = service.cli("status").stdout
    assert "4 of pods that HiveD did not place" in status
    assert f"{nodes[1]}: pod {cluster.namespace}/serve" in status
    assert service.metric('hived_gpus{state="foreign"}') == 4
    assert f"{cluster.namespace}/serve is not HiveD's" in service.cli("explain", f"{cluster.namespace}/serve").stdout
    told = {name: sorted(scenes.said(cluster, name, reason).splitlines()) for name, reason in _STANDS.items()}
    service.kill()
    service.start()
    cluster.wake_pod("late")
    cluster.wait_until(lambda: service.metric("hived_requests_total"), "it is asked about late again")
    cluster.create_pod(scenes.pod("last", "b", 4))
    scenes.wait_for_words(cluster, "last", "GPUs")
    again = {name: sorted(scenes.said(cluster, name, reason).splitlines()) for name, reason in _STANDS.items()}
    assert again == told, "a restart tells nothing again that is as it was"
    cluster.delete_pod("serve")
    assert scenes.wait_for_places(cluster, "late")["late"] == nodes[1]
