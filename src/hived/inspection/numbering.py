"""Numbering of a VC's reserved cells: in the order of the spec, across chains, pinned cells last."""

from __future__ import annotations

from typing import NamedTuple

from hived.cells import leaves_of
from hived.cluster import Cluster, Sharing
from hived.cluster.state import State
from hived.errors import RequestError


class Reserved(NamedTuple):
    """Reserved cells of one kind, with contiguous numbers and hosts."""

    number: int  #: of the first cell
    level: int
    hosts: range  #: the hosts of all cells
    per_cell: int  #: hosts per cell

    def first_hosts(self) -> range:
        """The first host of each cell."""
        return self.hosts[:: self.per_cell]

    def number_of(self, host: int) -> int:
        """The number of the cell that ``host`` is in."""
        return self.number + (host - self.hosts.start) // self.per_cell


def numbering(state: State, tenant: int) -> list[list[Reserved]]:
    """The reserved cells of a tenant, by its pools; empty under a quota, which is a number. O(kinds of cells)."""
    pools = state.pools[tenant]
    found: list[list[Reserved]] = [[] for _ in pools]
    if not pools or state.sharing is Sharing.QUOTA:
        return found
    spec = state.spec.virtual_clusters[tenant]
    unpinned = {pool.nodes.hierarchy.spec.name: pool.number for pool in pools if not pool.pinned}
    number = 0
    for pool, level, count in [
        *((unpinned[cells.chain], cells.level, cells.number) for cells in spec.cells),
        *((len(unpinned) + place, pin.level, 1) for place, pin in enumerate(spec.pinned)),
    ]:
        hierarchy, before = pools[pool].virtual.hierarchy, found[pool]
        per_cell = max(1, hierarchy.gpus[level] // hierarchy.node_size)
        first = before[-1].hosts.stop if before else 0
        before.append(Reserved(number, level, range(first, first + count * per_cell), per_cell))
        number += count
    return found


def virtual_leaves(cluster: Cluster, name: str) -> tuple[tuple[str, str], ...]:
    """The virtual placement of a group, pod by pod: addresses of the reserved cell and of the leaf cell in it.

    () for a group that is opportunistic, waits, or has a quota. Raises :class:`RequestError` if there is no such group.
    O(its pods).
    """
    state = cluster.state_now()
    group = state.groups.get(name)
    if group is None or not group.guaranteed:
        if group is None and name not in state.waiting:
            raise RequestError("group", f"{name!r}: no such group")
        return ()
    kinds = numbering(state, group.tenant)[group.pool]
    hierarchy = state.pools[group.tenant][group.pool].virtual.hierarchy
    found = []
    for host, mask in group.spots if kinds else ():
        kind = next(kind for kind in kinds if host in kind.hosts)
        cell = f"{state.tenants[group.tenant]}/{kind.number_of(host)}"
        first = (host - kind.hosts.start) % kind.per_cell * hierarchy.node_size
        levels = range(kind.level - 1, 0, -1)
        for leaf in leaves_of(mask):
            numbers = "".join([f"/{(first + leaf) // hierarchy.gpus[level]}" for level in levels])
            found.append((cell, cell + numbers))
    return tuple(found)
