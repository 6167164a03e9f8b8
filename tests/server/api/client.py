"""A client that speaks to an application without a network: one request, one answer, read to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
from starlette.types import ASGIApp


class Client:
    """Sends each request in an event loop of its own. Cookies are kept; redirects are not followed."""

    def __init__(self, app: ASGIApp, base_url: str = "http://hived", headers: dict[str, str] | None = None) -> None:
        self._app = app
        self._base_url = base_url
        self._headers = headers or {}
        self.cookies = httpx.Cookies()

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url=self._base_url, headers=self._headers, cookies=self.cookies
            ) as client:
                response = await client.request(method, path, **more)
                self.cookies = client.cookies
                return response

        return asyncio.run(ask())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.request("POST", path, **more)

    def put(self, path: str, **more: Any) -> httpx.Response:
        return self.request("PUT", path, **more)


def error(response: httpx.Response) -> Any:
    """The error in an answer, which has to have our one shape."""
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    assert set(response.json()["error"]) == {"code", "message", "field"}
    return response.json()["error"]


class Said(NamedTuple):
    """One event of a stream."""

    event: str
    number: str
    data: str


async def said(response: httpx.Response) -> AsyncIterator[Said]:
    """The events of a stream, one by one."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if line == "" and "data" in fields:
            yield Said(fields.get("event", "message"), fields.get("id", ""), fields["data"])
        if line == "":
            fields = {}
        elif name:
            fields[name] = value
