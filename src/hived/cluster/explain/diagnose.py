"""Diagnosis: the reasons why a group has to wait, collected when the decision is made.

It is cheap enough to be always on: it reads counts that are kept anyway and makes a few searches more. Lists of names
are truncated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import nsmallest
from itertools import islice

from hived.cells import Rank, Space, count_fitting, find
from hived.cluster.demands import Choice, Demand
from hived.cluster.explain import reasons as why
from hived.cluster.groups import Group
from hived.cluster.guaranteed import place as place_guaranteed
from hived.cluster.nodes import Nodes, farthest_from_guaranteed
from hived.cluster.opportunistic import lent_of_type, shares_with
from hived.cluster.opportunistic import place as place_opportunistic
from hived.cluster.pool import Pool, lowest_precedence, packed, reserved_in
from hived.cluster.requests import Request
from hived.cluster.state import State
from hived.cluster.suggested import Suggested
from hived.cluster.virtual import VirtualCells

#: names given in a reason
MAX_NAMED = 8


def never(state: State, request: Request, demand: Demand) -> why.NeverFits | None:
    """Why the group could not start in an empty, healthy VC (or cluster); None if it could. O(1) when cached."""
    size = demand.gpus, demand.largest_pod
    key = demand.tenant, demand.choices, size, request.opportunistic, request.within
    if key in state.fits_empty:
        return state.fits_empty[key]
    reason: why.NeverFits | None = None
    if not any(_fits_empty(state, request, demand, choice) for choice in demand.choices):
        largest, have = _size(state, request, demand)
        vc = "" if request.opportunistic else request.vc  # for opportunistic groups: the cluster
        reason = why.NeverFits(vc, demand.gpus, have, demand.largest_pod, largest, request.within)
    if len(state.fits_empty) >= 1_000:
        state.fits_empty.clear()
    state.fits_empty[key] = reason
    return reason


def can_lend(state: State, demand: Demand) -> bool:
    """Whether an opportunistic group would start on idle leaves now. O(classes of nodes), O(pods) for a gang."""
    for choice in demand.choices:
        space, needs = state.chains[choice.chain].idle_space(), choice.needs
        if len(needs) == 1 and not needs[0].level and not choice.caps[-1]:
            if space.best_hosts(farthest_from_guaranteed, needs[0].gpus) is not None:
                return True
        elif needs == (needs[0],) * len(needs) and not choice.caps[-1]:
            if space.capacity(needs[0]).total >= len(needs):
                return True
        elif find(space, needs, farthest_from_guaranteed, choice.caps[-1]) is not None:
            return True
    return False


def _size(state: State, request: Request, demand: Demand) -> tuple[int, int]:
    """Leaf cells of the largest host, and of all hosts that a request may use. O(pools)."""
    chosen = {choice.where for choice in demand.choices}  # none for more pods than the cluster has GPUs

    def matches(number: int, nodes: Nodes) -> bool:
        return number in chosen if chosen else request.leaf_cell_type in (None, nodes.hierarchy.spec.leaf_type)

    if request.opportunistic:
        chains = [nodes for nodes in state.demands.lent if matches(nodes.number, nodes)]
        return max((n.hierarchy.node_size for n in chains), default=0), sum(nodes.gpus for nodes in chains)
    of_vc = [pool for pool in state.pools[demand.tenant] if pool.pinned == request.pinned_cell_id]
    pools = [pool for pool in of_vc if matches(pool.number, pool.nodes)]
    largest = max((shape.leaves for pool in pools for shape in pool.virtual.kinds), default=0)
    return largest, reserved_in(pools)


def _fits_empty(state: State, request: Request, demand: Demand, choice: Choice) -> bool:
    if request.opportunistic:
        hosts: Nodes | VirtualCells = state.chains[choice.chain]
    else:
        pool = state.pools[demand.tenant][choice.where]
        hosts = pool.virtual
        if sum(need.gpus for need in choice.needs) > pool.gpus:
            return False
    need, cap = choice.needs[0], choice.caps[-1]
    if not need.level and not cap and choice.needs.count(need) == len(choice.needs):  # equal pods, anywhere: no search
        return sum([shape.leaves // need.gpus * hosts.kinds[shape] for shape in hosts.kinds]) >= len(choice.needs)
    full = [shape.full for shape in hosts.shapes]
    empty = Space(hosts.shapes, hosts.groups, hosts.hierarchy.node_level, full)
    return find(empty, choice.needs, packed, cap) is not None


def reasons(state: State, request: Request, demand: Demand, suggested: Suggested | None) -> tuple[why.Reason, ...]:
    """All reasons why a group could not be placed. O(1) searches, plus O(bad hosts of the VC)."""
    never_fits = never(state, request, demand)
    if never_fits is not None:
        return (never_fits,)
    if suggested is not None:
        place = place_opportunistic if request.opportunistic else place_guaranteed
        with state.undo.trial():
            elsewhere = place(state, Group(request, demand.tenant, 0.0), demand)
        if elsewhere:
            return (why.NotSuggested(suggested.number, suggested.searched_all), *_behind_others(state, request))
    found = (_no_loan if request.opportunistic else _no_room)(state, request, demand)
    return (*found, *_behind_others(state, request))


def _no_room(state: State, request: Request, demand: Demand) -> list[why.Reason]:
    """Why the VC has no room at this priority."""
    rooms = []
    for choice in demand.choices:
        pool = state.pools[demand.tenant][choice.where]
        lower = pool.below(request.priority)
        space = pool.space(lower[-1] if lower else -1)
        rooms.append((choice, pool, space, pool.total(lower[-1] if lower else -1)))
    rank = state.rank_of(request.vc)
    bad = [reason for choice, pool, space, _ in rooms for reason in _bad(rank, request, choice, pool, space)]
    choice, pool, space, most = max(rooms, key=lambda room: room[3])
    found: list[why.Reason] = []
    need = sum(need.gpus for need in choice.needs)
    if most < need:
        exhausted = _exhausted(request, pool, need, most)
        if exhausted.held_by or not bad:
            found.append(exhausted)
    else:
        largest = max((bucket.host_class.free.free for bucket in space.buckets if bucket), default=0)
        capped = not request.soft_affinity and find(space, choice.needs, rank) is not None
        within = request.within if capped else None
        found.append(why.Fragmented(request.vc, need, most, demand.largest_pod, largest, within))
    found += _part_of_gang(choice, count_fitting(space, choice.needs, rank))
    return found + bad[:1]


def _exhausted(request: Request, pool: Pool, need: int, have: int) -> why.VcExhausted:
    """The VC is exhausted: the groups that hold leaf cells of the pool with the most available."""
    alike = [pool.by_arrival(at) for at in list(pool.at) if at >= lowest_precedence(request.priority)]
    holders = [group for equals in alike for group in islice(equals, MAX_NAMED)]
    oldest = nsmallest(MAX_NAMED, holders, key=lambda group: group.sequence)
    held_by = tuple((group.name, group.gpus) for group in oldest)
    return why.VcExhausted(request.vc, need, have, pool.gpus, held_by, sum(map(len, alike)) - len(held_by))


def _part_of_gang(choice: Choice, fit: int) -> list[why.Reason]:
    pods = len(choice.needs)
    return [why.WaitingForGang(fit, pods)] if pods > 1 and 0 < fit < pods else []


def _bad(rank: Rank, request: Request, choice: Choice, pool: Pool, space: Space) -> list[why.Reason]:
    """Bad hardware of a pool, if the group would fit with all of it healthy. O(bad hosts)."""
    binding, healed = pool.binding, {}
    for host in binding.bad_hosts:
        taken = higher = 0
        for group, mask in pool.held.get(host, {}).items():
            taken |= mask
            if group.priority >= request.priority:
                higher |= mask
        healed[host] = binding.bad[host] & ~higher, binding.bad[host] & ~taken
    if not _fits_with(healed, space, choice, rank):
        return []
    leaves = sum(binding.bad[host].bit_count() for host in healed)
    return [_bad_hardware(pool.nodes, leaves, {binding.node_of(host) for host in healed})]


def _fits_with(healed: Mapping[int, tuple[int, int]], space: Space, choice: Choice, rank: Rank) -> bool:
    """Whether the pods fit with more leaves on some hosts: free ones, and those of them that are idle."""
    before = {host: (space.free[host], space.idle[host]) for host in healed}
    for host, (free, idle) in healed.items():
        space.set(host, space.free[host] | free, space.idle[host] | idle)
    try:
        return bool(healed) and find(space, choice.needs, rank, choice.caps[-1]) is not None
    finally:  # the rank is a policy's, and may raise
        for host, (free, idle) in before.items():
            space.set(host, free, idle)


def _bad_hardware(nodes: Nodes, leaves: int, bad: Collection[int]) -> why.BadHardware:
    names = tuple(nodes.names[node] for node in sorted(bad)[:MAX_NAMED])
    return why.BadHardware(leaves, names, len(bad) - len(names))


def _no_loan(state: State, request: Request, demand: Demand) -> list[why.Reason]:
    """Why the group cannot get a loan."""
    choice = max(demand.choices, key=lambda c: state.chains[c.chain].idle_gpus)
    nodes = state.chains[choice.chain]
    need = sum(need.gpus for need in choice.needs)
    _, idle = lent_of_type(state, choice.chain)
    found: list[why.Reason] = [why.NothingIdle(need, idle)]
    lent, share = shares_with(state, demand.tenant, choice.chain, need)
    if lent[demand.tenant] + need > share[demand.tenant]:
        found.append(why.ShareUsedUp(request.vc, need, lent[demand.tenant], int(share[demand.tenant])))
    space = nodes.idle_space()
    found += _part_of_gang(choice, count_fitting(space, choice.needs, farthest_from_guaranteed))
    bad = {node: nodes.bad[node] & ~(nodes.owned[node] | nodes.lent[node]) for node in nodes.bad_nodes}
    if _fits_with({node: (mask, mask) for node, mask in bad.items()}, space, choice, farthest_from_guaranteed):
        found.append(_bad_hardware(nodes, sum(mask.bit_count() for mask in bad.values()), bad))
    return found


def _behind_others(state: State, request: Request) -> list[why.Reason]:
    """Earlier groups of the VC that wait at no lower priority. O(waiting groups), at most the first 1,000."""
    ahead = []
    for waiting in islice(state.waiting.values(), 1000):
        if waiting.request.group == request.group:
            break
        never_fits = bool(waiting.reasons) and isinstance(waiting.reasons[0], why.NeverFits)
        if waiting.request.vc == request.vc and waiting.request.priority >= request.priority and not never_fits:
            ahead.append(waiting.request.group)
    return [why.BehindOthers(len(ahead), tuple(ahead[:MAX_NAMED]))] if ahead else []
