"""summary.json against what the independent reader makes of the CSVs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from hived.policies.duration import SRTF
from hived.simulator import Scenario, Sharing, make_report, run_experiment
from hived.simulator.output import write_summary
from hived.simulator.report import shorter_under_quota
from hived.spec import parse_spec

from .helpers import Experiment, nodes_of_8, simulated, trace_of, trace_text
from .reader import JobRow, Outcome


@pytest.fixture(scope="module")
def summary(experiment: Experiment) -> Any:
    path = experiment.folder / "summary.json"
    write_summary(make_report(experiment.results), path)
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)


def compared(experiment: Experiment) -> set[str]:
    names = [{n for n, job in outcome.jobs.items() if job.finished} for outcome in experiment.outcomes.values()]
    return set.intersection(*names)


def percentile(values: list[float], percent: int) -> float:
    """Linear between the two values around the place."""
    place = (len(values) - 1) * percent / 100
    low, high = sorted(values)[int(place)], sorted(values)[math.ceil(place)]
    return low + (high - low) * (place - int(place))


def lost(outcome: Outcome, jobs: set[str] | None = None) -> float:
    """GPU-seconds that finished jobs held beyond their work."""
    return sum(
        job.gpus * (sum(run.end - run.start for run in outcome.runs[name]) - job.duration) / 1000
        for name, job in outcome.jobs.items()
        if job.finished and (jobs is None or name in jobs)
    )


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("tenant", ["a", "b", "c", "idle", "all"])
def test_delays_are_those_of_the_jobs(experiment: Experiment, summary: Any, number: int, tenant: str) -> None:
    run = summary["runs"][number]
    told = run["overall"] if tenant == "all" else run["tenants"][tenant]
    names = compared(experiment)

    def chosen(scheme: str) -> list[JobRow]:
        return [j for n, j in experiment[scheme].jobs.items() if n in names and tenant in ("all", j.tenant)]

    jobs = chosen(run["scheme"])
    assert told["jobs"] == len(jobs)
    if not jobs:
        assert told["mean_s"] is told["median_s"] is told["p95_s"] is told["queue_to_private"] is None
        return
    own, private = ([(job.queue or 0) / 1000 for job in of] for of in (jobs, chosen("private")))
    completion = [(job.finish or 0) / 1000 - job.submit / 1000 for job in jobs]
    for prefix, times in (("", own), ("completion_", completion)):
        assert told[f"{prefix}mean_s"] == pytest.approx(fmean(times), abs=1e-6)
        for name, percent in (("median", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
            assert told[f"{prefix}{name}_s"] == pytest.approx(percentile(times, percent), abs=2e-6)
    assert told["preemptions"] == sum(job.preemptions for job in jobs)
    assert told["lost_gpu_s"] == lost(experiment[run["scheme"]], {job.job_id for job in jobs})
    ratio = pytest.approx(sum(own) / sum(private), abs=1e-6) if sum(private) else None
    assert told["queue_to_private"] == ratio
    worse = [mine - base for mine, base in zip(own, private, strict=True) if mine > base]
    assert told["anomalies"]["jobs"] == len(worse)
    assert told["anomalies"]["minutes"] == pytest.approx(sum(worse) / 60, abs=1e-5)
    assert told["anomalies"]["worst_minutes"] == pytest.approx(max(worse, default=0) / 60, abs=1e-5)


@pytest.mark.parametrize("number", range(3))
def test_totals_are_those_of_the_files(experiment: Experiment, summary: Any, number: int) -> None:
    run = summary["runs"][number]
    assert (run["scheme"], run["policy"]) == (("private", "quota", "hived")[number], "yarn-cs")
    outcome = experiment[run["scheme"]]
    finished = sum(job.finished for job in outcome.jobs.values())
    assert (run["finished"], run["unfinished"]) == (finished, len(outcome.jobs) - finished)
    assert run["preemptions"] == sum(job.preemptions for job in outcome.jobs.values())
    assert run["makespan_s"] == max(job.finish or 0 for job in outcome.jobs.values()) / 1000
    window = max(job.submit for job in outcome.jobs.values())
    held = dict.fromkeys(("guaranteed", "opportunistic"), 0)
    for _, interval in outcome.all_runs():
        held[interval.kind] += len(interval.held) * (min(interval.end, window) - min(interval.start, window))
    assert run["utilization"] == pytest.approx(sum(held.values()) / window / 40, abs=1e-6)
    assert run["opportunistic"] == pytest.approx(held["opportunistic"] / window / 40, abs=1e-6)
    assert run["guaranteed"] == pytest.approx(held["guaranteed"] / window / 40, abs=1e-6)
    assert run["lost_gpu_s"] == lost(outcome) == 0, "a job that resumes loses nothing"


def test_restarted_work_is_lost(tmp_path: Path) -> None:
    """A loan of 3 GPUs is given back after 5 of 10 s, and starts from nothing; another one is not done at the end."""
    rows = [("own", "a", 0, 20, 8), ("lent", "a", 0, 10, 3), ("owner", "b", 5, 20, 8), ("again", "a", 15, 100, 4)]
    spec = nodes_of_8(2, {"a": 1, "b": 1})
    found = simulated(tmp_path, spec, trace_text(rows), schemes=["hived"], preempted="restart", until_s=40)
    assert [interval[:3] for interval in found["hived"].kinds("lent")] == [
        (0.0, 5.0, "opportunistic"),
        (20.0, 30.0, "guaranteed"),
    ]
    assert not found["hived"].jobs["again"].finished
    report = make_report(found.results)
    (run,) = report.runs
    assert run.lost_gpu_s == lost(found["hived"]) == 15
    assert (run.preemptions, run.preempted_gpus) == (1, 3)
    assert [tenant.delay.lost_gpu_s for tenant in run.tenants] == [15, 0]
    assert math.isnan(run.overall.to_private), "nothing is compared with private"
    assert run.overall.anomalies is None


def test_time_to_resume_is_lost_and_delays() -> None:
    """Shortest remaining time: the job of 8 GPUs is suspended at 10 s for one of 5 s, and pays 2 s to go on."""
    policy = SRTF()
    policy.resume_s = 2.0
    trace = trace_of(trace_text([("long", "a", 0, 30, 8), ("short", "a", 10, 5, 8)]))
    scenario = Scenario(schemes=Sharing.HIVED, policy=policy)
    (run,) = make_report(run_experiment(parse_spec(nodes_of_8(1, {"a": 1}), "spec"), trace, scenario)).runs
    assert (run.lost_gpu_s, run.preempted_gpus, run.makespan_s) == (2 * 8, 8, 37)
    assert (run.overall.delay.mean_s, run.overall.delay.completion_mean_s) == (7 / 2, (37 + 5) / 2)


def test_parts_of_a_reservation_add_up(summary: Any) -> None:
    parts = ("used", "free", "internal", "external")
    for run in summary["runs"]:
        of = {name: tenant["whole_nodes"] for name, tenant in run["tenants"].items()}
        assert {name: whole["gpus"] for name, whole in of.items()} == {"a": 8, "b": 8, "c": 16, "idle": 8}
        for whole in of.values():
            assert sum(whole[part] for part in parts) == pytest.approx(1, abs=3e-6)
        for part in ("internal", "external"):
            assert run[part] == pytest.approx(sum(w[part] * w["gpus"] for w in of.values()) / 40, abs=2e-6)
        everyone = run["overall"]["whole_nodes"]
        assert everyone["gpus"] == 40
        assert [everyone[part] for part in ("internal", "external")] == [run["internal"], run["external"]]
    private, quota, hived = summary["runs"]
    assert private["external"] == hived["external"] == 0 < quota["external"]


def test_the_head_describes_the_simulation(experiment: Experiment, summary: Any) -> None:
    """And names the jobs that never fit."""
    jobs = experiment["private"].jobs
    window = max(job.submit for job in jobs.values())
    assert (summary["trace"]["jobs"], summary["trace"]["window_s"]) == (200, window / 1000)
    assert (summary["cluster"]["gpus"], summary["cluster"]["nodes"]) == (40, 5)
    asked = sum(job.gpus * job.duration for job in jobs.values())
    assert summary["cluster"]["offered_load"] == pytest.approx(asked / window / 40, abs=1e-6)
    assert summary["compared_jobs"] == len(compared(experiment))
    told = {job["job_id"] for job in summary["never_fit_private"]}
    assert told == {n for n, job in jobs.items() if not job.finished}
    assert {(job["tenant"], job["gpus"]) for job in summary["never_fit_private"]} >= {("b", 16), ("c", 64)}
    assert not told & compared(experiment)


def test_an_end_bounds_time_and_load(tmp_path: Path) -> None:
    """One after the last job makes nothing longer; before it, only jobs submitted until then count."""
    trace = trace_text([("j", "a", 0, 50, 8), ("k", "a", 100, 50, 8), ("after", "a", 1000, 50, 8)])
    spec = nodes_of_8(1, {"a": 1})
    assert make_report(simulated(tmp_path, spec, trace, until_s=100).results).load == pytest.approx(1.0)
    report = make_report(simulated(tmp_path, spec, trace, until_s=1_000_000).results)
    assert {run.makespan_s for run in report.runs} == {1050.0}
    one = make_report(simulated(tmp_path, spec, trace_text([("j", "a", 0, 3600, 8)])).results)
    assert one.runs[2].overall.delay.mean_s == 0
    assert one.load <= 1, "8 GPUs for an hour cannot ask for more than all of 8 GPUs"


def test_tenants_better_off_by_quota_are_named(experiment: Experiment) -> None:
    runs = make_report(experiment.results).runs
    names = compared(experiment)

    def waited(scheme: str, tenant: str | None) -> int:
        jobs = experiment[scheme].jobs.items()
        return sum(job.queue or 0 for name, job in jobs if name in names and tenant in (None, job.tenant))

    expected = {tenant for tenant in (None, *"abc") if waited("quota", tenant) < waited("hived", tenant)}
    found = shorter_under_quota(runs)
    assert {tenant for tenant, _, _ in found} == expected
    assert expected, "the trace has such a tenant"
    assert shorter_under_quota([run for run in runs if run.scheme != "quota"]) == []
