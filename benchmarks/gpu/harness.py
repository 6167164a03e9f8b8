"""What the three runs have in common: measurements in processes of their own, a budget of time, a table, JSON.

A measurement is a function with planned rows. It runs in a child process, which writes each figure down when it has it:
so a crash of the driver, or the end of its time, costs the rows that are missing and nothing else. A planned row always
appears: measured, ``failed: why``, or ``needs a GPU``.

    run       reads the options, starts the children one after another, prints the table, writes the JSON
    child     ``--child NAME``: the function of one measurement
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CPU_WARNING = "CPU: logic only, no figure of this is a result"
_LEAST_S = 5.0  #: a measurement is not begun with less time than this
_REASON = 300  #: characters of a reason, at most


class Status(StrEnum):
    """What became of a row."""

    MEASURED = "measured"
    FAILED = "failed"
    NEEDS_GPU = "needs a GPU"


@dataclass(frozen=True, slots=True)
class Row:
    """A planned figure, and what the paper has in its place."""

    key: str
    what: str
    unit: str  #: "": yes or no
    paper: str = ""
    target: str = ""
    where: str = ""  #: in which paper


@dataclass(frozen=True, slots=True)
class Figure:
    """What became of a planned row."""

    row: Row
    status: Status
    value: float | bool | None = None
    note: str = ""  #: or the reason of a failure


@dataclass(frozen=True, slots=True)
class Settings:
    """What a measurement is told."""

    device: str  #: cuda, or cpu
    quick: bool
    fake_driver: str  #: the path of the fake driver that the pager has without a GPU; "": the driver
    folder: str  #: for its files
    until: float  #: by ``time.monotonic``: its time is over

    @property
    def cuda(self) -> bool:
        """Whether figures are results."""
        return self.device == "cuda"

    @property
    def size(self) -> str:
        """Of the models."""
        return "tiny" if not self.cuda else "quick" if self.quick else "full"

    def left_s(self) -> float:
        """Time that the measurement has left."""
        return self.until - time.monotonic()

    def pick(self, full: float, quick: float, tiny: float) -> float:
        """One of three values, by the size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]


