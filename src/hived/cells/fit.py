"""Gang placement: all pods in the lowest cell that holds them, or none.

Levels are tried from the lowest up. On one host a gang is like one job with the sum of its leaves; above the hosts, the
gang goes to the cell that holds it with the least to spare, on the fewest hosts there:

    pods 2 x 4      rack 0: [....xxxx] [xxxx....] [xxxxxx..]     rack 1: [........] [........]
    on one host     host 3: both                                                  (level of the host)
    pods 3 x 4      rack 1, since rack 0 holds only two                           (level of the rack)

Equal pods, the usual gang, are placed by :class:`.Capacity`; unequal ones are packed (:mod:`.packing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from hived.errors import InvariantError

from .capacity import Capacity
from .host_fit import Demand, Leaves, Need, Room, apart, cells_at, level_of
from .packing import Steps, pack
from .space import Rank, Space

#: hosts of one class, and hosts in all, that are tried for a gang on one host
MAX_PER_CLASS, MAX_HOSTS = 4, 16


class Found(NamedTuple):
    """A placement of a gang."""

    pods: tuple[tuple[int, int], ...]  #: host and mask of each pod, in the order of the needs; masks are disjoint
    level: int  #: of the lowest cell that has them all; 0 if no cell does


#: hosts ``[start, end)`` of one cell; whether it holds the gang without preemption; and the capacity that shows it
_Cell = tuple[int, int, bool, Capacity]


def find(space: Space, needs: Sequence[Need], rank: Rank, cap: int = 0) -> Found | None:
    """Find leaves for all pods, close together; ``None`` if they do not fit (``cap``: in a cell of at most this level).

    If one host fits the gang, ``rank`` chooses it, for the sum of the leaves; its last number, how tight the host is,
    is compared only after how close together the leaves of each pod are. Within the host the lowest cell is taken.
    Above the hosts, cells are ordered by level, then those without preemption, then by the least to spare; ``rank``
    orders hosts only if leaves have to be preempted. It may refuse a host only if it has too few leaves.

    One pod: O(classes). Equal pods: O(levels + pods) once capacities are refreshed, and O(hosts of the cell) with
    preemption. Unequal pods: O(hosts of the cells tried) and at most ``STEPS`` steps of exact search.
    """
    if len(needs) == 1:
        (need,) = needs
        hosts = space.best_hosts(rank, need.gpus, need.level, need.gpus, cap)
        if hosts is None:
            return None
        host = hosts.first()
        mask, level = space.spot(host, need, cap)
        return Found(((host, mask),), level)
    demand = Demand(needs)
    found = _on_one_host(space, tuple(needs), demand, rank, cap)
    if found is not None or 0 < cap <= space.node_level:
        return found
    search = _equal if demand.needs[0] == demand.needs[-1] else _unequal
    return search(space, demand, rank, cap)


def _on_one_host(space: Space, needs: tuple[Need, ...], demand: Demand, rank: Rank, cap: int) -> Found | None:
    """All pods on the best host; hosts that differ only in the last number of ``rank`` are compared by closeness first.

    O(classes) for loose pods; whole cells may have to be searched host by host.
    """
    if demand.gpus > space.widest:
        return None
    largest = demand.needs[0]
    if largest.level and space.capacity(largest).most() < demand.needs.count(largest):
        return None
    level, size, each = (largest.level, largest.gpus, None) if largest.level else (0, 0, MAX_PER_CLASS)
    best: tuple[tuple[float, ...], int, tuple[float, ...]] | None = None
    found, tried = None, 0
    for host in space.in_order(rank, demand.gpus, level, size, cap, each):
        value = rank(space.class_of(host), demand.gpus) or ()
        first, last = value[:-1], value[-1:]  # the last number is the tightness of the host
        if best is not None and first > best[0]:
            break
        masks = space.place(host, needs, cap)
        if masks is None:
            continue
        shape = space.shapes[host]
        worth = first, apart(shape, masks), last
        if best is None or worth < best:
            best = worth
            found = Found(tuple([(host, mask) for mask in masks]), level_of(shape, sum(masks)))
        tried += 1
        empty = shape.profile(shape.full)
        if tried == MAX_HOSTS or worth[1] == sum([empty.level_for(need.gpus) for need in needs]):
            break
    return found


def _cells(space: Space, capacities: Sequence[tuple[bool, Capacity]], pods: int, cap: int) -> Iterator[_Cell]:
    """The cells above the hosts that hold ``pods`` pods of the capacities' need, best first; then the whole space."""
    for above, spans in enumerate(space.layout.spans):
        if not cap or space.node_level + 1 + above <= cap:
            for costless, capacity in capacities:
                for group in capacity.groups(above, pods):
                    yield *spans[group], costless, capacity
    if not cap:
        for costless, capacity in capacities:
            if capacity.total >= pods:
                yield 0, space.hosts, costless, capacity


