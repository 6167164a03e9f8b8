"""Event logs of random walks, kept as they were written."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

WALKS = Path(__file__).parent / "walks.jsonl.gz"


def walks() -> Iterator[list[str]]:
    """The lines of each log; the first opens the cluster."""
    lines: list[str] = []
    with gzip.open(WALKS, "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith('{"is":"Opened"') and lines:
                yield lines
                lines = []
            lines.append(line.rstrip("\n"))
    yield lines
