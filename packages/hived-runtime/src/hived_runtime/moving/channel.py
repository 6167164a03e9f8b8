"""What source and destination of a move say to each other: on one machine by a socket, else by a folder that both see.

A message is a tuple of a word and what it needs. The source says ``state`` (and the file), ``go``; the
destination ``warm``, ``applied`` or ``refused``, ``here``.
"""

from __future__ import annotations

import os
import pickle
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from hived_control.deciding import decide
from hived_control.folder import is_own

from . import sharded
from .named import MoveError

_POLL_S = 0.05
_FAILS_S = 60.0


def checked_folder(folder: Path) -> Path:
    """A folder through which a job may move; :class:`MoveError` if it is not the user's alone: what is in it is run."""
    try:
        own = is_own(folder)
    except OSError as error:
        raise MoveError(f"{folder}: {error.strerror}; it is to be a folder that both hosts see") from None
    if not own:
        raise MoveError(f"{folder} can be written by others: it is to be a folder of your own, with mode 0700")
    return folder


class Channel(Protocol):
    """One end. ``receive`` and ``send`` raise ``EOFError`` or ``OSError`` when the other end is gone."""

    def send(self, *message: Any) -> None:
        """Say something."""

    def waits(self, timeout_s: float = 0.0) -> bool:
        """Whether a message is there, now or within ``timeout_s``."""

    def receive(self, timeout_s: float) -> tuple[Any, ...]:
        """The next message; ``TimeoutError`` if none comes."""

    def close(self) -> None:
        """Close this end."""

    def takes_over(self) -> bool:
        """For the destination, which was told to go on: whether it may, and the source does not."""

    def is_taken_over(self) -> bool:
        """For the source, which hears nothing more: whether the destination goes on; if not it never will."""

    def state_file(self) -> tuple[int, str]:
        """A new file for the state: a descriptor, and the path by which the other end opens it."""


class SocketChannel:
    """By a socket pair; the state is in memory, and the kernel tells when the other process is gone."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)

    def send(self, *message: Any) -> None:
        """Say something."""
        self._connection.send(message)

    def waits(self, timeout_s: float = 0.0) -> bool:
        """Whether a message is there; also when the other end is gone."""
        return self._connection.poll(timeout_s)

    def receive(self, timeout_s: float) -> tuple[Any, ...]:
        """The next message."""
        if not self.waits(timeout_s):
            raise TimeoutError(f"nothing was said for {timeout_s:g} s")
        said: tuple[Any, ...] = self._connection.recv()
        return said

    def close(self) -> None:
        """Close this end."""
        self._connection.close()

    def takes_over(self) -> bool:
        """It may: a source that gives up kills it first."""
        return True

    def is_taken_over(self) -> bool:
        """No: it is killed now."""
        return False

    def state_file(self) -> tuple[int, str]:
        """A file in memory: it is gone with this process."""
        descriptor = os.memfd_create("hived-state")
        return descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"


class FolderChannel:
    """By files in a folder. Each is written under another name first, so that none is read in part."""

    def __init__(self, folder: Path, source: bool) -> None:
        self._folder = folder
        self._mine, self._theirs = ("source", "destination") if source else ("destination", "source")
        self._sent = self._received = 0

    def send(self, *message: Any) -> None:
        """Say something."""
        self._sent += 1
        self._write(f"{self._mine}-{self._sent}", pickle.dumps(message))

    def waits(self, timeout_s: float = 0.0) -> bool:
        """Whether a message is there."""
        deadline = time.monotonic() + timeout_s
        while not self._next().exists():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
            list(self._folder.iterdir())  # a network file system keeps what it knew of a folder otherwise
        return True

    def receive(self, timeout_s: float) -> tuple[Any, ...]:
        """The next message."""
        if not self.waits(timeout_s):
            raise TimeoutError(f"nothing was said in {self._folder} for {timeout_s:g} s")
        said: tuple[Any, ...] = pickle.loads(self._next().read_bytes())
        self._received += 1
        return said

    def close(self) -> None:
        """Nothing is open."""

    def takes_over(self) -> bool:
        """By a decision in the folder: the source may have waited too long."""
        return decide(self._folder / "here", True)

    def is_taken_over(self) -> bool:
        """By the same decision. A folder that fails for so long is taken for one that fails for both."""
        until = time.monotonic() + _FAILS_S
        while True:
            try:
                return decide(self._folder / "here", False)
            except OSError:
                if time.monotonic() > until:
                    return False
                time.sleep(_POLL_S)

    def state_file(self) -> tuple[int, str]:
        """A file in the folder."""
        path = self._folder / "state"
        return os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600), str(path)

    def _next(self) -> Path:
        return self._folder / f"{self._theirs}-{self._received + 1}"

    def _write(self, name: str, data: bytes) -> None:
        draft = self._folder / f".{name}"
        descriptor = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.rename(self._folder / name)


# -- the state in a file ----------------------------------------------------------------------------------------------


def write_state(descriptor: int, state: dict[str, Any]) -> int:
    """Write a state, and close the file. Bytes written."""
    with os.fdopen(os.dup(descriptor), "wb", buffering=1 << 20) as file:
        torch.save(state, file, pickle_module=sharded, pickle_protocol=5)
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    return size


def read_state(path: str) -> dict[str, Any]:
    """What :func:`write_state` has written."""
    state: dict[str, Any] = torch.load(path, weights_only=False)  # from this job's own process
    return state
