"""The engine of one machine as the dashboard sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from hived.cluster.decisions import PodPlacement
from hived.cluster.states import LeafState
from hived.engines.event import Event, after
from hived.engines.local import telling
from hived.engines.local.engine import Engine
from hived.engines.local.explaining import explain, shortly
from hived.engines.local.jobs import Job
from hived.engines.local.model import JobState
from hived.engines.places import Place
from hived.errors import NotFoundError, RequestError

from . import pictures, stays
from .curves import LiveCurves
from .mapping import Held, Map, chains, in_turn, kept_idle, usage, virtual_clusters

VIEW = "live"
#: how much of the queue is shown
_SHOWN = 200
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
#: events that are read at a time
_PAGE = 10_000
#: events that change more than the job they are about
_HARDWARE = frozenset({"device_bad", "device_healthy", "drained", "undrained", "reconfigured", "engine_started"})


class LiveSource:
    """Implements :class:`~.sources.Source`. A picture costs O(jobs that hold GPUs), an update O(what changed)."""

    live = True

    def __init__(self, engine: Engine, title: str) -> None:
        self._engine = engine
        self._title = title
        self._map = Map(engine.cluster.spec)
        #: jobs whose devices beyond the spec the map shows, and the number of the event at which it was made
        self._beyond: tuple[int, ...] = ()
        self._mapped = 0
        self._curves = LiveCurves()

    def layout(self) -> pictures.Layout:
        """What does not change from moment to moment."""
        self._check(VIEW)
        return pictures.Layout(
            title=self._title,
            clock="unix",
            synthetic=self._engine.devices.simulated,
            start=self._engine.started_at,
            end=None,
            vcs=virtual_clusters(self._map.spec),
            views=[pictures.View(key=VIEW, label="this machine", chains=chains(self._map.shown))],
        )

    def picture(self, view: str, at: float | None = None) -> pictures.Picture:
        """Now."""
        self._check(view)
        machine, seq = self._engine.machine, self._engine.last_event
        held = (_held(job) for job in machine.jobs.values() if job.placement is not None)
        return pictures.Picture(
            seq=seq,
            at=self._engine.clock(),
            holders=self._map.holders(seq, held),
            bad=self._bad(),
            drained=self._drained(),
            queue=self._queue(0, _SHOWN),
            queue_total=sum(machine.usage.waiting.values()),
            usage=self._usage(),
            totals=self._totals(),
        )

    def update(self, view: str, seq: int) -> pictures.Update | None:
        """What changed since; from the latest events alone."""
        self._check(view)
        recent = self._engine.recent
        if not recent or seq > recent[-1].seq or seq + 1 < recent[0].seq:
            return None
        new = after(recent, seq)
        if seq < self._mapped:  # the map is another one since
            return None
        jobs = self._engine.machine.jobs
        touched = dict.fromkeys(event.job for event in new if event.job is not None)
        held = [jobs[number] for number in touched if number in jobs and jobs[number].placement is not None]
        totals = self._totals()
        at = self._engine.clock()
        waiting = sum(self._engine.machine.usage.waiting.values())
        return pictures.Update(
            seq=recent[-1].seq,
            at=at,
            gone=[str(n) for n in touched if n not in jobs or jobs[n].placement is None],
            holders=[self._map.holder(_held(job)) for job in held],
            bad=self._bad() if (hardware := any(event.kind in _HARDWARE for event in new)) else None,
            drained=self._drained() if hardware else None,
            queue=self._queue(0, _SHOWN),
            queue_total=waiting,
            usage=self._usage(),
            totals=totals,
            sample=self._curves.add(at, totals, waiting),
        )

    def _events(self, job: int) -> list[Event]:
        """All of one job."""
        found: list[Event] = []
        while page := self._engine.store.events(found[-1].seq if found else 0, _PAGE, job):
            found += page
        return found

    async def changed(self, seq: int) -> None:
        """Return once something is newer."""
        await self._engine.changed(seq)

    def curves(self, view: str) -> pictures.Curves:
        """Since the engine started."""
        self._check(view)
        waiting = sum(self._engine.machine.usage.waiting.values())
        self._curves.add(self._engine.clock(), self._totals(), waiting)
        return self._curves.shown()

    async def sample(self) -> None:
        """Take samples while things change, whether or not somebody looks. Until cancelled."""
        while True:
            last = self._engine.last_event
            self._curves.add(self._engine.clock(), self._totals(), sum(self._engine.machine.usage.waiting.values()))
            await asyncio.sleep(1.0)
            await self._engine.changed(last)

    def story(self, view: str, job: str) -> pictures.Story:
        """A job's life, from its events."""
        self._check(view)
        found = self._engine.find(job)
        events = self._events(found.id)
        at = self._engine.clock()
        return pictures.Story(
            id=str(found.id),
            name=found.name,
            vc=found.spec.vc,
            gpus=found.gpus,
            priority=found.spec.priority,
            state=found.state.value,
            command=" ".join(found.spec.command),
            explanation=explain(self._engine.machine, found, at),
            stays=stays.stays(events, AFTER),
            moments=[pictures.Moment(at=event.at, text=telling.tell(event, found.name)) for event in events],
        )

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> pictures.Queue:
        """Who waits now."""
        self._check(view)
        total = sum(self._engine.machine.usage.waiting.values())
        return pictures.Queue(jobs=self._queue(offset, limit), total=total)

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> pictures.EndedJobs:
        """All that the store has, the latest submitted first."""
        self._check(view)
        states = [state.value for state in JobState if state.ended]
        found, total = self._engine.store.jobs(states, None, limit, None, offset)
        return pictures.EndedJobs(
            jobs=[
                pictures.Ended(
                    id=str(job.id),
                    name=job.name,
                    vc=job.spec.vc,
                    gpus=job.gpus,
                    priority=job.spec.priority,
                    state=job.state.value,
                    at=job.since if job.ended_at is None else job.ended_at,
                    why=job.reason,
                )
                for job in found
            ],
            total=total,
        )

    def comparison(self) -> pictures.Comparison | None:
        """There is one view."""
        return None

    # -- parts of a picture ---------------------------------------------------------------------------------------

    def _check(self, view: str) -> None:
        if view != VIEW:
            raise NotFoundError(f"no view {view!r}; there is {VIEW}")
        spec, held = self._engine.cluster.spec, self._engine.machine.beyond
        if self._map.spec is not spec or self._beyond != tuple(held):
            self._map = Map(spec, (pod for pods in held.values() for pod in pods))
            self._beyond, self._mapped = tuple(held), self._engine.last_event

    def _bad(self) -> list[pictures.Stretch]:
        return self._stretches(self._engine.machine.health.bad)

    def _drained(self) -> list[pictures.Stretch]:
        health = self._engine.machine.health
        return self._stretches(place for place in health.drained if place not in health.bad)

    def _stretches(self, chosen: Iterable[Place]) -> list[pictures.Stretch]:
        by_node: dict[str, list[int]] = {}
        for node, device in chosen:
            by_node.setdefault(node, []).append(device)
        found: list[pictures.Stretch] = []
        for node, devices in by_node.items():
            found += self._map.stretches("", PodPlacement(node, tuple(sorted(devices))))
        return found

    def _unused(self, chosen: Iterable[Place]) -> int:
        """How many of these devices nobody uses."""
        machine = self._engine.machine
        found = 0
        for place in chosen:
            with contextlib.suppress(RequestError):  # the spec has no such device
                found += machine.cluster.leaf_state(*place) is LeafState.FREE and place not in machine.health.claimed
        return found

    def _queue(self, offset: int, limit: int) -> list[pictures.Waiting]:
        machine = self._engine.machine
        shown = [*machine.reserved.values(), *machine.backing_off()]
        shown += in_turn(machine.lines, max(0, offset + limit - len(shown)))
        return [
            pictures.Waiting(
                id=str(job.id),
                name=job.name,
                vc=job.spec.vc,
                gpus=job.gpus,
                priority=job.spec.priority,
                since=job.since,
                state=job.state.value,  # type: ignore[arg-type]  # one of three
                why=shortly(machine, job),
            )
            for job in shown[offset : offset + limit]
        ]

    def _usage(self) -> list[pictures.Usage]:
        counts = self._engine.machine.usage
        return usage(self._map.gpus, self._map.reserved, counts.used, counts.lent, counts.waiting)

    def _totals(self) -> pictures.Totals:
        machine = self._engine.machine
        counts = machine.usage
        return pictures.Totals(
            gpus=self._map.gpus,
            guaranteed=sum(counts.used.values()),
            opportunistic=sum(counts.lent.values()),
            reserved=kept_idle(machine.cluster, (job.placement for job in machine.reserved.values())),
            bad=self._unused(machine.health.bad),
            drained=self._unused(place for place in machine.health.drained if place not in machine.health.bad),
            fragmentation=len(counts.nodes) / self._map.nodes if self._map.nodes else 0.0,
        )


def _held(job: Job) -> Held:
    placement = job.placement
    assert placement is not None
    return Held(
        str(job.id),
        job.name,
        job.spec.vc,
        "reserved" if job.state is JobState.RESERVED else "guaranteed" if placement.guaranteed else "opportunistic",
        job.gpus,
        job.since,
        job.state is JobState.STOPPING,
        job.spec.priority,
        placement,
    )
