"""A server of a dashboard in a thread, and Chromium."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from playwright.sync_api import Browser, Playwright

from hived.errors import ConflictError, HivedError, NotFoundError
from hived.server.dashboard import Source, dashboard_routes


class Served:
    """The dashboard of a source on a port of its own; it can be taken away and brought back there."""

    def __init__(self, source: Source) -> None:
        self.app = FastAPI()
        self.app.include_router(dashboard_routes(source))
        self.app.add_exception_handler(HivedError, _refuse)
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Listen; on the same port as before, where there was one."""
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(self.app, log_level="critical", ws="none", timeout_graceful_shutdown=0, lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        """Go away, streams and all."""
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


@contextmanager
def served(source: Source) -> Iterator[Served]:
    """A dashboard while the block runs."""
    server = Served(source)
    try:
        yield server
    finally:
        server.stop()


async def _refuse(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HivedError)
    status = 404 if isinstance(error, NotFoundError) else 409 if isinstance(error, ConflictError) else 500
    return JSONResponse({"error": {"code": error.code, "message": str(error), "field": None}}, status)


def find_chromium() -> str:
    """The browser's program; without one there is nothing to test with, and that is a failure."""
    found = os.environ.get("HIVED_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        raise RuntimeError("no Chromium for the dashboard's tests: apt-get install chromium (or set HIVED_CHROMIUM)")
    return found


def launch(playwright: Playwright) -> Browser:
    """A headless browser; root has no sandbox to run in."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return playwright.chromium.launch(
        executable_path=find_chromium(),
        args=["--no-sandbox"] if root else [],
    )
