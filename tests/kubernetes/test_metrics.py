"""The metrics: names, types, labels, correct numbers; the alerts and the dashboard that show them."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tools.render import CHART, DEPLOY

from hived import __version__
from hived.cluster.explain.reasons import ReasonKind
from hived.engine.states import JobState
from hived.engines.kubernetes.pods.pod_request import PodRequestError
from hived.errors import InvariantError
from hived.server.kubernetes.app import make_kubernetes_app
from hived.server.kubernetes.engine_service import EngineService
from hived.server.kubernetes.metrics import KubernetesMetrics
from hived.server.metrics import Metrics

from ..server.api.client import Client
from .pods import gang_of, node, pod
from .replica import OTHER_RACKS, RACKS, Replica, looking_at, racks
from .walking import Walk

TOKEN = "t0ken-of-people"
#: name, type and labels, as docs and dashboards have them
EXPECTED = {
    "hived_build_info": ("gauge", {"version"}),
    "hived_ready": ("gauge", set()),
    "hived_leader": ("gauge", set()),
    "hived_safety_violations_total": ("counter", set()),
    "hived_safety_margin_cells": ("gauge", {"chain", "level"}),
    "hived_gpus": ("gauge", {"state"}),
    "hived_vc_gpus": ("gauge", {"vc", "kind"}),
    "hived_gpu_seconds_total": ("counter", {"vc", "use"}),
    "hived_jobs": ("gauge", {"vc", "state"}),
    "hived_jobs_ended_total": ("counter", {"vc", "state"}),
    "hived_waiting_jobs": ("gauge", {"vc", "reason"}),
    "hived_job_wait_seconds": ("histogram", {"vc"}),
    "hived_nodes": ("gauge", {"state"}),
    "hived_requests_total": ("counter", {"verb", "result"}),
    "hived_request_duration_seconds": ("histogram", {"verb"}),
    "hived_preemptions_total": ("counter", {"vc", "by_vc"}),
    "hived_bindings_total": ("counter", {"result"}),
    "hived_refused_pods": ("gauge", {"reason"}),
    "hived_conflicts": ("gauge", set()),
    "hived_foreign_pods": ("gauge", set()),
    "hived_spec_reloads_total": ("counter", {"result"}),
    "hived_spec_refused": ("gauge", set()),
    "hived_watch_restarts_total": ("counter", {"resource", "reason"}),
    "hived_api_errors_total": ("counter", {"verb", "resource", "code"}),
    "hived_events_dropped_total": ("counter", set()),
    "hived_evictions_total": ("counter", {"result"}),
}
#: metrics of a replica that does not decide
OF_EVERY_REPLICA = {"hived_build_info", "hived_ready", "hived_leader", "hived_spec_refused"}


class Told:
    """The samples of a scrape."""

    def __init__(self, metrics: Metrics[Any]) -> None:
        self.text = metrics.render()[0].decode()
        self.families = {family.name: family for family in text_string_to_metric_families(self.text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value of one series; None: there is none."""
        found = [sample.value for sample in self.samples if sample.name == name and sample.labels == labels]
        assert len(found) < 2, f"{name} {labels} is told twice"
        return found[0] if found else None

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """All series of a name, by some of their labels: sums."""
        found: Counter[tuple[str, ...]] = Counter()
        for sample in self.samples:
            if sample.name == name:
                found[tuple(sample.labels[label] for label in labels)] += sample.value  # type: ignore[assignment]
        return {key: value for key, value in found.items() if value}


def metrics_of(replica: Replica) -> KubernetesMetrics:
    engine: Any = replica  # as much as is read of an engine
    return KubernetesMetrics(engine, EngineService(engine, may_change=False))


