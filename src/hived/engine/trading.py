"""Trades of cells between the tenants of a live engine: posts, trades that begin and end by the clock, their events.

    offer(...) / request(...) / withdraw(...)      take in what a tenant posts
    advance(at)                                    take in the time: :attr:`LiveTrading.next_change` has come
    in_force()                                     the spec that the core has to follow now
    settle(at)                                     have the engine record what happened, and follow that spec
    record()                                       all of it as text, for the next start

The caller stores the record before the core follows: a trade that is not stored has not begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, Protocol

from hived.cluster.explain.reasons import CellsGiven
from hived.errors import ConflictError, InvariantError
from hived.exchange import Arbiter, Balanced, Cells, Market, MarketState, Offer, Rebased, Request, Trade
from hived.spec.compiled import ClusterSpec

from .market_record import decoded, encoded

#: posts of one tenant on the board
MOST_POSTS = 50
#: trades of one tenant that are agreed or on
MOST_TRADES = 200
#: the kinds of events
EVENTS = (
    "offered", "requested", "withdrawn", "post_over", "post_dropped", "left_out", "offer_refused",
    "trade_agreed", "trade_begun", "trade_over", "trade_called_off", "trade_ended",
)  # fmt: skip
#: what happened: the kind of an event, and its data
Note = tuple[str, dict[str, Any]]


class Door(Protocol):
    """All that the market has of an engine: what it asks, and what it has the engine do."""

    def cells_in_use(self, tenant: str) -> Mapping[tuple[str, int], int]:
        """Cells of a tenant that it cannot give, by chain and level: in use, or no healthy ones are left for them."""

    def would_displace(self, spec: ClusterSpec) -> tuple[str, ...]:
        """Guaranteed jobs that would lose their cells under this spec."""

    def stranded(self, tenant: str, spec: ClusterSpec, reserved: ClusterSpec) -> list[str]:
        """Jobs of a tenant that fit its cells in ``reserved``, and not those in ``spec``."""

    def follow(self, spec: ClusterSpec, at: float) -> None:
        """Go on under a spec that differs by trades alone."""

    def note(self, kind: str, job: object, at: float, data: dict[str, Any]) -> object:
        """Record an event."""


class LiveTrading:
    """The market of a live engine, which it reaches through a :class:`Door`.

    A call that raises has taken in the time, and changed nothing else. O(posts + trades), and the arbiter.
    """

    def __init__(self, spec: ClusterSpec, arbiter: Arbiter | None = None) -> None:
        """``spec``: without trades. ``arbiter``: balanced, unless another is given."""
        self._market = Market(spec, arbiter or Balanced(), self._in_use, self._displaces, self._strands)
        self._engine: Door | None = None
        self._notes: list[Note] = []
        # when trades and posts are over or open next, and when the next trade begins; None: to be found anew
        self._next: tuple[float, float] | None = None
        # of the last expire
        self._at = -inf
        # VCs with a job that does not fit what they have left
        self._short: set[str] = set()
        #: what could not be taken over at the start, in words
        self.left_out: list[str] = []
        #: whether there is something in the record that was not there when it was last taken
        self.changed = False

    def attach(self, engine: Door) -> None:
        """Trade the cells of this engine's cluster."""
        self._engine = engine

    @property
    def market(self) -> Market:
        """The market, to be read."""
        return self._market

    @property
    def base(self) -> ClusterSpec:
        """The spec without trades."""
        return self._market.trades.spec

    def in_force(self) -> ClusterSpec:
        """The spec with the trades that are on."""
        return self._market.trades.in_force()

    def before_stored(self, before: MarketState) -> ClusterSpec:
        """The same, in which the cells of trades that have begun since ``before`` are nobody's.

        In force while a record is being written: whether the next start reads that record or the one before, nobody has
        a cell then that another one uses now.
        """
        return self._market.trades.in_force(withheld_after=before.on)

    @property
    def next_change(self) -> float:
        """When :meth:`advance` has something to do; infinity for never."""
        return min(self.next_end, self.next_start)

    @property
    def next_end(self) -> float:
        """When :meth:`expire` has something to do; infinity for never."""
        return self._times()[0]

    @property
    def next_start(self) -> float:
        """When the next trade begins, or is recalled; infinity for never."""
        return self._at if self._short else self._times()[1]

    def _times(self) -> tuple[float, float]:
        """O(posts + trades) after a change of the market, and O(1) else: it is asked at every event of every job."""
        if self._next is None:
            self._next = self._found_times()
        return self._next

    def _found_times(self) -> tuple[float, float]:
        trades = self._market.trades
        return min(trades.next_end, self._market.board.next_change(self._at)), trades.next_start

    def validate(self) -> None:
        """Raise :class:`~hived.errors.InvariantError` if what is kept of the market is not what it is."""
        if self._next not in (None, self._found_times()):
            raise InvariantError(f"trading: {self._next} is kept as its next times, which are {self._found_times()}")

    def _in_use(self, tenant: str) -> Mapping[tuple[str, int], int]:
        return {} if self._engine is None else self._engine.cells_in_use(tenant)

    def _displaces(self, spec: ClusterSpec) -> tuple[str, ...]:
        return () if self._engine is None else self._engine.would_displace(spec)

    def _strands(self, tenant: str, spec: ClusterSpec) -> list[str]:
        return [] if self._engine is None else self._engine.stranded(tenant, spec, self.base)

    def short(self, vc: str) -> None:
        """A job of a VC waits that its cells could not hold: trades by which that is so are recalled next."""
        if any(giver == vc for _, giver, _, _ in self._on()):
            self._short.add(vc)

    # -- what tenants post ----------------------------------------------------------------------------------------

    def offer(self, offer: Offer, at: float) -> int:
        """Post an offer, and match; its number.

        Raises :class:`~hived.errors.RequestError` with the field, ``ConflictError`` for cells that are in use now.
        """
        self._go_to(at)
        self._market.board.check_offer(offer, at)
        self._check_room(offer.tenant)
        if offer.start <= at:
            self._market.check_unused(offer.tenant, offer.cells)
        number = self._market.board.offer(offer, at)
        self._note("offered", _post(self.base, number, offer))
        self._match(at)
        return number

    def request(self, request: Request, at: float) -> int:
        """Post a request, and match; its number. Raises as :meth:`offer`."""
        self._go_to(at)
        self._market.board.check_request(request, at)
        self._check_room(request.tenant)
        if request.gives is not None and request.start <= at:
            self._market.check_unused(request.tenant, request.gives)
        number = self._market.board.request(request, at)
        self._note("requested", _post(self.base, number, request))
        self._match(at)
        return number

    def withdraw(self, number: int, tenant: str, at: float) -> None:
        """Withdraw a post. Raises :class:`~hived.errors.NotFoundError`, ``ConflictError`` for one of another."""
        self._go_to(at)
        post = self._market.board.withdraw(number, tenant)
        self._note("withdrawn", _post(self.base, number, post))

    def _check_room(self, tenant: str) -> None:
        posts = self._market.board.count(tenant)
        if posts >= MOST_POSTS:
            raise ConflictError(f"{tenant} has {posts} offers and requests on the board; withdraw some first")
        trades = len(self._market.trades.of(tenant))
        if trades >= MOST_TRADES:
            raise ConflictError(f"{tenant} has {trades} trades that are agreed or on; post again when some are over")

    # -- time, and a new spec -------------------------------------------------------------------------------------

    def advance(self, at: float) -> None:
        """End and begin trades, remove posts whose window is over, and match. O(posts + trades), and the arbiter."""
        self._go_to(at)
        self._match(at)

    def expire(self, at: float) -> None:
        """End trades, and remove posts, whose time is over. By the clock alone: it needs no record."""
        self._at, self._next = at, None  # every other change of the market begins with this one
        over = self._market.expire(at)
        self._note_trades("trade_over", over.trades)
        self._short.update(taker for trade in over.trades for _, taker, _ in trade.sides())
        for trade in over.missed:
            self._note("trade_called_off", {**self._trade(trade), "why": "it could not begin in its time"})
        for number, post in over.posts:
            self._note("post_over", _post(self.base, number, post))

    def _go_to(self, at: float) -> None:
        self.expire(at)
        for trade, why in self._market.recall(sorted(self._short), at):
            self._note("trade_ended", {**self._trade(trade), "why": why})
        self._short.clear()
        due = self._market.begin_due(at)
        self._note_trades("trade_begun", due.begun)
        for trade, why in due.called_off:
            self._note("trade_called_off", {**self._trade(trade), "why": why})

    def _match(self, at: float) -> None:
        made, refused = self._market.match(at)
        for one in refused:
            data = {"vc": one.giver, "to": one.taker, "cells": one.cells.by_name(self.base), "why": one.why,
                    "request": one.request}  # fmt: skip
            self._note("offer_refused", data)
        self._note_trades("trade_agreed", made)
        self._note_trades("trade_begun", [trade for trade in made if self._market.trades.is_on(trade)])

    def adopt(self, rebased: Rebased, at: float) -> None:
        """Go on under a new spec, as :meth:`.Market.under` has found it."""
        for trade, why in rebased.ended:
            self._note("trade_ended", {**self._trade(trade), "why": why})
        for number, post, why in rebased.dropped:
            self._note("post_dropped", {**_post(self.base, number, post), "why": why})
        self._market.adopt(rebased, at)
        self._next = None

    def _note(self, kind: str, data: dict[str, Any]) -> None:
        self._notes.append((kind, data))
        self.changed = True

    def _note_trades(self, kind: str, trades: Iterable[Trade]) -> None:
        for trade in trades:
            self._note(kind, self._trade(trade))

    def _trade(self, trade: Trade) -> dict[str, Any]:
        return {
            "trade": trade.number,
            "vc": trade.giver,
            "to": trade.taker,
            "cells": trade.cells.by_name(self.base),
            "back": None if trade.back is None else trade.back.by_name(self.base),
            "start": trade.start,
            "end": trade.end,
            "gpu_hours": trade.gpu_hours,
        }

    # -- through the door -----------------------------------------------------------------------------------------

    def tell(self, at: float) -> None:
        """Have the engine record what has happened since the last call."""
        if self._engine is not None:
            for kind, data in self._notes:
                self._engine.note(kind, None, at, data)
            self._notes = []

    def settle(self, at: float) -> None:
        """The same, and have it follow the spec in force."""
        self.tell(at)
        if self._engine is not None:
            self._engine.follow(self.in_force(), at)

    def due(self, at: float) -> None:
        """Have the trades begin and end whose time has come."""
        if at >= self.next_change:
            self.expire(at)
            self.settle(at)  # what is over first: then what begins is not in the way of it
            self.advance(at)
            self.settle(at)

    # -- for people -----------------------------------------------------------------------------------------------

    def given(self) -> Iterator[CellsGiven]:
        """The cells that a VC has given to another one now, as reasons for which its jobs wait. O(trades)."""
        for trade, giver, taker, cells in self._on():
            yield CellsGiven(giver, taker, *cells.by_name(self.base), trade.end, trade.number)

    def gpus_given(self) -> Counter[tuple[str, str]]:
        """GPUs that change hands now: of who has given them and who has taken them. O(trades)."""
        found = Counter[tuple[str, str]]()
        for _, giver, taker, cells in self._on():
            found[giver, taker] += cells.gpus(self.base)
        return found

    def _on(self) -> Iterator[tuple[Trade, str, str, Cells]]:
        """The trades that are on: who has given which cells to whom."""
        trades = self._market.trades
        return ((trade, *side) for trade in trades.records() if trades.is_on(trade) for side in trade.sides())

    # -- for the next start ---------------------------------------------------------------------------------------

    def state(self) -> MarketState:
        """For :meth:`go_back`."""
        return self._market.state()

    def go_back(self, state: MarketState) -> None:
        """Undo everything since the state: it could not be stored."""
        self._market.restore(state)
        self._notes.clear()
        self.changed, self._next = False, None

    def record(self) -> str:
        """Everything as text (:mod:`.market_record`)."""
        self.changed = False
        return encoded(self.base, self._market.state())

    def restore(self, text: str, at: float) -> list[str]:
        """Go on from a record; what cannot stand under the spec is left out, and returned in words.

        ``at``: now; trades that are left out are paid for as long as they lasted until then. Raises
        :class:`~hived.errors.InputError` for a text that is no record.
        """
        state, left_out = decoded(self.base, text, at)
        self._market.restore(state)
        rebased = self._market.under(self.base)
        self._market.adopt(rebased, at)
        self._next = None
        left_out += [f"trade {trade.number}: {why}" for trade, why in rebased.ended]
        return left_out + [f"post {number}: {why}" for number, _, why in rebased.dropped]


def _post(spec: ClusterSpec, number: int, post: Offer | Request) -> dict[str, Any]:
    other = post.wants if isinstance(post, Offer) else post.gives
    return {
        "post": number,
        "offer": isinstance(post, Offer),
        "vc": post.tenant,
        "cells": post.cells.by_name(spec),
        "for": None if other is None else other.by_name(spec),
        "start": post.start,
        "end": post.end,
    }
