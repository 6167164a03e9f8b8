"""Names that mean something to a program on the way: they are shown as they are, everywhere."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from urllib.parse import unquote

import pytest

from .helpers import HEADER, NODES, Hived

ODD = [
    "a,b",
    "../x",
    "😀",
    "[red]",
    "[/bold]",
    "$x_y^$",
    ":x:",
    "all",
    "with space",
    '"quoted"',
    "%s{0}",
    "=1+1",
    "<svg>&",
]


@pytest.fixture(params=ODD)
def tenant(request: pytest.FixtureRequest, folder: Path) -> str:
    """A tenant of this name in the spec and in the trace, beside b."""
    name = str(request.param)
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    (folder / "spec.yaml").write_text(NODES.replace("  a:", f'  "{quoted}":'), encoding="utf-8")
    with (folder / "trace.csv").open("w", newline="", encoding="utf-8") as file:
        file.write(HEADER)
        rows = [(f"j{n}", (name, "b")[n % 2], n * 600, n * 997 % 4001, [1, 8, 4, 2][n % 4], "pass") for n in range(40)]
        csv.writer(file, lineterminator="\n").writerows(rows)
    return name


def test_a_tenant_with_an_odd_name_is_checked(hived: Hived, tenant: str) -> None:
    answer = hived("check", "spec.yaml")
    assert answer.code == 0
    assert f"── {tenant}: 8 GPUs" in answer.out


def test_a_tenant_with_an_odd_name_is_described(hived: Hived, tenant: str) -> None:
    answer = hived("trace", "describe", "trace.csv")
    assert answer.code == 0
    assert f" {tenant} " in answer.out


def test_a_tenant_with_an_odd_name_is_simulated_and_drawn(hived: Hived, tenant: str, folder: Path) -> None:
    answer = hived("simulate", "--spec", "spec.yaml", "--trace", "trace.csv", "--out", "out", "--tenant", tenant)
    assert answer.code == 0
    assert f" {tenant} " in answer.out
    assert len(list((folder / "out").glob("*.png"))) == 2
    assert {path.parent for path in folder.rglob("*.csv")} == {folder, folder / "out"}
    with (folder / "out" / "jobs.csv").open(newline="", encoding="utf-8") as file:
        assert {row["tenant"] for row in csv.DictReader(file)} == {tenant, "b"}


def test_a_tenant_called_all_is_not_everybody(hived: Hived, folder: Path) -> None:
    (folder / "spec.yaml").write_text(NODES.replace("  a:", "  all:"), encoding="utf-8")
    trace = HEADER + "j,all,0,5,1,pass\nk,b,0,5,1,pass\nl,b,0,5,1,pass\n"
    (folder / "trace.csv").write_text(trace, encoding="utf-8")
    assert hived("simulate", "--spec", "spec.yaml", "--trace", "trace.csv", "--out", "out", "--no-figures").code == 0
    found = json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))["runs"][0]
    assert found["tenants"]["all"]["jobs"] == 1
    assert found["overall"]["jobs"] == 3


@pytest.mark.parametrize("name", ["$b_$", "[red]t", ":x:", "a;b"])
def test_a_trace_with_an_odd_name_is_simulated_and_described(hived: Hived, folder: Path, name: str) -> None:
    (folder / "trace.csv").rename(folder / f"{name}.csv")
    answer = hived("simulate", "--spec", "spec.yaml", "--trace", f"{name}.csv", "--out", "out")
    assert answer.code == 0
    assert f"trace {name}: 40 jobs" in answer.out
    assert f"trace {name}: 40 jobs" in hived("trace", "describe", f"{name}.csv").out


@pytest.mark.parametrize("out", ["[red]out", ":x:", "a b", "-out"])
def test_results_in_a_folder_with_an_odd_name_are_named_so(hived: Hived, folder: Path, out: str) -> None:
    answer = hived(
        "simulate", "--spec", "spec.yaml", "--trace", "trace.csv", f"--out={out}", "--no-figures", "--scheme", "hived"
    )
    assert answer.code == 0
    assert answer.out.endswith(f"results: {out}/\n")
    assert (folder / out / "jobs.csv").exists()


def test_nodes_with_the_placements_own_signs_in_their_names_can_still_be_told_apart(hived: Hived, folder: Path) -> None:
    """A placement reads ``node:0,1;node2:0``: such names are refused, or written so that a reader finds them again."""
    (folder / "spec.yaml").write_text(NODES.replace("n[0-1]", '"n:1;n[0-1]"'), encoding="utf-8")
    answer = hived("simulate", "--spec", "spec.yaml", "--trace", "trace.csv", "--out", "out", "--no-figures")
    if answer.code == 0:
        with (folder / "out" / "runs.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["scheme"] == "hived"]
        nodes = {unquote(part.rpartition(":")[0]) for row in rows for part in row["placement"].split(";")}
        assert nodes <= {"n:1;n0", "n:1;n1"}
    else:
        assert answer.code == 2
        assert answer.err.count("\n") == 1


def test_no_name_commands_the_terminal(hived: Hived, folder: Path) -> None:
    evil = r"\e[2J\x9b5n\u202e"
    spec = f"""
