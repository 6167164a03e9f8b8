"""Where the GPUs are that a job has already: so that its virtual cells are bound to them, and it need not move."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from .binding import Binding


class Staying:
    """The nodes that an opportunistic job runs on, offered one by one to the virtual hosts that it is to stand on.

    Made once per request in O(levels * hosts); a hint costs O(levels + cells above node level that the job is in).
    """

    def __init__(self, binding: Binding, hosts: Iterable[int], own: Sequence[tuple[int, int]]) -> None:
        """``own``: nodes and the job's leaves on them; ``hosts``: the virtual hosts to be bound, in any order."""
        self._binding = binding
        hierarchy = binding.virtual.hierarchy
        #: leaves by node, of the nodes that no host has taken
        self._masks = dict(own)
        #: per level from the nodes up: those nodes by the physical cell they are in
        self._groups: dict[int, dict[int, dict[int, None]]] = {}
        for level in range(hierarchy.node_level, hierarchy.top + 1):
            groups = self._groups[level] = {}
            for node in sorted(self._masks):
                groups.setdefault(node // self._nodes(level), {})[node] = None
        #: how many of the hosts stand under each virtual cell
        self._needed: dict[int, int] = {}
        for host in hosts:
            cell = host
            while cell >= 0:
                self._needed[cell] = self._needed.get(cell, 0) + 1
                cell = binding.virtual.cells[cell].parent

    def _nodes(self, level: int) -> int:
        hierarchy = self._binding.virtual.hierarchy
        return max(1, hierarchy.gpus[level] // hierarchy.node_size)

    def hint(self, host: int) -> tuple[int, int] | None:
        """The node, and the job's leaves on it, that suits ``host`` best; None when all are taken.

        Where cells above the host have to be bound for it, they should hold as many of the job's nodes as its other
        hosts need there, and no more: then those find theirs too.
        """
        if not self._masks:
            return None
        cells = self._binding.virtual.cells
        path = []  # from the host up, what has to be bound for it
        cell = host
        while cell >= 0 and self._binding.bound[cell] < 0:
            path.append(cell)
            cell = cells[cell].parent
        inside: Collection[int] = self._masks
        if cell >= 0 and cell != host:
            inside = self._groups[cells[cell].level].get(self._binding.bound[cell]) or inside
        for cell in reversed(path):
            level, wanted = cells[cell].level, self._needed[cell]
            if level > self._binding.virtual.hierarchy.node_level:
                groups = {g: nodes for g, nodes in self._groups[level].items() if next(iter(nodes)) in inside}
                best = min(groups, key=lambda g: (len(groups[g]) < wanted, abs(len(groups[g]) - wanted), g))
                inside = groups[best]
        node = next(iter(inside))
        return node, self._masks[node]

    def taken(self, node: int) -> None:
        """A host stands on ``node`` now, one of the job's or not."""
        if self._masks.pop(node, None) is not None:
            for level, groups in self._groups.items():
                cell = node // self._nodes(level)
                del groups[cell][node]
                if not groups[cell]:
                    del groups[cell]
