"""Nodes and devices by name, and as the numbers that pictures have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hived.words import ranges, runs

from .pictures import Chain, Stretch


class Places:
    """The nodes of chains by their names. O(nodes) to make."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = chains
        #: numbers of chain and node; a machine with two kinds of device is a node of two chains
        self.numbers: dict[str, list[tuple[int, int]]] = {}
        for number, chain in enumerate(chains):
            for node, name in enumerate(chain.nodes):
                self.numbers.setdefault(name, []).append((number, node))

    def stretches(self, name: str, devices: Iterable[int], first: int = -1) -> list[Stretch]:
        """Where devices of a node are, in chain number ``first`` before others; what no chain has is left out."""
        found: list[Stretch] = []
        left = set(devices)
        for number, node in sorted(self.numbers.get(name, ()), key=lambda place: (place[0] != first, place)):
            indices = self.chains[number].indices(node)
            leaves = [leaf for leaf, device in enumerate(indices) if device in left]
            left -= {indices[leaf] for leaf in leaves}
            found += [(number, node, low, high - low + 1) for low, high in runs(leaves)]
        return found


def named(parts: Iterable[Stretch], chains: Sequence[Chain], most: int) -> tuple[list[str], int]:
    """``node-3:0-3``, with the device indices: the first ``most`` nodes, and how many more there are."""
    nodes: dict[tuple[int, int], list[int]] = {}
    for chain, node, first, number in parts:
        nodes.setdefault((chain, node), []).extend(chains[chain].indices(node)[first : first + number])
    words = [f"{chains[chain].nodes[node]}:{ranges(sorted(on))}" for (chain, node), on in list(nodes.items())[:most]]
    return words, len(nodes) - len(words)
