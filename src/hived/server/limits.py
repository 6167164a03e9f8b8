"""Limits on clients: connections, heads, bodies and streams; and the identity of the peer of a connection."""

from __future__ import annotations

import asyncio
import functools
import os
import pwd
import re
import socket
import struct
from typing import Any

import h11
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .failures import answer

CONNECTIONS = 256  #: of one listener; the engine needs file descriptors for other things too
HEAD_SECONDS = 30.0  #: for a client to send the head of a request
STALL_SECONDS = 60.0  #: for a client to read on, once an answer is stalled
BODY_BYTES = 4 * 1024 * 1024
BODY_SECONDS = 30.0
STREAMS = 100
RETRY_SECONDS = 5

_STREAM = re.compile(r"/v1/(events/stream|dashboard/stream|logs/.+/stream|decisions)")
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class Connection(H11Protocol):
    """uvicorn's protocol with limits.

    Over a Unix socket ``scope["state"]["user"]`` is the user of the peer process, by the kernel; over TLS
    ``scope["state"]["certificate"]`` is set if the client has shown a valid certificate.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        #: since when it has been open without a whole request; 0: it has sent a request
        self._silent_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._silent_since = self.loop.time()
        user = _peer(transport)
        if user is not None:
            self.app_state = {**self.app_state, "user": user}
        if transport.get_extra_info("peercert"):
            self.app_state = {**self.app_state, "certificate": True}
        if len(self.connections) > CONNECTIONS and not self._make_room():
            self._refuse("unavailable", f"{CONNECTIONS} connections are open, and no more can be")
            return
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None:
            self._silent_since = 0.0
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._head)
        _stop(self._stall)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        _stop(self._stall)
        self._stall = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        _stop(self._stall)
        super().resume_writing()

    def shutdown(self) -> None:
        """End streams when the server stops: their application sees a disconnected client, and sends no more.

        Server-sent events end as if they were complete, since their reader reconnects by itself; any other stream is
        cut off, which its reader can see.
        """
        super().shutdown()
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete and counts(self.scope["path"]):
            cycle.disconnected = True
            cycle.message_event.set()
            if self.scope["path"].endswith("/stream"):
                self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with our error answer, unless another answer has begun."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
        else:
            self._refuse("malformed", "this is no HTTP request, or one with a head that is too large")

    def _refuse(self, code: str, message: str) -> None:
        response = answer(code, message)
        head = f"HTTP/1.1 {response.status_code} {code}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + bytes(response.body))
        self.transport.close()

    def _make_room(self) -> bool:
        """Drop the oldest connection that has never sent a whole request. Returns whether there was one."""
        others = (one for one in self.connections if one is not self and isinstance(one, Connection))
        oldest = min((one for one in others if one._silent_since), key=lambda one: one._silent_since, default=None)
        if oldest is None:
            return False
        oldest._silent_since = 0.0
        oldest.transport.abort()
        return True

    def _watch_head(self) -> None:
        """Close a connection whose request stays incomplete; uvicorn closes an idle one, sooner."""
        waits = self.cycle is None or self.cycle.response_complete
        if not waits:
            _stop(self._head)
            self._head = None
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def asking(request: Request) -> str:
    """The user of a request: over a Unix socket the peer, by the kernel; over TCP (with the token) the engine's own."""
    return str(getattr(request.state, "user", "")) or _user_name(os.geteuid())


@functools.lru_cache(maxsize=1024)
def _user_name(uid: int) -> str:
    """The name of a user, or the uid if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _peer(transport: asyncio.Transport) -> str | None:
    """The user of the peer of a Unix socket; None where it is not known."""
    end = transport.get_extra_info("socket")
    if end is None or end.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    _, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))  # process, user, group
    return _user_name(uid)


class Limits:
    """An ASGI application with limits.

    A body is read whole before the application sees any of it: 413 where it is over ``BODY_BYTES``, whether or not its
    length was announced; 408 where it takes longer than ``BODY_SECONDS``. At most ``STREAMS`` streams are served at a
    time; further ones are answered with 429.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open = 0  #: open streams

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
    """Whether ``path`` counts as a stream."""
    return _STREAM.fullmatch(path) is not None


async def _read(request: Request) -> bytes | None:
    """The body; None where it is too large, by its Content-Length or by the bytes received."""
    announced = request.headers.get("content-length", "0")
    if not (announced.isdecimal() and len(announced) < 20 and int(announced) <= BODY_BYTES):
        return None
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            return None
    return bytes(body)
