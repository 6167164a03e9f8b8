"""The rest of ``/v1``: the engine, its devices, its spec, its events."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from fastapi.responses import StreamingResponse
from sse_starlette.sse import EventSourceResponse

from . import streams
from .failures import declared
from .parameters import (
    BODY,
    After,
    AfterOrNow,
    DevicesLimit,
    EventsLimit,
    FirstDevice,
    LastEventId,
    OfJob,
    OfNode,
    streamed,
)
from .schema import About, Device, Drain, Events, Reconfigured, SpecText
from .service import Service

_DRAINS: dict[str, Any] = {
    "one device": {"value": {"node": "gpu1", "device": 3}},
    "everything, at once": {"value": {"now": True}},
    "let jobs come again": {"value": {"undo": True}},
}
_YAML = """\
physicalCluster:
  cellTypes:
    NODE: {childCellType: V100, childCellNumber: 8, isNodeLevel: true}
  physicalCells:
  - {cellType: NODE, cellAddress: gpu1}
virtualClusters:
  vision:
    virtualCells:
    - {cellType: NODE.V100, cellNumber: 6}
"""
_SPECS: dict[str, Any] = {"one node of 8 GPUs, 6 of them of one tenant": {"value": {"yaml": _YAML}}}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Lines of JSON.", "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
}


def engine_routes(service: Service) -> APIRouter:
    """All of ``service`` that is not about one job; it is asked in the event loop's thread."""
    router = APIRouter(prefix="/v1", tags=["engine"])

    @router.get("/about", responses=declared(403, 503))
    async def get_about() -> About:
        """The engine: its version, its size, how many jobs it has."""
        return service.about()

    @router.get("/devices", responses=declared(403, 404, 422, 503))
    async def list_devices(node: OfNode = None, offset: FirstDevice = 0, limit: DevicesLimit = 1000) -> list[Device]:
        """Devices, in the order of the spec."""
        return service.devices(node, offset, limit)

    @router.post("/drain", responses=declared(*BODY, 404, 409, 503, 507))
    async def drain_devices(drain: Annotated[Drain, Body(openapi_examples=_DRAINS)]) -> list[Device]:
        """Keep new jobs off devices, or let them come again; the answer is the devices that this was about."""
        return await service.drain(drain)

    @router.put("/spec", responses=declared(*BODY, 404, 409, 503, 507))
    async def replace_spec(spec: Annotated[SpecText, Body(openapi_examples=_SPECS)]) -> Reconfigured:
        """Go on under a new cluster spec. Every job runs on; what no longer fits its VC becomes opportunistic."""
        return await service.reconfigure(spec)

    @router.get("/events", tags=["events"], responses=declared(403, 404, 422, 503))
    async def list_events(after: After = -1, limit: EventsLimit = 100, job: OfJob = None) -> Events:
        """What happened."""
        return service.events(after, limit, job)

    @router.get(
        "/events/stream",
        tags=["events"],
        response_class=EventSourceResponse,
        responses={**streamed(event="JobEvent"), **declared(403, 404, 422, 429, 503)},
    )
    async def stream_events(
        after: AfterOrNow = None, job: OfJob = None, last_event_id: LastEventId = None
    ) -> EventSourceResponse:
        """What happens: events `event` (a JobEvent); each id is its number, so a browser goes on where it broke off."""
        service.events(-1, 1, job)  # an unknown job is refused here, before the stream begins
        start = after if last_event_id is None else last_event_id
        return EventSourceResponse(streams.to_the_end(streams.events(service, start, job)))

    @router.get(
        "/decisions",
        tags=["events"],
        response_class=StreamingResponse,
        responses={**_LINES, **declared(403, 429, 503)},
    )
    async def export_decisions() -> Response:
        """The event log of the core: lines of JSON, oldest first, that replay byte for byte."""
        rest = service.decisions()
        first = list(islice(rest, streams.LINES_AT_ONCE))  # what goes wrong at once still has a status
        return StreamingResponse(streams.lines(first, rest), media_type="application/x-ndjson")

    return router
