"""The feasibility of an assignment of cells to VCs, and the smallest changes where it does not fit the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from hived.cells import BuddyAllocator, Hierarchy, LevelSafety
from hived.errors import InfeasibleError
from hived.spec.compiled import ClusterSpec


@dataclass(frozen=True, slots=True)
class Shortage:
    """A level of a chain at which the VCs reserved more cells than the chain can provide."""

    chain: str
    level: int
    cell_type: str
    need: int  #: cells reserved at this level by all VCs, without pinned cells
    supply: int  #: cells left for this level after the levels above
    by: tuple[tuple[str, int], ...]  #: cells reserved at this level, per VC
    missing_top_cells: int  #: top cells to add if the reservations stay

    def __str__(self) -> str:
        by = ", ".join(f"{name} {number}" for name, number in self.by)
        short = self.need - self.supply
        return (
            f"chain {self.chain}, level {self.level} ({self.cell_type}): the VCs reserve {self.need} cells ({by}), "
            f"{self.supply} can be had; reserve {short} fewer {self.cell_type}, "
            f"or add {self.missing_top_cells} {self.chain} (enough for all of the chain)"
        )


def allocators(spec: ClusterSpec) -> dict[str, BuddyAllocator]:
    """Per chain an allocator with all cells free, down to the lowest level with reserved cells. O(cells)."""
    reserved = {chain.name: [0] * (len(chain.levels) + 1) for chain in spec.chains}
    for vc in spec.virtual_clusters:
        for name, level, number in vc.reserved():
            reserved[name][level] += number
    for cells in spec.withheld:
        reserved[cells.chain][cells.level] += cells.number
    found = {}
    for chain in spec.chains:
        lowest = min([level for level, number in enumerate(reserved[chain.name]) if number], default=chain.node_level)
        found[chain.name] = BuddyAllocator(Hierarchy(chain), lowest, reserved[chain.name])
    return found


def initial_safety(spec: ClusterSpec) -> tuple[LevelSafety, ...]:
    """Equations 1 and 2 for the empty cluster with its pinned cells taken. O(pinned cells) beside the build."""
    chains = allocators(spec)
    for vc in spec.virtual_clusters:
        for pin in vc.pinned:
            chains[pin.chain].allocate_at(pin.level, pin.index)
    return tuple(row for allocator in chains.values() for row in allocator.safety())


def shortages(spec: ClusterSpec, rows: tuple[LevelSafety, ...] | None = None) -> tuple[Shortage, ...]:
    """Every level that falls short, from the top down; empty when the assignment fits.

    Each is counted as if the shortages above it were fixed, so fixing all of them makes the spec feasible.
    """
    rows = initial_safety(spec) if rows is None else rows
    found = []
    for chain in spec.chains:
        levels = [row for row in rows if row.chain == chain.name]
        obtainable = 0
        for row in levels:  # from the top down, as equation 2 goes, but a shortage is not carried on
            need, supply = row.reserved - row.allocated, row.free + obtainable
            obtainable = max(0, supply - need) * chain.levels[row.level - 1].fanout
            if need > supply:
                by = []
                for vc in spec.virtual_clusters:
                    number = sum(c.number for c in vc.cells if (c.chain, c.level) == (chain.name, row.level))
                    by += [(vc.name, number)] if number else []
                # one more top cell adds all its cells of a level to the margin of that level
                of_top = [chain.levels[-1].gpus // chain.levels[other.level - 1].gpus for other in levels]
                missing = max(-(other.margin // cells) for other, cells in zip(levels, of_top, strict=True))
                found.append(Shortage(chain.name, row.level, row.cell_type, need, supply, tuple(by), missing))
    return tuple(found)


def check_feasible(spec: ClusterSpec) -> None:
    """Raise :class:`~hived.errors.InfeasibleError` with every shortage unless the assignment fits."""
    short = shortages(spec)
    if short:
        raise InfeasibleError(f"{spec.source}: the virtual clusters do not fit: " + "; ".join(map(str, short)))
