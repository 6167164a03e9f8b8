"""The event log file of an engine without a store: appended to a file, or standard output."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hived.errors import InputError

STDOUT = Path("-")


class LogFile:
    """A sink for the lines of an event log, each written at once to the end of a file.

    An existing file is appended to: every start of an engine begins a new log after the earlier ones. If a line cannot
    be written (a full disk), the log ends with the line before, ``warn`` is called once, and later lines are dropped,
    since a log with a gap cannot be replayed; scheduling goes on.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """``path``: ``-`` for standard output. Raises :class:`InputError` if it cannot be written."""
        self._name = "standard output" if path == STDOUT else str(path)
        self._warn = warn
        try:
            if path == STDOUT:
                self._to = os.dup(1)
                return
            self._to = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            size = os.fstat(self._to).st_size
            if size and os.pread(self._to, 1, size - 1) != b"\n":  # the last line was cut by a crash
                os.write(self._to, b"\n")
        except OSError as error:
            raise InputError(
                f"{self._name}: the event log cannot be written there ({error.strerror}); give another file, or - for "
                "standard output"
            ) from None

    def __call__(self, line: str) -> None:
        """Write the next line. O(length), and one system call."""
        if self._to < 0:
            return
        rest = memoryview(f"{line}\n".encode())
        written = 0
        try:
            while written < len(rest):
                written += os.write(self._to, rest[written:])
        except OSError as error:
            with suppress(OSError):  # a pipe cannot be truncated
                os.ftruncate(self._to, os.fstat(self._to).st_size - written)
            self.close()
            self._warn(
                f"the event log {self._name} ends here: {error.strerror}; all is decided as before, without a log; "
                "make room, and start anew for a new one"
            )

    def close(self) -> None:
        """Close the log."""
        if self._to >= 0:
            os.close(self._to)
            self._to = -1
