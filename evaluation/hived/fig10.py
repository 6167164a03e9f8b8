"""Figure 10: dynamic against static binding of virtual cells."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from ..drawing import Panel, over_time, scatter
from ..experiment import Claim, Experiment, Outcome, Row, Scale, number, percent, setting, shape_of, trace_label
from ..results import Result, correlation
from ..simulations import Arm, Simulation, Workload
from .base import CROWDED_NODES, FULL_NODES, by_load, loads


def simulations(workload: Workload, scale: Scale) -> Mapping[str, Simulation]:
    """Both bindings in one; at faster clocks and on the smaller cluster too, to see what the load does."""
    both = (Arm("hived", "hived"), Arm("static", "hived", binding="static"))
    return {
        "all": Simulation(workload, FULL_NODES, both, workload.clock),
        "crowded": Simulation(workload, CROWDED_NODES, both, workload.crowded),
        **by_load(workload, scale),
    }


def saved(result: Result) -> float:
    """GPUs that dynamic binding preempts over those of static binding; NaN where the latter preempts none."""
    few, many = result["hived"].preempted_gpus, result["static"].preempted_gpus
    return few / many if many else float("nan")


def evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """Preempted GPUs."""
    result = results["all"]
    dynamic, static = result["hived"], result["static"]
    share = saved(result)
    taken, without, bound = (
        run.hourly(what) for run, what in ((dynamic, "preempted"), (static, "preempted"), (dynamic, "bound"))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(without > 0, taken / without, np.nan)
    pearson = correlation(bound, taken)
    rows = [
        Row("GPUs preempted, static binding", "-", f"{static.preempted_gpus:,}"),
        Row("GPUs preempted, dynamic binding", "-", f"{dynamic.preempted_gpus:,}"),
        Row("dynamic over static", "0.45", number(share)),
        Row("mean share of bound cells, dynamic (static: 100%)", "-", percent(dynamic.mean("fragmentation"))),
        Row("correlation of bound cells and preempted GPUs by 12 hours, dynamic", "positive", number(pearson)),
        Row(
            "correlation of bound cells and dynamic over static by 12 hours", "-", number(correlation(bound, relative))
        ),
    ]
    crowded = results["crowded"]
    curve = loads(result, workload, scale, results)
    smaller = (f"{CROWDED_NODES} nodes, load {crowded.number('load'):.2f} (clock x{workload.crowded:g})", crowded)
    rows += [
        Row(
            f"dynamic over static at {where}",
            "-",
            f"{number(saved(found))} ({found['hived'].preempted_gpus:,} of {found['static'].preempted_gpus:,}; "
            f"{percent(found['hived'].mean('fragmentation'))} of the cells bound)",
        )
        for where, found in (*curve[1:], smaller)
    ]
    days = np.arange(len(bound)) / 2 + 0.25
    return Outcome(
        setting(workload, result, FULL_NODES, f"clock x{workload.clock:g}"),
        rows,
        [
            Claim(
                "dynamic binding preempts 0.3 to 0.7 of the GPUs that static binding does",
                shape_of(static.preempted_gpus > 0, 0.3 <= share <= 0.7),
            ),
            Claim("it preempts more when more cells are bound", shape_of(not np.isnan(pearson), pearson > 0)),
        ],
        "Preempted are loans alone, in both arms; the starts of guaranteed jobs are the same. A cell counts as bound "
        "while a "
        "guaranteed job uses one of its GPUs. What dynamic binding saves depends on how many nodes no cell is bound "
        "to: while there are some, it binds those first. The paper does not give the load of its trace; the last rows "
        "show what this trace gives when its clock runs faster.",
        {
            "fig10": partial(
                over_time,
                f"Figure 10: GPUs preempted and cells bound by 12 hours, {FULL_NODES} nodes ({trace_label(workload)})",
                [
                    Panel("preempted\nGPUs", {"dynamic": (days, taken), "static": (days, without)}),
                    Panel("bound cells (%)", {"dynamic": (days, 100 * bound)}, top=102),
                ],
                "days",
            ),
            "fig10-load": partial(
                over_time,
                f"Figure 10: GPUs preempted by the load, {FULL_NODES} nodes ({trace_label(workload)})",
                [
                    Panel(
                        "dynamic\nover static",
                        {
                            "dynamic": (
                                np.asarray([found.number("load") for _, found in curve]),
                                np.asarray([saved(found) for _, found in curve]),
                            )
                        },
                    )
                ],
                "offered load",
            ),
            "fig10-correlation": partial(
                scatter,
                f"Figure 10: preemption by bound cells ({trace_label(workload)})",
                {"dynamic": (100 * bound, taken), "static": (100 * bound, without)},
                "bound cells under dynamic binding (%)",
                "preempted GPUs in 12 hours",
            ),
        },
    )


EXPERIMENT = Experiment(
    "fig10",
    "Figure 10: dynamic binding",
    "dynamic binding preempts 55% fewer GPUs than static binding; the number goes with the share of bound cells",
    simulations,
    evaluate,
    second=True,
)
