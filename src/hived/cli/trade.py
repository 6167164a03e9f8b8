"""``hived trade``: cells that virtual clusters trade, in a running engine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from hived.errors import InputError
from hived.server.schema import Cells, Market, Post, Posted, Trade

from .client import Engine
from .console import note
from .escaping import clean
from .formats import columns, duration, print_table, timestamp
from .options import Asking, asks_engine, duration_option, seconds, vc_option

_CELLS = "A cell type of the spec, RACK.NODE, or the end of it, NODE; =N: so many cells."
_Cells = Annotated[str, typer.Argument(metavar="CELLS[=N]", help=_CELLS)]
_Vc = Annotated[str, vc_option(help="The virtual cluster (tenant) whose cells they are, or will be.")]
_For = Annotated[float, duration_option("--for", help="For so long: 10h, 2d.")]
_From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHEN",
        help="In so long (2h), or at a time (20:00, 2026-11-30T18:00).",
        show_default="now",
    ),
]
_credits = partial(typer.Option, metavar="CREDITS", min=0.0)
_POSTS = columns("NUMBER WHAT VC CELLS IN_RETURN FROM UNTIL PRICE", right="NUMBER PRICE")
_TRADES = columns("TRADE GIVER TAKER CELLS IN_RETURN FROM UNTIL STATE GPU-HOURS PRICE", right="TRADE GPU-HOURS PRICE")
_SURPLUS = columns("VC SURPLUS", right="SURPLUS")


@asks_engine
def offer(
    ask: Asking,
    cells: _Cells,
    vc: _Vc,
    duration: _For,
    start: _From = None,
    wants: Annotated[
        str | None, typer.Option("--wants", metavar="CELLS[=N]", help="Cells of another type in return.")
    ] = None,
    price: Annotated[float, _credits("--price", help="In an auction: the least for a GPU hour.")] = 0.0,
) -> None:
    """Offer cells that a virtual cluster does not use, for a while. They are its own again at the end.

    Whoever takes them has them guaranteed for that time. What a virtual cluster gives counts in its favour when it asks
    for cells itself.

    \bExamples:
      hived trade offer NODE=2 --vc vision --for 10h
      hived trade offer NODE --vc vision --for 2d --from 2026-11-28T08:00
      hived trade offer NODE --vc vision --for 10h --wants NODE.SOCKET=2
    """
    body = _body(vc, cells, duration, start, wants, "wants") | {"price": price}
    with ask.connect() as there:
        _tell(ask, there, there.post("/v1/trades/offers", body), "offer", "it waits for a request")


@asks_engine
def request(
    ask: Asking,
    cells: _Cells,
    vc: _Vc,
    duration: _For,
    start: _From = None,
    gives: Annotated[
        str | None, typer.Option("--gives", metavar="CELLS[=N]", help="Cells of another type in return.")
    ] = None,
    bid: Annotated[float, _credits("--bid", help="In an auction: the most for a GPU hour.")] = 1.0,
) -> None:
    """Ask for cells of other virtual clusters, for a while. Whoever has given most is served first.

    \bExamples:
      hived trade request NODE=2 --vc speech --for 10h
      hived trade request NODE --vc speech --for 4h --from 1h
    """
    body = _body(vc, cells, duration, start, gives, "gives") | {"bid": bid}
    with ask.connect() as there:
        _tell(ask, there, there.post("/v1/trades/requests", body), "request", "it waits for an offer")


@asks_engine
def withdraw(
    ask: Asking,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="Of an offer or request, as in hived trade ls.", min=1)
    ],
    vc: Annotated[str, vc_option(help="Whose offer or request it is.")],
) -> None:
    """Withdraw an offer or a request that has found nobody yet. A trade goes on to its end.

    \bExamples:
      hived trade withdraw 3 --vc vision
      hived trade ls -o json | jq '.offers[].number'
    """  # fmt: skip
    with ask.connect() as there:
        answer = there.post("/v1/trades/withdraw", {"number": number, "vc": vc})
        there.parsed(Market, answer)
    if not ask.printed(answer):
        typer.echo(f"{number} is withdrawn")


@asks_engine
def list_trades(ask: Asking) -> None:
    """Show the market: offers and requests, trades, and what each virtual cluster has given beyond what it took.

    \bExamples:
      hived trade ls
      hived trade ls -o json | jq .surplus
    """
    with ask.connect() as there:
        answer = there.get("/v1/trades")
        found = there.parsed(Market, answer)
    if ask.printed(answer):
        return
    unit = "credits" if found.arbiter == "auction" else "GPU hours"
    if found.trades:
        print_table(_TRADES, _trade_rows(found.trades))
    posts = [*(("offer", post) for post in found.offers), *(("request", post) for post in found.requests)]
    if posts:
        if found.trades:
            typer.echo()
        print_table(_POSTS, _post_rows(sorted(posts, key=lambda of: of[1].number)))
    if not found.trades and not posts:
        note("nobody offers or asks for cells; hived trade offer, hived trade request")
    if any(found.surplus.values()):
        typer.echo()
        print_table(_SURPLUS, ((vc, f"{value:+,.1f} {unit}") for vc, value in found.surplus.items()))


def _body(vc: str, cells: str, duration: float, start: str | None, other: str | None, name: str) -> dict[str, object]:
    return {
        "vc": vc,
        "cells": _cells("CELLS", cells),
        "duration_s": float(duration),
        "start": None if start is None else _moment(start),
        name: None if other is None else _cells(f"--{name}", other),
    }


def _cells(option: str, text: str) -> dict[str, object]:
    cell_type, sign, number = text.rpartition("=")
    if not sign:
        return {"cell_type": text, "number": 1}
    if not cell_type or not (number.isascii() and number.isdigit()) or not int(number[:9]) > 0:
        raise InputError(f"{option} {text}: give a cell type and how many, for example NODE=2")
    return {"cell_type": cell_type, "number": int(number)}


def _moment(text: str) -> float:
    """Seconds since the epoch of ``2h`` (from now), ``20:00``, or an ISO time, local unless it says otherwise."""
    now = time.time()
    try:
        if re.fullmatch(r"[0-2]?[0-9]:[0-5][0-9]", text):  # the next time that a clock here shows it
            hour, minute = map(int, text.split(":"))
            today = datetime.fromtimestamp(now).replace(hour=hour, minute=minute, second=0, microsecond=0)
            at = (today + timedelta(days=today.timestamp() < now)).timestamp()
        else:
            at = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        try:
            return now + max(1.0, seconds(text))  # it is on its way for a while
        except typer.BadParameter:
            raise InputError(
                f"--from {text}: give a duration from now (2h) or a time (20:00, 2026-11-30T18:00)"
            ) from None
    if at < now:
        raise InputError(f"--from {text}: that was {duration(now - at)} ago; leave it out to start now")
    return at


def _tell(ask: Asking, there: Engine, answer: object, what: str, waits: str) -> None:
    """What a post has come to."""
    posted = there.parsed(Posted, answer)
    if ask.printed(answer):
        return
    for trade in posted.trades:
        verb = "gives" if trade.on else "will give"
        typer.echo(
            clean(
                f"trade {trade.number}: {trade.giver} {verb} {trade.taker} {_words(trade.cells)} until "
                f"{timestamp(trade.end)}" + (f", for {_words(trade.back)}" if trade.back else "")
            )
        )
    if posted.waits:
        left = "what is left of it waits" if posted.trades else waits
        typer.echo(
            f"{what} {posted.number}: {left}; hived trade ls shows it, hived trade withdraw {posted.number} ends it"
        )
        for line in _nearly(there.parsed(Market, there.get("/v1/trades")), posted.number):
            note(line)
    elif not posted.trades:
        typer.echo(f"{what} {posted.number}: refused and withdrawn; hived events says why")


def _nearly(market: Market, number: int) -> Iterator[str]:
    """The offers that a request would have, or an offer the requests, but for their windows."""
    mine = next((post for post in (*market.offers, *market.requests) if post.number == number), None)
    if mine is None:
        return
    of_mine = mine in market.offers
    for post in market.requests if of_mine else market.offers:
        offer, request = (mine, post) if of_mine else (post, mine)
        same = offer.cells.cell_type == request.cells.cell_type and offer.cells.number >= request.cells.number
        if post.vc != mine.vc and same and not (offer.start <= request.start and request.end <= offer.end):
            begins, ends = _when(post.start, post.end, time.time())
            kind = "request" if of_mine else "offer"
            yield f"{kind} {post.number} of {clean(post.vc)} is for another time: from {begins}, until {ends}"


def _words(cells: Cells | None) -> str:
    return "-" if cells is None else f"{cells.number:,} x {clean(cells.cell_type)}"


def _when(start: float, end: float, now: float) -> tuple[str, str]:
    return ("now" if start <= now else f"in {duration(start - now)}"), f"in {duration(max(0.0, end - now))}"


def _post_rows(posts: Iterable[tuple[str, Post]]) -> Iterator[tuple[str | Text, ...]]:
    now = time.time()
    for what, post in posts:
        begins, ends = _when(post.start, post.end, now)
        yield f"{post.number}", what, post.vc, _words(post.cells), _words(post.other), begins, ends, f"{post.price:g}"


def _trade_rows(trades: Iterable[Trade]) -> Iterator[tuple[str | Text, ...]]:
    now = time.time()
    for of in trades:
        begins, ends = _when(of.start, of.end, now)
        state = Text("on", "green") if of.on else Text("agreed", "cyan")
        hours = f"{of.gpu_hours:,.1f}"
        yield (
            f"{of.number}", of.giver, of.taker, _words(of.cells), _words(of.back), begins, ends, state, hours,
            f"{of.price:g}",
        )  # fmt: skip
