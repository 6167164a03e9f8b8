"""What is streamed: events as they happen, output as it grows, the event log of the core."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from sse_starlette.event import ServerSentEvent

from hived.errors import HivedError

from .failures import answer_to
from .schema import LogPage, Model

if TYPE_CHECKING:
    from .local_service import LocalService

EVENTS_AT_ONCE = 200
LOG_BYTES_AT_ONCE = 65_536
LINES_AT_ONCE = 1_000
_CHARACTER = 4  #: bytes at most, of which a full page may lack the last ones
#: least seconds between two looks at output that grows: a job that prints a character at a time is told in pieces
PAUSE_S = 0.05


async def events(service: LocalService, after: int | None, ref: str | None) -> AsyncGenerator[ServerSentEvent, None]:
    """Events after number ``after`` (None: from now on), of one job or of all. Each has its number as id.

    A number that there is not yet (of an engine whose state is gone) counts as now.
    """
    newest = service.events(-1, 1, ref).last
    after = newest if after is None else min(after, newest)
    while True:
        page = service.events(after, EVENTS_AT_ONCE, ref)
        for event in page.events:
            yield _event("event", event, event.seq)
        if len(page.events) == EVENTS_AT_ONCE:
            after = page.events[-1].seq
            await asyncio.sleep(0)  # others have their turn
        else:
            after = max(after, page.last)
            await service.changed(after)


async def output(
    service: LocalService, ref: str, rank: int, attempt: int | None, first: LogPage
) -> AsyncGenerator[ServerSentEvent, None]:
    """Output of a task, ``first`` and what follows it, until the task has ended.

    Each page has the offset to go on from as id. Without ``attempt`` it is the one that runs, or the first that will.
    """
    page = first
    while True:
        if page.next > page.offset:
            yield _event("log", page, page.next)
        elif page.end:
            yield _event("end", page, page.next)
            return
        if not page.end and page.next - page.offset <= LOG_BYTES_AT_ONCE - _CHARACTER:
            await service.log_grown(ref, rank, attempt, page.next)
            await asyncio.sleep(PAUSE_S)
        else:
            await asyncio.sleep(0)
        attempt = attempt or service.job(ref).attempt or None
        page = service.log(ref, rank, attempt, page.next, LOG_BYTES_AT_ONCE)


async def to_the_end(stream: AsyncGenerator[ServerSentEvent, None]) -> AsyncIterator[ServerSentEvent]:
    """``stream``; an error on the way is its last event, ``failure``, since the status has long been sent."""
    try:
        async with contextlib.aclosing(stream):
            async for event in stream:
                yield event
    except HivedError as error:
        yield ServerSentEvent(bytes(answer_to(error).body).decode(), event="failure")


async def lines(first: list[str], rest: Iterator[str]) -> AsyncIterator[bytes]:
    """Lines as bytes, many at a time, in the thread of the event loop; others have their turn in between."""
    batch = first
    while batch:
        yield "".join(line if line.endswith("\n") else line + "\n" for line in batch).encode("utf-8", "replace")
        await asyncio.sleep(0)
        batch = list(islice(rest, LINES_AT_ONCE))


def _event(name: str, data: Model, number: int) -> ServerSentEvent:
    # ASCII alone: clients that split lines at every character Unicode calls a line end are not led astray by output
    return ServerSentEvent(json.dumps(data.model_dump(mode="json")), event=name, id=str(number))
