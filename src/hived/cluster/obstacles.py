"""What stood in the way of a group, collected when it has to wait.

Cheap enough to be always on: counts that are kept anyway, and a few searches more. Lists of names are cut short.
"""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice

from hived.cells import Space, count_fitting, find

from .demands import Choice, Demand
from .fairer import lent_of_type
from .floor import Floor
from .groups import Group
from .guaranteed import packed
from .guaranteed import place as place_guaranteed
from .opportunistic import place as place_opportunistic
from .opportunistic import share_of
from .physical import farthest_from_guaranteed
from .reasons import (
    BadHardware,
    BehindOthers,
    Fragmented,
    NeverFits,
    NothingIdle,
    NotSuggested,
    Reason,
    ShareUsedUp,
    VcExhausted,
    WaitingForGang,
)
from .requests import Request
from .state import State
from .suggested import Suggested
from .tenancy import Tenancy

#: names given in a reason
NAMED = 8


def never(state: State, request: Request, demand: Demand) -> NeverFits | None:
    """Why the group could not start in an empty, healthy VC (or cluster); None when it could. O(1) once asked."""
    key = demand, request.opportunistic, request.within
    if key in state.fits_empty:
        return state.fits_empty[key]
    reason: NeverFits | None = None
    if not any(_fits_empty(state, request, demand, choice) for choice in demand.choices):
        hosts, have = 0, 0
        for choice in demand.choices:
            if request.opportunistic:
                hierarchy = state.floors[choice.chain].chain.hierarchy
                hosts = max(hosts, hierarchy.node_size)
                have += hierarchy.nodes * hierarchy.node_size
            else:
                pool = state.tenancies[demand.tenant][choice.where].pool
                hosts = max([hosts, *(shape.leaves for shape in set(pool.shapes))])
                have += pool.gpus
        if not demand.choices:  # more pods than the cluster has GPUs: where was never asked
            hosts, have = _size(state, request, demand)
        vc = "" if request.opportunistic else request.vc  # for opportunistic groups: the cluster
        reason = NeverFits(vc, demand.gpus, have, demand.largest_pod, hosts, request.within)
    if len(state.fits_empty) >= 1_000:
        state.fits_empty.clear()
    state.fits_empty[key] = reason
    return reason


def _size(state: State, request: Request, demand: Demand) -> tuple[int, int]:
    """Leaf cells of the largest host, and of all that a request may look at. O(pools)."""
    wanted = request.leaf_cell_type
    if request.opportunistic:
        chains = [floor.chain.hierarchy for floor in state.floors]
        right = [chain for chain in chains if wanted in (None, chain.spec.leaf_type)]
        return max((chain.node_size for chain in right), default=0), sum(c.nodes * c.node_size for c in right)
    pools = [
        tenancy.pool
        for tenancy in state.tenancies[demand.tenant]
        if tenancy.pinned == request.pinned_cell_id and wanted in (None, tenancy.pool.hierarchy.spec.leaf_type)
    ]
    return max((shape.leaves for pool in pools for shape in set(pool.shapes)), default=0), sum(p.gpus for p in pools)


def _fits_empty(state: State, request: Request, demand: Demand, choice: Choice) -> bool:
    if request.opportunistic:
        space = state.floors[choice.chain].chain.idle_space()
        empty = Space(
            space.shapes, space.groups, space.node_level, [shape.full for shape in space.shapes], within_idle=True
        )
        return find(empty, choice.needs, farthest_from_guaranteed, choice.caps[-1]) is not None
    pool = state.tenancies[demand.tenant][choice.where].pool
    empty = pool.new_space([shape.full for shape in pool.shapes])
    return find(empty, choice.needs, packed, choice.caps[-1]) is not None


def reasons(state: State, request: Request, demand: Demand, suggested: Suggested | None) -> tuple[Reason, ...]:
    """All that stands in the way of a group for which there is no plan. O(1) searches, and the bad hosts of the VC."""
    hopeless = never(state, request, demand)
    if hopeless is not None:
        return (hopeless,)
    found: list[Reason] = []
    if suggested is not None:
        place = place_opportunistic if request.opportunistic else place_guaranteed
        plan = place(state, request, demand)
        if plan is not None:
            state.step_back()
            return (NotSuggested(suggested.number, suggested.searched_all), *_behind(state, request))
    if request.opportunistic:
        found += _no_loan(state, request, demand)
    else:
        found += _no_room(state, request, demand)
    found += _behind(state, request)
    return tuple(found)


