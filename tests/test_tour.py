"""The tour of the Python contract, and the README's example of it, are true."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "docs" / "tutorials" / "tour.md"
#: what a tour of the whole contract needs at least
ENOUGH = 25


def test_the_tour_shows_what_happens() -> None:
    text = TOUR.read_text(encoding="utf-8")
    tour = doctest.DocTestParser().get_doctest(text, {"__name__": "tour"}, TOUR.name, str(TOUR), 0)
    output: list[str] = []
    failed, tried = doctest.DocTestRunner().run(tour, out=output.append)
    assert not failed, "".join(output)
    assert tried >= ENOUGH


def test_the_readmes_example_runs_on_the_readmes_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (spec,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (example,) = re.findall(r"^```python\n(from hived .*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "spec.yaml").write_text(spec, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert "node-00" in capsys.readouterr().out
