"""The common result of all format readers, from which a :class:`~hived.simulator.traces.model.Trace` is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ...errors import Location, TraceError
from .fields import FieldError, shown
from .model import TraceJob

PASS = "pass"
KILLED_OR_FAILED = "killed_or_failed"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(slots=True)
class Parsed:
    """Jobs in the order of the file, and the number of jobs left out per reason."""

    file: str
    skip: bool = False  #: whether bad rows are left out; else :meth:`settle` refuses the file
    jobs: list[TraceJob] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)  #: rows that are wrong, by kind
    _first: TraceError | None = None

    def refuse(self, error: FieldError, where: Location, column: str = "") -> None:
        """Count a row that is wrong. O(1)."""
        self.bad[f"{column} {error.kind}".strip()] += 1
        if self._first is None:
            self._first = TraceError(f"{column} {error}".strip(), where)

    def settle(self) -> None:
        """Count bad rows among the jobs left out if they are skipped, else raise for the first one, with all kinds."""
        if self.skip:
            self.dropped.update({f"bad row: {kind}": count for kind, count in self.bad.items()})
        elif self._first is not None:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.bad.items()))
            total = self.bad.total()
            others = f"; {total:,} bad rows in all: {kinds}; --skip-bad-rows leaves them out" if total > 1 else ""
            raise TraceError(f"{self._first}{others or '; --skip-bad-rows leaves the row out'}")


def clock_ms(text: str) -> int:
    """A time ``YYYY-MM-DD HH:MM:SS`` (ISO 8601; no zone: UTC) in milliseconds since 1970, rounded half up.

    Raises :class:`~hived.simulator.traces.fields.FieldError` for anything else.
    """
    try:
        time = datetime.fromisoformat(text.strip(" "))
    except ValueError:
        raise FieldError(f"is {shown(text)}, not a time: give YYYY-MM-DD HH:MM:SS", "not a time") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return ((time - _EPOCH) // _MICROSECOND + 500) // 1000


def from_first(jobs: list[TraceJob]) -> list[TraceJob]:
    """The same jobs with their clock shifted so that the first submission is at 0. O(jobs)."""
    first = min((job.submit_ms for job in jobs), default=0)
    return [job._replace(submit_ms=job.submit_ms - first) for job in jobs]
