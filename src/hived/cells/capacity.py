"""How many pods of one kind every host, and every cell above the hosts, can hold.

A gang of equal pods asks three things: which cell can hold it and has the least to spare, which hosts there hold most,
and which host the remainder fits on most tightly. Each is one look-up here, so the hosts are never gone through.

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

#: of a host: -pods it holds, level of the closest pod, leaves it has
_Kind = tuple[int, int, int]


@lru_cache(100_000)  # large hosts have many masks, and few kinds
def _kind(shape: Shape, mask: int, need: Need) -> _Kind:
    level = need.level or shape.profile(mask).level_for(need.gpus)
    return -count_of(shape, mask, need), level, mask.bit_count()


class Counts:
    """Things ``0 .. n-1`` in the order of how many each has of something, then by number."""

    def __init__(self, counts: list[int], most: int) -> None:
        """``counts``: of each now; ``most``: that one of them can have. O(n)."""
        #: of each; to be read, not changed
        self.counts = counts
        self._order = IndexSet((most + 1) * max(1, len(counts)))
        for number, count in enumerate(counts):
            self._order.add(count * len(counts) + number)

    def add(self, number: int, more: int) -> None:
        """``number`` has so many more. O(1)."""
        n, count = len(self.counts), self.counts[number]
        self._order.remove(count * n + number)
        self.counts[number] = count + more
        self._order.add((count + more) * n + number)

    def ascending(self, least: int) -> Iterator[int]:
        """Those that have ``least`` or more, the fewest first, then the lowest number."""
        n = len(self.counts)
        key = self._order.first_from(least * n)
        while key >= 0:
            yield key % n
            key = self._order.first_from(key + 1)

    def validate(self, counts: list[int]) -> None:
        """The counts are these, and in order. O(n)."""
        ensure(counts == self.counts, "counts")
        ensure(list(self._order) == sorted(c * len(counts) + i for i, c in enumerate(counts)), "order of counts")


class Layout:
    """The cells above the hosts: per level, where each group's hosts start and end."""

    def __init__(self, hosts: int, groups: Sequence[Sequence[int]]) -> None:
        """``groups[j][host]``: the host's group ``j`` levels above, -1 for none; hosts of a group stand together."""
        #: number of hosts
        self.hosts = hosts
        #: what it was made from
        self.of_host = groups
        #: per level and group: its first host, and the one after its last; (0, 0) for a number that is not used
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

    Building is O(hosts), a host that changes O(levels), finding k hosts O(levels + k + kinds of host).
    """

    def __init__(self, need: Need, layout: Layout, shapes: Sequence[Shape], masks: Sequence[int]) -> None:
        """``masks``: the leaves that count, per host."""
        #: what a pod needs
        self.need = need
        self.layout = layout
        #: how much of its owner's log of changes is counted in; kept by the owner
        self.seen = 0
        # Kinds ascend from the most pods, and among equals from the closest, then the tightest. Per kind that holds
        # any: its hosts.
        self._by_kind: dict[_Kind, IndexSet] = {}
        self._kinds: list[_Kind] = []
        self._kind_of = [_kind(shape, mask, need) for shape, mask in zip(shapes, masks, strict=True)]
        for host, kind in enumerate(self._kind_of):
            if kind[0]:
                self._hosts(kind).add(host)
        counts = [-kind[0] for kind in self._kind_of]
        #: pods that all hosts hold
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
        """The leaves of ``host`` that count are now ``mask``. O(levels), O(1) when its kind stays the same."""
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
        """Pods that ``host`` holds."""
        return -self._kind_of[host][0]

    def most(self) -> int:
        """Pods that the host which holds most can have. O(kinds)."""
        return next((-kind[0] for kind in self._kinds if self._by_kind[kind]), 0)

    def groups(self, above: int, pods: int) -> Iterator[int]:
        """The groups of a level that hold so many pods, those with the least to spare first, then by number."""
        return self._groups[above].ascending(pods)

    def spread(self, start: int, end: int, pods: int) -> list[tuple[int, int]]:
        """Hosts from ``start`` to before ``end`` with the number of pods each gets: as few hosts as can be, ascending.

        The hosts that hold most are filled first, the remainder goes where the pods stand closest, and then the fewest
        leaves stay. Together they must hold ``pods``.
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
        """The host where ``pods`` stand closest, then with the fewest leaves: ``host``, or one of a later kind."""
        best = self._kinds[position][1:], host
        for kind in self._kinds[position + 1 :]:
            if -kind[0] < pods:
                break
            if kind[1:] < best[0]:
                other = self._by_kind[kind].first_from(start)
                if 0 <= other < end:
                    best = kind[1:], other
        return best[1]

    def validate(self, shapes: Sequence[Shape], masks: Sequence[int]) -> None:
        """Everything equals what building it afresh gives. O(hosts)."""
        fresh = Capacity(self.need, self.layout, shapes, masks)
        ensure(self._kind_of == fresh._kind_of, f"kinds of hosts for {self.need}")
        ensure(self.total == fresh.total, f"pods that fit for {self.need}")
        for groups, others in zip(self._groups, fresh._groups, strict=True):
            groups.validate(others.counts)
        ensure(self._kinds == sorted(self._by_kind), f"order of kinds for {self.need}")
        filled = {kind: hosts for kind, hosts in self._by_kind.items() if hosts}
        ensure(filled == fresh._by_kind, f"hosts by kind for {self.need}")
