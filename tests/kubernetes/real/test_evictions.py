"""Pods that have to go are evicted: budgets are honoured for a while, Jobs do not fail for it, loans end in time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.service import Service

from . import scenes

BATCH, POLICY = "/apis/batch/v1/namespaces", "/apis/policy/v1/namespaces"
PATIENCE_S = 12
#: who makes pods of Jobs, and counts how many of a budget's are there
pytestmark = pytest.mark.usefixtures("controller_manager")


@pytest.fixture(scope="module")
def spec(nodes: list[str]) -> scenes.Json:
    """Two tenants with one node each."""
    return scenes.spec(nodes[:2], {"a": 1, "b": 1})


@pytest.fixture(scope="module")
def shared_service(ground: Cluster, spec: scenes.Json, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One with little patience for disruption budgets."""
    service = Service(ground.plane, tmp_path_factory.mktemp("service"), spec)
    try:
        service.start(f"--evict-patience={PATIENCE_S}")
        ground.plane.start_scheduler(service.extender)
        yield service
    finally:
        ground.plane.stop_scheduler()
        service.close()


def disrupted(cluster: Cluster, name: str) -> str:
    """Why a pod says that it is disrupted; "": it does not say so."""
    conditions = cluster.pod(name)["status"].get("conditions", ())
    return next(
        (one["reason"] for one in conditions if (one["type"], one["status"]) == ("DisruptionTarget", "True")), ""
    )


def budget(cluster: Cluster, name: str) -> None:
    """None of the pods of that name may be disrupted."""
    body = {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"budget": "yes"}}}}
    path = f"{POLICY}/{cluster.namespace}/poddisruptionbudgets"
    cluster.api("POST", path, body)
    cluster.wait_until(
        lambda: cluster.api("GET", f"{path}/{name}").get("status", {}).get("currentHealthy") == 1,
        "the disruption controller has seen the pod",
    )


def lend(cluster: Cluster, **spec: object) -> None:
    """A loan on the other tenant's node, and its own node in use."""
    cluster.create_pod(scenes.pod("own-b", "b", 4))
    scenes.wait_for_places(cluster, "own-b")
    loan = scenes.pod("loan", "b", 4, opportunistic=True)
    loan["metadata"]["labels"]["budget"] = "yes"
    loan["spec"] |= {"terminationGracePeriodSeconds": 20, **spec}
    cluster.create_pod(loan)
    scenes.wait_for_places(cluster, "loan")
    cluster.wait_until(lambda: cluster.pod("loan")["status"]["phase"] == "Running", "it runs")


def told_to_go(cluster: Cluster) -> scenes.Json:
    """The loan, once it is being deleted."""
    return (
        cluster.wait_until(
            lambda: found if "deletionTimestamp" in (found := cluster.pod("loan"))["metadata"] else None, "it has to go"
        )
        or {}
    )


@pytest.fixture
def slow(ground: Cluster, nodes: list[str]) -> Iterator[None]:
    """Pods that are deleted stay until the test has looked at them."""
    kubelet = ground.finish_deletions()
    yield
    kubelet.silent.clear()


@pytest.mark.usefixtures("slow")
def test_a_job_that_ignores_disruptions_survives_a_preemption(
    cluster: Cluster, ground: Cluster, service: Service, nodes: list[str]
) -> None:
    """It failed as a whole: its pod was deleted without a word of why."""
    template = scenes.pod("", "b", 4, opportunistic=True, gang="false")
    template["spec"] |= {"restartPolicy": "Never"}
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    job = {
        "metadata": {"name": "sweep"},
        "spec": {
            "parallelism": 2, "completions": 2, "backoffLimit": 0, "podFailurePolicy": {"rules": [ignore]},
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
        },
    }  # fmt: skip
    path = f"{BATCH}/{cluster.namespace}/jobs"
    cluster.api("POST", path, job)
    cluster.wait_until(lambda: len(cluster.placed()) == 2, "both of its pods are placed")
    first = set(cluster.pods())
    ground.finish_deletions().silent.update(nodes)
    cluster.create_pod(scenes.pod("mine", "a", 4))

    def victim() -> str | None:
        return next((name for name, one in cluster.pods().items() if "deletionTimestamp" in one["metadata"]), None)

    gone = cluster.wait_until(victim, "one of them has to go") or ""
    assert disrupted(cluster, gone) == "EvictionByEvictionAPI"
    cluster.set_phase(gone, "Failed")  # as a kubelet does before it lets a pod go
    ground.finish_deletions().silent.clear()
    scenes.wait_for_places(cluster, "mine")
    cluster.wait_until(lambda: len(set(cluster.pods()) - first - {"mine"}) == 1, "the Job makes another in its place")
    status = cluster.api("GET", f"{path}/sweep")["status"]
    assert status.get("failed", 0) == 0
    assert [one for one in status.get("conditions", ()) if one["type"] in ("Failed", "FailureTarget")] == []


def test_a_disruption_budget_holds_a_preemption_up(cluster: Cluster, service: Service) -> None:
    lend(cluster)
    budget(cluster, "one")
    before = service.metric('hived_evictions_total{result="blocked"}')
    cluster.create_pod(scenes.pod("mine", "a", 4))
    cluster.wait_until(
        lambda: service.metric('hived_evictions_total{result="blocked"}') >= before + 2, "it was refused, and again"
    )
    assert "deletionTimestamp" not in cluster.pod("loan")["metadata"]
    assert "disruption budget" in service.cli("explain", f"{cluster.namespace}/loan").stdout
    cluster.delete(f"{POLICY}/{cluster.namespace}/poddisruptionbudgets/one")
    scenes.wait_for_places(cluster, "mine")
    assert service.metric('hived_evictions_total{result="deleted"}') == 0


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("budgets", [1, 2])
def test_what_budgets_forbid_for_too_long_is_deleted_and_says_why(
    cluster: Cluster, ground: Cluster, service: Service, nodes: list[str], budgets: int
) -> None:
    """Of two budgets for one pod the API server says with a success that it cannot evict."""
    lend(cluster)
    for number in range(budgets):
        budget(cluster, f"budget-{number}")
    ground.finish_deletions().silent.update(nodes)
    before = service.metric('hived_evictions_total{result="deleted"}')
    cluster.create_pod(scenes.pod("mine", "a", 4))
    told_to_go(cluster)
    assert disrupted(cluster, "loan") == "PreemptionByScheduler"
    ground.finish_deletions().silent.clear()
    scenes.wait_for_places(cluster, "mine")
    assert service.metric('hived_evictions_total{result="deleted"}') == before + 1
    for number in range(budgets):
        cluster.delete(f"{POLICY}/{cluster.namespace}/poddisruptionbudgets/budget-{number}")
