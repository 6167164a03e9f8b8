"""Finding the engine, and what is said when it is not there, not ours, or not an engine."""

from __future__ import annotations

import errno
import getpass
import os
import shutil
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from hived.cli import addresses, client
from hived.cli.client import connect
from hived.cli.console import note as console_note
from hived.errors import UnavailableError
from hived.server.failures import STATUS
from hived.server.schema import Event

from ...server.fakes import TOKEN, FakeService, Running
from ..helpers import Hived, refused

VERBS: list[list[object]] = [
    ["ps"], ["top"], ["logs", "1"], ["logs", "-f", "1"], ["explain", "1"], ["cancel", "1"], ["events"],
    ["events", "-f"], ["events", "--export", "-"], ["plan", "--vc", "a"], ["drain"], ["wait", "1"],
    ["submit", "--vc", "a", "--", "x"],
    ["submit", "-f", "--vc", "a", "--", "x"],
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(map(str, verb)))
def test_no_engine(hived: Hived, nobody: Path, verb: list[object]) -> None:
    line = refused(hived(*verb), 69)
    assert line == f"no engine answers on {nobody}/hived.sock; start one with: hived up"
    line = refused(hived(verb[0], "--state", "my state", *verb[1:]), 69)
    assert line.endswith("; start one with: hived up --state 'my state'")


def test_engine_of_the_machine(hived: Hived, nobody: Path, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found where a user has none of their own; they were told to start one, on the same GPUs."""
    monkeypatch.delenv("HIVED_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(nobody))
    monkeypatch.setattr(addresses, "OF_THE_MACHINE", nobody / "nowhere")
    line = refused(hived("ps"), 69)
    assert line == (
        f"no engine answers on {nobody}/hived/hived.sock; start one with: hived up, or say where one is: --state DIR, "
        "or HIVED_STATE=/var/lib/hived"
    )
    monkeypatch.setattr(addresses, "OF_THE_MACHINE", nobody)
    monkeypatch.setattr(client, "OF_THE_MACHINE", nobody)
    for user, words in (
        (1000, "it is the machine's, whose jobs run on meanwhile: ask who runs it"),
        (0, "it is the machine's: hived up --state "),
    ):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert refused(hived("ps"), 69).startswith(f"no engine answers on {nobody}/hived.sock; {words}"), "it is down"
    (nobody / "hived").mkdir()
    (nobody / "hived" / "hived.sock").touch()  # of one of their own, which was killed
    monkeypatch.setenv("HIVED_RETRY_FOR", "0")
    monkeypatch.setattr(client, "OF_THE_MACHINE", Path(running.folder))
    assert f"; the machine has one: --state {running.folder}; " in refused(hived("ps"), 69)
    shutil.rmtree(nobody / "hived")
    monkeypatch.setattr(addresses, "OF_THE_MACHINE", nobody / ("x" * 5000))  # as a folder that may not be passed
    assert "no engine answers" in refused(hived("ps"), 69)
    monkeypatch.setattr(addresses, "OF_THE_MACHINE", Path(running.folder))
    assert hived("ps").code == 0
    monkeypatch.setenv("HIVED_STATE", str(nobody))
    assert "no engine answers" in refused(hived("ps"), 69)


BYTES = os.fsdecode(b"d\xff")  #: what Python makes of an argument that is no UTF-8


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (["submit", "--vc", "vision", "--", "echo", BYTES], "COMMAND"),
        (["submit", "--vc", "vision", "--cwd", f"/{BYTES}", "--", "pwd"], "--cwd"),
        (["submit", "--vc", BYTES, "--", "pwd"], "--vc"),
        (["submit", "--vc", "vision", "--name", BYTES, "--", "pwd"], "--name"),
        (["plan", "--vc", BYTES], "--vc"),
        (["ps", "--vc", BYTES], "is not UTF-8 text"),
        (["drain", BYTES], "NODE"),
        (["vc", "show", BYTES, "--engine", "http://127.0.0.1:1"], "no name is"),
        (["explain", BYTES], "no name is"),
        (["ps", "--engine", f"http://{BYTES}:3"], "--engine"),
        (["ps", "--engine", "http://a..b:3"], "--engine"),
    ],
)  # fmt: skip
def test_argument_that_is_no_text(hived: Hived, running: Running, verb: list[str], words: str) -> None:
    answer = hived(*verb)
    assert answer.code in (2, 4), answer
    assert words in refused(answer, answer.code)
    assert running.engine.all == []


def test_folder_that_is_no_text(
    hived: Hived, running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / BYTES).mkdir()
    monkeypatch.chdir(tmp_path / BYTES)
    line = refused(hived("submit", "--vc", "vision", "--", "pwd"))
    assert line.startswith(f"--cwd: '{tmp_path}/d\\udcff' is not UTF-8 text")
    assert "--cwd" in refused(hived("submit", "--vc", "vision", "--cwd", f"/{'x' * 5000}", "--", "pwd"))
    assert running.engine.all == []


def test_socket_that_is_of_no_use(hived: Hived, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left behind, has too long a path, or is another user's."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(nobody / "hived.sock"))
    monkeypatch.setenv("HIVED_RETRY_FOR", "0")
    assert "start one with: hived up" in refused(hived("ps"), 69)
    assert "start one with: hived up" in refused(hived("ps", "--state", nobody / ("x" * 200)), 69)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert "another user's" in refused(hived("ps"), 77)


def test_engine_on_its_way_back(hived: Hived, nobody: Path, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an engine was started again all verbs failed at once, in the middle of a script that submits."""
    running.engine.add()
    monkeypatch.setenv("HIVED_STATE", str(nobody))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(nobody / "hived.sock"))
    monkeypatch.setenv("HIVED_RETRY_FOR", "0.5s")
    noted, said = hived("ps").err.splitlines()
    assert noted == f"hived: no engine answers on {nobody}/hived.sock; trying for 0.5 s"
    assert said.endswith("; start one with: hived up")
    monkeypatch.setenv("HIVED_RETRY_FOR", "soon")
    assert refused(hived("ps")).startswith("HIVED_RETRY_FOR: 'soon' is no duration")
    monkeypatch.delenv("HIVED_RETRY_FOR")

    def comes_back(_: float) -> None:
        (nobody / "hived.sock").unlink(missing_ok=True)
        (nobody / "hived.sock").symlink_to(running.folder / "hived.sock")

    monkeypatch.setattr(time, "sleep", comes_back)
    answer = hived("ps")
    assert (answer.code, "train-1" in answer.out) == (0, True)
    assert answer.err == f"hived: no engine answers on {nobody}/hived.sock; trying for 10 s\n"


