"""``hived`` at hand; a folder with a good spec and a good trace; an engine that runs, and one that does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hived.cli import options

from ..server.fakes import Running
from .helpers import JOBS, NODES, Answer, Completed, Hived, call


@pytest.fixture(autouse=True)
def program_x(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """``x`` is a program wherever a test submits one and nobody runs it."""
    places = tmp_path_factory.mktemp("bin")
    (places / "x").write_text("#!/bin/sh\n", encoding="ascii")
    (places / "x").chmod(0o755)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{places}")


@pytest.fixture
def hived(capsys: pytest.CaptureFixture[str]) -> Hived:
    """``hived(*arguments)`` gives the answer."""

    def run(*arguments: object) -> Answer:
        return call(capsys, *arguments)

    return run


@pytest.fixture
def completed(hived: Hived, monkeypatch: pytest.MonkeyPatch) -> Completed:
    """``completed(line, shell)`` gives what the shell is offered at the end of the line."""
    # on a busy machine the engine's answer takes longer than a user waits for it
    monkeypatch.setattr(options, "_PATIENCE_S", 120.0)

    def run(line: str, shell: str = "bash") -> list[str]:
        words = len(line.split(" ")) - 1
        given = {"COMP_WORDS": line, "COMP_CWORD": str(words)}
        if shell != "bash":
            given = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        with monkeypatch.context() as environment:
            for name, value in {"_HIVED_COMPLETE": f"complete_{shell}", **given}.items():
                environment.setenv(name, value)
            answer = hived()
        assert answer.err == ""
        return answer.out.split()

    return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``spec.yaml`` and ``trace.csv`` in the working directory."""
    (tmp_path / "spec.yaml").write_text(NODES, encoding="utf-8")
    (tmp_path / "trace.csv").write_text(JOBS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # of policies in this folder
    return tmp_path


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an engine that does not run, where every verb looks for one."""
    folder = tmp_path / "s"
    folder.mkdir()
    for name in ("HIVED_ENGINE", "HIVED_TOKEN", "XDG_STATE_HOME", "FORCE_COLOR", "NO_COLOR", "TERM", "TZ"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HIVED_STATE", str(folder))
    return folder


@pytest.fixture(scope="session")
def one_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Of all tests, since its applications take longer to make than most tests."""
    engine = Running(tmp_path_factory.mktemp("engine"))
    yield engine
    engine.close()


@pytest.fixture
def running(one_engine: Running, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
    """An engine with two nodes of 4 GPUs, answering, in the folder that every verb looks in."""
    one_engine.engine.reset()
    if not one_engine.answers:
        one_engine.start()
    monkeypatch.setenv("HIVED_STATE", str(one_engine.folder))
    return one_engine
