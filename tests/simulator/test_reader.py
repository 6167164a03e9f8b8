"""The independent reader objects to whatever is wrong: each test spoils good results in one way."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from .hardware import read_hardware
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
    ("job", "column", "value", "words"),
    [
        ("first", "gpus", "7", "not the trace"),
        ("first", "submit_s", "1", "not the trace"),
        ("owner", "queue_s", "1", "queue_s"),
        ("owner", "finish_s", "", "times"),
        ("owner", "start_s", "6", "start of the first interval"),
        ("early", "preemptions", "0", "preemptions seen"),
        ("small", "finished", "false", "times"),
    ],
)
def test_a_job_with_a_wrong_value_is_noticed(good: Path, job: str, column: str, value: str, words: str) -> None:
    spoil(good, "jobs.csv", lambda rows: row_of(rows, job).__setitem__(column, value))
    assert words in objection(good)


@pytest.mark.parametrize(
    ("job", "column", "value", "words"),
    [
        ("early", "end_s", "7", "work"),
        ("late", "placement", "n1:0,1", "both hold"),
        ("early", "start_s", "1", "first interval"),
        ("small", "start_s", "19", "before its submission"),
        ("small", "end_s", "26", "last interval"),
        ("small", "placement", "n0:0,1", "affinity"),
        ("small", "placement", "n0:8", "no such GPU"),
        ("small", "placement", "n9:0", "no such GPU"),
        ("late", "placement", "n0:0;n1:0", "affinity"),
        ("late", "placement", "n0:0,0", "a device twice"),
        ("late", "kind", "reserved", "kind"),
        ("wide", "placement", "n2:0,1,2,3,4,5,6,7;n3:0,1,2,3", "affinity"),
        ("wide", "placement", "n2:0,1,2,3,4,5,6,7;n2:0,1,2,3,4,5,6,7", "a node twice"),
        ("early", "kind", "guaranteed", "never taken"),
    ],
)
def test_an_interval_with_a_wrong_value_is_noticed(good: Path, job: str, column: str, value: str, words: str) -> None:
    spoil(good, "runs.csv", lambda rows: row_of(rows, job).__setitem__(column, value))
    assert words in objection(good)


def test_a_missing_job_is_noticed(good: Path) -> None:
    spoil(good, "jobs.csv", lambda rows: rows.remove(row_of(rows, "small", "private")))
    assert "in runs.csv and not in jobs.csv" in objection(good)


def test_a_missing_interval_is_noticed(good: Path) -> None:
    spoil(good, "runs.csv", lambda rows: rows.remove(row_of(rows, "small")))
    assert "without GPUs" in objection(good)


def test_an_interval_in_two_rows_is_noticed(good: Path) -> None:
    def split(rows: Rows) -> None:
        row = row_of(rows, "small")
        rows.append({**row, "start_s": "22"})
        row["end_s"] = "22"

    spoil(good, "runs.csv", split)
    assert "guaranteed GPUs are never taken" in objection(good)


@pytest.mark.parametrize("name", ["jobs.csv", "runs.csv"])
def test_another_column_is_noticed(good: Path, name: str) -> None:
    path = good / name
    path.write_text(path.read_text().replace("scheme,", "sharing,", 1))
    assert f"columns of {name}" in objection(good)


def test_two_tenants_on_one_private_node_are_noticed(good: Path) -> None:
    spoil(good, "runs.csv", lambda rows: row_of(rows, "host", "private").__setitem__("placement", "a-node-0:7"))
    assert "serves two tenants" in objection(good)


def test_more_private_nodes_than_were_reserved_are_noticed(good: Path) -> None:
    spoil(good, "runs.csv", lambda rows: row_of(rows, "late", "private").__setitem__("placement", "b-node-7:0,1"))
    assert "reserved 1 nodes" in objection(good)


def test_more_guaranteed_gpus_than_the_quota_are_noticed(good: Path) -> None:
    hardware = read_hardware(good / "spec.yaml")
    hardware.tenants["a"] = []
    with pytest.raises(AssertionError, match="quota: a has 8 guaranteed GPU"):
        quotas_hold(read_outcomes(good)["quota", "yarn-cs"], hardware)


def test_more_guaranteed_gpus_than_the_cells_hold_are_noticed(good: Path) -> None:
    hardware = read_hardware(good / "spec.yaml")
    hardware.tenants["a"] = []
    with pytest.raises(AssertionError, match="hived: a has 8 guaranteed GPUs in NODE"):
        cells_hold(read_outcomes(good)["hived", "yarn-cs"], hardware)


def test_a_guaranteed_job_in_the_cell_of_another_tenant_is_noticed(good: Path) -> None:
    place: list[str] = []
    spoil(good, "runs.csv", lambda rows: place.append(row_of(rows, "host")["placement"].split(":")[0]))
    spoil(good, "runs.csv", lambda rows: row_of(rows, "guest").__setitem__("placement", f"{place[0]}:7"))
    assert "in cell" in objection(good)


def test_a_guaranteed_job_in_a_pinned_cell_is_noticed(good: Path) -> None:
    hardware = read_hardware(good / "spec.yaml")
    hardware.chains[0].pinned["mine"] = range(32)
    with pytest.raises(AssertionError, match="pinned cell"):
        cells_hold(read_outcomes(good)["hived", "yarn-cs"], hardware)


def test_a_job_that_passes_another_is_noticed(good: Path) -> None:
    spoil(good, "runs.csv", lambda rows: row_of(rows, "small").update(start_s="30", end_s="35"))
    spoil(good, "jobs.csv", lambda rows: row_of(rows, "small").update(start_s="30", finish_s="35", queue_s="10"))
    assert "late was guaranteed at 21000, before small" in objection(good)


def test_the_hardware_is_read_with_ranges_defaults_and_named_devices(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        """
physicalCluster:
  cellTypes:
    NODE: {childCellType: GPU, childCellNumber: 2, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 2}
  physicalCells:
  - cellType: NODE
    cellAddress: n[08-10]
  - cellType: NODE
    cellAddress: odd
    cellChildren: [{cellAddress: 5, pinnedCellId: mine}, {cellAddress: 3}]
  - cellType: RACK
virtualClusters:
  a:
    virtualCells: [{cellType: RACK.NODE, cellNumber: 1}]
    pinnedCells: [{pinnedCellId: mine}]
""",
        encoding="utf-8",
    )
    nodes, racks = read_hardware(path).chains
    regular = [(node, device) for node in ("n08", "n09", "n10") for device in (0, 1)]
    assert nodes.leaves == [*regular, ("odd", 5), ("odd", 3)]
    assert nodes.pinned == {"mine": range(6, 7)}
    assert racks.leaves == [("8", 0), ("8", 1), ("9", 0), ("9", 1)]
    assert read_hardware(path).quota("a") == {"GPU": 2}
