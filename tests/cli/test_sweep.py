"""``hived sweep``: the file, the table, interruptions, errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path
from typing import Any

import polars
import pytest

from hived.cli.simulate import simulate
from hived.cli.sweep import sweep
from hived.simulator.intervals import estimate
from hived.simulator.sweep import OPTIONS

from .helpers import HEADER, NODES, Hived

HIVED = [sys.executable, "-c", "from hived.cli import main; main()"]
SMALL = ("sweep", "--nodes", "20,30", "--trace-jobs", 300, "--trace-days", 2, "--seeds", 3)


def table(folder: Path) -> polars.DataFrame:
    return polars.read_parquet(folder / "sweep.parquet")


def summary(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def one_line(answer: str) -> str:
    """The error, which is the last line."""
    assert "Traceback" not in answer
    return answer.splitlines()[-1]


def test_a_row_for_every_run_scheme_and_tenant_and_one_for_all(hived: Hived, folder: Path) -> None:
    answer = hived(*SMALL, "--jobs", 2, "--out", "out")
    assert answer.code == 0
    found = table(folder / "out")
    assert found.shape[0] == 2 * 3 * 3 * 12
    assert found.columns[: len(OPTIONS) + 2] == [*OPTIONS, "scheme", "tenant"]
    assert [found.schema[name] for name in ("spec", "until", "nodes", "soft", "opportunistic", "tenant")] == [
        polars.String,
        polars.Float64,
        polars.Int64,
        polars.Float64,
        polars.Boolean,
        polars.String,
    ]  # whether a value is given or not
    keys = found.select("nodes", "seed", "scheme", "tenant")
    assert keys.n_unique() == len(keys)
    assert found.filter(polars.col("tenant").is_null())["run_finished"].null_count() == 0
    assert found.filter(polars.col("tenant").is_not_null())["run_finished"].null_count() == 2 * 3 * 3 * 11


def test_a_run_has_the_numbers_of_a_simulation(hived: Hived, folder: Path) -> None:
    given = ("--spec", "spec.yaml", "--trace", "trace.csv", "--clock-compression", 2, "--preempted", "restart")
    assert hived("sweep", *given, "--out", "out").code == 0
    assert hived("simulate", *given, "--no-figures", "--out", "one").code == 0
    one = summary(folder / "one")
    found = table(folder / "out").to_dicts()
    assert [(row["scheme"], row["tenant"]) for row in found] == [
        (scheme, tenant) for scheme in ("private", "quota", "hived") for tenant in (None, "a", "b")
    ]
    for row in found:
        run = next(run for run in one["runs"] if run["scheme"] == row["scheme"])
        metrics = run["overall"] if row["tenant"] is None else run["tenants"][row["tenant"]]
        for name, value in metrics.items():
            if isinstance(value, int | float):
                assert row[name] == pytest.approx(value, abs=1e-6)
        if row["tenant"] is None:
            assert row["run_utilization"] == pytest.approx(run["utilization"], abs=1e-6)
            assert row["run_cluster_offered_load"] == pytest.approx(one["cluster"]["offered_load"], abs=1e-6)
        options = [row[name] for name in ("spec", "trace", "preempted", "nodes")]
        assert options == ["spec.yaml", "trace.csv", "restart", None]


def test_the_table_has_means_and_intervals_over_the_seeds(hived: Hived, folder: Path) -> None:
    answer = hived(*SMALL, "--out", "out", "--metric", "mean_s,jobs", "--tenant", "all,res-f")
    assert "3 seeds ± half of the 95% confidence interval (Student's t)" in answer.out
    lines = [line.split() for line in answer.out.splitlines()]
    assert lines[1] == ["nodes", "scheme", "tenant", "mean_s", "jobs"]
    assert len([line for line in lines if line[:1] in (["20"], ["30"])]) == 2 * 3 * 2
    values = table(folder / "out").filter(nodes=30, scheme="quota", tenant="res-f")["mean_s"]
    expected = estimate(values.to_list())
    assert expected.half is not None
    (row,) = [line for line in lines if line[:3] == ["30", "quota", "res-f"]]
    mean, sign, half = row[3:6]
    assert sign == "±"
    assert float(mean.replace(",", "")) == pytest.approx(expected.mean, abs=0.5)
    assert float(half.replace(",", "")) == pytest.approx(expected.half, abs=0.5)


def test_one_seed_has_no_interval(hived: Hived, folder: Path) -> None:
    answer = hived("sweep", "--spec", "spec.yaml", "--trace", "trace.csv", "--out", "out")
    assert "one seed, so no confidence intervals" in answer.out
    assert "±" not in answer.out


def test_the_bytes_do_not_depend_on_the_number_of_processes(hived: Hived, folder: Path) -> None:
    said = set()
    for jobs in (1, 2):
        answer = hived(*SMALL, "--jobs", jobs, "--out", f"out-{jobs}")
        said.add(answer.out.replace(f"out-{jobs}", "out"))
    assert (folder / "out-1" / "sweep.parquet").read_bytes() == (folder / "out-2" / "sweep.parquet").read_bytes()
    assert len(said) == 1


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_stopped_continues_with_the_same_bytes(
    hived: Hived, folder: Path, stop: signal.Signals
) -> None:
    runs, words = folder / "out" / "runs", [str(word) for word in (*SMALL, "--jobs", 2, "--out", "out")]
    # a group of its own, to which a terminal would send Ctrl-C
    process = subprocess.Popen([*HIVED, *words], cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 180
    while len(finished := list(runs.glob("*.json"))) < 2:
        assert time.monotonic() < until
        assert process.poll() is None, "ended before it could be stopped"
        time.sleep(0.002)
    os.killpg(process.pid, stop) if stop == signal.SIGINT else process.send_signal(stop)
    _, err = process.communicate(timeout=180)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[stop]
    assert "Traceback" not in err
    assert not (folder / "out" / "sweep.parquet").exists()
    if stop == signal.SIGINT:
        assert "finished runs are kept in out, and the same command continues" in err
    before = {path: path.stat().st_mtime_ns for path in finished}
    assert hived(*words).code == 0, "a process that was killed still holds the folder"
    assert {path: path.stat().st_mtime_ns for path in finished} == before, "a finished run ran again"
    assert hived(*SMALL, "--jobs", 1, "--out", "whole").code == 0
    assert (folder / "out" / "sweep.parquet").read_bytes() == (folder / "whole" / "sweep.parquet").read_bytes()
    assert sorted(path.name for path in (folder / "out").rglob("*")) == sorted(
        path.name for path in (folder / "whole").rglob("*")
    )


def test_longer_lists_and_more_seeds_add_runs(hived: Hived, folder: Path) -> None:
    small = ("sweep", "--trace-jobs", 200, "--trace-days", 2, "--out", "out")
    assert hived(*small, "--nodes", 20, "--seeds", 1).code == 0
    (first,) = (folder / "out" / "runs").iterdir()
    before = first.stat().st_mtime_ns
    assert hived(*small, "--nodes", "30,20", "--seeds", 2).code == 0
    assert len(list((folder / "out" / "runs").iterdir())) == 4
    assert first.stat().st_mtime_ns == before
    assert table(folder / "out")["nodes"].unique(maintain_order=True).to_list() == [30, 20]


def test_other_options_are_refused_in_a_folder_with_results(hived: Hived, folder: Path) -> None:
    given = ("sweep", "--spec", "spec.yaml", "--trace", "trace.csv", "--out", "out")
    assert hived(*given).code == 0
    before = table(folder / "out")
    for more, what in (
        (("--clock-compression", 2), "clock_compression 1.0, now 2.0"),
        (("--scheme", "private,hived"), "schemes private quota hived, now private hived"),
        (("--no-opportunistic",), "opportunistic True, now False"),
    ):
        answer = hived(*given, *more)
        assert answer.code == 2
        assert one_line(answer.err).startswith("hived: out: has results of another sweep")
        assert what in one_line(answer.err)
    (folder / "trace.csv").write_text(HEADER + "j,a,0,10,1,pass\n")
    assert re.search(r"sha256 .*trace.csv:\w{8}, now .*trace.csv:\w{8}", one_line(hived(*given).err))
    assert table(folder / "out").equals(before)


def test_a_run_that_fails_ends_the_sweep_with_its_name_and_finished_runs_stay(hived: Hived, folder: Path) -> None:
    """The clock of the second run leaves the range of a trace."""
    given = ("sweep", "--spec", "spec.yaml", "--trace", "trace.csv", "--jobs", 1, "--out", "out")
    answer = hived(*given, "--clock-compression", "1,1e-9")
    assert answer.code == 2
    assert one_line(answer.err).startswith("hived: clock_compression=1e-09: a clock compressed by 1e-09 runs past")
    assert len(list((folder / "out" / "runs").iterdir())) == 1
    assert not (folder / "out" / "sweep.parquet").exists()
    assert hived(*given).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nodes", "20,x"), "--nodes 20,x: x is no whole number above 0"),
        (("--nodes", "20,,30"), "--nodes 20,,30: a value is empty"),
        (("--policy", "yarn-cs,best"), "unknown policy 'best'; there are yarn-cs"),
        (("--policy", "nobody=fifo"), "policy=yarn-cs nobody=fifo seed=1: policy nobody=fifo: no tenant 'nobody'"),
        (("--policy", "c=fifo", "--spec", "spec.yaml", "--trace", "trace.csv"), "policy c=fifo: no tenant 'c'"),
        (("--clock-compression", "fast"), "--clock-compression fast: fast is no number"),
        (("--until", "0"), "policy=yarn-cs seed=1: until 0 (--until): must be a number of days above 0"),
        (("--spec", "spec.yaml", "--nodes", "3"), "--spec and --nodes: give one of them"),
        (("--spec", "spec.yaml", "--quotas", "table1"), "--spec and --quotas: give one of them"),
        (("--window", "3"), "policy=yarn-cs seed=1: window '3': give two days"),
        (("--soft", "0,2"), "soft=2.0"),
        (("--trace", "trace.csv", "--trace-jobs", "3"), "--trace and --trace-jobs: give one of them"),
        (("--spec", "none.yaml"), "none.yaml: "),
        (("--spec", "spec.yaml"), "has no virtual cluster in spec.yaml, which has a, b"),
        (("--spec", "spec.yaml,bad.yaml"), "bad.yaml"),
        (
            ("--spec", "spec.yaml", "--trace", "trace.csv", "--seeds", 2),
            "--seeds: nothing is drawn from the trace trace.csv",
        ),
        (("--spec", "spec.yaml", "--trace", "trace.csv", "--tenant", "c"), "--tenant c: no such tenant"),
        (("--spec", "spec.yaml", "--trace", "trace.csv", "--metric", "mean"), "--metric mean: no such metric"),
    ],
    ids=str,
)
def test_wrong_input_is_one_clear_line(hived: Hived, folder: Path, words: tuple[object, ...], message: str) -> None:
    (folder / "bad.yaml").write_text(NODES.replace("n[0-1]", "n0"), encoding="utf-8")
    fewer = () if "--trace" in words else ("--trace-jobs", 50)
    answer = hived("sweep", *fewer, *words, "--out", "out")
    assert answer.code == 2
    assert message in one_line(answer.err)


POLICY = """\
from hived.policies import FIFO


