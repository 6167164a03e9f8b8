"""The independent reader objects to whatever is wrong: each case spoils good results in one way."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from .hardware import Hardware, read_hardware
from .helpers import nodes_of_8, simulated, trace_text
from .reader import audit, cells_hold, quotas_hold, read_outcomes

Rows = list[dict[str, str]]

TRACE = trace_text(
    [
        ("first", "a", 0, 10, 8), ("early", "a", 0, 20, 8), ("owner", "b", 5, 10, 8), ("wide", "c", 6, 3, 12),
        ("small", "b", 20, 5, 1), ("late", "b", 21, 5, 2), ("later", "a", 40, 5, 8),
        ("host", "b", 50, 5, 1), ("guest", "a", 50, 5, 1),
    ]
)  # fmt: skip


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """Results in which a job is lent GPUs, is preempted, and becomes guaranteed."""
    simulated(tmp_path, nodes_of_8(4, {"a": 1, "b": 1, "c": 2}), TRACE)
    return tmp_path


def spoil(folder: Path, name: str, change: Callable[[Rows], object]) -> None:
    with (folder / name).open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns, rows = reader.fieldnames, list(reader)
    change(rows)
    assert columns is not None
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def row_of(rows: Rows, job: str, scheme: str = "hived") -> dict[str, str]:
    """The first row of a job."""
    return next(row for row in rows if (row["scheme"], row["job_id"]) == (scheme, job))


def objection(folder: Path) -> str:
    with pytest.raises(AssertionError) as caught:
        audit(folder, folder / "spec.yaml", folder / "trace.csv")
    return str(caught.value)


def test_good_results_pass(good: Path) -> None:
    assert len(audit(good, good / "spec.yaml", good / "trace.csv")) == 3


@pytest.mark.parametrize(
    ("file", "job", "column", "value", "words"),
    [
        ("jobs", "first", "gpus", "7", "not the trace"),
        ("jobs", "first", "submit_s", "1", "not the trace"),
        ("jobs", "owner", "queue_s", "1", "queue_s"),
        ("jobs", "owner", "finish_s", "", "times"),
        ("jobs", "owner", "start_s", "6", "start of the first interval"),
        ("jobs", "early", "preemptions", "0", "preemptions seen"),
        ("jobs", "small", "finished", "false", "times"),
        ("runs", "early", "end_s", "7", "work"),
        ("runs", "late", "placement", "n1:0,1", "both hold"),
        ("runs", "early", "start_s", "1", "first interval"),
        ("runs", "small", "start_s", "19", "before its submission"),
        ("runs", "small", "end_s", "26", "last interval"),
        ("runs", "small", "placement", "n0:0,1", "affinity"),
        ("runs", "small", "placement", "n0:8", "no such GPU"),
        ("runs", "small", "placement", "n9:0", "no such GPU"),
        ("runs", "late", "placement", "n0:0;n1:0", "affinity"),
        ("runs", "late", "placement", "n0:0,0", "a device twice"),
        ("runs", "late", "kind", "reserved", "kind"),
        ("runs", "wide", "placement", "n2:0,1,2,3,4,5,6,7;n3:0,1,2,3", "affinity"),
        ("runs", "wide", "placement", "n2:0,1,2,3,4,5,6,7;n2:0,1,2,3,4,5,6,7", "a node twice"),
        ("runs", "early", "kind", "guaranteed", "never taken"),
        ("runs", "private host", "placement", "a-node-0:7", "serves two tenants"),
        ("runs", "private late", "placement", "b-node-7:0,1", "reserved 1 nodes"),
    ],
)
def test_a_wrong_value_is_noticed(good: Path, file: str, job: str, column: str, value: str, words: str) -> None:
    scheme, _, name = job.rpartition(" ")
    spoil(good, f"{file}.csv", lambda rows: row_of(rows, name, scheme or "hived").__setitem__(column, value))
    assert words in objection(good)


def split(rows: Rows) -> None:
    row = row_of(rows, "small")
    rows.append({**row, "start_s": "22"})
    row["end_s"] = "22"


def into_the_hosts_cell(rows: Rows) -> None:
    row_of(rows, "guest")["placement"] = row_of(rows, "host")["placement"].split(":")[0] + ":7"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("jobs", lambda rows: rows.remove(row_of(rows, "small", "private")), "in runs.csv and not in jobs.csv"),
        ("runs", lambda rows: rows.remove(row_of(rows, "small")), "without GPUs"),
        ("runs", split, "guaranteed GPUs are never taken"),
        ("runs", into_the_hosts_cell, "in cell"),
    ],
    ids=["no job", "no interval", "an interval in two rows", "the cell of another tenant"],
)
def test_wrong_rows_are_noticed(good: Path, file: str, change: Callable[[Rows], object], words: str) -> None:
    spoil(good, f"{file}.csv", change)
    assert words in objection(good)


@pytest.mark.parametrize("name", ["jobs.csv", "runs.csv"])
def test_another_column_is_noticed(good: Path, name: str) -> None:
    path = good / name
    path.write_text(path.read_text().replace("scheme,", "sharing,", 1))
    assert f"columns of {name}" in objection(good)


def test_a_job_that_passes_another_is_noticed(good: Path) -> None:
    spoil(good, "runs.csv", lambda rows: row_of(rows, "small").update(start_s="30", end_s="35"))
    spoil(good, "jobs.csv", lambda rows: row_of(rows, "small").update(start_s="30", finish_s="35", queue_s="10"))
    assert "late was guaranteed at 21000, before small" in objection(good)


def test_less_hardware_is_noticed(good: Path) -> None:
    def without(change: Callable[[Hardware], object]) -> Hardware:
        hardware = read_hardware(good / "spec.yaml")
        change(hardware)
        return hardware

    quota, hived = (read_outcomes(good)[scheme, "yarn-cs"] for scheme in ("quota", "hived"))
    poor = without(lambda hardware: hardware.tenants.update(a=[]))
    with pytest.raises(AssertionError, match="quota: a has 8 guaranteed GPU"):
        quotas_hold(quota, poor)
    with pytest.raises(AssertionError, match="hived: a has 8 guaranteed GPUs in NODE"):
        cells_hold(hived, poor)
    with pytest.raises(AssertionError, match="pinned cell"):
        cells_hold(hived, without(lambda hardware: hardware.chains[0].pinned.update(mine=range(32))))


SPEC = """
physicalCluster:
  cellTypes:
    NODE: {childCellType: GPU, childCellNumber: 2, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 2}
  physicalCells:
  - {cellType: NODE, cellAddress: "n[08-10]"}
  - {cellType: NODE, cellAddress: odd, cellChildren: [{cellAddress: 5, pinnedCellId: mine}, {cellAddress: 3}]}
  - {cellType: RACK}
virtualClusters:
  a: {virtualCells: [{cellType: RACK.NODE, cellNumber: 1}], pinnedCells: [{pinnedCellId: mine}]}
"""


def test_hardware_is_read_from_a_spec(tmp_path: Path) -> None:
    """With ranges, defaults and named devices."""
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC, encoding="utf-8")
    nodes, racks = read_hardware(path).chains
    regular = [(node, device) for node in ("n08", "n09", "n10") for device in (0, 1)]
    assert nodes.leaves == [*regular, ("odd", 5), ("odd", 3)]
    assert nodes.pinned == {"mine": range(6, 7)}
    assert racks.leaves == [("8", 0), ("8", 1), ("9", 0), ("9", 1)]
    assert read_hardware(path).quota("a") == {"GPU": 2}
