"""A server inside a running event loop: on a Unix socket, on a TCP address, or on both; and these sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import socket
import socket as sockets
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from hived.errors import ConflictError, InputError, InvariantError, StorageError, ensure

from .limits import Connection

GRACE_SECONDS = 5  #: for requests in progress when the server stops; streams are ended at once


class Server:
    """Serves from its one start until it is stopped. It leaves signals to the owner of the event loop.

    The socket serves ``socket_app``, the TCP address ``app``: they identify users in different ways.
    """

    def __init__(self) -> None:
        self._servers: list[tuple[_Uvicorn, asyncio.Task[None]]] = []
        # what listens, and is not served yet
        self._local: sockets.socket | None = None
        self._tcp: sockets.socket | None = None
        self._socket: tuple[Path, tuple[int, int]] | None = None  #: the path, and the identity of our file there
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
                self._local = unix_socket(socket, group)
                self._socket = (socket, _identity(socket))
            if listen is not None:
                self._tcp = tcp_socket(*listen)
                self.address = self._tcp.getsockname()[:2]
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
            if self._local is not None:
                self._serve(socket_app, self._local)
                self._local = None
            if self._tcp is not None:
                self._serve(app, self._tcp, tls)
                self._tcp = None
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
            for connection in list(server.server_state.connections):
                connection.transport.abort()  # clients that do not read the end of their answer
        self._close()

    def _close(self) -> None:
        """Listen no more."""
        for made in (self._local, self._tcp):
            if made is not None:
                made.close()
        self._local = self._tcp = None
        if self._socket is not None:
            path, identity = self._socket
            self._socket = None
            with contextlib.suppress(OSError):
                if _identity(path) == identity:  # not the socket of a later server
                    path.unlink()
        self.address = None

    def _serve(self, app: ASGIApp | None, made: sockets.socket, tls: ssl.SSLContext | None = None) -> None:
        if app is None:
            raise InvariantError("what listens has something to serve")
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,  # the application configures logging
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
        """Leave signals alone."""
        yield


def _identity(path: Path) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


_BACKLOG = 128
_LONGEST_PATH = 107  #: bytes, of the path of a Unix socket on Linux


def unix_socket(path: Path, group: str | None) -> socket.socket:
    """A socket that listens at ``path``, for its owner alone, or for ``group`` too.

    The socket of an engine that has ended is replaced. Raises :class:`~hived.errors.ConflictError` where an engine
    answers or the file is no socket, :class:`~hived.errors.StorageError` where no socket can be made,
    :class:`~hived.errors.InputError` for a path that is too long or a group that the user is not in.
    """
    length = len(os.fsencode(path))
    if length > _LONGEST_PATH:
        raise InputError(
            f"{path}: {length} bytes are too long for a socket's path ({_LONGEST_PATH}); use a shorter folder"
        )
    try:
        with _alone(path.parent), contextlib.ExitStack() as undo:
            made = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            _make_way(path)
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


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder, so that of two servers that start at once neither replaces the socket of the other."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make_way(path: Path) -> None:
    """Remove the socket of an engine that has ended."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConflictError(f"{path}: something that is no socket is there; move it away, or use another folder")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # an engine too busy to answer is running too
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except FileNotFoundError:
            return
        except PermissionError as error:
            raise ConflictError(f"{path}: this is somebody else's socket; use another folder (--state)") from error
        except BlockingIOError:
            pass
    raise ConflictError(f"another hived up answers on {path}: stop it first, or use another folder (--state)")


def let_in(path: Path, group: str, mode: int) -> None:
    """Set the group and mode of a file. Raises :class:`~hived.errors.InputError` where that is not possible."""
    try:
        shutil.chown(path, group=group)
    except LookupError as error:
        raise InputError(f"there is no group {group!r} on this machine") from error
    except PermissionError as error:
        raise InputError(f"{path} cannot be given to the group {group!r}: you are not in it") from error
    path.chmod(mode)
