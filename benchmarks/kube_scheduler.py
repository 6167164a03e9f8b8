"""1,000 pods over 200 nodes through a real kube-scheduler: with HiveD as its extender, and alone, in one run.

Alone, the nodes advertise the GPUs and kube-scheduler counts them: its own cost. The difference is the cost of the
extender. Everything runs on the same machine, so processor time is measured per process.
"""

from __future__ import annotations

import concurrent.futures
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.control_plane import binaries
from tools.control_plane.cluster import Api, Cluster
from tools.control_plane.plane import ControlPlane, cpu_s
from tools.control_plane.service import Service, grant
from tools.control_plane.workloads import GUARANTEED, OPPORTUNISTIC, make_pod, make_spec

from .measuring import Figure

NODES, PODS = 200, 1_000
Json = dict[str, Any]


def measure() -> list[Figure]:
    """Pods a second, from the first creation to the last binding."""
    plane = ControlPlane(binaries.find()).start()
    with tempfile.TemporaryDirectory() as folder:
        try:
            return _measure(plane, Path(folder))
        finally:
            plane.stop()


def _measure(plane: ControlPlane, folder: Path) -> list[Figure]:
    api = Api(plane.kubeconfig())
    for name in ("alone", "asked"):
        api("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    grant(api)
    cluster = Cluster(plane, "asked")
    cluster.create_priority_class(GUARANTEED, 1000)
    cluster.create_priority_class(OPPORTUNISTIC, 1)
    names = [f"node-{number:03d}" for number in range(NODES)]
    cluster.create_nodes(names, cpu="1000", pods=1000, resources={"hived.io/gpu": "8"})
    service = Service(plane, folder, make_spec(names, {"a": NODES // 2, "b": NODES // 2}, gpus=8)).start()
    try:
        # an extender that manages no resource of these pods is not called for them
        plane.start_scheduler("http://127.0.0.1:1", "alone", {"managedResources": [{"name": "example.com/none"}]})
        own = plane.cpu_s("kube-scheduler-alone")
        alone = _run(plane, "alone", lambda pod: {**pod, "spec": {**pod["spec"], "schedulerName": "alone"}})
        own = plane.cpu_s("kube-scheduler-alone") - own
        plane.stop_scheduler("alone")
        plane.start_scheduler(service.extender)
        assert service.process is not None
        spent = [plane.cpu_s("kube-scheduler"), cpu_s(service.process.pid)]
        asked = _run(plane, "asked", lambda pod: pod)
        spent = [plane.cpu_s("kube-scheduler") - spent[0], cpu_s(service.process.pid) - spent[1]]
        waited = service.metric('hived_request_duration_seconds_sum{verb="filter"}')
    finally:
        service.close()
        plane.stop_scheduler()
        cluster.close()
        api.close()
    what = f"{PODS:,} pods, {NODES} nodes"
    return [
        Figure(f"{what}: kube-scheduler with HiveD", PODS / asked, "pods/s", "> 100"),
        Figure(f"{what}: kube-scheduler alone", PODS / alone, "pods/s"),
        Figure(f"{what}: kube-scheduler waits for filter, per pod", waited / PODS * 1e3, "ms"),
        Figure(f"{what}: processor time of kube-scheduler, per pod", spent[0] / PODS * 1e3, "ms"),
        Figure(f"{what}: processor time of kube-scheduler alone, per pod", own / PODS * 1e3, "ms"),
        Figure(f"{what}: processor time of the service, per pod", spent[1] / PODS * 1e3, "ms"),
    ]


def _run(plane: ControlPlane, namespace: str, dress: Callable[[Json], Json]) -> float:
    """Seconds. The pods all fit."""
    cluster = Cluster(plane, namespace)
    rng = random.Random(1)
    pods = [dress(make_pod(f"pod-{n}", "ab"[n % 2], rng.choice([1, 1, 1, 2]))) for n in range(PODS)]
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(cluster.create_pod, pods))
    while len(cluster.placed()) < PODS:
        if time.perf_counter() - began > 300:
            raise AssertionError(f"only {len(cluster.placed())} of {PODS} pods are bound:\n{cluster.picture()[-3000:]}")
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    cluster.api("DELETE", f"/api/v1/namespaces/{namespace}/pods", gracePeriodSeconds="0")
    return seconds