physicalCluster:
  cellTypes:
    "N{evil}": {{childCellType: "G{evil}", childCellNumber: 8, isNodeLevel: true}}
  physicalCells:
  - {{cellType: "N{evil}", cellAddress: "host\\x9b\\u202e", pinnedCellId: "pin{evil}"}}
  - {{cellType: "N{evil}", cellAddress: "n[1-2]"}}
virtualClusters:
  "a{evil}": {{virtualCells: [{{cellType: "N{evil}", cellNumber: 1}}], pinnedCells: [{{pinnedCellId: "pin{evil}"}}]}}
  "b\u202e": {{virtualCells: [{{cellType: "N{evil}", cellNumber: 1}}]}}
"""
    (folder / "spec.yaml").write_text(spec, encoding="utf-8")
    (folder / "wrong.yaml").write_text(spec.replace("cellNumber: 1", "cellNumber: 3"), encoding="utf-8")
    rows = "j\u202e,b\u202e,0,5,64,pass\nk,b\u202e,0,5,1,pass\n"
    (folder / "trace.csv").write_text(HEADER + rows, encoding="utf-8")
    verbs: list[tuple[object, ...]] = [
        ("check", "spec.yaml"), ("check", "--json", "spec.yaml"), ("check", "wrong.yaml"),
        ("trace", "describe", "trace.csv"), ("trace", "describe", "--json", "trace.csv"),
        ("simulate", "--spec", "spec.yaml", "--trace", "trace.csv", "--no-figures"),
    ]  # fmt: skip
    for verb in verbs:
        answer = hived(*verb)
        assert answer.code == (2 if "wrong.yaml" in verb else 0), answer
        said = answer.out + answer.err
        assert not [sign for sign in ("\x1b", "\x9b", "\u202e") if sign in said], (verb, said)


def test_files_whose_names_are_no_text_are_read_and_written(hived: Hived, folder: Path) -> None:
    odd = folder / os.fsdecode(b"d\xff")
    odd.mkdir()
    for name in ("spec.yaml", "trace.csv"):
        (folder / name).rename(odd / f"{odd.name}-{name}")
    spec, trace = odd / f"{odd.name}-spec.yaml", odd / f"{odd.name}-trace.csv"
    assert hived("check", spec).code == 0
    assert json.loads(hived("check", "--json", spec).out)["feasible"]
    assert hived("trace", "describe", "--json", trace).code == 0
    assert hived("simulate", "--spec", spec, "--trace", trace, "--out", odd / "out").code == 0
    assert json.loads((odd / "out" / "summary.json").read_text(encoding="utf-8"))["trace"]["name"] == r"d\udcff-trace"
