"""How much one may ask for at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from hived.server import limits

from ..fakes import FakeService, local_app
from .client import Client, error

JSON = {"Content-Type": "application/json"}


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


async def test_client_that_leaves_amid_its_body(service: FakeService) -> None:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "headers": [], "query_string": b""}
    await local_app(service)(scope, receive, send)
    assert sent == []


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
    assert not limits.counts("/v1/jobs/stream")
