"""Stops the CPU side of a process: its loader workers and other children, and itself, so that it uses no CPU time.

A stopped process cannot wake itself. A controller that resumes it writes the command first and sends SIGCONT then,
until it answers. If a suspension has a lease, a timer of the kernel sends SIGCONT at its end: a controller that dies
stops nobody for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self


def descendants(pid: int, besides: int = 0) -> list[int]:
    """Processes below ``pid``, parents first, without ``besides`` and those below it. O(processes, times threads)."""
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in _children(parent) if child != besides]
        found += level
    return found


def _children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def send(number: int, pids: list[int]) -> None:
    """Send a signal to processes; those that are gone are passed."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def stop_self() -> None:
    """Stop this process until a SIGCONT. Returns at once where that cannot be: in a container's first process."""
    os.kill(os.getpid(), signal.SIGSTOP)


#: signals that people and supervisors send; others come of timers, and of children that are stopped
_SENT = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}


class Deferred:
    """Within, the signal handlers of Python code do not run; afterwards they do, once for each signal that came.

    Handlers run in the main thread alone: in another thread this does nothing.
    """

    _handlers: ClassVar[dict[int, Any]] = {}  #: those that are put off, by whoever does so first

    def __init__(self) -> None:
        self._is_first = False
        self._came: set[int] = set()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and not self._handlers:
            self._is_first = True
            for number, handler in handlers().items():
                self._handlers[number] = handler
                signal.signal(number, self._note)
        return self

    def have_come(self) -> bool:
        """Whether somebody has sent a signal, and its handler waits to be run."""
        return bool(self._came & _SENT)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._came.add(number)

    def taken(self) -> list[int]:
        """The signals that came, which are the caller's now."""
        came, self._came = sorted(self._came), set()
        return came

    def __exit__(self, *failure: object) -> None:
        if self._is_first:
            put_off = dict(self._handlers)
            self._handlers.clear()
            for number, handler in put_off.items():
                signal.signal(number, handler)
            for number in self.taken():
                signal.raise_signal(number)


def handlers() -> dict[int, Any]:
    """The signal handlers of Python code by number, those that are put off included."""
    if Deferred._handlers:
        return dict(Deferred._handlers)
    found = {int(number): signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in found.items() if callable(handler)}


class _Interval(ctypes.Structure):
    _fields_ = (("period_s", ctypes.c_long), ("period_ns", ctypes.c_long), ("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Event(ctypes.Structure):  # struct sigevent: 64 bytes
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("_", ctypes.c_byte * 48),
    )


@contextlib.contextmanager
def woken_at(moment: float) -> Iterator[None]:
    """Within, this process is continued by the kernel at ``moment`` (by ``time.monotonic``; 0: never)."""
    if not moment:
        yield
        return
    library = ctypes.CDLL(None, use_errno=True)
    timer = ctypes.c_void_p()
    event = _Event(signo=signal.SIGCONT, notify=0)  # SIGEV_SIGNAL
    clock_monotonic, absolute = 1, 1
    if library.timer_create(clock_monotonic, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "no timer for the lease of a suspension")
    try:
        # never now or before: a timer of 0 is none
        when = _Interval(0, 0, int(moment), max(int(moment % 1 * 1e9), 1))
        library.timer_settime(timer, absolute, ctypes.byref(when), None)
        yield
    finally:
        library.timer_delete(timer)
