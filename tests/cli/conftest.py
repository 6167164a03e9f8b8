"""A folder with a good spec and a good trace, and ``hived`` at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from .helpers import JOBS, NODES, Answer, Hived, call


@pytest.fixture
def hived(capsys: pytest.CaptureFixture[str]) -> Hived:
    """``hived(*arguments)`` gives the answer."""

    def run(*arguments: object) -> Answer:
        return call(capsys, *arguments)

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``spec.yaml`` and ``trace.csv`` in the working directory."""
    (tmp_path / "spec.yaml").write_text(NODES, encoding="utf-8")
    (tmp_path / "trace.csv").write_text(JOBS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path
