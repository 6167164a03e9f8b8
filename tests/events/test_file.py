"""The file that an event log goes to: it grows, is cut by log rotation, and meets a full disk."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hived.errors import InputError
from hived.events.file import STDOUT, LogFile


def never(warning: str) -> None:
    raise AssertionError(warning)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_every_start_goes_on_behind_the_ones_before(path: Path) -> None:
    for line in ("one", "two"):
        log = LogFile(path, never)
        log(line)
        assert path.read_text().endswith(f"{line}\n"), "at once, not at the end"
        log.close()
    assert path.read_text() == "one\ntwo\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_line_that_was_cut_short_stays_a_line(path: Path) -> None:
    path.write_text("one\ntw")
    LogFile(path, never)("three")
    assert path.read_text() == "one\ntw\nthree\n"


def test_truncated_file_goes_on_from_its_beginning(path: Path) -> None:
    log = LogFile(path, never)
    log("one")
    os.truncate(path, 0)
    log("two")
    assert path.read_bytes() == b"two\n"


def test_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    log = LogFile(STDOUT, never)
    log("one")
    log.close()
    os.write(1, b"two\n")
    assert capfd.readouterr().out == "one\ntwo\n"


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Files of this process cannot become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN, "Python sees to it"
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_ends_the_log_with_a_whole_line(path: Path) -> None:
    """And with one warning."""
    warnings: list[str] = []
    log = LogFile(path, warnings.append)
    with disk_of(10):
        for line in ("one", "a line that is too long", "two"):
            log(line)
    log("three")  # there is room again, but a line is missing before it
    assert path.read_text() == "one\n"
    assert warnings == [
        f"the event log {path} ends here: File too large; all is decided as before, without a log; make room, and "
        "start anew for a new one"
    ]
    LogFile(path, never)("four")
    assert path.read_text() == "one\nfour\n"
    LogFile(Path("/dev/full"), warnings.append)("one")
    assert "/dev/full ends here: No space left on device" in warnings[1], "what is no file can be full too"


@pytest.mark.parametrize("name", ["nowhere/log.jsonl", "."])
def test_place_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"the event log cannot be written there \(.*\); give another file, or - for"):
        LogFile(tmp_path / name, never)
