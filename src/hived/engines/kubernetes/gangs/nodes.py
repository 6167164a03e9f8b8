"""Nodes and devices that are kept from jobs, and why: not ready, cordoned, missing, marked, or used by unknown pods."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from hived.cluster.cluster import Cluster
from hived.engine.hardware import Hardware
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Node
from hived.engines.kubernetes.pods.pod_request import advertised
from hived.spec.compiled import Device
from hived.words import plural


class _Known(NamedTuple):
    """State of a node in Kubernetes."""

    ready: bool
    cordoned: bool
    marked: frozenset[int] | None  #: devices that its annotation names; None: the annotation is invalid
    gpus: int | None  #: number of devices that it advertises; None: it advertises none, and need not


class Nodes(Hardware):
    """Nodes as Kubernetes has them, and devices on them that pods of no gang may use."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._known: dict[str, _Known] = {}
        #: per node and pod of no gang: devices that it may use (None: any of the node), and why
        self._held: dict[str, dict[str, tuple[tuple[int, ...] | None, str]]] = {}
        self._holders: dict[str, str] = {}

    # -- updates --------------------------------------------------------------------------------------------------

    def replace(self, nodes: Iterable[Node]) -> None:
        """Replace all nodes."""
        there = {node.metadata.name: _read(node) for node in nodes}
        self._changed.update(self._known.keys() ^ there.keys())
        self._changed.update(name for name, known in there.items() if self._known.get(name) != known)
        self.recount |= self._changed
        self._known = there

    def changed(self, node: Node) -> None:
        """Add or update a node."""
        name, known = node.metadata.name, _read(node)
        if self._known.get(name) != known:
            self._known[name] = known
            self._changed.add(name)
            self.recount.add(name)

    def removed(self, name: str) -> None:
        """Remove a node."""
        if self._known.pop(name, None) is not None:
            self._changed.add(name)
            self.recount.add(name)

    def hold(self, uid: str, node: str, devices: tuple[int, ...] | None, why: str) -> None:
        """Keep ``devices`` (None: all) from jobs for a pod of no gang that may use them."""
        self.free(uid)
        self._held.setdefault(node, {})[uid] = devices, why
        self._holders[uid] = node
        self._changed.add(node)

    def free(self, uid: str) -> str | None:
        """Free the devices kept for a pod, and return its node; None: none were."""
        node = self._holders.pop(uid, None)
        if node is not None:
            del self._held[node][uid]
            if not self._held[node]:
                del self._held[node]
            self._changed.add(node)
        return node

    def may_be_used(self, node: str, devices: Iterable[int]) -> bool:
        """Whether a pod of no gang may use one of these devices."""
        held = self._held.get(node, {}).values()
        return any(taken_devices is None or not set(taken_devices).isdisjoint(devices) for taken_devices, _ in held)

    def held_by_others(self, node: str, than: Container[str]) -> set[int]:
        """Known devices that pods of no gang may use, without the pods in ``than``."""
        held = ((uid, devices) for uid, (devices, _) in self._held.get(node, {}).items())
        return {device for uid, devices in held if uid not in than for device in devices or ()}

    def held(self, uid: str) -> tuple[int, ...] | None:
        """Devices that a pod of no gang may use; None: none, or unknown."""
        node = self._holders.get(uid)
        return None if node is None else self._held[node][uid][0]

    def lacking(self, node: str) -> tuple[int, str]:
        """Number of devices of the spec that a node does not advertise, beside marked ones; and why they are kept."""
        known, there = self._known.get(node), self.devices.get(node, ())
        if known is None or known.gpus is None or known.gpus >= len(there):
            return 0, ""
        number = len(there) - known.gpus - len((known.marked or frozenset()).intersection(there))
        return max(0, number), f"it advertises {known.gpus:,} of its {len(there):,} GPUs (allocatable)"

    def marked(self, node: str) -> frozenset[int]:
        """Devices that the node's annotation keeps from jobs."""
        known = self._known.get(node)
        return known.marked or frozenset() if known is not None else frozenset()

    def again(self) -> None:
        """Rebuild the state by node after a change of the spec."""
        super().again()
        #: nodes whose numbers of devices may have changed, by Kubernetes or by a spec
        self.recount = set(self.devices)
        #: per node: devices per cell inside it, from small to large (of its first chain, if it has several)
        self.cells: dict[str, tuple[int, ...]] = {}
        for chain in self._cluster.spec.chains:
            sizes = tuple(level.gpus for level in chain.levels[1 : chain.node_level - 1])
            for name in chain.node_names:
                self.cells.setdefault(name, sizes)
        #: nodes of the spec that are open to jobs
        self.healthy = set(self.devices)
        #: devices kept from jobs: for a fault; or since the node is cordoned, or for a pod of no gang
        self._faulty: set[Device] = set()
        self._kept: set[Device] = set()

    @property
    def faulty(self) -> set[Device]:
        """See :attr:`Hardware.faulty`."""
        return self._faulty

    @property
    def kept(self) -> set[Device]:
        """See :attr:`Hardware.kept`: a node is cordoned, or a pod of no gang may use the device."""
        return self._kept

    # -- updates of the core --------------------------------------------------------------------------------------

    def wanted(self, node: str) -> tuple[str | None, dict[int, str]]:
        """Why the node is bad, or why single devices are: by Kubernetes, or for pods of no gang."""
        known = self._known.get(node)
        if known is None:
            return "there is no node of that name in Kubernetes", {}
        if not known.ready:
            return "it is not ready", {}
        if known.cordoned:
            return "it is cordoned", {}
        if known.marked is None:
            return f"its annotation {keys.BAD_DEVICES} cannot be read: write numbers, as in 0,3 or 4-7", {}
        there = self.devices[node]
        devices = {device: f"marked by its annotation {keys.BAD_DEVICES}" for device in there if device in known.marked}
        for held, why in self._held.get(node, {}).values():
            if held is None:
                return why, {}
            devices.update((device, why) for device in held if device in there and device not in known.marked)
        return None, devices

    def _apply(self, name: str) -> bool:
        news = super()._apply(name)
        if news:
            (self.healthy.discard if name in self.bad_nodes else self.healthy.add)(name)
        faulty, kept = self._kept_devices(name)  # the marks of a bad node may have changed
        for known, now in ((self._faulty, faulty), (self._kept, kept)):
            known.difference_update([(name, device) for device in self.devices[name]])
            known |= now
        return news

    def _kept_devices(self, name: str) -> tuple[set[Device], set[Device]]:
        """Devices of a node that are kept from jobs: for a fault, and for another reason."""
        there = ((name, device) for device in self.devices[name])
        shut = {place for place in there if name in self.bad_nodes or place in self.bad_devices}
        known = self._known.get(name)
        if known is None or not known.ready or known.marked is None:
            return shut, set()
        gone = known.marked.union(self.held(lack_of(name)) or ())
        faulty = {(node, device) for node, device in shut if device in gone}
        return faulty, shut - faulty

    # -- queries --------------------------------------------------------------------------------------------------

    def situation(self, name: str) -> str:
        """The devices of a node of the spec that are kept from jobs, and why, in words. O(its devices)."""
        if name in self.bad_nodes:
            return f"{name} is kept from jobs: {self.bad_nodes[name]}"
        parts = [
            f"{plural(len(devices), 'GPU')} {', '.join(map(str, sorted(devices)))} of {name} "
            f"{'is' if len(devices) == 1 else 'are'} kept from jobs: {why}"
            for why, devices in self.bad_parts(name).items()
        ]
        return "; ".join(parts) or f"{name} is healthy"

    def bad_parts(self, name: str) -> dict[str, list[int]]:
        """Single devices of a node that are kept from jobs, by reason. O(its devices)."""
        found: dict[str, list[int]] = {}
        for device in self.devices.get(name, ()):
            if (why := self.bad_devices.get((name, device))) is not None:
                found.setdefault(why, []).append(device)
        return found

    def lost(self, name: str) -> bool:
        """Whether a node is gone or not ready: nobody there ends a pod that is being deleted."""
        known = self._known.get(name)
        return known is None or not known.ready

    def usable(self, node: str, devices: Iterable[int]) -> bool:
        """Whether jobs may start on these devices."""
        return node in self.healthy and not any((node, device) in self.bad_devices for device in devices)

    @property
    def missing(self) -> list[str]:
        """Nodes of the spec that are missing in Kubernetes. O(nodes)."""
        return sorted(self.devices.keys() - self._known.keys())

    @property
    def unmanaged(self) -> int:
        """Number of nodes in Kubernetes that the spec lacks. O(nodes)."""
        return len(self._known.keys() - self.devices.keys())

    @property
    def drained(self) -> set[str]:
        """Nodes of the spec that are cordoned. O(nodes)."""
        return {name for name, known in self._known.items() if known.cordoned and name in self.devices}


def lack_of(node: str) -> str:
    """The holder of the devices that a node does not advertise, in place of a pod's uid."""
    return f"what {node} lacks"


def _read(node: Node) -> _Known:
    text = (node.metadata.annotations or {}).get(keys.BAD_DEVICES, "")
    return _Known(node.ready, bool(node.spec.unschedulable), _numbers(text), advertised(node))


def _numbers(text: str) -> frozenset[int] | None:
    """``0,3`` and ``4-7`` as numbers; None: invalid."""
    found: set[int] = set()
    for word in text.replace(",", " ").split():
        first, dash, last = word.partition("-")
        ends = (first, last if dash else first)
        if not all(end.isdecimal() and len(end) < 5 for end in ends):
            return None
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(found)
