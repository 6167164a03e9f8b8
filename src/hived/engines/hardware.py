"""Hardware of a spec, and what of it is kept from jobs: the core is told what differs from what it was told before."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hived.cluster.cluster import Cluster
from hived.spec.compiled import OPPORTUNISTIC_GRACE_SECONDS, Device


class Hardware(ABC):
    """Facts about nodes and devices, and the core kept equal to them. A change costs O(the node)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.again()

    def again(self) -> None:
        """The spec has changed: the next :meth:`apply` tells the core of all that is bad once more."""
        spec = self._cluster.spec
        devices: dict[str, list[int]] = {}
        for name, device in spec.devices():
            devices.setdefault(name, []).append(device)
        #: devices of every node of the spec
        self.devices = {name: tuple(found) for name, found in devices.items()}
        self._reserved = {vc.name: spec.reserved(vc) for vc in spec.virtual_clusters}
        self._grace = {vc.name: vc.opportunistic_grace_seconds for vc in spec.virtual_clusters}
        #: nodes of the spec that no job may come to: why
        self.bad_nodes: dict[str, str] = {}
        #: single devices of other nodes that none may come to: why
        self.bad_devices: dict[Device, str] = {}
        #: nodes of which something may be news since :meth:`apply`
        self._changed = set(self.devices)

    @abstractmethod
    def wanted(self, node: str) -> tuple[str | None, dict[int, str]]:
        """Why a node is kept from jobs (None: it is not), and else which of its devices are, and why."""

    def apply(self) -> list[str]:
        """Tell the core what is new; the nodes of the spec that changed, by name."""
        news = [name for name in sorted(self._changed) if name in self.devices and self._apply(name)]
        self._changed.clear()
        return news

    def _apply(self, name: str) -> bool:
        why, devices = self.wanted(name)
        was_bad, before = self._told(name)
        if (was_bad, before) == (why, devices):
            return False
        for device in before:
            del self.bad_devices[name, device]
        self.bad_devices.update(((name, device), words) for device, words in devices.items())
        if why is None:
            self.bad_nodes.pop(name, None)
        else:
            self.bad_nodes[name] = why
        if (why is None) is not (was_bad is None):
            self._cluster.set_node_health(name, healthy=why is None)
            before = {}
        for device in self.devices[name] if why is None else ():
            if (device in devices) is not (device in before):
                self._cluster.set_device_health(name, device, healthy=device not in devices)
        return True

    def _told(self, name: str) -> tuple[str | None, dict[int, str]]:
        """What was last wanted of a node, and the core was told."""
        return self.bad_nodes.get(name), {
            device: why for device in self.devices[name] if (why := self.bad_devices.get((name, device))) is not None
        }

    def reserved_gpus(self, vc: str) -> int:
        """GPUs that a VC reserved; 0 for none of the spec."""
        return self._reserved.get(vc, 0)

    def grace_of_loans(self, vc: str) -> int:
        """Seconds that a loan may have between SIGTERM and SIGKILL, at most."""
        return self._grace.get(vc, OPPORTUNISTIC_GRACE_SECONDS)