class Mine(FIFO):
    name = "mine"

    def order(self, job):
        if BROKEN:
            raise RuntimeError("it is broken")
        return super().order(job)


BROKEN = False
"""


def test_policies_by_name_with_parameters_of_scripts_and_of_tenants(hived: Hived, folder: Path) -> None:
    (folder / "script_of_a_sweep.py").write_text(POLICY, encoding="utf-8")
    given = ("sweep", "--spec", "spec.yaml", "--trace", "trace.csv")
    names = "tiresias:limits=100/500,b=sjf,script_of_a_sweep:Mine"
    answer = hived(*given, "--policy", names, "--jobs", 2, "--out", "out")
    assert answer.code == 0, answer.err
    found = table(folder / "out")
    policies = ["tiresias:limits=100/500 b=sjf", "script_of_a_sweep:Mine b=sjf"]
    assert found["policy"].unique(maintain_order=True).to_list() == policies
    of_one = found.filter(policy=policies[0], scheme="hived", tenant="a")["mean_s"].to_list()
    hived("simulate", *given[1:], "--policy", "tiresias:limits=100/500", "--policy", "b=sjf", "--no-figures")
    (run,) = [run for run in summary(folder / "results")["runs"] if run["scheme"] == "hived"]
    assert of_one == pytest.approx([run["tenants"]["a"]["mean_s"]], abs=1e-6)


def test_a_script_that_has_changed_makes_other_runs(hived: Hived, folder: Path) -> None:
    script = folder / "script_that_changes.py"
    script.write_text(POLICY, encoding="utf-8")
    given = ("sweep", "--spec", "spec.yaml", "--trace", "trace.csv", "--policy", "script_that_changes:Mine")
    assert hived(*given, "--out", "out").code == 0
    script.write_text(POLICY + "# changed\n", encoding="utf-8")
    error = one_line(hived(*given, "--out", "out").err)
    assert re.search(r"sha256 .*script_that_changes:\w{8}, now", error)


def test_a_policy_that_raises_ends_the_sweep_with_its_run(hived: Hived, folder: Path) -> None:
    (folder / "broken_script.py").write_text(POLICY.replace("= False", "= True"), encoding="utf-8")
    given = ("sweep", "--spec", "spec.yaml", "--trace", "trace.csv", "--jobs", 1, "--out", "out")
    answer = hived(*given, "--policy", "fifo,broken_script:Mine")
    assert answer.code == 5
    assert one_line(answer.err).startswith("hived: policy=broken_script:Mine: policy mine, job j0")
    assert len(list((folder / "out" / "runs").iterdir())) == 1


def test_every_option_of_a_simulation_that_determines_results_is_one_of_a_sweep() -> None:
    renamed = {"jobs": "trace_jobs", "days": "trace_days", "seed": "seeds"}
    of_files = {"out", "tenant", "no_figures", "parquet", "overwrite"}
    options = {renamed.get(name, name) for name in signature(simulate).parameters if name not in of_files}
    assert options <= set(signature(sweep).parameters)


def test_a_folder_of_other_files_is_refused(hived: Hived, folder: Path) -> None:
    answer = hived(*SMALL, "--out", ".")
    assert answer.code == 2
    assert "holds other files than a sweep's" in one_line(answer.err)
    assert "is a file" in one_line(hived(*SMALL, "--out", "spec.yaml").err)


def test_without_polars_the_extra_is_named(hived: Hived, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    answer = hived(*SMALL, "--out", "out")
    assert answer.code == 2
    assert re.search(r"sweep.parquet needs Polars: .*\[research\]", one_line(answer.err))
    assert not (folder / "out").exists()
