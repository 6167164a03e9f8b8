"""Our CSV: what is read, and how everything wrong is refused with its row and a way out."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hived.simulator.traces import TraceJob, read_trace

from ..helpers import HEADER
from .helpers import file_of, refusal, table

GOOD = "a,team,5,10,8,pass"
JOB = TraceJob("a", "team", 5_000, 10_000, 8, "pass")
PACKED = gzip.compress(table(GOOD).encode(), mtime=0)


@pytest.mark.parametrize(
    "text",
    [
        table(GOOD),
        table("pass,8,10,5,team,a", header="status,gpus,duration_s,submit_s,tenant,job_id"),
        table(GOOD).replace("\n", "\r\n"),
        table(GOOD).replace("\n", "\r"),
        "\ufeff" + HEADER + "\n\n" + GOOD + "\n\n",
        PACKED,
    ],
    ids=["plain", "other order", "CRLF", "CR", "byte order mark and blank lines", "packed"],
)
def test_a_job_is_read(tmp_path: Path, text: str | bytes) -> None:
    """Gzip is known by its bytes, not by the name; a job made up by us, by its id."""
    trace = read_trace(file_of(tmp_path, text, "t.csv.gz"))
    assert (trace.name, trace.jobs, trace.synthetic, trace.dropped) == ("t", (JOB,), False, ())


def test_jobs_are_sorted_by_submission(tmp_path: Path) -> None:
    """Equal ones keep the file's order; a quoted id may hold commas and quotation marks; a job may take no time."""
    rows = ['"c,""d""",t,2,1,1,x', "b,t,1,0,1,x", "synthetic-1,t,1,1,1,x", "e,t,0,1,1,x"]
    trace = read_trace(file_of(tmp_path, table(*rows)))
    assert [job.job_id for job in trace.jobs] == ["e", "b", "synthetic-1", 'c,"d"']
    assert trace.jobs[1].duration_ms == 0
    assert trace.synthetic


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1.5", 1500),
        ("0.0005", 1),
        ("0.0004999999999999999999999999999999999999999", 0),  # rounded once, not twice
        ("1.0015", 1002),
        (".5", 500),
        ("1e3", 1_000_000),
        ("+7", 7000),
        (" 7 ", 7000),
        ("123456789012.345", 123_456_789_012_345),  # a float would lose the last digit's neighbour
        ("1000000000000", 10**15),
        ("1e-9999", 0),
    ],
)
def test_seconds_are_rounded_half_up(tmp_path: Path, text: str, ms: int) -> None:
    """Exact to the millisecond."""
    assert read_trace(file_of(tmp_path, table(f"a,t,{text},1,1,pass"))).jobs[0].submit_ms == ms


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("b,t,x,1,1,pass", "submit_s is 'x', not a number: give seconds"),
        ("b,t,1,1_0,1,pass", "duration_s is '1_0', not a number: give seconds"),
        ("b,t,1,٣,1,pass", "duration_s is '٣', not a number: give seconds"),
        ("b,t,1,,1,pass", "duration_s is empty: give seconds"),
        ("b,t,1,inf,1,pass", "duration_s is 'inf', not a number: give seconds"),
        ("b,t,-0.0001,1,1,pass", "submit_s is '-0.0001', below zero: give seconds since the start"),
        ("b,t,1,-5,1,pass", "duration_s is '-5', below zero: give seconds"),
        ("b,t,1000000000001,1,1,pass", "submit_s is '1000000000001', above the limit of 1000000000000 seconds: is it"),
        ("b,t,1,1,0,pass", "gpus is 0: a job holds at least 1 GPU; leave CPU-only jobs out"),
        ("b,t,1,1,1.5,pass", "gpus is '1.5', not a whole number: a job takes whole GPUs"),
        ("b,t,1,1,-2,pass", "gpus is '-2', below zero: give a whole number of GPUs"),
        ("b,t,1,1,1000001,pass", "gpus is '1000001', above the limit of 1000000 GPUs: is it another column?"),
        ("b,t,1,1,eight,pass", "gpus is 'eight', not a number: give a whole number of GPUs"),
        (",t,1,1,1,pass", "job_id is empty: every job needs one"),
        ("b, ,1,1,1,pass", "tenant is empty: every job needs one"),
        ("b\x07,t,1,1,1,pass", "job_id is 'b\\x07', with the control character U+0007: take it out"),
        ('"b\nc",t,1,1,1,pass', "job_id is 'b\\nc', with the control character U+000A: take it out"),
        ("b,t,1,1,1,pa\x00ss", "status is 'pa\\x00ss', with the control character U+0000: take it out"),
        ("a,t,1,1,1,pass", "job_id 'a' is already in row 2: give every job its own"),
        ("b,t,1,1,1", "the row has 5 fields, the header 6: put quotation marks around a field with a comma"),
        ("b,t,1,1,1,pass,x", "the row has 7 fields, the header 6: put quotation marks around a field with a comma"),
        ('"b,t,1,1,1,pass', "not readable as CSV (unexpected end of data): check the quotation marks"),
        ('"b"b,t,1,1,1,pass', "not readable as CSV (',' expected after '\"'): check the quotation marks"),
        pytest.param("x" * 200_000 + ",t,1,1,1,pass", "not readable as CSV (field larger than field limit", id="long"),
    ],
)
def test_a_wrong_row_is_refused(tmp_path: Path, row: str, message: str) -> None:
    """With its line and a way out."""
    assert refusal(file_of(tmp_path, table(GOOD, row))).startswith(f"t.csv:3: {message}")


