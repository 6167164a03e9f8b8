"""Builders of pods, nodes and specs, and functions that change them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import (
    Condition,
    Container,
    Metadata,
    Node,
    NodeSpec,
    NodeStatus,
    Owner,
    Pod,
    PodSpec,
    Resources,
)
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

#: node and device index
Device = tuple[str, int]


def node(name: str, ready: bool = True, cordoned: bool = False, bad: str | None = None) -> Node:
    """A node."""
    return Node(
        metadata=Metadata(name=name, uid=f"node-{name}", annotations=None if bad is None else {keys.BAD_DEVICES: bad}),
        spec=NodeSpec(unschedulable=cordoned or None),
        status=NodeStatus(conditions=[Condition(type="Ready", status="True" if ready else "Unknown")]),
    )


def pod(
    name: str,
    gpus: int = 1,
    vc: str | None = "a",
    *,
    namespace: str = "t",
    uid: str = "",
    created: int = 0,
    owner: Owner | None = None,
    said: str | None = None,
    more: Mapping[str, str] | None = None,
    **labels: str,
) -> Pod:
    """A pod with labels, ``group_size="4"`` for ``hived.io/group-size``; or with ``said`` as upstream's annotation."""
    found = {f"hived.io/{key.replace('_', '-')}": value for key, value in {**labels, **(more or {})}.items()}
    if vc is not None and said is None:
        found[keys.VC] = vc
    limits: dict[str, str | int | float] = {keys.GPU: str(gpus)} if said is None else {keys.ENABLE: 1}
    return Pod(
        metadata=Metadata(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{namespace}-{name}",
            creation_timestamp=f"2026-01-01T{created // 3600:02}:{created // 60 % 60:02}:{created % 60:02}Z",
            labels=found,
            annotations=None if said is None else {keys.POD_SPEC: said},
            owner_references=None if owner is None else [owner],
        ),
        spec=PodSpec(containers=[Container(name="main", resources=Resources(limits=limits))]),
    )


def foreign(name: str, gpus: object, where: str = "", created: int = 0) -> Pod:
    """A pod of another scheduler, with GPUs of a device plugin; ``where``: its node."""
    made = pod(name, 0, None, created=created)
    limits: dict[str, str | int | float] = {"nvidia.com/gpu": str(gpus)}
    containers = [Container(name="main", resources=Resources(limits=limits))]
    spec = PodSpec(containers=containers, node_name=where or None, scheduler_name="default-scheduler")
    return replace(made, spec=spec)


def on(there: Pod, where: str, notes: dict[str, str] | None = None) -> Pod:
    """The pod once it is bound."""
    annotations = {**(there.metadata.annotations or {}), **(notes or {})}
    return replace(
        there, spec=replace(there.spec, node_name=where), metadata=replace(there.metadata, annotations=annotations)
    )


def labelled(there: Pod, **labels: str | None) -> Pod:
    """The pod with other labels; None: without."""
    found = dict(there.metadata.labels or {})
    for key, value in labels.items():
        name = f"hived.io/{key.replace('_', '-')}"
        found.pop(name, None)
        if value is not None:
            found[name] = value
    return replace(there, metadata=replace(there.metadata, labels=found))


def annotated(there: Pod, **notes: str | None) -> Pod:
    """The pod with other annotations, by their names in ``keys``; None: without."""
    found = dict(there.metadata.annotations or {})
    for key, value in notes.items():
        found.pop(getattr(keys, key), None)
        if value is not None:
            found[getattr(keys, key)] = value
    return replace(there, metadata=replace(there.metadata, annotations=found))


def terminating(there: Pod) -> Pod:
    """The pod while it is being deleted."""
    return replace(there, metadata=replace(there.metadata, deletion_timestamp="2026-01-02T00:00:00Z"))


def flat_spec(*shares: tuple[str, int], spare: int = 0, gpus: int = 4) -> ClusterSpec:
    """Nodes ``n0``, ``n1``, ... of GPUs in pairs; each VC has so many of them."""
    number = sum(nodes for _, nodes in shares) + spare
    return spec_from_dict(
        {
            "physicalCluster": {
                "cellTypes": {
                    "PAIR": {"childCellType": "GPU", "childCellNumber": 2},
                    "NODE": {"childCellType": "PAIR", "childCellNumber": gpus // 2, "isNodeLevel": True},
                },
                "physicalCells": [{"cellType": "NODE", "cellAddress": f"n{i}"} for i in range(number)],
            },
            "virtualClusters": {
                vc: {"virtualCells": [{"cellType": "NODE", "cellNumber": nodes}]} for vc, nodes in shares
            },
        }
    )


def node_names(spec: ClusterSpec) -> list[str]:
    """All nodes of a spec, each once."""
    return list(dict.fromkeys(name for chain in spec.chains for name in chain.node_names))


def devices_of(there: Pod) -> set[Device]:
    """The devices that a bound pod's annotations let it use."""
    words = (there.annotation(keys.ISOLATION) or there.annotation(keys.FORMER_ISOLATION) or "").split(",")
    return {(there.spec.node_name or "", int(word)) for word in words if word.strip().isdecimal()}
