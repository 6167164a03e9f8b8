"""``hived reproduce hived``: the quick run, interruptions, errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hived.errors import InputError
from hived.reproduce.command import check, reproduce
from hived.reproduce.evaluation import EXPERIMENTS
from hived.simulator.traces import Trace, generate_table1

FILES = ("index.md", "timings.md")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hived.reproduce.command._QUICK_DAYS", (0.0, 1.0))
    counts: list[tuple[int, int]] = []
    report = reproduce(tmp_path, quick=True, processes=2, finished=lambda done, total: counts.append((done, total)))
    assert counts[0][0] == 0
    assert counts[-1][0] == counts[-1][1]
    assert {name for name, _, _ in report.shapes()} == {experiment.name for experiment in EXPERIMENTS}
    found = files(tmp_path)
    text = found["index.md"].decode()
    pictures = re.findall(r"!\[.*\]\((.*)\)", text)
    assert {*pictures, *FILES} == set(found)
    assert all(found[name].startswith(b"\x89PNG") for name in pictures)
    assert "**Synthetic trace.**" in text
    assert "**Quick.**" in text
    assert not re.search(r"\bnan\b", text)
    # all is kept: the same bytes at once, also where a simulation has to run again
    next((tmp_path / "runs").glob("*.json")).unlink()
    counts.clear()
    reproduce(tmp_path, quick=True, processes=1, finished=lambda done, total: counts.append((done, total)))
    assert counts[0][0] == counts[0][1] - 1
    again = files(tmp_path)
    assert {name for name in found if again[name] != found[name]} <= {"timings.md"}


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"holds other files than a report's \(thesis.tex\)"):
        reproduce(tmp_path, quick=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_unknown_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--only fig99: no such experiment; there are fig1, fig5"):
        reproduce(tmp_path / "out", quick=True, only=["fig99"])
    assert not (tmp_path / "out").exists()


def test_a_trace_has_the_tenants_of_table_1() -> None:
    trace = generate_table1(500, 1)
    check(trace)
    other = trace.jobs[0]._replace(tenant="vision")
    with pytest.raises(InputError, match=r"tenant vision \(1 job"):
        check(Trace("t", (other, *trace.jobs[1:])))
    with pytest.raises(InputError, match="no job of prod-a"):
        check(Trace("t", tuple([job for job in trace.jobs if job.tenant != "prod-a"])))


def test_a_trace_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        reproduce(tmp_path / "out", tmp_path / "no.csv", quick=True)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hived.reproduce.command.find_spec", lambda name: None)
    with pytest.raises(InputError, match="figures, which need matplotlib"):
        reproduce(tmp_path / "out", quick=True)
