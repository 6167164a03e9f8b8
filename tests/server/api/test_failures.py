"""Whatever goes wrong, or is more than one may ask for, is answered in one shape."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from hived import errors
from hived.server import limits
from hived.server.failures import STATUS

from ..fakes import FakeService, local_app
from .client import Client, error

JSON = {"Content-Type": "application/json"}


STATUSES: dict[type[errors.HivedError], int] = {
    errors.InputError: 422, errors.NeverFitsError: 422, errors.SpecError: 422, errors.InfeasibleError: 422,
    errors.ForbiddenError: 403, errors.NotFoundError: 404, errors.ConflictError: 409, errors.UnavailableError: 503,
    errors.StorageError: 507,
}  # fmt: skip


def test_error_has_its_status(client: Client, service: FakeService) -> None:
    for kind, status in STATUSES.items():
        service.fails = kind("what, where, and the way out")
        for response in (client.get("/v1/usage"), client.put("/v1/spec", json={"yaml": "a"})):
            assert response.status_code == status
            assert error(response) == {"code": kind.code, "message": "what, where, and the way out", "field": None}


def test_every_code_has_a_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HivedError)]
    assert {kind.code for kind in kinds} - {"error"} <= set(STATUS)


def test_field_beside_the_message(client: Client, service: FakeService) -> None:
    service.fails = errors.RequestError("members[1].pods", "too many")
    assert error(client.get("/v1/usage")) == {"code": "invalid", "field": "members[1].pods", "message": "too many"}
    service.fails = errors.RequestError("\udcff", "a path like \udcff\ud800")  # no Unicode: it could not be answered
    assert error(client.get("/v1/usage")) == {"code": "invalid", "field": "?", "message": "a path like ??"}


@pytest.mark.parametrize("kind", [ZeroDivisionError, errors.InvariantError])
async def test_bug_is_logged_and_not_told(
    http: httpx.AsyncClient, service: FakeService, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    service.fails = kind("a secret of the engine")
    response = await http.get("/v1/usage")
    assert response.status_code == 500
    assert error(response)["code"] == "bug"
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "it is logged once"
    assert "a secret of the engine" in caplog.text
    assert "Traceback" in caplog.text
    service.fails = None
    assert (await http.get("/v1/usage")).status_code == 200


def test_answer_of_wrong_shape_is_a_bug(client: Client, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "usage", lambda: {"nonsense": 1})
    assert error(client.get("/v1/usage"))["code"] == "bug"


async def test_error_amid_an_answer(
    http: httpx.AsyncClient, service: FakeService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is cut off, which its reader sees, and the log says why."""

    def fails_later() -> Iterator[str]:
        yield from ["{}"] * 1_000
        raise errors.StorageError("the disk is gone")

    monkeypatch.setattr(service, "decisions", fails_later)
    with pytest.raises(httpx.RemoteProtocolError):
        await http.get("/v1/decisions")
    assert "the disk is gone" in caplog.text


def test_single_parameter_given_twice(client: Client) -> None:
    for path, field in (("/v1/dashboard/picture?at=1&at=2", "at"), ("/v1/jobs?vc=a&vc=b&state=queued", "vc")):
        response = client.get(path)
        assert response.status_code == 422
        assert error(response) == {"code": "invalid", "message": "given 2 times; give it once", "field": field}
    assert client.get("/v1/jobs?state=queued&state=failed&unknown=1&unknown=2").status_code == 200


def test_last_event_id_is_digits(client: Client) -> None:
    for text in ("5.0", "+5", "1_0", "five", "-1", str(2**63)):
        response = client.get("/v1/events/stream", headers={"Last-Event-ID": text})
        assert (response.status_code, error(response)["field"]) == (422, "last-event-id"), text


def test_unknown_path_and_method(client: Client) -> None:
    nowhere = ["/nothing", "/v1", "/v2/jobs", "/v1/jobs/a%2Fb"]
    # a page of documentation would load scripts from elsewhere
    for path in (*nowhere, "/docs", "/redoc", "/docs/oauth2-redirect"):
        response = client.get(path)
        assert (response.status_code, error(response)["code"]) == (404, "not_found"), path
    response = client.request("DELETE", "/v1/jobs/1")
    assert (response.status_code, error(response)["code"]) == (405, "not_allowed")
    assert "GET" in response.headers["allow"]
    assert client.request("NONSENSE", "/v1/jobs").status_code == 405


