"""A server inside a running event loop: on a Unix socket, on a TCP address, or on both; and these sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import shutil
import socket
import socket as sockets
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from hived.errors import InputError, InvariantError, StorageError, ensure

from .limits import Connection, watched

GRACE_SECONDS = 5  #: for requests in progress when the server stops; streams are ended at once


class Server:
    """Serves from its one start until it is stopped. It leaves signals to the owner of the event loop.

    The socket serves ``socket_app``, the TCP address ``app``: they identify users in different ways.
    """

    def __init__(self) -> None:
        self._listening: list[sockets.socket] = []
        self._servers: list[tuple[_Uvicorn, asyncio.Task[None]]] = []
        self._path: Path | None = None  #: of the socket
        #: the host and the actual port of the TCP listener; None: there is none
        self.address: tuple[str, int] | None = None

    @property
    def port(self) -> int | None:
        """The actual port of the TCP listener."""
        return None if self.address is None else self.address[1]

    def open(
        self, *, listen: tuple[str, int] | None = None, socket: Path | None = None, group: str | None = None
    ) -> None:
        """Listen: who connects waits until :meth:`start`. On an error nothing listens.

        ``group``: the members of this group of the machine may use the socket too. Raises as
        :func:`~.serving.unix_socket` and :func:`~.serving.tcp_socket`.
        """
        try:
            if socket is not None:
                self._listening.append(unix_socket(socket, group))
                self._path = socket
            if listen is not None:
                self._listening.append(tcp_socket(*listen))
                self.address = self._listening[-1].getsockname()[:2]
        except BaseException:
            self._close()
            raise

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
        """Serve what is open, and ``listen`` and ``socket``: returns once requests are answered.

        ``tls``: of the address. Raises as :meth:`open`; on an error nothing listens.
        """
        if listen is not None or socket is not None:
            self.open(listen=listen, socket=socket, group=group)
        try:
            for made in self._listening:
                if made.family == sockets.AF_UNIX:
                    self._serve(socket_app, made, None)
                else:
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
        servers, self._servers = self._servers, []
        for server, _ in servers:
            server.should_exit = True
        await asyncio.gather(*(task for _, task in servers), return_exceptions=True)
        for server, _ in servers:
            for connection in list(server.connections):
                connection.abort()  # clients that do not read the end of their answer
        self._close()

    def forget(self, token: str) -> None:
        """End what is being streamed to whoever has shown a person's token, by its id: it was revoked."""
        for server, _ in self._servers:
            for connection in list(server.connections):
                if connection.streams and connection.token == token:
                    connection.abort()

    def _close(self) -> None:
        """Listen no more."""
        for made in self._listening:
            made.close()
        self._listening.clear()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._path = self.address = None

    def _serve(self, app: ASGIApp | None, made: sockets.socket, tls: ssl.SSLContext | None) -> None:
        if app is None:
            raise InvariantError("what listens has something to serve")
        config = uvicorn.Config(
            watched(app),
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,  # the application configures logging
            access_log=False,
            proxy_headers=False,  # they would let a client say where it comes from
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        server = _Uvicorn(config, tls)
        self._servers.append((server, asyncio.get_running_loop().create_task(server.serve(sockets=[made]))))


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, whose connections have limits and whose streams end when it stops."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self.connections: dict[Connection, None] = {}  #: by age
        config.load()
        config.ssl = tls
        config.http_protocol_class = functools.partial(  # type: ignore[assignment]  # anything that makes a protocol
            Connection, config.http_protocol_class, self.connections
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def shutdown(self, sockets: list[sockets.socket] | None = None) -> None:
        for connection in self.connections:
            connection.end_stream()
        await super().shutdown(sockets)


_BACKLOG = 128
_LONGEST_PATH = 107  #: bytes, of the path of a Unix socket on Linux


def unix_socket(path: Path, group: str | None) -> socket.socket:
    """A socket that listens at ``path``, for its owner alone, or for ``group`` too.

    The caller is the only one that uses the folder (the engine's database is locked), so a socket that is there was
    left by an engine that has ended, and is replaced. Raises :class:`~hived.errors.StorageError` where no socket can
    be made, :class:`~hived.errors.InputError` for a path that is too long or a group that the user is not in.
    """
    length = len(os.fsencode(path))
    if length > _LONGEST_PATH:
        raise InputError(
            f"{path}: {length} bytes are too long for a socket's path ({_LONGEST_PATH}); use a shorter folder"
        )
    try:
        with contextlib.ExitStack() as undo:
            made = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            if path.is_socket():
                path.unlink()
            made.bind(str(path))
            undo.callback(path.unlink)
            path.chmod(0o600)
            if group is not None:
                let_in(path, group, 0o660)
            made.listen(_BACKLOG)  # no client can connect before this, and so not before the permission is right
            made.setblocking(False)
            undo.pop_all()
            return made
    except OSError as error:
        raise StorageError(f"{path}: no socket can be made there: {error.strerror or error}") from error


def tcp_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host`` and ``port`` (0: any that is free).

    Raises :class:`~hived.errors.InputError` where that is no address of this machine, or it is in use.
    """
    named = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not 0 <= port <= 65_535:
        raise InputError(f"{named}: a port is a number from 0 (any that is free) to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"{named}: there is no such host: {getattr(error, 'strerror', None) or error}") from error
    problem = OSError("it has no address")
    for family, _, _, _, address in found:
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        try:
            made = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        except OSError as error:  # also on a machine without IPv6
            problem = error
        else:
            # what is accepted inherits it: an answer in two parts waits for no delayed acknowledgement of the client
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setblocking(False)
            return made
    if problem.errno == errno.EADDRINUSE:
        raise InputError(f"{named}: somebody listens there already; choose another port, or 0 for any that is free")
    raise InputError(f"{named}: cannot listen there: {os.strerror(problem.errno) if problem.errno else problem}")


def let_in(path: Path, group: str, mode: int) -> None:
    """Set the group and mode of a file. Raises :class:`~hived.errors.InputError` where that is not possible."""
    try:
        shutil.chown(path, group=group)
    except LookupError as error:
        raise InputError(f"there is no group {group!r} on this machine") from error
    except PermissionError as error:
        raise InputError(f"{path} cannot be given to the group {group!r}: you are not in it") from error
    path.chmod(mode)
