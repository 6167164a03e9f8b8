"""``hived.simulate``: the command line's results as frames, figures and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import hived
from hived.cli import main
from hived.errors import HivedError
from hived.exchange import make_arbiter
from hived.policies import FIFO
from hived.scheduling import JobView
from hived.simulator.exchange import HourlyTrading
from hived.simulator.multi_job import Curve, Explorer, MultiJob
from hived.simulator.study import Study, simulate
from hived.simulator.traces import Trace, TraceJob, read_trace, trace_of
from hived.spec import load_spec, parse_spec

from .helpers import nodes_of_8, trace_text

SPEC = nodes_of_8(2, {"a": 1, "b": 1})
ROWS = [(f"{n:03}", "ab"[n % 2], n * 600, n * 997 % 4001, [1, 8, 4, 2][n % 4]) for n in range(40)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spec and a trace."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    (folder / "trace.csv").write_text(trace_text(ROWS), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def study(files: Path) -> Study:
    return simulate(files / "spec.yaml", files / "trace.csv")


def test_it_writes_what_the_command_writes(
    study: Study, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte; and results are never mixed."""
    assert hived.simulate is simulate
    command, ours = tmp_path / "command", tmp_path / "study"
    arguments = ["--spec", files / "spec.yaml", "--trace", files / "trace.csv", "--out", command]
    monkeypatch.setattr("sys.argv", ["hived", "simulate", "--parquet", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    assert study.save(ours, parquet=True, figures=False) == ours
    written = {path.name: path.read_bytes() for path in command.iterdir()}
    figures = {name for name in written if name.endswith((".svg", ".png"))}
    assert {path.name: path.read_bytes() for path in ours.iterdir()} == {
        name: data for name, data in written.items() if name not in figures
    }
    assert {"jobs.csv", "jobs.parquet", "runs.parquet", "delay-normalised-to-private-yarn-cs.svg"} <= set(written)
    with pytest.raises(HivedError, match="is not empty, and results are never mixed"):
        study.save(ours)
    study.save(ours, overwrite=True)
    assert not list(ours.glob("*.parquet"))
    assert figures <= {path.name for path in ours.iterdir()}


def test_frames_are_tables_of_the_files(study: Study, tmp_path: Path) -> None:
    study.save(tmp_path / "out", figures=False, parquet=True)
    text: dict[str, pl.DataType | type[pl.DataType]] = {"job_id": pl.String}  # as 007 is no number
    types = {"jobs": {**text, "alone_s": pl.Float64}, "runs": text, "series": {}}  # without models alone_s is empty
    for name, overrides in types.items():
        assert getattr(study, name).equals(pl.read_csv(tmp_path / "out" / f"{name}.csv", schema_overrides=overrides))
    for name in ("jobs", "runs"):
        assert pl.read_parquet(tmp_path / "out" / f"{name}.parquet").equals(getattr(study, name))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    for run in summary["runs"]:
        (row,) = study.schemes.filter(scheme=run["scheme"]).to_dicts()
        for name in ("utilization", "preemptions", "makespan_s"):
            assert row[name] == pytest.approx(run[name], abs=1e-6)
        for tenant, numbers in run["tenants"].items():
            (row,) = study.summary.filter(scheme=run["scheme"], tenant=tenant).to_dicts()
            assert row["mean_s"] == pytest.approx(numbers["mean_s"], abs=1e-6)
            assert row["anomalies_jobs"] == numbers["anomalies"]["jobs"]


def test_times_of_unended_jobs_are_null() -> None:
    huge = trace_text((f"j{n}", "a", n, 5, 64) for n in range(150))
    jobs = simulate(SPEC, pl.read_csv(huge.encode()), schemes="private").jobs
    assert jobs.schema["start_s"] == jobs.schema["queue_s"] == pl.Float64
    assert jobs["finish_s"].null_count() == 150
    assert not jobs["finished"].any()


def test_frames_of_pandas(study: Study, tmp_path: Path) -> None:
    """And it reads every file with its defaults."""
    pandas = pytest.importorskip("pandas")
    other = study.to_pandas()
    for name in ("jobs", "runs", "series", "summary", "schemes"):
        frame = getattr(other, name)
        assert isinstance(frame, pandas.DataFrame)
        assert list(frame.columns) == getattr(study, name).columns
    assert other.jobs["queue_s"].dtype == "float64"
    assert other.jobs["job_id"].iloc[7] == "007"
    study.save(tmp_path / "out", figures=False)
    jobs = pandas.read_csv(tmp_path / "out" / "jobs.csv")
    assert [str(jobs[name].dtype) for name in ("gpus", "queue_s", "finished")] == ["int64", "float64", "bool"]
    assert jobs["queue_s"].tolist() == study.jobs["queue_s"].to_list()


def test_specs_and_traces_in_any_form(study: Study, files: Path) -> None:
    path, text = files / "spec.yaml", (files / "spec.yaml").read_text(encoding="utf-8")
    specs: list[Any] = [str(path), text + "\n", json.loads(SPEC), parse_spec(SPEC, "mine")]
    for spec in specs:
        hived_alone = simulate(spec, files / "trace.csv", schemes=["hived"])
        assert hived_alone.runs.equals(study.runs.filter(scheme="hived"))
    path = files / "trace.csv"
    traces = [str(path), pl.read_csv(path, schema_overrides={"job_id": pl.String}), read_trace(path)]
    for trace in traces:
        assert simulate(load_spec(files / "spec.yaml"), trace, schemes="quota").jobs.equals(
            study.jobs.filter(scheme="quota")
        )
    named = simulate(SPEC, Trace("t", (GOOD._replace(user="007", priority=3), GOOD._replace(job_id="k"))))
    assert trace_of(named.trace).jobs == named.results.trace.jobs
    assert named.trace["user"].to_list() == ["007", None]
    assert "priority" not in study.trace.columns


def test_a_trace_is_shaped_in_order(files: Path) -> None:
    part = simulate(
        SPEC, files / "trace.csv", filter="gpus < 8", window=(0.1, 0.25), sample=0.9, seed=3, clock_compression=2
    )
    trace = part.results.trace
    assert trace.name == "trace, gpus < 8, days 0.1:0.25, sample 0.9 seed 3, clock x2"
    assert 0 < len(trace.jobs) < 20
    assert trace.jobs[-1].submit_ms < 0.15 * 86_400_000 / 2


def test_figures_are_drawn_by_name(study: Study) -> None:
    assert list(study.figures()) == ["delay", "normalised"]
    assert len(study.figure("delay").axes) == 3
    one = simulate(SPEC, study.results.trace, schemes="hived", tenants=["b"])
    assert list(one.figures()) == ["delay"]
    assert [axis.get_ylabel() for axis in one.figure("delay").axes] == ["b\ndelay (min)", "fragmented\nnodes (%)"]
    with pytest.raises(HivedError, match="figure 'delays': no such figure; there is delay, normalised"):
        study.figure("delays")
    with pytest.raises(HivedError, match="figure delay, policy fifo: no such run"):
        study.figure("delay", policy="fifo")


def test_policies_in_any_form(files: Path) -> None:
    """Names or objects; several make several runs, and a mapping is of tenants."""

    class LargestFirst(FIFO):
        name = "largest-first"

        def order(self, job: JobView) -> tuple[float, ...]:
            return (-job.gpus, job.sequence)

    several = simulate(SPEC, files / "trace.csv", schemes="hived", policy=["yarn-cs", LargestFirst()])
    assert several.schemes["policy"].to_list() == ["yarn-cs", "largest-first"]
    assert list(several.figures()) == ["delay-yarn-cs", "delay-largest-first"]
    waits = several.jobs.filter(gpus=8).group_by("policy").agg(pl.col("queue_s").mean())
    assert dict(waits.iter_rows())["largest-first"] < dict(waits.iter_rows())["yarn-cs"]
    mixed = simulate(SPEC, files / "trace.csv", schemes="private", policy={"b": LargestFirst()})
    alone = simulate(SPEC, files / "trace.csv", schemes="private", policy=["yarn-cs", LargestFirst()])
    for tenant, policy in (("a", "yarn-cs"), ("b", "largest-first")):
        mine = alone.jobs.filter(tenant=tenant, policy=policy).drop("policy")
        assert mixed.jobs.filter(tenant=tenant).drop("policy").equals(mine)


def test_it_is_worth_seeing_in_a_notebook(study: Study) -> None:
    assert repr(study).splitlines()[0].startswith("trace: 40 jobs over 0.3 days, asking for ")
    runs = [line.split(":")[0] for line in repr(study).splitlines()[1:]]
    assert runs == ["private yarn-cs", "quota yarn-cs", "hived yarn-cs"]
    named = simulate(SPEC, Trace("<b>", study.results.trace.jobs))
    assert "&lt;b&gt;: 40 jobs" in named._repr_html_()
    assert named._repr_html_().count("<tr>") == 4


@pytest.mark.slow
def test_the_default_shows_what_quota_costs() -> None:
    first = simulate()
    assert 0.75 < first.report.load < 0.9
    worse = {run.scheme: run.overall.anomalies for run in first.report.runs}
    assert worse["quota"] is not None
    assert worse["quota"].jobs > 100
    assert worse["hived"] is not None
    assert worse["hived"].jobs == 0
    assert any(tenant.to_private > 1 for tenant in first.report.runs[1].tenants)


def test_progress_in_the_callers_context(files: Path) -> None:
    said: list[object] = []

    @contextmanager
    def progress(labels: list[str], jobs: int) -> Iterator[Any]:
        said.append((labels, jobs))
        yield lambda label, done: said.append((label, done))
        said.append("ended")

    simulate(SPEC, files / "trace.csv", schemes="hived", progress=progress)
    assert said == [(["hived yarn-cs"], 40), ("hived yarn-cs", 40), "ended"]


GOOD = TraceJob("j", "a", 5, 5, 1, "pass")
EARLY = GOOD._replace(job_id="k", submit_ms=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"schemes": "hive"},
            "schemes[0]: expected 'private', 'quota' or 'hived', not the text `hive`",
        ),
        ({"schemes": []}, "schemes: is empty: at least one entry is needed"),
        ({"preempted": "die"}, "preempted: expected 'resume' or 'restart', not the text `die`"),
        ({"until": 0}, "until: must be above 0, not 0"),
        ({"tenants": ["c"]}, "tenant c: no such tenant in spec, which has a, b"),
        ({"until": 0, "seed": -1}, "until: must be above 0, not 0; seed: must be at least 0, not -1"),
        ({"nodes": 3}, "nodes: has no effect beside `spec`: give one of them"),
        ({"sed": 3}, "sed: unknown key `sed` (did you mean `seed`?); allowed here: spec, trace, "),
        ({"frames": "numpy"}, "frames 'numpy': give polars or pandas"),
        ({"trace": 7}, "trace: expected a path, a frame, jobs or a Trace, not int"),
        ({"spec": 7}, "spec: expected a path, YAML text, a mapping or a ClusterSpec, not int"),
        ({"trace": Trace("t", ())}, "t: no jobs: a trace needs at least one"),
        ({"trace": Trace("t", (GOOD, GOOD))}, "t: job 2 of the trace cannot be simulated: job_id 'j' is already job 1"),
        ({"trace": Trace("t", (GOOD, EARLY))}, "t: job 2 comes before job 1; sort jobs by submit_ms"),
        ({"trace": "nothing.csv"}, "nothing.csv: "),
        ({"exchange": "barter"}, "exchange: expected 'balanced' or 'auction', not the text `barter`"),
        ({"safety": "perfect"}, "safety: expected 'work-conserving' or 'exact', not the text `perfect`"),
    ],
)
def test_what_is_wrong_is_one_line(files: Path, options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"spec": SPEC + "\n", "trace": files / "trace.csv"} | options
    with pytest.raises(HivedError) as caught:
        simulate(**given)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_jobs_in_memory_are_a_trace(files: Path) -> None:
    study = simulate(SPEC, list(read_trace(files / "trace.csv").jobs))
    assert study.trace.equals(simulate(SPEC, files / "trace.csv").trace)
    assert study.record("quota") is study.results.records[1]
    with pytest.raises(HivedError, match="record: 3 runs of private yarn-cs, quota yarn-cs, hived yarn-cs; give the"):
        study.record()
    with pytest.raises(HivedError, match="record: 0 runs of private"):
        study.record(policy="fifo")
    with pytest.raises(HivedError, match="jobs: no jobs: a trace needs at least one"):
        simulate(SPEC, [])


