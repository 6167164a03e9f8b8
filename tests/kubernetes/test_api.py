"""The client against servers and credentials that misbehave; what a real API server does is in real/."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hived.engines.kubernetes.client.api import ApiError, GoneError, KubeApi, api_path, connect, lease_path, resource_of
from hived.engines.kubernetes.pods.objects import Pod
from hived.errors import InputError

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
async def talking(folder: Path, answer: Answer, timeout_s: float = 5, **user: Any) -> AsyncIterator[KubeApi]:
    async with serving(answer) as url:
        api = await connect(kubeconfig(folder, url, **user), timeout_s=timeout_s)
        try:
            yield api
        finally:
            await api.close()


async def watched(api: KubeApi) -> list[str]:
    return [f"{kind} {pod.metadata.name}" async for kind, pod in api.watch(api_path("pods"), Pod, "1")]


def test_a_server_that_hangs_is_not_waited_for_long(tmp_path: Path) -> None:
    async def story() -> None:
        async with talking(tmp_path, lambda _: b"", timeout_s=0.1) as api:
            with pytest.raises(ApiError, match="Timeout: no answer in time") as caught:
                await api.get("/version")
            assert caught.value.status == 0
            with pytest.raises(ApiError, match="Timeout: no answer in time"):
                await watched(api)

    asyncio.run(story())


def test_lines_are_put_together_however_they_are_cut(tmp_path: Path) -> None:
    lines = event("ADDED", metadata={"name": "a"}) + b"\n" + event("DELETED", metadata={"name": "b"})
    whole = chunks(*(lines[at : at + 7] for at in range(0, len(lines), 7)))

    async def story() -> None:
        async with talking(tmp_path, lambda _: whole) as api:
            assert await watched(api) == ["ADDED a", "DELETED b"]

    asyncio.run(story())


def test_a_watch_that_breaks_is_no_answer_and_half_a_line_is_no_event(tmp_path: Path) -> None:
    broken = chunks(event("ADDED", metadata={"name": "a"}), b'{"type": "DEL', whole=False)

    async def story() -> None:
        async with talking(tmp_path, lambda _: broken) as api:
            events = api.watch(api_path("pods"), Pod, "1")
            assert (await anext(events))[0] == "ADDED"
            with pytest.raises(ApiError) as caught:
                await anext(events)
            assert caught.value.status == 0

    asyncio.run(story())


@pytest.mark.parametrize(
    "answer",
    [
        chunks(event("ERROR", **status(410, "Expired", "too old"))),
        ok(json.dumps(status(410, "Expired", "too old")).encode(), "410 Gone"),
    ],
    ids=["event", "status"],
)
def test_gone_is_gone_in_either_form(tmp_path: Path, answer: bytes) -> None:
    async def story() -> None:
        async with talking(tmp_path, lambda _: answer) as api:
            with pytest.raises(GoneError, match="410 Expired: too old") as caught:
                await watched(api)
            assert (caught.value.status, caught.value.reason) == (410, "Expired")

    asyncio.run(story())


def test_an_error_in_a_watch_is_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with talking(tmp_path, lambda _: chunks(event("ERROR", **status(500, "InternalError", "oh")))) as api:
            with pytest.raises(ApiError, match="500 InternalError: oh") as caught:
                await watched(api)
            assert not isinstance(caught.value, GoneError)

    asyncio.run(story())


def test_another_server_at_the_address_is_reported_as_such(tmp_path: Path) -> None:
    async def story() -> None:
        async with talking(tmp_path, lambda _: ok(b"<html>hello</html>")) as api:
            with pytest.raises(ApiError, match="is this the address of an API server") as caught:
                await api.list(api_path("pods"), Pod)
            assert caught.value.status == 0
        async with talking(tmp_path, lambda _: ok(b"<html>no</html>", "502 Bad Gateway")) as api:
            with pytest.raises(ApiError, match="502: <html>no</html>"):
                await api.version()
        said = b'{"status": 503, "message": "upstream down", "reason": "Gateway"}'  # of a gateway in between
        async with talking(tmp_path, lambda _: ok(said, "503 Service Unavailable")) as api:
            with pytest.raises(ApiError, match="503 Gateway: upstream down") as caught:
                await api.version()
            assert caught.value.reason == "Gateway"

    asyncio.run(story())


def test_versions_of_hosted_clusters_have_a_plus(tmp_path: Path) -> None:
    async def story() -> None:
        async with talking(tmp_path, lambda _: ok(b'{"major": "1", "minor": "27+", "gitVersion": "v1.27.3"}')) as api:
            assert await api.version() == (1, 27)

    asyncio.run(story())


def test_a_token_that_has_run_out_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    heads: list[str] = []

    def answer(head: str) -> bytes:
        heads.append(head)
        if "Authorization: Bearer new\r\n" in head:
            return ok(b'{"major": "1", "minor": "20"}')
        return ok(json.dumps(status(401, "Unauthorized", "who?")).encode(), "401 Unauthorized")

    async def story() -> None:
        async with talking(tmp_path, answer, tokenFile=str(token)) as api:
            token.write_text("new")
            await api.version()
            assert len(heads) == 2
            await api.version()
            assert len(heads) == 3

    asyncio.run(story())


def test_credentials_that_stay_refused_are_not_loaded_without_end(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(head: str) -> bytes:
        asked.append(head)
        return ok(json.dumps(status(401, "Unauthorized", "who?")).encode(), "401 Unauthorized")

    async def story() -> None:
        async with talking(tmp_path, answer, token="wrong") as api:
            for _ in range(5):
                with pytest.raises(ApiError, match=r"401 Unauthorized: who.*check the token"):
                    await api.version()

    asyncio.run(story())
    assert len(asked) == 5


def test_a_program_gives_the_token_and_another_when_that_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, pathlib, sys\n"
        "count = pathlib.Path(sys.argv[1])\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        "credential = {'token': f'number-{number}'}\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': credential}))\n"
    )
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(script), str(tmp_path / "count")],
    }

    def answer(head: str) -> bytes:
        good = "Authorization: Bearer number-2\r\n" in head
        return ok(b'{"major": "1", "minor": "20"}') if good else ok(b"{}", "401 Unauthorized")

    async def story() -> None:
        async with talking(tmp_path, answer, timeout_s=30, exec=plugin) as api:
            assert await api.version() == (1, 20)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file: name one with --kubeconfig"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "Expected key current-context"),
        ('{"current-context": "x", "contexts": [], "clusters": [], "users": []}', "object with name x"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_said_to_be_so(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        asyncio.run(connect(path))
    assert str(path) in str(caught.value)


def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="object with name other"):
        asyncio.run(connect(kubeconfig(tmp_path), "other"))


def test_in_a_pod_its_own_account_is_used_unless_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("KUBECONFIG", "")
    with pytest.raises(InputError, match="this pod's account: Service token file does not exist"):
        asyncio.run(connect(None))
    path = kubeconfig(tmp_path, "http://127.0.0.1:1/")

    async def server(given: Path | None) -> str:
        api = await connect(given)
        await api.close()
        return api.server

    assert asyncio.run(server(path)) == "http://127.0.0.1:1"
    monkeypatch.setenv("KUBECONFIG", str(path))
    assert asyncio.run(server(None)) == "http://127.0.0.1:1"


def test_a_client_that_is_closed_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with talking(tmp_path, lambda _: b"") as api:
            await api.close()
            with pytest.raises(ApiError, match="this client is closed"):
                await api.version()

    asyncio.run(story())


def test_paths_are_counted_by_their_resource() -> None:
    assert resource_of("/api/v1/namespaces/a/pods/b/binding") == "pods/binding"
    assert resource_of("/api/v1/nodes/n") == "nodes"
    assert resource_of("/api/v1/namespaces/a") == "namespaces"
    assert resource_of(lease_path("a", "b")) == "leases"
    assert resource_of("/version") == "version"
