"""The real nodes of one chain: which groups have which leaf cells, which are bad, and what that leaves idle.

A leaf cell has at most one group that runs on it and at most one that has reserved it. The two views of HiveD (OSDI'20,
section 3.3) are two masks per node: the guaranteed view sees every leaf outside ``owned``, the opportunistic one every
leaf outside ``owned`` and ``lent``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from hived.cells import BuddyAllocator, Counts, Found, Hierarchy, HostClass, Need, Shape, Space, leaves_of
from hived.errors import InvariantError, ensure

from .binding import Binding, Owners
from .decisions import Placement, PodPlacement
from .groups import Group
from .guests import Guests
from .parts import Part
from .states import ALLOCATE, CANCEL, LEAF_EFFECTS, RELEASE, RESERVE, LeafEvent, LeafState
from .undo import Undo

#: how many top cells are searched for a node before any node will do
TOPS_TRIED = 8
#: placements of one pod that are remembered
REMEMBERED = 50_000


def farthest_from_guaranteed(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """Rank of a node for an opportunistic group: fewest guaranteed leaves, then closest together, then tightest."""
    level = host.idle.level_for(gpus)
    return (host.guaranteed, level, host.idle.free) if level else None


class Nodes:
    """A chain's nodes under groups. A change costs O(1) per pod, and the groups on that node where one leaves."""

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

        ``chain``: what the cells there are called, where the allocator knows of nodes alone.
        """
        #: number of the chain in the cluster
        self.number = number
        self.allocator = allocator
        self.hierarchy = hierarchy = allocator.hierarchy
        #: the same with all levels of cells, those above the nodes of a private cluster too
        self.chain = hierarchy if chain is None else chain
        self._note = undo.note
        nodes = hierarchy.nodes
        #: the inside of each node
        self.shapes: Sequence[Shape] = shapes or [hierarchy.shape] * nodes
        #: the name of each node
        self.names: Sequence[str] = hierarchy.spec.node_names
        #: leaves of all nodes
        self.gpus = sum(shape.leaves for shape in self.shapes)
        #: how many nodes of each inside there are
        self.kinds = Counter(self.shapes)
        #: per node: leaves that somebody runs on, and leaves that a preempting group has reserved
        self.used, self.reserved = [0] * nodes, [0] * nodes
        #: per node: leaves in guaranteed use or reserved for it, and in opportunistic use or reserved for that
        self.owned, self.lent = [0] * nodes, [0] * nodes
        #: per node: bad leaves, in use or not
        self.bad = [0] * nodes
        #: nodes with bad leaves
        self.bad_nodes: set[int] = set()
        #: per node that has any: the groups there with their leaves, in the order in which they came
        self.held: dict[int, dict[Group, int]] = {}
        #: who runs beside owners; None where no VC takes guests in
        self.guests: Guests | None = None
        #: the reserved cells that are bound
        self.owners: Owners = {}
        #: reserved cells bound to bad hardware since nothing else is left for them: bindings and virtual cell
        self.doomed: list[tuple[Binding, int]] = []
        #: the allocator's count of changes when it was last seen which cells are doomed
        self.doomed_at = -1
        # nodes whose masks have changed since the spaces were last looked at
        self._dirty: set[int] = set()
        #: nodes whose lent leaves have changed since the allocator was told, with those they had then
        self.outdated: dict[int, int] = {}
        levels = range(hierarchy.node_level + 1, hierarchy.top + 1)
        #: per level above the nodes: the number of each node's cell, -1 for none
        if groups is None:
            groups = [[node * hierarchy.node_size // hierarchy.gpus[k] for node in range(nodes)] for k in levels]
        self.groups = groups
        # what opportunistic groups may have, and what guaranteed ones may: made when somebody asks
        self._idle: Space | None = None
        self._open: Space | None = None
        # top cells by their leaves in guaranteed use, where nodes have cells above them; and what each node adds
        self._per_top = hierarchy.gpus[hierarchy.top] // hierarchy.node_size
        self._tops = Counts([0] * hierarchy.count[hierarchy.top], hierarchy.gpus[hierarchy.top])
        self._counted = [0] * nodes
        self._devices: dict[int, tuple[int, ...]] = {}
        self._placements: dict[tuple[tuple[Part, ...], tuple[int, ...]], Placement] = {}
        self._watchers: list[set[int]] = []

    # -- who has what -------------------------------------------------------------------------------------------------

    def claim(self, event: LeafEvent, group: Group) -> None:
        """``group`` starts on its leaves (``ALLOCATE``), or reserves them while others may still run there."""
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
            if group.pool is not None:
                self.owned[node] |= mask
            else:
                self._set_lent(node, self.lent[node] | mask)
            self._dirty.add(node)
        self._note((self.unclaim, RELEASE if event is ALLOCATE else CANCEL, group))

    def unclaim(self, event: LeafEvent, group: Group) -> None:
        """``group`` has ended (``RELEASE``), or gives up what it has reserved (``CANCEL``)."""
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
            if shared:  # with who runs there, or has reserved them
                self._refresh(node)
                continue
            if group.pool is not None:
                self.owned[node] &= ~mask
            else:
                self._set_lent(node, self.lent[node] & ~mask)
            self._dirty.add(node)
        self._note((self._claim_again, ALLOCATE if event is RELEASE else RESERVE, group))

    def _claim_again(self, event: LeafEvent, group: Group) -> None:
        """Undo :meth:`unclaim`: the groups of a node stand in the order in which they came."""
        before = {node: self.reserved[node] for number, node, _ in group.parts if number == self.number}
        if event is ALLOCATE:  # beside who has reserved them; as an event that cannot be
            for number, node, mask in group.parts:
                if number == self.number:
                    self.reserved[node] &= ~mask
        self.claim(event, group)
        for node, reserved in before.items():
            self.reserved[node] |= reserved
            self.held[node] = dict(sorted(self.held[node].items(), key=lambda held: held[0].sequence))

    def changed_kind(self, group: Group) -> None:
        """``group`` became opportunistic, or guaranteed, where it runs."""
        for node in {node for number, node, _ in group.parts if number == self.number}:
            self._refresh(node)

    def apply(self, event: LeafEvent, node: int, mask: int) -> None:
        """``event`` happens to the leaves ``mask`` of ``node``; :class:`InvariantError` where the table forbids it."""
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
                if group.pool is not None:
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
        """Tell the allocator which leaves are lent by now. O(nodes that changed)."""
        for node, before in self.outdated.items():
            if before != self.lent[node]:
                self.allocator.set_opportunistic(node, before, self.lent[node])
        self.outdated.clear()

    # -- looking ------------------------------------------------------------------------------------------------------

    def on(self, parts: Iterable[Part]) -> dict[Group, None]:
        """The groups with some of these leaf cells, running there or reserving, in the order of the parts."""
        found: dict[Group, None] = {}
        for _, node, mask in parts:
            for group, held in self.held.get(node, {}).items():
                if held & mask:
                    found[group] = None
        return found

    def common_level(self, parts: Sequence[Part]) -> int:
        """The level of the lowest cell with all these leaves, 0 for none, as where they are of several chains."""
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
        """Leaves of this chain by name, in cells reserved at ``levels``. O(pods), O(1) for one pod once seen."""
        found = self._placements.get((parts, levels))
        if found is None:
            pods = tuple([PodPlacement(self.names[node], self.devices(node, mask)) for _, node, mask in parts])
            found = Placement(self.hierarchy.spec.name, pods, levels)
            if len(parts) == 1:
                if len(self._placements) >= REMEMBERED:
                    self._placements.clear()
                self._placements[parts, levels] = found
        return found

    def devices(self, node: int, mask: int) -> tuple[int, ...]:
        """Device indices of some leaf cells of ``node``. O(1) once seen where the node counts from 0."""
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
        """Healthy leaves that nobody has or has reserved. O(nodes that changed)."""
        return self.idle_space().total

    def idle_space(self) -> Space:
        """The idle leaves, as a space to find some in for an opportunistic group. O(nodes that changed)."""
        if self._dirty:
            self._settle()
        if self._idle is None:
            self._idle = self._space(within_idle=True)
        return self._idle

    def open_space(self) -> Space:
        """The leaves not in guaranteed use, idle ones first, for a guaranteed group that is bound to no cells."""
        if self._dirty:
            self._settle()
        if self._open is None:
            self._open = self._space(within_idle=False)
        return self._open

    def _space(self, within_idle: bool) -> Space:
        free = [
            shape.full & ~(owned | bad) for shape, owned, bad in zip(self.shapes, self.owned, self.bad, strict=True)
        ]
        idle = [mask & ~lent for mask, lent in zip(free, self.lent, strict=True)]
        return Space(self.shapes, self.groups, self.hierarchy.node_level, free, idle, within_idle)

    def _settle(self) -> None:
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
        if self.guests is not None:
            self.guests.dirty |= self._dirty
        self._dirty.clear()

    def mark_dirty(self, node: int) -> None:
        """Somebody has changed what the space says of ``node``: make it right again."""
        self._dirty.add(node)

    def find_one(self, gpus: int, allowed: Callable[[int], bool] | None = None) -> Found | None:
        """Idle leaves of one node for an opportunistic pod, as far from guaranteed use as can be; None for none.

        The node with the fewest guaranteed leaves, in the top cell with the fewest. ``allowed``: of one node, whether
        it may be used; the best of the other nodes is taken then, O(nodes refused).
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

        Only the first few top cells are tried, so that the cost does not grow with their number; then any will do.
        """
        hosts = space.best_hosts(farthest_from_guaranteed, gpus)
        if hosts is None:
            return -1
        if self._per_top > 1:
            for top in islice(self._tops.ascending(0), TOPS_TRIED):
                node = hosts.first_from(top * self._per_top)
                if 0 <= node < (top + 1) * self._per_top:
                    return node
        return hosts.first()

    # -- hardware -----------------------------------------------------------------------------------------------------

    def set_bad(self, node: int, mask: int) -> bool:
        """The bad leaf cells of ``node`` are exactly ``mask`` from now on; whether that is a change."""
        before = self.bad[node]
        if before == mask:
            return False
        self.bad[node] = mask
        self._dirty.add(node)
        if mask:
            self.bad_nodes.add(node)
        else:
            self.bad_nodes.discard(node)
        for turned in self._watchers:
            turned.add(node)
        self.allocator.set_bad(node, before, mask)
        hierarchy = self.hierarchy
        for level in self.allocator.levels:  # all the reserved cells that are bound and have leaves of the node
            if level < hierarchy.node_level:
                parts = hierarchy.node_size // hierarchy.gpus[level]
                cells = range(node * parts, (node + 1) * parts)
            else:
                above = node * hierarchy.node_size // hierarchy.gpus[level]
                cells = range(above, above + 1)
            for cell in cells:
                owner = self.owners.get((level, cell))
                if owner is not None:
                    binding, virtual = owner
                    binding.health_changed(virtual, node)
        return True

    def watched_by(self, turned: set[int]) -> None:
        """Nodes whose bad leaves change are put into ``turned``, for whom they are hosts."""
        self._watchers.append(turned)

    def validate(self, groups: Iterable[Group]) -> None:
        """All that is kept is what the groups and the bad leaves make it. O(nodes + groups)."""
        held: dict[int, dict[Group, int]] = {}
        used: dict[int, int] = {}
        reserved: dict[int, int] = {}
        for group in groups:
            taken = used if group.running else reserved
            for number, node, mask in group.parts:
                if number == self.number:
                    ensure(not taken.get(node, 0) & mask, f"a leaf cell of node {node} is {group}'s alone")
                    taken[node] = taken.get(node, 0) | mask
                    of_node = held.setdefault(node, {})
                    of_node[group] = of_node.get(group, 0) | mask
        ensure(held == self.held, "groups per node")
        space = self.idle_space()
        space.validate()
        if self._open is not None:
            self._open.validate()
            ensure((self._open.free, self._open.idle) == (space.free, space.idle), "both spaces say the same")
        for node, shape in enumerate(self.shapes):
            ensure(self.used[node] == used.get(node, 0), f"leaf cells of node {node} that are used")
            ensure(self.reserved[node] == reserved.get(node, 0), f"leaf cells of node {node} that are reserved")
            masks = {True: 0, False: 0}
            for group, mask in held.get(node, {}).items():
                masks[group.guaranteed] |= mask
            ensure(self.owned[node] == masks[True], f"guaranteed leaf cells of node {node}")
            ensure(self.lent[node] == masks[False], f"opportunistic leaf cells of node {node}")
            free = shape.full & ~(masks[True] | self.bad[node])
            seen = space.free[node], space.idle[node]
            ensure(seen == (free, free & ~masks[False]), f"what the space says of node {node}")
        ensure(self.bad_nodes == {node for node, bad in enumerate(self.bad) if bad}, "nodes with bad leaf cells")
        if self._per_top > 1:
            counts = [mask.bit_count() for mask in self.owned]
            self._tops.validate([sum(counts[i : i + self._per_top]) for i in range(0, len(counts), self._per_top)])
