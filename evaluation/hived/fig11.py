"""Figure 11: cells of all levels against whole nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ..drawing import Panel, over_time
from ..experiment import Claim, Experiment, Outcome, Row, Scale, number, percent, setting, shape_of, trace_label
from ..results import Floats, Result
from ..simulations import Arm, Simulation, Workload
from .base import FULL_NODES, by_load, loads


def simulations(workload: Workload, scale: Scale) -> Mapping[str, Simulation]:
    """Both specs in one; at faster clocks too, to see what the load does."""
    both = (Arm("hived", "hived"), Arm("levels", "hived", levels="all"))
    return {"all": Simulation(workload, FULL_NODES, both, workload.clock), **by_load(workload, scale)}


def gap_of(result: Result) -> tuple[Floats, Floats]:
    """By hour, how much less cells of levels 1 to 4 fragment than nodes; and the same where nodes fragment at all."""
    nodes = result["hived"].hourly("fragmentation")
    gap = nodes - result["levels"].hourly("fragmentation")
    return gap, gap[nodes > 0]


def share_of(hours: Floats) -> float:
    """The share of the hours in which they fragment less; NaN without any."""
    return float((hours > 0).mean()) if len(hours) else float("nan")


def evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """Fragmentation over time."""
    result = results["all"]
    nodes, levels = result["hived"].hourly("fragmentation"), result["levels"].hourly("fragmentation")
    gap, busy = gap_of(result)
    less = share_of(busy)
    curve = loads(result, workload, scale, results)
    rows = [
        Row("mean fragmentation, cells of level 4", "-", percent(result["hived"].mean("fragmentation"))),
        Row("mean fragmentation, cells of levels 1 to 4", "-", percent(result["levels"].mean("fragmentation"))),
        Row("hours in which levels 1 to 4 fragment less", "all", percent(less)),
        Row("hours in which they fragment more", "none", percent(share_of(-busy))),
        Row("mean gap", "over 10 percentage points", f"{100 * gap.mean():.1f}%, {gap.mean() * FULL_NODES:.0f} nodes"),
        Row("largest gap", "20 percentage points", f"{100 * gap.max():.1f}%"),
        Row("mean delay of all jobs, level 4", "-", number(result["hived"].delay(), "min")),
        Row("mean delay of all jobs, levels 1 to 4", "-", number(result["levels"].delay(), "min")),
    ]
    for where, found in curve[1:]:
        gaps, hours = gap_of(found)
        text = f"{percent(share_of(hours))}, mean gap {100 * gaps.mean():.1f}%"
        rows.append(Row(f"hours in which they fragment less at {where}", "all", text))
    return Outcome(
        setting(workload, result, FULL_NODES, f"clock x{workload.clock:g}"),
        rows,
        [
            Claim(
                "cells of levels 1 to 4 fragment less in at least 95% of the hours",
                shape_of(len(busy) > 0, less >= 0.95),
            ),
            Claim("by over 10 percentage points in the mean", shape_of(len(busy) > 0, float(gap.mean()) > 0.1)),
        ],
        "The paper does not give the cells. Here each tenant keeps its GPUs, shared among the levels by the GPU time "
        "of its jobs "
        "by size (`hived spec from-demand`). A tenant with smaller cells runs fewer jobs at once on a node of its "
        "own, so the "
        "two arms do not run the same jobs at the same moment: the delays are part of the comparison. The paper does "
        "not give the load of its trace either.",
        {
            "fig11": partial(
                over_time,
                f"Figure 11: fragmentation by the levels of the cells, {FULL_NODES} nodes ({trace_label(workload)})",
                [
                    Panel(
                        "fragmented\nnodes (%)",
                        {
                            "nodes": (result["hived"].hours, 100 * nodes),
                            "levels": (result["hived"].hours, 100 * levels),
                        },
                        top=102,
                    ),
                    Panel("gap (percentage\npoints)", {"gap": (result["hived"].hours, 100 * gap)}, bottom=None),
                ],
                "days",
            )
        },
    )


EXPERIMENT = Experiment(
    "fig11",
    "Figure 11: cells of several levels",
    "with cells of levels 1 to 4 fragmentation is always lower than with level 4 alone, by more than 10 and up to 20 "
    "percentage points (about 30 nodes)",
    simulations,
    evaluate,
    second=True,
)
