"""The client against servers and credentials that misbehave; what a real API server does is in real/."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hived.engines.kubernetes.client.api import ApiError, GoneError, KubeApi, api_path, connect, lease_path, resource_of
from hived.engines.kubernetes.pods.objects import Pod
from hived.errors import InputError

from .virtual_time import played

#: what is answered to a request: its head is given
Answer = Callable[[str], bytes]


def ok(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def chunks(*parts: bytes, whole: bool = True) -> bytes:
    """The answer of a watch; not ``whole``: the connection breaks."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + (b"0\r\n\r\n" if whole else b"")


def event(type_: str, **what: Any) -> bytes:
    return json.dumps({"type": type_, "object": what}).encode() + b"\n"


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message}


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """Its URL."""

    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if said := answer(head.decode()):
                writer.write(said)
            else:
                await reader.read()  # until the client gives up
        except asyncio.IncompleteReadError:
            pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    await asyncio.gather(*(task for task in served if task is not None))


def kubeconfig(folder: Path, url: str = "http://127.0.0.1:1", **user: Any) -> Path:
    path = folder / "config"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path


@asynccontextmanager
async def talking(folder: Path, answer: Answer, timeout_s: float = 120, **user: Any) -> AsyncIterator[KubeApi]:
    async with serving(answer) as url:
        api = await connect(kubeconfig(folder, url, **user), timeout_s=timeout_s)
        try:
            yield api
        finally:
            await api.close()


async def watched(api: KubeApi) -> list[str]:
    return [f"{kind} {pod.metadata.name}" async for kind, pod in api.watch(api_path("pods"), Pod, "1")]


@played
async def test_server_that_hangs(tmp_path: Path) -> None:
    async with talking(tmp_path, lambda _: b"", timeout_s=0.1) as api:
        with pytest.raises(ApiError, match="Timeout: no answer in time") as caught:
            await api.get("/version")
        assert caught.value.status == 0
        with pytest.raises(ApiError, match="Timeout: no answer in time"):
            await watched(api)


@played
async def test_lines_cut_anywhere(tmp_path: Path) -> None:
    """And one that is longer than buffers."""
    long = "x" * 900_000
    lines = event("ADDED", metadata={"name": "a"}) + b"\n" + event("DELETED", metadata={"name": "b"})
    whole = chunks(*(lines[at : at + 7] for at in range(0, len(lines), 7)), event("ADDED", metadata={"name": long}))
    async with talking(tmp_path, lambda _: whole) as api:
        assert await watched(api) == ["ADDED a", "DELETED b", f"ADDED {long}"]


@played
async def test_watch_that_breaks(tmp_path: Path) -> None:
    """It is no answer, and half a line is no event."""
    broken = chunks(event("ADDED", metadata={"name": "a"}), b'{"type": "DEL', whole=False)
    async with talking(tmp_path, lambda _: broken) as api:
        events = api.watch(api_path("pods"), Pod, "1")
        assert (await anext(events))[0] == "ADDED"
        with pytest.raises(ApiError) as caught:
            await anext(events)
        assert caught.value.status == 0


@pytest.mark.parametrize(
    ("answer", "gone", "message"),
    [
        (chunks(event("ERROR", **status(410, "Expired", "too old"))), True, "410 Expired: too old"),
        (ok(json.dumps(status(410, "Expired", "too old")).encode(), "410 Gone"), True, "410 Expired: too old"),
        (chunks(event("ERROR", **status(500, "InternalError", "oh"))), False, "500 InternalError: oh"),
    ],
    ids=["gone event", "gone", "event"],
)
@played
async def test_error_of_a_watch(tmp_path: Path, answer: bytes, gone: bool, message: str) -> None:
    async with talking(tmp_path, lambda _: answer) as api:
        with pytest.raises(ApiError, match=message) as caught:
            await watched(api)
        assert isinstance(caught.value, GoneError) is gone
        assert not gone or (caught.value.status, caught.value.reason) == (410, "Expired")


GATEWAY = b'{"status": 503, "message": "upstream down", "reason": "Gateway"}'


