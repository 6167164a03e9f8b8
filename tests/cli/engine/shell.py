"""``hived`` as a process of its own: followed, interrupted, and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO

from ..helpers import HIVED

PATIENCE_S = 120.0
#: a session needs a terminal of its own for Ctrl-C to reach it
_WITH_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from hived.cli import main; main()"


class Process:
    """A ``hived`` that runs beside the test."""

    def __init__(self, arguments: Sequence[object], stdin: IO[str] | int = subprocess.DEVNULL) -> None:
        self._process = subprocess.Popen(
            [*HIVED, *map(str, arguments)],
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.out: IO[str] = self._process.stdout
        self.err: IO[str] = self._process.stderr

    def rest(self) -> tuple[str, str]:
        """What it still says until it ends."""
        return self._process.communicate(timeout=PATIENCE_S)

    def code(self) -> int:
        """How it ended."""
        return self._process.wait(PATIENCE_S)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.signal(signal.SIGINT)

    def signal(self, number: int) -> None:
        """Another signal."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Leave nothing of it."""
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self.out.close()
        self.err.close()


Begin = Callable[..., Process]


def until(true: Callable[[], object], what: str) -> None:
    """Wait for something that has to come."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.02)


class Terminal:
    """A ``hived`` on a terminal."""

    def __init__(self, arguments: Sequence[object], width: int = 120, height: int = 40) -> None:
        ours, theirs = pty.openpty()
        variables = {"TERM": "xterm-256color", **os.environ, "COLUMNS": str(width), "LINES": str(height)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WITH_TERMINAL, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=variables,
            start_new_session=True,
        )
        os.close(theirs)
        self._end = ours
        self.seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._end)

    def until(self, words: str | re.Pattern[str], after: int = 0) -> str:
        """All that was shown once ``words`` were, behind the first ``after`` characters."""
        sought = words if isinstance(words, re.Pattern) else re.compile(re.escape(words))
        end = time.monotonic() + PATIENCE_S
        while not sought.search(self.seen, after):
            assert time.monotonic() < end, f"never shown: {words!r}, but {self.seen[-4000:]!r}"
            assert self._read(), f"ended without {words!r}: {self.seen[-4000:]!r}"
        return self.seen

    def press(self, key: str) -> None:
        """A key."""
        os.write(self._end, key.encode())

    def code(self) -> int:
        """How it ended."""
        end = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < end, f"did not end: {self.seen[-2000:]!r}"
        return self._process.wait(PATIENCE_S)

    def _read(self) -> bool:
        if not select.select([self._end], [], [], PATIENCE_S)[0]:
            return False
        try:
            bits = os.read(self._end, 65_536)
        except OSError:  # the other end is closed
            return False
        self.seen += bits.decode("utf-8", "replace")
        return bool(bits)
