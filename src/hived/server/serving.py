"""A server inside a running event loop: on a Unix socket, on a TCP address, or on both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket as sockets
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hived.errors import ensure

from .connections import Connection
from .listening import tcp_socket, unix_socket

GRACE_SECONDS = 5  #: that requests in progress have when the server stops; streams are ended at once


class Server:
    """Serves from its one start until it is stopped. It leaves signals to whoever has the event loop.

    On the socket ``socket_app`` is served, at the address ``app``: who asks is known in different ways.
    """

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._servers: list[tuple[_Uvicorn, asyncio.Task[None]]] = []
        self._socket: tuple[Path, tuple[int, int]] | None = None  #: the path, and which file we made there
        #: the host and the actual port of the TCP listener; None: there is none
        self.address: tuple[str, int] | None = None

    @property
    def port(self) -> int | None:
        """The actual port of the TCP listener."""
        return None if self.address is None else self.address[1]

    async def start(
        self,
        app: ASGIApp | None = None,
        *,
        listen: tuple[str, int] | None = None,
        socket_app: ASGIApp | None = None,
        socket: Path | None = None,
        group: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen, and return once requests are answered; on an error nothing listens.

        ``group``: the members of this group of the machine may use the socket too; ``tls``: of the address. Raises as
        :func:`~.listening.unix_socket` and :func:`~.listening.tcp_socket`.
        """
        ensure(socket is None or socket_app is not None, "what listens has something to serve")
        ensure(listen is None or app is not None, "what listens has something to serve")
        try:
            if socket is not None and socket_app is not None:
                made = unix_socket(socket, group)
                self._socket = (socket, _identity(socket))
                self._serve(socket_app, made)
            if listen is not None and app is not None:
                made = tcp_socket(*listen)
                self.address = made.getsockname()[:2]
                self._serve(app, made, tls)
            for server, task in self._servers:
                while not server.started:
                    ensure(not task.done(), "an HTTP server does not end before it is told to")
                    await asyncio.sleep(0.005)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Take no more connections, end streams, give requests in progress ``GRACE_SECONDS`` to finish. Idempotent."""
        self._stopping.set()
        servers, self._servers = self._servers, []
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*(task for _, task in servers), return_exceptions=True)
        for server, _ in servers:
            for connection in list(server.server_state.connections):
                connection.transport.abort()  # whoever does not read the end of its answer
        if self._socket is not None:
            path, identity = self._socket
            self._socket = None
            with contextlib.suppress(OSError):
                if _identity(path) == identity:  # and not that of whoever came after us
                    path.unlink()
        self.address = None

    def _serve(self, app: ASGIApp, made: sockets.socket, tls: ssl.SSLContext | None = None) -> None:
        config = uvicorn.Config(
            _Ending(app, self._stopping),
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,  # who runs us says where logs go
            access_log=False,
            proxy_headers=False,  # they would let a client say where it comes from
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        if tls is not None:
            config.load()
            config.ssl = tls
        server = _Uvicorn(config)
        self._servers.append((server, asyncio.get_running_loop().create_task(server.serve(sockets=[made]))))


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class _Ending:
    """An ASGI application whose streams end when the server stops: they are told that their client is gone.

    Server-sent events are ended as if they had been complete, since their reader comes back by itself; anything else
    that is cut off is seen to be.
    """

    def __init__(self, app: ASGIApp, stopping: asyncio.Event) -> None:
        self._app = app
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = False  # the request is here, and all that can follow is that the client goes
        events = open_ = False

        async def receive_or_stop() -> Message:
            nonlocal whole
            if whole:
                return await self._gone(receive)
            message = await receive()
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def watch(message: Message) -> None:
            nonlocal events, open_
            if message["type"] == "http.response.start":
                events = any(name == b"content-type" and b"event-stream" in value for name, value in message["headers"])
                open_ = True
            elif message["type"] == "http.response.body":
                open_ = message.get("more_body", False)
            await send(message)

        await self._app(scope, receive_or_stop, watch)
        if open_ and events and self._stopping.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _gone(self, receive: Receive) -> Message:
        """The next message of the client, or that it is gone since we stop."""
        theirs = asyncio.ensure_future(receive())
        ours = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((theirs, ours), return_when=asyncio.FIRST_COMPLETED)
            return theirs.result() if theirs.done() else {"type": "http.disconnect"}
        finally:
            for task in (theirs, ours):
                task.cancel()


def _identity(path: Path) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