@pytest.mark.parametrize(
    ("body", "line", "status", "words"),
    [
        (b"<html>hello</html>", "200 OK", 0, "is this the address of an API server"),
        (b"<html>no</html>", "502 Bad Gateway", 502, "502: <html>no</html>"),
        (GATEWAY, "503 Service Unavailable", 503, "503 Gateway: upstream down"),
    ],
    ids=["page", "proxy", "gateway"],
)
@played
async def test_another_server(tmp_path: Path, body: bytes, line: str, status: int, words: str) -> None:
    """At the address, or in between."""
    async with talking(tmp_path, lambda _: ok(body, line)) as api:
        with pytest.raises(ApiError, match=words) as caught:
            await api.list(api_path("pods"), Pod)
        assert caught.value.status == status


@played
async def test_version_with_a_plus(tmp_path: Path) -> None:
    """Of hosted clusters."""
    async with talking(tmp_path, lambda _: ok(b'{"major": "1", "minor": "27+", "gitVersion": "v1.27.3"}')) as api:
        assert await api.version() == (1, 27)


class Locked:
    """An API server with one right token; ``heads``: of all requests."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.heads: list[str] = []

    def __call__(self, head: str) -> bytes:
        self.heads.append(head)
        if f"Authorization: Bearer {self._token}\r\n" in head:
            return ok(b'{"major": "1", "minor": "20"}')
        return ok(json.dumps(status(401, "Unauthorized", "who?")).encode(), "401 Unauthorized")


@played
async def test_token_that_has_run_out(tmp_path: Path) -> None:
    """It is read again."""
    token, server = tmp_path / "token", Locked("new")
    token.write_text("old\n")
    async with talking(tmp_path, server, tokenFile=str(token)) as api:
        token.write_text("new")
        for asked in (2, 3):
            assert await api.version() == (1, 20)
            assert len(server.heads) == asked


@played
async def test_refused_credentials(tmp_path: Path) -> None:
    """They are not loaded without end."""
    server = Locked("right")
    async with talking(tmp_path, server, token="wrong") as api:
        for _ in range(5):
            with pytest.raises(ApiError, match=r"401 Unauthorized: who.*check the token"):
                await api.version()
    assert len(server.heads) == 5


@played
async def test_token_of_a_program(tmp_path: Path) -> None:
    """It gives another when one is refused."""
    version, script = {"apiVersion": "client.authentication.k8s.io/v1"}, tmp_path / "plugin.sh"
    credential = json.dumps({**version, "kind": "ExecCredential", "status": {"token": "TOKEN"}})
    script.write_text(f"#!/bin/sh\necho '{credential}' | sed s/TOKEN/$(cat $1)/\necho second > $1\n")
    script.chmod(0o755)
    (tmp_path / "next").write_text("first")
    plugin = {**version, "command": str(script), "args": [str(tmp_path / "next")]}
    async with talking(tmp_path, Locked("second"), exec=plugin) as api:
        assert await api.version() == (1, 20)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file: name one with --kubeconfig"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "Expected key current-context"),
        ('{"current-context": "x", "contexts": [], "clusters": [], "users": []}', "object with name x"),
    ],
    ids=["none", "text", "list", "empty", "nothing"],
)
def test_kubeconfig_that_cannot_be_used(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        asyncio.run(connect(path))
    assert str(path) in str(caught.value)
    with pytest.raises(InputError, match="object with name other"):
        asyncio.run(connect(kubeconfig(tmp_path), "other"))


@played
async def test_account_of_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used unless a file is named."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("KUBECONFIG", "")
    with pytest.raises(InputError, match="this pod's account: Service token file does not exist"):
        await connect(None)
    path = kubeconfig(tmp_path, "http://127.0.0.1:1/")
    for named, variable in ((path, ""), (None, str(path))):
        monkeypatch.setenv("KUBECONFIG", variable)
        api = await connect(named)
        await api.close()
        assert api.server == "http://127.0.0.1:1"


@played
async def test_closed_client(tmp_path: Path) -> None:
    async with talking(tmp_path, lambda _: b"") as api:
        await api.close()
        with pytest.raises(ApiError, match="this client is closed"):
            await api.version()


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/namespaces/a/pods/b/binding", "pods/binding"),
        ("/api/v1/nodes/n", "nodes"),
        ("/api/v1/namespaces/a", "namespaces"),
        (lease_path("a", "b"), "leases"),
        ("/version", "version"),
    ],
)
def test_resource_of_a_path(path: str, resource: str) -> None:
    assert resource_of(path) == resource
