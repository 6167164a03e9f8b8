"""The dashboard of a running engine: pictures, updates of them, curves, and the histories of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

from hived.cluster.cluster import Cluster
from hived.cluster.decisions import PodPlacement
from hived.engine.dispatcher import Usage
from hived.engine.job import EngineJob, Event, after
from hived.engine.trading import LiveTrading
from hived.errors import InputError, NotFoundError
from hived.spec.compiled import ClusterSpec, Device

from . import pictures
from .histories import STAYS
from .live_timeline import Life, node_timeline
from .mapping import Map, TurnsOf, kept_idle, nobody_shares, of, usage, virtual_clusters
from .pictures import Curves, Sample, Totals

#: how many points are kept; beyond that every other one is dropped
_MOST = 2000
#: seconds between two points; doubles with every thinning
_FIRST_STEP_S = 1.0


class LiveCurves:
    """Utilization, fragmentation and queue over time. O(1) amortised per sample."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._step = _FIRST_STEP_S

    def add(self, at: float, totals: Totals, waiting: int) -> Sample:
        """Add a sample. It replaces the last one, if that is too close to the one before it."""
        while self._samples and self._samples[-1].at > at:  # the clock was set back
            self._samples.pop()
        gpus = max(1, totals.gpus)
        sample = Sample(
            at=at,
            guaranteed=totals.guaranteed / gpus,
            opportunistic=totals.opportunistic / gpus,
            fragmentation=totals.fragmentation,
            waiting=waiting,
        )
        if len(self._samples) > 1 and at - self._samples[-2].at < self._step:
            self._samples[-1] = sample
        else:
            self._samples.append(sample)
        if len(self._samples) > _MOST:
            del self._samples[::2]
            self._step *= 2
        return sample

    def shown(self) -> Curves:
        """All samples, as lists."""
        return Curves.model_validate(
            {name: [getattr(sample, name) for sample in self._samples] for name in Sample.model_fields}
        )


VIEW = "live"
#: how many jobs of the queue are shown
_SHOWN = 200
#: events that change more than one job
_HARDWARE = {"device_bad", "device_healthy", "drained", "undrained", "reconfigured", "engine_started", "node"}


J = TypeVar("J", bound=EngineJob)


@dataclass(frozen=True, slots=True)
class Now(Generic[J]):
    """A snapshot of an engine, by references to its own state."""

    spec: ClusterSpec
    seq: int  #: number of the latest event, ``first`` added
    usage: Usage[J] = field(default_factory=Usage)
    cluster: Cluster | None = None  #: None: a replica that does not schedule, and shows an empty cluster
    recent: Sequence[Event] = ()  #: the latest events
    first: int = 0  #: offset of event numbers, so that they ascend from one engine to the next
    jobs: Mapping[Any, J] = field(default_factory=dict)  #: jobs that have not ended, by their reference in events
    reserved: Collection[J] = ()  #: jobs with a reservation
    faulty: Collection[Device] = ()  #: devices that are bad
    kept: Collection[Device] = ()  #: other devices that take no new jobs
    #: devices that jobs hold and the spec may lack
    beyond: Mapping[int, Sequence[PodPlacement]] = field(default_factory=dict)
    trading: LiveTrading | None = None
    sharers: Collection[Any] = ()  #: references of jobs that take turns: the turns of one follow from those of all
    turns: TurnsOf = nobody_shares


class RunningEngine(Protocol[J]):
    """The engine's interface to the dashboard, called in the thread of its event loop."""

    clock: Callable[[], float]
    started_at: float

    def now(self) -> Now[J]:
        """A snapshot. O(bad and drained devices)."""

    async def changed(self, seq: int) -> None:
        """Return once there is an event after number ``seq``."""

    def waiting(self, most: int) -> Sequence[J]:
        """See :meth:`~hived.engine.dispatcher.Dispatcher.waiting`."""

    def shortly(self, job: J) -> list[str]:
        """Why a job waits, as sentences."""

    def story(self, ref: str) -> pictures.Story:
        """A job's history. Raises :class:`~hived.errors.NotFoundError`."""

    async def lives(self, start: float, end: float) -> Sequence[Life]:
        """The jobs that were there between two times, with their events as far as they say what they did then."""

    def ended(self, offset: int, limit: int) -> pictures.EndedJobs:
        """Jobs that have ended, the latest first."""


