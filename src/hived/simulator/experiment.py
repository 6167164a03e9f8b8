"""An experiment: one trace under several sharing schemes and policies, as ``hived simulate`` runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TypeAlias

from hived.cluster.cluster import Cluster
from hived.cluster.requests import Request
from hived.cluster.sharing import BindingKind, Sharing
from hived.errors import InputError, PolicyError
from hived.exchange import make_arbiter
from hived.policies import policies_of
from hived.scheduling import Policies, Policy, Reaction, Scheduler
from hived.scheduling.exact import check_exact
from hived.spec.compiled import EXACT, WORK_CONSERVING, ClusterSpec

from .exchange import HourlyTrading
from .models import Models
from .record import Record
from .simulation import members_of, simulate
from .traces import Trace, TraceJob
from .work import Work


class Preempted(StrEnum):
    """What a preempted job keeps."""

    RESUME = "resume"  #: its work
    RESTART = "restart"  #: nothing; a job that moves to its VC's cells restarts too


class Safety(StrEnum):
    """What tenants are promised under ``hived`` when their jobs run before their turn."""

    WORK_CONSERVING = WORK_CONSERVING  #: their cells, and that no job needs another tenant's leave
    EXACT = EXACT  #: that no job ends later than in its tenant's private cluster


#: a policy, or its name (:mod:`hived.policies`)
PolicyGiven: TypeAlias = str | Policy
#: GPUs of nodes, by the name of the chain and of the node
NodeSizes = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Options:
    """The options that determine a result, besides spec and trace."""

    schemes: tuple[Sharing, ...] = tuple(Sharing)
    policies: tuple[PolicyGiven, ...] = ("yarn-cs",)  #: one run each
    opportunistic: bool = True
    preempted: Preempted = Preempted.RESUME
    until_ms: int | None = None
    clock_compression: float = 1.0
    binding: BindingKind = BindingKind.DYNAMIC  #: when VCs are bound, under ``hived``
    soft: float = 0.0  #: the share of the multi-GPU jobs that accept any GPUs, 0 to 1; they lose no speed
    seed: int = 1  #: decides which jobs these are
    #: how fast jobs run on their GPUs; None: at the rate 1, but by the models of the package where they share GPUs
    models: Models | None = None
    #: policies of single tenants, whatever the run's
    tenant_policies: tuple[tuple[str, PolicyGiven], ...] = ()
    safety: Safety | None = None  #: of all tenants under ``hived``; None: as the spec says
    #: the arbiter by which tenants trade cells every hour under ``hived``; None: they do not
    exchange: str | None = None

    def exact(self, spec: ClusterSpec) -> frozenset[str]:
        """The tenants of exact safety under ``hived``."""
        return frozenset([vc.name for vc in spec.virtual_clusters if (self.safety or vc.safety) == EXACT])


@dataclass(frozen=True, slots=True)
class Results:
    """The raw results of an experiment."""

    spec: ClusterSpec
    trace: Trace
    options: Options
    records: tuple[Record, ...]
    node_sizes: tuple[NodeSizes, ...]  #: of the cluster of each record
    never_fit: tuple[int, ...]  #: jobs (by number) too large for their tenant's private cluster

    @property
    def policies(self) -> list[str]:
        """The names of the policies, in the order of the runs."""
        return list(dict.fromkeys(record.policy for record in self.records))


def node_sizes(cluster: Cluster) -> NodeSizes:
    """GPUs of every node, by the names of its chain and itself. O(nodes)."""
    return {(chain, node): gpus for chain, node, gpus in cluster.nodes()}


def make_policies(spec: ClusterSpec, options: Options, policy: PolicyGiven) -> Policies:
    """The policies of a run: ``policy``, but for the tenants that have their own."""
    policies = policies_of(spec, policy, dict(options.tenant_policies))
    if options.preempted is Preempted.RESTART:
        for one in policies.all:
            one.displace(Reaction.RESTART)
    return policies


def labels(spec: ClusterSpec, options: Options) -> list[str]:
    """The labels of all runs, scheme and policy, in their order.

    Raises :class:`~hived.errors.InputError` for a policy that cannot be made, or cannot give the safety that is
    asked for, and for two of one name.
    """
    made = [make_policies(spec, options, policy) for policy in options.policies]
    for policies in made if Sharing.HIVED in options.schemes else ():
        check_exact(policies, options.exact(spec))
        _check_exchange(spec, options, policies)
    names = [policies.name for policies in made]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two policies are called {name!r}: give one of them another name")
    return [f"{scheme.value} {name}" for name in names for scheme in options.schemes]


def _check_exchange(spec: ClusterSpec, options: Options, policies: Policies) -> None:
    """Raise :class:`~hived.errors.InputError` where cells cannot be traded."""
    if options.exchange is None:
        return
    make_arbiter(options.exchange)
    if options.exact(spec):
        raise InputError(
            "exchange with exact safety: a private cluster trades no cells, so there is nothing to compare with; "
            "leave one of the two out"
        )
    if options.binding is not BindingKind.DYNAMIC:
        raise InputError("exchange with static binding: cells that are bound for good change no hands; leave one out")
    for policy in policies.all:
        if policy.gpu_sharing:
            raise PolicyError(policy.name, "its jobs share GPUs, and trades of cells under them are not simulated")


def check_tenants(spec: ClusterSpec, trace: Trace) -> None:
    """Raise :class:`~hived.errors.InputError` unless every tenant of the trace has a virtual cluster."""
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
    """Format names for a message: at most ``most``, and never an empty text."""
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

    ``progress`` is called with ``"scheme policy"`` and the number of jobs submitted so far. Deterministic.
    """
    check_tenants(spec, trace)
    labels(spec, options)  # all policies are made once before the first run
    soft = soft_jobs(trace.jobs, options.soft, options.seed)
    records, sizes = [], []
    for policy in options.policies:
        for scheme in options.schemes:
            made = make_policies(spec, options, policy)  # a policy may have a state
            cluster = Cluster(spec, sharing=scheme, rank=made.rank, ranks=made.ranks, binding=options.binding)
            label = f"{scheme.value} {made.name}"
            report = None if progress is None else _labelled(progress, label)
            work = None if options.models is None else Work(trace.jobs, spec, options.models)
            trading = None
            if options.exchange is not None and scheme is Sharing.HIVED:
                trading = HourlyTrading(spec, make_arbiter(options.exchange))
            record = simulate(
                cluster,
                made,
                trace.jobs,
                options.opportunistic,
                options.until_ms,
                report,
                after_event,
                soft,
                work,
                exact=options.exact(spec),
                trading=trading,
            )
            if trading is not None:
                record.trades, record.looks = trading.made, trading.samples
            records.append(record)
            sizes.append(node_sizes(cluster))
    return Results(spec, trace, options, tuple(records), tuple(sizes), never_fit(spec, trace.jobs, soft))


