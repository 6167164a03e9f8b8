"""The files of a finished simulation, read back.

``SHA256SUMS`` says whether they are as ``hived simulate`` wrote them: cut short, edited or mixed from two simulations,
they are refused. A folder without it is believed. Whatever cannot be read is one
:class:`~hived.errors.InputError` with the file and the way out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar
from urllib.parse import unquote

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from hived.cluster.decisions import PodPlacement
from hived.errors import InputError
from hived.scheduling import Kind
from hived.simulator.output import CHECKSUMS, checksums
from hived.simulator.tables import JOBS, RUNS, Types, series_types

from .pictures import Chain, Places, Stretch

AGAIN = "simulate again into an empty folder"
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
NEVER = np.iinfo(np.int64).max  #: the end of a job or run that does not end
Key = tuple[str, str]  #: scheme and policy
_KEY = ("scheme", "policy")
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
    median_delay_s: Annotated[Number | None, Field(alias="median_s")]
    p90_delay_s: Annotated[Number | None, Field(alias="p90_s")]
    p99_delay_s: Annotated[Number | None, Field(alias="p99_s")]
    mean_completion_s: Annotated[Number | None, Field(alias="completion_mean_s")]
    median_completion_s: Annotated[Number | None, Field(alias="completion_median_s")]
    p90_completion_s: Annotated[Number | None, Field(alias="completion_p90_s")]
    p95_completion_s: Annotated[Number | None, Field(alias="completion_p95_s")]
    p99_completion_s: Annotated[Number | None, Field(alias="completion_p99_s")]


class RunSummary(_Plain):
    scheme: str
    policy: str
    finished: int
    unfinished: int
    utilization: Number | None
    opportunistic: Number | None
    fragmentation: Number | None
    internal: Number | None
    external: Number | None
    preemptions: int
    preempted_gpus: int | None
    lost_gpu_s: Number | None
    guests: Number | None
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
    except (ValueError, LookupError, csv.Error, pl.exceptions.PolarsError) as error:
        refuse(path, f"is not what hived simulate writes ({str(error).partition(chr(10))[0]})")


def read_table(path: Path, columns: Types, keys: Sequence[Key]) -> dict[Key, pl.DataFrame]:
    """A CSV of exactly these columns, by scheme and policy; an empty table for one of ``keys`` that it does not have.

    Runs as a context of :func:`refusing`. ``ValueError`` for other columns, schemes or policies.
    """
    with path.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file, strict=True), [])
    if header != [*columns]:
        raise ValueError(f"its columns are {','.join(header)[:200]!r}")
    with path.open("rb") as whole:
        table = pl.read_csv(whole, schema=dict(columns))
    found = {(scheme, policy): part for (scheme, policy), part in table.group_by(*_KEY, maintain_order=True)}
    if strange := found.keys() - set(keys):
        raise ValueError(f"summary.json has no {' '.join(min(strange))}")
    return {key: found.get(key, table.clear()) for key in keys}


def _milliseconds(times: pl.Series) -> Ints:
    """Times in seconds, none of them missing."""
    if times.null_count():
        raise ValueError(f"{times.name} is missing")
    return (times * 1000).round().cast(pl.Int64).to_numpy()


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


def read_jobs(path: Path, keys: Sequence[Key], tenants: Sequence[str]) -> tuple[Jobs, dict[Key, Fates]]:
    """``jobs.csv``: every one of ``keys`` has the same jobs."""
    with refusing(path):
        tables = read_table(path, JOBS, keys)
        first = tables[keys[0]]
        ids = first["job_id"].to_list()
        number = {job: number for number, job in enumerate(ids)}
        if len(number) < len(ids) or any(not one["job_id"].equals(first["job_id"]) for one in tables.values()):
            raise ValueError("not every run has every job")
        modelled = bool(ids) and first["alone_s"].null_count() < len(ids)
        tenant = np.asarray([tenants.index(name) for name in first["tenant"].to_list()], dtype=np.int64)
        jobs = Jobs(
            ids,
            number,
            tenant,
            _whole(first["gpus"]),
            _milliseconds(first["submit_s"]),
            _milliseconds(first["alone_s" if modelled else "duration_s"]),
            modelled,
        )
        return jobs, {
            key: Fates(
                np.where(one["finish_s"].is_null(), NEVER, _milliseconds(one["finish_s"].fill_null(0.0))),
                _whole(one["preemptions"]),
            )
            for key, one in tables.items()
        }


def _whole(numbers: pl.Series) -> Ints:
    if numbers.null_count():
        raise ValueError(f"{numbers.name} is missing")
    return numbers.to_numpy()


def read_series(path: Path, keys: Sequence[Key], tenants: Sequence[str]) -> dict[Key, dict[str, Floats]]:
    """``series.csv``: of every run its columns by name (points,), in order of time. NaN: nothing to say."""
    types = series_types(tenants)
    with refusing(path):
        tables = read_table(path, types, keys)
        return {key: {name: one[name].to_numpy() for name in [*types][len(_KEY) :]} for key, one in tables.items()}


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
    with refusing(path):
        tables = read_table(path, RUNS, [*places])
        return {key: _runs(one, jobs, places[key]) for key, one in tables.items()}


def _runs(table: pl.DataFrame, jobs: Jobs, places: Placements) -> Runs:
    """The runs of one scheme and policy."""
    job = np.asarray([jobs.number[name] for name in table["job_id"].to_list()], dtype=np.int64)
    start = _milliseconds(table["start_s"])
    order = np.lexsort((start, job))
    job, start, table = job[order], start[order], table[order]
    share, rate = table["share"], table["rate"]
    if not (share.is_between(0, 1, closed="right") & (rate >= 0) & rate.is_finite()).fill_null(value=False).all():
        raise ValueError("a share or a rate that is none")
    place = table["placement"].to_list()
    parts = [places.read(one) for one in place]
    return Runs(
        job,
        start,
        _milliseconds(table["end_s"]),
        np.asarray([KINDS.index(kind) for kind in table["kind"].to_list()], dtype=np.int64),
        np.asarray([sum(part[3] for part in stretches) for stretches in parts], dtype=np.int64),
        share.to_numpy(),
        rate.to_numpy(),
        parts,
        place,
        np.searchsorted(job, np.arange(len(jobs.ids) + 1)),
    )
