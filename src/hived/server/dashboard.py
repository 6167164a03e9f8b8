"""The dashboard over HTTP: page, files, data, and the stream of changes; and the interface of its data source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Protocol

from fastapi import APIRouter, Query, Request, Response
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.staticfiles import StaticFiles

from hived.engines.submission import Model
from hived.errors import ConflictError, NotFoundError

from .limits import Turns
from .pictures import Comparison, Curves, EndedJobs, GpuTimeline, Layout, Picture, Queue, Story, Update


class Source(Protocol):
    """The data source of a dashboard: a running engine or a finished simulation.

    ``view`` is the key of one of the layout's views; any other raises :class:`~hived.errors.NotFoundError`.
    """

    #: whether there are updates; if not, ``picture`` takes any time of the layout
    live: bool

    def layout(self) -> Layout:
        """What does not change from moment to moment. O(cluster)."""

    def picture(self, view: str, at: float | None = None) -> Picture:
        """The moment ``at`` (None: now, or the end). O(jobs that hold GPUs)."""

    def update(self, view: str, seq: int) -> Update | None:
        """Changes since the picture or update ``seq``. O(changes).

        None: take a picture, since it is too long ago, or the layout has changed.
        """

    async def changed(self, seq: int) -> None:
        """Return once there is a change after ``seq``."""

    def curves(self, view: str) -> Curves:
        """Curves over time, at most 2,000 points."""

    def story(self, view: str, job: str) -> Story:
        """A job's history. Raises :class:`~hived.errors.NotFoundError`."""

    async def timeline(self, view: str, node: str, start: float, end: float) -> GpuTimeline:
        """Who has the GPUs of a node from ``start`` to ``end``, in seconds.

        Raises :class:`~hived.errors.NotFoundError` for a node that is not there, and
        :class:`~hived.errors.InputError` for times that are none and for too much of it.
        """

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> Queue:
        """Waiting jobs in the order of a picture's queue, from place ``offset`` (0-based) on. O(offset + limit)."""

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> EndedJobs:
        """Jobs that have ended by ``at``, the latest first, from place ``offset`` on."""

    def comparison(self) -> Comparison | None:
        """The views side by side; None where there is only one."""


