"""Helpers of the tests of clusters: jobs, and checkers that read the spec and the placements, and no index."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from hived import Bind, Preempt
from hived.cluster import OPPORTUNISTIC, Cluster, Member, Placement, Request, Sharing
from hived.cluster.placement_request import ON_IDLE, PlacementRequest
from hived.cluster.states import GroupState
from hived.spec.compiled import ChainSpec, ClusterSpec, VirtualCellsSpec, VirtualClusterSpec

from ..contract.hardware import Hardware
from ..strategies import cluster_of

#: number of a pool of a VC, and per pod the host in it and the leaves there
Spots = tuple[int, tuple[tuple[int, int], ...]]
#: a leaf of a VC: number of the preassigned cell, that cell's level, and the leaf's number inside it
VirtualLeaf = tuple[int, int, int]


class Job:
    """A job of a trace: one pod, or whole nodes where it is larger than one."""

    def __init__(self, jobs: Jobs, tenant: str, gpus: int, name: str) -> None:
        self._jobs = jobs
        self.name = name
        #: what it asks for at its turn, and before it
        self.own = Request(name, tenant, 0, (Member(1, gpus),), whole_nodes=True)
        self.loan = replace(self.own, priority=OPPORTUNISTIC)

    @property
    def placement(self) -> Placement | None:
        """Its placement; None where it does not run."""
        cluster = self._jobs.cluster
        return cluster.group(self.name).placement if self.name in cluster.groups() else None

    @property
    def kind(self) -> str:
        """G: guaranteed, O: opportunistic, a dot: it does not run."""
        if self.placement is None:
            return "."
        return "G" if self._jobs.cluster.group(self.name).guaranteed else "O"

    @property
    def at(self) -> list[tuple[int, tuple[int, ...]]]:
        """The number of each pod's node, and its devices there."""
        pods = () if self.placement is None else self.placement.pods
        return [(int(node.rpartition("-")[2]), devices) for node, devices in pods]

    @property
    def nodes(self) -> list[int]:
        return sorted(node for node, _ in self.at)

    def __repr__(self) -> str:
        return self.name


class Jobs:
    """Starts jobs by the name of their tenant, and asserts the expected outcome."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._number = 0
        self._known: dict[str, Job] = {}

    def new(self, tenant: str, gpus: int) -> Job:
        self._number += 1
        name = f"{self._number}-{tenant}-{gpus}"
        self._known[name] = Job(self, tenant, gpus, name)
        return self._known[name]

    def guaranteed(self, tenant: str, gpus: int) -> Job:
        """Start a job that must get guaranteed GPUs at once, without victims."""
        job = self.new(tenant, gpus)
        assert self.promote(job) == (False, ())
        return job

    def lent(self, tenant: str, gpus: int) -> Job:
        """A job that must get idle GPUs."""
        job = self.new(tenant, gpus)
        assert self.cluster.can_lend(job.loan)
        decision = self.cluster.place(PlacementRequest(job.loan, ON_IDLE))
        assert isinstance(decision, Bind)
        self.cluster.commit(decision)
        self.cluster.validate()
        return job

    def promote(self, job: Job) -> tuple[bool, tuple[Job, ...]] | None:
        """Give a new or opportunistic job guaranteed GPUs: whether it keeps its place, and its victims.

        None where it has to wait; then nothing has changed.
        """
        before = job.placement
        victims: tuple[str, ...] = ()
        promoted = self.cluster.promote(job.own) if before is not None else False
        if promoted is None:
            return None
        if not promoted:
            if before is not None:
                self.cluster.release(job.name)
            decision = self.cluster.place(PlacementRequest(job.own, near=before))
            if decision is None:
                assert before is None, "the VC had room"
                return None
            victims = carry_out(self.cluster, decision, job.own)
        self.cluster.validate()
        return bool(promoted), tuple(self._known[name] for name in victims)

    def waits(self, tenant: str, gpus: int) -> None:
        """A job of this size must not get guaranteed GPUs now."""
        job = self.new(tenant, gpus)
        assert self.promote(job) is None
        assert job.placement is None

    def can_lend(self, gpus: int) -> bool:
        """Whether a loan of this size would start."""
        return self.cluster.can_lend(self.new(self.cluster.spec.virtual_clusters[0].name, gpus).loan)

    def can_ever_fit(self, tenant: str, gpus: int) -> bool:
        """Whether a job of this size fits the empty VC."""
        return not self.cluster.never_fits(self.new(tenant, gpus).own)

    def release(self, *jobs: Job) -> None:
        for job in jobs:
            self.cluster.release(job.name)
            self.cluster.validate()
            assert job.placement is None


def jobs_of(sharing: Sharing, chain: ChainSpec, *vcs: VirtualClusterSpec) -> Jobs:
    """Jobs on the cells of one chain that is shared in this way."""
    return Jobs(Cluster(cluster_of(chain, *vcs), sharing))


def carry_out(cluster: Cluster, decision: Bind | Preempt, request: Request) -> tuple[str, ...]:
    """Commit an answer, end its victims, and return them: the group runs then."""
    cluster.commit(decision)
    if isinstance(decision, Bind):
        return ()
    for victim in decision.victims:
        cluster.release(victim)
    again = cluster.schedule(request)
    assert isinstance(again, Bind)
    assert again.placement == decision.placement
    cluster.commit(again)
    return decision.victims


def spots(cluster: Cluster, group: str) -> Spots | None:
    """The virtual leaves of a group; None for an opportunistic one. The one thing that the contract does not show."""
    known = cluster._state.groups[group]
    return None if not known.guaranteed else (known.pool, known.spots)


def devices(placement: Placement | None) -> set[tuple[str, int]]:
    return set() if placement is None else {(node, device) for node, leaves in placement.pods for device in leaves}


def check_no_gpu_is_held_twice(cluster: Cluster) -> None:
    """Check that each device exists, at most one group runs on it, and at most one has reserved it."""
    there = {(node, device) for _, node, gpus in cluster.nodes() for device in range(gpus)}
    running, reserved = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for group in map(cluster.group, cluster.groups()):
        if group.guest:
            continue  # tests/contract/driver.py
        preempting = group.state is GroupState.PREEMPTING
        (reserved if preempting else running).update(devices(group.placement))
    assert all(count == 1 for count in (*running.values(), *reserved.values()))
    assert running.keys() | reserved.keys() <= there


class VirtualLeaves:
    """The positions of the leaves of a VC's hosts in its preassigned cells, from the spec alone."""

    def __init__(self, spec: ClusterSpec, tenant: int) -> None:
        vc = spec.virtual_clusters[tenant]
        names = [chain.name for chain in spec.chains]
        #: the chain of each of the tenant's pools, pinned ones last
        self.chains = [n for n, name in enumerate(names) if any(c.chain == name for c in vc.cells)]
        self._pools = [self._hosts(spec.chains[n], [c for c in vc.cells if c.chain == names[n]]) for n in self.chains]
        #: the physical leaves of each pinned cell, by number of the pool
        self.pinned: dict[int, range] = {}
        for pin in vc.pinned:
            chain = spec.chain(pin.chain)
            gpus = chain.levels[pin.level - 1].gpus
            self.pinned[len(self.chains)] = range(pin.index * gpus, (pin.index + 1) * gpus)
            self.chains.append(names.index(pin.chain))
            self._pools.append(self._hosts(chain, [VirtualCellsSpec(pin.chain, pin.level, 1)]))

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
        preassigned, level, first = self._pools[pool][host]
        return [(preassigned, level, first + leaf) for leaf in range(mask.bit_length()) if mask >> leaf & 1]


