"""Figure 12 of the draft: how the use of GPUs fluctuates of the tenants that gain most and least."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ..drawing import small_panels
from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, number, percent, shape_of, trace_label
from ..results import Result
from ..simulations import Workload
from ..trial import Trial
from .tables import PAPER_TABLE5
from .trading import by_gain, setting_of, trial

#: tenants at either end of Table 5
ENDS = 4
_PAPER = [fluctuation for _, fluctuation in PAPER_TABLE5.values()]


def _trials(workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {arm: trial(workload, True, arm) for arm in ("none", "balanced")}


def evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """The usage of eight tenants without trades, in order of their gain with them."""
    without, traded = results["none"].plain, results["balanced"].plain
    order = by_gain(traded)
    shown = [*order[:ENDS], *order[-ENDS:]]
    of: Mapping[str, Mapping[str, Any]] = without["tenants"]
    usage = {tenant: np.asarray(of[tenant]["usage"]) / max(1, of[tenant]["gpus"]) for tenant in shown}
    first, last = (float(np.mean([of[t]["fluctuation"] for t in end])) for end in (shown[:ENDS], shown[ENDS:]))
    rows = [
        Row(
            f"{tenant} ({of[tenant]['gpus']} GPUs): usage over VC size, mean and highest; relative fluctuation",
            "-",
            f"{number(float(usage[tenant].mean()))}, {number(float(usage[tenant].max()))}; "
            f"{of[tenant]['fluctuation']:.2f}",
        )
        for tenant in shown
    ]
    rows.append(
        Row(
            f"relative fluctuation, mean of the first {ENDS} and of the last {ENDS}",
            f"{np.mean(_PAPER[:ENDS]):.2f}, {np.mean(_PAPER[-ENDS:]):.2f}",
            f"{first:.2f}, {last:.2f}",
        )
    )
    panels = {
        f"{tenant}: gain {percent(traded['tenants'][tenant]['gain'])}": (np.arange(len(of_tenant)) / 24, of_tenant)
        for tenant, of_tenant in usage.items()
    }
    return Outcome(
        setting_of(workload, True, traded),
        rows,
        [
            Claim(
                f"the usage of the {ENDS} tenants that gain most fluctuates more than that of the {ENDS} that gain "
                "least",
                shape_of(True, first > last),
            )
        ],
        "Usage is of guaranteed jobs and of loans, at every hour, without trades, as in Table 5's relative "
        "fluctuation; the gain is that with trades, arm 'balanced'. The axis is linear up to 1, the size of the VC, "
        "and logarithmic above." + (" Quick: a window." if scale is QUICK else ""),
        {
            "draft-fig12": partial(
                small_panels,
                f"The draft's Figure 12: GPUs in use over VC size ({trace_label(workload)})",
                panels,
                ENDS,
                "days",
                "usage / VC size",
            )
        },
    )


EXPERIMENT = Experiment(
    "draft-fig12",
    "Figure 12 of the draft: normalised GPU usage over time",
    "the usage of the first four tenants of Table 5 fluctuates more than that of the last four",
    _trials,
    evaluate,
)
