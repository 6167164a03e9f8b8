"""The service in a process that has loaded its modules already.

Loading takes a start two seconds, in which it has yet to touch anything: a test that kills it hundreds of times has
better uses for them. From there on it is as ``hived serve kubernetes`` is: a process of its own, that command line.
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
    """As much of :class:`subprocess.Popen` as tests of the service use."""

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self._process = _CONTEXT.Process(target=_run, args=(arguments, str(log), environment), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit code; None: it lives."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("the service", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """At once, without a word."""
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
