"""People by tokens of Kubernetes, as a real API server knows them: what each may do, and pods of members alone."""

from __future__ import annotations

import httpx
import pytest
from tools.control_plane.cluster import Cluster, Json
from tools.control_plane.service import Service
from tools.control_plane.workloads import make_pod, make_spec

AUDIENCE = "hived"
REVIEWER = {
    "metadata": {"name": "hived-reviews"},
    "rules": [{"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}],
}
BINDING = {
    "metadata": {"name": "hived-reviews"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "hived-reviews"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "hived"}],
}


@pytest.fixture(scope="module")
def spec(nodes: list[str]) -> Json:
    """An operator is a service account; a is for everybody, b for another namespace than those of the tests."""
    made = make_spec(nodes, {"a": 2, "b": 2})
    made["operators"] = ["serviceaccount:default/olga"]
    made["virtualClusters"]["a"]["members"] = ["*"]
    made["virtualClusters"]["b"]["members"] = ["namespace:elsewhere"]
    made["virtualClusters"]["a"]["admins"] = ["serviceaccount:default/carol"]
    return made


@pytest.fixture(scope="module")
def options(ground: Cluster) -> tuple[str, ...]:
    for kind, body in (("clusterroles", REVIEWER), ("clusterrolebindings", BINDING)):
        ground.api("POST", f"/apis/rbac.authorization.k8s.io/v1/{kind}", body)
    return ("--review-tokens", AUDIENCE)


def token_of(cluster: Cluster, name: str, audience: str = AUDIENCE) -> str:
    """A token of a service account, which is made for it."""
    home = "/api/v1/namespaces/default/serviceaccounts"
    if name not in {account["metadata"]["name"] for account in cluster.api("GET", home)["items"]}:
        cluster.api("POST", home, {"metadata": {"name": name}})
    asked = {"spec": {"audiences": [audience], "expirationSeconds": 600}}
    return str(cluster.api("POST", f"{home}/{name}/token", asked)["status"]["token"])


def as_(service: Service, token: str) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {token}"}, timeout=60, trust_env=False)


def test_roles_of_service_accounts(cluster: Cluster, service: Service) -> None:
    drain = {"node": "n0", "undo": True}
    for name, status in (("olga", 200), ("carol", 403), ("eve", 403)):
        with as_(service, token_of(cluster, name)) as there:
            assert there.get("/v1/usage").status_code == 200
            answer = there.post("/v1/drain", json=drain)
            assert answer.status_code == status, name
    assert "system:serviceaccount:default:eve may not drain GPUs" in answer.json()["error"]["message"]


def test_tokens_for_others_open_nothing(cluster: Cluster, service: Service) -> None:
    """One for the API server itself, and one that is none."""
    for token in (token_of(cluster, "olga", "https://kubernetes.default.svc"), "not.a.token"):
        with as_(service, token) as there:
            assert there.get("/v1/usage").status_code == 401


def test_pods_of_members_alone(cluster: Cluster, service: Service) -> None:
    cluster.create_pods(make_pod("mine", "a", 4), make_pod("not-mine", "b", 4))
    cluster.wait_placed("mine")
    cluster.wait_event("not-mine", "may not use b, which is for namespace:elsewhere", reason="HivedRefused")
    assert "not-mine" not in cluster.placed()
