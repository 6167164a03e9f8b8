"""A trace without a spec gets a cluster sized for it."""

from __future__ import annotations

import pytest

from hived.errors import InputError
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
    assert spec.source == "shared by demand, 8 nodes"


def test_without_a_number_there_are_as_many_nodes_as_make_the_load_80_percent() -> None:
    spec = cluster_for(trace_of(*[("a", 64)] * 100))  # 64 GPUs busy for 100 hours
    assert spec.gpus == 80


def test_every_tenant_has_a_node_even_one_that_asks_for_nothing() -> None:
    assert reserved(cluster_for(trace_of(("a", 1), ("b", 0)))) == {"a": 1, "b": 1}
    assert reserved(cluster_for(trace_of(("a", 0), ("b", 0), ("c", 0)), nodes=6)) == {"a": 2, "b": 2, "c": 2}


def test_the_papers_quotas_are_there_on_request() -> None:
    spec = cluster_for(generate_table1(200, 1), 279, Quotas.TABLE1)
    assert list(reserved(spec)) == [row.tenant for row in TABLE1]
    assert reserved(spec)["res-f"] == 80
    assert spec.source == "Table 1, 279 nodes"


def test_fewer_nodes_than_tenants_are_refused() -> None:
    with pytest.raises(InputError, match="3 tenants for 2 nodes, and each gets at least one: add nodes"):
        cluster_for(trace_of(("a", 1), ("b", 1), ("c", 1)), nodes=2)
