"""The physical nodes of one chain: the groups on their leaf cells, bad leaf cells, and the idle ones.

At most one group runs on a leaf cell, and at most one has reserved it. The two views of HiveD (OSDI'20,
section 3.3) are two masks per node: the guaranteed view sees every leaf outside ``owned``, the opportunistic one every
leaf outside ``owned`` and ``lent``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from hived.cells import BuddyAllocator, Counts, Found, Hierarchy, HostClass, Need, Shape, Space, leaves_of, packs
from hived.errors import InvariantError

from .decisions import Placement, PodPlacement
from .groups import Group
from .parts import Part
from .states import ALLOCATE, CANCEL, LEAF_EFFECTS, RELEASE, RESERVE, LeafEvent, LeafState
from .undo import Undo

#: how many top cells are searched for a node before any node will do
MAX_TOPS = 8
#: placements of one pod that are remembered
CACHE_SIZE = 50_000


def farthest_from_guaranteed(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """Rank of a node for an opportunistic group: fewest guaranteed leaves, then closest together, then tightest."""
    level = host.idle.level_for(gpus)
    return (host.guaranteed, level, host.idle.free) if level else None


packs(farthest_from_guaranteed)


class Nodes:
    """The nodes of a chain and the groups on them. A change costs O(1) per pod; a release, O(groups there)."""

    def __init__(
        self,
        number: int,
        allocator: BuddyAllocator,
        undo: Undo,
        shapes: Sequence[Shape] = (),
        groups: Sequence[Sequence[int]] | None = None,
        chain: Hierarchy | None = None,
    ) -> None:
        """``shapes``, ``groups``: of a private cluster's nodes, which may differ; see :class:`~hived.cells.Space`.

        ``chain``: the hierarchy with all cell types, where that of the allocator ends at the nodes.
        """
        #: number of the chain in the cluster
        self.number = number
        self.allocator = allocator
        self.hierarchy = hierarchy = allocator.hierarchy
        #: the same with all levels of cells, also those above the nodes of a private cluster
        self.chain = hierarchy if chain is None else chain
        self._note = undo.note
        nodes = hierarchy.nodes
        #: the shape of each node
        self.shapes: Sequence[Shape] = shapes or [hierarchy.shape] * nodes
        #: the name of each node
        self.names: Sequence[str] = hierarchy.spec.node_names
        #: leaves of all nodes
        self.gpus = sum(shape.leaves for shape in self.shapes)
        #: number of nodes of each shape
        self.kinds = Counter(self.shapes)
        #: per node: leaves on which a group runs, and leaves that a preempting group has reserved
        self.used, self.reserved = [0] * nodes, [0] * nodes
        #: per node: leaves in guaranteed use or reserved for it, and in opportunistic use or reserved for that
        self.owned, self.lent = [0] * nodes, [0] * nodes
        #: per node: bad leaves, in use or not
        self.bad = [0] * nodes
        #: nodes with bad leaves
        self.bad_nodes: set[int] = set()
        #: per node with groups: these with their leaves, in order of arrival
        self.held: dict[int, dict[Group, int]] = {}
        #: called with the nodes that have changed, where the spaces are refreshed; None where no VC accepts guests
        self.on_refresh: Callable[[Collection[int]], None] | None = None
        # nodes whose masks have changed since the last refresh of the spaces
        self._dirty: set[int] = set()
        #: nodes whose lent leaves have changed since the last update of the allocator, with the old masks
        self.outdated: dict[int, int] = {}
        levels = range(hierarchy.node_level + 1, hierarchy.top + 1)
        #: per level above the nodes: the number of each node's cell, -1 for none
        if groups is None:
            groups = [[node * hierarchy.node_size // hierarchy.gpus[k] for node in range(nodes)] for k in levels]
        self.groups = groups
        # the spaces for opportunistic and for guaranteed groups, made on first use
        self._idle: Space | None = None
        self._open: Space | None = None
        # leaves in guaranteed use per top cell, where nodes have cells above them; and per node, as counted there
        self._per_top = hierarchy.gpus[hierarchy.top] // hierarchy.node_size
        self._tops = Counts([0] * hierarchy.count[hierarchy.top], hierarchy.gpus[hierarchy.top])
        self._counted = [0] * nodes
        self._devices: dict[int, tuple[int, ...]] = {}
        self._placements: dict[tuple[tuple[Part, ...], tuple[int, ...]], Placement] = {}
        self._watchers: list[set[int]] = []

    # -- allocations --------------------------------------------------------------------------------------------------

    def claim(self, event: LeafEvent, group: Group) -> None:
        """Give ``group`` its leaves: it starts (``ALLOCATE``), or reserves them from its victims (``RESERVE``)."""
        used, all_held = self.used, self.held
        for number, node, mask in group.parts:
            if number != self.number:
                continue
            if event is ALLOCATE and not (used[node] | self.reserved[node]) & mask:
                used[node] |= mask
            else:
                self.apply(event, node, mask)
            held = all_held.get(node)
            if held is None:
                all_held[node] = {group: mask}
            else:
                held[group] = held.get(group, 0) | mask
            if group.pool >= 0:
                self.owned[node] |= mask
            else:
                self._set_lent(node, self.lent[node] | mask)
            self._dirty.add(node)
        self._note((self.unclaim, RELEASE if event is ALLOCATE else CANCEL, group))

    def unclaim(self, event: LeafEvent, group: Group) -> None:
        """Take its leaves from ``group``: it has ended (``RELEASE``), or its reservation ends (``CANCEL``)."""
        for number, node, mask in group.parts:
            if number != self.number:
                continue
            shared = self.used[node] & self.reserved[node] & mask
            if event is RELEASE and not mask & ~self.used[node]:
                self.used[node] ^= mask
            else:
                self.apply(event, node, mask)
            held = self.held[node]
            left = held[group] & ~mask
            if left:
                held[group] = left
            else:
                del held[group]
                if not held:
                    del self.held[node]
            if shared:  # another group runs there, or has reserved them
                self._refresh(node)
                continue
            if group.pool >= 0:
                self.owned[node] &= ~mask
            else:
                self._set_lent(node, self.lent[node] & ~mask)
            self._dirty.add(node)
        self._note((self.claim_again, ALLOCATE if event is RELEASE else RESERVE, group))

    def claim_again(self, event: LeafEvent, group: Group) -> None:
        """The inverse of :meth:`unclaim`, keeping the groups of a node in order of arrival."""
        before = {node: self.reserved[node] for number, node, _ in group.parts if number == self.number}
        if event is ALLOCATE:  # of leaves that may be reserved by now, which the table does not allow
            for number, node, mask in group.parts:
                if number == self.number:
                    self.reserved[node] &= ~mask
        self.claim(event, group)
        for node, reserved in before.items():
            self.reserved[node] |= reserved
            self.held[node] = dict(sorted(self.held[node].items(), key=lambda held: held[0].sequence))

    def refresh_use(self, group: Group) -> None:
        """Refresh the nodes of a running group that was downgraded or restored."""
        for node in {node for number, node, _ in group.parts if number == self.number}:
            self._refresh(node)

    def apply(self, event: LeafEvent, node: int, mask: int) -> None:
        """Apply ``event`` to the leaves ``mask`` of ``node``; :class:`InvariantError` where the table forbids it."""
        used, reserved = self.used[node], self.reserved[node]
        needs_used, needs_reserved, then_used, then_reserved = LEAF_EFFECTS[event]
        if (needs_used is not None and mask & used != (mask if needs_used else 0)) or (
            needs_reserved is not None and mask & reserved != (mask if needs_reserved else 0)
        ):
            raise InvariantError(f"node {node}: {event.value} of leaf cells {mask:#b} in state {used:#b}/{reserved:#b}")
        if then_used is not None:
            self.used[node] = used | mask if then_used else used & ~mask
        if then_reserved is not None:
            self.reserved[node] = reserved | mask if then_reserved else reserved & ~mask

    def _refresh(self, node: int) -> None:
        owned = lent = 0
        held = self.held.get(node)
        if held is not None:
            for group, mask in held.items():
                if group.pool >= 0:
                    owned |= mask
                else:
                    lent |= mask
        self.owned[node] = owned
        self._set_lent(node, lent)
        self._dirty.add(node)

    def _set_lent(self, node: int, lent: int) -> None:
        if node not in self.outdated:
            self.outdated[node] = self.lent[node]
        self.lent[node] = lent

    def update_allocator(self) -> None:
        """Update the allocator's counts of lent leaves. O(nodes that changed)."""
        for node, before in self.outdated.items():
            if before != self.lent[node]:
                self.allocator.set_opportunistic(node, before, self.lent[node])
        self.outdated.clear()

    # -- queries ------------------------------------------------------------------------------------------------------

    def on(self, parts: Iterable[Part]) -> dict[Group, None]:
        """The groups that run on or have reserved some of these leaf cells, in the order of the parts."""
        found: dict[Group, None] = {}
        for _, node, mask in parts:
            for group, held in self.held.get(node, {}).items():
                if held & mask:
                    found[group] = None
        return found

    def common_level(self, parts: Sequence[Part]) -> int:
        """The level of the lowest cell with all these leaves; 0 for none, also where they are of several chains."""
        if any(part.chain != self.number for part in parts):
            return 0
        gpus, size = self.hierarchy.gpus, self.hierarchy.node_size
        leaves = [
            node * size + leaf
            for _, node, mask in parts
            for leaf in ((mask & -mask).bit_length() - 1, mask.bit_length() - 1)
        ]
        for level in range(1, self.hierarchy.top + 1 if leaves else 0):
            if len({leaf // gpus[level] for leaf in leaves}) == 1:
                return level
        return 0

    def leaf_state(self, node: int, leaf: int) -> LeafState:
        """The state of one leaf cell."""
        if self.used[node] >> leaf & 1:
            return LeafState.RESERVING if self.reserved[node] >> leaf & 1 else LeafState.USED
        return LeafState.RESERVED if self.reserved[node] >> leaf & 1 else LeafState.FREE

    def placement(self, parts: tuple[Part, ...], levels: tuple[int, ...]) -> Placement:
        """The placement of leaves of this chain, in cells reserved at ``levels``. O(pods); O(1) for a cached pod."""
        found = self._placements.get((parts, levels))
        if found is None:
            pods = tuple([PodPlacement(self.names[node], self.devices(node, mask)) for _, node, mask in parts])
            found = Placement(self.hierarchy.spec.name, pods, levels)
            if len(parts) == 1:
                if len(self._placements) >= CACHE_SIZE:
                    self._placements.clear()
                self._placements[parts, levels] = found
        return found

    def devices(self, node: int, mask: int) -> tuple[int, ...]:
        """Device indices of some leaf cells of ``node``. O(1) once cached where the node counts from 0."""
        numbered = self.hierarchy.spec.device_indices
        if numbered and node in numbered:
            devices = numbered[node]
            return tuple([devices[leaf] for leaf in leaves_of(mask)])
        found = self._devices.get(mask)
        if found is None:
            found = self._devices[mask] = tuple(leaves_of(mask))
        return found

    # -- idle leaves --------------------------------------------------------------------------------------------------

    @property
    def idle_gpus(self) -> int:
        """Healthy leaves that are neither used nor reserved. O(nodes that changed)."""
        return self.idle_space().total

    def idle_space(self) -> Space:
        """The space of idle leaves, for opportunistic groups. O(nodes that changed)."""
        if self._dirty:
            self._refresh_spaces()
        if self._idle is None:
            self._idle = self._space(within_idle=True)
        return self._idle

    def open_space(self) -> Space:
        """The space of leaves not in guaranteed use, idle ones first, for guaranteed groups under a quota."""
        if self._dirty:
            self._refresh_spaces()
        if self._open is None:
            self._open = self._space(within_idle=False)
        return self._open

    def _space(self, within_idle: bool) -> Space:
        free = [
            shape.full & ~(owned | bad) for shape, owned, bad in zip(self.shapes, self.owned, self.bad, strict=True)
        ]
        idle = [mask & ~lent for mask, lent in zip(free, self.lent, strict=True)]
        return Space(self.shapes, self.groups, self.hierarchy.node_level, free, idle, within_idle)

    def _refresh_spaces(self) -> None:
        for node in self._dirty:
            owned = self.owned[node]
            free = self.shapes[node].full & ~(owned | self.bad[node])
            idle = free & ~self.lent[node]
            if self._idle is not None:
                self._idle.set(node, free, idle)
            if self._open is not None:
                self._open.set(node, free, idle)
            if self._per_top > 1 and owned.bit_count() != self._counted[node]:
                self._tops.add(node // self._per_top, owned.bit_count() - self._counted[node])
                self._counted[node] = owned.bit_count()
        if self.on_refresh is not None:
            self.on_refresh(self._dirty)
        self._dirty.clear()

    def mark_dirty(self, node: int) -> None:
        """Mark a node whose entry in a space is out of date."""
        self._dirty.add(node)

    def find_one(self, gpus: int, allowed: Callable[[int], bool] | None = None) -> Found | None:
        """Idle leaves of one node for an opportunistic pod, as far from guaranteed use as possible; None for none.

        The node with the fewest guaranteed leaves, in the top cell with the fewest. ``allowed``: whether a node may be
        used; where the best one may not, the best allowed one is taken, O(nodes refused).
        """
        space = self.idle_space()
        node = self._far_node(space, gpus)
        if node >= 0 and allowed is not None and not allowed(node):
            node = next((other for other in space.in_order(farthest_from_guaranteed, gpus) if allowed(other)), -1)
        if node < 0:
            return None
        mask, level = space.spot(node, Need(gpus))
        return Found(((node, mask),), level)

    def _far_node(self, space: Space, gpus: int) -> int:
        """A node of the best class, in the top cell with the fewest guaranteed leaves that has one; -1 for none.

        Only the first few top cells are tried, so that the cost does not grow with their number; after these, any node.
        """
        hosts = space.best_hosts(farthest_from_guaranteed, gpus)
        if hosts is None:
            return -1
        if self._per_top > 1:
            for top in islice(self._tops.ascending(0), MAX_TOPS):
                node = hosts.first_from(top * self._per_top)
                if 0 <= node < (top + 1) * self._per_top:
                    return node
        return hosts.first()

    # -- hardware -----------------------------------------------------------------------------------------------------

    def set_bad(self, node: int, mask: int) -> bool:
        """Set the bad leaf cells of ``node`` to ``mask``; whether that is a change."""
        before = self.bad[node]
        if before == mask:
            return False
        self._change_health(node, mask)
        return True

    def _change_health(self, node: int, mask: int) -> None:
        """Set the bad leaf cells of ``node``; bindings follow it, and go back before it."""
        before = self.bad[node]
        self._note((self._change_health, node, before))
        self.bad[node] = mask
        self._dirty.add(node)
        if mask:
            self.bad_nodes.add(node)
        else:
            self.bad_nodes.discard(node)
        for changed in self._watchers:
            changed.add(node)
        self.allocator.set_bad(node, before, mask)

    def add_watcher(self, changed: set[int]) -> None:
        """Add every node whose bad leaves change to ``changed``, the changed hosts of a private or quota pool."""
        self._watchers.append(changed)
