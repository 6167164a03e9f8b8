"""``hived up`` as a new user has it: the demo, the errors, the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest


def hived(*arguments: str, folder: Path, **more: str) -> subprocess.Popen[str]:
    """The command, with nothing of the environment that could lead it elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HIVED_", "XDG_"))}
    environment = {**kept, "HOME": str(folder), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", **more}
    return subprocess.Popen(
        [sys.executable, "-m", "hived", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=folder,
    )


def refused(*arguments: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of a command that ends by itself."""
    process = hived(*arguments, folder=folder)
    text, _ = process.communicate(timeout=60)
    return process.returncode, text


def test_the_demo_shows_a_preemption_and_an_explained_wait_and_leaves_nothing(tmp_path: Path) -> None:
    process = hived("up", "--demo", folder=tmp_path)
    assert process.stdout is not None
    told = ""
    deadline = time.monotonic() + 120
    try:
        for line in process.stdout:
            told += line
            seen = ["runs on demo GPUs" in told, "preempted by resnet" in told, "waits: VC vision has" in told]
            if all(seen) or time.monotonic() > deadline:
                break
        assert all(seen), told
        link = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", told)
        assert link is not None, told
        with httpx.Client(follow_redirects=True) as browser:
            page = browser.get(link.group())
            assert page.status_code == 200
            assert "text/html" in page.headers["content-type"]
            assert "token" not in str(page.url)
            layout = browser.get(str(page.url) + "v1/dashboard/layout").json()
        assert [vc["name"] for vc in layout["vcs"]] == ["vision", "speech", "research"]
        assert layout["synthetic"]
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, told + rest
    assert "hived is down" in rest
    assert not list(tmp_path.glob("hived-demo-*"))
    assert not [pid for pid in _with_in_environment(f"TMPDIR={tmp_path}") if pid != os.getpid()]


def test_the_garbage_collector_leaves_what_is_there_at_the_start_alone(tmp_path: Path) -> None:
    at_the_end = (
        "import atexit, gc; atexit.register(lambda: print('frozen', gc.get_freeze_count(), gc.get_threshold()))"
    )
    (tmp_path / "sitecustomize.py").write_text(at_the_end, encoding="utf-8")
    process = hived(
        "up", "--devices", "2", "--state", str(tmp_path / "state"), folder=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert process.stdout is not None
    told = ""
    while "Ctrl-C" not in told:
        told += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    frozen = re.search(r"frozen (\d+) \((\d+),", rest)
    assert frozen is not None, rest
    assert int(frozen.group(1)) > 10_000, "objects that are never looked through again"
    assert int(frozen.group(2)) > 700, "Python's own threshold looks far too often"


def test_jobs_outlive_the_engine_and_the_next_one_has_them(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path / "state"))
    first = hived("up", "--devices", "2", "-q", *state, folder=tmp_path)
    _wait_for(tmp_path / "state" / "hived.sock", first)
    code, text = refused("submit", *state, "--vc", "default", "--gpus", "2", "--", "sleep", "300", folder=tmp_path)
    assert code == 0, text
    first.send_signal(signal.SIGTERM)
    text, _ = first.communicate(timeout=30)
    assert first.returncode == 143
    assert "1 running job" in text
    second = hived("up", "--devices", "2", "-q", *state, folder=tmp_path)
    try:
        _wait_for(tmp_path / "state" / "hived.sock", second)
        code, text = refused("ps", *state, folder=tmp_path)
        assert code == 0
        assert "sleep-1" in text
        assert "running" in text
        code, text = refused("cancel", *state, "sleep", folder=tmp_path)
        assert code == 0, text
        code, text = refused("wait", *state, "--timeout", "30s", "1", folder=tmp_path)
        assert "cancelled" in text
    finally:
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=30)
    assert second.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up"], ["no GPUs found", "--devices 8", "--demo"]),
        (["up", "--demo", "--devices", "4"], ["--demo brings its own cluster"]),
        (["up", "spec.yaml", "--devices", "4"], ["not both"]),
        (["up", "spec.yaml", "--vc", "a=1"], ["virtualClusters"]),
        (["up", "none.yaml", "--simulated"], ["none.yaml"]),
        (["up", "--devices", "4", "--vc", "a"], ["--vc a", "vision=4"]),
        (["up", "--devices", "4", "--vc", os.fsdecode(b"\xff=1")], ["--vc", "vision=4"]),
        (["up", "--devices", "4", "--vc", "a=0"], ["a=0", "at least 1"]),
        (["up", "--devices", "4", "--vc", "a=1", "--vc", "a=1"], ["given twice"]),
        (["up", "--devices", "4", "--vc", "a=3", "--vc", "b=2"], ["5 GPUs are shared out", "there are 4"]),
        (["up", "--devices", "4", "--listen", "8080"], ["--listen 8080", "127.0.0.1:8080"]),
        (["up", "--devices", "4", "--listen", "no.such.host.invalid:1"], ["no.such.host.invalid"]),
        (["up", "--devices", "4", "--group", "no-such-group"], ["no-such-group"]),
    ],
)
def test_what_cannot_be_is_one_clear_error(arguments: list[str], words: list[str], tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("physicalCluster: {}\n")
    code, text = refused(*arguments, "--state", str(tmp_path / "state"), folder=tmp_path)
    assert code == 2, text
    assert "Traceback" not in text
    for word in words:
        assert word in text, text


def test_a_folder_that_cannot_be_written_is_refused_loudly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, text = refused("up", "--devices", "2", "--state", str(tmp_path / "file"), folder=tmp_path)
    assert code == 73
    assert "cannot be written" in text


def test_two_engines_do_not_share_a_folder(tmp_path: Path) -> None:
    first = hived("up", "--devices", "2", "-q", "--state", str(tmp_path / "state"), folder=tmp_path)
    try:
        _wait_for(tmp_path / "state" / "hived.sock", first)
        code, text = refused("up", "--devices", "2", "--state", str(tmp_path / "state"), folder=tmp_path)
        assert code == 2
        assert f"pid {first.pid}" in text
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)
    assert first.returncode == 0


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _with_in_environment(text: str) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if text.encode() in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
    return found
