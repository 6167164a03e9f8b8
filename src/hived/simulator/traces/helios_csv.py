"""Reading the published Helios traces (``cluster_log.csv`` of one cluster).

Format: https://github.com/S-Lab-System-Group/HeliosData (CC-BY-4.0); "Characterization and Prediction of
Deep Learning Workloads in Large-Scale GPU Datacenters", SC'21. Its columns are ``job_id, user, vc, gpu_num,
cpu_num, node_num, state, submit_time, start_time, end_time, duration, queue``; those in :data:`COLUMNS` are
read, and those in :data:`OPTIONAL` where they are there. ``duration`` is in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import Location
from .fields import TWICE, FieldError, gpu_count, identifier, milliseconds, one_line, shown
from .formats import KILLED_OR_FAILED, PASS, Parsed, clock_ms, from_first
from .model import RUNNING, TraceJob
from .tables import Row, columns

COLUMNS = ("job_id", "vc", "gpu_num", "state", "submit_time", "duration")
OPTIONAL = ("user", "start_time", "end_time")

CPU_ONLY = "no GPUs (CPU-only)"
NEVER_RAN = "no run time"
_NOTHING = frozenset({"", "none", "null", "nan", "nat"})


def parse(header: Row, rows: Iterator[Row], parsed: Parsed) -> None:
    """Add the jobs of ``rows`` that ran on GPUs to ``parsed``, the first submission at 0; the others by reason.

    A job of 0 seconds ran. One that has a start, but neither a duration nor an end, still runs: its duration is the
    time until the latest time of such jobs in the log. One that has no start either never ran. O(rows).
    """
    places = columns(header[1], COLUMNS, Location(parsed.file, header[0]), optional=OPTIONAL, others=True)
    at_id, at_vc, at_gpus, at_state, at_submit, at_duration, at_user, at_start, at_end = places
    seen: dict[str, int] = {}
    started: dict[int, int] = {}  # jobs that still run, by their number: when they started
    last = 0
    for line, row in rows:
        column = "job_id"
        try:
            job_id = identifier(row[at_id])
            column = "vc"
            tenant = identifier(row[at_vc])
            column = "gpu_num"
            gpus = gpu_count(row[at_gpus])
            if not gpus:
                parsed.dropped[CPU_ONLY] += 1
                continue
            column = "submit_time"
            submit = clock_ms(row[at_submit])
            column = "start_time"
            start = _time(row, at_start)
            column = "end_time"
            end = _time(row, at_end)
            column = "duration"
            lasts = None if row[at_duration].strip().lower() in _NOTHING else milliseconds(row[at_duration])
            column = "user"
            user = one_line(row[at_user]) if at_user >= 0 else ""
            column = "job_id"
            first = seen.setdefault(job_id, line)
            if first != line:
                raise FieldError(  # noqa: TRY301 - caught below, where the place in the file is added
                    f"{shown(job_id)} is already in row {first}: give every job its own", TWICE
                )
        except FieldError as error:
            parsed.refuse(error, Location(parsed.file, line), column)
            continue
        last = max(last, submit, start or 0, end or 0)
        state = row[at_state].strip().upper()
        status = PASS if state == "COMPLETED" else RUNNING if state == "RUNNING" else KILLED_OR_FAILED
        if lasts is None:
            if start is None or end is not None:
                parsed.dropped[NEVER_RAN] += 1
                continue
            started[len(parsed.jobs)] = start
            lasts, status = 0, RUNNING
        parsed.jobs.append(TraceJob(job_id, tenant, submit, lasts, gpus, status, user))
    for number, start in started.items():
        parsed.jobs[number] = parsed.jobs[number]._replace(duration_ms=last - start)
    parsed.jobs = from_first(parsed.jobs)


def _time(row: list[str], at: int) -> int | None:
    """A time that may be missing, as its column may be."""
    return None if at < 0 or row[at].strip().lower() in _NOTHING else clock_ms(row[at])