def test_rows_are_counted_as_lines(tmp_path: Path) -> None:
    """Blank ones too; a long number is cut in the message and never parsed as an integer."""
    assert refusal(file_of(tmp_path, table(GOOD, "", '"b\n\nc",t,1,1'))).startswith("t.csv:4: the row has 4 fields")
    said = refusal(file_of(tmp_path, table("a,t," + "9" * 10_000 + ",1,1,pass")))
    assert said.startswith("t.csv:2: submit_s is '999")
    assert len(said) < 200


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("job_id,tenant,submit,duration_s,gpus,status", "column 'submit_s' is missing: did you mean it by 'submit'?"),
        ("job_id,tenant,submit_s,duration_s,gpu,status", "column 'gpus' is missing: did you mean it by 'gpu'?"),
        ("job_id,tenant,submit_s,duration_s,gpus", "column 'status' is missing: the header must hold job_id,tenant"),
        ("a,team,0,10,1,pass", "column 'job_id' is missing: the header must hold job_id,tenant,submit_s"),
        (HEADER + ",gpus", "column 'gpus' is there twice: remove one"),
        (HEADER + ",queue", "unknown column 'queue': the columns are job_id,tenant,submit_s,duration_s,gpus,status"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, header: str, message: str) -> None:
    assert refusal(file_of(tmp_path, table(GOOD, header=header))).startswith(f"t.csv:1: {message}")


EMPTY = "t.csv: the file is empty: it needs a header and at least one row"
CUT = "t.csv: the gzip data is cut off before its end: fetch the file again"


def changed(at: int, value: int) -> bytes:
    return PACKED[:at] + bytes([value]) + PACKED[at + 1 :]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", EMPTY),
        (b"\xef\xbb\xbf", EMPTY),
        (gzip.compress(b"", mtime=0), EMPTY),
        (HEADER, "t.csv: no jobs (only a header): a trace needs at least one"),
        (PACKED[:20], CUT),
        (PACKED[:-1], CUT),
        (changed(len(PACKED) - 6, PACKED[-6] ^ 1), "t.csv: the gzip data is broken (CRC check failed"),
        (changed(10, 0xFF), "t.csv: the gzip data is broken ("),
        (table(GOOD).encode() + b"\xe9,", "t.csv:3: byte 65 (0xe9) is not UTF-8: save the file as UTF-8"),
    ],
    ids=["nothing", "a mark", "packed nothing", "a header", *["cut off"] * 2, "checksum", "deflate", "Latin-1"],
)
def test_a_file_that_is_no_trace(tmp_path: Path, data: str | bytes, message: str) -> None:
    said = refusal(file_of(tmp_path, data))
    assert said == message or (said.startswith(message) and message.endswith(("(", "failed")))


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.csv") == "none.csv: no such file: check the path"
    (tmp_path / "folder").mkdir()
    assert refusal(tmp_path / "folder") == "folder: is a directory: name a file"
    file_of(tmp_path, "x", "file")
    assert "cannot be read (Not a directory): check its permissions" in refusal(tmp_path / "file" / "t.csv")


@pytest.mark.parametrize(
    ("header", "fields", "read"),
    [
        ("user,model,priority", "ann,ResNet-50,1000", ("ann", "ResNet-50", 1000)),
        ("model,user", "BERT,", ("", "BERT", 0)),
        ("user,priority", "ann, ", ("ann", "", 0)),
        ("priority", "1e1", ("", "", 10)),
        ("priority", "3.0", ("", "", 3)),
    ],
)
def test_columns_that_a_file_may_have(tmp_path: Path, header: str, fields: str, read: tuple[str, str, int]) -> None:
    found = read_trace(file_of(tmp_path, table(f"{GOOD},{fields}", header=f"{HEADER},{header}"))).jobs[0]
    assert (found.user, found.model, found.priority) == read


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("ann,x,-1", "priority is '-1': give a whole number, 0 to 1000; the higher preempt the lower"),
        ("ann,x,1001", "priority is '1001': give a whole number, 0 to 1000"),
        ("ann,x,0.5", "priority is '0.5': give a whole number, 0 to 1000"),
        ("ann,x,high", "priority is 'high', not a number: give a whole number, 0 to 1000"),
        ("a\x07,x,1", "user is 'a\\x07', with the control character U+0007: take it out"),
        ("ann,x\u2028,1", "model is 'x\\u2028', with the control character U+2028: take it out"),
    ],
)
def test_a_wrong_user_model_or_priority(tmp_path: Path, fields: str, message: str) -> None:
    text = table(f"{GOOD},,,", f"b,team,0,10,1,pass,{fields}", header=f"{HEADER},user,model,priority")
    assert refusal(file_of(tmp_path, text)).startswith(f"t.csv:3: {message}")
