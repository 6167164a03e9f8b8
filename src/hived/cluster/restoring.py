"""Cells for displaced groups: groups that a spec or a trade has made opportunistic, and that are restored in place.

A VC chooses leaves as on a private cluster, for one group, and without regard to where the group runs. That choice may
not be bindable there, or take the place of the cell that another displaced group needs:

    PAIR  [2 3]   two groups of nlp run on 2 and 3; nlp reserves a PAIR and a GPU again. The GPU cell is the
    GPU           tightest for the first group, but on 2 it splits the only pair that safety leaves to nlp's PAIR

So other cells are tried for a displaced group: at each level that its VC reserves, together with the other displaced
groups of the chain, so that as many as possible can be restored. It is a search of bounded length, whose first descent
takes the cell with the most leaves of such groups of the VC, then the smallest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from hived.errors import InvariantError

from .groups import Group
from .nodes import Nodes
from .parts import Part
from .pool import Pool
from .sharing import Sharing
from .state import State

#: how many other groups of each kind a search takes into account
MAX_OTHERS = 32
#: how often a search tries to bind a pod, for each pod; and in all, beside once for each
TRIES = 8
MORE_TRIES = 4_000

#: per pod, the level of the reserved cell
Levels = tuple[int, ...]


def is_displaced(state: State, group: Group) -> bool:
    """Whether a loan was guaranteed before a spec or a trade, and may stay on its leaves, which are all still there.

    Not one that yields to a group of its own VC (lazy preemption).
    """
    return (
        group in state.downgraded
        and group.downgraded_by is None
        and group.running
        and not (group.preempted_by or group.guest)
        and group.origin is None
        and bool(group.parts)
        and len(group.chains) == 1
        and state.sharing is Sharing.HIVED
    )


def others_displaced(state: State, loan: Group) -> list[Group]:
    """Other groups of the chain that could be restored now, if each were the only one: those of the VC first.

    O(displaced groups * log of these), and a search for each of ``MAX_OTHERS``.
    """
    others = [
        other
        for other in state.downgraded
        if other is not loan and other.chain == loan.chain and is_displaced(state, other)
    ]
    others.sort(key=lambda other: (other.tenant != loan.tenant, other.sequence))
    return [other for other in others[:MAX_OTHERS] if Search(state, [other]).run()]


class Search:
    """A search for cells for groups at the leaves on which they run. Nothing stays bound."""

    def __init__(self, state: State, groups: Sequence[Group], needed: int = 0) -> None:
        """``needed``: the first so many groups have to have cells, of the others as many as possible.

        A run costs O((pods + ``MORE_TRIES``) * what binding one at a given place does).
        """
        self._state = state
        self._groups = groups
        self._needed = needed
        pods = len(groups) + sum([len(group.parts) for group in groups])
        self._tries = min(TRIES * pods, pods + MORE_TRIES)
        self._pools = [pool_for(state, group) for group in groups]
        # per pool, level and cell: the leaves there of the groups
        self._leaves: Counter[tuple[Pool, int, int]] = Counter()
        for pool, group in zip(self._pools, groups, strict=True):
            if pool is not None:
                for part, level in product(group.parts, pool.levels):
                    self._leaves[pool, level, _cell(pool.nodes, part, level)] += part.mask.bit_count()
        self._chosen: dict[Group, Levels] = {}
        self._best: dict[Group, Levels] = {}

    def run(self) -> dict[Group, Levels]:
        """The levels for as many groups as were found to fit together; none where some that are needed do not fit."""
        with self._state.undo.trial():
            self._descend(0)
        return self._best

    def _descend(self, at: int) -> None:
        """Bind the groups from number ``at`` on in all ways, and keep the best."""
        if at >= self._needed and len(self._chosen) > len(self._best):
            self._best = dict(self._chosen)
        if at == len(self._groups):
            return
        group, pool = self._groups[at], self._pools[at]
        for levels in () if pool is None else self._ways(pool, group.parts):
            self._chosen[group] = levels
            self._descend(at + 1)
            del self._chosen[group]
            if self._is_over(at):
                return
        if at >= self._needed and not self._is_over(at + 1):
            self._descend(at + 1)

    def _is_over(self, at: int) -> bool:
        """Whether the groups from number ``at`` on cannot make what is chosen better than the best."""
        return self._tries <= 0 or len(self._chosen) + len(self._groups) - at <= len(self._best)

    def _ways(self, pool: Pool, parts: Sequence[Part]) -> Iterator[Levels]:
        """The ways of binding a group's pods, each of which is bound when it is yielded, and unbound by the next."""
        undo = self._state.undo
        levels: list[int] = []
        pods = [(undo.mark(), self._levels(pool, parts[0]))]
        while pods:
            mark, left = pods[-1]
            undo.rollback(mark)
            del levels[len(pods) - 1 :]
            level = next(left, 0)
            if not level or self._tries <= 0:
                pods.pop()
                continue
            self._tries -= 1
            if pool.bind_part_at(parts[len(levels)], level) is None:
                continue
            levels.append(level)
            if len(levels) == len(parts):
                yield tuple(levels)
            else:
                pods.append((undo.mark(), self._levels(pool, parts[len(levels)])))

    def _levels(self, pool: Pool, part: Part) -> Iterator[int]:
        """The levels to try for a pod, in order."""
        leaves = self._leaves
        levels = [level for level in pool.levels if pool.nodes.hierarchy.gpus[level] >= part.mask.bit_count()]
        return iter(sorted(levels, key=lambda level: (-leaves[pool, level, _cell(pool.nodes, part, level)], level)))


