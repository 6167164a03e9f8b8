"""Whom a guaranteed group takes GPUs from: tenants above their share of what is lent first.

Binding takes the cells with the fewest GPUs in opportunistic use. Where the groups that have these lose more than that,
other cells are looked at for some where less is lost. Where a tenant within its fair share would lose some, the nodes
of those above theirs are looked at first: the farthest above, and the latest to start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice

from hived.cells import leaves_of
from hived.errors import ensure

from .allocation import Part
from .fairness import shares
from .floor import Floor
from .groups import Group
from .plans import Plan
from .state import State
from .suggested import Suggested
from .tenancy import Spared, Tenancy, by_host

#: how many nodes are looked at for one request, or for one host of it where less may be lost
NODES_TRIED = 16
#: cells looked at for all hosts of a request where less may be lost; the first way that is tried is tried to its end
STEPS = 500
#: hosts of the largest request for which other cells are looked at
HOSTS = 64


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
    again = tenancy.bind(plan.pods, plan.standing)
    ensure(again == plan.parts, "leaves bound again are the same")


def bind_losing_least(plan: Plan, suggested: Suggested | None) -> None:
    """Bind the plan's leaves elsewhere if that ends fewer GPUs of opportunistic groups, wherever these have them.

    The first host stands on one of the first cells that it would be given, each in turn; every other host then on the
    cell that ends least beside what ends anyway. O(``STEPS`` * levels), nothing where no more is lost than taken of
    hosts wanted whole.
    """
    tenancy = plan.tenancy
    assert tenancy is not None
    binder, pool, crowd = tenancy.binder, tenancy.pool, tenancy.floor.chain.opportunistic
    unused = [(host, mask) for host, mask in by_host(plan.pods) if pool.free[host] == pool.shapes[host].full]
    least = _gpus(_loans(tenancy, plan.parts))
    taken = sum((crowd[node] & mask).bit_count() for _, node, mask in plan.parts)
    if not 0 < len(unused) <= HOSTS or (
        least <= taken and all(mask == pool.shapes[host].full for host, mask in unused)
    ):
        return
    tenancy.unbind(plan.pods)
    hosts = [(host, mask) for host, mask in unused if binder.bound[host] < 0]
    search = _Standing(tenancy, hosts, suggested)
    for first in search.cells(hosts[0][0], ()) if hosts else []:
        standing = search.run(first) if search.at_least(*hosts[0], first, ()) < least else {}
        if standing:
            parts = tenancy.bind(plan.pods, standing)
            tenancy.unbind(plan.pods)
            if parts is not None and (lost := _gpus(_loans(tenancy, parts))) < least:
                least, plan.standing = lost, standing
        if search.steps > STEPS:
            break
    parts = tenancy.bind(plan.pods, plan.standing)
    assert parts is not None
    plan.parts = parts


class _Standing:
    """Unbound hosts, one by one, each on the cell where the loans that end have the fewest GPUs."""

    __slots__ = ("_allowed", "_ended", "_hosts", "_tenancy", "steps")

    def __init__(self, tenancy: Tenancy, hosts: Sequence[tuple[int, int]], suggested: Suggested | None) -> None:
        #: cells looked at so far
        self.steps = 0
        self._tenancy, self._hosts = tenancy, hosts
        self._allowed = None if suggested is None else suggested.of(tenancy.floor.number)
        # per cell and leaves wanted there: the loans that end; None where bad hardware is in the way
        self._ended: dict[tuple[int, int], list[Group] | None] = {}

    def cells(self, host: int, ended: Iterable[Group]) -> Iterator[int]:
        """Cells for ``host``: where groups run that end anyway, and the first that it would be given."""
        binder, pool, chain = self._tenancy.binder, self._tenancy.pool, self._tenancy.floor.number
        level, parent = pool.cells[host]
        top, above = level, parent
        while above >= 0 and binder.bound[above] < 0:
            top, above = pool.cells[above]
        allocator = binder.allocator
        tops = allocator.by_crowd(top) if above < 0 else allocator.siblings(top).by_crowd(binder.bound[above])
        cells = islice((cell for outer in tops for cell in allocator.inside(top, outer, level)), NODES_TRIED)
        leaves, size = pool.shapes[host].leaves, pool.hierarchy.node_size
        parts = [part for group in ended for part in group.parts if part.chain == chain]
        free = [(node * size + leaf) // leaves for _, node, mask in parts for leaf in leaves_of(mask)]
        allowed = self._allowed
        found = dict.fromkeys([*free, *cells])  # listed, since nothing may be bound while they are found
        return (cell for cell in found if allowed is None or allowed(cell * leaves // size))

    def at_least(self, host: int, mask: int, cell: int, ended: Collection[Group]) -> int:
        """GPUs that are surely lost where ``host`` stands on ``cell``, but those of ``ended``. O(groups there)."""
        floor, shape = self._tenancy.floor, self._tenancy.pool.shapes[host]
        node, part = divmod(cell, self._tenancy.pool.hierarchy.node_size // shape.leaves)
        there = shape.full << part * shape.leaves
        if mask == shape.full:
            return floor.lost(node, there, ended)
        if (there & ~floor.chain.opportunistic[node]).bit_count() >= mask.bit_count():
            return 0
        loans = [group for group, held in floor.holders[node].items() if held & there and not group.guaranteed]
        return min(0 if group in ended else group.gpus for group in loans)

    def run(self, first: int) -> dict[int, int]:
        """The cells to stand on, the first host on ``first``; none where that leads nowhere. Nothing is bound then."""
        binder = self._tenancy.binder
        standing: dict[int, int] = {}
        ended: dict[Group, None] = {}
        for host, mask in self._hosts:
            if binder.bound[host] >= 0:  # anchored meanwhile: no choice
                break
            best: tuple[int, int, list[Group]] | None = None
            for cell in self.cells(host, ended) if standing else [first]:
                self.steps += 1
                if best is not None and self.at_least(host, mask, cell, ended) >= best[0]:
                    continue
                ends = self._ends(host, mask, cell) if binder.can_stand(host, cell) else None
                if ends is not None:
                    lost = _gpus(group for group in ends if group not in ended)
                    if best is None or lost < best[0]:
                        best = lost, cell, ends
            if best is None:
                break
            binder.stand(host, best[1], mask)
            standing[host] = best[1]
            ended.update(dict.fromkeys(best[2]))
        for host in reversed(standing):
            binder.unbind(host, 0)
        return standing if len(standing) == len(self._hosts) else {}

    def _ends(self, host: int, mask: int, cell: int) -> list[Group] | None:
        if (cell, mask) not in self._ended:
            binder, floor = self._tenancy.binder, self._tenancy.floor
            binder.stand(host, cell, mask)
            ends = None
            if not self._tenancy.pool.bad[host] & mask:
                part = Part(floor.number, *binder.leaves(host, mask, floor.chain.opportunistic, None, None, floor.lost))
                ends = _loans(self._tenancy, [part])
            binder.unbind(host, 0)
            self._ended[cell, mask] = ends
        return self._ended[cell, mask]


def _loans(tenancy: Tenancy, parts: Iterable[Part]) -> list[Group]:
    """The opportunistic groups that have some of these leaves."""
    return [group for group in tenancy.floor.on(parts) if not group.guaranteed]


def _gpus(groups: Iterable[Group]) -> int:
    return sum(group.gpus for group in groups)


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
