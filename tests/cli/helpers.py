"""The command line as a user meets it: exit code, standard output, standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hived.cli import main

NODES = """\
physicalCluster:
  cellTypes:
    NODE: {childCellType: GPU, childCellNumber: 8, isNodeLevel: true}
  physicalCells:
  - cellType: NODE
    cellAddress: n[0-1]
virtualClusters:
  a: {virtualCells: [{cellType: NODE, cellNumber: 1}]}
  b: {virtualCells: [{cellType: NODE, cellNumber: 1}]}
"""
HEADER = "job_id,tenant,submit_s,duration_s,gpus,status\n"
JOBS = HEADER + "".join(
    f"j{n},{'ab'[n % 2]},{n * 600},{n * 997 % 4001},{[1, 8, 4, 2][n % 4]},pass\n" for n in range(40)
)


@dataclass(frozen=True)
class Answer:
    """What one command did."""

    code: int
    out: str
    err: str


Hived = Callable[..., Answer]


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Answer:
    """Run ``hived`` with these arguments, in this process."""
    before = sys.argv
    sys.argv = ["hived", *map(str, arguments)]
    code: object = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before
    said = capsys.readouterr()
    assert code is None or isinstance(code, int)
    return Answer(code or 0, said.out, said.err)


def tree(folder: Path) -> list[str]:
    """Every path below ``folder``, hidden ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