class DashboardView(Generic[J]):
    """Implements :class:`~.dashboard.Source`. A picture costs O(jobs that hold GPUs).

    An update costs O(what changed), and where jobs take turns O(those jobs).
    """

    live = True

    def __init__(self, engine: RunningEngine[J], label: str, **words: Any) -> None:
        """``label``: of its one view; ``words``: further fields of its :class:`~.pictures.Layout`."""
        self._engine, self._label, self._words = engine, label, words
        self._map = Map(engine.now().spec)
        #: jobs whose devices beyond the spec the map shows; and the number of the event at which the map was made
        self._beyond: tuple[int, ...] = ()
        self._mapped = 0
        self._curves = LiveCurves()

    def layout(self) -> pictures.Layout:
        """The static part of the dashboard."""
        self._now(VIEW)
        return pictures.Layout(
            **self._words,
            clock="unix",
            start=self._engine.started_at,
            end=None,
            vcs=virtual_clusters(self._map.spec),
            views=[pictures.View(key=VIEW, label=self._label, chains=self._map.chains)],
        )

    def picture(self, view: str, at: float | None = None) -> pictures.Picture:
        """The present state."""
        now = self._now(view)
        return pictures.Picture(
            **self._moment(now),
            holders=self._map.holders(now.seq, now.jobs.values(), now.turns),
            bad=self._stretches(now.faulty),
            drained=self._stretches(now.kept),
        )

    def update(self, view: str, seq: int) -> pictures.Update | None:
        """The changes since ``seq``, from the latest events alone; None if they do not reach back so far."""
        now = self._now(view)
        recent, since = now.recent, seq - now.first
        if seq < self._mapped or not recent or not recent[0].seq - 1 <= since <= recent[-1].seq:
            return None
        new = after(recent, since)
        touched = {ref: job for ref in now.sharers if (job := now.jobs.get(ref)) is not None and job.holds}
        touched |= {event.job: now.jobs.get(event.job) for event in new if event.job is not None}
        holders = {ref: None if job is None else self._map.holder(job, now.turns(job)) for ref, job in touched.items()}
        hardware = any(event.kind in _HARDWARE for event in new)
        moment = self._moment(now)
        return pictures.Update(
            **moment,
            gone=[str(ref) for ref, holder in holders.items() if holder is None],
            holders=[holder for holder in holders.values() if holder is not None],
            bad=self._stretches(now.faulty) if hardware else None,
            drained=self._stretches(now.kept) if hardware else None,
            sample=self._curves.add(moment["at"], moment["totals"], moment["queue_total"]),
        )

    async def changed(self, seq: int) -> None:
        """Return once there is an event after number ``seq``."""
        await self._engine.changed(seq)

    def curves(self, view: str) -> pictures.Curves:
        """Curves since the start of the engine."""
        self._sample(self._now(view))
        return self._curves.shown()

    async def sample(self) -> None:
        """Take samples after changes, whether or not the dashboard is open. Until cancelled."""
        while True:
            now = self._now(VIEW)
            self._sample(now)
            await asyncio.sleep(1.0)
            await self.changed(now.seq)

    def _sample(self, now: Now[J]) -> None:
        """Take a sample, unless the replica does not schedule."""
        if now.cluster is not None:
            self._curves.add(self._engine.clock(), self._totals(now), now.usage.waiting.total())

    def story(self, view: str, job: str) -> pictures.Story:
        """A job's history."""
        self._now(view)
        return self._engine.story(job)

    async def timeline(self, view: str, node: str, start: float, end: float) -> pictures.GpuTimeline:
        """Who has the GPUs of a node, and when, up to now; in a thread of its own.

        Raises :class:`~hived.errors.NotFoundError`, :class:`~hived.errors.InputError`.
        """
        self._now(view)
        devices, now = self._map.devices(node), self._engine.clock()
        if not devices:
            raise NotFoundError(f"no node {node[:60]!r}")
        if not start < end:
            raise InputError(f"from {start:g} to {end:g}: give an earlier start than end")
        lives = await self._engine.lives(start, min(end, now))
        return await asyncio.to_thread(node_timeline, node, devices, lives, start, end, now)

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> pictures.Queue:
        """Waiting jobs."""
        return pictures.Queue(jobs=self._queue(offset, limit), total=self._now(view).usage.waiting.total())

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> pictures.EndedJobs:
        """The latest ended jobs that the engine knows."""
        self._now(view)
        return self._engine.ended(offset, limit)

    def comparison(self) -> pictures.Comparison | None:
        """None: there is one view."""
        return None

    # -- parts of a picture ---------------------------------------------------------------------------------------

    def _now(self, view: str) -> Now[J]:
        """A snapshot of the engine, after checking ``view`` and refreshing the map if the spec has changed."""
        if view != VIEW:
            raise NotFoundError(f"no view {view!r}; there is {VIEW}")
        now = self._engine.now()
        if self._map.spec is not now.spec or self._beyond != tuple(now.beyond):
            self._map = Map(now.spec, (pod for pods in now.beyond.values() for pod in pods))
            self._beyond, self._mapped = tuple(now.beyond), now.seq
        return now

    def _stretches(self, places: Iterable[Device]) -> list[pictures.Stretch]:
        by_node = groupby(sorted(places), key=lambda place: place[0])
        return [one for node, on in by_node for one in self._map.stretches(node, (device for _, device in on))]

    def _moment(self, now: Now[J]) -> dict[str, Any]:
        """Fields that a picture and an update share."""
        return {
            "seq": now.seq,
            "at": self._engine.clock(),
            "queue": self._queue(0, _SHOWN),
            "queue_total": now.usage.waiting.total(),
            "usage": usage(self._map, now.usage, now.trading),
            "totals": self._totals(now),
        }

    def _queue(self, offset: int, limit: int) -> list[pictures.Waiting]:
        return [
            pictures.Waiting(
                **of(job),
                since=job.since,
                kind=STAYS[job.state],
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
            bad_used=len(held & now.faulty),
            drained_used=len(held & now.kept),
            fragmentation=len(now.usage.nodes) / self._map.nodes if self._map.nodes else 0.0,
        )
