"""The engine over HTTP: what it is, its devices, its spec, its events; and results that can only be looked at."""

from __future__ import annotations

import pytest

from hived.errors import InvariantError
from hived.server.app import make_app

from .client import Client
from .fakes import FakeService, FakeSource


def test_the_engine_says_what_it_is(client: Client) -> None:
    assert client.get("/v1/about").json()["gpus"] == 8
    assert client.get("/healthz").json() == {"status": "ok", "engine": "local"}


def test_devices_are_listed_and_drained(client: Client) -> None:
    assert client.get("/v1/devices").json()[0]["drained"] is False
    assert client.post("/v1/drain", json={"node": "gpu1", "device": 0}).json()[0]["drained"] is True
    assert client.post("/v1/drain", json={"undo": True}).json()[0]["drained"] is False
    assert client.post("/v1/drain", json={"node": "gpu9"}).status_code == 404


def test_a_spec_is_replaced(client: Client) -> None:
    response = client.put("/v1/spec", json={"yaml": "physicalCluster: {}"})
    assert response.json() == {"kept": [], "downgraded": [], "lost": [], "cancelled": []}


def test_events_are_read_in_pages_and_by_job(client: Client, service: FakeService) -> None:
    for job in (1, 2):
        client.post("/v1/jobs", json={"vc": "vision", "command": ["true"]})
        service.happen("started", job)
    page = client.get("/v1/events?after=1&limit=2").json()
    assert [event["seq"] for event in page["events"]] == [2, 3]
    assert page["last"] == 4
    assert [event["seq"] for event in client.get("/v1/events?limit=1").json()["events"]] == [4]
    assert [event["seq"] for event in client.get("/v1/events?after=0&job=1").json()["events"]] == [1, 2]


def test_the_event_log_is_exported_line_by_line(client: Client, service: FakeService) -> None:
    service.log_lines = [f'{{"seq": {number}}}' for number in range(2_500)]
    response = client.get("/v1/decisions")
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.splitlines() == service.log_lines


def test_an_empty_event_log_is_an_empty_export(client: Client) -> None:
    assert client.get("/v1/decisions").text == ""


def test_results_can_only_be_looked_at() -> None:
    view = Client(make_app(None, FakeSource(live=False), token=None, hosts=()), base_url="http://localhost:8080")
    assert view.get("/v1/dashboard/layout").json()["title"] == "fake"
    assert view.get("/healthz").json() == {"status": "ok", "engine": "results"}
    for path in ("/v1/jobs", "/v1/about", "/v1/events", "/v1/devices", "/v1/decisions", "/v1/spec", "/v1/plan"):
        assert view.get(path).status_code == 404, path
        assert view.post(path, json={}).status_code == 404, path
    assert not [
        path for path in view.get("/openapi.json").json()["paths"] if "dashboard" not in path and path != "/healthz"
    ]


def test_an_engine_on_tcp_without_a_token_is_a_bug(service: FakeService) -> None:
    with pytest.raises(InvariantError):
        make_app(service, FakeSource(), token=None, hosts=())
    with pytest.raises(InvariantError):
        Client(make_app(service, FakeSource(), token="", hosts=())).get("/healthz")
