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


def test_nodes_in_proportion_to_gpu_time() -> None:
    spec = cluster_for(trace_of(("b", 3000), ("a", 1000)), nodes=8)
    assert reserved(spec) == {"a": 2, "b": 6}
    assert spec.source == "the plan for 8 nodes of 8 GPUs"
    assert reserved(cluster_for(trace_of(("a", 1), ("b", 0)))) == {"a": 1, "b": 1}, "even for who asks for nothing"


def test_nodes_for_a_load_of_80_percent() -> None:
    """And, if there are enough, for the largest job of every tenant."""
    trace = trace_of(*[("a", 64)] * 100)  # 64 GPUs busy for 100 hours
    assert cluster_for(trace).gpus == 80
    trace = replace(trace, jobs=(TraceJob("big", "b", 0, 1, 17, "pass"), *trace.jobs))
    assert reserved(cluster_for(trace)) == {"a": 8, "b": 3}
    assert reserved(cluster_for(trace, nodes=3)) == {"a": 2, "b": 1}


def test_the_papers_quotas_on_request() -> None:
    spec = cluster_for(generate_table1(200, 1), 279, Quotas.TABLE1)
    assert list(reserved(spec)) == [row.tenant for row in TABLE1]
    assert reserved(spec)["res-f"] == 80
    assert spec.source == "Table 1, 279 nodes"


def test_what_cannot_be_sized_is_refused() -> None:
    with pytest.raises(InputError, match="the jobs ask for no GPU time at all, so there is no demand to plan for"):
        cluster_for(trace_of(("a", 0)))
    with pytest.raises(InfeasibleError, match=r"every tenant needs 24 GPUs .*, the cluster has 16: add nodes"):
        cluster_for(trace_of(("a", 1), ("b", 1), ("c", 1)), nodes=2)
    with pytest.raises(InputError, match="11 tenants for 5 nodes, and each gets at least one: add nodes"):
        cluster_for(trace_of(("prod-a", 1)), nodes=5, quotas=Quotas.TABLE1)
