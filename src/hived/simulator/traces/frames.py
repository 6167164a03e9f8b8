"""Frames of Polars and pandas: a trace from one, the jobs of a trace as one.

Polars is an extra; pandas need not be there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

from hived.errors import InputError
from hived.installed import command_for

from .formats import PASS
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


def need_polars(what: str) -> None:
    """Raise :class:`~hived.errors.InputError` unless Polars, an extra, is installed; ``what`` needs it."""
    try:
        import_module("polars")
    except ImportError:
        raise InputError(f"{what} needs Polars: {command_for('research')}") from None


def is_frame(value: object) -> bool:
    """Whether ``value`` is a frame of Polars (lazy or not) or pandas."""
    return any(hasattr(value, method) for method in ("write_csv", "to_csv", "sink_csv"))


def text_of(frame: Any) -> str:
    """A frame as CSV, so that one set of rules reads files and frames. Without a status every job gets ``pass``.

    Raises :class:`~hived.errors.InputError` for columns that CSV does not have, such as lists.
    """
    if hasattr(frame, "sink_csv") and hasattr(frame, "collect"):
        frame = frame.collect()
    names = list(frame.columns)
    add_status = "duration_s" in names and "status" not in names
    if not hasattr(frame, "write_csv"):
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


def job_frame(jobs: Sequence[TraceJob]) -> polars.DataFrame:
    """The jobs in the columns of :data:`FILTER_COLUMNS`. O(jobs)."""
    import polars as pl

    frame = pl.DataFrame(list(jobs), schema=TraceJob._fields, orient="row", infer_schema_length=None)
    seconds = (pl.col(f"{name}_ms").truediv(MS).alias(name) for name in ("submit", "duration"))
    return frame.with_columns(*seconds).select(FILTER_COLUMNS)
