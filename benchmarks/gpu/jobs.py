"""Training processes: started as ``hived train run`` does, or plain; commanded through their control pages.

Imports no torch: a measurement that only commands jobs is a small process without a context on the GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hived_control.commands import ProcessStatus, TrainingJob
from hived_control.environment import LAUNCH
from hived_control.folder import JobFolder

from .cuda import Driver, DriverError, Nvml
from .harness import ROOT, Settings

Span = tuple[str, float, float]


class JobError(RuntimeError):
    """A training process did not do what was needed; with what it has printed last."""


class Training:
    """One process of :mod:`.training`. ``tier``: pager or framework, as ``hived train run`` starts it; "": plain."""

    _count = 0

    def __init__(self, settings: Settings, model: str, tier: str, *options: str, size: str = "") -> None:
        Training._count += 1
        self.settings = settings
        self.name = f"{model}-{os.getpid()}-{Training._count}"
        folder = Path(settings.folder)
        self.result_file, self.stop_file = folder / f"{self.name}.json", folder / f"{self.name}.stop"
        self.progress_file, self._log = folder / f"{self.name}.progress", folder / f"{self.name}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HIVED_RUN")}
        environment["PYTHONHASHSEED"] = "0"  # a process that takes a job over has the same, as with hived train run
        if tier:
            environment |= {"HIVED_RUN_JOB": self.name}
            environment["PYTHONPATH"] = os.pathsep.join(
                part for part in (str(LAUNCH), os.environ.get("PYTHONPATH", "")) if part
            )
            if tier == "pager":
                environment["HIVED_RUN_PAGER"] = settings.fake_driver or "cuda"
        else:
            environment["HIVED_RUNTIME"] = "off"
            options = (*options, "--progress", str(self.progress_file))
        command = [sys.executable, "-m", "benchmarks.gpu.training", model, "--size", size or settings.size]
        command += ["--device", settings.device, "--result", str(self.result_file), "--stop", str(self.stop_file)]
        if not settings.cuda and "--steps" not in options:  # few cores are to start other processes meanwhile
            options = (*options, "--pause", "0.01")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([*command, *options], cwd=ROOT, env=environment, stdout=log, stderr=log)
        self.job = TrainingJob(JobFolder.named(self.name))

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        return self.process.pid

    def status(self) -> ProcessStatus:
        """Of its first process, which has ended a mini-batch."""
        found = self.job.status().processes
        if not found:
            raise self._failure("it has no control page")
        return found[0]

    def iterations(self) -> int:
        """Mini-batches so far."""
        if self.progress_file.exists():
            data = self.progress_file.read_bytes()
            return int(struct.unpack("<q", data)[0]) if len(data) == 8 else 0
        found = self.job.status().processes
        return found[0].progress.iterations if found else 0

    def trains(self, more: int = 3) -> None:
        """Wait for so many more mini-batches."""
        goal = self.iterations() + more
        self.until(lambda: self.iterations() >= goal, f"{more} more mini-batches")

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something; :class:`JobError` if the process ends before, or the measurement's time."""
        while not condition():
            if self.process.poll() is not None:
                raise self._failure(f"it ended with exit code {self.process.returncode} before {what}")
            if self.settings.left_s() < 2:
                raise self._failure(f"no time was left for {what}")
            time.sleep(0.002)

    def stop(self) -> dict[str, Any]:
        """Let it end after this mini-batch, and read its result."""
        self.stop_file.touch()
        return self.result()

    def result(self) -> dict[str, Any]:
        """Wait for its end, and read its result."""
        try:
            code = self.process.wait(max(self.settings.left_s() - 1, 1))
        except subprocess.TimeoutExpired:
            raise self._failure("no time was left for its end") from None
        if code != 0 or not self.result_file.exists():
            raise self._failure(f"it ended with exit code {code}")
        found: dict[str, Any] = json.loads(self.result_file.read_text())
        return found

    def intervals(self, seconds: float) -> list[float]:
        """Times of single mini-batches, as they end in so many seconds from now; of managed jobs."""
        until = time.monotonic() + seconds
        last, found = self.status().progress, []
        while time.monotonic() < until:
            time.sleep(0.004)
            now = self.status().progress
            if now.iterations > last.iterations:
                found.append((now.at - last.at) / (now.iterations - last.iterations))
                last = now
        return found

    def output(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def close(self) -> None:
        """Kill it, and its descendants with it where it has moved."""
        code = self.process.poll()
        if code:
            print(f"{self.name} ended with exit code {code}:\n{self.output()[-4000:]}", file=sys.stderr)
        for each in self.job.status().processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _failure(self, what: str) -> JobError:
        lines = self.output().strip().splitlines()
        return JobError(f"{self.name.partition('-' + str(os.getpid()))[0]}: {what}; {lines[-1] if lines else ''}")


@contextlib.contextmanager
def training(settings: Settings, model: str, tier: str, *options: str, size: str = "") -> Iterator[Training]:
    """A training process that is gone at the end."""
    made = Training(settings, model, tier, *options, size=size)
    try:
        yield made
    finally:
        made.close()


def suspended(job: Training, tier: str) -> tuple[float, int]:
    """Suspend a job: seconds of the release, and bytes copied. :class:`JobError` if another tier did it."""
    job.job.suspend(max(job.settings.left_s() - 2, 1))
    answer = job.status().answer
    if answer.tier != tier:
        raise JobError(f"the {tier} tier was to release the memory, the {answer.tier} tier did: {answer.note}")
    if job.settings.cuda and not answer.moved_bytes:
        raise JobError(f"the {tier} tier has copied nothing")
    return answer.seconds, answer.moved_bytes


def resumed(job: Training) -> float:
    """Resume a job: seconds of the restoring."""
    job.job.resume(max(job.settings.left_s() - 2, 1))
    return job.status().answer.seconds


def end_of(result: dict[str, Any]) -> tuple[int, str]:
    """Mini-batches of a result, and the checksum of the state after them."""
    return result["steps"], result["checksums"][str(result["steps"])]


def equal_to_plain(settings: Settings, model: str, ends: dict[str, tuple[int, str]]) -> dict[str, tuple[bool, str]]:
    """Whether each of these ends has the weights of a plain run after as many mini-batches; and a note.

    Where one has not, a second plain run shows whether plain runs are equal at all.
    """
    if not ends:
        return {}
    wanted = sorted({steps for steps, _ in ends.values()})

    def plain() -> dict[str, str]:
        record = ("--deterministic", "--steps", str(wanted[-1]), "--record", ",".join(map(str, wanted)))
        with training(settings, model, "", *record) as job:
            found: dict[str, str] = job.result()["checksums"]
            return found

    first = plain()
    found = {name: first[str(steps)] == checksum for name, (steps, checksum) in ends.items()}
    note = ""
    if not all(found.values()):
        note = "two plain runs are equal" if plain() == first else "two plain runs are not equal either"
    return {
        name: (same, f"after {ends[name][0]} mini-batches" + ("" if same else f"; {note}"))
        for name, same in found.items()
    }


def nvml(settings: Settings) -> Nvml | None:
    """NVML of the GPU, if there are both."""
    if not settings.cuda:
        return None
    try:
        return Nvml(Driver().uuid())
    except DriverError:
        return None


def spans_within(result: dict[str, Any], began: float, ended: float, what: str = "train") -> list[Span]:
    """The mini-batches of a result (or other spans) that ended within a time."""
    return [(kind, a, b) for kind, a, b in result["spans"] if kind == what and began <= b < ended]
