"""A trace from a frame is the trace of the same table in a file."""

from __future__ import annotations

from datetime import date, datetime, timedelta
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


START = datetime(2020, 6, 9, 18, 41, 1)
AT = [START + timedelta(milliseconds=6750), START]
LASTS = [timedelta(seconds=10), timedelta(hours=1)]
DATED = (JOBS[1]._replace(submit_ms=0), JOBS[0]._replace(submit_ms=6750))


def test_dates_and_durations_of_a_frame() -> None:
    """Dates count from the first submission; a time zone changes nothing."""
    frame = pl.DataFrame(COLUMNS | {"submit_s": AT, "duration_s": LASTS})
    zoned = frame.with_columns(pl.col("submit_s").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"))
    for given in (frame, frame.lazy(), zoned, frame.with_columns(pl.col("submit_s").cast(pl.Datetime("ns")))):
        assert trace_of(given).jobs == DATED
    days = frame.with_columns(submit_s=pl.Series([date(2020, 6, 10), date(2020, 6, 9)]))
    assert [job.submit_ms for job in trace_of(days).jobs] == [0, 86_400_000]
    since = frame.with_columns(submit_s=pl.Series([timedelta(seconds=1), timedelta(0)]))
    assert [job.submit_ms for job in trace_of(since).jobs] == [0, 1000]
    with pytest.raises(TraceError, match="frame:3: submit_s is empty"):
        trace_of(frame.with_columns(submit_s=pl.Series([START, None])))


def test_dates_and_durations_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(COLUMNS | {"submit_s": AT, "duration_s": LASTS})
    zoned = frame.assign(submit_s=frame["submit_s"].dt.tz_localize("Asia/Tokyo"))
    own = frame.astype({"submit_s": object, "duration_s": object})
    for given in (frame, zoned, own):
        assert trace_of(given).jobs == DATED


def test_other_columns_of_a_frame_are_left_out() -> None:
    """A study's table has more than a trace, also what CSV has no form for."""
    frame = pl.DataFrame(COLUMNS | {"colour": ["red", "blue"], "nodes": [[1], [2, 3]]})
    assert trace_of(frame).jobs == JOBS
    pandas = pytest.importorskip("pandas")
    assert trace_of(pandas.DataFrame(COLUMNS | {"colour": ["red", "blue"], 7: [1, 2]})).jobs == JOBS


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
        ({"softt": [True, False]}, "frame:1: unknown column 'softt': the columns are job_id,tenant"),
        ({"duration_s": [datetime(2020, 1, 1), None]}, "frame:2: duration_s is '2020-01-01T"),
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
