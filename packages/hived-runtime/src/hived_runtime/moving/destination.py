"""The destination of a move: the script in a new process, to where it names its state, which is taken over there.

What the script prints until then has been printed by the source before: it goes to a file that is dropped, or, if the
script fails, to the source's stderr. Files that the source writes are not emptied: what was written stays, and what
comes is added.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch

from hived_control.environment import MOVE
from hived_control.page import Command
from hived_control.stopping import descendants, send

from .channel import Channel, FolderChannel, SocketChannel, checked_folder, read_state
from .named import MoveError, NamedState

T = TypeVar("T")

_PR_SET_PDEATHSIG = 1
_WAIT_S = 3600.0  #: for the source, warm
_SHOWN = 2000  #: bytes of what the script has printed before it failed
_GIVEN_UP = 75  #: exit code


class Destination:
    """One move, from the side of the process that takes over."""

    def __init__(self, channel: Channel, parent: int, job: Path) -> None:
        self._channel = channel
        self._parent = parent  #: pid of the source, on this machine; else 0
        self._hook = sys.excepthook  #: of the script, as it names its state
        self._files = _Appending(written_by(parent, job) if parent else set())
        self._quiet = _Quiet()
        _guard_rendezvous()

    @classmethod
    def of_environment(cls, job: Path) -> Destination | None:
        """The destination that this process is, if a source, or ``hived train run --from``, has started it.

        ``job``: the job's folder.
        """
        given = os.environ.pop(MOVE, None)
        if given is None:
            return None
        if "/" in given:
            try:
                return cls(FolderChannel(checked_folder(Path(given)), source=False), 0, job)
            except MoveError as error:  # never from its beginning: the job trains elsewhere
                raise SystemExit(f"hived train run --from {given}: {error}") from None
        parent, number = map(int, given.split(":"))
        if os.getppid() != parent:
            return None  # a child of the destination, that has inherited the variable
        return cls(SocketChannel(number), parent, job)

    def arrive(self, named: NamedState, arrived: Callable[[int, float, Command], None]) -> None:
        """Take the state over, where the script has named it.

        ``arrived`` is called when it goes on, its loops where they were: with the mini-batches so far, their time, and
        the limits. If anything fails, or the source has changed its mind, the process ends.
        """

        def resumed() -> None:
            self._or_end(self._commit)
            arrived(iterations, seconds, limits)

        self._or_end(lambda: self._channel.send("warm"))
        _, path, iterations, seconds, limits = self._or_end(lambda: self._channel.receive(_WAIT_S))
        self._hook, sys.excepthook = sys.excepthook, self._fails  # until it goes on
        self._or_end(lambda: named.load(read_state(path), resumed, lambda error: self._refuse(str(error))))

    def _commit(self) -> None:
        self._channel.send("applied")
        self._channel.receive(_WAIT_S)  # go
        if not self._channel.takes_over():
            self._end()
        if self._parent:  # kill -9 of the process that the job was started as ends the job
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def _or_end(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except MoveError as error:
            self._refuse(str(error))
        except (EOFError, OSError):
            self._end()
        except Exception as error:
            self._refuse(f"{type(error).__name__}: {error}")

    def _fails(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """The script has failed before it came to where it was."""
        self._refuse(f"{kind.__name__}: {error}")

    def here(self) -> None:
        """The job is here: say so, and let the script print."""
        sys.excepthook = self._hook
        self._files.end()
        if self._parent:
            with contextlib.suppress(OSError):  # signals to the group of the waiter come from it, and once
                os.setpgid(0, 0)
        with contextlib.suppress(OSError):
            self._channel.send("here", os.getpid())
        self._quiet.end()

    def _refuse(self, why: str) -> NoReturn:
        with contextlib.suppress(OSError):
            self._channel.send("refused", why)
        self._end()

    def _end(self) -> NoReturn:
        """At once: none of the script's own code for its end is to run twice."""
        send(signal.SIGKILL, descendants(os.getpid()))
        os._exit(_GIVEN_UP)


class _Appending:
    """While it lives, files that the source writes are opened to be added to, where the script would empty them."""

    def __init__(self, written: set[tuple[int, int]]) -> None:
        """``written``: device and inode of each."""
        self._written, self._original = written, io.open
        if written:
            builtins.open = io.open = self._open

    def end(self) -> None:
        """Open files as ever."""
        builtins.open = io.open = self._original

    def _open(self, file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if "w" in mode:
            with contextlib.suppress(OSError, TypeError, ValueError):
                found = os.stat(file)  # noqa: PTH116  # it may be a descriptor
                if (found.st_dev, found.st_ino) in self._written:
                    mode = mode.replace("w", "a")
        return self._original(file, mode, *more, **named)


def written_by(pid: int, job: Path) -> set[tuple[int, int]]:
    """Device and inode of the regular files that a process has open for writing.

    Without its standard streams, and what is in the folder ``job``: control pages are mapped there.
    """
    found, streams, ours = set(), set(), f"{job}/"
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                flags = int(Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().split("flags:")[1].split()[0], 8)
                about, name = entry.stat(), str(entry.readlink())
                if int(entry.name) <= 2:
                    streams.add((about.st_dev, about.st_ino))
                elif flags & (os.O_WRONLY | os.O_RDWR) and stat.S_ISREG(about.st_mode) and not name.startswith(ours):
                    found.add((about.st_dev, about.st_ino))
    return found - streams


class _Quiet:
    """While it lives, what this process prints goes to a file."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end
        self._kept = {number: os.dup(number) for number in (1, 2)}
        for number in (1, 2):
            os.dup2(self._file.fileno(), number)
        self._hook = sys.excepthook
        sys.excepthook = self._failed

    def end(self) -> None:
        """Let it print again."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for number, kept in self._kept.items():
            os.dup2(kept, number)
            os.close(kept)
        self._kept = {}
        self._file.close()
        if sys.excepthook == self._failed:  # else the script has one of its own by now
            sys.excepthook = self._hook

    def _failed(self, *error: Any) -> None:
        """The script has failed before it took over: show why, where the source's messages go."""
        self._hook(*error)
        sys.stderr.flush()
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(size - _SHOWN, 0))
        os.write(self._kept[2], b"hived: the destination of a move has failed:\n" + self._file.read())


def _guard_rendezvous() -> None:
    """Keep the script's ranks away from the rendezvous of the source's: they would meet the job that still trains."""
    if not torch.distributed.is_available():
        return
    original = torch.distributed.init_process_group

    def init_process_group(*arguments: Any, **named: Any) -> Any:
        method = named.get("init_method", arguments[1] if len(arguments) > 1 else None)
        if method not in (None, "env://") or named.get("store") is not None:
            raise RuntimeError(
                "this job's ranks meet at an address of their own: only ranks that meet by env:// can move"
            )
        return original(*arguments, **named)

    torch.distributed.init_process_group = init_process_group
