"""Whatever is wrong with what was given, or stops it: one clear line, and nothing half-written."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from .helpers import HEADER, HIVED, NODES, Hived, refused, tree

GOOD = ("simulate", "--spec", "spec.yaml", "--trace", "trace.csv", "--out", "out")


def line_of(hived: Hived, *arguments: object) -> str:
    """The one line of a command that is refused and changes nothing."""
    before = tree(Path())
    line = refused(hived(*arguments))
    assert tree(Path()) == before
    return line


def wrong_trace(hived: Hived, folder: Path, content: str) -> str:
    (folder / "trace.csv").write_text(HEADER + content, encoding="utf-8")
    line = line_of(hived, *GOOD)
    assert line.startswith("trace"), line
    return line


def test_wrong_trace(hived: Hived, folder: Path) -> None:
    line = wrong_trace(hived, folder, "j,a,0,-5,1,pass\n")
    assert [word for word in ("trace.csv:2", "duration_s", "-5", "0 or more") if word not in line] == []
    # a tenant without a virtual cluster is named with those that have one
    line = wrong_trace(hived, folder, "j,nobody,0,5,1,pass\nk,a,0,5,1,pass\n")
    assert [word for word in ("nobody", "spec.yaml", "a, b") if word not in line] == []
    # a thousand of them still make a line that can be read
    assert len(wrong_trace(hived, folder, "".join(f"j{n},someone-{n},0,5,1,pass\n" for n in range(1000)))) < 1000


@pytest.mark.parametrize(
    "verb",
    [
        ("simulate", "--spec", "spec.yaml", "--out", "out", "--trace"),
        ("trace", "describe"),
        ("simulate", "--trace", "trace.csv", "--out", "out", "--spec"),
        ("check",),
    ],
    ids=" ".join,
)
def test_no_file(hived: Hived, folder: Path, verb: tuple[str, ...]) -> None:
    for name in ("nothing", "."):
        line = line_of(hived, *verb, name)
        assert line.startswith(f"{name}: ")
        assert ": " in line.removeprefix(f"{name}: "), "what is wrong, and the way out"


def test_wrong_spec(hived: Hived, folder: Path) -> None:
    """Every mistake has a line, with its place."""
    (folder / "spec.yaml").write_text(NODES.replace("cellAddress", "cellAdress"), encoding="utf-8")
    for verb in (("check", "spec.yaml"), GOOD):
        line = line_of(hived, *verb)
        assert [word for word in ("spec.yaml:6", "cellAdress", "cellAddress") if word not in line] == []
    (folder / "spec.yaml").write_text(NODES.replace("cellNumber: 1", "cellNumber: one"), encoding="utf-8")
    answer = hived("check", "spec.yaml")
    assert (answer.code, answer.out) == (2, "")
    first, second = answer.err.removeprefix("hived: ").splitlines()
    assert first.startswith("spec.yaml:8: ")
    assert second.startswith("spec.yaml:9: ")


def test_results_are_not_touched(hived: Hived, folder: Path) -> None:
    assert hived(*GOOD, "--no-figures").code == 0
    before = {path: path.read_bytes() for path in (folder / "out").iterdir()}
    line = line_of(hived, *GOOD, "--no-figures")
    assert line.startswith("out: is not empty")
    assert "--overwrite" in line
    assert {path: path.read_bytes() for path in (folder / "out").iterdir()} == before


def test_overwriting_results(hived: Hived, folder: Path) -> None:
    assert hived(*GOOD).code == 0
    first = (folder / "out" / "jobs.csv").read_bytes()
    (folder / "out" / "notes.txt").write_text("mine", encoding="utf-8")
    assert hived(*GOOD, "--overwrite", "--scheme", "hived", "--no-figures").code == 0
    assert (folder / "out" / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert (folder / "out" / "jobs.csv").read_bytes() != first
    assert not list((folder / "out").glob("*.png"))


def test_overwriting_other_files(hived: Hived, folder: Path) -> None:
    # --overwrite --out /etc wrote there
    (folder / "etc").mkdir()
    for name in ("passwd", "summary.json"):  # one name that results have too makes no results of it
        (folder / "etc" / name).write_text("theirs", encoding="utf-8")
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        line = line_of(hived, *GOOD[:-1], "etc", "--overwrite", "--no-figures")
        assert line.startswith("etc: holds no earlier results that --overwrite could replace")
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "empty").mkdir()
    assert hived(*GOOD[:-1], "empty", "--overwrite", "--no-figures").code == 0


@pytest.mark.parametrize("out", ["trace.csv", "trace.csv/deeper", "/proc/nowhere/results", "/dev/null"])
def test_no_place_for_results(hived: Hived, folder: Path, out: str) -> None:
    line = line_of(hived, *GOOD[:-1], out)
    assert "--out" in line
    assert "[Errno" not in line


@pytest.mark.parametrize(
    ("option", "values", "words"),
    [
        ("--until", ["0", "-1", "nan", "inf", "1e308", "soon"], "--until"),
        ("--clock-compression", ["0", "-2", "nan", "inf", "1e-300"], "compress"),
        ("--tenant", ["nobody"], "nobody"),
        ("--window", ["70:80"], "no job is submitted on days 70:80: the trace has 40 jobs, submitted on days 0.00 to"),
        ("--window", ["3"], "DAY:DAY"),
        ("--sample", ["0.000001"], "a sample of 1e-06 with seed 1 has no job: the trace has 40 jobs"),
        ("--sample", ["4"], "--sample: must be at most 1.0, not 4"),
        ("--filter", ["gpus > 8"], "no job meets the filter 'gpus > 8': the trace has 40 jobs"),
        ("--filter", ["gpu > 8"], "unable to find column"),
        ("--seed", ["-1"], "--seed"),
        ("--jobs", ["0"], "--jobs"),
        ("--soft", ["1.5"], "--soft"),
        ("--bogus", ["x"], "--bogus"),
        # the words that there are, in any place of the line
        ("--scheme", ["anarchy"], ["--scheme", "private", "quota", "hived"]),
        ("--policy", ["lifo"], ["policy", "lifo", "yarn-cs", "fifo"]),
        ("--preempted", ["forget"], ["--preempted", "resume", "restart"]),
        ("--binding", ["loose"], ["--binding", "dynamic", "static"]),
    ],
)
def test_wrong_value_of_an_option(
    hived: Hived, folder: Path, option: str, values: list[str], words: str | list[str]
) -> None:
    for value in values:
        line = line_of(hived, *GOOD, option, value)
        assert [word for word in ([words] if isinstance(words, str) else words) if word not in line] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("trace", "generate", "--jobs", "5", "-o", "trace.csv"),
        ("trace", "generate", "--jobs", "5", "-o", "no/such/t.csv"),
        ("trace", "generate", "--jobs", "100000000000", "-o", "t.csv"),
        ("trace", "describe", "spec.yaml"),
        ("spec", "from-quotas", "--nodes", "3", "--quotas", "trace.csv"),
        ("spec", "from-quotas", "--nodes", "1", "--quotas", "quotas.csv"),
        ("spec", "from-quotas", "--nodes", "999999999999", "--quotas", "quotas.csv"),
        ("spec", "from-quotas", "--nodes", "4", "--gpus-per-node", "3", "--quotas", "quotas.csv"),
        ("spec", "from-quotas", "--nodes", "4", "--quotas", "quotas.csv", "-o", "spec.yaml"),
        ("spec", "from-quotas", "--nodes", "4", "--quotas", "quotas.csv", "-o", "no/such/spec.yaml"),
        ("spec", "from-demand", "--trace", "trace.csv"),
        ("spec", "from-demand", "--trace", "trace.csv", "--nodes", "1"),
        ("spec", "from-demand", "--trace", "trace.csv", "--nodes", "999999999999"),
        ("spec", "from-demand", "--trace", "trace.csv", "--nodes", "4", "--like", "spec.yaml"),
        ("spec", "from-demand", "--trace", "trace.csv", "--like", "spec.yaml", "--quotas", "quotas.csv"),
        ("spec", "from-demand", "--trace", "spec.yaml", "--nodes", "4"),
        ("spec", "from-demand", "--trace", "trace.csv", "--nodes", "4", "-o", "spec.yaml"),
        ("spec", "from-demand", "--trace", "trace.csv", "--nodes", "4", "-o", "no/such/spec.yaml"),
        ("simulate", "--nodes", "3", "--jobs", "5"),
    ],
    ids=" ".join,
)
def test_other_verbs(hived: Hived, folder: Path, arguments: tuple[str, ...]) -> None:
    (folder / "quotas.csv").write_text("tenant,quota_pct\na,50\nb,50\n", encoding="utf-8")
    line_of(hived, *arguments)


def test_names_in_messages(hived: Hived, folder: Path) -> None:
    """Nothing in a name is taken for a colour or an emoji."""
    for name in ("[red]x.yaml", ":x:.yaml", "[/bold].yaml"):
        assert line_of(hived, "check", name).startswith(f"{name}: ")


# -- Ctrl-C, a full disk, and a reader that leaves

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
    [("table", False), ("table", True), ("cluster", False), ("figures", True), ("summary", False), ("summary", True)],
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
