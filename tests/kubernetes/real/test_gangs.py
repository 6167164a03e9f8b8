"""Pods through kube-scheduler and the service, on a real control plane."""

from __future__ import annotations

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.service import Service

from . import scenes


def test_a_gang_of_four_lands_as_one(cluster: Cluster, service: Service) -> None:
    for pod in scenes.gang("train", "a", 4, 2):
        cluster.create_pod(pod)
    cluster.wait_until(lambda: len(cluster.placed()) == 4, "all four are placed")
    scenes.nobody_shares(cluster.pods())
    assert len(set(cluster.placed().values())) == 2
    group = service.groups()[f"{cluster.namespace}/train"]
    assert (group["state"], group["kind"], group["gpus"]) == ("placed", "guaranteed", 8)


def test_a_gang_that_does_not_fit_waits_as_one_and_the_pods_say_why(cluster: Cluster, service: Service) -> None:
    cluster.create_pod(scenes.pod("first", "a", 4))
    cluster.wait_until(lambda: "first" in cluster.placed(), "the first is placed")
    for pod in scenes.gang("train", "a", 4, 2):
        cluster.create_pod(pod)

    def told() -> bool:
        return any(
            "need 8" in event["message"] or "8" in event["message"]
            for event in cluster.events()
            if event["reason"] == "HivedWaiting" and event["involvedObject"]["name"].startswith("train-")
        )

    cluster.wait_until(told, "an Event says why it waits")
    assert set(cluster.placed()) == {"first"}
    cluster.delete_pod("first")
    cluster.wait_until(lambda: len(cluster.placed()) == 4, "all four are placed once there is room")


def test_an_opportunistic_gang_is_preempted_by_the_other_tenant(cluster: Cluster, service: Service) -> None:
    for pod in scenes.gang("lent", "b", 4, 4, opportunistic=True):
        cluster.create_pod(pod)
    cluster.wait_until(lambda: len(cluster.placed()) == 4, "the loan is placed on all nodes")
    cluster.create_pod(scenes.pod("own", "a", 2))
    cluster.wait_until(lambda: "own" in cluster.placed(), "the guaranteed pod is placed")
    assert "HivedPreempted" in {event["reason"] for event in cluster.events()}
    cluster.wait_until(lambda: set(cluster.pods()) == {"own"}, "all of the gang is gone")