STATIC = Path(__file__).parent / "static"
#: minimum seconds between two updates of one stream
PAUSE_S = 0.25
#: no foreign and no inline scripts: a job's name can never become a script
POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
#: browsers ask each time whether a file changed (by its ETag), so a new version of hived never meets old scripts
FILE_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
#: the address of the page may carry the token (``/?token=...``): no other site sees it
PAGE_HEADERS = {**FILE_HEADERS, "Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}

ViewKey = Annotated[str | None, Query(description="key of one of the layout's views; the first where it is left out")]
Offset = Annotated[int, Query(ge=0, le=10_000_000, description="how many to leave out")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Node = Annotated[str, Query(description="name of a node of the layout")]
Time = Annotated[float, Query(allow_inf_nan=False, ge=0, le=1e10, description="a time of the layout")]
Moment = Annotated[float | None, Query(allow_inf_nan=False, description="a time of the layout; now where left out")]


def dashboard_routes(source: Source) -> APIRouter:
    """The page ``/``, ``/static/*`` and ``/v1/dashboard/*`` over ``source``, asked in the event loop's thread."""
    router, turns = APIRouter(), Turns()
    files = StaticFiles(directory=STATIC)

    def key(view: str | None) -> str:
        return source.layout().views[0].key if view is None else view

    @router.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        answer = await files.get_response("index.html", request.scope)
        answer.headers.update(PAGE_HEADERS)
        return answer

    @router.get("/static/{path:path}", include_in_schema=False)
    async def static(path: str, request: Request) -> Response:
        answer = await files.get_response(path, request.scope)
        answer.headers.update(FILE_HEADERS)
        return answer

    @router.get("/v1/dashboard/layout", response_model=Layout, tags=["dashboard"])
    async def layout() -> Response:
        """What does not change from moment to moment."""
        return _json(source.layout())

    @router.get("/v1/dashboard/picture", response_model=Picture, tags=["dashboard"])
    async def picture(view: ViewKey = None, at: Moment = None) -> Response:
        """Everything about one moment."""
        return _json(source.picture(key(view), at))

    @router.get("/v1/dashboard/curves", response_model=Curves, tags=["dashboard"])
    async def curves(view: ViewKey = None) -> Response:
        """Utilization, fragmentation and waiting jobs over time."""
        return _json(source.curves(key(view)))

    @router.get("/v1/dashboard/story/{job:path}", response_model=Story, tags=["dashboard"])
    async def story(job: str, view: ViewKey = None) -> Response:
        """A job's life."""
        return _json(source.story(key(view), job))

    @router.get("/v1/dashboard/timeline", response_model=GpuTimeline, tags=["dashboard"])
    async def timeline(request: Request, node: Node, start: Time, end: Time, view: ViewKey = None) -> Response:
        """Who has the GPUs of a node, and when; of a running engine up to now, as far as it remembers."""
        async with turns.of(request.scope):
            return _json(await source.timeline(key(view), node, start, end))

    @router.get("/v1/dashboard/queue", response_model=Queue, tags=["dashboard"])
    async def queue(view: ViewKey = None, at: Moment = None, offset: Offset = 0, limit: Limit = 200) -> Response:
        """Waiting jobs beyond those that a picture has."""
        return _json(source.queue(key(view), at, offset, limit))

    @router.get("/v1/dashboard/ended", response_model=EndedJobs, tags=["dashboard"])
    async def ended(view: ViewKey = None, at: Moment = None, offset: Offset = 0, limit: Limit = 200) -> Response:
        """Jobs that have ended, the latest first."""
        return _json(source.ended(key(view), at, offset, limit))

    @router.get("/v1/dashboard/comparison", response_model=Comparison, tags=["dashboard"])
    async def comparison() -> Response:
        """The views side by side."""
        found = source.comparison()
        if found is None:
            raise NotFoundError("nothing to compare: there is one view only")
        return _json(found)

    @router.get("/v1/dashboard/stream", response_class=EventSourceResponse, tags=["dashboard"])
    async def stream(view: ViewKey = None) -> EventSourceResponse:
        """Server-sent events: `picture`, then `update`s, at most 4 a second, and new `layout`s."""
        if not source.live:
            raise ConflictError("these results have ended, nothing changes any more: ask for pictures")
        of = key(view)
        first = source.picture(of)  # an unknown view is refused here, before the stream begins
        return EventSourceResponse(_events(source, of, first), headers={"Cache-Control": "no-store"})

    return router


async def _events(source: Source, view: str, picture: Picture) -> AsyncIterator[ServerSentEvent]:
    layout = source.layout()
    yield _event("picture", picture, picture.seq)
    seq = picture.seq
    while True:
        await source.changed(seq)
        update = source.update(view, seq)
        if update is None:
            # the cluster itself can only have changed if there is no update since the last picture: so a layout is not
            # made for every update
            new = source.layout()
            if new != layout:
                layout = new
                yield _event("layout", layout, None)
            picture = source.picture(view)
            seq = picture.seq
            yield _event("picture", picture, seq)
        else:
            seq = update.seq
            yield _event("update", update, seq)
        await asyncio.sleep(PAUSE_S)


def _event(name: str, data: Model, seq: int | None) -> ServerSentEvent:
    return ServerSentEvent(data.model_dump_json(), event=name, id=None if seq is None else str(seq))


def _json(data: Model) -> Response:
    # pydantic writes the bytes itself: FastAPI would check a picture of 10,000 holders once more before it encodes it
    return Response(data.model_dump_json(), media_type="application/json")