def test_driver_has_jobs_of_its_own(files: Path, tmp_path: Path) -> None:
    """They are in every table, also those that it ends."""

    def explorer() -> Explorer:
        curves = tuple([Curve(final) for final in (0.5, 0.9, 0.6)])
        return Explorer([MultiJob("search", "a", 1, 100, curves, 0.9, first=2, error=0.0)], 0, True)

    driver = explorer()
    study = simulate(SPEC, [], policy="gandiva", schemes="private", driver=driver)
    assert study.jobs["job_id"].to_list() == ["search-0", "search-1", "search-2"]
    assert study.record().finish[1] == driver.ended["search"]
    assert study.schemes.select("finished", "unfinished").row(0) == (2, 1)
    study.save(tmp_path / "out", figures=False)
    assert not (tmp_path / "out" / "scenario.yaml").exists(), "it would not give these results again"
    after = Explorer([MultiJob("search", "a", 1, 100, (Curve(0.9),), 0.9)], 40, False)
    both = simulate(SPEC, files / "trace.csv", schemes="private", driver=after)
    assert both.jobs["job_id"].to_list() == [*(f"{number:03}" for number in range(40)), "search-0"]
    with pytest.raises(HivedError, match=r"3 runs .* with one driver or trading: give one scheme and one policy"):
        simulate(SPEC, [], policy="gandiva", driver=explorer())
    with pytest.raises(HivedError, match=r"tenant a .* has no virtual cluster"):
        simulate(nodes_of_8(1, {"b": 1}), [], schemes="private", driver=explorer())


