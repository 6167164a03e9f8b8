"""What the tests of clusters share: jobs, a policy, and a checker that believes no index of the cluster's own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

from hived.cells import HostClass
from hived.cluster import Allocation, ClusterView, HivedCluster, Kind, Part, SharedCluster, Spots
from hived.spec.compiled import ChainSpec, ClusterSpec, VirtualCellsSpec

#: a leaf of a VC: number of the preassigned cell, that cell's level, and the leaf's number inside it
VirtualLeaf = tuple[int, int, int]


def packed(host: HostClass, gpus: int) -> tuple[int, ...] | None:
    """Fewest opportunistic GPUs to take, then closest together, then tightest."""
    if host.free.free < gpus:
        return None
    taken = max(0, gpus - host.idle.free)
    level = host.free.level_for(gpus) if taken else host.idle.level_for(gpus)
    return taken, level, host.free.free


def place(view: ClusterView, gpus: int) -> Spots | None:
    """The policy of these tests."""
    return view.closest(gpus, packed)


class Jobs:
    """Starts jobs by the name of their tenant, and expects what the test says."""

    def __init__(self, cluster: SharedCluster) -> None:
        self.cluster = cluster
        self.running: list[Allocation] = []

    def new(self, tenant: str, gpus: int, name: str = "") -> Allocation:
        """A job that holds nothing yet."""
        return Allocation(name or f"{tenant}-{gpus}", list(self.cluster.tenants).index(tenant), gpus)

    def guaranteed(self, tenant: str, gpus: int, name: str = "") -> Allocation:
        """A job that must get guaranteed GPUs from nothing, and preempt nobody."""
        job = self.new(tenant, gpus, name)
        assert self.promote(job) == (False, ())
        return job

    def lent(self, tenant: str, gpus: int, name: str = "") -> Allocation:
        """A job that must get idle GPUs."""
        job = self.new(tenant, gpus, name)
        assert self.cluster.can_lend(gpus)
        assert self.cluster.lend(job)
        self.cluster.validate()
        return job

    def promote(self, job: Allocation) -> tuple[bool, tuple[Allocation, ...]] | None:
        """Ask for guaranteed GPUs, from nothing or from opportunistic."""
        grant = self.cluster.guarantee(job, place)
        self.cluster.validate()
        return grant

    def waits(self, tenant: str, gpus: int) -> None:
        """A job of this size must not get guaranteed GPUs now."""
        job = self.new(tenant, gpus)
        assert self.promote(job) is None
        assert (job.kind, job.parts, job.spots) == (None, (), None)

    def release(self, *jobs: Allocation) -> None:
        """They end."""
        for job in jobs:
            self.cluster.release(job)
            self.cluster.validate()
            assert (job.kind, job.parts, job.spots) == (None, (), None)


def nodes_of(job: Allocation) -> list[int]:
    """The nodes that a job stands on, ascending."""
    return sorted(part.node for part in job.parts)


def leaves_of_parts(parts: Iterable[Part], node_sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(chain, leaf) of every GPU in ``parts``; ``node_sizes`` are the GPUs per node of each chain."""
    return [
        (chain, node * node_sizes[chain] + leaf)
        for chain, node, mask in parts
        for leaf in range(mask.bit_length())
        if mask >> leaf & 1
    ]


def check_no_gpu_is_held_twice(spec: ClusterSpec, holders: Iterable[Allocation]) -> None:
    sizes = [chain.gpus_per_node for chain in spec.chains]
    held = Counter(leaf for job in holders for leaf in leaves_of_parts(job.parts, sizes))
    assert all(count == 1 for count in held.values())
    for chain, leaf in held:
        assert 0 <= leaf < spec.chains[chain].gpus


