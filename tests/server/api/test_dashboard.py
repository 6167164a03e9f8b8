"""The dashboard's paths, asked without a browser."""

from __future__ import annotations

import json

import httpx

from hived.server.app import make_app

from ..fakes import FakeService
from .client import Client, error, said


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
