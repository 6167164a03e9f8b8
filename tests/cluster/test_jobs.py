"""Jobs of a trace under each way to share: by cells, by quota, and in private clusters.

What holds after any calls, and who gets how many where: test_any_sequence.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hived import Bind, Preempt
from hived.cluster import Cluster, Member, Placement, PodPlacement, Request, Sharing, Wait
from hived.cluster.placement_request import PlacementRequest
from hived.spec.compiled import ChainSpec, ClusterSpec

from ..contract.hardware import Hardware
from ..strategies import (
    GPU,
    NODE,
    PAIR,
    RACK,
    SOCKET,
    chain_of,
    chains,
    cluster_of,
    feasible_specs,
    given_in_tiers,
    nodes_of_8,
    racks,
    vc,
)
from .helpers import Job, Jobs, VirtualLeaves, carry_out, jobs_of, spots

# -- by cells: guaranteed inside the VC, the rest lent and taken back at once ----------------------------------------


def test_loan_keeps_what_its_lender_does_not_need() -> None:
    """Late binding goes on below the preassigned cell: one GPU of a node takes one GPU."""
    chain = nodes_of_8(2)
    jobs = jobs_of(Sharing.HIVED, chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    jobs.guaranteed("b", 8)
    lodger = jobs.lent("b", 4)
    assert lodger.at == [(1, (0, 1, 2, 3))]
    assert jobs.guaranteed("a", 1).at == [(1, (4,))], "in the other socket"
    assert jobs.guaranteed("a", 1).at == [(1, (5,))], "its buddy"
    assert jobs.guaranteed("a", 2).at == [(1, (6, 7))]
    assert lodger.kind == "O"
    last = jobs.new("a", 1)
    assert jobs.promote(last) == (False, (lodger,))
    assert last.at == [(1, (0,))]


def test_promoted_where_its_vc_is_bound() -> None:
    """It moves there, and may preempt another, but no one where it was."""
    chain = nodes_of_8(2)
    jobs = jobs_of(Sharing.HIVED, chain, vc("a", (chain, NODE, 1)), vc("b", (chain, NODE, 1)))
    own, lodger = jobs.guaranteed("a", 6), jobs.lent("a", 4)
    assert (own.nodes, lodger.nodes) == ([0], [1])
    assert jobs.promote(lodger) is None
    assert (lodger.kind, lodger.nodes) == ("O", [1])
    jobs.release(own)
    jobs.guaranteed("a", 4)
    beside, in_the_way = jobs.lent("b", 3), jobs.lent("b", 2)
    assert (beside.nodes, in_the_way.nodes) == ([1], [0])
    assert jobs.promote(lodger) == (False, (in_the_way,))
    assert lodger.at == [(0, (4, 5, 6, 7))]
    assert (beside.kind, jobs.can_lend(5), jobs.can_lend(6)) == ("O", True, False), "what it left is idle"


def test_several_nodes_promoted_in_place() -> None:
    chain = racks(2)
    jobs = jobs_of(Sharing.HIVED, chain, vc("a", (chain, RACK, 1)), vc("b", (chain, RACK, 1)))
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
    jobs = jobs_of(Sharing.HIVED, chain, vc("a", (chain, RACK, 2)), vc("b", (chain, RACK, 1)))
    on_rack_0, on_rack_1 = jobs.guaranteed("b", 1), jobs.guaranteed("a", 16)
    lodger = jobs.lent("a", 24)
    assert [job.nodes for job in (on_rack_0, on_rack_1, lodger)] == [[0], [2, 3], [1, 4, 5]]
    jobs.release(on_rack_0, on_rack_1)
    assert jobs.promote(lodger) == (True, ())


def test_safety_report() -> None:
    """Reserved, allocated, free and obtainable cells, as cells of a rack and of a node are bound."""
    chain = racks(2)
    jobs = jobs_of(Sharing.HIVED, chain, vc("a", (chain, RACK, 1)), vc("b", (chain, NODE, 1)))
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
    jobs = jobs_of(Sharing.HIVED, chain, vc("a", (chain, NODE, 4)), vc("b", (chain, NODE, 4)))
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


# -- a loan stays where it is when its turn comes, wherever its VC allows that ----------------------------------------

#: how leaves are spread over a cell: their number under each child that has any, in order of size, all the way down
Spread = tuple["Spread", ...]


def spread(chain: ChainSpec, level: int, leaves: Iterable[int]) -> Spread:
    """The spread of ``leaves`` under a cell of ``level`` (the root is above the top).

    Two jobs of one spread can exchange places.
    """
    if level == 1:
        return ()
    below = chain.levels[level - 2].gpus
    children: dict[int, list[int]] = {}
    for leaf in leaves:
        children.setdefault(leaf // below, []).append(leaf)
    return tuple(sorted(spread(chain, level - 1, child) for child in children.values()))


@given_in_tiers(
    60, 500, st.one_of(chains(max_gpus=32), st.just(nodes_of_8(2)), st.just(chain_of((3, 2, 2), 2, 1))), st.data()
)
def test_stays_if_cells_can_be_bound_there(chain: ChainSpec, data: st.DataObject) -> None:
    """The VC is the whole cluster, so that any cell can be bound; loans that came and went have left holes."""
    assume(len(chain.levels) <= chain.node_level + 1)  # racks at most above the nodes
    spec = cluster_of(chain, vc("a", (chain, len(chain.levels), chain.top_cells)))
    jobs = Jobs(Cluster(spec))
    lodgers: list[Job] = []
    for gpus in data.draw(st.lists(st.integers(1, chain.gpus), min_size=1, max_size=8)):
        if jobs.can_lend(gpus):
            lodgers.append(jobs.lent("a", gpus))
            if data.draw(st.booleans()):
                jobs.release(lodgers.pop(data.draw(st.integers(0, len(lodgers) - 1))))
    assume(lodgers)
    job = data.draw(st.sampled_from(lodgers))
    before = job.placement
    assert before is not None
    grant = jobs.promote(job)
    assert grant is not None
    where = spots(jobs.cluster, job.name)
    assert where is not None
    root, size = len(chain.levels) + 1, chain.levels[-1].gpus
    cells = [leaf for host, mask in where[1] for leaf in VirtualLeaves(spec, 0).of(0, host, mask)]
    virtual = [cell * size + leaf for cell, _, leaf in cells]
    hardware = Hardware(spec)
    had = [leaf for pod in before.pods for leaf in hardware.leaves(chain.name, pod)]
    alike = spread(chain, root, virtual) == spread(chain, root, had)
    assert grant[0] == alike
    if alike:
        assert job.placement is not None
        assert (grant[1], job.placement.pods) == ((), before.pods)


def test_across_racks_of_a_row() -> None:
    """It has two nodes of rack 0 and all three of rack 1; its VC, a row, gives it a whole rack first."""
    chain = chain_of((2, 2, 2, 3, 2), 1, NODE, "ROW")
    jobs = jobs_of(Sharing.HIVED, chain, vc("a", (chain, NODE + 2, 1)))
    first, lodger = jobs.lent("a", 8), jobs.lent("a", 40)
    assert (first.nodes, lodger.nodes) == ([0], [1, 2, 3, 4, 5])
    jobs.release(first)
    assert jobs.promote(lodger) == (True, ())


def test_last_placement_is_kept_with_the_answer() -> None:
    """Something is asked between the answer and its commit, so that the answer is worked out again."""
    chain = nodes_of_8(4)
    cluster = Cluster(cluster_of(chain, vc("a", (chain, NODE, 4))))
    first = cluster.schedule(Request("job", "a", members=(Member(1, 1),)), suggested_nodes=["node-node-2"])
    assert isinstance(first, Bind)
    decision = cluster.place(PlacementRequest(Request("job", "a", members=(Member(1, 1),)), near=first.placement))
    assert decision is not None
    assert decision.placement == first.placement
    cluster.snapshot()
    cluster.commit(decision)
    assert cluster.group("job").placement == first.placement


# -- by quota: a number of GPUs per tenant, anywhere, and what goes wrong with it, which HiveD mends ------------------


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
    jobs = jobs_of(Sharing.QUOTA, chain, vc("a", (chain, NODE, 4)))
    first, second = jobs.lent("a", 8), jobs.lent("a", 3)
    job = jobs.new("a", 24)
    assert jobs.promote(job) == (False, (second,))
    assert job.nodes == [1, 2, 3]
    assert first.nodes == [0]


def test_promoted_on_another_device_type() -> None:
    new, old = nodes_of_8(1, "NEW"), chain_of((2, 2, 2), 1, NODE, "OLD", leaf_type="K80")
    jobs = Jobs(Cluster(cluster_of([new, old], vc("a", (old, NODE, 1))), Sharing.QUOTA))
    lodger = jobs.lent("a", 2)
    assert lodger.placement is not None
    assert lodger.placement.chain == "NEW"
    assert jobs.promote(lodger) == (False, ())
    assert lodger.placement.chain == "OLD"


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


# -- a tenant's cells as a cluster of their own ------------------------------------------------------------------------


def alone(chain: ChainSpec, *cells: tuple[int, int]) -> Jobs:
    """One tenant's private cluster: (level, number) of its cells."""
    return jobs_of(Sharing.PRIVATE, chain, vc("a", *((chain, level, number) for level, number in cells)))


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
            assert (jobs.cluster.place(PlacementRequest(jobs.new(own.name, gpus).own)) is not None) == fits
