"""``hived reproduce``: the experiments that are quick by themselves, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from .helpers import Hived


def test_one_experiment(hived: Hived, folder: Path) -> None:
    answer = hived("reproduce", "hived", "--quick", "--only", "draft-fig2", "--out", "report")
    assert answer.code == 0, answer.err
    assert "draft-fig2" in answer.out
    assert "holds" in answer.out
    assert "report/index.md" in answer.out
    text = (folder / "report" / "index.md").read_text(encoding="utf-8")
    assert "| Figure 2 of the draft: a sharing anomaly by hand | holds (1/1) |" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hived", "--out", "trace.csv"), "trace.csv: is a file, not a folder for a report"),
        (("hived", "--trace", "trace.csv", "--out", "report"), "trace: tenant a (20 jobs) is none of the paper's"),
        (("themis", "--out", "report"), "themis"),
    ],
)
def test_wrong_input(hived: Hived, folder: Path, words: tuple[str, ...], said: str) -> None:
    answer = hived("reproduce", *words, "--quick")
    assert answer.code == 2
    assert said in " ".join(answer.err.split())
    assert not (folder / "report").exists()
