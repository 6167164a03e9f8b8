"""Raw bytes over raw sockets: whatever comes, the next who asks is answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import random
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from hived.access import Person
from hived.server import limits
from hived.server.serving import Server

from ..fakes import FakeService, local_app

TOKEN = "t0ken"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t0ken\r\nContent-Type: application/json\r\n"


@pytest.fixture
def server(service: FakeService) -> contextlib.AbstractAsyncContextManager[Server]:
    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[Server]:
        made = Server()
        await made.start(local_app(service, TOKEN), listen=("127.0.0.1", 0))
        try:
            yield made
            assert (await exchange(made, [GET])).status == 200, "others are still answered"
        finally:
            await made.stop()

    return serving()


class Answer(NamedTuple):
    """One answer; status 0: the other side closed without any."""

    status: int
    body: bytes


async def answer(reader: asyncio.StreamReader) -> Answer:
    """The next answer."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        return Answer(int(head.split()[1]), await reader.readexactly(int(length[1]) if length else 0))
    return Answer(0, b"")


async def exchange(server: Server, pieces: Sequence[bytes], pause: float = 0.0) -> Answer:
    """Send the pieces on a connection of their own; the first answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    with contextlib.suppress(OSError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
    found = await answer(reader)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return found


def assert_shape(found: Answer) -> None:
    """The answer is an error in our one shape."""
    assert set(json.loads(found.body)) == {"error"}
    assert set(json.loads(found.body)["error"]) == {"code", "message", "field"}


MALFORMED = {
    "nothing": b"\r\n\r\n",
    "no HTTP": b"nonsense\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200 + b"\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    "a huge header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
    "a huge path": b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header with NUL": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: yes\r\n\r\n",
    "a space in the path": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a length that is none": POST + b"Content-Length: x\r\n\r\n",
    "a chunk size that is none": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a huge chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\n",
    "an unknown transfer encoding": POST + b"Transfer-Encoding: gzip\r\n\r\n",
}


async def test_no_http(server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is answered (by uvicorn, in plain text), or the connection is closed; and it is no error of ours."""
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.3)
    answers = await asyncio.gather(*(exchange(server, [request]) for request in MALFORMED.values()))
    for name, found in zip(MALFORMED, answers, strict=True):
        assert found.status == 0 or 400 <= found.status < 500, name
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    monkeypatch.setattr(limits, "HEAD_SECONDS", 60)


