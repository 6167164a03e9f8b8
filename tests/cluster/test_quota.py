"""Sharing by quota: a number of GPUs per tenant, anywhere. And what goes wrong with it, which HiveD mends.

Who gets how many, where, and whose loans end for it: test_any_sequence.py.
"""

from __future__ import annotations

from hived import Preempt
from hived.cluster import Cluster, Member, Request, Sharing, Wait
from hived.spec.compiled import ChainSpec, VirtualClusterSpec

from ..strategies import GPU, NODE, SOCKET, chain_of, cluster_of, nodes_of_8, racks, vc
from .helpers import Jobs, carry_out


def shared(chain: ChainSpec, *vcs: VirtualClusterSpec) -> Jobs:
    return Jobs(Cluster(cluster_of(chain, *vcs), Sharing.QUOTA))


def test_affinity_is_lost() -> None:
    """The sharing anomaly: a tenant's eight GPUs are all free, and no node has eight."""
    chain = nodes_of_8(2)
    spec = cluster_of(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    for sharing in (Sharing.QUOTA, Sharing.HIVED):
        jobs = Jobs(Cluster(spec, sharing))
        jobs.guaranteed("b", 4)
        between = jobs.guaranteed("a", 4)
        jobs.guaranteed("b", 4)
        jobs.release(between)
        if sharing is Sharing.QUOTA:
            jobs.waits("a", 8)
        else:
            jobs.guaranteed("a", 8)


def test_quota_by_device_type() -> None:
    new, old, more = nodes_of_8(2, "NEW"), nodes_of_8(2, "OLD"), racks(1, 2, "MORE")
    spec = cluster_of([new, old, more], vc("a", (new, NODE, 1), (old, SOCKET, 2)), vc("b", (old, NODE, 1)))
    jobs = Jobs(Cluster(spec, Sharing.QUOTA))
    assert [jobs.can_ever_fit("a", gpus) for gpus in (16, 17)] == [True, False]
    assert [jobs.can_ever_fit("b", gpus) for gpus in (8, 9)] == [True, False]
    jobs.guaranteed("b", 8)
    jobs.waits("b", 1)


def test_whole_nodes_by_rank() -> None:
    chain = nodes_of_8(4)
    jobs = shared(chain, vc("a", (chain, NODE, 4)))
    first, second = jobs.lent("a", 8), jobs.lent("a", 3)
    job = jobs.new("a", 24)
    assert jobs.promote(job) == (False, (second,))
    assert job.nodes == [1, 2, 3]
    assert first.nodes == [0]


def test_promoted_on_another_device_type() -> None:
    new, old = nodes_of_8(1, "NEW"), chain_of((2, 2, 2), 1, NODE, "OLD", leaf_type="K80")
    jobs = Jobs(Cluster(cluster_of([new, old], vc("a", (old, NODE, 1))), Sharing.QUOTA))
    lodger = jobs.lent("a", 2)
    assert lodger.parts[0].chain == 0
    assert jobs.promote(lodger) == (False, ())
    assert lodger.parts[0].chain == 1


def test_lower_groups_end_for_the_quota() -> None:
    """Other GPUs are idle: the lower group is in no group's way, but the quota would be exceeded with it."""
    chain = chain_of((), 8, 1)
    cluster = Cluster(cluster_of(chain, vc("a", (chain, GPU, 3))), Sharing.QUOTA)
    for name in ("first", "second"):
        cluster.commit(cluster.schedule(Request(name, "a", 0, (Member(1, 1),))))
    high = Request("high", "a", 1, (Member(2, 1),))
    decision = cluster.schedule(high)
    assert isinstance(decision, Preempt)
    assert decision.victims == ("second",), "the latest"
    carry_out(cluster, decision, high)
    cluster.validate()
    assert isinstance(cluster.schedule(Request("third", "a", 0, (Member(1, 1),))), Wait)
