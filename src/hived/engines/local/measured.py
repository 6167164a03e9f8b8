"""What is measured of the jobs of one machine that obey, for schedulers that share GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from .model import Obeying

_GIB = 2.0**30
#: smaller differences are noise: of a utilization, and of memory in GiB
_STEP, _STEP_GIB = 0.05, 0.25
#: over which a utilization is measured (AntMan, 3.3)
_WINDOW_S = 10.0


class MeasuredProbe:
    """Implements :class:`~hived.scheduling.probe.Probe` and ``Served``. What was not measured is taken as worst."""

    def __init__(self) -> None:
        self._last: dict[int, Obeying] = {}
        #: seconds of a mini-batch while nobody was beside it
        self._alone: dict[int, float] = {}
        self._most: dict[int, float] = {}
        #: seconds for which it ran, and since when it runs
        self._ran: dict[int, float] = {}
        self._since: dict[int, float] = {}
        #: utilization, smoothed, and when it was measured last
        self._busy: dict[int, tuple[float, float]] = {}
        #: by job, its utilization and memory when a caller was last told that they have changed
        self._told: dict[int, tuple[float, float, float]] = {}

    def runs(self, job: int, at: float) -> None:
        """It runs from now on."""
        self._since.setdefault(job, at)

    def stands(self, job: int, at: float) -> None:
        """It runs no more."""
        since = self._since.pop(job, None)
        if since is not None:
            self._ran[job] = self._ran.get(job, 0.0) + max(0.0, at - since)

    def served(self, job: int, now: float) -> float:
        """See :meth:`Served.served`."""
        since = self._since.get(job, now)
        return self._ran.get(job, 0.0) + max(0.0, now - since)

    def measure(self, job: int, doing: Obeying, alone: bool, at: float) -> bool:
        """Take in what a job does; ``alone``: with nobody beside it on its GPUs. Whether its load is another now."""
        if doing.suspended or not doing.mini_batch_s:
            return False
        before = self._busy.get(job)
        weight = 1.0 if before is None else min(1.0, (at - before[1]) / _WINDOW_S)
        self._busy[job] = weight * doing.utilization + (1 - weight) * (before[0] if before is not None else 0.0), at
        self._last[job] = doing
        if doing.peak_bytes:
            self._most[job] = max(self._most.get(job, 0.0), doing.peak_bytes / _GIB)
        if alone:
            self._alone[job] = doing.mini_batch_s
        now, told = (self.utilization(job), self.memory_gib(job), self.memory_min_gib(job)), self._told.get(job)
        if told is not None and abs(now[0] - told[0]) < _STEP and now[1:] == told[1:]:
            return False
        self._told[job] = now
        return True

    def knows(self, job: int) -> bool:
        """Whether it has ended a mini-batch that was seen."""
        return job in self._last

    def forget(self, job: int) -> None:
        """It has ended."""
        for known in (self._last, self._alone, self._most, self._ran, self._since, self._told, self._busy):
            known.pop(job, None)

    def utilization(self, job: int) -> float:
        """See :meth:`Probe.utilization`."""
        return self._busy[job][0] if job in self._busy else 1.0

    def memory_gib(self, job: int) -> float:
        """See :meth:`Probe.memory_gib`."""
        return _rounded(self._most[job]) if job in self._most else inf

    def memory_min_gib(self, job: int) -> float:
        """See :meth:`Probe.memory_min_gib`; nothing of a job that was not measured: what it lacks is on the host."""
        return _rounded(self._last[job].least_bytes / _GIB) if job in self._last else 0.0

    def packed(self, job: int, others: Sequence[int]) -> float:
        """Nobody has measured them together: as if they took turns."""
        return 1.0 / (1 + len(others))

    def rate(self, job: int) -> float:
        """See :meth:`Probe.rate`."""
        last, alone = self._last.get(job), self._alone.get(job)
        return 1.0 if last is None or alone is None else min(1.0, alone / last.mini_batch_s)


def _rounded(gib: float) -> float:
    return ceil(gib / _STEP_GIB) * _STEP_GIB
