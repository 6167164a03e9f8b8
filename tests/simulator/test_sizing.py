"""A trace without a spec gets a cluster sized for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hived.errors import InfeasibleError, InputError
from hived.simulator.sizing import Quotas, cluster_for
from hived.simulator.traces import TABLE1, Trace, TraceJob, generate_table1
from hived.spec.compiled import ClusterSpec

HOUR = 3_600_000


def trace_of(*demands: tuple[str, int]) -> Trace:
    """Each tenant asks for so many GPU hours in all, submitted within 100 hours."""
    jobs = [TraceJob(f"j{n}", tenant, n, hours * HOUR, 1, "pass") for n, (tenant, hours) in enumerate(demands)]
    return Trace("t", (*jobs, TraceJob("last", demands[0][0], 100 * HOUR, 0, 1, "pass")))


def reserved(spec: ClusterSpec) -> dict[str, int]:
    return {vc.name: sum(cells.number for cells in vc.cells) for vc in spec.virtual_clusters}


def test_tenants_reserve_nodes_in_proportion_to_the_gpu_time_that_they_ask_for() -> None:
    spec = cluster_for(trace_of(("b", 3000), ("a", 1000)), nodes=8)
    assert reserved(spec) == {"a": 2, "b": 6}
    assert spec.source == "the plan for 8 nodes of 8 GPUs"


def test_without_a_number_there_are_as_many_nodes_as_make_the_load_80_percent() -> None:
    spec = cluster_for(trace_of(*[("a", 64)] * 100))  # 64 GPUs busy for 100 hours
    assert spec.gpus == 80


def test_every_tenant_has_a_node_even_one_that_asks_for_nothing() -> None:
    assert reserved(cluster_for(trace_of(("a", 1), ("b", 0)))) == {"a": 1, "b": 1}


def test_every_tenant_has_nodes_for_its_largest_job_if_there_are_enough() -> None:
    trace = trace_of(*[("a", 64)] * 100)
    trace = replace(trace, jobs=(TraceJob("big", "b", 0, 1, 17, "pass"), *trace.jobs))
    assert reserved(cluster_for(trace)) == {"a": 8, "b": 3}
    assert reserved(cluster_for(trace, nodes=3)) == {"a": 2, "b": 1}


def test_jobs_that_ask_for_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="the jobs ask for no GPU time at all, so there is no demand to plan for"):
        cluster_for(trace_of(("a", 0)))


def test_the_papers_quotas_are_there_on_request() -> None:
    spec = cluster_for(generate_table1(200, 1), 279, Quotas.TABLE1)
    assert list(reserved(spec)) == [row.tenant for row in TABLE1]
    assert reserved(spec)["res-f"] == 80
    assert spec.source == "Table 1, 279 nodes"


def test_fewer_nodes_than_tenants_are_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"every tenant needs 24 GPUs .*, the cluster has 16: add nodes"):
        cluster_for(trace_of(("a", 1), ("b", 1), ("c", 1)), nodes=2)
    with pytest.raises(InputError, match="11 tenants for 5 nodes, and each gets at least one: add nodes"):
        cluster_for(trace_of(("prod-a", 1)), nodes=5, quotas=Quotas.TABLE1)
