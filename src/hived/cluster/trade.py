"""A trade between VCs, in place: some have fewer cells from now on, others as many more of the same levels.

All VCs together reserve as many cells of each level as before, so no term of equations 1 and 2 changes. Only the pools
of the VCs that trade are laid out anew, in the order of the spec as in a new state: cells in use stay bound where they
are, under other numbers. Nodes, allocators, and the groups of other VCs are as they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hived.spec.compiled import ClusterSpec

from .doomed import undoom
from .groups import Group
from .pool import Pool
from .state import State
from .states import GroupState
from .virtual import VirtualCells


@dataclass(frozen=True, slots=True)
class TradeEffect:
    """The effect of a trade on VCs and groups: names, each in order."""

    vcs: tuple[str, ...]  #: have other cells
    downgraded: tuple[str, ...]  #: were guaranteed, run on as opportunistic


class _Change(NamedTuple):
    """The cells of a VC in one chain become others."""

    tenant: int
    chain: int
    pool: Pool | None  #: None: it has none there so far
    reserved: Sequence[tuple[int, int]]  #: level and number of the cells, in the order of the spec
    losers: Sequence[Group]  #: groups that these do not suffice for


def planned(state: State, spec: ClusterSpec) -> list[_Change] | None:
    """The changes of a trade, or None where it takes a reconfiguration. Nothing changes. O(VCs + groups of those).

    It does where more than numbers of cells is new, where all VCs together have other numbers, under a sharing scheme
    or binding without late bindings, and where it is not for the order of arrival alone to say who loses its cells.
    """
    old = state.spec
    if not state.bound or spec.chains != old.chains or len(spec.virtual_clusters) != len(old.virtual_clusters):
        return None
    changes: list[_Change] = []
    numbers = {chain.name: number for number, chain in enumerate(spec.chains)}
    more = Counter({(numbers[of.chain], of.level): of.number for of in spec.withheld})
    more.subtract({(numbers[of.chain], of.level): of.number for of in old.withheld})
    for tenant, (before, after) in enumerate(zip(old.virtual_clusters, spec.virtual_clusters, strict=True)):
        if before == after:
            continue
        if replace(before, cells=after.cells) != after:
            return None
        pools = {pool.nodes.number: pool for pool in state.pools[tenant] if pool.pinned is None}
        for chain, of_chain in enumerate(spec.chains):
            had, has = [
                [(cells.level, cells.number) for cells in vc.cells if cells.chain == of_chain.name]
                for vc in (before, after)
            ]
            if had == has:
                continue
            counts: Counter[int] = Counter()
            for level, number in has:
                counts[level] += number
                more[chain, level] += number
            for level, number in had:
                more[chain, level] -= number
            pool = pools.get(chain)
            losers = [] if pool is None else _losers(pool, counts)
            if losers is None:
                return None
            changes.append(_Change(tenant, chain, pool, has, losers))
    return None if any(more.values()) else changes


def _losers(pool: Pool, most: Mapping[int, int]) -> list[Group] | None:
    """The groups of a pool for which ``most`` cells per level do not suffice; None: a reconfiguration has to say.

    As there, the higher priority goes before the lower, and the older group before the younger.
    """
    virtual = pool.virtual
    in_use = Counter(virtual.cells[cell].level for cell in {virtual.reserved_cell(host) for host in pool.held})
    if all(number <= most.get(level, 0) for level, number in in_use.items()):
        return []
    groups = [group for equals in pool.at.values() for group in equals]
    levels = {*virtual.levels, *(level for level, number in most.items() if number)}
    if len(levels) > 1 or any(group.state is not GroupState.ALLOCATED for group in groups):
        return None
    kept: set[int] = set()
    losers = []
    for group in sorted(groups, key=_in_order):
        cells = {virtual.reserved_cell(host) for host, _ in group.spots}
        if len(kept | cells) > sum(most.values()):
            losers.append(group)
        else:
            kept |= cells
    return losers


def trade(state: State, spec: ClusterSpec) -> TradeEffect | None:
    """Carry out a trade; None, and nothing changed, where it takes a reconfiguration.

    O(VCs), and for those that trade O(their cells + groups). A group that was downgraded before has its turn in line.
    """
    changes = planned(state, spec)
    if changes is None:
        return None
    losers = [group for change in changes for group in change.losers]
    for group in losers:
        state.downgrade(group)
    for chain in {change.chain for change in changes}:
        undoom(state.chain_bindings[chain])
    for change in changes:
        _lay_out(state, change)
    tenants = sorted({change.tenant for change in changes})
    state.resized(spec, tenants)
    vcs, downgraded = [state.tenants[tenant] for tenant in tenants], [group.name for group in losers]
    return TradeEffect(tuple(sorted(vcs)), tuple(sorted(downgraded)))


def _lay_out(state: State, change: _Change) -> None:
    """Give a VC its cells in one chain. O(its cells and groups there)."""
    tenant, chain, pool, reserved, _ = change
    of_chain, pools = state.chain_bindings[chain], state.pools[tenant]
    virtual = VirtualCells(of_chain.nodes.hierarchy, reserved)
    if pool is None:
        pools.append(Pool(tenant, len(pools), virtual, of_chain, state.undo))
    else:
        pool.lay_out(virtual)
        if not reserved:
            pools.remove(pool)
    # those of the chains in their order, then the pinned ones in theirs, as in a new state
    pools.sort(key=lambda of: (of.pinned is not None, of.nodes.number if of.pinned is None else of.number))
    for number, of_tenant in enumerate(pools):
        of_tenant.number = number
        for equals in of_tenant.at.values():
            for group in equals:
                group.pool = number


def _in_order(group: Group) -> tuple[int, int]:
    return -group.request.priority, group.sequence
