"""Hosts that are wholly free, grouped by the cells above them: for jobs that need several nodes close together."""

from __future__ import annotations

from collections.abc import Sequence

from hived.errors import ensure

from .index_set import IndexSet


class WholeHosts:
    """A set of hosts and, per level above them, how many each cell of that level has in the set.

    ``groups[j][host]`` is the number of the host's cell at the ``j``-th level above, or -1 where it has none; hosts of
    one group stand together. Adding and removing cost O(levels); finding ``k`` hosts O(levels + k).
    """

    __slots__ = ("_by_count", "_counts", "_groups", "_starts", "hosts", "roomiest", "size")

    def __init__(self, n: int, groups: Sequence[Sequence[int]], roomiest: bool = False) -> None:
        """``roomiest``: :meth:`closest` prefers the cell with the most to spare, not the fewest."""
        #: which cell :meth:`closest` prefers
        self.roomiest = roomiest
        #: the set itself
        self.hosts = IndexSet(n)
        #: how many hosts it has
        self.size = 0
        self._groups = groups
        self._starts: list[list[int]] = []
        self._counts: list[list[int]] = []
        # groups by number of free hosts: the first with at least k is the smallest hole that will do
        self._by_count: list[IndexSet] = []
        for of_host in groups:
            number = max(of_host, default=-1) + 1
            starts = [-1] * number
            sizes = [0] * number
            for host, group in enumerate(of_host):
                if group >= 0:
                    if starts[group] < 0:
                        starts[group] = host
                    sizes[group] += 1
            self._starts.append(starts)
            self._counts.append([0] * number)
            order = IndexSet((max(sizes, default=0) + 1) * max(number, 1))
            for group in range(number):
                order.add(group)
            self._by_count.append(order)

    def add(self, host: int) -> None:
        """``host`` became wholly free."""
        self.hosts.add(host)
        self.size += 1
        if self._groups:
            self._count(host, 1)

    def remove(self, host: int) -> None:
        """``host`` is no longer wholly free."""
        self.hosts.remove(host)
        self.size -= 1
        if self._groups:
            self._count(host, -1)

    def _count(self, host: int, change: int) -> None:
        for of_host, counts, order in zip(self._groups, self._counts, self._by_count, strict=True):
            group = of_host[host]
            if group >= 0:
                n, count = len(counts), counts[group]
                order.remove(count * n + group)
                counts[group] = count + change
                order.add((count + change) * n + group)

    def closest(self, k: int) -> tuple[int, ...] | None:
        """``k`` hosts of the set under one cell of the lowest level that has so many; ``None`` when there are too few.

        Among the cells of that level the one with the fewest to spare is taken (or the most: ``roomiest``); hosts
        ascend.
        """
        if k > self.size:
            return None
        start = 0
        for starts, counts, order in zip(self._starts, self._counts, self._by_count, strict=True):
            if counts:
                key = order.last() if self.roomiest else order.first_from(k * len(counts))
                if key >= k * len(counts):
                    start = starts[key % len(counts)]
                    break
        chosen = []
        host = self.hosts.first_from(start)
        for _ in range(k):
            chosen.append(host)
            host = self.hosts.first_from(host + 1)
        return tuple(chosen)

    def validate(self) -> None:
        """Counts and orders re-derived from the set. O(hosts)."""
        ensure(self.size == len(self.hosts), "number of whole hosts")
        for of_host, counts, order in zip(self._groups, self._counts, self._by_count, strict=True):
            derived = [0] * len(counts)
            for host in self.hosts:
                if of_host[host] >= 0:
                    derived[of_host[host]] += 1
            ensure(derived == counts, "whole hosts per group")
            ensure(list(order) == sorted(c * len(counts) + g for g, c in enumerate(counts)), "groups by count")
