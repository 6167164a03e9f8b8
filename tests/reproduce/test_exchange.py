"""The evaluation of cell exchange and exact safety: its report, and what it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from hived.cluster.decisions import Placement, PodPlacement
from hived.reproduce.command import reproduce
from hived.reproduce.exchange import EXPERIMENTS
from hived.reproduce.exchange.tables import PAPER_SPEARMAN
from hived.reproduce.exchange.trading import cluster_by_demand, nodes_by_demand, spearman, used_gpus
from hived.reproduce.experiment import Shape
from hived.reproduce.papers import Paper
from hived.scheduling import Kind
from hived.simulator.exchange import HOUR_MS, Sample
from hived.simulator.exchange_report import exchanged
from hived.simulator.record import Record, Run
from hived.simulator.traces import Trace, TraceJob
from hived.spec import parse_spec

from ..simulator.helpers import nodes_of_8


def test_the_report_has_all_experiments_and_exact_safety_holds(tmp_path: Path) -> None:
    report = reproduce(tmp_path, paper=Paper.EXCHANGE, quick=True, processes=2)
    shapes = {name: shape for name, _, shape in report.shapes()}
    assert shapes.keys() == {experiment.name for experiment in EXPERIMENTS}
    assert shapes["safety"] is Shape.HOLDS
    text = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "exact: no job ends later than in private: **holds**" in text


def test_spearmans_correlation_is_of_ranks() -> None:
    assert spearman([1, 2, 30], [0, 5, 6]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2, 3], [1, 1, 2, 3]) == pytest.approx(1)
    assert round(PAPER_SPEARMAN, 2) == 0.83


def test_nodes_are_assigned_by_gpu_time_and_every_tenant_has_one() -> None:
    jobs = (TraceJob("big", "prod-a", 0, 900, 8, "pass"), TraceJob("small", "prod-b", 0, 100, 8, "pass"))
    nodes = nodes_by_demand(Trace("two", jobs))
    assert sum(nodes.values()) == 279
    assert min(nodes.values()) == 1
    assert nodes["prod-a"] == 243  # 90% of the 270 that are not the least of the nine others
    assert cluster_by_demand(Trace("two", jobs)).gpus == 279 * 8


def test_what_tenants_used_is_counted_at_every_hour() -> None:
    where = Placement("NODE", (PodPlacement("n0", (0, 1)),))
    jobs = [TraceJob("j", "prod-a", 0, 1, 2, "pass")]
    record = Record("hived", "yarn-cs", jobs)
    record.runs = [
        Run(0, 1, HOUR_MS, Kind.GUARANTEED, where),
        Run(0, 2 * HOUR_MS, 3 * HOUR_MS + 1, Kind.GUARANTEED, where),
    ]
    used = used_gpus(record, Trace("one", tuple(jobs)), 5 * HOUR_MS)
    assert used["prod-a"].tolist() == [0, 0, 2, 2, 0, 0]


def test_only_cells_of_others_that_are_used_count_as_gain() -> None:
    spec = parse_spec(nodes_of_8(5, {"a": 3, "b": 2}), "five")
    samples = [
        Sample(1, "a", 1, 0, 2), Sample(1, "b", 3, 2, 0),  # b is on one of the two cells of a
        Sample(2, "a", 3, 0, 0), Sample(2, "b", 0, 0, 0),
        Sample(9, "a", 0, 0, 0), Sample(9, "b", 0, 0, 0),  # after the last submission
    ]  # fmt: skip
    a, b = exchanged(spec, samples, HOUR_MS, 2)
    assert (a.utilization, a.increase, a.gain, a.contributed_h, a.given_h) == (4 / 6, 0, 0, 8, 16)
    assert (b.utilization, b.increase, b.gain, b.benefited_h) == (2 / 4, 1 / 4, 1 / 2, 8)
