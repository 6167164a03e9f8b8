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


async def ask(metrics: Observed, verb: str, *bodies: bytes, needs_certificate: bool = False) -> list[httpx.Response]:
    app = FastAPI()
    app.include_router(extender_routes(None, metrics, needs_certificate=needs_certificate))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hived") as client:
        return [await client.post(f"/v1/extender/{verb}", content=body) for body in bodies]


def error(verb: str, found: httpx.Response, status: int) -> str:
    """The answer to ``preempt`` has no place for an error, so its status says it."""
    if verb == "preempt":
        assert found.status_code == status
        return str(found.json()["error"]["message"])
    assert found.status_code == 200
    return str(found.json()["Error"])


@pytest.mark.parametrize("verb", ["filter", "bind", "preempt"])
def test_malformed_question(verb: str) -> None:
    no_pods = b"[]", b"null", b'{"Pod": 3}', b'{"Pod": {"metadata": []}}'
    bodies = b"", b"{", *no_pods, b"\xff\xfe{}", b"[" * 100_000, b'"' * 9
    metrics = Observed()
    for body, found in zip(bodies, asyncio.run(ask(metrics, verb, *bodies)), strict=True):
        assert "no question of kube-scheduler's" in error(verb, found, 400), body[:40]
    assert metrics.results == [(verb, "malformed")] * len(bodies)


@pytest.mark.parametrize("verb", ["filter", "bind", "preempt"])
def test_certificate_is_asked_for(verb: str) -> None:
    metrics = Observed()
    (found,) = asyncio.run(ask(metrics, verb, b"{}", needs_certificate=True))
    assert "has to show a client certificate" in error(verb, found, 403)
    assert metrics.results == [(verb, "forbidden")]
