"""``runs.csv`` and ``jobs.csv`` of jobs that share GPUs: what the columns share, rate and alone_s add up to."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from hived.policies import Gandiva
from hived.simulator import Options, Sharing, run_experiment
from hived.simulator.experiment import Results
from hived.simulator.output import write_jobs, write_runs
from hived.simulator.traces import Trace
from hived.simulator.traces.model import MS

from .test_gandiva import cluster_spec, job

JOBS = [job(f"j{number}", 1, 30, at=number / 10, model=name) for number, name in enumerate(["vae", "rhn"] * 3)]


@pytest.fixture(scope="module")
def shared() -> Results:
    """Six jobs on the four GPUs of a node: they take turns, and some are packed."""
    trace = Trace("shared", tuple(JOBS), True)
    return run_experiment(cluster_spec(1), trace, Options((Sharing.PRIVATE,), (Gandiva(),), opportunistic=False))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_rates_add_up_to_the_work_of_every_job_and_the_rest_of_its_time_is_its_delay(
    shared: Results, tmp_path: Path
) -> None:
    write_runs(shared, tmp_path / "runs.csv")
    write_jobs(shared, tmp_path / "jobs.csv")
    work: dict[str, float] = defaultdict(float)
    runs = rows(tmp_path / "runs.csv")
    for row in runs:
        work[row["job_id"]] += float(row["rate"]) * (float(row["end_s"]) - float(row["start_s"]))
    jobs = rows(tmp_path / "jobs.csv")
    for row in jobs:
        assert float(row["alone_s"]) == float(row["duration_s"]) == 1800.0
        assert work[row["job_id"]] == pytest.approx(1800.0, abs=0.02)
        assert float(row["queue_s"]) == pytest.approx(float(row["finish_s"]) - float(row["submit_s"]) - 1800.0)
    assert len(jobs) == 6
    assert all("." in row[name] or "e" in row[name] for row in runs for name in ("share", "rate"))
    assert len({float(row["share"]) for row in runs} - {1.0}) > 0, "some take turns"
    assert any(float(row["rate"]) < 0.99 * float(row["share"]) for row in runs), "some are packed"


def test_jobs_without_models_have_no_time_alone_and_wait_by_their_duration(tmp_path: Path) -> None:
    trace = Trace("plain", tuple(JOBS), True)
    plain = run_experiment(cluster_spec(1), trace, Options((Sharing.PRIVATE,)))
    write_jobs(plain, tmp_path / "jobs.csv")
    write_runs(plain, tmp_path / "runs.csv")
    assert {row["alone_s"] for row in rows(tmp_path / "jobs.csv")} == {""}
    assert {(row["share"], row["rate"]) for row in rows(tmp_path / "runs.csv")} == {("1.0", "1.0")}
    (record,) = plain.records
    assert record.alone == []
    assert [record.queue(number) for number in (0, 4)] == [0, record.finish[4] - JOBS[4].submit_ms - 30 * 60 * MS]
    assert record.queue(4) > 0
