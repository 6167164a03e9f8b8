"""Jobs over HTTP: submitted, listed, read, cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from .client import Client, error
from .fakes import FakeService


def submit(client: Client, **fields: Any) -> Any:
    response = client.post("/v1/jobs", json={"vc": "vision", "command": ["true"], **fields})
    assert response.status_code == 201, response.text
    return response.json()


def test_a_submitted_job_is_answered_with_where_it_is(client: Client) -> None:
    response = client.post("/v1/jobs", json={"vc": "vision", "command": ["python", "x.py"], "gpus": 4, "tasks": 2})
    assert response.status_code == 201
    assert response.headers["location"] == "/v1/jobs/1"
    assert response.json()["gpus"] == 8
    assert client.get(response.headers["location"]).json() == response.json()


def test_a_job_has_its_id_its_name_and_the_name_asked_for(client: Client) -> None:
    submit(client, name="train")
    latest = submit(client, name="train")
    assert client.get("/v1/jobs/train-1").json()["id"] == 1
    assert client.get("/v1/jobs/train").json() == latest
    assert client.get("/v1/jobs/2").json() == latest


def test_jobs_are_listed_by_state_vc_and_page(client: Client, service: FakeService) -> None:
    for vc in ("vision", "speech", "vision", "vision"):
        submit(client, vc=vc)
    service.ends(1)
    assert [job["id"] for job in client.get("/v1/jobs").json()["jobs"]] == [4, 3, 2, 1]
    assert [job["id"] for job in client.get("/v1/jobs?state=succeeded&state=failed").json()["jobs"]] == [1]
    page = client.get("/v1/jobs?vc=vision&limit=1&before=4").json()
    assert [job["id"] for job in page["jobs"]] == [3]
    assert page["total"] == 2


def test_a_plan_is_not_remembered(client: Client, service: FakeService) -> None:
    assert client.post("/v1/plan", json={"vc": "vision", "command": ["true"]}).json()["outcome"] == "now"
    assert not service.all


def test_a_job_is_explained(client: Client) -> None:
    submit(client)
    assert client.get("/v1/jobs/1/explain").json() == {"job": 1, "text": "it runs", "reasons": []}


def test_a_job_is_cancelled_once(client: Client) -> None:
    submit(client)
    first = client.post("/v1/jobs/1/cancel")
    assert (first.status_code, first.json()["state"]) == (202, "cancelled")
    again = client.post("/v1/jobs/1/cancel")
    assert (again.status_code, error(again)["code"]) == (409, "conflict")


def test_output_is_read_from_the_start_and_from_the_end(client: Client, service: FakeService) -> None:
    submit(client)
    service.prints(1, b"one\ntwo\n")
    assert client.get("/v1/jobs/1/log").json() == {"text": "one\ntwo\n", "offset": 0, "next": 8, "end": False}
    assert client.get("/v1/jobs/1/log?offset=-4").json()["text"] == "two\n"
    assert client.get("/v1/jobs/1/log?limit=3").json()["text"] == "one"


@pytest.mark.parametrize(
    "path", ["/v1/jobs/9", "/v1/jobs/9/explain", "/v1/jobs/9/log", "/v1/jobs/9/log/stream", "/v1/events?job=9"]
)
def test_a_job_that_there_is_not_is_not_found(client: Client, path: str) -> None:
    response = client.get(path)
    assert (response.status_code, error(response)["code"]) == (404, "not_found")


def test_an_id_too_large_for_any_job_is_not_found(client: Client) -> None:
    response = client.get(f"/v1/jobs/{'9' * 40}")
    assert (response.status_code, error(response)["code"]) == (404, "not_found")
    assert client.get(f"/v1/events?job={'9' * 40}").status_code == 404


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
def test_a_wrong_field_is_named(client: Client, service: FakeService, fields: dict[str, Any], field: str) -> None:
    response = client.post("/v1/jobs", json={"vc": "vision", "command": ["true"], **fields})
    assert response.status_code == 422
    assert error(response)["code"] == "invalid"
    assert error(response)["field"] == field
    assert not service.all


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        f"before={2**63}",
        "before=-1",
        "state=sleeping",
        "vc=",
        "&".join(["state=failed"] * 17),
    ],
)
def test_a_list_outside_its_bounds_is_refused(client: Client, query: str) -> None:
    response = client.get(f"/v1/jobs?{query}")
    assert (response.status_code, error(response)["code"]) == (422, "invalid")
    assert error(response)["field"].startswith(query.partition("=")[0])


@pytest.mark.parametrize("query", ["rank=-1", "attempt=0", f"offset={2**63}", "limit=1048577", "rank=1"])
def test_output_outside_its_bounds_is_refused(client: Client, query: str) -> None:
    submit(client)
    response = client.get(f"/v1/jobs/1/log?{query}")
    assert (response.status_code, error(response)["field"]) == (422, query.partition("=")[0])


@pytest.mark.parametrize("ref", ["..", "%2e%2e", "a%00b", "-x", "a b", "%ED%A0%80", "x" * 129, "%D9%A3"])
def test_a_job_by_a_name_that_cannot_be_is_refused(client: Client, ref: str) -> None:
    response = client.get(f"/v1/jobs/{ref}")
    assert response.status_code in (404, 422)
    assert error(response)["code"] in ("not_found", "invalid")
