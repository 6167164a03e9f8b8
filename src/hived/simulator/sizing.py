"""A cluster for a trace that comes without one: nodes of 8 GPUs, shared by demand or by the paper's quotas."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from hived.spec import parse_spec, spec_from_quotas
from hived.spec.compiled import ClusterSpec

from .metrics import arrival_window
from .planner import Levels, demands_of, demands_of_tenants, equal_base, make_plan
from .scenario import LOAD, Quotas
from .traces import TABLE1, Trace

_GPUS = 8


def cluster_for(
    trace: Trace,
    nodes: int | None = None,
    quotas: Quotas | Mapping[str, int] = Quotas.DEMAND,
    levels: Levels = Levels.NODE,
) -> ClusterSpec:
    """Equal nodes of 8 GPUs, and what each tenant reserves of them: as ``hived spec from-demand``, or by quota.

    By :class:`~.scenario.Quotas` these are whole nodes: every tenant has one at least and, by demand, enough for its
    largest job, if there are so many. Without ``nodes`` there are, and as many as make the trace's offered load
    :data:`LOAD`. A mapping has the GPUs of each tenant, for which there have to be nodes; with ``Levels.ALL`` they are
    cells from a GPU to a node, by the GPU time of each size of the tenant's jobs. Raises
    :class:`~hived.errors.HivedError` for fewer nodes than that needs, for a tenant of the trace that the mapping lacks,
    and for jobs that all ask for no GPU time. O(jobs).
    """
    demands = demands_of(trace)
    if isinstance(quotas, Mapping):
        base = equal_base(nodes or ceil(sum(quotas.values()) / _GPUS), _GPUS, list(quotas))
        return make_plan(base, demands_of_tenants(demands, list(quotas), "quotas"), list(quotas.values()), levels).spec
    largest = sum(ceil(demand.largest / _GPUS) for demand in demands)
    if nodes is None:
        busy = sum(demand.total for demand in demands) / arrival_window(trace.jobs)
        nodes = max(ceil(busy / (LOAD * _GPUS)), largest)
    if quotas is Quotas.TABLE1:
        text = spec_from_quotas(nodes, [(row.tenant, row.quota_percent) for row in TABLE1], gpus_per_node=_GPUS)
        return parse_spec(text, f"Table 1, {nodes} nodes")
    base = equal_base(nodes, _GPUS, [demand.tenant for demand in demands])
    return make_plan(base, demands, None, Levels.NODE, largest=largest <= nodes).spec
