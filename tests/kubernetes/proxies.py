"""Fault-injecting proxies: they hold requests, cut them off, and call a hook before or after a chosen one."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

#: kinds of requests to the API server: method, pattern of the path with its query
_KINDS = (
    ("binding", "POST", r"/pods/[^/]+/binding$"),
    ("event", "POST", r"/events$"),
    ("evict pod", "POST", r"/pods/[^/]+/eviction$"),
    ("delete pod", "DELETE", r"/pods/"),
    ("patch pod", "PATCH", r"/pods/"),
    ("watch pods", "GET", r"/api/v1/pods\?.*watch=1"),
    ("watch nodes", "GET", r"/api/v1/nodes\?.*watch=1"),
    ("list pods", "GET", r"/api/v1/pods(\?|$)"),
    ("list nodes", "GET", r"/api/v1/nodes(\?|$)"),
    ("get job", "GET", r"/jobs/"),
    ("get pod", "GET", r"/pods/"),
)
_PATIENCE_S = 20.0


@dataclass
class Fault:
    """A fault at the ``nth`` request of a kind after it is armed."""

    kind: str
    nth: int
    after: bool  #: it is answered, and the answer is dropped; else: it is never sent on
    strike: Callable[[], None]  #: called while that request hangs; then its connection is closed
    done: threading.Event = field(default_factory=threading.Event)

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.kind}"


class Proxy(threading.Thread):
    """Forwards HTTP to a local port, one request per connection at a time. Runs from its creation."""

    def __init__(self, to: int, certificate: Path | None = None) -> None:
        """``certificate``: of a TLS server, with its key beside it: the proxy serves TLS with it."""
        super().__init__(daemon=True)
        self.to = to
        self.counts: Counter[str] = Counter()
        self.armed: list[Fault] = []
        self._inside: ssl.SSLContext | None = None
        self._outside: ssl.SSLContext | None = None
        if certificate is not None:
            self._inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._inside.load_cert_chain(certificate, certificate.with_suffix(".key"))
            self._outside = ssl.create_default_context(cafile=certificate)
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._ready = threading.Event()
        self.start()
        self._ready.wait()

    def hold(self) -> None:
        """Hold requests from now on."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def let_go(self) -> None:
        """Forward requests again, the held ones first."""
        self._loop.call_soon_threadsafe(self._open.set)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self.join()

    # -- in its own thread ----------------------------------------------------------------------------------------

    def run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._ending = asyncio.Event()
        self._open.set()
        self._serving: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._inside)
        self.port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ending.wait()
        server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_length(head))
                await self._open.wait()
                fault = self._fault(head)
                if fault is not None and not fault.after:
                    await self._strike(fault)
                    return
                if up is None or up[0].at_eof():
                    if up is not None:
                        up[1].close()
                    up = await asyncio.open_connection("127.0.0.1", self.to, ssl=self._outside)
                up[1].write(head + body)
                await up[1].drain()
                if fault is not None:
                    await asyncio.wait_for(_answer(up[0], None, reader), _PATIENCE_S)
                    await self._strike(fault)
                    return
                if not await _answer(up[0], writer, reader):
                    return
        except (OSError, EOFError, TimeoutError):
            pass  # one of the sides is gone
        finally:
            for one in (writer, *(up[1:] if up is not None else ())):
                one.close()
                with contextlib.suppress(OSError, TimeoutError):
                    await asyncio.wait_for(one.wait_closed(), 1.0)

    def _fault(self, head: bytes) -> Fault | None:
        method, path, _ = head.split(b" ", 2)
        kind = _kind(method.decode(), path.decode())
        self.counts[kind] += 1
        for fault in self.armed:
            if fault.kind == kind and fault.nth > 0:
                fault.nth -= 1
                if fault.nth == 0:
                    return fault
        return None

    async def _strike(self, fault: Fault) -> None:
        await self._loop.run_in_executor(None, fault.strike)
        fault.done.set()


async def _answer(up: asyncio.StreamReader, down: asyncio.StreamWriter | None, client: asyncio.StreamReader) -> bool:
    """Forward an answer as it arrives (``None``: drop it); whether another request may follow."""

    async def passed(data: bytes) -> bytes:
        if down is not None:
            down.write(data)
            await down.drain()
        return data

    head = await passed(await up.readuntil(b"\r\n\r\n"))
    if b"transfer-encoding: chunked" not in head.lower():
        await passed(await up.readexactly(_length(head)))
        return b"connection: close" not in head.lower()
    while True:
        try:
            line = await asyncio.wait_for(up.readuntil(b"\r\n"), 1.0)
        except TimeoutError:
            if client.at_eof():  # nobody listens to this watch any more
                return False
            continue
        size = int(line, 16)
        await passed(line + await up.readexactly(size + 2))
        if size == 0:
            return True


def _length(head: bytes) -> int:
    found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return int(found.group(1)) if found else 0


def _kind(method: str, path: str) -> str:
    if path.startswith("/v1/extender/"):
        return path.rpartition("/")[2]
    return next((kind for kind, verb, pattern in _KINDS if verb == method and re.search(pattern, path)), "other")
