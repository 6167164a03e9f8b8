"""``hived reproduce``: the experiments that are quick by themselves, and errors."""

from __future__ import annotations

from pathlib import Path

from .helpers import Hived


def test_one_experiment(hived: Hived, folder: Path) -> None:
    answer = hived("reproduce", "hived", "--quick", "--only", "draft-fig2", "--out", "report")
    assert answer.code == 0, answer.err
    assert "draft-fig2" in answer.out
    assert "holds" in answer.out
    assert "report/index.md" in answer.out
    text = (folder / "report" / "index.md").read_text(encoding="utf-8")
    assert "| Figure 2 of the draft: a sharing anomaly by hand | holds (1/1) |" in text


def test_errors_are_one_line(hived: Hived, folder: Path) -> None:
    for words, said in (
        (("--only", "fig99", "--out", "report"), "--only fig99: no such experiment"),
        (("--out", "trace.csv"), "trace.csv: is a file, not a folder for a report"),
        (("--out", "."), "holds other files than a report's (spec.yaml, trace.csv)"),
        (("--trace", "trace.csv", "--out", "report"), "trace: tenant a (20 jobs) is none of the paper's"),
        (("--trace", "none.csv", "--out", "report"), "none.csv: cannot be read"),
    ):
        answer = hived("reproduce", "hived", "--quick", *words)
        assert answer.code == 2
        assert said in " ".join(answer.err.split())
        assert not (folder / "report").exists()


def test_another_paper(hived: Hived) -> None:
    assert hived("reproduce", "themis", "--out", "report").code == 2
