"""The planner behind ``hived spec from-demand``: the cells that each tenant should reserve, by a trace.

base  = equal_base(279, 8, tenants)  or  like_base("spec.yaml")      physical cells, and who reserves
plan  = make_plan(base, demands, totals, levels)                     hived.spec.capacity_plan has the arithmetic
spec  = plan.text()                                                  YAML
delay = predict(spec, trace)                                         by simulating private clusters of these cells
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from hived.cluster import Sharing, check_feasible
from hived.errors import InfeasibleError, InputError
from hived.spec import ClusterSpec, load_spec, parse_spec, read_documents, share_nodes
from hived.spec.capacity_plan import CapacityPlan, TenantDemand, plan_cells, planned_clusters, share_by_demand
from hived.spec.compiled import ChainSpec
from hived.spec.quotas import Quotas, check_nodes, check_quotas, equal_nodes
from hived.words import counted

from .experiment import check_tenants, run_experiment, some
from .report import TenantReport, make_report
from .scenario import Scenario
from .traces import Trace


class Levels(StrEnum):
    """The levels of which tenants reserve cells."""

    ALL = "all"  #: from a GPU to a node
    NODE = "node"  #: nodes alone


@dataclass(frozen=True, slots=True)
class Base:
    """The cluster that is planned for: everything of its spec but the cells of its tenants."""

    data: Mapping[str, Any]  #: the spec as plain data
    chain: ChainSpec  #: its only chain
    source: str


@dataclass(frozen=True, slots=True)
class PlannedSpec:
    """A plan, and the spec that has it."""

    plan: CapacityPlan
    levels: tuple[int, ...]  #: of the base's chain, the lowest first, as the numbers of the plan
    base: Base
    spec: ClusterSpec
    text: str  #: the spec as YAML


def demands_of(trace: Trace) -> tuple[TenantDemand, ...]:
    """The GPU time of each tenant's jobs by size, in milliseconds; tenants by name. O(jobs)."""
    gpu_time: defaultdict[str, Counter[int]] = defaultdict(Counter)
    jobs: Counter[str] = Counter()
    for job in trace.jobs:
        gpu_time[job.tenant][job.gpus] += job.gpus * job.duration_ms
        jobs[job.tenant] += 1
    return tuple([TenantDemand(tenant, jobs[tenant], gpu_time[tenant]) for tenant in sorted(jobs)])


def equal_base(nodes: int, gpus_per_node: int, tenants: Sequence[str]) -> Base:
    """Equal nodes, each halved down to its GPUs, for these tenants."""
    check_nodes(nodes, gpus_per_node)
    data = {
        "physicalCluster": equal_nodes(nodes, gpus_per_node),
        "virtualClusters": {tenant: {"virtualCells": []} for tenant in tenants},
    }
    source = f"{nodes} nodes of {gpus_per_node} GPUs"
    (chain,) = parse_spec(yaml.safe_dump(data, allow_unicode=True), source).chains
    return Base(data, chain, source)


def like_base(path: Path) -> tuple[Base, ClusterSpec]:
    """The cluster of a spec, and that spec. Raises :class:`InputError` where it has several chains."""
    spec = load_spec(path)
    if len(spec.chains) != 1:
        names = some([chain.name for chain in spec.chains])
        raise InputError(f"{path}: has {len(spec.chains)} chains ({names}); a trace does not say which its jobs need")
    (document,) = read_documents(path.read_text(encoding="utf-8-sig"), str(path))
    data = document.data
    assert isinstance(data, dict)
    return Base(data, spec.chains[0], str(path)), spec


def share_like(
    demands: Sequence[TenantDemand], spec: ClusterSpec, levels: Levels
) -> tuple[tuple[TenantDemand, ...], list[int]]:
    """The demand of each tenant of ``spec`` that has cells, and the GPUs that it has there, pinned cells left out.

    Raises :class:`InputError` where a tenant of the trace has none or, with whole nodes, no whole number of them.
    """
    (chain,) = spec.chains
    gpus = {vc.name: sum(c.number * chain.levels[c.level - 1].gpus for c in vc.cells) for vc in spec.virtual_clusters}
    gpus = {name: number for name, number in gpus.items() if number}
    found = demands_of_tenants(demands, list(gpus), spec.source)
    if levels is Levels.NODE:
        for name, number in gpus.items():
            if number % chain.gpus_per_node:
                raise InputError(
                    f"{spec.source}: {name} has {number} GPUs, no whole number of nodes of {chain.gpus_per_node}; "
                    "give --levels all"
                )
    return found, list(gpus.values())


