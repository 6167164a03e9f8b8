"""What tests of engines start from."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .driver import Driver
from .living import Lives
from .real import RealTask


@pytest.fixture
def engine() -> Driver:
    """A job scheduler in virtual time."""
    return Driver()


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    """Real engines, one after another in one folder."""
    made = Lives(tmp_path / "state")
    yield made
    made.end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 12 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "hived-tests", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def task(tmp_path: Path) -> Iterator[RealTask]:
    """A task for real supervisors."""
    made = RealTask(tmp_path / "task")
    yield made
    made.close()
