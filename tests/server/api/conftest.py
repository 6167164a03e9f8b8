"""An engine that is none, behind the application as a client over the Unix socket sees it."""

from __future__ import annotations

import pytest

from hived.server.app import make_app

from .client import Client
from .fakes import FakeService, FakeSource


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Client:
    """Without a token: whoever reaches the socket may."""
    app = make_app(service, FakeSource(), token=None, hosts=(), local=True)
    return Client(app, base_url="http://hived")
