"""What experiments change of a trace and a cluster, and what is measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from evaluation.clusters import TENANTS, cluster_of, shares_of
from evaluation.simulations import Arm, Simulation, Workload, arms, carry_out, demand_over_time, reshape, simulation

from evaluation import section53
from hived.simulator.traces import Trace, TraceJob, generate_table1, write_trace


def gpu_time(trace: Trace, tenant: str) -> int:
    return sum(job.gpus * job.duration_ms for job in trace.jobs if job.tenant == tenant)


def test_reshaped_jobs_keep_gpu_time() -> None:
    trace = generate_table1(2000, 3)
    changed = reshape(trace, ("res-f",), 1)
    assert {job.gpus for job in changed.jobs if job.tenant == "res-f"} == {8}
    assert {job.gpus for job in changed.jobs if job.tenant != "res-f"} == {1}
    for tenant in TENANTS:
        assert gpu_time(changed, tenant) == pytest.approx(gpu_time(trace, tenant), rel=1e-6)
        times = {job.submit_ms for job in trace.jobs if job.tenant == tenant}
        assert {job.submit_ms for job in changed.jobs if job.tenant == tenant} <= times
    gpus = Counter(job.tenant for job in trace.jobs for _ in range(job.gpus))
    assert sum(job.tenant == "res-f" for job in changed.jobs) == -(-gpus["res-f"] // 8)
    assert reshape(trace, ("res-f",), 1) == changed


def test_tenants_leave_with_their_gpus() -> None:
    shares, spec = shares_of(200), cluster_of(200, ("prod-a",))
    assert sum(shares.values()) == 1600
    assert spec.gpus == 1600 - shares["prod-a"]
    assert {vc.name: spec.reserved(vc) for vc in spec.virtual_clusters} == {
        tenant: gpus for tenant, gpus in shares.items() if tenant != "prod-a"
    }


def test_a_small_cluster_has_cells_below_nodes() -> None:
    shares, spec = shares_of(12), cluster_of(12)
    assert sum(shares.values()) == 96
    assert min(shares.values()) == 1
    assert {vc.name: spec.reserved(vc) for vc in spec.virtual_clusters} == shares
    assert cluster_of(12, quotas=False).reserved(cluster_of(12, quotas=False).virtual_clusters[0]) == 96


def test_demand_over_time_is_exact() -> None:
    jobs = [TraceJob("a", "res-a", 5, 10, 2, "pass"), TraceJob("b", "res-a", 25, 100, 4, "pass")]
    assert demand_over_time(jobs, 10, 4).tolist() == [1.0, 1.0, 2.0, 4.0]
    assert demand_over_time([], 10, 4).tolist() == [0.0] * 4


def test_simulations_that_differ_are_two_tasks() -> None:
    """Also where the trace has a number of the same name."""
    workload = Workload("synthetic", None, None, 600, 10, 1.0, 1.5, None)
    made = [simulation(workload, 12, arms(), 1.0, **more) for more in ({}, {"days": 2}, {"days": 3}, {"seed": 2})]
    other = simulation(replace(workload, days=20), 12, arms(), 1.0)
    assert len({one.task("").key() for one in (*made, other)}) == 5
    assert simulation(replace(workload, name="same"), 12, arms(), 1.0).task("").key() == made[0].task("").key()


def test_a_simulation_measures_all_arms(tmp_path: Path) -> None:
    trace = generate_table1(600, 2)
    write_trace(trace, tmp_path / "trace.csv")
    workload = Workload("small", str(tmp_path / "trace.csv"), "", 0, 0, 1.0, 1.5, None)
    more = (Arm("no quota", "private", quotas=False), Arm("levels", "hived", levels="all"))
    found = carry_out(Simulation(workload, 12, (*arms(), *more)))
    assert list(found["runs"]) == ["private", "quota", "hived", "no quota", "levels"]
    assert found["jobs"] == 600
    for run in found["runs"].values():
        assert set(run["tenants"]) == set(TENANTS)
        assert sum(one["jobs"] for one in run["tenants"].values()) == found["compared"]
        assert sum(run["preempted"]) <= run["preempted_gpus"]
        for idle, use in zip(run["idle_10"], run["fragmentation"], strict=True):
            assert idle <= 1 - use + 1e-5


def test_requests_of_section_5_3_start() -> None:
    found = section53.measure(200)
    assert found["started"] == found["requests"] == 200
    assert 0 < found["mean_ms"] <= found["p99_ms"] * 200
