"""One trace under several sharing schemes: what ``hived simulate`` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hived.cluster import HivedCluster, PrivateClusters, QuotaCluster, SharedCluster
from hived.errors import InputError
from hived.policies import Policy, Reaction, Scheduler, YarnCS
from hived.spec.compiled import ClusterSpec

from .record import Record
from .simulation import simulate
from .traces import Trace, TraceJob


class Scheme(StrEnum):
    """The three ways to share that the papers compare."""

    PRIVATE = "private"
    QUOTA = "quota"
    HIVED = "hived"


class PolicyName(StrEnum):
    """The policies at hand."""

    YARN_CS = "yarn-cs"


class Preempted(StrEnum):
    """What a preempted job keeps."""

    RESUME = "resume"  #: its work
    RESTART = "restart"  #: nothing; a job that has to move to its own cells starts again too


@dataclass(frozen=True, slots=True)
class Options:
    """All that changes a result beside spec and trace."""

    schemes: tuple[Scheme, ...] = tuple(Scheme)
    policies: tuple[PolicyName, ...] = (PolicyName.YARN_CS,)
    opportunistic: bool = True
    preempted: Preempted = Preempted.RESUME
    until_ms: int | None = None
    clock_compression: float = 1.0


@dataclass(frozen=True, slots=True)
class Results:
    """Everything an experiment found."""

    spec: ClusterSpec
    trace: Trace
    options: Options
    records: tuple[Record, ...]
    clusters: tuple[SharedCluster, ...]  #: the cluster that each record was made on, to name its placements
    never_fit: tuple[int, ...]  #: jobs (by number) too large for their tenant's private cluster


def make_cluster(scheme: Scheme, spec: ClusterSpec) -> SharedCluster:
    """An empty cluster under ``scheme``; :class:`~hived.errors.InfeasibleError` where its VCs do not fit."""
    match scheme:
        case Scheme.PRIVATE:
            return PrivateClusters(spec)
        case Scheme.QUOTA:
            return QuotaCluster(spec)
        case Scheme.HIVED:
            return HivedCluster(spec)


def make_policy(name: PolicyName, preempted: Preempted) -> Policy:
    """A policy by name."""
    match name:
        case PolicyName.YARN_CS:
            return YarnCS(Reaction.SUSPEND if preempted is Preempted.RESUME else Reaction.RESTART)


def check_tenants(spec: ClusterSpec, trace: Trace) -> None:
    """Every tenant of the trace has a virtual cluster, else :class:`~hived.errors.InputError`."""
    known = {vc.name for vc in spec.virtual_clusters}
    first: dict[str, str] = {}
    for job in trace.jobs:
        if job.tenant not in known:
            first.setdefault(job.tenant, job.job_id)
    if first:
        tenant, job_id = next(iter(first.items()))
        more = f", and {len(first) - 1:,} more tenants" if len(first) > 1 else ""
        raise InputError(
            f"{trace.name}: tenant {tenant} (job {job_id}{more}) has no virtual cluster in {spec.source}, "
            f"which has {some(sorted(known))}; add it under virtualClusters, or choose another spec"
        )


def some(names: Sequence[str], most: int = 12) -> str:
    """A list for a message: not too long, and never empty."""
    shown = ", ".join(names[:most]) or "none"
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def run_experiment(
    spec: ClusterSpec,
    trace: Trace,
    options: Options,
    progress: Callable[[str, int], None] | None = None,
    after_event: Callable[[Scheduler], None] | None = None,
) -> Results:
    """Run every scheme with every policy on ``trace`` (its clock already compressed).

    ``progress`` hears ``"scheme policy"`` and the number of jobs submitted so far. Deterministic.
    """
    check_tenants(spec, trace)
    records, clusters = [], []
    for policy in options.policies:
        for scheme in options.schemes:
            cluster = make_cluster(scheme, spec)
            scheduler = Scheduler(cluster, make_policy(policy, options.preempted), options.opportunistic)
            label = f"{scheme.value} {policy.value}"
            report = None if progress is None else _labelled(progress, label)
            record = simulate(scheduler, scheme.value, trace.jobs, options.until_ms, report, after_event)
            records.append(record)
            clusters.append(cluster)
    return Results(spec, trace, options, tuple(records), tuple(clusters), never_fit(spec, trace.jobs))


def _labelled(progress: Callable[[str, int], None], label: str) -> Callable[[int], None]:
    return lambda done: progress(label, done)


def never_fit(spec: ClusterSpec, jobs: Sequence[TraceJob]) -> tuple[int, ...]:
    """Jobs that would not fit their tenant's private cluster if it were empty."""
    private = PrivateClusters(spec)
    views = {name: private.view(number) for number, name in enumerate(private.tenants)}
    return tuple(n for n, job in enumerate(jobs) if not views[job.tenant].can_ever_fit(job.gpus))
