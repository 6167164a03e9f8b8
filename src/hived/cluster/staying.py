"""Where the GPUs are that a job has already: so that its virtual cells are bound to them, and it need not move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .binding import Binding


class Staying:
    """The nodes that an opportunistic job runs on, offered one by one to the virtual hosts that it is to stand on.

    Made once per request in O(levels * hosts); a hint costs O(levels * the job's nodes).
    """

    __slots__ = ("_binding", "_masks", "_needed")

    def __init__(self, binding: Binding, hosts: Iterable[int], own: Sequence[tuple[int, int]]) -> None:
        """``own``: nodes and the job's leaves on them; ``hosts``: the virtual hosts to be bound, in any order."""
        self._binding = binding
        #: leaves by node, of the nodes that no host has taken
        self._masks = dict(own)
        #: how many of the hosts stand under each virtual cell
        self._needed: Counter[int] = Counter()
        for host in hosts:
            cell = host
            while cell >= 0:
                self._needed[cell] += 1
                cell = binding.virtual.cells[cell].parent

    def hint(self, host: int) -> tuple[int, int] | None:
        """The node, and the job's leaves on it, that suits ``host`` best; None when all are taken.

        Where cells above the host have to be bound for it, they should hold as many of the job's nodes as its other
        hosts need there, and no more: then those find theirs too.
        """
        if not self._masks:
            return None
        cells, bound = self._binding.virtual.cells, self._binding.bound
        path = []  # from the host up, what has to be bound for it
        cell = host
        while cell >= 0 and bound[cell] < 0:
            path.append(cell)
            cell = cells[cell].parent
        inside = [*self._masks]
        if cell >= 0 and cell != host:
            inside = self._by_cell(cells[cell].level, inside).get(bound[cell], inside)
        for cell in reversed(path):
            level, wanted = cells[cell].level, self._needed[cell]
            if level > self._binding.virtual.hierarchy.node_level:
                groups = self._by_cell(level, inside)
                best = min(groups, key=lambda g: (len(groups[g]) < wanted, abs(len(groups[g]) - wanted), g))
                inside = groups[best]
        return inside[0], self._masks[inside[0]]

    def _by_cell(self, level: int, nodes: list[int]) -> dict[int, list[int]]:
        """Nodes, ascending, by the physical cell of a level above them that they are in."""
        hierarchy = self._binding.virtual.hierarchy
        size = hierarchy.gpus[level] // hierarchy.node_size
        groups: dict[int, list[int]] = {}
        for node in sorted(nodes):
            groups.setdefault(node // size, []).append(node)
        return groups

    def taken(self, node: int) -> None:
        """A host stands on ``node`` now, one of the job's or not."""
        self._masks.pop(node, None)
