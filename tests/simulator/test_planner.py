"""The planner: from a trace to a spec, checked against the core and the simulator; clusters for a trace alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hived.cluster import Cluster, Request, Sharing, check_feasible
from hived.errors import InfeasibleError, InputError
from hived.simulator import Scenario, run_experiment
from hived.simulator.experiment import never_fit
from hived.simulator.planner import (
    Levels,
    demands_of,
    equal_base,
    like_base,
    make_plan,
    predict,
    share_by_quotas,
    share_like,
)
from hived.simulator.report import make_report
from hived.simulator.scenario import Quotas
from hived.simulator.simulation import members_of
from hived.simulator.sizing import cluster_for
from hived.simulator.traces import TABLE1, Trace, TraceJob, generate_table1
from hived.spec import parse_spec
from hived.spec.compiled import ClusterSpec

from .helpers import nodes_of_8, spec_text

#: tenant, duration in seconds, GPUs
JOBS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 100), st.sampled_from([1, 1, 2, 3, 4, 6, 8, 12, 16, 40])),
    min_size=1,
    max_size=40,
)


def trace_of(jobs: list[tuple[str, int, int]]) -> Trace:
    return Trace("t", tuple(TraceJob(f"j{n}", t, 60_000 * n, 1000 * s, g, "pass") for n, (t, s, g) in enumerate(jobs)))


@given(JOBS, st.integers(1, 20), st.sampled_from(Levels))
def test_any_trace_gives_a_feasible_spec(jobs: list[tuple[str, int, int]], nodes: int, levels: Levels) -> None:
    trace = trace_of(jobs)
    demands = demands_of(trace)
    base = equal_base(nodes, 8, [demand.tenant for demand in demands])
    unit = 1 if levels is Levels.ALL else 8
    least = []
    for demand in demands:
        cells = [next((c for c in (1, 2, 4) if c >= gpus), -(-gpus // 8) * 8) for gpus in demand.gpu_time]
        least.append(max([unit, *(-(-cell // unit) * unit for cell in cells if cell <= 8 * nodes)]))
    if sum(least) > 8 * nodes:
        with pytest.raises(InfeasibleError, match=f"needs {sum(least)} GPUs .* the cluster has {8 * nodes}: add nodes"):
            make_plan(base, demands, None, levels)
        return
    planned = make_plan(base, demands, None, levels)
    spec = parse_spec(planned.text, "written")
    check_feasible(spec)
    assert spec.virtual_clusters == planned.spec.virtual_clusters
    assert sum(map(spec.reserved, spec.virtual_clusters)) == spec.gpus == 8 * nodes, "every GPU is given"
    private = Cluster(spec, Sharing.PRIVATE)
    for demand in demands:
        for gpus in demand.gpu_time:
            request = Request("any", demand.tenant, 0, members_of(gpus, soft=False), whole_nodes=True)
            assert private.never_fits(request) == (gpus > 8 * nodes), "but for what no cluster of the size could run"
    lost = {trace.jobs[number].gpus for number in never_fit(spec, trace.jobs)}
    assert all(-(-gpus // 8) * 8 > 8 * nodes for gpus in lost)


@given(JOBS, st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_a_plan_like_a_spec_keeps_gpus(jobs: list[tuple[str, int, int]], nodes: list[int]) -> None:
    before = parse_spec(nodes_of_8(sum(nodes), dict(zip("abc", nodes, strict=True))), "before")
    demands, gpus = share_like(demands_of(trace_of(jobs)), before, Levels.ALL)
    planned = make_plan(equal_base(sum(nodes), 8, "abc"), demands, gpus, Levels.ALL)
    after = {vc.name: planned.spec.reserved(vc) for vc in planned.spec.virtual_clusters}
    assert after == {vc.name: before.reserved(vc) for vc in before.virtual_clusters}
    again, whole = share_like(demands_of(trace_of(jobs)), before, Levels.NODE)
    nodes_only = make_plan(equal_base(sum(nodes), 8, "abc"), again, whole, Levels.NODE)
    assert nodes_only.spec.virtual_clusters == before.virtual_clusters, "nodes alone are the same again"


RACKS = """\
physicalCluster:
  cellTypes:
    PAIR: {childCellType: GPU, childCellNumber: 2}
    NODE: {childCellType: PAIR, childCellNumber: 2, isNodeLevel: true}
    RACK: {childCellType: NODE, childCellNumber: 2}
  physicalCells:
  - {cellType: RACK, cellChildren: [{cellAddress: n0, pinnedCellId: mine}, {cellAddress: n1}]}
  - {cellType: RACK, cellChildren: [{cellAddress: n2}, {cellAddress: n3}]}
