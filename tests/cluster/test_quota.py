"""Sharing by quota: a number of GPUs per tenant, anywhere. And what goes wrong with it, which HiveD mends."""

from __future__ import annotations

from hived import Preempt
from hived.cluster import Cluster, Member, Request, Sharing, Wait
from hived.spec.compiled import ChainSpec, VirtualClusterSpec

from ..strategies import GPU, NODE, SOCKET, chain_of, cluster_of, nodes_of_8, racks, vc
from .helpers import Jobs, carry_out


def shared(chain: ChainSpec, *vcs: VirtualClusterSpec) -> Jobs:
    return Jobs(Cluster(cluster_of(chain, *vcs), Sharing.QUOTA))


def test_a_tenant_gets_as_many_gpus_as_its_quota_and_no_more() -> None:
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, SOCKET, 2)), vc("b", (chain, NODE, 1)))
    jobs.guaranteed("a", 5)
    jobs.waits("a", 4)
    last = jobs.guaranteed("a", 3)
    jobs.waits("a", 1)
    jobs.release(last)
    jobs.guaranteed("a", 2)


def test_whole_nodes_are_charged_whole() -> None:
    chain = nodes_of_8(3)
    jobs = shared(chain, vc("a", (chain, NODE, 2), (chain, GPU, 7)))
    assert not jobs.can_ever_fit("a", 17), "three nodes are 24 GPUs"
    assert jobs.guaranteed("a", 9).held == 16
    jobs.waits("a", 8)
    jobs.guaranteed("a", 7)


def test_affinity_is_lost_in_a_quota_cluster_and_kept_in_a_vc() -> None:
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


def test_the_quota_counts_the_cells_of_a_vc_by_device_type() -> None:
    new, old, more = nodes_of_8(2, "NEW"), nodes_of_8(2, "OLD"), racks(1, 2, "MORE")
    spec = cluster_of([new, old, more], vc("a", (new, NODE, 1), (old, SOCKET, 2)), vc("b", (old, NODE, 1)))
    jobs = Jobs(Cluster(spec, Sharing.QUOTA))
    assert [jobs.can_ever_fit("a", gpus) for gpus in (16, 17)] == [True, False]
    assert [jobs.can_ever_fit("b", gpus) for gpus in (8, 9)] == [True, False]
    jobs.guaranteed("b", 8)
    jobs.waits("b", 1)


def test_opportunistic_jobs_are_preempted_on_the_node_where_fewest_of_their_gpus_go() -> None:
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    six, five = jobs.lent("b", 6), jobs.lent("b", 5)
    assert [six.nodes, five.nodes] == [[0], [1]]
    job = jobs.new("a", 4)
    assert jobs.promote(job) == (False, (five,))
    assert job.nodes == [1]
    assert job.parts[0].mask & 0b1110_0000 == 0b1110_0000, "the idle ones, and one of the lodger's"


def test_an_idle_node_is_taken_before_any_group_is_preempted() -> None:
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, NODE, 2)))
    lodger = jobs.lent("a", 7)
    assert jobs.guaranteed("a", 2).nodes == [1]
    assert jobs.guaranteed("a", 6).nodes == [1]
    assert jobs.guaranteed("a", 1).nodes == [0]
    assert lodger.kind == "O"


def test_whole_nodes_are_chosen_by_the_policys_rank() -> None:
    chain = nodes_of_8(4)
    jobs = shared(chain, vc("a", (chain, NODE, 4)))
    first, second = jobs.lent("a", 8), jobs.lent("a", 3)
    job = jobs.new("a", 24)
    assert jobs.promote(job) == (False, (second,))
    assert job.nodes == [1, 2, 3]
    assert first.nodes == [0]


def test_an_opportunistic_group_is_promoted_in_place_as_soon_as_the_quota_allows() -> None:
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    own = jobs.guaranteed("a", 6)
    lodger = jobs.lent("a", 4)
    assert jobs.promote(lodger) is None
    jobs.release(own)
    parts = lodger.parts
    assert jobs.promote(lodger) == (True, ())
    assert (lodger.kind, lodger.parts) == ("G", parts)
    assert jobs.cluster.opportunistic_gpus("a") == 0
    jobs.waits("a", 5)


def test_a_job_lent_on_another_device_type_than_its_quota_moves() -> None:
    new, old = nodes_of_8(1, "NEW"), chain_of((2, 2, 2), 1, NODE, "OLD", leaf_type="K80")
    jobs = Jobs(Cluster(cluster_of([new, old], vc("a", (old, NODE, 1))), Sharing.QUOTA))
    lodger = jobs.lent("a", 2)
    assert lodger.parts[0].chain == 0
    assert jobs.promote(lodger) == (False, ())
    assert lodger.parts[0].chain == 1


def test_a_tenant_without_quota_only_borrows() -> None:
    chain = nodes_of_8(1)
    jobs = shared(chain, vc("none"), vc("a", (chain, NODE, 1)))
    jobs.waits("none", 1)
    lodger = jobs.lent("none", 8)
    job = jobs.new("a", 1)
    assert jobs.promote(job) == (False, (lodger,))


def test_pinned_cells_add_nothing_to_the_quota() -> None:
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, GPU, 2), pinned=[(chain, NODE, 1)]))
    assert jobs.can_ever_fit("a", 2)
    assert not jobs.can_ever_fit("a", 3)
    jobs.waits("a", 3)


def test_a_preemption_ends_as_many_of_the_tenants_lower_groups_as_the_quota_asks_for() -> None:
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
