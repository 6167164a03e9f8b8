"""Figure 1: one tenant's delay over ten days, under quota and in its private cluster."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..drawing import Panel, over_time
from ..experiment import Claim, Experiment, Outcome, Row, Scale, number, setting, shape_of, trace_label
from ..results import Result, highest
from ..simulations import Simulation, Workload
from .base import CROWDED_NODES, FULL_NODES, crowded, full

TENANT = "prod-a"
DAYS = 10


def simulations(workload: Workload, scale: Scale) -> Mapping[str, Simulation]:
    """Both clusters."""
    return {"crowded": crowded(workload), "full": full(workload)}


def worst_days(result: Result) -> float:
    """The first of the ten days with the largest mean excess of quota over private."""
    at, excess = result["quota"].at, np.nan_to_num(result.excess("quota", TENANT))
    sums = np.append(0, np.cumsum(excess))
    first = np.arange(len(at))
    last = np.searchsorted(at, at + DAYS, side="right")
    means = (sums[last] - sums[first])[at <= max(0.0, float(at[-1]) - DAYS)]
    return float(at[int(np.argmax(means))]) if len(means) else 0.0


def evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """The delay at its worst."""
    rows, figures = [], {}
    seen, holds = False, False
    windows = []
    for name, nodes, paper in (("crowded", CROWDED_NODES, "> 8,000 min"), ("full", FULL_NODES, "-")):
        result = results[name]
        first = worst_days(result)
        at = result["quota"].at
        inside = (at >= first) & (at <= first + DAYS)
        quota = np.where(inside, result["quota"].over_time(TENANT), np.nan)
        private = np.where(inside, result["private"].over_time(TENANT), np.nan)
        peak = highest(quota)
        beside = float(private[int(np.nanargmax(quota))]) if not np.isnan(peak) else np.nan
        windows.append(f"days {first:.1f} to {first + DAYS:.1f} at {nodes} nodes")
        rows += [
            Row(f"{nodes} nodes: highest 12-hour mean delay of {TENANT} under quota", paper, number(peak, "min")),
            Row(
                f"{nodes} nodes: the same 12 hours in its private cluster",
                "0" if name == "crowded" else "-",
                number(beside, "min"),
            ),
        ]
        if name == "crowded":
            seen, holds = highest(quota - private) > 60, beside < peak / 10
        title = f"Figure 1: delay of {TENANT}, {nodes} nodes, 12-hour mean ({trace_label(workload)})"
        panel = Panel("delay (min)", {"private": (at, private), "quota": (at, quota)})
        figures[f"fig1-{nodes}"] = lambda title=title, panel=panel: over_time(title, [panel])
    return Outcome(
        f"{setting(workload, results['crowded'], CROWDED_NODES, f'clock x{workload.crowded:g}')}; {', '.join(windows)}",
        rows,
        [
            Claim(
                "jobs wait for days under quota that do not wait in a private cluster",
                shape_of(seen, holds),
            )
        ],
        "The paper does not say which ten days and which tenant these are; here they are prod-a's ten days with the "
        "largest mean excess. How long such a wait lasts depends on when the other tenants' long jobs end.",
        figures,
    )


EXPERIMENT = Experiment(
    "fig1",
    "Figure 1: a tenant under quota waits longer than in its own cluster",
    "jobs submitted about day 1 wait more than 8,000 minutes under quota, and not at all in a private cluster",
    simulations,
    evaluate,
    second=True,
)