def test_trading_in_place_of_exchange(tmp_path: Path) -> None:
    jobs = [GOOD._replace(job_id=f"a{n}", duration_ms=30 * 3_600_000, gpus=8) for n in range(2)]
    spec = parse_spec(nodes_of_8(4, {"a": 1, "b": 3}), "spec")
    trading = HourlyTrading(spec, make_arbiter("balanced"))
    study = simulate(spec, jobs, schemes="hived", trading=trading)
    assert study.record().trades == simulate(spec, jobs, schemes="hived", exchange="balanced").record().trades != []
    study.save(tmp_path / "out", figures=False)
    assert (tmp_path / "out" / "trades.csv").exists()
    with pytest.raises(
        HivedError, match="trading under private yarn-cs: cells are traded under the scheme hived alone"
    ):
        simulate(spec, jobs, schemes="private", trading=trading)
    with pytest.raises(HivedError, match="exchange with exact safety"):
        simulate(spec, jobs, schemes="hived", safety="exact", trading=trading)


def test_trades_are_written(tmp_path: Path) -> None:
    trace = trace_text([("a1", "a", 0, 30 * 3600, 8), ("a2", "a", 60, 30 * 3600, 8), ("b1", "b", 0, 20 * 3600, 8)])
    (tmp_path / "t.csv").write_text(trace, encoding="utf-8")
    given: dict[str, Any] = {"spec": nodes_of_8(4, {"a": 1, "b": 3}), "trace": tmp_path / "t.csv", "schemes": ["hived"]}
    study = simulate(**given, exchange="balanced")
    study.save(tmp_path / "out", figures=False)
    rows = (tmp_path / "out" / "trades.csv").read_text(encoding="utf-8").splitlines()
    # a2 runs on a loan and is in line; once b has had two idle nodes for ten hours, a takes one
    assert rows[1].startswith("yarn-cs,b,a,NODE,4,1,39600,75600,80,1")
    kinds = {run.kind.value for run in study.results.records[0].runs if run.job == 2}
    assert kinds == {"opportunistic", "guaranteed"}
    assert study.results.records[0].finish == simulate(**given).results.records[0].finish


