"""Tiresias (NSDI'19) as HiveD's evaluation uses it: discretised two-dimensional least attained service."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hived.errors import InputError
from hived.scheduling import JobView, Policy


class Tiresias(Policy):
    """Queues by attained service, the GPU time that a job has had: a job that reaches a limit is in the next queue.

    In a queue running jobs come before waiting ones, and then first in, first out. Jobs are taken in this order as far
    as they fit, those that do not are passed, and running jobs that are not taken are suspended: a job takes GPUs from
    jobs of later queues alone. The limits are those of the authors' simulator, and no duration is needed.

    Jobs on loan are sorted likewise, as jobs that wait for their turn: within a tenant, a loan is taken back for a job
    of an earlier queue, and for one that came into the same queue earlier.
    """

    name = "tiresias"
    preempts = True
    patience = inf

    def __init__(self, limits: Sequence[float] | float = (3_250.0, 7_200.0)) -> None:
        """``limits``: attained service in GPU-seconds from which a job is in the next queue, ascending."""
        limits = (limits,) if isinstance(limits, int | float | str) else tuple(limits)
        try:
            self.limits = tuple(float(limit) for limit in limits)
        except ValueError:
            raise InputError(f"policy tiresias: the limits {list(limits)} must be numbers") from None
        if any(not low < high for low, high in zip((0.0, *self.limits), self.limits, strict=False)):
            raise InputError(f"policy tiresias: the limits {list(limits)} must be above 0 and ascend")

    def order(self, job: JobView) -> tuple[float, ...]:
        """By queue, running or not, and the time at which the job came into the queue."""
        return (self._queue(job), not job.running, job.reviewed)

    def review_after(self, job: JobView) -> float | None:
        """When it reaches the next limit."""
        queue = self._queue(job)
        return (self.limits[queue] - job.attained) / job.gpus if queue < len(self.limits) else inf

    def _queue(self, job: JobView) -> int:
        # a clock's seconds are no whole numbers: a ten-thousandth of a GPU-second is no difference
        return sum(job.attained >= limit - 1e-4 for limit in self.limits)
