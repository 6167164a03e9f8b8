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

from ..helpers import HEADER
from .helpers import file_of, job

WORDS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=20)
NAMES = WORDS.filter(lambda text: not text.isspace())
TEXTS = WORDS | st.just("")
TIMES = st.integers(0, 10**15)
MODES = st.sampled_from(["", "guaranteed", "opportunistic", "either"])
#: all fields of a job, in order
FIELDS = (
    NAMES, NAMES, TIMES, TIMES, st.integers(1, 10**6), TEXTS, TEXTS, TEXTS, st.integers(0, 1000), MODES, st.booleans(),
    st.booleans(),
)  # fmt: skip
TRACES = st.lists(st.builds(TraceJob, *FIELDS), min_size=1, max_size=20, unique_by=lambda job: job.job_id).map(
    lambda jobs: Trace("t", tuple(sorted(jobs, key=lambda job: job.submit_ms)))
)
ONE = Trace("t", (job(),))


@settings(max_examples=40)
@given(trace=TRACES, ending=st.sampled_from([".csv", ".csv.gz"]))
def test_what_is_written_is_read_back(trace: Trace, ending: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{ending}"
        write_trace(trace, path)
        assert read_trace(path).jobs == trace.jobs
        assert os.listdir(folder) == [path.name]  # noqa: PTH208


def test_columns_are_those_of_the_contract(tmp_path: Path) -> None:
    """User, model and priority where any job has one; a trace that was made up is still called synthetic."""
    path = tmp_path / "t.csv"
    write_trace(Trace("t", (job("a", 0, 1500, 8), job("synthetic-b", 2000, 0)), synthetic=True), path)
    assert path.read_bytes() == f"{HEADER}\na,t,0,1.5,8,pass\nsynthetic-b,t,2,0,1,pass\n".encode()
    assert read_trace(path).synthetic
    write_trace(Trace("t", (job("a"), job("b")._replace(user="ann", priority=7))), path, overwrite=True)
    assert path.read_text() == f"{HEADER},user,priority\na,t,0,1,1,pass,,0\nb,t,0,1,1,pass,ann,7\n"


def test_bytes_of_a_packed_file_repeat(tmp_path: Path) -> None:
    """It holds neither time nor name."""
    for name in ("one.csv.gz", "two.gz"):
        write_trace(ONE, tmp_path / name)
    data = (tmp_path / "one.csv.gz").read_bytes()
    assert data == (tmp_path / "two.gz").read_bytes()
    assert data[3] == 0  # no flags: no file name
    assert data[4:8] == b"\0\0\0\0"  # no time
    assert gzip.decompress(data).startswith(HEADER.encode())


def test_an_existing_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless overwriting is asked for; a failed write leaves it, and nothing beside it."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = file_of(tmp_path, "precious")
    with pytest.raises(InputError, match="the file exists: choose another name, or overwrite it"):
        write_trace(ONE, path)
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"cannot be written \(No space left on device\): check the folder"):
            write_trace(ONE, path, overwrite=True)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]
    write_trace(ONE, path, overwrite=True)
    assert len(read_trace(path).jobs) == 1


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written \\(No such file or directory\\): check the folder"):
        write_trace(ONE, tmp_path / "none" / "t.csv")
    with pytest.raises(InputError, match="is a directory: name a file"):
        write_trace(ONE, tmp_path, overwrite=True)


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
def test_what_no_reader_would_take_back(tmp_path: Path, jobs: tuple[TraceJob, ...], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        write_trace(Trace("t", jobs), tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []
