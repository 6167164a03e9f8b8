"""Figure 9: jobs that accept any GPUs, and their completion times (end of section 5.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hived.simulator.intervals import estimate

from ..drawing import bars
from ..experiment import Claim, Experiment, Outcome, Row, Scale, number, percent, setting, shape_of, trace_label
from ..results import Result, over
from ..simulations import Simulation, Workload, arms
from .base import CROWDED_NODES, crowded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TENANT = "prod-a"
SHARES = (0.25, 0.5, 0.75)
_WORSE = (
    f" Under quota {TENANT} waits longer here when some jobs are soft, unlike in the paper: soft jobs take single GPUs "
    "of many nodes as soon as these are free, and the hard jobs find fewer whole nodes."
)


def simulations(workload: Workload, scale: Scale) -> Mapping[str, Simulation]:
    """Each share with each seed, and without."""
    return {"0": crowded(workload)} | {
        f"{share:g} {seed}": Simulation(workload, CROWDED_NODES, arms(), workload.crowded, soft=share, seed=seed)
        for share in SHARES
        for seed in range(1, scale.soft_seeds + 1)
    }


def evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    """Means over the seeds."""
    runs: dict[float, list[Result]] = {0.0: [results["0"]]}
    for share in SHARES:
        runs[share] = [results[f"{share:g} {seed}"] for seed in range(1, scale.soft_seeds + 1)]
    rows: list[Row] = []
    ratios: dict[str, list[float]] = {"quota": [], "hived": []}
    completion = []
    paper = {0.0: "nearly 7", 0.5: "1.3"}
    for share, of in runs.items():
        for arm in ratios:
            values = [result.to_private(arm, TENANT) for result in of]
            ratios[arm].append(sum(values) / len(values))
            expected = paper.get(share, "-") if arm == "quota" else "shortest"
            rows.append(Row(f"{share:.0%} soft: delay of {TENANT} over private, {arm}", expected, _mean(values)))
        rows += [
            Row(
                f"{share:.0%} soft: mean delay of {TENANT}, {arm}",
                "-",
                f"{number(sum(result[arm].delay(TENANT) for result in of) / len(of))} min",
            )
            for arm in ("private", "quota", "hived")
        ]
        completion.append([over(one["hived"].completion(), one["quota"].completion()) - 1 for one in of])
        all_of = [result["hived"].completion() for result in of]
        rows += [
            Row(
                f"{share:.0%} soft: mean completion time of all jobs, HiveD",
                "-",
                f"{number(sum(all_of) / len(of))} min",
            ),
            Row(
                f"{share:.0%} soft: the same over quota's",
                "the trend of hard affinity (+3% at most)",
                percent(sum(completion[-1]) / len(of)),
            ),
        ]
    best = all(h < min(q, 1) for h, q in zip(ratios["hived"], ratios["quota"], strict=True))
    at_half = ratios["quota"][2]
    claims = [
        Claim(
            f"with half of the jobs soft {TENANT} still waits longer than in private under quota",
            shape_of(ratios["quota"][0] > 1, at_half > 1),
        ),
        Claim(
            "soft affinity lowers the ratio under quota",
            shape_of(ratios["quota"][0] > 1, ratios["quota"][3] < ratios["quota"][0]),
        ),
        Claim(f"with HiveD {TENANT} always waits least", shape_of(True, best)),
        Claim(
            "completion times with HiveD are at most 3% above quota's, in the mean over the seeds",
            shape_of(True, max(sum(of) / len(of) for of in completion) <= 0.03),
        ),
    ]
    return Outcome(
        setting(workload, results["0"], CROWDED_NODES, f"clock x{workload.crowded:g}, seeds 1 to {scale.soft_seeds}"),
        rows,
        claims,
        "Which jobs are soft is not given: they are drawn uniformly among those of several GPUs, the same under "
        "every scheme. "
        "They lose no speed, and stay inside their virtual cluster. In the private cluster the same jobs are soft."
        + (_WORSE if ratios["quota"][3] > ratios["quota"][0] else ""),
        {"fig9": partial(_draw, workload, scale, ratios)},
    )


def _mean(values: Sequence[float]) -> str:
    found = estimate(values)
    return number(found.mean) if found.half is None else f"{number(found.mean)} ± {number(found.half)}"


def _draw(workload: Workload, scale: Scale, ratios: Mapping[str, Sequence[float]]) -> Figure:
    title = (
        f"Figure 9: delay of {TENANT} over private by share of soft jobs, {CROWDED_NODES} nodes, mean of "
        f"{scale.soft_seeds} seed(s)\n{trace_label(workload)}"
    )
    return bars(title, ["hard", *(f"{share:.0%} soft" for share in SHARES)], ratios, "delay / private's")


EXPERIMENT = Experiment(
    "fig9",
    "Figure 9: soft affinity",
    "with half of the jobs of several GPUs soft, prod-a still waits 1.3 times as long as in private under quota; "
    "with HiveD "
    "always least. Completion times follow the trend of hard affinity (section 5.1, no figure)",
    simulations,
    evaluate,
)
