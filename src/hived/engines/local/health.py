"""Health of the devices of one machine: what broke, what is drained, and what jobs hold beyond the core's knowledge."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from hived.cluster.cluster import Cluster
from hived.engine.hardware import Hardware
from hived.spec.compiled import Device


class DrainedBy(NamedTuple):
    """Who has drained a device, and why."""

    user: str = ""  #: "": of a version that did not keep that
    reason: str = ""  #: "": none was given

    @property
    def text(self) -> str:
        """``by dana: a fan``."""
        return ": ".join(filter(None, (self.user and f"by {self.user}", self.reason)))


BY_NOBODY = DrainedBy()


class Health(Hardware):
    """Health of the devices of one machine. It is remembered while a spec lacks the device."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        #: bad devices, and why
        self.bad: dict[Device, str] = {}
        #: drained devices
        self.drained: dict[Device, DrainedBy] = {}
        #: devices held by jobs to which the core cannot attribute them
        self.claimed: set[Device] = set()

    def set_bad(self, place: Device, why: str | None) -> bool:
        """Mark a device bad or (None) healthy. Returns whether that is a change."""
        if self.bad.get(place) == why:
            return False
        if why is None:
            del self.bad[place]
        else:
            self.bad[place] = why
        self._changed.add(place[0])
        return True

    def set_drained(self, chosen: Iterable[Device], drained: bool, by: DrainedBy = BY_NOBODY) -> bool:
        """Drain devices, or undo that. Returns whether that is a change."""
        changed = False
        for place in chosen:
            is_drained = place in self.drained
            changed |= is_drained is not drained or (drained and self.drained[place] != by)
            if is_drained is not drained:
                self._changed.add(place[0])
            if drained:
                self.drained[place] = by
            else:
                self.drained.pop(place, None)
        return changed

    @property
    def faulty(self) -> Collection[Device]:
        """Bad devices."""
        return self.bad

    @property
    def kept(self) -> Collection[Device]:
        """Drained devices."""
        return self.drained

    def why(self, place: Device) -> str:
        """See :meth:`Hardware.why`."""
        return self.bad.get(place) or self.drained.get(place, BY_NOBODY).text

    def set_claimed(self, places: Iterable[Device]) -> None:
        """Set the devices held by jobs to which the core cannot attribute them."""
        before, self.claimed = self.claimed, set(places)
        self._changed.update(node for node, _ in before ^ self.claimed)

    def beyond(self) -> int:
        """See :meth:`Hardware.beyond`. O(devices of jobs that the core lacks)."""
        return sum(device not in self.devices.get(node, ()) for node, device in self.claimed)

    def wanted(self, node: str) -> tuple[str | None, dict[int, str]]:
        """Devices that take no jobs. The reason is the same for all: a change of it alone is no change to the core."""
        kept = (self.bad, self.drained, self.claimed)
        return None, {device: "kept" for device in self.devices[node] if any((node, device) in of for of in kept)}
