"""Policies that tests run beside those of the product."""

from __future__ import annotations

from math import inf

from hived.scheduling import JobView, Policy, Reaction


class LeastAttained(Policy):
    """Queues by attained service; first come, first served in each; nobody is passed."""

    name = "least-attained"
    preempts = True

    def __init__(self, limits: tuple[float, ...], displaced: Reaction = Reaction.SUSPEND) -> None:
        """``limits``: attained service in GPU-seconds from which a job is in the next queue."""
        self.limits, self.displaced = limits, displaced

    def order(self, job: JobView) -> tuple[float, ...]:
        return sum(_reached(job, limit) for limit in self.limits), job.submitted, job.sequence

    def review_after(self, job: JobView) -> float | None:
        ahead = [limit for limit in self.limits if not _reached(job, limit)]
        return (ahead[0] - job.attained) / job.gpus if ahead else inf


class Swaps(Policy):
    """The job that has attained the least runs, judged anew every second: two jobs displace each other for ever."""

    name = "swaps"
    preempts = True

    def order(self, job: JobView) -> tuple[float, ...]:
        return (job.attained,)

    def review_after(self, job: JobView) -> float | None:
        return 1.0


def _reached(job: JobView, limit: float) -> bool:
    return job.attained >= limit - 1e-7  # seconds of a clock are no whole numbers