virtualClusters:
  a: {guests: own, virtualCells: [{cellType: RACK, cellNumber: 1}], pinnedCells: [{pinnedCellId: mine}]}
  b: {virtualCells: [{cellType: RACK.NODE, cellNumber: 1}], opportunisticWeight: 3}
"""


def test_all_else_in_a_spec_stays(tmp_path: Path) -> None:
    path = tmp_path / "racks.yaml"
    path.write_text(RACKS, encoding="utf-8")
    base, before = like_base(path)
    trace = trace_of([("a", 10, 4), ("a", 30, 1), ("b", 10, 2)])
    planned = make_plan(base, *share_like(demands_of(trace), before, Levels.ALL), Levels.ALL)
    path.write_text(planned.text, encoding="utf-8")
    _, after = like_base(path)
    assert after.chains == before.chains
    a, b = after.virtual_clusters
    assert (a.guests, a.pinned, b.opportunistic_weight) == ("own", before.virtual_clusters[0].pinned, 3)
    assert [(cells.level, cells.number) for cells in a.cells] == [(3, 1), (1, 4)]
    assert [(cells.level, cells.number) for cells in b.cells] == [(2, 2)]


def test_a_spec_of_several_chains(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    types = {"N": ("V", 2), "M": ("K", 2)}
    chains = [{"cellType": "N", "cellAddress": "n"}, {"cellType": "M", "cellAddress": "m"}]
    path.write_text(spec_text(types, chains, {"a": {"N": 1}}, ("N", "M")), encoding="utf-8")
    with pytest.raises(InputError, match="has 2 chains"):
        like_base(path)


def test_shares_that_do_not_fit_the_trace() -> None:
    demands = demands_of(trace_of([("a", 1, 1), ("b", 1, 1)]))
    spec = parse_spec(nodes_of_8(2, {"a": 2}), "before.yaml")
    with pytest.raises(InputError, match=r"before.yaml: tenant b of the trace has no GPUs there, which has a"):
        share_like(demands, spec, Levels.ALL)
    with pytest.raises(InputError, match=r"q.csv: tenant b of the trace"):
        share_by_quotas(demands, [("a", 100.0)], 16, 1, "q.csv")
    cells = [{"cellType": "NODE", "cellAddress": "n"}]
    parts = parse_spec(spec_text({"NODE": ("GPU", 8)}, cells, {"a": {"NODE.GPU": 5}}), "parts")
    with pytest.raises(InputError, match="a has 5 GPUs, no whole number of nodes of 8; give --levels all"):
        share_like(demands[:1], parts, Levels.NODE)


def test_quotas_are_shared_in_gpus_or_nodes() -> None:
    demands = demands_of(trace_of([("a", 1, 1), ("b", 1, 8)]))
    quotas = [("b", 70.0), ("a", 30.0), ("c", 0.0)]
    found, gpus = share_by_quotas(demands, quotas, 80, 1, "quotas")
    assert ([demand.tenant for demand in found], gpus) == (["b", "a", "c"], [55, 24, 1])
    assert share_by_quotas(demands, quotas, 80, 8, "quotas")[1] == [48, 24, 8]
    with pytest.raises(InfeasibleError, match="3 tenants need 24 GPUs, 8 at least for each, and the cluster has 16"):
        share_by_quotas(demands, quotas, 16, 8, "quotas")


@settings(max_examples=25)
@given(JOBS, st.integers(15, 20))
def test_hived_keeps_the_predicted_delay(jobs: list[tuple[str, int, int]], nodes: int) -> None:
    trace = trace_of(jobs)
    demands = demands_of(trace)
    assume(len({demand.tenant for demand in demands}) > 1)
    planned = make_plan(equal_base(nodes, 8, [d.tenant for d in demands]), demands, None, Levels.ALL)
    predicted = predict(planned.spec, trace)
    scenario = Scenario(schemes=Sharing.HIVED, opportunistic=False)
    (hived,) = make_report(run_experiment(planned.spec, trace, scenario)).runs
    for tenant in hived.tenants:
        found = predicted[str(tenant.tenant)].delay
        assert (found.jobs, found.mean_s, found.p95_s) == (tenant.delay.jobs, tenant.delay.mean_s, tenant.delay.p95_s)


HOUR = 3_600_000


def asking(*demands: tuple[str, int]) -> Trace:
    """Each tenant asks for so many GPU hours in all, submitted within 100 hours."""
    jobs = [TraceJob(f"j{n}", tenant, n, hours * HOUR, 1, "pass") for n, (tenant, hours) in enumerate(demands)]
    return Trace("t", (*jobs, TraceJob("last", demands[0][0], 100 * HOUR, 0, 1, "pass")))


def reserved(spec: ClusterSpec) -> dict[str, int]:
    return {vc.name: sum(cells.number for cells in vc.cells) for vc in spec.virtual_clusters}


def test_nodes_in_proportion_to_gpu_time() -> None:
    spec = cluster_for(asking(("b", 3000), ("a", 1000)), nodes=8)
    assert reserved(spec) == {"a": 2, "b": 6}
    assert spec.source == "the plan for 8 nodes of 8 GPUs"
    assert reserved(cluster_for(asking(("a", 1), ("b", 0)))) == {"a": 1, "b": 1}, "even for who asks for nothing"


def test_nodes_for_a_load_of_80_percent() -> None:
    """And, if there are enough, for the largest job of every tenant."""
    trace = asking(*[("a", 64)] * 100)  # 64 GPUs busy for 100 hours
    assert cluster_for(trace).gpus == 80
    trace = replace(trace, jobs=(TraceJob("big", "b", 0, 1, 17, "pass"), *trace.jobs))
    assert reserved(cluster_for(trace)) == {"a": 8, "b": 3}
    assert reserved(cluster_for(trace, nodes=3)) == {"a": 2, "b": 1}


def test_the_papers_quotas_on_request() -> None:
    spec = cluster_for(generate_table1(200, 1), 279, Quotas.TABLE1)
    assert list(reserved(spec)) == [row.tenant for row in TABLE1]
    assert reserved(spec)["res-f"] == 80
    assert spec.source == "Table 1, 279 nodes"


def test_gpus_of_tenants_as_cells_by_demand() -> None:
    """As `hived spec from-demand --levels all` plans them: here jobs of one GPU and of a node."""
    jobs = (TraceJob("one", "a", 0, 4 * HOUR, 1, "pass"), TraceJob("node", "a", 0, HOUR, 8, "pass"))
    spec = cluster_for(Trace("t", jobs), quotas={"a": 12, "b": 4}, levels=Levels.ALL)
    assert spec.gpus == 16
    assert {vc.name: spec.reserved(vc) for vc in spec.virtual_clusters} == {"a": 12, "b": 4}
    assert {cells.level: cells.number for cells in spec.virtual_clusters[0].cells} == {1: 4, 4: 1}
    with pytest.raises(InputError, match="quotas: tenant a of the trace has no GPUs there, which has b"):
        cluster_for(Trace("t", jobs), quotas={"b": 8})


def test_what_cannot_be_sized_is_refused() -> None:
    with pytest.raises(InputError, match="the jobs ask for no GPU time at all, so there is no demand to plan for"):
        cluster_for(asking(("a", 0)))
    with pytest.raises(InfeasibleError, match=r"every tenant needs 24 GPUs .*, the cluster has 16: add nodes"):
        cluster_for(asking(("a", 1), ("b", 1), ("c", 1)), nodes=2)
    with pytest.raises(InputError, match="11 tenants for 5 nodes, and each gets at least one: add nodes"):
        cluster_for(asking(("prod-a", 1)), nodes=5, quotas=Quotas.TABLE1)
