"""How much one may ask for at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from hived.server import limits
from hived.server.app import make_app

from .client import Client, error
from .fakes import FakeService, FakeSource

JSON = {"Content-Type": "application/json"}


def padded(size: int) -> bytes:
    """A valid submission of ``size`` bytes."""
    return b" " * (size - len(b'{"vc": "vision", "command": ["x"]}')) + b'{"vc": "vision", "command": ["x"]}'


def test_a_body_at_the_limit_is_taken(client: Client) -> None:
    assert client.post("/v1/jobs", content=padded(limits.BODY_BYTES), headers=JSON).status_code == 201


def test_a_body_over_the_limit_is_refused(client: Client, service: FakeService) -> None:
    response = client.post("/v1/jobs", content=padded(limits.BODY_BYTES + 1), headers=JSON)
    assert (response.status_code, error(response)["code"]) == (413, "too_large")
    assert not service.all


def test_a_body_over_the_limit_that_never_said_its_length_is_refused(client: Client, service: FakeService) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(1_000_000):
            yield b" " * 65_536

    response = client.post("/v1/jobs", content=pieces(), headers=JSON)
    assert "content-length" not in response.request.headers
    assert (response.status_code, error(response)["code"]) == (413, "too_large")
    assert not service.all


@pytest.mark.parametrize("length", ["-1", "x", "", "1e9", "9" * 30, "\xb2"])
def test_a_length_that_is_none_is_refused(client: Client, service: FakeService, length: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", length.encode("latin-1"))]
    assert client.post("/v1/jobs", content=b"{}", headers=headers).status_code in (413, 422)
    assert not service.all


def test_a_body_that_lies_about_its_length_is_measured(client: Client) -> None:
    headers = {**JSON, "Content-Length": "10"}
    assert client.post("/v1/jobs", content=padded(limits.BODY_BYTES + 1), headers=headers).status_code == 413


def test_a_body_that_does_not_come_is_given_up(
    client: Client, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    response = client.post("/v1/jobs", content=pieces(), headers=JSON)
    assert (response.status_code, error(response)["code"]) == (408, "timeout")
    assert response.headers["connection"] == "close"


def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten(service: FakeService) -> None:
    app = make_app(service, FakeSource(), token=None, hosts=(), local=True)
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def leave() -> None:
        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "headers": [], "query_string": b""}
        await app(scope, receive, send)

    asyncio.run(leave())
    assert sent == []


def test_streams_over_the_limit_are_refused_with_a_time_to_retry(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STREAMS", 2)
    app = make_app(service, FakeSource(), token=None, hosts=(), local=True)

    async def ask(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hived") as client:
            return await client.get(path)

    async def crowd() -> None:
        streams = [asyncio.create_task(ask(path)) for path in ("/v1/events/stream", "/v1/dashboard/stream")]
        await asyncio.sleep(0.1)
        for path in ("/v1/events/stream", "/v1/dashboard/stream", "/v1/jobs/1/log/stream", "/v1/decisions"):
            refused = await ask(path)
            assert (refused.status_code, error(refused)["code"]) == (429, "too_many"), path
            assert int(refused.headers["retry-after"]) > 0
        assert (await ask("/v1/about")).status_code == 200
        streams[0].cancel()
        await asyncio.gather(streams[0], return_exceptions=True)
        assert (await ask("/v1/decisions")).status_code == 200
        streams[1].cancel()
        await asyncio.gather(streams[1], return_exceptions=True)

    asyncio.run(crowd())


def test_every_route_that_streams_is_counted(client: Client) -> None:
    document = client.get("/openapi.json").json()
    streaming = [
        path
        for path, methods in document["paths"].items()
        if ("429" in methods.get("get", {}).get("responses", {}) and "dashboard" not in path) or path.endswith("stream")
    ]
    assert len(streaming) == 4
    for path in streaming:
        assert limits.counts(path.replace("{ref}", "train-1")), path
    assert not limits.counts("/v1/jobs/stream")
