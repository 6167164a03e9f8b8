"""A gang goes to the lowest cell that holds it, all of it or nothing, against a search that tries everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement

from hypothesis import strategies as st

from hived.cells import Found, HostClass, Need, Rank, Space, count_fitting, find, level_of, shape_of
from hived.cells.capacity import Capacity, Layout
from hived.cells.checks import check_space
from hived.cells.host_fit import Demand
from hived.cells.packing import Steps, pack
from hived.cells.shape import Shape

from ..strategies import given_in_tiers
from .spaces import (
    RANKS,
    Case,
    cases,
    cells,
    equally,
    fits,
    gangs_for,
    group_fits,
    least_cost,
    level_of_pods,
    lowest_level,
    lowest_on,
    masks_in,
    most_pods,
    tightest,
)

NODE = shape_of((2, 2, 2))
FULL = NODE.full


def closest(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """By closeness alone, on idle leaves."""
    return (host.idle.level_for(gpus),)


#: a space, a gang, and how hosts are ranked
Placed = tuple[Case, list[Need], Rank]


@st.composite
def placements(draw: st.DrawFn) -> Placed:
    case = draw(cases())
    return case, draw(gangs_for(case)), draw(st.sampled_from(RANKS))


def assert_legal(case: Case, needs: list[Need], found: Found) -> None:
    """Each pod has what it asked for, out of what can be had, and no leaf is given twice."""
    assert len(found.pods) == len(needs)
    left = list(case.obtainable)
    for (host, mask), need in zip(found.pods, needs, strict=True):
        assert mask & left[host] == mask, "obtainable, and given once"
        left[host] &= ~mask
        assert mask.bit_count() == need.gpus
        if need.level:
            assert mask in cells(case.shapes[host], need.level), "a whole cell is exactly one cell"
    assert found.level == level_of_pods(case, found.pods)


@given_in_tiers(60, 600, placements())
def test_placed_if_there_is_a_way(placed: Placed) -> None:
    """In the lowest cell that has room."""
    case, needs, rank = placed
    space = case.space()
    found, lowest = find(space, needs, rank), lowest_level(case, needs)
    assert (found is None) == (lowest is None)
    if found is None or lowest is None:
        return
    assert_legal(case, needs, found)
    one_host = max(shape.depth for shape in case.shapes) >= lowest > 0
    assert (len({host for host, _ in found.pods}) == 1) == one_host
    if not one_host:
        assert found.level == lowest
    elif not case.costly:
        (host,) = {host for host, _ in found.pods}
        assert found.level == lowest_on(case.shapes[host], case.obtainable[host], needs)
    check_space(space)


@given_in_tiers(60, 600, placements())
def test_cap(placed: Placed) -> None:
    """It is kept, and keeps out only gangs that need a higher cell."""
    case, needs, rank = placed
    space, lowest = case.space(), lowest_level(case, needs)
    for cap in range(1, case.node_level + 4):
        found = find(space, needs, rank, cap)
        assert (found is not None) == bool(lowest and lowest <= cap)
        if found is not None:
            assert_legal(case, needs, found)
            assert 1 <= found.level <= cap


@given_in_tiers(60, 450, cases(), st.data())
def test_one_pod_at_the_lowest_level(case: Case, data: st.DataObject) -> None:
    if case.costly:
        case = case._replace(idle=None)
    need = data.draw(gangs_for(case))[0]
    found = find(case.space(), [need], closest)
    assert (found.level if found else None) == lowest_level(case, [need])


@given_in_tiers(60, 450, cases(), st.data())
def test_equal_pods_take_little_from_others(case: Case, data: st.DataObject) -> None:
    if case.within_idle or case.idle is None:
        case = case._replace(idle=[mask & data.draw(st.integers(0, 255)) for mask in case.free], within_idle=False)
    need = data.draw(gangs_for(case))[0]
    needs = [need] * data.draw(st.integers(2, 4))
    rank = data.draw(st.sampled_from(RANKS))
    found = find(case.space(), needs, rank)
    if found is None:
        return
    hosts = sorted({host for host, _ in found.pods})
    taken = sum((mask & ~case.costless[host]).bit_count() for host, mask in found.pods)
    if len(hosts) > 1 and found.level:
        of_host = case.groups[found.level - case.node_level - 1]
        group = of_host[hosts[0]]
        members = [host for host, number in enumerate(of_host) if number == group]
        assert taken == least_cost(case, members, need, len(needs))
        costless = [g for g in set(of_host) - {-1} if group_fits(case, of_host, g, needs, costless=True)]
        assert not costless or not taken, "a cell where it costs nothing comes first"
    elif len(hosts) > 1:
        assert taken == least_cost(case, range(len(case.shapes)), need, len(needs))
    elif not need.level and rank is tightest:
        assert taken == min(
            least_cost(case, [host], need, len(needs))
            for host, mask in enumerate(case.obtainable)
            if mask.bit_count() >= need.gpus * len(needs)
        )
    else:
        assert taken == least_cost(case, hosts, need, len(needs))


def fewest_hosts(
    shapes: Sequence[Shape], free: Sequence[int], need: Need, hosts: Iterable[int], pods: int
) -> dict[int, int]:
    """Equal pods per host: hosts of most pods are filled, the rest is where it is closest, then with fewest leaves."""

    def holds(host: int) -> int:
        return most_pods(shapes[host], free[host], need)

    def worth(host: int) -> tuple[int, int]:
        return lowest_on(shapes[host], free[host], [need]), free[host].bit_count()

    left = sorted((host for host in hosts if holds(host)), key=lambda host: (-holds(host), worth(host), host))
    expected = {}
    while pods and holds(left[0]) <= pods:
        host = left.pop(0)
        expected[host] = holds(host)
        pods -= holds(host)
    if pods:
        expected[min((host for host in left if holds(host) >= pods), key=worth)] = pods
    return expected


def test_rest_of_a_gang_is_close() -> None:
    """All of three hosts of four GPUs."""
    shapes = [shape_of((2, 2))] * 3
    for free in combinations_with_replacement(range(16), 3):
        for need in (Need(2), Need(2, 2)):
            capacity = Capacity(need, Layout(3, []), shapes, free)
            for pods in range(1, capacity.total + 1):
                expected = fewest_hosts(shapes, free, need, range(3), pods)
                assert dict(capacity.spread(0, 3, pods)) == expected, (free, need, pods)


@given_in_tiers(60, 450, cases(), st.data())
def test_equal_pods_where_least_is_to_spare(case: Case, data: st.DataObject) -> None:
    case = case._replace(idle=None, within_idle=False)
    need = data.draw(gangs_for(case))[0]
    needs = [need] * data.draw(st.integers(2, 4))
    found = find(case.space(), needs, equally)
    if found is None or len({host for host, _ in found.pods}) == 1:
        return

    members = list(range(len(case.shapes)))
    if found.level:
        of_host = case.groups[found.level - case.node_level - 1]
        by_group = {g: [h for h in members if of_host[h] == g] for g in sorted(set(of_host) - {-1})}
        room = {g: sum(most_pods(case.shapes[h], case.free[h], need) for h in hosts) for g, hosts in by_group.items()}
        members = min((room[g], g, hosts) for g, hosts in by_group.items() if room[g] >= len(needs))[2]
    expected = fewest_hosts(case.shapes, case.free, need, members, len(needs))
    assert Counter(host for host, _ in found.pods) == expected


@given_in_tiers(60, 600, placements())
def test_number_of_pods_that_fit(placed: Placed) -> None:
    """As many as can be placed one by one."""
    case, needs, rank = placed
    space = case.space()
    before = (list(space.free), list(space.idle))
    number, found = count_fitting(space, needs, rank), find(space, needs, rank)
    assert (space.free, space.idle) == before
    assert number < len(needs) or found is not None
    assert (number > 0) == any(fits(case.shapes, case.obtainable, [need]) for need in needs)
    if len(set(needs)) == 1:
        assert number == max(k for k in range(len(needs) + 1) if fits(case.shapes, case.obtainable, needs[:k]))
    else:
        assert any(
            fits(case.shapes, case.obtainable, [need for i, need in enumerate(needs) if chosen >> i & 1])
            for chosen in range(1 << len(needs))
            if chosen.bit_count() == number
        )


@given_in_tiers(60, 600, st.sampled_from([(2, 2, 2), (4, 2), (2, 4), (8,)]), st.integers(1, FULL), st.data())
def test_no_pod_on_one_host_could_be_closer(fanouts: tuple[int, ...], free: int, data: st.DataObject) -> None:
    shape = shape_of(fanouts)
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(lambda s: sum(s) <= free.bit_count()))
    found = find(Space([shape], [], shape.depth, [free]), [Need(size) for size in sizes], tightest)
    assert found is not None
    masks = [mask for _, mask in found.pods]
    cell = next(cell for cell in cells(shape, found.level) if cell & masks[0])
    for size, mask in zip(sizes, masks, strict=True):
        left = free & cell & ~sum(masks) | mask
        assert level_of(shape, mask) == shape.profile(left).level_for(size), f"{size} of {left:b} on {mask:b}"


def test_opportunistic_pods() -> None:
    free, idle = [0b1111_1100, FULL], [0b1100_1100, 0b0000_0001]
    space = Space([NODE] * 2, [[0, 0]], 4, free, idle, within_idle=True)
    assert find(space, [Need(2)], equally) == Found(((0, 0b1100_0000),), 2), "not beside the guaranteed leaves 0 and 1"
    assert find(space, [Need(5)], equally) is None, "although host 1 has eight that are free"
    assert find(space, [Need(4), Need(1)], equally) == Found(((0, 0b1100_1100), (1, 1)), 5)


@given_in_tiers(60, 450, st.lists(masks_in(8), min_size=2, max_size=3), st.data())
def test_unequal_pods_packed_if_there_is_a_way(masks: list[int], data: st.DataObject) -> None:
    case = Case([NODE] * len(masks), [], NODE.depth, masks, None, False)
    needs = [need for _ in range(3) for need in data.draw(gangs_for(case))][:6]
    demand = Demand(needs)
    chosen = pack([demand.room(NODE, mask, mask) for mask in masks], demand, Steps())
    assert (chosen is not None) == fits(case.shapes, masks, needs)
    for host, mask in enumerate(masks):
        there = [need for need, at in zip(demand.needs, chosen or [], strict=bool(chosen)) if at == host]
        assert fits([NODE], [mask], there)


def test_exact_search_after_best_fit() -> None:
    """Best fit puts 4 with the host of 5; only 3 and 2 there, 4 and 3 on the other leave nothing over."""
    needs, steps = [Need(4), Need(3), Need(3), Need(2)], Steps()
    assert pack([(5, 5), (7, 7)], Demand(needs), Steps(0)) is None
    assert pack([(5, 5), (7, 7)], Demand(needs), steps) == [1, 1, 0, 0]
    assert steps.left < Steps().left
    space = Space([NODE] * 2, [[0, 0]], 4, [0b0001_1111, 0b0111_1111])
    found = find(space, needs, tightest)
    assert found is not None
    assert [host for host, _ in found.pods] == [1, 1, 0, 0]


def test_exact_search_ends_after_its_steps() -> None:
    """Even pods leave a leaf of each odd host over, which only a search finds."""
    rooms, steps = [(size, size) for size in (99, 101, 103, 105)], Steps(50)
    needs = [Need(gpus) for gpus in range(42, 14, -2)]
    assert pack(rooms, Demand(needs), steps) is None
    assert steps.left == 0
    assert pack(rooms, Demand(needs[1:]), steps) is not None, "best fit needs no steps"
    enough = Steps()
    assert pack(rooms, Demand(needs), enough) is None
    assert enough.left > 0, "no state is tried twice, so all of them are"
