"""The tasks of this machine, from the engine's side: starting, finding again, stopping, and reading how they ended.

What a task is doing is read from its folder (see :mod:`.supervisor`), never remembered, so the engine can lose nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from . import supervisor

#: in the environment of every task, so that what it leaves behind can be found
MARK = "HIVED_TASK"


class Stand(Enum):
    """What a task's folder says."""

    UNCLAIMED = "unclaimed"  #: nobody has started it
    ALIVE = "alive"  #: its supervisor lives
    ENDED = "ended"  #: it has ended, and how is written down
    LOST = "lost"  #: its supervisor is gone, and has written nothing


@dataclass(frozen=True, slots=True)
class Ending:
    """How a task ended."""

    code: int  #: as a shell has it: 128 + signal where a signal ended it, 127 where it could not be started
    signal: int | None = None
    stopped: bool = False  #: whether it was told to stop while it lived
    limit: bool = False  #: whether that was for its time limit
    error: str | None = None  #: why it could not be started, or how it got lost
    lost: bool = False  #: whether nobody can say how it ended
    rebooted: bool = False  #: whether the machine was started anew under it
    started: float | None = None  #: seconds since the epoch
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What a supervisor runs."""

    command: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    grace_s: float
    time_limit_s: float | None


class Task:
    """One task of one attempt, by its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def output(self) -> Path:
        """What it prints."""
        return self.folder / "output"

    def write(self, work: Work) -> None:
        """Put down what to run. O(size); ``OSError`` where the disk is full."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        plain = {
            "command": work.command,
            "cwd": work.cwd,
            "environment": dict(work.environment),
            "grace_s": work.grace_s,
            "time_limit_s": work.time_limit_s,
        }
        draft = self.folder / "task.json.part"
        draft.touch(mode=0o600)  # before there is anything in it: an environment holds secrets
        draft.write_text(json.dumps(plain), encoding="utf-8", errors="surrogateescape")
        draft.replace(self.folder / "task.json")

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start its supervisor; where one has claimed it already, that leaves at once."""
        with (self.folder / "supervisor.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={"LC_ALL": "C.UTF-8"},
            )

    def stand(self) -> Stand:
        """What it is doing. O(1)."""
        try:
            claim = os.open(self.folder / "claim", os.O_RDONLY)
        except FileNotFoundError:
            return Stand.UNCLAIMED
        try:
            fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Stand.ALIVE
        finally:
            os.close(claim)
        return Stand.ENDED if (self.folder / "exit").exists() else Stand.LOST

    def watch(self) -> int | None:
        """A pidfd of its supervisor, readable when that ends; ``None`` when it has ended. To be closed."""
        try:
            pid, _ = self._claimed()
            fd = os.pidfd_open(pid)
        except (OSError, ValueError):
            return None
        if self.stand() is Stand.ALIVE:  # so the pid was its own when the pidfd was made
            return fd
        os.close(fd)
        return None

    def stop(self) -> None:
        """Tell it to end: SIGTERM, and SIGKILL after its grace; or not to start at all. Too late does nothing."""
        (self.folder / "stop").touch()  # first: a supervisor that claims the task after the look below will see it
        fd = self.watch()
        if fd is None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGTERM)
        finally:
            os.close(fd)

    def ending(self) -> Ending:
        """How it ended, once it :meth:`stand`\\ s as ended or lost."""
        try:
            plain = json.loads((self.folder / "exit").read_text(encoding="utf-8"))
            return Ending(**plain)
        except (OSError, ValueError, TypeError):
            pass
        try:
            rebooted = self._claimed()[1] != supervisor.boot_id()
        except (OSError, ValueError):
            rebooted = False
        if rebooted:
            return Ending(137, error="the machine was started anew under it", lost=True, rebooted=True)
        return Ending(137, error=f"its supervisor was killed{self._last_words()}", lost=True)

    def never_started(self) -> Ending:
        """How it ended where its supervisor went without a claim."""
        return Ending(127, error=f"its supervisor could not start{self._last_words()}")

    def clear(self, mark: str) -> None:
        """Kill what a lost task has left running: whoever has its mark in the environment. O(processes)."""
        wanted = f"{MARK}={mark}".encode()
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(int(process.name))
                try:
                    if wanted in (process / "environ").read_bytes().split(b"\0"):
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                finally:
                    os.close(fd)

    def _claimed(self) -> tuple[int, str]:
        """Pid and boot of its supervisor."""
        pid, boot = (self.folder / "claim").read_text(encoding="ascii").split()
        return int(pid), boot

    def _last_words(self) -> str:
        try:
            lines = (self.folder / "supervisor.log").read_text(errors="replace").split("\n")
        except OSError:
            return ""
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f": {last[:200]}" if last else ""
