"""Small spaces for tests, and gangs placed in them by trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from hypothesis import strategies as st

from hived.cells import HostClass, Need, Shape, Space, shape_of


class Case(NamedTuple):
    """What a :class:`Space` is made of."""

    shapes: list[Shape]
    groups: list[list[int]]
    node_level: int
    free: list[int]
    idle: list[int] | None
    within_idle: bool

    @property
    def obtainable(self) -> list[int]:
        return self.idle if self.within_idle and self.idle is not None else self.free

    @property
    def costless(self) -> list[int]:
        return self.free if self.idle is None else self.idle

    @property
    def costly(self) -> bool:
        return self.obtainable != self.costless

    def space(self) -> Space:
        return Space(*self)


def tightest(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """Fewest leaves taken from others, then closest together, then tightest."""
    if host.free.free < gpus:
        return None
    taken = max(0, gpus - host.idle.free)
    return taken, (host.free if taken else host.idle).level_for(gpus), host.free.free


def equally(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    return ()


def roomiest(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    return (-host.free.free,)


RANKS = [tightest, equally, roomiest]


@st.composite
def masks_in(draw: st.DrawFn, leaves: int) -> int:
    """Some of so many leaves; often nearly all, since that is where gangs fit."""
    full = (1 << leaves) - 1
    some = st.integers(0, full)
    return draw(st.one_of(st.just(full), some, st.tuples(some, some).map(lambda two: two[0] | two[1])))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to six hosts of up to eight leaves, in racks and rows, nodes and lower cells alone among them."""
    inner = draw(st.sampled_from([(2, 2), (2, 2, 2), (4,), (), (3, 2), (2, 1, 2), (4, 2)]))
    nodes_per_rack, racks_per_row = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    shapes: list[Shape] = []
    groups: list[list[int]] = [[], []]
    numbers = [0, 0]
    for height in draw(st.lists(st.integers(0, 2), min_size=1, max_size=4)):
        hosts = (1, nodes_per_rack, nodes_per_rack * racks_per_row)[height]
        if len(shapes) + hosts > 6:
            continue
        depth = len(inner) + 1 if height else draw(st.integers(1, len(inner) + 1))
        shapes += [shape_of(inner[: depth - 1])] * hosts
        for host in range(hosts):
            groups[0].append(numbers[0] + host // nodes_per_rack if height else -1)
            groups[1].append(numbers[1] if height == 2 else -1)
        numbers[0] += hosts // nodes_per_rack if height else 0
        numbers[1] += height == 2
    free = [draw(masks_in(shape.leaves)) for shape in shapes]
    view = draw(st.sampled_from(["plain", "preempting", "within idle"]))
    idle = None if view == "plain" else [mask & draw(masks_in(8)) for mask in free]
    return Case(shapes, groups[: draw(st.integers(1, 2))], len(inner) + 1, free, idle, view == "within idle")


@st.composite
def gangs_for(draw: st.DrawFn, case: Case) -> list[Need]:
    """One to four pods, equal or not, of some leaves or of whole cells."""
    node = max((shape for shape in case.shapes), key=lambda shape: shape.depth)
    loose = st.integers(1, node.leaves).map(Need)
    whole = st.integers(1, node.depth).map(lambda level: Need(len_of_cell(node, level), level))
    need = st.one_of(loose, whole)
    return draw(
        st.one_of(
            st.tuples(need, st.integers(1, 4)).map(lambda t: [t[0]] * t[1]), st.lists(need, min_size=1, max_size=4)
        )
    )


def len_of_cell(shape: Shape, level: int) -> int:
    size = 1
    for fanout in shape.fanouts[: level - 1]:
        size *= fanout
    return size


def cells(shape: Shape, level: int) -> list[int]:
    """Masks of the inner cells of a level, by arithmetic."""
    if level > shape.depth:
        return []
    size = len_of_cell(shape, level)
    return [((1 << size) - 1) << start for start in range(0, shape.leaves, size)]


def fits(shapes: Sequence[Shape], masks: Sequence[int], needs: Sequence[Need]) -> bool:
    """Whether all pods find room on these leaves, by trying every cell and every host for each."""
    needs = sorted(needs, key=lambda need: (need.level == 0, -need.gpus))
    if sum(need.gpus for need in needs) > sum(mask.bit_count() for mask in masks):
        return False
    if not needs:
        return True
    (gpus, level), *others = needs
    for host, mask in enumerate(masks):
        if level:
            ways = [cell for cell in cells(shapes[host], level) if cell & mask == cell]
        elif mask.bit_count() >= gpus:  # only how many are left matters when all others are loose as well
            ways = [sum(1 << leaf for leaf in [i for i in range(8) if mask >> i & 1][:gpus])]
        else:
            ways = []
        for way in ways:
            if fits(shapes, [*masks[:host], mask & ~way, *masks[host + 1 :]], others):
                return True
    return False


def most_pods(shape: Shape, mask: int, need: Need) -> int:
    """How many such pods a host holds."""
    return max(k for k in range(9) if fits([shape], [mask], [need] * k))


def lowest_on(shape: Shape, mask: int, needs: Sequence[Need]) -> int:
    """The lowest level of an inner cell that holds all pods, 0 when the host does not."""
    for level in range(1, shape.depth + 1):
        if any(fits([shape], [mask & cell], needs) for cell in cells(shape, level)):
            return level
    return 0


def lowest_level(case: Case, needs: Sequence[Need]) -> int | None:
    """The lowest level at which one cell holds all pods; 0: they fit, but in no cell; None: they do not fit."""
    inner = [lowest_on(shape, mask, needs) for shape, mask in zip(case.shapes, case.obtainable, strict=True)]
    if any(inner):
        return min(level for level in inner if level)
    for level, of_host in enumerate(case.groups, case.node_level + 1):
        for group in sorted(set(of_host) - {-1}):
            if group_fits(case, of_host, group, needs):
                return level
    return 0 if fits(case.shapes, case.obtainable, needs) else None


def group_fits(case: Case, of_host: Sequence[int], group: int, needs: Sequence[Need], costless: bool = False) -> bool:
    hosts = [host for host, number in enumerate(of_host) if number == group]
    masks = case.costless if costless else case.obtainable
    return fits([case.shapes[host] for host in hosts], [masks[host] for host in hosts], needs)


def level_of_pods(case: Case, pods: Sequence[tuple[int, int]]) -> int:
    """The level of the lowest cell that has all these leaves, 0 when none has."""
    hosts = {host for host, _ in pods}
    if len(hosts) == 1:
        (host,) = hosts
        union = sum(mask for _, mask in pods)
        shape = case.shapes[host]
        return next(
            level for level in range(1, shape.depth + 1) if any(union & cell == union for cell in cells(shape, level))
        )
    for level, of_host in enumerate(case.groups, case.node_level + 1):
        numbers = {of_host[host] for host in hosts}
        if len(numbers) == 1 and -1 not in numbers:
            return level
    return 0


def least_cost(case: Case, hosts: Sequence[int], need: Need, pods: int) -> int:
    """The fewest leaves that so many equal pods on these hosts preempt, over all ways to share them out."""
    best = []
    for host in hosts:
        mask, idle = case.obtainable[host], case.costless[host]
        if need.level:
            prices = sorted((c & ~idle).bit_count() for c in cells(case.shapes[host], need.level) if c & mask == c)
            best.append([sum(prices[:k]) for k in range(len(prices) + 1)])
        else:
            most = mask.bit_count() // need.gpus
            best.append([max(0, k * need.gpus - idle.bit_count()) for k in range(most + 1)])
    costs = [
        sum(price[k] for price, k in zip(best, share, strict=True))
        for share in product(*[range(len(prices)) for prices in best])
        if sum(share) == pods
    ]
    return min(costs)
