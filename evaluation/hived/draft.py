"""Figure 2 of HiveD's draft, which the final paper does not have."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from hived.simulator.experiment import run_experiment
from hived.simulator.scenario import Scenario
from hived.simulator.traces import Trace, TraceJob
from hived.spec import parse_spec

from ..experiment import Claim, Experiment, Outcome, Row, Scale, number, shape_of
from ..results import Result
from ..simulations import Simulation, Workload

_MINUTE_MS = 60_000


def _nothing(workload: Workload, scale: Scale) -> Mapping[str, Simulation]:
    return {}


def _example_trace() -> Trace:
    """Two tenants: a1 to a4 of one GPU, of which a2 and a4 end; then a5 of two, and b1 of four."""
    jobs = [
        *((f"a{number}", "a", 0, 10 if number % 2 == 0 else 1000, 1) for number in range(1, 5)),
        ("a5", "a", 20, 1000, 2),
        ("b1", "b", 30, 100, 4),
    ]
    return Trace(
        "the draft's Figure 2",
        tuple(
            [
                TraceJob(name, who, _MINUTE_MS * at, _MINUTE_MS * long, gpus, "pass")
                for name, who, at, long, gpus in jobs
            ]
        ),
    )


def example() -> dict[str, float]:
    """The minutes that b1 waits under each scheme."""
    spec = parse_spec(
        yaml.safe_dump(
            {
                "physicalCluster": {
                    "cellTypes": {
                        "SWITCH": {"childCellType": "GPU", "childCellNumber": 2},
                        "NODE": {"childCellType": "SWITCH", "childCellNumber": 2, "isNodeLevel": True},
                    },
                    "physicalCells": [{"cellType": "NODE", "cellAddress": "node-[1-2]"}],
                },
                "virtualClusters": {who: {"virtualCells": [{"cellType": "NODE", "cellNumber": 1}]} for who in "ab"},
            }
        ),
        "two nodes of 4 GPUs",
    )
    trace = _example_trace()
    results = run_experiment(spec, trace, Scenario())
    b1 = len(trace.jobs) - 1
    return {record.scheme: record.queue(b1) / _MINUTE_MS for record in results.records}


def evaluate_example(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """The wait of b1."""
    waits = example()
    rows = [
        Row(f"b1 (4 GPUs, within its quota of 4) waits, {scheme}", paper, number(waits[scheme], "min"))
        for scheme, paper in (("private", "0"), ("quota", "blocked"), ("hived", "0"))
    ]
    return Outcome(
        "2 nodes of 4 GPUs (two switches of two), tenants a and b with 4 GPUs each; a1 to a4 of one GPU; a2 and a4 "
        "end after "
        "10 minutes; a5 of two GPUs after 20; b1 of four after 30. No trace, no seed",
        rows,
        [
            Claim(
                "quota blocks b1, HiveD does not", shape_of(waits["quota"] > 0, waits["hived"] == waits["private"] == 0)
            )
        ],
        "The paper draws GPUs; here a job of two GPUs takes those of one node, whose switch it need not share, so "
        "what a5 "
        "does is up to the policy's packing.",
    )


EXAMPLE = Experiment(
    "draft-fig2",
    "Figure 2 of the draft: a sharing anomaly by hand",
    "under quota b1, of 4 GPUs, waits although its tenant has 4 tokens, since no node is whole",
    _nothing,
    evaluate_example,
    by_hand=True,
)
