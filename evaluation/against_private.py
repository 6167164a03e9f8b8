"""Virtual clusters whose idle and shared GPUs others use, against private clusters: which jobs and tenants are worse.

Without loans and guests nobody is (``tests/simulator``). With them a job may be, and a mean would hide it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing
from hived.policies import policies_of
from hived.scheduling import Kind
from hived.simulator.models import Models, assign_models
from hived.simulator.record import Record, Run
from hived.simulator.simulation import simulate
from hived.simulator.traces import compress_clock
from hived.simulator.work import Work

from .experiment import QUICK, Claim, Experiment, Outcome, Row, Scale, Shape, number, percent, trace_label
from .results import Result
from .simulations import Workload, cluster_of, trace_of
from .trial import Trial

NODES = 200
#: a job is worse if it completes later by more than this, and than this part of its time in private
LATER_MS, LATER_PART = 60_000, 0.01
REASONS = (
    "was preempted: lost a loan",
    "was a guest, and slower than with a turn",
    "was slowed down on its GPUs: by jobs beside it, or GPUs further apart",
    "had a smaller share of its GPUs",
    "ran elsewhere, or after other jobs of its tenant",
)


def reason(job: int, ours: Record, runs: Sequence[Run], private: Sequence[Run]) -> str:
    """Why a job may be worse than in private: the first of :data:`REASONS` that its runs show."""
    if ours.preemptions[job]:
        return REASONS[0]
    if any(run.kind is Kind.GUEST for run in runs):
        return REASONS[1]
    if any(run.kind is Kind.GUARANTEED and run.share == 1 and 0 < run.rate < 1 for run in runs):
        return REASONS[2]
    return REASONS[3] if _share(runs) < _share(private) else REASONS[4]


def _share(runs: Iterable[Run]) -> float:
    """The mean share of a job over the time in which it held GPUs."""
    held = [(run.end - run.start, run.share) for run in runs]
    spans = {(run.start, run.end) for run in runs}
    return sum(span * share for span, share in held) / max(1, sum(end - start for start, end in spans))


def compare(ours: Record, private: Record) -> dict[str, Any]:
    """Jobs and tenants that are worse, by reason. O(runs)."""
    runs: dict[int, tuple[list[Run], list[Run]]] = {job: ([], []) for job in range(len(ours.jobs))}
    for record, at in ((ours, 0), (private, 1)):
        for run in record.runs:
            runs[run.job][at].append(run)
    reasons: Counter[str] = Counter()
    tenants: dict[str, dict[str, float]] = {}
    for job, one in enumerate(ours.jobs):
        mine, alone = ours.finish[job], private.finish[job]
        if alone < 0:
            continue
        of = tenants.setdefault(one.tenant, {"jobs": 0, "worse": 0, "better": 0, "delay": 0.0, "private": 0.0})
        of["jobs"] += 1
        of["delay"] += ours.queue(job) / 60_000
        of["private"] += private.queue(job) / 60_000
        least = max(LATER_MS, LATER_PART * (alone - one.submit_ms))
        if mine < 0 or mine - alone > least:
            of["worse"] += 1
            reasons[reason(job, ours, *runs[job])] += 1
        elif alone - mine > least:
            of["better"] += 1
    return {"tenants": tenants, "reasons": dict(reasons)}


def carry_out(workload: Workload, policy: str, mix: str, guests: str) -> dict[str, Any]:
    """Play the trace in private clusters without loans and guests, and in virtual clusters with them."""
    trace = compress_clock(trace_of(workload), workload.crowded)
    jobs = assign_models(trace.jobs, mix, 1)
    records = []
    for sharing, early, accept in ((Sharing.HIVED, True, guests), (Sharing.PRIVATE, False, "none")):
        spec = cluster_of(NODES, guests=accept)
        policies = policies_of(spec, policy)
        cluster = Cluster(spec, sharing=sharing, rank=policies.rank, ranks=policies.ranks)
        records.append(simulate(cluster, policies, jobs, early, work=Work(jobs, spec, Models.load())))
    return compare(*records)


def _trials(policy: str, mix: str, guests: str, workload: Workload, scale: Scale) -> Mapping[str, Trial]:
    return {"compared": Trial(carry_out, (workload, policy, mix, guests), 200.0)}


def _evaluate(policy: str, workload: Workload, scale: Scale, results: Mapping[str, Result]) -> Outcome:
    plain = results["compared"].plain
    tenants: Mapping[str, Mapping[str, float]] = plain["tenants"]
    jobs, worse, better = (sum(int(of[what]) for of in tenants.values()) for what in ("jobs", "worse", "better"))
    later = [tenant for tenant, of in tenants.items() if of["delay"] > of["private"]]
    rows = [
        Row(
            "jobs that complete later than in private, and sooner",
            "-",
            f"{worse:,} ({percent(worse / jobs)}), {better:,} ({percent(better / jobs)}) of {jobs:,}",
        ),
        *(Row(f"of those later: {name}", "-", f"{plain['reasons'].get(name, 0):,}") for name in REASONS),
        Row(
            "tenants with a longer mean delay than in private",
            "-",
            f"{len(later)} of {len(tenants)}" + (f": {', '.join(sorted(later))}" if later else ""),
        ),
        *(
            Row(
                f"{tenant}: mean delay, minutes, private and hived; jobs later and sooner",
                "-",
                f"{number(of['private'] / of['jobs'])}, {number(of['delay'] / of['jobs'])}; "
                f"{int(of['worse']):,} and {int(of['better']):,} of {int(of['jobs']):,}",
            )
            for tenant, of in sorted(tenants.items())
        ),
    ]
    return Outcome(
        f"{trace_label(workload)}, clock x{workload.crowded:g}; {NODES} nodes of 8 GPUs, quotas of HiveD's Table 1, "
        f"{policy} in every VC; a job is later if it completes more than a minute, and more than 1% of its time, later",
        rows,
        [
            Claim(
                "no tenant has a longer mean delay than in its private cluster",
                Shape.HOLDS if not later else Shape.FAILS,
            ),
            Claim("no job completes later than in its private cluster", Shape.HOLDS if not worse else Shape.FAILS),
        ],
        "Ours, in no paper. Private clusters neither lend nor share across tenants, so the comparison is of all that "
        "sharing brings and costs. Without loans and guests both are equal, job by job, which tests check."
        + (" Quick: a window of the trace." if scale is QUICK else ""),
    )


def against_private(policy: str, mix: str, guests: str = "none") -> Experiment:
    """The experiment for a policy. ``guests``: whose every tenant accepts in its virtual cluster."""
    return Experiment(
        "private",
        "Virtual clusters against private ones: who is worse, and why",
        "nothing; HiveD promises that a tenant is never worse off than in its private cluster",
        partial(_trials, policy, mix, guests),
        partial(_evaluate, policy),
    )
