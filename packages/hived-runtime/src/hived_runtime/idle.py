"""A process that yields the processor: what a limited job on the CPU does beside pacing (see :mod:`.share`)."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from pathlib import Path

from hived_control.environment import SESSION
from hived_control.stopping import descendants

_CAP_SYS_NICE = 23  #: bit of the capability to leave the idle class; without, that takes a limit of nice of 20


def yield_processor(idle: bool) -> None:
    """Put a process and those below it into the kernel's idle class, or back; nothing where there is no way back.

    Not the monitor of the process. Where the kernel groups processes by session, classes are compared within a session
    alone: its group yields too, if nobody else is in it. O(threads).
    """
    if not _may_return():
        return
    if os.environ.get(SESSION) == "own":
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text("19" if idle else "0")
    monitors = {thread.native_id for thread in threading.enumerate() if thread.name == "hived-monitor"}
    for pid in (os.getpid(), *descendants(os.getpid())):
        with contextlib.suppress(OSError):  # it has ended
            for task in Path(f"/proc/{pid}/task").iterdir():
                plain = not idle or int(task.name) in monitors
                with contextlib.suppress(OSError):
                    os.sched_setscheduler(int(task.name), os.SCHED_OTHER if plain else os.SCHED_IDLE, os.sched_param(0))


def _may_return() -> bool:
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20:
        return True
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_NICE & 1)
    return False
