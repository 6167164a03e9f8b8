"""YARN-CS, as HiveD's evaluation describes it (OSDI'20, section 5.1, after the Capacity Scheduler used in Philly).

First come, first served within a tenant; jobs packed as close together as possible; and opportunistic jobs preempted by
the affinity that the waiting job needs: the node where it can stand with the fewest of their GPUs taken, rather than
whichever job started last.
"""

from __future__ import annotations

from dataclasses import dataclass

from hived.cells import HostClass
from hived.cluster import ClusterView, Spots

from .protocols import Displaced, Reaction, Request


def pack(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """Rank of a host: fewest opportunistic GPUs to take, then closest together, then tightest.

    Fewest taken beats closeness: where some have to be taken, all idle GPUs of the host are used first. Inside a VC or
    a private cluster nothing is opportunistic, and the first number is always 0.
    """
    if host.free.free < gpus:
        return None
    taken = max(0, gpus - host.idle.free)
    level = host.free.level_for(gpus) if taken else host.idle.level_for(gpus)
    return taken, level, host.free.free


@dataclass(frozen=True, slots=True)
class YarnCS:
    """FIFO, packing, preemption by affinity. ``displaced`` says what a preempted job keeps."""

    displaced: Reaction = Reaction.SUSPEND
    name: str = "yarn-cs"

    def order(self, request: Request) -> tuple[int, ...]:
        """By submission."""
        return request.submitted, request.sequence

    def place(self, view: ClusterView, gpus: int) -> Spots | None:
        """As close as possible; O(classes of hosts)."""
        return view.closest(gpus, pack)

    def react(self, view: ClusterView, event: Displaced) -> Reaction:
        """Preempted at once; the cluster has no other use for a displaced job."""
        return self.displaced
