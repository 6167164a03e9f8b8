"""The engine over HTTP: what it is, its spec, its log, its market, its dashboard; and results to look at alone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from hived.errors import InvariantError
from hived.server.app import make_app

from ..fakes import FakeService
from .client import Client, error, said

HOUR = 3600.0


def test_engine_and_its_spec(client: Client) -> None:
    assert client.get("/v1/usage").json()["gpus"] == 8
    assert client.get("/v1/engine").json()["engine"] == "local"
    assert client.get("/v1/spec").json()["source"] == "a test"
    assert client.get("/healthz").json() == {"status": "ok", "engine": "local"}
    nobody: dict[str, list[str]] = {
        "kept": [], "downgraded": [], "on_removed_devices": [], "requeued": [], "warnings": [],
    }  # fmt: skip
    text = client.get("/v1/spec").json()["text"]
    for dry_run, now in ((True, text), (False, "physicalCluster: {}")):
        params = {"dry_run": "true"} if dry_run else {}
        response = client.put("/v1/spec", json={"yaml": "physicalCluster: {}"}, params=params)
        assert response.json() == nobody | {"dry_run": dry_run}
        assert client.get("/v1/spec").json()["text"] == now


def test_export_decisions(client: Client, service: FakeService) -> None:
    for lines in (2_500, 0):
        service.log_lines = [f'{{"seq": {number}}}' for number in range(lines)]
        response = client.get("/v1/decisions")
        assert response.headers["content-type"] == "application/x-ndjson"
        assert response.text.splitlines() == service.log_lines


def test_results_are_read_only() -> None:
    app = make_app(None, FakeService(live=False), token=None, hosts=())
    view = Client(app, base_url="http://localhost:8080")
    assert view.get("/v1/dashboard/layout").json()["title"] == "a test"
    assert view.get("/healthz").json() == {"status": "ok", "engine": "results"}
    for path in ("/v1/jobs", "/v1/usage", "/v1/events", "/v1/nodes", "/v1/decisions", "/v1/spec", "/v1/plan"):
        assert view.get(path).status_code == 404, path
        assert view.post(path, json={}).status_code == 404, path
    assert not [
        path for path in view.get("/openapi.json").json()["paths"] if "dashboard" not in path and path != "/healthz"
    ]


def test_tcp_without_token_is_a_bug(service: FakeService) -> None:
    with pytest.raises(InvariantError):
        make_app(service, service, token=None, hosts=())
    with pytest.raises(InvariantError):
        Client(make_app(service, service, token="", hosts=())).get("/healthz")


# -- the market


def offer(client: Client, **more: Any) -> Any:
    body = {"vc": "vision", "cells": {"cell_type": "NODE", "number": 1}, "duration_s": HOUR}
    return client.post("/v1/trades/offers", json=body | more)


def request(client: Client, **more: Any) -> Any:
    body = {"vc": "speech", "cells": {"cell_type": "NODE", "number": 1}, "duration_s": HOUR}
    return client.post("/v1/trades/requests", json=body | more)


def test_cells_in_return_must_be_had(client: Client) -> None:
    socket = {"cell_type": "SOCKET", "number": 1}
    refused = request(client, gives=socket).json()["error"]
    assert refused["field"] == "gives"
    assert "speech has 0 x NODE.SOCKET in that time, and gives 1" in refused["message"]
    refused = offer(client, wants=socket).json()["error"]
    assert refused["field"] == "wants"
    assert "no other tenant has 1 x NODE.SOCKET" in refused["message"]


def test_withdraw_by_its_vc_alone(client: Client) -> None:
    number = offer(client).json()["number"]
    path, mine = "/v1/trades/withdraw", {"number": number, "vc": "vision"}
    assert client.post(path, json=mine | {"vc": "speech"}).status_code == 409
    assert client.post(path, json=mine).json()["offers"] == []
    assert client.post(path, json=mine).status_code == 404


@pytest.mark.parametrize(
    ("more", "field", "says"),
    [
        ({"vc": "nobody"}, "vc", "no such virtual cluster; there is vision, speech"),
        ({"cells": {"cell_type": "RACK"}}, "cells.cell_type", "no such cell type; there is"),
        ({"cells": {"cell_type": "NODE", "number": 3}}, "cells.number", "vision has 2 x NODE in that time, and offers"),
        ({"cells": {"cell_type": "NODE", "number": 0}}, "cells.number", ""),
        ({"start": 999.0}, "start", "is over"),
        ({"duration_s": 0}, "duration_s", ""),
        ({"duration_s": -5.0}, "duration_s", ""),
        ({"wants": {"cell_type": "NODE"}}, "wants", "of another level"),
        ({"price": -1.0}, "price", ""),
        ({"colour": "red"}, "colour", ""),
    ],
)
def test_wrong_offer_is_refused(client: Client, more: Any, field: str, says: str) -> None:
    answer = offer(client, **more)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["field"] == field
    assert says in answer.json()["error"]["message"]
    assert client.get("/v1/trades").json()["offers"] == []


# -- the dashboard


def test_page_takes_nothing_from_elsewhere(client: Client) -> None:
    """And no script or style is inline."""
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["referrer-policy"] == "no-referrer"
    for forbidden in ("<style", " style=", "onclick", "http://", "https://", "<script>"):
        assert forbidden not in answer.text


def test_files_of_the_page(client: Client) -> None:
    """They are there, and browsers ask each time whether they have changed."""
    page = client.get("/").text
    paths = [part.split('"')[0] for part in page.split('"/static/')[1:]]
    files = [part.split('"')[0] for part in page.split("/static/")[1:]]
    assert len(files) > 20
    assert paths == files
    for path in files:
        answer = client.get(f"/static/{path}")
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-cache"
        again = client.get(f"/static/{path}", headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304

    for path in ("../dashboard.py", "..%2fdashboard.py", "js/../../schema.py", "nothing.js", "js", ""):
        assert client.get(f"/static/{path}").status_code == 404, path


def test_data_of_the_source(client: Client, service: FakeService) -> None:
    service.add()
    assert client.get("/v1/dashboard/layout").json() == json.loads(service.layout().model_dump_json())
    assert [holder["name"] for holder in client.get("/v1/dashboard/picture").json()["holders"]] == ["train-1"]
    assert client.get("/v1/dashboard/curves", params={"view": "live"}).json()["at"]
    assert client.get("/v1/dashboard/story/1").json()["name"] == "train-1"


def test_nothing_there(client: Client) -> None:
    for path in ("picture?view=nothing", "stream?view=nothing", "story/999", "comparison"):
        answer = client.get(f"/v1/dashboard/{path}")
        assert (answer.status_code, error(answer)["code"]) == (404, "not_found"), path
    for at in ("nan", "inf", "yesterday"):
        assert client.get("/v1/dashboard/picture", params={"at": at}).status_code == 422, at


async def test_stream(service: FakeService, http: httpx.AsyncClient) -> None:
    """It begins with a picture, and goes on with what changed."""
    service.add()
    async with http.stream("GET", "/v1/dashboard/stream") as answer:
        events = said(answer)
        name, number, data = await anext(events)
        picture = json.loads(data)
        assert (name, number) == ("picture", str(picture["seq"]))
        service.add()
        name, number, data = await anext(events)
        assert (name, number) == ("update", str(picture["seq"] + 1))
        assert [holder["id"] for holder in json.loads(data)["holders"]] == ["2"]
        service.rebuild("node-0", "renamed")
        name, _, data = await anext(events)
        assert name == "layout"
        assert json.loads(data)["views"][0]["chains"][0]["nodes"] == ["node-0", "renamed"]
        assert (await anext(events)).event == "picture"


def test_results_have_no_stream() -> None:
    app = make_app(None, FakeService(live=False), token=None, hosts=())
    assert Client(app, base_url="http://localhost").get("/v1/dashboard/stream").status_code == 409
