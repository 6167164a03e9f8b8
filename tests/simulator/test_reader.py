"""The independent reader objects to whatever is wrong: each case spoils good results in one way."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from .helpers import nodes_of_8, simulated, trace_text
from .reader import audit

Rows = list[dict[str, str]]

#: a job is lent GPUs, is preempted, and becomes guaranteed
TRACE = trace_text(
    [
        ("first", "a", 0, 10, 8), ("early", "a", 0, 20, 8), ("owner", "b", 5, 10, 8), ("wide", "c", 6, 3, 12),
        ("small", "b", 20, 5, 1), ("late", "b", 21, 5, 2), ("later", "a", 40, 5, 8),
        ("host", "b", 50, 5, 1), ("guest", "a", 50, 5, 1),
    ]
)  # fmt: skip


def row_of(rows: Rows, job: str, scheme: str = "hived") -> dict[str, str]:
    """The first row of a job."""
    return next(row for row in rows if (row["scheme"], row["job_id"]) == (scheme, job))


def changed(job: str, scheme: str = "hived", **values: str) -> Callable[[Rows], object]:
    return lambda rows: row_of(rows, job, scheme).update(values)


def into_the_hosts_cell(rows: Rows) -> None:
    row_of(rows, "guest")["placement"] = row_of(rows, "host")["placement"].split(":")[0] + ":7"


def later(rows: Rows) -> None:
    row = row_of(rows, "small")
    row |= (
        {"start_s": "30", "finish_s": "35", "queue_s": "10"} if "queue_s" in row else {"start_s": "30", "end_s": "35"}
    )


NODE = "0,1,2,3,4,5,6,7"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("jobs", changed("first", gpus="7"), "not the trace"),
        ("jobs", changed("owner", queue_s="1"), "queue_s"),
        ("jobs", changed("owner", finish_s=""), "times"),
        ("jobs", changed("owner", start_s="6"), "start of the first interval"),
        ("jobs", changed("early", preemptions="0"), "preemptions seen"),
        ("jobs", lambda rows: rows.remove(row_of(rows, "small", "private")), "in runs.csv and not in jobs.csv"),
        ("runs", lambda rows: rows.remove(row_of(rows, "small")), "without GPUs"),
        ("runs", changed("early", end_s="7"), "work"),
        ("runs", changed("small", start_s="19"), "before its submission"),
        ("runs", changed("small", end_s="26"), "last interval"),
        ("runs", changed("late", placement="n1:0,1"), "both hold"),
        ("runs", changed("small", placement="n0:0,1"), "affinity"),
        ("runs", changed("small", placement="n0:8"), "no such GPU"),
        ("runs", changed("late", placement="n0:0,0"), "a device twice"),
        ("runs", changed("wide", placement=f"n2:{NODE};n2:{NODE}"), "a node twice"),
        ("runs", changed("early", kind="guaranteed"), "never taken"),
        ("runs", changed("host", "private", placement="a-node-0:7"), "serves two tenants"),
        ("runs", changed("late", "private", placement="b-node-7:0,1"), "reserved 1 nodes"),
        ("runs", into_the_hosts_cell, "in cell"),
        ("jobs runs", later, "late was guaranteed at 21000, before small"),
    ],
)
def test_what_is_wrong_is_noticed(tmp_path: Path, file: str, change: Callable[[Rows], object], words: str) -> None:
    simulated(tmp_path, nodes_of_8(4, {"a": 1, "b": 1, "c": 2}), TRACE)
    for name in file.split():
        path = tmp_path / f"{name}.csv"
        with path.open(newline="", encoding="utf-8") as text:
            rows = list(csv.DictReader(text))
        columns = list(rows[0])
        change(rows)
        with path.open("w", newline="", encoding="utf-8") as text:
            writer = csv.DictWriter(text, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with pytest.raises(AssertionError, match=words):
        audit(tmp_path, tmp_path / "spec.yaml", tmp_path / "trace.csv")
