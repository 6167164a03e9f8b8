"""The real trace, where it is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.simulator.traces import TABLE1, describe, read_trace, write_trace

REAL = Path(__file__).parents[4] / "shared" / "traces" / "philly-2017-oct-nov.csv.gz"

pytestmark = pytest.mark.skipif(not REAL.exists(), reason="the shared folder with the Philly trace is not here")


def test_the_real_trace_has_its_jobs_and_tenants() -> None:
    trace = read_trace(REAL)
    assert (len(trace.jobs), trace.synthetic, trace.dropped) == (89_392, False, ())
    assert trace.name == "philly-2017-oct-nov"
    assert {job.tenant for job in trace.jobs} == {row.tenant for row in TABLE1}


def test_the_real_trace_offers_the_load_its_readme_states() -> None:
    found = describe(read_trace(REAL))
    assert found.days == pytest.approx(61, abs=0.01)
    assert found.total.offered_load_gpus / 2232 == pytest.approx(0.59, abs=0.005)


def test_the_real_trace_survives_writing(tmp_path: Path) -> None:
    trace = read_trace(REAL)
    write_trace(trace, tmp_path / "again.csv.gz")
    assert read_trace(tmp_path / "again.csv.gz").jobs == trace.jobs
