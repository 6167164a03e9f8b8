"""The files of a finished simulation, read back.

``SHA256SUMS`` says whether they are as ``hived simulate`` wrote them: cut short, edited or mixed from two simulations,
they are refused. A folder without it is of an older version, and believed. Whatever cannot be read is one
:class:`~hived.errors.InputError` with the file and the way out.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from hived.cluster.decisions import PodPlacement
from hived.errors import InputError
from hived.scheduling import Kind
from hived.simulator.output import CHECKSUMS, JOB_COLUMNS, RUN_COLUMNS, SERIES_SHARES, checksums

from .pictures import Chain, Places, Stretch

AGAIN = "simulate again into an empty folder"
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NEVER = np.iinfo(np.int64).max  #: the end of a job or run that does not end
_LONGEST_FIELD = 2**31 - 1  #: the largest limit that the csv module takes
#: all that an older version wrote
_SHARES_BEFORE, _JOBS_BEFORE, _RUNS_BEFORE = (SERIES_SHARES[:7], SERIES_SHARES[:4]), JOB_COLUMNS[:-1], RUN_COLUMNS[:-2]
#: of a run, numbered as in :class:`Runs`
KINDS = tuple(kind.value for kind in Kind)
GUARANTEED, OPPORTUNISTIC, GUEST = range(3)

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Plain(BaseModel):
    """The fields of a file that are needed here; others are ignored."""

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
    # None, here and below: not defined, or an older version wrote the file
    median_delay_s: Annotated[Number | None, Field(alias="median_s")] = None
    p90_delay_s: Annotated[Number | None, Field(alias="p90_s")] = None
    p99_delay_s: Annotated[Number | None, Field(alias="p99_s")] = None
    mean_completion_s: Annotated[Number | None, Field(alias="completion_mean_s")] = None
    median_completion_s: Annotated[Number | None, Field(alias="completion_median_s")] = None
    p90_completion_s: Annotated[Number | None, Field(alias="completion_p90_s")] = None
    p95_completion_s: Annotated[Number | None, Field(alias="completion_p95_s")] = None
    p99_completion_s: Annotated[Number | None, Field(alias="completion_p99_s")] = None


class RunSummary(_Plain):
    scheme: str
    policy: str
    finished: int
    unfinished: int
    utilization: Number | None
    opportunistic: Number | None
    fragmentation: Number | None
    internal: Number | None = None
    external: Number | None = None
    preemptions: int
    preempted_gpus: int | None = None
    lost_gpu_s: Number | None = None
    guests: Number | None = None
    makespan_s: Number
    overall: Delays
    tenants: dict[str, Delays]


class Summary(_Plain):
    """``summary.json``."""

    title: Annotated[str, Field(validation_alias=AliasPath("trace", "name"))]
    synthetic: Annotated[bool, Field(validation_alias=AliasPath("trace", "synthetic"))]
    window_s: Annotated[Number, Field(validation_alias=AliasPath("trace", "window_s"))]
    lends: Annotated[bool, Field(validation_alias=AliasPath("options", "opportunistic"))]
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
    """The error for a file that cannot be used."""
    raise InputError(f"{path}: {what}; {AGAIN}")


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turn errors in the content of ``path`` into an :class:`~hived.errors.InputError` that names it."""
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
def reading(path: Path, *forms: Sequence[str]) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """The header of a CSV, one of ``forms``, and its other rows; what goes wrong meanwhile refuses the file.

    A placement on many nodes is longer than the csv module takes, and its limit is global: it is lifted meanwhile.
    """
    before = csv.field_size_limit(_LONGEST_FIELD)
    try:
        with refusing(path), path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            if header not in map(list, forms):
                raise ValueError(f"its columns are {','.join(header)[:200]!r}")
            yield header, rows
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
    alone: Ints  #: the time that it takes alone: its duration, where jobs run without models
    modelled: bool  #: whether they run by models, so that they may share GPUs


@dataclass(frozen=True, slots=True)
class Fates:
    """The outcome of the jobs in one run. (jobs,)"""

    finish: Ints  #: :data:`NEVER`: it did not
    preemptions: Ints


Key = tuple[str, str]  #: scheme and policy


def read_jobs(path: Path, keys: Sequence[Key], tenants: Sequence[str]) -> tuple[Jobs, dict[Key, Fates]]:
    """``jobs.csv``: every one of ``keys`` has the same jobs."""
    vcs = {name: number for number, name in enumerate(tenants)}
    asked: dict[str, tuple[int, int, int, int]] = {}
    modelled = False
    fates: dict[Key, list[tuple[int, int]]] = {key: [] for key in keys}
    with reading(path, JOB_COLUMNS, _JOBS_BEFORE) as (_, rows):
        for scheme, policy, job, tenant, gpus, submit, duration, _, finish, _, preemptions, _, *alone in rows:
            if job not in asked:
                modelled = bool(alone and alone[0])
                takes = alone[0] if modelled else duration
                asked[job] = vcs[tenant], int(gpus), milliseconds(submit), milliseconds(takes)
            fates[scheme, policy].append((milliseconds(finish) if finish else NEVER, int(preemptions)))
        if {len(found) for found in fates.values()} != {len(asked)}:
            raise ValueError("not every run has every job")
    numbers = {job: number for number, job in enumerate(asked)}
    tenant, number, submit, alone_ms = _columns(list(asked.values()), 4)
    jobs = Jobs(list(asked), numbers, tenant, number, submit, alone_ms, modelled)
    return jobs, {key: Fates(*_columns(found, 2)) for key, found in fates.items()}


