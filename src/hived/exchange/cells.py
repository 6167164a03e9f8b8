"""Cells as tenants trade them: a number of cells of one level of a chain."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from hived.errors import RequestError
from hived.spec.compiled import ChainSpec, ClusterSpec, VirtualCellsSpec


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

    def by_name(self, spec: ClusterSpec) -> tuple[str, int]:
        """Cell type and number."""
        return spec.chain(self.chain).path_to(self.level), self.number

    def in_words(self, spec: ClusterSpec) -> str:
        """``2 x RACK.NODE``."""
        return f"{self.number:,} x {spec.chain(self.chain).path_to(self.level)}"


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


def kind_of(spec: ClusterSpec, cell_type: str, field: str = "cell_type") -> tuple[str, int]:
    """Chain and level of a cell type: its qualified name (``RACK.NODE``), or the end of it where no other has the same.

    Raises :class:`~hived.errors.RequestError` with the cell types there are. O(levels of all chains).
    """
    kinds = {chain.path_to(level): (chain.name, level) for chain in spec.chains for level in _levels(chain)}
    found = [kind for path, kind in kinds.items() if path == cell_type]
    found = found or [kind for path, kind in kinds.items() if path.endswith(f".{cell_type}")]
    if len(found) == 1:
        return found[0]
    ways = [spec.chain(name).path_to(level) for name, level in found] or kinds
    what = "may be one of several cell types" if found else "no such cell type"
    raise RequestError(field, f"{cell_type!r}: {what}; there is {', '.join(ways)}")


def translated(cells: Cells, old: ClusterSpec, new: ClusterSpec) -> Cells | None:
    """The same cells under another spec, by the name of their type; None if that has no such type."""
    path = old.chain(cells.chain).path_to(cells.level)
    chain = next((chain for chain in new.chains if chain.name == cells.chain), None)
    level = next((level for level in _levels(chain) if chain.path_to(level) == path), None) if chain else None
    return None if level is None else cells._replace(level=level)


def _levels(chain: ChainSpec) -> range:
    return range(1, len(chain.levels) + 1)


def reserved(spec: ClusterSpec) -> Counter[tuple[str, tuple[str, int]]]:
    """Cells that tenants have reserved, by tenant and kind, without pinned ones: these stay where they are."""
    found: Counter[tuple[str, tuple[str, int]]] = Counter()
    for vc in spec.virtual_clusters:
        for cells in vc.cells:
            found[vc.name, (cells.chain, cells.level)] += cells.number
    return found


def changed(spec: ClusterSpec, changes: dict[str, dict[tuple[str, int], int]]) -> ClusterSpec:
    """A spec in which tenants have so many cells more (less) of each kind. O(cells of the virtual clusters).

    The numbers of what they have stay at 0 or above; the caller has seen to that. The same spec where nothing changes.
    """
    if not any(any(more.values()) for more in changes.values()):
        return spec
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
