"""The cells of one VC in one chain (or one pinned cell) under groups of many ranks.

A leaf cell of a VC is taken by the group that runs in it and, while that one is being preempted, by the group that has
reserved it. A request of priority p may have every leaf whose takers are all below p. What may be had *at* a rank (a
priority, and whether those of it lose work: :meth:`.Group.current_rank`) is a :class:`~hived.cells.Space` of its own (a
*view*), made when somebody asks, and kept up as leaves are taken and given back until nobody has asked for as long as
it would take to make it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hived.cells import Space
from hived.errors import ensure

from .allocation import Part
from .binding import Binder
from .floor import Floor
from .groups import Group
from .standing import host_for, virtual_leaves
from .virtual import VirtualPool

#: how many views of ranks are kept
VIEWS = 16
#: the leaves of a node that others should rather not lose
Spared = Callable[[int], int]
#: virtual hosts and leaves, one pair per pod
Pods = tuple[tuple[int, int], ...]


class Tenancy:
    """A pool of virtual cells, its bindings, and who takes what of it."""

    __slots__ = (
        "_levels",
        "_unused",
        "_views",
        "at",
        "binder",
        "floor",
        "number",
        "pinned",
        "pool",
        "takers",
        "tenant",
        "totals",
    )

    def __init__(self, tenant: int, number: int, pinned: str | None, floor: Floor, binder: Binder) -> None:
        #: number of the tenant
        self.tenant = tenant
        #: its number among the tenant's pools
        self.number = number
        #: id of the pinned cell that it is, None where its cells are not pinned
        self.pinned = pinned
        #: the chain that it is bound to
        self.floor = floor
        self.binder = binder
        self.pool: VirtualPool = binder.pool
        #: per host that has any: the groups that take leaves of it
        self.takers: dict[int, dict[Group, int]] = {}
        #: per rank: the groups of that rank, in the order in which they came
        self.at: dict[int, dict[Group, None]] = {}
        #: healthy leaves free (-1), or free and taken at ranks up to the key
        self.totals: dict[int, int] = {-1: self.pool.gpus}
        # per host asked for: the level of the reserved cell that it is in
        self._levels: dict[int, int] = {}
        # per view: changes since somebody asked for it
        self._unused: dict[int, int] = {}
        # what may be had, where leaves taken at ranks up to the key count as free
        self._views: dict[int, Space] = {}

    def below(self, priority: int) -> list[int]:
        """The ranks below ``priority`` that groups have here, ascending. O(ranks in use)."""
        first = 2 * priority
        if len(self.at) <= 1:  # the common case, without a sort
            return [key for key in self.at if key < first]
        return sorted(key for key in self.at if key < first)

    def space(self, key: int = -1) -> Space:
        """What may be had: free leaves, and those taken at ranks up to ``key``. O(hosts) when first asked for."""
        if self.binder.changed:
            self.settle()
        if key < 0:
            return self.pool.space
        view = self._views.get(key)
        if view is None:
            pool = self.pool
            if len(self._views) >= VIEWS:
                self._forget(max(self._unused, key=lambda other: (self._unused[other], other)))
            free = [pool.shapes[h].full & ~(pool.bad[h] | self._blocked(h, key)) for h in range(pool.hosts)]
            view = self._views[key] = pool.new_space(free, list(pool.space.free))
            self.totals[key] = sum(mask.bit_count() for mask in free)
        self._unused[key] = 0
        return view

    def _forget(self, key: int) -> None:
        del self._views[key], self._unused[key], self.totals[key]

    def settle(self) -> None:
        """Hosts under which hardware turned bad or good are looked at again. O(such hosts * views)."""
        for host in sorted(self.binder.changed):
            self._refresh(host)
        self.binder.changed.clear()

    def take_again(self, group: Group) -> None:
        """Take what it gave just now, at its rank of by now; the groups of a rank stand in the order they came in."""
        self.take(group)
        self.at[group.rank] = dict.fromkeys(sorted(self.at[group.rank], key=lambda g: g.sequence))

    def _blocked(self, host: int, key: int) -> int:
        blocked = 0
        for group, mask in self.takers.get(host, {}).items():
            if group.rank > key:
                blocked |= mask
        return blocked

    def _refresh(self, host: int) -> None:
        pool = self.pool
        healthy = pool.shapes[host].full & ~pool.bad[host]
        free = pool.free[host] & healthy
        space = pool.space
        totals = self.totals
        totals[-1] += free.bit_count() - space.free[host].bit_count()
        space.set(host, free, free)
        if self._views:
            self._refresh_views(host, healthy, free)

    def _refresh_views(self, host: int, healthy: int, free: int) -> None:
        long_unused = []
        for key, view in self._views.items():
            obtainable = healthy & ~self._blocked(host, key)
            self.totals[key] += obtainable.bit_count() - view.free[host].bit_count()
            view.set(host, obtainable, free)
            self._unused[key] += 1
            if self._unused[key] > _patience(self.pool):
                long_unused.append(key)
        for key in long_unused:
            self._forget(key)

    def take(self, group: Group) -> None:
        """``group`` takes its spots, whoever else is there. O(pods * views)."""
        pool = self.pool
        rank = group.rank = group.current_rank()
        of_rank = self.at.get(rank)
        if of_rank is None:
            of_rank = self.at[rank] = {}
        of_rank[group] = None
        for host, mask in group.spots:
            takers = self.takers.get(host)
            if takers is None:
                self.takers[host] = {group: mask}
            else:
                takers[group] = takers.get(group, 0) | mask
            pool.free[host] &= ~mask
            self._refresh(host)

    def give(self, group: Group) -> None:
        """``group`` takes them no longer; bindings are as they were. O(pods * (views + takers of the host))."""
        pool = self.pool
        of_rank = self.at[group.rank]
        del of_rank[group]
        if not of_rank:
            del self.at[group.rank]
        for host in dict.fromkeys([host for host, _ in group.spots]):
            takers = self.takers[host]
            del takers[group]
            free = pool.shapes[host].full
            if takers:
                for mask in takers.values():
                    free &= ~mask
            else:
                del self.takers[host]
            pool.free[host] = free
            self._refresh(host)

    def unbind(self, pods: Pods) -> None:
        """Undo the bindings of leaves that nobody takes."""
        for host, mask in by_host(pods):
            self.binder.unbind(host, mask)

    def bind(
        self, pods: Pods, standing: dict[int, int] | None = None, spared: Spared | None = None
    ) -> tuple[Part, ...] | None:
        """Bind what is not bound yet, and say where the pods stand; None where bad hardware cannot be avoided.

        ``standing``: the physical cells that some hosts must stand on; ``spared``: leaves of a node that others should
        rather not lose, among equals; without them the groups that end are to have the fewest GPUs. The largest pod is
        bound first, whatever their order. Bindings made stay: undo with :meth:`unbind`.
        """
        floor, binder, pool = self.floor, self.binder, self.pool
        chain = floor.chain
        if chain.untold:
            chain.tell_crowds(floor.allocator)
        number = floor.number
        if len(pods) == 1 and standing is None:
            host, mask = pods[0]
            binder.hold(host, mask)
            if pool.bad[host] & mask:
                return None
            node, leaves = binder.leaves(host, mask, chain.opportunistic, None, None, floor.lost)
            return (Part(number, node, leaves),)
        healthy = True
        for host, mask in by_host(pods):
            if standing is not None and host in standing:
                binder.stand(host, standing[host], mask)
            else:
                binder.hold(host, mask)
            healthy = healthy and not pool.bad[host] & mask
        if not healthy:
            return None
        crowd = chain.opportunistic
        ended: set[Group] = set()

        def lost(node: int, mask: int) -> int:
            return floor.lost(node, mask, ended)

        parts: dict[int, Part] = {}
        for at in sorted(range(len(pods)), key=lambda at: -pods[at][1].bit_count()):
            parts[at] = Part(number, *binder.leaves(*pods[at], crowd, None, spared, lost if spared is None else None))
            if crowd[parts[at].node] & parts[at].mask:
                ended.update(floor.on([parts[at]]))
        return tuple([parts[at] for at in range(len(pods))])

    def reserved_levels(self, pods: Pods) -> tuple[int, ...]:
        """Per pod, the level of the reserved cell that it stands in. O(pods)."""
        levels = self._levels
        found = []
        for host, _ in pods:
            level = levels.get(host)
            if level is None:
                level = levels[host] = self.pool.cells[self.pool.reserved_cell(host)].level
            found.append(level)
        return tuple(found)

    def stand_at(self, parts: Sequence[Part], levels: Sequence[int]) -> Pods | None:
        """Bind free virtual leaves to these very physical ones, in cells reserved at ``levels`` (one per pod).

        None where that cannot be, or sharing safety would not survive it; nothing has changed then.
        """
        binder, pool, hierarchy = self.binder, self.pool, self.pool.hierarchy
        pods: list[tuple[int, int]] = []
        for (_, node, mask), level in zip(parts, levels, strict=True):
            leaf = (mask & -mask).bit_length() - 1
            host = host_for(binder, level, node, leaf)
            leaves = 0
            if host >= 0:
                shape = pool.shapes[host]
                offset = leaf // shape.leaves * shape.leaves
                if not mask & ~(shape.full << offset):
                    cell = (node * hierarchy.node_size + leaf) // shape.leaves
                    binder.stand(host, cell)
                    leaves = virtual_leaves(binder, host, mask >> offset)
                    if not leaves:
                        binder.unbind(host, 0)
            if not leaves:
                self.unbind(tuple(pods))
                return None
            pods.append((host, leaves))
        return tuple(pods)

    def inside(self, pods: Pods) -> list[tuple[int, list[int] | None]]:
        """What is bound inside those hosts of ``pods`` that somebody uses: for :meth:`put_back`."""
        found = []
        for host, _ in by_host(pods):
            if host in self.takers:
                inner = self.binder.inner[host]
                found.append((host, None if inner is None else list(inner)))
        return found

    def put_back(self, inside: Iterable[tuple[int, list[int] | None]]) -> None:
        """Undo finer bindings inside hosts: others use their leaves, so that unbinding leaves some of it behind."""
        for host, inner in inside:
            self.binder.inner[host] = inner

    def on(self, pods: Iterable[tuple[int, int]]) -> dict[Group, None]:
        """The groups that take some of these leaves."""
        found: dict[Group, None] = {}
        for host, mask in pods:
            for group, held in self.takers.get(host, {}).items():
                if held & mask:
                    found[group] = None
        return found

    def validate(self, groups: Iterable[Group]) -> None:
        """Takers, free leaves and views are what the groups make them. O(hosts * views + groups)."""
        self.settle()
        takers: dict[int, dict[Group, int]] = {}
        at: dict[int, set[Group]] = {}
        for group in groups:
            at.setdefault(group.current_rank(), set()).add(group)
            for host, mask in group.spots:
                of_host = takers.setdefault(host, {})
                of_host[group] = of_host.get(group, 0) | mask
        ensure(takers == self.takers, "groups per virtual host")
        ensure(at == {key: set(of_rank) for key, of_rank in self.at.items()}, "groups per rank")
        pool = self.pool
        for host in range(pool.hosts):
            free = pool.shapes[host].full
            for one, mask in takers.get(host, {}).items():
                free &= ~mask
                for other, held in takers[host].items():
                    if one is not other and mask & held:
                        ensure(one.running != other.running, f"{one} and {other}: one runs, one has reserved")
                        ensure(
                            one.running == (one.priority < other.priority), f"{one} and {other}: the higher reserves"
                        )
            ensure(free == pool.free[host], f"free leaves of virtual host {host}")
            ensure(pool.space.free[host] == free & ~pool.bad[host], f"healthy free leaves of virtual host {host}")
            for key, view in self._views.items():
                obtainable = pool.shapes[host].full & ~(pool.bad[host] | self._blocked(host, key))
                ensure(view.free[host] == obtainable, f"leaves to be had at rank {key} in host {host}")
                ensure(view.idle[host] == pool.space.free[host], f"free ones among them in host {host}")
        for key, view in [(-1, pool.space), *self._views.items()]:
            view.validate()
            ensure(self.totals[key] == sum(mask.bit_count() for mask in view.free), f"leaves to be had at {key}")
        ensure(set(self.totals) == {-1, *self._views}, "totals of the views")
        ensure(self._unused.keys() == self._views.keys() and len(self._views) <= VIEWS, "views that are kept")
        self.binder.validate()


def _patience(pool: VirtualPool) -> int:
    """How many changes a view is kept up for unasked: one per host, since making it anew is no dearer then."""
    return max(64, pool.hosts)


def by_host(pods: Pods) -> Iterable[tuple[int, int]]:
    """Each host once, with the leaves of all pods there, the most first; among equals in order of first mention."""
    if len(pods) == 1:
        return pods
    masks: dict[int, int] = {}
    for host, mask in pods:
        masks[host] = masks.get(host, 0) | mask
    return sorted(masks.items(), key=lambda of_host: -of_host[1].bit_count())
