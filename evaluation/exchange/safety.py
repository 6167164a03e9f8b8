"""Exact and work-conserving safety against private clusters: which jobs end later, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import policies_of
from hived.simulator.record import Record
from hived.simulator.simulation import simulate
from hived.simulator.traces import compress_clock

from ..experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, Shape, number, trace_label
from ..results import Result
from ..simulations import TENANTS, Workload, cluster_of, trace_of
from ..trial import Trial

CLUSTERS = ((279, False), (200, True))
POLICIES = ("yarn-cs", "srtf", "tiresias")
_KINDS = ("private", "work-conserving", "exact")


def carry_out(workload: Workload, nodes: int, crowded: bool, policy: str) -> dict[str, Any]:
    """Play the trace in private clusters, and in virtual ones of both kinds of safety."""
    trace = compress_clock(trace_of(workload), workload.crowded if crowded else workload.clock)
    spec = cluster_of(nodes)
    records: dict[str, Record] = {}
    for kind in _KINDS:
        policies = policies_of(spec, policy)
        private = kind == "private"
        sharing = Sharing.PRIVATE if private else Sharing.HIVED
        cluster = Cluster(spec, sharing, policies.rank, ranks=policies.ranks)
        records[kind] = simulate(cluster, policies, trace.jobs, not private, exact=TENANTS if kind == "exact" else ())
    alone = np.asarray(records["private"].finish)
    of_tenant = np.asarray([job.tenant for job in trace.jobs], dtype=object)
    result: dict[str, Any] = {"jobs": int((alone >= 0).sum())}
    for kind, record in records.items():
        finish = np.asarray(record.finish)
        compared = alone >= 0
        late = compared & ((finish < 0) | (finish > alone))
        waits = {
            tenant: [record.queue(int(job)) / 60_000 for job in np.flatnonzero(compared & (of_tenant == tenant))]
            for tenant in TENANTS
        }
        result[kind] = {
            "late": int(late.sum()),
            "minutes": float((finish - alone)[late].sum() / 60_000),
            "sooner": int((compared & (finish >= 0) & (finish < alone)).sum()),
            "delay": sum(map(sum, waits.values())) / max(1, sum(map(len, waits.values()))),
            "tenants": {tenant: sum(of) / max(1, len(of)) for tenant, of in waits.items()},
            "preemptions": sum(record.preemptions),
        }
    return result


def _settings(scale: Scale) -> list[tuple[int, bool, str]]:
    if scale is QUICK:
        return [(*CLUSTERS[1], POLICIES[0])]
    return [(*cluster, policy) for cluster in CLUSTERS for policy in POLICIES]


def _trials(workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {
        f"{policy} {nodes}": Trial(carry_out, (workload, nodes, crowded, policy), 150.0)
        for nodes, crowded, policy in _settings(scale)
    }


def _evaluate(workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    rows: list[Row] = []
    late = worse = 0
    for nodes, crowded, policy in _settings(scale):
        plain = results[f"{policy} {nodes}"].plain
        clock = workload.crowded if crowded else workload.clock
        start = f"{nodes} nodes, clock x{clock:g}, {policy}"
        jobs, kinds = plain["jobs"], [plain[kind] for kind in _KINDS]
        late += plain["exact"]["late"]
        alone = plain["private"]["tenants"]
        worse += sum(plain["exact"]["tenants"][tenant] > alone[tenant] for tenant in TENANTS)
        rows += [
            Row(
                f"{start}: jobs of {jobs:,} later than in private: work-conserving, exact",
                "-",
                ", ".join(f"{of['late']:,} (by {number(of['minutes'])} min)" for of in kinds[1:]),
            ),
            Row(f"{start}: sooner", "-", ", ".join(f"{of['sooner']:,}" for of in kinds[1:])),
            Row(
                f"{start}: mean delay in minutes: {', '.join(_KINDS)}",
                "-",
                ", ".join(number(of["delay"]) for of in kinds),
            ),
            Row(f"{start}: preemptions", "-", ", ".join(f"{of['preemptions']:,}" for of in kinds)),
        ]
        if policy == POLICIES[0]:
            rows += [
                Row(
                    f"{start}: {tenant}: mean delay: {', '.join(_KINDS)}",
                    "-",
                    ", ".join(number(of["tenants"][tenant]) for of in kinds),
                )
                for tenant in TENANTS
            ]
    return Outcome(
        f"{trace_label(workload)}; quotas of HiveD's Table 1; a job is later if it ends a millisecond later; delays "
        "over the jobs that end in private",
        rows,
        [
            Claim("exact: no job ends later than in private", Shape.FAILS if late else Shape.HOLDS),
            Claim("exact: no tenant's mean delay is above its private one", Shape.FAILS if worse else Shape.HOLDS),
        ],
        "Ours, in no paper; docs/explanation/exact-safety.md has the proof."
        + (" Quick: a window." if scale is QUICK else ""),
    )


EXPERIMENT = Experiment(
    "safety",
    "Exact and work-conserving safety",
    "nothing: HiveD's theorem is about cells, not about the end of each job",
    _trials,
    _evaluate,
)
