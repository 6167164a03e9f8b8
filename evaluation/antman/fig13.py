"""Figure 13 (AntMan, 5.2): two tenants on 64 GPUs, under four schedulers, by load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

import numpy as np

from hived.simulator.models import Models, assign_models
from hived.simulator.traces import TraceJob

from ..drawing import Panel, over_time
from ..drawn import drawn
from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, Shape, number, percent, shape_of, trace_label
from ..results import Result
from ..simulations import Workload
from ..trial import Trial
from .arms import ARMS, GUARANTEED, MINUTE_MS, OPPORTUNISTIC, completion, in_use, play

SERVERS, DAYS = 8, 4.0
LOADS = (0.8, 1.2, 1.6, 2.0)
#: the load of the runs with other models
_MIDDLE = 1.6
#: five groups of nine models, a fifth of the jobs each
MIX = "ResNet-50=6.667,VGG16=6.667,InceptionV3=6.666,GNMT=10,LSTM=10,DeepSpeech=10,ESPnet=10,DeepFM=20,GCN=20"
PERTURBED = (0.7, 1.3)


def jobs_of(workload: Workload, load: float, days: float) -> list[TraceJob]:
    """Jobs of the trace, of either tenant by a coin, with models."""
    coin = Random(2)
    found = [
        TraceJob(
            f"job-{at}",
            coin.choice((GUARANTEED, OPPORTUNISTIC)),
            round(time * MINUTE_MS),
            round(span * MINUTE_MS),
            gpus,
            "pass",
        )
        for at, (time, gpus, span) in enumerate(drawn(workload, load * SERVERS * 8, days))
    ]
    return list(assign_models(found, MIX, 1))


def carry_out(workload: Workload, arm: str, load: float, days: float, factor: float) -> dict[str, Any]:
    """Completion times of all jobs and of either tenant's, makespan, preempted jobs, GPUs in use."""
    jobs = jobs_of(workload, load, days)
    models = Models.load().scaled("utilization", factor)
    record = play(arm, jobs, SERVERS, models)
    late = [times > 0 for one, times in zip(jobs, record.preemptions, strict=True) if one.tenant == OPPORTUNISTIC]
    gpus, used = in_use(record, models, SERVERS * 8, round(days * 24 * 60) * MINUTE_MS)
    return {
        "jobs": len(jobs),
        "completion": completion(record),
        GUARANTEED: completion(record, GUARANTEED),
        OPPORTUNISTIC: completion(record, OPPORTUNISTIC),
        "makespan": (max(record.finish) - jobs[0].submit_ms) / MINUTE_MS,
        "unfinished": sum(end < 0 for end in record.finish),
        "preempted": sum(late) / max(1, len(late)),
        "gpus": gpus,
        "used": used,
    }


def _loads(scale: Scale) -> tuple[float, ...]:
    return LOADS if scale is not QUICK else (_MIDDLE,)


def _days(scale: Scale) -> float:
    return DAYS if scale is not QUICK else 1.0


