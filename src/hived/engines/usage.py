"""Sums over who holds GPUs and who waits, kept up to date as jobs change: for fair turns at loans, and for views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Generic, TypeVar

from hived.spec.compiled import Device

from .job import EngineJob

T = TypeVar("T", bound=EngineJob)


class Usage(Generic[T]):
    """Sums over jobs that have not ended. :meth:`remove` before one changes, :meth:`add` after. O(its GPUs)."""

    def __init__(self) -> None:
        #: GPUs in guaranteed use, per virtual cluster
        self.used: Counter[str] = Counter()
        #: GPUs held opportunistically, per virtual cluster
        self.lent: Counter[str] = Counter()
        #: jobs that hold no GPUs, per virtual cluster
        self.waiting: Counter[str] = Counter()
        #: jobs per virtual cluster and state
        self.states: Counter[tuple[str, str]] = Counter()
        #: GPUs in guaranteed use, per node that has any
        self.nodes: Counter[str] = Counter()
        #: guaranteed jobs that run as opportunistic for now, by name
        self.displaced: dict[str, T] = {}
        #: who has each device
        self.at: dict[Device, T] = {}

    def add(self, job: T) -> None:
        """It counts."""
        self._count(job, 1)
        if job.holds:
            if not job.guaranteed and job.priority >= 0:
                self.displaced[job.name] = job
            self.at.update(dict.fromkeys(_places(job), job))

    def remove(self, job: T) -> None:
        """It does not count any more."""
        self._count(job, -1)
        self.displaced.pop(job.name, None)
        if job.holds:
            for place in _places(job):
                self.at.pop(place, None)

    def per_state(self) -> Counter[str]:
        """Jobs per state. O(virtual clusters)."""
        found: Counter[str] = Counter()
        for (_, state), number in self.states.items():
            found[state] += number
        return found

    def _count(self, job: T, sign: int) -> None:
        vc = job.vc
        self.states[vc, job.state.value] += sign
        if not job.holds:
            self.waiting[vc] += sign
            return
        for node, _ in _places(job):
            if not job.guaranteed:
                self.lent[vc] += sign
                continue
            self.used[vc] += sign
            self.nodes[node] += sign
            if not self.nodes[node]:
                del self.nodes[node]


def _places(job: EngineJob) -> Iterable[Device]:
    return job.placement.devices() if job.placement is not None else ()
