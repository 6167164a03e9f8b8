"""Policies that go by the order of submission."""

from __future__ import annotations

from hived.cells import HostClass
from hived.scheduling import Policy


class YarnCS(Policy):
    """YARN-CS, as HiveD's evaluation describes it (OSDI'20, section 5.1, after the Capacity Scheduler used in Philly).

    First come, first served within a tenant; jobs packed as close together as possible; and victims selected by the
    affinity that the waiting job needs: the node that fits it with the fewest opportunistic GPUs preempted, rather than
    the job that started last. All of it is what :class:`~hived.scheduling.Policy` does by default.
    """

    name = "yarn-cs"


class FIFO(Policy):
    """First come, first served, each job on the first host that fits it: no packing."""

    name = "fifo"

    def rank(self, host: HostClass, gpus: int) -> tuple[float, ...] | None:
        """Fewest GPUs to preempt; among these any host, so that the one with the lowest number is taken."""
        return (max(0, gpus - host.idle.free),)


class Greedy(Policy):
    """A job that does not fit is passed by those behind it, until it has waited too long.

    From then on the GPUs that become free in its VC are kept for it: nobody behind it starts. So small jobs use what is
    left, and a large one waits ``patience`` seconds and the running jobs' time at most.
    """

    name = "greedy"

    def __init__(self, patience: float = 86_400.0) -> None:
        """``patience``: seconds since its submission after which nobody passes a job; a day."""
        self.patience = patience
