"""A tenant's cells as a cluster of their own: where jobs go in it."""

from __future__ import annotations

from hypothesis import given, settings

from hived.cluster import Cluster, Placement, PodPlacement, Sharing
from hived.spec.compiled import ChainSpec, ClusterSpec

from ..strategies import NODE, PAIR, RACK, SOCKET, chain_of, cluster_of, feasible_specs, nodes_of_8, racks, vc
from .helpers import Jobs


def alone(chain: ChainSpec, *cells: tuple[int, int]) -> Jobs:
    """One tenant's private cluster: (level, number) of its cells."""
    return Jobs(
        Cluster(cluster_of(chain, vc("a", *((chain, level, number) for level, number in cells))), Sharing.PRIVATE)
    )


def test_reserved_nodes_and_racks() -> None:
    jobs = alone(racks(3), (NODE, 2), (RACK, 1))
    assert jobs.guaranteed("a", 24).nodes == [2, 3, 4], "hosts 0 and 1 are lone nodes, 2 to 5 a rack"
    assert jobs.guaranteed("a", 16).nodes == [0, 1]


def test_cell_smaller_than_a_node_is_a_host() -> None:
    jobs = alone(nodes_of_8(2), (SOCKET, 2), (PAIR, 1))
    assert [jobs.can_ever_fit("a", gpus) for gpus in (1, 2, 3, 4, 5, 8, 10)] == [True] * 4 + [False] * 3
    assert jobs.guaranteed("a", 2).nodes == [2], "the pair, so that the sockets stay whole"
    assert jobs.guaranteed("a", 3).nodes == [0]
    assert jobs.guaranteed("a", 2).nodes == [1]
    assert jobs.guaranteed("a", 2).nodes == [1]
    jobs.waits("a", 2)
    assert jobs.guaranteed("a", 1).nodes == [0]


def test_only_gpu_is_as_good_as_the_node() -> None:
    """A node with one child, and that child reserved: it is below the node level, and as large as a node."""
    chain = chain_of((1, 2), 1, node_level=2)
    jobs = alone(chain, (1, 2))
    assert jobs.can_ever_fit("a", 2)
    one = jobs.guaranteed("a", 1)
    jobs.release(one)
    both = jobs.guaranteed("a", 2)
    assert both.held == 2


def test_two_levels_with_as_many_gpus() -> None:
    """A node with one socket: the reserved socket and the reserved node have two GPUs each, at different levels."""
    jobs = alone(chain_of((2, 1), 2, node_level=3), (2, 1), (3, 1))
    assert jobs.guaranteed("a", 1).nodes == [0]
    assert jobs.guaranteed("a", 2).nodes == [1]


def test_names_of_nodes() -> None:
    new, old = nodes_of_8(2, "NEW"), nodes_of_8(1, "OLD")
    spec = cluster_of([new, old], vc("a", (new, NODE, 1), (old, SOCKET, 1)), vc("b", (new, NODE, 1), (old, SOCKET, 1)))
    jobs = Jobs(Cluster(spec, Sharing.PRIVATE))
    first, second, third = jobs.guaranteed("a", 8), jobs.guaranteed("a", 3), jobs.guaranteed("b", 8)
    fourth = jobs.guaranteed("b", 1)
    placements = [job.placement for job in (first, second, third, fourth)]
    assert placements == [
        Placement("NEW", (PodPlacement("a-node-0", tuple(range(8))),), (NODE,)),
        Placement("OLD", (PodPlacement("a-node-1", (0, 1, 2)),), (SOCKET,)),
        Placement("NEW", (PodPlacement("b-node-0", tuple(range(8))),), (NODE,)),
        Placement("OLD", (PodPlacement("b-node-1", (0,)),), (SOCKET,)),
    ]
    assert [(name, gpus) for _, name, gpus in jobs.cluster.nodes()] == [
        ("a-node-0", 8), ("a-node-1", 4), ("b-node-0", 8), ("b-node-1", 4),
    ]  # fmt: skip


@settings(max_examples=30)
@given(feasible_specs())
def test_what_can_ever_fit(spec: ClusterSpec) -> None:
    """What fits an empty cluster."""
    jobs = Jobs(Cluster(spec, Sharing.PRIVATE))
    for own in spec.virtual_clusters:
        hosts: dict[str, list[int]] = {}
        for cells in own.cells:
            chain = spec.chain(cells.chain)
            gpus, node = chain.levels[cells.level - 1].gpus, chain.gpus_per_node
            hosts.setdefault(chain.name, []).extend([min(gpus, node)] * cells.number * max(1, gpus // node))
        for gpus in range(1, sum(sum(sizes) for sizes in hosts.values()) + 3):
            fits = any(
                max(sizes) >= gpus
                if gpus <= spec.chain(name).gpus_per_node
                else sizes.count(spec.chain(name).gpus_per_node) * spec.chain(name).gpus_per_node >= gpus
                for name, sizes in hosts.items()
            )
            assert jobs.can_ever_fit(own.name, gpus) == fits
            assert (jobs.cluster.place(jobs.new(own.name, gpus).own) is not None) == fits