def check_bindings(cluster: Cluster) -> None:
    """Check that every VC is bound to the physical cluster cell by cell, and to no cell of another VC.

    At each level, the groups that share a virtual cell share a physical one, and those that do not, do not.
    """
    spec, hardware = cluster.spec, Hardware(cluster.spec)
    taken: list[tuple[int, range]] = []
    for tenant, vc in enumerate(spec.virtual_clusters):
        virtual_leaves = VirtualLeaves(spec, tenant)
        preassigned: dict[tuple[int, int], set[range]] = defaultdict(set)
        # per pool and level: the groups in each virtual cell, and in each physical one
        in_virtual: dict[tuple[int, int], dict[object, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        in_physical: dict[tuple[int, int], dict[object, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        for group in map(cluster.group, cluster.groups()):
            where = spots(cluster, group.name) if group.placement is not None else None
            if group.vc != vc.name or group.placement is None or where is None:
                continue
            pool, hosts = where
            chain = spec.chains[virtual_leaves.chains[pool]]
            assert group.placement.chain == chain.name
            for (host, mask), pod in zip(hosts, group.placement.pods, strict=True):
                virtual = virtual_leaves.of(pool, host, mask)
                physical = hardware.leaves(chain.name, pod)
                assert len(virtual) == len(physical)
                cell, level, _ = virtual[0]
                for k in range(1, level + 1):
                    gpus = chain.levels[k - 1].gpus
                    for _, _, leaf in virtual:
                        in_virtual[pool, k][cell, leaf // gpus][group.name] += 1
                    for leaf in physical:
                        in_physical[pool, k][leaf // gpus][group.name] += 1
                gpus = chain.levels[level - 1].gpus
                preassigned[pool, cell].update(
                    range(leaf // gpus * gpus, (leaf // gpus + 1) * gpus) for leaf in physical
                )
        for key, groups in in_virtual.items():
            assert sorted(sorted(c.items()) for c in groups.values()) == sorted(
                sorted(c.items()) for c in in_physical[key].values()
            ), f"groups share a cell of level {key[1]} in the VC exactly if they share one in the cluster"
        for (pool, _), bound_to in preassigned.items():
            assert len(bound_to) == 1, "a preassigned cell is bound to one physical cell"
            if pool in virtual_leaves.pinned:
                assert bound_to == {virtual_leaves.pinned[pool]}
            else:
                taken += [(virtual_leaves.chains[pool], cell) for cell in bound_to]
        taken += [(virtual_leaves.chains[pool], cell) for pool, cell in virtual_leaves.pinned.items()]
    for (one_chain, one), (other_chain, other) in combinations(taken, 2):
        assert one_chain != other_chain or one.stop <= other.start or other.stop <= one.start, "cells do not overlap"
