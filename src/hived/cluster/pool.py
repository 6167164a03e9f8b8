"""The cells that one VC reserved in one chain (or one pinned cell), and the groups in them by precedence.

A VC's choice of leaves reads its pools alone, so that a VC is safe in outcome and not in count alone: a pool has no
information about other tenants, apart from bad hardware under its own cells.

A leaf cell of a VC is held by the group that runs in it and, while that group is being preempted, by the preemptor that
has reserved it. A request of priority p can take every leaf whose holders are all below p. The obtainable leaves *at* a
precedence (a priority, and whether its groups lose work: :func:`precedence_of`) are a :class:`~hived.cells.Space` of
their own (a *view*). It is built on first use, updated as leaves are taken and released, and dropped once its updates
since the last use have cost as much as building it anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_

from hived.cells import Found, HostClass, Need, Rank, Space, find, packs
from hived.errors import ensure

from .binding import Binding, BindingHints, ChainBindings
from .groups import Group
from .parts import Part
from .undo import Undo
from .virtual import Spots, VirtualCells, by_host

#: how many views are kept
MAX_VIEWS = 16
_NO_GROUPS: dict[Group, int] = {}


class Pool:
    """Virtual cells, their bindings to nodes, and the groups in them."""

    def __init__(
        self,
        tenant: int,
        number: int,
        virtual: VirtualCells,
        chain: ChainBindings,
        undo: Undo,
        pinned: tuple[str, int] | None = None,
    ) -> None:
        """``pinned``: for the pool of a pinned cell, the id and the number of the physical cell."""
        #: number of the tenant
        self.tenant = tenant
        #: its number among the tenant's pools
        self.number = number
        self.virtual = virtual
        self.chain = chain
        #: the nodes that its cells are bound to
        self.nodes = chain.nodes
        #: id of its pinned cell, None where its cells are not pinned
        self.pinned = None if pinned is None else pinned[0]
        #: number of the physical cell that it is pinned to, -1 for none
        self.pinned_to = -1 if pinned is None else pinned[1]
        self.undo = undo
        #: leaves of each host that no group holds, bad ones included
        self.free = self._all_free()
        self.binding = self.bindings()
        #: per host with groups: these with their leaves
        self.held: dict[int, dict[Group, int]] = {}
        #: per precedence: its groups, in order of arrival
        self.at: dict[int, dict[Group, None]] = {}
        # precedences whose groups are not in order of arrival
        self._unsorted: set[int] = set()
        # healthy free leaves
        self._space = self._free_space()
        # per precedence with a view: the view, and the number of updates since its last use
        self._views: dict[int, Space] = {}
        self._unused: dict[int, int] = {}

    def bindings(self) -> Binding:
        """Create the bindings of its cells."""
        return Binding(self.virtual, self.free, self.chain, self.undo, self.pinned_to)

    def _all_free(self) -> list[int]:
        return [shape.full for shape in self.virtual.shapes]

    def _free_space(self) -> Space:
        return self.virtual.space(self.free)

    @property
    def levels(self) -> Iterable[int]:
        """The levels of the reserved cells."""
        return self.virtual.levels

    @property
    def gpus(self) -> int:
        """Number of reserved leaf cells."""
        return self.virtual.gpus

    @property
    def account(self) -> object:
        """The account of its leaf cells: pools with the same account share one number of leaf cells."""
        return self

    # -- obtainable leaves --------------------------------------------------------------------------------------------

    def below(self, priority: int) -> list[int]:
        """The precedences below ``priority`` of the groups here, ascending. O(precedences in use)."""
        first = lowest_precedence(priority)
        if len(self.at) <= 1:  # the common case, without a sort
            return [precedence for precedence in self.at if precedence < first]
        return sorted(precedence for precedence in self.at if precedence < first)

    def space(self, up_to: int = -1) -> Space:
        """The obtainable leaves: free ones, and those held ``up_to`` a precedence (-1: none). O(hosts) at first."""
        if self.binding.changed:
            self.refresh()
        if up_to < 0:
            return self._space
        view = self._views.get(up_to)
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._forget(max(self._unused, key=lambda other: (self._unused[other], other)))
            free = [self._healthy(host) & ~self._blocked(host, up_to) for host in range(self.virtual.hosts)]
            view = self._views[up_to] = self.virtual.space(free, self._space.free)
        self._unused[up_to] = 0
        return view

    def find(self, space: Space, needs: Sequence[Need], rank: Rank, cap: int, up_to: int) -> Found | None:
        """Leaves for all pods in ``space``, the result of :meth:`space` for ``up_to``; None when they do not fit."""
        return find(space, needs, rank, cap)

    def total(self, up_to: int = -1) -> int:
        """Number of obtainable leaves; see :meth:`space`."""
        return self.space(up_to).total

    def _forget(self, up_to: int) -> None:
        del self._views[up_to], self._unused[up_to]

    def refresh(self) -> None:
        """Refresh the hosts whose hardware has changed its health. O(such hosts * views)."""
        for host in sorted(self.binding.changed):
            self._space.set(host, self.free[host] & ~self.binding.bad[host])
            if self._views:
                self._refresh_views(host)
        self.binding.changed.clear()

    def _healthy(self, host: int) -> int:
        return self.virtual.shapes[host].full & ~self.binding.bad[host]

    def _blocked(self, host: int, up_to: int) -> int:
        blocked = 0
        for group, mask in self.held.get(host, {}).items():
            if group.precedence > up_to:
                blocked |= mask
        return blocked

    def _refresh_views(self, host: int) -> None:
        healthy, free = self._healthy(host), self._space.free[host]
        limit = max(64, self.virtual.hosts)  # of updates without use: building the view anew costs no more
        for up_to, view in list(self._views.items()):
            view.set(host, healthy & ~self._blocked(host, up_to), free)
            self._unused[up_to] += 1
            if self._unused[up_to] > limit:
                self._forget(up_to)

    # -- allocations --------------------------------------------------------------------------------------------------

    def allocate(self, group: Group) -> None:
        """Add ``group`` to the holders of its spots. O(pods * views)."""
        precedence = group.precedence = precedence_of(group)
        equals = self.at.get(precedence)
        if equals is None:
            self.at[precedence] = {group: None}
        else:
            equals[group] = None
        for host, mask in group.spots:
            held = self.held.get(host)
            if held is None:
                self.held[host] = {group: mask}
            else:
                held[group] = held.get(group, 0) | mask
        self._mark_taken(group.spots)
        self.undo.note((self.release, group))

    def _mark_taken(self, spots: Spots) -> None:
        free, bad = self.free, self.binding.bad
        for host, mask in spots:
            free[host] &= ~mask
        for host, _ in spots:  # after all masks, since several pods may be on one host
            self._space.set(host, free[host] & ~bad[host])
            if self._views:
                self._refresh_views(host)

    def release(self, group: Group) -> None:
        """Remove ``group`` from the holders of its spots; bindings stay. O(pods * (views + holders of the host))."""
        equals = self.at[group.precedence]
        del equals[group]
        if not equals:
            del self.at[group.precedence]
        spots = group.spots
        hosts: Iterable[int] = (spots[0][0],) if len(spots) == 1 else dict.fromkeys([host for host, _ in spots])
        for host in hosts:
            held = self.held[host]
            del held[group]
            if not held:
                del self.held[host]
            self._mark_free(host, held)
        self.undo.note((self.reallocate, group))

    def _mark_free(self, host: int, held: Mapping[Group, int]) -> None:
        """Refresh the free leaves of ``host``, which has these holders left."""
        free = self.virtual.shapes[host].full
        for mask in held.values():
            free &= ~mask
        self.free[host] = free
        self._space.set(host, free & ~self.binding.bad[host])
        if self._views:
            self._refresh_views(host)

    def reallocate(self, group: Group) -> None:
        """Take the spots back, at the present precedence."""
        self.allocate(group)
        self._unsorted.add(group.precedence)

    def by_arrival(self, precedence: int) -> dict[Group, None]:
        """The groups of a precedence in order of arrival. O(1), O(groups) after rollbacks."""
        if precedence in self._unsorted:
            self._unsorted.discard(precedence)
            if precedence in self.at:
                self.at[precedence] = dict.fromkeys(sorted(self.at[precedence], key=lambda group: group.sequence))
        return self.at[precedence]

    def on(self, spots: Iterable[tuple[int, int]]) -> dict[Group, None]:
        """The groups that hold some of these leaves."""
        found: dict[Group, None] = {}
        for host, mask in spots:
            for group, held in self.held.get(host, {}).items():
                if held & mask:
                    found[group] = None
        return found

    def conflicting(self, group: Group, victims: Iterable[Group] = ()) -> dict[Group, None]:
        """The groups of the VC that have to yield to ``group``, whose leaves were chosen."""
        return self.on(group.spots)

    # -- other cells --------------------------------------------------------------------------------------------------

    def lay_out(self, virtual: VirtualCells) -> None:
        """Have the cells of ``virtual``: of each level the last unbound ones go, or others come behind those that stay.

        As many have to be unbound as go. Groups keep their leaves, under other numbers. Not while a transaction is
        open, since it logs no inverse. O(cells + groups).
        """
        before, binding = self.virtual, self.binding
        stay: dict[int, int] = {}
        for level in before.levels:
            cells, others = before.preassigned(level), virtual.preassigned(level)
            unbound = [cell for cell in cells if binding.bound[cell] < 0]
            surplus = max(0, len(cells) - len(others))
            ensure(surplus <= len(unbound), f"{surplus} cells of level {level} are in no use")
            gone = set(unbound[len(unbound) - surplus :])
            stay.update(zip([cell for cell in cells if cell not in gone], others, strict=False))
        self.virtual = virtual
        self.free = self._all_free()
        self.binding = self.bindings()
        moved = self.binding.take_over(binding, stay)
        self.held = {moved[host]: held for host, held in self.held.items()}
        for equals in self.at.values():
            for group in equals:
                group.spots = tuple([(moved[host], mask) for host, mask in group.spots])
        for host, held in self.held.items():
            self.free[host] &= ~reduce(or_, held.values())
        self._space = self.virtual.space([free & ~bad for free, bad in zip(self.free, self.binding.bad, strict=True)])
        self._views.clear()
        self._unused.clear()

    # -- bindings -----------------------------------------------------------------------------------------------------

    def bind(self, spots: Spots, near: Sequence[Part] = ()) -> tuple[Part, ...] | None:
        """Bind the unbound leaves of all pods, and return the physical ones; None where bad hardware is unavoidable.

        The largest pod is bound first, whatever their order. ``near``: leaves where the group runs or ran, which it
        prefers. On failure, the bindings made so far stay until the caller rolls back.
        """
        nodes, binding = self.nodes, self.binding
        if self.chain.sparing is not None:
            self.chain.sparing.begin()
        if near:
            nodes.update_allocator()
            return self._bind_near(spots, near)
        number, lent = nodes.number, nodes.lent
        if len(spots) == 1:
            host, mask = spots[0]
            if binding.bound[host] < 0 or binding.anchored:
                nodes.update_allocator()  # only where it is needed, so that short loans in between cost nothing
                binding.acquire(host, mask)
            if binding.bad[host] & mask:
                return None
            return (Part(number, *binding.bind_leaves(host, mask, lent)),)
        nodes.update_allocator()
        healthy = True
        for host, mask in by_host(spots):
            binding.acquire(host, mask)
            healthy = healthy and not binding.bad[host] & mask
        if not healthy:
            return None
        parts: dict[int, Part] = {}
        for at in sorted(range(len(spots)), key=lambda at: -spots[at][1].bit_count()):
            parts[at] = Part(number, *binding.bind_leaves(*spots[at], lent))
        return tuple([parts[at] for at in range(len(spots))])

    def refused(self, spots: Spots) -> Spots:
        """The leaves, by host, for which :meth:`bind` cannot avoid bad hardware. A trial. O(pods)."""
        binding, mark = self.binding, self.undo.mark()
        self.nodes.update_allocator()
        bad = []
        for host, mask in by_host(spots):
            binding.acquire(host, mask)
            if binding.bad[host] & mask:
                bad.append((host, binding.bad[host] & mask))
        self.undo.rollback(mark)
        return tuple(bad)

    def _bind_near(self, spots: Spots, near: Sequence[Part]) -> tuple[Part, ...] | None:
        nodes, binding = self.nodes, self.binding
        own = [(node, mask) for chain, node, mask in near if chain == nodes.number]
        hints = BindingHints(binding, [host for host, _ in spots], own)
        leaves_of: Counter[int] = Counter()
        for host, mask in spots:
            leaves_of[host] += mask.bit_count()
        parts = []
        for host, mask in spots:
            hint, cell = hints.hint(host), -1
            if hint is not None and binding.bound[host] < 0:
                cell = hints.cell(host, hint, leaves_of[host])
            binding.acquire(host, mask, cell)
            if binding.bad[host] & mask:
                return None
            node, leaves = binding.bind_leaves(host, mask, nodes.lent, hint)
            hints.take(host, node, leaves)
            parts.append(Part(nodes.number, node, leaves))
        return tuple(parts)

    def in_place(self, parts: Sequence[Part]) -> Spots | None:
        """The pool's leaves on these physical ones; None here, since virtual leaves have to be bound first.

        A quota has no cells, so there a loan can be promoted wherever it runs.
        """
        return None

    def elsewhere(self, spots: Spots, parts: Sequence[Part]) -> bool:
        """Whether existing bindings put ``spots`` on other nodes than those of ``parts``. O(pods).

        ``False`` while hardware is bad, since bound cells may be unusable then, and for a group without devices left.
        """
        nodes, bound = self.nodes, self.binding.bound
        if nodes.allocator.bad_leaves or not parts:
            return False
        own = {node for chain, node, _ in parts if chain == nodes.number}
        size, shapes = nodes.hierarchy.node_size, self.virtual.shapes
        return not own.issuperset([bound[h] * shapes[h].leaves // size for h, _ in spots if bound[h] >= 0])

    def unbind(self, spots: Spots) -> None:
        """End the bindings of leaves that no group holds any more."""
        for host, mask in spots if len(spots) == 1 else by_host(spots):
            self.binding.unbind(host, mask)

    def level(self, found: int, parts: Sequence[Part]) -> int:
        """The lowest level at which one cell has all pods, 0 for none; ``found``: that in the VC. O(pods * levels)."""
        if len(parts) > 1 and (not found or any(part.node != parts[0].node for part in parts)):
            return self.nodes.common_level(parts)  # cells apart in the VC may be close in the cluster
        return found

    def reserved_levels(self, spots: Spots) -> tuple[int, ...]:
        """Per pod, the level of its reserved cell. O(pods)."""
        levels = self.virtual.reserved_levels
        if len(spots) == 1:
            return (levels[spots[0][0]],)
        return tuple([levels[host] for host, _ in spots])

    def bind_at(self, parts: Sequence[Part], levels: Sequence[int]) -> Spots | None:
        """Bind free virtual leaves to exactly these physical ones, in cells reserved at ``levels`` (one per pod).

        None, and nothing changed, where that is impossible or would break sharing safety.
        """
        mark = self.undo.mark()
        spots: list[tuple[int, int]] = []
        for part, level in zip(parts, levels, strict=True):
            spot = self.bind_part_at(part, level)
            if spot is None:
                self.undo.rollback(mark)
                return None
            spots.append(spot)
        return tuple(spots)

    def bind_part_at(self, part: Part, level: int) -> tuple[int, int] | None:
        """As :meth:`bind_at` for one pod: host and leaves. On failure, the caller rolls back. O(levels * fan-out)."""
        binding, (_, node, mask) = self.binding, part
        leaf = (mask & -mask).bit_length() - 1
        host = binding.host_under(level, node, leaf)
        if host < 0:
            return None
        shape = self.virtual.shapes[host]
        offset = leaf // shape.leaves * shape.leaves
        if mask & ~(shape.full << offset):
            return None
        cell = (node * self.virtual.hierarchy.node_size + leaf) // shape.leaves
        binding.acquire(host, 0, cell, exactly=True)
        leaves = binding.bind_leaves_at(host, mask >> offset)
        return (host, leaves) if leaves else None


def packed(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """Rank of a host: fewest preempted leaf cells, then closest together, then tightest."""
    if host.free.free < gpus:
        return None
    taken = max(0, gpus - host.idle.free)
    level = host.free.level_for(gpus) if taken else host.idle.level_for(gpus)
    return taken, level, host.free.free


packs(packed)


def lowest_precedence(priority: int) -> int:
    """The precedence of groups of a priority that lose no work when they yield; that of the others is one higher."""
    return 2 * priority


def precedence_of(group: Group) -> int:
    """The place of a group in the order of preemption in its VC: lower priorities first, then groups that lose no work.

    Those are groups that become opportunistic instead (lazy preemption), or still wait for victims of their own VC.
    A group that waits for loans alone counts as running, as it would run on a private cluster.
    """
    lowest = 2 * group.priority
    if group.request.lazy_preemption or (group.victims and any(victim.guaranteed for victim in group.victims)):
        return lowest
    return lowest + 1


def reserved_in(pools: Iterable[Pool]) -> int:
    """Number of leaf cells reserved in some pools."""
    return sum({pool.account: pool.gpus for pool in pools}.values())
