"""The common result of all format readers, from which a :class:`~hived.simulator.traces.model.Trace` is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from .fields import FieldError, shown
from .model import TraceJob

PASS = "pass"
KILLED_OR_FAILED = "killed_or_failed"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(slots=True)
class Parsed:
    """Jobs in the order of the file, and the number of jobs left out per reason."""

    jobs: list[TraceJob] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)


def clock_ms(text: str) -> int:
    """A time ``YYYY-MM-DD HH:MM:SS`` (ISO 8601; no zone: UTC) in milliseconds since 1970, rounded half up.

    Raises :class:`~hived.simulator.traces.fields.FieldError` for anything else.
    """
    try:
        time = datetime.fromisoformat(text.strip(" "))
    except ValueError:
        raise FieldError(f"is {shown(text)}, not a time: give YYYY-MM-DD HH:MM:SS") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return ((time - _EPOCH) // _MICROSECOND + 500) // 1000


def from_first(parsed: Parsed) -> Parsed:
    """The same jobs with their clock shifted so that the first submission is at 0. O(jobs)."""
    first = min((job.submit_ms for job in parsed.jobs), default=0)
    jobs = [job._replace(submit_ms=job.submit_ms - first) for job in parsed.jobs]
    return Parsed(jobs, parsed.dropped)
