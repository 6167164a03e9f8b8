"""Figure 3 of the draft: the demands of two tenants peak in turn, so that one could use what the other does not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import combinations

import numpy as np

from hived.simulator.exchange import HOUR_MS

from ..drawing import Panel, over_time
from ..experiment import Claim, Experiment, Outcome, Row, Runnable, Scale, percent, shape_of, trace_label
from ..results import Floats, Result, correlation
from ..simulations import TENANTS, Workload, cluster_of, demand_over_time, trace_of
from .trading import NODES

STEP_HOURS = 12


def _nothing(workload: Workload, scale: Scale) -> Mapping[str, Runnable]:
    return {}


def evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """The two larger tenants whose demands go together least."""
    trace = trace_of(workload)
    steps = max(3, trace.jobs[-1].submit_ms // (STEP_HOURS * HOUR_MS))
    demand: dict[str, Floats] = {}
    for tenant in TENANTS:
        jobs = [job for job in trace.jobs if job.tenant == tenant]
        demand[tenant] = np.asarray(demand_over_time(jobs, STEP_HOURS * HOUR_MS, steps), dtype=np.float64)
    spec = cluster_of(NODES)
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
        f"{trace_label(workload)}, its own clock, mean of {STEP_HOURS} hours; quotas at {NODES} nodes; no seed",
        rows,
        [
            Claim(
                "the demands of two tenants peak at different times",
                shape_of(True, lowest < 0 and abs(peaks[one] - peaks[other]) >= 2),
            )
        ],
        "The paper does not name the tenants: these are the two with at least 5% of the GPUs whose demands correlate "
        "least. Demand is what would run if every job started when it is submitted.",
        {
            "draft-fig3": partial(
                over_time, f"The draft's Figure 3: GPUs asked for ({trace_label(workload)})", panels, "days"
            )
        },
    )


EXPERIMENT = Experiment(
    "draft-fig3",
    "Figure 3 of the draft: demands that peak in turn",
    "the demands of two tenants have interlaced peaks, about days 5 and 15",
    _nothing,
    evaluate,
    second=True,
)
