"""Clusters for tests: some with names, and hypothesis strategies for any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hived.spec.compiled import (
    ChainSpec,
    ClusterSpec,
    LevelSpec,
    PinnedCellSpec,
    VirtualCellsSpec,
    VirtualClusterSpec,
)

from .cells.naive import NaiveBuddies


def tiers(few: int, many: int) -> pytest.MarkDecorator:
    """A parameter ``examples``: ``few`` in the fast tier, ``many`` in the slow one."""
    longer = pytest.param(many, marks=pytest.mark.slow)
    return pytest.mark.parametrize("examples", [few, longer])


def given_in_tiers(
    few: int, many: int, *drawn: st.SearchStrategy[object]
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """:func:`hypothesis.given` with ``few`` examples in the fast tier, and ``many`` in the slow one."""

    def decorated(check: Callable[..., None]) -> Callable[[int], None]:
        def test(examples: int) -> None:
            settings(max_examples=examples)(given(*drawn)(check))()

        test.__doc__ = check.__doc__
        test.__module__, test.__name__, test.__qualname__ = check.__module__, check.__name__, check.__qualname__
        marked: Callable[[int], None] = tiers(few, many)(test)
        return marked

    return decorated


#: levels of :func:`racks`
GPU, PAIR, SOCKET, NODE, RACK = 1, 2, 3, 4, 5


def chain_of(
    fanouts: Sequence[int] = (), tops: int = 1, node_level: int = 1, name: str = "TOP", leaf_type: str = "GPU"
) -> ChainSpec:
    """A chain; ``fanouts`` are the children per cell from level 2 to the top."""
    levels = [LevelSpec(leaf_type if fanouts else name, 1, 1)]
    for level, fanout in enumerate(fanouts, 2):
        cell_type = name if level == len(fanouts) + 1 else f"{name}-{level}"
        levels.append(LevelSpec(cell_type, fanout, levels[-1].gpus * fanout))
    nodes = tops * levels[-1].gpus // levels[node_level - 1].gpus
    return ChainSpec(name, tuple(levels), node_level, tops, tuple(f"{name.lower()}-node-{i}" for i in range(nodes)))


def racks(tops: int = 1, nodes: int = 4, name: str = "RACK") -> ChainSpec:
    """Racks of nodes of 8 GPUs, in pairs in sockets."""
    return chain_of((2, 2, 2, nodes), tops, NODE, name)


def nodes_of_8(nodes: int, name: str = "NODE") -> ChainSpec:
    """Nodes of 8 GPUs, in pairs in sockets, with nothing above them."""
    return chain_of((2, 2, 2), nodes, NODE, name)


def vc(
    name: str, *cells: tuple[ChainSpec, int, int], pinned: Sequence[tuple[ChainSpec, int, int]] = ()
) -> VirtualClusterSpec:
    """A VC; ``cells`` are (chain, level, number), ``pinned`` (chain, level, index)."""
    return VirtualClusterSpec(
        name,
        tuple(VirtualCellsSpec(chain.name, level, number) for chain, level, number in cells),
        tuple(PinnedCellSpec(f"{name}-pin-{i}", chain.name, *at) for i, (chain, *at) in enumerate(pinned)),
    )


def cluster_of(chains: ChainSpec | Sequence[ChainSpec], *vcs: VirtualClusterSpec) -> ClusterSpec:
    """A whole spec."""
    return ClusterSpec((chains,) if isinstance(chains, ChainSpec) else tuple(chains), vcs)


@st.composite
def chains(draw: st.DrawFn, name: str = "TOP", leaf_type: str = "GPU", max_gpus: int = 64) -> ChainSpec:
    """Any hierarchy of depth 1 to 4, fan-outs 1 to 4 and 1 to 4 top cells, with any of its levels the nodes."""
    budget = max_gpus
    fanouts = []
    for _ in range(draw(st.sampled_from([2, 1, 3, 0]))):
        fanouts.append(min(budget, draw(st.sampled_from([2, 3, 4, 1]))))
        budget //= fanouts[-1]
    tops = min(budget, draw(st.sampled_from([2, 1, 3, 4])))
    return chain_of(fanouts, tops, draw(st.integers(1, len(fanouts) + 1)), name, leaf_type)


@st.composite
def feasible_specs(draw: st.DrawFn, max_gpus: int = 32, tight: bool = False) -> ClusterSpec:
    """One or two chains, one to four tenants, pinned cells and cells of any level, as many as fit.

    ``tight``: the tenants have reserved them to the last leaf.
    """
    leaf_types = draw(st.sampled_from([("GPU",), ("GPU", "GPU"), ("V100", "K80")]))
    hardware = [draw(chains(f"TOP{i}", leaf_type, max_gpus)) for i, leaf_type in enumerate(leaf_types)]
    room = [NaiveBuddies(chain) for chain in hardware]
    tenants = range(draw(st.integers(1, 4)))
    pinned: list[list[PinnedCellSpec]] = [[] for _ in tenants]
    cells: list[list[VirtualCellsSpec]] = [[] for _ in tenants]
    for i in range(draw(st.sampled_from([0, 0, 1, 2]))):
        number = draw(st.integers(0, len(hardware) - 1))
        level = draw(st.integers(1, len(hardware[number].levels)))
        index = draw(st.integers(0, hardware[number].cells_at(level) - 1))
        if room[number].holder_of((level, index)) is not None:
            room[number].take((level, index))
            owner = draw(st.sampled_from(tenants))
            pinned[owner].append(PinnedCellSpec(f"pin-{i}", hardware[number].name, level, index))
    for _ in range(draw(st.integers(2, 8))):
        number = draw(st.integers(0, len(hardware) - 1))
        level = draw(st.integers(1, len(hardware[number].levels)))
        count = 0
        for _ in range(draw(st.sampled_from([1, 2, 3, 8]))):
            cell = room[number].choose(level)
            if cell is not None:
                room[number].take(cell)
                count += 1
        if count:
            owner = draw(st.sampled_from(tenants))
            cells[owner].append(VirtualCellsSpec(hardware[number].name, level, count))
    for left in room if tight else ():
        for level, _ in sorted(left.free):
            cells[draw(st.sampled_from(tenants))].append(VirtualCellsSpec(left.chain.name, level, 1))
    vcs = [VirtualClusterSpec(f"tenant-{t}", tuple(cells[t]), tuple(pinned[t])) for t in tenants]
    return ClusterSpec(tuple(hardware), tuple(vcs))
