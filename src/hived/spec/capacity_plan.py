"""The planner's arithmetic: from the GPU time that tenants ask for, by size of job, to the cells that each reserves.

A job of ``g`` GPUs asks for the lowest level whose cells have ``g``; one larger than a node, for nodes. A tenant's GPUs
are shared among the levels by the GPU time asked of each, from the top down: in cells of a level, between that level
and all below it together, by largest remainder (a tie goes up). So the cells of a tenant with whole nodes make whole
nodes, and a demand for less than half a cell goes up a level, where small jobs fit as well. What is no whole cell of a
level that is asked for goes down as few cells as possible.

    24 GPUs; asked of 1, 2, 4 and 8 GPUs: 10, 15, 30 and 45 %
    3 nodes       8: 1.35   below: 1.65      1 x 8, and 16 GPUs for those below
    4 sockets     4: 2.18   below: 1.82      2 x 4, and 8 GPUs
    4 pairs       2: 2.4    below: 1.6       2 x 2, and 4 x 1

The numbers per tenant sum to its GPUs exactly. Cells of one chain are nested, so cells of any levels fit together
whenever their GPUs do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hived.errors import InfeasibleError, InputError

from .compiled import ChainSpec
from .quotas import largest_remainder, share_out


@dataclass(frozen=True, slots=True)
class TenantDemand:
    """The GPU time that a tenant's jobs ask for."""

    tenant: str
    jobs: int
    gpu_time: Mapping[int, int]  #: by the GPUs of a job: GPUs times duration, summed, in any one unit of time

    @property
    def total(self) -> int:
        """The GPU time of all its jobs."""
        return sum(self.gpu_time.values())

    @property
    def largest(self) -> int:
        """The GPUs of its largest job; 0 without jobs."""
        return max(self.gpu_time, default=0)


@dataclass(frozen=True, slots=True)
class TenantPlan:
    """The cells of one tenant. ``asked`` and ``cells`` are by level, the lowest first, as ``sizes`` of the plan."""

    demand: TenantDemand
    gpus: int  #: of all its cells
    asked: tuple[Fraction, ...]  #: its GPUs in proportion to the GPU time that its jobs ask of the level
    cells: tuple[int, ...]
    runs_largest: bool  #: whether its largest job fits its cells


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The cells of all tenants."""

    sizes: tuple[int, ...]  #: GPUs of a cell of each level used, the lowest first; the last ones are nodes
    tenants: tuple[TenantPlan, ...]


def planned_clusters(
    before: Mapping[str, object], plan: CapacityPlan, chain: ChainSpec, levels: Sequence[int]
) -> dict[str, object]:
    """The ``virtualClusters`` of a spec with the cells of a plan; all else in them stays as it was ``before``.

    ``levels``: the levels of ``chain`` that the sizes of the plan are of.
    """
    clusters = dict(before)
    for tenant in plan.tenants:
        kept = before.get(tenant.demand.tenant)
        cells = [
            {"cellType": chain.path_to(level), "cellNumber": number}
            for level, number in zip(reversed(levels), reversed(tenant.cells), strict=True)
            if number
        ]
        clusters[tenant.demand.tenant] = {**(kept if isinstance(kept, Mapping) else {}), "virtualCells": cells}
    return clusters


def level_for(gpus: int, sizes: Sequence[int]) -> int:
    """The index of the lowest level whose cells hold a job of so many GPUs, or of the node level. O(levels)."""
    return next((at for at, size in enumerate(sizes) if size >= gpus), len(sizes) - 1)


def cells_for(gpus: int, sizes: Sequence[int]) -> int:
    """The GPUs of the cells that a job holds: one cell, or whole nodes. 0 for no job."""
    size = sizes[level_for(gpus, sizes)]
    return -(-gpus // size) * size


def share_by_demand(
    gpus: int, demands: Sequence[TenantDemand], sizes: Sequence[int], *, largest: bool
) -> tuple[int, ...]:
    """The GPUs of each tenant: ``gpus`` by share of GPU time, in the lowest of ``sizes``, by largest remainder.

    Each gets one unit at least and, with ``largest``, the cells of its largest job, but for a job that the whole
    cluster cannot hold; the others pay for it. Raises :class:`InfeasibleError` where all these together are too many.
    """
    unit = sizes[0]
    least = []
    for demand in demands:
        runs = [held for size in demand.gpu_time if largest and (held := cells_for(size, sizes)) <= gpus]
        least.append(max([unit, *runs]))
    if sum(least) > gpus:
        by = ", ".join(f"{demand.tenant} {need}" for demand, need in zip(demands, least, strict=True))
        out = "add nodes, or give --no-largest" if largest else "add nodes"
        what = "the largest job of every tenant" if largest else "every tenant"
        raise InfeasibleError(f"{what} needs {sum(least):,} GPUs ({by}), the cluster has {gpus:,}: {out}")
    if not any(demand.total for demand in demands):
        raise InputError("the jobs ask for no GPU time at all, so there is no demand to plan for")
    shares = share_out(gpus // unit, [demand.total for demand in demands], [need // unit for need in least])
    return tuple([share * unit for share in shares])


def plan_cells(demands: Sequence[TenantDemand], gpus: Sequence[int], sizes: Sequence[int]) -> CapacityPlan:
    """The cells of each tenant, which make exactly so many GPUs.

    ``sizes``: GPUs of a cell per level, each a multiple of the one before; every number of GPUs is a multiple of the
    first. A tenant without GPU time gets nodes. O(tenants * levels).
    """
    return CapacityPlan(tuple(sizes), tuple([_plan(d, total, sizes) for d, total in zip(demands, gpus, strict=True)]))


def _plan(demand: TenantDemand, gpus: int, sizes: Sequence[int]) -> TenantPlan:
    weights = [0] * len(sizes)
    for size, time in demand.gpu_time.items():
        weights[level_for(size, sizes)] += time
    if not any(weights):
        weights[-1] = 1
    asked = tuple([Fraction(gpus * weight, sum(weights)) for weight in weights])
    cells, left = [0] * len(sizes), gpus
    for at in reversed(range(len(sizes))):
        whole = left // sizes[at]
        shared = weights[at], sum(weights[:at])
        cells[at] = largest_remainder(whole, shared)[0] if any(shared) else whole
        left -= cells[at] * sizes[at]
    fitting = [size for size in demand.gpu_time if cells_for(size, sizes) <= gpus]
    if fitting:
        _make_room(cells, sizes, max(fitting))
    return TenantPlan(demand, gpus, asked, tuple(cells), max(fitting, default=0) == demand.largest)


def _make_room(cells: list[int], sizes: Sequence[int], gpus: int) -> None:
    """Join cells to larger ones until a job of ``gpus`` GPUs fits; there are GPUs enough for it. O(levels)."""
    at, need = level_for(gpus, sizes), cells_for(gpus, sizes)
    have = sum(number * size for number, size in zip(cells[at:], sizes[at:], strict=True))
    left = max(0, need - have)
    cells[at] += left // sizes[at]
    for below in reversed(range(at)):  # the largest first: sizes are nested, so they come out even
        taken = min(cells[below], left // sizes[below])
        cells[below] -= taken
        left -= taken * sizes[below]
