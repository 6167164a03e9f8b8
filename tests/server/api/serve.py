"""A real server for a test, and what its streams say."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import httpx

from hived.server.app import make_app
from hived.server.serving import Server

from .fakes import FakeService, FakeSource


class Said(NamedTuple):
    """One event of a stream."""

    event: str
    number: str
    data: str


@contextlib.asynccontextmanager
async def serving(service: FakeService, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server on a Unix socket in ``folder``."""
    server = Server()
    app = make_app(service, FakeSource(), token=None, hosts=(), local=True)
    await server.start(socket_app=app, socket=folder / "s")
    transport = httpx.AsyncHTTPTransport(uds=str(folder / "s"))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://hived", timeout=180) as client:
            yield client
    finally:
        await server.stop()


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
