"""Reading the published Philly trace (``cluster_job_log``, JSON).

Format: https://github.com/msr-fiddle/philly-traces (CC-BY-4.0); "Analysis of Large-Scale Multi-Tenant GPU
Clusters for DNN Training Workloads", USENIX ATC'19. A list of jobs ``{status, vc, jobid, attempts:
[{start_time, end_time, detail: [{ip, gpus: [...]}]}], submitted_time, user}``; a time is ``YYYY-MM-DD
HH:MM:SS``, or null (or the word None) where the log has none.
"""

from __future__ import annotations

import json
from typing import Any

from ...errors import Location, TraceError
from .fields import MAX_GPUS, FieldError, identifier, one_line, shown
from .formats import KILLED_OR_FAILED, PASS, Parsed, clock_ms, from_first
from .model import TraceJob

NO_RUN_TIME = "no run time"
NO_GPUS = "no GPUs"
NO_SUBMISSION = "no submission time"
BACKWARDS = "an attempt ends before it starts"

_FIELDS = ("jobid", "vc", "status", "submitted_time", "attempts")


def parse(text: str, file: str) -> Parsed:
    """The jobs of the log that ran on GPUs, the first submission at 0; the others counted by reason.

    A job's duration is the sum of its attempts' ``end - start`` (an attempt without both adds nothing); its
    GPUs are those of its largest attempt. A log kept in local time steps back once a year: a job with an
    attempt that ends before it starts is left out. O(length of the text).

    Raises :class:`~hived.errors.TraceError` for broken JSON (line and column) and for an entry that is no
    job of this format (its place in the list, counted from 1).
    """
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"not readable as JSON (column {error.colno}: {error.msg}): fetch the file again",
            Location(file, error.lineno, error.colno),
        ) from None
    except (RecursionError, ValueError) as error:
        raise TraceError(f"not readable as JSON ({error}): fetch the file again", Location(file)) from None
    if not isinstance(entries, list):
        raise TraceError("the JSON is not a list of jobs: a Philly cluster_job_log begins with '['", Location(file))
    parsed = Parsed()
    seen: dict[str, int] = {}
    for row, entry in enumerate(entries, start=1):
        try:
            job_id = _text(entry, "jobid")
            first = seen.setdefault(job_id, row)
            if first != row:
                raise FieldError(  # noqa: TRY301 - caught below, where the place in the file is added
                    f"jobid {shown(job_id)} is already job {first} of the list: give every job its own"
                )
            job = _job(job_id, entry)
        except FieldError as error:
            raise TraceError(f"job {row} of the list: {error}", Location(file)) from None
        if isinstance(job, str):
            parsed.dropped[job] += 1
        else:
            parsed.jobs.append(job)
    return from_first(parsed)


def _job(job_id: str, entry: dict[str, Any]) -> TraceJob | str:
    """The job of one entry, or the reason to leave it out."""
    missing = next((name for name in _FIELDS if name not in entry), None)
    if missing:
        raise FieldError(f"{missing} is missing: a job has {', '.join(_FIELDS)}")
    tenant = _text(entry, "vc")
    run_ms = gpus = 0
    for attempt in _items(entry, "attempts"):
        start, end = _time(attempt, "start_time"), _time(attempt, "end_time")
        if start is not None and end is not None:
            if end < start:
                return BACKWARDS
            run_ms += end - start
        gpus = max(gpus, sum(len(_list(detail, "gpus")) for detail in _items(attempt, "detail")))
    if not gpus:
        return NO_GPUS
    if gpus > MAX_GPUS:
        raise FieldError(f"has {gpus} GPUs, above the limit of {MAX_GPUS}")
    if not run_ms:
        return NO_RUN_TIME
    submit = _time(entry, "submitted_time")
    if submit is None:
        return NO_SUBMISSION
    status = PASS if entry["status"] == "Pass" else KILLED_OR_FAILED
    return TraceJob(job_id, tenant, submit, run_ms, gpus, status, _user(entry))


def _user(entry: dict[str, Any]) -> str:
    """The user, where the log has one."""
    value = entry.get("user")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise FieldError(f"user is {shown(str(value))}, not text")
    try:
        return one_line(value)
    except FieldError as error:
        raise FieldError(f"user {error}") from None


def _text(entry: object, name: str) -> str:
    if not isinstance(entry, dict):
        raise FieldError(f"is {shown(str(entry))}, not an object with {', '.join(_FIELDS)}")
    value = entry.get(name)
    if not isinstance(value, str):
        raise FieldError(f"{name} is {shown(str(value))}, not text: every job needs one")
    try:
        return identifier(value)
    except FieldError as error:
        raise FieldError(f"{name} {error}") from None


def _list(entry: dict[str, Any], name: str) -> list[Any]:
    value = entry.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise FieldError(f"{name} is {shown(str(value))}, not a list")
    return value


def _items(entry: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = _list(entry, name)
    for item in items:
        if not isinstance(item, dict):
            raise FieldError(f"{name} holds {shown(str(item))}, not an object")
    return items


def _time(entry: dict[str, Any], name: str) -> int | None:
    value = entry.get(name)
    if value is None or value in ("", "None"):
        return None
    if not isinstance(value, str):
        raise FieldError(f"{name} is {shown(str(value))}, not a time: give YYYY-MM-DD HH:MM:SS or null")
    try:
        return clock_ms(value)
    except FieldError as error:
        raise FieldError(f"{name} {error}") from None
