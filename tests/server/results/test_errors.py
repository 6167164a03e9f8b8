"""A folder that is no results, old, cut short, edited or mixed: one line with the file, and the way out."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hived.errors import InputError
from hived.server.results import ResultsSource
from hived.simulator.output import CHECKSUMS, FILES, checksums
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
def old(good: Path, tmp_path: Path) -> Path:
    """A copy to spoil, of a version that wrote no checksums."""
    return Path(shutil.copytree(good, tmp_path / "results"))


@pytest.fixture
def folder(old: Path) -> Path:
    """A copy to spoil, as ``hived simulate`` writes it now."""
    (old / CHECKSUMS).write_text(checksums(old), encoding="utf-8")
    return old


def objection(folder: Path) -> str:
    """The one line that refuses it."""
    with pytest.raises(InputError) as caught:
        ResultsSource(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert str(folder) in line
    return line.replace(f"{folder}/", "")


def edit(path: Path, row: int, number: int, value: str) -> None:
    """Another value in a row (1-based) without quotation marks before it."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    fields = lines[row - 1].split(",")
    fields[number] = value
    lines[row - 1] = ",".join(fields)
    path.write_text("".join(lines), encoding="utf-8")


def test_what_is_good_is_read(folder: Path) -> None:
    assert len(ResultsSource(folder).layout().views) == 3


def test_what_an_older_version_has_written_is_read_without_checksums(old: Path) -> None:
    assert len(ResultsSource(old).layout().views) == 3


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


def test_results_without_their_cluster_have_to_be_simulated_again(folder: Path) -> None:
    (folder / "cluster.json").unlink()
    line = objection(folder)
    assert "older hived" in line
    assert "simulate again" in line


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_short_anywhere_is_refused(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    after_a_row = content.rfind(b"\n", 0, len(content) - 1) + 1
    for end in (0, 10, len(content) // 2, after_a_row, len(content) - 1):
        (folder / name).write_bytes(content[:end])
        assert re.fullmatch(rf"{name}: is not as hived simulate wrote it; simulate again .*", objection(folder))


def test_a_file_that_was_edited_is_refused(folder: Path) -> None:
    edit(folder / "runs.csv", 3, 3, "0.5")
    assert objection(folder).startswith("runs.csv: is not as hived simulate wrote it")


@pytest.mark.parametrize("name", ["jobs.csv", "runs.csv", "summary.json"])
def test_files_of_two_simulations_are_not_mixed(folder: Path, tmp_path: Path, name: str) -> None:
    results(tmp_path / "other", TWO_NODES, trace_text([("x", "a", 0, 5, 8), ("y", "b", 0, 5, 8)]))
    shutil.copy(tmp_path / "other" / name, folder / name)
    assert objection(folder).startswith(f"{name}: is not as")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    assert name in objection(folder)


# Without checksums: what cannot be read is refused as clearly.


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[]", b"\x00\xff\xfe", b"a,b\n1,2\n"])
def test_other_content_is_refused(old: Path, name: str, content: bytes) -> None:
    (old / name).write_bytes(content)
    line = objection(old)
    assert line.startswith(name)
    assert "simulate again" in line


@pytest.mark.parametrize(
    ("name", "number", "value"),
    [
        ("jobs.csv", 0, "fifo"),
        ("jobs.csv", 3, "nobody"),
        ("jobs.csv", 4, "eight"),
        ("jobs.csv", 5, "nan"),
        ("jobs.csv", 11, "true,more\n"),
        ("runs.csv", 0, "fifo"),
        ("runs.csv", 2, "nobody"),
        ("runs.csv", 3, "NaN"),
        ("runs.csv", 5, "borrowed"),
        ("runs.csv", 6, "elsewhere:0\n"),
        ("runs.csv", 6, "a-node-0\n"),
        ("series.csv", 2, "x"),
        ("series.csv", 1, "fifo"),
    ],
)
def test_a_value_that_means_nothing_is_refused(old: Path, name: str, number: int, value: str) -> None:
    edit(old / name, 3, number, value)
    line = objection(old)
    assert line.startswith(f"{name}: is not what hived simulate writes (")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("cluster.json", lambda c: c["schemes"].pop("quota"), "quota"),
        ("cluster.json", lambda c: c["schemes"].update(hived="none"), "schemes.hived"),
        ("summary.json", lambda s: s["runs"].clear(), "runs"),
        ("summary.json", lambda s: s["runs"][0].update(utilization="high"), "runs.0.utilization"),
        ("summary.json", lambda s: s.pop("trace"), "trace"),
        ("summary.json", lambda s: next(iter(s["runs"][0]["tenants"].values())).pop("anomalies"), "anomalies"),
        ("cluster.json", lambda c: c["schemes"]["hived"][0].update(node_level=99), "node_level is one of the"),
    ],
)
def test_json_of_another_shape_is_refused(old: Path, name: str, change: Callable[[Any], object], words: str) -> None:
    plain = json.loads((old / name).read_text(encoding="utf-8"))
    change(plain)
    (old / name).write_text(json.dumps(plain), encoding="utf-8")
    line = objection(old)
    assert line.startswith(name)
    assert words in line


# What was once wrong.


def test_the_limit_of_the_csv_module_is_as_before_when_a_file_was_refused(old: Path) -> None:
    """It was raised for long placements, and a refusal left it so for everybody else in the process."""
    before = csv.field_size_limit()
    edit(old / "jobs.csv", 5, 4, "x")
    with pytest.raises(InputError) as caught:
        ResultsSource(old)
    assert csv.field_size_limit() == before, caught.value


def test_a_placement_longer_than_the_csv_module_takes_by_itself_is_read(tmp_path: Path) -> None:
    nodes = 8000
    source = unaudited(tmp_path, nodes_of_8(nodes, {"a": nodes}), ("wide", "a", 0, 10, nodes * 8))
    assert len(source.story("hived yarn-cs", "wide").stays[0].where) > csv.field_size_limit()
    assert source.picture("hived yarn-cs", 1).totals.guaranteed == nodes * 8
