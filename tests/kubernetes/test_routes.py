"""``/v1`` on Kubernetes: every route, its errors, and the API fuzzed from its own document; the extender."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import Phase, settings
from schemathesis.config import SchemathesisConfig

from hived.server.kubernetes.extender import extender_routes
from hived.server.schema import PlanRequest

from ..server.api.client import Client, error
from ..server.api.test_fuzz import CHECKS
from ..server.fakes import FAILURES, WHY, FakeKubernetes, FakeService, kubernetes_app, local_app

TOKEN = "t0ken"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
#: what it has, with bodies; the document is that of one machine
CALLS: list[tuple[str, str, dict[str, object] | None]] = [
    ("GET", "/v1/engine", None), ("GET", "/v1/usage", None), ("GET", "/v1/vcs", None), ("GET", "/v1/vcs/vision", None),
    ("GET", "/v1/jobs", None), ("GET", "/v1/jobs/train", None), ("GET", "/v1/explain/train", None),
    ("GET", "/v1/events", None), ("GET", "/v1/nodes", None), ("GET", "/v1/spec", None), ("GET", "/v1/trades", None),
    ("POST", "/v1/plan", {"manifests": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}}]}),
    ("POST", "/v1/drain", {"node": "gpu1"}),
]  # fmt: skip
POD: dict[str, object] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}}


@pytest.fixture
def service() -> FakeKubernetes:
    return FakeKubernetes()


@pytest.fixture
def client(service: FakeKubernetes) -> Client:
    return Client(kubernetes_app(service))


def test_engine_usage_and_virtual_clusters(client: Client, service: FakeKubernetes) -> None:
    service.add("train")
    service.add("next", state="queued", why=(WHY,))
    assert client.get("/healthz").json() == {"status": "ok", "engine": "kubernetes"}
    assert client.get("/v1/engine").json()["replica"] == {"identity": "hived-0", "leader": True, "holder": "hived-0"}
    told = client.get("/v1/usage").json()
    assert (told["guaranteed"], told["jobs"]) == (4, {"running": 1, "queued": 1})
    assert client.get("/v1/vcs").json() == told["vcs"]
    assert [vc["used"] for vc in told["vcs"]] == [4, 0]
    told = client.get("/v1/vcs/vision").json()
    assert [job["name"] for job in told["running"]] == ["train"]
    assert [job["why"] for job in told["waiting"]] == [[WHY]]
    answer = client.get("/v1/vcs/a%2Fb")
    assert answer.status_code == 404
    assert error(answer)["message"].startswith("there is no virtual cluster 'a/b'")


def test_list_of_groups(client: Client, service: FakeKubernetes) -> None:
    """By VC and state, and page by page."""
    for number in range(5):
        service.add(f"g{number}", vc="vision" if number % 2 else "speech", state="queued" if number > 2 else "running")

    def names(query: str) -> list[str]:
        return [job["name"] for job in client.get(f"/v1/jobs{query}").json()["jobs"]]

    assert names("") == ["g0", "g1", "g2", "g3", "g4"]
    assert names("?vc=vision") == ["g1", "g3"]
    assert names("?state=queued&vc=speech") == ["g4"]
    page = client.get("/v1/jobs?limit=3").json()
    assert (page["total"], page["next"]) == (5, "g2")
    assert names("?limit=3&page=g2") == ["g3", "g4"]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/explain"])
@pytest.mark.parametrize("ref", ["team/train-0", "team%2Ftrain-0", "jobs/of/ann/train", "jobs%2Fof%2Fann%2Ftrain"])
def test_group_by_name_or_pod(client: Client, service: FakeKubernetes, path: str, ref: str) -> None:
    """Whatever slashes these have."""
    service.add("jobs/of/ann/train")
    told = client.get(f"{path}/{ref}").json()
    assert told.get("name", told.get("job")) == "jobs/of/ann/train"
    assert service.asked == [ref.replace("%2F", "/")]


def test_explanation_in_words_and_data(client: Client, service: FakeKubernetes) -> None:
    service.add("train", state="queued", why=(WHY,))
    assert client.get("/v1/explain/team/train-0").json() == {
        "job": "train",
        "task": "team/train-0",
        "text": f"train is queued\n- {WHY}",
        "reasons": [{"kind": "vc_exhausted", "need": 8}],
    }


def test_plan_of_manifests(client: Client, service: FakeKubernetes) -> None:
    service.plans("train", "waits", "it would wait:\n- for its turn")
    told = client.post("/v1/plan", json={"manifests": [POD]}).json()
    assert [(job["name"], job["outcome"]) for job in told["jobs"]] == [("default/train", "waits")]
    client.post("/v1/plan", json={"manifests": [POD], "namespace": "team"})
    assert service.planned == [PlanRequest(manifests=[POD], namespace=name) for name in ("default", "team")]


def test_drain(client: Client, service: FakeKubernetes) -> None:
    service.add("train")
    told = client.post("/v1/drain", json={"node": "gpu1"}).json()
    (node,) = told["nodes"]
    assert (node["name"], told["undone"], len(node["devices"])) == ("gpu1", False, 8)
    assert {job for one in node["devices"] for job in one["jobs"]} == {"train"}
    assert client.post("/v1/drain", json={"node": "gpu1", "undo": True}).json()["undone"] is True
    assert client.post("/v1/drain", json={"node": "n9"}).status_code == 404


def test_what_is_left_to_kubectl(client: Client, service: FakeKubernetes) -> None:
    service.add("train")
    for method, path, body in (
        ("POST", "/v1/jobs", {"vc": "vision", "command": ["true"]}),
        ("POST", "/v1/jobs/train/cancel", None),
        *(("POST", f"/v1/jobs/{what}", {"jobs": ["train"]}) for what in ("cancel", "hold", "release", "requeue")),
        ("GET", "/v1/logs/train", None),
        ("GET", "/v1/logs/train/stream", None),
        ("GET", "/v1/decisions", None),
        ("PUT", "/v1/spec", {"yaml": "a"}),
    ):
        answer = client.request(method, path, json=body)
        assert (answer.status_code, error(answer)["code"]) == (409, "unsupported"), path


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/jobs?state=lost", "state.0"),
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?limit=1001", "limit"),
        ("/v1/nodes?offset=-1", "offset"),
        ("/v1/jobs?vc=", "vc"),
        ("/v1/jobs/", "ref"),
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
        ("plan", {"manifests": [POD] * 1001}, "manifests"),
        ("plan", {"manifests": [POD, "pod"]}, "manifests.1"),
        ("plan", {"manifests": [POD], "namespace": "n" * 64}, "namespace"),
        ("plan", {"manifests": [POD], "dry": True}, "dry"),
        ("plan", {"job": {"vc": "vision", "command": ["true"], "gpus": 0}}, "job.gpus"),
        ("drain", {"node": "n" * 254}, "node"),
        ("drain", {"node": "gpu1", "undo": "yes"}, "undo"),
        ("drain", {"node": "gpu1", "now": 1}, "now"),
    ],
)
def test_wrong_body(client: Client, service: FakeKubernetes, path: str, body: dict[str, object], field: str) -> None:
    answer = client.post(f"/v1/{path}", json=body)
    assert (answer.status_code, error(answer)["field"]) == (422, field)
    assert service.planned == []
    assert service.drained == set()


def calls(client: Client) -> Iterator[tuple[str, Any]]:
    """Every route of this engine."""
    for method, path, body in CALLS:
        yield f"{method} {path}", client.request(method, path, json=body)


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


def test_one_document_for_both_engines(client: Client) -> None:
    """But for what is said of the whole, and of the dashboard, which this application has not."""
    ours = client.get("/openapi.json").json()
    theirs = Client(local_app(FakeService())).get("/openapi.json").json()
    api = {path: methods for path, methods in theirs["paths"].items() if not path.startswith("/v1/dashboard")}
    assert ours["paths"] == api
    assert ours["components"]["schemas"].items() <= theirs["components"]["schemas"].items()


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
