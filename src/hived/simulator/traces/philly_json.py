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
from .fields import MAX_GPUS, TOO_LARGE, TWICE, FieldError, identifier, one_line, shown
from .formats import KILLED_OR_FAILED, PASS, Parsed, clock_ms, from_first
from .model import RUNNING, TraceJob

NO_RUN_TIME = "no run time"
NO_GPUS = "no GPUs"
NO_SUBMISSION = "no submission time"
BACKWARDS = "an attempt ends before it starts"

_FIELDS = ("jobid", "vc", "status", "submitted_time", "attempts")


#: the start and the end of an attempt in milliseconds; no end: it still runs
_Attempt = tuple[int, int | None]


def parse(text: str, parsed: Parsed) -> None:
    """Add the jobs of the log that ran on GPUs to ``parsed``, the first submission at 0; the others by reason.

    A job's duration is the time during which it has an attempt: those that overlap count once. Its GPUs are those of
    its largest attempt. A job whose last attempt has no end still ran when the log was taken, and has its time until
    the latest time in the log; any other attempt without a start or an end adds nothing. A log kept in local time
    steps back once a year: a job with an attempt that ends before it starts is left out. O(length of the text).

    Raises :class:`~hived.errors.TraceError` for broken JSON (line and column). An entry that is no job of this format
    is a bad row, told by its place in the list, counted from 1.
    """
    file = parsed.file
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
    seen: dict[str, int] = {}
    read: list[tuple[TraceJob, list[_Attempt]]] = []
    last = 0
    for row, entry in enumerate(entries, start=1):
        try:
            job, attempts = _job(entry)
            first = seen.setdefault(job.job_id, row)
            if first != row:
                raise FieldError(  # noqa: TRY301 - caught below, where the place in the file is added
                    f"jobid {shown(job.job_id)} is already job {first} of the list: give every job its own",
                    f"jobid {TWICE}",
                )
        except FieldError as error:
            parsed.refuse(FieldError(f"job {row} of the list: {error}", error.kind), Location(file))
            continue
        last = max([last, job.submit_ms, *(time for attempt in attempts for time in attempt if time is not None)])
        read.append((job, attempts))
    for job, attempts in read:
        lasts = _covered(attempts, last)
        why_not = (
            BACKWARDS if lasts is None
            else NO_GPUS if not job.gpus
            else NO_RUN_TIME if not lasts
            else NO_SUBMISSION if job.submit_ms < 0
            else None
        )  # fmt: skip
        if why_not is None:
            assert lasts is not None
            parsed.jobs.append(job._replace(duration_ms=lasts))
        else:
            parsed.dropped[why_not] += 1
    parsed.jobs = from_first(parsed.jobs)


def _covered(attempts: list[_Attempt], last: int) -> int | None:
    """The milliseconds in which at least one attempt runs, until ``last``; None if one ends before it starts."""
    total = until = 0
    for start, end in sorted((start, last if end is None else end) for start, end in attempts):
        if end < start:
            return None
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total


def _job(entry: dict[str, Any]) -> tuple[TraceJob, list[_Attempt]]:
    """The job of one entry, but for its duration (its submission below 0: unknown), and its attempts."""
    job_id = _text(entry, "jobid")
    missing = next((name for name in _FIELDS if name not in entry), None)
    if missing:
        raise FieldError(f"{missing} is missing: a job has {', '.join(_FIELDS)}", f"{missing} missing")
    tenant = _text(entry, "vc")
    status = PASS if entry["status"] == "Pass" else KILLED_OR_FAILED
    attempts: list[_Attempt] = []
    gpus = 0
    listed = _items(entry, "attempts")
    for attempt in listed:
        start, end = _time(attempt, "start_time"), _time(attempt, "end_time")
        running = end is None and attempt is listed[-1]
        if start is not None and (end is not None or running):
            attempts.append((start, end))
            status = RUNNING if running else status
        gpus = max(gpus, sum(len(_list(detail, "gpus")) for detail in _items(attempt, "detail")))
    if gpus > MAX_GPUS:
        raise FieldError(f"has {gpus} GPUs, above the limit of {MAX_GPUS}", f"GPUs {TOO_LARGE}")
    submit = _time(entry, "submitted_time")
    return TraceJob(job_id, tenant, -1 if submit is None else submit, 0, gpus, status, _user(entry)), attempts


def _user(entry: dict[str, Any]) -> str:
    """The user, where the log has one."""
    value = entry.get("user")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise FieldError(f"user is {shown(str(value))}, not text", "user not text")
    try:
        return one_line(value)
    except FieldError as error:
        raise FieldError(f"user {error}", f"user {error.kind}") from None


def _text(entry: object, name: str) -> str:
    if not isinstance(entry, dict):
        raise FieldError(f"is {shown(str(entry))}, not an object with {', '.join(_FIELDS)}", "not an object")
    value = entry.get(name)
    if not isinstance(value, str):
        raise FieldError(f"{name} is {shown(str(value))}, not text: every job needs one", f"{name} not text")
    try:
        return identifier(value)
    except FieldError as error:
        raise FieldError(f"{name} {error}", f"{name} {error.kind}") from None


def _list(entry: dict[str, Any], name: str) -> list[Any]:
    value = entry.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise FieldError(f"{name} is {shown(str(value))}, not a list", f"{name} not a list")
    return value


def _items(entry: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = _list(entry, name)
    for item in items:
        if not isinstance(item, dict):
            raise FieldError(f"{name} holds {shown(str(item))}, not an object", f"{name} not an object")
    return items


def _time(entry: dict[str, Any], name: str) -> int | None:
    value = entry.get(name)
    if value is None or value in ("", "None"):
        return None
    if not isinstance(value, str):
        raise FieldError(
            f"{name} is {shown(str(value))}, not a time: give YYYY-MM-DD HH:MM:SS or null", f"{name} not a time"
        )
    try:
        return clock_ms(value)
    except FieldError as error:
        raise FieldError(f"{name} {error}", f"{name} {error.kind}") from None
