"""The check of the guests of a chain against the groups."""

from __future__ import annotations

from collections.abc import Iterable

from hived.cells.checks import check_space
from hived.cluster.groups import Group
from hived.cluster.guests import MAX_GUESTS, Guests
from hived.cluster.states import GroupState
from hived.errors import ensure


def check_guests(guests_on: Guests, guests: Iterable[Group]) -> None:
    """Re-derive the guests per node, whether owners accept them, and the spaces. O(nodes + groups)."""
    held: dict[int, dict[Group, int]] = {}
    for group in guests:
        ensure(group.state is GroupState.ALLOCATED, f"{group} is in nobody's way")
        for _, node, mask in group.parts:
            of_node = held.setdefault(node, {})
            of_node[group] = of_node.get(group, 0) | mask
    ensure(held == guests_on.held, "guests per node")
    for node, of_node in held.items():
        count = [
            sum(mask >> leaf & 1 for mask in of_node.values()) for leaf in range(guests_on._nodes.shapes[node].leaves)
        ]
        ensure(max(count) <= MAX_GUESTS, f"guests of node {node}")
        for owner, mask in guests_on._nodes.held.get(node, {}).items():
            for guest, of_guest in of_node.items():
                beside = owner.running and mask & of_guest
                ensure(not beside or guests_on.accepts(owner, guest.tenant), f"{owner} accepts {guest}")
    for key in guests_on._spaces:
        tenant = key if key >= 0 else next((t for t, s in enumerate(guests_on._sharing) if s != "own"), -1)
        for number, space in enumerate(guests_on.spaces(tenant) if tenant >= 0 else ()):
            check_space(space)
            for node in range(len(guests_on._nodes.shapes)):
                ensure(space.free[node] == guests_on._healthy_room(node, tenant)[number], f"room on node {node}")
