"""Disruption budgets, which the controllers of Kubernetes count: they hold evictions up, for a while."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tools.control_plane.cluster import Cluster, Json
from tools.control_plane.service import Service
from tools.control_plane.workloads import make_pod, make_spec

POLICY = "/apis/policy/v1/namespaces"
pytestmark = pytest.mark.usefixtures("controller_manager")


@pytest.fixture(scope="module")
def spec(nodes: list[str]) -> Json:
    """Two tenants with one node each."""
    return make_spec(nodes[:2], {"a": 1, "b": 1})


@pytest.fixture(scope="module")
def options() -> tuple[str, ...]:
    """Enough patience for budgets that a test does not meet its end."""
    return ("--evict-patience=600",)


@pytest.fixture
def lent(cluster: Cluster, service: Service) -> Iterator[None]:
    """A loan on the other tenant's node, with its own tenant's node in use."""
    cluster.create_pod(make_pod("own-b", "b", 4))
    cluster.wait_placed("own-b")
    loan = make_pod("loan", "b", 4, opportunistic=True)
    loan["metadata"]["labels"]["budget"] = "yes"
    loan["spec"]["terminationGracePeriodSeconds"] = 20
    cluster.create_pod(loan)
    cluster.wait_placed("loan")
    cluster.wait_until(lambda: cluster.pod("loan")["status"]["phase"] == "Running", "it runs")
    yield
    cluster.api("DELETE", f"{POLICY}/{cluster.namespace}/poddisruptionbudgets")


def create_budget(cluster: Cluster, name: str) -> None:
    """The loan may not be disrupted."""
    body = {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"budget": "yes"}}}}
    path = f"{POLICY}/{cluster.namespace}/poddisruptionbudgets"
    cluster.api("POST", path, body)
    cluster.wait_until(
        lambda: cluster.api("GET", f"{path}/{name}").get("status", {}).get("currentHealthy") == 1,
        "the disruption controller has seen the pod",
    )


def disruption(cluster: Cluster) -> str:
    """Why the loan says that it is disrupted, once it is being deleted."""
    cluster.wait_terminating("loan")
    conditions = cluster.pod("loan")["status"].get("conditions", ())
    return next(
        (one["reason"] for one in conditions if (one["type"], one["status"]) == ("DisruptionTarget", "True")), ""
    )


@pytest.mark.usefixtures("lent")
def test_budget_holds_an_eviction_up(cluster: Cluster, ground: Cluster, service: Service) -> None:
    create_budget(cluster, "one")
    before = service.metric('hived_evictions_total{result="blocked"}')
    cluster.create_pod(make_pod("mine", "a", 4))
    cluster.wait_until(
        lambda: service.metric('hived_evictions_total{result="blocked"}') >= before + 2, "it was refused, and again"
    )
    assert "deletionTimestamp" not in cluster.pod("loan")["metadata"]
    assert "disruption budget" in service.cli("explain", f"{cluster.namespace}/loan").stdout
    with ground.start_kubelets().slow():
        cluster.delete(f"{POLICY}/{cluster.namespace}/poddisruptionbudgets/one")
        assert disruption(cluster) == "EvictionByEvictionAPI"
    cluster.wait_placed("mine")
    assert service.metric('hived_evictions_total{result="deleted"}') == 0


@pytest.mark.usefixtures("lent")
def test_patience_with_budgets_ends(cluster: Cluster, ground: Cluster, service: Service) -> None:
    """The pod is deleted then. Of two budgets for one pod the API server says with a success that it cannot evict."""
    create_budget(cluster, "one")
    create_budget(cluster, "two")
    service.stop()
    service.start("--evict-patience=1")
    with ground.start_kubelets().slow():
        cluster.create_pod(make_pod("mine", "a", 4))
        assert disruption(cluster) == "PreemptionByScheduler"
    cluster.wait_placed("mine")
    assert service.metric('hived_evictions_total{result="deleted"}') == 1
