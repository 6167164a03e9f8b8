"""``/metrics`` of both engines for Prometheus, read from the engine at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import prometheus_client
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hived import __version__
from hived.engine.dispatcher import Dispatcher
from hived.engine.job import EngineJob
from hived.engine.states import JobState
from hived.errors import InvariantError, UnavailableError

from .failures import declared
from .mapping import kept_idle
from .service import Service

#: the label of jobs that name an unknown virtual cluster
UNKNOWN = "(unknown)"
_FORMER = 20  #: removed virtual clusters that keep their own label
#: label values (status codes may be numbers) and the sample
Row = tuple[tuple[str | int, ...], float]
J = TypeVar("J", bound=EngineJob)

# no second series per counter with its creation time
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations


class Metrics(Collector, Generic[J]):
    """The metrics of the engine behind ``service``, in a registry of their own.

    A replica that does not decide exports that, and nothing of the cluster. What only one engine has is exported by a
    subclass, in :meth:`more`.
    """

    #: how its jobs end
    ends: tuple[JobState, ...] = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    def __init__(self, service: Service[J]) -> None:
        self.service = service
        #: scrapes that found sharing safety broken
        self.unsafe = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def render(self) -> tuple[bytes, str]:
        """The text and its content type. O(VCs + levels + bad or reserved GPUs), and O(jobs) while one waits."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Every metric, as of now. O(VCs * states + nodes + waiting jobs)."""
        try:
            known = self.service.scheduler()
        except UnavailableError:
            known = None
        yield gauge("build_info", "The version that runs.", ("version",), [((__version__,), 1)])
        yield gauge("ready", "Whether it can do its part.", (), [((), self.service.engine().ready)])
        refused = "Whether the latest cluster spec was refused, and the one before is in force."
        yield gauge("spec_refused", refused, (), [((), bool(self.service.spec().problem))])
        yield gauge(
            "safety_margin_cells",
            "Cells to spare at a level of a chain, however its VCs claim what they reserved; never below 0. Of the "
            "spec: what is bad is counted by vc_gpus.",
            ("chain", "level"),
            () if known is None else self._margins(known),
        )
        yield gauge(
            "gpus",
            "GPUs by what they are for now, each counted once. reserved: idle, kept for a job that waits for others "
            "to go; foreign: kept from jobs for pods that HiveD did not place; bad: kept from jobs for another reason.",
            ("state",),
            () if known is None else self._gpus(known),
        )
        yield counter(
            "gpu_seconds",
            "GPU seconds that jobs have had and VCs have reserved since it decides, by what the GPUs were to them.",
            ("vc", "use"),
            () if known is None else self._gpu_seconds(known),
        )
        yield gauge(
            "vc_gpus",
            "GPUs that a VC has reserved, uses as its own, has borrowed of others, and has reserved but cannot have "
            "now, were it to ask first (unavailable: bad, or kept for pods that HiveD did not place). reserved is with "
            "the cells that it has taken from others for a while, and without those given to them.",
            ("vc", "kind"),
            () if known is None else _vc_gpus(known),
        )
        yield gauge("jobs", "Jobs by state.", ("vc", "state"), () if known is None else _jobs(known))
        ended = "Jobs that have ended since it decides, by how; one that is queued again counts each time."
        yield counter("jobs_ended", ended, ("vc", "state"), () if known is None else self._ended(known))
        waiting = "Jobs that wait for GPUs, by the decisive reason."
        yield gauge("waiting_jobs", waiting, ("vc", "reason"), () if known is None else waiting_jobs(known))
        waited = HistogramMetricFamily(
            "hived_job_wait_seconds", "How long jobs waited that have started, each time anew.", labels=("vc",)
        )
        for vc, waits in () if known is None else known.waited.items():
            waited.add_metric([vc], list(waits.cumulative()), waits.sum)
        yield waited
        yield counter(
            "preemptions",
            "Jobs that had to go, by their VC and that of whom it was for.",
            ("vc", "by_vc"),
            () if known is None else known.preempted.items(),
        )
        yield from self.more()
        broken = "How often sharing safety was found broken; once is a bug."
        yield counter("safety_violations", broken, (), [((), self.broken())])

    def broken(self) -> int:
        """How often sharing safety was found broken."""
        return self.unsafe

    def more(self) -> Iterable[Metric]:
        """What only this kind of engine exports."""
        return ()

    def _margins(self, scheduler: Dispatcher[J, Any]) -> Iterable[Row]:
        try:
            return [((row.chain, str(row.level)), row.margin) for row in scheduler.cluster.check_safety()]
        except InvariantError:  # the other metrics are needed then most
            self.unsafe += 1
            return []

    def _gpu_seconds(self, scheduler: Dispatcher[J, Any]) -> Iterator[Row]:
        """O(VCs)."""
        known = {vc.name for vc in scheduler.cluster.spec.virtual_clusters}
        found: Counter[tuple[str, str]] = Counter()
        for (vc, use), seconds in scheduler.holdings.gpu_seconds(self.service.clock()).items():
            found[vc if vc in known else UNKNOWN, use.value] += seconds  # type: ignore[assignment]
        yield from found.items()

    def _ended(self, scheduler: Dispatcher[J, Any]) -> Iterator[Row]:
        """O(VCs): what has not happened yet is 0, so that its first occurrence shows as an increase."""
        known = _vcs(scheduler)
        found = dict.fromkeys(((vc, state) for vc in known for state in self.ends), 0)
        for (vc, state), number in scheduler.ended_as.items():
            key = vc if vc in known else UNKNOWN, state
            found[key] = found.get(key, 0) + number
        for (vc, state), number in found.items():
            yield (vc, state.value), number

    def _gpus(self, scheduler: Dispatcher[J, Any]) -> Iterator[Row]:
        """O(bad GPUs + reserved GPUs + foreign pods + VCs)."""
        usage, foreign = scheduler.usage, self.service.foreign()
        found = {
            "guaranteed": sum(usage.used.values()),
            "opportunistic": sum(usage.lent.values()),
            "reserved": kept_idle(scheduler.cluster, scheduler.reserved()),
            "foreign": foreign,
            "bad": scheduler.hardware.idle_bad(usage.at) - foreign,
        }
        every = scheduler.cluster.spec.gpus + scheduler.hardware.beyond()
        yield ("free",), every - sum(found.values())
        for state, number in found.items():
            yield (state,), number


