"""Trades, and what each tenant has reserved while they last.

A trade moves cells from its giver to its taker for a window of time; in a *spatial* one the taker gives cells of
another level in return. Either way all tenants together reserve as many cells of each level as before, so their cells
fit the cluster as before (HiveD, equation 2 of the empty cluster). Whether they fit beside the jobs that run now is a
question for the cluster (:mod:`.market`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import NamedTuple

from hived.errors import ConflictError
from hived.spec.compiled import ClusterSpec

from .cells import Cells, changed, reserved


class _Move(NamedTuple):
    """Cells of one kind that a tenant gets by a trade, or (below 0) gives."""

    start: float
    end: float
    number: int

    def at(self, now: float) -> bool:
        return self.start <= now < self.end


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
    """The spec without trades, and the trades that are on or will be."""

    def __init__(self, spec: ClusterSpec, trades: Iterable[Trade] = ()) -> None:
        """``trades``: of an earlier start, which :meth:`records` gave."""
        self.spec = spec
        #: by tenant and kind: the cells that it has under the spec
        self.own = reserved(spec)
        self._trades: dict[int, Trade] = {}
        # by tenant, chain and level: the trades that give it such cells (a positive number) or take them, by number
        self._moves: dict[tuple[str, tuple[str, int]], dict[int, _Move]] = {}
        for trade in trades:
            self._insert(trade)

    def records(self) -> tuple[Trade, ...]:
        """Those that are not over, in the order in which they were made."""
        return tuple(self._trades.values())

    def of(self, tenant: str) -> list[Trade]:
        """Those of a tenant. O(trades)."""
        return [trade for trade in self._trades.values() if tenant in (trade.giver, trade.taker)]

    def effective(self, now: float) -> ClusterSpec:
        """The spec at a moment: what each tenant has then. O(trades + cells of the virtual clusters)."""
        changes: dict[str, dict[tuple[str, int], int]] = {}
        for (tenant, kind), moves in self._moves.items():
            changes.setdefault(tenant, {})[kind] = sum(move.number for move in moves.values() if move.at(now))
        return changed(self.spec, changes)

    def has(self, tenant: str, kind: tuple[str, int], now: float) -> int:
        """The cells that a tenant has at a moment, as in :meth:`effective`. O(its trades of this kind)."""
        moves = self._moves.get((tenant, kind), {})
        return self.own[tenant, kind] + sum(move.number for move in moves.values() if move.at(now))

    def least(self, tenant: str, kind: tuple[str, int], start: float, end: float) -> int:
        """The least of its own cells that a tenant has in a window; what it took from others is not its own.

        O(k log k) for its k trades of this kind.
        """
        changes = []  # at one moment, what ends comes before what begins
        for move in self._moves.get((tenant, kind), {}).values():
            if move.number < 0 and move.start < end and move.end > start:
                changes += [(max(start, move.start), -move.number), (move.end, move.number)]
        given = accumulate([number for _, number in sorted(changes)], initial=0)
        return self.own[tenant, kind] - max(given)

    def next_change(self, now: float) -> float:
        """When the next trade begins or ends; infinity for never. O(trades)."""
        moments = [at for trade in self._trades.values() for at in (trade.start, trade.end) if at > now]
        return min(moments, default=inf)

    def expire(self, now: float) -> list[Trade]:
        """Forget the trades that are over, and return them. O(trades)."""
        over = [trade for trade in self._trades.values() if trade.end <= now]
        for trade in over:
            self.cancel(trade.number)
        return over

    def add(self, trade: Trade) -> None:
        """Add a trade. Raises :class:`~hived.errors.ConflictError`, with need and supply, if it cannot be.

        O(k log k) for the k trades of both tenants in cells of these kinds.
        """
        problem = self._problem(trade)
        if problem is not None:
            raise ConflictError(problem)
        self._insert(trade)

    def cancel(self, number: int) -> None:
        """End a trade now: the cells are back with their owner."""
        trade = self._trades.pop(number)
        for key, _ in _moves(trade):
            del self._moves[key][number]
            if not self._moves[key]:
                del self._moves[key]

    def rebase(self, spec: ClusterSpec) -> list[tuple[Trade, str]]:
        """Go on under a new spec: trades that cannot stand there any more are ended, and returned with the reason.

        The older a trade, the sooner it stays. O(trades) times what :meth:`add` costs.
        """
        trades, self._trades, self._moves = self._trades, {}, {}
        self.spec, self.own = spec, reserved(spec)
        ended = []
        for trade in trades.values():
            problem = self._problem(trade)
            if problem is None:
                self._insert(trade)
            else:
                ended.append((trade, problem))
        return ended

    def _insert(self, trade: Trade) -> None:
        self._trades[trade.number] = trade
        for key, move in _moves(trade):
            self._moves.setdefault(key, {})[trade.number] = move

    def _problem(self, trade: Trade) -> str | None:
        """Why a trade cannot be on beside the others in its window; None: it can.

        Its tenants give cells of their own alone, so nobody else can be short of any because of it.
        """
        known = {chain.name: len(chain.levels) for chain in self.spec.chains}
        tenants = {vc.name for vc in self.spec.virtual_clusters}
        for cells in (trade.cells, trade.back):
            if cells is not None and cells.level > known.get(cells.chain, 0):
                return f"there are no cells of level {cells.level} of {cells.chain} any more"
        for tenant in (trade.giver, trade.taker):
            if tenant not in tenants:
                return f"virtual cluster {tenant} is no more"
        for (tenant, kind), move in _moves(trade):
            if move.number < 0:
                has = self.own[tenant, kind]
                given = has - self.least(tenant, kind, trade.start, trade.end) - move.number
                if given > has:
                    return f"{tenant} has {has} cells of level {kind[1]} of {kind[0]}, and would give {given}"
        return None


def _moves(trade: Trade) -> list[tuple[tuple[str, tuple[str, int]], _Move]]:
    """What a trade gives to each tenant, and takes from it, by tenant and kind."""
    sides = [(trade.giver, trade.taker, trade.cells)]
    if trade.back is not None:
        sides.append((trade.taker, trade.giver, trade.back))
    return [
        ((tenant, cells.kind), _Move(trade.start, trade.end, number))
        for giver, taker, cells in sides
        for tenant, number in ((giver, -cells.number), (taker, cells.number))
    ]
