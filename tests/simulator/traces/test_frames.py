"""A trace from a frame is the trace of the same table in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from hived.errors import InputError, TraceError
from hived.simulator.traces import TraceJob, is_frame, read_trace, trace_of

COLUMNS: dict[str, list[Any]] = {
    "job_id": ["007", "b,c"],
    "tenant": ["team", "team"],
    "submit_s": [0.25, 7.0],
    "duration_s": [10, 3600],
    "gpus": [8, 1],
    "status": ["pass", "killed_or_failed"],
    "user": ["ann", None],
    "priority": [5, None],
}
JOBS = (
    TraceJob("007", "team", 250, 10_000, 8, "pass", "ann", "", 5),
    TraceJob("b,c", "team", 7000, 3_600_000, 1, "killed_or_failed"),
)


def test_a_frame_of_polars_is_read_lazy_or_not() -> None:
    frame = pl.DataFrame(COLUMNS)
    for given in (frame, frame.lazy(), frame.with_columns(pl.Series("priority", [5.0, float("nan")]))):
        assert is_frame(given)
        trace = trace_of(given)
        assert (trace.jobs, trace.name, trace.synthetic) == (JOBS, "frame", False)


def test_a_frame_of_pandas_is_read() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(COLUMNS)
    assert is_frame(frame)
    assert trace_of(frame).jobs == JOBS


def test_a_file_read_as_a_frame(tmp_path: Path) -> None:
    """It may lack the status."""
    pl.DataFrame(COLUMNS).write_csv(tmp_path / "t.csv")
    frame = pl.read_csv(tmp_path / "t.csv", infer_schema=False)
    assert trace_of(frame).jobs == read_trace(tmp_path / "t.csv").jobs
    assert [job.status for job in trace_of(frame.drop("status")).jobs] == ["pass", "pass"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": [8, 0]}, "frame:3: gpus is 0: a job holds at least 1 GPU"),
        ({"submit_s": [None, 1.0]}, "frame:2: submit_s is empty: give seconds"),
        ({"job_id": ["a", "a"]}, "frame:3: job_id 'a' is already in row 2"),
        ({"colour": ["red", "blue"]}, "frame:1: unknown column 'colour': the columns are job_id,tenant"),
    ],
)
def test_a_wrong_frame_is_refused(change: dict[str, list[Any]], message: str) -> None:
    with pytest.raises(TraceError) as caught:
        trace_of(pl.DataFrame(COLUMNS | change))
    assert str(caught.value).startswith(message)


def test_what_is_no_frame_of_jobs() -> None:
    with pytest.raises(InputError, match="the frame is not readable as a trace"):
        trace_of(pl.DataFrame(COLUMNS | {"gpus": [[1], [2]]}))
    assert not any(map(is_frame, ("trace.csv", Path("trace.csv"), 7, {"job_id": []})))
