"""Virtual clusters whose idle and shared GPUs others use, against private clusters: which jobs and tenants are worse.

Without loans and guests nobody is (``tests/simulator``). With them a job may be, and a mean would hide it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from hived.scheduling import Kind
from hived.simulator.models import Models, assign_models
from hived.simulator.record import Record, Run

from .clusters import CROWDED_NODES, cluster_of
from .experiment import Evaluation, Results, Scale, Trials
from .simulations import Trial, Workload, play, played

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
    """Play the trace in virtual clusters with loans and guests, and in private clusters without."""
    jobs = assign_models(played(workload, CROWDED_NODES).jobs, mix, 1)
    models = Models.load()
    ours = play(cluster_of(CROWDED_NODES, guests=guests), jobs, policy, "hived", opportunistic=True, models=models)
    return compare(ours, play(cluster_of(CROWDED_NODES), jobs, policy, models=models))


def _series(policy: str, workload: Workload, scale: Scale, results: Results) -> dict[str, Any]:
    plain = results["compared"].plain
    tenants: Mapping[str, Mapping[str, float]] = plain["tenants"]
    return {
        "policy": policy,
        "tenants": tenants,
        "later": [tenant for tenant, of in tenants.items() if of["delay"] > of["private"]],
        "reasons": {name: plain["reasons"].get(name, 0) for name in REASONS},
        **{what: sum(int(of[what]) for of in tenants.values()) for what in ("jobs", "worse", "better")},
    }


def add_private(evaluation: Evaluation, policy: str, mix: str, guests: str = "none") -> None:
    """The experiment for a policy. ``guests``: whose every tenant accepts in its virtual cluster."""

    def trials(workload: Workload, scale: Scale) -> Trials:
        return {"compared": Trial(carry_out, (workload, policy, mix, guests), 200.0)}

    evaluation.add("private", trials, partial(_series, policy))
