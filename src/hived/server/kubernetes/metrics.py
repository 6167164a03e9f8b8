"""``/metrics`` for Prometheus. Read from the engine at each scrape; only the extender's requests are counted here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import prometheus_client
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hived import __version__
from hived.engine.states import JobState
from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.gangs.foreign import foreign_pods, kept_for_others
from hived.engines.kubernetes.gangs.gang_table import GangTable
from hived.errors import InvariantError
from hived.server.mapping import kept_idle

from .view import bad_gpus, why

#: requests of kube-scheduler
VERBS = ("filter", "bind", "preempt")
#: seconds, from a quarter of a millisecond on, which the core takes per gang
_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

#: the label of groups that name an unknown virtual cluster
UNKNOWN = "(unknown)"
_FORMER = 20  #: removed virtual clusters that keep their own label
#: label values (status codes may be numbers) and the sample
Row = tuple[tuple[str | int, ...], float]
Reader = Callable[[GangTable], Iterable[Row]]

# no second series per counter with its creation time
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations


class Metrics(Collector):
    """The metrics of ``engine``, in a registry of their own.

    The engine is read at each scrape. A replica that does not decide exports that, and nothing of the cluster.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: scrapes that found sharing safety broken
        self._unsafe = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._requests = prometheus_client.Counter(
            "hived_requests_total",
            "Requests of kube-scheduler, by how they were answered.",
            ("verb", "result"),
            registry=self.registry,
        )
        self._seconds = prometheus_client.Histogram(
            "hived_request_duration_seconds",
            "How long a request of kube-scheduler took to answer.",
            ("verb",),
            registry=self.registry,
            buckets=_BUCKETS,
        )
        for verb in VERBS:
            self._seconds.labels(verb)

    def observe(self, verb: str, result: str, seconds: float) -> None:
        """Count an answered request of kube-scheduler: ``verb`` of :data:`VERBS`, ``result`` one of a few labels."""
        self._requests.labels(verb, result).inc()
        self._seconds.labels(verb).observe(seconds)

    def render(self) -> tuple[bytes, str]:
        """The text and its content type. O(VCs + levels + bad or reserved GPUs), and O(gangs) while one waits."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Every metric, as of now. O(VCs * states + nodes + waiting groups)."""
        engine, known = self._engine, self._engine.gang_scheduler
        yield _gauge("build_info", "The version that runs.", ("version",), [((__version__,), 1)])
        yield _gauge("ready", "Whether this replica is in step with Kubernetes.", (), [((), engine.ready)])
        refused = "Whether the latest cluster spec was refused, and the one before is in force."
        yield _gauge("spec_refused", refused, (), [((), bool(engine.spec_problem))])
        yield _gauge("leader", "Whether this replica decides.", (), [((), engine.leader)])

        def of_cluster(name: str, what: str, labels: tuple[str, ...], read: Reader) -> Metric:
            return _gauge(name, what, labels, () if known is None else read(known))

        yield of_cluster(
            "safety_margin_cells",
            "Cells to spare at a level of a chain, however its VCs claim what they reserved; never below 0. Of the "
            "spec: what is bad is counted by vc_gpus.",
            ("chain", "level"),
            self._margins,
        )
        yield of_cluster(
            "gpus",
            "GPUs by what they are for now, each counted once. reserved: idle, kept for a group that waits for others "
            "to go; foreign: kept from jobs for pods that HiveD did not place; bad: kept from jobs for another reason.",
            ("state",),
            self._gpus,
        )
        yield of_cluster(
            "vc_gpus",
            "GPUs that a VC has reserved, uses as its own, has borrowed of others, and has reserved but cannot have "
            "now, were it to ask first (unavailable: bad, or kept for pods that HiveD did not place). reserved is with "
            "the cells that it has taken from others for a while, and without those given to them.",
            ("vc", "kind"),
            self._vc_gpus,
        )
        yield of_cluster("groups", "Affinity groups by state.", ("vc", "state"), self._groups)
        waiting = "Affinity groups that wait, by the decisive reason."
        yield of_cluster("waiting_groups", waiting, ("vc", "reason"), self._waiting)
        yield of_cluster(
            "nodes",
            "Nodes of the spec: healthy, drained (cordoned), missing in Kubernetes, or bad for another reason; and "
            "unmanaged ones, which the spec lacks.",
            ("state",),
            _nodes,
        )
        yield of_cluster("refused_pods", "Pods that cannot be scheduled as they are.", ("reason",), _refused)
        conflicts = "Bound pods whose GPUs another group has."
        yield of_cluster("conflicts", conflicts, (), lambda table: [((), len(table.conflicts))])
        foreign = "Pods with GPUs on nodes of the spec that HiveD did not place."
        yield of_cluster("foreign_pods", foreign, (), lambda table: [((), len(foreign_pods(table)))])
        yield _counter(
            "preemptions",
            "Affinity groups that had to go, by their VC and that of whom it was for.",
            ("vc", "by_vc"),
            () if known is None else known.preempted.items(),
        )
        counts = engine.counts
        unsafe = counts.safety_violations + self._unsafe
        broken = "How often sharing safety was found broken; once is a bug."
        yield _counter("safety_violations", broken, (), [((), unsafe)])
        yield _counter("bindings", "Pods to be bound to nodes.", ("result",), _by(counts.bindings))
        yield _counter("spec_reloads", "New cluster specs.", ("result",), _by(counts.spec_reloads))
        restarts = counts.watch_restarts.items()
        yield _counter("watch_restarts", "Watches that were begun again.", ("resource", "reason"), restarts)
        errors, refused = counts.api_errors.items(), "Requests that Kubernetes refused or did not answer."
        yield _counter("api_errors", refused, ("verb", "resource", "code"), errors)
        yield _counter("events_dropped", "Events that were not written.", (), [((), counts.events_dropped)])
        yield _counter(
            "evictions",
            "Pods that were told to go: evicted (ok), deleted in spite of their budget, or neither for now.",
            ("result",),
            _by(counts.evictions),
        )

    # -- metrics of the cluster -----------------------------------------------------------------------------------

    def _margins(self, gang_scheduler: GangTable) -> Iterable[Row]:
        try:
            return [((row.chain, str(row.level)), row.margin) for row in gang_scheduler.cluster.check_safety()]
        except InvariantError:  # the other metrics are needed then most
            self._unsafe += 1
            return []

    def _gpus(self, gang_scheduler: GangTable) -> Iterator[Row]:
        """O(bad GPUs + reserved GPUs + foreign pods + VCs)."""
        usage = gang_scheduler.usage
        found = {
            "guaranteed": sum(usage.used.values()),
            "opportunistic": sum(usage.lent.values()),
            "reserved": kept_idle(gang_scheduler.cluster, gang_scheduler.reserved()),
            "foreign": kept_for_others(gang_scheduler),
            "bad": bad_gpus(gang_scheduler),
        }
        yield ("free",), gang_scheduler.cluster.spec.gpus - sum(found.values())
        for state, number in found.items():
            yield (state,), number

    def _vc_gpus(self, gang_scheduler: GangTable) -> Iterator[Row]:
        unavailable = gang_scheduler.cluster.unavailable()
        traded = gang_scheduler.trading.gpus_given()
        for vc in self._vcs(gang_scheduler):
            yield (vc, "reserved"), gang_scheduler.nodes.reserved_gpus(vc)
            yield (vc, "used"), gang_scheduler.usage.used[vc]
            yield (vc, "borrowed"), gang_scheduler.usage.lent[vc]
            yield (vc, "unavailable"), unavailable.get(vc, 0)
            yield (vc, "given"), sum(gpus for (giver, _), gpus in traded.items() if giver == vc)
            yield (vc, "taken"), sum(gpus for (_, taker), gpus in traded.items() if taker == vc)

    def _groups(self, gang_scheduler: GangTable) -> Iterator[Row]:
        known = self._vcs(gang_scheduler)
        for vc in known:
            for state in JobState:
                yield (vc, state.value), gang_scheduler.usage.states[vc, state.value]
        unknown = Counter[str]()
        for (vc, name), number in gang_scheduler.usage.states.items():
            if vc not in known:
                unknown[name] += number
        for name, number in sorted(unknown.items()):
            if number:
                yield (UNKNOWN, name), number

    def _waiting(self, gang_scheduler: GangTable) -> Iterator[Row]:
        """O(gangs) while one waits: a scan costs a tenth of what the position in the queue would."""
        if any(gang_scheduler.usage.waiting.values()):
            known, holds = self._vcs(gang_scheduler), (JobState.RUNNING, JobState.STOPPING)
            found = Counter(
                (gang.vc if gang.vc in known else UNKNOWN, why(gang))
                for gang in gang_scheduler.gangs.values()
                if gang.state not in holds
            )
            for (vc, kind), number in found.items():
                yield (vc, kind.value.replace(" ", "_")), number

    def _vcs(self, gang_scheduler: GangTable) -> list[str]:
        """VCs of the spec, and some removed ones that still hold GPUs; pods can name any number of others."""
        usage = gang_scheduler.usage
        others = sorted(vc for vc in {*usage.used, *usage.lent} if usage.used[vc] or usage.lent[vc])
        return list(
            dict.fromkeys([*(vc.name for vc in gang_scheduler.cluster.spec.virtual_clusters), *others[:_FORMER]])
        )


