"""Which devices are kept from new jobs, and why: found bad, drained by the owner, or held by a job beyond the core."""

from __future__ import annotations

from collections.abc import Iterable

from hived.cluster.cluster import Cluster
from hived.engines.hardware import Hardware
from hived.spec.compiled import Device


class Health(Hardware):
    """Devices of one machine. Facts stay known while a spec lacks the device."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        #: why, by device
        self.bad: dict[Device, str] = {}
        #: an ordered set
        self.drained: dict[Device, None] = {}
        #: held by jobs to which the core cannot attribute them
        self.claimed: set[Device] = set()

    def set_bad(self, place: Device, why: str | None) -> bool:
        """It was found bad or (None) healthy; whether that is news."""
        if self.bad.get(place) == why:
            return False
        if why is None:
            del self.bad[place]
        else:
            self.bad[place] = why
        self._changed.add(place[0])
        return True

    def set_drained(self, chosen: Iterable[Device], drained: bool) -> bool:
        """Keep jobs off, or not any more; whether that changes anything."""
        news = [place for place in chosen if (place in self.drained) is not drained]
        for place in news:
            if drained:
                self.drained[place] = None
            else:
                del self.drained[place]
            self._changed.add(place[0])
        return bool(news)

    def set_claimed(self, places: Iterable[Device]) -> None:
        """These are held by jobs to which the core cannot attribute them, and no others."""
        before, self.claimed = self.claimed, set(places)
        self._changed.update(node for node, _ in before ^ self.claimed)

    def wanted(self, node: str) -> tuple[str | None, dict[int, str]]:
        """Single devices; why they are kept from jobs is no news to the core."""
        kept = (self.bad, self.drained, self.claimed)
        return None, {device: "kept" for device in self.devices[node] if any((node, device) in of for of in kept)}
