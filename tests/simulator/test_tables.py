"""The tables of a simulation: what a reader of the files computes from their columns is what they say."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import hived
from hived.simulator.tables import JOBS, RUNS
from hived.simulator.traces.model import seconds

HERE = Path(__file__).parents[1] / "golden" / "sharing" / "gandiva"


def test_files_are_the_tables(tmp_path: Path) -> None:
    """Also of a job that was done before its duration, since it grew: its queueing delay is negative."""
    study = hived.simulate(HERE / "spec.yaml", HERE / "trace.csv", schemes="hived", policy="gandiva")
    assert dict(study.jobs.schema) == JOBS
    assert dict(study.runs.schema) == RUNS
    study.save(tmp_path / "out", figures=False)
    for name, table, types in (("jobs", study.jobs, JOBS), ("runs", study.runs, RUNS)):
        assert pl.read_csv(tmp_path / "out" / f"{name}.csv", schema=types).equals(table)
    done = study.jobs.filter("finished")
    queue = done["finish_s"] - done["submit_s"] - done["duration_s"]
    assert done["queue_s"].to_list() == pytest.approx(queue.to_list(), abs=1e-6)
    assert (queue < 0).any()


@pytest.mark.parametrize(("ms", "text"), [(0, "0"), (1500, "1.5"), (-101_203, "-101.203"), (-2000, "-2")])
def test_milliseconds_in_seconds(ms: int, text: str) -> None:
    assert seconds(ms) == text
