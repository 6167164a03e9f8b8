"""The market: the board, the arbiter, the trades, and each tenant's surplus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from hived.errors import ConflictError, HivedError, PolicyError
from hived.spec.compiled import ClusterSpec

from .arbiter import Arbiter
from .board import Board
from .proxy import Proxy, TenantView
from .trades import Trade, Trades

#: cells with guaranteed jobs, of a tenant, by chain and level
InUse: TypeAlias = Callable[[str], Mapping[tuple[str, int], int]]
#: the jobs that could not stay guaranteed under another spec
Displaces: TypeAlias = Callable[[ClusterSpec], Sequence[str]]
#: seconds of a GPU hour
_HOUR = 3600.0


class Market:
    """Trades of cells between the tenants of one cluster. A call that raises has changed nothing."""

    def __init__(
        self,
        spec: ClusterSpec,
        arbiter: Arbiter,
        in_use: InUse,
        displaces: Displaces,
        trades: Iterable[Trade] = (),
        surplus: Mapping[str, float] | None = None,
    ) -> None:
        """``in_use``, ``displaces``: of the cluster; ``trades``, ``surplus``: of an earlier start."""
        self.arbiter = arbiter
        self.trades = Trades(spec, trades)
        self.board = Board(self.trades)
        #: GPU hours (in an auction, credits) that each tenant has given beyond what it took
        self.surplus: dict[str, float] = dict(surplus or {})
        self._in_use, self._displaces = in_use, displaces
        self._last = max((trade.number for trade in self.trades.records()), default=0)

    def post(self, proxies: Mapping[str, Proxy], views: Iterable[TenantView]) -> None:
        """Have the proxies post anew: earlier posts of their tenants are withdrawn.

        Raises :class:`~hived.errors.PolicyError` for one that raises, or posts what cannot be.
        """
        board = self.board
        before = dict(board.offers), dict(board.requests), board.next_number
        try:
            for view in views:
                proxy = proxies.get(view.tenant)
                if proxy is None:
                    continue
                try:
                    board.clear(view.tenant)
                    offers, requests = proxy.offers(view), proxy.requests(view)
                    for offer in offers:
                        board.offer(offer, view.now)
                    for request in requests:
                        board.request(request, view.now)
                except HivedError as error:
                    raise PolicyError(type(proxy).__name__, f"of {view.tenant}: {error}", "", view.now) from error
                except Exception as error:
                    what = f"of {view.tenant}: raises {type(error).__name__}: {error}"
                    raise PolicyError(type(proxy).__name__, what, "", view.now) from error
        except PolicyError:
            board.offers, board.requests, board.next_number = before
            raise

    def match(self, now: float) -> tuple[list[Trade], list[str]]:
        """Match until the arbiter finds nothing more: the new trades, and why others were refused.

        An offer whose cells are in use when its window begins now is refused, and withdrawn. O(matches * arbiter).
        """
        made: list[Trade] = []
        refused: list[str] = []
        while (match := self.arbiter.match(self.board, self.surplus)) is not None:
            offer, request = self.board.offers[match.offer], self.board.requests[match.request]
            spec = self.trades.spec
            hours = (request.end - request.start) / _HOUR
            gpus = request.cells.gpus(spec) - (0 if offer.wants is None else offer.wants.gpus(spec))
            trade = Trade(
                self._last + 1, offer.tenant, request.tenant, request.cells, request.start, request.end,
                hours * gpus, offer.wants, match.price,
            )  # fmt: skip
            try:
                self._check_unused(trade, now)
                self.trades.add(trade)
                if trade.back is not None and trade.at(now):
                    self._check_jobs(trade, now)
            except ConflictError as error:
                refused.append(f"{offer.tenant} to {request.tenant}: {error}")
                # its giver may not have these cells to give; another offer may still do
                self.board.withdraw(match.offer, offer.tenant)
                continue
            self._last += 1
            self.board.take(match.request, match.offer)
            paid = trade.gpu_hours * trade.price
            self.surplus[trade.taker] = self.surplus.get(trade.taker, 0.0) - paid
            self.surplus[trade.giver] = self.surplus.get(trade.giver, 0.0) + paid
            made.append(trade)
        return made, refused

    def _check_jobs(self, trade: Trade, now: float) -> None:
        """Undo a trade under which jobs could not stay guaranteed where they run; ``ConflictError`` then."""
        displaced = self._displaces(self.trades.effective(now))
        if displaced:
            self.trades.cancel(trade.number)
            raise ConflictError(f"jobs could not keep their cells where they run: {', '.join(displaced)}")

    def _check_unused(self, trade: Trade, now: float) -> None:
        """Raise :class:`~hived.errors.ConflictError` if a trade that begins now takes cells that their owner uses."""
        if trade.start > now:
            return
        for tenant, cells in ((trade.giver, trade.cells), (trade.taker, trade.back)):
            if cells is None:
                continue
            has, used = self.trades.has(tenant, cells.kind, now), self._in_use(tenant).get(cells.kind, 0)
            if has - used < cells.number:
                raise ConflictError(
                    f"{tenant} uses {used} of its {has} cells of level {cells.level}, and would give {cells.number}"
                )
