"""``python -m evaluation``: the reports of all papers on quick runs, interruptions, errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from evaluation.against_private import REASONS
from evaluation.command import check, reproduce
from evaluation.experiment import Shape
from evaluation.papers import EVALUATIONS, Paper
from evaluation.report import is_ours

from hived.errors import InputError
from hived.simulator.traces import Trace, generate_table1, write_trace

TIMINGS = "timings.md"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def checked_report(folder: Path, paper: Paper, trace: Path | None, only: Sequence[str], holds: Sequence[str]) -> str:
    """Reproduce a paper quickly, and once more with one result gone: the same bytes. The text of the report."""
    counts: list[tuple[int, int]] = []

    def run(processes: int) -> dict[str, bytes]:
        counts.clear()
        report = reproduce(
            folder, trace, paper=paper, quick=True, only=only, processes=processes,
            finished=lambda done, total: counts.append((done, total)),
        )  # fmt: skip
        shapes = {name: shape for name, _, shape in report.shapes()}
        assert shapes.keys() == set(only or [experiment.name for experiment in EVALUATIONS[paper].experiments])
        assert shapes == {name: Shape.HOLDS if name in holds else Shape.NOT_JUDGED for name in shapes}
        return files(folder)

    found = run(2)
    assert counts[0][0] == 0
    assert counts[-1][0] == counts[-1][1]
    text = found["index.md"].decode()
    pictures = re.findall(r"!\[.*\]\((.*)\)", text)
    assert {*pictures, "index.md", TIMINGS} >= set(found) >= {*pictures, "index.md"}
    assert all(found[name].startswith(b"\x89PNG") and len(found[name]) > 5_000 for name in pictures)
    assert not re.search(r"\bnan\b", text)
    next((folder / "runs").glob("*.json")).unlink()
    again = run(1)
    assert counts[0][0] == counts[0][1] - 1
    assert {name for name in found if again[name] != found[name]} <= {TIMINGS}
    return text


@pytest.mark.parametrize(
    ("paper", "only", "holds"),
    [
        pytest.param(Paper.HIVED, ["fig1"], [], id="hived"),
        pytest.param(Paper.HIVED, ["fig1", "fig10"], [], id="two", marks=pytest.mark.slow),
        pytest.param(Paper.GANDIVA, ["fig9", "table3"], ["fig9"], id="gandiva"),
    ],
)
def test_some_experiments(tmp_path: Path, paper: Paper, only: list[str], holds: list[str]) -> None:
    """On a small trace of a file."""
    write_trace(generate_table1(400, 1), tmp_path / "trace.csv")
    assert "**Quick.**" in checked_report(tmp_path / "out", paper, tmp_path / "trace.csv", only, holds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paper", "holds", "words"),
    [
        (Paper.HIVED, ["draft-fig2"], ["**Synthetic trace.**", "**Quick.**"]),
        (
            Paper.GANDIVA,
            [f"fig{number}" for number in range(7, 12)],
            [f"](gandiva-fig{number}.png)" for number in (7, 8, 9, 10, 11, 14, 15, 17)],
        ),
        (Paper.ANTMAN, [], ["AntMan preempts nobody: **not judged**", *REASONS]),
        (
            Paper.EXCHANGE,
            [],
            [
                "exact: no job ends later than in private: **not judged**",
                *[f"![draft-fig{number}.png](draft-fig{number}.png)" for number in (3, 10, 11, 12)],
            ],
        ),
    ],
    ids=lambda value: value.value if isinstance(value, Paper) else "",
)
def test_a_quick_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: Paper, holds: list[str], words: list[str]
) -> None:
    if paper is Paper.HIVED:
        monkeypatch.setattr("evaluation.command._QUICK_DAYS", (0.0, 1.0))
    text = checked_report(tmp_path, paper, None, (), holds)
    assert [one for one in words if one not in text] == []


def test_wrong_input_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"holds other files than a report's \(thesis.tex\)"):
        reproduce(tmp_path, quick=True)
    with pytest.raises(InputError, match="--only fig99: no such experiment; there are fig1, fig5"):
        reproduce(tmp_path / "out", quick=True, only=["fig99"])
    with pytest.raises(InputError, match="cannot be read"):
        reproduce(tmp_path / "unread", tmp_path / "no.csv", quick=True)
    monkeypatch.setattr("evaluation.command.find_spec", lambda name: None)
    with pytest.raises(InputError, match="figures, which need matplotlib"):
        reproduce(tmp_path / "out", quick=True)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_report_knows_its_figures() -> None:
    """Else the same command refuses to continue in its folder: so it was with those of AntMan's Figure 13."""
    paths = (Path(__file__).parents[2] / "evaluation").rglob("*.py")
    drawn = r'"((?:[a-z]+-)?(?:fig|table)[0-9a-z-]+)"(?:: |\] = )partial\('
    names = {name for path in paths for name in re.findall(drawn, path.read_text("utf-8"))}
    assert {"antman-fig13", "gandiva-table5", "gandiva-fig17"} <= names
    assert [name for name in names if not is_ours(Path(f"{name}.png"))] == []
    assert not is_ours(Path("my-fig1.png"))


def test_a_trace_has_table_1s_tenants() -> None:
    trace = generate_table1(500, 1)
    check(trace)
    other = trace.jobs[0]._replace(tenant="vision")
    with pytest.raises(InputError, match=r"tenant vision \(1 job"):
        check(Trace("t", (other, *trace.jobs[1:])))
    with pytest.raises(InputError, match="no job of prod-a"):
        check(Trace("t", tuple([job for job in trace.jobs if job.tenant != "prod-a"])))
