"""What each verb does when all is well."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import polars
import pytest
import yaml

from hived.cli.options import own_vc
from hived.errors import InputError
from hived.server.schema import Me

from .helpers import HEADER, Hived, tree

RESULTS = Path(__file__).parents[2] / "docs" / "reference" / "results.md"
SIMULATE = ("simulate", "--spec", "spec.yaml", "--trace", "trace.csv")


def test_files_of_a_simulation(hived: Hived, folder: Path) -> None:
    answer = hived(*SIMULATE, "--out", "new/deep/out")
    assert answer.code == 0
    names = {path.name for path in (folder / "new/deep/out").iterdir()}
    assert {"jobs.csv", "runs.csv", "summary.json"} <= names
    checked = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    assert subprocess.run(checked, cwd=folder / "new/deep/out", check=False).returncode == 0
    for stem in ("queueing-delay-over-time-yarn-cs", "delay-normalised-to-private-yarn-cs"):
        assert {f"{stem}.png", f"{stem}.svg"} <= names
    assert tree(folder / "new") == ["deep", "deep/out", *sorted(f"deep/out/{name}" for name in names)]
    for words in ("trace trace: 40 jobs", "private", "quota", "hived", " a ", " b ", " all ", "new/deep/out/"):
        assert words in answer.out


def test_simulation_without_data(hived: Hived, folder: Path) -> None:
    answer = hived("simulate", "--jobs", 60, "--days", 1, "--nodes", 12, "--no-figures")
    assert answer.code == 0
    assert "synthetic trace" in answer.out
    found = json.loads((folder / "results" / "summary.json").read_text(encoding="utf-8"))
    assert found["trace"]["synthetic"]
    assert found["cluster"]["nodes"] == 12


def test_schemes_binding_and_soft_affinity(hived: Hived, folder: Path) -> None:
    schemes = ("--scheme", "quota", "--scheme", "private", "--scheme", "quota")
    assert hived(*SIMULATE, "--no-figures", *schemes).code == 0
    with (folder / "results" / "jobs.csv").open(newline="", encoding="utf-8") as file:
        rows = [row["scheme"] for row in csv.DictReader(file)]
    assert rows == ["quota"] * 40 + ["private"] * 40
    runs = {}
    for options in ((), ("--binding", "static"), ("--soft", "1"), ("--soft", "0.5"), ("--soft", "0.5", "--seed", "2")):
        assert hived(*SIMULATE, "--no-figures", "--overwrite", *options).code == 0
        runs[options] = (folder / "results" / "runs.csv").read_text(encoding="utf-8")
    assert len(set(runs.values())) == len(runs)


def test_polars_reads_every_file(hived: Hived, folder: Path) -> None:
    # it takes the types of columns from the first 100 rows: whole seconds, then 0.5; a tenant that comes a week later
    early = "".join(f"j{n},a,{n * 4000},3000,1,pass\n" for n in range(150))
    (folder / "trace.csv").write_text(f"{HEADER}{early}late,b,600000.5,10.25,8,pass\n", encoding="utf-8")
    assert hived(*SIMULATE, "--no-figures").code == 0
    texts = dict.fromkeys(("scheme", "policy", "job_id", "tenant", "kind", "placement"), polars.String())
    whole = dict.fromkeys(("gpus", "preemptions"), polars.Int64())
    for name in ("jobs.csv", "runs.csv", "series.csv"):
        table = polars.read_csv(folder / "results" / name)
        # an empty column, as jobs run without models, is text to it
        kinds = {"finished": polars.Boolean(), "alone_s": polars.String(), **texts, **whole}
        assert dict(table.schema) == {column: kinds.get(column, polars.Float64()) for column in table.columns}
        assert len(table) > 150
    assert table["delay_s b"].drop_nans().to_list()


@pytest.mark.parametrize("last", ["late,a,200,10,1,pass", "late,a,200,10,64,pass"], ids=["one ends", "none ends"])
def test_polars_reads_jobs_that_never_ended(
    hived: Hived, folder: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    # empty times in the first 100 rows were text to it, and so were those that follow
    huge = "".join(f"j{n},a,{n},5,64,pass\n" for n in range(150))
    (folder / "trace.csv").write_text(f"{HEADER}{huge}{last}\n", encoding="utf-8")
    assert hived(*SIMULATE, "--no-figures").code == 0
    (line,) = re.findall(r"^polars\.read_csv\([^`]*\)$", RESULTS.read_text(encoding="utf-8"), re.MULTILINE)
    monkeypatch.chdir(folder)
    table = eval(line, {"polars": polars})
    assert {table.schema[name] for name in ("start_s", "finish_s", "queue_s", "alone_s")} == {polars.Float64()}
    assert table["finish_s"].drop_nulls().len() == table["finished"].sum() == (3 if ",1," in last else 0)


def test_one_node_has_no_share_of_nodes(hived: Hived, folder: Path) -> None:
    quotas = folder / "quotas.csv"
    quotas.write_text("tenant,quota_pct\na,100\n", encoding="utf-8")
    (folder / "trace.csv").write_text(HEADER + "j,a,0,5,1,pass\n", encoding="utf-8")
    arguments = ("simulate", "--trace", "trace.csv", "--no-figures", "--overwrite", "--spec")
    for nodes in (1, 2):
        assert hived("spec", "from-quotas", "--nodes", nodes, "--quotas", quotas, "-o", f"{nodes}.yaml").code == 0
        answer = hived(*arguments, f"{nodes}.yaml")
        assert answer.code == 0, answer.err
        assert ("fragmented nodes" in answer.out) is ("partly used" in answer.out) is (nodes > 1)


def test_tables_are_the_summary(hived: Hived, folder: Path) -> None:
    arguments = (*SIMULATE, "--no-figures", "--preempted", "restart")
    answer = hived(*arguments)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    tables = lines[lines.index("") : next(n for n, line in enumerate(lines) if line.startswith("results:"))]
    assert max(map(len, tables)) <= 120
    rows = [line.split() for line in tables]
    for run in json.loads((folder / "results" / "summary.json").read_text(encoding="utf-8"))["runs"]:
        scheme, of = run["scheme"], run["overall"]
        delays = [of[key] for key in ("mean_s", "median_s", "p90_s", "p95_s", "p99_s")]
        ends = [of[f"completion_{key}_s"] for key in ("mean", "median", "p90", "p95", "p99")]
        times = [row[-5:] for row in rows if row[-6:-5] == [scheme]]
        assert [*map(float, times[0])] == pytest.approx([s / 60 for s in delays], abs=0.051)
        assert [*map(float, times[1])] == pytest.approx([s / 60 for s in ends], abs=0.051)
        keys = ("utilization", "guaranteed", "opportunistic", "internal", "external", "fragmentation", "partly_used")
        assert [scheme, *(f"{100 * run[key]:.1f}%" for key in keys)] in rows
        course = (f"{run['makespan_s'] / 86400:.1f}", run["preemptions"], run["preempted_gpus"])
        assert [scheme, *map(str, course), f"{run['lost_gpu_s'] / 3600:.1f}", str(run["unfinished"])] in rows


def test_end_and_jobs_that_never_fit(hived: Hived, folder: Path) -> None:
    (folder / "trace.csv").write_text(f"{HEADER}huge,a,0,5,64,pass\nj,a,9,100000,1,pass\n", encoding="utf-8")
    answer = hived(*SIMULATE, "--no-figures", "--until", "0.1")
    assert answer.code == 0
    assert "huge (a, 64 GPUs)" in answer.out
    with (folder / "results" / "runs.csv").open(newline="", encoding="utf-8") as file:
        assert max(float(row["end_s"]) for row in csv.DictReader(file)) == 8640


def test_spec_from_quotas(hived: Hived, folder: Path) -> None:
    (folder / "q.csv").write_text("tenant,quota_pct\na,25\nb,75\n", encoding="utf-8")
    assert hived("spec", "from-quotas", "--nodes", 8, "--quotas", "q.csv", "-o", "made.yaml").code == 0
    spec = yaml.safe_load((folder / "made.yaml").read_text(encoding="utf-8"))
    shares = {name: vc["virtualCells"][0]["cellNumber"] for name, vc in spec["virtualClusters"].items()}
    assert shares == {"a": 2, "b": 6}
    assert hived("check", "made.yaml").code == 0
    assert hived("simulate", "--spec", "made.yaml", "--trace", "trace.csv", "--no-figures").code == 0
    printed = hived("spec", "from-quotas", "--nodes", 8, "--quotas", "q.csv")
    assert printed.out == (folder / "made.yaml").read_text(encoding="utf-8")


def test_spec_from_demand(hived: Hived, folder: Path) -> None:
    answer = hived("spec", "from-demand", "--trace", "trace.csv", "--nodes", 3, "-o", "made.yaml")
    assert answer.code == 0, answer.err
    assert "made.yaml: 2 tenants on 3 nodes of 8 GPUs" in answer.err
    for words in ("8 GPUs", "asked for", "cells given", "largest job", "mean delay"):
        assert words in answer.out
    assert "spare: 0 GPUs of 24" in answer.out
    assert hived("check", "made.yaml").code == 0
    spec = yaml.safe_load((folder / "made.yaml").read_text(encoding="utf-8"))
    sizes = {"NODE": 8, "NODE.SOCKET": 4, "NODE.SOCKET.GPU-PAIR": 2, "NODE.SOCKET.GPU-PAIR.GPU": 1}
    cells = [cells for vc in spec["virtualClusters"].values() for cells in vc["virtualCells"]]
    assert sum(sizes[found["cellType"]] * found["cellNumber"] for found in cells) == 24
    printed = hived("spec", "from-demand", "--trace", "trace.csv", "--nodes", 3, "--no-predict")
    assert printed.out == (folder / "made.yaml").read_text(encoding="utf-8"), "and the table is on standard error"
    assert "largest job" in printed.err
    assert "mean delay" not in printed.err
    assert hived("simulate", "--spec", "made.yaml", "--trace", "trace.csv", "--no-figures").code == 0


@pytest.mark.parametrize("levels", ["all", "node"])
def test_demand_within_spec_or_quotas(hived: Hived, folder: Path, levels: str) -> None:
    arguments = ("spec", "from-demand", "--trace", "trace.csv", "--no-predict", "--levels", levels, "--force")
    (folder / "q.csv").write_text("tenant,quota_pct\na,25\nb,75\n", encoding="utf-8")
    for given in (("--nodes", 8, "--quotas", "q.csv"), ("--like", "quotas.yaml")):
        made = f"{given[-1]}".replace("q.csv", "quotas.yaml").replace("--like", "like.yaml")
        answer = hived(*arguments, *given, "-o", made)
        assert answer.code == 0, answer.err
        table = {line.split()[0]: line.split()[3] for line in answer.out.splitlines() if line.split()[0] in ("a", "b")}
        assert table == {"a": "16", "b": "48"}
    table1 = hived(*arguments, "--nodes", 20, "--quotas", "table1", "-o", "none.yaml")
    assert "tenant a of the trace has no GPUs there, which has res-a" in table1.err
    assert not (folder / "none.yaml").exists()


def test_generate_and_describe_trace(hived: Hived, folder: Path) -> None:
    def made(name: str, seed: int) -> bytes:
        arguments = ("--jobs", 500, "--days", 5, "--seed", seed, "-o", name)
        assert hived("trace", "generate", *arguments).code == 0
        return (folder / name).read_bytes()

    assert made("one.csv.gz", 7) == made("another.csv.gz", 7)
    assert made("third.csv.gz", 8) != (folder / "one.csv.gz").read_bytes()
    made("plain.csv", 7)
    assert hived("trace", "generate", "--jobs", 5, "--force", "-o", "plain.csv").code == 0
    assert "5 jobs" in hived("trace", "describe", "plain.csv").out
    answer = hived("trace", "describe", "trace.csv")
    assert answer.code == 0
    assert "trace trace: 40 jobs" in answer.out
    found = json.loads(hived("trace", "describe", "trace.csv", "--json").out)
    assert found["name"] == "trace"
    assert found["total"]["jobs"] == 40
    assert {tenant["tenant"]: tenant["jobs"] for tenant in found["tenants"]} == {"a": 20, "b": 20}


def test_trace_is_read_by_choice(hived: Hived, folder: Path) -> None:
    """Every verb that reads a trace has both choices, and shows what they change."""
    text = (folder / "trace.csv").read_text(encoding="utf-8")
    (folder / "odd.csv").write_text(f"{text}x,a,0,-1,1,pass\ny,a,0,60,1,running\n", encoding="utf-8")
    choices = ("--skip-bad-rows", "--still-running", "leave-out")
    for verb in (
        ("trace", "describe", "odd.csv"),
        ("simulate", "--trace", "odd.csv", "--nodes", 8, "--no-figures", "--out", "odd"),
        ("spec", "from-demand", "--trace", "odd.csv", "--nodes", 8, "--no-predict", "-o", "odd.yaml"),
    ):
        refused = hived(*verb)
        assert refused.code == 2
        assert "duration_s is '-1', below zero" in refused.err
        assert "--skip-bad-rows" in refused.err
        told = "left out of the trace: 1 job (bad row: duration_s below zero)"
        (folder / "odd.yaml").unlink(missing_ok=True)
        answer = hived(*verb, "--skip-bad-rows", *(("--overwrite",) if "--out" in verb else ()))
        assert answer.code == 0, answer.err
        assert told in answer.out + answer.err
        assert "still running when the log ends: 1 job, time so far" in answer.out + answer.err
        (folder / "odd.yaml").unlink(missing_ok=True)
        answer = hived(*verb, *choices, *(("--overwrite",) if "--out" in verb else ()))
        assert "left out of the trace: 1 job (still running when the log ends)" in answer.out + answer.err
    out = ("--trace", "odd.csv", "--nodes", 8, "--scheme", "private", "--no-figures", "--out", "swept")
    assert "--skip-bad-rows" in hived("sim", "sweep", *(word for word in out if word != "--no-figures")).err
    assert hived("sim", "sweep", *(word for word in out if word != "--no-figures"), *choices).code == 0


class Roles:
    """An engine that says what who asks is to each virtual cluster."""

    def __init__(self, **roles: str) -> None:
        self.roles = roles

    def get(self, path: str) -> object:
        named = [vc for vc in self.roles if vc.isupper()]
        return {"user": "ann", "acts": True, "operator": False, "roles": self.roles, "named": named, "until": None}

    def parsed(self, of: type[Me], answer: object) -> Me:
        return of.model_validate(answer)


@pytest.mark.parametrize(
    ("roles", "found"),
    [
        ({"vision": "member", "nlp": "viewer"}, "vision"),
        ({"vision": "operator", "nlp": "admin"}, "nlp"),
        ({"vision": "operator"}, "vision"),
        ({"vision": "operator", "nlp": "operator"}, "--vc is missing: one of vision, nlp, or set HIVED_VC"),
        ({"vision": "member", "nlp": "member"}, "--vc is missing: one of vision, nlp, or set HIVED_VC"),
        ({"NLP": "member", "ASR": "member"}, "--vc is missing: one of NLP, ASR"),
        ({"NLP": "member", "any": "member"}, "NLP"),
        ({"vision": "viewer"}, "--vc is missing: you are a member of none"),
    ],
)
def test_virtual_cluster_of_ones_own(roles: dict[str, str], found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not be said where there is one."""
    monkeypatch.delenv("HIVED_VC", raising=False)
    there: Any = Roles(**roles)
    if " " in found:
        with pytest.raises(InputError, match=found):
            own_vc(there, None)
    else:
        assert own_vc(there, None) == found
    assert own_vc(there, "speech") == "speech"
    monkeypatch.setenv("HIVED_VC", "theirs")
    assert own_vc(there, None) == "theirs"
