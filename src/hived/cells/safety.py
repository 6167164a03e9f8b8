"""Sharing safety as arithmetic (HiveD, OSDI'20, section 3.3, equations 1 and 2).

Per chain and level k: r cells reserved by all VCs, a of them bound to physical cells, f free physical cells, and F
cells obtainable by splitting free cells of higher levels that are not needed there:

    F(top) = 0                F(k) = fanout(k+1) * (f(k+1) + F(k+1) - (r(k+1) - a(k+1)))
    safe:    r(k) - a(k)  <=  f(k) + F(k)     at every level

While it holds, any VC can bind any cell it reserved, whatever the other VCs do (theorem 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hived.errors import InvariantError

from .hierarchy import Hierarchy


@dataclass(frozen=True, slots=True)
class LevelSafety:
    """One row of the check. All numbers are cells of that level."""

    chain: str
    level: int
    cell_type: str
    reserved: int  #: r: by all VCs together
    allocated: int  #: a: bound
    free: int  #: f
    obtainable: int  #: F: by splitting higher cells not needed there; negative after a shortage above

    @property
    def margin(self) -> int:
        """Cells to spare; negative: unsafe."""
        return self.free + self.obtainable - (self.reserved - self.allocated)


def safety(
    hierarchy: Hierarchy, reserved: Sequence[int], allocated: Sequence[int], free: Sequence[int]
) -> tuple[LevelSafety, ...]:
    """Evaluate equations 1 and 2 for one chain, from the top level down. Sequences are indexed by level. O(levels)."""
    rows = []
    obtainable = 0
    for k in range(hierarchy.top, 0, -1):
        row = LevelSafety(hierarchy.spec.name, k, hierarchy.names[k], reserved[k], allocated[k], free[k], obtainable)
        rows.append(row)
        obtainable = row.margin * hierarchy.fanout[k]
    return tuple(rows)


def assert_safe(rows: Sequence[LevelSafety]) -> None:
    """Raise :class:`InvariantError`, naming the level, the need and the supply, unless every margin is 0 or more."""
    for row in rows:
        if row.margin < 0:
            raise InvariantError(
                f"sharing safety broken in chain {row.chain} at level {row.level} ({row.cell_type}): "
                f"{row.reserved - row.allocated} cells may still be asked for, {row.free} are free and "
                f"{row.obtainable} obtainable by splitting"
            )