class Answers:
    """Where a measurement writes its figures down, one by one."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def put(self, key: str, value: float | bool, note: str = "") -> None:
        """A figure. A second one with this key replaces the first."""
        self._write({"key": key, "status": Status.MEASURED, "value": value, "note": note})

    def fail(self, keys: Sequence[str], why: str) -> None:
        """These rows have no figure, because of this."""
        for key in keys:
            self._write({"key": key, "status": Status.FAILED, "note": why[:_REASON]})

    def needs_gpu(self, *keys: str, note: str = "") -> None:
        """These rows have no meaning without a GPU."""
        for key in keys:
            self._write({"key": key, "status": Status.NEEDS_GPU, "note": note})

    @contextlib.contextmanager
    def part(self, *keys: str) -> Iterator[None]:
        """A part of the measurement: what fails within costs these rows, as far as they are not there already."""
        try:
            yield
        except Exception as error:
            done = {each["key"] for each in self.read()}
            self.fail([key for key in keys if key not in done], f"{type(error).__name__}: {error}")

    def _write(self, record: dict[str, Any]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """What was written; a last line that is cut short is left out."""
        found = []
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    found.append(json.loads(line))
        return found


@dataclass(frozen=True, slots=True)
class Measurement:
    """A function with the rows that it is to fill."""

    name: str
    work: Callable[[Settings, Answers], None]
    rows: tuple[Row, ...]
    budget_s: float  #: on a GPU, at most
    gpu_only: bool = False
    like: str = ""  #: another one, of which this is a repetition on a CPU: ``--quick`` leaves it out there


def run(name: str, about: str, measurements: Sequence[Measurement], arguments: Sequence[str] | None = None) -> int:
    """One of the runs, from its options to its table; its exit code: 0 unless the run itself is broken."""
    parser = argparse.ArgumentParser(prog=f"python3 -m benchmarks.gpu.{name}", description=about)
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"writes {name}.json and the children's output here")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: the logic alone, tiny models")
    parser.add_argument("--quick", action="store_true", help="smaller models and shorter windows")
    parser.add_argument("--budget", type=float, default=570.0, metavar="S", help="seconds for all, 570 by default")
    names = [each.name for each in measurements]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"some of: {', '.join(names)}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--settings", help=argparse.SUPPRESS)
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child == "about":
        print(json.dumps(_about(Settings(**json.loads(options.settings)))))
        return 0
    if options.child:
        found = next(each for each in measurements if each.name == options.child)
        found.work(Settings(**json.loads(options.settings)), Answers(options.answers))
        return 0
    if options.only:
        measurements = [each for each in measurements if each.name in options.only]
    return _Run(name, measurements, options).go()


class _Run:
    """The parent: it imports no torch, and has no context on the GPU."""

    def __init__(self, name: str, measurements: Sequence[Measurement], options: argparse.Namespace) -> None:
        self._name, self._measurements = name, measurements
        self._out: Path | None = options.out
        self._until = time.monotonic() + options.budget
        self._settings = Settings(options.device, options.quick, "", "", self._until)

    def go(self) -> int:
        """Measure, print, write."""
        with tempfile.TemporaryDirectory(prefix="hived-gpu-") as folder:
            # the sockets of jobs have short paths, so the folder has too
            self._settings = replace(self._settings, folder=folder)
            if not self._settings.cuda:
                self._settings = replace(self._settings, fake_driver=_fake_driver(Path(folder)))
            about = self._ask_about()
            self._head(about)
            figures: dict[str, list[Figure]] = {}
            took: dict[str, float] = {}
            for measurement in self._measurements:
                began = time.monotonic()
                figures[measurement.name] = self._measured(measurement)
                took[measurement.name] = round(time.monotonic() - began, 1)
                _print_rows(measurement.name, took[measurement.name], figures[measurement.name])
                self._write(about, took, figures)  # after each: what is measured is not lost
        return 0

    def _write(self, about: dict[str, Any], took: dict[str, float], figures: dict[str, list[Figure]]) -> None:
        if self._out is None:
            return
        self._out.mkdir(parents=True, exist_ok=True)
        rows = {name: [asdict(each) for each in found] for name, found in figures.items()}
        written = {"run": self._name, "about": about, "seconds": took, "figures": rows}
        (self._out / f"{self._name}.json").write_text(json.dumps(written, indent=1) + "\n")

    def _ask_about(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "device": self._settings.device,
            "quick": self._settings.quick,
        }
        ended, output = self._child("about", [], 90.0)
        try:
            made |= json.loads(output.splitlines()[-1])
        except (IndexError, ValueError):
            made["error"] = f"{ended}: {_last_line(output)}"
        return made

    def _head(self, about: dict[str, Any]) -> None:
        print(f"benchmarks.gpu.{self._name}" + (" --quick" if self._settings.quick else ""))
        if not self._settings.cuda:
            print(CPU_WARNING)
        for key, value in about.items():
            print(f"  {key:<8} {value}")
        print(flush=True)

    def _measured(self, measurement: Measurement) -> list[Figure]:
        if measurement.gpu_only and not self._settings.cuda:
            return [Figure(row, Status.NEEDS_GPU) for row in measurement.rows]
        if measurement.like and self._settings.size == "tiny" and self._settings.quick:
            note = f"on a CPU it is {measurement.like} once more"
            return [Figure(row, Status.NEEDS_GPU, note=note) for row in measurement.rows]
        left = self._until - time.monotonic()
        if left < _LEAST_S:
            return [Figure(row, Status.FAILED, note="the time of the run was over") for row in measurement.rows]
        answers = Answers(Path(self._settings.folder) / f"{measurement.name}.jsonl")
        budget = measurement.budget_s * (1 if self._settings.cuda else 3)  # a few shared cores are slow
        ended, output = self._child(measurement.name, ["--answers", str(answers.file)], min(budget, left))
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            (self._out / f"{self._name}-{measurement.name}.log").write_text(output)
        found = {each["key"]: each for each in answers.read()}
        figures = []
        for row in measurement.rows:
            record = found.get(row.key)
            if record is None:
                why = f"{ended}: {_last_line(output)}" if ended else "the measurement has ended without it"
                figures.append(Figure(row, Status.FAILED, note=why[:_REASON]))
            else:
                figures.append(Figure(row, Status(record["status"]), record.get("value"), record["note"]))
        return figures

    def _child(self, name: str, more: list[str], budget_s: float) -> tuple[str, str]:
        """How a child ended ("": well), and what it has printed."""
        settings = replace(self._settings, until=time.monotonic() + budget_s)
        command = [sys.executable, "-m", f"benchmarks.gpu.{self._name}", "--child", name]
        command += ["--settings", json.dumps(asdict(settings)), *more]
        environment = {**os.environ, "HIVED_RUNTIME": "off", "HIVED_JOBS": str(Path(settings.folder) / "jobs")}
        if not settings.cuda:
            environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        log = Path(settings.folder) / f"{name}.log"
        with log.open("wb") as file:
            child = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True
            )
            try:
                code = child.wait(budget_s)
                ended = "" if code == 0 else _ended(code)
            except subprocess.TimeoutExpired:
                ended = f"not done after {budget_s:.0f} s"
            finally:  # its training processes are in its session
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        return ended, log.read_text(errors="replace")


def _ended(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it has printed nothing"


def _about(settings: Settings) -> dict[str, Any]:
    """In a child: of the card, the driver and torch."""
    if not settings.cuda:
        return {"torch": version("torch"), "card": "none"}
    import torch

    made: dict[str, Any] = {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    properties = torch.cuda.get_device_properties(0)
    made["card"] = f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB, of {torch.cuda.device_count()}"
    with contextlib.suppress(Exception):
        from .cuda import Driver, Nvml

        made["driver"] = Nvml(Driver().uuid()).driver()
    return made


def _fake_driver(folder: Path) -> str:
    """The fake driver of the pager's tests, compiled; "" if that cannot be: then the pager's rows fail, and say why."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        return ""
    made = folder / "fake_driver.so"
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
    source = ROOT / "tests" / "runtime" / "fake_driver.cpp"
    done = subprocess.run([compiler, *flags, "-o", str(made), str(source)], capture_output=True, check=False)
    return str(made) if done.returncode == 0 else ""


