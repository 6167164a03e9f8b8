"""Shared by the tests of the runtime: jobs, the fake driver. Scripts in the folders here are started, not collected."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.control.conftest import hived, jobs, ranks  # noqa: F401  # fixtures

from .jobs import Job

collect_ignore = ["scripts", "elastic_scripts", "light"]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache folder is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts a job of a script of this text, and waits until it trains."""
    started: list[Job] = []

    def start(text: str, *options: str, **variables: str) -> Job:
        file = tmp_path / "train.py"
        file.write_text(text)
        command = [sys.executable, str(file), str(tmp_path / "result.pt")]
        started.append(Job(tmp_path / "jobs", "train", command, *options, **variables))
        started[-1].trains(3)
        return started[-1]

    yield start
    for job in started:
        job.close()


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Compiles a library of this source."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")

    def made(source: Path) -> Path:
        library = tmp_path_factory.mktemp("compiled") / f"{source.stem}.so"
        command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-o", str(library)]
        subprocess.run([*command, str(source)], check=True)
        return library

    return made


@pytest.fixture(scope="session")
def fake(compiled: Callable[[Path], Path]) -> Path:
    """The fake driver, compiled."""
    return compiled(Path(__file__).with_name("fake_driver.cpp"))
