"""A tenant's cells as a cluster of their own: where jobs go in it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from hived import Bind
from hived.cluster import Cluster, Sharing
from hived.spec.compiled import ChainSpec, ClusterSpec

from ..strategies import GPU, NODE, PAIR, RACK, SOCKET, chain_of, cluster_of, feasible_specs, nodes_of_8, racks, vc
from .helpers import Jobs


def alone(chain: ChainSpec, *cells: tuple[int, int]) -> Jobs:
    """One tenant's private cluster: (level, number) of its cells."""
    return Jobs(
        Cluster(cluster_of(chain, vc("a", *((chain, level, number) for level, number in cells))), Sharing.PRIVATE)
    )


def test_a_second_job_of_one_gpu_lands_on_the_buddy_of_the_first() -> None:
    jobs = alone(nodes_of_8(2), (NODE, 2))
    assert jobs.guaranteed("a", 1).parts == ((0, 0, 0b01),)
    assert jobs.guaranteed("a", 1).parts == ((0, 0, 0b10),)


def test_a_pair_does_not_break_the_pair_of_another_job() -> None:
    jobs = alone(nodes_of_8(1), (NODE, 1))
    jobs.guaranteed("a", 1)
    assert jobs.guaranteed("a", 2).parts == ((0, 0, 0b1100),)
    assert jobs.guaranteed("a", 4).parts == ((0, 0, 0b1111_0000),)
    assert jobs.guaranteed("a", 1).parts == ((0, 0, 0b10),)
    jobs.waits("a", 1)


def test_a_job_is_packed_onto_the_node_that_it_fills() -> None:
    jobs = alone(nodes_of_8(3), (NODE, 3))
    assert jobs.guaranteed("a", 5).nodes == [0]
    assert jobs.guaranteed("a", 6).nodes == [1]
    assert jobs.guaranteed("a", 2).nodes == [1], "two GPUs fill a pair, on the node with the fewest to spare"
    assert jobs.guaranteed("a", 3).nodes == [0]
    jobs.guaranteed("a", 8)
    jobs.waits("a", 1)


def test_a_job_goes_where_its_gpus_are_closest_together_though_another_node_is_tighter() -> None:
    jobs = alone(nodes_of_8(2), (NODE, 2))
    assert jobs.guaranteed("a", 3).parts == ((0, 0, 0b0000_0111),)
    assert jobs.guaranteed("a", 3).parts == ((0, 0, 0b0111_0000),)
    assert jobs.guaranteed("a", 2).parts == ((0, 1, 0b0000_0011),), "not one GPU in each socket of node 0"
    assert jobs.guaranteed("a", 1).parts == ((0, 0, 0b0000_1000),)


def test_eight_gpus_on_two_half_used_nodes_are_not_eight_gpus_on_one() -> None:
    jobs = alone(nodes_of_8(2), (NODE, 2))
    four, five = jobs.guaranteed("a", 4), jobs.guaranteed("a", 5)
    assert four.nodes != five.nodes
    jobs.waits("a", 5)
    jobs.release(four)
    assert jobs.guaranteed("a", 8).nodes == [0]


def test_several_nodes_are_taken_under_one_rack_and_in_the_tightest_one() -> None:
    jobs = alone(racks(3), (RACK, 3))
    jobs.guaranteed("a", 8)
    assert jobs.guaranteed("a", 16).nodes == [1, 2], "the rack that is broken already"
    assert jobs.guaranteed("a", 16).nodes == [4, 5], "not one node in each of two racks"
    assert jobs.guaranteed("a", 32).nodes == [8, 9, 10, 11]
    assert jobs.guaranteed("a", 24).nodes == [3, 6, 7], "no rack has three: from wherever there are"
    jobs.waits("a", 8)


def test_a_job_larger_than_a_node_takes_whole_nodes() -> None:
    jobs = alone(racks(1), (RACK, 1))
    job = jobs.guaranteed("a", 9)
    assert job.held == 16
    jobs.guaranteed("a", 4)
    jobs.waits("a", 9)


