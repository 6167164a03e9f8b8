"""Guests: opportunistic groups that hold no cells, on leaves without a group or beside their owners (AntMan, OSDI'20).

A *loan* holds idle cells and is preempted; a guest holds nothing: its leaves are idle to all other groups, so guests
never change an answer to any of them. A guest is never a victim. It stays where it is when the owner of its leaves
ends, and when another group gets them whose VC accepts it (``guests`` of a VC: nobody, groups of its own, or of every
VC). It is requeued only where that VC does not. In a private cluster guests stay on the nodes of their own VC.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from hived.cells import Space
from hived.spec.compiled import GuestsOf

from .groups import Group
from .nodes import Nodes
from .parts import Part
from .undo import Undo

#: most guests on a leaf. Each process on a GPU keeps a context of hundreds of MB whatever its limits are, and a caller
#: that gives no order has a space of nodes per number of guests. Ours: the papers pack at most six (Gandiva, Table 1)
MAX_GUESTS = 8
#: leaves in order of preference: those from a position to another
Leaves = Callable[[int, int], list[Part]]


class Guests:
    """The guests on a chain's nodes, and the leaves with room for more."""

    def __init__(self, nodes: Nodes, sharing: Sequence[GuestsOf], undo: Undo) -> None:
        """``sharing``: per tenant, whose guests its groups accept."""
        self._nodes, self._sharing, self._note = nodes, sharing, undo.note
        nodes.on_refresh = self.mark_dirty
        #: per node with guests: these with their leaves
        self.held: dict[int, dict[Group, int]] = {}
        # by tenant with guests of its own, -1 for all others: the spaces, and the nodes that are out of date there
        self._spaces: dict[int, list[Space]] = {}
        self._dirty: dict[int, set[int]] = {}
        # for searches in given leaves: all nodes are empty in between, but for these
        self._given: Space | None = None
        self._set: set[int] = set()

    def add(self, group: Group) -> None:
        """Add a guest to its leaves. O(pods)."""
        for _, node, mask in group.parts:
            held = self.held.setdefault(node, {})
            held[group] = held.get(group, 0) | mask
        self.mark_dirty({node for _, node, _ in group.parts})
        self._note((self.remove, group))

    def remove(self, group: Group) -> None:
        """Remove a guest from its leaves. O(pods)."""
        nodes = {node for _, node, _ in group.parts}
        for node in nodes:
            del self.held[node][group]
            if not self.held[node]:
                del self.held[node]
        self.mark_dirty(nodes)
        self._note((self.add, group))

    def mark_dirty(self, nodes: Collection[int]) -> None:
        """Mark nodes whose entries in the spaces may be out of date."""
        for dirty in self._dirty.values():
            dirty.update(nodes)

    def accepts(self, owner: Group, tenant: int) -> bool:
        """Whether a group accepts guests of a tenant on its leaves."""
        sharing = self._sharing[owner.tenant]
        return sharing == "all" or (sharing == "own" and owner.tenant == tenant)

    def refused(self, owner: Group) -> list[Group]:
        """The guests on the leaves of a group that it does not accept, in order of arrival."""
        found = {
            guest
            for _, node, mask in owner.parts
            for guest, held in self.held.get(node, {}).items()
            if held & mask and not self.accepts(owner, guest.tenant)
        }
        return sorted(found, key=lambda guest: guest.sequence)

    def alone(self, guest: Group) -> bool:
        """Whether no other group has, or has reserved, leaves of a guest, and all are healthy."""
        nodes = self._nodes
        return not any(
            mask & (nodes.used[node] | nodes.reserved[node] | nodes.bad[node]) for _, node, mask in guest.parts
        )

    def admit(self, tenant: int, parts: Sequence[Part]) -> bool:
        """Whether there is room for a guest on all these leaves, bad ones included."""
        nodes = self._nodes
        return all(
            chain == nodes.number
            and not self._more_than(node)[-1] & mask
            and all(self.accepts(owner, tenant) for owner, of_it in nodes.held.get(node, {}).items() if of_it & mask)
            for chain, node, mask in parts
        )

    # -- where guests fit ---------------------------------------------------------------------------------------------

    def spaces(self, tenant: int) -> list[Space]:
        """The leaves for a guest of a tenant: without a group and guests; with no guest, at most one, and so on.

        Each prefers the leaves of the one before. O(nodes that changed * groups there); the first time O(nodes).
        """
        self._nodes.idle_space()  # which marks the changed nodes as dirty
        key = tenant if self._sharing[tenant] == "own" else -1
        spaces = self._spaces.get(key)
        if spaces is None:
            spaces = self._spaces[key] = [self._empty() for _ in range(MAX_GUESTS + 1)]
            self._dirty[key] = set(range(len(self._nodes.shapes)))
        for node in self._dirty[key]:
            better = 0
            for space, room in zip(spaces, self._healthy_room(node, tenant), strict=True):
                space.set(node, room, better)
                better = room
        self._dirty[key].clear()
        return spaces

    def prefixes(self, tenant: int, leaves: Leaves, gpus: int) -> Iterator[Space]:
        """The leaves for a guest of a tenant among the first of those given: ``gpus``, then twice as many, and so on.

        O(leaves); a space is valid until the next.
        """
        space = self._given = self._given or self._empty()
        for node in self._set:
            space.set(node, 0, 0)
        self._set.clear()
        start, end = 0, gpus
        while parts := leaves(start, end):
            found: dict[int, int] = {}
            for chain, node, mask in parts:
                if chain == self._nodes.number:
                    found[node] = found.get(node, 0) | mask
            for node, mask in found.items():
                before = space.free[node]
                space.set(node, before | (mask & self._most_room(node, tenant)), before)
            self._set.update(found)
            if found:
                yield space
            start, end = end, 2 * end

    def leave_out(self, space: Space, nodes: Iterable[int]) -> None:
        """Take nodes out of a space for one search."""
        for node in nodes:
            space.set(node, 0, 0)
            self.mark_dirty((node,))

    def _empty(self) -> Space:
        idle = self._nodes.idle_space()
        return Space(idle.shapes, idle.groups, idle.node_level, [0] * len(idle.shapes))

    def _healthy_room(self, node: int, tenant: int) -> list[int]:
        nodes = self._nodes
        room = [leaves & ~nodes.bad[node] for leaves in self._room(node, tenant)]
        return [room[0] & ~(nodes.owned[node] | nodes.lent[node]), *room]

    def _room(self, node: int, tenant: int) -> list[int]:
        """Leaves that can take one guest more, by the most guests that they have: none, one, and so on."""
        open_leaves = self._open(node, tenant)
        return [open_leaves & ~leaves for leaves in self._more_than(node)]

    def _open(self, node: int, tenant: int) -> int:
        """Leaves without a group, or of an owner or a guest that holds them as a loan, if it accepts the tenant's."""
        nodes = self._nodes
        found = nodes.shapes[node].full & ~nodes.reserved[node]
        for group, mask in nodes.held.get(node, {}).items():
            hosts = group.running and (group.guaranteed or group.request.guest)
            if not hosts or not self.accepts(group, tenant):
                found &= ~mask
        return found

    def _most_room(self, node: int, tenant: int) -> int:
        """Healthy leaves that can take one guest more."""
        full = self._more_than(node)[-1] if len(self.held.get(node, ())) >= MAX_GUESTS else 0
        return self._open(node, tenant) & ~(full | self._nodes.bad[node])

    def _more_than(self, node: int) -> list[int]:
        """Leaves with more guests than none, than one, and so on up to the most less one."""
        more = [0] * MAX_GUESTS
        for mask in self.held.get(node, {}).values():
            for number, already in enumerate(more):
                more[number] |= mask
                mask &= already
        return more
