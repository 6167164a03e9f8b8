"""The extender at 8,192 nodes: the cost of kube-scheduler's requests over HTTP, and inside the service.

Requests carry the names of all suitable nodes, as kube-scheduler's do: all 8,192; all but one in the middle (a
taint is enough for that); all but the one where the pod would go; or every other one. Pods are synthetic. The client is
a process of its own, on a connection that stays open; what is measured over HTTP has the client's own reading in it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import sys
import time
from typing import Any

from hived import Cluster
from hived.engines.kubernetes.engine import Engine
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.pods.objects import Condition, Metadata, Node, NodeStatus
from hived.policies import YarnCS
from hived.server.kubernetes.app import make_kubernetes_app
from hived.server.kubernetes.engine_service import EngineService
from hived.server.kubernetes.metrics import KubernetesMetrics
from hived.server.kubernetes.view import kubernetes_view
from hived.server.serving import Server
from hived.spec import spec_from_dict

from .measuring import Figure

RACKS, PER_RACK, TENANTS = 8, 1024, 8
QUESTIONS = 3_000
WAITING = 1_000
TOKEN = "benchmark"
#: which nodes are not offered
CASES = ("all offered", "one in the middle missing", "the preferred one missing", "half of them missing")
Json = dict[str, Any]


def spec() -> Json:
    """8 racks of 1,024 nodes of 8 GPUs; every tenant reserved 896 nodes."""
    return {
        "physicalCluster": {
            "cellTypes": {
                "SOCKET": {"childCellType": "GPU", "childCellNumber": 4},
                "NODE": {"childCellType": "SOCKET", "childCellNumber": 2, "isNodeLevel": True},
                "RACK": {"childCellType": "NODE", "childCellNumber": PER_RACK},
            },
            "physicalCells": [
                {"cellType": "RACK", "cellChildren": [{"cellAddress": name} for name in names()[first:][:PER_RACK]]}
                for first in range(0, RACKS * PER_RACK, PER_RACK)
            ],
        },
        "virtualClusters": {
            f"vc{number}": {"virtualCells": [{"cellType": "RACK.NODE", "cellNumber": 896}]} for number in range(TENANTS)
        },
    }


def names() -> list[str]:
    """Of all nodes."""
    return [f"gpu-node-{number:05d}" for number in range(RACKS * PER_RACK)]


def pod(number: int, vc: str, gpus: int, priority: str) -> Json:
    """An object of realistic size."""
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "bench",
            "uid": f"uid-{number}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"hived.io/vc": vc, "hived.io/priority": priority},
        },
        "spec": {
            "schedulerName": "hived",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/team/training:2026-01-01",
                    "env": [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(20)],
                    "resources": {"limits": {"hived.io/gpu": str(gpus)}},
                }
            ],
        },
        "status": {"phase": "Pending"},
    }


class _NoApi:
    """An API server that accepts everything at once."""

    async def post(self, path: str, body: object) -> bytes:
        return b"{}"

    patch = delete = post


class _NoSource:
    name = "benchmark"


def measure() -> list[Figure]:
    """Milliseconds."""
    return [figure for case in CASES for figure in asyncio.run(_measure(case))]


async def _measure(case: str) -> list[Figure]:
    engine = Engine(_NoApi(), _NoSource(), identity="benchmark")  # type: ignore[arg-type]  # as much as is asked of them
    engine.spec = spec_from_dict(spec())
    began = time.perf_counter()
    gang_scheduler = GangScheduler(Cluster.from_spec(engine.spec), YarnCS())
    ready = NodeStatus(conditions=[Condition(type="Ready", status="True")])
    gang_scheduler.start([Node(metadata=Metadata(name=name), status=ready) for name in names()], [], 0.0)
    start_s = time.perf_counter() - began
    engine.install(gang_scheduler)
    metrics = _Kept(engine, EngineService(engine, may_change=True))
    server = Server()
    app = make_kubernetes_app(
        engine, kubernetes_view(engine, "benchmark"), token=TOKEN, hosts=(), measured=lambda *_: metrics
    )
    await server.start(app, listen=("127.0.0.1", 0))
    assert server.port is not None
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.extender", str(server.port), case, stdout=asyncio.subprocess.PIPE
    )
    round_trips: list[float] = json.loads((await client.communicate())[0])
    await server.stop()
    what = f"filter, {RACKS * PER_RACK:,} nodes" + ("" if case == CASES[0] else f", {case}")
    inside = [seconds for _, seconds in metrics.seen]
    waits = [seconds for result, seconds in metrics.seen if result == "wait"]
    placed = sum(result == "node" for result, _ in metrics.seen)
    assert placed >= QUESTIONS, f"{case}: only {placed} pods were placed"
    figures = [
        Figure(f"{what}: in the service, p50", _ms(inside, 0.5), "ms"),
        Figure(f"{what}: in the service, p99", _ms(inside, 0.99), "ms", "< 5 ms"),
        Figure(f"{what}: in the service, longest", _ms(inside, 1.0), "ms"),
        Figure(f"{what}: in the service, told to wait, p99", _ms(waits, 0.99), "ms", "< 5 ms"),
        Figure(f"{what}: over HTTP, p50", _ms(round_trips, 0.5), "ms"),
        Figure(f"{what}: over HTTP, p99", _ms(round_trips, 0.99), "ms"),
    ]
    if case == CASES[0]:
        figures.append(Figure(f"start with {RACKS * PER_RACK:,} healthy nodes", start_s, "s"))
    return figures


class _Kept(KubernetesMetrics):
    """Metrics that keep every measurement."""

    def __init__(self, engine: Engine, service: EngineService) -> None:
        super().__init__(engine, service)
        self.seen: list[tuple[str, float]] = []

    def observe(self, verb: str, result: str, seconds: float) -> None:
        super().observe(verb, result, seconds)
        self.seen.append((result, seconds))


def _ask(port: int, case: str) -> list[float]:
    """Seconds of every request: mostly pods that fit, then pods that wait."""
    rng = random.Random(1)
    nodes = names()
    if case == CASES[1]:
        del nodes[len(nodes) // 2]
    elif case == CASES[3]:
        del nodes[::2]
    tail = _tail(nodes)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    found = []
    for number in range(QUESTIONS + WAITING):
        if number < QUESTIONS:
            vc, priority = f"vc{rng.randrange(TENANTS)}", "-1" if rng.random() < 0.3 else "0"
            asked = pod(number, vc, rng.choice([1, 2, 4, 8]), priority)
        else:
            asked = pod(number, "vc0", 8, "0")
        if case == CASES[2]:
            preferred = _preferred(connection, asked)
            tail = _tail([name for name in nodes if name != preferred])
        body = f'{{"Pod":{json.dumps(asked)}{tail}'.encode()
        began = time.perf_counter()
        connection.request("POST", "/v1/extender/filter", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        found.append(time.perf_counter() - began)
    connection.close()
    return found


def _tail(nodes: list[str]) -> str:
    return f',"Nodes":null,"NodeNames":{json.dumps(nodes)}}}'


def _preferred(connection: http.client.HTTPConnection, asked: Json) -> str | None:
    """The node that HiveD would choose freely for the pod."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    body = json.dumps({"manifests": [{"apiVersion": "v1", "kind": "Pod", **asked}]})
    connection.request("POST", "/v1/plan", body, headers)
    places = json.loads(connection.getresponse().read())["groups"][0]["placement"]
    return places[0]["node"] if places else None


def _ms(seconds: list[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3


if __name__ == "__main__":
    print(json.dumps(_ask(int(sys.argv[1]), sys.argv[2])))
