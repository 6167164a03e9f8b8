"""One cluster per tenant: what the shared ones are measured against."""

from __future__ import annotations

import pytest

from hived.cluster import Part, PrivateClusters
from hived.errors import InvariantError

from ..strategies import NODE, SOCKET, cluster_of, nodes_of_8, vc
from .helpers import Jobs, nodes_of


def test_tenants_are_in_nobodys_way_and_nothing_is_lent() -> None:
    chain = nodes_of_8(2)
    jobs = Jobs(PrivateClusters(cluster_of(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))))
    jobs.guaranteed("a", 8)
    jobs.guaranteed("b", 8)
    jobs.waits("a", 1)
    assert not jobs.cluster.lends
    assert not jobs.cluster.can_lend(1)
    assert not jobs.cluster.lend(jobs.new("a", 1))


def test_nodes_are_named_after_their_owner_and_numbered_through_all_chains() -> None:
    new, old = nodes_of_8(2, "NEW"), nodes_of_8(1, "OLD")
    spec = cluster_of([new, old], vc("a", (new, NODE, 1), (old, SOCKET, 1)), vc("b", (new, NODE, 1), (old, SOCKET, 1)))
    jobs = Jobs(PrivateClusters(spec))
    first, second, third = jobs.guaranteed("a", 8), jobs.guaranteed("a", 3), jobs.guaranteed("b", 8)
    fourth = jobs.guaranteed("b", 1)
    assert [job.parts for job in (first, second, third, fourth)] == [
        (Part(0, 0, 0xFF),), (Part(1, 0, 0b111),), (Part(2, 0, 0xFF),), (Part(3, 0, 1),),
    ]  # fmt: skip
    names = [jobs.cluster.named(job.parts) for job in (first, second, third, fourth)]
    assert names == [
        (("a-node-0", (0, 1, 2, 3, 4, 5, 6, 7)),),
        (("a-node-1", (0, 1, 2)),),
        (("b-node-0", (0, 1, 2, 3, 4, 5, 6, 7)),),
        (("b-node-1", (0,)),),
    ]
    assert jobs.cluster.node_sizes() == [[8], [4], [8], [4]]


def test_what_ends_leaves_its_gpus_to_the_next() -> None:
    chain = nodes_of_8(1)
    jobs = Jobs(PrivateClusters(cluster_of(chain, vc("a", (chain, NODE, 1)))))
    job = jobs.guaranteed("a", 8)
    jobs.waits("a", 1)
    jobs.release(job)
    assert nodes_of(jobs.guaranteed("a", 5)) == [0]


def test_a_state_that_disagrees_with_the_holders_is_found_out() -> None:
    chain = nodes_of_8(1)
    cluster = PrivateClusters(cluster_of(chain, vc("a", (chain, NODE, 1))))
    Jobs(cluster).guaranteed("a", 2)
    cluster.clusters[0].pools[0][1].free[0] = 0
    with pytest.raises(InvariantError):
        cluster.validate()
