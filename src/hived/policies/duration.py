"""Policies that know how long jobs run: a bound for those that do not."""

from __future__ import annotations

from math import inf

from hived.scheduling import JobView, Policy


class SJF(Policy):
    """Shortest job first: the shortest that waits is next, and nobody passes it."""

    name = "sjf"
    clairvoyant = True

    def order(self, job: JobView) -> tuple[float, ...]:
        """By duration."""
        return (job.duration or 0.0, job.submitted)


class SRTF(Policy):
    """Shortest remaining time first: the jobs with the least work left run; those that do not fit are passed."""

    name = "srtf"
    clairvoyant = True
    preempts = True
    patience = inf

    def order(self, job: JobView) -> tuple[float, ...]:
        """By the work that is left; a running job before one that waits with as much."""
        return (job.remaining or 0.0, not job.running, job.submitted)

    def review_after(self, job: JobView) -> float | None:
        """The work that is left of a running job decreases all the time."""
        return None
