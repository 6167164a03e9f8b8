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
    """Operators are a service account; a is for the namespace of the tests, b for another."""
    made = make_spec(nodes, {"a": 2, "b": 2})
    made["operators"] = ["serviceaccount:default/olga"]
    made["virtualClusters"]["a"]["members"] = ["namespace:default"]
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


CELLS = {"cells": {"cell_type": "NODE", "number": 1}, "duration_s": 3600.0}


def test_roles_of_service_accounts(cluster: Cluster, service: Service) -> None:
    drain = {"node": "n0", "undo": True}
    for name, drains, trades in (("olga", 200, 201), ("carol", 403, 201), ("eve", 403, 403)):
        with as_(service, token_of(cluster, name)) as there:
            assert there.get("/v1/usage").status_code == 200
            assert there.post("/v1/drain", json=drain).status_code == drains, name
            assert there.post("/v1/trades/offers", json=CELLS | {"vc": "a"}).status_code == trades, name
            assert there.post("/v1/trades/offers", json=CELLS | {"vc": "b"}).status_code == (
                201 if drains == 200 else 403
            )
    with as_(service, token_of(cluster, "eve")) as there:
        said = there.post("/v1/drain", json=drain).json()["error"]["message"]
        assert "system:serviceaccount:default:eve may not drain GPUs" in said


def test_tokens_for_others_open_nothing(cluster: Cluster, service: Service) -> None:
    """One for the API server itself, one that is none, none at all."""
    for token in (token_of(cluster, "olga", "https://kubernetes.default.svc"), "not.a.token", ""):
        with as_(service, token) as there:
            assert there.get("/v1/usage").status_code == 401


def test_pods_of_members_alone(cluster: Cluster, service: Service) -> None:
    cluster.create_pods(make_pod("mine", "a", 4), make_pod("not-mine", "b", 4))
    cluster.wait_placed("mine")
    cluster.wait_event("not-mine", "pods of namespace default", "may not use b, which is for namespace:elsewhere")
    assert "not-mine" not in cluster.placed()
