"""Frames of Polars and pandas: a trace from one, the jobs of a trace as one.

Pandas need not be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

from hived.errors import InputError

from .formats import PASS
from .hived_csv import COLUMNS, OPTIONAL
from .model import MS, TraceJob

if TYPE_CHECKING:
    import polars

#: what an expression may name; ``submit`` and ``duration`` are in seconds
FILTER_COLUMNS = (
    "job_id",
    "tenant",
    "user",
    "model",
    "gpus",
    "priority",
    "submit",
    "duration",
    "status",
    "mode",
    "soft",
    "elastic",
)
_ALL = (*COLUMNS, *OPTIONAL)


def is_frame(value: object) -> bool:
    """Whether ``value`` is a frame of Polars (lazy or not) or pandas."""
    return any(hasattr(value, method) for method in ("write_csv", "to_csv", "sink_csv"))


def text_of(frame: Any) -> str:
    """A frame as CSV, so that one set of rules reads files and frames. Without a status every job gets ``pass``.

    A study's table may have other columns beside those of a trace: they are left out, but for one that is nearly the
    name of a column that is not there. Times are seconds, or dates and durations as a frame has them: dates count from
    the first one. Raises :class:`~hived.errors.InputError` for columns that CSV does not have, such as lists.
    """
    if hasattr(frame, "sink_csv") and hasattr(frame, "collect"):
        frame = frame.collect()
    names = list(frame.columns)
    if len(set(names)) == len(names) and set(names).issuperset(set(COLUMNS) - {"status"}):
        frame = frame[[name for name in names if name in _ALL or _is_misspelt(name, names)]]
    polars = hasattr(frame, "write_csv")
    for name in ("submit_s", "duration_s"):
        if names.count(name) == 1:
            frame = (_polars_seconds if polars else _pandas_seconds)(frame, name)
    add_status = "duration_s" in names and "status" not in names
    if not polars:
        into = StringIO()
        (frame.assign(status=PASS) if add_status else frame).to_csv(into, index=False, lineterminator="\n")
        return into.getvalue()
    import polars as pl

    frame = frame.with_columns(pl.col(pl.Float32, pl.Float64).fill_nan(None))
    try:
        return str((frame.with_columns(status=pl.lit(PASS)) if add_status else frame).write_csv())
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"the frame is not readable as a trace ({reason}): give one value per job and column"
        ) from None


def _is_misspelt(name: object, names: Sequence[object]) -> bool:
    missing = [other for other in _ALL if other not in names]
    return isinstance(name, str) and bool(get_close_matches(name, missing, n=1, cutoff=0.85))


def _polars_seconds(frame: Any, name: str) -> Any:
    """The frame with a column of dates or durations in seconds."""
    import polars as pl

    column = pl.col(name)
    if frame[name].dtype in (pl.Datetime, pl.Date) and name == "submit_s":
        column = column - column.min()
    elif frame[name].dtype != pl.Duration:
        return frame
    return frame.with_columns(column.dt.total_microseconds() / 1_000_000)


def _pandas_seconds(frame: Any, name: str) -> Any:
    """The same for a frame of pandas, which may have Python's own dates."""
    pandas = import_module("pandas")
    column = frame[name]
    kind = pandas.api.types.infer_dtype(column, skipna=True)
    if kind in ("datetime", "datetime64", "date") and name == "submit_s":
        times = pandas.to_datetime(column, utc=True)
        column = times - times.min()
    elif kind in ("timedelta", "timedelta64"):
        column = pandas.to_timedelta(column)
    else:
        return frame
    return frame.assign(**{name: column.dt.total_seconds()})


def job_frame(jobs: Sequence[TraceJob]) -> polars.DataFrame:
    """The jobs in the columns of :data:`FILTER_COLUMNS`. O(jobs)."""
    import polars as pl

    frame = pl.DataFrame(list(jobs), schema=TraceJob._fields, orient="row", infer_schema_length=None)
    seconds = (pl.col(f"{name}_ms").truediv(MS).alias(name) for name in ("submit", "duration"))
    return frame.with_columns(*seconds).select(FILTER_COLUMNS)
