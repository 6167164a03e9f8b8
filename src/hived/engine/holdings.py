"""Who has had GPUs, from when until when: what GPU hours are summed of.

A :class:`Holding` is a stretch of time in which a job has had a number of GPUs in one way, or a virtual cluster has
reserved some. They follow from the events of jobs, and are stored with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from .job import EngineJob
from .states import JobState


class Use(StrEnum):
    """What GPUs are to who has them."""

    GUARANTEED = "guaranteed"  #: in use, on cells of its virtual cluster
    OPPORTUNISTIC = "opportunistic"  #: in use, on a loan
    GUEST = "guest"  #: in use, beside their owner
    SUSPENDED = "suspended"  #: of a job that stands still: others may be at work there
    RESERVED = "reserved"  #: of a virtual cluster, whoever is at work there


class Holding(NamedTuple):
    """GPUs for some time. Times are in seconds since the epoch."""

    job: int | None  #: None: of a virtual cluster
    user: str
    vc: str
    use: Use
    gpus: int
    start: float
    end: float | None = None  #: None: until now

    @property
    def key(self) -> str:
        """Which of its time it is: there is one of each job and of each virtual cluster."""
        return f"vc {self.vc}" if self.job is None else str(self.job)


class Account(NamedTuple):
    """What GPUs were to a user in a virtual cluster, in one way."""

    user: str  #: "": to the virtual cluster as a whole
    vc: str
    use: Use
    gpu_s: float
    jobs: int


class Accounts(NamedTuple):
    """What GPUs were to users and virtual clusters between two times."""

    of: list[Account]
    jobs: dict[
        tuple[str, str], int
    ]  #: that had GPUs, by user and virtual cluster: a job may have had them in several ways


def summed(holdings: Iterable[Holding], start: float, end: float) -> Accounts:
    """GPU seconds between two times, by user, virtual cluster and use. O(holdings)."""
    seconds: dict[tuple[str, str, Use], float] = {}
    jobs: dict[tuple[str, str, Use], set[int]] = {}
    for of in holdings:
        first, last = max(start, of.start), end if of.end is None else min(end, of.end)
        if first < last:
            key = of.user, of.vc, of.use
            seconds[key] = seconds.get(key, 0.0) + of.gpus * (last - first)
            known = jobs.setdefault(key, set())
            if of.job is not None:
                known.add(of.job)
    each: dict[tuple[str, str], set[int]] = {}
    for (user, vc, _), some in jobs.items():
        each.setdefault((user, vc), set()).update(some)
    of_all = {key: len(some) for key, some in each.items() if some}
    return Accounts([Account(*key, seconds[key], len(jobs[key])) for key in sorted(seconds)], of_all)


def use_of(job: EngineJob) -> Use:
    """What its GPUs are to a job that holds some."""
    if job.state is JobState.SUSPENDED:
        return Use.SUSPENDED
    if job.guest:
        return Use.GUEST
    return Use.GUARANTEED if job.guaranteed else Use.OPPORTUNISTIC


class Holdings:
    """The holdings of now, and those that have changed since they were taken last."""

    def __init__(self, records: bool = False) -> None:
        """``records``: whether what changes is kept until it is taken, to be stored."""
        #: by key, those without an end
        self.open: dict[str, Holding] = {}
        self._records = records
        self._changed: list[Holding] = []
        #: by virtual cluster and use: GPUs now, GPU seconds until a time, and what was said of these last
        self._sums: dict[tuple[str, Use], _Sum] = {}

    def restore(self, known: Iterable[Holding], at: float) -> None:
        """Go on with the holdings without an end, of an engine before."""
        self.open = {holding.key: holding for holding in known}
        self.count_from(at)

    def count_from(self, at: float) -> None:
        """Begin the sums at ``at``: those of a counter, which an engine before had counted until it ended."""
        self._sums = {}
        for holding in self.open.values():
            self._sum(holding, at).add(holding.gpus, at)

    def since(self, key: str, start: float) -> None:
        """An open holding has begun at ``start``, as somebody knows who has seen it begin."""
        self.open[key] = self.open[key]._replace(start=start)

    @property
    def changed(self) -> bool:
        """Whether there is something to :meth:`take`."""
        return bool(self._changed)

    def follow(self, job: EngineJob, at: float) -> None:
        """Take in what an event has made of a job. O(1)."""
        if job.placement is None or not job.holds:
            self._becomes(str(job.id), None, at)
            return
        gpus, user = job.placement.gpus, job.entry.view.user
        self._becomes(str(job.id), Holding(job.id, user, job.vc, use_of(job), gpus, at), at)

    def reserve(self, gpus: dict[str, int], at: float) -> None:
        """Take in what virtual clusters reserve from now on. O(virtual clusters)."""
        before = {holding.vc for holding in self.open.values() if holding.job is None}
        for vc in dict.fromkeys([*before, *gpus]):
            number = gpus.get(vc, 0)
            now = Holding(None, "", vc, Use.RESERVED, number, at) if number else None
            self._becomes(f"vc {vc}", now, at)

    def take(self) -> list[Holding]:
        """What has changed since the last call: those that have ended, and begun, in this order."""
        changed, self._changed = self._changed, []
        return changed

    def _becomes(self, key: str, now: Holding | None, at: float) -> None:
        before = self.open.get(key)
        if before is not None:
            if now is not None and now._replace(start=before.start) == before:
                return
            del self.open[key]
            at = max(at, before.start)  # a clock may have been set back
            self._sum(before, at).add(-before.gpus, at)
            if self._records:
                self._changed.append(before._replace(end=at))
        if now is not None:
            now = self.open[key] = now._replace(start=at)
            self._sum(now, at).add(now.gpus, at)
            if self._records:
                self._changed.append(now)

    def _sum(self, holding: Holding, at: float) -> _Sum:
        return self._sums.setdefault((holding.vc, holding.use), _Sum(at))

    def gpu_seconds(self, now: float) -> dict[tuple[str, Use], float]:
        """Sums so far, by virtual cluster and use, which never fall. O(virtual clusters)."""
        return {key: total.at(now) for key, total in self._sums.items()}


class _Sum:
    """GPU seconds of a number of GPUs that changes."""

    def __init__(self, since: float) -> None:
        self._gpus, self._total, self._until, self._told = 0, 0.0, since, 0.0

    def add(self, gpus: int, at: float) -> None:
        """There are so many more from a time on, which may be a little before the last one."""
        self._total += self._gpus * (at - self._until)
        self._gpus, self._until = self._gpus + gpus, at

    def at(self, now: float) -> float:
        self._told = max(self._told, self._total + self._gpus * (now - self._until))
        return self._told
