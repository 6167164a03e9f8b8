"""A control plane that is built first: what is seen of that."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from tools.control_plane import binaries


def build(folder: Path, text: str) -> binaries._Build:
    """A build that does this."""
    program = folder / "build.sh"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return binaries._Build(program, folder / "1.0")


def test_long_build_shows_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was printed for twelve minutes."""
    monkeypatch.setattr(binaries, "PROGRESS_S", 0.02)

    def say(what: str) -> None:
        if "still building" in what:
            (tmp_path / "said").touch()

    monkeypatch.setattr(binaries, "_say", say)
    binaries._run(build(tmp_path, f"until [ -e {tmp_path}/said ]; do sleep 0.01; done"))


def test_failed_build_says_why(tmp_path: Path) -> None:
    with pytest.raises(binaries.NoBinariesError, match="no space left"):
        binaries._run(build(tmp_path, "echo no space left >&2; exit 3"))


def test_wait_for_another_build_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process was silent for as long as the first one built."""
    said: list[str] = []
    with (tmp_path / "1.0.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def say(what: str) -> None:
            said.append(what)
            fcntl.flock(held, fcntl.LOCK_UN)

        monkeypatch.setattr(binaries, "_say", say)
        binaries._run(build(tmp_path, "exit 0"))
    assert ["another process" in what for what in said] == [True, False]
