"""Shared by the tests of the runtime: the fake driver. The scripts in the folders here are started, not collected."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.conftest import jobs, ranks  # noqa: F401  # fixtures

collect_ignore = ["scripts", "elastic_scripts", "light"]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's cache folder is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake driver, compiled."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    made = tmp_path_factory.mktemp("driver") / "fake_driver.so"
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-o", str(made)]
    subprocess.run([*command, str(Path(__file__).with_name("fake_driver.cpp"))], check=True)
    return made
