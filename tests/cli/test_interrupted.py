"""Ctrl-C, and a reader that leaves: no traceback, and nothing half-written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from .helpers import HEADER, HIVED, Hived, tree

LONG = ["simulate", "--jobs", "60000", "--days", "20", "--out", "deep/out"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_stopped_simulation_leaves_nothing(tmp_path: Path, stop: signal.Signals) -> None:
    """Stopped while it simulates: its progress has been seen."""
    environment = {**os.environ, "FORCE_COLOR": "1", "TTY_INTERACTIVE": "1", "COLUMNS": "120"}
    process = subprocess.Popen(
        [*HIVED, *LONG], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    seen = ""
    while "private yarn-cs" not in seen:
        letter = process.stderr.read(1)
        assert letter, f"ended before it could be stopped: {seen}"
        seen += letter
    process.send_signal(stop)
    out, err = process.communicate(timeout=120)
    assert process.returncode in (130, -stop, 128 + stop)
    assert "Traceback" not in seen + err
    assert out == ""
    assert tree(tmp_path) == []


@pytest.mark.parametrize(
    ("step", "full"),
    [("jobs", False), ("runs", True), ("cluster", False), ("figures", True), ("summary", False), ("summary", True)],
)
def test_nothing_is_half_written(
    hived: Hived, folder: Path, monkeypatch: pytest.MonkeyPatch, step: str, full: bool
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if full else KeyboardInterrupt

    monkeypatch.setattr(f"hived.simulator.study.write_{step}", fails)
    before = tree(folder)
    drawn = () if step == "figures" else ("--no-figures",)
    answer = hived("simulate", "--spec", "spec.yaml", "--trace", "trace.csv", "--out", "out", *drawn)
    assert answer.code == (2 if full else 130)
    if full:
        assert answer.err.splitlines()[-1].startswith("hived: out: cannot be written (No space left on device)")
    assert tree(folder) == before


def test_reader_that_leaves_early(tmp_path: Path) -> None:
    rows = "".join(f"j{n},tenant-{n},{n},5,1,pass\n" for n in range(1500))
    (tmp_path / "t.csv").write_text(HEADER + rows, encoding="utf-8")
    process = subprocess.Popen(
        [*HIVED, "trace", "describe", "t.csv"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=120)
    assert said == ""
    assert process.returncode in (0, 141, -signal.SIGPIPE)


@pytest.mark.parametrize("stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_stop_while_kubernetes_is_awaited(folder: Path, stop: signal.Signals) -> None:
    """It went on for the rest of its fifteen seconds, and then failed for want of an API server."""
    (folder / "kubeconfig").write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], "
        "clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {token: t}}]}"
    )
    command = ["serve", "kubernetes", "--spec", "spec.yaml", "--kubeconfig", "kubeconfig", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*HIVED, *command], cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    while "tried again for" not in line:
        assert line, "it has ended before it could be stopped"
        line = process.stderr.readline()
    process.send_signal(stop)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Traceback" not in err
    assert "stopping, before it has started" in err