def _trials(workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    settings = [(load, 1.0) for load in _loads(scale)]
    if scale is not QUICK:
        settings += [(_MIDDLE, factor) for factor in PERTURBED]
    return {
        f"{arm} {load} {factor}": Trial(carry_out, (workload, arm, load, _days(scale), factor), 5.0 * load)
        for arm in ARMS
        for load, factor in settings
    }


def _compared(plain: Mapping[str, Any], load: float, factor: float) -> list[Row]:
    """The rows of a load."""
    of = {arm: plain[f"{arm} {load} {factor}"] for arm in ARMS}
    ours = of["AntMan"]
    start = f"load {load:g}" + (f", every utilization x{factor:g}" if factor != 1 else "")
    rows = []
    for what, papers in (("completion", ("2.05", "-", "1.84")), ("makespan", ("1.76", "-", "1.67"))):
        name = "mean completion time" if what == "completion" else what
        for arm, paper in zip(ARMS, papers, strict=False):
            rows.append(
                Row(
                    f"{start}: {name} under {arm} over that under AntMan",
                    paper,
                    f"{of[arm][what] / ours[what]:.2f} ({number(of[arm][what])} and {number(ours[what])} minutes)",
                )
            )
    rows.append(
        Row(
            f"{start}: completion time of guaranteed jobs, minutes: {', '.join(ARMS)}",
            "AntMan's about that of YARN-CS with preemption",
            ", ".join(number(of[arm][GUARANTEED]) for arm in ARMS),
        )
    )
    rows.append(
        Row(
            f"{start}: opportunistic jobs preempted by YARN-CS, and under AntMan",
            "46% (of all jobs), none",
            f"{percent(of[ARMS[1]]['preempted'])}, {percent(ours['preempted'])}",
        )
    )
    rows.append(
        Row(
            f"{start}: GPUs in use, and mean utilization, in the days of submissions: YARN-CS and AntMan",
            "-",
            f"{percent(of[ARMS[0]]['gpus'])} and {percent(ours['gpus'])}; {percent(of[ARMS[0]]['used'])} and "
            f"{percent(ours['used'])}",
        )
    )
    return rows


def _evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    plain = {name: result.plain for name, result in results.items()}
    rows: list[Row] = []
    for load in _loads(scale):
        rows += _compared(plain, load, 1.0)
    for factor in PERTURBED:
        if f"AntMan {_MIDDLE} {factor}" in plain:
            rows += _compared(plain, _MIDDLE, factor)
    loads = np.asarray(_loads(scale))

    def of(arm: str, what: str) -> list[float]:
        return [plain[f"{arm} {load} 1.0"][what] for load in _loads(scale)]

    ours, preempting = np.asarray(of("AntMan", GUARANTEED)), np.asarray(of(ARMS[1], GUARANTEED))
    lines = {what: {arm: (loads, np.asarray(of(arm, what))) for arm in ARMS} for what in ("completion", GUARANTEED)}
    return Outcome(
        f"{SERVERS} servers of 8 equal GPUs, {_days(scale):g} days of submissions; jobs of {trace_label(workload)} (a "
        "minute to a day, up to 8 GPUs, drawn until they ask for the load, at their own times modulo the days), "
        f"{plain[f'AntMan {_MIDDLE} 1.0']['jobs']:,} at load {_MIDDLE:g}, of either tenant by a coin; nine models in "
        "five groups of a fifth; a preempted job of YARN-CS restarts",
        rows,
        [
            Claim(
                "the mean completion time is the shortest under AntMan at every load",
                Shape.HOLDS
                if all(
                    a <= b
                    for arm in ARMS
                    for a, b in zip(of("AntMan", "completion"), of(arm, "completion"), strict=True)
                )
                else Shape.FAILS,
            ),
            Claim(
                "guaranteed jobs complete within 5% of the time that they take under YARN-CS with preemption",
                Shape.HOLDS if bool(np.all(ours <= 1.05 * preempting)) else Shape.FAILS,
            ),
            Claim(
                "packing with profiles delays guaranteed jobs by more than 5%",
                shape_of(True, bool(np.all(np.asarray(of(ARMS[2], GUARANTEED)) > 1.05 * preempting))),
            ),
            Claim(
                "AntMan preempts nobody",
                Shape.HOLDS if not any(of("AntMan", "preempted")) else Shape.FAILS,
            ),
        ],
        "The paper gives neither the number of jobs nor their sizes, and no utilization or memory of its nine models: "
        "sizes are those of the trace, the load is swept, the models are those of docs/reference/models.md. "
        "Guaranteed jobs wait for their turn and are not tried as guests. YARN-CS without preemption has one queue for "
        "both tenants.",
        {
            "antman-fig13": partial(
                over_time,
                f"AntMan, Figure 13: completion times by load ({trace_label(workload)}, simulated)",
                [
                    Panel("all jobs (minutes)", lines["completion"]),
                    Panel("guaranteed (minutes)", lines[GUARANTEED]),
                ],
                "GPUs asked for over those there are",
            )
        }
        if len(loads) > 1
        else {},
    )


EXPERIMENT = Experiment(
    "fig13",
    "Figure 13: two tenants on 64 GPUs",
    "the mean completion time is 2.05 times AntMan's under YARN-CS and 1.84 times under Gandiva's packing, the "
    "makespan 1.76 and 1.67 times; guaranteed jobs take as long as under YARN-CS with preemption, which preempts 46% "
    "of the jobs",
    _trials,
    _evaluate,
)
