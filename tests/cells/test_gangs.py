"""A gang goes to the lowest cell that holds it, all of it or nothing, against a search that tries everything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hived.cells import Found, HostClass, Need, Rank, Space, count_fitting, find, level_of, shape_of
from hived.cells.host_fit import Demand
from hived.cells.packing import Steps, pack

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
    roomiest,
    tightest,
)

NODE = shape_of((2, 2, 2))
FULL = NODE.full


def closest(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """By closeness alone, on idle leaves."""
    return (host.idle.level_for(gpus),)


@st.composite
def placements(draw: st.DrawFn) -> tuple[Case, list[Need], Rank]:
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


@settings(max_examples=200)
@given(placements())
def test_a_gang_is_placed_exactly_when_a_search_finds_a_way_and_in_the_lowest_cell(
    case_needs_rank: tuple[Case, list[Need], Rank],
) -> None:
    case, needs, rank = case_needs_rank
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
    space.validate()


@settings(max_examples=200)
@given(placements())
def test_a_cap_is_kept_and_keeps_out_only_gangs_that_need_a_higher_cell(
    case_needs_rank: tuple[Case, list[Need], Rank],
) -> None:
    case, needs, rank = case_needs_rank
    space, lowest = case.space(), lowest_level(case, needs)
    for cap in range(1, case.node_level + 4):
        found = find(space, needs, rank, cap)
        assert (found is not None) == bool(lowest and lowest <= cap)
        if found is not None:
            assert_legal(case, needs, found)
            assert 1 <= found.level <= cap


@settings(max_examples=150)
@given(cases(), st.data())
def test_one_pod_is_placed_at_the_lowest_inner_level_that_any_host_has_for_it(case: Case, data: st.DataObject) -> None:
    if case.costly:
        case = case._replace(idle=None)
    need = data.draw(gangs_for(case))[0]
    found = find(case.space(), [need], closest)
    assert (found.level if found else None) == lowest_level(case, [need])


@settings(max_examples=150)
@given(cases(), st.data())
def test_equal_pods_take_as_little_from_others_as_can_be(case: Case, data: st.DataObject) -> None:
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


@settings(max_examples=150)
@given(cases(), st.data())
def test_equal_pods_go_to_the_cell_with_the_least_to_spare_and_to_few_hosts_there(
    case: Case, data: st.DataObject
) -> None:
    case = case._replace(idle=None, within_idle=False)
    need = data.draw(gangs_for(case))[0]
    needs = [need] * data.draw(st.integers(2, 4))
    found = find(case.space(), needs, equally)
    if found is None or len({host for host, _ in found.pods}) == 1:
        return

    def holds(host: int) -> int:
        return max(k for k in range(9) if fits([case.shapes[host]], [case.free[host]], [need] * k))

    def room(hosts: list[int]) -> int:
        return sum(map(holds, hosts))

    members = list(range(len(case.shapes)))
    if found.level:
        of_host = case.groups[found.level - case.node_level - 1]
        by_group = {g: [h for h in members if of_host[h] == g] for g in sorted(set(of_host) - {-1})}
        members = min((room(hosts), g, hosts) for g, hosts in by_group.items() if room(hosts) >= len(needs))[2]
    shares = {host: [h for h, _ in found.pods].count(host) for host, _ in found.pods}
    assert set(shares) <= set(members)
    left, hosts = len(needs), sorted(members, key=lambda h: (-holds(h), case.free[h].bit_count(), h))
    expected = {}
    while left and holds(hosts[0]) <= left:  # the largest are filled
        host = hosts.pop(0)
        expected[host] = holds(host)
        left -= holds(host)
    if left:  # the remainder goes where the fewest leaves stay
        host = min((h for h in hosts if holds(h) >= left), key=lambda h: (case.free[h].bit_count(), -holds(h), h))
        expected[host] = left
    assert shares == expected


@settings(max_examples=200)
@given(placements())
def test_as_many_pods_are_said_to_fit_as_can_be_placed_one_by_one(
    case_needs_rank: tuple[Case, list[Need], Rank],
) -> None:
    case, needs, rank = case_needs_rank
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


@given(placements())
def test_the_same_question_has_the_same_answer_in_a_space_with_another_past(
    case_needs_rank: tuple[Case, list[Need], Rank],
) -> None:
    case, needs, rank = case_needs_rank
    old = Space([*case.shapes], case.groups, case.node_level, [0] * len(case.shapes), None, case.within_idle)
    find(old, needs, rank)
    for host in reversed(range(len(case.shapes))):
        old.set(host, case.free[host], case.costless[host])
    assert find(old, needs, rank) == find(case.space(), needs, rank) == find(old, needs, rank)


def test_a_gang_on_one_host_is_like_one_job_and_each_pod_is_close_within_it() -> None:
    space = Space([NODE], [], 4, [0b1111_0111])
    assert find(space, [Need(1), Need(2)], tightest) == Found(((0, 0b0100), (0, 0b0011)), 3)
    assert find(space, [Need(2), Need(4)], tightest) == Found(((0, 0b0011), (0, 0b1111_0000)), 4)


@settings(max_examples=200)
@given(st.sampled_from([(2, 2, 2), (4, 2), (2, 4), (8,)]), st.integers(1, FULL), st.data())
def test_no_pod_of_a_gang_on_one_host_could_be_closer_on_leaves_that_the_gang_leaves_over(
    fanouts: tuple[int, ...], free: int, data: st.DataObject
) -> None:
    shape = shape_of(fanouts)
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=4).filter(lambda s: sum(s) <= free.bit_count()))
    found = find(Space([shape], [], shape.depth, [free]), [Need(size) for size in sizes], tightest)
    assert found is not None
    masks = [mask for _, mask in found.pods]
    cell = next(cell for cell in cells(shape, found.level) if cell & masks[0])
    for size, mask in zip(sizes, masks, strict=True):
        left = free & cell & ~sum(masks) | mask
        assert level_of(shape, mask) == shape.profile(left).level_for(size), f"{size} of {left:b} on {mask:b}"


def test_the_rack_with_the_least_to_spare_is_taken_and_full_racks_stay_whole() -> None:
    space = Space([NODE] * 6, [[0, 0, 0, 1, 1, 1], [0] * 6], 4, [FULL] * 4 + [0x0F, FULL])
    assert find(space, [Need(8)] * 2, tightest) == Found(((3, FULL), (5, FULL)), 5)
    assert find(space, [Need(8)] * 3, tightest) == Found(((0, FULL), (1, FULL), (2, FULL)), 5)
    assert find(space, [Need(8)] * 4, tightest) == Found(tuple((host, FULL) for host in (0, 1, 2, 3)), 6)
    assert find(space, [Need(8)] * 4, tightest, cap=5) is None
    assert find(space, [Need(8)] * 6, tightest) is None


def test_idle_leaves_are_used_up_before_any_is_preempted() -> None:
    space = Space([NODE] * 3, [[0, 0, 0]], 4, [FULL] * 3, [0b1000_0001, 0b0111, 0])
    assert find(space, [Need(2)], tightest) == Found(((1, 0b0011),), 2)
    assert find(space, [Need(4)], tightest) == Found(((1, 0b1111),), 3), "one is taken"
    found = find(space, [Need(8)] * 2, tightest)
    assert found == Found(((0, FULL), (1, FULL)), 5), "six and five are taken, rather than eight"
    space = Space([NODE] * 3, [[0, 0, 0]], 4, [FULL] * 3, [0, 0b1000_0001, 0b0111])
    assert find(space, [Need(8)] * 2, equally) == Found(((1, FULL), (2, FULL)), 5), "whatever the rank"


def test_opportunistic_pods_get_idle_leaves_alone_and_keep_away_from_guaranteed_use() -> None:
    free, idle = [0b1111_1100, FULL], [0b1100_1100, 0b0000_0001]
    space = Space([NODE] * 2, [[0, 0]], 4, free, idle, within_idle=True)
    assert find(space, [Need(2)], equally) == Found(((0, 0b1100_0000),), 2), "not beside the guaranteed leaves 0 and 1"
    assert find(space, [Need(5)], equally) is None, "although host 1 has eight that are free"
    assert find(space, [Need(4), Need(1)], equally) == Found(((0, 0b1100_1100), (1, 1)), 5)


@settings(max_examples=150)
@given(st.lists(masks_in(8), min_size=2, max_size=3), st.data())
def test_unequal_pods_are_packed_exactly_when_there_is_a_way(masks: list[int], data: st.DataObject) -> None:
    case = Case([NODE] * len(masks), [], NODE.depth, masks, None, False)
    needs = [need for _ in range(3) for need in data.draw(gangs_for(case))][:6]
    demand = Demand(needs)
    chosen = pack([demand.room(NODE, mask, mask) for mask in masks], demand, Steps())
    assert (chosen is not None) == fits(case.shapes, masks, needs)
    for host, mask in enumerate(masks):
        there = [need for need, at in zip(demand.needs, chosen or [], strict=bool(chosen)) if at == host]
        assert fits([NODE], [mask], there)


def test_a_gang_that_best_fit_misses_is_found_by_the_exact_search() -> None:
    """Best fit puts 4 with the host of 5; only 3 and 2 there, 4 and 3 on the other leave nothing over."""
    needs, steps = [Need(4), Need(3), Need(3), Need(2)], Steps()
    assert pack([(5, 5), (7, 7)], Demand(needs), Steps(0)) is None
    assert pack([(5, 5), (7, 7)], Demand(needs), steps) == [1, 1, 0, 0]
    assert steps.left < Steps().left
    space = Space([NODE] * 2, [[0, 0]], 4, [0b0001_1111, 0b0111_1111])
    found = find(space, needs, tightest)
    assert found is not None
    assert [host for host, _ in found.pods] == [1, 1, 0, 0]


def test_the_exact_search_ends_after_its_steps_whatever_is_left_to_try() -> None:
    """Even pods leave a leaf of each odd host over, which only a search finds."""
    rooms, steps = [(size, size) for size in (99, 101, 103, 105)], Steps(50)
    needs = [Need(gpus) for gpus in range(42, 14, -2)]
    assert pack(rooms, Demand(needs), steps) is None
    assert steps.left == 0
    assert pack(rooms, Demand(needs[1:]), steps) is not None, "best fit needs no steps"
    enough = Steps()
    assert pack(rooms, Demand(needs), enough) is None
    assert enough.left > 0, "no state is tried twice, so all of them are"


def test_three_of_four_pods_would_fit() -> None:
    space = Space([NODE] * 2, [[0, 0]], 4, [FULL, 0x0F])
    assert count_fitting(space, [Need(4)] * 4, roomiest) == 3
    assert count_fitting(space, [Need(4), Need(3), Need(5), Need(4)], tightest) == 3
    assert find(space, [Need(4), Need(3), Need(5), Need(4)], tightest) is None
    space = Space([NODE] * 3, [[0, 0, 0]], 4, [FULL] * 3)
    assert count_fitting(space, [Need(8), Need(8), Need(7), Need(6)], tightest) == 3