def test_giver_has_back_what_its_job_needs(tmp_path: Path) -> None:
    """Its only node is lent to a tenant with jobs for days, and its one job starts as if it had never been given."""
    jobs = [(f"b{n}", "b", 0, 36_000, 8) for n in range(30)] + [(f"c{n}", "b", 3600 * n, 60, 1) for n in range(13, 40)]
    (tmp_path / "t.csv").write_text(trace_text([("a", "a", 43_200, 3600, 8), *jobs]), encoding="utf-8")
    given: dict[str, Any] = {"spec": nodes_of_8(2, {"a": 1, "b": 1}), "trace": tmp_path / "t.csv", "schemes": ["hived"]}
    study = simulate(**given, exchange="balanced")
    study.save(tmp_path / "out", figures=False)
    trades = (tmp_path / "out" / "trades.csv").read_text(encoding="utf-8").splitlines()
    assert trades[1].startswith("yarn-cs,a,b,NODE,4,1,39600,43200,8,1"), "it has ended as the job came"
    (record,) = study.results.records
    (first,) = [at for job, at in zip(record.jobs, record.first_start, strict=True) if job.job_id == "a"]
    assert first == 43_200_000


def test_who_was_first_is_first_after_a_trade(tmp_path: Path) -> None:
    """Jobs that wait for their turn alone: a trade is over, and its taker has one node again for two of them."""
    rows = [("a", "t0", 0, 50_400), ("b", "t0", 3600, 144_000), ("d", "t1", 43_200, 200_000)]
    rows += [("c", "t0", 52_000, 72_000), ("e", "t2", 54_000, 100_000)]
    text = "job_id,tenant,submit_s,duration_s,gpus,status,mode\n"
    text += "".join(f"{name},{vc},{at},{lasts},8,pass,guaranteed\n" for name, vc, at, lasts in rows)
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    given: dict[str, Any] = {"spec": nodes_of_8(3, {"t0": 1, "t1": 1, "t2": 1}), "trace": tmp_path / "t.csv"}
    (record,) = simulate(**given, schemes=["hived"], exchange="balanced").results.records
    times = {job.job_id: (begun, end) for job, begun, end in zip(
        record.jobs, record.first_start, record.finish, strict=True)}  # fmt: skip
    assert times["b"] == (39_600_000, 39_600_000 + 144_000_000)
    assert times["c"][1] == times["b"][1] + 70_000_000, "it had worked for 2000 s, and goes on where b was"


