"""The files of a finished simulation, read back.

``SHA256SUMS`` says whether they are as ``hived simulate`` wrote them: cut short, edited or mixed from two simulations,
they are refused. A folder without it is of an older version, and believed. Whatever cannot be read is one
:class:`~hived.errors.InputError` with the file and the way out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hived.errors import InputError
from hived.simulator.output import CHECKSUMS, JOB_COLUMNS, checksums

from .pictures import Chain, TenantOutcome
from .timeline import Ints

AGAIN = "simulate again into an empty folder"
NEVER = np.iinfo(np.int64).max  #: the end of what does not end
_LONGEST_FIELD = 2**31 - 1  #: the most that the csv module can be told

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Plain(BaseModel):
    """What a file holds of what is needed here; more is fine."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ReservedCells(_Plain):
    chain: int  #: number of a chain of the shared cluster
    cell_type: str
    gpus: int
    number: int
    pinned: str | None


class Tenant(_Plain):
    name: str
    reserved: list[ReservedCells]

    @property
    def gpus(self) -> int:
        """All that it reserved."""
        return sum(cells.gpus * cells.number for cells in self.reserved)

    @property
    def pinned(self) -> int:
        """GPUs in pinned cells, which only jobs that name them use."""
        return sum(cells.gpus * cells.number for cells in self.reserved if cells.pinned is not None)

    @property
    def usable(self) -> int:
        """GPUs in all others."""
        return self.gpus - self.pinned


class ClusterFile(_Plain):
    """``cluster.json``."""

    virtual_clusters: list[Tenant]
    schemes: dict[str, list[Chain]]


class Trace(_Plain):
    name: str
    synthetic: bool
    window_s: Number


class Options(_Plain):
    opportunistic: bool


class NeverFits(_Plain):
    job_id: str


class Worse(_Plain):
    """Jobs that wait longer than in their tenant's private cluster."""

    jobs: int


class Delays(_Plain):
    """Of a tenant, or of all."""

    jobs: int
    mean_delay_s: Annotated[Number | None, Field(alias="mean_s")]
    p95_delay_s: Annotated[Number | None, Field(alias="p95_s")]
    to_private: Annotated[Number | None, Field(alias="queue_to_private")]
    anomalies: Worse | None

    def of(self, tenant: str) -> TenantOutcome:
        """As the comparison has it."""
        shown = {name: value for name, value in self if name != "anomalies"}
        worse = None if self.anomalies is None else self.anomalies.jobs
        return TenantOutcome(tenant=tenant, worse_jobs=worse, **shown)


class RunSummary(_Plain):
    scheme: str
    policy: str
    finished: int
    unfinished: int
    utilization: Number | None
    opportunistic: Number | None
    fragmentation: Number | None
    preemptions: int
    makespan_s: Number
    overall: Delays
    tenants: dict[str, Delays]


class Summary(_Plain):
    """``summary.json``."""

    trace: Trace
    options: Options
    never_fit_private: list[NeverFits]
    runs: Annotated[list[RunSummary], Field(min_length=1)]


Shape = TypeVar("Shape", bound=BaseModel)


def verify(folder: Path) -> None:
    """Refuse files of results that are not as they were written. O(bytes)."""
    path = folder / CHECKSUMS
    if not path.exists():
        return
    with refusing(path):
        written = set(path.read_text(encoding="utf-8").splitlines())
    with refusing(folder):
        found = checksums(folder).splitlines()
    for line in found:
        if line not in written:
            refuse(folder / line.split()[1], "is not as hived simulate wrote it")


def read_json(path: Path, shape: type[Shape]) -> Shape:
    """A JSON file of this shape."""
    with refusing(path):
        return shape.model_validate_json(path.read_bytes())


def refuse(path: Path, what: str) -> NoReturn:
    """This file cannot be used."""
    raise InputError(f"{path}: {what}; {AGAIN}")


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """What cannot be made of the content of ``path`` is an :class:`~hived.errors.InputError` that names it."""
    try:
        yield
    except OSError as error:
        refuse(path, f"cannot be read ({error.strerror})")
    except ValidationError as error:
        first = error.errors()[0]
        refuse(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    except (ValueError, LookupError, csv.Error) as error:
        refuse(path, f"is not what hived simulate writes ({error})")


@contextmanager
def reading(path: Path, columns: Sequence[str]) -> Iterator[Iterator[list[str]]]:
    """The rows of a CSV after its header, which is ``columns``; what goes wrong meanwhile refuses the file.

    A placement on many nodes is longer than the csv module takes, and its limit is global: it is lifted meanwhile.
    """
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        with refusing(path), path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            if header != list(columns):
                raise ValueError(f"its columns are {','.join(header)[:200]!r}")
            yield rows
    finally:
        csv.field_size_limit(before)


def milliseconds(text: str) -> int:
    """A time as the simulator writes it: ``12.0``, ``12.5``. ``ValueError`` for anything else."""
    whole, _, rest = text.partition(".")
    return int(f"{whole}{rest:0<3}")


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

    finish: Ints  #: :data:`NEVER`: it did not
    preemptions: Ints


Key = tuple[str, str]  #: scheme and policy


def read_jobs(path: Path, keys: Sequence[Key], tenants: Sequence[str]) -> tuple[Jobs, dict[Key, Fates]]:
    """``jobs.csv``: every one of ``keys`` has the same jobs."""
    vcs = {name: number for number, name in enumerate(tenants)}
    asked: dict[str, tuple[int, int, int, int]] = {}
    fates: dict[Key, list[tuple[int, int]]] = {key: [] for key in keys}
    with reading(path, JOB_COLUMNS) as rows:
        for scheme, policy, job, tenant, gpus, submit, duration, _, finish, _, preemptions, _ in rows:
            if job not in asked:
                asked[job] = vcs[tenant], int(gpus), milliseconds(submit), milliseconds(duration)
            fates[scheme, policy].append((milliseconds(finish) if finish else NEVER, int(preemptions)))
        if {len(found) for found in fates.values()} != {len(asked)}:
            raise ValueError("not every run has every job")
    jobs = Jobs(list(asked), {job: number for number, job in enumerate(asked)}, *_columns(list(asked.values()), 4))
    return jobs, {key: Fates(*_columns(found, 2)) for key, found in fates.items()}


def _columns(rows: Sequence[tuple[int, ...]], number: int) -> Ints:
    return np.asarray(rows, dtype=np.int64).reshape(-1, number).T


@dataclass(frozen=True, slots=True)
class Series:
    """``series.csv`` for one run. Arrays (points,); NaN: nothing to say."""

    at: list[float]  #: seconds
    shares: dict[str, list[float]]
    delay: dict[str, list[float]]  #: seconds, by tenant


def read_series(path: Path, keys: Sequence[Key], tenants: Sequence[str]) -> dict[Key, Series]:
    """``series.csv``, every run's points in order of time."""
    shares = ("utilization", "opportunistic", "fragmentation", "partly_used")
    found: dict[Key, list[list[float]]] = {key: [] for key in keys}
    series = {}
    with reading(path, ("scheme", "policy", "time_s", *shares, *(f"delay_s {tenant}" for tenant in tenants))) as rows:
        for scheme, policy, *values in rows:
            found[scheme, policy].append([float(value) for value in values])
        for key, points in found.items():
            at, *columns = [list(column) for column in zip(*points, strict=True)]
            by_share = dict(zip(shares, columns[: len(shares)], strict=True))
            series[key] = Series(at, by_share, dict(zip(tenants, columns[len(shares) :], strict=True)))
    return series