def test_reserved_nodes_stand_alone_and_reserved_racks_together() -> None:
    jobs = alone(racks(3), (NODE, 2), (RACK, 1))
    assert jobs.guaranteed("a", 24).nodes == [2, 3, 4], "hosts 0 and 1 are lone nodes, 2 to 5 a rack"
    assert jobs.guaranteed("a", 16).nodes == [0, 1]


def test_a_reserved_cell_smaller_than_a_node_is_a_host_of_its_own() -> None:
    jobs = alone(nodes_of_8(2), (SOCKET, 2), (PAIR, 1))
    assert [jobs.can_ever_fit("a", gpus) for gpus in (1, 2, 3, 4, 5, 8, 10)] == [True] * 4 + [False] * 3
    assert jobs.guaranteed("a", 2).nodes == [2], "the pair, so that the sockets stay whole"
    assert jobs.guaranteed("a", 3).nodes == [0]
    assert jobs.guaranteed("a", 2).nodes == [1]
    assert jobs.guaranteed("a", 2).nodes == [1]
    jobs.waits("a", 2)
    assert jobs.guaranteed("a", 1).nodes == [0]


def test_whole_nodes_are_not_made_of_sockets() -> None:
    jobs = alone(nodes_of_8(4), (NODE, 1), (SOCKET, 4))
    assert not jobs.can_ever_fit("a", 16)
    jobs.waits("a", 16)
    assert jobs.guaranteed("a", 8).nodes == [0]
    jobs.waits("a", 8)


def test_a_reserved_gpu_of_a_node_with_one_gpu_is_as_good_as_the_node() -> None:
    """A node with one child, and that child reserved: it is below the node level, and as large as a node."""
    chain = chain_of((1, 2), 1, node_level=2)
    jobs = alone(chain, (1, 2))
    assert jobs.can_ever_fit("a", 2)
    one = jobs.guaranteed("a", 1)
    jobs.release(one)
    both = jobs.guaranteed("a", 2)
    assert both.held == 2


def test_cells_of_two_levels_with_as_many_gpus_are_told_apart() -> None:
    """A node with one socket: the reserved socket and the reserved node have two GPUs each, at different levels."""
    jobs = alone(chain_of((2, 1), 2, node_level=3), (2, 1), (3, 1))
    assert jobs.guaranteed("a", 1).nodes == [0]
    assert jobs.guaranteed("a", 2).nodes == [1]


def test_chains_are_tried_in_the_order_of_the_spec() -> None:
    new, old = nodes_of_8(1, "NEW"), nodes_of_8(1, "OLD")
    jobs = Jobs(Cluster(cluster_of([new, old], vc("a", (old, NODE, 1), (new, NODE, 1))), Sharing.PRIVATE))
    assert [jobs.guaranteed("a", 8).parts for _ in range(2)] == [((0, 0, 0xFF),), ((1, 0, 0xFF),)]
    assert not jobs.can_ever_fit("a", 16), "a job stands in one chain"


def test_a_pinned_cell_serves_only_who_names_it() -> None:
    chain = nodes_of_8(2)
    spec = cluster_of(chain, vc("a", (chain, GPU, 1), pinned=[(chain, NODE, 0)]))
    for sharing in Sharing:
        jobs = Jobs(Cluster(spec, sharing))
        jobs.guaranteed("a", 1)
        assert not jobs.can_ever_fit("a", 2)
        jobs.waits("a", 1)
        in_the_pin = replace(jobs.new("a", 8).own, pinned_cell_id="a-pin-0")
        assert isinstance(jobs.cluster.place(in_the_pin), Bind)


def test_a_tenant_without_cells_fits_nothing() -> None:
    chain = nodes_of_8(1)
    jobs = Jobs(Cluster(cluster_of(chain, vc("none"), vc("a", (chain, NODE, 1))), Sharing.PRIVATE))
    assert not jobs.can_ever_fit("none", 1)
    jobs.waits("none", 1)
    jobs.guaranteed("a", 8)


@given(feasible_specs())
def test_what_can_ever_fit_is_what_fits_an_empty_cluster(spec: ClusterSpec) -> None:
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
