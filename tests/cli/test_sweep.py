"""``hived sweep``: the file, the table, interruptions, errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars
import pytest

from hived.simulator import parallel
from hived.simulator.intervals import estimate
from hived.simulator.sweep import OPTIONS

from .helpers import HEADER, HIVED, NODES, Hived

SMALL = ("sim", "sweep", "--nodes", "20,30", "--jobs", 150, "--days", 1, "--seeds", 2)
GIVEN = ("--spec", "spec.yaml", "--trace", "trace.csv")
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
#: once a run has ended, the others wait for a file
GATED = """\
import time
from pathlib import Path

from hived.policies import FIFO


class Gated(FIFO):
    name = "gated"

    def __init__(self):
        super().__init__()
        while any(Path("out/runs").glob("*.json")) and not Path("go").exists():
            time.sleep(0.01)
"""


def table(folder: Path) -> polars.DataFrame:
    return polars.read_parquet(folder / "sweep.parquet")


def summary(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def one_line(answer: str) -> str:
    """The error, which is the last line."""
    assert "Traceback" not in answer
    return answer.splitlines()[-1]


class Here(Executor):
    """What another process would do is done at once."""

    def submit(self, do: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(do(*arguments))
        return future


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what a test starts itself: processes take longer to start than to simulate."""
    monkeypatch.setattr(parallel, "_pool", lambda _: nullcontext(Here()))


def test_table_of_means(hived: Hived, folder: Path) -> None:
    """A row for every run, scheme and tenant, and one for all tenants; means with intervals over the seeds."""
    answer = hived(*SMALL, "--out", "out", "--metric", "mean_s,jobs", "--tenant", "all,res-f")
    found = table(folder / "out")
    assert found.shape[0] == 2 * 2 * 3 * 12
    assert found.columns[: len(OPTIONS) + 2] == [*OPTIONS, "scheme", "tenant"]
    kinds = {
        "spec": polars.String, "until": polars.Float64, "nodes": polars.Int64, "soft": polars.Float64,
        "opportunistic": polars.Boolean, "tenant": polars.String,
    }  # fmt: skip  # whether a value is given or not
    assert {name: found.schema[name] for name in kinds} == kinds
    keys = found.select("nodes", "seed", "scheme", "tenant")
    assert keys.n_unique() == len(keys)
    assert found.filter(polars.col("tenant").is_null())["run_finished"].null_count() == 0
    assert found.filter(polars.col("tenant").is_not_null())["run_finished"].null_count() == 2 * 2 * 3 * 11
    assert "2 seeds ± half of the 95% confidence interval (Student's t)" in answer.out
    lines = [line.split() for line in answer.out.splitlines()]
    assert lines[1] == ["nodes", "scheme", "tenant", "mean_s", "jobs"]
    assert len([line for line in lines if line[:1] in (["20"], ["30"])]) == 2 * 3 * 2
    expected = estimate(found.filter(nodes=30, scheme="quota", tenant="res-f")["mean_s"].to_list())
    assert expected.half is not None
    (row,) = [line for line in lines if line[:3] == ["30", "quota", "res-f"]]
    mean, sign, half = row[3:6]
    assert sign == "±"
    assert float(mean.replace(",", "")) == pytest.approx(expected.mean, abs=0.5)
    assert float(half.replace(",", "")) == pytest.approx(expected.half, abs=0.5)


