"""The tasks of this machine, from the engine's side: starting, finding again, stopping, and seeing them to their ends.

What a task is doing is read from its folder (see :mod:`.supervisor`), never remembered, so the engine can lose nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

import msgspec
from msgspec.structs import replace

from . import supervisor
from .environment import kill_marked

#: errors for want of open files, processes or memory: the same may succeed a little later
SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
#: of the engine's own environment: what a supervisor needs to run at all, where Python is not the system's
_KEPT = ("LD_LIBRARY_PATH",)
#: how a word for the supervisor is written, whatever a task may have put in its place
_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOFOLLOW
#: the most that is read of a small file: a task is of the same user, and may have put anything in its place
_MOST = 65_536


class Stand(Enum):
    """What a task's folder says."""

    UNCLAIMED = "unclaimed"  #: nobody has started it
    ALIVE = "alive"  #: its supervisor lives
    ENDED = "ended"  #: it has ended, and how is written down
    LOST = "lost"  #: its supervisor is gone, and has written nothing


class Ending(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
        draft = self.folder / "task.json.part"
        draft.touch(mode=0o600)  # before there is anything in it: an environment holds secrets
        draft.write_text(json.dumps(asdict(work)), encoding="ascii")
        draft.replace(self.folder / "task.json")

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start its supervisor; where one has claimed it already, that leaves at once."""
        name = self.folder / "supervisor.log"
        name.touch(mode=0o600)
        with name.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={name: os.environ[name] for name in _KEPT if name in os.environ} | {"LC_ALL": "C.UTF-8"},
            )

    def stand(self) -> Stand:
        """What it is doing. O(1). ``OSError`` only where this process can have no more open files."""
        try:
            claim = os.open(self.folder / "claim", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return Stand.UNCLAIMED
        except OSError as error:
            if error.errno in SCARCE:
                raise
            return Stand.LOST  # whatever that is, it is no supervisor's
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

    def stop(self, grace_s: float | None = None) -> None:
        """Tell it to end: SIGTERM, and SIGKILL after its grace; or not to start at all. Too late does nothing.

        ``grace_s``: this, where its own grace is longer. Can be done again. ``OSError`` where it has not started yet,
        and the word for it cannot be left.
        """
        problem: OSError | None = None
        try:  # first: a supervisor that claims the task after the look below will see it
            with os.fdopen(os.open(self.folder / "stop", _WRITTEN, 0o600), "w") as stop:
                stop.write("" if grace_s is None else f"{grace_s}")
        except OSError as error:
            problem = error
        fd = self.watch()
        if fd is not None:
            try:
                _tell_to_end(fd)
            finally:
                os.close(fd)
        elif problem is not None:
            raise problem

    def ending(self) -> Ending:
        """How it ended, once it :meth:`stand`\\ s as ended or lost."""
        ending = self._written()
        rebooted = self._rebooted()
        if ending is None and rebooted:
            return Ending(137, error="the machine was started anew under it", lost=True, rebooted=True)
        if ending is None:
            return Ending(137, error=f"its supervisor was killed{self._last_words()}", lost=True)
        if ending.stopped and not ending.limit and rebooted:  # all processes are told to end when a machine goes down
            return replace(ending, error="the machine was shut down under it", rebooted=True)
        return ending

    def _written(self) -> Ending | None:
        """What its supervisor has written of its end; ``None`` where that is nothing, or no supervisor wrote it."""
        try:
            ending = msgspec.convert(json.loads(_read(self.folder / "exit")), Ending)
        except (OSError, ValueError, RecursionError):
            return None
        if ending.error is None:
            return ending
        return replace(ending, error=ending.error[:_MOST].encode(errors="replace").decode())

    def _rebooted(self) -> bool:
        try:
            return self._claimed()[1] != supervisor.world()
        except (OSError, ValueError):
            return False

    def never_started(self) -> Ending:
        """How it ended where its supervisor went without a claim."""
        if not self.folder.exists():
            return Ending(137, error="its folder was deleted", lost=True)
        return Ending(127, error=f"its supervisor could not start{self._last_words()}")

    def _claimed(self) -> tuple[int, str]:
        """Pid of its supervisor, and the world that is of."""
        pid, world = _read(self.folder / "claim").split()
        if not 0 < int(pid) < 2**31:
            raise ValueError(f"{self.folder}: no pid: {pid}")
        return int(pid), world

    def _last_words(self) -> str:
        try:
            lines = _read(self.folder / "supervisor.log", -4096).split("\n")
        except OSError:
            return ""
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f": {last[:200]}" if last else ""


def _tell_to_end(supervisor: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(supervisor, signal.SIGTERM)
        signal.pidfd_send_signal(supervisor, signal.SIGCONT)  # it may have been frozen: the task may have stopped it


def _read(path: Path, start: int = 0) -> str:
    """A small file, from ``start`` (below 0: from its end) on. ``OSError``, also for what is no file."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path}: no file")
        return os.pread(fd, _MOST, start if start >= 0 else max(0, status.st_size + start)).decode(errors="replace")
    finally:
        os.close(fd)


