"""Trades, and what each tenant has reserved while they last.

A trade moves cells from its giver to its taker for a window of time; in a *spatial* one the taker gives cells of
another level in return. Either way all tenants together reserve as many cells of each level as before, so their cells
fit the cluster as before (HiveD, equation 2 of the empty cluster). Whether they fit beside the jobs that run now is a
question for the cluster (:mod:`.market`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import NamedTuple

from hived.errors import ConflictError
from hived.spec.compiled import EXACT, ClusterSpec, VirtualCellsSpec

from .cells import Cells, changed, reserved, translated


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
        """Whether its window is open."""
        return self.start <= now < self.end

    def sides(self) -> list[tuple[str, str, Cells]]:
        """Who gives which cells to whom."""
        sides = [(self.giver, self.taker, self.cells)]
        return sides if self.back is None else [*sides, (self.taker, self.giver, self.back)]


class LacksCellsError(ConflictError):
    """A tenant has not the cells that it would give."""

    def __init__(self, tenant: str, message: str) -> None:
        super().__init__(message)
        self.tenant = tenant


class Trades:
    """The spec without trades, and the trades that are agreed or on.

    A trade is *agreed* until :meth:`begin`, and *on* from then to its end: what is on is in force, whatever the time.
    """

    def __init__(self, spec: ClusterSpec, trades: Iterable[Trade] = (), on: Iterable[int] = ()) -> None:
        """``trades``, ``on``: of an earlier start; the latter by number."""
        self.spec = spec
        #: by tenant and kind: the cells that it has under the spec
        self.own = reserved(spec)
        self._trades: dict[int, Trade] = {}
        # by tenant, chain and level: the trades that give it such cells (a positive number) or take them, by number
        self._moves: dict[tuple[str, tuple[str, int]], dict[int, _Move]] = {}
        for trade in trades:
            self._insert(trade)
        self._on: set[int] = self._trades.keys() & set(on)

    def records(self) -> tuple[Trade, ...]:
        """Those that are not over, in the order in which they were made."""
        return tuple(self._trades.values())

    def of(self, tenant: str) -> list[Trade]:
        """Those of a tenant. O(trades)."""
        return [trade for trade in self._trades.values() if tenant in (trade.giver, trade.taker)]

    def is_on(self, trade: Trade) -> bool:
        """Whether it has begun."""
        return trade.number in self._on

    def in_force(self, withheld_after: Collection[int] | None = None) -> ClusterSpec:
        """The spec with the trades that are on: what each tenant has now. O(trades + cells of the virtual clusters).

        ``withheld_after``: nobody has the cells of those that are on now, and not among these.
        """
        withheld = [] if withheld_after is None else self._on.difference(withheld_after)
        changes: dict[str, dict[tuple[str, int], int]] = {}
        for (tenant, kind), moves in self._moves.items():
            numbers = [move.number for number, move in moves.items() if number in self._on]
            taken = [move.number for number, move in moves.items() if number in withheld and move.number > 0]
            changes.setdefault(tenant, {})[kind] = sum(numbers) - sum(taken)
        spec = changed(self.spec, changes)
        if not withheld:
            return spec
        kept: Counter[tuple[str, int]] = Counter()
        for (_, kind), moves in self._moves.items():
            kept[kind] += sum(move.number for number, move in moves.items() if number in withheld and move.number > 0)
        cells = [VirtualCellsSpec(*kind, number) for kind, number in sorted(kept.items()) if number]
        return replace(spec, withheld=tuple(cells))

    def left(self, tenant: str, kind: tuple[str, int]) -> int:
        """The cells of its own that a tenant has now; what it took is not its own. O(its trades of this kind)."""
        moves = [move.number for number, move in self._moves.get((tenant, kind), {}).items() if number in self._on]
        return self.own[tenant, kind] + sum(min(0, number) for number in moves)

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

    @property
    def next_end(self) -> float:
        """When the next trade is over; infinity for never."""
        return min([trade.end for trade in self._trades.values()], default=inf)

    @property
    def next_start(self) -> float:
        """When the next trade begins; infinity for never."""
        return min([trade.start for trade in self._trades.values() if not self.is_on(trade)], default=inf)

    def due(self, now: float) -> list[Trade]:
        """Those that are agreed and whose window has begun."""
        return [trade for trade in self._trades.values() if trade.start <= now and not self.is_on(trade)]

    def begin(self, number: int) -> None:
        """A trade is on from now on."""
        self._on.add(number)

    def expire(self, now: float) -> list[Trade]:
        """Forget the trades that are over, and return them: their cells are back with their owners."""
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
            raise LacksCellsError(*problem)
        self._insert(trade)

    def cancel(self, number: int) -> None:
        """Forget a trade: the cells are back with their owner."""
        trade = self._trades.pop(number)
        self._on.discard(number)
        for key, _ in _moves(trade):
            del self._moves[key][number]
            if not self._moves[key]:
                del self._moves[key]

    def without(self, ended: Collection[Trade]) -> Trades:
        """The same without some trades. O(trades)."""
        return Trades(self.spec, [trade for trade in self._trades.values() if trade not in ended], self._on)

    def under(self, spec: ClusterSpec) -> tuple[Trades, list[tuple[Trade, str]]]:
        """The trades under a new spec, and those that cannot stand there any more, with the reason. Changes nothing.

        The older a trade, the sooner it stays. Cells are the same by the name of their type. O(trades) times what
        :meth:`add` costs.
        """
        new = Trades(spec)
        ended: list[tuple[Trade, str]] = []
        for trade in self._trades.values():
            moved = [None if of is None else translated(of, self.spec, spec) for of in (trade.cells, trade.back)]
            cells, back = moved
            if cells is None or (trade.back is not None and back is None):
                gone = trade.cells if cells is None or trade.back is None else trade.back
                ended.append((trade, f"there is no {self.spec.chain(gone.chain).path_to(gone.level)} any more"))
                continue
            same = replace(trade, cells=cells, back=back)
            problem = new._problem(same)
            if problem is not None:
                ended.append((trade, problem[1]))
                continue
            new._insert(same)
            if self.is_on(trade):
                new.begin(trade.number)
        return new, ended

    def _insert(self, trade: Trade) -> None:
        self._trades[trade.number] = trade
        for key, move in _moves(trade):
            self._moves.setdefault(key, {})[trade.number] = move

    def _problem(self, trade: Trade) -> tuple[str, str] | None:
        """Whose cells are the reason that a trade cannot be beside the others in its window, and why; None: it can.

        Its tenants give cells of their own alone, so nobody else can be short of any because of it.
        """
        safety = {vc.name: vc.safety for vc in self.spec.virtual_clusters}
        for tenant in (trade.giver, trade.taker):
            if tenant not in safety:
                return tenant, f"virtual cluster {tenant} is no more"
            if safety[tenant] == EXACT:
                return tenant, f"{tenant} is of exact safety, and so trades no cells"
        if trade.giver == trade.taker or (trade.back is not None and trade.back.kind == trade.cells.kind):
            return trade.giver, "it gives nobody anything"
        if trade.end <= trade.start:
            return trade.giver, "its window ends where it starts, or before"
        for (tenant, kind), move in _moves(trade):
            if move.number < 0:
                has = self.own[tenant, kind]
                given = has - self.least(tenant, kind, trade.start, trade.end) - move.number
                if given > has:
                    path = self.spec.chain(kind[0]).path_to(kind[1])
                    return tenant, f"{tenant} has {has} x {path} in that time, and would give {given}"
        return None


def _moves(trade: Trade) -> list[tuple[tuple[str, tuple[str, int]], _Move]]:
    """What a trade gives to each tenant, and takes from it, by tenant and kind."""
    return [
        ((tenant, cells.kind), _Move(trade.start, trade.end, number))
        for giver, taker, cells in trade.sides()
        for tenant, number in ((giver, -cells.number), (taker, cells.number))
    ]
