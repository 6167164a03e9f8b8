"""``hived view`` as a user meets it: a link, pages behind it, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import httpx
import pytest

from hived.cli.view import view
from hived.errors import InputError
from tests.simulator.helpers import trace_text

from ...cli.helpers import HIVED, call
from .helpers import TWO_NODES, results


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two jobs under every scheme."""
    results(tmp_path, TWO_NODES, trace_text([("j", "a", 0, 10, 8), ("k/1", "b", 2, 10, 4)]))
    return tmp_path


def test_link_to_the_dashboard(folder: Path) -> None:
    """Ctrl-C ends it well."""
    with subprocess.Popen(
        [*HIVED, "sim", "view", str(folder), "--no-browser"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            link = process.stdout.readline().strip()
            assert link.startswith("http://127.0.0.1:")
            with httpx.Client(base_url=link, trust_env=False, timeout=120) as client:
                look_at(client)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in said


def look_at(client: httpx.Client) -> None:
    """What is behind the link."""
    assert "<!doctype html>" in client.get("/").text.lower()
    layout = client.get("/v1/dashboard/layout").json()
    assert [one["key"] for one in layout["views"]] == ["private yarn-cs", "quota yarn-cs", "hived yarn-cs"]
    picture = client.get("/v1/dashboard/picture", params={"view": "hived yarn-cs", "at": "3"}).json()
    assert [holder["id"] for holder in picture["holders"]] == ["j", "k/1"]
    assert client.get("/v1/dashboard/comparison").json()["outcomes"][2]["finished"] == 2
    assert client.get("/v1/dashboard/picture", params={"view": "none"}).status_code == 404
    assert client.get("/v1/dashboard/layout", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/v1/jobs").status_code == 404, "there is nothing but to look"


@pytest.mark.parametrize(
    ("display", "arguments", "code"),
    [
        ({"DISPLAY": ":9"}, [], 0),
        ({"WAYLAND_DISPLAY": "w"}, [], 0),
        ({"DISPLAY": ":9"}, ["--no-browser"], 0),
        ({}, ["--listen", "localhost:0"], 143),
    ],
    ids=["X", "Wayland", "not wanted", "no display"],
)
def test_browser_where_there_is_a_display(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    display: dict[str, str],
    arguments: list[str],
    code: int,
) -> None:
    async def told(code: int) -> int:
        return code

    opened: list[str] = []
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, display.get(name, ""))
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("hived.cli.view.exit_signal", lambda: told(code))
    answer = call(capsys, "sim", "view", folder, *arguments)
    assert answer.code == code
    link = answer.out.strip()
    assert link.startswith("http://localhost:" if "--listen" in arguments else "http://127.0.0.1:")
    assert opened == ([] if arguments else [link])


ADDRESS = r"--listen .*: give host and port"


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        *((listen, ADDRESS) for listen in ("", "8080", "nowhere", "127.0.0.1:", "127.0.0.1:x", "::1:80", ":-1")),
        ("127.0.0.1:99999", "a port is a number"),
        ("203.0.113.7:0", "cannot listen there"),
    ],
)
def test_wrong_address(folder: Path, listen: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        view(folder, listen, True)
    assert caught.value.exit_code == 2


def test_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no results") as caught:
        view(tmp_path, "127.0.0.1:0", True)
    assert caught.value.exit_code == 2
