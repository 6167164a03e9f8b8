"""Does an assignment of cells to VCs fit the physical cluster, and if not, what is the smallest change?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hived.cells import BuddyAllocator, Hierarchy, LevelSafety, safety
from hived.errors import InfeasibleError
from hived.spec.compiled import ChainSpec, ClusterSpec


@dataclass(frozen=True, slots=True)
class Shortage:
    """A level of a chain at which the VCs reserved more cells than there can be."""

    chain: str
    level: int
    cell_type: str
    need: int  #: cells reserved at this level by all VCs (those of pinned cells apart)
    supply: int  #: cells left for this level once the levels above have theirs
    by: tuple[tuple[str, int], ...]  #: how many each VC reserved at this level
    missing_top_cells: int  #: top cells that would have to be added if the reservations stay

    def __str__(self) -> str:
        by = ", ".join(f"{name} {number}" for name, number in self.by)
        short = self.need - self.supply
        return (
            f"chain {self.chain}, level {self.level} ({self.cell_type}): the VCs reserve {self.need} cells ({by}), "
            f"{self.supply} can be had; reserve {short} fewer {self.cell_type}, "
            f"or add {self.missing_top_cells} {self.chain} (enough for all of the chain)"
        )


def reserved_cells(spec: ClusterSpec) -> list[list[int]]:
    """Cells reserved by all VCs together, pinned ones included: per chain, indexed by level."""
    reserved = {chain.name: [0] * (len(chain.levels) + 1) for chain in spec.chains}
    for vc in spec.virtual_clusters:
        for cells in vc.cells:
            reserved[cells.chain][cells.level] += cells.number
        for pin in vc.pinned:
            reserved[pin.chain][pin.level] += 1
    return list(reserved.values())


def lowest_levels(spec: ClusterSpec) -> list[int]:
    """Per chain: the lowest level at which some VC reserves a cell (at most the node level)."""
    lowest = []
    for chain in spec.chains:
        levels = [chain.node_level]
        for vc in spec.virtual_clusters:
            levels += [cells.level for cells in vc.cells if cells.chain == chain.name and cells.number]
            levels += [pin.level for pin in vc.pinned if pin.chain == chain.name]
        lowest.append(min(levels))
    return lowest


def initial_safety(spec: ClusterSpec) -> tuple[LevelSafety, ...]:
    """Equations 1 and 2 for the empty cluster with its pinned cells taken. O(pinned cells) beside the build."""
    rows: list[LevelSafety] = []
    for chain, reserved, lowest in zip(spec.chains, reserved_cells(spec), lowest_levels(spec), strict=True):
        allocator = BuddyAllocator(Hierarchy(chain), lowest)
        for vc in spec.virtual_clusters:
            for pin in vc.pinned:
                if pin.chain == chain.name:
                    allocator.allocate_at(pin.level, pin.index)
        rows += safety(allocator.hierarchy, reserved, allocator.allocated, allocator.free)
    return tuple(rows)


def shortages(spec: ClusterSpec, rows: tuple[LevelSafety, ...] | None = None) -> tuple[Shortage, ...]:
    """Every level that falls short, from the top down, empty when the assignment fits.

    Each is counted as if the shortages above it were mended, so mending all of them makes the spec feasible.
    """
    rows = initial_safety(spec) if rows is None else rows
    found = []
    for chain in spec.chains:
        levels = [row for row in rows if row.chain == chain.name]
        spare = 0
        for row in levels:  # from the top down, as equation 2 goes, but a shortage is not carried on
            obtainable = spare * chain.levels[row.level].fanout if row.level < len(chain.levels) else 0
            need, supply = row.reserved - row.allocated, row.free + obtainable
            spare = max(0, supply - need)
            if need > supply:
                by = []
                for vc in spec.virtual_clusters:
                    number = sum(c.number for c in vc.cells if c.chain == chain.name and c.level == row.level)
                    if number:
                        by.append((vc.name, number))
                missing = _missing_top_cells(chain, levels)
                found.append(Shortage(chain.name, row.level, row.cell_type, need, supply, tuple(by), missing))
    return tuple(found)


def _missing_top_cells(chain: ChainSpec, rows: Sequence[LevelSafety]) -> int:
    """The smallest number of further top cells with which every level of ``chain`` has enough."""

    def enough(more: int) -> bool:
        spare = more
        for row in rows:
            if row.level < len(chain.levels):
                spare *= chain.levels[row.level].fanout
            spare += row.free - (row.reserved - row.allocated)
            if spare < 0:
                return False
        return True

    low, high = 0, 1
    while not enough(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def check_feasible(spec: ClusterSpec) -> None:
    """Raise :class:`~hived.errors.InfeasibleError` with every shortage unless the assignment fits."""
    short = shortages(spec)
    if short:
        raise InfeasibleError(f"{spec.source}: the virtual clusters do not fit: " + "; ".join(map(str, short)))
