"""The virtual cells of a VC in one chain: its reserved cells, as hosts and the cells above them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hived.cells import Hierarchy, Shape, Space

#: per pod: virtual host and leaves
Spots = tuple[tuple[int, int], ...]


class VirtualCell(NamedTuple):
    """One virtual cell at or above its hosts."""

    level: int
    parent: int  #: number of the virtual cell above; -1 for a preassigned one


class VirtualCells:
    """The reserved cells, as hosts and the cells above them.

    Hosts are numbered in the order of the reservation; a host is a node, or a preassigned cell smaller than a node.
    Virtual cells are numbered too, hosts first: cell ``h`` is host ``h``.
    """

    __slots__ = ("cells", "gpus", "groups", "hierarchy", "hosts", "kinds", "levels", "reserved_levels", "shapes")

    def __init__(self, hierarchy: Hierarchy, reserved: Sequence[tuple[int, int]]) -> None:
        """``reserved``: pairs of (level, number of preassigned cells)."""
        self.hierarchy = hierarchy
        #: the levels of the preassigned cells
        self.levels = tuple(dict.fromkeys(level for level, number in reserved if number))
        node_level = hierarchy.node_level
        hosts: list[VirtualCell] = []
        upper: list[VirtualCell] = []
        total = sum(n * max(1, hierarchy.gpus[k] // hierarchy.node_size) for k, n in reserved)
        groups = [[-1] * total for _ in range(node_level, hierarchy.top)]
        numbers = [0] * (hierarchy.top + 1)
        #: per host: the level of the preassigned cell that it is, or is in
        self.reserved_levels: list[int] = []

        def grow(level: int, parent: int) -> None:
            if level <= node_level:
                cell = parent
                while cell >= 0:  # the host is in one cell of each level above it
                    above = upper[cell - total]
                    groups[above.level - node_level - 1][len(hosts)] = numbers[above.level] - 1
                    cell = above.parent
                hosts.append(VirtualCell(level, parent))
                return
            number = total + len(upper)
            upper.append(VirtualCell(level, parent))
            numbers[level] += 1
            for _ in range(hierarchy.fanout[level]):
                grow(level - 1, number)

        for level, number in reserved:
            for _ in range(number):
                grow(level, -1)
                self.reserved_levels += [level] * (len(hosts) - len(self.reserved_levels))
        #: every virtual cell from the hosts up
        self.cells = (*hosts, *upper)
        #: number of hosts
        self.hosts = total
        #: the shape of each host
        self.shapes: list[Shape] = [hierarchy.shape_at(cell.level) for cell in hosts]
        #: per level above the nodes with virtual cells: number of each host's cell there, -1 for none
        self.groups = [of_host for of_host in groups if any(g >= 0 for g in of_host)]
        #: leaves of all hosts
        self.gpus = sum(shape.leaves for shape in self.shapes)
        #: number of hosts of each shape
        self.kinds = Counter(self.shapes)

    def preassigned(self, level: int) -> list[int]:
        """The preassigned cells of a level, in order. O(cells)."""
        return [number for number, cell in enumerate(self.cells) if cell.parent < 0 and cell.level == level]

    def space(self, free: Sequence[int], idle: Sequence[int] | None = None) -> Space:
        """A space over the hosts with these obtainable leaves. O(hosts)."""
        return Space(self.shapes, self.groups, self.hierarchy.node_level, free, idle)

    def reserved_cell(self, host: int) -> int:
        """The preassigned cell that ``host`` is, or is in. O(levels)."""
        cell = host
        while self.cells[cell].parent >= 0:
            cell = self.cells[cell].parent
        return cell


def by_host(spots: Spots) -> Iterable[tuple[int, int]]:
    """Each host once with the leaves of all its pods, the most leaves first; ties in order of appearance."""
    if len(spots) == 1:
        return spots
    masks: dict[int, int] = {}
    for host, mask in spots:
        masks[host] = masks.get(host, 0) | mask
    return sorted(masks.items(), key=lambda of_host: -of_host[1].bit_count())
