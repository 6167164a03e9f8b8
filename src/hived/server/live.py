"""The dashboard of an engine that runs: pictures of it, and what changed since the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import PodPlacement
from hived.engines.dispatcher import Usage
from hived.engines.job import EngineJob, Event, after
from hived.errors import NotFoundError
from hived.spec.compiled import ClusterSpec, Device

from . import pictures
from .curves import LiveCurves
from .mapping import Held, Map, kept_idle, usage, virtual_clusters

VIEW = "live"
#: how much of the queue is shown
_SHOWN = 200
#: events that change more than the job they are about
_HARDWARE = {"device_bad", "device_healthy", "drained", "undrained", "reconfigured", "engine_started", "node"}


J = TypeVar("J", bound=EngineJob)


@dataclass(frozen=True, slots=True)
class Now(Generic[J]):
    """An engine at this moment: what it keeps anyway, by reference."""

    spec: ClusterSpec
    seq: int  #: number of the latest event, ``first`` added
    usage: Usage[J] = field(default_factory=Usage)
    cluster: Cluster | None = None  #: None: it does not decide, and shows an empty cluster
    recent: Sequence[Event] = ()  #: the latest events
    first: int = 0  #: what is added to their numbers, so that those of one engine after another ascend
    jobs: Mapping[Any, J] = field(default_factory=dict)  #: that have not ended, by what events call them
    reserved: Collection[J] = ()  #: jobs with a reservation
    faulty: Collection[Device] = ()  #: devices that are bad
    kept: Collection[Device] = ()  #: other devices that new jobs are kept from
    #: what jobs hold that the spec may lack
    beyond: Mapping[int, Sequence[PodPlacement]] = field(default_factory=dict)


class RunningEngine(Protocol[J]):
    """What the dashboard asks of an engine, in the thread of its event loop."""

    clock: Callable[[], float]
    started_at: float

    def now(self) -> Now[J]:
        """All that is at hand. O(bad and drained devices)."""

    async def changed(self, seq: int) -> None:
        """Return once something is newer than ``seq``."""

    def waiting(self, most: int) -> Sequence[J]:
        """The first who hold no GPUs, in the order of the queue. At least ``most``, where there are as many."""

    def shortly(self, job: J) -> list[str]:
        """Why it waits, in words."""

    def story(self, ref: str) -> pictures.Story:
        """A job's life. Raises :class:`~hived.errors.NotFoundError`."""

    def ended(self, offset: int, limit: int) -> pictures.EndedJobs:
        """Jobs that have ended, the latest first."""


