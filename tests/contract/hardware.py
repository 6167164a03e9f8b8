"""The hierarchy of a cluster's devices, derived from the spec alone, leaf by leaf, to check placements."""

from __future__ import annotations

from collections.abc import Iterable

from hived.cluster.decisions import Placement, PodPlacement
from hived.cluster.requests import Request
from hived.spec.compiled import ChainSpec, ClusterSpec

#: a device: node name and index there
Device = tuple[str, int]


class Hardware:
    """The devices and cells of a spec."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.chains: dict[str, ChainSpec] = {chain.name: chain for chain in spec.chains}
        #: chain, node name and device index to the leaf's number in its chain
        self._leaf: dict[tuple[str, str, int], int] = {}
        for chain in spec.chains:
            for node, name in enumerate(chain.node_names):
                for leaf in range(chain.gpus_per_node):
                    self._leaf[chain.name, name, chain.device_index(node, leaf)] = node * chain.gpus_per_node + leaf

    @property
    def nodes(self) -> list[str]:
        return list(dict.fromkeys(name for chain in self.spec.chains for name in chain.node_names))

    def devices_of(self, node: str) -> list[int]:
        """All device indices of a node, of every chain it is in."""
        return sorted(device for _, name, device in self._leaf if name == node)

    def leaves(self, chain: str, pod: PodPlacement) -> frozenset[int]:
        """The leaf numbers of a pod; fails when it has a device that is not there, or one twice."""
        node, devices = pod
        for device in devices:
            assert (chain, node, device) in self._leaf, f"no device {device} on {node} in chain {chain}"
        leaves = frozenset(self._leaf[chain, node, device] for device in devices)
        assert len(leaves) == len(devices), f"a device twice in {pod}"
        return leaves

    def leaves_of(self, placement: Placement) -> list[frozenset[int]]:
        """Per pod, its leaf numbers; no two pods have one in common."""
        pods = [self.leaves(placement.chain, pod) for pod in placement.pods]
        assert len(frozenset().union(*pods)) == sum(map(len, pods)), f"two pods share a device: {placement}"
        return pods

    def level_of(self, chain: str, cell_type: str) -> int | None:
        """The level called ``cell_type`` in a chain."""
        return next((k for k, at in enumerate(self.chains[chain].levels, 1) if at.cell_type == cell_type), None)

    def cell_at(self, chain: str, level: int, leaves: Iterable[int]) -> int | None:
        """The number of the one cell of ``level`` that holds all ``leaves``."""
        gpus = self.chains[chain].levels[level - 1].gpus
        cells = {leaf // gpus for leaf in leaves}
        return cells.pop() if len(cells) == 1 else None

    def common_level(self, chain: str, leaves: Iterable[int]) -> int | None:
        """The lowest level of which one cell holds all ``leaves``."""
        leaves = list(leaves)
        levels = range(1, len(self.chains[chain].levels) + 1)
        return next((level for level in levels if self.cell_at(chain, level, leaves) is not None), None)

    def group_level(self, placement: Placement) -> int | None:
        """The lowest level of which one cell holds all pods."""
        return self.common_level(placement.chain, frozenset().union(*self.leaves_of(placement)))

    def check_fits(self, request: Request, placement: Placement, relaxed: tuple[str, ...], capped: bool) -> None:
        """Check that the placement has the requested pods, devices, types and cap."""
        chain = self.chains[placement.chain]
        wanted = [member for member in request.members for _ in range(member.pods)]
        pods = self.leaves_of(placement)
        assert len(pods) == len(wanted)
        for member, leaves, pod in zip(wanted, pods, placement.pods, strict=True):
            order = [self._leaf[placement.chain, pod.node, device] for device in pod.leaf_cells]
            assert order == sorted(order)
            if member.cell_type is None:
                assert len(leaves) == member.leaf_cells
            else:
                level = self.level_of(placement.chain, member.cell_type)
                assert level is not None
                assert self.cell_at(placement.chain, level, leaves) is not None
                assert len(leaves) == chain.levels[level - 1].gpus
        if request.leaf_cell_type is not None:
            assert chain.leaf_type == request.leaf_cell_type
        if capped and request.within is not None and not relaxed:
            level = self.level_of(placement.chain, request.within)
            assert level is not None
            assert self.cell_at(placement.chain, level, frozenset().union(*pods)) is not None, "the cap is not kept"
        if relaxed:
            assert request.soft_affinity
            assert relaxed[0] == request.within