def test_engine_that_was_stopped_a_moment_ago(
    hived: Hived, nobody: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is started again in good order: verbs failed at once, and waited for one that was killed."""
    running.engine.add()
    monkeypatch.setenv("HIVED_STATE", str(nobody))
    (nobody / "engine.lock").touch()
    os.utime(nobody, (time.time() - 11, time.time() - 11))
    assert hived("ps").err.startswith(f"hived: no engine answers on {nobody}/hived.sock; start one")
    os.utime(nobody, (time.time() + 60, time.time() + 60))
    monkeypatch.setattr(time, "sleep", lambda _: (nobody / "hived.sock").symlink_to(running.folder / "hived.sock"))
    answer = hived("ps")
    assert (answer.code, "train-1" in answer.out) == (0, True)
    assert answer.err == f"hived: no engine answers on {nobody}/hived.sock; trying for 10 s\n"


def test_engine_that_is_silent(hived: Hived, nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was stopped kept everybody waiting without a word, for a minute."""
    noted = threading.Event()

    def note(text: str, *console: Console) -> None:
        console_note(text, *console)
        noted.set()

    monkeypatch.setattr(client, "note", note)
    monkeypatch.setattr(client, "_LATE_S", 0.1)
    with answering(http("200 OK", "application/json", b'{"jobs": [], "total": 0, "next": null}'), first=noted) as url:
        answer = hived("ps", "--engine", url)
    line = f"hived: {url}: the engine has not answered for 0.1 s; waiting"
    assert (answer.code, answer.err.splitlines().count(line)) == (0, 1), answer


def test_option_then_variable_then_home(
    hived: Hived, running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running.engine.add()
    monkeypatch.setenv("HIVED_STATE", str(tmp_path / "nothing"))
    assert hived("ps").code == 69
    assert "train-1" in hived("ps", "--state", running.folder).out
    monkeypatch.setenv("HIVED_ENGINE", "http://127.0.0.1:1")
    assert "http://127.0.0.1:1" in hived("ps").err
    assert "train-1" in hived("ps", "--state", running.folder).out, "what is said counts more than what is set"
    monkeypatch.delenv("HIVED_ENGINE")
    monkeypatch.delenv("HIVED_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "hived").symlink_to(running.folder)
    assert "train-1" in hived("ps").out
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".local" / "state").mkdir(parents=True)
    (tmp_path / ".local" / "state" / "hived").symlink_to(running.folder)
    assert "train-1" in hived("ps").out


def test_token_over_tcp(hived: Hived, running: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    running.engine.add()
    assert "token" in refused(hived("ps", "--engine", running.url), 77)
    monkeypatch.setenv("HIVED_TOKEN", "wrong")
    assert "token" in refused(hived("ps", "--engine", running.url), 77)
    monkeypatch.setenv("HIVED_TOKEN", TOKEN)
    monkeypatch.setenv("HIVED_ENGINE", running.url + "/")
    assert "train-1" in hived("ps").out
    monkeypatch.setenv("HIVED_TOKEN", "wrong")
    (tmp_path / "token").write_text(TOKEN + "\n", encoding="utf-8")
    assert "train-1" in hived("ps", "--token-file", tmp_path / "token").out
    assert hived("submit", "--token-file", tmp_path / "token", "--vc", "vision", "--", "x").code == 0


def test_no_proxy_is_asked(hived: Hived, engine: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the engine is told by the kernel whose job it is."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert hived("submit", "--vc", "vision", "--", "x").code == 0
    assert engine.users == [getpass.getuser()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--state", "x"], "one of them"),
        (["--token-file", "no-such-file"], "cannot be read"),
        (["--token-file", "."], "cannot be read"),
        (["--token-file", os.devnull], "is empty"),
    ],
)
def test_wrong_option_beside_an_address(hived: Hived, nobody: Path, options: list[str], words: str) -> None:
    assert words in refused(hived("ps", "--engine", "http://host:80", *options), 2)


def test_wrong_address(hived: Hived, nobody: Path) -> None:
    for url in (
        "localhost:8080",
        "ftp://host",
        "http://",
        "http://me:secret@host",
        "http://h:99999",
        "http://h/p?token=x",
    ):
        assert "http://host:port" in refused(hived("ps", "--engine", url), 2)


# -- what answers is no engine ----------------------------------------------------------------------------------------


@contextmanager
def answering(*answers: bytes, first: threading.Event | None = None) -> Iterator[str]:
    """A server that says the same to everybody, and hangs up; ``first``: what has to happen before."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            assert first is None or first.wait(30)
            for answer in answers:
                self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(30)


def http(status: str, kind: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    )
    return head.encode() + body


STRANGERS = {
    "a web page": http("200 OK", "text/html", b"<h1>It works!</h1>"),
    "a page that is not there": http("404 Not Found", "text/html", b"<h1>Not Found</h1>"),
    "other JSON": http("200 OK", "application/json", b'{"hello": "world"}'),
    "a list": http("200 OK", "application/json", b"[]"),
    "JSON with a field more": http("200 OK", "application/json", b'{"jobs": [], "total": 0, "next": null, "new": 1}'),
    "another error": http("500 Oops", "application/json", b'{"detail": "oops"}'),
    "an error that is none": http("500 Oops", "application/json", b'{"error": {"code": 5}}'),
    "cut-off JSON": http("200 OK", "application/json", b'{"jobs": ['),
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\nand more\r\n\r\n",
    "binary": bytes(range(256)) * 5,
    "wrong encoding": http("200 OK", "application/json", b"{}", "Content-Encoding: gzip\r\n"),
    "a redirect": http("302 Found", "text/html", b"", "Location: http://127.0.0.1:1/\r\n"),
}


def test_no_engine_of_this_version(hived: Hived, nobody: Path) -> None:
    for stranger in STRANGERS.values():
        with answering(stranger) as url:
            line = refused(hived("ps", "--engine", url), 69)
        assert line.startswith(f"what answers on {url} is no engine of this version")
        assert line.isprintable()


def test_engine_that_goes_away(hived: Hived, nobody: Path) -> None:
    with answering(b"") as url:
        assert "went away" in refused(hived("ps", "--engine", url), 69)
        assert "hived ps shows" in refused(hived("submit", "--engine", url, "--vc", "a", "--", "x"), 69)
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{") as url:
        refused(hived("ps", "--engine", url), 69)


@pytest.mark.parametrize("body", [b"event: event\ndata: {\n\n", b"event: event\ndata: {}\n\n"])
def test_event_that_is_none(hived: Hived, nobody: Path, body: bytes) -> None:
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body
    with answering(stream) as url, connect(url, None, None) as there:
        events = there.stream("/v1/events/stream")
        assert next(events) == ("open", None)
        with pytest.raises(UnavailableError, match="no engine of this version"):
            there.parsed(Event, next(events)[1])
        events.close()


EXIT_CODES = {
    "invalid": 2, "conflict": 2, "too_large": 2, "malformed": 2, "something_new": 2, "unsupported": 2,
    "never_fits": 3, "not_found": 4,
    "unavailable": 69, "too_many": 69, "bug": 70, "storage": 73, "forbidden": 77, "unauthorized": 77,
}  # fmt: skip


def test_error_of_the_engine(hived: Hived, nobody: Path) -> None:
    for code, exit_code in EXIT_CODES.items():
        body = b'{"error": {"code": "%s", "message": "it is \\u001b[31m so", "field": null}}' % code.encode()
        with answering(http(f"{STATUS.get(code, 418)} X", "application/json", body)) as url:
            assert refused(hived("ps", "--engine", url), exit_code) == r"it is \x1b[31m so"
