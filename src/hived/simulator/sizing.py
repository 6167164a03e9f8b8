"""A cluster for a trace that comes without one: nodes of 8 GPUs, shared by demand or by the paper's quotas."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from enum import StrEnum
from math import ceil

from hived.spec import parse_spec, spec_from_quotas
from hived.spec.compiled import ClusterSpec

from .metrics import arrival_window
from .traces import TABLE1, Trace

#: the offered load for which nodes are counted where none are given
LOAD = 0.8
_GPUS = 8


class Quotas(StrEnum):
    """What a tenant reserves where no spec is given."""

    DEMAND = "demand"  #: nodes in proportion to the GPU time that its jobs in the trace ask for
    TABLE1 = "table1"  #: nodes in proportion to the quotas of the HiveD paper's Table 1


def cluster_for(trace: Trace, nodes: int | None = None, quotas: Quotas = Quotas.DEMAND) -> ClusterSpec:
    """Equal nodes, whole ones for each tenant by largest remainder, one at least (:func:`~hived.spec.share_nodes`).

    Without ``nodes`` as many as make the trace's offered load :data:`LOAD`. Raises :class:`~hived.errors.InputError`
    for fewer nodes than tenants. O(jobs).
    """
    asked: defaultdict[str, int] = defaultdict(int)
    for job in trace.jobs:
        asked[job.tenant] += job.gpus * job.duration_ms
    total = sum(asked.values())
    if quotas is Quotas.TABLE1:
        shares = [(row.tenant, Decimal(repr(row.quota_percent))) for row in TABLE1]
    else:
        shares = [(tenant, _percent(asked[tenant], total, len(asked))) for tenant in sorted(asked)]
    if nodes is None:
        nodes = max(len(shares), ceil(total / arrival_window(trace.jobs) / (LOAD * _GPUS)))
    how = "Table 1" if quotas is Quotas.TABLE1 else "shared by demand"
    return parse_spec(spec_from_quotas(nodes, shares, gpus_per_node=_GPUS), f"{how}, {nodes} nodes")


def _percent(part: int, total: int, tenants: int) -> Decimal:
    """Percent to 6 decimals, rounded down; equal parts of nothing."""
    part, total = (part, total) if total else (1, tenants)
    return Decimal(part * 10**8 // total).scaleb(-6)
