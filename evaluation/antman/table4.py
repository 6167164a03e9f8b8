"""The analogue of Table 4 (AntMan, 5.3): queueing on the trace, and GPUs and utilization gained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import policies_of
from hived.simulator.models import Models, assign_models
from hived.simulator.simulation import simulate
from hived.simulator.traces import compress_clock
from hived.simulator.work import Work

from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, Shape, number, percent, trace_label
from ..results import Result
from ..simulations import GPUS_PER_NODE, Workload, cluster_of, trace_of
from ..trial import Trial
from .arms import completion, in_use
from .fig13 import MIX, PERTURBED

__all__ = ["EXPERIMENT", "MIX"]
#: nodes, and whether the clock is the crowded one
CLUSTERS = ((279, False), (200, True))
#: a job waits for its tenant's quota; or borrows meanwhile, and may be preempted; or is a guest meanwhile
_ARMS = {"quotas alone": "yarn-cs", "loans": "yarn-cs", "AntMan": "antman"}


def carry_out(workload: Workload, arm: str, nodes: int, crowded: bool, factor: float) -> dict[str, Any]:
    """Queueing times in seconds, completion time, and use of the GPUs while jobs are submitted."""
    spec = cluster_of(nodes, guests="all")
    trace = compress_clock(trace_of(workload), workload.crowded if crowded else workload.clock)
    jobs = assign_models(trace.jobs, MIX, 1)
    models = Models.load().scaled("utilization", factor)
    policies = policies_of(spec, _ARMS[arm])
    cluster = Cluster(spec, sharing=Sharing.QUOTA, rank=policies.rank, ranks=policies.ranks)
    record = simulate(cluster, policies, jobs, arm != "quotas alone", work=Work(jobs, spec, models))
    waits = [(start - one.submit_ms) / 1000 for one, start in zip(jobs, record.first_start, strict=True) if start >= 0]
    gpus, used = in_use(record, models, nodes * GPUS_PER_NODE, jobs[-1].submit_ms)
    return {
        "jobs": len(jobs),
        "queueing": [float(np.mean(waits)), *(float(np.percentile(waits, at)) for at in (90, 95))],
        "completion": completion(record),
        "gpus": gpus,
        "used": used,
        "preempted": sum(record.preemptions),
        "never": sum(start < 0 for start in record.first_start),
    }


def _settings(scale: Scale) -> list[tuple[int, bool, float]]:
    if scale is QUICK:
        return [(*CLUSTERS[1], 1.0)]
    return [(nodes, crowded, 1.0) for nodes, crowded in CLUSTERS] + [(*CLUSTERS[1], factor) for factor in PERTURBED]


def _trials(workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {
        f"{arm} {nodes} {factor}": Trial(carry_out, (workload, arm, nodes, crowded, factor), 100.0)
        for arm in _ARMS
        for nodes, crowded, factor in _settings(scale)
    }


def _each(of: Sequence[Mapping[str, Any]], what: str, text: Callable[[float], str]) -> str:
    return ", ".join(text(plain[what]) for plain in of)


def _evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    rows, better, more = [], [], []
    for nodes, crowded, factor in _settings(scale):
        of = [results[f"{arm} {nodes} {factor}"].plain for arm in _ARMS]
        base, _, ours = of
        clock = workload.crowded if crowded else workload.clock
        start = f"{nodes} nodes, clock x{clock:g}" + (f", every utilization x{factor:g}" if factor != 1 else "")
        for what, paper, plain in zip(_ARMS, ("1,132, 1,978, 5,960", "-", "550, 124, 489"), of, strict=True):
            name = f"{start}: queueing with {what}, seconds: mean, 90%, 95%"
            rows.append(Row(name, paper, ", ".join(map(number, plain["queueing"]))))
        arms = ", ".join(_ARMS)
        rows += [
            Row(f"{start}: mean completion time, minutes: {arms}", "-", _each(of, "completion", number)),
            Row(f"{start}: GPUs in use: {arms}", "17.1% more", _each(of, "gpus", percent)),
            Row(f"{start}: utilization of all GPUs: {arms}", "34% more", _each(of, "used", percent)),
            Row(f"{start}: preemptions: {arms}", "none", _each(of, "preempted", number)),
        ]
        better.append(all(a <= b for a, b in zip(ours["queueing"], base["queueing"], strict=True)))
        more.append(ours["gpus"] > base["gpus"] and ours["used"] > base["used"])
    jobs = results[f"AntMan {_settings(scale)[0][0]} 1.0"].plain["jobs"]
    return Outcome(
        f"{trace_label(workload)}, {jobs:,} jobs, quotas of HiveD's Table 1; every job may be a guest of every other. "
        "Queueing is from the submission to the first start",
        rows,
        [
            Claim(
                "queueing is shorter with AntMan than with quotas alone: mean, 90% and 95%",
                Shape.HOLDS if all(better) else Shape.FAILS,
            ),
            Claim("more GPUs are in use, and more of them", Shape.HOLDS if all(more) else Shape.FAILS),
        ],
        "The paper's numbers are of Alibaba's cluster before and after, with other jobs. A tenant whose jobs ask for "
        "more than its quota waits without end where quotas are all there is; loans are HiveD's. Memory in use is not "
        "simulated over time.",
    )


EXPERIMENT = Experiment(
    "table4",
    "Table 4: queueing in a large cluster",
    "queueing falls from 1,132 to 550 seconds in the mean; 17.1% more GPUs are used, 34% more of their time",
    _trials,
    _evaluate,
)