def _no_room(state: State, request: Request, demand: Demand) -> list[Reason]:
    """Why the VC has no room at this priority."""
    rooms = []
    for choice in demand.choices:
        tenancy = state.tenancies[demand.tenant][choice.where]
        lower = tenancy.below(request.priority)
        space = tenancy.space(lower[-1] if lower else -1)
        rooms.append((choice, tenancy, space, tenancy.totals[lower[-1] if lower else -1]))
    bad = [reason for choice, tenancy, space, _ in rooms if (reason := _bad(request, choice, tenancy, space))]
    choice, tenancy, space, most = max(rooms, key=lambda room: room[3])
    found: list[Reason] = []
    need = sum(need.gpus for need in choice.needs)
    if most < need:
        exhausted = _exhausted(request, tenancy, need, most)
        if exhausted.held_by or not bad:
            found.append(exhausted)
    else:
        largest = max((bucket.host_class.free.free for bucket in space.index.buckets if bucket.hosts), default=0)
        capped = not request.soft_affinity and find(space, choice.needs, packed) is not None
        within = request.within if capped else None
        found.append(Fragmented(request.vc, need, most, demand.largest_pod, largest, within))
    found += _part_of_gang(choice, count_fitting(space, choice.needs, packed))
    return found + bad[:1]


def _exhausted(request: Request, tenancy: Tenancy, need: int, have: int) -> VcExhausted:
    """What stands in the way in the pool that has most to give."""
    holders: list[Group] = []
    number = 0
    for rank in sorted(tenancy.at):
        if rank >= 2 * request.priority:
            number += len(tenancy.at[rank])
            holders += islice(tenancy.at[rank], NAMED)
    oldest = nsmallest(NAMED, holders, key=lambda group: group.sequence)
    held_by = tuple((group.name, group.gpus) for group in oldest)
    return VcExhausted(request.vc, need, have, tenancy.pool.gpus, held_by, number - len(held_by))


def _part_of_gang(choice: Choice, fit: int) -> list[Reason]:
    pods = len(choice.needs)
    return [WaitingForGang(fit, pods)] if pods > 1 and 0 < fit < pods else []


def _bad(request: Request, choice: Choice, tenancy: Tenancy, space: Space) -> BadHardware | None:
    """The bad leaves of a pool without which the group would fit. O(bad hosts)."""
    pool, binder = tenancy.pool, tenancy.binder
    sick = sorted(binder.sick)
    if not sick:
        return None
    before = [(space.free[host], space.idle[host]) for host in sick]
    for host in sick:
        taken = higher = 0
        for group, mask in tenancy.takers.get(host, {}).items():
            taken |= mask
            if group.priority >= request.priority:
                higher |= mask
        bad = pool.bad[host]
        space.set(host, space.free[host] | bad & ~higher, space.idle[host] | bad & ~taken)
    fits = find(space, choice.needs, packed, choice.caps[-1]) is not None
    for host, (free, idle) in zip(sick, before, strict=True):
        space.set(host, free, idle)
    if not fits:
        return None
    hierarchy = pool.hierarchy
    nodes = sorted({binder.bound[host] * pool.shapes[host].leaves // hierarchy.node_size for host in sick})
    names = tuple(hierarchy.spec.node_names[node] for node in nodes[:NAMED])
    return BadHardware(sum(pool.bad[host].bit_count() for host in sick), names, len(nodes) - len(names))


def _no_loan(state: State, request: Request, demand: Demand) -> list[Reason]:
    """Why nothing can be lent to the group."""
    choice = max(demand.choices, key=lambda c: state.floors[c.chain].idle_gpus)
    floor = state.floors[choice.chain]
    need = sum(need.gpus for need in choice.needs)
    _, idle = lent_of_type(state, choice.chain)
    found: list[Reason] = [NothingIdle(need, idle)]
    held, share = share_of(state, demand.tenant, choice.chain, need)
    if held + need > share:
        found.append(ShareUsedUp(request.vc, need, held, int(share)))
    space = floor.chain.idle_space()
    found += _part_of_gang(choice, count_fitting(space, choice.needs, farthest_from_guaranteed))
    bad = _bad_floor(floor, choice)
    return found + ([bad] if bad else [])


def _bad_floor(floor: Floor, choice: Choice) -> BadHardware | None:
    """The bad leaves of a chain without which the group would fit. O(bad nodes)."""
    nodes = sorted(floor.sick)
    if not nodes:
        return None
    space, chain = floor.chain.idle_space(), floor.chain
    leaves = 0
    for node in nodes:
        healed = chain.bad[node] & ~(chain.guaranteed[node] | chain.opportunistic[node])
        leaves += healed.bit_count()
        space.set(node, space.free[node] | healed, space.idle[node] | healed)
    fits = find(space, choice.needs, farthest_from_guaranteed, choice.caps[-1]) is not None
    for node in nodes:
        chain.look_again(node)
    if not fits:
        return None
    names = tuple(chain.hierarchy.spec.node_names[node] for node in nodes[:NAMED])
    return BadHardware(leaves, names, len(nodes) - len(names))


def _behind(state: State, request: Request) -> list[Reason]:
    """Others of the VC that asked before and wait at no lower priority. O(groups waiting), at most 1,000 looked at."""
    ahead = []
    for waiting in islice(state.waiting.values(), 1000):
        if waiting.request.group == request.group:
            break
        hopeless = bool(waiting.reasons) and isinstance(waiting.reasons[0], NeverFits)
        if waiting.request.vc == request.vc and waiting.request.priority >= request.priority and not hopeless:
            ahead.append(waiting.request.group)
    return [BehindOthers(len(ahead), tuple(ahead[:NAMED]))] if ahead else []
