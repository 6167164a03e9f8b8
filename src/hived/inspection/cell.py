"""The inspected cell."""

from __future__ import annotations

from typing import NamedTuple

from hived.cluster.states import LeafState


class Cell(NamedTuple):
    """A physical or virtual cell at one moment."""

    depth: int  #: cells above it: 0 for a top cell, for a cell that a VC reserved, and for a loan
    chain: str  #: top cell type of its chain
    leaf_type: str  #: device type of its chain
    cell_type: str
    level: int  #: 1-based
    is_node: bool  #: whether this is the level of nodes
    #: physical ``rack/node/socket/GPU``: names of nodes, indices of devices, other cells by number (from 0 in each
    #: node); virtual ``vc/reserved cell/node/...``: by number, counted from 0 in the reserved cell at every level
    address: str
    state: LeafState
    healthy: bool
    priority: int  #: highest of the groups that hold or have reserved a leaf: -1 opportunistic, -2 if there are none
    #: the owner; of a physical cell: the VC whose virtual cell is bound to it, or whose opportunistic group holds it
    vc: str | None
    #: the cell that it is bound to on the other side, itself without ``other``
    other: Cell | None
    lent: bool = False  #: a leaf cell on loan to an opportunistic group, shown among its VC's cells
