"""Sharing safety with no sampling: every cluster of up to 3 GPUs and 3 levels, every assignment to up to 3 VCs.

From the empty cluster, every sequence of guaranteed jobs of every size, an opportunistic job in every moment, and every
order of releases: each VC grants what its private cluster grants in every state, and is bound cell by cell.
Of the clusters of 4 GPUs the binary trees, without loans, under the assignments that leave nothing over. (tests/cells
goes up to 8 leaves and 4 levels, for the cells alone.)
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import pytest

from hived.cluster import Cluster, Member, Request, Sharing
from hived.cluster.placement_request import ANYWHERE, ON_IDLE, PlacementRequest
from hived.spec.compiled import ChainSpec, ClusterSpec

from ..cells.naive import fanouts_of, name_of, packs
from ..strategies import chain_of, cluster_of, vc
from .helpers import carry_out, check_bindings, check_no_gpu_is_held_twice, spots

MAX_LEAVES, MAX_DEPTH, MAX_VCS = 3, 3, 3

#: ask for guaranteed GPUs (tenant, GPUs), borrow (tenant, -GPUs), or end the n-th of those that run (n, 0)
Step = tuple[int, int]


def hierarchies() -> Iterator[ChainSpec]:
    """Each once; a cell with one child only up to 2 leaves."""
    for fanouts, tops in fanouts_of(MAX_LEAVES, MAX_DEPTH, 2):
        for node_level in range(1, len(fanouts) + 2):
            yield chain_of(fanouts, tops, node_level)
    for node_level in (2, 3):
        yield chain_of((2, 2), 1, node_level)


def assignments(chain: ChainSpec) -> Iterator[ClusterSpec]:
    """Every feasible one to one, two or three VCs, which one is called what aside."""
    levels = range(1, len(chain.levels) + 1)
    shares = [share for share in product(*(range(chain.cells_at(k) + 1) for k in levels)) if any(share)]
    for number in range(1, MAX_VCS + 1):
        for some in combinations_with_replacement(shares, number):
            demand = (0, *map(sum, zip(*some, strict=True)))
            leaves = sum(count * level.gpus for count, level in zip(demand[1:], chain.levels, strict=True))
            if packs(chain, demand) and (chain.gpus <= MAX_LEAVES or leaves == chain.gpus):
                cells = [[(chain, level, count) for level, count in enumerate(share, 1) if count] for share in some]
                yield cluster_of(chain, *(vc(name, *own) for name, own in zip("abc", cells, strict=False)))


class World:
    """A cluster, the private ones beside it, and what runs in both."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.hived, self.private = Cluster(spec), Cluster(spec, Sharing.PRIVATE)
        #: names and tenants of the groups that run
        self.running: dict[str, int] = {}
        self.number = 0
        #: whether there is an opportunistic job to be had
        self.lends = spec.chains[0].gpus <= MAX_LEAVES
        #: GPUs of each tenant
        self.gpus = [
            sum(c.number * spec.chains[0].levels[c.level - 1].gpus for c in v.cells) for v in spec.virtual_clusters
        ]

    def play(self, step: Step) -> bool:
        """Whether anything happened."""
        tenant, gpus = step
        if gpus == 0:
            name = list(self.running)[tenant]
            guaranteed = self.hived.group(name).guaranteed
            self.end(name)
            if guaranteed:
                self.private.release(name)
            return True
        self.number += 1
        request = Request(
            f"{self.number}-{tenant}-{gpus}",
            self.spec.virtual_clusters[tenant].name,
            0 if gpus > 0 else -1,
            (Member(1, abs(gpus)),),
            whole_nodes=True,
        )
        decision = self.hived.place(PlacementRequest(request, ANYWHERE if gpus > 0 else ON_IDLE))
        if gpus > 0:
            alone = self.private.place(PlacementRequest(request))
            assert (decision is None) == (alone is None), "a VC grants exactly what a private cluster would"
            if alone is not None:
                assert carry_out(self.private, alone, request) == ()
        if decision is None:
            return False
        for victim in carry_out(self.hived, decision, request):
            del self.running[victim]
        self.running[request.group] = tenant
        if gpus > 0:
            assert spots(self.hived, request.group) == spots(self.private, request.group)
        return True

    def end(self, name: str) -> None:
        self.hived.release(name)
        del self.running[name]

    def state(self) -> frozenset[object]:
        """The placement of every group; the rest follows from it."""
        groups = [
            (tenant, spots(self.hived, name), self.hived.group(name).placement) for name, tenant in self.running.items()
        ]
        return frozenset(groups)

    def steps(self) -> Iterator[Step]:
        for number in range(len(self.running)):
            yield number, 0
        for tenant, most in enumerate(self.gpus):
            for gpus in range(1, most + 1):
                yield tenant, gpus
        if self.lends and all(self.hived.group(name).guaranteed for name in self.running):
            yield 0, -1


def check_every_state(spec: ClusterSpec) -> int:
    """Visit every state; how many there are."""
    ways: list[tuple[Step, ...]] = [()]
    seen = {World(spec).state()}
    for way in ways:
        world = World(spec)
        for step in way:
            world.play(step)
        world.hived.validate()
        check_no_gpu_is_held_twice(world.hived)
        check_bindings(world.hived)
        for step in world.steps():
            after = World(spec)
            for earlier in way:
                after.play(earlier)
            if after.play(step) and (state := after.state()) not in seen:
                seen.add(state)
                ways.append((*way, step))
    return len(ways)


EVERY = [
    pytest.param(chain, id=f"{name_of(chain)}-{chain.node_level}", marks=[pytest.mark.slow] * (chain.gpus > 2))
    for chain in hierarchies()
]


@pytest.mark.parametrize("chain", EVERY)
def test_every_vc_is_as_good_as_private(chain: ChainSpec) -> None:
    for spec in assignments(chain):
        assert check_every_state(spec) > 1