def test_numbers_of_a_simulation(hived: Hived, folder: Path) -> None:
    """One seed has no interval."""
    given = (*GIVEN, "--clock-compression", 2, "--preempted", "restart")
    answer = hived("sim", "sweep", *given, "--out", "out")
    assert answer.code == 0
    assert "one seed, so no confidence intervals" in answer.out
    assert "±" not in answer.out
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


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
)
def test_stopped_sweep_continues(hived: Hived, folder: Path, stop: signal.Signals, code: int) -> None:
    """No finished run is repeated, and the bytes are the same, as of one process."""
    (folder / "gated_script.py").write_text(GATED, encoding="utf-8")
    given = ("sim", "sweep", *GIVEN, "--policy", "gated_script:Gated", "--clock-compression", "1,2,3,4")
    words = [str(word) for word in (*given, "--processes", 2, "--out", "out")]
    # a group of its own, to which a terminal would send Ctrl-C
    process = subprocess.Popen([*HIVED, *words], cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (finished := list((folder / "out" / "runs").glob("*.json"))):
        assert process.poll() is None, "ended before it could be stopped"
        time.sleep(0.01)
    os.killpg(process.pid, stop) if stop == signal.SIGINT else process.send_signal(stop)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in err
    assert not (folder / "out" / "sweep.parquet").exists()
    if stop == signal.SIGINT:
        assert "finished runs are kept in out, and the same command continues" in err
    (folder / "go").touch()
    before = {path: path.stat().st_mtime_ns for path in finished}
    assert hived(*words).code == 0, "a process that was killed still holds the folder"
    assert {path: path.stat().st_mtime_ns for path in finished} == before, "a finished run ran again"
    assert hived(*given, "--out", "whole").code == 0
    assert (folder / "out" / "sweep.parquet").read_bytes() == (folder / "whole" / "sweep.parquet").read_bytes()
    assert sorted(path.name for path in (folder / "out").rglob("*")) == sorted(
        path.name for path in (folder / "whole").rglob("*")
    )


def test_longer_lists_add_runs(hived: Hived, folder: Path) -> None:
    small = ("sim", "sweep", "--jobs", 100, "--days", 1, "--out", "out")
    assert hived(*small, "--nodes", 20, "--seeds", 1).code == 0
    (first,) = (folder / "out" / "runs").iterdir()
    before = first.stat().st_mtime_ns
    assert hived(*small, "--nodes", "30,20", "--seeds", 2).code == 0
    assert len(list((folder / "out" / "runs").iterdir())) == 4
    assert first.stat().st_mtime_ns == before
    assert table(folder / "out")["nodes"].unique(maintain_order=True).to_list() == [30, 20]


def test_results_of_other_options(hived: Hived, folder: Path) -> None:
    """They are refused, as are those of another trace or another script."""
    (folder / "script_that_changes.py").write_text(POLICY, encoding="utf-8")
    given = ("sim", "sweep", *GIVEN, "--policy", "script_that_changes:Mine", "--out", "out")
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
    (folder / "script_that_changes.py").write_text(POLICY + "# changed\n", encoding="utf-8")
    assert re.search(r"sha256 .*script_that_changes:\w{8}, now", one_line(hived(*given).err))
    (folder / "script_that_changes.py").write_text(POLICY, encoding="utf-8")
    (folder / "trace.csv").write_text(HEADER + "j,a,0,10,1,pass\n")
    assert re.search(r"sha256 .*trace.csv:(\w{8}).*, now .*trace.csv:(?!\1)\w{8}", one_line(hived(*given).err))
    assert table(folder / "out").equals(before)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        # the clock of the second run leaves the range of a trace
        (("--clock-compression", "1,1e-9"), 2, "clock_compression=1e-09: a clock compressed by 1e-09 runs past"),
        (("--policy", "fifo,broken_script:Mine"), 5, "policy=broken_script:Mine: policy mine, job j0"),
    ],
)
def test_run_that_fails(hived: Hived, folder: Path, more: tuple[str, str], code: int, said: str) -> None:
    """It ends the sweep with its name, and finished runs stay."""
    (folder / "broken_script.py").write_text(POLICY.replace("= False", "= True"), encoding="utf-8")
    given = ("sim", "sweep", *GIVEN, "--processes", 1, "--out", "out")
    answer = hived(*given, *more)
    assert answer.code == code
    assert one_line(answer.err).startswith(f"hived: {said}")
    assert len(list((folder / "out" / "runs").iterdir())) == 1
    assert not (folder / "out" / "sweep.parquet").exists()
    assert hived(*given, more[0], more[1].split(",")[0]).code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--nodes", "20,x"), "--nodes: expected a whole number, not the text `x`"),
        (("--nodes", "20,,30"), "--nodes 20,,30: a value is empty"),
        (("--policy", "yarn-cs,best"), "unknown policy 'best'; there are yarn-cs"),
        (("--policy", "nobody=fifo"), "policy=yarn-cs nobody=fifo seed=1: policy nobody=fifo: no tenant 'nobody'"),
        (("--policy", "c=fifo", *GIVEN), "policy c=fifo: no tenant 'c'"),
        (("--clock-compression", "fast"), "--clock-compression: expected a number, not the text `fast`"),
        (("--until", "0"), "--until: must be above 0, not 0"),
        (("--spec", "spec.yaml", "--nodes", "3"), "--nodes: has no effect beside `spec`: give one of them"),
        (("--spec", "spec.yaml", "--quotas", "table1"), "--quotas: has no effect beside `spec`: give one of them"),
        (("--window", "3"), "--window: expected two days"),
        (("--soft", "0,2"), "--soft: must be at most 1.0, not 2"),
        (("--trace", "trace.csv", "--jobs", "3"), "--jobs: has no effect beside `trace`: give one of them"),
        (("--spec", "none.yaml"), "none.yaml: "),
        (("--spec", "spec.yaml"), "has no virtual cluster in spec.yaml, which has a, b"),
        (("--spec", "spec.yaml,bad.yaml"), "bad.yaml"),
        ((*GIVEN, "--seeds", 2), "--seeds: nothing is drawn from the trace trace.csv"),
        ((*GIVEN, "--tenant", "c"), "--tenant c: no such tenant"),
        ((*GIVEN, "--metric", "mean"), "--metric mean: no such metric"),
        (("--out", "."), "holds other files than a sweep's"),
        (("--out", "spec.yaml"), "is a file"),
    ],
    ids=str,
)
def test_wrong_input(hived: Hived, folder: Path, words: tuple[object, ...], message: str) -> None:
    (folder / "bad.yaml").write_text(NODES.replace("n[0-1]", "n0"), encoding="utf-8")
    fewer = () if "--trace" in words else ("--jobs", 50)
    answer = hived("sim", "sweep", *fewer, "--out", "out", *words)
    assert answer.code == 2
    assert message in one_line(answer.err)


def test_policies_of_scripts_and_tenants(hived: Hived, folder: Path) -> None:
    """By name, with parameters."""
    (folder / "script_of_a_sweep.py").write_text(POLICY, encoding="utf-8")
    names = "tiresias:limits=100/500,b=sjf,script_of_a_sweep:Mine"
    answer = hived("sim", "sweep", *GIVEN, "--policy", names, "--processes", 2, "--out", "out")
    assert answer.code == 0, answer.err
    found = table(folder / "out")
    policies = ["tiresias:limits=100/500 b=sjf", "script_of_a_sweep:Mine b=sjf"]
    assert found["policy"].unique(maintain_order=True).to_list() == policies
    of_one = found.filter(policy=policies[0], scheme="hived", tenant="a")["mean_s"].to_list()
    hived("simulate", *GIVEN, "--policy", "tiresias:limits=100/500", "--policy", "b=sjf", "--no-figures")
    (run,) = [run for run in summary(folder / "results")["runs"] if run["scheme"] == "hived"]
    assert of_one == pytest.approx([run["tenants"]["a"]["mean_s"]], abs=1e-6)
