"""Jobs over HTTP: what the command line does not show, which lists, explains and follows them."""

from __future__ import annotations

from typing import Any

import pytest

from ..fakes import FakeService
from .client import Client, error

JOB = {"vc": "vision", "command": ["true"]}


def test_submit_and_cancel(client: Client, service: FakeService) -> None:
    response = client.post("/v1/jobs", json={**JOB, "gpus": 4, "tasks": 2})
    assert response.status_code == 201
    assert response.headers["location"] == "/v1/jobs/1"
    assert response.json()["gpus"] == 8
    for ref in ("1", "true", "true-1"):
        assert client.get(f"/v1/jobs/{ref}").json() == response.json()
    first = client.post("/v1/jobs/1/cancel")
    assert (first.status_code, first.json()["state"]) == (202, "stopping")
    service.end(service.all[0])
    again = client.post("/v1/jobs/1/cancel")
    assert (again.status_code, error(again)["code"]) == (409, "conflict")


@pytest.mark.parametrize("path", ["jobs/{}", "explain/{}", "logs/{}", "logs/{}/stream", "events?job={}"])
def test_unknown_job(client: Client, path: str) -> None:
    for ref in ("9", "9" * 40):  # the second is too large for a database
        response = client.get("/v1/" + path.format(ref))
        assert (response.status_code, error(response)["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"gpus": 0}, "gpus"),
        ({"gpus": "4"}, "gpus"),
        ({"gpus": True}, "gpus"),
        ({"gpus": 10**400}, "gpus"),
        ({"gpus": 1.5}, "gpus"),
        ({"priority": 1001}, "priority"),
        ({"lazy_preemption": "yes"}, "lazy_preemption"),
        ({"command": []}, "command"),
        ({"command": ["a", "b\0c"]}, "command.1"),
        ({"environment": {"1A": "x"}}, "environment.1A.[key]"),
        ({"environment": {"A": "\0"}}, "environment.A"),
        ({"name": "../etc"}, "name"),
        ({"cwd": "relative"}, "cwd"),
        ({"vc": "nobody"}, "vc"),
        ({"gpu": 4}, "gpu"),
    ],
)
def test_wrong_field_is_named(client: Client, service: FakeService, fields: dict[str, Any], field: str) -> None:
    response = client.post("/v1/jobs", json={**JOB, **fields})
    assert response.status_code == 422
    assert error(response)["code"] == "invalid"
    assert error(response)["field"] == field
    assert not service.all


@pytest.mark.parametrize(
    "query",
    [
        "jobs?limit=0",
        "jobs?limit=1001",
        "jobs?limit=x",
        f"jobs?page={2**63}",
        "jobs?page=-1",
        "jobs?page=",
        "jobs?state=sleeping",
        "jobs?vc=",
        "jobs?" + "&".join(["state=failed"] * 17),
        "logs/1?rank=-1",
        "logs/1?attempt=0",
        f"logs/1?offset={2**63}",
        "logs/1?limit=1048577",
    ],
)
def test_query_out_of_bounds(client: Client, service: FakeService, query: str) -> None:
    service.add()
    response = client.get(f"/v1/{query}")
    assert (response.status_code, error(response)["code"]) == (422, "invalid")
    assert error(response)["field"].startswith(query.partition("?")[2].partition("=")[0])


def test_impossible_job_name(client: Client) -> None:
    for ref in ("..", "%2e%2e", "a%00b", "-x", "a b", "%ED%A0%80", "x" * 1025, "%D9%A3"):
        response = client.get(f"/v1/jobs/{ref}")
        assert response.status_code in (404, 422), ref
        assert error(response)["code"] in ("not_found", "invalid")
