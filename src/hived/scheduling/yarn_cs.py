"""YARN-CS, as HiveD's evaluation describes it (OSDI'20, section 5.1, after the Capacity Scheduler used in Philly).

First come, first served within a tenant; jobs packed as close together as possible; and opportunistic jobs preempted by
the affinity that the waiting job needs: the node where it can stand with the fewest of their GPUs taken, rather than
whichever job started last.
"""

from __future__ import annotations

from dataclasses import dataclass

from hived.cells import HostClass
from hived.cluster.pool import packed

from .policy import Displaced, JobView, Reaction


@dataclass(frozen=True, slots=True)
class YarnCS:
    """FIFO, packing, preemption by affinity. ``displaced`` says what a preempted job keeps."""

    displaced: Reaction = Reaction.SUSPEND
    name: str = "yarn-cs"

    def order(self, job: JobView) -> tuple[int, ...]:
        """By submission."""
        return job.submitted, job.sequence

    def rank(self, host: HostClass, gpus: int) -> tuple[int, ...] | None:
        """Fewest opportunistic GPUs to take, then closest together, then tightest."""
        return packed(host, gpus)

    def react(self, event: Displaced) -> Reaction:
        """Preempted at once; the cluster has no other use for a displaced job."""
        return self.displaced
