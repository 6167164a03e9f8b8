"""Trades of cells between the tenants of a live engine: posts, trades that begin and end by the clock, their events.

    offer(...) / request(...) / withdraw(...)      take in what a tenant posts
    advance(at)                                    take in the time: :attr:`LiveTrading.next_change` has come
    in_force()                                     the spec that the core has to follow now
    take_notes()                                   what happened, for the event log
    record()                                       all of it as text, for the next start

The caller stores the record before the core follows: a trade that is not stored has not begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import Annotated, Any

import msgspec

from hived.cluster.reasons import CellsGiven
from hived.errors import ConflictError, InputError, RequestError
from hived.exchange import Arbiter, Balanced, Cells, Market, MarketState, Offer, Request, Trade, kind_of
from hived.scheduling import Scheduler
from hived.spec.compiled import ClusterSpec

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


class LiveTrading:
    """The market of a live engine. A call that raises has changed nothing. O(posts + trades), and the arbiter."""

    def __init__(self, spec: ClusterSpec, arbiter: Arbiter | None = None) -> None:
        """``spec``: without trades. ``arbiter``: balanced, unless another is given."""
        self._market = Market(spec, arbiter or Balanced(), self._in_use, self._displaces)
        self._scheduler: Scheduler | None = None
        self._notes: list[Note] = []
        # of the last advance
        self._at = -inf
        #: what could not be taken over at the start, in words
        self.left_out: list[str] = []
        #: whether there is something in the record that was not there when it was last taken
        self.changed = False

    def attach(self, scheduler: Scheduler) -> None:
        """Trade the cells of this scheduler's cluster."""
        self._scheduler = scheduler

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
        return min(self._market.trades.next_end, self._market.board.next_change(self._at))

    @property
    def next_start(self) -> float:
        """When the next trade begins; infinity for never."""
        return self._market.trades.next_start

    def _in_use(self, tenant: str) -> Mapping[tuple[str, int], int]:
        """Cells of a tenant that it cannot give: in use, or such that no healthy ones are left for them."""
        if self._scheduler is None:
            return {}
        cluster, spec = self._scheduler.cluster, self.base
        found = dict(cluster.cells_in_use(tenant))
        for vc, chain, cell_type, _ in cluster.doomed():
            if vc == tenant:
                levels = [level.cell_type for level in spec.chain(chain).levels]
                kind = chain, levels.index(cell_type) + 1
                found[kind] = found.get(kind, 0) + 1
        return found

    def _displaces(self, spec: ClusterSpec) -> tuple[str, ...]:
        return () if self._scheduler is None else self._scheduler.cluster.would_downgrade(spec)

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
        posts = sum(post.tenant == tenant for post in self._market.board.posts().values())
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
        self._at = at
        over = self._market.expire(at)
        self._note_trades("trade_over", over.trades)
        for trade in over.missed:
            self._note("trade_called_off", {**self._trade(trade), "why": "it could not begin in its time"})
        for number, post in over.posts:
            self._note("post_over", _post(self.base, number, post))

    def _go_to(self, at: float) -> None:
        self.expire(at)
        due = self._market.begin_due(at)
        self._note_trades("trade_begun", due.begun)
        for trade, why in due.called_off:
            self._note("trade_called_off", {**self._trade(trade), "why": why})

    def _match(self, at: float) -> None:
        made, refused = self._market.match(at)
        for one in refused:
            data = {"vc": one.giver, "to": one.taker, "cells": _plain(self.base, one.cells), "why": one.why,
                    "request": one.request}  # fmt: skip
            self._note("offer_refused", data)
        self._note_trades("trade_agreed", made)
        self._note_trades("trade_begun", [trade for trade in made if self._market.trades.is_on(trade)])

    def under(self, spec: ClusterSpec, at: float) -> Moved:
        """What becomes of all this under a new spec without trades; nothing changes before :meth:`Moved.adopt`."""
        return Moved(self, spec, at)

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
            "cells": _plain(self.base, trade.cells),
            "back": None if trade.back is None else _plain(self.base, trade.back),
            "start": trade.start,
            "end": trade.end,
            "gpu_hours": trade.gpu_hours,
        }

    def take_notes(self) -> list[Note]:
        """What happened since the last call."""
        notes, self._notes = self._notes, []
        return notes

    # -- for people -----------------------------------------------------------------------------------------------

    def given_by(self, vc: str) -> list[CellsGiven]:
        """The cells that a VC has given away now, as reasons for which its jobs wait."""
        trades = self._market.trades
        found = []
        for trade in trades.records():
            if trades.is_on(trade):
                for giver, taker, cells in _moves(trade):
                    if giver == vc:
                        found.append(CellsGiven(vc, taker, *_plain(self.base, cells), trade.end, trade.number))
        return found

    def taken_by(self, vc: str) -> list[CellsGiven]:
        """The cells of others that a VC has now."""
        others = dict.fromkeys(giver for t in self._market.trades.of(vc) for giver in (t.giver, t.taker))
        return [given for other in others if other != vc for given in self.given_by(other) if given.to == vc]

    def gpus_given(self) -> Counter[tuple[str, str]]:
        """GPUs that change hands now: of who has given them and who has taken them. O(trades)."""
        trades, found = self._market.trades, Counter[tuple[str, str]]()
        for trade in trades.records():
            if trades.is_on(trade):
                for giver, taker, cells in _moves(trade):
                    found[giver, taker] += cells.gpus(self.base)
        return found

    # -- for the next start ---------------------------------------------------------------------------------------

    def state(self) -> MarketState:
        """For :meth:`go_back`."""
        return self._market.state()

    def go_back(self, state: MarketState) -> None:
        """Undo everything since the state: it could not be stored."""
        self._market.restore(state)
        self._notes.clear()
        self.changed = False

    def record(self) -> str:
        """Everything as text: JSON, with cell types by name."""
        self.changed = False
        return msgspec.json.encode(_record(self.base, self._market.state())).decode()

    def restore(self, text: str, at: float = -inf) -> list[str]:
        """Go on from a record; what cannot stand under the spec is left out, and returned in words.

        ``at``: now; trades that are left out are paid for as long as they lasted until then. Raises
        :class:`~hived.errors.InputError` for a text that is no record.
        """
        try:
            record = msgspec.json.decode(text, type=_Record)
        except msgspec.DecodeError as error:
            raise InputError(f"trades: not what hived has written ({error})") from None
        state, left_out = _state(self.base, record, at)
        self._market.restore(state)
        rebased = self._market.under(self.base, at)
        self._market.adopt(rebased, at)
        left_out += [f"trade {trade.number}: {why}" for trade, why in rebased.ended]
        return left_out + [f"post {number}: {why}" for number, _, why in rebased.dropped]


