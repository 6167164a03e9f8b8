"""The check of the nodes of a chain against the groups."""

from __future__ import annotations

from collections.abc import Iterable

from hived.cells.checks import check_counts, check_space
from hived.cluster.groups import Group
from hived.cluster.nodes import Nodes
from hived.errors import ensure


def check_nodes(nodes: Nodes, groups: Iterable[Group]) -> None:
    """Re-derive all masks and spaces from the groups and the bad leaves. O(nodes + groups)."""
    held: dict[int, dict[Group, int]] = {}
    used: dict[int, int] = {}
    reserved: dict[int, int] = {}
    for group in groups:
        taken = used if group.running else reserved
        for number, node, mask in group.parts:
            if number == nodes.number:
                ensure(not taken.get(node, 0) & mask, f"a leaf cell of node {node} is {group}'s alone")
                taken[node] = taken.get(node, 0) | mask
                of_node = held.setdefault(node, {})
                of_node[group] = of_node.get(group, 0) | mask
    ensure(held == nodes.held, "groups per node")
    space = nodes.idle_space()
    check_space(space)
    if nodes._open is not None:
        check_space(nodes._open)
        ensure((nodes._open.free, nodes._open.idle) == (space.free, space.idle), "both spaces say the same")
    for node, shape in enumerate(nodes.shapes):
        ensure(nodes.used[node] == used.get(node, 0), f"leaf cells of node {node} that are used")
        ensure(nodes.reserved[node] == reserved.get(node, 0), f"leaf cells of node {node} that are reserved")
        masks = {True: 0, False: 0}
        for group, mask in held.get(node, {}).items():
            masks[group.guaranteed] |= mask
        ensure(nodes.owned[node] == masks[True], f"guaranteed leaf cells of node {node}")
        ensure(nodes.lent[node] == masks[False], f"opportunistic leaf cells of node {node}")
        free = shape.full & ~(masks[True] | nodes.bad[node])
        seen = space.free[node], space.idle[node]
        ensure(seen == (free, free & ~masks[False]), f"what the space says of node {node}")
    ensure(nodes.bad_nodes == {node for node, bad in enumerate(nodes.bad) if bad}, "nodes with bad leaf cells")
    if nodes._per_top > 1:
        counts = [mask.bit_count() for mask in nodes.owned]
        check_counts(nodes._tops, [sum(counts[i : i + nodes._per_top]) for i in range(0, len(counts), nodes._per_top)])
