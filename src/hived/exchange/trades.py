"""Trades, and what each tenant has reserved while they last.

A trade moves cells from its giver to its taker for a window of time; in a *spatial* one the taker gives cells of
another level in return. Either way all tenants together reserve as many cells of each level as before, so their cells
fit the cluster as before (HiveD, equation 2 of the empty cluster). Whether they fit beside the jobs that run now is a
question for the cluster (:mod:`.market`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import inf

from hived.errors import ConflictError
from hived.spec.compiled import EXACT, ClusterSpec, VirtualCellsSpec

from .cells import Cells, changed, reserved, translated

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
        """Whether its window is open."""
        return self.start <= now < self.end


class Trades:
    """The spec without trades, and the trades that are agreed or on. O(trades) per question.

    A trade is *agreed* until :meth:`begin`, and *on* from then to its end: what is on is in force, whatever the time.
    """

    def __init__(self, spec: ClusterSpec, trades: Iterable[Trade] = (), on: Iterable[int] = ()) -> None:
        """``trades``, ``on``: of an earlier start; the latter by number."""
        self.spec = spec
        self._trades: dict[int, Trade] = {trade.number: trade for trade in trades}
        self._on: set[int] = set(on)

    def records(self) -> tuple[Trade, ...]:
        """Those that are not over, in the order in which they were made."""
        return tuple(self._trades.values())

    def of(self, tenant: str) -> list[Trade]:
        """Those of a tenant."""
        return [trade for trade in self._trades.values() if tenant in (trade.giver, trade.taker)]

    def is_on(self, trade: Trade) -> bool:
        """Whether it has begun."""
        return trade.number in self._on

    def in_force(self, withheld_after: Collection[int] | None = None) -> ClusterSpec:
        """The spec with the trades that are on: what each tenant has now.

        ``withheld_after``: nobody has the cells of those that are on now, and not among these.
        """
        on = [trade for trade in self._trades.values() if self.is_on(trade)]
        if withheld_after is None:
            return changed(self.spec, _changes(on))
        spec = changed(self.spec, _changes([trade for trade in on if trade.number in withheld_after]))
        begun = [trade for trade in on if trade.number not in withheld_after]
        cells = [cells for trade in begun for cells in (trade.cells, trade.back) if cells is not None]
        withheld = tuple([VirtualCellsSpec(*of) for of in cells])
        return replace(changed(spec, _changes(begun, taken=False)), withheld=withheld)

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
        """Agree on a trade. Raises :class:`~hived.errors.ConflictError`, with need and supply, if it cannot be."""
        problem = self._problem([*self._trades.values(), trade], trade)
        if problem is not None:
            raise ConflictError(problem)
        self._trades[trade.number] = trade

    def cancel(self, number: int) -> None:
        """Forget a trade: the cells are back with their owner."""
        del self._trades[number]
        self._on.discard(number)

    def under(self, spec: ClusterSpec) -> tuple[Trades, list[tuple[Trade, str]]]:
        """The trades under a new spec, and those that cannot stand there any more, with the reason. Changes nothing.

        The older a trade, the sooner it stays. Cells are the same by the name of their type. O(trades squared).
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
            problem = new._problem([*new._trades.values(), same], same)
            if problem is not None:
                ended.append((trade, problem))
                continue
            new._trades[trade.number] = same
            if self.is_on(trade):
                new.begin(trade.number)
        return new, ended

    def _problem(self, trades: list[Trade], last: Trade) -> str | None:
        """Why these trades cannot be on together, in the window of the last one; None: they can."""
        moments = {last.start} | {trade.start for trade in trades if last.start < trade.start < last.end}
        moments |= {trade.end for trade in trades if last.start < trade.end <= last.end}
        safety = {vc.name: vc.safety for vc in self.spec.virtual_clusters}
        for tenant in (last.giver, last.taker):
            if tenant not in safety:
                return f"virtual cluster {tenant} is no more"
            if safety[tenant] == EXACT:
                return f"{tenant} is of exact safety, and so trades no cells"
        for at in sorted(moments):
            on = [trade for trade in trades if trade.at(at)]
            changes = _changes(on)
            for tenant, of in changes.items():
                for kind in of:
                    has = reserved(self.spec, tenant, kind)
                    given = _changes(on, taken=False).get(tenant, {}).get(kind, 0)
                    if has + given < 0:
                        path = self.spec.chain(kind[0]).path_to(kind[1])
                        return f"{tenant} has {has} x {path} in that time, and would give {-given}"
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
