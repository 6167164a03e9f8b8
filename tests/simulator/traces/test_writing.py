"""Writing: what goes out comes back, whole or not at all, the same bytes every time."""

from __future__ import annotations

import gzip
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.errors import InputError, TraceError
from hived.simulator.traces import Trace, TraceJob, read_trace, write_trace

from .helpers import HEADER, file_of, job

words = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=20)
names = words.filter(lambda text: not text.isspace())
texts = words | st.just("")
times = st.integers(0, 10**15)
priorities = st.integers(0, 1000)
traces = st.lists(
    st.builds(
        TraceJob,
        names,
        names,
        times,
        times,
        st.integers(1, 10**6),
        words | st.just(""),
        words | st.just(""),
        words | st.just(""),
        st.integers(0, 1000),
        st.sampled_from(["", "guaranteed", "opportunistic", "either"]),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
    unique_by=lambda job: job.job_id,
).map(lambda jobs: Trace("t", tuple(sorted(jobs, key=lambda job: job.submit_ms))))


@settings(deadline=None)  # it writes files
@given(trace=traces, ending=st.sampled_from([".csv", ".csv.gz"]))
def test_what_is_written_is_read_back(trace: Trace, ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{ending}"
        write_trace(trace, path)
        assert read_trace(path).jobs == trace.jobs
        assert os.listdir(folder) == [path.name]  # noqa: PTH208


def test_a_plain_file_holds_the_contracts_columns(tmp_path: Path) -> None:
    write_trace(Trace("t", (job("a", 0, 1500, 8), job("b", 2000, 0))), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_bytes() == f"{HEADER}\na,t,0,1.5,8,pass\nb,t,2,0,1,pass\n".encode()


def test_user_model_and_priority_are_written_where_any_job_has_one(tmp_path: Path) -> None:
    write_trace(Trace("t", (job("a"), job("b")._replace(user="ann", priority=7))), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == f"{HEADER},user,priority\na,t,0,1,1,pass,,0\nb,t,0,1,1,pass,ann,7\n"


def test_a_packed_file_holds_neither_time_nor_name_so_its_bytes_repeat(tmp_path: Path) -> None:
    trace = Trace("t", (job(),))
    for name in ("one.csv.gz", "two.gz"):
        write_trace(trace, tmp_path / name)
    data = (tmp_path / "one.csv.gz").read_bytes()
    assert data == (tmp_path / "two.gz").read_bytes()
    assert data[3] == 0  # no flags: no file name
    assert data[4:8] == b"\0\0\0\0"  # no time
    assert gzip.decompress(data).startswith(HEADER.encode())


def test_a_made_up_trace_is_still_called_synthetic_after_it_went_through_a_file(tmp_path: Path) -> None:
    write_trace(Trace("t", (job("synthetic-1"),), synthetic=True), tmp_path / "t.csv")
    assert read_trace(tmp_path / "t.csv").synthetic


def test_an_existing_file_is_kept_unless_overwriting_is_asked_for(tmp_path: Path) -> None:
    path = file_of(tmp_path, "precious")
    with pytest.raises(InputError, match="the file exists: choose another name, or overwrite it"):
        write_trace(Trace("t", (job(),)), path)
    assert path.read_text() == "precious"
    write_trace(Trace("t", (job(),)), path, overwrite=True)
    assert len(read_trace(path).jobs) == 1


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = file_of(tmp_path, "precious")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="cannot be written \\(No space left on device\\): check the folder"):
        write_trace(Trace("t", (job(),)), path, overwrite=True)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written \\(No such file or directory\\): check the folder"):
        write_trace(Trace("t", (job(),)), tmp_path / "none" / "t.csv")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory: name a file"):
        write_trace(Trace("t", (job(),)), tmp_path, overwrite=True)


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ((), "the trace has no jobs: nothing to write"),
        ((job("a"), job("a")), "job 2 of the trace cannot be written: job_id 'a' is already job 1"),
        ((job(""),), "job 1 of the trace cannot be written: job_id is empty"),
        ((job(tenant="a\nb"),), "tenant is 'a\\\\nb', with the control character U\\+000A"),
        ((job(status="\ud800"),), "status is '\\\\ud800', with the control character U\\+D800"),
        ((job(submit_ms=-1),), "submit_ms is -1: it must lie between 0 and"),
        ((job(duration_ms=10**15 + 1),), "duration_ms is 1000000000000001: it must lie between 0 and"),
        ((job(gpus=0),), "gpus is 0: it must lie between 1 and 1000000"),
        ((job()._replace(user="a\nb"),), "user is 'a\\\\nb', with the control character U\\+000A"),
        ((job()._replace(priority=1001),), "priority is 1001: it must lie between 0 and 1000"),
    ],
)
def test_a_trace_no_reader_would_take_back_is_not_written(
    tmp_path: Path, jobs: tuple[TraceJob, ...], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        write_trace(Trace("t", jobs), tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []
