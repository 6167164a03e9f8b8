"""Where a guaranteed group goes: first in its VC, as if that were alone; then which physical cells that comes to.

The first step looks at nothing but the VC's own groups and bad hardware, so tenants cannot move each other's answers.
The second cannot fail (theorem 1), except that bad hardware or a list of suggested nodes can turn a choice down; then
the hosts that did are left out, and the first step is asked again.

    for each lower rank in use, from none upward:           rather preempt nobody, then the lowest
        for each cap, from the one asked for upward:        (soft affinity)
            for each pool of the VC, in the order of the spec
"""

from __future__ import annotations

from bisect import bisect_left

from hived.cells import Found, HostClass, Space, find

from .demands import Choice, Demand
from .fairer import bind_fairly, bind_losing_least
from .groups import Group
from .plans import Plan
from .requests import Request
from .sparing import on_hosts, on_one_host
from .standing import Bindings, rebind, recorded
from .state import State
from .states import GroupState
from .suggested import Suggested, stand_on_suggested
from .tenancy import Pods, Tenancy

#: how often a choice may be turned down by hardware or suggestions before the group has to wait
ATTEMPTS = 64


def packed(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """Rank of a host: fewest leaf cells taken from others, then closest together, then tightest."""
    if host.free.free < gpus:
        return None
    taken = max(0, gpus - host.idle.free)
    level = host.free.level_for(gpus) if taken else host.idle.level_for(gpus)
    return taken, level, host.free.free


def place(state: State, request: Request, demand: Demand, suggested: Suggested | None = None) -> Plan | None:
    """The plan for a guaranteed group, None when it has to wait. O(levels + pods) where it fits at once."""
    plan = on_free(state, request, demand, suggested)
    if plan is not None:
        return plan
    tenancies = state.tenancies[demand.tenant]
    lower = sorted({key for choice in demand.choices for key in tenancies[choice.where].below(request.priority)})
    for key in lower[_first_that_fits(state, request, demand, lower) :]:
        plan = _at(state, request, demand, key, suggested)
        if plan is not None:
            return plan
    return None


def on_free(state: State, request: Request, demand: Demand, suggested: Suggested | None) -> Plan | None:
    """The plan for a guaranteed group on free leaves of its VC, None where others of the VC would have to go."""
    return _at(state, request, demand, -1, suggested)


def bound_to_idle(
    state: State, group: Group, demand: Demand, tenancy: Tenancy, suggested: Suggested | None
) -> Plan | None:
    """The plan for the virtual leaves that a group has chosen, bound to idle physical ones; None where they cannot be.

    The leaves are bound to nothing, and free, when this is called.
    """
    plan = Plan(group.request, demand, group.chain, group.level)
    plan.tenancy, plan.pods, plan.relaxed = tenancy, group.spots, group.relaxed
    if not _bind(state, plan, suggested):
        return None
    plan.bound = True
    state.ahead = plan
    return None if crowded(tenancy, plan) else plan


def _first_that_fits(state: State, request: Request, demand: Demand, lower: list[int]) -> int:
    """Place in ``lower`` of the first rank up to which taking leaves makes room in the VC; its length for none.

    The higher the rank, the more can be had: a search by halves, O(log ranks) choices of virtual leaves.
    """
    tenancies = state.tenancies[demand.tenant]

    def fits(key: int) -> bool:
        for choice in demand.choices:
            tenancy = tenancies[choice.where]
            mine = [other for other in tenancy.below(request.priority) if other <= key]
            space = tenancy.space(mine[-1] if mine else -1)
            if any(find(space, choice.needs, packed, cap) is not None for cap in choice.caps):
                return True
        return False

    if len(lower) <= 1:
        return 0
    if not fits(lower[-1]):
        return len(lower)
    return bisect_left(lower, True, hi=len(lower) - 1, key=fits)


def _at(state: State, request: Request, demand: Demand, key: int, suggested: Suggested | None) -> Plan | None:
    """The plan where leaves taken at ranks up to ``key`` may be had."""
    tenancies = state.tenancies[demand.tenant]
    for step in range(demand.most_caps):
        for choice in demand.choices:
            tenancy = tenancies[choice.where]
            if step < len(choice.caps) and (key < 0 or key in tenancy.at):
                plan = _in(state, request, demand, choice, tenancy, key, step, suggested)
                if plan is not None:
                    return plan
    return None


def _in(
    state: State,
    request: Request,
    demand: Demand,
    choice: Choice,
    tenancy: Tenancy,
    key: int,
    step: int,
    suggested: Suggested | None,
) -> Plan | None:
    cap = choice.caps[step]
    space = tenancy.space(key)
    elsewhere = suggested.hosts_elsewhere(tenancy) if suggested is not None else []
    if elsewhere:
        space = copied(space)
        for host in elsewhere:
            space.set(host, 0, 0)
    ours = bool(elsewhere)
    for _ in range(ATTEMPTS):
        found = find(space, choice.needs, packed, cap)
        if found is None:
            break
        if key >= 0:
            sparing = on_one_host if len({host for host, _ in found.pods}) == 1 else on_hosts
            found = sparing(tenancy, space, choice.needs, packed, found, cap, key)
        plan = _plan(state, request, demand, choice, tenancy, key, step, found, suggested)
        if plan is not None:
            return plan
        if not ours:
            space, ours = copied(space), True
        space.set(_refused(tenancy, found.pods, suggested), 0, 0)
    return None


def copied(space: Space) -> Space:
    """A space in which hosts can be left out, whatever becomes of the one that it was made from. O(hosts)."""
    return Space(space.shapes, space.groups, space.node_level, space.free, space.idle)


def _refused(tenancy: Tenancy, pods: Pods, suggested: Suggested | None) -> int:
    """The host to be left out of the next attempt: the first that cannot stand, else the last that was chosen."""
    for host, mask in pods:
        if tenancy.binder.bound[host] < 0 and suggested is not None and not suggested.could_stand(tenancy, host, mask):
            return host
    unbound = [host for host, _ in pods if tenancy.binder.bound[host] < 0]
    return unbound[-1] if unbound else pods[-1][0]


def _plan(
    state: State,
    request: Request,
    demand: Demand,
    choice: Choice,
    tenancy: Tenancy,
    key: int,
    step: int,
    found: Found,
    suggested: Suggested | None,
) -> Plan | None:
    """What a choice of virtual leaves comes to; None where it cannot stand on healthy, suggested hardware."""
    plan = Plan(request, demand, choice.chain, found.level)
    plan.tenancy = tenancy
    plan.pods = found.pods
    if step:
        hierarchy = tenancy.pool.hierarchy
        plan.relaxed = tuple([hierarchy.name(level) for level in choice.caps[:step]])
    if key < 0:
        if not _bind(state, plan, suggested):
            return None
        if crowded(tenancy, plan):
            _who_goes(plan, tenancy.floor.on(plan.parts))
        plan.bound = True
        state.ahead = plan
        return plan
    in_vc = tenancy.on(found.pods)
    lazy = [g for g in in_vc if g.request.lazy_preemption and g.state is GroupState.ALLOCATED]
    lazy.sort(key=lambda group: group.sequence)
    while _over_others(state, plan, in_vc, lazy, suggested):
        if not any(group in plan.victims for group in lazy):
            return plan
        # whose leaf cells are needed at once gains nothing from a downgrade
        lazy = [group for group in lazy if group not in plan.victims]
        state.step_back()
    return None


def _over_others(
    state: State, plan: Plan, in_vc: dict[Group, None], lazy: list[Group], suggested: Suggested | None
) -> bool:
    """What the plan comes to where others of the VC are on its leaves, and ``lazy`` ones are downgraded for it."""
    tenancy = plan.tenancy
    assert tenancy is not None
    inside = tenancy.inside(plan.pods)
    undo = [_downgraded(tenancy, group) for group in lazy]
    stands = _bind(state, plan, suggested)
    if stands:
        others = dict.fromkeys(group for group in in_vc if group not in lazy)
        _who_goes(plan, others | tenancy.floor.on(plan.parts))
        plan.downgraded = lazy
    if stands and not lazy:
        plan.bound = True
        plan.inside = inside
        state.ahead = plan
    else:
        if stands:
            tenancy.unbind(plan.pods)
        for group, before, records in reversed(undo):
            _guaranteed_again(tenancy, group, before, records)
        tenancy.put_back(inside)
    return stands


def _who_goes(plan: Plan, others: dict[Group, None]) -> None:
    plan.victims = sorted((g for g in others if g.running), key=lambda g: g.sequence)
    plan.overtaken = sorted((g for g in others if not g.running), key=lambda g: g.sequence)


def crowded(tenancy: Tenancy, plan: Plan) -> bool:
    """Whether somebody has some of the plan's leaves opportunistically."""
    opportunistic = tenancy.floor.chain.opportunistic
    for _, node, mask in plan.parts:  # noqa: SIM110 - asked on every request: any() costs twice as much
        if opportunistic[node] & mask:
            return True
    return False


def _bind(state: State, plan: Plan, suggested: Suggested | None) -> bool:
    """Bind the plan's leaves; ``False`` where that cannot be, and nothing is bound then."""
    tenancy = plan.tenancy
    assert tenancy is not None
    plan.standing = plan.spared = None  # of a try before, with other groups downgraded
    inside = tenancy.inside(plan.pods) if suggested is not None else []
    parts = tenancy.bind(plan.pods)
    if parts is not None:
        plan.parts = parts
        crowd = crowded(tenancy, plan)
        if suggested is None:
            if crowd:
                bind_losing_least(plan, None)
                bind_fairly(state, plan)
            return True
        allowed = suggested.of(plan.chain)
        if not crowd and all(allowed(node) for _, node, _ in parts):
            return True
    tenancy.unbind(plan.pods)
    if suggested is None:
        return False
    # there may be another way to stand, on these nodes and costing nobody anything
    tenancy.put_back(inside)
    plan.standing = stand_on_suggested(tenancy, plan.pods, suggested)
    if plan.standing is None:
        return False
    parts = tenancy.bind(plan.pods, plan.standing)
    if parts is None:
        tenancy.unbind(plan.pods)
        return False
    plan.parts = parts
    if crowded(tenancy, plan):
        bind_losing_least(plan, suggested)
    return True


def _downgraded(tenancy: Tenancy, group: Group) -> tuple[Group, Pods, list[Bindings]]:
    """Try out what a downgrade of ``group`` would free. Returned is what :func:`_guaranteed_again` needs."""
    before = group.spots
    records = recorded(tenancy.binder, list(dict.fromkeys(host for host, _ in before)))
    tenancy.give(group)
    tenancy.unbind(before)
    group.tenancy, group.spots = -1, ()
    tenancy.floor.changed_kind(group)
    return group, before, records


def _guaranteed_again(tenancy: Tenancy, group: Group, before: Pods, records: list[Bindings]) -> None:
    group.tenancy, group.spots = tenancy.number, before
    rebind(tenancy.binder, records)
    tenancy.take_again(group)
    tenancy.floor.changed_kind(group)
