"""The command line as a user meets it: exit code, standard output, standard error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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
Completed = Callable[..., list[str]]
HIVED = [sys.executable, "-c", "from hived.cli import main; main()"]


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


def refused(answer: Answer, code: int = 2) -> str:
    """The one line of a verb that could not do its work."""
    assert (answer.code, answer.out) == (code, ""), answer
    assert answer.err.startswith("hived: ")
    assert answer.err.endswith("\n")
    assert answer.err.count("\n") == 1, answer.err
    return answer.err.removeprefix("hived: ").rstrip("\n")


class Engine:
    """``hived up`` as a process, with nothing of the environment that could lead it elsewhere; it is ready at once."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        state: bool = True,
        first: str = "",
        stdout: IO[bytes] | int = subprocess.PIPE,
        **more: str,
    ) -> None:
        """``state``: in ``folder/state``, and wait for its socket there. ``first``: statements before it starts."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIVED_", "XDG_"))}
        environment = {**kept, "HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", **more}
        self._process = subprocess.Popen(
            [*HIVED[:2], first + HIVED[2], "up", *arguments, *(["--state", str(folder / "state")] if state else [])],
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=folder,
        )
        end = time.monotonic() + 120
        while state and not (folder / "state" / "hived.sock").exists():
            assert self._process.poll() is None, self._process.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.02)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.stop(signal.SIGINT)

    def line(self) -> str:
        """The next line that it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it has ended"
        return line

    def stop(self, how: signal.Signals) -> tuple[int, str]:
        """Exit code, and what it still said."""
        self._process.send_signal(how)
        said, _ = self._process.communicate(timeout=120)
        return self._process.returncode, said
