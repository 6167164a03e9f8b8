"""The tutorials are true: the tour of the Python contract, the first simulation, the scheduler in Python."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from hived import simulate

DOCS = Path(__file__).parents[1] / "docs"
TOUR = DOCS / "tutorials" / "tour.md"
SIMULATION = DOCS / "tutorials" / "simulation.md"
#: what a tour of the whole contract needs at least
ENOUGH = 25


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_tour_of_the_contract() -> None:
    text = TOUR.read_text(encoding="utf-8")
    tour = doctest.DocTestParser().get_doctest(text, {"__name__": "tour"}, TOUR.name, str(TOUR), 0)
    output: list[str] = []
    failed, tried = doctest.DocTestRunner().run(tour, out=output.append)
    assert not failed, "".join(output)
    assert tried >= ENOUGH


def test_first_simulation(tmp_path: Path) -> None:
    """Its job waits as long under the quota as its table says, where its intervals say, and not at all elsewhere."""
    (spec,), (trace,) = blocks(SIMULATION, "yaml"), blocks(SIMULATION, "csv")
    (tmp_path / "trace.csv").write_text(trace, encoding="utf-8")
    study = simulate(spec, tmp_path / "trace.csv")
    page = SIMULATION.read_text(encoding="utf-8")
    waits = {row["scheme"]: row["queue_s"] for row in study.jobs.iter_rows(named=True) if row["job_id"] == "train"}
    assert waits["private"] == waits["hived"] == 0
    assert f"1 job, {waits['quota'] / 60:.0f} min" in page
    assert f" {waits['quota'] / 2 / 60:.1f}    0.0 " in page  # the mean of its tenant
    for row in study.runs.iter_rows(named=True):
        values = {**row, "placement": f'"{row["placement"]}"'}.values()
        assert row["scheme"] != "quota" or f"    {','.join(map(str, values))}\n" in page


def test_scheduler_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example runs on the spec of the reference."""
    (spec,), (example,) = blocks(DOCS / "reference" / "spec.md", "yaml"), blocks(SIMULATION, "python")
    (tmp_path / "spec.yaml").write_text(spec, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert "node-00" in capsys.readouterr().out