def _columns(rows: Sequence[tuple[int, ...]], number: int) -> Ints:
    return np.asarray(rows, dtype=np.int64).reshape(-1, number).T


def read_series(path: Path, keys: Sequence[Key], tenants: Sequence[str]) -> dict[Key, dict[str, Floats]]:
    """``series.csv``: of every run its columns by name (points,), in order of time. NaN: nothing to say."""
    delays = [f"delay_s {tenant}" for tenant in tenants]
    forms = [("scheme", "policy", "time_s", *shares, *delays) for shares in (SERIES_SHARES, *_SHARES_BEFORE)]
    found: dict[Key, list[list[float]]] = {key: [] for key in keys}
    with reading(path, *forms) as (header, rows):
        for scheme, policy, *values in rows:
            found[scheme, policy].append([float(value) for value in values])
        return {key: dict(zip(header[2:], np.asarray(points).T, strict=True)) for key, points in found.items()}


_ALONE = (1.0, 1.0)  #: share and rate of a job that runs alone
Placed = tuple[str, tuple[Stretch, ...]]  #: a placement as in the file, and as stretches of leaves


def pods_of(place: str) -> tuple[PodPlacement, ...]:
    """``node:0,1;node2:4`` as pods."""
    parts = [part.rpartition(":") for part in place.split(";")]
    return tuple(PodPlacement(unquote(name), tuple(map(int, leaves.split(",")))) for name, _, leaves in parts)


class Placements(Places):
    """The nodes of one scheme's cluster, and what placements on them are as stretches."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        super().__init__(chains)
        #: ``node:0,1;node2:4`` as stretches of leaves. ``ValueError`` for what is not in the cluster
        self.read = cache(lambda placement: tuple(one for part in placement.split(";") for one in self._part(part)))

    def _part(self, part: str) -> list[Stretch]:
        name, _, text = part.rpartition(":")
        devices = [int(device) for device in text.split(",")]
        found = self.stretches(unquote(name), devices)
        if sum(number for _, _, _, number in found) != len(devices):
            raise ValueError(f"the cluster of cluster.json has no {part[:60]!r}")
        return found


@dataclass(frozen=True, slots=True)
class Runs:
    """The intervals in which jobs held GPUs in one run, by job, then by start. Arrays (runs,)."""

    job: Ints
    start: Ints
    end: Ints
    kind: Ints  #: number in :data:`KINDS`
    held: Ints  #: GPUs
    share: Floats  #: of the time for which the job has them
    rate: Floats  #: work per second there, against running alone at best affinity
    parts: list[tuple[Stretch, ...]]
    place: list[str]  #: as in the file
    of_job: Ints  #: a job's runs are those from ``of_job[job]`` to ``of_job[job + 1]`` (jobs + 1,)


def read_runs(path: Path, jobs: Jobs, places: dict[Key, Placements]) -> dict[Key, Runs]:
    """``runs.csv``, the placements as stretches of leaves. O(runs log runs)."""
    plain: dict[Key, list[tuple[int, int, int, int]]] = {key: [] for key in places}
    shared: dict[Key, list[tuple[float, float]]] = {key: [] for key in places}
    placed: dict[Key, list[Placed]] = {key: [] for key in places}
    kinds = {kind: number for number, kind in enumerate(KINDS)}
    with reading(path, RUN_COLUMNS, _RUNS_BEFORE) as (_, rows):
        for scheme, policy, job, start, end, kind, placement, *sharing in rows:
            key = scheme, policy
            plain[key].append((jobs.number[job], milliseconds(start), milliseconds(end), kinds[kind]))
            shared[key].append(_sharing(*sharing))
            placed[key].append((placement, places[key].read(placement)))
    return {
        key: _sorted(jobs, np.asarray(found, dtype=np.int64), np.asarray(shared[key], dtype=np.float64), placed[key])
        for key, found in plain.items()
    }


def _sharing(share: str = "1.0", rate: str = "1.0") -> tuple[float, float]:
    """Both as numbers, 1 in a file of an older version. ``ValueError`` for what cannot be."""
    if share == rate == "1.0":
        return _ALONE
    found = float(share), float(rate)
    if not (0 < found[0] <= 1 and 0 <= found[1] < math.inf):
        raise ValueError(f"share {share}, rate {rate}")
    return found


def _sorted(jobs: Jobs, columns: Ints, sharing: Floats, placed: list[Placed]) -> Runs:
    job, start, end, kind = columns.reshape(-1, 4).T
    share, rate = sharing.reshape(-1, 2).T
    order = np.lexsort((start, job))
    job = job[order]
    place = [placed[n][0] for n in order.tolist()]
    parts = [placed[n][1] for n in order.tolist()]
    held = np.asarray([sum(part[3] for part in stretches) for stretches in parts], dtype=np.int64)
    of_job = np.searchsorted(job, np.arange(len(jobs.ids) + 1))
    return Runs(
        job, start[order], end[order], kind[order], held, share[order], rate[order], parts, place, of_job
    )  # fmt: skip
