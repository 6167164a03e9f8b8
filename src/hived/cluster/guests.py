"""Guests: opportunistic groups that share leaves with their owners, without cells of their own (AntMan, OSDI'20, 3.3).

A VC sets how many guests its guaranteed groups accept on a leaf. A guest is no loan, and is in no index from which
other answers are computed, so guests never change an answer to any other group. A guest keeps its leaves while each
of them has an owner, and is requeued when one loses its owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hived.cells import Space
from hived.errors import ensure

from .groups import Group
from .parts import Part
from .states import GroupState
from .undo import Undo

if TYPE_CHECKING:
    from .nodes import Nodes


class Guests:
    """The guests on a chain's nodes, and the leaves with room for more."""

    def __init__(self, nodes: Nodes, limits: Sequence[int], undo: Undo) -> None:
        """``limits``: per tenant, how many guests its groups accept on a leaf."""
        self._nodes, self._limits, self._note = nodes, limits, undo.note
        #: per node with guests: these with their leaves
        self.held: dict[int, dict[Group, int]] = {}
        #: nodes whose entries in the spaces may be out of date
        self.dirty: set[int] = set()
        self._spaces: list[Space] = []

    def add(self, group: Group) -> None:
        """Add a guest to its leaves. O(pods)."""
        for _, node, mask in group.parts:
            held = self.held.setdefault(node, {})
            held[group] = held.get(group, 0) | mask
            self.dirty.add(node)
        self._note((self.remove, group))

    def remove(self, group: Group) -> None:
        """Remove a guest from its leaves. O(pods)."""
        for node in {node for _, node, _ in group.parts}:
            del self.held[node][group]
            if not self.held[node]:
                del self.held[node]
            self.dirty.add(node)
        self._note((self.add, group))

    def on(self, parts: Iterable[Part]) -> list[Group]:
        """The guests on some of these leaves, in order of arrival."""
        found = {g for _, node, mask in parts for g, held in self.held.get(node, {}).items() if held & mask}
        return sorted(found, key=lambda group: group.sequence)

    def admit(self, parts: Sequence[Part]) -> bool:
        """Whether there is room for a guest on all these leaves, bad ones included."""
        here = all(part.chain == self._nodes.number for part in parts)
        return here and not any(mask & ~self._room(node)[-1] for _, node, mask in parts)

    def spaces(self) -> list[Space]:
        """The leaves with room, as one space per number of guests: none, at most one, and so on up to the limit.

        Each prefers the leaves with fewer guests. O(nodes that changed * groups there); the first time O(nodes).
        """
        nodes = self._nodes
        idle = nodes.idle_space()  # which marks the changed nodes as dirty
        if not self._spaces:
            none = [0] * len(nodes.shapes)
            self._spaces = [Space(idle.shapes, idle.groups, idle.node_level, none) for _ in range(max(self._limits))]
            self.dirty.update(nodes.held)
        for node in self.dirty:
            fewer = -1
            for space, room in zip(self._spaces, self._room(node), strict=True):
                room &= ~nodes.bad[node]
                space.set(node, room, room & fewer)
                fewer = room
        self.dirty.clear()
        return self._spaces

    def _room(self, node: int) -> list[int]:
        """Leaves that can take one guest more, by the most guests that they have: none, one, and so on."""
        more, room = self._more_than(node), 0
        for group, mask in self._nodes.held.get(node, {}).items():
            limit = self._limits[group.tenant]
            if group.pool is not None and group.running and limit:
                room |= mask & ~more[limit - 1]
        room &= ~self._nodes.reserved[node]
        return [room & ~leaves for leaves in more[:-1]]

    def _more_than(self, node: int) -> list[int]:
        """Leaves with more guests than none, than one, and so on up to the limit."""
        more = [0] * (max(self._limits) + 1)
        for mask in self.held.get(node, {}).values():
            for number, already in enumerate(more):
                more[number] |= mask
                mask &= already
        return more

    def validate(self, guests: Iterable[Group]) -> None:
        """Re-derive the guests per node, their owners and the spaces from the groups. O(nodes + groups)."""
        held: dict[int, dict[Group, int]] = {}
        for group in guests:
            ensure(group.state is GroupState.ALLOCATED, f"{group} is in nobody's way")
            for _, node, mask in group.parts:
                of_node = held.setdefault(node, {})
                of_node[group] = of_node.get(group, 0) | mask
        ensure(held == self.held, "guests per node")
        for node, of_node in held.items():
            owners = [(g, m) for g, m in self._nodes.held[node].items() if g.guaranteed and g.running]
            owned = sum(mask for _, mask in owners)
            ensure(not any(mask & ~owned for mask in of_node.values()), f"guests of node {node} are beside owners")
            for owner, mask in owners:
                ensure(not mask & self._more_than(node)[self._limits[owner.tenant]], f"guests beside {owner}")
        for number, space in enumerate(self.spaces()):
            space.validate()
            for node, bad in enumerate(self._nodes.bad):
                ensure(space.free[node] == self._room(node)[number] & ~bad, f"room for guests on node {node}")