def traded(folder: Path, vcs: dict[str, int], rows: str, exchange: str | None = "balanced") -> dict[str, list[str]]:
    """When each job ran, in hours and with its kind, where tenants of so many nodes of 8 trade."""
    columns = "job_id,tenant,submit_s,duration_s,gpus,status,mode"
    (folder / "t.csv").write_text("\n".join([columns, *rows.split()]), encoding="utf-8")
    given: dict[str, Any] = {"spec": nodes_of_8(4, vcs), "trace": folder / "t.csv", "schemes": ["hived"]}
    (record,) = simulate(**given, exchange=exchange).results.records
    found: dict[str, list[str]] = {job.job_id: [] for job in record.jobs}
    for run in sorted(record.runs, key=lambda run: run.start):
        text = f"{run.start / 3_600_000:g}-{run.end / 3_600_000:g} {run.kind.value[0]}"
        found[record.jobs[run.job].job_id].append(text)
    return found


def test_nobody_gives_what_its_jobs_stand_on_without_what_it_took(tmp_path: Path) -> None:
    """a has taken a node, and its jobs use two, as many as it owns: it gives none, since the taken one goes back."""
    rows = """
        A1,a,0,216000,8,pass, A2,a,0,216000,8,pass, A3,a,37800,1800,8,pass,guaranteed
        C1,c,43920,144000,8,pass, C2,c,44280,144000,8,pass,guaranteed B1,b,77400,18000,8,pass,
    """
    vcs = {"a": 2, "b": 1, "c": 1}
    assert traded(tmp_path, vcs, rows)["A2"] == traded(tmp_path, vcs, rows, None)["A2"] == ["0-60 g"]


def test_who_is_first_in_line_is_restored_first(tmp_path: Path) -> None:
    """b has a node of a back; of its two jobs that had lost theirs the first in line has it, not the one that runs."""
    rows = """
        j8,c,72000,21600,8,pass, j9,b,100800,50400,8,pass, j11,b,104400,64800,8,pass, j12,b,111600,72000,8,pass,
        j13,a,135000,25200,16,pass,
    """
    found = traded(tmp_path, {"a": 2, "b": 1, "c": 1}, rows)
    assert found["j11"][-1].startswith("38-"), found
    assert found["j11"][-1].endswith(" g")


def test_who_has_nobody_to_trade_with_trades_nothing(tmp_path: Path) -> None:
    assert traded(tmp_path, {"a": 4}, "j0,a,0,72000,32,pass, j1,a,0,7200,8,pass,")["j1"] == ["20-22 g"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"exchange": "balanced", "safety": "exact"}, "a private cluster trades no cells"),
        ({"exchange": "balanced", "binding": "static"}, "cells that are bound for good change no hands"),
        ({"exchange": "balanced", "policy": "gandiva"}, "trades of cells under them are not simulated"),
    ],
)
def test_where_trades_cannot_be(files: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(HivedError, match=says):
        simulate(SPEC, files / "trace.csv", **options)
