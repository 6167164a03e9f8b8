"""The OpenAPI document: that it is one, and that it says all there is to say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from hived.server.schema import FORMS

from ..fakes import FakeService
from .client import Client

ERROR = {"$ref": "#/components/schemas/ErrorAnswer"}
OPERATIONS = {
    "GET /healthz": "check_health",
    "GET /v1/about": "get_about",
    "POST /v1/jobs": "submit_job",
    "GET /v1/jobs": "list_jobs",
    "GET /v1/jobs/{ref}": "get_job",
    "POST /v1/jobs/{ref}/cancel": "cancel_job",
    "GET /v1/jobs/{ref}/explain": "explain_job",
    "GET /v1/jobs/{ref}/log": "read_log",
    "GET /v1/jobs/{ref}/log/stream": "stream_log",
    "POST /v1/plan": "plan_job",
    "GET /v1/events": "list_events",
    "GET /v1/events/stream": "stream_events",
    "GET /v1/devices": "list_devices",
    "POST /v1/drain": "drain_devices",
    "PUT /v1/spec": "replace_spec",
    "GET /v1/decisions": "export_decisions",
    "GET /v1/exchange": "get_exchange",
    "POST /v1/exchange/offers": "offer_cells",
    "POST /v1/exchange/requests": "request_cells",
    "POST /v1/exchange/withdraw": "withdraw_post",
}
PAGES = ["layout", "picture", "curves", "story/{job}", "timeline", "queue", "ended", "comparison", "stream"]


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
    assert len(set(patterns(document))) > 4
    assert set(patterns(document)) <= set(FORMS)


def test_every_path(document: Any) -> None:
    found = {name: operation["operationId"] for name, operation in operations(document)}
    expected = {f"GET /v1/dashboard/{name}" for name in PAGES}
    assert {name: verb for name, verb in found.items() if "dashboard" not in name} == OPERATIONS
    assert {name for name in found if "dashboard" in name} == expected
    assert len(set(found.values())) == len(found)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", verb) for verb in found.values())


def test_operations_are_described(document: Any) -> None:
    known = {tag["name"] for tag in document["tags"]}
    for name, operation in operations(document):
        assert operation["summary"], name
        assert operation["description"], name
        assert set(operation["tags"]) <= known, name


def test_errors_have_one_shape(document: Any) -> None:
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert response["content"] == {"application/json": {"schema": ERROR}}, (name, status)
                assert response["description"], (name, status)
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_errors_of_bodies(document: Any) -> None:
    for name, operation in operations(document):
        if "requestBody" in operation:
            assert {"400", "413", "415", "422"} <= set(operation["responses"]), name
            assert operation["requestBody"]["content"].keys() == {"application/json"}, name


def test_schemas_and_references(document: Any) -> None:
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    for reference in re.findall(r"'\$ref': '#/components/schemas/(\w+)'", repr(document)):
        assert reference in document["components"]["schemas"]


def test_examples_are_valid_and_work(client: Client, service: FakeService, document: Any) -> None:
    service.nodes, service.per_node = ("gpu1",), 32
    seen = 0
    for name, operation in operations(document):
        method, path = name.split(" ")
        content = operation.get("requestBody", {"content": {"application/json": {}}})["content"]["application/json"]
        for example in content.get("examples", {}).values():
            jsonschema_rs.validate({**content["schema"], "components": document["components"]}, example["value"])
            assert client.request(method, path, json=example["value"]).status_code in (200, 201), name
            seen += 1
    assert seen >= 7


def test_fields_are_described(document: Any) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["Submission"]["properties"]["tasks"]["description"]
    assert schemas["Job"]["properties"]["exit_code"]["description"]
