"""Figure 2 (AntMan, 2.2): GPUs that are reserved for gangs and wait for the rest of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import policies_of
from hived.scheduling import Kind
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import compress_clock

from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, Shape, number, trace_label
from ..results import Result
from ..simulations import Workload, cluster_of, trace_of
from ..trial import Trial

NODES = 200
_HOUR_MS = 3_600_000
#: sizes of gangs: from so many GPUs up to less than the next
_SIZES = (2, 3, 5, 9, 17, 33)


def waiting(record: Record) -> dict[int, tuple[int, float]]:
    """By size of gang: how many there are, and GPU-hours that their GPUs wait for them.

    A gang is at the head of its tenant's line from the start of the last job before it: from then on no other
    guaranteed job gets what is free for it, which is the paper's reservation. A GPU waits from then, or from the end of
    its last job, until the gang starts. O(runs * GPUs).
    """
    ended: dict[tuple[str, int], int] = {}
    head: dict[str, int] = defaultdict(int)
    found: dict[int, tuple[int, float]] = dict.fromkeys(_SIZES, (0, 0.0))
    starts = sorted((run.start, run.job, run) for run in record.runs if run.kind is Kind.GUARANTEED)
    # runs of one tenant start in the order of its line
    for start, job, run in starts:
        one = record.jobs[job]
        since = max(head[one.tenant], one.submit_ms)
        gpus = [(pod.node, leaf) for pod in run.placement.pods for leaf in pod.leaf_cells]
        if one.gpus > 1:
            size = max(size for size in _SIZES if size <= one.gpus)
            idle = sum(start - min(start, max(since, ended.get(gpu, 0))) for gpu in gpus) / _HOUR_MS
            found[size] = found[size][0] + 1, found[size][1] + idle
        ended.update(dict.fromkeys(gpus, run.end))
        head[one.tenant] = max(head[one.tenant], start)
    return found


def carry_out(workload: Workload) -> dict[str, Any]:
    """Gangs and GPU-hours of waiting, by size."""
    spec = cluster_of(NODES)
    trace = compress_clock(trace_of(workload), workload.crowded)
    policies = policies_of(spec, "yarn-cs")
    cluster = Cluster(spec, sharing=Sharing.QUOTA, rank=policies.rank, ranks=policies.ranks)
    record = simulate(cluster, policies, trace.jobs, opportunistic=False)
    return {"sizes": [[size, gangs, hours] for size, (gangs, hours) in waiting(record).items()]}


def _trials(workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {"waiting": Trial(carry_out, (workload,), 10.0)}


def _name(at: int) -> str:
    first = _SIZES[at]
    last = _SIZES[at + 1] - 1 if at + 1 < len(_SIZES) else 0
    return f"{first}" if first == last else f"{first} to {last}" if last else f"{first} and more"


def _evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    sizes = results["waiting"].plain["sizes"]
    means = [hours / gangs if gangs else float("nan") for _, gangs, hours in sizes]
    rows = [
        Row(
            f"gangs of {_name(at)} GPUs: GPU-hours of waiting, in the mean of {gangs:,} gangs and in all",
            "picture",
            f"{number(means[at])}, {number(hours)}",
        )
        for at, (_, gangs, hours) in enumerate(sizes)
    ]
    seen = [mean for mean in means if mean == mean]
    return Outcome(
        f"{trace_label(workload)}, clock x{workload.crowded:g}; {NODES} nodes of 8 GPUs, quotas of HiveD's Table 1; "
        "first come, first served in each tenant, no opportunistic jobs",
        rows,
        [
            Claim(
                "the larger the gang, the longer its GPUs wait for it: at every size longer than at the one below",
                Shape.HOLDS if seen == sorted(seen) and len(seen) > 1 else Shape.FAILS,
            ),
            Claim(
                "gangs of more than 8 GPUs have the most waiting of a gang",
                Shape.HOLDS if seen and max(seen) in means[3:] else Shape.FAILS,
            ),
        ],
        "The paper's cluster and trace are Alibaba's. What is free for the head of a line is reserved for it in fact: "
        "no guaranteed job passes it, and guests use it."
        + (" Quick: a window of the trace on a cluster that starts empty." if scale is QUICK else ""),
    )


EXPERIMENT = Experiment(
    "fig2",
    "Figure 2: GPUs that wait for gangs",
    "GPUs that were granted to a gang wait for the rest of it, the longer the larger it is",
    _trials,
    _evaluate,
)
