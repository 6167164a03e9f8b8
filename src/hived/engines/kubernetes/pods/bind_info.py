"""The placement of a group as annotations of its bound pods: all that a restart needs, in upstream's format.

pod-leaf-cell-isolation: 0,1             this pod's devices
devices.hived.io/CONTAINER: 0            those of one container, where several ask for some
pod-bind-info: (YAML)                    its node and devices, and those of the whole group, member by member
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import yaml

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.requests import Member
from hived.spec.compiled import ClusterSpec
from hived.words import shortened

from . import keys
from .objects import Pod
from .pod_request import MOST_PODS, PodRequestError, read_yaml, shares

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_MANY = 100  #: pods
_FORMER = {"gpuIsolation": "leafCellIsolation", "physicalGpuIndices": "physicalLeafCellIndices"}


@dataclass(frozen=True, slots=True)
class BindInfo:
    """The parsed annotations of one bound pod."""

    pod: PodPlacement
    chain: str
    #: places of all pods of the group, member by member
    pods: tuple[PodPlacement, ...]
    #: per pod: type of the preassigned cell that it runs in; "" if it runs in none
    cell_types: tuple[str, ...]
    members: tuple[Member, ...]

    def placement(self, spec: ClusterSpec) -> Placement:
        """The placement of the group. A cell type that the spec lacks makes it opportunistic."""
        levels: tuple[int, ...] = ()
        chain = next((chain for chain in spec.chains if chain.name == self.chain), None)
        if chain is not None and all(self.cell_types):
            numbers = {level.cell_type: number for number, level in enumerate(chain.levels, 1)}
            levels = tuple(numbers.get(name, 0) for name in self.cell_types)
        return Placement(self.chain, self.pods, levels if all(levels) else ())


def shared(placement: Placement, members: tuple[Member, ...], spec: ClusterSpec) -> str:
    """The part of the annotation that all pods of a group share. O(pods)."""
    chain = next((chain for chain in spec.chains if chain.name == placement.chain), None)
    infos, at = [], 0
    for count in _counts(placement, members):
        pods = []
        for number, pod in enumerate(placement.pods[at : at + count], at):
            level = placement.reserved_levels[number] if placement.reserved_levels else 0
            kind = chain.levels[level - 1].cell_type if level and chain is not None else ""
            pods.append(
                {
                    "physicalNode": pod.node,
                    "physicalLeafCellIndices": list(pod.leaf_cells),
                    # upstream wants one per device; HiveD reads the first, and large gangs have no room for more
                    "preassignedCellTypes": [kind] * (len(pod.leaf_cells) if len(placement.pods) <= _MANY else 1),
                }
            )
        infos.append({"podPlacements": pods})
        at += count
    return _dump({"cellChain": placement.chain, "affinityGroupBindInfo": infos})


def _counts(placement: Placement, members: tuple[Member, ...]) -> list[int]:
    """Pods per member: as requested; if the placement has another order, runs of pods of equal size."""
    sizes = [len(pod.leaf_cells) for pod in placement.pods]
    if sizes == [member.leaf_cells for member in members for _ in range(member.pods)]:
        return [member.pods for member in members]
    return [len(list(run)) for _, run in groupby(sizes)]


def pod_annotations(place: PodPlacement, of_group: str, pod: Pod | None = None) -> dict[str, str]:
    """The annotations of a pod that is bound; ``of_group`` is :func:`shared`. ``pod``: for the shares of containers."""
    own = _dump({"node": place.node, "leafCellIsolation": list(place.leaf_cells)})
    found = {keys.ISOLATION: _listed(place.leaf_cells), keys.BIND_INFO: own + of_group}
    for name, devices in (shares(pod, place.leaf_cells) if pod is not None else {}).items():
        found[keys.CONTAINER_DEVICES + name] = _listed(devices)
    return found


def _listed(devices: tuple[int, ...]) -> str:
    return ",".join(map(str, devices))


def written(pod: Pod) -> dict[str, str | None]:
    """The placement annotations of a pod, verbatim."""
    return {key: pod.annotation(key) for key in (keys.ISOLATION, keys.BIND_INFO)}


def bind_info(pod: Pod) -> BindInfo | None:
    """The parsed placement annotation of a pod; None: it has none. Raises :class:`PodRequestError`."""
    text = pod.annotation(keys.BIND_INFO)
    return None if text is None or not text.strip() else _parsed(text)


def _parsed(text: str) -> BindInfo:
    where = f"annotation {keys.BIND_INFO}"
    try:
        value, pods, types, members = _whole(text)
        pod = PodPlacement(_name(value["node"]), _devices(value["leafCellIsolation"]))
        chain = str(value.get("cellChain") or "")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else shortened(" ".join(str(error).split()), 200)
        raise PodRequestError("bind-info", f"{where} cannot be understood: {what}") from None
    if pod not in pods or len(pods) > MOST_PODS:
        raise PodRequestError("bind-info", f"{where}: its own place is not one of the {len(pods)} of its group")
    return BindInfo(pod, chain, pods, types, members)


#: the pods of a group, the types of their cells, and its members
_Shared = tuple[tuple[PodPlacement, ...], tuple[str, ...], tuple[Member, ...]]


def _whole(text: str) -> tuple[dict[str, Any], *_Shared]:
    """The whole annotation. The part shared by a group comes last, as in upstream, and is cached: O(own part) then."""
    head, found, tail = text.partition("\ncellChain:")
    if found:
        try:
            own, (chain, shared) = _renamed(read_yaml(head)), _tail(found + tail)
        except (AttributeError, LookupError, TypeError, ValueError):
            pass  # in another order, or invalid: parsing the whole decides
        else:
            return {**own, "cellChain": chain}, *shared
    value = _renamed(read_yaml(text))
    return value, *_of_group(value)


@lru_cache(maxsize=128)  # they are large
def _tail(text: str) -> tuple[object, _Shared]:
    value = _renamed(read_yaml(text))
    return value["cellChain"], _of_group(value)


def _of_group(value: dict[str, Any]) -> _Shared:
    pods: list[PodPlacement] = []
    types: list[str] = []
    members: list[Member] = []
    for info in value["affinityGroupBindInfo"]:
        placed = [_renamed(one) for one in _renamed(info)["podPlacements"]]
        for one in placed:
            pods.append(PodPlacement(_name(one["physicalNode"]), _devices(one["physicalLeafCellIndices"])))
            kinds = one.get("preassignedCellTypes") or [""]
            types.append(kinds[0] if isinstance(kinds[0], str) else "")
        if placed:
            members.append(Member(len(placed), len(pods[-1].leaf_cells)))
    return tuple(pods), tuple(types), tuple(members)


def _renamed(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected keys, not {type(value).__name__}")
    return {_FORMER.get(key, key): inner for key, inner in value.items() if isinstance(key, str)}


def _name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"a node's name, not {value!r}")
    return value


def _devices(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or any(type(one) is not int or one < 0 for one in value):
        raise ValueError(f"device indices, not {value!r}")
    if len(set(value)) < len(value):
        raise ValueError(f"device indices, each once, not {value!r}")
    return tuple(value)


def _dump(value: object) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=4096)
    return text
