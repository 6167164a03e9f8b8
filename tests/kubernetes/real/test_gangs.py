"""Gangs, preemptions and kills: pods through kube-scheduler and the service, on a real control plane."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tools.control_plane.cluster import Cluster, Json
from tools.control_plane.service import Service
from tools.control_plane.workloads import GUARANTEED, OPPORTUNISTIC, make_gang, make_pod

from hived.events.codec import from_line

from ..witness import snapshot

LENT = [f"lent-{rank}" for rank in range(4)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The event log of the service."""
    return tmp_path_factory.mktemp("log") / "events.jsonl"


@pytest.fixture(scope="module")
def options(log: Path) -> tuple[str, ...]:
    """Decisions are written down."""
    return (f"--event-log={log}",)


def loan_on_all_nodes(cluster: Cluster, **spec: object) -> None:
    """A gang of b that borrows a's nodes, too."""
    lent = make_gang("lent", "b", 4, 4, opportunistic=True)
    for pod in lent:
        pod["spec"] |= spec
    cluster.create_pods(*lent)
    cluster.wait_placed(*LENT)


@pytest.mark.smoke
def test_gang_preemption_and_kill(cluster: Cluster, service: Service, log: Path) -> None:
    """A gang takes lent nodes back once it is whole; the next process knows all of it, and the decisions replay."""
    loan_on_all_nodes(cluster)
    first, second = make_gang("own", "a", 2, 4)
    cluster.create_pod(first)
    cluster.wait_event("own-0", "1 of its 2 pods exist")
    assert set(cluster.placed()) == set(LENT)
    cluster.create_pod(second)
    cluster.wait_placed("own-0", "own-1")
    cluster.wait_gone(*LENT)
    preempted = {event["involvedObject"]["name"] for event in cluster.events() if event["reason"] == "HivedPreempted"}
    assert preempted == set(LENT)

    before = snapshot(service)
    assert [(group[:2], len(group[2])) for group in before.values()] == [(("running", "guaranteed"), 2)]
    service.restart()
    assert snapshot(service) == before
    cluster.create_pod(make_pod("next", "b", 4))
    placed = cluster.wait_placed("next")
    assert len(set(placed.values())) == 3

    assert service.stop() == 0
    kinds = Counter(type(from_line(line)).__name__ for line in log.read_text().splitlines())
    assert (kinds["Opened"], kinds["Recovered"]) == (2, 1)
    told = subprocess.run(
        [sys.executable, "-m", "hived", "sim", "replay", log], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert "of 2 starts of an engine: byte for byte the same" in told.stdout
    service.start()


@pytest.mark.parametrize("priority_class", [OPPORTUNISTIC, GUARANTEED])
def test_slow_victims(cluster: Cluster, ground: Cluster, service: Service, priority_class: str) -> None:
    """Their GPUs are reserved while they end, also by the next process. Whatever their class, no error is logged:
    kube-scheduler, which sees no lack of anything, tries to preempt as well."""
    own, lent = f"{cluster.namespace}/own", f"{cluster.namespace}/lent"
    before = len(ground.plane.log("kube-scheduler"))
    loan_on_all_nodes(cluster, priorityClassName=priority_class, terminationGracePeriodSeconds=30)

    def reserved() -> bool:
        group = service.groups().get(own, {})
        return (group.get("state"), group.get("victims")) == ("reserved", [lent])

    with ground.start_kubelets().slow():
        cluster.create_pods(*make_gang("own", "a", 2, 4))
        cluster.wait_event("own-1", lent)
        cluster.wait_terminating(*LENT)
        why = cluster.wait_until(lambda: why_unscheduled(cluster.pod("own-1")), "kube-scheduler says why")
        assert reserved()
        service.restart()
        cluster.wake_pod("own-0")
        cluster.wait_until(reserved, "its GPUs are reserved again")
        assert set(cluster.placed()) == set(LENT)
    cluster.wait_placed("own-0", "own-1")
    cluster.wait_gone(*LENT)
    for words in (why, "\n".join(cluster.messages("own-1", "FailedScheduling"))):
        assert "hived: its GPUs are reserved" in words
        assert "expected at least one victim" not in words
    assert "Status after running PostFilter" not in ground.plane.log("kube-scheduler")[before:]


def test_cpu_is_lent_as_well(cluster: Cluster, service: Service) -> None:
    """kube-scheduler passes over nodes without CPU, and offers them by the verb preempt."""
    asked = service.metric('hived_requests_total{result="victims",verb="preempt"}')
    resources = {"limits": {"hived.io/gpu": "4"}, "requests": {"cpu": "60"}}  # of 64
    container = {"name": "main", "image": "none", "resources": resources}
    loan_on_all_nodes(cluster, containers=[container])
    for pod in make_gang("own", "a", 2, 4):
        pod["spec"]["containers"] = [container]
        cluster.create_pod(pod)
    cluster.wait_placed("own-0", "own-1")
    assert service.metric('hived_requests_total{result="victims",verb="preempt"}') > asked


def why_unscheduled(pod: Json) -> str:
    """What kube-scheduler has written into the pod."""
    found = pod["status"].get("conditions", ())
    return "; ".join(one.get("message", "") for one in found if one["type"] == "PodScheduled")
