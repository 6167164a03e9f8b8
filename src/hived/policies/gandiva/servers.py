"""The servers of a VC as Gandiva sees them, and the choice of GPUs for a job: the first steps of its Algorithm 1.

The *affinity* of a server is the number of GPUs of the first job on it, 0 while it is empty (Gandiva, OSDI'18,
4.2): so jobs of one size are together, and leave GPUs that are close together for jobs of another size. Under a quota
the servers are those of the whole cluster, which all VCs share; else they are the hosts of the VC's own cells.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

#: numbers of a chain, and of a host of the VC in it
Host = tuple[int, int]
#: GPUs on hosts, each host once
Spread = tuple[tuple[Host, int], ...]


class Servers:
    """Servers by affinity and free GPUs. A change or a choice costs O(log servers + sizes of jobs squared)."""

    def __init__(self, hosts: Iterable[tuple[Host, int, int]]) -> None:
        """``hosts``: with their GPUs and the free ones among them."""
        self.gpus: dict[Host, int] = {}
        self.free: dict[Host, int] = {}
        #: GPUs of the first job on a host
        self.affinity: dict[Host, int] = {}
        #: number of jobs on a host, those included that only share its GPUs
        self.jobs: dict[Host, int] = {}
        #: free GPUs of all servers
        self.idle = 0
        #: GPUs of the largest server
        self.widest = 1
        #: number of servers in use with 3 of 4 GPUs free, if all are of one size
        self.nearly_empty = 0
        self._at: dict[tuple[int, int], list[Host]] = {}
        hosts = list(hosts)
        #: GPUs of the smallest
        self.smallest = min([gpus for _, gpus, _ in hosts], default=1 << 30)
        for host, gpus, free in hosts:
            self.gpus[host], self.free[host], self.jobs[host] = gpus, free, 0
            # what is in use belongs to jobs that this index was not told about
            self.affinity[host] = gpus if free < gpus else 0
            self.widest = max(self.widest, gpus)
            self.idle += free
            self._add(host)

    def _add(self, host: Host) -> None:
        affinity, free = key = self.affinity[host], self.free[host]
        if affinity and 4 * free >= 3 * self.smallest:
            self.nearly_empty += 1
        hosts = self._at.get(key)
        if hosts is None:
            self._at[key] = [host]
        else:
            insort(hosts, host)

    def _remove(self, host: Host) -> None:
        affinity, free = key = self.affinity[host], self.free[host]
        if affinity and 4 * free >= 3 * self.smallest:
            self.nearly_empty -= 1
        hosts = self._at[key]
        del hosts[bisect_left(hosts, host)]
        if not hosts:
            del self._at[key]

    def allocate(self, spread: Spread, gpus: int) -> None:
        """A job of ``gpus`` GPUs has taken these."""
        for host, number in spread:
            self._remove(host)
            if not self.jobs[host]:
                self.affinity[host] = min(gpus, self.gpus[host])
            self.jobs[host] += 1
            self.free[host] -= number
            self.idle -= number
            self._add(host)

    def release(self, spread: Spread) -> None:
        """A job has left these."""
        for host, number in spread:
            self._remove(host)
            self.jobs[host] -= 1
            self.free[host] += number
            self.idle += number
            if not self.jobs[host]:
                self.affinity[host] = 0
            self._add(host)

    def choose(self, gpus: int, together: bool = False) -> Spread | None:
        """GPUs for a job, by the first three steps of Algorithm 1; None: too few are free.

        Free GPUs of a server of the job's own affinity, the least loaded first; empty servers with enough GPUs
        together; any free GPUs, on as few servers as hold them. ``together``: on one server if one can hold it.
        """
        if gpus > self.idle:
            return None
        if gpus > self.widest:
            return self._whole(gpus) or (None if together else self._scattered(gpus))
        found = self._of_affinity(gpus, gpus) or self._of_affinity(0, gpus) or self._on_any(gpus)
        if found is not None:
            return ((found, gpus),)
        return None if together else self._scattered(gpus)

    def _of_affinity(self, affinity: int, gpus: int) -> Host | None:
        """The server of this affinity with the most free GPUs; of empty ones the smallest that suffices."""
        sizes = range(gpus, self.widest + 1) if not affinity else range(self.widest, gpus - 1, -1)
        for free in sizes:
            hosts = self._at.get((affinity, free))
            if hosts:
                return hosts[0]
        return None

    def _on_any(self, gpus: int) -> Host | None:
        """The server of any affinity with the fewest free GPUs that suffice."""
        best = min((key[1] for key in self._at if key[1] >= gpus), default=0)
        return min((hosts[0] for key, hosts in self._at.items() if key[1] == best), default=None) if best else None

    def _whole(self, gpus: int) -> Spread | None:
        """Empty servers of the largest size, as many as a job fills."""
        number = -(-gpus // self.widest)
        hosts = self._at.get((0, self.widest), [])
        return tuple([(host, self.widest) for host in hosts[:number]]) if len(hosts) >= number else None

    def _scattered(self, gpus: int) -> Spread | None:
        """The most free GPUs first."""
        found: list[tuple[Host, int]] = []
        for key in sorted(self._at, key=lambda key: (-key[1], key[0])):
            for host in self._at[key] if key[1] else ():
                number = min(gpus, key[1])
                found.append((host, number))
                gpus -= number
                if not gpus:
                    return tuple(sorted(found))
        return None

    def by_free(self) -> Iterator[Host]:
        """Servers in use that have free GPUs, the most free first."""
        for key in sorted(self._at, key=lambda key: (-key[1], key[0])):
            if key[0] and key[1]:
                yield from list(self._at[key])
