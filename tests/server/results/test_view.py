"""``hived view`` as a user meets it: a link, pages behind it, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from hived.cli.view import view
from hived.errors import InputError
from tests.simulator.helpers import trace_text

from .helpers import TWO_NODES, results

PROGRAM = (
    "import typer; from hived.cli.view import view; "
    "app = typer.Typer(pretty_exceptions_enable=False); app.command()(view); app()"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two jobs under every scheme."""
    results(tmp_path, TWO_NODES, trace_text([("j", "a", 0, 10, 8), ("k/1", "b", 2, 10, 4)]))
    return tmp_path


@contextmanager
def serving(*arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its link."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], text=True,
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


def test_the_link_leads_to_the_dashboard_and_ctrl_c_ends_it_well(folder: Path) -> None:
    with serving(folder, "--no-browser") as (process, link):
        assert link.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=link, trust_env=False) as client:
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


def test_it_ends_as_terminated_when_it_is(folder: Path) -> None:
    with serving(folder, "--no-browser", "--listen", "localhost:0") as (process, link):
        assert link.startswith("http://localhost:")
        code, said = ended(process, signal.SIGTERM)
    assert code == 143
    assert "Traceback" not in said


def test_a_browser_is_opened_where_there_is_a_display_and_only_there(folder: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/opened"\n', encoding="utf-8")
    browser.chmod(0o755)
    for display, arguments, opened in ((":9", [], True), (":9", ["--no-browser"], False), ("", [], False)):
        (tmp_path / "opened").unlink(missing_ok=True)
        with serving(folder, *arguments, BROWSER=str(browser), DISPLAY=display, WAYLAND_DISPLAY="") as (process, link):
            httpx.get(f"{link}healthz", trust_env=False)
            code, _ = ended(process, signal.SIGINT)
        assert code == 0
        assert (tmp_path / "opened").exists() == opened
        assert not opened or (tmp_path / "opened").read_text(encoding="utf-8").strip() == link


@pytest.mark.parametrize("listen", ["", "8080", "nowhere", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "::1:80", ":-1"])
def test_an_address_that_is_none_is_refused(folder: Path, listen: str) -> None:
    with pytest.raises(InputError, match=r"--listen .*: give host and port") as caught:
        view(folder, listen, True)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("listen", ["127.0.0.1:99999", "203.0.113.7:0"])
def test_an_address_that_is_not_ours_is_refused(folder: Path, listen: str) -> None:
    with pytest.raises(InputError):
        view(folder, listen, True)


def test_a_folder_without_results_is_refused_before_anything_listens(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no results") as caught:
        view(tmp_path, "127.0.0.1:0", True)
    assert caught.value.exit_code == 2


def test_help_has_an_example() -> None:
    app = typer.Typer()
    app.command()(view)
    said = CliRunner().invoke(app, ["--help"])
    assert said.exit_code == 0
    assert "Example: hived view results/" in " ".join(said.output.split())
