"""A job that runs opportunistically stays where it is when its turn comes, wherever its VC allows that."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import assume
from hypothesis import strategies as st

from hived import Bind, Member, Request
from hived.cluster import Cluster
from hived.spec.compiled import ChainSpec

from ..strategies import NODE, chain_of, chains, cluster_of, given_in_tiers, nodes_of_8, vc
from .helpers import Job, Jobs, VirtualLeaves, leaves_of, spots

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
    parts = job.parts
    grant = jobs.promote(job)
    assert grant is not None
    where = spots(jobs.cluster, job.name)
    assert where is not None
    root, size = len(chain.levels) + 1, chain.levels[-1].gpus
    cells = [leaf for host, mask in where[1] for leaf in VirtualLeaves(spec, 0).of(0, host, mask)]
    virtual = [cell * size + leaf for cell, _, leaf in cells]
    had = [leaf for _, leaf in leaves_of(parts, [chain.gpus_per_node])]
    alike = spread(chain, root, virtual) == spread(chain, root, had)
    assert grant[0] == alike
    if alike:
        assert (grant[1], job.parts) == ((), parts)


def test_across_racks_of_a_row() -> None:
    """It has two nodes of rack 0 and all three of rack 1; its VC, a row, gives it a whole rack first."""
    chain = chain_of((2, 2, 2, 3, 2), 1, NODE, "ROW")
    jobs = Jobs(Cluster(cluster_of(chain, vc("a", (chain, NODE + 2, 1)))))
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
    decision = cluster.place(Request("job", "a", members=(Member(1, 1),)), near=first.placement)
    assert decision is not None
    assert decision.placement == first.placement
    cluster.snapshot()
    cluster.commit(decision)
    assert cluster.group("job").placement == first.placement
