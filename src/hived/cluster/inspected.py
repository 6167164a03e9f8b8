"""A cell as :mod:`.inspecting` shows it, and what its two sides have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from hived.cells import Shape

from .groups import Group
from .requests import OPPORTUNISTIC
from .states import GroupState, LeafState

#: the priority of a cell that nobody has
NOBODY = OPPORTUNISTIC - 1

#: groups with some leaves: priority and mask, the highest first
Claims = tuple[tuple[int, int], ...]


class Facts(NamedTuple):
    """What of a group can change."""

    priority: int
    running: bool
    tenancy: int
    spots: tuple[tuple[int, int], ...]


def facts_of(groups: Iterable[Group]) -> dict[Group, Facts]:
    """A copy of what can change. O(groups)."""
    preempting = GroupState.PREEMPTING  # asking the groups themselves would take twice as long
    return {group: Facts(group.priority, group.state is not preempting, group.tenancy, group.spots) for group in groups}


def claims_of(holders: Mapping[Group, int], facts: Mapping[Group, Facts]) -> Claims:
    """The claims of some groups with their leaves."""
    return tuple(sorted([(facts[group].priority, mask) for group, mask in holders.items()], reverse=True))


class Cell(NamedTuple):
    """A physical or a virtual cell as it is now."""

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
    priority: int  #: highest of those who have or have reserved a leaf: -1 opportunistic, -2 nobody
    #: whose it is; of a physical cell: whose virtual cell stands on it, or whose opportunistic group has this leaf
    vc: str | None
    #: the virtual cell that stands on it, or the physical cell that it stands on, itself without ``other``
    other: Cell | None
    lent: bool = False  #: a leaf cell that an opportunistic group has, shown among its VC's cells


class Place(NamedTuple):
    """A cell inside a node, whichever node."""

    level: int
    position: int  #: its number among the node's cells of that level
    mask: int  #: its leaves in the node
    suffix: str  #: its address after that of the node


@cache
def preorder(shape: Shape) -> tuple[int, ...]:
    """The inner cells of a host, each right after the cell that it is in, from the left."""
    found = []
    left = [0]
    while left:
        cell = left.pop()
        found.append(cell)
        left.extend(reversed(shape.children[cell]))
    return tuple(found)


def state_of(used: int, reserved: int, leaves: int) -> LeafState:
    """The state of a cell of so many leaves, or of a mask of leaves, given those that are used and reserved."""
    if used:
        return LeafState.RESERVING if used == leaves == reserved else LeafState.USED
    return LeafState.RESERVED if reserved == leaves else LeafState.FREE


def highest(claims: Claims, mask: int) -> int:
    """The highest priority of who has some leaf of ``mask``."""
    for priority, held in claims:
        if held & mask:
            return priority
    return NOBODY
