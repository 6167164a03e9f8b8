"""Reading a trace of any supported format, from a file or a frame; the content tells the format, not the name."""

from __future__ import annotations

from enum import Enum
from os import PathLike
from pathlib import Path

from ...errors import Location, TraceError
from ...words import path_text
from . import helios_csv, hived_csv, philly_json
from .formats import Parsed
from .frames import text_of
from .model import RUNNING, SYNTHETIC_PREFIX, Trace
from .opening import read_text
from .tables import rows_of

_ENDINGS = (".gz", ".csv", ".json")
#: what is read, for a file that is something else
_READ = (
    f"hived reads CSV with the columns {','.join(hived_csv.COLUMNS)}, "
    "Philly's cluster_job_log (JSON) and Helios' cluster_log.csv"
)
#: published logs that are not read: words of their first lines by which they are known
_FOREIGN = (
    ("a pod list of Alibaba's openb (GPU 2023)", {"cpu_milli", "num_gpu", "creation_time"}),
    ("a node list of Alibaba's openb (GPU 2023)", {"sn", "cpu_milli", "model"}),
    ("a task table of Alibaba's PAI (GPU 2020)", {"task_name", "inst_num", "plan_gpu"}),
    ("a job table of Alibaba's PAI (GPU 2020)", {"job_name", "inst_id", "status"}),
    ("a table of Alibaba's PAI (GPU 2020) without its header", {"Terminated"}),
    ("a job trace of Acme, which names no tenants", {"gpu_num", "node_num", "type"}),
    ("a job trace of Acme, which names no tenants", {"gpu_num", "node_num", "submit_time", "gpu_time"}),
    ("Philly's list of machines", {"machineId", "number of GPUs"}),
    ("Philly's record of utilization", {"time", "machineId"}),
    ("a list of Helios' reservations by day", {"date", "total"}),
)


class StillRunning(Enum):
    """What becomes of the jobs of a log that had not ended when the log did."""

    KEEP = "keep"  #: with their time so far
    LEAVE_OUT = "leave-out"


STILL_RUNNING = "still running when the log ends"


def read_trace(
    path: str | PathLike[str], *, skip_bad_rows: bool = False, still_running: StillRunning = StillRunning.KEEP
) -> Trace:
    """Read the trace in the file ``path``: jobs sorted by submission, ties in the file's order.

    The format is one of: our CSV (:mod:`.hived_csv`, times kept), the published Philly log
    (:mod:`.philly_json`) and a published Helios log (:mod:`.helios_csv`), these two with the first
    submission at 0; each plain or gzipped. Jobs of a published log that cannot be simulated are left out and
    counted in ``Trace.dropped``, and with ``skip_bad_rows`` rows that are wrong, by kind. Jobs of status
    :data:`~.model.RUNNING` have their time so far; ``still_running`` keeps them or leaves them out.
    The trace is synthetic if a job id begins with :data:`~hived.simulator.traces.model.SYNTHETIC_PREFIX`.

    Raises :class:`~hived.errors.TraceError` (one line: file, row, what, way out) for any error, and
    for a file without any job. O(n) for a sorted file, O(n log n) else; about a quarter of a second for 90,000 rows.
    """
    path = Path(path)
    return _trace(read_text(path), Parsed(str(path), skip_bad_rows), _name(path), still_running)


def trace_of(
    frame: object,
    name: str = "frame",
    *,
    skip_bad_rows: bool = False,
    still_running: StillRunning = StillRunning.KEEP,
) -> Trace:
    """The trace in a Polars or pandas ``frame``, whose columns are those of a file; ``status`` may be missing.

    Names, numbers and errors are as in the frame written as CSV, the header being line 1. Raises as :func:`read_trace`.
    """
    return _trace(text_of(frame), Parsed(name, skip_bad_rows), name, still_running)


def _trace(text: str, parsed: Parsed, name: str, still_running: StillRunning) -> Trace:
    _parse(text, parsed)
    parsed.settle()
    jobs = parsed.jobs
    if still_running is StillRunning.LEAVE_OUT:
        jobs = [job for job in jobs if job.status != RUNNING]
        parsed.dropped[STILL_RUNNING] = len(parsed.jobs) - len(jobs)
    dropped = tuple((reason, count) for reason, count in sorted(parsed.dropped.items()) if count)
    if not jobs:
        left_out = ", ".join(f"{count} left out: {reason}" for reason, count in dropped)
        raise TraceError(f"no jobs ({left_out or 'only a header'}): a trace needs at least one", Location(parsed.file))
    jobs.sort(key=lambda job: job.submit_ms)
    return Trace(
        name=name,
        jobs=tuple(jobs),
        synthetic=any(job.job_id.startswith(SYNTHETIC_PREFIX) for job in jobs),
        dropped=dropped,
    )


def _parse(text: str, parsed: Parsed) -> None:
    if text.lstrip()[:1] in ("[", "{"):
        philly_json.parse(text, parsed)
        return
    rows = rows_of(text, parsed.file, parsed)
    header = next(rows, None)
    if header is None:
        raise TraceError("the file is empty: it needs a header and at least one row", Location(parsed.file))
    names = {name.strip() for name in header[1]}
    ours = len(names.intersection(hived_csv.COLUMNS))
    helios = len(names.intersection(helios_csv.COLUMNS))
    if not names.issuperset(hived_csv.COLUMNS) and not names.issuperset(helios_csv.COLUMNS):
        for what, words in _FOREIGN:
            if names.issuperset(words):
                raise TraceError(f"this looks like {what}: {_READ}", Location(parsed.file, header[0]))
    (helios_csv if helios > ours else hived_csv).parse(header, rows, parsed)


def _name(path: Path) -> str:
    """The file's name without the suffixes of its storage format: ``a/b.csv.gz -> "b"``."""
    name = path_text(path.name)
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name or path_text(path.name)
