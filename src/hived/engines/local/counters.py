"""Counters of jobs that share GPUs, since the engine started; :mod:`hived.server.local_metrics` exports them."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from hived.cluster.decisions import Placement
from hived.engine.histogram import Histogram
from hived.engine.job import Event
from hived.engine.states import JobEvent
from hived.scheduling import Status

from .model import Job, Obeying

#: upper bounds of the durations of suspensions and resumptions, in seconds
CHANGES_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Cause(StrEnum):
    """Why a job is suspended or goes on."""

    TURN = "turn"  #: other jobs, or itself, have their turn on these GPUs
    GUEST = "guest"  #: it is a guest, which may not run beside the owner, or may again
    HAND = "hand"  #: somebody has told it so
    MOVED = "moved"  #: it goes on on other GPUs


class Counts:
    """Suspensions and resumptions. An event costs O(1), a resumption O(GPUs of its job)."""

    def __init__(self) -> None:
        self.suspensions: Counter[Cause] = Counter()
        self.resumptions: Counter[Cause] = Counter()
        self.suspension_s, self.resumption_s = Histogram(CHANGES_S), Histogram(CHANGES_S)
        #: device memory that suspensions have copied to the host
        self.bytes_to_host = 0
        #: suspended jobs that were held by hand last
        self._by_hand: set[int] = set()
        #: jobs that were told to go on, and have not been seen running since
        self._going_on: set[int] = set()

    def follow(self, job: Job, event: Event, before: Placement | None, guests: bool) -> None:
        """Count an event that has changed ``job``, with GPUs of ``before``; ``guests``: the policies have some."""
        number, data = job.id, event.data
        if event.kind == JobEvent.SUSPENDED:
            if job.by_hand or job.entry.halted:
                self._by_hand.add(number)
            if "seconds" in data:  # else it stands still already, and why that is has changed
                self._going_on.discard(number)
                self.suspensions[self._cause(job, job.entry.status is Status.MOVING, guests)] += 1
                self.suspension_s.add(data["seconds"])
                self.bytes_to_host += data["bytes"]
        elif event.kind == JobEvent.RESUMED:
            if "seconds" in data or job.entry.halted:  # found so on its page, or told by a user or a timer
                self._by_hand.add(number)
            elsewhere = before is not None and set(before.devices()) != set(job.devices())
            self.resumptions[self._cause(job, elsewhere, guests)] += 1
            self._by_hand.discard(number)
            self._going_on.add(number)
        elif not job.holds:
            self._by_hand.discard(number)
            self._going_on.discard(number)

    def look(self, job: Job, doing: Obeying) -> None:
        """The page of a job that holds GPUs: once it runs, how long its resumption took is known."""
        if job.id in self._going_on and not doing.suspended:
            self._going_on.discard(job.id)
            self.resumption_s.add(doing.took_s)

    def _cause(self, job: Job, moved: bool, guests: bool) -> Cause:
        if moved:
            return Cause.MOVED
        return Cause.HAND if job.id in self._by_hand else Cause.GUEST if guests else Cause.TURN