def nested(depth: int) -> bytes:
    return b'{"vc": ' + b"[" * depth + b"]" * depth + b', "command": ["x"]}'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"\xff\xfe",
        b"\x00",
        b'{"vc": "\xff"}',
        b'{"vc": "vision", "command": ["x"], "gpus": ' + b"9" * 5_000 + b"}",
        b'{"vc": "vision", "command": ["x"], "gpus": 1e999}',
        b'{"vc": "vision", "command": ["x"], "backoff_s": NaN}',
        b'{"vc": "vision", "command": ["x"], "backoff_s": -Infinity}',
        b'{"vc": "\\ud800", "command": ["x"]}',
        b'{"vc": "vision", "command": ["\\udfff"]}',
        b'{"vc": "vision", "command": ["x"], "\\ud800": 1}',
        b'{"vc": "vision", "command": ["x"], "environment": {"\\ud800": "x"}}',
        b'{"vc": "vision", "command": ["x\\u0000"]}',
        b'{"vc": "vi\\u0000sion", "command": ["x"]}',
        b"[]",
        b"null",
        b'"text"',
        b"1",
        nested(100),
        nested(100_000),
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        '{"vc": "vision"}'.encode("utf-16"),
        json.dumps({"vc": "vision", "command": ["x"], "k" * 100_000: 1}).encode(),
        json.dumps({"vc": "vision", "command": [0] * 100_000}).encode(),
    ],
    ids=lambda body: repr(body[:40]),
)
def test_nonsense_body_is_refused_briefly(client: Client, service: FakeService, body: bytes) -> None:
    for method, path in (("POST", "/v1/jobs"), ("POST", "/v1/plan"), ("PUT", "/v1/spec")):
        response = client.request(method, path, content=body, headers=JSON)
        assert response.status_code in (400, 422), path
        assert error(response)["code"] in ("malformed", "invalid"), path
        assert len(response.content) < 1_000, path
    assert not service.all


@pytest.mark.parametrize(
    "kind", [b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data", b"", b"/", b"\xff", None]
)
def test_body_must_be_declared_json(client: Client, service: FakeService, kind: bytes | None) -> None:
    job = b'{"vc": "vision", "command": ["true"]}'
    headers = [] if kind is None else [(b"content-type", kind)]
    response = client.post("/v1/jobs", content=job, headers=headers)
    assert (response.status_code, error(response)["code"]) == (415, "media_type")
    assert not service.all
    right = {"Content-Type": "application/json; charset=utf-8"}
    assert client.post("/v1/jobs", content=job, headers=right).status_code == 201


async def test_websocket_is_closed(service: FakeService) -> None:
    sent = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: object) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/events/stream", "headers": [], "query_string": b""}
    await local_app(service, "t")(scope, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


def padded(size: int) -> bytes:
    """A valid submission of ``size`` bytes."""
    return b" " * (size - len(b'{"vc": "vision", "command": ["x"]}')) + b'{"vc": "vision", "command": ["x"]}'


async def endless() -> AsyncIterator[bytes]:
    for _ in range(1_000_000):
        yield b" " * 65_536


@pytest.mark.parametrize(
    ("content", "more"),
    [
        (padded(limits.BODY_BYTES + 1), {}),
        (endless(), {}),
        (padded(limits.BODY_BYTES + 1), {"Content-Length": "10"}),  # it lies, and is measured
    ],
    ids=["over the limit", "of unsaid length", "of another length"],
)
def test_large_body(client: Client, service: FakeService, content: Any, more: dict[str, str]) -> None:
    assert client.post("/v1/jobs", content=padded(limits.BODY_BYTES), headers=JSON).status_code == 201
    response = client.post("/v1/jobs", content=content, headers={**JSON, **more})
    assert (response.status_code, error(response)["code"]) == (413, "too_large")
    assert len(service.all) == 1


def test_impossible_length(client: Client, service: FakeService) -> None:
    for length in (b"-1", b"x", b"", b"1e9", b"9" * 30, b"\xb2"):
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        assert client.post("/v1/jobs", content=b"{}", headers=headers).status_code in (413, 422), length
    assert not service.all


def test_body_that_does_not_come(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    response = client.post("/v1/jobs", content=pieces(), headers=JSON)
    assert (response.status_code, error(response)["code"]) == (408, "timeout")
    assert response.headers["connection"] == "close"


async def test_streams_over_the_limit(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS", 2)
    app = local_app(service)
    begun = asyncio.Semaphore(0)

    async def changed(after: int) -> None:
        begun.release()
        await asyncio.Event().wait()

    monkeypatch.setattr(service, "changed", changed)

    async def ask(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hived") as client:
            return await client.get(path)

    streams = [asyncio.create_task(ask(path)) for path in ("/v1/events/stream", "/v1/dashboard/stream")]
    for _ in streams:
        await begun.acquire()
    for path in ("/v1/events/stream", "/v1/dashboard/stream", "/v1/logs/1/stream", "/v1/decisions"):
        refused = await ask(path)
        assert (refused.status_code, error(refused)["code"]) == (429, "too_many"), path
        assert int(refused.headers["retry-after"]) > 0
    assert (await ask("/v1/usage")).status_code == 200
    streams[0].cancel()
    await asyncio.gather(streams[0], return_exceptions=True)
    assert (await ask("/v1/decisions")).status_code == 200
    streams[1].cancel()
    await asyncio.gather(streams[1], return_exceptions=True)


def test_every_stream_is_counted(client: Client) -> None:
    document = client.get("/openapi.json").json()
    streaming = [
        path
        for path, methods in document["paths"].items()
        if ("429" in methods.get("get", {}).get("responses", {}) and "dashboard" not in path) or path.endswith("stream")
    ]
    assert len(streaming) == 4
    for path in streaming:
        assert limits.counts(path.replace("{ref}", "train-1")), path
    assert not limits.counts("/v1/jobs/stream/logs")
