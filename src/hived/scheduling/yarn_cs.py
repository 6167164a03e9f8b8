"""YARN-CS, as HiveD's evaluation describes it (OSDI'20, section 5.1, after the Capacity Scheduler used in Philly).

First come, first served within a tenant; jobs packed as close together as possible; and victims selected by the
affinity that the waiting job needs: the node that fits it with the fewest opportunistic GPUs preempted, rather than the
job that started last.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hived.cells import HostClass
from hived.cluster.pool import packed

from .policy import Displaced, JobView, Reaction


@dataclass(frozen=True, slots=True)
class YarnCS:
    """FIFO, packing, preemption by affinity. ``displaced``: what a preempted job keeps."""

    displaced: Reaction = Reaction.SUSPEND
    name: str = "yarn-cs"
    preempts: bool = False

    def order(self, job: JobView) -> tuple[int, ...]:
        """Order of submission."""
        return job.submitted, job.sequence

    def review_after(self, job: JobView) -> float | None:
        """The order of submission does not change."""
        return inf

    def rank(self, host: HostClass, gpus: int) -> tuple[int, ...] | None:
        """Fewest opportunistic GPUs to preempt, then closest together, then tightest fit."""
        return packed(host, gpus)

    def react(self, event: Displaced) -> Reaction:
        """The configured reaction, whatever the victim."""
        return self.displaced
