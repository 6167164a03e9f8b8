"""Questions to the extender that are none, answered where kube-scheduler reads; what it asks rightly is in real/."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from hived.server.kubernetes.extender import extender_routes


class Observed:
    """As much of the metrics as the extender needs: verb and result of each request."""

    def __init__(self) -> None:
        self.results: list[tuple[str, str]] = []

    def observe(self, verb: str, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.results.append((verb, result))


async def answer(metrics: Observed, verb: str, body: bytes, *, needs_certificate: bool) -> httpx.Response:
    app = FastAPI()
    app.include_router(extender_routes(None, metrics, needs_certificate=needs_certificate))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hived") as client:
        return await client.post(f"/v1/extender/{verb}", content=body)


def error(verb: str, found: httpx.Response, status: int) -> str:
    """The answer to ``preempt`` has no place for an error, so its status says it."""
    if verb == "preempt":
        assert found.status_code == status
        return str(found.json()["error"]["message"])
    assert found.status_code == 200
    return str(found.json()["Error"])


@pytest.mark.parametrize("verb", ["filter", "bind", "preempt"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"Pod": 3}', b'{"Pod": {"metadata": []}}', b"\xff\xfe{}", b"[" * 100_000, b'"' * 9],
    ids=["nothing", "half", "a list", "null", "a number", "inner list", "no UTF-8", "deep", "quotes"],
)
def test_malformed_question(verb: str, body: bytes) -> None:
    metrics = Observed()
    found = asyncio.run(answer(metrics, verb, body, needs_certificate=False))
    assert "no question of kube-scheduler's" in error(verb, found, 400)
    assert metrics.results == [(verb, "malformed")]


@pytest.mark.parametrize("verb", ["filter", "bind", "preempt"])
def test_certificate_is_asked_for(verb: str) -> None:
    metrics = Observed()
    found = asyncio.run(answer(metrics, verb, b"{}", needs_certificate=True))
    assert "has to show a client certificate" in error(verb, found, 403)
    assert metrics.results == [(verb, "forbidden")]
