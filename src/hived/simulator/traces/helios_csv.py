"""Reading the published Helios traces (``cluster_log.csv`` of one cluster).

Format: https://github.com/S-Lab-System-Group/HeliosData (CC-BY-4.0); "Characterization and Prediction of
Deep Learning Workloads in Large-Scale GPU Datacenters", SC'21. Its columns are ``job_id, user, vc, gpu_num,
cpu_num, node_num, state, submit_time, start_time, end_time, duration, queue``; those in :data:`COLUMNS` are
read, and ``user`` where it is there. ``duration`` is in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import Location, TraceError
from .fields import FieldError, gpu_count, identifier, milliseconds, one_line, shown
from .formats import KILLED_OR_FAILED, PASS, Parsed, clock_ms, from_first
from .model import TraceJob
from .tables import Row, columns

COLUMNS = ("job_id", "vc", "gpu_num", "state", "submit_time", "duration")

CPU_ONLY = "no GPUs (CPU-only)"
NEVER_RAN = "no run time"
_NOTHING = frozenset({"", "none", "null", "nan", "nat"})


def parse(header: Row, rows: Iterator[Row], file: str) -> Parsed:
    """The jobs of ``rows`` that ran on GPUs, the first submission at 0; the others counted by reason.

    A job with an empty ``duration`` never ran; a job of 0 seconds did. Raises
    :class:`~hived.errors.TraceError`, with file and line, for the first row that is wrong. O(rows).
    """
    at_id, at_vc, at_gpus, at_state, at_submit, at_duration, at_user = columns(
        header[1], COLUMNS, Location(file, header[0]), optional=("user",), others=True
    )
    seen: dict[str, int] = {}
    parsed = Parsed()
    for line, row in rows:
        column = "job_id"
        try:
            job_id = identifier(row[at_id])
            first = seen.setdefault(job_id, line)
            if first != line:
                raise FieldError(  # noqa: TRY301 - caught below, where the place in the file is added
                    f"{shown(job_id)} is already in row {first}: give every job its own"
                )
            column = "vc"
            tenant = identifier(row[at_vc])
            column = "gpu_num"
            gpus = gpu_count(row[at_gpus])
            if not gpus:
                parsed.dropped[CPU_ONLY] += 1
                continue
            column = "duration"
            if row[at_duration].strip().lower() in _NOTHING:
                parsed.dropped[NEVER_RAN] += 1
                continue
            duration_ms = milliseconds(row[at_duration])
            column = "submit_time"
            submit_ms = clock_ms(row[at_submit])
            column = "user"
            user = one_line(row[at_user]) if at_user >= 0 else ""
        except FieldError as error:
            raise TraceError(f"{column} {error}", Location(file, line)) from None
        status = PASS if row[at_state].strip().upper() == "COMPLETED" else KILLED_OR_FAILED
        parsed.jobs.append(TraceJob(job_id, tenant, submit_ms, duration_ms, gpus, status, user))
    return from_first(parsed)
