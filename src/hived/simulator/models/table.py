"""The table of job models: a CSV with one row per model, each number with its source (``docs/reference/models.md``)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from os import PathLike
from pathlib import Path

from ...errors import Location, ModelError, TraceError
from ...spec.document import did_you_mean
from ..traces.fields import shown
from ..traces.opening import read_text
from ..traces.tables import columns, rows_of

#: the row of jobs whose model is unknown, or not in the table
ANY = "*"
#: largest capacity: above 1 where kernels of several processes run at the same time; more is a wrong unit
MOST_CAPACITY = 10.0

#: bounds of a number: lowest, whether it may be that itself, highest
_Bounds = tuple[float, bool, float]
_BOUNDS: Mapping[str, _Bounds] = {
    "utilization": (0, False, 1),
    "capacity": (0, False, MOST_CAPACITY),
    "memory_gib": (0, False, math.inf),
    "memory_min_gib": (0, True, math.inf),
    "batch_s": (0, False, math.inf),
    "across_sockets": (0, False, 1),
    "across_nodes": (0, False, 1),
    "suspend_s": (0, True, math.inf),
    "migrate_s": (0, True, math.inf),
}
#: the columns that are numbers, in the order of the file: those that :meth:`Models.scaled` scales
QUANTITIES = tuple(_BOUNDS)


@dataclass(frozen=True, slots=True)
class JobModel:
    """What a simulation knows of the jobs that train one model, for each of their GPUs.

    :class:`~hived.errors.ModelError` for a number outside of its bounds.
    """

    model: str  #: the name in traces
    family: str  #: for people: cv, nlp, speech, other
    utilization: float  #: share of the GPU's time that it uses alone while it trains, above 0, at most 1
    #: of a GPU when copies of it are packed, as a share of the GPU's time: utilization * (1 + gain of packing)
    capacity: float
    memory_gib: float  #: the most that it allocates
    memory_min_gib: float  #: the least: between two mini-batches or, of a model with decoding, in training
    batch_s: float  #: seconds of a mini-batch alone
    across_sockets: float  #: speed with GPUs of several sockets of a node, against one socket, at most 1
    across_nodes: float  #: speed with GPUs of several nodes, against one socket, at most 1
    suspend_s: float  #: seconds to suspend and to resume, together
    migrate_s: float  #: seconds without progress of a migration
    source: str = ""  #: where its numbers are from, as in the file

    def __post_init__(self) -> None:
        for name, bounds in _BOUNDS.items():
            value = getattr(self, name)
            if not _within(value, bounds):
                raise ModelError(f"{name} is {value:g}: {_need(bounds)}")
        if self.memory_min_gib > self.memory_gib:
            raise ModelError(
                f"memory_min_gib is {self.memory_min_gib:g}: it must be at most memory_gib, {self.memory_gib:g}"
            )

    @property
    def load(self) -> float:
        """The part of a packed GPU that it needs to run at full speed: 1 / (1 + gain). Above 1: packing loses."""
        return self.utilization / self.capacity


_COLUMNS = tuple(field.name for field in fields(JobModel))


@dataclass(frozen=True, slots=True)
class Contention:
    """The numbers of the law of contention (:mod:`.contention`): what the jobs of a packed set wait for the GPU.

    In units of the GPU time that they need. :class:`~hived.errors.ModelError` unless finite and at least 0.
    """

    #: for others that happen to use it: in the mean half of what these have begun. Assumed. Above 0.63 copies would no
    #: longer gain what Table 1 of Gandiva has
    overlap: float = 0.5
    #: for one that fills it: ESPnet beside ResNet-50 takes 105.2 minutes for 20.1 (AntMan, Figure 12)
    wait: float = 8.2

    def __post_init__(self) -> None:
        for name in OF_THE_LAW:
            if not 0 <= getattr(self, name) < math.inf:
                raise ModelError(f"{name} is {getattr(self, name):g}: it must be a finite number of at least 0")


OF_THE_LAW = ("overlap", "wait")
LAW = Contention()


class Models:
    """Job models by name, and the numbers of the law of contention. Immutable."""

    def __init__(self, models: Iterable[JobModel], file: str = "models", law: Contention = LAW) -> None:
        """``file`` is for messages. :class:`~hived.errors.ModelError` for a name twice, and without the row ``*``."""
        self._by_name: dict[str, JobModel] = {}
        self.file = file
        self.law = law
        for model in models:
            if model.model in self._by_name:
                raise ModelError(f"model {shown(model.model)} is there twice: remove one", Location(file))
            self._by_name[model.model] = model
        if ANY not in self._by_name:
            raise ModelError(
                f"no row {shown(ANY)}: add one, for jobs whose model is unknown or not in the table", Location(file)
            )
        self._any = self._by_name[ANY]

    @classmethod
    def load(cls, path: str | PathLike[str] | None = None) -> Models:
        """The models in the file ``path``; None: those here (``models.csv``). O(rows).

        Raises :class:`~hived.errors.ModelError`: one line with file, row, column, what is there, and the way out.
        """
        if path is None:
            return cls._read(files(__package__).joinpath("models.csv").read_text("utf-8"), "models.csv")
        try:
            return cls._read(read_text(Path(path)), str(path))
        except TraceError as error:  # of the readers of files and tables
            raise ModelError(str(error)) from None

    @classmethod
    def _read(cls, text: str, file: str) -> Models:
        rows = rows_of(text, file)
        line, header = next(rows, (1, []))
        places = columns(header, _COLUMNS, Location(file, line), others=True)
        found: dict[str, int] = {}
        models = []
        for line, row in rows:
            where = Location(file, line)
            try:
                model = _model({name: row[place].strip() for name, place in zip(_COLUMNS, places, strict=True)})
            except ModelError as error:
                raise ModelError(f"{shown(row[places[0]])}: {error}", where) from None
            first = found.setdefault(model.model, line)
            if first != line:
                raise ModelError(f"model {shown(model.model)} is already in row {first}: remove one", where)
            models.append(model)
        return cls(models, file)

    def of(self, name: str) -> JobModel:
        """The model of that name, else that of the row ``*``. O(1)."""
        return self._by_name.get(name, self._any)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[JobModel]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def scaled(self, quantity: str, factor: float) -> Models:
        """The same models with ``quantity`` times ``factor``: to see what depends on it. O(models).

        A quantity is a number's column or one of the law of contention, ``overlap`` or ``wait``. Where a bound requires
        it, the product is cut: ``utilization``, ``across_sockets`` and ``across_nodes`` at 1, ``capacity`` at
        :data:`MOST_CAPACITY`, ``memory_min_gib`` at ``memory_gib``, which it follows down too. Raises
        :class:`~hived.errors.ModelError` for another quantity, and unless ``factor`` is finite and above 0 (of the law:
        or 0).
        """
        known = (*QUANTITIES, *OF_THE_LAW)
        if quantity not in known:
            raise ModelError(
                f"{shown(quantity)} cannot be scaled{did_you_mean(quantity, known)}: give one of {', '.join(known)}"
            )
        if not 0 <= factor < math.inf or (factor == 0 and quantity in QUANTITIES):
            raise ModelError(f"{quantity} cannot be scaled by {factor:g}: give a finite factor above 0")
        file = f"{self.file}, {quantity} x{factor:g}"
        if quantity in OF_THE_LAW:
            return Models(self, file, replace(self.law, **{quantity: getattr(self.law, quantity) * factor}))
        return Models([_scaled(model, quantity, factor) for model in self], file, self.law)


def _scaled(model: JobModel, quantity: str, factor: float) -> JobModel:
    values = {quantity: min(getattr(model, quantity) * factor, _BOUNDS[quantity][2])}
    memory = values.get("memory_gib", model.memory_gib)
    values["memory_min_gib"] = min(values.get("memory_min_gib", model.memory_min_gib), memory)
    return replace(model, **values)


def _model(row: Mapping[str, str]) -> JobModel:
    if not row["model"]:
        raise ModelError("model is empty: name it as in traces, or '*' for any other")
    numbers = {name: _number(name, row[name]) for name in QUANTITIES}
    return JobModel(row["model"], row["family"], **numbers, source=row["source"])


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _within(value, _BOUNDS[name]):
        hint = ", a share, not a percentage" if _BOUNDS[name][2] < math.inf and value > 1 else ""
        raise ModelError(f"{name} is {shown(text)}: {_need(_BOUNDS[name])}{hint}")
    return value


def _within(value: float, bounds: _Bounds) -> bool:
    low, inclusive, high = bounds
    return math.isfinite(value) and (low <= value if inclusive else low < value) and value <= high


def _need(bounds: _Bounds) -> str:
    """What a number must be, in words."""
    low, inclusive, high = bounds
    least = f"of at least {low:g}" if inclusive else f"above {low:g}"
    most = f" and at most {high:g}" if high < math.inf else ""
    return f"it must be a finite number {least}{most}"
