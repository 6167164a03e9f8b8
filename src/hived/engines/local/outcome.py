"""What becomes of a job whose tasks are all gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .jobs import Job
from .model import JobEvent

#: the longest pause before a failed job is queued again, in seconds
MOST_BACKOFF_S = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The event that an attempt ends with."""

    event: JobEvent
    code: int | None = None
    why: str = ""
    delay_s: float = 0.0  #: before it is queued again, where it is

    def data(self, at: float) -> dict[str, object]:
        """For the event, at that time."""
        plain: dict[str, object] = {"code": self.code, "why": self.why}
        return {**plain, "at": at + self.delay_s} if self.event is JobEvent.RETRYING else plain


def outcome(job: Job) -> Outcome:
    """By how its tasks have ended, and what it was told to stop for.

    A job whose tasks all ended well by themselves has succeeded, even if it was about to be stopped. One that was told
    to make room is queued again, whatever its exit code: who saves its state and leaves with 0 is not done yet.
    """
    endings = [job.endings[rank] for rank in sorted(job.endings)]
    if all(ending["code"] == 0 and not ending["stopped"] for ending in endings):
        return Outcome(JobEvent.SUCCEEDED, 0)
    if job.stopping_for == "cancelled":
        return Outcome(JobEvent.CANCELLED, None, job.reason)
    if job.stopping_for in ("preempted", "moved", "drained"):
        return Outcome(JobEvent.PREEMPTED, None, job.reason)
    first = _blamed(list(job.endings.values()))
    if first["rebooted"]:
        return Outcome(JobEvent.PREEMPTED, None, first["error"])
    which = f"task {first['rank']}" if job.spec.tasks > 1 else "it"
    if first["limit"] or job.stopping_for == "time_limit":
        return Outcome(
            JobEvent.FAILED, first["code"], f"{which} ran into its time limit of {job.spec.time_limit_s:g} s"
        )
    why = f"{which} ended with exit code {first['code']}"
    if first["error"]:
        why = (
            f"{which} could not go on: {first['error']}"
            if first["lost"]
            else f"{which} could not be started: {first['error']}"
        )
    elif first["stopped"]:
        why = f"{which} was told to stop by somebody else"
    elif first["signal"]:
        why = f"{which} was ended by signal {first['signal']}"
    if job.retries < job.spec.retries:
        delay = min(MOST_BACKOFF_S, job.spec.backoff_s * 2.0 ** min(job.retries, 30))
        return Outcome(JobEvent.RETRYING, first["code"], why, delay)
    return Outcome(JobEvent.FAILED, first["code"], why)


def _blamed(endings: list[dict[str, Any]]) -> dict[str, Any]:
    """The first of those that failed by themselves, in the order in which they ended; else the first told to stop."""
    for ending in endings:
        if ending["limit"] or (not ending["stopped"] and (ending["code"] or ending["lost"])):
            return ending
    return next(ending for ending in endings if ending["code"] or ending["stopped"])
