"""Limits on clients, which uvicorn does not have: deadlines of a connection, bodies, streams; and who the peer is."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import grp
import os
import pwd
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import h11
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hived.access import NOBODY, Person

from .failures import answer

CONNECTIONS = 256  #: of one listener; the engine needs file descriptors for other things too
HEAD_SECONDS = 30.0  #: for a client to send the head of a request
STALL_SECONDS = 60.0  #: for a client to read on, once an answer is stalled
BODY_BYTES = 4 * 1024 * 1024
BODY_SECONDS = 30.0
#: where no body says much: what is done to a job, drains, trades
SHORT_BODY_BYTES = 65_536
_SHORT = re.compile(r"/v1/(jobs/|drain|trades/|sign-)")
#: of one person at a time
BODIES_BYTES = 4 * BODY_BYTES
#: of what is asked by who has shown nothing
_OPEN, OPEN_BODY_BYTES, OPEN_BODY_SECONDS = "/v1/sign-in", 4096, 5.0
STREAMS = 100
RETRY_SECONDS = 5
#: for how long names of users and groups are remembered
_NAMES_S = 10.0
#: of Linux; Python has no name for it
_SO_PEERGROUPS = 59
#: bytes of an answer about a socket, at most (Python's limit): 256 groups
_MOST_ANSWER = 1024

_STREAM = re.compile(r"/v1/(events/stream|dashboard/stream|logs/.+/stream|decisions)")


class Connection(asyncio.Protocol):
    """A connection around uvicorn's protocol for it, ``http``. It stops three attacks that uvicorn does not.

    *Slow heads*: a request whose head does not come within ``HEAD_SECONDS`` (uvicorn's timeout ends idle connections
    alone). *Slow reads*: an answer that is not read for ``STALL_SECONDS`` stays in memory. *Hoarding*: over
    ``CONNECTIONS`` the oldest that has never sent a request is dropped, or one of who has the most. Only where nobody
    has more than the new one's peer is that refused, unless it shows a token (uvicorn's limit refuses it in any case,
    so that one user, or silent connections, keep everybody out).

    Over a Unix socket ``scope["state"]["person"]`` is the user of the peer process, by the kernel; over TLS
    ``scope["state"]["certificate"]`` is set if the client has shown a valid certificate.
    """

    _transport: asyncio.Transport

    def __init__(
        self,
        http: Callable[..., asyncio.Protocol],
        connections: dict[Connection, None],
        *,
        app_state: dict[str, Any],
        **more: Any,
    ) -> None:
        """``connections``: those of the listener, by age. ``app_state`` and ``more``: of uvicorn."""
        self._state = {**app_state, "connection": self}
        self._http = http(app_state=self._state, **more)
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None
        self._stream: asyncio.Timeout | None = None  #: of the stream that is served
        self._requests = 0  #: that are being answered
        self._scope: Scope = {"state": {}}  #: of the latest request
        self._expiry: asyncio.TimerHandle | None = None  #: of the token that it was asked with
        self._is_silent, self._is_refused, self._is_stalled = True, False, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        self._transport = transport
        self._state |= _peer(transport)
        if len(self._connections) >= CONNECTIONS and (dropped := self._least_missed()) is not None:
            dropped.abort()
        self._is_refused = len(self._connections) >= CONNECTIONS
        self._connections[self] = None
        self._watch()
        self._http.connection_made(transport)

    def _least_missed(self) -> Connection | None:
        """Which is dropped for this one: the oldest that has asked nothing, or else of who has more than this one has.

        None: nobody has more. O(connections), where there are as many as may be.
        """
        if (silent := next((one for one in self._connections if one._is_silent), None)) is not None:
            return silent
        many = Counter(one._whose for one in self._connections)
        most = max(many.values(), default=0)
        # who shows a token may come in beyond the limit, and not without end
        if most > many[self._whose] + 1 or len(self._connections) >= 2 * CONNECTIONS:
            return next((one for one in self._connections if many[one._whose] == most), None)
        return None

    @property
    def _whose(self) -> str:
        """Whose it is, as far as is known: a person, or an address."""
        person = self._scope["state"].get("person", self._state.get("person", NOBODY))
        return whose(person, self._transport.get_extra_info("peername"))

    def data_received(self, data: bytes) -> None:
        try:
            self._http.data_received(data)
        except h11.LocalProtocolError:  # uvicorn answers malformed HTTP even where it has answered already
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.pop(self, None)
        self._watch()
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_stalled = True
        self._watch()
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._is_stalled = False
        self._watch()
        self._http.resume_writing()

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have ``app`` answer a request."""
        self._is_silent, self._scope = False, scope
        scope["state"]["end_stream"] = self.end_stream
        self._requests += 1
        self._watch()
        expiring = asyncio.get_running_loop().call_soon(self._expire)
        try:
            if self._is_refused and not _shows_token(scope):
                message = f"{CONNECTIONS} connections are open, and nobody else has more than you; close some"
                await answer("unavailable", message, headers={"Connection": "close"})(scope, receive, send)
            elif counts(scope["path"]):
                await self._serve_stream(app, scope, receive, send)
            else:
                await app(scope, receive, send)
        finally:
            self._requests -= 1
            expiring.cancel()
            if self._expiry is not None:
                self._expiry.cancel()
            self._watch()

    async def _serve_stream(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        stream = asyncio.timeout(None)
        try:
            async with stream as self._stream:
                await app(scope, receive, send)
        except TimeoutError:
            if not stream.expired():  # a bug of the application
                raise
            if scope["path"].endswith("/stream"):
                await send({"type": "http.response.body"})
                return
            self.abort()
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._stream = None

    def end_stream(self) -> None:
        """End the stream that is served, since the server stops, or for somebody who has fewer.

        Server-sent events end as if they were complete, since their reader reconnects by itself; any other stream is
        cut off, which its reader can see.
        """
        if self._stream is not None and not self._stream.expired():  # it may be ending for another reason
            self._stream.reschedule(0)

    def _expire(self) -> None:
        """Close it when the token expires that it was asked with: who asks is known by now."""
        until = self._scope["state"].get("person", NOBODY).until
        if until is not None:
            self._expiry = asyncio.get_running_loop().call_later(max(0.0, until - time.time()), self.abort)

    @property
    def streams(self) -> bool:
        """Whether a stream is served."""
        return self._stream is not None

    @property
    def token(self) -> str:
        """Id of the token of the person who asks; "": of none."""
        person = self._scope["state"].get("person", NOBODY)
        return str(person.token)

    def abort(self) -> None:
        """Close it at once; what is not sent yet never will be."""
        self._connections.pop(self, None)
        self._transport.abort()

    def _watch(self) -> None:
        """Set the deadline that there is now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self in self._connections and (self._is_stalled or not self._requests):
            seconds = STALL_SECONDS if self._is_stalled else HEAD_SECONDS
            self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)


def _shows_token(scope: Scope) -> bool:
    """Whether a token or a cookie comes with a request: whose, and whether it holds, is found out by who answers it."""
    return any(name in (b"authorization", b"cookie") for name, _ in scope["headers"])


def watched(app: ASGIApp) -> ASGIApp:
    """``app``, for the requests of a :class:`Connection`."""

    async def watch(scope: Scope, receive: Receive, send: Send) -> None:
        await scope["state"].pop("connection").serve(app, scope, receive, send)

    return watch


def asking(request: Request) -> Person:
    """Who asks: over a Unix socket the user of the peer, by the kernel; over TCP whose the token is."""
    found = getattr(request.state, "person", NOBODY)
    return found if isinstance(found, Person) else NOBODY


def _user_name(uid: int) -> str:
    """The name of a user, or the uid if it has none; as it was in the last seconds, since users change."""
    return _named_user(uid, int(time.monotonic() / _NAMES_S))


def _group_name(gid: int) -> str:
    return _named_group(gid, int(time.monotonic() / _NAMES_S))


@functools.lru_cache(maxsize=1024)
def _named_user(uid: int, _when: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@functools.lru_cache(maxsize=1024)
def _named_group(gid: int, _when: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def local_user(uid: int, groups: Iterable[int] = ()) -> Person:
    """A user of this machine, in these groups; the engine is its own user's, and root's."""
    return Person(_user_name(uid), frozenset(map(_group_name, groups)), uid in (0, os.geteuid()), uid=uid)


def groups_of(user: str) -> frozenset[str]:
    """The groups of a user of this machine, as its database has them; none where it has no such user."""
    return frozenset(map(_group_name, _group_numbers(user)))


def _group_numbers(user: str) -> Sequence[int]:
    try:
        return os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except (KeyError, OSError):
        return ()


def _peer(transport: asyncio.Transport) -> dict[str, Any]:
    """What is known of the peer: the ``person`` behind a Unix socket, a ``certificate`` over TLS."""
    if transport.get_extra_info("peercert"):
        return {"certificate": True}
    end = transport.get_extra_info("socket")
    if end.family != socket.AF_UNIX:
        return {}
    _, uid, gid = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))  # pid first
    return {"person": local_user(uid, {gid, *_more_groups(end, uid)})}


def _more_groups(end: socket.socket, uid: int) -> Sequence[int]:
    """The supplementary groups of the peer, by the kernel; of one with more than it can say here, by the machine."""
    try:
        found = end.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_ANSWER)
    except OSError:
        return _group_numbers(_user_name(uid))
    return struct.unpack(f"{len(found) // 4}I", found)


def whose(person: Person, address: Sequence[Any] | None) -> str:
    """Who shares what there is of something with others: a person, or who asks from an address."""
    return f"{person.name} {person.token} {person.uid}" if person is not NOBODY else str((address or ("",))[0])


def whose_request(scope: Scope) -> str:
    """The same, of a request: who asks is known by then."""
    return whose(scope.get("state", {}).get("person", NOBODY), scope.get("client"))


class Limits:
    """An ASGI application with limits, so that no client uses up the memory or the tasks of the engine.

    A body: 413 where it is over ``BODY_BYTES``, whatever length was announced; 408 where it takes longer than
    ``BODY_SECONDS``; much less of both where anybody may ask, and where little is to be said. Bodies of one person that
    are being answered: 429 over ``BODIES_BYTES``. At most ``STREAMS`` streams are served at a time: for a further one
    the oldest of who has the most is ended; it is answered with 429 where nobody has more than who asks.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        #: those that are open, by age: whose each is, and what ends it
        self._streams: dict[object, tuple[str, Callable[[], None]]] = {}
        self._bodies: Counter[str] = Counter()  #: bytes, by whose requests they are of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif counts(scope["path"]):
            await self._stream(scope, receive, send)
        else:
            person = scope.get("state", {}).get("person", NOBODY)
            body = _Body(receive, scope["path"], self._bodies, None if person is NOBODY else whose_request(scope))
            try:
                await self._app(scope, body.receive, send)
            finally:
                body.forget()

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        mine = whose_request(scope)
        if len(self._streams) >= STREAMS and not self._make_room(mine):
            message = f"{STREAMS} streams are open, and nobody has more than you; come back in {RETRY_SECONDS} seconds"
            await answer("too_many", message, headers={"Retry-After": str(RETRY_SECONDS)})(scope, receive, send)
            return
        key = object()
        self._streams[key] = mine, scope.get("state", {}).get("end_stream", lambda: None)
        try:
            await self._app(scope, receive, send)
        finally:
            self._streams.pop(key, None)

    def _make_room(self, mine: str) -> bool:
        """End a stream of who has the most, if that is more than this one will have. O(streams)."""
        many = Counter(whose for whose, _ in self._streams.values())
        most = max(many.values())
        if most <= many[mine] + 1:
            return False
        key, end = next((key, end) for key, (whose, end) in self._streams.items() if many[whose] == most)
        del self._streams[key]
        end()
        return True


def counts(path: str) -> bool:
    """Whether ``path`` counts as a stream."""
    return _STREAM.fullmatch(path) is not None


class _Body:
    """The body of a request, which may not be too large or too slow, or too much with others of the same person."""

    def __init__(self, receive: Receive, path: str, bodies: Counter[str], whose: str | None) -> None:
        """``bodies``: bytes of all, by whose they are; None: nobody's, as where only programs ask."""
        self._receive, self._bodies, self._whose = receive, bodies, whose
        self._most, self._seconds = (
            (OPEN_BODY_BYTES, OPEN_BODY_SECONDS) if path == _OPEN else (BODY_BYTES, BODY_SECONDS)
        )
        if _SHORT.match(path):
            self._most = min(self._most, SHORT_BODY_BYTES)
        self._size, self._deadline = 0, asyncio.get_running_loop().time() + self._seconds

    async def receive(self) -> Message:
        """The next message. Raises :class:`HTTPException`."""
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            text = f"the body did not come within {self._seconds:.0f} seconds"
            raise HTTPException(408, text, {"Connection": "close"}) from error
        more = len(message.get("body", b""))
        self._size += more
        if self._whose is not None:
            self._bodies[self._whose] += more
        if self._size > self._most:
            raise HTTPException(413, f"the body is over {self._most:,} bytes, and no more can be taken")
        if self._whose is not None and self._bodies[self._whose] > BODIES_BYTES:
            text = f"your requests that are being answered are over {BODIES_BYTES:,} bytes; send fewer at a time"
            raise HTTPException(429, text, {"Connection": "close", "Retry-After": str(RETRY_SECONDS)})
        if not message.get("more_body"):
            self._deadline = float("inf")
        return message

    def forget(self) -> None:
        """The request was answered."""
        if self._whose is not None:
            self._bodies[self._whose] -= self._size
            if self._bodies[self._whose] <= 0:
                del self._bodies[self._whose]


class Turns:
    """For what costs a thread and much memory: one request of each at a time, and few in all."""

    def __init__(self, most: int = 2) -> None:
        self._all = asyncio.Semaphore(most)
        self._own: dict[str, tuple[asyncio.Lock, list[None]]] = {}

    @contextlib.asynccontextmanager
    async def of(self, scope: Scope) -> AsyncIterator[None]:
        """The turn of who asks."""
        mine = whose_request(scope)
        lock, waiting = self._own.setdefault(mine, (asyncio.Lock(), []))
        waiting.append(None)
        try:
            async with lock, self._all:
                yield
        finally:
            waiting.pop()
            if not waiting:
                del self._own[mine]
