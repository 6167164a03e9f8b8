"""The real nodes of one chain: which groups are on which leaf cells, in which state, and which leaf cells are bad.

A leaf cell has at most one group that runs on it and at most one that has reserved it. From that follow the two masks
per node that :class:`~hived.cluster.physical.PhysicalChain` indexes: claimed by guaranteed groups, claimed by
opportunistic ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hived.cells import BuddyAllocator, leaves_of
from hived.errors import ensure

from .allocation import Part
from .anchoring import Anchoring, Owners
from .groups import Group
from .physical import PhysicalChain
from .states import LeafEvent, LeafState, LeafStates


class Floor:
    """A chain's nodes under groups. A change costs O(1) per pod, plus the groups on that node."""

    __slots__ = (
        "_devices",
        "allocator",
        "chain",
        "doomed",
        "holders",
        "idle_gpus",
        "number",
        "owners",
        "seen_at",
        "sick",
        "states",
    )

    def __init__(self, chain: PhysicalChain, allocator: BuddyAllocator) -> None:
        self.chain = chain
        #: number of the chain in the cluster
        self.number = chain.number
        #: the buddy allocator of the chain
        self.allocator = allocator
        #: per node that has any: the groups there with their leaves, in the order in which they came
        self.holders: dict[int, dict[Group, int]] = {}
        #: the state of every leaf cell
        self.states = LeafStates(chain.hierarchy.nodes)
        #: nodes with bad leaf cells
        self.sick: set[int] = set()
        #: the allocator's count of changes when it was last seen which cells are doomed
        self.seen_at = -1
        #: reserved cells bound to bad hardware since nothing else is left for them: binder and virtual cell
        self.doomed: list[tuple[Anchoring, int]] = []
        #: healthy leaf cells that nobody has or has reserved
        self.idle_gpus = chain.hierarchy.nodes * chain.hierarchy.node_size
        #: the reserved cells that are bound
        self.owners: Owners = {}
        self._devices: dict[int, tuple[int, ...]] = {}

    # -- claims -------------------------------------------------------------------------------------------------------

    def start(self, group: Group, parts: Iterable[Part]) -> None:
        """``group`` runs on these free leaf cells."""
        for number, node, mask in parts:
            if number == self.number:
                self.states.apply(LeafEvent.ALLOCATE, node, mask)
                self._claim(group, node, mask)

    def reserve(self, group: Group, parts: Iterable[Part]) -> None:
        """``group`` is to have these leaf cells; others may still run on them."""
        for _, node, mask in parts:
            self.states.apply(LeafEvent.RESERVE, node, mask)
            self._claim(group, node, mask)

    def reserve_again(self, group: Group) -> None:
        """Undo a :meth:`cancel` that was only tried out: the groups of a node stand in the order they came in."""
        self.reserve(group, group.parts)
        for node in {node for _, node, _ in group.parts}:
            self.holders[node] = dict(sorted(self.holders[node].items(), key=lambda held: held[0].sequence))

    def bind(self, group: Group) -> None:
        """``group`` starts on what it has reserved."""
        for _, node, mask in group.parts:
            self.states.apply(LeafEvent.BIND, node, mask)

    def end(self, group: Group) -> None:
        """``group`` no longer runs."""
        for number, node, mask in group.parts:
            if number == self.number:
                self.states.apply(LeafEvent.RELEASE, node, mask)
                self._unclaim(group, node, mask)

    def cancel(self, group: Group) -> None:
        """``group`` gives up what it has reserved."""
        for _, node, mask in group.parts:
            self.states.apply(LeafEvent.CANCEL, node, mask)
            self._unclaim(group, node, mask)

    def changed_kind(self, group: Group) -> None:
        """``group`` became opportunistic, or guaranteed, where it runs."""
        for node in {node for _, node, _ in group.parts}:
            self._refresh(node)

    def _claim(self, group: Group, node: int, mask: int) -> None:
        holders = self.holders.get(node)
        if holders is None:
            holders = self.holders[node] = {}
        holders[group] = holders.get(group, 0) | mask
        chain = self.chain
        guaranteed, opportunistic = chain.guaranteed[node], chain.opportunistic[node]
        if group.tenancy >= 0:
            self._set_use(node, guaranteed | mask, opportunistic)
        else:
            self._set_use(node, guaranteed, opportunistic | mask)

    def _unclaim(self, group: Group, node: int, mask: int) -> None:
        holders = self.holders[node]
        left = holders[group] & ~mask
        if left:
            holders[group] = left
        else:
            del holders[group]
            if not holders:
                del self.holders[node]
        self._refresh(node)

    def _refresh(self, node: int) -> None:
        guaranteed = opportunistic = 0
        for group, mask in self.holders.get(node, {}).items():
            if group.tenancy >= 0:
                guaranteed |= mask
            else:
                opportunistic |= mask
        self._set_use(node, guaranteed, opportunistic)

    def _set_use(self, node: int, guaranteed: int, opportunistic: int) -> None:
        chain = self.chain
        before = chain.guaranteed[node] | chain.opportunistic[node] | chain.bad[node]
        after = guaranteed | opportunistic | chain.bad[node]
        self.idle_gpus += before.bit_count() - after.bit_count()
        chain.set_use(node, guaranteed, opportunistic)

    # -- questions ----------------------------------------------------------------------------------------------------

    def on(self, parts: Iterable[Part]) -> dict[Group, None]:
        """The groups with some of these leaf cells, running there or reserving, in the order of the parts."""
        found: dict[Group, None] = {}
        for _, node, mask in parts:
            for group, held in self.holders.get(node, {}).items():
                if held & mask:
                    found[group] = None
        return found

    def lost(self, node: int, mask: int, ended: Collection[Group] = ()) -> int:
        """GPUs of the opportunistic groups that have some of these leaf cells, less those that end in any case."""
        holders = self.holders.get(node, {})
        return sum([g.gpus for g, held in holders.items() if held & mask and not g.guaranteed and g not in ended])

    def devices(self, node: int, mask: int) -> tuple[int, ...]:
        """Device indices of some leaf cells of ``node``. O(1) once seen where the node counts from 0."""
        numbered = self.chain.hierarchy.spec.device_indices
        if numbered and node in numbered:
            devices = numbered[node]
            return tuple([devices[leaf] for leaf in leaves_of(mask)])
        found = self._devices.get(mask)
        if found is None:
            found = self._devices[mask] = tuple(leaves_of(mask))
        return found

    # -- hardware -----------------------------------------------------------------------------------------------------

    def set_bad(self, node: int, mask: int) -> bool:
        """The bad leaf cells of ``node`` are exactly ``mask`` from now on; whether that is a change."""
        before = self.chain.bad[node]
        if before == mask:
            return False
        used = self.chain.guaranteed[node] | self.chain.opportunistic[node]
        self.idle_gpus += (used | before).bit_count() - (used | mask).bit_count()
        self.chain.set_bad(node, mask)
        if mask:
            self.sick.add(node)
        else:
            self.sick.discard(node)
        self.allocator.set_bad(node, before, mask)
        hierarchy = self.chain.hierarchy
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
                    binder, virtual = owner
                    binder.health_changed(virtual, node)
        return True

    def validate(self, groups: Iterable[Group]) -> None:
        """Holders, leaf states and masks are what the groups make them. O(nodes + groups)."""
        holders: dict[int, dict[Group, int]] = {}
        users: dict[int, int] = {}
        reservers: dict[int, int] = {}
        for group in groups:
            taken = users if group.running else reservers
            for number, node, mask in group.parts:
                if number == self.number:
                    ensure(not taken.get(node, 0) & mask, f"a leaf cell of node {node} is {group}'s alone")
                    taken[node] = taken.get(node, 0) | mask
                    of_node = holders.setdefault(node, {})
                    of_node[group] = of_node.get(group, 0) | mask
        ensure(holders == self.holders, "groups per node")
        chain = self.chain
        idle = 0
        for node in range(chain.hierarchy.nodes):
            busy = chain.guaranteed[node] | chain.opportunistic[node] | chain.bad[node]
            idle += chain.hierarchy.node_size - busy.bit_count()
            ensure(self.states.used[node] == users.get(node, 0), f"leaf cells of node {node} that are used")
            ensure(self.states.reserved[node] == reservers.get(node, 0), f"leaf cells of node {node} that are reserved")
            masks = {True: 0, False: 0}
            for group, mask in holders.get(node, {}).items():
                masks[group.guaranteed] |= mask
            ensure(chain.guaranteed[node] == masks[True], f"guaranteed leaf cells of node {node}")
            ensure(chain.opportunistic[node] == masks[False], f"opportunistic leaf cells of node {node}")
        ensure(self.sick == {node for node, bad in enumerate(chain.bad) if bad}, "nodes with bad leaf cells")
        ensure(idle == self.idle_gpus, "idle leaf cells")
        chain.validate_indexes()

    def leaf_state(self, node: int, leaf: int) -> LeafState:
        """The state of one leaf cell."""
        return self.states.state(node, leaf)
