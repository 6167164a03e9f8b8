"""The task of ``hived shell``: a program on a terminal of its own, which somebody else's terminal shows.

    python -I -S terminal.py UID:SOCKET PROGRAM ARGUMENT...

It connects to a Unix socket of the submitter's, and sends what the program prints. What comes from there is typed, so
it is a process of this user that has to listen there: who started this may be gone, and the path be somebody else's.
Both ways messages are a letter, four bytes of length, and so many bytes:

    d  what is typed, or printed            w  rows and columns of the other terminal, two bytes each
    x  the program has ended: its exit code, one byte        t  it is told to stop, and has so many seconds (text)

Where the other end goes, the program is hung up on, as by a connection that is lost. Where it is told to stop, what
runs in the foreground gets SIGTERM, and is hung up on after the grace, ``HIVED_GRACE``; a shell in which nothing runs
is at once. This file is run by itself: it
needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import select
import signal
import socket
import struct
import sys
import termios
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: bytes of one message at most
MOST = 65_536
#: seconds before the end of the grace at which it is hung up on: it may still end by that
_BEFORE_S = 1.0
#: seconds that a program has to end after it was hung up on
_HANGS_UP_S = 5.0
_HEAD = struct.Struct("<cI")
_PEER = struct.Struct("3i")  # of SO_PEERCRED: process, user, group
#: pause between two looks whether anything runs yet
_LOOKS_S = 0.2
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish")
#: words of a command before its program: python -I -S terminal.py UID:SOCKET
_OWN = 5


def framed(kind: bytes, data: bytes = b"") -> bytes:
    """A message."""
    return _HEAD.pack(kind, len(data)) + data


def shown(command: Sequence[str]) -> Sequence[str]:
    """What a command runs, where it is this file; any other as it is."""
    is_this = len(command) > _OWN and command[_OWN - 2].endswith("/engines/local/terminal.py")
    return command[_OWN:] if is_this else command


class Messages:
    """What has come of a stream of messages."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, more: bytes) -> list[tuple[bytes, bytes]]:
        """The messages that are whole by now. Raises :class:`ValueError` for one that is too long."""
        self._rest += more
        found = []
        while len(self._rest) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._rest)
            if length > MOST:
                raise ValueError(f"a message of {length} bytes")
            end = _HEAD.size + length
            if len(self._rest) < end:
                break
            found.append((kind, self._rest[_HEAD.size : end]))
            self._rest = self._rest[end:]
        return found


def main(where: str, *command: str) -> int:
    """Run a program; its exit code."""
    uid, _, path = where.partition(":")
    if not uid.isdigit():  # of the version before
        uid, path = "", where
    with socket.socket(socket.AF_UNIX) as other:
        try:
            _connect(other, path, int(uid or os.getuid()))
        except OSError as error:
            print(f"the terminal that this was started from is gone: {path}: {error.strerror}", file=sys.stderr)
            return 1
        pid, terminal = pty.fork()
        if pid == 0:
            try:
                os.execvp(command[0], command)
            except OSError as error:
                os.write(2, f"{command[0]}: {error.strerror}\n".encode())
                os._exit(127)
        told = socket.socketpair()
        signal.signal(signal.SIGTERM, lambda *_: told[1].send(b"t"))
        code = _relayed(other, terminal, pid, told[0], float(os.environ.get("HIVED_GRACE") or 0.0))
        with contextlib.suppress(OSError):
            other.sendall(framed(b"x", bytes([code])))
        return code


def _connect(other: socket.socket, path: str, uid: int) -> None:
    """Connect to a socket at which this user listens. Raises :class:`OSError`."""
    other.connect(path)
    _, listens, _ = _PEER.unpack(other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    if listens != uid:
        raise OSError(errno.EPERM, "somebody else listens there by now")


def _relayed(other: socket.socket, terminal: int, pid: int, told: socket.socket, grace_s: float) -> int:
    """Pass on what is typed and printed until the program has ended; its exit code.

    Nothing waits for one side alone: a program that does not read what is typed is still read. What it has left behind
    keeps the terminal open, and is not waited for.
    """
    os.set_blocking(terminal, False)
    messages, typed = Messages(), b""
    over = os.pidfd_open(pid)
    ends_at = float("inf")
    while True:
        reads = [terminal, told.fileno(), over, *([other.fileno()] if len(typed) < MOST else [])]
        is_told = ends_at < float("inf")
        ready, writable, _ = select.select(reads, [terminal] if typed else [], [], _LOOKS_S if is_told else None)
        if told.fileno() in ready:
            told.recv(MOST)
            if not is_told:
                left = 0.0 if _is_idle(pid) else max(grace_s - _BEFORE_S, 0.0)
                ends_at = time.monotonic() + left
                with contextlib.suppress(OSError):
                    other.sendall(framed(b"t", f"{left:.0f}".encode()))
                if left:
                    _terminate(pid, terminal)
                is_told = True
        is_idle = is_told and terminal not in ready and _is_idle(pid)  # what it has printed is shown before
        if is_idle or time.monotonic() >= ends_at:
            return _hung_up(pid, terminal)
        if writable:
            with contextlib.suppress(BlockingIOError):
                typed = typed[os.write(terminal, typed) :]
        if terminal in ready:
            try:
                printed = os.read(terminal, MOST)
            except BlockingIOError:
                continue
            except OSError:  # nobody has it open any more
                printed = b""
            if not printed:
                return _code(os.waitpid(pid, 0)[1])
            try:
                other.sendall(framed(b"d", printed))
            except OSError:
                return _hung_up(pid, terminal)
        elif over in ready:
            return _code(os.waitpid(pid, 0)[1])
        if other.fileno() in ready:
            try:
                found = messages.of(_received(other))
            except (OSError, EOFError, ValueError):
                return _hung_up(pid, terminal)
            for kind, data in found:
                if kind == b"d":
                    typed += data
                elif kind == b"w" and len(data) == 4:
                    fcntl.ioctl(terminal, termios.TIOCSWINSZ, data + bytes(4))


def _is_idle(pid: int) -> bool:
    """Whether a program is a shell in which nothing runs."""
    try:
        is_shell = Path(f"/proc/{pid}/comm").read_bytes().strip().decode(errors="replace") in _SHELLS
        return is_shell and not Path(f"/proc/{pid}/task/{pid}/children").read_bytes().strip()
    except OSError:
        return False


def _terminate(pid: int, terminal: int) -> None:
    """Tell what runs in the foreground to end, and the program itself, which does not listen if it is a shell."""
    groups = {pid}  # it leads a session, and so a group
    with contextlib.suppress(OSError):
        groups.add(os.tcgetpgrp(terminal))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGTERM)
            os.killpg(group, signal.SIGCONT)


def _received(other: socket.socket) -> bytes:
    data = other.recv(MOST)
    if not data:
        raise EOFError
    return data


def _hung_up(pid: int, terminal: int) -> int:
    """Hang up on the program; its exit code."""
    os.close(terminal)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGHUP)  # it leads a session, and so a group
        os.kill(pid, signal.SIGCONT)
    until = time.monotonic() + _HANGS_UP_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return _code(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return _code(os.waitpid(pid, 0)[1])


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
