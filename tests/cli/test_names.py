"""Names that mean something to a program on the way: they are shown as they are, everywhere."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import yaml

from .helpers import HEADER, NODES, Hived

ODD = [
    "a,b", "../x", "😀", "[red]", "[/bold]", "$x_y^$", ":x:", "all", "with space", '"quoted"', "%s{0}", "=1+1",
    "<svg>&", "a-tenant-with-a-name-of-many-words-as-large-companies-have-them-in-their-directories",
]  # fmt: skip
SIMULATE = ("simulate", "--spec", "spec.yaml", "--trace", "trace.csv")


def test_tenants(hived: Hived, folder: Path) -> None:
    """They are checked, described, simulated and drawn; one that is called all is not everybody."""
    spec = yaml.safe_load(NODES.replace("n[0-1]", f"n[0-{len(ODD) - 1}]"))
    spec["virtualClusters"] = {name: {"virtualCells": [{"cellType": "NODE", "cellNumber": 1}]} for name in ODD}
    Path("spec.yaml").write_text(yaml.safe_dump(spec, allow_unicode=True, sort_keys=False), encoding="utf-8")
    with Path("trace.csv").open("w", newline="", encoding="utf-8") as file:
        file.write(HEADER)
        rows = [(f"j{n}", name, n * 600, n * 997 % 4001, 8, "pass") for n, name in enumerate(ODD * 3)]
        csv.writer(file, lineterminator="\n").writerows(rows)
    checked, described = hived("check", "spec.yaml").out, hived("trace", "describe", "trace.csv").out
    drawn = [word for name in ODD for word in ("--tenant", name)]
    answer = hived(*SIMULATE, "--out", "out", *drawn)
    assert answer.code == 0, answer.err
    for said in (checked, described, answer.out):
        assert "…" not in said, "a pipe gets whole lines"
        assert "\x1b" not in said
    for name in ODD:
        assert f"── {name}: 8 GPUs" in checked
        assert f" {name} " in described
        assert f" {name} " in answer.out
    assert len(list(Path("out").glob("*.png"))) == 2
    assert {path.parent for path in folder.rglob("*.csv")} == {folder, folder / "out"}
    with Path("out", "jobs.csv").open(newline="", encoding="utf-8") as file:
        assert {row["tenant"] for row in csv.DictReader(file)} == set(ODD)
    found = json.loads(Path("out", "summary.json").read_text(encoding="utf-8"))["runs"][0]
    assert found["tenants"]["all"]["jobs"] == 3
    assert found["overall"]["jobs"] == 3 * len(ODD)


def test_trace_and_results(hived: Hived, folder: Path) -> None:
    name = "$b_$[red]t:x:a;b"
    (folder / "trace.csv").rename(folder / f"{name}.csv")
    answer = hived("simulate", "--spec", "spec.yaml", "--trace", f"{name}.csv", f"--out=-{name}", "--scheme", "hived")
    assert answer.code == 0
    assert f"trace {name}: 40 jobs" in answer.out
    assert answer.out.endswith(f"results: -{name}/\n")
    assert (folder / f"-{name}" / "jobs.csv").exists()
    assert f"trace {name}: 40 jobs" in hived("trace", "describe", f"{name}.csv").out


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
        (*SIMULATE, "--no-figures"),
    ]  # fmt: skip
    for verb in verbs:
        answer = hived(*verb)
        assert answer.code == (2 if "wrong.yaml" in verb else 0), answer
        said = answer.out + answer.err
        assert not [sign for sign in ("\x1b", "\x9b", "\u202e") if sign in said], (verb, said)


def test_files_whose_names_are_no_text(hived: Hived, folder: Path) -> None:
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
