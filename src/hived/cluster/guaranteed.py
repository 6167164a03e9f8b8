"""The placement of a guaranteed group: virtual leaves in its VC, as on a private cluster; then physical leaves.

The first step reads nothing but the VC's own groups and bad hardware, so tenants cannot affect each other's answers.
The second cannot fail (theorem 1), except that bad hardware or a list of suggested nodes can refuse a choice; then
the refused hosts are excluded, and the first step runs again.

    first without victims, then for each precedence in use below that of the request, ascending:
        for each cap, from the one asked for upward:        (soft affinity)
            for each pool of the VC, in the order of the spec
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from hived.cells import Space

from .decisions import VirtualLeaves
from .demands import Choice, Demand
from .groups import Group
from .pool import Pool, packed
from .requests import Request
from .state import State
from .states import GroupState
from .suggested import Suggested, bind_on_suggested
from .victim_selection import least_loss
from .virtual import Spots

#: how often hardware or suggestions may refuse a choice before the group has to wait
MAX_ATTEMPTS = 64


def place(state: State, group: Group, demand: Demand, suggested: Suggested | None = None) -> bool:
    """Bind leaves for a guaranteed group; ``False`` when it has to wait. O(levels + pods) where it fits at once."""
    if _place_up_to(state, group, demand, -1, suggested):
        return True
    priority = group.request.priority
    pools = state.pools[demand.tenant]
    lower = sorted({precedence for choice in demand.choices for precedence in pools[choice.where].below(priority)})
    return any(
        _place_up_to(state, group, demand, up_to, suggested)
        for up_to in lower[_first_that_fits(state, group.request, demand, lower) :]
    )


def on_free(state: State, group: Group, demand: Demand, suggested: Suggested | None = None) -> bool:
    """Bind free leaves of its VC for a group; ``False`` where other groups of the VC would have to be preempted."""
    return _place_up_to(state, group, demand, -1, suggested)


def on_hosts(
    state: State, group: Group, demand: Demand, suggested: Suggested | None, hosts: Sequence[tuple[int, int]]
) -> bool:
    """Bind free leaves of these hosts, a chain and a host of the VC in it per pod; ``False`` where one has too few.

    The hosts of the pods are different ones, in one chain. O(pods).
    """
    number = hosts[0][0]
    for choice in demand.choices:
        if choice.chain == number and len(choice.needs) == len(hosts):
            break
    else:
        return False
    pool = state.pools[demand.tenant][choice.where]
    space, spots, level = pool.space(), [], 0
    if sum([need.gpus for need in choice.needs]) > pool.total():  # of a quota less may be left than is free
        return False
    for (_, host), need in zip(hosts, choice.needs, strict=True):
        if space.free[host].bit_count() < need.gpus:
            return False
        mask, level = space.spot(host, need)
        spots.append((host, mask))
    group.chain, group.pool, group.spots = pool.nodes.number, pool.number, tuple(spots)
    group.level = level if len(spots) == 1 else 0
    if not _bind(state, group, pool, None):
        group.pool, group.spots = -1, ()
        return False
    if displaces_loans(pool, group):
        _set_victims(group, pool.nodes.on(group.parts))
    return True


def on_leaves(state: State, group: Group, demand: Demand, suggested: Suggested | None, at: VirtualLeaves) -> bool:
    """Bind these leaves of its VC; ``False`` where one is not free, or bad or other hardware cannot be avoided.

    O(pods).
    """
    if all(choice.where != at.pool for choice in demand.choices):
        return False  # of an earlier spec
    pool = state.pools[demand.tenant][at.pool]
    if any(not 0 <= host < len(pool.free) or mask & ~pool.free[host] for host, mask in at.spots):
        return False
    group.chain, group.pool, group.spots = pool.nodes.number, pool.number, at.spots
    group.level, group.relaxed = at.level, at.relaxed
    if not _bind(state, group, pool, suggested):
        group.pool, group.spots, group.relaxed = -1, (), ()
        return False
    if displaces_loans(pool, group):
        _set_victims(group, pool.nodes.on(group.parts))
    return True


def preempting(
    state: State, group: Group, demand: Demand, suggested: Suggested | None, victims: Sequence[Group]
) -> bool:
    """Choose the leaves that would be free without ``victims``, and bind them; ``False`` where there are none.

    A victim whose leaves are not needed is spared. O(leaves of the victims + what placing the group costs).
    """
    mark = state.undo.mark()
    for victim in victims:
        state.set_aside(victim)
    found = on_free(state, group, demand, suggested)
    state.undo.rollback(mark)
    pool = state.pool_of(group)
    return found and pool is not None and _bind_with_victims(state, group, pool, suggested, victims)


def bound_to_idle(state: State, group: Group, reserved: Group, suggested: Suggested | None) -> bool:
    """Bind the virtual leaves of the group ``reserved`` to idle physical ones; ``False`` where that is impossible.

    The caller has freed and unbound these leaves.
    """
    group.chain, group.level, group.relaxed = reserved.chain, reserved.level, reserved.relaxed
    pool, group.pool = state.pool_of(reserved), reserved.pool
    group.spots = reserved.spots
    return pool is not None and _bind(state, group, pool, suggested) and not displaces_loans(pool, group)


def _first_that_fits(state: State, request: Request, demand: Demand, lower: list[int]) -> int:
    """Index in ``lower`` of the first precedence up to which preemption makes room in the VC; its length for none.

    A higher precedence makes more leaves obtainable, so a bisection does: O(log precedences) choices of virtual leaves.
    A policy's rank is not asked: it may refuse a host for having more leaves obtainable.
    """
    pools = state.pools[demand.tenant]

    def fits(up_to: int) -> bool:
        for choice in demand.choices:
            pool = pools[choice.where]
            here = [other for other in pool.below(request.priority) if other <= up_to]
            highest = here[-1] if here else -1
            space = pool.space(highest)
            if any(pool.find(space, choice.needs, packed, cap, highest) is not None for cap in choice.caps):
                return True
        return False

    if len(lower) <= 1:
        return 0
    if not fits(lower[-1]):
        return len(lower)
    return bisect_left(lower, True, hi=len(lower) - 1, key=fits)


def _place_up_to(state: State, group: Group, demand: Demand, up_to: int, suggested: Suggested | None) -> bool:
    """Bind free leaves, and leaves of groups ``up_to`` a precedence (-1: free ones alone)."""
    pools = state.pools[demand.tenant]
    for step, choice in demand.tries:
        pool = pools[choice.where]
        if (up_to < 0 or up_to in pool.at) and _place_in(state, group, choice, pool, up_to, step, suggested):
            return True
    return False


def _place_in(
    state: State, group: Group, choice: Choice, pool: Pool, up_to: int, step: int, suggested: Suggested | None
) -> bool:
    """Choose leaves in one pool under one cap, and bind them; a host that cannot be bound is left out of a retry."""
    cap, ranks = choice.caps[step], state.ranks
    rank = state.rank_of(group.request.vc) if ranks else state.rank
    space = pool.space(up_to)
    is_copy = False
    if suggested is not None:
        for host in suggested.hosts_elsewhere(pool):
            space, is_copy = space if is_copy else copied(space), True
            space.set(host, 0, 0)
    for _ in range(MAX_ATTEMPTS):
        found = pool.find(space, choice.needs, rank, cap, up_to)
        if found is None:
            break
        if up_to >= 0:
            found = least_loss(pool, space, choice.needs, rank, found, cap, up_to)
        group.chain, group.level, group.pool, group.spots = pool.nodes.number, found.level, pool.number, found.pods
        if step:
            hierarchy = pool.virtual.hierarchy
            group.relaxed = tuple([hierarchy.names[level] for level in choice.caps[:step]])
        if up_to >= 0:
            bound = _bind_with_victims(state, group, pool, suggested)
        else:
            bound = _bind(state, group, pool, suggested)
            if bound and displaces_loans(pool, group):
                _set_victims(group, pool.nodes.on(group.parts))
        if bound:
            return True
        if not is_copy:
            space, is_copy = copied(space), True
        space.set(_refused(pool, found.pods, suggested), 0, 0)
    group.relaxed, group.pool, group.spots = (), -1, ()
    return False


def copied(space: Space) -> Space:
    """A copy of a space, from which hosts can be excluded. O(hosts)."""
    return Space(space.shapes, space.groups, space.node_level, space.free, space.idle)


def _refused(pool: Pool, pods: Spots, suggested: Suggested | None) -> int:
    """The host to exclude from the next attempt: the first that cannot be bound, else the last that was chosen."""
    bound = pool.binding.bound
    for host, mask in pods:
        if bound[host] < 0 and suggested is not None and not suggested.could_bind(pool, host, mask):
            return host
    unbound = [host for host, _ in pods if bound[host] < 0]
    return unbound[-1] if unbound else pods[-1][0]


def _bind_with_victims(
    state: State, group: Group, pool: Pool, suggested: Suggested | None, victims: Sequence[Group] = ()
) -> bool:
    """Bind virtual leaves of other groups of the VC, and set victims; ``False`` without healthy, suggested nodes."""
    in_vc = pool.conflicting(group, victims)
    lazy = [g for g in in_vc if g.request.lazy_preemption and g.state is GroupState.ALLOCATED]
    lazy.sort(key=lambda other: other.sequence)
    mark = state.undo.mark()
    while True:
        for other in lazy:
            state.downgrade(other, group)
        if not _bind(state, group, pool, suggested):
            state.undo.rollback(mark)
            return False
        others = {other: None for other in in_vc if other not in lazy} | pool.nodes.on(group.parts)
        if not any(other in others for other in lazy):
            _set_victims(group, others)
            group.downgraded = lazy
            return True
        state.undo.rollback(mark)
        # a group gains nothing from a downgrade if its leaf cells are needed at once
        lazy = [other for other in lazy if other not in others]


def _set_victims(group: Group, others: dict[Group, None]) -> None:
    """Split the groups on its leaves: running ones become victims, preempting ones lose their reservations."""
    by_age = sorted(others, key=lambda other: other.sequence)
    group.victims = {other: None for other in by_age if other.running}
    group.overtaken = [other for other in by_age if not other.running]


def displaces_loans(pool: Pool, group: Group) -> bool:
    """Whether some of the group's leaves are in opportunistic use."""
    opportunistic = pool.nodes.lent
    for _, node, mask in group.parts:  # noqa: SIM110 - asked on every request: any() costs twice as much
        if opportunistic[node] & mask:
            return True
    return False


def _bind(state: State, group: Group, pool: Pool, suggested: Suggested | None) -> bool:
    """Bind the group's leaves; ``False``, and nothing bound, where that is impossible."""
    start = mark = state.undo.mark()
    if group.loan is not None:  # a group does not preempt its own loan
        if pool.elsewhere(group.spots, group.loan.parts):
            group.parts = ()  # the caller discards a placement on other leaves
            return True
        state.vacate(group.loan)
        mark = state.undo.mark()
    parts = pool.bind(group.spots, group.near)
    if parts is not None:
        group.parts = parts
        if suggested is None or (
            not displaces_loans(pool, group) and all(suggested.of(group.chain)(p.node) for p in parts)
        ):
            return True
    state.undo.rollback(mark)
    # another binding may stay on the suggested nodes, without victims
    if suggested is not None and bind_on_suggested(pool, group.spots, suggested, state.undo):
        parts = pool.bind(group.spots)
        if parts is not None:
            group.parts = parts
            return True
    state.undo.rollback(start)
    return False
