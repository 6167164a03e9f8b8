"""Sockets to listen on: the Unix one of a state folder, and TCP ones."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from hived.errors import ConflictError, InputError, StorageError

_BACKLOG = 128
_LONGEST_PATH = 107  #: bytes, of the path of a Unix socket on Linux


def unix_socket(path: Path, group: str | None) -> socket.socket:
    """A socket that listens at ``path``, for its owner alone, or for ``group`` too.

    What an engine that is gone left there is replaced. Raises :class:`~hived.errors.ConflictError` where one answers or
    something else is there, :class:`~hived.errors.StorageError` where nothing can be made there,
    :class:`~hived.errors.InputError` for a path that is too long or a group that one is not in.
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
            made.listen(_BACKLOG)  # nobody can connect before this, and so not before the permission is right
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
        except OSError as error:  # of a machine without IPv6 too
            problem = error
        else:
            made.setblocking(False)
            return made
    if problem.errno == errno.EADDRINUSE:
        raise InputError(f"{named}: somebody listens there already; choose another port, or 0 for any that is free")
    raise InputError(f"{named}: cannot listen there: {os.strerror(problem.errno) if problem.errno else problem}")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two that start at once take their turns, so that neither replaces the socket that the other just made."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make_way(path: Path) -> None:
    """Remove the socket of an engine that is gone."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConflictError(f"{path}: something that is no socket is there; move it away, or use another folder")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # an engine too busy to answer is one
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
    """Give a file to a group, and it this mode. Raises :class:`~hived.errors.InputError` where that cannot be."""
    try:
        shutil.chown(path, group=group)
    except LookupError as error:
        raise InputError(f"there is no group {group!r} on this machine") from error
    except PermissionError as error:
        raise InputError(f"{path} cannot be given to the group {group!r}: you are not in it") from error
    path.chmod(mode)
