"""Training jobs for tests: ordinary scripts under ``hived train run``, commanded as the command line does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from hived_control.commands import ProcessStatus, TrainingJob
from hived_control.folder import JobFolder

from .plain import ONE_THREAD, run_plain

HIVED = [sys.executable, "-c", "from hived.cli import main; main()"]
SCRIPTS = Path(__file__).parent / "scripts"
#: for whatever is to happen: a move imports PyTorch, which takes many seconds on a busy machine
PATIENCE_S = 300.0
#: on the path of jobs: scripts of these tests themselves import ``light_torch`` first
LIGHT = Path(__file__).parent / "light"


def environment(jobs: Path, **more: str) -> dict[str, str]:
    """The environment of a job whose control pages are below ``jobs``."""
    path = os.pathsep.join(filter(None, (str(LIGHT), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ, **ONE_THREAD, "PYTHONPATH": path, "HIVED_RUNTIME": "on", "HIVED_JOBS": str(jobs), **more,
    }  # fmt: skip


def until(condition: Callable[[], Any], what: str = "it has not happened") -> Any:
    """Wait until ``condition`` is true; its value. Fails the test when patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def cpu_ticks(*pids: int) -> int:
    """CPU time of processes, in clock ticks of the kernel; of one that is gone, none."""
    used = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += int(stat[11]) + int(stat[12])
    return used


def state_of(pid: int) -> str:
    """Of a process, as the kernel says it: "T" is stopped, "Z" has ended; "": it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Job:
    """A job under ``hived train run``."""

    def __init__(self, jobs: Path, name: str, command: list[str], *options: str, **variables: str) -> None:
        self.name = name
        self.log = jobs.parent / f"{name}.log"
        self.result = jobs.parent / "result.pt"  #: where the script is to put it
        starts = [*HIVED, "train", "run", "--name", name, *options, "--", *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                starts, env=environment(jobs, **variables), stdout=log, stderr=log, start_new_session=True
            )
        self.folder = JobFolder(jobs / name)
        self.job = TrainingJob(self.folder)

    def runs(self) -> bool:
        """Whether the process that was started still runs."""
        return self.process.poll() is None

    def first(self) -> ProcessStatus:
        """Its first process."""
        return self.job.status().processes[0]

    def mini_batches(self) -> int:
        """Mini-batches of its first process; 0: none has ended."""
        found = self.job.status().processes
        return found[0].progress.iterations if found else 0

    def trains(self, after: int = 0) -> None:
        """Wait until it has ended more than ``after`` mini-batches."""
        until(lambda: not self.runs() or self.mini_batches() > after)
        assert self.runs(), self.output()

    def output(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    def ended(self, code: int = 0) -> None:
        """Wait until it has ended, with this exit code."""
        assert self.process.wait(PATIENCE_S) == code, self.output()[-4000:]

    def hurry(self) -> None:
        """From now on, train as fast as it can: see ``light/pacing.py``."""
        Path(f"{self.result}.hurry").touch()

    def finish(self) -> Any:
        """Train to the end, as fast as it can; the result."""
        self.hurry()
        self.ended()
        return torch.load(self.result, weights_only=False)

    def assert_same_as_alone(self) -> None:
        """It ends as ``train.py`` does that nobody manages."""
        expected = alone(self.result.with_name("train.py"), self.result.with_name("alone.pt"))
        assert differences(expected, self.finish()) == []

    def close(self) -> None:
        """Kill whatever is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def alone(file: Path, result: Path) -> Any:
    """What a script gives that nobody manages."""
    run_plain(file, [str(result)], result.with_suffix(".log"))
    return torch.load(result, weights_only=False)


def differences(mine: Any, other: Any, within: float = 0.0, path: str = "result") -> list[str]:
    """Where two results are not the same, bit for bit or within a bound."""
    if type(mine) is not type(other):
        return [f"{path}: {type(mine).__name__} and {type(other).__name__}"]
    if isinstance(mine, torch.Tensor):
        same = mine.dtype == other.dtype and mine.shape == other.shape
        close = same and (torch.equal(mine, other) or (within > 0 and bool(((mine - other).abs() < within).all())))
        return [] if close else [path]
    if isinstance(mine, dict):
        if list(mine) != list(other):
            return [f"{path}: keys"]
        return [each for key in mine for each in differences(mine[key], other[key], within, f"{path}.{key}")]
    if isinstance(mine, list | tuple):
        if len(mine) != len(other):
            return [f"{path}: {len(mine)} and {len(other)} items"]
        return [each for i in range(len(mine)) for each in differences(mine[i], other[i], within, f"{path}[{i}]")]
    if mine == other or (mine != mine and other != other) or (isinstance(mine, float) and abs(mine - other) < within):
        return []
    return [f"{path}: {mine} and {other}"]


@contextlib.contextmanager
def started(*arguments: Any, **named: Any) -> Iterator[Job]:
    """A job that is gone at the end, however the test ends."""
    job = Job(*arguments, **named)
    try:
        yield job
    finally:
        job.close()
