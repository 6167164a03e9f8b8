"""What tests of people start from."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may pass, as /var/lib; those of pytest are its user's alone."""
    with tempfile.TemporaryDirectory(prefix="hived-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
