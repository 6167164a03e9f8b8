"""Small traces for tests, and what an error said."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.errors import TraceError
from hived.simulator.traces import TraceJob, read_trace

from ..helpers import HEADER


def file_of(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    """A file in ``folder`` that holds ``text`` byte for byte."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def table(*rows: str, header: str = HEADER) -> str:
    """A CSV of ``rows`` below ``header``."""
    return "\n".join((header, *rows)) + "\n"


def refusal(path: Path) -> str:
    """The one line with which ``path`` is refused, without the folder."""
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    assert message.startswith(str(path))
    return message.removeprefix(str(path.parent) + "/")


def job(
    job_id: str = "a", submit_ms: int = 0, duration_ms: int = 1000, gpus: int = 1, tenant: str = "t",
    status: str = "pass",
) -> TraceJob:  # fmt: skip
    """A job of which a test says only what matters to it."""
    return TraceJob(job_id, tenant, submit_ms, duration_ms, gpus, status)
