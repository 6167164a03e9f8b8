"""Connections, below HTTP: how many there are, how long one may dawdle, and who is at the other end."""

from __future__ import annotations

import asyncio
import functools
import os
import pwd
import socket
import struct
from typing import Any

from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from .failures import answer

CONNECTIONS = 256  #: of one listener; the engine needs its files for other things too
HEAD_SECONDS = 30.0  #: to send the head of a request
STALL_SECONDS = 60.0  #: that an answer may wait for its reader

_CREDENTIALS = struct.Struct("3i")  #: of Linux: process, user, group


class Connection(H11Protocol):
    """uvicorn's protocol inside limits.

    Over a Unix socket ``scope["state"]["user"]`` is who is at the other end, as the kernel says; over TLS
    ``scope["state"]["certificate"]`` says that a client has shown a good one.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        #: since when it has been open without a whole request; 0: it has sent one
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

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered in our shape too, where there is still somebody to answer."""
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
        """Drop a connection that has never sent a whole request, the oldest first; whether there was one."""
        silent = [other for other in self.connections if isinstance(other, Connection) and other._silent_since]
        if not silent or len(silent) == 1:  # this one itself
            return False
        oldest = min((other for other in silent if other is not self), key=lambda other: other._silent_since)
        oldest._silent_since = 0.0
        oldest.transport.abort()
        return True

    def _watch_head(self) -> None:
        """Close a connection whose request has begun and does not come; an idle one is closed by uvicorn, sooner."""
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
    """Who asks: over a Unix socket the user that the kernel names, over TCP (who has the token) the engine's own."""
    return str(getattr(request.state, "user", "")) or _user_name(os.geteuid())


@functools.lru_cache(maxsize=1024)
def _user_name(uid: int) -> str:
    """The name of a user, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _peer(transport: asyncio.Transport) -> str | None:
    """Who is at the other end of a Unix socket; None where nobody can say."""
    end = transport.get_extra_info("socket")
    if end is None or end.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    _, uid, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return _user_name(uid)
