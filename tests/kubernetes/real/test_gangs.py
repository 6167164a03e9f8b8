"""Pods through kube-scheduler and the service, on a real control plane."""

from __future__ import annotations

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.service import Service

from . import scenes


@pytest.mark.parametrize("priority_class", [scenes.OPPORTUNISTIC, scenes.GUARANTEED])
def test_a_preemption_leaves_no_error_of_kube_scheduler_whatever_the_class_of_the_victims(
    cluster: Cluster, ground: Cluster, service: Service, nodes: list[str], priority_class: str
) -> None:
    """Victims take their time: kube-scheduler, which sees no lack of anything, tries to preempt as well."""
    before = len(ground.plane.log("kube-scheduler"))
    for pod in scenes.gang("lent", "b", 4, 4, opportunistic=True):
        pod["spec"] |= {"priorityClassName": priority_class, "terminationGracePeriodSeconds": 30}
        cluster.create_pod(pod)
    cluster.wait_until(lambda: len(cluster.placed()) == 4, "the loan is placed on all nodes")
    kubelet = ground.finish_deletions()
    kubelet.silent.update(nodes)
    try:
        for pod in scenes.gang("own", "a", 2, 4):
            cluster.create_pod(pod)
        scenes.wait_for_words(cluster, "own-1", f"{cluster.namespace}/lent")
        cluster.wait_until(
            lambda: all("deletionTimestamp" in cluster.pod(f"lent-{rank}")["metadata"] for rank in range(4)),
            "all of them are told to go",
        )
        why = cluster.wait_until(lambda: why_unscheduled(cluster, "own-1"), "kube-scheduler says why")
    finally:
        kubelet.silent.clear()
    scenes.wait_for_places(cluster, "own-0", "own-1")
    for words in (why, scenes.said(cluster, "own-1", "FailedScheduling")):
        assert "hived: its GPUs are reserved" in words
        assert "expected at least one victim" not in words
    assert "Status after running PostFilter" not in ground.plane.log("kube-scheduler")[before:]


def test_nodes_whose_cpu_is_lent_as_well_are_asked_for_by_the_preempt_verb(cluster: Cluster, service: Service) -> None:
    asked = service.metric('hived_requests_total{result="victims",verb="preempt"}')
    for pod in [*scenes.gang("lent", "b", 4, 4, opportunistic=True), *scenes.gang("own", "a", 2, 4)]:
        pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "60"}  # of 64
        cluster.create_pod(pod)
        if pod["metadata"]["name"] == "lent-3":
            cluster.wait_until(lambda: len(cluster.placed()) == 4, "the loan is placed on all nodes")
    scenes.wait_for_places(cluster, "own-0", "own-1")
    assert service.metric('hived_requests_total{result="victims",verb="preempt"}') > asked


def why_unscheduled(cluster: Cluster, name: str) -> str:
    """What kube-scheduler has written into the pod."""
    found = cluster.pod(name)["status"].get("conditions", ())
    return "; ".join(one.get("message", "") for one in found if one["type"] == "PodScheduled")