def restore(state: State) -> list[Group]:
    """Restore displaced groups in a new state, each that fits where it runs beside those before it; these.

    Cost as :func:`rearrange`, and as many searches as groups.
    """
    rearrange(state)
    restored = []
    for loans in _displaced_by_chain(state):
        fit: dict[Group, Levels] = {}
        for loan in loans:
            fit = Search(state, [*fit, loan], len(fit) + 1).run() or fit
        restored += [loan for loan, levels in fit.items() if state.restore(loan, levels)]
    return restored


def rearrange(state: State) -> None:
    """Have guaranteed groups take other cells of their VCs, where they run, if more displaced ones fit beside them.

    An earlier spec may have left them other cells than they had. For a new state alone, since callers are told of the
    levels of reserved cells with those of all groups. O(groups), and two searches per chain with displaced groups.
    """
    for loans in _displaced_by_chain(state):
        fit = len(Search(state, loans).run())
        if fit < len(loans):
            _rearrange(state, loans, fit)


def _displaced_by_chain(state: State) -> list[list[Group]]:
    """The displaced groups of each chain, higher priorities and then older ones first, not too many for a search."""
    found: dict[int, list[Group]] = {}
    for group in sorted(state.downgraded, key=lambda group: (-group.request.priority, group.sequence)):
        if is_displaced(state, group):
            found.setdefault(group.chain, []).append(group)
    return [found[chain][:MAX_OTHERS] for chain in sorted(found)]


def _rearrange(state: State, loans: Sequence[Group], fit: int) -> None:
    """The same in the chain of some displaced groups, of which so many ``fit`` now."""
    bound = _bound_beside(state, loans)
    mark = state.undo.mark()
    for group, pool in bound:
        pool.release(group)
        pool.unbind(group.spots)
    found = Search(state, [*[group for group, _ in bound], *loans], len(bound)).run()
    if len(found) - len(bound) <= fit:
        state.undo.rollback(mark)
        return
    for group, pool in bound:
        spots, placement = pool.bind_at(group.parts, found[group]), group.placement
        if spots is None or placement is None:
            raise InvariantError(f"{group}: its cells could be bound a moment ago")
        state.undo.assign(group, spots=spots, placement=replace(placement, reserved_levels=found[group]))
        pool.reallocate(group)


def _bound_beside(state: State, loans: Sequence[Group]) -> list[tuple[Group, Pool]]:
    """Guaranteed groups in a chain, and their pools: those first that are nearest to some displaced groups."""
    nodes = state.chains[loans[0].chain]
    pools = [pool for of_tenant in state.pools for pool in of_tenant if pool.nodes is nodes]
    widest = max((level for pool in pools for level in pool.levels), default=1)

    def cells(group: Group) -> set[int]:
        return {_cell(nodes, part, widest) for part in group.parts}

    near = set[int]().union(*map(cells, loans))
    bound = [
        (group, pool)
        for group in state.by_age()
        if group.chain == nodes.number and group.running and (pool := state.pool_of(group)) is not None
    ]
    bound.sort(key=lambda at: near.isdisjoint(cells(at[0])))
    return bound[:MAX_OTHERS]


def pool_for(state: State, group: Group) -> Pool | None:
    """The pool of its VC that can have a group where it runs."""
    for pool in state.pools[group.tenant]:
        if pool.nodes.number == group.chain and pool.pinned == group.request.pinned_cell_id:
            return pool
    return None


def _cell(nodes: Nodes, part: Part, level: int) -> int:
    """The physical cell of a level with a pod's first leaf."""
    first = (part.mask & -part.mask).bit_length() - 1
    return (part.node * nodes.hierarchy.node_size + first) // nodes.hierarchy.gpus[level]
