"""Reading a trace of any supported format, from a file or a frame; the content tells the format, not the name."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ...errors import Location, TraceError
from ...words import path_text
from . import helios_csv, hived_csv, philly_json
from .formats import Parsed
from .frames import text_of
from .model import SYNTHETIC_PREFIX, Trace
from .opening import read_text
from .tables import rows_of

_ENDINGS = (".gz", ".csv", ".json")


def read_trace(path: str | PathLike[str]) -> Trace:
    """Read the trace in the file ``path``: jobs sorted by submission, ties in the file's order.

    The format is one of: our CSV (:mod:`.hived_csv`, times kept), the published Philly log
    (:mod:`.philly_json`) and a published Helios log (:mod:`.helios_csv`), these two with the first
    submission at 0; each plain or gzipped. Jobs of a published log that cannot be simulated are left out and
    counted in ``Trace.dropped``. The trace is synthetic if a job id begins with
    :data:`~hived.simulator.traces.model.SYNTHETIC_PREFIX`.

    Raises :class:`~hived.errors.TraceError` (one line: file, row, what, way out) for any error, and
    for a file without any job. O(n) for a sorted file, O(n log n) else; about a quarter of a second for 90,000 rows.
    """
    path = Path(path)
    return _trace(read_text(path), str(path), _name(path))


def trace_of(frame: object, name: str = "frame") -> Trace:
    """The trace in a Polars or pandas ``frame``, whose columns are those of a file; ``status`` may be missing.

    Names, numbers and errors are as in the frame written as CSV, the header being line 1. Raises as :func:`read_trace`.
    """
    return _trace(text_of(frame), name, name)


def _trace(text: str, file: str, name: str) -> Trace:
    parsed = _parse(text, file)
    if not parsed.jobs:
        left_out = ", ".join(f"{count} left out: {reason}" for reason, count in sorted(parsed.dropped.items()))
        raise TraceError(f"no jobs ({left_out or 'only a header'}): a trace needs at least one", Location(file))
    parsed.jobs.sort(key=lambda job: job.submit_ms)
    return Trace(
        name=name,
        jobs=tuple(parsed.jobs),
        synthetic=any(job.job_id.startswith(SYNTHETIC_PREFIX) for job in parsed.jobs),
        dropped=tuple(sorted(parsed.dropped.items())),
    )


def _parse(text: str, file: str) -> Parsed:
    if text.lstrip()[:1] in ("[", "{"):
        return philly_json.parse(text, file)
    rows = rows_of(text, file)
    header = next(rows, None)
    if header is None:
        raise TraceError("the file is empty: it needs a header and at least one row", Location(file))
    names = {name.strip() for name in header[1]}
    ours = len(names.intersection(hived_csv.COLUMNS))
    helios = len(names.intersection(helios_csv.COLUMNS))
    if helios > ours:
        return helios_csv.parse(header, rows, file)
    return hived_csv.parse(header, rows, file)


def _name(path: Path) -> str:
    """The file's name without the suffixes of its storage format: ``a/b.csv.gz -> "b"``."""
    name = path_text(path.name)
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name or path_text(path.name)
