"""The slicers of all VCs: who is called when, and which of them have something to do before a dispatch ends.

Under a quota the VCs share the servers of the cluster, so every guaranteed job counts on them, also one of a VC whose
jobs do not take turns. Else each VC has servers of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from hived.cluster.cluster import Cluster
from hived.cluster.sharing import Sharing

from ..checked_policy import Policies
from ..instructions import Instruction
from ..queue import Entry
from .probe import Probe
from .servers import Servers
from .slicer import Slicer, Take


class Slicers:
    """One slicer per VC whose jobs take turns, made when its first job comes. Calls cost O(1) beyond the slicers'."""

    def __init__(
        self,
        policies: Policies,
        cluster: Cluster,
        take: Take,
        carry_out: Callable[[Instruction], None],
        probe: Probe,
        per_second: float,
    ) -> None:
        self._policies, self._cluster, self._probe = policies, cluster, probe
        self._take, self._carry_out, self._per_second = take, carry_out, per_second
        self._of: dict[str, Slicer | None] = {}
        # under a quota: of all VCs
        self._servers: Servers | None = None
        # VCs whose slicers have something to do before the dispatch ends, and those of them with new jobs in line
        self._restless: dict[str, None] = {}
        self._new: set[str] = set()
        # when a slicer is called, and its VC, earliest first
        self._wakes: list[tuple[float, str]] = []

    def of(self, vc: str) -> Slicer | None:
        """The slicer of a VC; None where its jobs do not share GPUs. O(nodes) for the first time."""
        try:
            return self._of[vc]
        except KeyError:
            slicer = self._of[vc] = self._made(vc)
            return slicer

    def _made(self, vc: str) -> Slicer | None:
        if self._servers is None and self._cluster.sharing is Sharing.QUOTA:
            self._servers = Servers(self._cluster.hosts(vc))
        parameters = self._policies[vc].time_slicing
        if parameters is None:
            return None
        return Slicer(
            parameters,
            self._servers or Servers(self._cluster.hosts(vc)),
            self._cluster,
            self._take,
            self._carry_out,
            self._probe,
            lambda at: heappush(self._wakes, (at, vc)),
            lambda: self._restless.setdefault(vc),
            self._per_second,
        )

    # -- jobs come and go ---------------------------------------------------------------------------------------------

    def queued(self, vc: str) -> None:
        """A job has joined a VC's line."""
        if self.of(vc) is not None:
            self._new.add(vc)
            self._restless[vc] = None

    def placed(self, entry: Entry, now: float) -> None:
        """A job has got guaranteed GPUs that no slicer has chosen."""
        slicer = self.of(entry.vc)
        if slicer is not None:
            slicer.adopt(entry, now)
        elif self._servers is not None:
            self._servers.take(self._cluster.hosts_of(entry.name), entry.view.gpus)

    def leaves(self, entry: Entry) -> None:
        """A guaranteed job is about to release its GPUs."""
        if self._servers is not None and self.of(entry.vc) is None:
            self._servers.give(self._cluster.hosts_of(entry.name))

    def left(self, entry: Entry, now: float) -> bool:
        """A guaranteed job has released its GPUs; whether its VC has a slicer."""
        slicer = self.of(entry.vc)
        if slicer is not None:
            slicer.leave(entry, now)
        return slicer is not None

    # -- a dispatch ---------------------------------------------------------------------------------------------------

    @property
    def next_wake(self) -> float:
        """When :meth:`wake` has something to do; infinity for never."""
        return self._wakes[0][0] if self._wakes else inf

    def wake(self, now: float) -> None:
        """Call the slicers whose time has come."""
        while self._wakes and self._wakes[0][0] <= now:
            slicer = self._of[heappop(self._wakes)[1]]
            if slicer is not None:
                slicer.wake(now)

    def unsettled(self) -> list[tuple[str, Slicer]]:
        """VCs in which GPUs have become free or jobs have come since the last call."""
        found = []
        for vc in self._restless:
            slicer = self._of[vc]
            if slicer is not None and (slicer.changed or slicer.moved or vc in self._new):
                self._new.discard(vc)
                found.append((vc, slicer))
        return found

    def publish(self, now: float) -> None:
        """Tell the engine of the jobs whose turns have changed."""
        for vc in self._restless:
            slicer = self._of[vc]
            if slicer is not None:
                slicer.publish(now)
        self._restless.clear()

    def validate(self) -> None:
        """Check every slicer. O(jobs)."""
        for slicer in self._of.values():
            if slicer is not None:
                slicer.validate()
