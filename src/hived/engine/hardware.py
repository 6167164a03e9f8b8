"""The hardware of a spec, and the nodes and devices kept from jobs. The core receives only the differences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Container

from hived.cluster.cluster import Cluster
from hived.spec.compiled import OPPORTUNISTIC_GRACE_SECONDS, Device


class Hardware(ABC):
    """Health of nodes and devices, and its synchronisation with the core. A change costs O(devices of the node)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.again()

    def again(self) -> None:
        """Start over after a change of the spec: the next :meth:`apply` reports all bad hardware to the core again."""
        spec = self._cluster.spec
        devices: dict[str, list[int]] = {}
        for name, device in spec.devices():
            devices.setdefault(name, []).append(device)
        #: devices of every node of the spec
        self.devices = {name: tuple(found) for name, found in devices.items()}
        self.resized()
        self._grace = {vc.name: vc.opportunistic_grace_seconds for vc in spec.virtual_clusters}
        #: nodes of the spec that take no jobs, and why
        self.bad_nodes: dict[str, str] = {}
        #: single devices, of other nodes, that take no jobs, and why
        self.bad_devices: dict[Device, str] = {}
        #: nodes that may have changed since :meth:`apply`
        self._changed = set(self.devices)

    def resized(self) -> None:
        """Follow a spec in which VCs have other numbers of cells, and nothing else is new. O(VCs)."""
        spec = self._cluster.spec
        self._reserved = {vc.name: spec.reserved(vc) for vc in spec.virtual_clusters}

    @abstractmethod
    def wanted(self, node: str) -> tuple[str | None, dict[int, str]]:
        """Why a node takes no jobs (None: it does), and if it does, its devices that take none, and why."""

    @property
    @abstractmethod
    def faulty(self) -> Collection[Device]:
        """Devices that take no jobs for a fault; the spec may lack some."""

    @property
    @abstractmethod
    def kept(self) -> Collection[Device]:
        """Other devices that take no new jobs; the spec may lack some."""

    def beyond(self) -> int:
        """Number of devices that jobs hold and the spec lacks: they were there when the jobs started."""
        return 0

    def why(self, place: Device) -> str:
        """Why a device of a node that takes jobs takes none, in words; "": it does, or its state says it."""
        return self.bad_devices.get(place, "")

    def idle_bad(self, held: Container[Device]) -> int:
        """Number of devices of the spec that take no jobs, and are not in ``held``. O(bad devices)."""
        bad = sum((node, device) not in held for node in self.bad_nodes for device in self.devices[node])
        return bad + sum(place not in held for place in self.bad_devices)

    def apply(self) -> list[str]:
        """Report changes to the core. Returns the names of the nodes of the spec that changed."""
        changed = [name for name in sorted(self._changed) if name in self.devices and self._apply(name)]
        self._changed.clear()
        return changed

    def _apply(self, name: str) -> bool:
        why, devices = self.wanted(name)
        was_bad, before = self._reported(name)
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

    def _reported(self, name: str) -> tuple[str | None, dict[int, str]]:
        """The answer of :meth:`wanted` for a node that was last reported to the core."""
        return self.bad_nodes.get(name), {
            device: why for device in self.devices[name] if (why := self.bad_devices.get((name, device))) is not None
        }

    def reserved_gpus(self, vc: str) -> int:
        """GPUs that a VC reserved; 0 for a VC that is not in the spec."""
        return self._reserved.get(vc, 0)

    def grace_of_loans(self, vc: str) -> int:
        """Upper bound of a VC's loans on the seconds between SIGTERM and SIGKILL."""
        return self._grace.get(vc, OPPORTUNISTIC_GRACE_SECONDS)
