"""Cells as tenants trade them: a number of cells of one level of a chain."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from hived.errors import RequestError
from hived.spec.compiled import ClusterSpec, VirtualCellsSpec


class Cells(NamedTuple):
    """Cells of one kind."""

    chain: str
    level: int  #: from 1, a leaf cell
    number: int = 1

    @property
    def kind(self) -> tuple[str, int]:
        """Chain and level."""
        return self.chain, self.level

    def gpus(self, spec: ClusterSpec) -> int:
        """Leaf cells of all of them."""
        return spec.chain(self.chain).levels[self.level - 1].gpus * self.number


def check_cells(spec: ClusterSpec, cells: Cells, field: str) -> None:
    """Raise :class:`~hived.errors.RequestError` unless the cluster has cells of this kind."""
    chain = next((chain for chain in spec.chains if chain.name == cells.chain), None)
    if chain is None:
        known = ", ".join(chain.name for chain in spec.chains)
        raise RequestError(f"{field}.chain", f"{cells.chain!r}: no such chain; there is {known}")
    if type(cells.level) is not int or not 1 <= cells.level <= len(chain.levels):
        raise RequestError(f"{field}.level", f"{cells.level!r}: chain {chain.name} has levels 1 to {len(chain.levels)}")
    if type(cells.number) is not int or cells.number < 1:
        raise RequestError(f"{field}.number", f"a number of cells, at least 1, not {cells.number!r}")


def reserved(spec: ClusterSpec) -> Counter[tuple[str, tuple[str, int]]]:
    """Cells that tenants have reserved, by tenant and kind, without pinned ones: these stay where they are."""
    found: Counter[tuple[str, tuple[str, int]]] = Counter()
    for vc in spec.virtual_clusters:
        for cells in vc.cells:
            found[vc.name, (cells.chain, cells.level)] += cells.number
    return found


def changed(spec: ClusterSpec, changes: dict[str, dict[tuple[str, int], int]]) -> ClusterSpec:
    """A spec in which tenants have so many cells more (less) of each kind. O(cells of the virtual clusters).

    The numbers of what they have stay at 0 or above; the caller has seen to that.
    """
    vcs = []
    for vc in spec.virtual_clusters:
        more = dict(changes.get(vc.name, {}))
        if not any(more.values()):
            vcs.append(vc)
            continue
        kept = []
        for cells in vc.cells:
            kind = cells.chain, cells.level  # which may be listed more than once
            number = max(0, cells.number + more.get(kind, 0))
            more[kind] = more.get(kind, 0) + cells.number - number
            if number:
                kept.append(cells if number == cells.number else replace(cells, number=number))
        kept += [VirtualCellsSpec(chain, level, number) for (chain, level), number in sorted(more.items()) if number]
        vcs.append(replace(vc, cells=tuple(kept)))
    return replace(spec, virtual_clusters=tuple(vcs))
