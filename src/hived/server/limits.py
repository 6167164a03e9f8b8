"""How much one may ask for at once: the size and the pace of a body, and the number of open streams."""

from __future__ import annotations

import asyncio
import re

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .failures import answer

BODY_BYTES = 4 * 1024 * 1024
BODY_SECONDS = 30.0
STREAMS = 100
RETRY_SECONDS = 5

_STREAM = re.compile(r"/v1/(events/stream|dashboard/stream|jobs/[^/]+/log/stream|decisions)")
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class Limits:
    """An ASGI application inside limits.

    A body is read whole before the application sees any of it: 413 where it is over ``BODY_BYTES``, whether or not its
    length was said before; 408 where it takes longer than ``BODY_SECONDS``. Of the paths that stream, ``STREAMS``
    are served at a time; 429 to whoever comes then.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = 0  #: streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] not in _WITHOUT_BODY:
            await self._with_body(scope, receive, send)
        elif counts(scope["path"]):
            await self._stream(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._open >= STREAMS:
            message = f"{STREAMS} streams are open, and no more can be; come back in {RETRY_SECONDS} seconds"
            await answer("too_many", message, headers={"Retry-After": str(RETRY_SECONDS)})(scope, receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read(Request(scope, receive))
        except TimeoutError:
            message = f"the body did not come within {BODY_SECONDS:.0f} seconds"
            await answer("timeout", message, headers={"Connection": "close"})(scope, receive, send)
            return
        except ClientDisconnect:
            return
        if body is None:
            message = f"the body is over {BODY_BYTES:,} bytes, and no more can be taken"
            await answer("too_large", message)(scope, receive, send)
            return
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, replay, send)


def counts(path: str) -> bool:
    """Whether what is served at ``path`` counts as a stream."""
    return _STREAM.fullmatch(path) is not None


async def _read(request: Request) -> bytes | None:
    """The body; None where it is too large, as its Content-Length says already, or as it turns out."""
    announced = request.headers.get("content-length", "0")
    if not (announced.isdecimal() and len(announced) < 20 and int(announced) <= BODY_BYTES):
        return None
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            return None
    return bytes(body)
