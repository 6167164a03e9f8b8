"""The OpenAPI document: that it is one, and that it says all there is to say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from hived.server.schema import FORMS

from ..fakes import FakeService
from .client import Client, error

ERROR = {"$ref": "#/components/schemas/ErrorAnswer"}
#: what an engine has, beside what a dashboard asks
PATHS = [
    "/healthz", "/metrics", "/v1/engine", "/v1/usage", "/v1/accounts", "/v1/vcs", "/v1/vcs/{name}", "/v1/jobs",
    "/v1/jobs/{ref}",
    "/v1/jobs/{ref}/cancel", "/v1/jobs/{ref}/hold", "/v1/jobs/{ref}/release", "/v1/jobs/{ref}/requeue",
    "/v1/jobs/cancel", "/v1/jobs/hold", "/v1/jobs/release", "/v1/jobs/requeue",
    "/v1/jobs/{ref}/suspend", "/v1/jobs/{ref}/resume", "/v1/jobs/{ref}/limit",
    "/v1/jobs/{ref}/scale", "/v1/training/{ref}", "/v1/jobs/{ref}/priority", "/v1/jobs/{ref}/edit",
    "/v1/explain/{ref}", "/v1/logs/{ref}", "/v1/logs/{ref}/stream",
    "/v1/plan", "/v1/events",
    "/v1/events/stream", "/v1/nodes", "/v1/drain", "/v1/spec", "/v1/decisions", "/v1/trades", "/v1/trades/offers",
    "/v1/trades/requests", "/v1/trades/withdraw", "/v1/tokens", "/v1/tokens/{number}/revoke",
    "/v1/jobs/{ref}/resubmit", "/v1/me", "/v1/sign-in-links", "/v1/sign-in", "/v1/sign-out",
]  # fmt: skip
PAGES = [
    "layout", "picture", "curves", "story/{job}", "timeline", "queue", "ended", "comparison", "stream",
]  # fmt: skip


@pytest.fixture
def document(client: Client) -> Any:
    return client.get("/openapi.json").json()


def operations(document: Any) -> Iterator[tuple[str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def patterns(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(found := value.get("pattern"), str):
            yield found
        yield from value.get("patternProperties", ())
        for inner in value.values():
            yield from patterns(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from patterns(inner)


def test_forms_have_words(document: Any) -> None:
    assert len(set(patterns(document))) >= 4
    assert set(patterns(document)) <= set(FORMS)


def test_every_path(document: Any) -> None:
    assert set(document["paths"]) == {*PATHS, *(f"/v1/dashboard/{name}" for name in PAGES)}


def test_operations_are_described(document: Any) -> None:
    known = {tag["name"] for tag in document["tags"]}
    named = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(named)) == len(named)
    for name, operation in operations(document):
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", operation["operationId"])
        assert operation["summary"], name
        assert operation["description"], name
        assert set(operation["tags"]) <= known, name


def test_errors_have_one_shape(document: Any) -> None:
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert response["content"] == {"application/json": {"schema": ERROR}}, (name, status)
                assert response["description"], (name, status)
        if "requestBody" in operation:
            assert {"400", "413", "415", "422"} <= set(operation["responses"]), name
            assert operation["requestBody"]["content"].keys() == {"application/json"}, name
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_schemas_and_references(document: Any) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    for reference in re.findall(r"'\$ref': '#/components/schemas/(\w+)'", repr(document)):
        assert reference in document["components"]["schemas"]


def test_examples_are_valid_and_work(client: Client, service: FakeService, document: Any) -> None:
    service.names, service.per_node = ("gpu1",), 32
    seen = 0
    for name, operation in operations(document):
        method, path = name.split(" ")
        content = operation.get("requestBody", {"content": {"application/json": {}}})["content"]["application/json"]
        for example in content.get("examples", {}).values():
            jsonschema_rs.validate({**content["schema"], "components": document["components"]}, example["value"])
            answer = client.request(method, path, json=example["value"])
            assert answer.status_code in (200, 201) or error(answer)["code"] == "unsupported", name
            seen += 1
    assert seen >= 7
