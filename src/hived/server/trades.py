"""``/v1/trades``: offers of cells, requests for them, and trades."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import APIRouter, Body
from fastapi import Request as HttpRequest

from hived.engine.trading import LiveTrading
from hived.errors import RequestError
from hived.exchange import Cells, Offer, Request, Trade, kind_of
from hived.spec.compiled import ClusterSpec

from . import schema
from .failures import declared
from .permits import Permits

T = TypeVar("T")
BODY = (400, 403, 408, 413, 415, 422, 429)  #: the errors of a route that takes a body
#: fields of the exchange's errors, as the requests here call them
_FIELDS = {"tenant": "vc", "number": "cells.number", "end": "duration_s"}


class Trader(Protocol):
    """An engine whose tenants trade cells."""

    @property
    def trading(self) -> LiveTrading:
        """The market, to be read. Raises :class:`~hived.errors.UnavailableError`."""

    async def trade(self, act: Callable[[LiveTrading, float], T]) -> T:
        """Change it by ``act``, which is given the time; it is stored when this returns."""


class ExchangeService:
    """The operations of the market in the types of the API. Raises errors of :mod:`hived.errors`."""

    def __init__(self, trader: Trader) -> None:
        self._trader = trader

    def shown(self) -> schema.Market:
        """The board, the trades, and each tenant's surplus."""
        trading = self._trader.trading
        market, spec = trading.market, trading.base
        board = market.board
        return schema.Market(
            arbiter=market.arbiter.name,
            offers=[_post(spec, number, post, post.wants, post.price) for number, post in board.offers.items()],
            requests=[_post(spec, number, post, post.gives, post.bid) for number, post in board.requests.items()],
            trades=[_trade(trading, trade) for trade in market.trades.records()],
            surplus={vc.name: market.surplus.get(vc.name, 0.0) for vc in spec.virtual_clusters},
        )

    async def offer(self, new: schema.NewOffer) -> schema.Posted:
        """Post an offer, and match it."""

        def act(trading: LiveTrading, at: float) -> int:
            start = at if new.start is None else new.start
            cells, wants = _pair(trading.base, new.cells, new.wants, "wants")
            return trading.offer(Offer(new.vc, cells, start, start + new.duration_s, wants, new.price), at)

        return await self._posted(act)

    async def request(self, new: schema.NewRequest) -> schema.Posted:
        """Post a request, and match it."""

        def act(trading: LiveTrading, at: float) -> int:
            start = at if new.start is None else new.start
            cells, gives = _pair(trading.base, new.cells, new.gives, "gives")
            return trading.request(Request(new.vc, cells, start, start + new.duration_s, gives, new.bid), at)

        return await self._posted(act)

    async def withdraw(self, number: int, vc: str) -> schema.Market:
        """Withdraw an offer or a request."""
        await self._trader.trade(lambda trading, at: trading.withdraw(number, vc, at))
        return self.shown()

    async def _posted(self, act: Callable[[LiveTrading, float], int]) -> schema.Posted:
        def posted(trading: LiveTrading, at: float) -> schema.Posted:
            first = trading.market.next_trade
            try:
                number = act(trading, at)
            except RequestError as error:
                raise RequestError(_FIELDS.get(error.field, error.field), error.message) from None
            made = [trade for trade in trading.market.trades.records() if trade.number >= first]
            waits = number in trading.market.board.offers or number in trading.market.board.requests
            return schema.Posted(number=number, waits=waits, trades=[_trade(trading, trade) for trade in made])

        return await self._trader.trade(posted)


def _pair(spec: ClusterSpec, cells: schema.Cells, other: schema.Cells | None, field: str) -> tuple[Cells, Cells | None]:
    def found(of: schema.Cells, name: str) -> Cells:
        return Cells(*kind_of(spec, of.cell_type, f"{name}.cell_type"), of.number)

    return found(cells, "cells"), None if other is None else found(other, field)


def _cells(spec: ClusterSpec, cells: Cells) -> schema.Cells:
    cell_type, number = cells.by_name(spec)
    return schema.Cells(cell_type=cell_type, number=number)


def _maybe(spec: ClusterSpec, cells: Cells | None) -> schema.Cells | None:
    return None if cells is None else _cells(spec, cells)


def _post(spec: ClusterSpec, number: int, post: Offer | Request, other: Cells | None, price: float) -> schema.Post:
    return schema.Post(
        number=number,
        vc=post.tenant,
        cells=_cells(spec, post.cells),
        other=_maybe(spec, other),
        start=post.start,
        end=post.end,
        price=price,
    )


def _trade(trading: LiveTrading, trade: Trade) -> schema.Trade:
    return schema.Trade(
        number=trade.number,
        giver=trade.giver,
        taker=trade.taker,
        cells=_cells(trading.base, trade.cells),
        back=_maybe(trading.base, trade.back),
        start=trade.start,
        end=trade.end,
        on=trading.market.trades.is_on(trade),
        gpu_hours=trade.gpu_hours,
        price=trade.price,
    )


_CELLS = {"vc": "vision", "cells": {"cell_type": "NODE", "number": 2}, "duration_s": 36_000.0}
_OFFERS: dict[str, Any] = {"two nodes for ten hours": {"value": _CELLS}}
_NODE = {"cells": {"cell_type": "NODE", "number": 1}}
_REQUESTS: dict[str, Any] = {"a node for ten hours": {"value": _CELLS | {"vc": "speech"} | _NODE}}
_WITHDRAWALS: dict[str, Any] = {"one's own": {"value": {"number": 1, "vc": "vision"}}}


def add_trades(router: APIRouter, service: ExchangeService, permits: Permits) -> None:
    """Add the market of ``service``, which is asked in the event loop's thread, to ``/v1``."""
    changes = declared(*BODY, 404, 409, 503, 507)

    @router.get("/trades", responses=declared(403, 503))
    async def get_market() -> schema.Market:
        """Offers, requests, trades, and what each virtual cluster has given beyond what it took."""
        return service.shown()

    @router.post("/trades/offers", status_code=201, responses=changes)
    async def offer_cells(
        offer: Annotated[schema.NewOffer, Body(openapi_examples=_OFFERS)], asked: HttpRequest
    ) -> schema.Posted:
        """Offer cells that a virtual cluster does not use, for a while. They are its own again at the end."""
        permits.to_trade(asked, offer.vc)
        return await service.offer(offer)

    @router.post("/trades/requests", status_code=201, responses=changes)
    async def request_cells(
        request: Annotated[schema.NewRequest, Body(openapi_examples=_REQUESTS)], asked: HttpRequest
    ) -> schema.Posted:
        """Ask for cells of other virtual clusters, for a while."""
        permits.to_trade(asked, request.vc)
        return await service.request(request)

    @router.post("/trades/withdraw", responses=changes)
    async def withdraw_post(
        of: Annotated[schema.Withdrawal, Body(openapi_examples=_WITHDRAWALS)], asked: HttpRequest
    ) -> schema.Market:
        """Withdraw an offer or a request that has found nobody yet."""
        permits.to_trade(asked, of.vc)
        return await service.withdraw(of.number, of.vc)
