"""The nodes and devices by the names in the spec, and changes of their health."""

from __future__ import annotations

from collections.abc import Sequence

from hived.errors import RequestError

from .decisions import PodPlacement
from .nodes import Nodes
from .parts import Part
from .state import State
from .states import LeafState


class NodeIndex:
    """An index of nodes and devices by name. O(nodes) to make."""

    def __init__(self, chains: Sequence[Nodes]) -> None:
        #: the chains of the nodes
        self.chains = chains
        self._parts_of: dict[PodPlacement, list[Part]] = {}
        #: per chain: number of each node
        self.numbers = [{name: n for n, name in enumerate(nodes.names)} for nodes in chains]

    def places(self, node_name: str) -> list[tuple[int, int]]:
        """The chains that a node is in, and its number in each. O(chains)."""
        return [(chain, numbers[node_name]) for chain, numbers in enumerate(self.numbers) if node_name in numbers]

    def leaves(self, chain: int, node: int) -> dict[int, int]:
        """Leaf number by device index."""
        nodes = self.chains[chain]
        return {device: leaf for leaf, device in enumerate(nodes.devices(node, nodes.shapes[node].full))}

    def parts(self, node_name: str, devices: Sequence[int], first: str) -> tuple[list[Part], tuple[int, ...]]:
        """The leaves with these device indices, those of chain ``first`` first; and the devices that exist."""
        parts = []
        found: set[int] = set()
        places = self.places(node_name)
        for chain, node in sorted(places, key=lambda at: (self.chains[at[0]].hierarchy.spec.name != first, at)):
            here = {device: leaf for device, leaf in self.leaves(chain, node).items() if device in devices}
            mask = sum(1 << leaf for device, leaf in here.items() if device not in found)
            found |= here.keys()
            if mask:
                parts.append(Part(chain, node, mask))
        return parts, tuple(device for device in devices if device in found)

    def parts_of(self, pod: PodPlacement) -> list[Part]:
        """The same for a pod's leaf cells, kept for the next time."""
        parts = self._parts_of.get(pod)
        if parts is None:
            parts = self._parts_of[pod] = self.parts(pod.node, pod.leaf_cells, "")[0]
        return parts

    def of(self, node_name: str, device: int | None) -> list[Part]:
        """All leaves of a node, or those of one device: one per chain that has it."""
        parts = []
        for chain, node in self.places(node_name):
            leaf = self.leaves(chain, node).get(device) if type(device) is int else None
            if device is None:
                parts.append(Part(chain, node, self.chains[chain].shapes[node].full))
            elif leaf is not None:
                parts.append(Part(chain, node, 1 << leaf))
        return parts


def set_health(state: State, index: NodeIndex, name: str, device: int | None, healthy: bool) -> None:
    """Mark all devices of a node, or one, bad or healthy. Raises :class:`RequestError`. O(its cells)."""
    if type(healthy) is not bool:
        raise RequestError("healthy", f"true or false, not {healthy!r}")
    if not isinstance(name, str) or not index.places(name):
        raise RequestError("node", f"there is no node {name!r}")
    parts = index.of(name, device)
    if not parts:
        raise RequestError("device", f"node {name!r} has no device {device!r}")
    for chain, node, mask in parts:
        bad = state.chains[chain].bad[node]
        state.set_bad(chain, node, bad & ~mask if healthy else bad | mask)


def leaf_state(state: State, index: NodeIndex, node: str, device: int) -> LeafState:
    """The state of one device. Raises :class:`RequestError` when there is none."""
    for chain, number, mask in index.of(node, device) if isinstance(node, str) and device is not None else ():
        return state.chains[chain].leaf_state(number, mask.bit_length() - 1)
    raise RequestError("node", f"there is no device {device!r} on a node {node!r}")
