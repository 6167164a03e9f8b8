"""``/v1/inspect``: groups and cells, as the deployed scheduler shows them (microsoft/hivedscheduler, pkg/api/types.go).

Differences that a program may see: lists have an order, and an empty one is ``[]``, never ``null``; a virtual cell has
the state and the priority of its VC's own groups (see :mod:`hived.inspection`), wherever it is shown; cells
above nodes are called by number, whatever the spec calls them.

All cells of an answer are of one moment, that of the request, even if it takes seconds to send them. In the
list of groups each is as it is when its turn comes, and one that has ended by then is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from hived import Cluster, LeafState
from hived.cluster.explain.queries import GroupStatus
from hived.cluster.states import GroupState
from hived.errors import RequestError
from hived.inspection import Cell, Inspection, virtual_leaves
from hived.server.failures import declared

#: cells, and groups, that are encoded before the event loop runs other tasks: about a millisecond's work
AT_ONCE = 192
GROUPS_AT_ONCE = 32

#: states as upstream writes them, such as ``BeingPreempted``
_STATES = {state: state.name.title().replace("_", "") for state in (*LeafState, *GroupState)}
_REFUSED: dict[int | str, dict[str, Any]] = {
    400: {"description": "There is none of that name.", "content": {"application/json": {"schema": {"type": "string"}}}}
}
_encoder = msgspec.json.Encoder()


class GroupPods(NamedTuple):
    """The UIDs of the pods of a group."""

    allocated: Sequence[str] = ()  #: bound, or being bound
    preempting: Sequence[str] = ()  #: waiting for the group's victims to end


class Inspected(Protocol):
    """What inspection asks of an engine; :class:`~hived.errors.UnavailableError` while it does not decide."""

    @property
    def cluster(self) -> Cluster:
        """The core."""

    def title(self, group: str) -> str:
        """The name of a group in its pods: upstream's name, which need not be unique."""

    def by_title(self, title: str) -> str:
        """The name of a group with that title; the title itself if there is none. O(groups)."""

    def pods_of(self, group: str) -> GroupPods:
        """The UIDs of the pods of a group that holds or has reserved cells."""

    def lazy_preemption(self, group: str) -> tuple[str, str] | None:
        """The preemptor that made a group opportunistic by a lazy preemption, and when (RFC 3339)."""


class _CellStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    cell_type: str
    cell_address: str
    cell_state: str
    cell_healthiness: str
    cell_priority: int
    leaf_cell_type: str = ""
    is_node_level: bool = False


class _PhysicalCell(_CellStatus, rename="camel", omit_defaults=True):
    vc: str = ""
    virtual_cell: _CellStatus | None = None


class _VirtualCell(_CellStatus, rename="camel", omit_defaults=True):
    physical_cell: _PhysicalCell | None = None


def inspection_routes(source: Inspected) -> APIRouter:
    """Groups and cells of ``source``; each path with and without a trailing slash."""
    router = APIRouter(prefix="/v1/inspect", tags=["inspect"], responses=declared(403, 503))

    @router.get("/affinitygroups", response_class=StreamingResponse, include_in_schema=False)
    @router.get("/affinitygroups/", response_class=StreamingResponse)
    async def inspect_groups() -> Response:
        """The affinity groups that have cells, or have reserved some. Those that wait are not among them."""
        return _streamed(_groups(source))

    @router.get("/affinitygroups/{name:path}", responses=_REFUSED)
    async def inspect_group(name: str) -> Response:
        """One affinity group."""
        try:
            status = source.cluster.group(source.by_title(name))
        except RequestError:
            return _refused(f"there is no affinity group {name!r}; it has ended, or none of its pods has come")
        if status.placement is None:
            return _refused(f"affinity group {name!r} waits; it is shown once it has cells, or has reserved some")
        return _json(_encoder.encode(_group(source, status)))

    @router.get("/clusterstatus/", response_class=StreamingResponse, include_in_schema=False)
    @router.get("/clusterstatus", response_class=StreamingResponse)
    async def inspect_cluster() -> Response:
        """All physical cells, and all virtual cells by VC."""
        return _of_moment(source, _whole)

    @router.get("/clusterstatus/physicalcluster/", response_class=StreamingResponse, include_in_schema=False)
    @router.get("/clusterstatus/physicalcluster", response_class=StreamingResponse)
    async def inspect_physical_cluster() -> Response:
        """All physical cells."""
        return _of_moment(source, _physical)

    @router.get("/clusterstatus/virtualclusters", response_class=StreamingResponse, include_in_schema=False)
    @router.get("/clusterstatus/virtualclusters/", response_class=StreamingResponse)
    async def inspect_virtual_clusters() -> Response:
        """All virtual cells by VC, and the leaf cells that are lent to each."""
        return _of_moment(source, _by_vc)

    @router.get("/clusterstatus/virtualclusters/{vc:path}", response_class=StreamingResponse, responses=_REFUSED)
    async def inspect_virtual_cluster(vc: str) -> Response:
        """The virtual cells of one VC, and the leaf cells that are lent to it."""
        try:
            return _of_moment(source, lambda inspection: _virtual(inspection, vc))
        except RequestError as error:
            return _refused(error.message)

    return router


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _refused(why: str) -> Response:
    """An error in upstream's form: a JSON string."""
    return _json(_encoder.encode(why), 400)


