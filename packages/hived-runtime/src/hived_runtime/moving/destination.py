"""The destination of a move: the script's first mini-batch in a new process, which then takes the state over.

What the script prints until then has been printed by the source before: it goes to a file that is dropped, or, if the
script fails, to the source's stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import torch

from hived_control.environment import MOVE
from hived_control.page import Command
from hived_control.stopping import descendants, send

from .channel import Channel, FolderChannel, SocketChannel, checked_folder, read_state
from .kinds import MoveError
from .outside import written_by
from .state import Place, apply, items_left, script_stack

_PR_SET_PDEATHSIG = 1
_WAIT_S = 3600.0  #: for the source, warm
_SHOWN = 2000  #: bytes of what the script has printed before it failed
_GIVEN_UP = 75  #: exit code


class Destination:
    """One move, from the side of the process that takes over."""

    def __init__(self, channel: Channel, parent: int, job: Path) -> None:
        self._channel = channel
        self._parent = parent  #: pid of the source, on this machine; else 0
        self._places: list[Place] = []
        self._written = written_by(parent, job) if parent else {}
        self._waits = True  #: the source still trains
        sys.addaudithook(self._look_at_files)
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

    def is_due(self, iterations: int) -> bool:
        """Whether this boundary, after so many mini-batches, is one at which to take over.

        It is where the source's script is. Ranks wait for each other in collectives, so they take the same: the second.
        """
        if iterations < 2:  # with several optimizers the first may not be a whole mini-batch
            return False
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            return iterations == 2
        try:
            while self._channel.waits(0.0 if self._places else 1.0):
                self._places.append(self._channel.receive(1.0)[1])
        except (EOFError, OSError):
            self._end()
        return Place.of(script_stack()) in self._places

    def arrive(self) -> tuple[int, float, Command]:
        """At a boundary: take the state over. Mini-batches so far, their time, and the limits, when it goes on.

        If anything fails, or the source has changed its mind, the process ends here.
        """
        stack = script_stack()
        try:
            self._channel.send("warm", (Place.of(stack), items_left(stack)))
            while (said := self._channel.receive(_WAIT_S))[0] == "place":
                pass
            _, path, iterations, seconds, limits = said
            data, storages = read_state(path)
            apply(data, storages, stack)
            del data, storages
            self._channel.send("applied")
            self._channel.receive(_WAIT_S)  # go
            if not self._channel.takes_over():
                self._end()
            if self._parent:  # kill -9 of the process that the job was started as ends the job
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        except MoveError as error:
            self._refuse(str(error))
        except (EOFError, OSError):
            self._end()
        except Exception as error:
            self._refuse(f"{type(error).__name__}: {error}")
        return iterations, seconds, limits

    def _look_at_files(self, event: str, arguments: tuple[Any, ...]) -> None:
        """End before a file is harmed that the source writes: the script's beginning would truncate its log."""
        if event != "open" or not self._waits or not self._written or not isinstance(arguments[2], int):
            return
        path, _, flags = arguments
        if flags & (os.O_WRONLY | os.O_RDWR) and isinstance(path, str | bytes | os.PathLike):
            with contextlib.suppress(OSError, ValueError):
                found = Path(os.fsdecode(path)).stat()
                if (found.st_dev, found.st_ino) in self._written:
                    self._refuse(f"the script writes {os.fsdecode(path)} from its beginning on, and would harm it")

    def here(self) -> None:
        """The job is here: say so, and let the script print."""
        self._waits = False
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
