"""The engine on Kubernetes as the dashboard sees it."""

from __future__ import annotations

from collections.abc import Sequence

from hived.cluster.explain.sentences import in_lines
from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.gangs.explaining import explain, shortly, tell
from hived.engines.kubernetes.gangs.gang import Gang
from hived.errors import NotFoundError
from hived.server import pictures, stays
from hived.server.live import DashboardView, Now, of

from .reading import waiting

_EXAMPLE = "kubectl apply -f job.yaml  # pods with the label hived.io/vc: NAME, GPUs, schedulerName: hived"
#: what a gang does after an event, beside what jobs of any engine do
AFTER: dict[str, stays.Doing | None] = {
    **stays.AFTER,
    "waiting": "waiting",
    "placed": "placed",
    "preempted": "stopping",
    "spared": "placed",
    "released": "waiting",
    "ended": None,
}


def kubernetes_view(engine: Engine, label: str) -> DashboardView[Gang]:
    """The dashboard of ``engine``, which has started, so that its spec is known; ``label``: the cluster's name."""
    return DashboardView(_Running(engine), label, label, example=_EXAMPLE)


class _Running:
    """Implements :class:`~hived.server.live.RunningEngine`.

    A replica that does not decide has no gang scheduler, and shows an empty cluster. One that comes to decide has a new
    scheduler; what happens in it is numbered on here, so that no update leads from the picture of one to another.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.clock, self.started_at = engine.clock, engine.started_at
        self._gang_scheduler = engine.gang_scheduler
        #: what is added to the number of an event: all numbers given out before ``_gang_scheduler`` are below it
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
        )

    async def changed(self, seq: int) -> None:
        first = self.now().first
        if seq >= first:
            await self._engine.changed(seq - first)

    def waiting(self, most: int) -> Sequence[Gang]:
        return () if self._gang_scheduler is None else waiting(self._gang_scheduler, most)

    def shortly(self, job: Gang) -> list[str]:
        return [] if self._gang_scheduler is None else shortly(self._gang_scheduler, job)

    def story(self, ref: str) -> pictures.Story:
        """From what is remembered of it."""
        gang_scheduler = self._gang_scheduler
        gang = None if gang_scheduler is None else gang_scheduler.gangs.get(ref) or gang_scheduler.ended.get(ref)
        if gang_scheduler is None or gang is None:
            raise NotFoundError(f"no group {ref!r} waits or runs, nor is one remembered that has ended")
        ended = gang_scheduler.gangs.get(ref) is not gang
        return pictures.Story(
            **of(gang),
            state="ended" if ended else gang.state.value,
            command="",
            explanation=tell(gang.history[-1]) if ended else in_lines(explain(gang_scheduler, gang, self.clock())),
            stays=stays.stays(gang.history, AFTER),
            moments=[pictures.Moment(at=event.at, text=tell(event)) for event in gang.history],
        )

    def ended(self, offset: int, limit: int) -> pictures.EndedJobs:
        """The latest, as far as they are remembered."""
        ended = [] if self._gang_scheduler is None else [*self._gang_scheduler.ended.values()][::-1]
        jobs = [
            pictures.Ended(**of(gang), state="ended", at=gang.history[-1].at, why=tell(gang.history[-1]))
            for gang in ended[offset : offset + limit]
        ]
        return pictures.EndedJobs(jobs=jobs, total=len(ended))
