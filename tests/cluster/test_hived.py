"""Sharing by cells: guaranteed inside the VC, the rest lent and taken back at once."""

from __future__ import annotations

from hived import Bind, Preempt
from hived.cluster import Cluster, Member, Request, Sharing
from hived.spec.compiled import ChainSpec, VirtualClusterSpec

from ..strategies import GPU, NODE, PAIR, RACK, SOCKET, cluster_of, nodes_of_8, racks, vc
from .helpers import Jobs

FIRST_SOCKET, SECOND_SOCKET = 0b0000_1111, 0b1111_0000


def shared(chain: ChainSpec, *vcs: VirtualClusterSpec) -> Jobs:
    return Jobs(Cluster(cluster_of(chain, *vcs), Sharing.HIVED))


def test_an_opportunistic_job_keeps_what_its_lender_does_not_need_yet() -> None:
    """Late binding goes on below the preassigned cell: one GPU of a node takes one GPU."""
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    jobs.guaranteed("b", 8)
    lodger = jobs.lent("b", 4)
    assert lodger.parts == ((0, 1, FIRST_SOCKET),)
    assert jobs.guaranteed("a", 1).parts == ((0, 1, 0b0001_0000),), "in the other socket"
    assert jobs.guaranteed("a", 1).parts == ((0, 1, 0b0010_0000),), "its buddy"
    assert jobs.guaranteed("a", 2).parts == ((0, 1, 0b1100_0000),)
    assert lodger.kind == "O"
    last = jobs.new("a", 1)
    assert jobs.promote(last) == (False, (lodger,))
    assert last.parts == ((0, 1, 0b0000_0001),)


def test_a_vc_in_use_stays_on_its_cell() -> None:
    chain = racks(2)
    jobs = shared(chain, vc("a", (chain, RACK, 1)), vc("b", (chain, RACK, 1)))
    jobs.guaranteed("a", 8)
    jobs.lent("b", 8)
    whole_rack = jobs.new("b", 32)
    assert jobs.promote(whole_rack) is not None
    assert whole_rack.nodes == [4, 5, 6, 7]
    together = jobs.new("a", 24)
    assert jobs.promote(together) is not None
    assert together.nodes == [1, 2, 3]


def test_promotion_in_place_keeps_the_very_same_gpus() -> None:
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    for gpus in (1, 2, 3, 4, 5, 8):
        lodger = jobs.lent("a", gpus)
        parts = lodger.parts
        assert jobs.promote(lodger) == (True, ())
        assert (lodger.kind, lodger.parts) == ("G", parts)
        assert jobs.cluster.opportunistic_gpus("a") == 0
        jobs.release(lodger)


def test_promotion_in_place_takes_the_jobs_own_node_rather_than_a_quieter_one() -> None:
    chain = racks(2)
    jobs = shared(chain, vc("a", (chain, NODE, 2)), vc("b", (chain, RACK, 1)))
    other, lodger = jobs.lent("b", 6), jobs.lent("a", 2)
    assert (other.nodes, lodger.nodes) == ([0], [0])
    assert jobs.promote(lodger) == (True, ())
    assert other.kind == "O"


def test_promotion_moves_the_job_where_its_vc_is_bound_elsewhere() -> None:
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    own = jobs.guaranteed("a", 6)
    lodger = jobs.lent("a", 4)
    assert (own.nodes, lodger.nodes) == ([0], [1])
    assert jobs.promote(lodger) is None
    assert (lodger.kind, lodger.nodes) == ("O", [1])
    jobs.release(own)
    beside = jobs.guaranteed("a", 4)
    assert beside.nodes == [0]
    assert jobs.promote(lodger) == (False, ())
    assert lodger.parts == ((0, 0, SECOND_SOCKET),)
    assert jobs.can_lend(8), "what it left is idle"


def test_promotion_may_preempt_another_where_the_job_moves_to() -> None:
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    jobs.guaranteed("a", 4)
    lodger = jobs.lent("a", 4)
    assert lodger.nodes == [1]
    in_the_way = jobs.lent("b", 4)
    jobs.release(in_the_way)
    in_the_way = jobs.lent("b", 3)
    assert in_the_way.nodes == [1]
    third = jobs.lent("b", 2)
    assert third.nodes == [0]
    assert jobs.promote(lodger) == (False, (third,))
    assert lodger.parts == ((0, 0, SECOND_SOCKET),)
    assert in_the_way.kind == "O"


def test_a_job_of_several_nodes_is_promoted_in_place() -> None:
    chain = racks(2)
    jobs = shared(chain, vc("a", (chain, RACK, 1)), vc("b", (chain, RACK, 1)))
    busy = jobs.guaranteed("b", 8)
    on_rack_1 = jobs.lent("b", 32)
    lodger = jobs.lent("a", 16)
    assert (busy.nodes, lodger.nodes) == ([0], [1, 2])
    jobs.release(on_rack_1)
    assert jobs.promote(lodger) == (False, ()), "rack 0 is b's: it has to move"
    assert lodger.nodes == [4, 5]
    jobs.release(lodger, busy)
    lodger = jobs.lent("a", 16)
    assert jobs.promote(lodger) == (True, ())


def test_a_job_across_racks_is_promoted_in_place_though_its_first_node_is_the_odd_one() -> None:
    """It has one node of rack 0 and both of rack 2; its VC gives it a whole rack first and one node of another."""
    chain = racks(3, nodes=2)
    jobs = shared(chain, vc("a", (chain, RACK, 2)), vc("b", (chain, RACK, 1)))
    on_rack_0, on_rack_1 = jobs.guaranteed("b", 1), jobs.guaranteed("a", 16)
    lodger = jobs.lent("a", 24)
    assert [job.nodes for job in (on_rack_0, on_rack_1, lodger)] == [[0], [2, 3], [1, 4, 5]]
    jobs.release(on_rack_0, on_rack_1)
    assert jobs.promote(lodger) == (True, ())


def test_opportunistic_jobs_stay_far_from_guaranteed_ones_and_close_to_each_other() -> None:
    chain = nodes_of_8(3)
    jobs = shared(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 2)))
    jobs.guaranteed("a", 2)
    assert jobs.lent("b", 2).nodes == [1], "the node without guaranteed groups"
    assert jobs.lent("b", 2).nodes == [1], "and where the others are"
    assert jobs.lent("b", 4).nodes == [1]
    assert jobs.lent("b", 8).nodes == [2]
    on_node_0 = jobs.lent("b", 2)
    assert on_node_0.parts == ((0, 0, 0b0011_0000),), "on a's node at last, in the other socket"


def test_a_lent_job_of_several_nodes_needs_them_whole_and_idle() -> None:
    chain = racks(1)
    jobs = shared(chain, vc("a", (chain, NODE, 4)))
    jobs.guaranteed("a", 1)
    assert not jobs.can_lend(32)
    assert jobs.can_ever_lend(32)
    assert not jobs.can_ever_lend(33)
    lodger = jobs.lent("a", 17)
    assert (lodger.nodes, lodger.held) == ([1, 2, 3], 24)
    assert jobs.cluster.opportunistic_gpus("a") == 24
    assert not jobs.can_lend(9)
    assert jobs.can_lend(7)


def test_a_reserved_socket_is_bound_where_fewest_gpus_are_lent() -> None:
    chain = nodes_of_8(1)
    jobs = shared(chain, vc("a", (chain, SOCKET, 1)), vc("b", (chain, PAIR, 1), (chain, GPU, 2)))
    lodger = jobs.lent("b", 3)
    assert lodger.parts == ((0, 0, 0b0000_0111),)
    assert jobs.guaranteed("a", 4).parts == ((0, 0, SECOND_SOCKET),)
    assert jobs.guaranteed("b", 1).parts == ((0, 0, 0b0000_1000),)
    assert lodger.kind == "O"


def test_each_chain_is_shared_for_itself_and_loans_try_them_in_order() -> None:
    new, old = nodes_of_8(1, "NEW"), nodes_of_8(1, "OLD")
    spec = cluster_of([new, old], vc("a", (new, NODE, 1)), vc("b", (old, NODE, 1)))
    jobs = Jobs(Cluster(spec, Sharing.HIVED))
    lodger = jobs.lent("b", 8)
    assert lodger.parts == ((0, 0, 0xFF),)
    job = jobs.new("a", 8)
    assert jobs.promote(job) == (False, (lodger,))
    jobs.waits("a", 1)
    assert jobs.lent("a", 3).parts == ((1, 0, 0b0111),)
    assert jobs.lent("a", 1).nodes == [0]
    assert not jobs.can_ever_lend(16), "no chain has two nodes"


def test_a_job_lent_in_another_chain_than_its_vc_has_moves() -> None:
    new, old = nodes_of_8(1, "NEW"), nodes_of_8(1, "OLD")
    jobs = Jobs(Cluster(cluster_of([new, old], vc("a", (old, NODE, 1))), Sharing.HIVED))
    lodger = jobs.lent("a", 8)
    assert lodger.parts[0].chain == 0
    assert jobs.promote(lodger) == (False, ())
    assert lodger.parts[0].chain == 1


def test_safety_reports_bound_and_obtainable_cells() -> None:
    chain = racks(2)
    cluster = Cluster(cluster_of(chain, vc("a", (chain, RACK, 1)), vc("b", (chain, NODE, 1))))
    rows = {row.level: (row.reserved, row.allocated, row.free, row.obtainable) for row in cluster.check_safety()}
    assert (rows[RACK], rows[NODE]) == ((1, 0, 2, 0), (1, 0, 0, 4))
    Jobs(cluster).guaranteed("b", 1)
    rows = {row.level: (row.reserved, row.allocated, row.free, row.obtainable) for row in cluster.check_safety()}
    assert (rows[RACK], rows[NODE]) == ((1, 0, 1, 0), (1, 1, 3, 0))
    Jobs(cluster).guaranteed("a", 1)
    rows = {row.level: (row.reserved, row.allocated, row.free, row.obtainable) for row in cluster.check_safety()}
    assert (rows[RACK], rows[NODE]) == ((1, 1, 0, 0), (1, 1, 3, 0))


def test_loans_keep_away_from_a_rack_in_guaranteed_use() -> None:
    """They once went to the fullest rack, right where the next guaranteed cell lands, and were preempted at once."""
    chain = racks(2)
    jobs = shared(chain, vc("a", (chain, NODE, 4)), vc("b", (chain, NODE, 4)))
    jobs.guaranteed("a", 8)
    jobs.guaranteed("a", 8)
    jobs.guaranteed("a", 8)
    one, node, several = jobs.lent("b", 1), jobs.lent("b", 8), jobs.lent("b", 16)
    assert [job.nodes for job in (one, node, several)] == [[4], [5], [6, 7]]
    assert jobs.promote(jobs.new("a", 8)) == (False, ())


def test_pods_in_cells_apart_are_reported_close_where_those_are_bound_side_by_side() -> None:
    chain = nodes_of_8(1)
    cluster = Cluster(cluster_of(chain, vc("a", (chain, SOCKET, 2))))
    for priority, name in ((0, "first"), (1, "higher")):
        decision = cluster.schedule(Request(name, "a", priority, (Member(2, 4),)))
        assert isinstance(decision, (Bind, Preempt))
        assert decision.within == "NODE"
        cluster.commit(decision)
