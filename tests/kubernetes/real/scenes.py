"""Specs and pods of the tests on a real control plane."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.cluster import Cluster

#: not those of deploy/, which other tests apply
URGENT, GUARANTEED, OPPORTUNISTIC = "tests-urgent", "tests-guaranteed", "tests-opportunistic"
CPU = 64  #: of a node
Json = dict[str, Any]


def spec(nodes: list[str], vcs: dict[str, int], gpus: int = 4) -> Json:
    """Equal nodes, so many of them per virtual cluster."""
    return {
        "physicalCluster": {
            "cellTypes": {"NODE": {"childCellType": "GPU", "childCellNumber": gpus, "isNodeLevel": True}},
            "physicalCells": [{"cellType": "NODE", "cellAddress": name} for name in nodes],
        },
        "virtualClusters": {
            name: {"virtualCells": [{"cellType": "NODE", "cellNumber": number}]} for name, number in vcs.items()
        },
    }


def pod(name: str, vc: str, gpus: int, *, opportunistic: bool = False, **labels: str) -> Json:
    """A pod with plain labels: ``group_size="4"`` is ``hived.io/group-size: "4"``."""
    named = {"hived.io/vc": vc, **{f"hived.io/{key.replace('_', '-')}": value for key, value in labels.items()}}
    if opportunistic:
        named["hived.io/priority"] = "opportunistic"
    return {
        "metadata": {"name": name, "labels": named},
        "spec": {
            "schedulerName": "hived",
            "priorityClassName": OPPORTUNISTIC if opportunistic else GUARANTEED,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {"limits": {"hived.io/gpu": str(gpus)}},
                    "env": [
                        {
                            "name": "NVIDIA_VISIBLE_DEVICES",
                            "valueFrom": {
                                "fieldRef": {
                                    "fieldPath": "metadata.annotations['hivedscheduler.microsoft.com/"
                                    "pod-leaf-cell-isolation']"
                                }
                            },
                        }
                    ],
                }
            ],
        },
    }


def upstream_pod(name: str, annotation: str, priority_class: str = GUARANTEED) -> Json:
    """A pod as jobs of deployed HiveD clusters carry it."""
    made = pod(name, "", 1)
    made["metadata"] = {"name": name, "annotations": {"hivedscheduler.microsoft.com/pod-scheduling-spec": annotation}}
    made["spec"]["priorityClassName"] = priority_class
    made["spec"]["containers"][0]["resources"] = {"limits": {"hivedscheduler.microsoft.com/pod-scheduling-enable": "1"}}
    return made


def gang(name: str, vc: str, pods: int, gpus: int, *, opportunistic: bool = False) -> list[Json]:
    """The pods of a gang by labels."""
    labels = {"group": name, "group_size": str(pods)}
    return [pod(f"{name}-{rank}", vc, gpus, opportunistic=opportunistic, **labels) for rank in range(pods)]


def devices(found: Json) -> list[tuple[str, int]]:
    """Node and devices of a bound pod, as it says itself."""
    text = found["metadata"]["annotations"]["hivedscheduler.microsoft.com/pod-leaf-cell-isolation"]
    return [(found["spec"]["nodeName"], int(word)) for word in text.split(",")]


def nobody_shares(pods: dict[str, Json]) -> None:
    """No GPU is given to two pods that live."""
    taken: dict[tuple[str, int], str] = {}
    for name, found in pods.items():
        if found["spec"].get("nodeName") and found["status"].get("phase") not in ("Succeeded", "Failed"):
            for place in devices(found):
                assert place not in taken, f"{place} is given to {taken[place]} and to {name}"
                taken[place] = name


def said(cluster: Cluster, name: str, reason: str = "HivedWaiting") -> str:
    """What Events with this reason have told of a pod, all of it."""
    return "\n".join(
        event["message"]
        for event in cluster.events()
        if event["involvedObject"]["name"] == name and event["reason"] == reason
    )


def wait_for_words(cluster: Cluster, name: str, *words: str, reason: str = "HivedWaiting") -> None:
    """Until Events with this reason have said all of these of a pod."""
    cluster.wait_until(
        lambda: all(word in said(cluster, name, reason) for word in words), f"Events say {words} of {name}"
    )


def wait_for_places(cluster: Cluster, *names: str) -> dict[str, str]:
    """Until these pods are bound; the nodes of all that are.

    A kube-scheduler whose books keep pods that are gone is restarted, once: ``docs/deploying.md``, kubernetes#141255.
    """

    def placed() -> dict[str, str] | None:
        found = cluster.placed()
        return found if set(names) <= set(found) else None

    try:
        return cluster.wait_until(placed, f"{names} are placed") or {}
    except AssertionError:
        if not cluster.plane.pods_kept_for_nothing():
            raise
    cluster.plane.restart_scheduler()
    return cluster.wait_until(placed, f"{names} are placed after a restart of kube-scheduler") or {}
