"""Several whole hosts, as close together as can be, against a search through every cell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hived.cells import WholeHosts


@st.composite
def grouped(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """Cells of zero, one or two levels above the hosts, side by side: the hosts, and per level each host's group."""
    fanouts = (draw(st.integers(1, 4)), draw(st.integers(1, 3)))
    groups: list[list[int]] = [[], []]
    numbers = [0, 0]
    for height in draw(st.lists(st.integers(0, 2), min_size=1, max_size=5)):
        hosts = fanouts[0] * fanouts[1] if height == 2 else fanouts[0] if height else 1
        for host in range(hosts):
            groups[0].append(numbers[0] + host // fanouts[0] if height else -1)
            groups[1].append(numbers[1] if height == 2 else -1)
        numbers[0] += -(-hosts // fanouts[0]) if height else 0
        numbers[1] += height == 2
    return len(groups[0]), [level for level in groups if any(g >= 0 for g in level)]


def closest(members: set[int], groups: list[list[int]], k: int) -> tuple[int, ...] | None:
    """The answer by looking everywhere: the lowest level that has a group with ``k``, and its tightest such group."""
    if len(members) < k:
        return None
    for of_host in groups:
        by_group: dict[int, list[int]] = {}
        for host in sorted(members):
            if of_host[host] >= 0:
                by_group.setdefault(of_host[host], []).append(host)
        suitable = [(len(hosts), group) for group, hosts in by_group.items() if len(hosts) >= k]
        if suitable:
            return tuple(by_group[min(suitable)[1]][:k])
    return tuple(sorted(members)[:k])


@given(grouped(), st.data())
def test_the_closest_hosts_are_what_a_search_finds(case: tuple[int, list[list[int]]], data: st.DataObject) -> None:
    n, groups = case
    whole, members = WholeHosts(n, groups), set[int]()
    for host in data.draw(st.lists(st.integers(0, n - 1), max_size=3 * n)):
        if host in members:
            whole.remove(host)
        else:
            whole.add(host)
        members ^= {host}
        whole.validate()
        assert (whole.size, list(whole.hosts)) == (len(members), sorted(members))
        for k in range(1, n + 2):
            assert whole.closest(k) == closest(members, groups, k)


def test_the_smallest_hole_that_will_do_is_taken_and_large_ones_stay_whole() -> None:
    whole = WholeHosts(12, [[host // 4 for host in range(12)]])
    for host in (0, 1, 2, 3, 5, 6, 8, 9, 10):
        whole.add(host)
    assert whole.closest(2) == (5, 6)
    assert whole.closest(3) == (8, 9, 10)
    assert whole.closest(4) == (0, 1, 2, 3)
    assert whole.closest(5) == (0, 1, 2, 3, 5), "no cell has five: the lowest numbers"
    assert whole.closest(10) is None


def test_without_cells_above_the_lowest_numbers_are_taken() -> None:
    whole = WholeHosts(5, [])
    for host in (4, 1, 3):
        whole.add(host)
    assert whole.closest(2) == (1, 3)


def test_there_may_be_no_hosts_at_all() -> None:
    whole = WholeHosts(0, [])
    whole.validate()
    assert whole.closest(1) is None
