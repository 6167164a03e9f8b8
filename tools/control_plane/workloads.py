"""Specs of clusters, and pods on them."""

from __future__ import annotations

from typing import Any

#: priority classes; not those of ``deploy/``, which are applied beside them
URGENT, GUARANTEED, OPPORTUNISTIC = "tests-urgent", "tests-guaranteed", "tests-opportunistic"
PREFIX = "hivedscheduler.microsoft.com"  #: of the annotations
CPU = 64  #: of a node
Json = dict[str, Any]


def make_spec(nodes: list[str], vcs: dict[str, int], gpus: int = 4) -> Json:
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


def make_pod(name: str, vc: str, gpus: int, *, opportunistic: bool = False, **labels: str) -> Json:
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
                                "fieldRef": {"fieldPath": f"metadata.annotations['{PREFIX}/pod-leaf-cell-isolation']"}
                            },
                        }
                    ],
                }
            ],
        },
    }


def make_upstream_pod(name: str, annotation: str, priority_class: str = GUARANTEED) -> Json:
    """A pod as jobs of deployed HiveD clusters carry it."""
    made = make_pod(name, "", 1)
    made["metadata"] = {"name": name, "annotations": {f"{PREFIX}/pod-scheduling-spec": annotation}}
    made["spec"]["priorityClassName"] = priority_class
    made["spec"]["containers"][0]["resources"] = {"limits": {f"{PREFIX}/pod-scheduling-enable": "1"}}
    return made


def make_gang(name: str, vc: str, pods: int, gpus: int, *, opportunistic: bool = False) -> list[Json]:
    """The pods of a gang by labels."""
    labels = {"group": name, "group_size": str(pods)}
    return [make_pod(f"{name}-{rank}", vc, gpus, opportunistic=opportunistic, **labels) for rank in range(pods)]


def places(pod: Json) -> list[tuple[str, int]]:
    """Node and devices of a bound pod, as its annotation says."""
    text = pod["metadata"].get("annotations", {}).get(f"{PREFIX}/pod-leaf-cell-isolation", "")
    return [(pod["spec"]["nodeName"], int(word)) for word in text.split(",") if word]
