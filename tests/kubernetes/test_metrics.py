"""The metrics: names, types, labels, the text format, and correct numbers."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Mapping

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from tools.control_plane.service import TOKEN

from hived import __version__
from hived.cluster.reasons import ReasonKind
from hived.engines.kubernetes.gangs.gang import GangState
from hived.engines.kubernetes.pods.pod_request import PodRequestError
from hived.errors import InvariantError
from hived.exchange import Cells, Offer, Request
from hived.server.kubernetes.app import make_kubernetes_app
from hived.server.kubernetes.metrics import Metrics, metrics_routes

from .scheduler_harness import World, looking_at, one_event

#: name, type and labels, as docs and dashboards have them
EXPECTED = {
    "hived_build_info": ("gauge", {"version"}),
    "hived_ready": ("gauge", set()),
    "hived_leader": ("gauge", set()),
    "hived_safety_violations_total": ("counter", set()),
    "hived_safety_margin_cells": ("gauge", {"chain", "level"}),
    "hived_gpus": ("gauge", {"state"}),
    "hived_vc_gpus": ("gauge", {"vc", "kind"}),
    "hived_groups": ("gauge", {"vc", "state"}),
    "hived_waiting_groups": ("gauge", {"vc", "reason"}),
    "hived_nodes": ("gauge", {"state"}),
    "hived_requests_total": ("counter", {"verb", "result"}),
    "hived_request_duration_seconds": ("histogram", {"verb"}),
    "hived_preemptions_total": ("counter", {"vc", "by_vc"}),
    "hived_bindings_total": ("counter", {"result"}),
    "hived_refused_pods": ("gauge", {"reason"}),
    "hived_conflicts": ("gauge", set()),
    "hived_foreign_pods": ("gauge", set()),
    "hived_spec_reloads_total": ("counter", {"result"}),
    "hived_watch_restarts_total": ("counter", {"resource", "reason"}),
    "hived_api_errors_total": ("counter", {"verb", "resource", "code"}),
    "hived_events_dropped_total": ("counter", set()),
    "hived_evictions_total": ("counter", {"result"}),
}
#: metrics of a replica that does not decide
OF_EVERY_REPLICA = {"hived_build_info", "hived_ready", "hived_leader"}


def of(world: World) -> Metrics:
    return Metrics(world)  # type: ignore[arg-type]  # as much as is read of an engine


class Told:
    """The samples of a scrape."""

    def __init__(self, metrics: Metrics) -> None:
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


def busy() -> World:
    """A world in which everything has happened."""
    world = World()
    for _ in range(4):
        world.runs("research", 4, priority=-1)
    world.come("vision", 4, 2)
    world.runs("research", 2)
    world.come("speech", 1, 2, late=1)
    world.come("vision", 4, 2)
    world.node("a3", bad="1")
    world.node("b0", cordoned=True)
    pod = next(iter(world.known.pods.values()))
    pod.refused = PodRequestError("labels", "a label is wrong")
    world.known.refused[pod.uid] = pod
    world.known.conflicts[pod.uid] = "somebody else has its GPUs"
    counts = world.counts
    counts.bindings["ok"] += 5
    counts.spec_reloads["refused"] += 1
    counts.watch_restarts["pods", "gone"] += 2
    counts.api_errors["get", "pods", 503] += 3
    counts.events_dropped += 4
    counts.evictions["ok"] += 6
    return world


def test_every_metric_is_there_with_its_type_and_labels_and_no_other() -> None:
    metrics = of(busy())
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


def test_the_text_is_what_promtool_takes() -> None:
    metrics = of(busy())
    metrics.observe("bind", "bound", 0.3)
    text = metrics.render()[0].decode()
    assert text.endswith("\n")
    typed: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            typed.append(line.split()[2])
        elif not line.startswith("# HELP "):
            name, _, value = re.fullmatch(r'([a-z_]+)(\{(?:[a-z_]+="[^"]*",?)*\})? (\S+)', line).groups()  # type: ignore[union-attr]
            assert re.sub("_(bucket|count|sum)$", "", name) == typed[-1], "a sample stands under its own name"
            assert float(value) >= 0
    assert len(typed) == len(set(typed)) == len(EXPECTED)


def test_a_replica_that_does_not_decide_exports_itself_alone() -> None:
    world = busy()
    world.stand_by()
    told = Told(of(world))
    assert set(told.families) == {name.removesuffix("_total") for name in EXPECTED}
    assert told("hived_leader") == 0
    assert told("hived_ready") == 1
    assert told("hived_build_info", version=__version__) == 1
    assert told("hived_bindings_total", result="ok") == 5
    gauges = {name for name, (kind, _) in EXPECTED.items() if kind == "gauge"}
    assert {sample.name for sample in told.samples} & gauges == OF_EVERY_REPLICA


def test_requests_are_counted_and_their_durations_are_in_buckets_from_a_quarter_of_a_millisecond_to_5_s() -> None:
    metrics = of(World())
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


def test_counters_begin_at_zero() -> None:
    told = Told(of(World()))
    for name, results in {
        "bindings": ("ok", "conflict", "refused", "unknown"),
        "spec_reloads": ("ok", "refused"),
        "evictions": ("ok", "gone", "failed"),
    }.items():
        assert [told(f"hived_{name}_total", result=result) for result in results] == [0] * len(results)
    assert told("hived_groups", vc="speech", state="preempted") == 0
    assert told("hived_nodes", state="missing") == 0


def test_a_waiting_gang_is_counted_by_its_decisive_reason() -> None:
    world = busy()
    told = Told(of(world))
    reasons = told.by("hived_waiting_groups", "vc", "reason")
    assert reasons == {
        ("vision", "waiting_for_preemption"): 1,
        ("speech", "waiting_for_gang"): 1,
        ("vision", "vc_exhausted"): 1,
    }
    assert {reason for _, reason in reasons} <= {kind.value.replace(" ", "_") for kind in ReasonKind}
    assert told("hived_preemptions_total", vc="research", by_vc="vision") == 2


def test_nodes_are_healthy_bad_drained_or_missing() -> None:
    world = World()
    world.node("a0", ready=False)
    world.node("a1", cordoned=True)
    world.without_node("a2")
    world.node("elsewhere")
    told = Told(of(world))
    expected = {"healthy": 2, "bad": 1, "drained": 1, "missing": 1, "unmanaged": 1}
    assert told.by("hived_nodes", "state") == {(state,): number for state, number in expected.items()}
    assert told("hived_gpus", state="bad") == 12


def elsewhere(world: World) -> int:
    """Foreign pods on nodes that the spec lacks."""
    return sum(there.node not in world.known.nodes.devices for there in world.known.foreign.pods.values())


@pytest.mark.parametrize("seed", range(12))
def test_the_numbers_are_those_of_a_naive_count_whatever_happens(seed: int) -> None:
    choose = random.Random(seed)
    world = World()
    metrics = of(world)
    for _ in range(40):
        one_event(world, choose)
        told, gang_scheduler = Told(metrics), world.known
        gangs = gang_scheduler.gangs.values()
        spec = {vc.name for vc in gang_scheduler.cluster.spec.virtual_clusters}
        known = spec | {gang.vc for gang in gangs if gang.holds and gang.placement is not None and gang.placement.pods}
        shown = {gang.name: gang.vc if gang.vc in known else "(unknown)" for gang in gangs}
        states_ = Counter((shown[gang.name], gang.state.value) for gang in gangs)
        assert told.by("hived_groups", "vc", "state") == states_
        waits = Counter((shown[gang.name],) for gang in gangs if not gang.holds)
        assert told.by("hived_waiting_groups", "vc") == waits
        devices = {(name, device) for name, of in gang_scheduler.nodes.devices.items() for device in of}
        states: dict[tuple[str, int], str] = dict.fromkeys(devices, "free")
        for name, device in devices:
            if name in gang_scheduler.nodes.bad_nodes or (name, device) in gang_scheduler.nodes.bad_devices:
                states[name, device] = "bad"
        for stranger in gang_scheduler.foreign.pods.values():
            for device in stranger.kept if stranger.node in gang_scheduler.nodes.healthy else ():
                states[stranger.node, device] = "foreign"
        kinds: Counter[tuple[str, ...]] = Counter()
        for gang in sorted(gangs, key=lambda gang: gang.state is not GangState.RESERVED):
            for pod in gang.placement.pods if gang.placement is not None else ():
                for device in pod.leaf_cells:
                    kind = "guaranteed" if gang.guaranteed else "opportunistic"
                    states[pod.node, device] = "reserved" if gang.state is GangState.RESERVED else kind
                if gang.holds:
                    kinds[gang.vc, "used" if gang.guaranteed else "borrowed"] += len(pod.leaf_cells)
        assert told("hived_foreign_pods") == len(gang_scheduler.foreign.pods.keys() & world.pods.keys()) - elsewhere(
            world
        )
        assert told.by("hived_gpus", "state") == Counter((state,) for state in states.values())
        kinds.update(
            {
                (vc.name, "reserved"): gang_scheduler.nodes.reserved_gpus(vc.name)
                for vc in gang_scheduler.cluster.spec.virtual_clusters
            }
        )
        kinds.update(
            {(vc, "unavailable"): number for vc, number in gang_scheduler.cluster.unavailable().items() if number}
        )
        assert told.by("hived_vc_gpus", "vc", "kind") == kinds
        margins = {(row.chain, str(row.level)): row.margin for row in gang_scheduler.cluster.check_safety()}
        assert told.by("hived_safety_margin_cells", "chain", "level") == {k: v for k, v in margins.items() if v}


def test_broken_safety_is_counted_and_the_other_metrics_are_still_exported() -> None:
    world = World()
    world.counts.safety_violations = 2
    metrics = of(world)
    assert Told(metrics)("hived_safety_violations_total") == 2

    def broken() -> None:
        raise InvariantError("a margin is -1")

    world.known.cluster.check_safety = broken  # type: ignore[method-assign,assignment]
    told = Told(metrics)
    assert told.by("hived_safety_margin_cells", "chain") == {}
    assert told("hived_gpus", state="free") == 20
    assert told("hived_safety_violations_total") == 3


def test_what_a_name_has_in_it_does_not_break_the_text() -> None:
    world = World()
    metrics = of(world)
    world.counts.evictions['a "word"\nand \\ more'] += 1
    assert Told(metrics)("hived_evictions_total", result='a "word"\nand \\ more') == 1


def test_metrics_are_served_as_text() -> None:
    app = FastAPI()
    app.include_router(metrics_routes(of(busy())))

    async def ask() -> tuple[int, Mapping[str, str], str]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            answer = await client.get("/metrics")
            return answer.status_code, answer.headers, answer.text

    code, headers, text = asyncio.run(ask())
    assert code == 200
    assert headers["content-type"].startswith("text/plain; version=")
    assert "hived_gpus{" in text


@pytest.mark.parametrize("path", ["/metrics", "/v1/inspect/clusterstatus"])
def test_with_a_token_metrics_and_inspection_need_it_and_without_one_are_open(path: str) -> None:
    # values.yaml requires the token of people and Prometheus, and requests without it were answered
    world = busy()

    async def statuses(token: str | None) -> list[int]:
        metrics, engine = of(world), World()
        app = make_kubernetes_app(engine, looking_at(world), metrics, token=token, hosts=())  # type: ignore[arg-type]
        found = []
        # Prometheus uses the address of a pod
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://10.1.2.3:9096") as client:
            for shown in (None, "wrong", TOKEN):
                headers = {} if shown is None else {"Authorization": f"Bearer {shown}"}
                found.append((await client.get(path, headers=headers)).status_code)
            found.append((await client.get(path, headers={"Origin": "http://10.1.2.3:9096"})).status_code)
            found.append((await client.post("/v1/extender/filter", content=b"no question")).status_code)
        return found

    assert asyncio.run(statuses(TOKEN)) == [401, 401, 200, 403, 200]
    assert asyncio.run(statuses(None)) == [200, 200, 200, 403, 200]


def test_traded_gpus_are_counted_of_both() -> None:
    world = World()
    trading = world.known.trading
    node = Cells("RACK", 2)
    rack = Cells("RACK", 3)
    trading.offer(Offer("vision", rack, world.now, world.now + 60, wants=node), world.now)
    trading.request(Request("speech", rack, world.now, world.now + 60, gives=node), world.now)
    world.known.trade(world.now)
    told = Told(of(world))
    vcs = {
        vc: [told("hived_vc_gpus", vc=vc, kind=kind) for kind in ("reserved", "given", "taken")]
        for vc in ("vision", "speech", "research")
    }
    assert vcs == {"vision": [4, 8, 4], "speech": [8, 4, 8], "research": [2, 0, 0]}
