"""Pages of the documentation are true: their Python blocks run in order, in one namespace, on a small trace."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from hived.simulator import make_report
from hived.simulator.output import write_summary

from .helpers import Row, nodes_of_8, simulated, trace_text

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def where_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(name: str) -> int:
    """The number of blocks of a page, after they ran."""
    (page,) = DOCS.rglob(name)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        if "pandas" not in block or find_spec("pandas") is not None:
            exec(compile(block, str(page), "exec"), names)
    return len(blocks)


def test_research(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import matplotlib as mpl

    rows: list[Row] = [(f"j{n}", "ab"[n % 2], n * 3600, n * 9973 % 40001, [1, 8, 4, 2][n % 4]) for n in range(60)]
    (tmp_path / "trace.csv").write_text(trace_text(rows), encoding="utf-8")
    (tmp_path / "spec.yaml").write_text(nodes_of_8(2, {"a": 1, "b": 1}), encoding="utf-8")
    mpl.use("agg")
    assert run("research.md") > 8
    said = capsys.readouterr().out
    assert "trace, gpus <= 4 and tenant in ('a', 'b'), days 0:2, sample 0.5 seed 3, clock x1.5" in said
    assert "no job is submitted on days 400:500: the trace has 60 jobs" in said


def test_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On jobs that restart, so that there is lost work."""
    rows: list[Row] = [(f"j{n}", "ab"[n % 2], n * 3, n * 31 % 83, [1, 2, 4, 8][n % 4]) for n in range(60)]
    found = simulated(tmp_path, nodes_of_8(2, {"a": 1, "b": 1}), trace_text(rows), preempted="restart")
    write_summary(make_report(found.results), tmp_path / "summary.json")
    assert run("metrics.md") == 1
    for line in capsys.readouterr().out.splitlines():
        ours, told = re.findall(r"(\d+)(?: GPU s,| s,|$)", line)
        assert ours == told != "0"


def test_gandiva(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text(nodes_of_8(1, {"research": 1}), encoding="utf-8")
    assert run("gandiva.md") == 1
    assert capsys.readouterr().out.startswith("{'search': ")
