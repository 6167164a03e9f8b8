"""The engine of one machine as the dashboard sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hived.engines.job import Event
from hived.engines.local.engine import Engine
from hived.engines.local.explaining import explain, shortly, tell
from hived.engines.local.model import Job, JobState
from hived.spec.compiled import Device

from . import pictures, stays
from .live import DashboardView, Now, of

#: events that are read at a time
_PAGE = 10_000
#: what a job does after an event, beside what those of any engine do
AFTER: dict[str, stays.Doing | None] = {
    **stays.AFTER,
    "submitted": "waiting",
    "started": "placed",
    "stopping": "stopping",
    "preempted": "waiting",
    "retrying": "backoff",
    "queued": "waiting",
    "succeeded": None,
    "failed": None,
    "cancelled": None,
}


def local_view(engine: Engine, title: str) -> DashboardView[Job]:
    """The dashboard of ``engine``."""
    return DashboardView(_Running(engine), title, "this machine", synthetic=engine.devices.simulated)


class _Running:
    """Implements :class:`~.live.RunningEngine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.clock, self.started_at = engine.clock, engine.started_at

    def now(self) -> Now[Job]:
        job_scheduler = self._engine.job_scheduler
        health, at = job_scheduler.health, job_scheduler.usage.at

        def known(places: Iterable[Device]) -> list[Device]:
            """Those that the spec or a job has."""
            return [place for place in places if place in at or place[1] in health.devices.get(place[0], ())]

        return Now(
            job_scheduler.cluster.spec,
            self._engine.last_event,
            job_scheduler.usage,
            job_scheduler.cluster,
            self._engine.recent,
            jobs=job_scheduler.jobs,
            reserved=job_scheduler.reserved(),
            faulty=known(health.bad),
            kept=known(place for place in health.drained if place not in health.bad),
            beyond=job_scheduler.beyond,
        )

    async def changed(self, seq: int) -> None:
        await self._engine.changed(seq)

    def waiting(self, most: int) -> Sequence[Job]:
        job_scheduler = self._engine.job_scheduler
        found = [*job_scheduler.reserved(), *job_scheduler.backing_off()]
        return found + [
            job_scheduler.jobs[entry.number] for entry in job_scheduler.scheduler.in_turn(max(0, most - len(found)))
        ]

    def shortly(self, job: Job) -> list[str]:
        return shortly(self._engine.job_scheduler, job)

    def story(self, ref: str) -> pictures.Story:
        found = self._engine.find(ref)
        events = self._events(found.id)
        return pictures.Story(
            **of(found),
            state=found.state.value,
            command=" ".join(found.spec.command),
            explanation=explain(self._engine.job_scheduler, found, self._engine.clock()),
            stays=stays.stays(events, AFTER),
            moments=[pictures.Moment(at=event.at, text=tell(event, found.name)) for event in events],
        )

    def _events(self, job: int) -> list[Event]:
        """All of one job."""
        found: list[Event] = []
        while page := self._engine.store.events(found[-1].seq if found else 0, _PAGE, job):
            found += page
        return found

    def ended(self, offset: int, limit: int) -> pictures.EndedJobs:
        """All that the store has, the latest submitted first."""
        states = [state.value for state in JobState if state.ended]
        found, total = self._engine.store.jobs(states, None, limit, None, offset)
        jobs = [
            pictures.Ended(
                **of(job), state=job.state.value, at=job.since if job.ended_at is None else job.ended_at, why=job.reason
            )
            for job in found
        ]
        return pictures.EndedJobs(jobs=jobs, total=total)
