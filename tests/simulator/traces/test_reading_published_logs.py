"""The published formats, Philly's JSON and Helios' CSV. Every sample here is synthetic: made up for these tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hived.simulator.traces import StillRunning, TraceJob, read_trace

from .helpers import file_of, refusal, table

HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
WIDTH = "with another number of fields than the header"
EIGHT = {"ip": "m1", "gpus": [f"gpu{number}" for number in range(8)]}
TWO = {"ip": "m2", "gpus": ["gpu0", "gpu1"]}


def attempt(start: str | None, end: str | None, *detail: dict[str, Any]) -> dict[str, Any]:
    return {"start_time": start, "end_time": end, "detail": list(detail)}


MINUTE = attempt("2017-10-07 01:00:00", "2017-10-07 01:01:00", TWO)


def entry(jobid: Any = "app_1", **fields: Any) -> dict[str, Any]:
    said = {"status": "Pass", "vc": "ee9e8c", "submitted_time": "2017-10-07 00:59:00", "user": "ce2f4c"}
    return said | {"jobid": jobid, "attempts": [MINUTE]} | fields


def log(folder: Path, *entries: Any) -> Path:
    return file_of(folder, json.dumps(entries), "cluster_job_log")


def test_a_philly_job_has_several_attempts(tmp_path: Path) -> None:
    """It runs while it has one, on the GPUs of the largest; an end that the log lacks adds nothing."""
    long = attempt("2017-10-07 02:00:00", "2017-10-08 02:00:05", EIGHT, EIGHT)
    lost = attempt("2017-10-07 01:30:00", None, TWO)
    trace = read_trace(log(tmp_path, entry(attempts=[MINUTE, lost, long])))
    assert trace.jobs == (TraceJob("app_1", "ee9e8c", 0, (60 + 86_405) * 1000, 16, "pass", "ce2f4c"),)
    assert trace.name == "cluster_job_log"


def test_attempts_at_the_same_time_count_once(tmp_path: Path) -> None:
    """A job holds its GPUs for no longer than the clock runs."""
    inside = attempt("2017-10-07 01:00:10", "2017-10-07 01:00:20", TWO)
    beyond = attempt("2017-10-07 01:00:40", "2017-10-07 01:01:30", TWO)
    [job] = read_trace(log(tmp_path, entry(attempts=[beyond, MINUTE, inside]))).jobs
    assert job.duration_ms == 90_000


def test_philly_jobs_that_still_run(tmp_path: Path) -> None:
    """Their last attempt has no end: they have their time until the log ends, and a status of their own."""
    entries = [
        entry("alone", attempts=[attempt("2017-10-07 01:00:00", "None", TWO)]),
        entry("again", attempts=[MINUTE, attempt("2017-10-07 01:00:30", None, TWO)]),
        entry("ended", attempts=[attempt("2017-10-07 03:00:00", "2017-10-07 04:00:00", TWO)]),
    ]
    path = log(tmp_path, *entries)
    trace = read_trace(path)
    hours = 3 * 3_600_000
    assert [(job.job_id, job.duration_ms, job.status) for job in trace.jobs] == [
        ("alone", hours, "running"),
        ("again", hours, "running"),
        ("ended", 3_600_000, "pass"),
    ]
    assert (trace.running, trace.dropped) == (2, ())
    ended = read_trace(path, still_running=StillRunning.LEAVE_OUT)
    assert ([job.job_id for job in ended.jobs], ended.running) == (["ended"], 0)
    assert ended.dropped == (("still running when the log ends", 2),)


def test_helios_jobs_that_still_run(tmp_path: Path) -> None:
    """They have a start, but no duration and no end."""
    text = table(
        "1,u,v,1,1,1,RUNNING,2020-06-01 00:00:00,2020-06-01 00:01:00,,,",
        "2,u,v,1,1,1,COMPLETED,2020-06-01 00:00:00,2020-06-01 00:10:00,2020-06-01 01:01:00,3060,600",
        "3,u,v,1,1,1,PENDING,2020-06-01 00:30:00,None,None,,",
        header=HELIOS,
    )
    trace = read_trace(file_of(tmp_path, text))
    assert [(job.job_id, job.duration_ms, job.status) for job in trace.jobs] == [
        ("1", 3_600_000, "running"),
        ("2", 3_060_000, "pass"),
    ]
    assert trace.dropped == (("no run time", 1),)


_COMPLETED = "1,1,1,COMPLETED,2020-06-01 00:00:00"
BAD_HELIOS = table(
    f"1,u,v,{_COMPLETED},,,60,0",
    f"2,u,v,{_COMPLETED},,,-60,0",
    f"3,u,,{_COMPLETED},,,60,0",
    f"1,u,v,{_COMPLETED},,,60,0",
    f"4,u,v,{_COMPLETED},,60,0",
    f"5,u,v,{_COMPLETED},,,-1,0",
    header=HELIOS,
)
BAD_OURS = table("a,t,0,60,1,pass", "b,t,0,-60,1,pass", "c,,0,60,1,pass", "a,t,0,60,1,pass", "d,t", "e,t,0,-1,1,pass")
BAD_PHILLY = [
    entry("1"),
    entry("2", submitted_time="soon"),
    entry("3", vc=""),
    entry("1"),
    "no job",
    entry("5", submitted_time="later"),
]


@pytest.mark.parametrize(
    ("text", "two", "others"),
    [
        (BAD_HELIOS, "duration below zero", ("vc empty", "job_id there twice", WIDTH)),
        (BAD_OURS, "duration_s below zero", ("tenant empty", "job_id there twice", WIDTH)),
        (json.dumps(BAD_PHILLY), "submitted_time not a time", ("vc empty", "jobid there twice", "not an object")),
    ],
    ids=["Helios", "ours", "Philly"],
)
def test_bad_rows_are_left_out_by_kind(tmp_path: Path, text: str, two: str, others: tuple[str, ...]) -> None:
    """Without the option the file is refused: the first row, all kinds, and the option."""
    path = file_of(tmp_path, text)
    said = refusal(path)
    assert "; 5 bad rows in all: " in said
    assert f"2 {two}" in said
    assert said.endswith("; --skip-bad-rows leaves them out")
    trace = read_trace(path, skip_bad_rows=True)
    assert [job.duration_ms for job in trace.jobs] == [60_000]
    assert set(trace.dropped) == {(f"bad row: {two}", 2), *((f"bad row: {kind}", 1) for kind in others)}


def test_a_bad_row_takes_no_id(tmp_path: Path) -> None:
    """The job of that id that follows is read."""
    helios = table(f"1,u,,{_COMPLETED},,,60,0", f"1,u,v,{_COMPLETED},,,60,0", header=HELIOS)
    for path in (
        file_of(tmp_path, helios, "helios.csv"),
        file_of(tmp_path, table("1,,0,60,1,pass", "1,t,0,60,1,pass"), "ours.csv"),
        log(tmp_path, entry("1", vc=""), entry("1")),
    ):
        assert [job.job_id for job in read_trace(path, skip_bad_rows=True).jobs] == ["1"]


@pytest.mark.parametrize(
    ("first", "what"),
    [
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time", "openb"),
        ("sn,cpu_milli,memory_mib,gpu,model", "openb"),
        ("job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type", "PAI"),
        ("job_name,inst_id,user,status,start_time,end_time", "PAI"),
        ("4f05,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC", "PAI"),
        ("job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue", "Acme"),
        ("job_id,user,node_num,gpu_num,state,submit_time,start_time,end_time,duration,queue,gpu_time", "Acme"),
        ("machineId,number of GPUs, single GPU mem", "Philly's list of machines"),
    ],
)
def test_a_log_of_another_form_is_named(tmp_path: Path, first: str, what: str) -> None:
    said = refusal(file_of(tmp_path, f"{first}\n{first}\n"))
    assert said.startswith("t.csv:1: this looks like ")
    assert what in said.partition(": hived reads CSV with the columns job_id,tenant,")[0]


def test_the_first_philly_job_is_at_zero(tmp_path: Path) -> None:
    """Jobs are sorted, and one may have no user."""
    late = entry("late", submitted_time="2017-10-08 00:59:00", status="Killed", user=None)
    jobs = read_trace(log(tmp_path, late, entry("early"))).jobs
    assert [(job.job_id, job.submit_ms, job.status, job.user) for job in jobs] == [
        ("early", 0, "pass", "ce2f4c"),
        ("late", 86_400_000, "killed_or_failed", ""),
    ]


def test_philly_jobs_left_out_are_counted(tmp_path: Path) -> None:
    entries = [
        entry("kept"),
        entry("never ran", attempts=[attempt(None, None, TWO)]),
        entry("no attempt", attempts=[]),
        entry("no detail", attempts=[attempt("2017-10-07 01:00:00", "2017-10-07 01:01:00")]),
        entry("no submission", submitted_time="None"),
        entry("clock set back", attempts=[attempt("2017-11-05 01:59:00", "2017-11-05 01:01:00", TWO)]),
    ]
    trace = read_trace(log(tmp_path, *entries))
    assert [job.job_id for job in trace.jobs] == ["kept"]
    assert trace.dropped == (
        ("an attempt ends before it starts", 1),
        ("no GPUs", 2),
        ("no run time", 1),
        ("no submission time", 1),
    )


def test_a_packed_philly_log(tmp_path: Path) -> None:
    path = file_of(tmp_path, gzip.compress(b"\xef\xbb\xbf\n " + json.dumps([entry()]).encode()))
    assert len(read_trace(path).jobs) == 1


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (entry("app_1"), "jobid 'app_1' is already job 1 of the list: give every job its own"),
        (entry(""), "jobid is empty: every job needs one"),
        (entry(7), "jobid is '7', not text: every job needs one"),
        (entry("b\n"), "jobid is 'b\\n', with the control character U+000A: take it out"),
        (entry("b", vc=None), "vc is 'None', not text: every job needs one"),
        (entry("b", submitted_time="soon"), "submitted_time is 'soon', not a time: give YYYY-MM-DD HH:MM:SS"),
        (entry("b", submitted_time=17), "submitted_time is '17', not a time: give YYYY-MM-DD HH:MM:SS or null"),
        (entry("b", user=7), "user is '7', not text"),
        (entry("b", attempts=3), "attempts is '3', not a list"),
        (entry("b", attempts=[3]), "attempts holds '3', not an object"),
        ({"jobid": "b"}, "vc is missing: a job has jobid, vc, status, submitted_time, attempts"),
        ("b", "is 'b', not an object with jobid, vc, status, submitted_time, attempts"),
    ],
)
def test_a_wrong_philly_entry(tmp_path: Path, second: Any, message: str) -> None:
    said = refusal(log(tmp_path, entry(), second))
    assert said == f"cluster_job_log: job 2 of the list: {message}; --skip-bad-rows leaves the row out"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[\n{"jobid": }]', "t.csv:2: not readable as JSON (column 11: Expecting value): fetch the file again"),
        ('{"jobs": []}', "the JSON is not a list of jobs"),
        ("[" * 200_000, "not readable as JSON ("),
        ("[]", "no jobs (only a header)"),
    ],
    ids=["broken", "another shape", "too deep", "empty"],
)
def test_json_that_is_no_philly_log(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(file_of(tmp_path, text))


def test_helios_jobs_are_read(tmp_path: Path) -> None:
    """And CPU-only ones counted."""
    text = table(
        "11,uA,vcB,8,64,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0",
        "12,uA,vcC,0,64,1,COMPLETED,2020-06-01 00:00:00,2020-06-01 00:00:00,2020-06-01 00:00:09,9,0",
        "10,uA,vcB,1,1,1,CANCELLED,2020-06-09 18:41:00,2020-06-09 18:41:01,2020-06-09 18:41:01,0,0",
        "13,uA,vcB,1,1,1,CANCELLED,2020-06-09 18:41:00,,,,",
        header=HELIOS,
    )
    trace = read_trace(file_of(tmp_path, text, "cluster_log.csv"))
    assert trace.jobs == (
        TraceJob("10", "vcB", 0, 0, 1, "killed_or_failed", "uA"),
        TraceJob("11", "vcB", 1000, 36_848_000, 8, "pass", "uA"),
    )
    assert trace.dropped == (("no GPUs (CPU-only)", 1), ("no run time", 1))
    # columns in any order, among others
    header = "duration,submit_time,state,gpu_num,vc,job_id,note"
    text = table("2.5,2020-06-09T18:41:01,FAILED,4.0,vcB,7,x", header=header)
    assert read_trace(file_of(tmp_path, text)).jobs == (TraceJob("7", "vcB", 0, 2500, 4, "killed_or_failed"),)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,u,v,1,1,1,X,2020-06-09 18:41:01,,,1,0", "job_id '1' is already in row 2: give every job its own"),
        ("2,u,,1,1,1,X,2020-06-09 18:41:01,,,1,0", "vc is empty: every job needs one"),
        ("2,u,v,x,1,1,X,2020-06-09 18:41:01,,,1,0", "gpu_num is 'x', not a number: give a whole number of GPUs"),
        ("2,u,v,1,1,1,X,today,,,1,0", "submit_time is 'today', not a time: give YYYY-MM-DD HH:MM:SS"),
        ("2,u,v,1,1,1,X,2020-06-09 18:41:01,,,-1,0", "duration is '-1', below zero: give seconds"),
    ],
)
def test_a_wrong_helios_row(tmp_path: Path, row: str, message: str) -> None:
    good = "1,u,v,1,1,1,X,2020-06-09 18:41:01,,,1,0"
    assert refusal(file_of(tmp_path, table(good, row, header=HELIOS))).startswith(f"t.csv:3: {message}")


def test_a_helios_log_without_a_column_or_gpus(tmp_path: Path) -> None:
    said = refusal(file_of(tmp_path, table("x", header=HELIOS.replace("gpu_num", "gpus_num"))))
    assert said == "t.csv:1: column 'gpu_num' is missing: did you mean it by 'gpus_num'?"
    said = refusal(file_of(tmp_path, table("1,u,v,0,1,1,X,2020-06-09 18:41:01,,,1,0", header=HELIOS)))
    assert said == "t.csv: no jobs (1 left out: no GPUs (CPU-only)): a trace needs at least one"
