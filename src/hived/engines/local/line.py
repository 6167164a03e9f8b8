"""Who is next: the waiting jobs of one virtual cluster, in the order of its policy."""

from __future__ import annotations

from bisect import bisect_left, insort

from hived.policies import Policy, Request

from .jobs import Job

#: place in a line: the higher priority, then what the policy says, then the number of the job
Place = tuple[int, ...]


class Line:
    """Jobs by place. Nobody passes anybody: who looks takes the first, and goes on only once that has started.

    O(log jobs) to find a place.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._places: list[Place] = []
        self._jobs: dict[int, Job] = {}

    def place(self, job: Job) -> Place:
        """Where ``job`` belongs. It never changes, so a job that was preempted or failed comes back to it."""
        submitted = round(job.submitted_at * 1000)
        order = self._policy.order(Request(job.name, job.gpus, submitted, job.id))
        return (-job.spec.priority, *order, job.id)

    def add(self, job: Job) -> None:
        """``job`` waits from now on."""
        insort(self._places, self.place(job))
        self._jobs[job.id] = job

    def remove(self, job: Job) -> None:
        """``job`` waits no more."""
        del self._places[self._rank(job)]
        del self._jobs[job.id]

    def ahead(self, job: Job, most: int) -> tuple[int, list[Job]]:
        """How many are before ``job``, and the first ``most`` of them."""
        rank = bisect_left(self._places, self.place(job))
        return rank, [self._jobs[place[-1]] for place in self._places[: min(rank, most)]]

    def before(self, priority: int) -> list[Job]:
        """Who would be before a new job of this priority, in order."""
        rank = bisect_left(self._places, (-priority + 1,))
        return [self._jobs[place[-1]] for place in self._places[:rank]]

    def _rank(self, job: Job) -> int:
        return bisect_left(self._places, self.place(job))

    def __getitem__(self, rank: int) -> Job:
        """Who is ``rank``-th, from 0."""
        return self._jobs[self._places[rank][-1]]

    def __contains__(self, job: object) -> bool:
        return isinstance(job, Job) and job.id in self._jobs

    def __len__(self) -> int:
        return len(self._places)
