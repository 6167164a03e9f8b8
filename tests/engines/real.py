"""Real tasks for tests: short programs under real supervisors, and a look at what is left of them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hived.engines.local.environment import MARK, environments, kill_marked
from hived.engines.local.tasks import Ending, Liveness, Task, Work

#: how long anything may take before a test is given up, in seconds
PATIENCE_S = 120.0


def until(true: Callable[[], object], what: str = "it did not happen") -> None:
    """Wait until something is true; it is no statement about time, only an end for a test that hangs."""
    last = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < last, what
        time.sleep(0.005)


class RealTask(Task):
    """A task with its mark, and the supervisors that were started for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, f"{folder}/mark")
        self.supervisors: list[subprocess.Popen[bytes]] = []

    def ready(
        self,
        *command: str,
        cwd: str = "/",
        environment: Mapping[str, str] | None = None,
        grace_s: float = 20.0,
        time_limit_s: float | None = None,
    ) -> RealTask:
        """Written down, not started."""
        own = {"PATH": os.environ["PATH"], MARK: self.mark, **(environment or {})}
        self.write(Work(command, cwd, own, grace_s, time_limit_s))
        return self

    def shell(self, script: str, **more: Any) -> RealTask:
        """A line of shell, written down."""
        return self.ready("sh", "-c", script, **more)

    def start(self) -> RealTask:
        """One more supervisor."""
        self.supervisors.append(self.spawn())
        return self

    def started(self) -> RealTask:
        """A supervisor, and the task has printed something."""
        self.start()
        until(lambda: self.output.exists() and self.output.stat().st_size, "it printed nothing")
        return self

    def end(self) -> Ending:
        """How it ended, once all its supervisors have."""
        for supervisor in self.supervisors:
            supervisor.wait(PATIENCE_S)
        assert self.liveness() in (Liveness.ENDED, Liveness.LOST), self.liveness()
        return self.ending()

    def run(self) -> Ending:
        """Start it, and see it to its end."""
        return self.start().end()

    def close(self) -> None:
        """Nobody is left of it, however the test ended."""
        for supervisor in self.supervisors:
            supervisor.kill()
            supervisor.wait(PATIENCE_S)
        kill_marked(self.mark)

    @property
    def printed(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="surrogateescape")


def marked(mark: str) -> list[int]:
    """Processes with this mark in their environment."""
    return [pid for pid, environment in environments() if f"{MARK}={mark}".encode() in environment]


def lives(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