def _labelled(progress: Callable[[str, int], None], label: str) -> Callable[[int], None]:
    return lambda done: progress(label, done)


def soft_jobs(jobs: Sequence[TraceJob], share: float, seed: int) -> frozenset[int]:
    """The numbers of the jobs with soft affinity: those of the trace, and this share of all with several GPUs, drawn.

    They depend on the trace, the share and the seed alone, so every scheme and policy gets the same ones; with one
    seed, those of a larger share include those of a smaller one. Raises :class:`~hived.errors.InputError`.
    """
    if not 0 <= share <= 1:
        raise InputError(f"a share of {share:g} of the jobs with soft affinity: it must be from 0 to 1")
    of_trace = frozenset([number for number, job in enumerate(jobs) if job.soft])
    several = [number for number, job in enumerate(jobs) if job.gpus > 1]
    if not share:
        return of_trace
    Random(seed).shuffle(several)
    return of_trace.union(several[: round(share * len(several))])


def never_fit(spec: ClusterSpec, jobs: Sequence[TraceJob], soft: Collection[int] = ()) -> tuple[int, ...]:
    """Jobs that would not fit their tenant's private cluster if it were empty; ``soft``: those of soft affinity."""
    private = Cluster(spec, sharing=Sharing.PRIVATE)
    known: dict[tuple[str, int, bool], bool] = {}
    found = []
    for number, job in enumerate(jobs):
        key = job.tenant, job.gpus, number in soft
        if key not in known:
            request = Request(job.job_id, job.tenant, 0, members_of(job.gpus, key[2]), whole_nodes=True)
            known[key] = private.never_fits(request)
        if known[key]:
            found.append(number)
    return tuple(found)
