"""Measures and baselines of AntMan's evaluation, on hand-made cases."""

from __future__ import annotations

import pytest
from evaluation.against_private import REASONS, compare, reason
from evaluation.antman import ARMS, GUARANTEED, OPPORTUNISTIC, VARIANTS, in_use, play_arm, waiting
from evaluation.measures import completion

from hived.cluster.sharing import Sharing
from hived.policies import AntMan, YarnCS
from hived.simulator.models import Models
from hived.simulator.traces import TraceJob
from hived.simulator.traces.model import MS

from ..simulator import sharing as simulated

MODELS = Models.load()


def job(name: str, tenant: str, gpus: int, seconds: float, at: float = 0.0, model: str = "GCN") -> TraceJob:
    return TraceJob(name, tenant, round(at * MS), round(seconds * MS), gpus, "pass", model=model)


def test_antman_neither_preempts_nor_delays() -> None:
    jobs = [job(f"o{n}", OPPORTUNISTIC, 1, 600, n, "RHN") for n in range(8)]
    jobs += [job(f"g{n}", GUARANTEED, 1, 600, 100 + n, "RHN") for n in range(8)]
    records = {arm: play_arm(arm, jobs, 1, MODELS) for arm in ARMS}
    assert {arm: sum(record.preemptions) for arm, record in records.items()} == dict(
        zip(ARMS, (0, 8, 0, 0), strict=True)
    )
    alone = {arm: completion(record, GUARANTEED) for arm, record in records.items()}
    assert alone["AntMan"] == pytest.approx(10, rel=0.01)
    assert alone["YARN-CS with preemption"] == 10
    assert alone["packing with profiles"] > 12
    assert alone["YARN-CS"] > 15, "it waits for GPUs of the other tenant"


def test_packing_is_by_utilization_and_memory() -> None:
    """A profile is of a job alone: what a set gains or loses is not known before it runs."""
    jobs = [job(f"o{n}", OPPORTUNISTIC, 1, 600, n, "ResNet-50" if n < 8 else "LSTM") for n in range(9)]
    jobs[4] = jobs[4]._replace(model="LSTM")
    record = play_arm(ARMS[2], jobs, 1, MODELS)
    assert [start / MS for start in record.first_start] == list(range(9)), "nobody waits"
    where = [next(run.placement for run in record.runs if run.job == n) for n in range(9)]
    assert where[8] == where[4], "the least utilization, though two of them lose beside each other"
    assert min(run.rate for run in record.runs if run.job == 8) < 0.5
    jobs = [job(f"o{n}", OPPORTUNISTIC, 1, 600, n, "ESPnet") for n in range(9)]
    record = play_arm(ARMS[2], jobs, 1, MODELS)
    assert record.first_start[8] == 600 * MS, "19 GiB each, of 32"


def test_guaranteed_jobs_start_as_guests() -> None:
    jobs = [job(f"g{n}", GUARANTEED, 1, 600, n, "RHN") for n in range(9)]
    record = play_arm("AntMan", jobs, 1, MODELS)
    assert record.first_start[8] == 8 * MS, "it would wait: the automatic mode"
    assert {run.kind.value for run in record.runs if run.job == 8} >= {"guest", "guaranteed"}, "and is upgraded"
    late = play_arm("AntMan", jobs, 1, MODELS, VARIANTS["guaranteed jobs never start as guests"][1])
    assert late.first_start[8] == late.finish[0]
    yarn = play_arm("YARN-CS with preemption", jobs, 1, MODELS)
    assert yarn.first_start[8] == yarn.finish[0]


def test_gpus_wait_for_a_gang() -> None:
    jobs = [job("a", "a", 2, 100), job("b", "a", 2, 300), job("gang", "a", 4, 60, 50), job("next", "a", 4, 60, 50)]
    spec = simulated.cluster_spec({"a": 1}, guests="none")
    record = simulated.play(spec, jobs, YarnCS(), Sharing.QUOTA, early=False)
    gangs, hours = waiting(record)[3]
    assert gangs == 2
    assert hours == pytest.approx(2 * 200 / 3600), "two GPUs, from the end of a to that of b"


def test_gpus_in_use_count_once() -> None:
    jobs = [job("own", GUARANTEED, 4, 100), job("guest", OPPORTUNISTIC, 8, 100)]
    record = play_arm("AntMan", jobs, 1, MODELS)
    gpus, used = in_use(record, MODELS, 8, 100 * MS)
    assert gpus == pytest.approx(1.0, abs=1e-3)
    assert MODELS.of("GCN").utilization * 0.5 < used < 2 * MODELS.of("GCN").utilization


def test_jobs_worse_than_in_private() -> None:
    jobs = [
        job("own", "a", 4, 1_000),
        job("guest", "b", 4, 3_000),
        job("other", "b", 4, 3_000, 1),
        job("late", "a", 4, 100, 990),
    ]
    spec = simulated.cluster_spec({"a": 1, "b": 1})
    private = simulated.play(spec, jobs, AntMan(), Sharing.PRIVATE, early=False)
    shared = simulated.play(spec, jobs, AntMan())
    found = compare(shared, private)
    assert found["tenants"]["a"]["jobs"] == 2
    assert found["tenants"]["a"]["worse"] == 0, "0.8% and some seconds are not counted as later"
    assert found["tenants"]["b"]["better"] == 1
    found = compare(private, shared)
    assert (found["tenants"]["b"]["worse"], found["reasons"]) == (1, {REASONS[4]: 1}), "it started later"


def test_reasons_are_those_of_the_runs() -> None:
    jobs = [job("own", "a", 4, 1_000), job("guest", "b", 4, 3_000), job("other", "b", 4, 3_000, 1)]
    record = simulated.play(simulated.cluster_spec({"a": 1, "b": 1}), jobs, AntMan())
    of = [[run for run in record.runs if run.job == number] for number in range(3)]
    assert reason(0, record, of[0], ()) == REASONS[2]
    assert reason(2, record, of[2], ()) == REASONS[1]
    record.preemptions[2] = 1
    assert reason(2, record, of[2], ()) == REASONS[0]
    half = [run._replace(share=0.5) for run in of[0][:1]]
    assert reason(0, record, half, of[0][:1]) == REASONS[3]
