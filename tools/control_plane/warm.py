"""The service in a forked process with preloaded modules.

Loading the modules takes two seconds per start, which a test that kills the service hundreds of times saves. Otherwise
it is like ``hived serve kubernetes``: a process of its own with that command line.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["__main__", "hived.cli", "hived.cli.serving", "uvicorn.protocols.http.h11_impl"])


class WarmProcess:
    """As much of :class:`subprocess.Popen` as users of the service need."""

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self._process = _CONTEXT.Process(target=_run, args=(arguments, str(log), environment), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code; None: it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("the service", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _run(arguments: list[str], log: str, environment: dict[str, str]) -> None:
    to = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(to, number)
    os.close(to)
    os.environ.update(environment)
    from hived.cli import main

    sys.argv = ["hived", *arguments]
    main()
