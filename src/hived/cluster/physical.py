"""One chain of real nodes: who uses which GPU, guaranteed or opportunistically, and what that leaves idle.

The two views of HiveD (OSDI'20, section 3.3) are two masks per node. The guaranteed view sees every GPU outside the
first mask, the opportunistic one every GPU outside both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from hived.cells import Hierarchy, HostClass, HostIndex, Rank, Siblings, Space, WholeHosts
from hived.errors import InvariantError, ensure

from .allocation import Allocation, Part, nodes_needed

#: how many top cells are searched for a node before any node will do
_TOPS_TRIED = 8


def farthest_from_guaranteed(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """Rank of a node for an opportunistic job: fewest guaranteed GPUs, then closest together, then tightest."""
    level = host.idle.level_for(gpus)
    return (host.guaranteed, level, host.idle.free) if level else None


class CrowdListener(Protocol):
    """Somebody who orders cells by their opportunistic GPUs (a buddy allocator)."""

    def crowd_changed(self, node: int, before: int, after: int) -> None:
        """The opportunistic leaves of ``node`` were ``before`` and are now ``after``."""


class PhysicalChain:
    """The nodes of one chain. Every change costs O(levels), every choice O(classes of nodes)."""

    __slots__ = (
        "_buckets",
        "_changed",
        "_counted",
        "_for_loans",
        "_idle",
        "_nodes_per_top",
        "_tops",
        "bad",
        "guaranteed",
        "hierarchy",
        "index",
        "lodgers",
        "number",
        "opportunistic",
        "untold",
        "whole_idle",
    )

    def __init__(self, number: int, hierarchy: Hierarchy) -> None:
        #: number of the chain in the cluster
        self.number = number
        self.hierarchy = hierarchy
        nodes = hierarchy.nodes
        #: leaves in guaranteed use, per node
        self.guaranteed = [0] * nodes
        #: leaves in opportunistic use, per node; one that is in guaranteed use too only while it changes hands
        self.opportunistic = [0] * nodes
        #: bad leaves, per node, in use or not
        self.bad = [0] * nodes
        #: the opportunistic holders on each node with their leaves there, in the order in which they came
        self.lodgers: list[dict[Allocation, int]] = [{} for _ in range(nodes)]
        #: nodes whose opportunistic leaves have changed since they were last told, with those they had then
        self.untold: dict[int, int] = {}
        # nodes whose use has changed since the two indexes below were last looked at
        self._changed: set[int] = set()
        sizes = [hierarchy.gpus[k] // hierarchy.node_size for k in range(hierarchy.node_level + 1, hierarchy.top + 1)]
        #: nodes on which nobody runs
        self.whole_idle = WholeHosts(nodes, [[node // size for node in range(nodes)] for size in sizes], roomiest=True)
        #: top cells by their GPUs in guaranteed use, where nodes have cells above them; and what each node adds to that
        tops = hierarchy.count[hierarchy.top]
        self._tops = Siblings(tops, tops, hierarchy.gpus[hierarchy.top])
        self._nodes_per_top = hierarchy.gpus[hierarchy.top] // hierarchy.node_size
        self._counted = [0] * nodes
        #: nodes by what guaranteed jobs and what idle leaves they have
        self.index = HostIndex(nodes)
        self._for_loans = self.index.by(farthest_from_guaranteed)
        self._buckets: dict[tuple[int, int], int] = {}
        # idle leaves for gangs; None until the first one asks
        self._idle: Space | None = None
        self.index.fill(self._bucket(0, 0), range(nodes))
        for node in range(nodes):
            self.whole_idle.add(node)

    def _bucket(self, guaranteed: int, opportunistic: int) -> int:
        bucket = self._buckets.get((guaranteed, opportunistic))
        if bucket is None:
            if len(self._buckets) > 100_000:  # large nodes have many masks, and few classes
                self._buckets.clear()
            host_class = self._class(guaranteed, opportunistic)
            bucket = self._buckets[guaranteed, opportunistic] = self.index.bucket_of(host_class)
        return bucket

    def _class(self, guaranteed: int, opportunistic: int) -> HostClass:
        shape = self.hierarchy.shape
        free = shape.full & ~guaranteed
        return HostClass(shape.profile(free), shape.profile(free & ~opportunistic))

    def tell_crowds(self, listener: CrowdListener) -> None:
        """Pass on which nodes' opportunistic leaves have changed since the last call. O(changes)."""
        for node, before in self.untold.items():
            after = self.opportunistic[node]
            if before != after:
                listener.crowd_changed(node, before, after)
        self.untold.clear()

    def _settle(self) -> None:
        """Put the nodes that changed where they belong; only whoever looks for GPUs needs it. O(changes)."""
        for node in self._changed:
            guaranteed, opportunistic, bad = self.guaranteed[node], self.opportunistic[node], self.bad[node]
            self.index.move(node, self._bucket(guaranteed | bad, opportunistic))
            if self._idle is not None:
                free = self.hierarchy.shape.full & ~(guaranteed | bad)
                self._idle.set(node, free, free & ~opportunistic)
            if self._nodes_per_top > 1:
                now, top = guaranteed.bit_count(), node // self._nodes_per_top
                if now != self._counted[node]:
                    self._tops.set_crowd(top, self._tops.crowd[top] + now - self._counted[node])
                    self._counted[node] = now
            idle = not (guaranteed | opportunistic | bad)
            if idle != (node in self.whole_idle.hosts):
                if idle:
                    self.whole_idle.add(node)
                else:
                    self.whole_idle.remove(node)
        self._changed.clear()

    def set_use(self, node: int, guaranteed: int, opportunistic: int) -> None:
        """The leaves of ``node`` claimed by guaranteed and by opportunistic groups; a leaf may change hands."""
        self.guaranteed[node] = guaranteed
        if self.opportunistic[node] != opportunistic:
            self._set_opportunistic(node, opportunistic)
        else:
            self._changed.add(node)

    def set_bad(self, node: int, bad: int) -> None:
        """The bad leaves of ``node``, in use or not."""
        self.bad[node] = bad
        self._changed.add(node)

    def look_again(self, node: int) -> None:
        """Somebody has changed what the space says of ``node``: make it right again."""
        self._changed.add(node)

    def idle_space(self) -> Space:
        """The idle leaves as a space for gangs; made at the first call in O(nodes), then kept in O(changes)."""
        if self._changed:
            self._settle()
        if self._idle is None:
            hierarchy = self.hierarchy
            size, full = hierarchy.node_size, hierarchy.shape.full
            levels = range(hierarchy.node_level + 1, hierarchy.top + 1)
            groups = [[node * size // hierarchy.gpus[k] for node in range(hierarchy.nodes)] for k in levels]
            free = [full & ~(g | b) for g, b in zip(self.guaranteed, self.bad, strict=True)]
            idle = [f & ~o for f, o in zip(free, self.opportunistic, strict=True)]
            shapes = [hierarchy.shape] * hierarchy.nodes
            self._idle = Space(shapes, groups, hierarchy.node_level, free, idle, within_idle=True)
        return self._idle

    def add_guaranteed(self, node: int, mask: int) -> None:
        """A guaranteed job starts on these leaves; nobody may be on them."""
        if mask & (self.guaranteed[node] | self.opportunistic[node]):
            raise InvariantError(f"a GPU of node {node} would be held twice")
        self.guaranteed[node] |= mask
        self._changed.add(node)

    def remove_guaranteed(self, node: int, mask: int) -> None:
        """It ends."""
        self.guaranteed[node] &= ~mask
        self._changed.add(node)

    def add_lodger(self, holder: Allocation, node: int, mask: int) -> None:
        """An opportunistic job starts on these leaves; nobody may be on them."""
        before = self.opportunistic[node]
        if mask & (self.guaranteed[node] | before):
            raise InvariantError(f"a GPU of node {node} would be held twice")
        self.lodgers[node][holder] = mask
        self._set_opportunistic(node, before | mask)

    def remove_lodger(self, holder: Allocation, node: int) -> None:
        """It ends, or is preempted."""
        self._set_opportunistic(node, self.opportunistic[node] & ~self.lodgers[node].pop(holder))

    def promote_lodger(self, holder: Allocation, node: int) -> None:
        """It becomes guaranteed on the leaves that it has."""
        mask = self.lodgers[node].pop(holder)
        self._set_opportunistic(node, self.opportunistic[node] & ~mask)
        self.guaranteed[node] |= mask

    def _set_opportunistic(self, node: int, mask: int) -> None:
        self.untold.setdefault(node, self.opportunistic[node])
        self.opportunistic[node] = mask
        self._changed.add(node)

    def lodgers_on(self, node: int, mask: int) -> list[Allocation]:
        """The opportunistic holders of some leaf of ``mask``."""
        if not self.opportunistic[node] & mask:
            return []
        return [holder for holder, held in self.lodgers[node].items() if held & mask]

    def find_idle(self, gpus: int, allowed: Callable[[int], bool] | None = None) -> tuple[Part, ...] | None:
        """Idle leaves for an opportunistic job, as far from guaranteed use as can be; ``None`` when there are none.

        On one node: with the fewest guaranteed GPUs, in the least used top cell. Several: where most nodes are idle.
        ``allowed``: of one node, whether it may be used; the best of the other nodes is taken then, O(nodes refused).
        """
        if self._changed:
            self._settle()
        size = self.hierarchy.node_size
        if gpus <= size:
            node = self._far_node(gpus)
            if node >= 0 and allowed is not None and not allowed(node):
                node = next((other for other in self._for_loans.in_order(gpus) if allowed(other)), -1)
            if node < 0:
                return None
            used = self.guaranteed[node]
            used |= self.bad[node]
            idle = self.hierarchy.shape.full & ~(used | self.opportunistic[node])
            return (Part(self.number, node, self.hierarchy.shape.closest(idle, gpus, used)),)
        nodes = self.whole_idle.closest(nodes_needed(gpus, size))
        full = self.hierarchy.shape.full
        return None if nodes is None else tuple(Part(self.number, node, full) for node in nodes)

    def _far_node(self, gpus: int) -> int:
        """A node of the best class, in the top cell with the fewest GPUs in guaranteed use that has one.

        Only the first few top cells are tried, so that the cost does not grow with their number; then any will do.
        """
        hosts = self._for_loans.best_hosts(gpus)
        if hosts is None:
            return -1
        if self._nodes_per_top > 1:
            for top in islice(self._tops.by_crowd(0), _TOPS_TRIED):
                node = hosts.first_from(top * self._nodes_per_top)
                if 0 <= node < (top + 1) * self._nodes_per_top:
                    return node
        return hosts.first()

    def has_idle(self, gpus: int) -> bool:
        """Whether :meth:`find_idle` would find any."""
        if self._changed:
            self._settle()
        size = self.hierarchy.node_size
        if gpus <= size:
            return self._for_loans.any(gpus)
        return self.whole_idle.size >= nodes_needed(gpus, size)

    def find_free(self, gpus: int, rank: Rank) -> tuple[tuple[int, int], ...] | None:
        """Leaves outside guaranteed use, by a policy's rank; whole nodes by that rank too. For quota clusters."""
        if self._changed:
            self._settle()
        hierarchy = self.hierarchy
        size, shape = hierarchy.node_size, hierarchy.shape
        if gpus <= size:
            node = self.index.by(rank).best(gpus)
            if node < 0:
                return None
            free = shape.full & ~self.guaranteed[node]
            idle = free & ~self.opportunistic[node]
            spare = idle.bit_count()
            if spare >= gpus:
                return ((node, shape.closest(idle, gpus)),)
            return ((node, idle | shape.closest(free & ~idle, gpus - spare)),)
        wanted = nodes_needed(gpus, size)
        chosen = []
        for node in self.index.by(rank).in_order(size):
            chosen.append((node, shape.full))
            if len(chosen) == wanted:
                return tuple(chosen)
        return None

    def device_names(self, node: int, leaves: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """A node's name and the device indices of its leaves."""
        spec = self.hierarchy.spec
        return spec.node_names[node], tuple(spec.device_index(node, leaf) for leaf in leaves)

    def validate(self) -> None:
        """Masks are disjoint and every index agrees with them. O(nodes)."""
        self.validate_indexes()
        for node, (guaranteed, opportunistic) in enumerate(zip(self.guaranteed, self.opportunistic, strict=True)):
            ensure(not guaranteed & opportunistic, f"node {node}: no GPU both guaranteed and opportunistic")
            masks = self.lodgers[node].values()
            ensure(sum(m.bit_count() for m in masks) == opportunistic.bit_count(), f"node {node}: lodgers are disjoint")
            union = 0
            for mask in masks:
                union |= mask
            ensure(union == opportunistic, f"node {node}: opportunistic leaves are the lodgers'")

    def validate_indexes(self) -> None:
        """Every index agrees with the masks. O(nodes)."""
        self._settle()
        self.index.validate()
        self.whole_idle.validate()
        self._tops.validate()
        if self._nodes_per_top > 1:
            used = [mask.bit_count() for mask in self.guaranteed]
            per_top = [sum(used[i : i + self._nodes_per_top]) for i in range(0, len(used), self._nodes_per_top)]
            ensure(self._tops.crowd == per_top, "guaranteed GPUs per top cell")
        for node, (guaranteed, opportunistic) in enumerate(zip(self.guaranteed, self.opportunistic, strict=True)):
            taken = guaranteed | self.bad[node]
            ensure(self.index.class_of(node) == self._class(taken, opportunistic), f"class of node {node}")
            ensure((node in self.whole_idle.hosts) == (not taken | opportunistic), f"node {node} whole and idle")
            if self._idle is not None:
                free = self.hierarchy.shape.full & ~taken
                ensure(self._idle.free[node] == free, f"node {node}: free leaves of the space for gangs")
                ensure(self._idle.idle[node] == free & ~opportunistic, f"node {node}: its idle leaves")
        if self._idle is not None:
            self._idle.validate()
