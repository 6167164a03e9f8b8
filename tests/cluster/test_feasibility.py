"""An assignment that does not fit is refused with the level, the need, the supply, and the smallest way out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hived.cluster import Cluster, Shortage, check_feasible, initial_safety, shortages
from hived.errors import InfeasibleError
from hived.spec.compiled import ChainSpec, ClusterSpec, VirtualCellsSpec, VirtualClusterSpec

from ..cells.naive import NaiveBuddies
from ..strategies import NODE, RACK, SOCKET, chains, cluster_of, racks, vc


@st.composite
def any_specs(draw: st.DrawFn) -> ClusterSpec:
    """Two chains with pinned cells and whatever three tenants would like to have."""
    hardware = [draw(chains(name, max_gpus=12)) for name in ("ONE", "TWO")]
    pins: list[tuple[ChainSpec, int, int]] = []
    for chain in hardware:
        room = NaiveBuddies(chain)
        for _ in range(draw(st.integers(0, 2))):
            level = draw(st.integers(1, len(chain.levels)))
            index = draw(st.integers(0, chain.cells_at(level) - 1))
            if room.holder_of((level, index)) is not None:
                room.take((level, index))
                pins.append((chain, level, index))
    vcs = []
    for name in "abc":
        cells = [
            (chain, level, draw(st.integers(0, 2))) for chain in hardware for level in range(1, len(chain.levels) + 1)
        ]
        vcs.append(vc(name, *(cell for cell in cells if cell[2]), pinned=pins if name == "b" else ()))
    return cluster_of(hardware, *vcs)


def demand(spec: ClusterSpec, chain: ChainSpec) -> list[int]:
    """Cells wanted per level, pinned ones aside."""
    wanted = [0] * (len(chain.levels) + 1)
    for tenant in spec.virtual_clusters:
        for cells in tenant.cells:
            if cells.chain == chain.name:
                wanted[cells.level] += cells.number
    return wanted


def with_top_cells(spec: ClusterSpec, more: dict[str, int]) -> ClusterSpec:
    """The same with more hardware."""
    grown = []
    for chain in spec.chains:
        tops = chain.top_cells + more.get(chain.name, 0)
        nodes = tops * chain.levels[-1].gpus // chain.gpus_per_node
        grown.append(replace(chain, top_cells=tops, node_names=tuple(f"node-{i}" for i in range(nodes))))
    return replace(spec, chains=tuple(grown))


def with_fewer(spec: ClusterSpec, fewer: dict[tuple[str, int], int]) -> ClusterSpec:
    """The same with fewer cells reserved, per chain and level, of any VC."""
    left = dict(fewer)
    vcs: list[VirtualClusterSpec] = []
    for tenant in spec.virtual_clusters:
        kept = []
        for cells in tenant.cells:
            less = min(left.get((cells.chain, cells.level), 0), cells.number)
            left[cells.chain, cells.level] = left.get((cells.chain, cells.level), 0) - less
            kept.append(VirtualCellsSpec(cells.chain, cells.level, cells.number - less))
        vcs.append(replace(tenant, cells=tuple(kept)))
    assert not any(left.values()), "no more is to be given up than was reserved"
    return replace(spec, virtual_clusters=tuple(vcs))


@given(any_specs())
def test_ways_out_are_the_smallest(spec: ClusterSpec) -> None:
    """Fewer cells, or more top cells, make it fit, and one less of them does not; reserved cells are listed by VC."""
    short = shortages(spec)
    if not short:
        check_feasible(spec)
        Cluster(spec).validate()
        return
    for refuses in (check_feasible, Cluster):
        with pytest.raises(InfeasibleError):
            refuses(spec)
    fewer = {(s.chain, s.level): s.need - s.supply for s in short}
    assert not shortages(with_fewer(spec, fewer))
    for at in fewer:
        assert shortages(with_fewer(spec, {**fewer, at: fewer[at] - 1}))
    more = {s.chain: s.missing_top_cells for s in short}
    assert not shortages(with_top_cells(spec, more))
    for name in more:
        assert shortages(with_top_cells(spec, {**more, name: more[name] - 1}))
    for shortage in short:
        chain, level = spec.chain(shortage.chain), shortage.level
        assert sum(number for _, number in shortage.by) == shortage.need == demand(spec, chain)[level]
        for name, number in shortage.by:
            tenant = next(v for v in spec.virtual_clusters if v.name == name)
            own = sum(c.number for c in tenant.cells if (c.chain, c.level) == (chain.name, level))
            assert number == own > 0


def test_message_names_both_ways_out() -> None:
    chain = racks(2)
    spec = cluster_of(
        chain, vc("research", (chain, NODE, 7)), vc("prod", (chain, NODE, 2), (chain, SOCKET, 1)), vc("idle")
    )
    assert shortages(spec) == (
        Shortage("RACK", NODE, "RACK-4", 9, 8, (("research", 7), ("prod", 2)), 1),
        Shortage("RACK", SOCKET, "RACK-3", 1, 0, (("prod", 1),), 1),
    )
    with pytest.raises(InfeasibleError) as caught:
        check_feasible(replace(spec, source="cluster.yaml"))
    message = str(caught.value)
    assert message.startswith("cluster.yaml: ")
    node, socket = message.index("level 4 (RACK-4)"), message.index("level 3 (RACK-3)")
    assert node < socket, "from the top down"
    for said in ("reserve 9 cells (research 7, prod 2)", "8 can be had", "reserve 1 fewer RACK-4", "add 1 RACK"):
        assert said in message[node:socket]
    for said in ("reserve 1 cells (prod 1)", "0 can be had", "reserve 1 fewer RACK-3", "add 1 RACK"):
        assert said in message[socket:]
    assert caught.value.exit_code == 2


def test_pinned_cells_count_as_bound() -> None:
    chain = racks(2)
    rows = initial_safety(cluster_of(chain, vc("a", (chain, NODE, 2), pinned=[(chain, NODE, 5)])))
    rack, node = rows[0], rows[1]
    assert (rack.level, rack.reserved, rack.allocated, rack.free, rack.obtainable) == (RACK, 0, 0, 1, 0)
    assert (node.level, node.reserved, node.allocated, node.free, node.obtainable) == (NODE, 3, 1, 3, 4)
    assert node.margin == 5
