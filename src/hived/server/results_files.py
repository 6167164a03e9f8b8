"""The files of a finished simulation, read back and checked: nothing that follows has to doubt them.

A folder can be old, cut short, edited, or mixed from two simulations. Whatever does not agree is one
:class:`~hived.errors.InputError` with the file, its row where there is one, and the way out.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hived.errors import InputError, Location
from hived.simulator.output import JOB_COLUMNS

from .pictures import Chain
from .timeline import Ints

AGAIN = "simulate again into an empty folder"
NEVER = np.iinfo(np.int64).max  #: the end of what does not end
_DIGITS = 15  #: of the longest time in seconds: its milliseconds fit into 64 bits
_TIME = re.compile(rf"[0-9]{{1,{_DIGITS}}}(?:\.[0-9]{{1,3}})?")
_LONGEST_FIELD = 2**31 - 1  #: the most that the csv module can be told

_MOST = 2**31  #: of anything that is counted: sums fit into 64 bits
_LATEST = 10.0**15  #: seconds

Count = Annotated[int, Field(ge=0, le=_MOST)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Plain(BaseModel):
    """What a file holds of what is needed here; more is fine."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ReservedCells(_Plain):
    chain: Count  #: number of a chain of the shared cluster
    cell_type: str
    gpus: Annotated[int, Field(ge=1, le=_MOST)]
    number: Count
    pinned: str | None


class Tenant(_Plain):
    name: str
    reserved: list[ReservedCells]

    @property
    def gpus(self) -> int:
        """All that it reserved."""
        return sum(cells.gpus * cells.number for cells in self.reserved)


class ClusterFile(_Plain):
    """``cluster.json``."""

    virtual_clusters: list[Tenant]
    schemes: dict[str, list[Chain]]

    @model_validator(mode="after")
    def _whole(self) -> ClusterFile:
        if len({vc.name for vc in self.virtual_clusters}) < len(self.virtual_clusters):
            raise ValueError("a virtual cluster is there twice")
        for scheme, chains in self.schemes.items():
            for chain in chains:
                sizes = [level.gpus for level in chain.levels]
                regular = sizes[:1] == [1] and all(low > 0 and not up % low for low, up in pairwise(sizes))
                if not regular or not 1 <= chain.node_level <= len(sizes):
                    raise ValueError(f"the levels of chain {chain.name[:40]!r} ({scheme}) are none")
                node = sizes[chain.node_level - 1]
                if len(chain.nodes) * node % sizes[-1]:
                    raise ValueError(f"the nodes of chain {chain.name[:40]!r} ({scheme}) make no whole cells")
                if sizes[-1] > _MOST or len(chain.nodes) * node > _MOST:
                    raise ValueError(f"chain {chain.name[:40]!r} ({scheme}) has too many GPUs")
                if len(set(chain.nodes)) < len(chain.nodes):
                    raise ValueError(f"chain {chain.name[:40]!r} ({scheme}) has two nodes of one name")
                known = chain.devices.keys() <= set(range(len(chain.nodes)))
                if not known or any(len(set(devices)) != node for devices in chain.devices.values()):
                    raise ValueError(f"the devices of chain {chain.name[:40]!r} ({scheme}) are not one per leaf")
        return self


class Trace(_Plain):
    name: str
    synthetic: bool
    jobs: Count
    clock_compression: Number
    window_s: Number


class Options(_Plain):
    opportunistic: bool
    preempted: str
    until_s: Number | None


class NeverFits(_Plain):
    job_id: str


class Worse(_Plain):
    jobs: Count


class Delays(_Plain):
    jobs: Count
    mean_s: Number | None
    p95_s: Number | None
    queue_to_private: Number | None
    anomalies: Worse | None


class RunSummary(_Plain):
    scheme: str
    policy: str
    finished: Count
    unfinished: Count
    utilization: Number | None
    opportunistic: Number | None
    fragmentation: Number | None
    preemptions: Count
    makespan_s: Annotated[float, Field(ge=0, le=_LATEST, allow_inf_nan=False)]
    overall: Delays
    tenants: dict[str, Delays]