async def test_nonsense_after_the_answer(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A body that goes on as no HTTP, once it is refused, ends the connection, and nothing is logged as an error."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: evil\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert (await answer(reader)).status == 403
    writer.write(b"zz\r\n")
    assert await answer(reader) == (0, b"")
    writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


STRANGE = {
    "length and chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an absolute target": b"GET http://evil.example/v1/usage HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a target that is no path": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a proxy request": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/1.0 without a host": b"GET /v1/usage HTTP/1.0\r\n\r\n",
    "a websocket": b"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    "HTTP/2 by upgrade": b"GET /v1/usage HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
    "out of the files": b"GET /static/../../../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "out of the files, encoded": b"GET /static/%2e%2e/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "out of the files, slashes too": b"GET /static/..%2f..%2f..%2fserver%2fapp.py HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an absolute file": b"GET /static//etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a file with NUL": b"GET /static/%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a file name that is too long": b"GET /static/" + b"a" * 5_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a file that is no Unicode": b"GET /static/%ff%fe%ed%a0%80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a folder": b"GET /static/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a secret path behind an open one": b"GET /static/../v1/usage HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a secret path behind an open one, encoded": b"GET /static/%2e%2e/v1/usage HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a secret path after slashes": b"GET //v1/usage HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a secret path in capitals": b"GET /V1/about HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a secret path with a parameter": b"GET /v1/usage;/static/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a host with a path": b"GET /v1/usage HTTP/1.1\r\nHost: localhost/static/\r\n\r\n",
    "a forwarded client": b"GET /v1/usage HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n",
    "another method by header": b"GET /v1/usage HTTP/1.1\r\nHost: localhost\r\nX-HTTP-Method-Override: POST\r\n\r\n",
    "a method of its own": b"BREW /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


async def test_strange_request(service: FakeService, server: Server) -> None:
    for name, request in STRANGE.items():
        found = await exchange(server, [request])
        assert 400 <= found.status < 500, name
        assert_shape(found)
    assert not service.all


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
async def test_noise(server: Server, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.3)
    noise = random.Random(0)

    def garbled() -> bytes:
        data = bytearray(POST + b'Content-Length: 34\r\n\r\n{"vc": "vision", "command": ["x"]}')
        for _ in range(noise.randint(1, 6)):
            data[noise.randrange(len(data))] = noise.randrange(256)
        return bytes(data[: noise.randint(1, len(data))] + noise.randbytes(noise.randint(0, 50)))

    for _ in range(rounds):
        answers = await asyncio.gather(*(exchange(server, [garbled()]) for _ in range(30)))
        assert {found.status for found in answers} <= {0, 201, 400, 401, 403, 404, 405, 408, 413, 415, 422}
    monkeypatch.setattr(limits, "HEAD_SECONDS", 60)


async def test_any_pieces(server: Server) -> None:
    """A request byte by byte, fifty at once, and one that is too large and answered before it has come."""
    assert (await exchange(server, [bytes([byte]) for byte in GET], pause=0.001)).status == 200
    pieces = [POST + b"Transfer-Encoding: chunked\r\n\r\n"] + [b"10000\r\n" + b" " * 65_536 + b"\r\n"] * 70
    assert (await exchange(server, pieces)).status == 413
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(GET * 50)
    assert [(await answer(reader)).status for _ in range(50)] == [200] * 50
    writer.close()


async def test_idle_connection_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.1)

    async def closed(before: bytes, begun: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        if before:
            writer.write(before)
            assert (await answer(reader)).status == 200
        writer.write(begun)
        with contextlib.suppress(ConnectionResetError):
            await reader.read(-1)
        writer.close()

    await asyncio.gather(*(closed(b"", begun) for begun in (b"", b"GET / HT", GET[:-2])), closed(GET, b"GET /hea"))
    monkeypatch.setattr(limits, "HEAD_SECONDS", 60)


async def test_unwanted_body_is_not_read_for_ever(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.2)

    async def send_for_ever(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            await asyncio.sleep(0.01)

    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(POST + b"Content-Length: 1000000000000\r\n\r\n")
    with pytest.raises(ConnectionError):
        await send_for_ever(writer)
    writer.close()
    monkeypatch.setattr(limits, "HEAD_SECONDS", 60)


async def test_client_that_leaves_amid_its_body(
    server: Server, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(POST + b'Content-Length: 1000\r\n\r\n{"vc": "vision", "command": ["x"]}')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await exchange(server, [GET])).status == 200
    assert not service.all
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_connections_over_the_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused, and the rest go on."""
    monkeypatch.setattr(limits, "CONNECTIONS", 5)
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(5)]
    for reader, writer in idle:  # who has been answered once is no stranger, and keeps its place
        writer.write(GET)
        assert (await answer(reader)).status == 200
    refused = await exchange(server, [GET])
    assert refused.status == 503
    assert json.loads(refused.body)["error"]["code"] == "unavailable"
    reader, writer = idle[0]
    writer.write(GET)
    assert (await answer(reader)).status == 200
    for _, writer in idle:
        writer.close()
        await writer.wait_closed()
    while (await exchange(server, [GET])).status != 200:
        await asyncio.sleep(0.01)


async def test_token_opens_where_strangers_are_many(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who are at the same address, and show nothing, kept the owner out."""
    monkeypatch.setattr(limits, "CONNECTIONS", 5)
    slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
    for reader, writer in slow:
        writer.write(GET)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await answer(reader)
    assert (await exchange(server, [GET])).status == 503
    shown = GET.replace(b"healthz", b"v1/jobs").replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer t0ken\r\n\r\n")
    for _ in range(3):
        assert (await exchange(server, [shown])).status == 200
    many = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
    for reader, writer in many:  # beyond all limits, of who shows what is no token
        writer.write(GET.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer x\r\n\r\n"))
        await answer(reader)
    assert (await exchange(server, [shown])).status == 200
    slow += many
    for _, writer in slow:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    while (await exchange(server, [GET])).status != 200:
        await asyncio.sleep(0.01)


async def test_user_with_many_connections_keeps_no_other_out(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a few hundred bodies that come slowly nobody could use the engine for half a minute, not even root."""
    people = itertools.chain([Person("ben", uid=7)] * 5, itertools.repeat(Person("ann", uid=8)))
    monkeypatch.setattr(limits, "_peer", lambda _: {"person": next(people)})
    monkeypatch.setattr(limits, "CONNECTIONS", 5)
    server = Server()
    await server.start(socket_app=local_app(service), socket=tmp_path / "s")
    slow = []
    for _ in range(5):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(GET)
        assert (await answer(reader)).status == 200, "so it is none that has asked nothing"
        writer.write(POST + b"Content-Length: 99999\r\n\r\n{")
        await writer.drain()
        slow.append((reader, writer))
    for _ in range(3):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(GET)
        assert (await answer(reader)).status == 200
        writer.close()
    reader, _ = slow[0]
    assert await reader.read() == b"", "the oldest of who has the most was dropped"
    for _, writer in slow:
        writer.close()
    await server.stop()


async def test_silent_connections_keep_nobody_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS", 5)
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(12)]
    silent[-1][1].write(b"GET / HTTP/1.1\r\nHost: x")  # half a request is none
    for _ in range(3):
        assert (await exchange(server, [GET])).status == 200
    for _, writer in silent:
        writer.close()


async def test_socket_is_as_robust(service: FakeService, tmp_path: Path) -> None:
    server = Server()
    await server.start(socket_app=local_app(service), socket=tmp_path / "s")
    statuses = []
    for request in (MALFORMED["no HTTP"], MALFORMED["two lengths"], b"GET /healthz HTTP/1.0\r\n\r\n"):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(request)
        statuses.append((await answer(reader)).status)
        writer.close()
    assert statuses == [400, 400, 200], "the last was right, if old"
    await server.stop()