def _of_moment(source: Inspected, pieces: Callable[[Inspection], Iterator[bytes]]) -> Response:
    inspection = Inspection(source.cluster)
    return _streamed(pieces(inspection), inspection)


def _streamed(pieces: Iterator[bytes], inspection: Inspection | None = None) -> Response:
    async def taking_turns() -> AsyncIterator[bytes]:
        for _ in inspection.collect_claims() if inspection is not None else ():
            await asyncio.sleep(0)
        for piece in pieces:
            yield piece
            await asyncio.sleep(0)

    return StreamingResponse(taking_turns(), media_type="application/json")


# -- cells ------------------------------------------------------------------------------------------------------------


def _whole(inspection: Inspection) -> Iterator[bytes]:
    yield b'{"physicalCluster":'
    yield from _physical(inspection)
    yield b',"virtualClusters":'
    yield from _by_vc(inspection)
    yield b"}"


def _by_vc(inspection: Inspection) -> Iterator[bytes]:
    separator = b"{"
    for vc in inspection.vcs:
        yield separator + _encoder.encode(vc) + b":"
        yield from _virtual(inspection, vc)
        separator = b","
    yield b"}" if inspection.vcs else b"{}"


def _physical(inspection: Inspection) -> Iterator[bytes]:
    return _nested((cell, _physical_cell(cell)) for cell in inspection.physical())


def _virtual(inspection: Inspection, vc: str) -> Iterator[bytes]:
    return _nested((cell, _virtual_cell(cell)) for cell in inspection.virtual(vc))


def _nested(cells: Iterable[tuple[Cell, _CellStatus]]) -> Iterator[bytes]:
    """Cells as a list of trees: each is encoded without its children, which are inserted before its closing brace."""
    piece = bytearray(b"[")
    inside, first = 0, True  # depth of open children lists; whether the next cell is the first of its list
    for written, (cell, status) in enumerate(cells):
        if written % AT_ONCE == AT_ONCE - 1:
            yield bytes(piece)
            piece.clear()
        if inside > cell.depth:
            piece += b"]}" * (inside - cell.depth)
            inside = cell.depth
        if not first:
            piece += b","
        _encoder.encode_into(status, piece, -1)
        first = cell.level > 1
        if first:
            piece[-1:] = b',"cellChildren":['
            inside += 1
    yield bytes(piece) + b"]}" * inside + b"]"


def _physical_cell(cell: Cell) -> _PhysicalCell:
    other = None if cell.other is None else _virtual_cell(cell.other)
    return _PhysicalCell(*_common(cell, "" if cell.depth else cell.leaf_type), cell.vc or "", other)


def _virtual_cell(cell: Cell) -> _VirtualCell:
    other = None if cell.other is None else _physical_cell(cell.other)
    return _VirtualCell(*_common(cell, "" if cell.depth or cell.lent else cell.leaf_type), other)


def _common(cell: Cell, leaf_type: str) -> tuple[str, str, str, str, int, str, bool]:
    """The common fields of physical and virtual cells."""
    healthiness = "Healthy" if cell.healthy else "Bad"
    return cell.cell_type, cell.address, _STATES[cell.state], healthiness, cell.priority, leaf_type, cell.is_node


# -- groups -----------------------------------------------------------------------------------------------------------


def _groups(source: Inspected) -> Iterator[bytes]:
    names = iter(sorted(source.cluster.groups()))
    separator = b'{"items":['
    while batch := list(islice(names, GROUPS_AT_ONCE)):
        statuses = [status for name in batch if (status := _holding(source.cluster, name))]
        if statuses:
            yield separator + b",".join([_encoder.encode(_group(source, status)) for status in statuses])
            separator = b","
    yield b"]}" if separator == b"," else b'{"items":[]}'


def _holding(cluster: Cluster, name: str) -> GroupStatus | None:
    """The status of a group that holds or has reserved cells; None: there is none of that name by now."""
    try:
        status = cluster.group(name)
    except RequestError:
        return None
    return None if status.placement is None else status


def _group(source: Inspected, status: GroupStatus) -> dict[str, object]:
    """A group in upstream's type, without empty fields."""
    physical: dict[str, list[int]] = {}
    for node, devices in status.placement.pods if status.placement is not None else ():
        physical.setdefault(node, []).extend(devices)
    virtual: dict[str, list[str]] = {}
    for reserved, leaf in virtual_leaves(source.cluster, status.name):
        virtual.setdefault(reserved, []).append(leaf)
    pods = source.pods_of(status.name)
    answer: dict[str, object] = {"vc": status.vc, "priority": status.priority, "state": _STATES[status.state]}
    answer["physicalPlacement"] = physical
    may_be_empty = {"virtualPlacement": virtual, "allocatedPods": pods.allocated, "preemptingPods": pods.preempting}
    answer |= {name: value for name, value in may_be_empty.items() if value}
    if (lazy := source.lazy_preemption(status.name)) is not None:
        answer["lazyPreemptionStatus"] = {"preemptor": source.title(lazy[0]), "preemptionTime": lazy[1]}
    return {"metadata": {"name": source.title(status.name)}, "status": answer}
