"""An engine that runs, in the folder that every verb looks in."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from .fake import Engine, Running
from .shell import Begin, Process


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an engine that does not run."""
    folder = tmp_path / "s"
    folder.mkdir()
    for name in ("HIVED_ENGINE", "HIVED_TOKEN", "XDG_STATE_HOME", "FORCE_COLOR", "NO_COLOR", "TZ"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HIVED_STATE", str(folder))
    return folder


@pytest.fixture
def running(nobody: Path) -> Iterator[Running]:
    """An engine with two nodes of 4 GPUs, answering."""
    answering = Running(Engine(), nobody)
    yield answering
    answering.close()


@pytest.fixture
def engine(running: Running) -> Engine:
    """What that engine has."""
    return running.engine


@pytest.fixture
def begin() -> Iterator[Begin]:
    """``begin(*arguments)`` starts a ``hived`` whose output is read; it does not outlive the test."""
    begun: list[Process] = []

    def start(*arguments: object, stdin: IO[str] | int = subprocess.DEVNULL) -> Process:
        begun.append(Process(arguments, stdin))
        return begun[-1]

    yield start
    for process in begun:
        process.close()
