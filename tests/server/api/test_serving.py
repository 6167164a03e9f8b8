"""A real server: where it listens, who may connect, how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import grp
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from hived.errors import ConflictError, InputError, InvariantError, StorageError
from hived.server.app import make_app
from hived.server.schema import Submission
from hived.server.serving import Server, unix_socket

from .fakes import FakeService, FakeSource

TOKEN = "t0ken"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
JOB = {"vc": "vision", "command": ["true"]}
LOOPBACK = ("127.0.0.1", 0)


def apps(service: FakeService) -> dict[str, Any]:
    return {
        "app": make_app(service, FakeSource(), token=TOKEN, hosts=()),
        "socket_app": make_app(service, FakeSource(), token=None, hosts=(), local=True),
    }


@contextlib.asynccontextmanager
async def running(service: FakeService, **where: Any) -> AsyncIterator[Server]:
    server = Server()
    await server.start(**apps(service), **where)
    try:
        yield server
    finally:
        await server.stop()


def over_socket(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://hived", timeout=20)


def over_tcp(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", headers=BEARER, timeout=20)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_serves_on_a_socket_and_at_an_address(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(service, socket=tmp_path / "s", listen=LOOPBACK) as server:
            assert server.address == ("127.0.0.1", server.port)
            async with over_socket(tmp_path / "s") as local, over_tcp(server) as remote:
                assert (await local.get("/v1/about")).status_code == 200
                assert (await remote.get("/v1/about")).status_code == 200
                assert (await remote.get("/v1/about", headers={"Authorization": ""})).status_code == 401
        assert server.address is None
        assert not (tmp_path / "s").exists()

    asyncio.run(scene())


def test_a_socket_is_for_its_owner_alone(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(service, socket=tmp_path / "s"):
            assert mode(tmp_path / "s") == 0o600

    asyncio.run(scene())


def test_a_socket_can_be_given_to_a_group(service: FakeService, tmp_path: Path) -> None:
    group = grp.getgrgid(os.getegid()).gr_name

    async def scene() -> None:
        async with running(service, socket=tmp_path / "s", group=group):
            assert mode(tmp_path / "s") == 0o660
            assert (tmp_path / "s").stat().st_gid == os.getegid()

    asyncio.run(scene())


def test_a_group_that_there_is_not_is_refused_and_nothing_is_left(service: FakeService, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no group 'no-such-group'"):
        asyncio.run(Server().start(**apps(service), socket=tmp_path / "s", group="no-such-group"))
    assert not (tmp_path / "s").exists()


def test_over_the_socket_the_kernel_names_the_user(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(service, socket=tmp_path / "s"), over_socket(tmp_path / "s") as client:
            job = (await client.post("/v1/jobs", json=JOB)).json()
            assert job["user"] == getpass.getuser()

    asyncio.run(scene())


def test_the_socket_of_an_engine_that_is_gone_is_replaced(service: FakeService, tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "s"))
    dead.listen()
    dead.close()

    async def scene() -> None:
        async with running(service, socket=tmp_path / "s"), over_socket(tmp_path / "s") as client:
            assert (await client.get("/healthz")).status_code == 200

    asyncio.run(scene())


def test_the_socket_of_a_living_engine_is_left_alone(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(service, socket=tmp_path / "s"):
            with pytest.raises(ConflictError, match="another hived up answers on"):
                await Server().start(**apps(service), socket=tmp_path / "s")
            async with over_socket(tmp_path / "s") as client:
                assert (await client.get("/healthz")).status_code == 200

    asyncio.run(scene())


def test_the_socket_of_an_engine_too_busy_to_answer_is_left_alone(service: FakeService, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as waiting:
        busy.bind(str(tmp_path / "s"))
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = waiting.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(tmp_path / "s"))
        with pytest.raises(ConflictError):
            asyncio.run(Server().start(**apps(service), socket=tmp_path / "s"))


def test_of_many_that_start_at_once_one_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = 4
    together = threading.Barrier(many)
    permit = Path.chmod

    def dawdle(path: Path, mode: int) -> None:
        time.sleep(0.02)  # between being there and being listened to, where another takes it for dead
        permit(path, mode)

    monkeypatch.setattr(Path, "chmod", dawdle)

    def attempt(path: Path) -> socket.socket | None:
        together.wait()
        with contextlib.suppress(ConflictError):
            return unix_socket(path, None)
        return None

    with ThreadPoolExecutor(many) as pool:
        for number in range(3):
            path = tmp_path / str(number)
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
            found = [made for made in pool.map(attempt, [path] * many) if made is not None]
            assert len(found) == 1
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            found[0].close()


def test_a_file_that_is_no_socket_is_never_removed(service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises(ConflictError, match="no socket"):
        asyncio.run(Server().start(**apps(service), socket=tmp_path / "s"))
    assert (tmp_path / "s").read_text() == "mine"


def test_a_server_that_stops_leaves_the_socket_of_the_next_alone(service: FakeService, tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(service, socket=tmp_path / "s"):
            (tmp_path / "s").rename(tmp_path / "old")
            async with running(service, socket=tmp_path / "s") as second:
                assert second
                (tmp_path / "s").rename(tmp_path / "s2")
                (tmp_path / "s").write_text("of somebody else")
            assert (tmp_path / "s").exists()

    asyncio.run(scene())


def test_a_folder_that_there_is_not_is_said(service: FakeService, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no socket can be made there"):
        asyncio.run(Server().start(**apps(service), socket=tmp_path / "nothing" / "s"))


def test_a_path_too_long_for_a_socket_is_said(service: FakeService, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too long"):
        asyncio.run(Server().start(**apps(service), socket=tmp_path / ("x" * 120)))


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        (("127.0.0.1", 70_000), "a port is a number"),
        (("127.0.0.1", -1), "a port is a number"),
        (("192.0.2.1", 0), "cannot listen there"),
        (("no-such-host.invalid", 0), "no such host"),
        (("a" * 300, 0), "no such host"),
        (("300.300.300.300", 0), "no such host"),
    ],
)
def test_an_address_that_cannot_be_is_said(service: FakeService, tmp_path: Path, listen: Any, words: str) -> None:
    server = Server()
    with pytest.raises(InputError, match=words):
        asyncio.run(server.start(**apps(service), listen=listen, socket=tmp_path / "s"))
    assert not (tmp_path / "s").exists()


def test_an_address_in_use_is_said(service: FakeService) -> None:
    async def scene() -> None:
        async with running(service, listen=LOOPBACK) as server:
            with pytest.raises(InputError, match="somebody listens there already"):
                await Server().start(**apps(service), listen=("127.0.0.1", server.port or 0))

    asyncio.run(scene())


def test_signals_are_left_to_others(service: FakeService, tmp_path: Path) -> None:
    kinds = (signal.SIGINT, signal.SIGTERM)

    async def scene() -> None:
        before = [signal.getsignal(kind) for kind in kinds]
        async with running(service, socket=tmp_path / "s"):
            assert [signal.getsignal(kind) for kind in kinds] == before

    asyncio.run(scene())


def test_it_stops_although_streams_are_open(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hived.server.serving.GRACE_SECONDS", 600)

    async def scene() -> None:
        job = await service.submit(Submission(vc="vision", command=["true"]), "ann")
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(running(service, socket=tmp_path / "s", listen=LOOPBACK))
            local = await stack.enter_async_context(over_socket(tmp_path / "s"))
            remote = await stack.enter_async_context(over_tcp(server))
            paths = ["/v1/events/stream?after=0", "/v1/dashboard/stream", f"/v1/jobs/{job.id}/log/stream"]
            streams = [
                await stack.enter_async_context(client.stream("GET", path))
                for client in (local, remote)
                for path in paths
            ]
            assert [stream.status_code for stream in streams] == [200] * 6
            async with asyncio.timeout(60):  # less than requests in progress are given
                await server.stop()
                for stream in streams:
                    await stream.aread()  # each ends as a complete answer does
            await server.stop()

    asyncio.run(scene())


def test_it_lets_a_request_in_progress_finish(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def slow(ref: str) -> Any:
        begun.set()
        await asyncio.sleep(0.5)
        return service.job(ref)

    monkeypatch.setattr(service, "cancel", slow)

    async def scene() -> None:
        await service.submit(Submission(vc="vision", command=["true"]), "ann")
        async with running(service, socket=tmp_path / "s") as server, over_socket(tmp_path / "s") as client:
            answer = asyncio.create_task(client.post("/v1/jobs/1/cancel"))
            await begun.wait()
            await server.stop()
            assert (await answer).status_code == 202

    asyncio.run(scene())


def test_it_stops_although_a_request_never_finishes(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hived.server.serving.GRACE_SECONDS", 0.2)
    begun = asyncio.Event()

    async def stuck(_: str) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(service, "cancel", stuck)

    async def scene() -> None:
        async with running(service, socket=tmp_path / "s") as server, over_socket(tmp_path / "s") as client:
            answer = asyncio.create_task(client.post("/v1/jobs/1/cancel"))
            await begun.wait()
            async with asyncio.timeout(60):
                await server.stop()
            with contextlib.suppress(httpx.HTTPError):
                assert (await answer).status_code >= 500

    asyncio.run(scene())


def test_it_stops_although_a_client_does_not_read(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hived.server.serving.GRACE_SECONDS", 0.2)
    service.log_lines = ["x" * 1_000] * 50_000

    async def scene() -> None:
        async with running(service, socket=tmp_path / "s") as server:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"), limit=1)
            writer.write(b"GET /v1/decisions HTTP/1.1\r\nHost: hived\r\n\r\n")
            await reader.read(1)
            async with asyncio.timeout(60):
                await server.stop()
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()

    asyncio.run(scene())


def test_a_client_that_never_reads_is_cut_off(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hived.server.limits.STALL_SECONDS", 0.2)
    service.log_lines = ["x" * 1_000] * 50_000

    async def scene() -> None:
        async with running(service, socket=tmp_path / "s"):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"), limit=1)
            writer.write(b"GET /v1/decisions HTTP/1.1\r\nHost: hived\r\n\r\n")
            await asyncio.sleep(1)
            async with asyncio.timeout(60):
                assert len(await reader.read(-1)) < 50_000_000
            writer.close()

    asyncio.run(scene())


def test_an_address_with_nothing_to_serve_is_a_bug(service: FakeService, tmp_path: Path) -> None:
    app = apps(service)["app"]
    with pytest.raises(InvariantError):
        asyncio.run(Server().start(app, socket=tmp_path / "s"))
    with pytest.raises(InvariantError):
        asyncio.run(Server().start(socket_app=app, listen=LOOPBACK))
