"""The application on a fake service: as a client over the Unix socket sees it, with and without a real server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from hived.server.serving import Server

from ..fakes import FakeService, local_app
from .client import Client


@pytest.fixture
def client(service: FakeService) -> Client:
    """Without a token: whoever reaches the socket may."""
    return Client(local_app(service))


@pytest.fixture
def http(service: FakeService, tmp_path: Path) -> contextlib.AbstractAsyncContextManager[httpx.AsyncClient]:
    """A client of a server on a Unix socket."""

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[httpx.AsyncClient]:
        server = Server()
        await server.start(socket_app=local_app(service), socket=tmp_path / "s")
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "s"))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://hived", timeout=180) as client:
                yield client
        finally:
            await server.stop()

    return serving()
