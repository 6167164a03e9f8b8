"""Which nodes and devices are kept from jobs, and why: not ready, cordoned, missing, marked, or in unknown hands."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from hived.cluster.cluster import Cluster
from hived.engines.hardware import Hardware
from hived.engines.kubernetes.pods import keys
from hived.engines.kubernetes.pods.objects import Node
from hived.spec.compiled import Device
from hived.words import plural


class _Known(NamedTuple):
    """What Kubernetes says of a node."""

    ready: bool
    cordoned: bool
    marked: frozenset[int] | None  #: devices that its annotation names; None: that cannot be read


class Nodes(Hardware):
    """Nodes as Kubernetes has them, and pods on them of which nobody knows what they use."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._known: dict[str, _Known] = {}
        #: per node and pod of which nobody knows what it uses: its devices (None: any of the node), and why
        self._held: dict[str, dict[str, tuple[tuple[int, ...] | None, str]]] = {}
        self._holders: dict[str, str] = {}

    # -- facts ----------------------------------------------------------------------------------------------------

    def replace(self, nodes: Iterable[Node]) -> None:
        """All nodes that there are."""
        there = {node.metadata.name: _read(node) for node in nodes}
        self._changed.update(self._known.keys() ^ there.keys())
        self._changed.update(name for name, known in there.items() if self._known.get(name) != known)
        self._known = there

    def changed(self, node: Node) -> None:
        """A node is there, like this."""
        name, known = node.metadata.name, _read(node)
        if self._known.get(name) != known:
            self._known[name] = known
            self._changed.add(name)

    def gone(self, name: str) -> None:
        """A node is not there any more."""
        if self._known.pop(name, None) is not None:
            self._changed.add(name)

    def hold(self, uid: str, node: str, devices: tuple[int, ...] | None, why: str) -> None:
        """A pod runs there and may use ``devices`` (None: any), though no group has them: nobody else gets them."""
        self.free(uid)
        self._held.setdefault(node, {})[uid] = devices, why
        self._holders[uid] = node
        self._changed.add(node)

    def free(self, uid: str) -> str | None:
        """That pod is gone; the node of which it may have used something."""
        node = self._holders.pop(uid, None)
        if node is not None:
            del self._held[node][uid]
            if not self._held[node]:
                del self._held[node]
            self._changed.add(node)
        return node

    def may_be_used(self, node: str, devices: Iterable[int]) -> bool:
        """Whether a pod that is no gang's may be using one of these."""
        held = self._held.get(node, {}).values()
        return any(theirs is None or not set(theirs).isdisjoint(devices) for theirs, _ in held)

    def held_by_others(self, node: str, than: Container[str]) -> set[int]:
        """Devices that pods of no gang may be using, of those whose devices are known; without the pods in ``than``."""
        held = ((uid, devices) for uid, (devices, _) in self._held.get(node, {}).items())
        return {device for uid, devices in held if uid not in than for device in devices or ()}

    def held(self, uid: str) -> tuple[int, ...] | None:
        """Devices that a pod of no gang may be using; None: nothing, or nobody knows which."""
        node = self._holders.get(uid)
        return None if node is None else self._held[node][uid][0]

    def marked(self, node: str) -> frozenset[int]:
        """Devices that the node's annotation keeps from jobs."""
        known = self._known.get(node)
        return known.marked or frozenset() if known is not None else frozenset()

    def again(self) -> None:
        """The spec has changed."""
        super().again()
        #: per node: devices of the cells inside it, from small to large (of its first chain, where it has several)
        self.cells: dict[str, tuple[int, ...]] = {}
        for chain in self._cluster.spec.chains:
            sizes = tuple(level.gpus for level in chain.levels[1 : chain.node_level - 1])
            for name in chain.node_names:
                self.cells.setdefault(name, sizes)
        #: nodes of the spec that jobs may come to
        self.healthy = set(self.devices)
        #: devices that none may come to: for a fault; or since the node is cordoned, or a pod of no group is there
        self.faulty: set[Device] = set()
        self.kept: set[Device] = set()

    # -- telling the core -----------------------------------------------------------------------------------------

    def wanted(self, node: str) -> tuple[str | None, dict[int, str]]:
        """As Kubernetes says, and as pods use devices of which no group is known."""
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
        faulty, kept = self._shut(name)  # the marks of a node that is kept from jobs as a whole may have changed
        for known, now in ((self.faulty, faulty), (self.kept, kept)):
            known.difference_update([(name, device) for device in self.devices[name]])
            known |= now
        return news

    def _shut(self, name: str) -> tuple[set[Device], set[Device]]:
        """Devices of a node that jobs are kept from: for a fault, and for another reason."""
        there = ((name, device) for device in self.devices[name])
        shut = {place for place in there if name in self.bad_nodes or place in self.bad_devices}
        known = self._known.get(name)
        if known is None or not known.ready or known.marked is None:
            return shut, set()
        faulty = {(node, device) for node, device in shut if device in known.marked}
        return faulty, shut - faulty

    # -- looking --------------------------------------------------------------------------------------------------

    def situation(self, name: str) -> str:
        """What is kept from jobs of a node of the spec, and why, in words. O(its devices)."""
        if name in self.bad_nodes:
            return f"{name} is kept from jobs: {self.bad_nodes[name]}"
        parts = [
            f"{plural(len(devices), 'GPU')} {', '.join(map(str, sorted(devices)))} of {name} "
            f"{'is' if len(devices) == 1 else 'are'} kept from jobs: {why}"
            for why, devices in self.bad_parts(name).items()
        ]
        return "; ".join(parts) or f"{name} is healthy"

    def bad_parts(self, name: str) -> dict[str, list[int]]:
        """Single devices of a node that are kept from jobs, by the reason. O(its devices)."""
        found: dict[str, list[int]] = {}
        for device in self.devices.get(name, ()):
            if (why := self.bad_devices.get((name, device))) is not None:
                found.setdefault(why, []).append(device)
        return found

    @property
    def missing(self) -> list[str]:
        """Nodes of the spec that Kubernetes lacks. O(nodes)."""
        return sorted(self.devices.keys() - self._known.keys())

    @property
    def unmanaged(self) -> int:
        """How many nodes Kubernetes has that the spec lacks. O(nodes)."""
        return len(self._known.keys() - self.devices.keys())

    @property
    def drained(self) -> set[str]:
        """Nodes of the spec that are cordoned. O(nodes)."""
        return {name for name, known in self._known.items() if known.cordoned and name in self.devices}


def _read(node: Node) -> _Known:
    text = (node.metadata.annotations or {}).get(keys.BAD_DEVICES, "")
    return _Known(node.ready, bool(node.spec.unschedulable), _numbers(text))


def _numbers(text: str) -> frozenset[int] | None:
    """``0,3`` and ``4-7`` as numbers."""
    found: set[int] = set()
    for word in text.replace(",", " ").split():
        first, dash, last = word.partition("-")
        ends = (first, last if dash else first)
        if not all(end.isdecimal() and len(end) < 5 for end in ends):
            return None
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(found)