class Moved:
    """A market under a new spec, not adopted yet."""

    def __init__(self, trading: LiveTrading, spec: ClusterSpec, at: float) -> None:
        self._trading, self._at = trading, at
        self._rebased = trading.market.under(spec, at)

    def in_force(self) -> ClusterSpec:
        """The new spec with the trades that can go on."""
        return self._rebased.trades.in_force()

    def adopt(self) -> None:
        """Go on under the new spec."""
        trading = self._trading
        for trade, why in self._rebased.ended:
            trading._note("trade_ended", {**trading._trade(trade), "why": why})
        for number, post, why in self._rebased.dropped:
            trading._note("post_dropped", {**_post(trading.base, number, post), "why": why})
        trading.market.adopt(self._rebased, self._at)


def _moves(trade: Trade) -> list[tuple[str, str, Cells]]:
    """Who gives which cells to whom."""
    moves = [(trade.giver, trade.taker, trade.cells)]
    return moves if trade.back is None else [*moves, (trade.taker, trade.giver, trade.back)]


def _plain(spec: ClusterSpec, cells: Cells) -> tuple[str, int]:
    """Cell type and number."""
    return spec.chain(cells.chain).path_to(cells.level), cells.number


def _post(spec: ClusterSpec, number: int, post: Offer | Request) -> dict[str, Any]:
    other = post.wants if isinstance(post, Offer) else post.gives
    return {
        "post": number,
        "offer": isinstance(post, Offer),
        "vc": post.tenant,
        "cells": _plain(spec, post.cells),
        "for": None if other is None else _plain(spec, other),
        "start": post.start,
        "end": post.end,
    }


