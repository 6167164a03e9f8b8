"""The market of a live engine as text: JSON, with cell types by name, for the next start."""

from __future__ import annotations

from typing import Annotated

import msgspec

from hived.errors import InputError, RequestError
from hived.exchange import Cells, MarketState, Offer, Request, Trade, kind_of, share_left
from hived.spec.compiled import ClusterSpec

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


def encoded(spec: ClusterSpec, state: MarketState) -> str:
    """The text of a state under ``spec``, which is without trades. O(posts + trades)."""

    def cells(of: Cells) -> _Cells:
        return _Cells(*of.by_name(spec))

    def maybe(of: Cells | None) -> _Cells | None:
        return None if of is None else cells(of)

    record = _Record(
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
    return msgspec.json.encode(record).decode()


def decoded(spec: ClusterSpec, text: str, at: float) -> tuple[MarketState, list[str]]:
    """The state, and what has cells of a type that ``spec`` lacks, in words: it is left out.

    ``at``: now; such trades are paid for as long as they lasted until then. Raises :class:`~hived.errors.InputError`
    for a text that is no record. O(posts + trades).
    """
    try:
        record = msgspec.json.decode(text, type=_Record)
    except msgspec.DecodeError as error:
        raise InputError(f"trades: not what hived has written ({error})") from None
    left_out: list[str] = []
    offers: dict[int, Offer] = {}
    requests: dict[int, Request] = {}
    trades: list[Trade] = []
    surplus = dict(record.surplus)

    def pair(cells: _Cells, other: _Cells | None) -> tuple[Cells, Cells | None]:
        return cells.under(spec), None if other is None else other.under(spec)

    for posts, is_offer in ((record.offers, True), (record.requests, False)):
        for post in posts:
            try:
                cells, other = pair(post.cells, post.other)
            except RequestError as error:
                left_out.append(f"post {post.number}: {error.message}")
                continue
            if is_offer:
                offers[post.number] = Offer(post.vc, cells, post.start, post.end, other, post.price)
            else:
                requests[post.number] = Request(post.vc, cells, post.start, post.end, other, post.price)
    for of in record.trades:
        try:
            cells, back = pair(of.cells, of.back)
            made = Trade(of.number, of.giver, of.taker, cells, of.start, of.end, of.gpu_hours, back, of.price)
            trades.append(made)
        except RequestError as error:
            left_out.append(f"trade {of.number}: {error.message}")
            left = of.gpu_hours * of.price * share_left(of.start, of.end, at)
            surplus[of.taker] = surplus.get(of.taker, 0.0) + left
            surplus[of.giver] = surplus.get(of.giver, 0.0) - left
    on = tuple([trade.number for trade in record.trades if trade.on])
    next_post = max(record.next_post, *(post.number + 1 for post in (*record.offers, *record.requests)), 1)
    next_trade = max(record.next_trade, *(trade.number + 1 for trade in record.trades), 1)
    return MarketState(offers, requests, tuple(trades), on, surplus, next_post, next_trade), left_out
