"""An engine that is killed at random moments loses nothing and does nothing twice; :mod:`.chaos` has more of it."""

from __future__ import annotations

from pathlib import Path

from .chaos import Chaos


def test_an_engine_that_is_killed_again_and_again_runs_every_job_to_its_end_once(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, jobs=100, kills=9, seed=7)
    chaos.run()
    assert not chaos.found
    assert chaos.killed == 9
    assert chaos.counts["succeeded"] == 100
    assert chaos.counts["lives"] > 4, "most engines were killed before they had begun: nothing was tried"