def check_affinity(job: Allocation, node_size: int) -> None:
    """Hard affinity: up to a node's GPUs on one node, above that in whole nodes."""
    assert len({part.chain for part in job.parts}) == 1
    masks = [part.mask for part in job.parts]
    if job.gpus <= node_size:
        assert [mask.bit_count() for mask in masks] == [job.gpus]
    else:
        assert masks == [(1 << node_size) - 1] * -(-job.gpus // node_size)
    assert len({part.node for part in job.parts}) == len(job.parts)
    assert job.held == sum(mask.bit_count() for mask in masks)


class VirtualLeaves:
    """Where the leaves of a VC's hosts stand in its preassigned cells, from the spec alone."""

    def __init__(self, spec: ClusterSpec, tenant: int) -> None:
        cells = spec.virtual_clusters[tenant].cells
        #: the chain of each of the tenant's pools
        self.chains = [n for n, chain in enumerate(spec.chains) if any(c.chain == chain.name for c in cells)]
        self._pools = [
            self._hosts(spec.chains[n], [c for c in cells if c.chain == spec.chains[n].name]) for n in self.chains
        ]

    @staticmethod
    def _hosts(chain: ChainSpec, cells: Sequence[VirtualCellsSpec]) -> list[VirtualLeaf]:
        """The first leaf of every host, in the order of the reservation."""
        hosts = []
        preassigned = 0
        for reserved in cells:
            gpus = chain.levels[reserved.level - 1].gpus
            for _ in range(reserved.number):
                hosts += [(preassigned, reserved.level, first) for first in range(0, gpus, chain.gpus_per_node)]
                preassigned += 1
        return hosts

    def of(self, pool: int, host: int, mask: int) -> list[VirtualLeaf]:
        """The leaves ``mask`` of a host."""
        preassigned, level, first = self._pools[pool][host]
        return [(preassigned, level, first + leaf) for leaf in range(mask.bit_length()) if mask >> leaf & 1]


def check_bindings(spec: ClusterSpec, holders: Iterable[Allocation]) -> None:
    """Every VC stands in the physical cluster as it is, cell by cell, and on no cell of another.

    At each level, the jobs that share a virtual cell share a physical one, and those that do not, do not.
    """
    taken: list[tuple[int, range]] = []
    for vc in spec.virtual_clusters:
        for pin in vc.pinned:
            number = [chain.name for chain in spec.chains].index(pin.chain)
            size = spec.chains[number].levels[pin.level - 1].gpus
            taken.append((number, range(pin.index * size, (pin.index + 1) * size)))
    for tenant in range(len(spec.virtual_clusters)):
        virtual_leaves = VirtualLeaves(spec, tenant)
        preassigned: dict[tuple[int, int], set[tuple[int, range]]] = defaultdict(set)
        # per pool and level: who is in each virtual cell, and in each physical one
        in_virtual: dict[tuple[int, int], dict[tuple[int, int], Counter[str]]] = defaultdict(
            lambda: defaultdict(Counter)
        )
        in_physical: dict[tuple[int, int], dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        for job in holders:
            if job.tenant != tenant or job.kind is not Kind.GUARANTEED:
                continue
            assert job.spots is not None
            pool, hosts = job.spots
            number = virtual_leaves.chains[pool]
            chain = spec.chains[number]
            for (host, mask), part in zip(hosts, job.parts, strict=True):
                assert part.chain == number
                virtual = virtual_leaves.of(pool, host, mask)
                physical = [leaf for _, leaf in leaves_of_parts([part._replace(chain=0)], [chain.gpus_per_node])]
                assert len(virtual) == len(physical)
                cell, level, _ = virtual[0]
                for k in range(1, level + 1):
                    gpus = chain.levels[k - 1].gpus
                    for _, _, leaf in virtual:
                        in_virtual[pool, k][cell, leaf // gpus][job.group] += 1
                    for leaf in physical:
                        in_physical[pool, k][leaf // gpus][job.group] += 1
                gpus = chain.levels[level - 1].gpus
                preassigned[pool, cell].update(
                    (number, range(leaf // gpus * gpus, (leaf // gpus + 1) * gpus)) for leaf in physical
                )
        for key, groups in in_virtual.items():
            assert sorted(sorted(c.items()) for c in groups.values()) == sorted(
                sorted(c.items()) for c in in_physical[key].values()
            ), f"who shares a cell of level {key[1]} in the VC shares one in the cluster, and nobody else"
        for stands_on in preassigned.values():
            assert len(stands_on) == 1, "a preassigned cell stands on one physical cell"
            taken += stands_on
    for (one_chain, one), (other_chain, other) in combinations(taken, 2):
        assert one_chain != other_chain or one.stop <= other.start or other.stop <= one.start, "cells stand apart"


def outlook(cluster: SharedCluster, gpus: int) -> list[object]:
    """All that a cluster says of jobs of up to ``gpus`` GPUs: two clusters in one state say the same."""
    said: list[object] = []
    for size in range(1, gpus + 1):
        said.append(cluster.can_lend(size))
        said += [place(cluster.view(tenant), size) for tenant in range(len(cluster.tenants))]
    said += [cluster.lent(tenant) for tenant in range(len(cluster.tenants))]
    if isinstance(cluster, HivedCluster):
        said.append(cluster.safety())
    return said
