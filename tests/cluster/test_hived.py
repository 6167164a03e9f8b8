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


def test_loan_keeps_what_its_lender_does_not_need() -> None:
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


def test_promoted_where_its_vc_is_bound() -> None:
    """It moves there, and may preempt another, but no one where it was."""
    chain = nodes_of_8(2)
    jobs = shared(chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    own, lodger = jobs.guaranteed("a", 6), jobs.lent("a", 4)
    assert (own.nodes, lodger.nodes) == ([0], [1])
    assert jobs.promote(lodger) is None
    assert (lodger.kind, lodger.nodes) == ("O", [1])
    jobs.release(own)
    jobs.guaranteed("a", 4)
    beside, in_the_way = jobs.lent("b", 3), jobs.lent("b", 2)
    assert (beside.nodes, in_the_way.nodes) == ([1], [0])
    assert jobs.promote(lodger) == (False, (in_the_way,))
    assert lodger.parts == ((0, 0, SECOND_SOCKET),)
    assert (beside.kind, jobs.can_lend(5), jobs.can_lend(6)) == ("O", True, False), "what it left is idle"


def test_several_nodes_promoted_in_place() -> None:
    chain = racks(2)
    jobs = shared(chain, vc("a", (chain, RACK, 1)), vc("b", (chain, RACK, 1)))
    busy = jobs.guaranteed("b", 8)
    on_rack_1, lodger = jobs.lent("b", 32), jobs.lent("a", 16)
    assert (busy.nodes, lodger.nodes) == ([0], [1, 2])
    jobs.release(on_rack_1)
    assert jobs.promote(lodger) == (False, ()), "rack 0 is b's: it has to move"
    assert lodger.nodes == [4, 5]
    jobs.release(lodger, busy)
    assert jobs.promote(jobs.lent("a", 16)) == (True, ())


def test_across_racks_promoted_in_place() -> None:
    """Though its first node is the odd one.

    It has one node of rack 0 and both of rack 2; its VC gives it a whole rack first and one node of another.
    """
    chain = racks(3, nodes=2)
    jobs = shared(chain, vc("a", (chain, RACK, 2)), vc("b", (chain, RACK, 1)))
    on_rack_0, on_rack_1 = jobs.guaranteed("b", 1), jobs.guaranteed("a", 16)
    lodger = jobs.lent("a", 24)
    assert [job.nodes for job in (on_rack_0, on_rack_1, lodger)] == [[0], [2, 3], [1, 4, 5]]
    jobs.release(on_rack_0, on_rack_1)
    assert jobs.promote(lodger) == (True, ())


def test_socket_bound_where_fewest_are_lent() -> None:
    chain = nodes_of_8(1)
    jobs = shared(chain, vc("a", (chain, SOCKET, 1)), vc("b", (chain, PAIR, 1), (chain, GPU, 2)))
    lodger = jobs.lent("b", 3)
    assert lodger.parts == ((0, 0, 0b0000_0111),)
    assert jobs.guaranteed("a", 4).parts == ((0, 0, SECOND_SOCKET),)
    assert jobs.guaranteed("b", 1).parts == ((0, 0, 0b0000_1000),)
    assert lodger.kind == "O"


def test_safety_report() -> None:
    """Reserved, allocated, free and obtainable cells, as cells of a rack and of a node are bound."""
    chain = racks(2)
    jobs = shared(chain, vc("a", (chain, RACK, 1)), vc("b", (chain, NODE, 1)))
    for tenant, rack, node in (
        (None, (1, 0, 2, 0), (1, 0, 0, 4)),
        ("b", (1, 0, 1, 0), (1, 1, 3, 0)),
        ("a", (1, 1, 0, 0), (1, 1, 3, 0)),
    ):
        if tenant is not None:
            jobs.guaranteed(tenant, 1)
        rows = {r.level: (r.reserved, r.allocated, r.free, r.obtainable) for r in jobs.cluster.check_safety()}
        assert (rows[RACK], rows[NODE]) == (rack, node)


def test_loans_keep_away_from_a_rack_in_use() -> None:
    """They once went to the fullest rack, right where the next guaranteed cell lands, and were preempted at once."""
    chain = racks(2)
    jobs = shared(chain, vc("a", (chain, NODE, 4)), vc("b", (chain, NODE, 4)))
    jobs.guaranteed("a", 8)
    jobs.guaranteed("a", 8)
    jobs.guaranteed("a", 8)
    one, node, several = jobs.lent("b", 1), jobs.lent("b", 8), jobs.lent("b", 16)
    assert [job.nodes for job in (one, node, several)] == [[4], [5], [6, 7]]
    assert jobs.promote(jobs.new("a", 8)) == (False, ())


def test_pods_in_cells_apart_are_close() -> None:
    """Where these are bound side by side."""
    chain = nodes_of_8(1)
    cluster = Cluster(cluster_of(chain, vc("a", (chain, SOCKET, 2))))
    for priority, name in ((0, "first"), (1, "higher")):
        decision = cluster.schedule(Request(name, "a", priority, (Member(2, 4),)))
        assert isinstance(decision, (Bind, Preempt))
        assert decision.within == "NODE"
        cluster.commit(decision)
