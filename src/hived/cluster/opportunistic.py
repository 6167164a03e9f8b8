"""The placement of an opportunistic group: on idle GPUs far from guaranteed use, or on loans above a fair share."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush

from hived.cells import Found, Space, find

from .demands import Choice, Demand
from .fairness import shares
from .groups import Group
from .guests import Leaves
from .nodes import Nodes, farthest_from_guaranteed
from .parts import Part
from .pool import packed
from .state import State
from .suggested import Suggested


def place(state: State, group: Group, demand: Demand, suggested: Suggested | None = None) -> bool:
    """Choose leaves for an opportunistic group; ``False`` when it has to wait. O(levels + pods) where GPUs are idle."""
    if group.request.guest:
        return as_guest(state, group, demand, suggested)
    return on_idle(state, group, demand, suggested) or any(
        _with_victims(state, group, demand.tenant, choice, suggested) for choice in demand.choices
    )


def as_guest(
    state: State, group: Group, demand: Demand, suggested: Suggested | None, beside: Leaves | None = None
) -> bool:
    """Choose leaves without a group, or of owners that accept the guest: the best of ``beside``, else few guests first.

    O(levels + pods + nodes that changed); with ``beside`` O(its leaves) in place of the nodes that changed.
    """
    for step, choice in demand.tries:
        guests = state.guests_on[choice.chain]
        if guests is None:
            continue
        spaces = guests.spaces(group.tenant) if beside is None else guests.prefixes(group.tenant, beside, demand.gpus)
        for space in spaces:
            if suggested is not None:
                guests.leave_out(space, suggested.others(state.chains[choice.chain]))
            found = find(space, choice.needs, packed, choice.caps[step])
            if found is not None:
                _set_choice(state, group, choice, found, step)
                group.guest = True
                return True
    return False


def on_idle(state: State, group: Group, demand: Demand, suggested: Suggested | None) -> bool:
    """Choose idle leaves for an opportunistic group; ``False`` where other groups would have to be preempted."""
    return any(_idle(state, group, choice, step, suggested) for step, choice in demand.tries)


def _idle(state: State, group: Group, choice: Choice, step: int, suggested: Suggested | None) -> bool:
    nodes = state.chains[choice.chain]
    hierarchy = nodes.hierarchy
    need = choice.needs[0]
    allowed = None if suggested is None else suggested.of(choice.chain)
    if len(choice.needs) == 1 and not need.level and not choice.caps[step]:
        if need.gpus > hierarchy.node_size:
            return False
        found = nodes.find_one(need.gpus, allowed)
    else:
        found = find(nodes.idle_space(), choice.needs, farthest_from_guaranteed, choice.caps[step])
        if allowed is not None and (found is None or not all(allowed(node) for node, _ in found.pods)):
            found = find(space_of(nodes, suggested), choice.needs, farthest_from_guaranteed, choice.caps[step])
    if found is None:
        return False
    _set_choice(state, group, choice, found, step)
    return True


def _set_choice(state: State, group: Group, choice: Choice, found: Found, step: int) -> None:
    group.chain, group.level = choice.chain, found.level
    group.parts = tuple([Part(choice.chain, node, mask) for node, mask in found.pods])
    if step:
        hierarchy = state.chains[choice.chain].hierarchy
        group.relaxed = tuple([hierarchy.names[level] for level in choice.caps[:step]])


def space_of(nodes: Nodes, suggested: Suggested | None) -> Space:
    """The idle leaves of a chain on the suggested nodes, valid until the next call. O(nodes that are not suggested)."""
    space = nodes.idle_space()
    if suggested is not None:
        for node in suggested.others(nodes):
            space.set(node, 0, 0)
            nodes.mark_dirty(node)
    return space


def shares_with(state: State, tenant: int, chain: int, need: int) -> tuple[list[int], list[Fraction]]:
    """Per tenant its lent GPUs, and its share of all GPUs that can be lent if ``tenant`` wanted ``need`` more.

    O(n log n).
    """
    lent, idle = lent_of_type(state, chain)
    wanted = list(lent)
    wanted[tenant] += need
    return lent, shares(sum(lent) + idle, wanted, state.weights)


def _with_victims(state: State, group: Group, tenant: int, choice: Choice, suggested: Suggested | None) -> bool:
    """Preempt loans of tenants above their share for a tenant that stays within its own.

    The tenant farthest above yields first, its latest group first, and only while it is above its share. Groups whose
    GPUs turn out not to be needed are spared, and so are those that a new spec has made loans: they end for no loan.
    O(groups examined * (tenants + their pods)).
    """
    need = sum(need.gpus for need in choice.needs)
    lent, share = shares_with(state, tenant, choice.chain, need)
    if lent[tenant] + need > share[tenant]:
        return False
    nodes = state.chains[choice.chain]
    obtainable = nodes.idle_gpus
    latest = {t: reversed(loans) for t, loans in enumerate(state.loans) if t != tenant and lent[t] > share[t]}
    order = [(-per_weight(lent[t], state.weights[t]), t) for t in latest]
    heapify(order)
    space = space_of(nodes, suggested)
    found: Found | None = None
    chosen_step = 0
    while order and found is None:
        _, yielding = heappop(order)
        candidate = next((g for g in latest[yielding] if choice.chain in g.chains and _yields(state, g)), None)
        if candidate is None:
            continue
        lent[yielding] -= candidate.gpus
        obtainable += _count_as_idle(nodes, space, candidate, suggested)
        if obtainable >= need:
            for step, cap in enumerate(choice.caps):
                found = find(space, choice.needs, farthest_from_guaranteed, cap)
                if found is not None:
                    chosen_step = step
                    break
        if lent[yielding] > share[yielding]:
            heappush(order, (-per_weight(lent[yielding], state.weights[yielding]), yielding))
    if found is None:
        return False
    _set_choice(state, group, choice, found, chosen_step)
    _set_victims(nodes, group)
    return True


def _yields(state: State, loan: Group) -> bool:
    """Whether a loan is of those that end for the share of another tenant."""
    return loan.running and not (loan in state.downgraded and loan.downgraded_by is None)


def _count_as_idle(nodes: Nodes, space: Space, loan: Group, suggested: Suggested | None) -> int:
    """Count the healthy leaves of a loan that nobody has reserved as idle, for now. Returns their number. O(pods)."""
    allowed = None if suggested is None else suggested.of(nodes.number)
    more = 0
    for number, node, mask in loan.parts:
        if number == nodes.number and (allowed is None or allowed(node)):
            mask &= ~(nodes.reserved[node] | nodes.bad[node])
            more += mask.bit_count()
            space.set(node, space.free[node], space.idle[node] | mask)
            nodes.mark_dirty(node)
    return more


def _set_victims(nodes: Nodes, group: Group) -> None:
    on = sorted(nodes.on(group.parts), key=lambda other: other.sequence)
    group.victims = {other: None for other in on if other.running}
    group.overtaken = [other for other in on if not other.running]


def preempting(
    state: State, group: Group, demand: Demand, suggested: Suggested | None, victims: Sequence[Group]
) -> bool:
    """Choose idle leaves and leaves of these loans, as few of the latter as the choice of nodes allows. O(loans)."""
    for choice in demand.choices:
        nodes = state.chains[choice.chain]
        space = space_of(nodes, suggested)
        for victim in victims:
            _count_as_idle(nodes, space, victim, suggested)
        for step, cap in enumerate(choice.caps):
            found = find(space, choice.needs, farthest_from_guaranteed, cap)
            if found is not None:
                _set_choice(state, group, choice, found, step)
                _set_victims(nodes, group)
                return True
    return False


def lent_of_type(state: State, chain: int) -> tuple[list[int], int]:
    """Per tenant the GPUs lent to it, and the idle GPUs, in all chains of this chain's leaf type. O(tenants)."""
    leaf_type = state.chains[chain].hierarchy.spec.leaf_type
    alike = [nodes for nodes in state.chains if nodes.hierarchy.spec.leaf_type == leaf_type]
    lent = [sum([of_tenant.get(nodes.number, 0) for nodes in alike]) for of_tenant in state.opportunistic_gpus]
    return lent, sum([nodes.idle_gpus for nodes in alike])


def per_weight(held: int, weight: int) -> Fraction:
    """A tenant's held GPUs relative to its weight; tenants without weight come before all others."""
    return Fraction(held, weight) if weight else Fraction(held * 10**30)
