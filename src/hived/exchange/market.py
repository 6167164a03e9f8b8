"""The market: the board, the arbiter, the trades, and each tenant's surplus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from hived.errors import ConflictError, HivedError, PolicyError
from hived.spec.compiled import ClusterSpec

from .arbiter import Arbiter
from .board import Board, Offer, Request
from .cells import Cells
from .proxy import Proxy, TenantView
from .trades import LacksCellsError, Trade, Trades

#: cells with guaranteed jobs, of a tenant, by chain and level
InUse: TypeAlias = Callable[[str], Mapping[tuple[str, int], int]]
#: the jobs that could not stay guaranteed under another spec
Displaces: TypeAlias = Callable[[ClusterSpec], Sequence[str]]
#: the jobs of a tenant that wait, fit the cells that it reserved, and would not fit those that it has under a spec
Strands: TypeAlias = Callable[[str, ClusterSpec], Sequence[str]]
#: shorter than any window, in seconds
_INSTANT = 1e-9
#: seconds of a GPU hour
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class MarketState:
    """All of a market but its spec and its policies."""

    offers: Mapping[int, Offer]
    requests: Mapping[int, Request]
    trades: tuple[Trade, ...]
    on: tuple[int, ...]  #: trades that have begun, by number
    surplus: Mapping[str, float]
    next_post: int
    next_trade: int


class Refused(NamedTuple):
    """A match that became no trade; the offer, or else the request, is withdrawn."""

    giver: str
    taker: str
    cells: Cells
    why: str
    request: bool = False  #: whether it is the request


class Over(NamedTuple):
    """What the time has ended."""

    trades: list[Trade]
    missed: list[Trade]  #: that never began, and are paid back
    posts: list[tuple[int, Offer | Request]]  #: by number


class Due(NamedTuple):
    """What has become of the trades whose window has begun."""

    begun: list[Trade]
    called_off: list[tuple[Trade, str]]


class Rebased(NamedTuple):
    """A market under a new spec; see :meth:`Market.under`."""

    trades: Trades
    board: Board
    ended: list[tuple[Trade, str]]
    dropped: list[tuple[int, Offer | Request, str]]  #: posts, by number


def share_left(start: float, end: float, now: float) -> float:
    """What share of a window is to come; 1 before it."""
    return max(0.0, end - max(start, now)) / max(_INSTANT, end - start)


class Market:
    """Trades of cells between the tenants of one cluster. A call that raises has changed nothing."""

    def __init__(
        self, spec: ClusterSpec, arbiter: Arbiter, in_use: InUse, displaces: Displaces, strands: Strands
    ) -> None:
        """``in_use``, ``displaces``, ``strands``: of the cluster."""
        self.arbiter = arbiter
        self.trades = Trades(spec)
        self.board = Board(self.trades)
        #: GPU hours (in an auction, credits) that each tenant has given beyond what it took
        self.surplus: dict[str, float] = {}
        self._in_use, self._displaces, self._strands = in_use, displaces, strands
        self._next = 1

    @property
    def next_trade(self) -> int:
        """The number of the next trade."""
        return self._next

    def state(self) -> MarketState:
        """What :meth:`restore` goes on with."""
        board, trades = self.board, self.trades.records()
        on = tuple([trade.number for trade in trades if self.trades.is_on(trade)])
        return MarketState(
            dict(board.offers), dict(board.requests), trades, on, dict(self.surplus), board.next_number, self._next
        )

    def restore(self, state: MarketState) -> None:
        """Go on from a state, under the same spec."""
        self.trades = Trades(self.trades.spec, state.trades, state.on)
        self.board = Board(self.trades, state.offers, state.requests, state.next_post)
        self.surplus, self._next = dict(state.surplus), state.next_trade

    def under(self, spec: ClusterSpec) -> Rebased:
        """The trades and posts under a new spec, and those that cannot stand there. Changes nothing."""
        trades, ended = self.trades.under(spec)
        board = Board(trades, next_number=self.board.next_number)
        return Rebased(trades, board, ended, board.take_over(self.board, self.trades.spec))

    def adopt(self, rebased: Rebased, now: float) -> None:
        """Go on under a new spec. A trade that ends by it is paid for as long as it lasted."""
        for trade, _ in rebased.ended:
            self._pay_back(trade, now)
        self.trades, self.board = rebased.trades, rebased.board

    def _pay(self, trade: Trade, share: float = 1.0) -> None:
        paid = trade.gpu_hours * trade.price * share
        self.surplus[trade.taker] = self.surplus.get(trade.taker, 0.0) - paid
        self.surplus[trade.giver] = self.surplus.get(trade.giver, 0.0) + paid

    def _pay_back(self, trade: Trade, now: float) -> None:
        """Pay a trade that ends before its time back, for the rest of its window."""
        self._pay(trade, -share_left(trade.start, trade.end, now))

    def expire(self, now: float) -> Over:
        """End the trades whose time is over, and cut or remove the posts. O(trades + posts)."""
        missed = [trade for trade in self.trades.due(now) if trade.end <= now]
        for trade in missed:
            self._pay(trade, -1.0)
        over = [trade for trade in self.trades.expire(now) if trade not in missed]
        return Over(over, missed, self.board.expire(now))

    def begin_due(self, now: float) -> Due:
        """Begin the trades whose window has begun; call off and pay back those whose cells are in use. O(trades)."""
        begun: list[Trade] = []
        called_off: list[tuple[Trade, str]] = []
        for trade in self.trades.due(now):
            try:
                self._begin(trade)
                begun.append(trade)
                self._pay(trade, -(now - trade.start) / (trade.end - trade.start))  # for what it lacks of its window
            except ConflictError as error:
                self._pay(trade, -1.0)
                called_off.append((trade, str(error)))
        return Due(begun, called_off)

    def _begin(self, trade: Trade) -> None:
        """Have a trade begin. Raises :class:`~hived.errors.ConflictError`, and forgets it, if its cells are in use."""
        try:
            self.check_unused(trade.giver, trade.cells)
            if trade.back is not None:
                self.check_unused(trade.taker, trade.back)
            self.trades.begin(trade.number)
            for giver, _, cells in trade.sides():
                self._check_waiting(giver, cells)
            if trade.back is not None:
                self._check_jobs()
        except ConflictError:
            self.trades.cancel(trade.number)
            raise

    def _check_waiting(self, giver: str, cells: Cells) -> None:
        """Raise ``ConflictError`` if a job of a giver waits that would not fit the cells that the giver has left."""
        stranded = self._strands(giver, self.trades.in_force())
        if stranded:
            what = f"{', '.join(stranded)} would not fit without {cells.in_words(self.trades.spec)} of {giver}"
            raise LacksCellsError(giver, what)

    def recall(self, tenants: Iterable[str], now: float) -> list[tuple[Trade, str]]:
        """End trades by which a job of a tenant that waits does not fit what the tenant has left; with the reason.

        What a tenant reserved is promised to it, and a trade is no more than that: the giver is paid for as long as it
        lasted. The latest trades end, and none in vain. Who had taken the cells may have given its own, and recalls
        those. O(trades of the tenants) looks at their jobs.
        """
        short, found = [*tenants], list[tuple[Trade, str]]()
        while short:
            ended = self._recall(short.pop(), now)
            short += [taker for trade, _ in ended for _, taker, _ in trade.sides()]
            found += ended
        return found

    def _recall(self, tenant: str, now: float) -> list[tuple[Trade, str]]:
        trades = self.trades
        given = [trade for trade in trades.records() if trades.is_on(trade) and _gives(trade, tenant)]
        ended: list[Trade] = []
        stranded = jobs = self._strands(tenant, trades.in_force())
        while jobs and given:
            ended.append(given.pop())
            jobs = self._strands(tenant, trades.without(ended).in_force())
        for trade in ended[:-1]:
            others = [other for other in ended if other is not trade]
            if not self._strands(tenant, trades.without(others).in_force()):
                ended = others
        why = f"{', '.join(stranded)} of {tenant} would not fit without them"
        for trade in ended:
            trades.cancel(trade.number)
            self._pay_back(trade, now)
        return [(trade, why) for trade in ended]

    def _check_jobs(self) -> None:
        """Raise ``ConflictError`` if jobs stand where the cells in force cannot: few of a level for many of another."""
        displaced = self._displaces(self.trades.in_force())
        if displaced:
            raise ConflictError(f"jobs could not keep their cells where they run: {', '.join(displaced)}")

    def check_unused(self, tenant: str, cells: Cells) -> None:
        """Raise :class:`~hived.errors.ConflictError` unless a tenant uses so many fewer cells than it has of its own.

        What it took does not count: those cells go back, and its jobs are on its own then.
        """
        has, used = self.trades.left(tenant, cells.kind), self._in_use(tenant).get(cells.kind, 0)
        if has - used < cells.number:
            path = self.trades.spec.chain(cells.chain).path_to(cells.level)
            what = f"{has} x {path} of its own, {used} in use or bad"
            raise LacksCellsError(tenant, f"{tenant} has {what}, and would give {cells.number}")

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

    def match(self, now: float) -> tuple[list[Trade], list[Refused]]:
        """Match until the arbiter finds nothing more: the new trades, and the matches that were refused.

        A trade whose window has begun is on at once. An offer whose cells are in use then is withdrawn.
        O(matches * arbiter).
        """
        made: list[Trade] = []
        refused: list[Refused] = []
        while (match := self.arbiter.match(self.board, self.surplus)) is not None:
            offer, request = self.board.offers[match.offer], self.board.requests[match.request]
            spec = self.trades.spec
            hours = (request.end - request.start) / _HOUR
            gpus = request.cells.gpus(spec) - (0 if offer.wants is None else offer.wants.gpus(spec))
            trade = Trade(
                self._next, offer.tenant, request.tenant, request.cells, request.start, request.end,
                hours * gpus, offer.wants, match.price,
            )  # fmt: skip
            try:
                self.trades.add(trade)
                if trade.start <= now:
                    self._begin(trade)
            except ConflictError as error:
                # who has not the cells to give withdraws; the other one may still find somebody
                of_taker = isinstance(error, LacksCellsError) and error.tenant == request.tenant
                refused.append(Refused(offer.tenant, request.tenant, request.cells, str(error), of_taker))
                if of_taker:
                    self.board.withdraw(match.request, request.tenant)
                else:
                    self.board.withdraw(match.offer, offer.tenant)
                continue
            self._next += 1
            self.board.take(match.request, match.offer)
            self._pay(trade)
            made.append(trade)
        return made, refused


def _gives(trade: Trade, tenant: str) -> bool:
    return any(giver == tenant for giver, _, _ in trade.sides())
