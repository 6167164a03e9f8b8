"""GPUs that jobs share count once, in metrics and files: against a count of every GPU at every moment, and by hand."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hived.cluster.decisions import Placement, PodPlacement
from hived.policies import AntMan, Gandiva
from hived.scheduling import Kind, Policy
from hived.simulator import Scenario, Sharing, make_report, run_experiment
from hived.simulator.experiment import Results
from hived.simulator.metrics import Usage, lost_work, series
from hived.simulator.output import write_table
from hived.simulator.record import Record, Run
from hived.simulator.tables import jobs_table, runs_table
from hived.simulator.traces import Trace, TraceJob

from .sharing import MINUTE, MODELS, cluster_spec, job

HOUR = 60 * MINUTE
OWN, GUEST = Kind.GUARANTEED, Kind.GUEST


def shared(jobs: list[TraceJob], policy: Policy, nodes: int = 1, scheme: Sharing = Sharing.HIVED) -> Results:
    trace = Trace("shared", tuple(sorted(jobs, key=lambda one: one.submit_ms)), True)
    scenario = Scenario(schemes=[scheme], policy=policy, opportunistic=isinstance(policy, AntMan))
    return run_experiment(cluster_spec(nodes), trace, scenario)


def on_gpus(record: Record, *kinds: Kind) -> float:
    """GPU time in which a GPU has a run of these kinds, a moment and a GPU at a time."""
    edges = sorted({time for run in record.runs for time in (run.start, run.end)})
    total = 0
    for start, end in pairwise(edges):
        held = {
            (pod.node, leaf)
            for run in record.runs
            if run.kind in kinds and run.start <= start and end <= run.end
            for pod in run.placement.pods
            for leaf in pod.leaf_cells
        }
        total += len(held) * (end - start)
    return total


def many(seed: int) -> list[TraceJob]:
    """Jobs of 1 to 4 GPUs of all models, more than a node has room for."""
    draw = random.Random(seed)
    models = [model.model for model in MODELS]
    return [
        job(f"j{n}", draw.choice([1, 1, 1, 2, 2, 4]), draw.uniform(5, 90), draw.uniform(0, 240), draw.choice(models))
        for n in range(40)
    ]


@pytest.mark.parametrize("policy", [Gandiva, AntMan])
@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3)]])
def test_utilization_is_time_of_used_gpus(policy: type[Policy], seed: int) -> None:
    found = shared(many(seed), policy(), nodes=2)
    (record,) = found.records
    usage = Usage(found, record)
    held, guaranteed, guests = (
        int((spans.weight * (spans.end - spans.start)).sum())
        for spans in (usage.pods.held, usage.pods.held.of(usage.pods.guaranteed), usage.pods.guests)
    )
    assert held == on_gpus(record, Kind.GUARANTEED, Kind.OPPORTUNISTIC)
    assert guaranteed == on_gpus(record, Kind.GUARANTEED) > 0
    assert guests == on_gpus(record, Kind.GUEST)
    by_hour = series(found, record, usage=usage)
    assert by_hour.utilization.max() <= 1
    assert np.allclose(by_hour.utilization, by_hour.guaranteed + by_hour.opportunistic)
    if policy is AntMan:
        assert guests > 0
    else:
        assert any(run.share < 1 for run in record.runs)
        assert sum(run.gpus * (run.end - run.start) for run in record.runs) > held, "some GPU has several jobs"


def made(*runs: tuple[int, int, int, Kind, tuple[int, ...], float, float]) -> tuple[Results, Record]:
    """A record made by hand, of a node of 4: job, from and to in hours, kind, GPUs, share, rate."""
    found = shared([job(f"j{n}", 1, 60) for n in range(6)], Gandiva(packs=False))
    (record,) = found.records
    place = record.runs[0].placement
    node = place.pods[0].node

    def at(leaves: tuple[int, ...]) -> Placement:
        return replace(place, pods=(PodPlacement(node, leaves),))

    record.runs[:] = [
        Run(number, start * HOUR, end * HOUR, kind, at(leaves), share, rate)
        for number, start, end, kind, leaves, share, rate in runs
    ]
    return found, record


def test_packed_jobs_and_guests_on_one_gpu() -> None:
    found, record = made(
        (0, 0, 1, OWN, (0, 1), 1.0, 0.8),
        (1, 0, 1, OWN, (0, 1), 1.0, 0.7),
        (2, 0, 2, OWN, (2,), 0.5, 0.5),
        (3, 1, 2, OWN, (2,), 0.5, 0.4),
        (4, 0, 2, GUEST, (0,), 1.0, 0.3),
        (5, 1, 3, GUEST, (0,), 1.0, 0.3),
    )
    pods = Usage(found, record).pods
    held, guests = (sorted(zip(*(part.tolist() for part in of), strict=True)) for of in (pods.held, pods.guests))
    assert held == [(0, HOUR, 2), (0, 2 * HOUR, 1)]
    assert guests == [(0, 3 * HOUR, 1)]
    assert pods.guaranteed.all()


def test_lost_work_is_redone_or_migration() -> None:
    found, record = made(
        (0, 0, 1, OWN, (0,), 0.5, 0.5),
        (0, 1, 2, OWN, (1,), 0.5, 0.0),
        (0, 2, 3, OWN, (1,), 1.0, 0.75),
        (1, 0, 2, OWN, (2,), 1.0, 0.5),
        (2, 0, 1, GUEST, (2,), 1.0, 0.0),
        (2, 1, 2, GUEST, (2,), 1.0, 1.0),
    )
    lost = lost_work(record, Usage(found, record).pods)
    assert lost[:3].tolist() == [round(0.75 * HOUR), 0, 0]


def test_unshared_jobs_count_by_pods_and_by_gpus() -> None:
    """The same."""
    jobs = [one._replace(tenant="ab"[n % 2]) for n, one in enumerate(many(7))]
    trace = Trace("plain", tuple(sorted(jobs, key=lambda one: one.submit_ms)))
    found = run_experiment(cluster_spec({"a": 3, "b": 1}), trace, Scenario(schemes=[Sharing.QUOTA, Sharing.HIVED]))
    by_pods = repr(make_report(found).to_json()["runs"])  # as NaN is no equal of itself
    assert [record.alone for record in found.records] == [[], []]
    assert sum(sum(record.preemptions) for record in found.records) > 0
    for record in found.records:
        record.alone = [one.duration_ms for one in record.jobs]
    assert repr(make_report(found).to_json()["runs"]) == by_pods


JOBS = [job(f"j{number}", 1, 30, at=number / 10, model=name) for number, name in enumerate(["vae", "rhn"] * 3)]


def written(results: Results, folder: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The rows of jobs.csv and of runs.csv."""
    write_table(jobs_table(results), folder / "jobs.csv")
    write_table(runs_table(results), folder / "runs.csv")
    with (folder / "jobs.csv").open(encoding="utf-8") as jobs, (folder / "runs.csv").open(encoding="utf-8") as runs:
        return list(csv.DictReader(jobs)), list(csv.DictReader(runs))


def test_rates_in_files_add_up_to_the_work(tmp_path: Path) -> None:
    """Six jobs take turns, and some are packed; the rest of a job's time is its delay."""
    jobs, runs = written(shared(JOBS, Gandiva(), scheme=Sharing.PRIVATE), tmp_path)
    work: dict[str, float] = defaultdict(float)
    for row in runs:
        work[row["job_id"]] += float(row["rate"]) * (float(row["end_s"]) - float(row["start_s"]))
    for row in jobs:
        assert float(row["alone_s"]) == float(row["duration_s"]) == 1800.0
        assert work[row["job_id"]] == pytest.approx(1800.0, abs=0.02)
        assert float(row["queue_s"]) == pytest.approx(float(row["finish_s"]) - float(row["submit_s"]) - 1800.0)
    assert len(jobs) == 6
    assert all("." in row[name] or "e" in row[name] for row in runs for name in ("share", "rate"))
    assert len({float(row["share"]) for row in runs} - {1.0}) > 0, "some take turns"
    assert any(float(row["rate"]) < 0.99 * float(row["share"]) for row in runs), "some are packed"
