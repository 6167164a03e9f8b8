"""A tenant's cells as a cluster of their own.

This is what a private cluster is, and what a VC looks like from inside: the same class, the same decisions. Nothing in
it knows of other tenants; that is what makes a VC safe in outcome and not in count alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hived.cells import Hierarchy, Need, Rank, Shape, Space, find
from hived.errors import ensure
from hived.spec.compiled import PinnedCellSpec, VirtualCellsSpec

from .allocation import Spots, nodes_needed


class VirtualCell(NamedTuple):
    """One virtual cell at or above its hosts."""

    level: int
    parent: int  #: number of the virtual cell above; -1 for a preassigned one


class VirtualPool:
    """The cells that one VC reserved in one chain, as hosts and the cells above them.

    Hosts are numbered in the order of the reservation; a host is a node, or a preassigned cell smaller than a node.
    Virtual cells are numbered too, hosts first: cell ``h`` is host ``h``.
    """

    __slots__ = (
        "_groups",
        "_is_node",
        "bad",
        "cells",
        "free",
        "gpus",
        "hierarchy",
        "hosts",
        "shapes",
        "space",
    )

    def __init__(self, hierarchy: Hierarchy, reserved: Sequence[tuple[int, int]]) -> None:
        """``reserved``: pairs of (level, number of preassigned cells)."""
        self.hierarchy = hierarchy
        node_level = hierarchy.node_level
        host_cells: list[VirtualCell] = []
        upper: list[VirtualCell] = []
        total = sum(n * max(1, hierarchy.gpus[k] // hierarchy.node_size) for k, n in reserved)
        groups = [[-1] * total for _ in range(node_level, hierarchy.top)]
        numbers = [0] * (hierarchy.top + 1)

        def grow(level: int, parent: int) -> None:
            if level <= node_level:
                cell = parent
                while cell >= 0:  # the host belongs to one group at each level above it
                    above = upper[cell - total]
                    groups[above.level - node_level - 1][len(host_cells)] = numbers[above.level] - 1
                    cell = above.parent
                host_cells.append(VirtualCell(level, parent))
                return
            number = total + len(upper)
            upper.append(VirtualCell(level, parent))
            numbers[level] += 1
            for _ in range(hierarchy.fanout[level]):
                grow(level - 1, number)

        for level, number in reserved:
            for _ in range(number):
                grow(level, -1)
        #: every virtual cell from the hosts up
        self.cells = (*host_cells, *upper)
        #: number of hosts
        self.hosts = total
        #: the inside of each host
        self.shapes: list[Shape] = [hierarchy.shape_at(cell.level) for cell in host_cells]
        #: leaves in the pool
        self.gpus = sum(shape.leaves for shape in self.shapes)
        #: free leaves of each host
        self.free = [shape.full for shape in self.shapes]
        # a cell below node level counts as a node where it has all of the node's GPUs
        self._is_node = [shape.leaves == hierarchy.node_size for shape in self.shapes]
        # number of each host's cell per level above it
        self._groups = [of_host for of_host in groups if any(g >= 0 for g in of_host)]
        #: bad leaves of each host, as far as they are known: those of hosts that are bound
        self.bad = [0] * total
        #: healthy free leaves, and what fits into them
        self.space = self.new_space(list(self.free))

    def new_space(self, free: list[int], idle: list[int] | None = None) -> Space:
        """A space over the hosts in which these leaves can be had. O(hosts)."""
        return Space(self.shapes, self._groups, self.hierarchy.node_level, free, idle)

    def reserved_cell(self, host: int) -> int:
        """The preassigned cell that ``host`` is, or is in. O(levels)."""
        cell = host
        while self.cells[cell].parent >= 0:
            cell = self.cells[cell].parent
        return cell

    def find(self, gpus: int, rank: Rank) -> tuple[tuple[int, int], ...] | None:
        """Leaves for a job of ``gpus``, ``None`` when it does not fit now."""
        size = self.hierarchy.node_size
        if gpus <= size:
            host = self.space.index.by(rank).best(gpus)
            if host < 0:
                return None
            return ((host, self.shapes[host].closest(self.free[host], gpus)),)
        found = find(self.space, (Need(size),) * nodes_needed(gpus, size), rank)
        return None if found is None else found.pods

    def take(self, hosts: tuple[tuple[int, int], ...]) -> None:
        """These leaves are in use from now on."""
        for host, mask in hosts:
            free = self.free[host] = self.free[host] & ~mask
            self.space.set(host, free)

    def give(self, hosts: tuple[tuple[int, int], ...]) -> None:
        """These leaves are free again."""
        for host, mask in hosts:
            free = self.free[host] = self.free[host] | mask
            self.space.set(host, free)

    def can_ever_fit(self, gpus: int) -> bool:
        """Whether ``gpus`` would fit if the pool were empty. O(hosts) for small jobs, once per size."""
        size = self.hierarchy.node_size
        if gpus <= size:
            return any(shape.leaves >= gpus for shape in set(self.shapes))
        return sum(self._is_node) >= nodes_needed(gpus, size)

    def validate(self) -> None:
        """Indexes re-derived from the free masks. O(hosts)."""
        self.space.validate()
        for host, (free, bad) in enumerate(zip(self.free, self.bad, strict=True)):
            ensure(self.space.free[host] == free & ~bad, f"healthy free leaves of virtual host {host}")


class VirtualCluster:
    """All that one tenant reserved: a pool per chain, tried in the order of the spec, and one per pinned cell.

    Pinned pools serve only requests that name the pinned cell; :meth:`closest` never looks at them.
    """

    __slots__ = ("_ever", "pinned", "pools", "tenant")

    def __init__(
        self,
        tenant: str,
        cells: Sequence[VirtualCellsSpec],
        pinned: Sequence[PinnedCellSpec],
        hierarchies: Sequence[Hierarchy],
    ) -> None:
        #: whose it is
        self.tenant = tenant
        by_chain: dict[str, list[tuple[int, int]]] = {}
        for cell in cells:
            by_chain.setdefault(cell.chain, []).append((cell.level, cell.number))
        #: number of the chain and its pool, in the order of the chains
        self.pools: tuple[tuple[int, VirtualPool], ...] = tuple(
            (number, VirtualPool(hierarchy, by_chain[hierarchy.spec.name]))
            for number, hierarchy in enumerate(hierarchies)
            if hierarchy.spec.name in by_chain
        )
        chains = {hierarchy.spec.name: number for number, hierarchy in enumerate(hierarchies)}
        #: the spec of each pinned cell, its chain's number and its pool
        self.pinned: tuple[tuple[PinnedCellSpec, int, VirtualPool], ...] = tuple(
            (pin, chains[pin.chain], VirtualPool(hierarchies[chains[pin.chain]], [(pin.level, 1)])) for pin in pinned
        )
        self._ever: dict[int, bool] = {}

    @property
    def gpus(self) -> int:
        """GPUs that requests without a pinned cell can use."""
        return sum(pool.gpus for _, pool in self.pools)

    def can_ever_fit(self, gpus: int) -> bool:
        """Whether a job of ``gpus`` would fit if the tenant ran nothing else. O(1) once asked."""
        answer = self._ever.get(gpus)
        if answer is None:
            answer = self._ever[gpus] = any(pool.can_ever_fit(gpus) for _, pool in self.pools)
        return answer

    def closest(self, gpus: int, rank: Rank) -> Spots | None:
        """See :class:`~hived.cluster.allocation.ClusterView`. O(classes + levels + nodes taken)."""
        for number, (_, pool) in enumerate(self.pools):
            hosts = pool.find(gpus, rank)
            if hosts is not None:
                return Spots(number, hosts)
        return None

    def validate(self) -> None:
        """Re-derive every index."""
        for _, pool in self.pools:
            pool.validate()
