"""docs/howto/research.md is true: its blocks run in order, in one namespace, on a small trace."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import pytest

from .helpers import nodes_of_8, trace_text

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "research.md"


def test_every_block_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(f"j{n}", "ab"[n % 2], n * 3600, n * 9973 % 40001, [1, 8, 4, 2][n % 4]) for n in range(60)]
    (tmp_path / "trace.csv").write_text(trace_text(rows), encoding="utf-8")
    (tmp_path / "spec.yaml").write_text(nodes_of_8(2, {"a": 1, "b": 1}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 8
    names: dict[str, object] = {}
    for block in blocks:
        if "pandas" not in block or find_spec("pandas") is not None:
            exec(compile(block, str(PAGE), "exec"), names)
    said = capsys.readouterr().out
    assert "trace, gpus <= 4 and tenant in ('a', 'b'), days 0:2, sample 0.5 seed 3, clock x1.5" in said
    assert "no job is submitted on days 400:500: the trace has 60 jobs" in said
