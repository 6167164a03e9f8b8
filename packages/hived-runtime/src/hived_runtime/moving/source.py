"""The source of a move: it starts the destination, trains on until that waits, hands its state over, and leaves."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from hived_control.environment import MOVE
from hived_control.gpus import VISIBLE
from hived_control.page import Command
from hived_control.stopping import descendants, send

from .channel import Channel, FolderChannel, SocketChannel, checked_folder, write_state
from .named import MoveError

_WARM_S = 180.0  #: for the script's beginning, to where it names its state
_ELSEWHERE_S = 1800.0  #: until somebody has started the destination on another host
_APPLIED_S = 300.0  #: for loading the state; its loaders' workers may read data again
_HERE_S = 30.0
_OF_A_MOVE = re.compile(r"state|job\.json|here|\.?(source|destination)-[0-9]+")  #: files in the folder of one
#: what a launcher has set for its own processes: the destinations have a rendezvous of their own
_LAUNCHERS = ("TORCHELASTIC_", MOVE)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a process of the script began with, as far as the script can change it."""

    environment: dict[str, str]
    folder: str

    @classmethod
    def now(cls) -> Beginning:
        """What there is now."""
        return cls(dict(os.environ), os.getcwd())  # noqa: PTH109


class Source:
    """One move, from the side of the process that leaves. :class:`.named.MoveError` from any call: it does not move."""

    def __init__(self, target: str, began: Beginning, job: Path, port: int) -> None:
        """``target``: ``cpu``, ``cuda:1``, a UUID, or the path of a folder, with a slash.

        ``job``: its folder. ``port``: of several ranks, where the destinations meet; 0: it is one process.
        """
        self._began = began
        self._channel: Channel
        self._child: subprocess.Popen[bytes] | None = None
        self._is_warm = False
        self._until = time.monotonic() + _WARM_S
        if multiprocessing.parent_process() is not None:
            raise MoveError("the process was started by multiprocessing, and cannot be started again by itself")
        if "/" in target:
            if port:
                raise MoveError("several ranks cannot move to another host")
            there = checked_folder(Path(target))
            for old in there.iterdir():  # of an earlier move
                if _OF_A_MOVE.fullmatch(old.name):
                    old.unlink()
            about = {"argv": [sys.executable, *sys.orig_argv[1:]], "cwd": began.folder, "name": job.name}
            (there / "job.json").write_text(json.dumps(about))
            self._channel = FolderChannel(there, source=True)
            self._until = time.monotonic() + _ELSEWHERE_S
            return
        device = "cuda" if torch.cuda.is_initialized() else "cpu"
        if target.partition(":")[0] != device and not (device == "cuda" and _is_gpu(target)):
            raise MoveError(f"the job trains on {device}, and {target} is another kind of device")
        own = {name: value for name, value in began.environment.items() if not name.startswith(_LAUNCHERS)}
        if device == "cuda":
            own[VISIBLE] = target.removeprefix("cuda:")
        if port:
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self._start(own)

    def _start(self, environment: dict[str, str]) -> None:
        mine, theirs = socket.socketpair()
        number = theirs.fileno()
        environment[MOVE] = f"{os.getpid()}:{number}"
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        try:
            self._child = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]], env=environment, cwd=self._began.folder, pass_fds=(number,)
            )
        except OSError as error:
            raise MoveError(f"the destination cannot be started: {error}") from None
        finally:
            theirs.close()
        self._channel = SocketChannel(mine.detach())

    def warm(self) -> bool:
        """Whether the destination waits for the state."""
        if not self._is_warm:
            try:
                if self._channel.waits():
                    self._heard("warm", 1.0)
                    self._is_warm = True
                elif time.monotonic() > self._until:
                    raise MoveError("the destination has not come to where the script names its state in time")
            except (EOFError, OSError):
                raise self._gone("before it came to where the script names its state") from None
        return self._is_warm

    def hand_over(self, state: dict[str, Any], iterations: int, seconds: float, limits: Command) -> int:
        """Give the state to the destination; it has taken it over when this returns. Bytes given.

        With it the mini-batches so far, their time in seconds, and the limits in force.
        """
        try:
            descriptor, path = self._channel.state_file()
            try:
                size = write_state(descriptor, state)
                self._channel.send("state", path, iterations, seconds, limits)
                self._heard("applied", _APPLIED_S)
            finally:
                os.close(descriptor)
        except (EOFError, OSError) as error:
            raise self._gone(f"while it took the state over ({error})") from None
        return size

    def commit(self) -> None:
        """Let the destination go on: from here on the job is there."""
        try:
            self._channel.send("go")
            self._heard("here", _HERE_S)
        except (EOFError, OSError) as error:
            if self._channel.is_taken_over():
                return
            raise self._gone(f"when it was to go on ({error})") from None

    def leave(self, signals: list[int]) -> NoReturn:
        """Become the waiter for the destination, which gets the signals that have come; on another host, end.

        The caller has blocked those that come now, :data:`.waiter.PASSED_ON`: the waiter has handlers for them.
        """
        if self._child is None:
            send(signal.SIGKILL, descendants(os.getpid()))
            os._exit(0)
        send(signal.SIGKILL, descendants(os.getpid(), besides=self._child.pid))
        waiter, numbers = Path(__file__).with_name("waiter.py"), map(str, (self._child.pid, *signals))
        os.execv(sys.executable, [sys.executable, "-I", "-S", str(waiter), *numbers])

    def give_up(self) -> None:
        """End the destination: the job stays."""
        with contextlib.suppress(Exception):
            self._channel.close()
        if self._child is not None:
            send(signal.SIGKILL, [*descendants(self._child.pid), self._child.pid])
            self._child.wait()

    def _heard(self, word: str, timeout_s: float) -> Any:
        said = self._channel.receive(timeout_s)
        if said[0] == "refused":
            raise MoveError(str(said[1]))
        if said[0] != word:
            raise MoveError(f"the destination said {said[0]!r}, and {word!r} was due")
        return said[1] if len(said) > 1 else None

    def _gone(self, when: str) -> MoveError:
        code = None if self._child is None else self._child.poll()
        return MoveError(f"the destination has ended {when}" + (f", with exit code {code}" if code is not None else ""))


def flush_files() -> None:
    """Write what the script's files keep in memory: this process ends without its own code for that. O(objects)."""
    for each in gc.get_objects():
        with contextlib.suppress(Exception):  # closed, or not for writing
            if issubclass(type(each), io.IOBase):  # isinstance asks the object, and some of PyTorch's warn then
                each.flush()


def _is_gpu(target: str) -> bool:
    return target.isdigit() or target.startswith(("GPU-", "MIG-", "cuda:"))
