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


def test_no_results(folder: Path, tmp_path: Path) -> None:
    """But for good ones, with checksums, and of an older version without them."""
    assert len(ResultsSource(folder).layout().views) == 3
    (folder / CHECKSUMS).unlink()
    assert len(ResultsSource(folder).layout().views) == 3
    assert "is not there" in objection(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "holds no results" in objection(tmp_path / "empty")
    with pytest.raises(InputError, match=r"jobs\.csv: is no folder; give the folder that hived simulate wrote"):
        ResultsSource(folder / "jobs.csv")
    (folder / "cluster.json").unlink()
    line = objection(folder)
    assert "older hived" in line
    assert "simulate again" in line


@pytest.mark.parametrize("name", FILES)
def test_file_that_is_not_whole(folder: Path, name: str) -> None:
    """Cut short, missing, or a folder."""
    content = (folder / name).read_bytes()
    after_a_row = content.rfind(b"\n", 0, len(content) - 1) + 1
    for end in (0, 10, len(content) // 2, after_a_row, len(content) - 1):
        (folder / name).write_bytes(content[:end])
        assert re.fullmatch(rf"{name}: is not as hived simulate wrote it; simulate again .*", objection(folder))
    (folder / name).unlink()
    assert name in objection(folder)
    (folder / name).mkdir()
    assert name in objection(folder)


@pytest.mark.parametrize("name", ["jobs.csv", "runs.csv", "summary.json"])
def test_mixed_results(folder: Path, tmp_path: Path, name: str) -> None:
    """A file of another simulation; one that was edited."""
    kept = (folder / name).read_bytes()
    results(tmp_path / "other", TWO_NODES, trace_text([("x", "a", 0, 5, 8), ("y", "b", 0, 5, 8)]))
    shutil.copy(tmp_path / "other" / name, folder / name)
    assert objection(folder).startswith(f"{name}: is not as hived simulate wrote it")
    (folder / name).write_bytes(kept.replace(b"5", b"6", 1))
    assert objection(folder).startswith(f"{name}: is not as hived simulate wrote it")


# Without checksums: what cannot be read is refused as clearly.


@pytest.mark.parametrize("name", FILES)
def test_other_content(old: Path, name: str) -> None:
    for content in (b"", b"\n", b"{", b"[]", b"\x00\xff\xfe", b"a,b\n1,2\n"):
        (old / name).write_bytes(content)
        line = objection(old)
        assert line.startswith(name)
        assert "simulate again" in line


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("jobs.csv", [(0, "fifo"), (3, "nobody"), (4, "eight"), (5, "nan"), (11, "true,more\n")]),
        ("runs.csv", [(0, "fifo"), (2, "nobody"), (3, "NaN"), (5, "borrowed"), (6, "else:0\n"), (6, "a-node-0\n")]),
        ("series.csv", [(2, "x"), (1, "fifo")]),
    ],
)
def test_value_that_means_nothing(old: Path, name: str, values: list[tuple[int, str]]) -> None:
    content = (old / name).read_bytes()
    for number, value in values:
        (old / name).write_bytes(content)
        edit(old / name, 3, number, value)
        assert objection(old).startswith(f"{name}: is not what hived simulate writes ("), value


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
def test_json_of_another_shape(old: Path, name: str, change: Callable[[Any], object], words: str) -> None:
    plain = json.loads((old / name).read_text(encoding="utf-8"))
    change(plain)
    (old / name).write_text(json.dumps(plain), encoding="utf-8")
    line = objection(old)
    assert line.startswith(name)
    assert words in line


def test_table_of_other_columns(old: Path) -> None:
    """As an older version wrote it."""
    header, *rows = (old / "runs.csv").read_text(encoding="utf-8").splitlines()
    without = [line.rpartition(",")[0].rpartition(",")[0] for line in (header, *rows)]
    (old / "runs.csv").write_text("\n".join([*without, ""]), encoding="utf-8")
    line = objection(old)
    assert line.startswith("runs.csv: is not what hived simulate writes (its columns are 'scheme,policy,job_id,")
    assert "simulate again" in line


# What was once wrong.


def test_limit_of_the_csv_module(old: Path) -> None:
    """It was raised for long placements, and a refusal left it so for everybody else in the process."""
    before = csv.field_size_limit()
    edit(old / "jobs.csv", 5, 4, "x")
    with pytest.raises(InputError) as caught:
        ResultsSource(old)
    assert csv.field_size_limit() == before, caught.value


def test_longest_placement(tmp_path: Path) -> None:
    nodes = 8000
    source = unaudited(tmp_path, nodes_of_8(nodes, {"a": nodes}), ("wide", "a", 0, 10, nodes * 8))
    assert len(source.story("hived yarn-cs", "wide").stays[0].where) > csv.field_size_limit()
    assert source.picture("hived yarn-cs", 1).totals.guaranteed == nodes * 8
