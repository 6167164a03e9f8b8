"""Which nodes and devices are kept from jobs, and why: not ready, cordoned, missing, marked, or in unknown hands."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from hived.cluster.cluster import Cluster
from hived.engines.places import Place, places, reserved_gpus
from hived.errors import ensure
from hived.spec.compiled import OPPORTUNISTIC_GRACE_SECONDS, ClusterSpec
from hived.words import plural

from . import keys
from .objects import Node


class _Known(NamedTuple):
    """What Kubernetes says of a node."""

    ready: bool
    cordoned: bool
    marked: frozenset[int] | None  #: devices that its annotation names; None: that cannot be read


class Nodes:
    """Health of nodes as the core is told it, kept equal to what Kubernetes says. A change costs O(the node)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, _Known] = {}
        #: devices of every node of the spec
        self.devices: dict[str, tuple[int, ...]] = {}
        self._reserved: dict[str, int] = {}
        #: nodes of the spec that no job may come to: why
        self.bad_nodes: dict[str, str] = {}
        #: single devices that none may come to: why
        self.bad_devices: dict[Place, str] = {}
        #: devices that none may come to: for a fault; or since the node is cordoned, or a pod of no group is there
        self.faulty: set[Place] = set()
        self.kept: set[Place] = set()
        #: nodes of the spec that jobs may come to
        self.healthy: set[str] = set()
        #: per node and pod of which nobody knows what it uses: its devices (None: any of the node), and why
        self._held: dict[str, dict[str, tuple[tuple[int, ...] | None, str]]] = {}
        self._holders: dict[str, str] = {}
        self._changed: set[str] = set()
        self._told_bad: set[str] = set()
        self._told: set[Place] = set()
        self.again(cluster.spec)

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

    def again(self, spec: ClusterSpec) -> None:
        """The spec has changed: the core is told of all that is bad once more."""
        devices: dict[str, list[int]] = {}
        for name, device in places(spec):
            devices.setdefault(name, []).append(device)
        self.devices = {name: tuple(found) for name, found in devices.items()}
        #: per node: devices of the cells inside it, from small to large (of its first chain, where it has several)
        self.cells: dict[str, tuple[int, ...]] = {}
        for chain in spec.chains:
            sizes = tuple(level.gpus for level in chain.levels[1 : chain.node_level - 1])
            for name in chain.node_names:
                self.cells.setdefault(name, sizes)
        self._reserved = reserved_gpus(spec)
        self._grace = {vc.name: vc.opportunistic_grace_seconds for vc in spec.virtual_clusters}
        self.bad_nodes.clear()
        self.bad_devices.clear()
        self.faulty.clear()
        self.kept.clear()
        self.healthy = set(self.devices)
        self._told_bad.clear()
        self._told.clear()
        self._changed = set(self.devices)

    # -- telling the core -----------------------------------------------------------------------------------------

    def apply(self) -> list[str]:
        """Tell the core what is new; the nodes that changed, by name."""
        news = [name for name in sorted(self._changed) if name in self.devices and self._apply(name)]
        self._changed.clear()
        return news

    def _apply(self, name: str) -> bool:
        why, devices = self._wanted(name)
        before = self.bad_nodes.get(name), {d: w for d in self.devices[name] if (w := self.bad_devices.get((name, d)))}
        if before == (why, devices):
            return False
        for device in before[1]:
            del self.bad_devices[name, device]
        self.bad_devices.update(((name, device), words) for device, words in devices.items())
        if why is None:
            self.bad_nodes.pop(name, None)
            self.healthy.add(name)
        else:
            self.bad_nodes[name] = why
            self.healthy.discard(name)
        for device in self.devices[name]:
            shut = why is not None or device in devices
            faulty = shut and self._is_faulty(name, device)
            for known, is_in in ((self.faulty, faulty), (self.kept, shut and not faulty)):
                (known.add if is_in else known.discard)((name, device))
        if (why is not None) is not (name in self._told_bad):
            self._cluster.set_node_health(name, healthy=why is None)
            self._told_bad ^= {name}
            self._told -= {(name, device) for device in self.devices[name]}
        if why is None:
            for device in self.devices[name]:
                if (device in devices) is not ((name, device) in self._told):
                    self._cluster.set_device_health(name, device, healthy=device not in devices)
                    self._told ^= {(name, device)}
        return True

    def _wanted(self, name: str) -> tuple[str | None, dict[int, str]]:
        """Why a node is bad (None: it is not), and else which of its devices are."""
        known = self._known.get(name)
        if known is None:
            return "there is no node of that name in Kubernetes", {}
        if not known.ready:
            return "it is not ready", {}
        if known.cordoned:
            return "it is cordoned", {}
        if known.marked is None:
            return f"its annotation {keys.BAD_DEVICES} cannot be read: write numbers, as in 0,3 or 4-7", {}
        there = self.devices[name]
        devices = {device: f"marked by its annotation {keys.BAD_DEVICES}" for device in there if device in known.marked}
        for held, why in self._held.get(name, {}).values():
            if held is None:
                return why, {}
            devices.update((device, why) for device in held if device in there and device not in known.marked)
        return None, devices

    def _is_faulty(self, name: str, device: int) -> bool:
        """Of a device that jobs are kept from: whether for a fault."""
        known = self._known.get(name)
        return known is None or not known.ready or known.marked is None or device in known.marked

    def validate(self) -> None:
        """Raise :class:`~hived.errors.InvariantError` unless the core was told what is true. O(devices)."""
        ensure(not self._changed & self.devices.keys(), f"nodes that the core has to hear of: {self._changed}")
        for name, there in self.devices.items():
            why, devices = self._wanted(name)
            ensure(self.bad_nodes.get(name) == why, f"{name} is bad, or not")
            ensure((name in self.healthy) == (why is None), f"{name} is healthy, or not")
            ensure((name in self._told_bad) == (why is not None), f"the core was told of {name}")
            shut = there if why is not None else tuple(devices)
            faulty = {device for device in shut if self._is_faulty(name, device)}
            ensure({device for device in there if (name, device) in self.faulty} == faulty, f"what is faulty of {name}")
            kept = {device for device in there if (name, device) in self.kept}
            ensure(kept == set(shut) - faulty, f"what is kept of {name}")
            ensure({d: w for d in there if (w := self.bad_devices.get((name, d)))} == devices, f"bad devices of {name}")
            told = {device for device in there if (name, device) in self._told}
            ensure(told == (set(devices) if why is None else set()), f"the core was told of the devices of {name}")
        ensure(all(d in self.devices.get(name, ()) for name, d in self.bad_devices), "bad devices are of the spec")
        ensure(self.bad_nodes.keys() <= self.devices.keys(), "bad nodes are of the spec")

    # -- looking --------------------------------------------------------------------------------------------------

    def situation(self, name: str) -> str:
        """What is kept from jobs of a node of the spec, and why, in words. O(its devices)."""
        if name in self.bad_nodes:
            return f"{name} is kept from jobs: {self.bad_nodes[name]}"
        bad: dict[str, list[int]] = {}
        for device in self.devices[name]:
            if (why := self.bad_devices.get((name, device))) is not None:
                bad.setdefault(why, []).append(device)
        parts = [
            f"{plural(len(devices), 'GPU')} {', '.join(map(str, sorted(devices)))} of {name} "
            f"{'is' if len(devices) == 1 else 'are'} kept from jobs: {why}"
            for why, devices in bad.items()
        ]
        return "; ".join(parts) or f"{name} is healthy"

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

    def grace_of_loans(self, vc: str) -> int:
        """Seconds that a pod on loan may have to end, at most."""
        return self._grace.get(vc, OPPORTUNISTIC_GRACE_SECONDS)

    def reserved_gpus(self, vc: str) -> int:
        """GPUs that a VC reserved; 0 for none of the spec."""
        return self._reserved.get(vc, 0)


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
