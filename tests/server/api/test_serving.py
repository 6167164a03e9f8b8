"""A real server: where it listens, who may connect, how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import grp
import os
import select
import signal
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hived.errors import HivedError, InputError, InvariantError, StorageError
from hived.server.serving import Server, tcp_socket

from ..fakes import FakeService, local_app

TOKEN = "t0ken"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
JOB = {"vc": "vision", "command": ["true"]}
LOOPBACK = ("127.0.0.1", 0)


def apps(service: FakeService) -> dict[str, Any]:
    return {"app": local_app(service, TOKEN), "socket_app": local_app(service)}


@contextlib.asynccontextmanager
async def running(service: FakeService, **where: Any) -> AsyncIterator[Server]:
    server = Server()
    await server.start(**apps(service), **where)
    try:
        yield server
    finally:
        await server.stop()


def over_socket(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://hived", timeout=120)


def over_tcp(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", headers=BEARER, timeout=120)


async def healthy(path: Path) -> bool:
    """Whether an engine answers on this socket."""
    async with over_socket(path) as client:
        return (await client.get("/healthz")).status_code == 200


async def test_socket_and_address(service: FakeService, tmp_path: Path) -> None:
    """The socket is its owner's alone, and the kernel says who asks; signals are left to others."""
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(kind) for kind in kinds]
    async with running(service, socket=tmp_path / "s", listen=LOOPBACK) as server:
        assert server.address == ("127.0.0.1", server.port)
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        assert [signal.getsignal(kind) for kind in kinds] == before
        async with over_socket(tmp_path / "s") as local, over_tcp(server) as remote:
            assert (await local.get("/v1/usage")).status_code == 200
            assert (await local.post("/v1/jobs", json=JOB)).json()["user"] == getpass.getuser()
            assert (await remote.get("/v1/usage")).status_code == 200
            assert (await remote.get("/v1/usage", headers={"Authorization": ""})).status_code == 401
    assert server.address is None
    assert not (tmp_path / "s").exists()


async def test_socket_for_a_group(service: FakeService, tmp_path: Path) -> None:
    async with running(service, socket=tmp_path / "s", group=grp.getgrgid(os.getegid()).gr_name):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o660
        assert (tmp_path / "s").stat().st_gid == os.getegid()


async def test_socket_and_address_in_use(service: FakeService, tmp_path: Path) -> None:
    """The socket of an engine that has ended is replaced; an address in use, and a file that is no socket, stay."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    (tmp_path / "file").write_text("mine")
    async with running(service, socket=tmp_path / "s", listen=LOOPBACK) as server:
        with pytest.raises(InputError, match="somebody listens there already"):
            await Server().start(**apps(service), listen=("127.0.0.1", server.port or 0))
        with pytest.raises(StorageError, match="no socket can be made there"):
            await Server().start(**apps(service), socket=tmp_path / "file")
        assert await healthy(tmp_path / "s")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("where", "kind", "words"),
    [
        ({"group": "no-such-group"}, InputError, "no group 'no-such-group'"),
        ({"socket": "nothing/s"}, StorageError, "no socket can be made there"),
        ({"socket": "x" * 120}, InputError, "too long"),
        ({"listen": ("127.0.0.1", 70_000)}, InputError, "a port is a number"),
        ({"listen": ("127.0.0.1", -1)}, InputError, "a port is a number"),
        ({"listen": ("192.0.2.1", 0)}, InputError, "cannot listen there"),
        ({"listen": ("no-such-host.invalid", 0)}, InputError, "no such host"),
        ({"listen": ("a" * 300, 0)}, InputError, "no such host"),
        ({"listen": ("300.300.300.300", 0)}, InputError, "no such host"),
    ],
)
async def test_wrong_place_to_listen(
    service: FakeService, tmp_path: Path, where: dict[str, Any], kind: type[HivedError], words: str
) -> None:
    """The reason is told, and nothing is left."""
    asked = where | {"socket": tmp_path / where.get("socket", "s")}
    with pytest.raises(kind, match=words):
        await Server().start(**apps(service), **asked)
    assert list(tmp_path.iterdir()) == []


async def test_nothing_to_serve_is_a_bug(service: FakeService, tmp_path: Path) -> None:
    with pytest.raises(InvariantError):
        await Server().start(local_app(service), socket=tmp_path / "s")
    with pytest.raises(InvariantError):
        await Server().start(socket_app=local_app(service), listen=LOOPBACK)


# -- the end


async def test_stop_ends_open_streams(service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hived.server.serving.GRACE_SECONDS", 600)
    service.add()
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(running(service, socket=tmp_path / "s", listen=LOOPBACK))
        local = await stack.enter_async_context(over_socket(tmp_path / "s"))
        remote = await stack.enter_async_context(over_tcp(server))
        paths = ["/v1/events/stream?after=0", "/v1/dashboard/stream", "/v1/logs/1/stream"]
        streams = [
            await stack.enter_async_context(client.stream("GET", path)) for client in (local, remote) for path in paths
        ]
        assert [stream.status_code for stream in streams] == [200] * 6
        await server.stop()  # sooner than requests in progress are given
        for stream in streams:
            await stream.aread()  # each ends as a complete answer does
        await server.stop()


@pytest.mark.parametrize("finishes", [True, False])
async def test_stop_amid_a_request(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finishes: bool
) -> None:
    """It may finish, but is not waited for for ever."""
    if not finishes:
        monkeypatch.setattr("hived.server.serving.GRACE_SECONDS", 0.2)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(ref: str, user: str, now: bool) -> Any:
        begun.set()
        await may_end.wait()
        return service.job(ref)

    monkeypatch.setattr(service, "cancel", slow)
    service.add()
    async with running(service, socket=tmp_path / "s") as server, over_socket(tmp_path / "s") as client:
        answer = asyncio.create_task(client.post("/v1/jobs/1/cancel"))
        await begun.wait()
        stops = asyncio.create_task(server.stop())
        await asyncio.sleep(0)  # it has been told
        if finishes:
            may_end.set()
        await stops
        with contextlib.nullcontext() if finishes else contextlib.suppress(httpx.HTTPError):
            status = (await answer).status_code
            assert status == 202 if finishes else status >= 500


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_answers_over_tcp_wait_for_no_acknowledgement(host: str) -> None:
    """One in two parts took 40 ms more: the second waited for the client's delayed acknowledgement of the first."""
    with tcp_socket(host, 0) as listening:
        listening.setblocking(True)
        with socket.create_connection(listening.getsockname()[:2]), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("limit", ["serving.GRACE_SECONDS", "limits.STALL_SECONDS"])
async def test_client_that_does_not_read(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """It is cut off, be it that the server stops or that it stalls for too long."""
    monkeypatch.setattr(f"hived.server.{limit}", 0.2)
    service.log_lines = ["x" * 1_000] * 50_000
    async with running(service, socket=tmp_path / "s") as server:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"), limit=1)
        writer.write(b"GET /v1/decisions HTTP/1.1\r\nHost: hived\r\n\r\n")
        await reader.read(1)
        if limit == "serving.GRACE_SECONDS":
            await server.stop()
        else:
            hung_up = select.poll()
            hung_up.register(writer.get_extra_info("socket").fileno(), 0)
            while not hung_up.poll(0):
                await asyncio.sleep(0.01)
        assert len(await reader.read(-1)) < 50_000_000
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()
