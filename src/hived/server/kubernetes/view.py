"""The dashboard's view of the engine on Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence

from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.gangs.explaining import GangExplainer
from hived.engines.kubernetes.gangs.gang import Gang
from hived.errors import NotFoundError
from hived.server import pictures
from hived.server.histories import ended_jobs, story
from hived.server.live import DashboardView, Now
from hived.server.live_timeline import Life

_EXAMPLE = "kubectl apply -f job.yaml  # pods with the label hived.io/vc: NAME, GPUs, schedulerName: hived"


def kubernetes_view(engine: Engine, label: str) -> DashboardView[Gang]:
    """The dashboard of a started ``engine``; ``label``: the cluster's name."""
    return DashboardView(_Running(engine), label, title=label, synthetic=False, example=_EXAMPLE)


class _Running:
    """Implements :class:`~hived.server.live.RunningEngine`.

    A replica that does not decide has no gang scheduler, and shows an empty cluster. A new leader has a new scheduler;
    its events are numbered on here, so that no incremental update spans two schedulers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.clock, self.started_at = engine.clock, engine.started_at
        self._gang_scheduler = engine.gang_scheduler
        #: offset of event numbers: all numbers given out before ``_gang_scheduler`` are below it
        self._first = 0

    def now(self) -> Now[Gang]:
        if self._gang_scheduler is not self._engine.gang_scheduler:
            self._first += 1 if self._gang_scheduler is None else self._gang_scheduler.seq + 1
            self._gang_scheduler = self._engine.gang_scheduler
        gang_scheduler, first = self._gang_scheduler, self._first
        if gang_scheduler is None:
            return Now(self._engine.spec, first, first=first)
        return Now(
            gang_scheduler.cluster.spec,
            first + gang_scheduler.seq,
            gang_scheduler.usage,
            gang_scheduler.cluster,
            gang_scheduler.recent,
            first,
            gang_scheduler.gangs,
            gang_scheduler.reserved(),
            gang_scheduler.nodes.faulty,
            gang_scheduler.nodes.kept,
            trading=gang_scheduler.trading,
        )

    async def changed(self, seq: int) -> None:
        first = self.now().first
        if seq >= first:
            await self._engine.changed(seq - first)

    def waiting(self, most: int) -> Sequence[Gang]:
        return () if self._gang_scheduler is None else self._gang_scheduler.waiting(most)

    def shortly(self, job: Gang) -> list[str]:
        return [] if self._gang_scheduler is None else GangExplainer(self._gang_scheduler).shortly(job)

    def story(self, ref: str) -> pictures.Story:
        """From what is remembered of it."""
        gang_scheduler = self._gang_scheduler
        gang = None if gang_scheduler is None else gang_scheduler.gangs.get(ref) or gang_scheduler.ended.get(ref)
        if gang_scheduler is None or gang is None:
            raise NotFoundError(f"no group {ref!r} waits or runs, nor is one remembered that has ended")
        return story(gang, gang.history, GangExplainer(gang_scheduler).explain(gang, self.clock()))

    async def lives(self, start: float, end: float) -> list[Life]:
        """Of the jobs that are remembered."""
        gang_scheduler = self._gang_scheduler
        known = () if gang_scheduler is None else (*gang_scheduler.ended.values(), *gang_scheduler.gangs.values())
        return [
            Life(gang.id, gang.key, gang.name, gang.vc, gang.gpus, list(gang.history))
            for gang in known
            if gang.history[0].at < end and (gang.ended_at is None or gang.ended_at > start)
        ]

    def ended(self, offset: int, limit: int) -> pictures.EndedJobs:
        """The latest, as far as they are remembered."""
        ended = [] if self._gang_scheduler is None else [*self._gang_scheduler.ended.values()][::-1]
        return ended_jobs(ended[offset : offset + limit], len(ended))
