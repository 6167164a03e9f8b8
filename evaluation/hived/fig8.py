"""Figure 8: how the fragmentation of the workload decides what quota costs a tenant of 8-GPU jobs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from ..drawing import bars
from ..experiment import Claim, Experiment, Outcome, Row, Scale, setting, shape_of, trace_label
from ..results import Result
from ..simulations import Simulation, Workload, arms
from .base import CROWDED_NODES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TENANT = "res-f"
_LARGE = ("res-f", "prod-e", "prod-d", "prod-c")
_PAPER = ("132", "4.3", "1.9", "0.9")
_SEED = 1


def simulations(workload: Workload, scale: Scale) -> Mapping[str, Simulation]:
    """Four simulations, with one tenant more of 8-GPU jobs each."""
    return {
        str(at): Simulation(workload, CROWDED_NODES, arms(), workload.crowded, reshaped=_LARGE[:at], seed=_SEED)
        for at in range(1, 5)
    }


def _ratio(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"


def evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """The ratio by the workload's fragmentation."""
    rows = []
    shares: list[float] = []
    quota: list[float] = []
    hived: list[float] = []
    for result, paper, given in zip(results.values(), _PAPER, ("0.91", "-", "-", "-"), strict=True):
        at = len(shares)
        shares.append(result.number("jobs") / result.number("gpus"))
        quota.append(result.to_private("quota", TENANT))
        hived.append(result.to_private("hived", TENANT))
        who = " + ".join(_LARGE[: at + 1])
        rows += [
            Row(f"{who} in 8-GPU jobs: jobs over GPUs", given, f"{shares[-1]:.3f}"),
            Row(f"{who}: delay of {TENANT} over private, quota", paper, _ratio(quota[-1])),
            Row(f"{who}: delay of {TENANT} over private, HiveD", "shorter than quota's", _ratio(hived[-1])),
        ]
    late = sum(result["hived"].count(TENANT, "worse") for result in results.values())
    rows.append(Row(f"jobs of {TENANT} that wait longer than in private, HiveD, of all four", "0", f"{late:,}"))
    seen = not any(ratio != ratio for ratio in (*quota, *hived))  # NaN: nobody waits in either
    falls = all(before > after for before, after in pairwise(quota))
    return Outcome(
        setting(
            workload, results["1"], CROWDED_NODES, f"clock x{workload.crowded:g}, submission times by seed {_SEED}"
        ),
        rows,
        [
            Claim(
                f"under quota the ratio of {TENANT} falls strictly as the workload is less fragmented",
                shape_of(seen and max(quota) > 1, falls),
            ),
            Claim("with HiveD it stays below 1", shape_of(seen, all(ratio < 1 for ratio in hived))),
            Claim(
                "HiveD's is always below quota's", shape_of(seen, all(h < q for h, q in zip(hived, quota, strict=True)))
            ),
        ],
        "The paper does not give the durations of the reshaped jobs. Here each GPU keeps its duration and the 8-GPU "
        "jobs are "
        "made of GPUs of similar durations, so that a tenant's GPU time stays; submission times are drawn from the "
        "tenant's own. A ratio of 1.000 with HiveD is its private cluster exactly: the "
        "others leave nothing to borrow. The ratio's size depends on the delay in private, which is short when jobs "
        "of equal size come "
        "evenly.",
        {"fig8": partial(_draw, workload, shares, quota, hived)},
    )


def _draw(workload: Workload, shares: list[float], quota: list[float], hived: list[float]) -> Figure:
    groups = [f"{share:.3f}\n{'+ ' if at else ''}{_LARGE[at]}" for at, share in enumerate(shares)]
    title = (
        f"Figure 8: delay of {TENANT} over private by workload fragmentation (jobs/GPUs), {CROWDED_NODES} nodes\n"
        f"{trace_label(workload)}"
    )
    paper = [float(value) for value in _PAPER]
    return bars(title, groups, {"paper": paper, "quota": quota, "hived": hived}, "delay / private's")


EXPERIMENT = Experiment(
    "fig8",
    "Figure 8: workload fragmentation",
    "with all jobs of res-f on 8 GPUs and those of the others on one, res-f waits 132 times as long as in private "
    "under "
    "quota; with prod-e, prod-d and prod-c on 8 GPUs too 4.3, 1.9 and 0.9 times; with HiveD always shorter",
    simulations,
    evaluate,
    second=True,
)
