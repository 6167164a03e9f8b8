"""Where a spec has its devices, and how many are whose: what every engine asks of it."""

from __future__ import annotations

from collections.abc import Iterator

from hived.spec.compiled import ClusterSpec

#: node and device index
Place = tuple[str, int]


def places(spec: ClusterSpec) -> Iterator[Place]:
    """All devices, in the order of the spec. A node's chains follow one another. O(devices)."""
    for chain in spec.chains:
        for number, node in enumerate(chain.node_names):
            for leaf in range(chain.gpus_per_node):
                yield node, chain.device_index(number, leaf)


def reserved_gpus(spec: ClusterSpec) -> dict[str, int]:
    """GPUs that each virtual cluster reserved, pinned ones among them. O(its cells)."""
    found = {}
    for vc in spec.virtual_clusters:
        cells = sum(c.number * spec.chain(c.chain).levels[c.level - 1].gpus for c in vc.cells)
        found[vc.name] = cells + sum(spec.chain(p.chain).levels[p.level - 1].gpus for p in vc.pinned)
    return found
