"""The dashboard's paths, asked without a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from benchmarks.dashboard.serving import served
from benchmarks.dashboard.stubs import LiveStub, held, small_cluster

from hived.server.results import ResultsSource


@pytest.fixture
def source() -> LiveStub:
    return small_cluster()


@pytest.fixture
def client(source: LiveStub) -> Iterator[httpx.Client]:
    with served(source) as server, httpx.Client(base_url=server.url) as client:
        yield client


def test_the_page_allows_nothing_from_elsewhere_and_nothing_inline(client: httpx.Client) -> None:
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["referrer-policy"] == "no-referrer"
    for forbidden in ("<style", " style=", "onclick", "http://", "https://", "<script>"):
        assert forbidden not in answer.text


def test_all_files_of_the_page_are_there_and_are_asked_for_again(client: httpx.Client) -> None:
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


@pytest.mark.parametrize("path", ["../dashboard.py", "..%2fdashboard.py", "js/../../schema.py", "nothing.js", "js", ""])
def test_only_the_pages_files_are_given_away(client: httpx.Client, path: str) -> None:
    assert client.get(f"/static/{path}").status_code == 404


def test_data_are_what_the_source_says(client: httpx.Client, source: LiveStub) -> None:
    assert client.get("/v1/dashboard/layout").json() == json.loads(source.layout().model_dump_json())
    picture = client.get("/v1/dashboard/picture").json()
    assert {holder["id"] for holder in picture["holders"]} == set(source.holders)
    assert client.get("/v1/dashboard/curves", params={"view": "live"}).json()["at"]
    assert client.get("/v1/dashboard/story/1").json()["name"] == "resnet-1"


@pytest.mark.parametrize("path", ["picture?view=nothing", "stream?view=nothing", "story/999", "comparison"])
def test_what_is_not_there_is_a_404_in_the_shape_of_all_errors(client: httpx.Client, path: str) -> None:
    answer = client.get(f"/v1/dashboard/{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("at", ["nan", "inf", "yesterday"])
def test_a_moment_is_a_finite_number(client: httpx.Client, at: str) -> None:
    assert client.get("/v1/dashboard/picture", params={"at": at}).status_code == 422


def test_the_stream_begins_with_a_picture_and_goes_on_with_what_changed(client: httpx.Client, source: LiveStub) -> None:
    with client.stream("GET", "/v1/dashboard/stream") as answer:
        events = read_events(answer.iter_lines())
        name, number, picture = next(events)
        assert (name, number) == ("picture", str(picture["seq"]))
        source.change([held("20", "x-20", "nlp", "guaranteed", [(0, 0, 5, 1)])])
        name, number, update = next(events)
        assert (name, number) == ("update", str(picture["seq"] + 1))
        assert [holder["id"] for holder in update["holders"]] == ["20"]
        source.rebuild([source.chains[0].model_copy(update={"nodes": ["renamed"]})])
        name, _, layout = next(events)
        assert name == "layout"
        assert layout["views"][0]["chains"][0]["nodes"] == ["renamed"]
        assert next(events)[0] == "picture"


def test_finished_results_have_no_stream(finished: ResultsSource) -> None:
    with served(finished) as server:
        assert httpx.get(server.url + "v1/dashboard/stream").status_code == 409


def read_events(lines: Iterator[str]) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])
            fields = {}
