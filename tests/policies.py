"""Policies that tests run beside YARN-CS."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hived.cells import HostClass
from hived.cluster.pool import packed
from hived.scheduling import Displaced, JobView, Reaction


class NeverPreempts:
    """What a policy says that leaves running jobs of a VC alone."""

    preempts = False

    def review_after(self, job: JobView) -> float | None:
        return None


@dataclass(frozen=True)
class LeastAttained:
    """Queues by attained service; first come, first served in each (discretised LAS; Tiresias, NSDI'19)."""

    #: attained service from which a job is in the next queue
    limits: tuple[float, ...]
    displaced: Reaction = Reaction.SUSPEND
    name: str = "least-attained"
    preempts: bool = True

    def order(self, job: JobView) -> tuple[int, ...]:
        return sum(_reached(job, limit) for limit in self.limits), job.submitted, job.sequence

    def review_after(self, job: JobView) -> float | None:
        ahead = [limit for limit in self.limits if not _reached(job, limit)]
        return (ahead[0] - job.attained) / job.gpus if ahead else inf

    def rank(self, host: HostClass, gpus: int) -> tuple[int, ...] | None:
        return packed(host, gpus)

    def react(self, event: Displaced) -> Reaction:
        return self.displaced


def _reached(job: JobView, limit: float) -> bool:
    return job.attained >= limit - 1e-4  # seconds of a clock are no whole numbers
