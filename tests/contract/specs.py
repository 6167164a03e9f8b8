"""Small clusters in the spec's dialect, and requests in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hived import Member, Request

#: what a spec file holds, as plain data
Spec = dict[str, Any]


def cell_types(nodes: int = 2, size: int = 4) -> Spec:
    """``RACK`` of ``nodes`` ``NODE`` of ``size`` (4 or 8) GPUs, in ``SOCKET``, in pairs."""
    socket = {"childCellType": "GPU", "childCellNumber": 2}
    types: Spec = {"SOCKET": socket}
    if size == 8:
        types = {"SWITCH": socket, "SOCKET": {"childCellType": "SWITCH", "childCellNumber": 2}}
    types["NODE"] = {"childCellType": "SOCKET", "childCellNumber": 2, "isNodeLevel": True}
    types["RACK"] = {"childCellType": "NODE", "childCellNumber": nodes}
    return types


def reserves(cells: Mapping[str, int] | None = None, pinned: Iterable[str] = (), weight: float | None = None) -> Spec:
    """The reservation of one VC: how many cells of each qualified type, and pinned cells."""
    vc: Spec = {"virtualCells": [{"cellType": kind, "cellNumber": n} for kind, n in (cells or {}).items()]}
    if pins := [{"pinnedCellId": pin} for pin in pinned]:
        vc["pinnedCells"] = pins
    if weight is not None:
        vc["opportunisticWeight"] = weight
    return vc


def cluster_spec(types: Spec, cells: Iterable[Spec], vcs: Mapping[str, Spec]) -> Spec:
    return {"physicalCluster": {"cellTypes": types, "physicalCells": list(cells)}, "virtualClusters": dict(vcs)}


def flat(
    vcs: Mapping[str, int],
    spare: int = 0,
    size: int = 4,
    kind: str = "NODE",
    weights: Mapping[str, float] | None = None,
    nodes: int | None = None,
    pinned: Mapping[int, str] | None = None,
) -> Spec:
    """Nodes ``n0``, ``n1``, ... with nothing above them; each VC reserves so many cells of ``kind``.

    ``pinned``: nodes, and the VC that each is pinned for, as ``pin-0`` for node 0.
    """
    count = sum(vcs.values()) + spare if nodes is None else nodes
    weights, pins = weights or {}, {node: {"pinnedCellId": f"pin-{node}"} for node in pinned or {}}
    cells = [{"cellType": "NODE", "cellAddress": f"n{i}", **pins.get(i, {})} for i in range(count)]
    owned = {vc: [f"pin-{node}" for node, owner in (pinned or {}).items() if owner == vc] for vc in vcs}
    return cluster_spec(
        cell_types(size=size),
        cells,
        {name: reserves({kind: number}, owned[name], weights.get(name)) for name, number in vcs.items()},
    )


def two_chains(gpus: int, vcs: Mapping[str, Spec]) -> Spec:
    """``NODE``s of so many V100, of which n0 and n1 stand alone, and m0 and m1 in a ``2-NODE``."""
    types: Spec = {
        "NODE": {"childCellType": "V100", "childCellNumber": gpus, "isNodeLevel": True},
        "2-NODE": {"childCellType": "NODE", "childCellNumber": 2},
    }
    alone = [{"cellType": "NODE", "cellAddress": name} for name in ("n0", "n1")]
    pair = {"cellType": "2-NODE", "cellChildren": [{"cellAddress": "m0"}, {"cellAddress": "m1"}]}
    return cluster_spec(types, [*alone, pair], vcs)


def racks(vcs: Mapping[str, Mapping[str, int]], count: int = 2, nodes: int = 2, size: int = 4) -> Spec:
    """Racks of nodes ``r0n0``, ``r0n1``, ..., ``r1n0``, ...; each VC reserves cells of the given qualified types."""
    cells = [
        {"cellType": "RACK", "cellChildren": [{"cellAddress": f"r{r}n{n}"} for n in range(nodes)]} for r in range(count)
    ]
    return cluster_spec(cell_types(nodes, size), cells, {name: reserves(kinds) for name, kinds in vcs.items()})


def wants(group: str, vc: str, *members: int | tuple[int, int] | Member, priority: int = 0, **options: Any) -> Request:
    """A request; a member is a number of GPUs for one pod, (pods, GPUs each), or a :class:`Member`."""
    listed = [
        Member(pods=1, leaf_cells=member)
        if isinstance(member, int)
        else (Member(pods=member[0], leaf_cells=member[1]) if isinstance(member, tuple) else member)
        for member in members
    ]
    return Request(group=group, vc=vc, priority=priority, members=tuple(listed), **options)


def lent(group: str, vc: str, *members: int | tuple[int, int] | Member, **options: Any) -> Request:
    return wants(group, vc, *members, priority=-1, **options)