# -- the table --------------------------------------------------------------------------------------------------------


def shown(figure: Figure) -> str:
    """A row's value, or what became of it."""
    if figure.status is Status.FAILED:
        return f"failed: {figure.note}"
    if figure.status is Status.NEEDS_GPU:
        return "needs a GPU"
    value = figure.value
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "?"}[value]
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{number} {figure.row.unit}".rstrip()


def _print_rows(name: str, seconds: float, figures: Sequence[Figure]) -> None:
    print(f"{name}, {seconds:.0f} s")
    reason = ""
    for figure in figures:
        row = figure.row
        if figure.status is Status.FAILED and figure.note == reason:
            print(f"  {row.what:<66} failed: as above")
            continue
        parts = (
            f"paper: {row.paper} ({row.where})" if row.paper else "",
            f"target: {row.target}" if row.target else "",
            figure.note if figure.status is not Status.FAILED else "",
        )
        value = shown(figure)
        if figure.status is Status.FAILED:
            reason = figure.note
            print(f"  {row.what}")
            print(textwrap.indent(textwrap.fill(value, 110), " " * 6))
        else:
            print(f"  {row.what:<66} {value:>14}  {' | '.join(filter(None, parts))}".rstrip())
    print(flush=True)


def median(values: Sequence[float]) -> float:
    """The middle one; of two the greater."""
    return sorted(values)[len(values) // 2]


def quantile(values: Sequence[float], share: float) -> float:
    """By the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
