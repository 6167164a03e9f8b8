"""A folder that is old, cut short, edited or mixed: one line with the file, its row, and the way out."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hived.errors import InputError
from hived.server.results import FILES, ResultsSource
from tests.simulator.helpers import nodes_of_8, trace_text

from .helpers import TWO_NODES, results, unaudited


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty jobs of two tenants, one of them too large for anything."""
    folder = tmp_path_factory.mktemp("good")
    rows = [(f"j{n}", "ab"[n % 2], n * 3, n * 7 % 19 + 1, [8, 4, 1][n % 3]) for n in range(60)]
    results(folder, TWO_NODES, trace_text([*rows, ("monster", "a", 200, 5, 64)]))
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(good, tmp_path / "results"))


def objection(folder: Path) -> str:
    """The one line that refuses it."""
    with pytest.raises(InputError) as caught:
        ResultsSource(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert str(folder) in line
    return line.replace(f"{folder}/", "")


def edit(path: Path, row: int, change: Callable[[str], str]) -> None:
    """Change a row of a file (1-based)."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[row - 1] = change(lines[row - 1])
    path.write_text("".join(lines), encoding="utf-8")


def field(number: int, value: str) -> Callable[[str], str]:
    """Another value in a row without quotation marks before it."""

    def change(line: str) -> str:
        fields = line.split(",")
        fields[number] = value
        return ",".join(fields)

    return change


def test_what_is_good_is_read(folder: Path) -> None:
    assert len(ResultsSource(folder).layout().views) == 3


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "is not there" in objection(tmp_path / "nothing")


def test_a_file_is_no_folder(folder: Path) -> None:
    with pytest.raises(InputError, match=r"jobs\.csv: is no folder; give the folder that hived simulate wrote"):
        ResultsSource(folder / "jobs.csv")


def test_an_empty_folder_holds_no_results(tmp_path: Path) -> None:
    assert "holds no results" in objection(tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_missing_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert name in objection(folder)


def test_results_of_an_older_version_have_to_be_simulated_again(folder: Path) -> None:
    (folder / "cluster.json").unlink()
    line = objection(folder)
    assert "older hived" in line
    assert "simulate again" in line


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[]", b"\x00\xff\xfe", b"a,b\n1,2\n"])
def test_other_content_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    line = objection(folder)
    assert line.startswith(name)
    assert "simulate again" in line


@pytest.mark.parametrize("name", ["jobs.csv", "runs.csv", "series.csv"])
def test_a_file_that_is_cut_short_anywhere_is_refused(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    after_a_row = content.rfind(b"\n", 0, len(content) - 1) + 1
    for end in (10, len(content) // 3, len(content) // 2, after_a_row, len(content) - 9, len(content) - 1):
        (folder / name).write_bytes(content[:end])
        assert name in objection(folder)


@pytest.mark.parametrize("name", ["jobs.csv", "runs.csv", "series.csv"])
def test_other_columns_are_refused(folder: Path, name: str) -> None:
    edit(folder / name, 1, lambda line: line.replace("policy", "rule"))
    assert objection(folder).startswith(f"{name}:1: its columns are 'scheme,rule,")


@pytest.mark.parametrize(
    ("number", "value", "words"),
    [
        (0, "fifo", "fifo yarn-cs is not among the runs"),
        (2, "j1", "'j1' has two rows"),
        (3, "nobody", "tenant 'nobody' is not in cluster.json"),
        (4, "0", "'0' is not a whole number"),
        (4, "eight", "'eight' is not a whole number"),
        (5, "nan", "'nan' is not a time"),
        (5, "-1", "'-1' is not a time"),
        (6, "1e3", "'1e3' is not a time"),
        (6, "٣", "is not a time"),
        (7, "inf", "'inf' is not a time"),
        (8, "0", "do not agree"),
        (9, "1000000", "do not agree"),
        (10, "-2", "'-2' is not a whole number"),
        (11, "maybe\n", "finished is 'maybe"),
        (11, "false\n", "finished is 'false'"),
        (11, "true,more\n", "has 13 of 12 fields"),
    ],
)
def test_a_wrong_field_of_a_job_is_named_with_its_row(folder: Path, number: int, value: str, words: str) -> None:
    edit(folder / "jobs.csv", 5, field(number, value))
    line = objection(folder)
    assert line.startswith("jobs.csv:5: ")
    assert words in line


def test_jobs_that_differ_from_run_to_run_are_refused(folder: Path) -> None:
    edit(folder / "jobs.csv", 70, field(4, "3"))
    assert objection(folder).startswith("jobs.csv:70: job 'j7' is not as in the run before")


@pytest.mark.parametrize(
    ("number", "value", "words"),
    [
        (0, "fifo", "fifo yarn-cs"),
        (2, "nobody", "job 'nobody'"),
        (3, "NaN", "'NaN' is not a time"),
        (3, "0", "job"),
        (4, "0", "ends at 0"),
        (4, "99999", "job"),
        (5, "borrowed", "'borrowed'"),
        (6, "elsewhere:0\n", "has no 'elsewhere:0'"),
        (6, "a-node-0:9\n", "has no 'a-node-0:9'"),
        (6, "a-node-0:x\n", "'x' is not a whole number"),
        (6, "a-node-0\n", "is not a whole number"),
        (6, "\n", "is not a whole number"),
        (6, '"a-node-0:0,0"\n', "has no 'a-node-0:0,0'"),
        (6, "a-node-0:0;a-node-0:1\n", "has a node twice"),
    ],
)
def test_a_wrong_field_of_a_run_is_named_with_its_row(folder: Path, number: int, value: str, words: str) -> None:
    lines = (folder / "runs.csv").read_text(encoding="utf-8").splitlines()
    row = next(n for n, line in enumerate(lines, 1) if ",guaranteed,a-node-0:" in line)  # one GPU: no quotation marks
    edit(folder / "runs.csv", row, field(number, value))
    line = objection(folder)
    assert line.startswith(f"runs.csv:{row}: ")
    assert words in line


def test_a_gpu_that_two_jobs_hold_at_once_is_refused(folder: Path) -> None:
    def swapped(line: str) -> str:
        return line.replace("b-node-0", "a-node-0")

    lines = (folder / "runs.csv").read_text(encoding="utf-8").splitlines()
    for row, line in enumerate(lines, 1):
        if "b-node-0" in line:
            edit(folder / "runs.csv", row, swapped)
    assert "is on GPUs that another job holds (private yarn-cs)" in objection(folder)


@pytest.mark.parametrize(("number", "by"), [(3, 0.5), (4, -0.5)])
def test_a_run_that_starts_or_ends_otherwise_than_its_job_is_refused(folder: Path, number: int, by: float) -> None:
    edit(folder / "runs.csv", 2, lambda line: field(number, f"{float(line.split(',')[number]) + by:g}")(line))
    assert "does not start and finish here as it does in jobs.csv" in objection(folder)


def test_a_run_that_is_missing_is_noticed(folder: Path) -> None:
    lines = (folder / "runs.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "runs.csv").write_text("".join(lines[:-1]), encoding="utf-8")
    line = objection(folder)
    assert line.startswith("runs.csv: job ")
    assert "cut short" in line


@pytest.mark.parametrize(
    ("number", "value", "words"),
    [(2, "x", "'x' is not a time"), (3, "much", "much"), (4, "nan", "no number"), (5, "inf", "no number"),
     (2, "0", "not in order of time"), (1, "fifo", "private fifo")],
)  # fmt: skip
def test_a_wrong_field_of_the_series_is_named_with_its_row(folder: Path, number: int, value: str, words: str) -> None:
    edit(folder / "series.csv", 4, field(number, value))
    line = objection(folder)
    assert line.startswith("series.csv:4: ")
    assert words in line


def spoil(folder: Path, name: str, change: Callable[[Any], object]) -> str:
    """The objection to a JSON file after a change."""
    plain = json.loads((folder / name).read_text(encoding="utf-8"))
    change(plain)
    (folder / name).write_text(json.dumps(plain), encoding="utf-8")
    line = objection(folder)
    assert line.startswith(name)
    return line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["virtual_clusters"].pop(), "other virtual clusters"),
        (lambda c: c["virtual_clusters"].append(c["virtual_clusters"][0]), "twice"),
        (lambda c: c["virtual_clusters"][0]["reserved"][0].update(gpus=-8), "reserved"),
        (lambda c: c["virtual_clusters"][0]["reserved"][0].update(chain=7), "a chain that is not there"),
        (lambda c: c["schemes"].pop("quota"), "no cluster for the scheme 'quota'"),
        (lambda c: c["schemes"]["hived"][0].update(node_level=9), "levels of chain 'NODE'"),
        (lambda c: c["schemes"]["hived"][0]["levels"][1].update(gpus=3), "levels of chain 'NODE'"),
        (lambda c: c["schemes"]["hived"][0]["levels"][1].update(gpus=0), "levels of chain 'NODE'"),
        (lambda c: c["schemes"]["hived"][0].update(levels=[]), "levels of chain 'NODE'"),
        (lambda c: c["schemes"]["hived"][0].update(node_level=2), "nodes of chain 'NODE'"),
        (lambda c: c["schemes"]["hived"][0].update(devices={"0": [1, 2]}), "devices of chain 'NODE'"),
        (lambda c: c["schemes"]["hived"][0].update(devices={"9": list(range(8))}), "devices of chain 'NODE'"),
        (lambda c: c["schemes"]["hived"][0].update(nodes=["n0", "n0"]), "two nodes of one name"),
        (lambda c: c["schemes"]["hived"][0]["levels"][3].update(gpus=2**40), "chain 'NODE'"),
        (lambda c: c["virtual_clusters"][0]["reserved"][0].update(number=10**30), "reserved"),
        (lambda c: c["schemes"].update(hived="none"), "schemes.hived"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(folder: Path, change: Callable[[Any], object], words: str) -> None:
    assert words in spoil(folder, "cluster.json", change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["runs"][0].update(finished=3), "3 jobs finished"),
        (lambda s: s["runs"].append(s["runs"][0]), "a run twice"),
        (lambda s: s["runs"].clear(), "runs"),
        (lambda s: s["runs"][0].update(makespan_s=-1), "runs.0.makespan_s"),
        (lambda s: s["runs"][0].update(makespan_s=1e300), "runs.0.makespan_s"),
        (lambda s: s["runs"][0].update(utilization="high"), "runs.0.utilization"),
        (lambda s: s["runs"][0].update(utilization=float("nan")), "runs.0.utilization"),
        (lambda s: s.pop("trace"), "trace"),
    ],
)
def test_a_summary_that_makes_no_sense_is_refused(folder: Path, change: Callable[[Any], object], words: str) -> None:
    assert words in spoil(folder, "summary.json", change)


def test_files_of_two_simulations_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    results(tmp_path / "other", TWO_NODES, trace_text([("x", "a", 0, 5, 8), ("y", "b", 0, 5, 8)]))
    for name in ("jobs.csv", "runs.csv", "summary.json"):
        mixed = Path(shutil.copytree(folder, tmp_path / f"mixed-{name}"))
        shutil.copy(tmp_path / "other" / name, mixed / name)
        objection(mixed)


# What was once wrong.


def test_the_limit_of_the_csv_module_is_as_before_when_a_file_was_refused(folder: Path) -> None:
    """It was raised for long placements, and a refusal left it so for everybody else in the process."""
    before = csv.field_size_limit()
    edit(folder / "jobs.csv", 5, field(4, "0"))
    with pytest.raises(InputError) as caught:
        ResultsSource(folder)
    assert csv.field_size_limit() == before, caught.value


def test_a_placement_longer_than_the_csv_module_takes_by_itself_is_read(tmp_path: Path) -> None:
    nodes = 8000
    source = unaudited(tmp_path, nodes_of_8(nodes, {"a": nodes}), ("wide", "a", 0, 10, nodes * 8))
    assert len(source.story("hived yarn-cs", "wide").stays[0].where) > csv.field_size_limit()
    assert source.picture("hived yarn-cs", 1).totals.guaranteed == nodes * 8
