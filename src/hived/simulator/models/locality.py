"""The locality of a placement, and the speed that a model has there (Gandiva, OSDI'18, Figures 1, 2 and 4). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from hived.cluster.decisions import Placement
from hived.spec.compiled import ChainSpec

from .table import JobModel


class Affinity(IntEnum):
    """How close the GPUs of a job are, the closest first."""

    SOCKET = 0  #: in one cell of the level below the nodes, or in one node that has no such level
    NODE = 1  #: in one node
    NODES = 2  #: in several nodes, the fewest that can hold them
    SPREAD = 3  #: in more nodes than needed


def speed(model: JobModel, affinity: Affinity) -> float:
    """The speed of a model against that on GPUs of one socket: above 0, at most 1."""
    if affinity is Affinity.SOCKET:
        return 1.0
    return model.across_sockets if affinity is Affinity.NODE else model.across_nodes


def rate_at(model: JobModel, actual: Affinity, best: Affinity) -> float:
    """The rate of a model with affinity ``actual``, where ``best`` is the best possible; at most 1."""
    return min(1.0, speed(model, actual) / speed(model, best))


class _Chain:
    """What a chain says of locality."""

    __slots__ = ("devices", "node_gpus", "socket_gpus")

    def __init__(self, chain: ChainSpec) -> None:
        self.node_gpus = chain.gpus_per_node
        below = chain.node_level - 1
        # a level between leaf and node; else a node is one socket
        self.socket_gpus = chain.levels[below - 1].gpus if below > 1 else self.node_gpus
        # the positions of device indices among a node's leaves, where they are not 0, 1, 2, ...
        self.devices = {
            chain.node_names[node]: {device: leaf for leaf, device in enumerate(devices)}
            for node, devices in chain.device_indices.items()
        }


class Locality:
    """The affinity of placements in a cluster. Building it is O(nodes with device indices of their own)."""

    def __init__(self, chains: Iterable[ChainSpec]) -> None:
        self._chains = {chain.name: _Chain(chain) for chain in chains}

    def affinity_of(self, placement: Placement) -> Affinity:
        """How close the GPUs of a placement are. O(pods), about a microsecond for one pod."""
        chain = self._chains[placement.chain]
        pods = placement.pods
        node = pods[0].node
        if len(pods) > 1 and any(pod.node != node for pod in pods):
            needed = -(-placement.gpus // chain.node_gpus)
            return Affinity.NODES if len({pod.node for pod in pods}) == needed else Affinity.SPREAD
        # leaf cells of a pod are in the order of the leaves: its first and its last tell the sockets
        if len(pods) == 1:
            leaves = pods[0].leaf_cells
            ends = [leaves[0], leaves[-1]]
        else:
            ends = [leaf for pod in pods for leaf in (pod.leaf_cells[0], pod.leaf_cells[-1])]
        if node in chain.devices:
            positions = chain.devices[node]
            ends = [positions[device] for device in ends]
        size = chain.socket_gpus
        return Affinity.SOCKET if min(ends) // size == max(ends) // size else Affinity.NODE

    def best(self, chain: str, gpus: int) -> Affinity:
        """The best affinity that a job of ``gpus`` GPUs can have in a chain."""
        of = self._chains[chain]
        if gpus <= of.socket_gpus:
            return Affinity.SOCKET
        return Affinity.NODE if gpus <= of.node_gpus else Affinity.NODES

    def rate(self, model: JobModel, placement: Placement) -> float:
        """The rate of a job alone on these GPUs, against the best affinity in their chain. O(pods)."""
        actual = self.affinity_of(placement)
        if actual is Affinity.SOCKET:
            return 1.0
        return rate_at(model, actual, self.best(placement.chain, placement.gpus))
