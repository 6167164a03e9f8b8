"""Who has how much, counted as jobs change: for fair turns at loans, and for people who look."""

from __future__ import annotations

from collections import Counter

from .jobs import Job
from .model import JobState


class Occupancy:
    """Sums over jobs. :meth:`remove` before a job changes, :meth:`add` after. O(tasks of the job)."""

    def __init__(self) -> None:
        #: GPUs in guaranteed use, per virtual cluster
        self.used: Counter[str] = Counter()
        #: GPUs held opportunistically, per virtual cluster
        self.lent: Counter[str] = Counter()
        #: jobs that hold no GPUs, per virtual cluster
        self.waiting: Counter[str] = Counter()
        #: jobs per state
        self.states: Counter[str] = Counter()
        #: GPUs in guaranteed use, per node that has any
        self.nodes: Counter[str] = Counter()
        #: guaranteed jobs that run as opportunistic for now
        self.displaced: dict[int, Job] = {}

    def add(self, job: Job) -> None:
        """It counts."""
        self._count(job, 1)
        if job.state.holds and not job.guaranteed and not job.spec.opportunistic:
            self.displaced[job.id] = job

    def remove(self, job: Job) -> None:
        """It does not count any more."""
        self._count(job, -1)
        self.displaced.pop(job.id, None)

    def _count(self, job: Job, sign: int) -> None:
        vc = job.spec.vc
        if job.state.ended:
            return
        self.states[job.state.value] += sign
        if not job.state.holds:
            self.waiting[vc] += sign
        elif not job.guaranteed:
            self.lent[vc] += sign * job.gpus
        else:
            self.used[vc] += sign * job.gpus
            for pod in job.placement.pods if job.placement is not None else ():
                left = self.nodes[pod.node] + sign * len(pod.leaf_cells)
                if left:
                    self.nodes[pod.node] = left
                else:
                    del self.nodes[pod.node]

    @property
    def reserved_waiting(self) -> int:
        """Jobs that wait with a reservation."""
        return self.states[JobState.RESERVED.value]
