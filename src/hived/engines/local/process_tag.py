"""The mark in the environment of a task, which whoever it starts inherits: what it leaves behind is found by that."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

#: in the environment of every task
MARK = "HIVED_TASK"
#: how long what is killed may take to be gone, in seconds
_CLEARING_S = 2.0
#: how often, and after how many seconds, an environment is read again that may be about to be there
_TRIES, _AGAIN_S = 50, 0.002
#: in the flags of a process: it is a thread of the kernel (``PF_KTHREAD``)
_OF_THE_KERNEL = 0x0020_0000


def environments() -> Iterator[tuple[int, list[bytes]]]:
    """Pid and environment, as ``NAME=value``, of every process whose environment we may read. O(processes)."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(process.name), _environment(process)


def kill_marked(mark: str) -> None:
    """Kill whoever has this mark. They are gone when this returns, unless the kernel takes its time. O(processes)."""
    wanted = f"{MARK}={mark}".encode()
    last = time.monotonic() + _CLEARING_S
    while (killed := _kill(wanted)) and time.monotonic() < last:  # who has forked meanwhile is found then
        _wait_for(killed, last)


def _environment(process: Path) -> list[bytes]:
    """In the middle of ``execve(2)`` a process shows none: whoever could have one is given the time to be done."""
    for _ in range(_TRIES):
        if (found := (process / "environ").read_bytes()) or _has_none(process):
            break
        time.sleep(_AGAIN_S)
    return found.split(b"\0")


def _has_none(process: Path) -> bool:
    """Whether it is no program: dead, or the kernel's."""
    state, *numbers = (process / "stat").read_bytes().rpartition(b")")[2].split()
    return state in b"ZX" or bool(int(numbers[5]) & _OF_THE_KERNEL)


def _kill(wanted: bytes) -> list[int]:
    """Pidfds of those who have ``wanted`` in their environment, and were killed for it. To be closed."""
    found = []
    for pid, environment in environments():
        if wanted not in environment:
            continue
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            ours = False
            try:
                # asked again now that the pid cannot become somebody else's
                ours = wanted in _environment(Path(f"/proc/{pid}"))
                if ours:
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                if ours:
                    found.append(fd)
                else:
                    os.close(fd)
    return found


def _wait_for(pidfds: list[int], last: float) -> None:
    """Until all of them are gone, or it is ``last``; closes them."""
    for fd in pidfds:
        gone = select.poll()
        gone.register(fd, select.POLLIN)
        gone.poll(max(0.0, last - time.monotonic()) * 1000)
        os.close(fd)
