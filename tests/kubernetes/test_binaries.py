"""A control plane that has to be built first: what is seen of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import binaries


def script(folder: Path, text: str) -> binaries._Build:
    """A build that does this."""
    program = folder / "build.sh"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return binaries._Build(program, folder / "cache" / "1.0")


def test_a_build_that_takes_long_says_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was printed for twelve minutes."""
    monkeypatch.setattr(binaries, "PROGRESS_S", 0.02)
    binaries._run(script(tmp_path, "sleep 0.5"))
    assert "still building" in capsys.readouterr().err


def test_a_build_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(binaries.NoBinariesError, match="no space left"):
        binaries._run(script(tmp_path, "echo no space left >&2; exit 3"))