def metrics_routes(metrics: Metrics) -> APIRouter:
    """``GET /metrics``, answered in the event loop's thread, which also changes the state."""
    router = APIRouter(tags=["metrics"])

    @router.get("/metrics", response_class=Response)
    async def get_metrics() -> Response:
        """The service and its cluster, for Prometheus."""
        text, kind = metrics.render()
        return Response(text, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    return router


def _nodes(gang_scheduler: GangTable) -> Iterator[Row]:
    """O(nodes): compares the nodes in Kubernetes with those of the spec."""
    nodes = gang_scheduler.nodes
    missing, drained = set(nodes.missing), nodes.drained
    found = Counter({"healthy": len(nodes.devices) - len(nodes.bad_nodes), "bad": 0, "drained": 0, "missing": 0})
    for name in nodes.bad_nodes:
        found["missing" if name in missing else "drained" if name in drained else "bad"] += 1
    found["unmanaged"] = nodes.unmanaged
    yield from _by(found)


def _refused(gang_scheduler: GangTable) -> Iterable[Row]:
    return _by(Counter(entry.refused.kind for entry in gang_scheduler.refused.values() if entry.refused is not None))


def _by(counted: Counter[str]) -> Iterator[Row]:
    for word, number in counted.items():
        yield (word,), number


def _gauge(name: str, what: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    return _filled(GaugeMetricFamily(f"hived_{name}", what, labels=labels), rows)


def _counter(name: str, what: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    return _filled(CounterMetricFamily(f"hived_{name}", what, labels=labels), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for key, value in rows:
        family.add_metric([str(word) for word in key], value)
    return family
