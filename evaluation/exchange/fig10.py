"""Figure 10 of the draft: whole nodes that no guaranteed job uses for long, which tenants could exchange."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from ..drawing import Panel, over_time
from ..experiment import Claim, Experiment, Outcome, Row, Scale, percent, setting, shape_of, trace_label
from ..results import Result
from ..simulations import Arm, Simulation, Workload
from .trading import NODES


def _simulations(workload: Workload, scale: Scale) -> Mapping[str, Simulation]:
    both = (Arm("quota", "quota"), Arm("hived", "hived"))
    return {"both": Simulation(workload, NODES, both, workload.clock)}


def evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """Idle nodes over time."""
    result = results["both"]
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
        setting(workload, result, NODES, f"clock x{workload.clock:g}"),
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
                f"The draft's Figure 10: nodes idle of regular jobs, {NODES} nodes ({trace_label(workload)})",
                panels,
                "days",
            )
        },
    )


def _late(result: Result) -> float:
    """Day 20, as in the paper, or a third of a shorter trace."""
    return min(20.0, result.number("days") / 3)


EXPERIMENT = Experiment(
    "draft-fig10",
    "Figure 10 of the draft: whole nodes idle for long",
    "with HiveD 22 to 60% of the 8-GPU cells have no regular job for 10 hours or more after day 20, over 30% for "
    "100; under quota far fewer",
    _simulations,
    evaluate,
    second=True,
)
