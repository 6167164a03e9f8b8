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
        return self._first(self._rank(job), most)

    def before(self, priority: int, most: int) -> tuple[int, list[Job]]:
        """The same of a new job with this priority."""
        return self._first(bisect_left(self._places, (-priority + 1,)), most)

    def _first(self, rank: int, most: int) -> tuple[int, list[Job]]:
        return rank, [self._jobs[place[-1]] for place in self._places[: min(rank, most)]]

    def _rank(self, job: Job) -> int:
        return bisect_left(self._places, self.place(job))

    def __getitem__(self, rank: int) -> Job:
        """Who is ``rank``-th, from 0."""
        return self._jobs[self._places[rank][-1]]

    def __contains__(self, job: object) -> bool:
        return isinstance(job, Job) and job.id in self._jobs

    def __len__(self) -> int:
        return len(self._places)
