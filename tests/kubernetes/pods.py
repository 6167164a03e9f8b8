"""Builders of pods, nodes and specs, and functions that change them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods import objects as kinds
from hived.engines.kubernetes.pods.objects import Node, Owner, Pod
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec

#: node and device index
Device = tuple[str, int]
#: the resources of a container
Limits = dict[str, str | int | float]


def uid_of(one: Pod | str) -> str:
    """The uid of a pod; a text is a uid, or the name of a pod of namespace t."""
    if isinstance(one, Pod):
        return one.metadata.uid
    return one if one.startswith("uid-") or "#" in one else f"uid-t-{one}"


def node(name: str, ready: bool = True, cordoned: bool = False, bad: str | None = None) -> Node:
    marks = None if bad is None else {keys.BAD_DEVICES: bad}
    return Node(
        metadata=kinds.Metadata(name=name, uid=f"node-{name}", annotations=marks),
        spec=kinds.NodeSpec(unschedulable=cordoned or None),
        status=kinds.NodeStatus(conditions=[kinds.Condition(type="Ready", status="True" if ready else "Unknown")]),
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
    limits: Limits = {keys.GPU: str(gpus)} if said is None else {keys.ENABLE: 1}
    return Pod(
        metadata=kinds.Metadata(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{namespace}-{name}",
            creation_timestamp=f"2026-01-01T{created // 3600:02}:{created // 60 % 60:02}:{created % 60:02}Z",
            labels=found,
            annotations=None if said is None else {keys.POD_SPEC: said},
            owner_references=None if owner is None else [owner],
        ),
        spec=kinds.PodSpec(containers=_containers([limits])),
    )


def foreign(name: str, gpus: object, where: str = "", created: int = 0) -> Pod:
    """A pod of another scheduler, with GPUs of a device plugin; ``where``: its node."""
    made = pod(name, 0, None, created=created)
    made = with_limits(made, {"nvidia.com/gpu": str(gpus)})
    return replace(made, spec=replace(made.spec, node_name=where or None, scheduler_name="default-scheduler"))


def gang_of(name: str, size: int, gpus: int, vc: str = "a", created: int = 0, **labels: str) -> list[Pod]:
    more = {"group": name, "group_size": str(size), **labels}
    return [pod(f"{name}-{i}", gpus, vc, created=created, more=more) for i in range(size)]


def loans(number: int) -> list[Pod]:
    """Opportunistic pods of ``b``, each on a node of its own: ``loan0``, ``loan1``, ..."""
    return [pod(f"loan{i}", 4, "b", priority="-1") for i in range(number)]


def with_limits(there: Pod, *limits: Limits, first: Iterable[Limits] = ()) -> Pod:
    """The pod with one container per limits; ``first``: those of init containers."""
    return replace(there, spec=replace(there.spec, containers=_containers(limits), init_containers=_containers(first)))


def _containers(limits: Iterable[Limits]) -> list[kinds.Container]:
    return [kinds.Container(name="main", resources=kinds.Resources(limits=one)) for one in limits]


def on(there: Pod, where: str, notes: Mapping[str, str] | None = None) -> Pod:
    annotations = _merged(there.metadata.annotations, notes or {})
    metadata = replace(there.metadata, annotations=annotations)
    return replace(there, spec=replace(there.spec, node_name=where), metadata=metadata)


def labelled(there: Pod, **labels: str | None) -> Pod:
    """The pod with other labels; None: without."""
    named = {f"hived.io/{key.replace('_', '-')}": value for key, value in labels.items()}
    return replace(there, metadata=replace(there.metadata, labels=_merged(there.metadata.labels, named)))


def annotated(there: Pod, **notes: str | None) -> Pod:
    """The pod with other annotations, by their names in ``keys``; None: without."""
    named = {getattr(keys, key): value for key, value in notes.items()}
    return replace(there, metadata=replace(there.metadata, annotations=_merged(there.metadata.annotations, named)))


def _merged(before: Mapping[str, str] | None, now: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**(before or {}), **now}.items() if value is not None}


def terminating(there: Pod) -> Pod:
    return replace(there, metadata=replace(there.metadata, deletion_timestamp="2026-01-02T00:00:00Z"))


def flat_spec(*, spare: int = 0, gpus: int = 4, **vcs: int) -> ClusterSpec:
    """Nodes ``n0``, ``n1``, ... of GPUs in pairs; ``vcs``: how many of them each has reserved."""
    number = sum(vcs.values()) + spare
    types = {
        "PAIR": {"childCellType": "GPU", "childCellNumber": 2},
        "NODE": {"childCellType": "PAIR", "childCellNumber": gpus // 2, "isNodeLevel": True},
    }
    cells = [{"cellType": "NODE", "cellAddress": f"n{i}"} for i in range(number)]
    reserved = {vc: {"virtualCells": [{"cellType": "NODE", "cellNumber": nodes}]} for vc, nodes in vcs.items()}
    physical = {"cellTypes": types, "physicalCells": cells}
    return spec_from_dict({"physicalCluster": physical, "virtualClusters": reserved})


def with_vcs(spec: ClusterSpec, **fields: Any) -> ClusterSpec:
    """The spec whose VCs have these fields."""
    vcs = tuple(dataclasses.replace(vc, **fields) for vc in spec.virtual_clusters)
    return dataclasses.replace(spec, virtual_clusters=vcs)


def node_names(spec: ClusterSpec) -> list[str]:
    """All nodes of a spec, each once."""
    return list(dict.fromkeys(name for chain in spec.chains for name in chain.node_names))


def devices_of(there: Pod) -> set[Device]:
    """The devices that a bound pod's annotations let it use."""
    words = (there.annotation(keys.ISOLATION) or there.annotation(keys.FORMER_ISOLATION) or "").split(",")
    return {(there.spec.node_name or "", int(word)) for word in words if word.strip().isdecimal()}
