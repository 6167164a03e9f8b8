"""A cluster to try HiveD on, on one machine: a real control plane, nodes without a machine behind them, their kubelets.

    python -m tools.playground            nothing of HiveD in it yet: what docs/tutorials/kubernetes.md begins with
    python -m tools.playground --hived    with HiveD installed, its kube-scheduler, and two tenants

Prints the kubeconfig to use. Ctrl-C ends it, and leaves nothing.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

from .control_plane import binaries
from .control_plane.cluster import Cluster
from .control_plane.deployed import deployed
from .control_plane.plane import ControlPlane
from .control_plane.service import Service, grant
from .control_plane.workloads import make_spec

NODES = ("node-1", "node-2", "node-3", "node-4")


def main() -> None:
    """Start it, and keep it until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tools.playground", description=__doc__.splitlines()[0])
    parser.add_argument("--hived", action="store_true", help="with HiveD installed and running")
    parser.add_argument("--kubeconfig", type=Path, default=Path("playground.kubeconfig"), help="where to write it")
    parser.add_argument("--port", type=int, default=9096, help="where HiveD is asked, which need not run yet")
    arguments = parser.parse_args()
    _say("looking for Kubernetes; where there is none, it is built once, for 5 to 10 minutes and more")
    programs = binaries.find()  # Ctrl-C ends that at once
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    folder = Path(tempfile.mkdtemp(prefix="hived-playground-"))
    _say(f"starting Kubernetes {programs.version[0]}.{programs.version[1]} of {programs.folder}")
    plane = ControlPlane(programs, controller_manager=True).start()
    service: Service | None = None
    cluster = Cluster(plane, "default")
    try:
        cluster.create_nodes(NODES, cpu="32", memory="256Gi")
        cluster.start_kubelets()
        shutil.copy(plane.kubeconfig("admin"), arguments.kubeconfig)
        if arguments.hived:
            grant(cluster.api)
            for found in deployed():
                if found["kind"] == "PriorityClass":
                    cluster.api("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", found)
            spec = make_spec(list(NODES), {"vision": 2, "speech": 2}, gpus=8)
            _say("starting HiveD")
            service = Service(plane, folder, spec, port=arguments.port).start()
        _say("starting kube-scheduler")
        plane.start_scheduler(f"http://127.0.0.1:{arguments.port}/v1/extender")
        _greet(arguments.kubeconfig, arguments.port, service)
        while not ended.wait(1.0):
            if service is not None and service.process is not None and service.process.poll() is not None:
                raise SystemExit(f"hived has ended:\n{service.log()[-3000:]}")
    finally:
        if service is not None:
            service.close()
        cluster.close()
        plane.stop()
        arguments.kubeconfig.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)


def _greet(kubeconfig: Path, port: int, service: Service | None) -> None:
    _say(f"a cluster is up: {', '.join(NODES)}, of 32 CPUs each")
    print(f"    export KUBECONFIG={kubeconfig.resolve()}")
    if service is None:
        print(f"    kube-scheduler `hived` asks 127.0.0.1:{port}, where hived serve kubernetes will be")
    else:
        print(f"    export HIVED_ENGINE={service.url} HIVED_TOKEN={service.token}")
        print(f"    dashboard: {service.url}/?token={service.token}")
        print("    virtual clusters vision and speech have two nodes of 8 GPUs each")
    print("    docs/tutorials/kubernetes.md says what to try")
    print("    Ctrl-C ends it", flush=True)


if __name__ == "__main__":
    main()
