"""Health of the devices of one machine: what broke, what is drained, and what jobs hold beyond the core's knowledge."""

from __future__ import annotations

from collections import ChainMap
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
        #: devices that are drained each by itself, and those that are with their node or the machine
        self.drained_alone: dict[Device, DrainedBy] = {}
        self.drained_along: dict[Device, DrainedBy] = {}
        #: all of them
        self.drained: ChainMap[Device, DrainedBy] = ChainMap(self.drained_alone, self.drained_along)
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

    def set_drained(
        self, chosen: Iterable[Device], drained: bool, by: DrainedBy = BY_NOBODY, whole: bool = False
    ) -> bool:
        """Drain devices, or undo that; ``whole``: of a node or the machine. Returns whether that is a change.

        A reason stays until another is given. A device that was drained by itself, for a reason, stays so when a node
        or the machine is not any more; one that is drained in both ways needs both undone.
        """
        changed = False
        for place in chosen:
            alone, along = self.drained_alone.get(place), self.drained_along.get(place)
            if drained:
                layer = self.drained_along if whole else self.drained_alone
                before = layer.get(place, BY_NOBODY)
                layer[place] = DrainedBy(by.user or before.user, by.reason or before.reason)
            elif whole or alone is None:
                self.drained_along.pop(place, None)
                if alone is not None and not alone.reason:
                    del self.drained_alone[place]
            else:
                del self.drained_alone[place]
            now = self.drained_alone.get(place), self.drained_along.get(place)
            changed |= now != (alone, along)
            if (place in self.drained) is not (alone is not None or along is not None):
                self._changed.add(place[0])
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
        return self.bad.get(place) or self.drained_by(place).text

    def drained_by(self, place: Device) -> DrainedBy:
        """Who drains a device, and why: by itself, or else with its node."""
        alone = self.drained_alone.get(place, BY_NOBODY)
        return alone if alone.reason else self.drained_along.get(place, alone)

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