def share_by_quotas(
    demands: Sequence[TenantDemand], quotas: Quotas, base_gpus: int, unit: int, source: str
) -> tuple[tuple[TenantDemand, ...], list[int]]:
    """The demand of each tenant of ``quotas`` (percent of the cluster), and its GPUs in multiples of ``unit``."""
    checked: tuple[tuple[str, Decimal], ...] = check_quotas(quotas)
    found = demands_of_tenants(demands, [tenant for tenant, _ in checked], source)
    if len(checked) * unit > base_gpus:
        raise InfeasibleError(
            f"{counted(len(checked), 'tenant')} need {counted(len(checked) * unit, 'GPU')}, {unit} at least for each, "
            f"and the cluster has {base_gpus:,}: add nodes"
        )
    return found, [share * unit for share in share_nodes(base_gpus // unit, checked)]


def demands_of_tenants(
    demands: Sequence[TenantDemand], tenants: Sequence[str], source: str
) -> tuple[TenantDemand, ...]:
    """The demands of these tenants, without jobs for those that the trace does not have."""
    known = {demand.tenant: demand for demand in demands}
    for tenant in known:
        if tenant not in tenants:
            raise InputError(f"{source}: tenant {tenant} of the trace has no GPUs there, which has {some(tenants)}")
    return tuple([known.get(tenant, TenantDemand(tenant, 0, {})) for tenant in tenants])


def sizes_of(chain: ChainSpec, levels: Levels) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The levels to be used, the lowest first, and the GPUs of their cells; cells above nodes are not."""
    used = range(1, chain.node_level + 1) if levels is Levels.ALL else (chain.node_level,)
    return tuple(used), tuple([chain.levels[level - 1].gpus for level in used])


def make_plan(
    base: Base, demands: Sequence[TenantDemand], gpus: Sequence[int] | None, levels: Levels, *, largest: bool = True
) -> PlannedSpec:
    """The cells of each tenant, and the spec. Feasible: checked.

    ``gpus``: of each tenant; None: all GPUs of the cluster by share of GPU time, and with ``largest`` at least enough
    for the largest job of each. Raises :class:`~hived.errors.InfeasibleError` with need and supply.
    """
    used, sizes = sizes_of(base.chain, levels)
    if gpus is None:
        gpus = share_by_demand(base.chain.gpus, demands, sizes, largest=largest)
    plan = plan_cells(demands, gpus, sizes)
    clusters = planned_clusters(base.data["virtualClusters"], plan, base.chain, used)
    text = yaml.safe_dump({**base.data, "virtualClusters": clusters}, sort_keys=False, allow_unicode=True)
    spec = parse_spec(text, f"the plan for {base.source}")
    check_feasible(spec)
    return PlannedSpec(plan, used, base, spec, _header(plan, base, spec) + text)


def _header(plan: CapacityPlan, base: Base, spec: ClusterSpec) -> str:
    lines = [
        f"Planned from demand for {base.source}: per tenant its GPUs,",
        "and for each size of cell the GPUs asked for (by share of its GPU time) and the cells given.",
        "",
    ]
    for tenant in plan.tenants:
        cells = (
            f"{size}: {float(asked):.1f} = {number}x{size}"
            for size, asked, number in zip(plan.sizes, tenant.asked, tenant.cells, strict=True)
        )
        lines.append(f"  {tenant.demand.tenant}: {tenant.gpus} GPUs;  {'  '.join(cells)}")
    lines.append(f"  spare: {spec.gpus - sum(map(spec.reserved, spec.virtual_clusters))} GPUs")
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def predict(
    spec: ClusterSpec, trace: Trace, progress: Callable[[str, int], None] | None = None
) -> dict[str, TenantReport]:
    """What a simulation says of each tenant on its planned cells alone: sharing under ``hived`` adds no wait to it.

    Its delays leave out jobs that never fit. O(a simulation of the private scheme).
    """
    check_tenants(spec, trace)
    results = run_experiment(spec, trace, Scenario(schemes=Sharing.PRIVATE, opportunistic=False), progress)
    return {str(tenant.tenant): tenant for tenant in make_report(results).runs[0].tenants}
