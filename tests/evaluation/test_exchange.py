"""What the evaluation of cell exchange and exact safety measures."""

from __future__ import annotations

from typing import Any

import pytest
from evaluation.clusters import TENANTS
from evaluation.exchange import EXCHANGE, PAPER_SPEARMAN, changes
from evaluation.results import Result
from evaluation.trading import cluster_by_demand, loans, nodes_by_demand, spearman, used_gpus

from hived.cluster.decisions import Placement, PodPlacement
from hived.exchange import Cells, Trade
from hived.scheduling import Kind
from hived.simulator.exchange import HOUR_MS, Sample
from hived.simulator.exchange_report import exchanged
from hived.simulator.record import Record, Run
from hived.simulator.traces import Trace, TraceJob
from hived.spec import parse_spec

from ..simulator.helpers import nodes_of_8
from .made import evaluate, ours, result, rows, run, shapes


def test_spearmans_correlation_is_of_ranks() -> None:
    assert spearman([1, 2, 30], [0, 5, 6]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2, 3], [1, 1, 2, 3]) == pytest.approx(1)
    assert round(PAPER_SPEARMAN, 2) == 0.83


def test_nodes_by_gpu_time_one_at_least() -> None:
    jobs = (TraceJob("big", "prod-a", 0, 900, 8, "pass"), TraceJob("small", "prod-b", 0, 100, 8, "pass"))
    nodes = nodes_by_demand(Trace("two", jobs))
    assert sum(nodes.values()) == 279
    assert min(nodes.values()) == 1
    assert nodes["prod-a"] == 243  # 90% of the 270 that are not the least of the nine others
    assert cluster_by_demand(Trace("two", jobs)).gpus == 279 * 8


def test_used_gpus_at_every_hour() -> None:
    where = Placement("NODE", (PodPlacement("n0", (0, 1)),))
    jobs = [TraceJob("j", "prod-a", 0, 1, 2, "pass")]
    record = Record("hived", "yarn-cs", jobs)
    record.runs = [
        Run(0, 1, HOUR_MS, Kind.GUARANTEED, where),
        Run(0, 2 * HOUR_MS, 3 * HOUR_MS + 1, Kind.GUARANTEED, where),
    ]
    used = used_gpus(record, Trace("one", tuple(jobs)), 5 * HOUR_MS)
    assert used["prod-a"].tolist() == [0, 0, 2, 2, 0, 0]


def test_used_cells_of_others_are_gain() -> None:
    spec = parse_spec(nodes_of_8(5, {"a": 3, "b": 2}), "five")
    samples = [
        Sample(1, "a", 1, 0, 2), Sample(1, "b", 3, 2, 0),  # b is on one of the two cells of a
        Sample(2, "a", 3, 0, 0), Sample(2, "b", 0, 0, 0),
        Sample(9, "a", 0, 0, 0), Sample(9, "b", 0, 0, 0),  # after the last submission
    ]  # fmt: skip
    a, b = exchanged(spec, samples, HOUR_MS, 2)
    assert (a.utilization, a.increase, a.gain, a.contributed_h, a.given_h) == (4 / 6, 0, 0, 8, 16)
    assert (b.utilization, b.increase, b.gain, b.benefited_h) == (2 / 4, 1 / 4, 1 / 2, 8)


def traded(**changed: dict[str, Any]) -> Result:
    """An arm: each tenant has 8 GPUs and as little of everything as the others, but for what is given."""
    plain = {
        "cells": 1, "gpus": 8, "jobs": 1, "utilization": 0.5, "increase": 0.1, "gain": 0.2, "fluctuation": 0.5,
        "benefited": 10.0, "contributed": 10.0, "given": 20.0, "borrowed": 1.0, "lent": 1.0,
        "delay": 0.0, "gpu_delay": 0.0, "usage": [4, 4],
    }  # fmt: skip
    tenants = {tenant: plain | changed.get(tenant.replace("-", "_"), {}) for tenant in TENANTS}
    return Result({"jobs": 11, "trades": 1, "refused": 0, "preemptions": 0, "tenants": tenants})


@pytest.mark.parametrize(("hived", "verdict"), [(0.6, "holds"), (0.3, "does not hold")])
def test_figure_10_compares_idle_nodes(hived: float, verdict: str) -> None:
    found = result(quota=run(idle_10=[0.4] * 4), hived=run(idle_10=[hived] * 4))
    assert shapes(evaluate(EXCHANGE["draft-fig10"], both=found))[0] == verdict


