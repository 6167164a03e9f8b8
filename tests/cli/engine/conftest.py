"""What an engine that runs has, and processes that ask it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import IO

import pytest

from ...server.fakes import FakeService, Running
from .shell import Begin, Process


@pytest.fixture
def engine(running: Running) -> FakeService:
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
