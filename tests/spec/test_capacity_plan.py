"""The planner's arithmetic: what tenants ask for, and the cells that they are given."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.errors import InfeasibleError, InputError
from hived.spec.capacity_plan import TenantDemand, cells_for, level_for, plan_cells, share_by_demand

EIGHT = (1, 2, 4, 8)
#: GPUs of a cell per level
SIZES = st.lists(st.integers(2, 4), max_size=4).map(lambda fanouts: tuple(accumulate([1, *fanouts], mul)))
GPU_TIME = st.dictionaries(st.integers(1, 100), st.integers(0, 10**12), max_size=6)


def demand(gpu_time: dict[int, int], tenant: str = "t") -> TenantDemand:
    return TenantDemand(tenant, len(gpu_time), gpu_time)


def test_a_job_asks_for_the_lowest_level() -> None:
    assert [level_for(gpus, EIGHT) for gpus in (1, 2, 3, 4, 5, 8, 9, 64)] == [0, 1, 2, 2, 3, 3, 3, 3]
    assert [cells_for(gpus, EIGHT) for gpus in (0, 1, 3, 6, 8, 9, 64)] == [0, 1, 4, 8, 8, 16, 64]


@pytest.mark.parametrize(
    ("gpus", "gpu_time", "expected"),
    [
        (24, {1: 10, 2: 15, 4: 30, 8: 45}, (4, 2, 2, 1)),  # the example of the module
        # shares that come out even are met exactly
        (64, {1: 1, 2: 1, 4: 2, 8: 4}, (8, 4, 4, 4)),
        (64, {16: 1, 32: 1}, (0, 0, 0, 8)),
        # a demand for less than half a cell goes up a level
        (16, {1: 20, 8: 80}, (0, 0, 0, 2)),  # 3.2 GPUs
        (16, {1: 25, 8: 75}, (0, 0, 0, 2)),  # a tie
        (16, {1: 26, 8: 74}, (8, 0, 0, 1)),
        # what is no whole cell goes down, as few cells as possible
        (15, {8: 1}, (1, 1, 1, 1)),
        # cells are joined until the largest job fits
        (8, {1: 99, 8: 1}, (0, 0, 0, 1)),
        (24, {1: 98, 16: 1}, (8, 0, 0, 2)),
        (12, {1: 99, 4: 1}, (8, 0, 1, 0)),
        # without GPU time there are nodes
        (20, {}, (0, 0, 1, 2)),
        (16, {1: 0}, (0, 0, 0, 2)),
    ],
)
def test_cells_follow_the_demand(gpus: int, gpu_time: dict[int, int], expected: tuple[int, ...]) -> None:
    assert plan_cells([demand(gpu_time)], [gpus], EIGHT).tenants[0].cells == expected


def test_a_job_that_no_cells_hold() -> None:
    (plan,) = plan_cells([demand({1: 98, 8: 1, 32: 1})], [12], EIGHT).tenants
    assert not plan.runs_largest
    assert plan.cells == (4, 0, 0, 1)


@given(st.lists(GPU_TIME, min_size=1, max_size=6), SIZES, st.data())
def test_any_plan_runs_the_largest_job(
    times: list[dict[int, int]], sizes: tuple[int, ...], data: st.DataObject
) -> None:
    gpus = data.draw(st.lists(st.integers(1, 300), min_size=len(times), max_size=len(times)))
    plan = plan_cells([demand(time) for time in times], gpus, sizes)
    for tenant, total in zip(plan.tenants, gpus, strict=True):
        assert min(tenant.cells) >= 0
        assert sum(map(mul, tenant.cells, sizes)) == total == tenant.gpus
        assert sum(tenant.asked) == total
        can = [size for size in tenant.demand.gpu_time if cells_for(size, sizes) <= total]
        assert tenant.runs_largest == (len(can) == len(tenant.demand.gpu_time))
        if can:
            at = level_for(max(can), sizes)
            above = sum(map(mul, tenant.cells[at:], sizes[at:]))
            assert above >= cells_for(max(can), sizes)


@given(GPU_TIME, st.integers(1, 300))
def test_gpus_below_a_level_are_near_the_demand(time: dict[int, int], nodes: int) -> None:
    """But for cells that were joined for the largest job."""
    total = 8 * nodes
    (plan,) = plan_cells([demand(time)], [total], EIGHT).tenants
    if not any(time.values()):
        return
    for at in range(4):
        given = sum(map(mul, plan.cells[:at], EIGHT))
        asked = sum(plan.asked[:at], Fraction())
        assert given - asked <= 8
        if not time or level_for(max(time), EIGHT) < at:
            assert abs(given - asked) <= 8


@given(st.lists(GPU_TIME.filter(lambda time: any(time.values())), min_size=1, max_size=8), SIZES, st.integers(1, 300))
def test_tenants_share_by_gpu_time(times: list[dict[int, int]], sizes: tuple[int, ...], nodes: int) -> None:
    demands = [demand(time, f"t{n}") for n, time in enumerate(times)]
    total = nodes * sizes[-1]
    for largest in (True, False):
        need = [
            max([1, *(held for g in d.gpu_time if largest and (held := cells_for(g, sizes)) <= total)]) for d in demands
        ]
        if sum(need) > total:
            with pytest.raises(InfeasibleError, match=rf"needs {sum(need):,} GPUs .*, the cluster has {total:,}: add"):
                share_by_demand(total, demands, sizes, largest=largest)
            continue
        shares = share_by_demand(total, demands, sizes, largest=largest)
        assert sum(shares) == total
        assert all(share >= least for share, least in zip(shares, need, strict=True))
        exact = [Fraction(total * d.total, sum(d.total for d in demands)) for d in demands]
        if all(share >= least for share, least in zip(exact, need, strict=True)):
            assert all(abs(share - by) < 1 for share, by in zip(shares, exact, strict=True))


def test_nodes_alone_are_shared_whole() -> None:
    demands = [demand({1: 30}, "a"), demand({8: 70}, "b")]
    assert share_by_demand(80, demands, (8,), largest=True) == (24, 56)
    assert [tenant.cells for tenant in plan_cells(demands, [24, 56], (8,)).tenants] == [(3,), (7,)]


def test_no_gpu_time_or_too_large_a_job() -> None:
    demands = [demand({1: 50, 100: 50}, "a"), demand({8: 100}, "b")]
    assert share_by_demand(16, demands, EIGHT, largest=True) == (8, 8)
    with pytest.raises(InputError, match="no GPU time"):
        share_by_demand(16, [demand({1: 0})], EIGHT, largest=True)