class Summary(_Plain):
    """``summary.json``."""

    trace: Trace
    options: Options
    never_fit_private: list[NeverFits]
    runs: Annotated[list[RunSummary], Field(min_length=1)]


Shape = TypeVar("Shape", bound=BaseModel)


def read_json(path: Path, shape: type[Shape]) -> Shape:
    """A JSON file of this shape."""
    try:
        return shape.model_validate_json(path.read_bytes())
    except OSError as error:
        refuse(path, 0, f"cannot be read ({error.strerror})")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        refuse(path, 0, f"{where}: {first['msg']}" if where else first["msg"])


def refuse(path: Path, row: int, what: str) -> NoReturn:
    """This file cannot be used."""
    raise InputError(f"{Location(str(path), row)}: {what}; {AGAIN}")


def rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV after its header, which is ``columns``: pairs of (number of the row from 2, fields)."""
    line = 1
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if header != list(columns):
                refuse(path, 1, f"its columns are {','.join(header)[:200]!r}, not {','.join(columns)!r}")
            for row in reader:
                line += 1
                if len(row) != len(header):
                    refuse(path, line, f"has {len(row)} of {len(header)} fields")
                yield line, row
        with path.open("rb") as raw:
            raw.seek(-1, 2)
            if raw.read() != b"\n":
                refuse(path, line, "is cut short")
    except OSError as error:
        refuse(path, 0, f"cannot be read ({error.strerror})")
    except UnicodeDecodeError:
        refuse(path, line, "is not UTF-8 after this row")
    except csv.Error as error:
        refuse(path, line + 1, f"is not readable as CSV ({error})")


@contextmanager
def long_fields() -> Iterator[None]:
    """While files are read: a placement on many nodes is longer than the csv module takes, and its limit is global."""
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def milliseconds(text: str) -> int:
    """A time as the simulator writes it: ``12.0``, ``12.5``. ``ValueError`` for anything else."""
    if not _TIME.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a time in seconds")
    whole, _, rest = text.partition(".")
    return int(whole) * 1000 + (int(rest.ljust(3, "0")) if rest else 0)


def whole_number(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9) or int(text) < least:
        raise ValueError(f"{text[:40]!r} is not a whole number from {least}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of the trace, in its order: in a tenant's line, the order of the line."""

    ids: list[str]
    number: dict[str, int]  #: of a job, by its id
    tenant: Ints  #: number of its VC (jobs,)
    gpus: Ints  #: asked for
    submit: Ints  #: in milliseconds, as all times here
    duration: Ints


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of the jobs in one run. (jobs,)"""

    start: Ints  #: -1: unknown, it did not finish
    finish: Ints  #: :data:`NEVER`: it did not
    preemptions: Ints


Key = tuple[str, str]  #: scheme and policy


def read_jobs(path: Path, keys: Sequence[Key], tenants: Sequence[str], expected: int) -> tuple[Jobs, dict[Key, Fates]]:
    """``jobs.csv``: every one of ``keys`` has the same ``expected`` jobs."""
    vcs = {name: number for number, name in enumerate(tenants)}
    asked: list[list[str]] = []  # the columns that are the trace's, as text
    plain: list[tuple[int, int, int, int]] = []
    number: dict[str, int] = {}
    fates: dict[Key, list[tuple[int, int, int]]] = {key: [] for key in keys}
    first = fates[keys[0]]
    for line, row in rows(path, JOB_COLUMNS):
        own = fates.get((row[0], row[1]))
        try:
            if own is None:
                refuse(path, line, f"{row[0]} {row[1]} is not among the runs of summary.json")
            if own is first:
                number.setdefault(row[2], len(asked))
                asked.append(row[2:7])
                plain.append(_asked(row, vcs))
            _same(len(own), row[2:7], asked, number)
            own.append(_fate(row, plain[len(own)]))
        except ValueError as error:
            refuse(path, line, str(error))
    for key, found in fates.items():
        if len(found) != expected:
            refuse(path, 0, f"has {len(found):,} of {expected:,} jobs for {' '.join(key)}: it is cut short")
    of_jobs = np.asarray(plain, dtype=np.int64).reshape(-1, 4).T
    of_runs = {key: np.asarray(found, dtype=np.int64).reshape(-1, 3).T for key, found in fates.items()}
    jobs = Jobs([row[0] for row in asked], number, *of_jobs)
    return jobs, {key: Fates(*columns) for key, columns in of_runs.items()}


def _asked(row: list[str], vcs: dict[str, int]) -> tuple[int, int, int, int]:
    """Number of the tenant, GPUs, submission and duration."""
    if row[3] not in vcs:
        raise ValueError(f"tenant {row[3][:40]!r} is not in cluster.json")
    return vcs[row[3]], whole_number(row[4], 1), milliseconds(row[5]), milliseconds(row[6])


def _same(place: int, row: list[str], asked: list[list[str]], number: dict[str, int]) -> None:
    """This job stands at this place in every run, and nowhere else."""
    if place >= len(asked) or asked[place] != row:
        raise ValueError(f"job {row[0][:40]!r} is not as in the run before")
    if number[row[0]] != place:
        raise ValueError(f"job {row[0][:40]!r} has two rows")


def _fate(row: list[str], asked: tuple[int, int, int, int]) -> tuple[int, int, int]:
    """Start, finish and preemptions."""
    *_, start, finish, queue, preemptions, finished = row
    if finished == "false" and start == finish == queue == "":
        return -1, NEVER, whole_number(preemptions, 0)
    if finished != "true":
        raise ValueError(f"finished is {finished[:40]!r}, with the times {start[:20]!r} and {finish[:20]!r}")
    begin, end = milliseconds(start), milliseconds(finish)
    _, _, submit, duration = asked
    if not submit <= begin <= end or milliseconds(queue) != end - submit - duration:
        raise ValueError(f"the times of job {row[2][:40]!r} do not agree")
    return begin, end, whole_number(preemptions, 0)


@dataclass(frozen=True, slots=True)
class Series:
    """``series.csv`` for one run. Arrays (points,); NaN: nothing to say."""

    at: list[float]  #: seconds
    shares: dict[str, list[float]]
    delay: dict[str, list[float]]  #: seconds, by tenant


def read_series(path: Path, keys: Sequence[Key], tenants: Sequence[str]) -> dict[Key, Series]:
    """``series.csv``: as many points for every one of ``keys``, in order of time."""
    shares = ("utilization", "opportunistic", "fragmentation", "partly_used")
    lines = rows(path, ("scheme", "policy", "time_s", *shares, *(f"delay_s {tenant}" for tenant in tenants)))
    found: dict[Key, list[list[float]]] = {key: [] for key in keys}
    for line, (scheme, policy, time, *values) in lines:
        own = found.get((scheme, policy))
        if own is None:
            refuse(path, line, f"{scheme} {policy} is not among the runs of summary.json")
        try:
            at = milliseconds(time) / 1000
            numbers = [at, *map(float, values)]
        except ValueError as error:
            refuse(path, line, str(error))
        if any(value != "NaN" and not math.isfinite(number) for value, number in zip(values, numbers[1:], strict=True)):
            refuse(path, line, "has a value that is no number")
        if own and at <= own[-1][0]:
            refuse(path, line, "is not in order of time")
        own.append(numbers)
    lengths = {len(points) for points in found.values()}
    if len(lengths) != 1 or not lengths.pop():
        refuse(path, 0, "has not the same points for every run: it is cut short")
    series = {}
    for key, points in found.items():
        columns = [list(column) for column in zip(*points, strict=True)]
        by_share = dict(zip(shares, columns[1 : 1 + len(shares)], strict=True))
        by_tenant = dict(zip(tenants, columns[1 + len(shares) :], strict=True))
        series[key] = Series(columns[0], by_share, by_tenant)
    return series