def _capacities(space: Space, need: Need) -> list[tuple[bool, Capacity]]:
    """The capacity without preemption, then the capacity with it; a single one if no leaf needs a preemption."""
    if space.costly:
        return [(True, space.capacity(need, costless=True)), (False, space.capacity(need))]
    return [(True, space.capacity(need))]


def _equal(space: Space, demand: Demand, rank: Rank, cap: int) -> Found | None:
    """Place equal pods on several hosts."""
    need, pods = demand.needs[0], len(demand.needs)
    for start, end, costless, capacity in _cells(space, _capacities(space, need), pods, cap):
        if costless:
            shares = capacity.spread(start, end, pods)
        else:
            shares = _cheapest(space, capacity, range(start, end), pods, rank)
        return _assemble(space, [(host, [need] * share) for host, share in shares], range(pods))
    return None


def _ranked(space: Space, rank: Rank) -> Callable[[int, int], tuple[bool, tuple[float, ...]]]:
    """Sort key of a host and a number of GPUs: ``rank``, computed once per class; refused hosts come last."""

    score = cache(rank)

    def of(host: int, gpus: int) -> tuple[bool, tuple[float, ...]]:
        value = score(space.class_of(host), gpus)
        return value is None, value or ()

    return of


def _cheapest(space: Space, capacity: Capacity, hosts: range, pods: int, rank: Rank) -> list[tuple[int, int]]:
    """Hosts and the pods on each, such that the fewest leaves are preempted. O(hosts).

    The price of a pod is the leaves it preempts. On a host it never falls from pod to pod, so the greedy choice
    of the cheapest pod is optimal. Ties: the host that holds most pods at that price, then the best by ``rank``.
    """
    need, offers, order = capacity.need, [], _ranked(space, rank)
    prices = cache(lambda leaves: Counter(_prices(leaves, need)).items())
    for host in hosts:
        if capacity.of_host(host):
            for price, number in prices(space.leaves(host)):
                offers.append((price, -number, order(host, min(number, pods) * need.gpus), host))
    offers.sort()
    shares: dict[int, int] = {}
    for _, number, _, host in offers:
        share = min(-number, pods)
        shares[host] = shares.get(host, 0) + share
        pods -= share
        if not pods:
            break
    return sorted(shares.items())


def _prices(leaves: Leaves, need: Need) -> list[int]:
    """Leaves that each further pod on a host preempts, ascending."""
    shape, obtainable, costless, _ = leaves
    if need.level:
        cells = (cell for cell in cells_at(shape, need.level) if cell & obtainable == cell)
        return sorted((cell & ~costless).bit_count() for cell in cells)
    idle, number = costless.bit_count(), obtainable.bit_count() // need.gpus
    return [min(need.gpus, max(0, (i + 1) * need.gpus - idle)) for i in range(number)]


