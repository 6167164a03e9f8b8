"""One cluster per tenant: what the shared ones are measured against."""

from __future__ import annotations

from hived.cluster import Cluster, Placement, PodPlacement, Sharing

from ..strategies import NODE, SOCKET, cluster_of, nodes_of_8, vc
from .helpers import Jobs


def test_tenants_are_in_nobodys_way_and_nothing_is_lent() -> None:
    chain = nodes_of_8(2)
    jobs = Jobs(Cluster(cluster_of(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1))), Sharing.PRIVATE))
    jobs.guaranteed("a", 8)
    jobs.guaranteed("b", 8)
    jobs.waits("a", 1)
    assert not jobs.can_ever_lend(1)
    assert not jobs.can_lend(1)
    assert jobs.cluster.place(jobs.new("a", 1).loan) is None


def test_nodes_are_named_after_their_owner_and_numbered_through_all_chains() -> None:
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


def test_what_ends_leaves_its_gpus_to_the_next() -> None:
    chain = nodes_of_8(1)
    jobs = Jobs(Cluster(cluster_of(chain, vc("a", (chain, NODE, 1))), Sharing.PRIVATE))
    job = jobs.guaranteed("a", 8)
    jobs.waits("a", 1)
    jobs.release(job)
    assert jobs.guaranteed("a", 5).nodes == [0]
