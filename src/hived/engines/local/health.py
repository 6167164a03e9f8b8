"""Which devices are kept from new jobs, and why: found bad, drained by the owner, or held by a job beyond the core."""

from __future__ import annotations

from collections.abc import Iterable

from hived.cluster.cluster import Cluster
from hived.engines.places import Place, reserved_gpus
from hived.errors import RequestError


class Health:
    """What the core has been told of each device, kept equal to what is known. O(change)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: why, by device
        self.bad: dict[Place, str] = {}
        #: an ordered set
        self.drained: dict[Place, None] = {}
        #: held by jobs to which the core cannot attribute them
        self.claimed: set[Place] = set()
        self._told: set[Place] = set()
        self._changed: dict[Place, None] = {}
        self._reserved = reserved_gpus(cluster.spec)

    def set_bad(self, place: Place, why: str | None) -> bool:
        """It was found bad or (None) healthy; whether that is news."""
        if self.bad.get(place) == why:
            return False
        if why is None:
            del self.bad[place]
        else:
            self.bad[place] = why
        self._changed[place] = None
        return True

    def set_drained(self, chosen: Iterable[Place], drained: bool) -> bool:
        """Keep jobs off, or not any more; whether that changes anything."""
        news = [place for place in chosen if (place in self.drained) is not drained]
        for place in news:
            if drained:
                self.drained[place] = None
            else:
                del self.drained[place]
            self._changed[place] = None
        return bool(news)

    def set_claimed(self, places: Iterable[Place]) -> None:
        """These are held by jobs to which the core cannot attribute them, and no others."""
        before, self.claimed = self.claimed, set(places)
        self._changed |= dict.fromkeys(sorted(before ^ self.claimed))

    def apply(self) -> bool:
        """Tell the core what is new; whether anything was."""
        news = False
        for place in self._changed:
            bad = place in self.bad or place in self.drained or place in self.claimed
            if bad is not (place in self._told) and self._tell(place, bad):
                news = True
        self._changed.clear()
        return news

    def again(self) -> None:
        """The spec has changed: devices may have come and gone, and VCs."""
        self._reserved = reserved_gpus(self._cluster.spec)
        self._told.clear()
        self._changed = dict.fromkeys([*self.bad, *self.drained, *sorted(self.claimed)])
        self.apply()

    def _tell(self, place: Place, bad: bool) -> bool:
        try:
            self._cluster.set_device_health(*place, healthy=not bad)
        except RequestError:  # the spec has no such device any more
            return False
        if bad:
            self._told.add(place)
        else:
            self._told.discard(place)
        return True

    def reserved_gpus(self, vc: str) -> int:
        """GPUs that a VC reserved; 0 for none of the spec."""
        return self._reserved.get(vc, 0)
