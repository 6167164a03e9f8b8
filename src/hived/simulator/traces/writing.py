"""Writing a trace as our CSV: whole or not at all, and the same bytes for the same trace."""

from __future__ import annotations

import csv
import gzip
import io
import os
import uuid
from os import PathLike
from pathlib import Path

from ...errors import InputError, Location, TraceError
from .fields import FieldError, check_jobs
from .hived_csv import COLUMNS, OPTIONAL
from .model import Trace, seconds


def write_trace(trace: Trace, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write ``trace`` to ``path`` as CSV, gzipped if the name ends with ``.gz``. O(jobs).

    Each optional column is written if any job has a value in it.

    Reading the file gives the same jobs, times exact to the millisecond. (The trace's name becomes the
    file's, ``dropped`` is not kept, and ``synthetic`` is kept by the ids' prefix.) The gzip header has neither
    time nor name, so that the same trace gives the same bytes. The data are written to a new file beside
    ``path``, which then replaces it atomically.

    Raises :class:`~hived.errors.InputError` if ``path`` exists (unless ``overwrite``) or cannot be
    written, and :class:`~hived.errors.TraceError` for a trace that no reader would accept.
    """
    path = Path(path)
    where = Location(str(path))
    if path.is_dir():
        raise InputError(f"{where}: is a directory: name a file")
    if path.exists() and not overwrite:
        raise InputError(f"{where}: the file exists: choose another name, or overwrite it (--force)")
    data = _csv(trace, where).encode()
    if path.suffix == ".gz":
        data = _packed(data)
    partial = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.part")
    try:
        try:
            with partial.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{where}: cannot be written ({reason}): check the folder") from None


def _csv(trace: Trace, where: Location) -> str:
    if not trace.jobs:
        raise TraceError("the trace has no jobs: nothing to write", where)
    try:
        check_jobs(trace.jobs, "be written")
    except FieldError as error:
        raise TraceError(str(error), where) from None
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    more = [name for name in OPTIONAL if any(getattr(job, name) for job in trace.jobs)]
    writer.writerow((*COLUMNS, *more))
    for job in trace.jobs:
        fields = (job.job_id, job.tenant, seconds(job.submit_ms), seconds(job.duration_ms), job.gpus, job.status)
        writer.writerow((*fields, *(_text(getattr(job, name)) for name in more)))
    return text.getvalue()


def _text(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _packed(data: bytes) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as file:
        file.write(data)
    return packed.getvalue()
