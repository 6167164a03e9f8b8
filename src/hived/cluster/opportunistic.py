"""Where an opportunistic group goes: on idle GPUs far from guaranteed use, or on what others have too much of."""

from __future__ import annotations

from fractions import Fraction
from heapq import heapify, heappop, heappush

from hived.cells import Found, Space, find, level_of

from .allocation import Part
from .demands import Choice, Demand
from .fairer import lent_of_type, per_weight
from .fairness import shares
from .floor import Floor
from .groups import Group
from .physical import farthest_from_guaranteed
from .plans import Plan
from .requests import Request
from .state import State
from .suggested import Allowed, Suggested


def place(state: State, request: Request, demand: Demand, suggested: Suggested | None = None) -> Plan | None:
    """The plan for an opportunistic group, None when it has to wait. O(levels + pods) where GPUs are idle."""
    plan = on_idle(state, request, demand, suggested)
    if plan is not None:
        return plan
    for choice in demand.choices:
        plan = _from_others(state, request, demand, choice, suggested)
        if plan is not None:
            return plan
    return None


def on_idle(state: State, request: Request, demand: Demand, suggested: Suggested | None) -> Plan | None:
    """The plan for an opportunistic group on idle GPUs, None where others would have to go."""
    for step in range(demand.most_caps):
        for choice in demand.choices:
            if step < len(choice.caps):
                plan = _idle(state, request, demand, choice, step, suggested)
                if plan is not None:
                    return plan
    return None


def _idle(
    state: State, request: Request, demand: Demand, choice: Choice, step: int, suggested: Suggested | None
) -> Plan | None:
    floor = state.floors[choice.chain]
    hierarchy = floor.chain.hierarchy
    need = choice.needs[0]
    allowed = None if suggested is None else suggested.of(choice.chain)
    if len(choice.needs) == 1 and not need.level and not choice.caps[step]:
        if need.gpus > hierarchy.node_size:
            return None
        parts = floor.chain.find_idle(need.gpus, allowed)
        if parts is None:
            return None
        plan = Plan(request, demand, choice.chain, level_of(hierarchy.shape, parts[0].mask))
        plan.parts = parts
    else:
        found = find(floor.chain.idle_space(), choice.needs, farthest_from_guaranteed, choice.caps[step])
        if allowed is not None and (found is None or not all(allowed(node) for node, _ in found.pods)):
            found = find(space_of(floor, suggested), choice.needs, farthest_from_guaranteed, choice.caps[step])
        if found is None:
            return None
        plan = _plan(request, demand, choice, found)
    if step:
        plan.relaxed = tuple([hierarchy.name(level) for level in choice.caps[:step]])
    return plan


def space_of(floor: Floor, suggested: Suggested | None) -> Space:
    """The idle leaves of a chain, of the suggested nodes alone where there are such, until it is asked for again.

    O(nodes that are not suggested).
    """
    space = floor.chain.idle_space()
    if suggested is not None:
        for node in suggested.others(floor):
            space.set(node, 0, 0)
            floor.chain.look_again(node)
    return space


def _plan(request: Request, demand: Demand, choice: Choice, found: Found) -> Plan:
    plan = Plan(request, demand, choice.chain, found.level)
    plan.parts = tuple([Part(choice.chain, node, mask) for node, mask in found.pods])
    return plan


def share_of(state: State, tenant: int, chain: int, need: int) -> tuple[int, Fraction]:
    """What is lent to a tenant, and its share of all that can be lent if it wanted ``need`` more. O(n log n)."""
    lent, idle = lent_of_type(state, chain)
    total = sum(lent) + idle
    wanted = list(lent)
    wanted[tenant] += need
    return lent[tenant], shares(total, wanted, state.weights)[tenant]


def _from_others(
    state: State, request: Request, demand: Demand, choice: Choice, suggested: Suggested | None
) -> Plan | None:
    """Take GPUs from tenants above their share for one that stays within its own.

    The farthest above gives first, its latest group first, and only while it is above its share. Then those whose
    GPUs turned out not to be needed are spared. O(groups looked at * (tenants + their pods)).
    """
    need = sum(need.gpus for need in choice.needs)
    tenant = demand.tenant
    lent, idle = lent_of_type(state, choice.chain)
    wanted = list(lent)
    wanted[tenant] += need
    share = shares(sum(lent) + idle, wanted, state.weights)
    if lent[tenant] + need > share[tenant]:
        return None
    floor = state.floors[choice.chain]
    givers = [t for t in range(len(state.tenants)) if t != tenant and lent[t] > share[t]]
    latest = {t: reversed(state.borrowers[t]) for t in givers}
    order = [(-per_weight(lent[t], state.weights[t]), t) for t in givers]
    heapify(order)
    space = space_of(floor, suggested)
    allowed = None if suggested is None else suggested.of(choice.chain)
    opened: dict[int, int] = {}
    found: Found | None = None
    relaxed: tuple[int, ...] = ()
    gain = 0
    while order and found is None:
        _, giver = heappop(order)
        group = next((g for g in latest[giver] if choice.chain in g.chains and g.running), None)
        if group is None:
            continue
        lent[giver] -= group.gpus
        gain += _open(floor, space, group, opened, allowed)
        if floor.idle_gpus + gain >= need:
            for step, cap in enumerate(choice.caps):
                found = find(space, choice.needs, farthest_from_guaranteed, cap)
                if found is not None:
                    relaxed = choice.caps[:step]
                    break
        if lent[giver] > share[giver]:
            heappush(order, (-per_weight(lent[giver], state.weights[giver]), giver))
    for node in opened:
        floor.chain.look_again(node)
    if found is None:
        return None
    plan = _plan(request, demand, choice, found)
    plan.relaxed = tuple([floor.chain.hierarchy.name(level) for level in relaxed])
    on = floor.on(plan.parts)
    plan.victims = sorted((g for g in on if g.running), key=lambda g: g.sequence)
    plan.overtaken = sorted((g for g in on if not g.running), key=lambda g: g.sequence)
    return plan


def _open(floor: Floor, space: Space, group: Group, opened: dict[int, int], allowed: Allowed | None) -> int:
    """Count the leaves of a group as idle, as far as nobody has reserved them and they are healthy; how many."""
    gain = 0
    for number, node, mask in group.parts:
        if number == floor.number and (allowed is None or allowed(node)):
            mask &= ~(floor.states.reserved[node] | floor.chain.bad[node])
            opened[node] = opened.get(node, 0) | mask
            gain += mask.bit_count()
            space.set(node, space.free[node], space.idle[node] | mask)
    return gain
