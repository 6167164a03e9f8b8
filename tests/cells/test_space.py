"""A space keeps up with its hosts, counts again only those that changed, and finds the best without looking at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cells import HostClass, Need, Rank, Space, find, is_packing, packs, shape_of
from hived.cells.capacity import Layout
from hived.cells.checks import check_space
from hived.cells.host_fit import cells_at
from hived.cells.space import CAPACITIES
from hived.errors import InvariantError

from .spaces import Case, cases, cells, equally, gangs_for, masks_in, most_pods, tightest

NODE = shape_of((2, 2, 2))
FULL = NODE.full


@given(cases(), st.data())
def test_changed_space_equals_a_fresh_one(case: Case, data: st.DataObject) -> None:
    space = case.space()
    gangs = [data.draw(gangs_for(case)) for _ in range(3)]
    idle = list(case.costless)
    hosts = st.sampled_from(range(len(case.shapes)))
    for host in data.draw(st.lists(hosts, max_size=12)):
        case.free[host] = data.draw(masks_in(case.shapes[host].leaves))
        idle[host] = case.free[host] if case.idle is None else case.free[host] & data.draw(masks_in(8))
        space.set(host, case.free[host], None if case.idle is None else idle[host])
        if data.draw(st.booleans()):
            needs = data.draw(st.sampled_from(gangs))
            fresh = Space(case.shapes, case.groups, case.node_level, case.free, idle, case.within_idle)
            assert find(space, needs, tightest) == find(fresh, needs, tightest)
    assert (space.free, space.idle) == (case.free, idle)
    check_space(space)


@given(cases(), st.data())
def test_capacity_of_hosts_and_groups(case: Case, data: st.DataObject) -> None:
    need = data.draw(gangs_for(case))[0]
    space = case.space()
    for masks, capacity in ((case.obtainable, space.capacity(need)), (case.costless, space.capacity(need, True))):
        counts = [most_pods(shape, mask, need) for shape, mask in zip(case.shapes, masks, strict=True)]
        assert [capacity.of_host(host) for host in range(space.hosts)] == counts
        assert (capacity.total, capacity.most()) == (sum(counts), max(counts, default=0))
        for above, of_host in enumerate(case.groups):
            sums = [
                sum(c for c, g in zip(counts, of_host, strict=True) if g == group) for group in range(max(of_host) + 1)
            ]
            for pods in range(1, 5):
                expected = sorted((pods_there, g) for g, pods_there in enumerate(sums) if pods_there >= pods)
                assert list(capacity.groups(above, pods)) == [g for _, g in expected]


def test_cells_are_numbered_from_the_left() -> None:
    for fanouts in [(), (2,), (2, 2, 2), (3, 2), (2, 1, 2), (4, 2)]:
        shape = shape_of(fanouts)
        for level in range(1, shape.depth + 2):
            assert list(cells_at(shape, level)) == cells(shape, level)


def test_only_changed_hosts_are_counted() -> None:
    space = Space([NODE] * 9, [[0] * 9], 4, [FULL] * 9)
    assert space.capacity(Need(8)).total == 9
    space.free[5] = 0  # behind its back: an unreported change of a host is not counted
    for hosts, left in (([7], 8), ([2, 3], 6), ([], 6)):
        for host in hosts:
            space.set(host, 0x0F)
            space.set(host, 0x0F)
        assert space.capacity(Need(8)).total == left
    space.set(5, 0x0F)
    assert space.capacity(Need(8)).total == 5


def test_least_recent_capacity_goes() -> None:
    space = Space([NODE] * 2, [[0, 0]], 4, [FULL] * 2)
    first, second = space.capacity(Need(1)), space.capacity(Need(2))
    for need in [*map(Need, range(3, 9)), *(Need(1, level) for level in range(1, CAPACITIES - 8))]:
        space.capacity(need)
    assert space.capacity(Need(1)) is first
    space.capacity(Need(1, 99))
    space.capacity(Need(1, 98))
    assert space.capacity(Need(1)) is first
    assert space.capacity(Need(2)) is not second
    check_space(space)


def test_log_of_changes_is_bounded() -> None:
    space = Space([NODE] * 2, [[0, 0]], 4, [FULL] * 2)
    capacity = space.capacity(Need(4))
    for i in range(3000):
        space.set(i % 2, i % 255)
    assert space.capacity(Need(4)) is not capacity
    check_space(space)


def test_costly() -> None:
    space = Space([NODE] * 2, [], 4, [FULL] * 2)
    assert not space.costly
    space.set(0, FULL, 0x0F)
    assert space.costly
    space.set(0, 0x0F, 0x0F)
    assert not space.costly
    within = Space([NODE], [], 4, [FULL], [0x0F], within_idle=True)
    assert not within.costly, "what is not idle cannot be had there at all"


@pytest.mark.parametrize(("free", "idle"), [(0x0F, 0x1F), (0x1FF, 0x0F)])
def test_idle_leaves_are_free_ones(free: int, idle: int) -> None:
    space = Space([NODE], [], 4, [FULL])
    with pytest.raises(InvariantError):
        space.set(0, free, idle)
    assert (space.free, space.idle) == ([FULL], [FULL]), "nothing has changed"
    check_space(space)


def test_hosts_of_a_group_are_contiguous() -> None:
    with pytest.raises(InvariantError):
        Layout(3, [[0, 1, 0]])


def test_disagreement_is_found_out() -> None:
    for wrong in ("free", "occupied"):
        space = Space([NODE] * 2, [[0, 0]], 4, [FULL] * 2)
        space.capacity(Need(4))
        if wrong == "free":
            space.free[0] = 0x0F
        else:
            space.occupied = 0
        with pytest.raises(InvariantError):
            check_space(space)


def test_no_hosts_at_all() -> None:
    space = Space([], [[]], 4, [])
    check_space(space)
    assert find(space, [Need(1)], tightest) is None
    assert find(space, [Need(1)] * 2, tightest) is None
    assert find(space, [Need(1), Need(2)], tightest) is None


# ------------------------------------------------------------------------------------------------ the best host

SHAPE = shape_of((2, 2))


def tightest_idle(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    return (host.idle.free,) if host.idle.free >= gpus else None


def far_from_guaranteed(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    level = host.idle.level_for(gpus)
    return (host.guaranteed, level) if level else None


RANKS: list[Rank] = [tightest_idle, far_from_guaranteed, equally]
packs(far_from_guaranteed)


def masks(guaranteed: int, opportunistic: int) -> tuple[int, int]:
    """Free and idle leaves of a host with these in use."""
    free = SHAPE.full & ~guaranteed
    return free, free & ~opportunistic


def class_of(guaranteed: int, opportunistic: int) -> HostClass:
    free, idle = masks(guaranteed, opportunistic)
    return HostClass(SHAPE.profile(free), SHAPE.profile(idle))


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 15), st.integers(0, 15)), max_size=25))
def test_best_host_is_what_looking_at_all_gives(n: int, changes: list[tuple[int, int, int]]) -> None:
    space = Space([SHAPE] * n, [], SHAPE.depth, [SHAPE.full] * n)
    classes = [class_of(0, 0) for _ in range(n)]
    for at, guaranteed, opportunistic in [(0, 0, 0), *changes]:
        host = at % n
        classes[host] = class_of(guaranteed, opportunistic & ~guaranteed)
        assert classes[host].guaranteed == guaranteed.bit_count()
        space.set(host, *masks(guaranteed, opportunistic))
        check_space(space)
        assert [space.class_of(h) for h in range(n)] == classes
        assert space.occupied.bit_count() == len(set(classes))
        for rank in RANKS:
            for gpus in range(1, 6):
                ranked = sorted(
                    (value, *((c.free, c.idle) if is_packing(rank) else ()), number)
                    for number, c in enumerate(classes)
                    if c.free.free >= gpus and (value := rank(c, gpus)) is not None
                )
                expected = [number for *_, number in ranked]
                best = space.best_hosts(rank, gpus)
                assert (-1 if best is None else best.first()) == (expected[0] if expected else -1)
                assert list(space.in_order(rank, gpus)) == expected
