"""Compilation of cell types to chains of levels: the device type, the node type, and their nesting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .compiled import LevelSpec
from .document import Document, KeyPath, did_you_mean, shown
from .model import CellType

#: the most devices in one node: far above any machine, and low enough to catch typing errors
MAX_NODE_GPUS = 4096

_TYPES: KeyPath = ("physicalCluster", "cellTypes")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The levels of one chain, without its cells."""

    name: str  #: the top cell type
    levels: tuple[LevelSpec, ...]  #: from the leaf up
    node_level: int  #: 1-based

    @property
    def top_level(self) -> int:
        """The level (1-based) of the top cells."""
        return len(self.levels)

    @property
    def node_gpus(self) -> int:
        """Leaf cells in one node."""
        return self.levels[self.node_level - 1].gpus

    def nodes_in(self, level: int) -> int:
        """Nodes in one cell at ``level``, which is the node level or above."""
        return self.levels[level - 1].gpus // self.node_gpus

    def path_to(self, level: int) -> str:
        """The qualified name of the cells at ``level``: ``RACK.NODE.SOCKET``."""
        return ".".join(part.cell_type for part in reversed(self.levels[level - 1 :]))


class CellTypes:
    """All cell types of a spec. Refuses cycles when made."""

    def __init__(self, types: Mapping[str, CellType], document: Document) -> None:
        self._types = types
        self._document = document
        self._hierarchies: dict[str, Hierarchy] = {}
        #: types that are only ever named as a child: the devices
        self.device_types = {t.child_cell_type for t in types.values()} - types.keys()
        self._refuse_cycles()

    def hierarchy(self, top: str, path: KeyPath) -> Hierarchy:
        """The chain whose top cells have type ``top``, which the spec names at ``path``. O(levels), then O(1)."""
        hierarchy = self._hierarchies.get(top)
        if hierarchy is None:
            hierarchy = self._hierarchies[top] = self._build(top, path)
        return hierarchy

    def _build(self, top: str, path: KeyPath) -> Hierarchy:
        types = self._types
        if top in self.device_types:
            raise self._document.error(
                path, f"`{shown(top)}` is a device type; a physical cell is a node or something above it"
            )
        if top not in types:
            hint = did_you_mean(top, types)
            raise self._document.error(path, f"unknown cell type `{shown(top)}`{hint}; define it in cellTypes")
        names = [top]
        while names[-1] in types:
            names.append(types[names[-1]].child_cell_type)
        levels = [LevelSpec(names[-1], 1, 1)]
        for name in reversed(names[:-1]):
            fanout = types[name].child_cell_number
            levels.append(LevelSpec(name, fanout, fanout * levels[-1].gpus))
        node_level = self._node_level(top, levels, path)
        gpus = levels[node_level - 1].gpus
        if gpus > MAX_NODE_GPUS:
            node = levels[node_level - 1].cell_type
            raise self._document.error(
                (*_TYPES, node), f"a node of {gpus:,} devices; the most is {MAX_NODE_GPUS:,}: check childCellNumber"
            )
        return Hierarchy(top, tuple(levels), node_level)

    def _node_level(self, top: str, levels: list[LevelSpec], path: KeyPath) -> int:
        found = [n for n, level in enumerate(levels, 1) if n > 1 and self._types[level.cell_type].is_node_level]
        words = " > ".join(shown(level.cell_type) for level in reversed(levels))
        if len(found) > 1:
            low, high = (levels[n - 1].cell_type for n in (found[0], found[-1]))
            raise self._document.error(
                (*_TYPES, low, "isNodeLevel"),
                f"two node levels in one chain ({words}): `{shown(low)}` here and `{shown(high)}` at "
                f"{self._document.place((*_TYPES, high, 'isNodeLevel'))}; keep the one that is a machine",
            )
        if found:
            return found[0]
        node = self._node_above(top)
        if node is not None:
            raise self._document.error(
                path, f"`{shown(top)}` is below node level: a physical cell is a `{shown(node)}` or above it"
            )
        leaf = levels[0].cell_type
        hint = did_you_mean(leaf, self._types)
        if hint:
            hint = f"; `{shown(leaf)}` is not in cellTypes, so it is taken for a device{hint}"
        raise self._document.error(
            path, f"no node level in the chain {words}: set isNodeLevel: true on the type that is a machine{hint}"
        )

    def _node_above(self, name: str) -> str | None:
        """A node type that has cells of type ``name`` inside it."""
        for node, cell_type in self._types.items():
            if not cell_type.is_node_level:
                continue
            inside = cell_type.child_cell_type
            while inside in self._types and inside != name:
                inside = self._types[inside].child_cell_type
            if inside == name:
                return node
        return None

    def _refuse_cycles(self) -> None:
        """Every type has one child, so a path of children ends at a device or is a cycle. O(types)."""
        safe: set[str] = set()
        for start in self._types:
            walked: dict[str, None] = {}
            name = start
            while name in self._types and name not in safe:
                if name in walked:
                    cycle = list(walked)[list(walked).index(name) :]
                    words = " > ".join(map(shown, [*cycle, name]))
                    raise self._document.error(
                        (*_TYPES, cycle[0], "childCellType"),
                        f"cell types contain each other: {words}; a chain must end at a device type",
                    )
                walked[name] = None
                name = self._types[name].child_cell_type
            safe.update(walked)
