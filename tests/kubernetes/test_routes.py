"""``/v1`` on Kubernetes: every route, its errors, and the API fuzzed from its own document; the extender."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import Phase, settings
from schemathesis.config import SchemathesisConfig

from hived.server.kubernetes.extender import extender_routes
from hived.server.kubernetes.schema import PlanRequest

from ..server.api.client import Client, error
from ..server.api.test_fuzz import CHECKS
from ..server.fakes import FAILURES, WHY, FakeKubernetes, kubernetes_app

TOKEN = "t0ken"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
OPERATIONS = {
    "GET /healthz": "check_health",
    "GET /v1/status": "get_status",
    "GET /v1/vcs": "list_vcs",
    "GET /v1/vcs/{name}": "get_vc",
    "GET /v1/groups": "list_groups",
    "GET /v1/groups/{ref}": "get_group",
    "GET /v1/explain/{ref}": "explain_group",
    "POST /v1/plan": "plan_objects",
    "POST /v1/drain": "drain_node",
}
POD: dict[str, object] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}}


@pytest.fixture
def service() -> FakeKubernetes:
    return FakeKubernetes()


@pytest.fixture
def client(service: FakeKubernetes) -> Client:
    return Client(kubernetes_app(service))


def test_status_and_virtual_clusters(client: Client, service: FakeKubernetes) -> None:
    service.add("train")
    service.add("next", state="queued", why=(WHY,))
    assert client.get("/healthz").json() == {"status": "ok", "engine": "kubernetes"}
    told = client.get("/v1/status").json()
    assert (told["guaranteed"], told["groups"]) == (4, {"running": 1, "queued": 1})
    assert client.get("/v1/vcs").json() == told["vcs"]
    assert [vc["used"] for vc in told["vcs"]] == [4, 0]
    told = client.get("/v1/vcs/vision").json()
    assert [group["name"] for group in told["running"]] == ["train"]
    assert [group["why"] for group in told["waiting"]] == [[WHY]]
    answer = client.get("/v1/vcs/a%2Fb")
    assert answer.status_code == 404
    assert error(answer)["message"].startswith("there is no virtual cluster 'a/b'")


def test_list_of_groups(client: Client, service: FakeKubernetes) -> None:
    """By VC and state, and page by page."""
    for number in range(5):
        service.add(f"g{number}", vc="vision" if number % 2 else "speech", state="queued" if number > 2 else "running")

    def names(query: str) -> list[str]:
        return [group["name"] for group in client.get(f"/v1/groups{query}").json()["groups"]]

    assert names("") == ["g0", "g1", "g2", "g3", "g4"]
    assert names("?vc=vision") == ["g1", "g3"]
    assert names("?state=queued&vc=speech") == ["g4"]
    assert names("?limit=2&offset=3") == ["g3", "g4"]
    assert client.get("/v1/groups?limit=1").json()["total"] == 5


@pytest.mark.parametrize("path", ["/v1/groups", "/v1/explain"])
@pytest.mark.parametrize("ref", ["team/train-0", "team%2Ftrain-0", "jobs/of/ann/train", "jobs%2Fof%2Fann%2Ftrain"])
def test_group_by_name_or_pod(client: Client, service: FakeKubernetes, path: str, ref: str) -> None:
    """Whatever slashes these have."""
    service.add("jobs/of/ann/train")
    told = client.get(f"{path}/{ref}").json()
    assert told.get("name", told.get("group")) == "jobs/of/ann/train"
    assert service.asked == [ref.replace("%2F", "/")]


def test_explanation_in_words_and_data(client: Client, service: FakeKubernetes) -> None:
    service.add("train", state="queued", why=(WHY,))
    assert client.get("/v1/explain/team/train-0").json() == {
        "group": "train",
        "pod": "team/train-0",
        "text": f"train is queued\n- {WHY}",
        "reasons": [{"kind": "vc_exhausted", "need": 8}],
    }


def test_plan_of_objects(client: Client, service: FakeKubernetes) -> None:
    service.plans("train", "waits", "it would wait:\n- for its turn")
    told = client.post("/v1/plan", json={"objects": [POD]}).json()
    assert [(group["group"], group["outcome"]) for group in told["groups"]] == [("default/train", "waits")]
    client.post("/v1/plan", json={"objects": [POD], "namespace": "team"})
    assert service.planned == [PlanRequest(objects=[POD], namespace=name) for name in ("default", "team")]


def test_drain(client: Client, service: FakeKubernetes) -> None:
    service.add("train")
    told = client.post("/v1/drain", json={"node": "gpu1"}).json()
    assert told == {"node": "gpu1", "drained": True, "gpus": 8, "groups": ["train"]}
    assert client.post("/v1/drain", json={"node": "gpu1", "undo": True}).json()["drained"] is False
    assert client.post("/v1/drain", json={"node": "n9"}).status_code == 404


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/groups?state=lost", "state"),
        ("/v1/groups?limit=0", "limit"),
        ("/v1/groups?limit=1001", "limit"),
        ("/v1/groups?offset=-1", "offset"),
        ("/v1/groups?vc=", "vc"),
        ("/v1/groups/", "ref"),
        ("/v1/explain/", "ref"),
        (f"/v1/explain/{'x' * 1025}", "ref"),
    ],
    ids=["state", "no limit", "limit", "offset", "vc", "no group", "no pod", "long name"],
)
def test_wrong_query(client: Client, service: FakeKubernetes, path: str, field: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, error(answer)["field"]) == (422, field)
    assert service.asked == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("plan", {}, "objects"),
        ("plan", {"objects": []}, "objects"),
        ("plan", {"objects": [POD] * 1001}, "objects"),
        ("plan", {"objects": [POD, "pod"]}, "objects.1"),
        ("plan", {"objects": [POD], "namespace": "n" * 64}, "namespace"),
        ("plan", {"objects": [POD], "dry": True}, "dry"),
        ("drain", {}, "node"),
        ("drain", {"node": ""}, "node"),
        ("drain", {"node": "gpu1", "undo": "yes"}, "undo"),
        ("drain", {"node": "gpu1", "now": True}, "now"),
    ],
)
def test_wrong_body(client: Client, service: FakeKubernetes, path: str, body: dict[str, object], field: str) -> None:
    answer = client.post(f"/v1/{path}", json=body)
    assert (answer.status_code, error(answer)["field"]) == (422, field)
    assert service.planned == []
    assert service.drained == set()


def calls(client: Client) -> Iterator[tuple[str, Any]]:
    """Every route but the health, with what it takes."""
    bodies = {"/v1/plan": {"objects": [POD]}, "/v1/drain": {"node": "gpu1"}}
    for operation in OPERATIONS:
        method, path = operation.split(" ")
        if path != "/healthz":
            path = path.replace("{name}", "vision").replace("{ref}", "train")
            yield operation, client.request(method, path, json=bodies.get(path))


@pytest.mark.parametrize("status", FAILURES)
def test_failures_of_the_engine(client: Client, service: FakeKubernetes, status: int) -> None:
    service.fails = FAILURES[status]
    for operation, answer in calls(client):
        assert (answer.status_code, error(answer)["message"]) == (status, str(FAILURES[status])), operation


def test_bug_is_reported_without_secrets(client: Client, service: FakeKubernetes) -> None:
    service.fails = ZeroDivisionError("a secret")
    for operation, answer in calls(client):
        assert (answer.status_code, error(answer)["code"]) == (500, "bug"), operation
        assert "secret" not in answer.text


def test_token_for_all_but_the_health(service: FakeKubernetes) -> None:
    closed = Client(kubernetes_app(service, TOKEN))
    assert closed.get("/healthz").status_code == 200
    assert {answer.status_code for _, answer in calls(closed)} == {401}
    assert service.drained == set()
    opened = Client(kubernetes_app(service, TOKEN), headers=BEARER)
    service.add("train")
    assert {answer.status_code for _, answer in calls(opened)} == {200}


# -- questions to the extender that are none; what kube-scheduler asks rightly is in real/ -----------------------------


class Observed:
    """As much of the metrics as the extender needs: verb and result of each request."""

    def __init__(self) -> None:
        self.results: list[tuple[str, str]] = []

    def observe(self, verb: str, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.results.append((verb, result))


NO_PODS = [b"[]", b"null", b'{"Pod": 3}', b'{"Pod": {"metadata": []}}']
NO_QUESTIONS = [b"", b"{", *NO_PODS, b"\xff\xfe{}", b"[" * 100_000, b'"' * 9]


@pytest.mark.parametrize(
    ("certificate", "bodies", "result", "words", "status"),
    [
        (False, NO_QUESTIONS, "malformed", "no question of kube-scheduler's", 400),
        (True, [b"{}"], "forbidden", "has to show a client certificate", 403),
    ],
    ids=["malformed", "certificate"],
)
@pytest.mark.parametrize("verb", ["filter", "bind", "preempt"])
def test_no_question(verb: str, certificate: bool, bodies: list[bytes], result: str, words: str, status: int) -> None:
    """Its answer is where kube-scheduler reads: that to preempt has no place for an error, so its status says it."""
    metrics, app = Observed(), FastAPI()
    app.include_router(extender_routes(None, metrics, needs_certificate=certificate))  # type: ignore[arg-type]
    asks = Client(app)
    for body in bodies:
        answer = asks.post(f"/v1/extender/{verb}", content=body)
        assert answer.status_code == (status if verb == "preempt" else 200)
        said = error(answer)["message"] if verb == "preempt" else answer.json()["Error"]
        assert words in said, body[:40]
    assert metrics.results == [(verb, result)] * len(bodies)


# -- the document -----------------------------------------------------------------------------------------------------


def test_document(client: Client, service: FakeKubernetes) -> None:
    """It has every path, its errors and valid examples."""
    document = client.get("/openapi.json").json()
    found = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            found[f"{method.upper()} {path}"] = operation["operationId"]
            assert operation["summary"]
            assert operation["description"]
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    schema = {"$ref": "#/components/schemas/ErrorAnswer"}
                    assert response["content"] == {"application/json": {"schema": schema}}, (path, status)
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for example in content.get("examples", {}).values():
                jsonschema_rs.validate({**content["schema"], "components": document["components"]}, example["value"])
                assert client.request(method.upper(), path, json=example["value"]).status_code == 200
            assert not content or content["examples"]
    assert found == OPERATIONS
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in found.values())
    assert "HTTPValidationError" not in document["components"]["schemas"]


fuzzed = FakeKubernetes()
fuzzed.add("train")
fuzzed.add("next", state="queued", why=(WHY,))
schema = schemathesis.openapi.from_asgi(
    "/openapi.json", kubernetes_app(fuzzed, TOKEN), config=SchemathesisConfig(seed=1)
)


@schema.parametrize()
@settings(phases=[Phase.explicit])
def test_every_bound(case: Any) -> None:
    checks = [check for check in CHECKS if check.__name__ != "ignored_auth"]  # declared by the whole application
    case.call_and_validate(headers=BEARER, checks=checks)