def _unequal(space: Space, demand: Demand, rank: Rank, cap: int) -> Found | None:
    """Place unequal pods on several hosts: the first cell with enough leaves in which they can be packed."""
    steps = Steps()
    largest = demand.needs[0]
    number = demand.needs.count(largest)
    of_largest = {cell[:2] for cell in _cells(space, [(False, space.capacity(largest))], number, cap)}
    for start, end, costless, _ in _cells(space, _capacities(space, Need(1)), demand.gpus, cap):
        if (start, end) in of_largest:
            hosts, rooms = _rooms(space, demand, range(start, end), costless, rank)
            chosen = pack(rooms, demand, steps)
            if chosen is not None:
                shares: dict[int, list[int]] = {}
                for at, position in enumerate(chosen):
                    shares.setdefault(hosts[position], []).append(at)
                placed = [(host, [demand.needs[at] for at in share]) for host, share in shares.items()]
                order = [demand.order[at] for share in shares.values() for at in share]
                return _assemble(space, placed, order)
    return None


def _rooms(space: Space, demand: Demand, hosts: range, idle: bool, rank: Rank) -> tuple[list[int], list[Room]]:
    """The hosts that can hold any of the pods, best first, and their rooms (``idle``: on idle leaves alone)."""
    masks = space.idle if idle else space.obtainable
    usable = [host for host in hosts if masks[host].bit_count() >= demand.smallest[0]]
    if space.costly and not idle:
        order = _ranked(space, rank)
        usable.sort(key=lambda host: (order(host, demand.needs[0].gpus), host))
    room = cache(demand.room)
    return usable, [room(space.shapes[host], masks[host], space.idle[host]) for host in usable]


def _assemble(space: Space, shares: Sequence[tuple[int, Sequence[Need]]], order: Sequence[int]) -> Found:
    """The placement of pods that were assigned to hosts; ``order``: their indexes among the gang's needs."""
    spots: list[tuple[int, int]] = []
    for host, needs in shares:
        masks = space.place(host, tuple(needs))
        if masks is None:
            raise InvariantError(f"host {host} was said to hold {needs}")
        spots.extend((host, mask) for mask in masks)
    pods = [(-1, 0)] * len(spots)
    for place_of_pod, spot in zip(order, spots, strict=True):
        pods[place_of_pod] = spot
    return Found(tuple(pods), _common_level(space, [host for host, _ in shares], spots))


def _common_level(space: Space, hosts: Sequence[int], spots: Sequence[tuple[int, int]]) -> int:
    """The level of the lowest cell with all these leaves, 0 if there is none. O(pods * levels)."""
    if len(hosts) == 1:
        return level_of(space.shapes[hosts[0]], sum(mask for _, mask in spots))
    for level, of_host in enumerate(space.groups, space.node_level + 1):
        group = of_host[hosts[0]]
        if group >= 0 and all(of_host[host] == group for host in hosts):
            return level
    return 0


def count_fitting(space: Space, needs: Sequence[Need], rank: Rank) -> int:
    """How many pods fit when placed one after another, each on the host that ranks best, the largest first.

    Used to explain how far a gang is from fitting; levels do not matter. Equal pods: O(levels). Unequal ones: O(hosts),
    to copy the space, and O(pods * classes) on that copy.
    """
    demand = Demand(needs)
    if demand.needs[0] == demand.needs[-1]:
        return min(len(needs), space.capacity(demand.needs[0]).total)
    copy = Space(space.shapes, (), space.node_level, space.free, space.idle, space.within_idle)
    fitting = 0
    hopeless: Need | None = None
    for need in demand.needs:
        found = None if need == hopeless else find(copy, (need,), rank)
        if found is None:
            hopeless = need
        else:
            ((host, mask),) = found.pods
            copy.set(host, copy.free[host] if copy.within_idle else copy.free[host] & ~mask, copy.idle[host] & ~mask)
            fitting += 1
    return fitting