def test_a_loan_is_shared_by_idle_cells() -> None:
    jobs = [TraceJob("g", "prod-a", 0, 1, 6, "pass"), TraceJob("loan", "prod-b", 0, 1, 4, "pass")]
    record = Record("hived", "yarn-cs", jobs)
    on = [Placement("NODE", (PodPlacement(name, tuple(range(gpus))),)) for name, gpus in (("n0", 6), ("n1", 4))]
    record.runs = [
        Run(0, 0, 2 * HOUR_MS, Kind.GUARANTEED, on[0]),
        Run(1, 0, 2 * HOUR_MS, Kind.OPPORTUNISTIC, on[1]),
    ]
    sizes = dict.fromkeys(TENANTS, 0) | {"prod-a": 8, "prod-b": 8, "prod-c": 6}
    trace = Trace("two", tuple(jobs))
    # idle at each of the two hours: 2 GPUs of prod-a, 8 of prod-b itself, 6 of prod-c
    found = loans(sizes, record, trace, [], 3 * HOUR_MS)
    assert found["prod-b"] == (2 * 4 * (2 + 6) / 16, 0)
    assert found["prod-a"] == (0, 2 * 4 * 2 / 16)
    assert found["prod-c"] == (0, 2 * 4 * 6 / 16)
    # at the second hour prod-a has the node of prod-b
    trade = Trade(1, "prod-b", "prod-a", Cells("NODE", 4, 1), 3600.0, 7200.0, 8.0)
    found = loans(sizes, record, trace, [trade], 3 * HOUR_MS)
    assert found["prod-b"] == (4 * (2 + 6) / 16 + 4, 0)
    assert found["prod-a"] == (0, 4 * 2 / 16 + 4 * 10 / 16)


def test_worse_off_by_more_than_it_gave() -> None:
    none = traded()
    arms = dict.fromkeys(("none", "balanced", "hindsight"), none)
    badly = traded(prod_a={"gpu_delay": 19.0}, res_f={"gpu_delay": 32.5}, res_e={"gpu_delay": 30.0, "given": 100.0})
    (first, second, *_) = changes(none.plain, badly.plain)
    assert (first.tenant, first.excess) == ("res-f", 12.5)
    assert (second.tenant, second.excess) == ("prod-a", -1)
    outcome = evaluate(EXCHANGE["table4"], **arms, auction=badly)
    assert shapes(outcome) == ["holds", "does not hold"]
    assert "auction: res-f by 12 GPU hours" in outcome.text
    longer = "GPU hours that jobs wait longer than without trades, of those given away"
    assert ours(outcome, f"auction: {longer}").startswith("res-f +32 of 20; prod-a +19 of 20; ")
    most = "the largest excess of the former over the latter; the largest of the former"
    assert ours(outcome, f"auction: {most}") == "res-f +12; res-f +32"
    assert shapes(evaluate(EXCHANGE["table4"], **arms, auction=none)) == ["holds", "holds"]
    crowded = evaluate(EXCHANGE["worse"], none=none, balanced=badly)
    assert shapes(crowded) == ["does not hold"]
    assert "balanced: res-f by 12 GPU hours" in crowded.text
    assert "200 nodes of 8 GPUs" in crowded.text


def test_figure_11_shows_three_tenants() -> None:
    sides = {
        "res_a": {"contributed": 0.1, "benefited": 0.0},  # too little to be shown
        "res_e": {"contributed": 100.0, "benefited": 90.0},
        "res_f": {"contributed": 300.0, "benefited": 3.0},
        "prod_c": {"contributed": 5.0, "benefited": 400.0},
    }
    others = {tenant.replace("-", "_"): {"contributed": 20.0, "benefited": 50.0} for tenant in TENANTS}
    outcome = evaluate(EXCHANGE["draft-fig11"], balanced=traded(**others | sides))
    assert [what.split(":")[0] for what, *_ in rows(outcome)[:3]] == [
        "res-e (most balanced)", "res-f (contributes most)", "prod-c (benefits most)",
    ]  # fmt: skip
    assert rows(outcome)[0][2] == "100, 90.0; 1.00, 1.00"
    assert shapes(outcome) == ["holds", "holds"]


def test_figure_11_is_not_seen_without_trades() -> None:
    nothing = {tenant.replace("-", "_"): {"contributed": 0.0, "benefited": 0.0} for tenant in TENANTS}
    outcome = evaluate(EXCHANGE["draft-fig11"], balanced=traded(**nothing))
    assert shapes(outcome) == ["not seen on this trace"] * 2
    assert not outcome.figures


@pytest.mark.parametrize(("fluctuation", "verdict"), [(0.9, "holds"), (0.1, "does not hold")])
def test_figure_12_shows_most_and_least_gain(fluctuation: float, verdict: str) -> None:
    gains = traded(prod_e={"gain": 0.9}, res_a={"gain": 0.0})
    without = traded(prod_e={"fluctuation": fluctuation, "usage": [2, 10]})
    outcome = evaluate(EXCHANGE["draft-fig12"], none=without, balanced=gains)
    assert shapes(outcome) == [verdict]
    (first, *_, last, _) = rows(outcome)
    assert (first[0].split()[0], last[0].split()[0]) == ("prod-e", "res-a")
    assert first[2] == f"0.75, 1.25; {fluctuation:.2f}"
