"""What ``/metrics`` has of Kubernetes alone: replicas, nodes, pods, and the requests of kube-scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import prometheus_client
from prometheus_client.metrics_core import Metric

from hived.engine.states import JobState
from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.gangs.gang import Gang
from hived.engines.kubernetes.gangs.gang_table import GangTable
from hived.engines.kubernetes.gangs.withheld import foreign_pods
from hived.server.metrics import Metrics, Row, counter, gauge

from .engine_service import EngineService

#: requests of kube-scheduler
VERBS = ("filter", "bind", "preempt")
#: seconds, from a quarter of a millisecond on, which the core takes per gang
_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

Reader = Callable[[GangTable], Iterable[Row]]


class KubernetesMetrics(Metrics[Gang]):
    """The metrics of ``engine``; only the requests of kube-scheduler are counted here."""

    ends = (JobState.ENDED,)

    def __init__(self, engine: Engine, service: EngineService) -> None:
        super().__init__(service)
        self._engine = engine
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

    def broken(self) -> int:
        """Found by scrapes, and by the engine."""
        return super().broken() + self._engine.counts.safety_violations

    def more(self) -> Iterator[Metric]:
        """See :class:`~hived.server.metrics.Metrics`. O(nodes)."""
        engine, known = self._engine, self._engine.gang_scheduler
        yield gauge("leader", "Whether this replica decides.", (), [((), engine.leader)])

        def of_cluster(name: str, what: str, labels: tuple[str, ...], read: Reader) -> Metric:
            return gauge(name, what, labels, () if known is None else read(known))

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
        counts = engine.counts
        yield counter("bindings", "Pods to be bound to nodes.", ("result",), _by(counts.bindings))
        yield counter("spec_reloads", "New cluster specs.", ("result",), _by(counts.spec_reloads))
        restarts = counts.watch_restarts.items()
        yield counter("watch_restarts", "Watches that were begun again.", ("resource", "reason"), restarts)
        errors, refused = counts.api_errors.items(), "Requests that Kubernetes refused or did not answer."
        yield counter("api_errors", refused, ("verb", "resource", "code"), errors)
        yield counter("events_dropped", "Events that were not written.", (), [((), counts.events_dropped)])
        yield counter(
            "evictions",
            "Pods that were told to go: evicted (ok), deleted in spite of their budget, or neither for now.",
            ("result",),
            _by(counts.evictions),
        )


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
