"""Trades, and what each tenant has reserved while they last.

A trade moves cells from its giver to its taker for a window of time; in a *spatial* one the taker gives cells of
another level in return. Either way all tenants together reserve as many cells of each level as before, so their cells
fit the cluster as before (HiveD, equation 2 of the empty cluster). Whether they fit beside the jobs that run now is a
question for the cluster (:mod:`.market`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from hived.errors import ConflictError
from hived.spec.compiled import ClusterSpec

from .cells import Cells, changed, reserved

Changes = dict[str, dict[tuple[str, int], int]]


@dataclass(frozen=True, slots=True)
class Trade:
    """Cells that change hands for a while."""

    number: int
    giver: str
    taker: str
    cells: Cells
    start: float  #: seconds, included
    end: float  #: excluded
    gpu_hours: float  #: that move from the surplus of the taker to that of the giver
    back: Cells | None = None  #: cells of another level that the taker gives for them
    price: float = 1.0  #: credits for a GPU hour

    def at(self, now: float) -> bool:
        """Whether it is on."""
        return self.start <= now < self.end


class Trades:
    """The spec without trades, and the trades that are on or will be. O(trades) per question."""

    def __init__(self, spec: ClusterSpec, trades: Iterable[Trade] = ()) -> None:
        """``trades``: of an earlier start, which :meth:`records` gave."""
        self.spec = spec
        self._trades: dict[int, Trade] = {trade.number: trade for trade in trades}

    def records(self) -> tuple[Trade, ...]:
        """Those that are not over, in the order in which they were made."""
        return tuple(self._trades.values())

    def of(self, tenant: str) -> list[Trade]:
        """Those of a tenant."""
        return [trade for trade in self._trades.values() if tenant in (trade.giver, trade.taker)]

    def effective(self, now: float) -> ClusterSpec:
        """The spec at a moment: what each tenant has then."""
        return changed(self.spec, _changes([trade for trade in self._trades.values() if trade.at(now)]))

    def least(self, tenant: str, kind: tuple[str, int], start: float, end: float) -> int:
        """The least of its own cells that a tenant has in a window; what it took from others is not its own."""
        own = reserved(self.spec, tenant, kind)
        moments = [start, *(trade.start for trade in self._trades.values() if start < trade.start < end)]
        return min(own - self._given(tenant, kind, at) for at in moments)

    def _given(self, tenant: str, kind: tuple[str, int], at: float) -> int:
        given = 0
        for trade in self._trades.values():
            if trade.at(at):
                given += trade.cells.number * (trade.giver == tenant and trade.cells.kind == kind)
                if trade.back is not None:
                    given += trade.back.number * (trade.taker == tenant and trade.back.kind == kind)
        return given

    def next_change(self, now: float) -> float:
        """When the next trade begins or ends; infinity for never."""
        moments = [at for trade in self._trades.values() for at in (trade.start, trade.end) if at > now]
        return min(moments, default=inf)

    def expire(self, now: float) -> list[Trade]:
        """Forget the trades that are over, and return them."""
        over = [trade for trade in self._trades.values() if trade.end <= now]
        for trade in over:
            del self._trades[trade.number]
        return over

    def add(self, trade: Trade) -> None:
        """Add a trade. Raises :class:`~hived.errors.ConflictError`, with need and supply, if it cannot be."""
        problem = self._problem([*self._trades.values(), trade], trade)
        if problem is not None:
            raise ConflictError(problem)
        self._trades[trade.number] = trade

    def cancel(self, number: int) -> None:
        """End a trade now: the cells are back with their owner."""
        del self._trades[number]

    def rebase(self, spec: ClusterSpec) -> list[tuple[Trade, str]]:
        """Go on under a new spec: trades that cannot stand there any more are ended, and returned with the reason.

        The older a trade, the sooner it stays. O(trades squared).
        """
        kept: list[Trade] = []
        ended = []
        self.spec = spec
        for trade in self._trades.values():
            problem = self._problem([*kept, trade], trade)
            if problem is None:
                kept.append(trade)
            else:
                ended.append((trade, problem))
        self._trades = {trade.number: trade for trade in kept}
        return ended

    def _problem(self, trades: list[Trade], last: Trade) -> str | None:
        """Why these trades cannot be on together, in the window of the last one; None: they can."""
        moments = {last.start} | {trade.start for trade in trades if last.start < trade.start < last.end}
        moments |= {trade.end for trade in trades if last.start < trade.end <= last.end}
        known = {chain.name: len(chain.levels) for chain in self.spec.chains}
        tenants = {vc.name for vc in self.spec.virtual_clusters}
        for cells in (last.cells, last.back):
            if cells is not None and cells.level > known.get(cells.chain, 0):
                return f"there are no cells of level {cells.level} of {cells.chain} any more"
        for tenant in (last.giver, last.taker):
            if tenant not in tenants:
                return f"virtual cluster {tenant} is no more"
        for at in sorted(moments):
            on = [trade for trade in trades if trade.at(at)]
            changes = _changes(on)
            for tenant, of in changes.items():
                for kind in of:
                    has = reserved(self.spec, tenant, kind)
                    given = _changes(on, taken=False).get(tenant, {}).get(kind, 0)
                    if has + given < 0:
                        return f"{tenant} has {has} cells of level {kind[1]} of {kind[0]}, and would give {-given}"
        return None


def _changes(trades: Iterable[Trade], taken: bool = True) -> Changes:
    """What these trades add to the cells of each tenant, and take away; ``taken``: both, else what they take away."""
    changes: Changes = {}

    def move(giver: str, taker: str, cells: Cells) -> None:
        of_giver = changes.setdefault(giver, {})
        of_giver[cells.kind] = of_giver.get(cells.kind, 0) - cells.number
        if taken:
            of_taker = changes.setdefault(taker, {})
            of_taker[cells.kind] = of_taker.get(cells.kind, 0) + cells.number

    for trade in trades:
        move(trade.giver, trade.taker, trade.cells)
        if trade.back is not None:
            move(trade.taker, trade.giver, trade.back)
    return changes