class DashboardView(Generic[J]):
    """Implements :class:`~.sources.Source`. A picture costs O(jobs that hold GPUs), an update O(what changed)."""

    live = True

    def __init__(
        self,
        engine: RunningEngine[J],
        title: str,
        label: str,
        *,
        synthetic: bool = False,
        example: str = pictures.EXAMPLE,
    ) -> None:
        """The words are those of :class:`~.pictures.Layout`; ``label``: of its one view."""
        self._engine = engine
        self._title, self._label, self._synthetic, self._example = title, label, synthetic, example
        self._map = Map(engine.now().spec)
        #: jobs whose devices beyond the spec the map shows, and the number of the event at which it was made
        self._beyond: tuple[int, ...] = ()
        self._mapped = 0
        self._curves = LiveCurves()

    def layout(self) -> pictures.Layout:
        """What does not change from moment to moment."""
        self._now(VIEW)
        return pictures.Layout(
            title=self._title,
            clock="unix",
            synthetic=self._synthetic,
            start=self._engine.started_at,
            end=None,
            vcs=virtual_clusters(self._map.spec),
            views=[pictures.View(key=VIEW, label=self._label, chains=self._map.chains)],
            example=self._example,
        )

    def picture(self, view: str, at: float | None = None) -> pictures.Picture:
        """Now."""
        now = self._now(view)
        return pictures.Picture(
            seq=now.seq,
            at=self._engine.clock(),
            holders=self._map.holders(now.seq, (_held(job) for job in now.jobs.values() if job.placement is not None)),
            bad=self._stretches(now.faulty),
            drained=self._stretches(now.kept),
            queue=self._queue(0, _SHOWN),
            queue_total=now.usage.waiting.total(),
            usage=usage(self._map, now.usage),
            totals=self._totals(now),
        )

    def update(self, view: str, seq: int) -> pictures.Update | None:
        """What changed since; from the latest events alone."""
        now = self._now(view)
        recent, since = now.recent, seq - now.first
        if seq < self._mapped or not recent or not recent[0].seq - 1 <= since <= recent[-1].seq:
            return None
        new = after(recent, since)
        touched = {event.job: now.jobs.get(event.job) for event in new if event.job is not None}
        held = [job for job in touched.values() if job is not None and job.placement is not None]
        hardware = any(event.kind in _HARDWARE for event in new)
        at, totals, waiting = self._engine.clock(), self._totals(now), now.usage.waiting.total()
        return pictures.Update(
            seq=now.seq,
            at=at,
            gone=[str(ref) for ref, job in touched.items() if job is None or job.placement is None],
            holders=[self._map.holder(_held(job)) for job in held],
            bad=self._stretches(now.faulty) if hardware else None,
            drained=self._stretches(now.kept) if hardware else None,
            queue=self._queue(0, _SHOWN),
            queue_total=waiting,
            usage=usage(self._map, now.usage),
            totals=totals,
            sample=self._curves.add(at, totals, waiting),
        )

    async def changed(self, seq: int) -> None:
        """Return once something is newer."""
        await self._engine.changed(seq)

    def curves(self, view: str) -> pictures.Curves:
        """Since the engine started."""
        self._sample(self._now(view))
        return self._curves.shown()

    async def sample(self) -> None:
        """Take samples while things change, whether or not somebody looks. Until cancelled."""
        while True:
            now = self._now(VIEW)
            self._sample(now)
            await asyncio.sleep(1.0)
            await self.changed(now.seq)

    def _sample(self, now: Now[J]) -> None:
        """An engine that does not decide has nothing to say about the cluster."""
        if now.cluster is not None:
            self._curves.add(self._engine.clock(), self._totals(now), now.usage.waiting.total())

    def story(self, view: str, job: str) -> pictures.Story:
        """A job's life."""
        self._now(view)
        return self._engine.story(job)

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> pictures.Queue:
        """Who waits now."""
        return pictures.Queue(jobs=self._queue(offset, limit), total=self._now(view).usage.waiting.total())

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> pictures.EndedJobs:
        """The latest that have ended, as far as the engine knows them."""
        self._now(view)
        return self._engine.ended(offset, limit)

    def comparison(self) -> pictures.Comparison | None:
        """There is one view."""
        return None

    # -- parts of a picture ---------------------------------------------------------------------------------------

    def _now(self, view: str) -> Now[J]:
        """The engine of now, after ``view`` was found right and the map that of its spec."""
        if view != VIEW:
            raise NotFoundError(f"no view {view!r}; there is {VIEW}")
        now = self._engine.now()
        if self._map.spec is not now.spec or self._beyond != tuple(now.beyond):
            self._map = Map(now.spec, (pod for pods in now.beyond.values() for pod in pods))
            self._beyond, self._mapped = tuple(now.beyond), now.seq
        return now

    def _stretches(self, places: Iterable[Device]) -> list[pictures.Stretch]:
        by_node = groupby(sorted(places), key=lambda place: place[0])
        pods = (PodPlacement(node, tuple(device for _, device in on)) for node, on in by_node)
        return [stretch for pod in pods for stretch in self._map.stretches("", pod)]

    def _queue(self, offset: int, limit: int) -> list[pictures.Waiting]:
        return [
            pictures.Waiting(
                **of(job),
                since=job.since,
                state="queued" if job.state.value == "waiting" else job.state.value,  # type: ignore[arg-type]
                why=self._engine.shortly(job),
            )
            for job in self._engine.waiting(offset + limit)[offset : offset + limit]
        ]

    def _totals(self, now: Now[J]) -> pictures.Totals:
        held = now.usage.at.keys()
        return pictures.Totals(
            gpus=self._map.gpus,
            guaranteed=now.usage.used.total(),
            opportunistic=now.usage.lent.total(),
            reserved=0 if now.cluster is None else kept_idle(now.cluster, now.reserved),
            bad=len(now.faulty) - len(held & now.faulty),
            drained=len(now.kept) - len(held & now.kept),
            fragmentation=len(now.usage.nodes) / self._map.nodes if self._map.nodes else 0.0,
        )


def of(job: EngineJob) -> dict[str, Any]:
    """The fields of :class:`~.pictures.Job`."""
    return {"id": job.key, "name": job.name, "vc": job.vc, "gpus": job.gpus, "priority": job.priority}


def _held(job: EngineJob) -> Held:
    assert job.placement is not None
    kind = "guaranteed" if job.placement.guaranteed else "opportunistic"
    fields = {
        **of(job),
        "kind": "reserved" if job.state.value == "reserved" else kind,
        "since": job.since,
        "stopping": job.state.value in ("stopping", "preempted"),
    }
    return Held(fields, job.placement)
