"""Tasks seen to their ends: started where they have not been, found again where they run, looked at when they go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable

from .environment import kill_marked
from .tasks import SCARCE, Ending, Stand, Task, Work

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
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGTERM)
                    signal.pidfd_send_signal(fd, signal.SIGCONT)  # it may have been frozen

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