def _vc_gpus(scheduler: Dispatcher[Any, Any]) -> Iterator[Row]:
    unavailable = scheduler.cluster.unavailable()
    given, taken = Counter[str](), Counter[str]()
    for (giver, taker), gpus in scheduler.trading.gpus_given().items():
        given[giver] += gpus
        taken[taker] += gpus
    for vc in _vcs(scheduler):
        yield (vc, "reserved"), scheduler.hardware.reserved_gpus(vc)
        yield (vc, "used"), scheduler.usage.used[vc]
        yield (vc, "borrowed"), scheduler.usage.lent[vc]
        yield (vc, "unavailable"), unavailable.get(vc, 0)
        yield (vc, "given"), given[vc]
        yield (vc, "taken"), taken[vc]


def waiting_jobs(scheduler: Dispatcher[Any, Any]) -> Iterator[Row]:
    """Jobs that wait for GPUs, by VC and decisive reason.

    O(jobs) while one waits: a scan costs a tenth of what the position in the queue would.
    """
    if any(scheduler.usage.waiting.values()):
        known = set(_vcs(scheduler))
        found = Counter(
            (job.vc if job.vc in known else UNKNOWN, job.decisive)
            for job in scheduler.active()
            if job.state.waits and not job.state.aside
        )
        for (vc, kind), number in found.items():
            yield (vc, kind.value.replace(" ", "_")), number


def _jobs(scheduler: Dispatcher[Any, Any]) -> Iterator[Row]:
    known = dict.fromkeys(_vcs(scheduler))
    for vc in known:
        for state in JobState:
            if not state.ended:
                yield (vc, state.value), scheduler.usage.states[vc, state.value]
    unknown = Counter[str]()
    for (vc, name), number in scheduler.usage.states.items():
        if vc not in known:
            unknown[name] += number
    for name, number in sorted(unknown.items()):
        if number:
            yield (UNKNOWN, name), number


def _vcs(scheduler: Dispatcher[Any, Any]) -> list[str]:
    """VCs of the spec, and some removed ones that still hold GPUs; jobs can name any number of others."""
    names = dict.fromkeys(vc.name for vc in scheduler.cluster.spec.virtual_clusters)
    return [*names, *scheduler.usage.others(names)[:_FORMER]]


def metrics_routes(metrics: Metrics[Any]) -> APIRouter:
    """``GET /metrics``, answered in the event loop's thread, which also changes the state."""
    router = APIRouter(tags=["engine"])

    @router.get("/metrics", response_class=Response, responses=declared(403))
    async def get_metrics() -> Response:
        """The engine and its cluster, for Prometheus."""
        text, kind = metrics.render()
        return Response(text, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    return router


def gauge(name: str, what: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    """A gauge, ``hived_`` and ``name``, with a row for each series."""
    return _filled(GaugeMetricFamily(f"hived_{name}", what, labels=labels), rows)


def counter(name: str, what: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    """A counter, likewise."""
    return _filled(CounterMetricFamily(f"hived_{name}", what, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for key, value in rows:
        family.add_metric([str(word) for word in key], value)
    return family
