"""Figures 2, 3 and 10 of HiveD's draft, which the final paper does not have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import combinations

import numpy as np
import yaml

from hived.cluster.sharing import Sharing
from hived.simulator.experiment import Options, run_experiment
from hived.simulator.traces import Trace, TraceJob
from hived.spec import parse_spec

from ..drawing import Panel, over_time
from ..experiment import Claim, Experiment, Outcome, Row, Scale, number, percent, setting, shape_of, trace_label
from ..results import Floats, Result
from ..simulations import TENANTS, Simulation, Workload, cluster_of, demand_over_time, trace_of
from .base import FULL_NODES, full
from .fig10 import correlation

_HOUR_MS = 3_600_000
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
    results = run_experiment(spec, trace, Options(tuple(Sharing)))
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


STEP_HOURS = 12


def evaluate_demand(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """The two larger tenants whose demands go together least."""
    trace = trace_of(workload)
    steps = max(3, trace.jobs[-1].submit_ms // (STEP_HOURS * _HOUR_MS))
    demand: dict[str, Floats] = {}
    for tenant in TENANTS:
        jobs = [job for job in trace.jobs if job.tenant == tenant]
        demand[tenant] = np.asarray(demand_over_time(jobs, STEP_HOURS * _HOUR_MS, steps), dtype=np.float64)
    spec = cluster_of(FULL_NODES)
    gpus = {vc.name: spec.reserved(vc) for vc in spec.virtual_clusters}
    large = [tenant for tenant in TENANTS if gpus[tenant] >= 0.05 * spec.gpus and demand[tenant].max() > 0]
    of_pairs = {pair: correlation(demand[pair[0]], demand[pair[1]]) for pair in combinations(large, 2)}
    one, other = min(of_pairs, key=lambda pair: (np.isnan(of_pairs[pair]), of_pairs[pair]))
    lowest = of_pairs[one, other]
    days = (np.arange(steps) + 0.5) * STEP_HOURS / 24
    peaks = {tenant: float(days[int(demand[tenant].argmax())]) for tenant in (one, other)}
    above = {tenant: float((demand[tenant] > gpus[tenant]).mean()) for tenant in (one, other)}
    other_low = float(((demand[one] > gpus[one]) & (demand[other] < gpus[other])).mean())
    rows = [
        Row("tenants", "two, not named", f"{one}, {other}"),
        Row("correlation of their demands by 12 hours", "-", f"{lowest:.2f}"),
        Row("peaks", "day 5, day 15", ", ".join(f"{t}: day {day:.1f}" for t, day in peaks.items())),
        *(Row(f"{t}: time with a demand above its quota ({gpus[t]} GPUs)", "-", percent(above[t])) for t in above),
        Row(f"time with {one} above its quota and {other} below", "-", percent(other_low)),
    ]
    panels = [Panel("GPUs asked for", {tenant: (days, demand[tenant]) for tenant in (one, other)})]
    return Outcome(
        f"{trace_label(workload)}, its own clock, mean of {STEP_HOURS} hours; quotas at {FULL_NODES} nodes; no seed",
        rows,
        [
            Claim(
                "the demands of two tenants peak at different times",
                shape_of(True, lowest < 0 and abs(peaks[one] - peaks[other]) >= 2),
            )
        ],
        "The paper does not name the tenants: these are the two with at least 5% of the GPUs whose demands correlate "
        "least. "
        "Demand is what would run if every job started when it is submitted.",
        {
            "draft-fig3": partial(
                over_time, f"The draft's Figure 3: GPUs asked for ({trace_label(workload)})", panels, "days"
            )
        },
    )


def _idle(workload: Workload, scale: Scale) -> Mapping[str, Simulation]:
    return {"all": full(workload)}


def evaluate_idle(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """Idle nodes over time."""
    result = results["all"]
    rows = []
    for hours, paper in ((10, ("22 to 60% after day 20", "far fewer")), (100, ("over 30%", "far fewer"))):
        for arm, given in zip(("hived", "quota"), paper, strict=True):
            later = result[arm].hourly(f"idle_{hours}")[result[arm].hours >= _late(result)]
            low, high = (later.min(), later.max()) if len(later) else (np.nan, np.nan)
            rows.append(
                Row(
                    f"nodes idle of regular jobs for at least {hours} h, {arm}: mean (range)",
                    given,
                    f"{percent(result[arm].mean(f'idle_{hours}'))} ({percent(low)} to {percent(high)} after day "
                    f"{_late(result):.0f})",
                )
            )
    more = {hours: result["hived"].mean(f"idle_{hours}") - result["quota"].mean(f"idle_{hours}") for hours in (10, 100)}
    panels = [
        Panel(
            f"idle for {hours} h\nor more (%)",
            {arm: (result[arm].hours, 100 * result[arm].hourly(f"idle_{hours}")) for arm in ("quota", "hived")},
            top=102,
        )
        for hours in (10, 100)
    ]
    return Outcome(
        setting(workload, result, FULL_NODES, f"clock x{workload.clock:g}"),
        rows,
        [
            Claim(
                f"HiveD leaves more nodes idle of regular jobs for at least {hours} h than quota",
                shape_of(True, gain > 0),
            )
            for hours, gain in more.items()
        ],
        "Idle of regular jobs: no guaranteed job runs on the node; loans may. These are the nodes that tenants could "
        "exchange.",
        {
            "draft-fig10": partial(
                over_time,
                f"The draft's Figure 10: nodes idle of regular jobs, {FULL_NODES} nodes ({trace_label(workload)})",
                panels,
                "days",
            )
        },
    )


def _late(result: Result) -> float:
    """Day 20, as in the paper, or a third of a shorter trace."""
    return min(20.0, result.number("days") / 3)


EXAMPLE = Experiment(
    "draft-fig2",
    "Figure 2 of the draft: a sharing anomaly by hand",
    "under quota b1, of 4 GPUs, waits although its tenant has 4 tokens, since no node is whole",
    _nothing,
    evaluate_example,
)
DEMAND = Experiment(
    "draft-fig3",
    "Figure 3 of the draft: demands that peak in turn",
    "the demands of two tenants have interlaced peaks, about days 5 and 15",
    _nothing,
    evaluate_demand,
    second=True,
)
IDLE = Experiment(
    "draft-fig10",
    "Figure 10 of the draft: whole nodes idle for long",
    "with HiveD 22 to 60% of the 8-GPU cells have no regular job for 10 hours or more after day 20, over 30% for "
    "100; under "
    "quota far fewer",
    _idle,
    evaluate_idle,
    second=True,
)