# -- the record -------------------------------------------------------------------------------------------------------

_Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Moment = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
_Amount = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]


class _Cells(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    cell_type: str
    number: _Number

    def under(self, spec: ClusterSpec) -> Cells:
        return Cells(*kind_of(spec, self.cell_type), self.number)


class _Post(msgspec.Struct, forbid_unknown_fields=True):
    number: _Number
    vc: str
    cells: _Cells
    start: _Moment
    end: _Moment
    other: _Cells | None  #: wanted for those of an offer, given for those of a request
    price: Annotated[float, msgspec.Meta(ge=0, le=1e12)]  #: least of an offer, most of a request


class _Trade(msgspec.Struct, forbid_unknown_fields=True):
    number: _Number
    giver: str
    taker: str
    cells: _Cells
    back: _Cells | None
    start: _Moment
    end: _Moment
    gpu_hours: Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
    price: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    on: bool


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    offers: list[_Post]
    requests: list[_Post]
    trades: list[_Trade]
    surplus: dict[str, _Amount]
    next_post: _Number
    next_trade: _Number


def _record(spec: ClusterSpec, state: MarketState) -> _Record:
    def cells(of: Cells) -> _Cells:
        return _Cells(*_plain(spec, of))

    def maybe(of: Cells | None) -> _Cells | None:
        return None if of is None else cells(of)

    return _Record(
        [_Post(n, o.tenant, cells(o.cells), o.start, o.end, maybe(o.wants), o.price) for n, o in state.offers.items()],
        [_Post(n, r.tenant, cells(r.cells), r.start, r.end, maybe(r.gives), r.bid) for n, r in state.requests.items()],
        [
            _Trade(
                t.number, t.giver, t.taker, cells(t.cells), maybe(t.back), t.start, t.end, t.gpu_hours, t.price,
                t.number in state.on,
            )
            for t in state.trades
        ],
        dict(state.surplus),
        state.next_post,
        state.next_trade,
    )  # fmt: skip


def _state(spec: ClusterSpec, record: _Record, at: float) -> tuple[MarketState, list[str]]:
    """The state, and what has cells of a type that the spec lacks, in words: such trades are paid back from now on."""
    left_out: list[str] = []
    offers: dict[int, Offer] = {}
    requests: dict[int, Request] = {}
    trades: list[Trade] = []
    surplus = dict(record.surplus)

    def pair(cells: _Cells, other: _Cells | None) -> tuple[Cells, Cells | None]:
        return cells.under(spec), None if other is None else other.under(spec)

    for post in record.offers:
        try:
            cells, wants = pair(post.cells, post.other)
            offers[post.number] = Offer(post.vc, cells, post.start, post.end, wants, post.price)
        except RequestError as error:
            left_out.append(f"post {post.number}: {error.message}")
    for post in record.requests:
        try:
            cells, gives = pair(post.cells, post.other)
            requests[post.number] = Request(post.vc, cells, post.start, post.end, gives, post.price)
        except RequestError as error:
            left_out.append(f"post {post.number}: {error.message}")
    for of in record.trades:
        try:
            cells, back = pair(of.cells, of.back)
            made = Trade(of.number, of.giver, of.taker, cells, of.start, of.end, of.gpu_hours, back, of.price)
            trades.append(made)
        except RequestError as error:
            left_out.append(f"trade {of.number}: {error.message}")
            left = max(0.0, of.end - max(of.start, at)) / max(1e-9, of.end - of.start)
            surplus[of.taker] = surplus.get(of.taker, 0.0) + of.gpu_hours * of.price * left
            surplus[of.giver] = surplus.get(of.giver, 0.0) - of.gpu_hours * of.price * left
    on = tuple([trade.number for trade in record.trades if trade.on])
    numbers = [trade.number for trade in record.trades]
    posts = [post.number for post in (*record.offers, *record.requests)]
    state = MarketState(
        offers, requests, tuple(trades), on, surplus,
        max(record.next_post, *(n + 1 for n in posts), 1), max(record.next_trade, *(n + 1 for n in numbers), 1),
    )  # fmt: skip
    return state, left_out
