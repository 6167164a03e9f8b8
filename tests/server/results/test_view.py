"""``hived view`` as a user meets it: a link, pages behind it, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from hived.cli.view import view
from hived.errors import InputError
from tests.simulator.helpers import trace_text

from ...cli.helpers import HIVED
from .helpers import TWO_NODES, results


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two jobs under every scheme."""
    results(tmp_path, TWO_NODES, trace_text([("j", "a", 0, 10, 8), ("k/1", "b", 2, 10, 4)]))
    return tmp_path


@contextmanager
def serving(*arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its link."""
    with subprocess.Popen(
        [*HIVED, "view", *map(str, arguments)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], stop: signal.Signals) -> tuple[int, str]:
    """Exit code and what it said, once it was told to stop."""
    process.send_signal(stop)
    _, said = process.communicate(timeout=180)
    return process.returncode, said


def test_link_to_the_dashboard(folder: Path) -> None:
    """Ctrl-C ends it well."""
    with serving(folder, "--no-browser") as (process, link):
        assert link.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=link, trust_env=False, timeout=120) as client:
            assert "<!doctype html>" in client.get("/").text.lower()
            layout = client.get("/v1/dashboard/layout").json()
            assert [one["key"] for one in layout["views"]] == ["private yarn-cs", "quota yarn-cs", "hived yarn-cs"]
            asked = {"view": "hived yarn-cs", "at": "3"}
            picture = client.get("/v1/dashboard/picture", params=asked).json()
            assert [holder["id"] for holder in picture["holders"]] == ["j", "k/1"]
            assert client.get("/v1/dashboard/comparison").json()["outcomes"][2]["finished"] == 2
            assert client.get("/v1/dashboard/picture", params={"view": "none"}).status_code == 404
            assert client.get("/v1/dashboard/layout", headers={"Host": "evil.example"}).status_code == 403
            assert client.get("/v1/jobs").status_code == 404, "there is nothing but to look"
        code, said = ended(process, signal.SIGINT)
    assert code == 0
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("display", "arguments", "stop", "code"),
    [
        (":9", [], signal.SIGINT, 0),
        (":9", ["--no-browser"], signal.SIGINT, 0),
        ("", ["--listen", "localhost:0"], signal.SIGTERM, 143),
    ],
    ids=["opened", "not wanted", "no display"],
)
def test_browser_where_there_is_a_display(
    folder: Path, tmp_path: Path, display: str, arguments: list[str], stop: signal.Signals, code: int
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/opened"\n', encoding="utf-8")
    browser.chmod(0o755)
    with serving(folder, *arguments, BROWSER=str(browser), DISPLAY=display, WAYLAND_DISPLAY="") as (process, link):
        assert link.startswith("http://localhost:" if "--listen" in arguments else "http://127.0.0.1:")
        httpx.get(f"{link}healthz", trust_env=False, timeout=120)
        ending, said = ended(process, stop)
    assert ending == code
    assert "Traceback" not in said
    opened = tmp_path / "opened"
    assert (opened.read_text(encoding="utf-8").strip() if opened.exists() else None) == (None if arguments else link)


ADDRESS = r"--listen .*: give host and port"


@pytest.mark.parametrize(
    ("listen", "words"),
    [
        *((listen, ADDRESS) for listen in ("", "8080", "nowhere", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x")),
        *((listen, ADDRESS) for listen in ("::1:80", ":-1")),
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
