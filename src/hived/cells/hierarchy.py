"""The cell hierarchy of a chain: sizes, fan-outs and counts per level, and the shape of a node."""

from __future__ import annotations

from hived.spec.compiled import ChainSpec

from .shape import Shape, shape_of


class Hierarchy:
    """The regular tree of one chain (HiveD, OSDI'20, section 3.2).

    Lists are indexed by level, from 1 (leaf) to ``top``; index 0 is unused. Above the top level is one *root*, whose
    children are the top cells, so that the top level needs no special case.
    """

    def __init__(self, spec: ChainSpec) -> None:
        self.spec = spec
        #: the highest level
        self.top = len(spec.levels)
        #: the cell type of the spec
        self.names = ["", *(level.cell_type for level in spec.levels)]
        #: leaves per cell
        self.gpus = [0, *(level.gpus for level in spec.levels)]
        #: cells per level; the root counts as level ``top + 1``
        self.count = [0, *(spec.cells_at(k) for k in range(1, self.top + 1)), 1]
        #: children per cell; the root's are the top cells
        self.fanout = [0, *(level.fanout for level in spec.levels), spec.top_cells]
        #: the level whose cells are nodes
        self.node_level = spec.node_level
        #: leaves per node
        self.node_size = spec.gpus_per_node
        #: nodes in the chain
        self.nodes = self.count[self.node_level]
        #: the cell hierarchy inside a node
        self.shape: Shape = self.shape_at(self.node_level)

    def shape_at(self, level: int) -> Shape:
        """The shape of a cell at or below node level."""
        return shape_of(tuple(self.fanout[2 : level + 1]))
