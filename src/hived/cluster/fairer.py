"""Whom a guaranteed group takes GPUs from: tenants above their share of what is lent first.

Binding takes the cells with the fewest GPUs in opportunistic use. Where that means that a tenant within its fair share
would lose some, the nodes of those above theirs are looked at first: the farthest above, and the latest to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

from hived.errors import ensure

from .allocation import Part
from .fairness import shares
from .floor import Floor
from .groups import Group
from .plans import Plan
from .state import State
from .tenancy import Spared, Tenancy, by_host

#: how many nodes are looked at for one request
NODES_TRIED = 16


def lent_of_type(state: State, chain: int) -> tuple[list[int], int]:
    """Per tenant the GPUs lent to it, and the GPUs idle, in all chains of this one's leaf type. O(tenants)."""
    leaf_type = state.spec.chains[chain].leaf_type
    lent = [0] * len(state.tenants)
    idle = 0
    for number, spec in enumerate(state.spec.chains):
        if spec.leaf_type == leaf_type:
            idle += state.floors[number].idle_gpus
            for tenant, gpus in enumerate(state.lent[number]):
                lent[tenant] += gpus
    return lent, idle


def above_share(state: State, chain: int, taken: int) -> list[int]:
    """Tenants with more than their share once ``taken`` GPUs are taken from what is lent; the farthest above first.

    Ties: the tenant with the lower number first.
    """
    lent, idle = lent_of_type(state, chain)
    share = shares(max(0, sum(lent) + idle - taken), [sum(lent) + idle if held else 0 for held in lent], state.weights)
    above = [tenant for tenant, held in enumerate(lent) if held > share[tenant]]
    return sorted(above, key=lambda t: (-per_weight(lent[t], state.weights[t]), t))


def per_weight(held: int, weight: int) -> Fraction:
    """How far up a tenant's share is filled; who has no weight comes before all others."""
    return Fraction(held, weight) if weight else Fraction(held * 10**30)


def bind_fairly(state: State, plan: Plan) -> None:
    """Bind the plan's leaves elsewhere if that takes GPUs from tenants above their share rather than from others."""
    tenancy = plan.tenancy
    assert tenancy is not None
    floor = tenancy.floor
    crowded = [g for g in floor.on(plan.parts) if not g.guaranteed]
    if sum(map(bool, state.borrowers)) < 2:
        return
    taken = sum(mask.bit_count() for _, _, mask in plan.parts)
    above = above_share(state, plan.chain, taken)
    if not above or all(group.tenant in above[:1] for group in crowded):
        return
    free = [host for host, _ in by_host(plan.pods)]
    tenancy.unbind(plan.pods)
    standing: dict[int, int] = {}
    nodes = list(islice(_nodes(state, above, plan.chain), NODES_TRIED))
    for host in free:
        if tenancy.binder.bound[host] < 0:
            cell = _fairest(tenancy, host, nodes, above)
            if cell >= 0:
                tenancy.binder.stand(host, cell)
                standing[host] = cell
    for host in standing:
        tenancy.binder.unbind(host, 0)
    spared = _within_share(floor, above)
    parts = tenancy.bind(plan.pods, standing, spared)
    if parts is not None and _unfair(floor.on(parts), above) < _unfair(crowded, above):
        plan.standing, plan.parts, plan.spared = standing, parts, spared
        return
    tenancy.unbind(plan.pods)
    again = tenancy.bind(plan.pods)
    ensure(again == plan.parts, "leaves bound again are the same")


def _unfair(groups: dict[Group, None] | list[Group], above: list[int]) -> tuple[int, int]:
    """How many groups of tenants within their share would lose; and how far from the first the others are."""
    lose = [group for group in groups if not group.guaranteed]
    return sum(group.tenant not in above for group in lose), sum(
        above.index(group.tenant) for group in lose if group.tenant in above
    )


def _nodes(state: State, above: list[int], chain: int) -> Iterator[Part]:
    """Where the groups of these tenants run, the latest to start first."""
    for tenant in above:
        for group in reversed(state.borrowers[tenant]):
            yield from (part for part in group.parts if part.chain == chain)


def _fairest(tenancy: Tenancy, host: int, nodes: list[Part], above: list[int]) -> int:
    """The cell on these nodes for ``host`` that costs those farthest above their share; -1 when there is none."""
    shape, size = tenancy.pool.shapes[host], tenancy.pool.hierarchy.node_size
    best, least = -1, (0, 0)
    for chain, node, mask in nodes:
        for part in range(size // shape.leaves):
            leaves = shape.full << part * shape.leaves
            cell = node * (size // shape.leaves) + part
            if mask & leaves and tenancy.binder.can_stand(host, cell):
                unfair = _unfair(tenancy.floor.on([Part(chain, node, leaves)]), above)
                if unfair == (0, 0):
                    return cell
                if best < 0 or unfair < least:
                    best, least = cell, unfair
    return best


def _within_share(floor: Floor, above: list[int]) -> Spared:
    """Leaves of a node that opportunistic groups of tenants within their share have."""

    def spared(node: int) -> int:
        found = 0
        for group, mask in floor.holders.get(node, {}).items():
            if not group.guaranteed and group.tenant not in above:
                found |= mask
        return found

    return spared
