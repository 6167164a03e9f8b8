"""The engine on Kubernetes as the dashboard sees it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from hived.cluster.decisions import PodPlacement
from hived.engines.event import after
from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.explaining import explain, shortly, tell
from hived.engines.kubernetes.gangs import Gang, GangState
from hived.engines.kubernetes.state import MindState
from hived.engines.places import Place
from hived.errors import NotFoundError
from hived.server import pictures, stays
from hived.server.curves import LiveCurves
from hived.server.mapping import Held, Map, chains, kept_idle, usage, virtual_clusters
from hived.spec.compiled import ClusterSpec

from .reading import waiting

VIEW = "live"
#: how much of the queue is shown
_SHOWN = 200
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
#: changes after which nothing of an earlier picture can be relied on
_ANEW = frozenset({"spec", "recovered"})


class KubernetesSource:
    """Implements :class:`~hived.server.sources.Source`. A picture costs O(gangs that hold GPUs), an update O(changes).

    A replica that does not decide has no mind, and shows an empty cluster. Whoever comes to decide has a new one; what
    changes in it is numbered on here, so that no update leads from the picture of one mind to that of another.
    """

    live = True

    def __init__(self, engine: Engine, label: str) -> None:
        """``engine`` has started, so that its spec is known; ``label``: the cluster's name."""
        self._engine = engine
        self._label = label
        self._map = Map(self._spec)
        self._curves = LiveCurves()
        self._mind = engine.mind
        #: what is added to the number of a change: all numbers given out before ``_mind`` are below it
        self._first = 0

    def layout(self) -> pictures.Layout:
        """What does not change from moment to moment."""
        spec = self._spec
        return pictures.Layout(
            title=self._label,
            clock="unix",
            synthetic=False,
            start=self._engine.started_at,
            end=None,
            vcs=virtual_clusters(spec),
            views=[pictures.View(key=VIEW, label=self._label, chains=chains(spec))],
            example="kubectl apply -f job.yaml  # pods with the label hived.io/vc: NAME, GPUs, schedulerName: hived",
        )

    def picture(self, view: str, at: float | None = None) -> pictures.Picture:
        """Now."""
        mind = self._now(view)
        seq = self._first + (0 if mind is None else mind.seq)
        gangs = () if mind is None else mind.gangs.values()
        return pictures.Picture(
            seq=seq,
            at=self._engine.clock(),
            holders=self._map.holders(seq, (_held(gang) for gang in gangs if gang.placement is not None)),
            bad=[] if mind is None else self._stretches(mind.nodes.faulty),
            drained=[] if mind is None else self._stretches(mind.nodes.kept),
            queue=self._queue(mind, 0, _SHOWN),
            queue_total=self._waiting(mind),
            usage=self._usage(mind),
            totals=self._totals(mind),
        )

    def update(self, view: str, seq: int) -> pictures.Update | None:
        """What changed since; from the latest changes alone."""
        mind = self._now(view)
        if mind is None or not mind.recent:
            return None
        since = seq - self._first
        if since > mind.recent[-1].seq or since + 1 < mind.recent[0].seq:
            return None
        new = after(mind.recent, since)
        if any(event.kind in _ANEW for event in new):
            return None
        touched = {event.job: mind.gangs.get(event.job) for event in new if event.job is not None}
        totals, queued = self._totals(mind), self._waiting(mind)
        hardware = any(event.kind == "node" for event in new)
        at = self._engine.clock()
        return pictures.Update(
            seq=self._first + mind.recent[-1].seq,
            at=at,
            gone=[name for name, gang in touched.items() if gang is None or gang.placement is None],
            holders=[
                self._map.holder(_held(gang))
                for gang in touched.values()
                if gang is not None and gang.placement is not None
            ],
            bad=self._stretches(mind.nodes.faulty) if hardware else None,
            drained=self._stretches(mind.nodes.kept) if hardware else None,
            queue=self._queue(mind, 0, _SHOWN),
            queue_total=queued,
            usage=self._usage(mind),
            totals=totals,
            sample=self._curves.add(at, totals, queued),
        )

    async def changed(self, seq: int) -> None:
        """Return once something is newer."""
        self._follow()
        if seq >= self._first:
            await self._engine.changed(seq - self._first)

    def curves(self, view: str) -> pictures.Curves:
        """Since this replica began to decide."""
        self._sample(self._now(view))
        return self._curves.shown()

    async def sample(self) -> None:
        """Take samples while things change, whether or not somebody looks. Until cancelled."""
        while True:
            mind = self._now(VIEW)
            self._sample(mind)
            last = self._first + (0 if mind is None else mind.seq)
            await asyncio.sleep(1.0)
            await self.changed(last)

    def story(self, view: str, job: str) -> pictures.Story:
        """A gang's life, from what is remembered of it."""
        mind = self._now(view)
        gang = None if mind is None else mind.gangs.get(job) or mind.ended.get(job)
        if mind is None or gang is None:
            raise NotFoundError(f"no group {job!r} waits or runs, nor is one remembered that has ended")
        ended = mind.gangs.get(job) is not gang
        at = self._engine.clock()
        return pictures.Story(
            id=gang.name,
            name=gang.name,
            vc=gang.vc,
            gpus=gang.gpus,
            priority=gang.priority,
            state="ended" if ended else gang.state.value,
            command="",
            explanation=tell(gang.history[-1]) if ended and gang.history else "" if ended else explain(mind, gang, at),
            stays=stays.stays(gang.history, AFTER),
            moments=[pictures.Moment(at=event.at, text=tell(event)) for event in gang.history],
        )

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> pictures.Queue:
        """Who waits now."""
        mind = self._now(view)
        return pictures.Queue(jobs=self._queue(mind, offset, limit), total=self._waiting(mind))

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> pictures.EndedJobs:
        """The latest gangs that have ended, as far as they are remembered."""
        mind = self._now(view)
        ended = [] if mind is None else [*mind.ended.values()][::-1]
        return pictures.EndedJobs(
            jobs=[
                pictures.Ended(
                    id=gang.name,
                    name=gang.name,
                    vc=gang.vc,
                    gpus=gang.gpus,
                    priority=gang.priority,
                    state="ended",
                    at=gang.history[-1].at if gang.history else gang.since,
                    why=tell(gang.history[-1]) if gang.history else "",
                )
                for gang in ended[offset : offset + limit]
            ],
            total=len(ended),
        )

    def comparison(self) -> pictures.Comparison | None:
        """There is one view."""
        return None

    # -- parts of a picture ---------------------------------------------------------------------------------------

    @property
    def _spec(self) -> ClusterSpec:
        mind = self._engine.mind
        return self._engine.spec if mind is None else mind.cluster.spec

    def _now(self, view: str) -> MindState | None:
        """The mind of now, after ``view`` was found right."""
        if view != VIEW:
            raise NotFoundError(f"no view {view!r}; there is {VIEW}")
        self._follow()
        return self._mind

    def _follow(self) -> None:
        """See whether the mind, or the spec, is another one."""
        if self._mind is not self._engine.mind:
            self._first += 1 if self._mind is None else self._mind.seq + 1
            self._mind = self._engine.mind
        if self._map.spec is not self._spec:
            self._map = Map(self._spec)

    def _stretches(self, places: Iterable[Place]) -> list[pictures.Stretch]:
        by_node: dict[str, list[int]] = {}
        for node, device in places:
            by_node.setdefault(node, []).append(device)
        found: list[pictures.Stretch] = []
        for node, devices in sorted(by_node.items()):
            found += self._map.stretches("", PodPlacement(node, tuple(sorted(devices))))
        return found

    def _queue(self, mind: MindState | None, offset: int, limit: int) -> list[pictures.Waiting]:
        if mind is None:
            return []
        return [
            pictures.Waiting(
                id=gang.name,
                name=gang.name,
                vc=gang.vc,
                gpus=gang.gpus,
                priority=gang.priority,
                since=gang.since,
                state="reserved" if gang.state is GangState.RESERVED else "queued",
                why=shortly(mind, gang),
            )
            for gang in waiting(mind, offset + limit)[offset:]
        ]

    def _waiting(self, mind: MindState | None) -> int:
        return 0 if mind is None else sum(mind.usage.waiting.values())

    def _usage(self, mind: MindState | None) -> list[pictures.Usage]:
        if mind is None:
            return usage(self._map.gpus, self._map.reserved, Counter(), Counter(), Counter())
        return usage(self._map.gpus, self._map.reserved, mind.usage.used, mind.usage.lent, mind.usage.waiting)

    def _totals(self, mind: MindState | None) -> pictures.Totals:
        if mind is None:
            return pictures.Totals(
                gpus=self._map.gpus, guaranteed=0, opportunistic=0, reserved=0, bad=0, fragmentation=0.0
            )
        books = mind.usage
        used = books.at.keys()
        return pictures.Totals(
            gpus=self._map.gpus,
            guaranteed=sum(books.used.values()),
            opportunistic=sum(books.lent.values()),
            reserved=kept_idle(mind.cluster, (gang.placement for gang in mind.reserved.values())),
            bad=len(mind.nodes.faulty) - len(mind.nodes.faulty & used),
            drained=len(mind.nodes.kept) - len(mind.nodes.kept & used),
            fragmentation=len(books.nodes) / self._map.nodes if self._map.nodes else 0.0,
        )

    def _sample(self, mind: MindState | None) -> None:
        """A replica that does not decide has nothing to say about the cluster."""
        if mind is not None:
            self._curves.add(self._engine.clock(), self._totals(mind), self._waiting(mind))


def _held(gang: Gang) -> Held:
    placement = gang.placement
    assert placement is not None
    return Held(
        gang.name,
        gang.name,
        gang.vc,
        "reserved" if gang.state is GangState.RESERVED else "guaranteed" if gang.guaranteed else "opportunistic",
        gang.gpus,
        gang.since,
        gang.state is GangState.PREEMPTED,
        gang.priority,
        placement,
    )
