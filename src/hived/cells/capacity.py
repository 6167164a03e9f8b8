"""Capacity indexes: how many pods of one need every host, and every cell above the hosts, can hold.

A gang of equal pods needs three queries: the cell that holds it with the least to spare, the hosts there that hold the
most pods, and the tightest host for the remainder. Each is one look-up here; hosts are never scanned.

    pods of 4     host 0: 2   host 1: 1  |  host 2: 0   host 3: 2
    cell above            3              |          2                 a gang of 2: the right cell, a gang of 3: the left
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from hived.errors import ensure

from .host_fit import Need, count_of
from .index_set import IndexSet
from .shape import Shape

#: kind of host: -pods it holds, level of the closest pod, leaves it has
_Kind = tuple[int, int, int]


@lru_cache(100_000)  # large hosts have many masks, and few kinds
def _kind(shape: Shape, mask: int, need: Need) -> _Kind:
    level = need.level or shape.profile(mask).level_for(need.gpus)
    return -count_of(shape, mask, need), level, mask.bit_count()


class Counts:
    """Items ``0 .. n-1`` ordered by a count of each, then by number."""

    def __init__(self, counts: list[int], most: int) -> None:
        """``counts``: initial counts; ``most``: upper bound of a count. O(n)."""
        #: count of each item; read-only
        self.counts = counts
        self._order = IndexSet((most + 1) * max(1, len(counts)))
        for number, count in enumerate(counts):
            self._order.add(count * len(counts) + number)

    def add(self, number: int, more: int) -> None:
        """Add ``more`` to the count of ``number``. O(1)."""
        n, count = len(self.counts), self.counts[number]
        self._order.remove(count * n + number)
        self.counts[number] = count + more
        self._order.add((count + more) * n + number)

    def ascending(self, least: int) -> Iterator[int]:
        """Items with a count of ``least`` or more, lowest count first, then lowest number."""
        n = len(self.counts)
        key = self._order.first_from(least * n)
        while key >= 0:
            yield key % n
            key = self._order.first_from(key + 1)


class Layout:
    """The cells above the hosts: per level, the range of hosts of each group."""

    def __init__(self, hosts: int, groups: Sequence[Sequence[int]]) -> None:
        """``groups[j][host]``: the host's group ``j`` levels above, -1 for none; hosts of a group are contiguous."""
        #: number of hosts
        self.hosts = hosts
        #: ``groups``
        self.of_host = groups
        #: per level and group: its first host, and the one after its last; (0, 0) for an unused number
        self.spans: list[list[tuple[int, int]]] = []
        for of_host in groups:
            spans = [(0, 0)] * (max(of_host, default=-1) + 1)
            start = 0
            for group, run in groupby(of_host):
                end = start + sum(1 for _ in run)
                if group >= 0:
                    ensure(spans[group] == (0, 0), f"hosts of group {group} stand together")
                    spans[group] = (start, end)
                start = end
            self.spans.append(spans)


class Capacity:
    """The capacity of every host for one :class:`Need`, and their sums per group.

    Building costs O(hosts), a change of a host O(levels), finding k hosts O(levels + k + kinds of host).
    """

    def __init__(self, need: Need, layout: Layout, shapes: Sequence[Shape], masks: Sequence[int]) -> None:
        """``masks``: the usable leaves per host."""
        #: the need of one pod
        self.need = need
        self.layout = layout
        #: number of entries of the owner's log of changes that are applied; kept by the owner
        self.seen = 0
        # kinds ascend: most pods first, then the closest, then the tightest; and the hosts of each kind that holds pods
        self._by_kind: dict[_Kind, IndexSet] = {}
        self._kinds: list[_Kind] = []
        self._kind_of = [_kind(shape, mask, need) for shape, mask in zip(shapes, masks, strict=True)]
        for host, kind in enumerate(self._kind_of):
            if kind[0]:
                self._hosts(kind).add(host)
        counts = [-kind[0] for kind in self._kind_of]
        #: pods that all hosts together can hold
        self.total = sum(counts)
        # per level: pods per group
        most = max((shape.leaves for shape in set(shapes)), default=0) // need.gpus
        self._groups: list[Counts] = []
        for spans in layout.spans:
            largest = max((end - start for start, end in spans), default=0)
            self._groups.append(Counts([sum(counts[start:end]) for start, end in spans], largest * most))

    def _hosts(self, kind: _Kind) -> IndexSet:
        hosts = self._by_kind.get(kind)
        if hosts is None:
            hosts = self._by_kind[kind] = IndexSet(self.layout.hosts)
            insort(self._kinds, kind)
        return hosts

    def count(self, host: int, shape: Shape, mask: int) -> None:
        """Update a host whose usable leaves are now ``mask``. O(levels), O(1) when its kind stays the same."""
        old, new = self._kind_of[host], _kind(shape, mask, self.need)
        if old == new:
            return
        self._kind_of[host] = new
        if old[0]:
            self._by_kind[old].remove(host)
        if new[0]:
            self._hosts(new).add(host)
        change = old[0] - new[0]
        if change:
            self.total += change
            for of_host, groups in zip(self.layout.of_host, self._groups, strict=True):
                if of_host[host] >= 0:
                    groups.add(of_host[host], change)

    def of_host(self, host: int) -> int:
        """Pods that ``host`` can hold."""
        return -self._kind_of[host][0]

    def most(self) -> int:
        """The largest number of pods that one host can hold. O(kinds)."""
        return next((-kind[0] for kind in self._kinds if self._by_kind[kind]), 0)

    def groups(self, above: int, pods: int) -> Iterator[int]:
        """The groups of a level that can hold ``pods`` pods, least to spare first, then by number."""
        return self._groups[above].ascending(pods)

    def spread(self, start: int, end: int, pods: int) -> list[tuple[int, int]]:
        """Spread pods over the fewest hosts of ``[start, end)``: (host, pods) pairs, ascending.

        Hosts that hold most are filled first; the remainder goes to the host where its pods are closest together, then
        where the fewest leaves remain. The hosts must be able to hold ``pods`` together.
        """
        chosen: list[tuple[int, int]] = []
        for i, kind in enumerate(self._kinds):
            hosts, holds = self._by_kind[kind], -kind[0]
            host = hosts.first_from(start)
            while 0 <= host < end:
                if pods < holds:
                    rest = self._tightest(host, start, end, i, pods)
                    chosen.append((rest, pods))
                    pods = 0
                else:
                    chosen.append((host, holds))
                    pods -= holds
                if not pods:
                    return sorted(chosen)
                host = hosts.first_from(host + 1)
        ensure(False, f"{pods} more pods of {self.need} fit on hosts {start} to {end - 1}")
        return []

    def _tightest(self, host: int, start: int, end: int, position: int, pods: int) -> int:
        """The host with the closest placement of ``pods``, then the fewest leaves: ``host``, or one of a later kind."""
        best = self._kinds[position][1:], host
        for kind in self._kinds[position + 1 :]:
            if -kind[0] < pods:
                break
            if kind[1:] < best[0]:
                other = self._by_kind[kind].first_from(start)
                if 0 <= other < end:
                    best = kind[1:], other
        return best[1]