@pytest.fixture
def busy() -> Replica:
    """A replica to which everything has happened."""
    world = racks()
    world.run(*[pod(f"loan{i}", 4, "research", priority="-1") for i in range(4)])
    world.submit(*gang_of("kept", 2, 4, "vision"), bind=False)
    world.run(pod("own", 2, "research"))
    world.submit(gang_of("partly", 2, 1, "speech")[0])
    world.submit(*gang_of("next", 2, 4, "vision"))
    world.set_node(node("a3", bad="1"))
    world.cordon("b0")
    refused = world.entry("loan0")
    refused.refused = PodRequestError("labels", "a label is wrong")
    world.gang_scheduler.refused[refused.uid] = refused
    world.gang_scheduler.conflicts[refused.uid] = "somebody else has its GPUs"
    replica = Replica(world)
    counts = replica.counts
    counts.bindings["ok"] += 5
    counts.spec_reloads["refused"] += 1
    counts.watch_restarts["pods", "gone"] += 2
    counts.api_errors["get", "pods", 503] += 3
    counts.events_dropped += 4
    counts.evictions["ok"] += 6
    return replica


def test_every_metric_and_no_other(busy: Replica) -> None:
    """With its type and labels."""
    metrics = metrics_of(busy)
    metrics.observe("filter", "bound", 0.001)
    told = Told(metrics)
    # the parser leaves _total out of a counter's name, and the text has it
    found = {
        f"{name}_total" if family.type == "counter" else name: (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for name, family in told.families.items()
    }
    assert found == EXPECTED
    assert all(family.documentation for family in told.families.values())
    assert told.text.count("# TYPE ") == len(EXPECTED)
    assert min(sample.value for sample in told.samples) >= 0


def test_replica_that_stands_by(busy: Replica) -> None:
    """It exports itself alone."""
    busy.leader = False
    told = Told(metrics_of(busy))
    assert set(told.families) == {name.removesuffix("_total") for name in EXPECTED}
    assert told("hived_leader") == 0
    assert told("hived_ready") == 1
    assert told("hived_build_info", version=__version__) == 1
    assert told("hived_bindings_total", result="ok") == 5
    gauges = {name for name, (kind, _) in EXPECTED.items() if kind == "gauge"}
    assert {sample.name for sample in told.samples} & gauges == OF_EVERY_REPLICA


def test_requests_and_their_durations() -> None:
    """In buckets from a quarter of a millisecond to 5 s."""
    metrics = metrics_of(Replica())
    for seconds in (0.0001, 0.0003, 0.002, 6.0):
        metrics.observe("filter", "placed", seconds)
    metrics.observe("filter", "waits", 0.0001)
    told = Told(metrics)
    assert told("hived_requests_total", verb="filter", result="placed") == 4
    assert told("hived_requests_total", verb="filter", result="waits") == 1
    name = "hived_request_duration_seconds"
    buckets = [s for s in told.families[name].samples if s.name == f"{name}_bucket" and s.labels["verb"] == "filter"]
    bounds = [float(sample.labels["le"]) for sample in buckets]
    assert bounds[0] == 0.00025
    assert bounds[-2:] == [5.0, float("inf")]
    assert [told(f"{name}_bucket", verb="filter", le=le) for le in ("0.00025", "0.0005", "5.0", "+Inf")] == [2, 3, 4, 5]
    assert told(f"{name}_count", verb="bind") == 0, "a rate has a zero to begin from"


def test_refused_spec_is_told_while_it_is(busy: Replica) -> None:
    """A counter's increase was over after a quarter of an hour, and the alert with it."""
    assert Told(metrics_of(busy))("hived_spec_refused") == 0
    busy.spec_problem = "line 3: it is wrong"
    assert Told(metrics_of(busy))("hived_spec_refused") == 1
    alerts = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    (expression,) = [alert["expr"] for alert in alerts if alert["alert"] == "HivedSpecRefused"]
    assert expression == "max by (namespace, pod) (hived_spec_refused) > 0"


def test_counters_begin_at_zero() -> None:
    told = Told(metrics_of(Replica()))
    results = {"bindings": "ok conflict refused unknown", "spec_reloads": "ok refused", "evictions": "ok gone failed"}
    for name, words in results.items():
        assert {told(f"hived_{name}_total", result=result) for result in words.split()} == {0}
    assert told("hived_jobs", vc="speech", state="stopping") == 0
    assert told("hived_jobs", vc="speech", state="ended") is None
    assert told("hived_jobs_ended_total", vc="speech", state="ended") == 0
    assert told("hived_nodes", state="missing") == 0


def test_waiting_gangs_by_reason(busy: Replica) -> None:
    told = Told(metrics_of(busy))
    reasons = told.by("hived_waiting_jobs", "vc", "reason")
    assert reasons == {
        ("vision", "waiting_for_preemption"): 1,
        ("speech", "waiting_for_gang"): 1,
        ("vision", "vc_exhausted"): 1,
    }
    assert {reason for _, reason in reasons} <= {kind.value.replace(" ", "_") for kind in ReasonKind}
    assert told("hived_preemptions_total", vc="research", by_vc="vision") == 2


def test_nodes_by_state() -> None:
    world = racks()
    world.set_node(node("a0", ready=False))
    world.cordon("a1")
    world.remove_node("a2")
    world.set_node(node("elsewhere"))
    told = Told(metrics_of(Replica(world)))
    expected = {"healthy": 2, "bad": 1, "drained": 1, "missing": 1, "unmanaged": 1}
    assert told.by("hived_nodes", "state") == {(state,): number for state, number in expected.items()}
    assert told("hived_gpus", state="bad") == 12


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_numbers_of_a_naive_count(seed: int) -> None:
    """Whatever happens."""
    walk = Walk(RACKS, seed, (RACKS, OTHER_RACKS))
    world = walk.world
    metrics = metrics_of(Replica(world))
    for _ in range(60):
        walk.event()()
        told, gang_scheduler = Told(metrics), world.gang_scheduler
        nodes, spec, gangs = gang_scheduler.nodes, gang_scheduler.cluster.spec, gang_scheduler.gangs.values()
        strangers = gang_scheduler.foreign.pods.values()
        vcs = {vc.name for vc in spec.virtual_clusters}
        known = vcs | {gang.vc for gang in gangs if gang.holds and gang.placement is not None and gang.placement.pods}
        shown = {gang.name: gang.vc if gang.vc in known else "(unknown)" for gang in gangs}
        of_states = Counter((shown[gang.name], gang.state.value) for gang in gangs)
        assert told.by("hived_jobs", "vc", "state") == of_states
        waits = Counter((shown[gang.name],) for gang in gangs if not gang.holds)
        assert told.by("hived_waiting_jobs", "vc") == waits
        states = {(name, device): "free" for name, of in nodes.devices.items() for device in of}
        for name, device in states:
            if name in nodes.bad_nodes or (name, device) in nodes.bad_devices:
                states[name, device] = "bad"
        for stranger in strangers:
            for device in stranger.kept if stranger.node in nodes.healthy else ():
                states[stranger.node, device] = "foreign"
        kinds: Counter[tuple[str, ...]] = Counter()
        for gang in sorted(gangs, key=lambda gang: gang.state is not JobState.RESERVED):
            for place in gang.placement.pods if gang.placement is not None else ():
                kind = "guaranteed" if gang.guaranteed else "opportunistic"
                for device in place.leaf_cells:
                    states[place.node, device] = "reserved" if gang.state is JobState.RESERVED else kind
                if gang.holds:
                    kinds[gang.vc, "used" if gang.guaranteed else "borrowed"] += len(place.leaf_cells)
        assert told("hived_foreign_pods") == sum(stranger.node in nodes.devices for stranger in strangers)
        assert told.by("hived_gpus", "state") == Counter((state,) for state in states.values())
        unavailable = gang_scheduler.cluster.unavailable()
        for vc in vcs:
            kinds[vc, "reserved"] = nodes.reserved_gpus(vc)
        for (giver, taker), gpus in gang_scheduler.trading.gpus_given().items():
            kinds[giver, "given"] += gpus
            kinds[taker, "taken"] += gpus
        kinds.update({(vc, "unavailable"): number for vc, number in unavailable.items()})
        assert told.by("hived_vc_gpus", "vc", "kind") == +kinds
        margins = {(row.chain, str(row.level)): row.margin for row in gang_scheduler.cluster.check_safety()}
        assert told.by("hived_safety_margin_cells", "chain", "level") == {k: v for k, v in margins.items() if v}


def test_broken_safety_is_counted() -> None:
    """And the other metrics are still exported."""
    replica = Replica()
    replica.counts.safety_violations = 2
    metrics = metrics_of(replica)
    assert Told(metrics)("hived_safety_violations_total") == 2

    def broken() -> None:
        raise InvariantError("a margin is -1")

    replica.cluster.check_safety = broken  # type: ignore[method-assign,assignment]
    told = Told(metrics)
    assert told.by("hived_safety_margin_cells", "chain") == {}
    assert told("hived_gpus", state="free") == 20
    assert told("hived_safety_violations_total") == 3


@pytest.mark.parametrize(
    ("token", "expected"),
    [(TOKEN, [401, 401, 200, 403, 200]), (None, [200, 200, 200, 403, 200])],
    ids=["token", "open"],
)
@pytest.mark.parametrize("path", ["/metrics", "/v1/inspect/clusterstatus"])
def test_token_of_metrics_and_inspection(busy: Replica, path: str, token: str | None, expected: list[int]) -> None:
    # values.yaml requires the token of people and Prometheus, and requests without it were answered
    engine: Any = busy
    app, address = (
        make_kubernetes_app(engine, looking_at(busy), token=token, hosts=()),
        "http://10.1.2.3:9096",
    )  # a pod's
    client = Client(app, address)
    bearers = ({"Authorization": f"Bearer {shown}"} for shown in ("wrong", TOKEN))
    answers = [client.get(path, headers=headers) for headers in ({}, *bearers, {"Origin": address})]
    answers.append(client.post("/v1/extender/filter", content=b"no question"))
    assert [answer.status_code for answer in answers] == expected
    if path == "/metrics":
        assert answers[2].headers["content-type"].startswith("text/plain; version=")
        assert "hived_gpus{" in answers[2].text


# -- alerts and the dashboard speak of metrics that there are, and of all of them --------------------------------------

DASHBOARD = json.loads((DEPLOY / "grafana" / "hived.json").read_text(encoding="utf-8"))
(RULES,) = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
ALERTS = RULES["rules"]
EXPRESSIONS = {
    **{f"alert {rule['alert']}": rule["expr"] for rule in ALERTS},
    **{
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    },
    **{f"variable {one['name']}": one["query"] for one in DASHBOARD["templating"]["list"]},
}
TARGET_LABELS = {"namespace", "pod", "le"}  #: that Prometheus adds, or a histogram has


def metrics_in(expression: str) -> set[str]:
    names = set(re.findall(r"\bhived_\w+", expression))
    return {name if name in EXPECTED else re.sub("_(bucket|sum|count)$", "", name) for name in names}


def test_every_metric_is_shown() -> None:
    """And the manual has every alert."""
    manual = (DEPLOY.parent / "docs" / "howto" / "operating.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(Hived\w+)`", manual)) == {rule["alert"] for rule in ALERTS}
    assert {name for expression in EXPRESSIONS.values() for name in metrics_in(expression)} == set(EXPECTED)


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_expression(where: str) -> None:
    """Of metrics and labels that exist; a counter by its growth, but for the one that must stay 0."""
    expression = EXPRESSIONS[where]
    by = [label for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in labels.split(", ")]
    selected = re.findall(r"[{,]\s*(\w+)(?:=~?|!=)", expression)
    known = {label for metric in metrics_in(expression) for label in EXPECTED[metric][1]}
    assert {*by, *selected} <= known | TARGET_LABELS
    assert expression.count("(") == expression.count(")")
    for counter in re.findall(r"\bhived_\w+_total", expression):
        grows = re.search(rf"(rate|increase)\({counter}\b", expression)
        assert grows or counter == "hived_safety_violations_total"


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_alert(rule: dict[str, Any]) -> None:
    """It says how bad it is and what to do, with labels that it has."""
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description"}
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    kept = re.match(r"(?:\w+ )?.*?by \(([^)]*)\)", rule["expr"])
    assert used <= (set(kept[1].split(", ")) if kept else TARGET_LABELS)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
