"""An engine that is killed at random moments loses nothing and does nothing twice; :mod:`.chaos` has more of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .chaos import Chaos


@pytest.mark.parametrize(
    ("jobs", "kills"),
    [pytest.param(100, 9, marks=pytest.mark.slow), pytest.param(10_000, 200, marks=pytest.mark.release)],
)
def test_every_job_runs_to_its_end_once(tmp_path: Path, jobs: int, kills: int) -> None:
    chaos = Chaos(tmp_path, jobs, kills, seed=7)
    chaos.run()
    assert not chaos.found
    assert chaos.killed == kills
    assert chaos.counts["succeeded"] == jobs
    assert chaos.counts["lives"] > kills // 2, "most engines were killed before they had begun: nothing was tried"