#: job, attempt, rank
Key = tuple[int, int, int]


class Watching:
    """The tasks that somebody waits for, by the supervisors they have. One event loop; O(1) per task."""

    def __init__(self, ended: Callable[[Key, Ending], None], mark: Callable[[Key], str]) -> None:
        """``ended`` hears of every task once; ``mark`` names a task among those of all engines."""
        self._ended = ended
        self._mark = mark
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: dict[Key, int] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def open(self) -> None:
        """Begin, in the running loop."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Hear of no more ends: whoever comes next finds them. Again does nothing."""
        for fd in self._watched.values():
            if self._loop is not None:
                self._loop.remove_reader(fd)
            os.close(fd)
        self._watched.clear()
        self._loop = None

    def ensure(self, key: Key, task: Task, work: Callable[[], Work], inherited: bool) -> None:
        """Whatever was done before: the task is running and watched, or its end is told.

        ``inherited``: it was begun by an engine before us, and its folder may have been deleted since.
        """
        if key in self._watched or self._loop is None:
            return
        try:
            if task.stand() is not Stand.UNCLAIMED:
                self._look(key, task)
                return
            if inherited:
                kill_marked(self._mark(key))
            task.write(work())
            child = task.spawn()
            fd = os.pidfd_open(child.pid)
        except OSError as error:
            if error.errno not in SCARCE:  # else the next look tries again
                self._ended(key, Ending(127, error=f"{error.filename or task.folder}: {error.strerror}"))
            return
        self._children[fd] = child
        self._watch(key, task, fd)

    def stop(self, key: Key, task: Task, grace_s: float) -> None:
        """Tell a task to end; a second time does nothing more, unless it has less time from then on."""
        try:
            task.stop(grace_s)
        except OSError:  # its folder is gone: then its supervisor is told directly, if it is one that we watch
            fd = self._watched.get(key)
            if fd is not None:
                _tell_to_end(fd)

    def _watch(self, key: Key, task: Task, fd: int) -> None:
        assert self._loop is not None
        self._watched[key] = fd
        self._loop.add_reader(fd, self._supervisor_gone, key, task, fd)

    def _supervisor_gone(self, key: Key, task: Task, fd: int) -> None:
        assert self._loop is not None
        self._loop.remove_reader(fd)
        os.close(fd)
        del self._watched[key]
        if (child := self._children.pop(fd, None)) is not None:
            child.wait()  # reaped: it has ended
        # else the next look tries again
        with contextlib.suppress(OSError):
            self._look(key, task)

    def _look(self, key: Key, task: Task) -> None:
        """The supervisor that we knew of is not there, or we knew of none: see how the task stands."""
        stand = task.stand()
        if stand is Stand.ALIVE:  # another one has it, of an engine before us
            if (fd := task.watch()) is not None:
                self._watch(key, task, fd)
                return
            stand = task.stand()
        if stand is not Stand.ENDED:
            kill_marked(self._mark(key))
        self._ended(key, task.never_started() if stand is Stand.UNCLAIMED else task.ending())
