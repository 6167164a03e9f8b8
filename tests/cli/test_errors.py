"""Whatever is wrong with what was given: one clear line, exit code 2, and nothing half-written."""

from __future__ import annotations

from pathlib import Path

import pytest

from .helpers import HEADER, NODES, Hived, tree

GOOD = ("simulate", "--spec", "spec.yaml", "--trace", "trace.csv", "--out", "out")


def refused(hived: Hived, *arguments: object) -> str:
    """The one line of a command that is refused and changes nothing."""
    before = tree(Path())
    answer = hived(*arguments)
    assert answer.code == 2, answer
    assert answer.out == ""
    assert tree(Path()) == before
    assert answer.err.endswith("\n")
    assert answer.err.count("\n") == 1, answer.err
    assert answer.err.startswith("hived: ")
    return answer.err.removeprefix("hived: ").rstrip("\n")


def refused_trace(hived: Hived, folder: Path, content: str | bytes) -> str:
    (folder / "trace.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused(hived, *GOOD)
    assert line.startswith("trace"), line
    return line


def test_a_wrong_row_is_named(hived: Hived, folder: Path) -> None:
    line = refused_trace(hived, folder, HEADER + "j,a,0,-5,1,pass\n")
    assert [word for word in ("trace.csv:2", "duration_s", "-5", "0 or more") if word not in line] == []


@pytest.mark.parametrize("name", ["nothing.csv", "."])
def test_a_trace_that_is_no_file_is_refused(hived: Hived, folder: Path, name: str) -> None:
    for verb in (("simulate", "--spec", "spec.yaml", "--out", "out", "--trace"), ("trace", "describe")):
        line = refused(hived, *verb, name)
        assert line.startswith(name)
        assert ": " in line.removeprefix(f"{name}: "), "what is wrong, and the way out"


def test_a_tenant_without_a_virtual_cluster_is_named_with_those_that_have_one(hived: Hived, folder: Path) -> None:
    line = refused_trace(hived, folder, HEADER + "j,nobody,0,5,1,pass\n" + "k,a,0,5,1,pass\n")
    assert "nobody" in line
    assert "spec.yaml" in line
    assert "a, b" in line


def test_a_thousand_unknown_tenants_still_make_a_line_that_can_be_read(hived: Hived, folder: Path) -> None:
    rows = "".join(f"j{n},someone-{n},0,5,1,pass\n" for n in range(1000))
    assert len(refused_trace(hived, folder, HEADER + rows)) < 1000


def test_a_wrong_spec_is_refused_with_file_and_line(hived: Hived, folder: Path) -> None:
    (folder / "spec.yaml").write_text(NODES.replace("cellAddress", "cellAdress"), encoding="utf-8")
    for verb in (("check", "spec.yaml"), GOOD):
        line = refused(hived, *verb)
        assert [word for word in ("spec.yaml:6", "cellAdress", "cellAddress") if word not in line] == []


def test_every_mistake_of_a_spec_has_a_line(hived: Hived, folder: Path) -> None:
    (folder / "spec.yaml").write_text(NODES.replace("cellNumber: 1", "cellNumber: one"), encoding="utf-8")
    answer = hived("check", "spec.yaml")
    assert (answer.code, answer.out) == (2, "")
    first, second = answer.err.removeprefix("hived: ").splitlines()
    assert first.startswith("spec.yaml:8: ")
    assert second.startswith("spec.yaml:9: ")


@pytest.mark.parametrize("name", ["nothing.yaml", "."])
def test_a_spec_that_is_no_file_is_refused_with_the_way_out(hived: Hived, folder: Path, name: str) -> None:
    for verb in (("simulate", "--trace", "trace.csv", "--out", "out", "--spec"), ("check",)):
        assert refused(hived, *verb, name).startswith(f"{name}: ")


def test_a_folder_that_holds_results_is_not_touched(hived: Hived, folder: Path) -> None:
    assert hived(*GOOD, "--no-figures").code == 0
    before = {path: path.read_bytes() for path in (folder / "out").iterdir()}
    line = refused(hived, *GOOD, "--no-figures")
    assert line.startswith("out: is not empty")
    assert "--overwrite" in line
    assert {path: path.read_bytes() for path in (folder / "out").iterdir()} == before


def test_results_are_overwritten_when_asked_and_other_files_stay(hived: Hived, folder: Path) -> None:
    assert hived(*GOOD).code == 0
    first = (folder / "out" / "jobs.csv").read_bytes()
    (folder / "out" / "notes.txt").write_text("mine", encoding="utf-8")
    assert hived(*GOOD, "--overwrite", "--scheme", "hived", "--no-figures").code == 0
    assert (folder / "out" / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert (folder / "out" / "jobs.csv").read_bytes() != first
    assert not list((folder / "out").glob("*.png"))


def test_a_folder_without_results_is_not_overwritten(hived: Hived, folder: Path) -> None:
    # --overwrite --out /etc wrote there
    (folder / "etc").mkdir()
    for name in ("passwd", "summary.json"):  # one name that results have too makes no results of it
        (folder / "etc" / name).write_text("theirs", encoding="utf-8")
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        line = refused(hived, *GOOD[:-1], "etc", "--overwrite", "--no-figures")
        assert line.startswith("etc: holds no earlier results that --overwrite could replace")
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "empty").mkdir()
    assert hived(*GOOD[:-1], "empty", "--overwrite", "--no-figures").code == 0


@pytest.mark.parametrize("out", ["trace.csv", "trace.csv/deeper", "/proc/nowhere/results", "/dev/null"])
def test_a_place_that_cannot_hold_results_is_refused_before_the_work(hived: Hived, folder: Path, out: str) -> None:
    line = refused(hived, *GOOD[:-1], out)
    assert "--out" in line
    assert "[Errno" not in line


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--until", "0", "--until"),
        ("--until", "-1", "--until"),
        ("--until", "nan", "--until"),
        ("--until", "inf", "--until"),
        ("--until", "1e308", "--until"),
        ("--clock-compression", "0", "compress"),
        ("--clock-compression", "-2", "compress"),
        ("--clock-compression", "nan", "compress"),
        ("--clock-compression", "inf", "compress"),
        ("--clock-compression", "1e-300", "compress"),
        ("--tenant", "nobody", "nobody"),
        ("--window", "70:80", "no job is submitted on days 70:80: the trace has 40 jobs, submitted on days 0.00 to"),
        ("--window", "3", "DAY:DAY"),
        ("--sample", "0.000001", "a sample of 1e-06 with seed 1 has no job: the trace has 40 jobs"),
        ("--sample", "4", "sample 4: give the share"),
        ("--filter", "gpus > 8", "no job meets the filter 'gpus > 8': the trace has 40 jobs"),
        ("--filter", "gpu > 8", "unable to find column"),
    ],
)
def test_an_option_with_a_wrong_value_is_refused(
    hived: Hived, folder: Path, option: str, value: str, words: str
) -> None:
    assert words in refused(hived, *GOOD, option, value)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--scheme", "anarchy", ["--scheme", "private", "quota", "hived"]),
        ("--policy", "lifo", ["policy", "lifo", "yarn-cs", "fifo"]),
        ("--preempted", "forget", ["--preempted", "resume", "restart"]),
        ("--until", "soon", ["--until"]),
        ("--seed", "-1", ["--seed"]),
        ("--jobs", "0", ["--jobs"]),
        ("--binding", "loose", ["--binding", "dynamic", "static"]),
        ("--soft", "1.5", ["--soft"]),
        ("--bogus", "x", ["--bogus"]),
    ],
)
def test_an_option_that_cannot_be_understood_is_refused_in_one_line_too(
    hived: Hived, folder: Path, option: str, value: str, words: list[str]
) -> None:
    line = refused(hived, *GOOD, option, value)
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("trace", "generate", "-o", "trace.csv"),
        ("trace", "generate", "-o", "no/such/t.csv"),
        ("trace", "generate", "-o", "trace.csv/t.csv"),
        ("trace", "generate", "--jobs", "100000000000", "-o", "t.csv"),
        ("trace", "generate", "--days", "100000000000", "-o", "t.csv"),
        ("trace", "describe", "spec.yaml"),
        ("spec", "from-quotas", "--nodes", "3", "--quotas", "trace.csv"),
        ("spec", "from-quotas", "--nodes", "3", "--quotas", "nothing.csv"),
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
        ("spec", "from-demand", "--trace", "trace.csv", "--like", "nothing.yaml"),
        ("spec", "from-demand", "--trace", "spec.yaml", "--nodes", "4"),
        ("spec", "from-demand", "--trace", "nothing.csv", "--nodes", "4"),
        ("spec", "from-demand", "--trace", "trace.csv", "--nodes", "4", "--quotas", "nothing.csv"),
        ("spec", "from-demand", "--trace", "trace.csv", "--nodes", "4", "-o", "spec.yaml"),
        ("spec", "from-demand", "--trace", "trace.csv", "--nodes", "4", "-o", "no/such/spec.yaml"),
        ("simulate", "--nodes", "3", "--jobs", "5"),
    ],
    ids=" ".join,
)
def test_other_verbs_refuse_the_same_way(hived: Hived, folder: Path, arguments: tuple[str, ...]) -> None:
    (folder / "quotas.csv").write_text("tenant,quota_pct\na,50\nb,50\n", encoding="utf-8")
    refused(hived, *arguments)


def test_names_stay_as_they_are_in_messages(hived: Hived, folder: Path) -> None:
    """Nothing in a name is taken for a colour or an emoji."""
    for name in ("[red]x.yaml", ":x:.yaml", "[/bold].yaml"):
        assert refused(hived, "check", name).startswith(f"{name}: ")
