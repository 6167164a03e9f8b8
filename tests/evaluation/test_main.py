"""``python -m evaluation``: a report, or why not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def evaluated(*words: object) -> subprocess.CompletedProcess[str]:
    """The command, run in the repository."""
    command = [sys.executable, "-m", "evaluation", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_report_of_one_experiment(tmp_path: Path) -> None:
    answer = evaluated("hived", "--quick", "--only", "draft-fig2", "--out", tmp_path / "report")
    assert answer.returncode == 0, answer.stderr
    assert "draft-fig2" in answer.stdout
    assert "holds" in answer.stdout
    text = (tmp_path / "report" / "index.md").read_text(encoding="utf-8")
    assert "| Figure 2 of the draft: a sharing anomaly by hand | holds (1/1) |" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hived", "--out", "trace.csv"), "trace.csv: is a file, not a folder for a report"),
        (("hived", "--trace", "trace.csv", "--out", "report"), "trace: tenant a (1 job) is none of the paper's"),
        (("themis", "--out", "report"), "themis"),
    ],
)
def test_wrong_report(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    (tmp_path / "trace.csv").write_text("job_id,tenant,submit_s,duration_s,gpus,status\n1,a,0,60,1,Pass\n")
    given = [tmp_path / word if word in ("trace.csv", "report") else word for word in words]
    answer = evaluated(*given, "--quick")
    assert answer.returncode == 2, answer.stderr
    assert said in " ".join(answer.stderr.split())
    assert not (tmp_path / "report").exists()
