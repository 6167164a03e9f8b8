"""An experiment: one trace under several sharing schemes and policies, as ``hived simulate`` runs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from random import Random

from hived.cluster.cluster import Cluster
from hived.cluster.requests import Request
from hived.cluster.sharing import BindingKind, Sharing
from hived.errors import InputError, PolicyError
from hived.exchange import make_arbiter
from hived.policies import policies_of
from hived.scheduling import Policies, Reaction, Scheduler
from hived.scheduling.exact import check_exact
from hived.spec.compiled import ClusterSpec

from .driver import Driver
from .exchange import HourlyTrading, Trading
from .record import Record
from .scenario import PolicyGiven, Preempted, Scenario, Victims
from .simulation import members_of, simulate
from .traces import Trace, TraceJob
from .work import Work

#: GPUs of nodes, by the name of the chain and of the node
NodeSizes = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Results:
    """The raw results of an experiment."""

    spec: ClusterSpec
    trace: Trace
    scenario: Scenario
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


def make_policies(spec: ClusterSpec, scenario: Scenario, policy: PolicyGiven) -> Policies:
    """The policies of a run: ``policy``, but for the tenants that have their own."""
    policies = policies_of(spec, policy, scenario.tenant_policies)
    if scenario.preempted is Preempted.RESTART:
        for one in policies.all:
            one.displace(Reaction.RESTART)
    return policies


def labels(spec: ClusterSpec, scenario: Scenario, trading: Trading | None = None) -> list[str]:
    """The labels of all runs, scheme and policy, in their order.

    Raises :class:`~hived.errors.InputError` for a policy that cannot be made, or cannot give the safety that is
    asked for, and for two of one name.
    """
    made = [make_policies(spec, scenario, policy) for policy in scenario.policies]
    for policies in made if Sharing.HIVED in scenario.schemes else ():
        check_exact(policies, scenario.exact(spec))
        if scenario.exchange is not None or trading is not None:
            _check_trades(spec, scenario, policies)
    names = [policies.name for policies in made]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two policies are called {name!r}: give one of them another name")
    return [f"{scheme.value} {name}" for name in names for scheme in scenario.schemes]


def _check_trades(spec: ClusterSpec, scenario: Scenario, policies: Policies) -> None:
    """Raise :class:`~hived.errors.InputError` where cells cannot be traded."""
    if scenario.exact(spec):
        raise InputError(
            "exchange with exact safety: a private cluster trades no cells, so there is nothing to compare with; "
            "leave one of the two out"
        )
    if scenario.binding is not BindingKind.DYNAMIC:
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
    scenario: Scenario,
    progress: Callable[[str, int], None] | None = None,
    after_event: Callable[[Scheduler], None] | None = None,
    driver: Driver | None = None,
    trading: Trading | None = None,
) -> Results:
    """Run every scheme with every policy on ``trace``, which is prepared: its clock is compressed.

    ``progress`` is called with ``"scheme policy"`` and the number of jobs submitted so far. ``driver`` and ``trading``
    act on the only run; the results have the driver's jobs after the trace's. Deterministic.
    """
    every = trace if driver is None else replace(trace, jobs=(*trace.jobs, *driver.jobs))
    check_tenants(spec, every)
    runs = labels(spec, scenario, trading)  # all policies are made once before the first run
    if (driver is not None or trading is not None) and len(runs) > 1:
        raise InputError(f"{len(runs)} runs ({some(runs)}) with one driver or trading: give one scheme and one policy")
    if trading is not None and scenario.schemes != (Sharing.HIVED,):
        raise InputError(f"trading under {runs[0]}: cells are traded under the scheme hived alone")
    soft = soft_jobs(trace.jobs, scenario.soft, scenario.seed)
    records, sizes = [], []
    for policy in scenario.policies:
        for scheme in scenario.schemes:
            made = make_policies(spec, scenario, policy)  # a policy may have a state
            cluster = Cluster(spec, sharing=scheme, rank=made.rank, ranks=made.ranks, binding=scenario.binding)
            cluster.spare_work(scenario.victims is Victims.LEAST_WORK)
            label = f"{scheme.value} {made.name}"
            report = None if progress is None else _labelled(progress, label)
            work = None if scenario.job_models is None else Work(every.jobs, spec, scenario.job_models)
            trades = trading
            if trades is None and scenario.exchange is not None and scheme is Sharing.HIVED:
                trades = HourlyTrading(spec, make_arbiter(scenario.exchange))
            record = simulate(
                cluster,
                made,
                trace.jobs,
                scenario.opportunistic,
                scenario.until_ms,
                report,
                after_event,
                soft,
                work,
                driver,
                exact=scenario.exact(spec),
                trading=trades,
            )
            if trades is not None:
                record.trades, record.looks = trades.made, trades.samples
            records.append(record)
            sizes.append(node_sizes(cluster))
    if driver is not None:
        every = replace(trace, jobs=tuple(records[0].jobs))
    return Results(spec, every, scenario, tuple(records), tuple(sizes), never_fit(spec, every.jobs, soft))


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
