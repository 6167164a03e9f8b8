"""Arbiters: which request gets which offer, and what it costs. Each answers one match at a time."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

from hived.errors import InputError

from .board import Board


class ArbiterKind(StrEnum):
    """The arbiters, by name."""

    BALANCED = "balanced"  #: who has given most is served first (the draft of HiveD, Algorithm 2)
    AUCTION = "auction"  #: the highest bid wins, for the second highest


class Match(NamedTuple):
    """A request and an offer, by number."""

    request: int
    offer: int
    price: float = 1.0  #: credits for a GPU hour


class Arbiter(Protocol):
    """The policy of the exchange. ``surplus``: what each tenant has given beyond what it took, in GPU hours."""

    name: str

    def match(self, board: Board, surplus: Mapping[str, float]) -> Match | None:
        """One match, or None: there is none. It is asked again after each, with the surplus as it is then."""


class Balanced:
    """Balanced exchange (the draft of HiveD, 3.3, Algorithm 2): who has given most is served first.

    Tenants are asked by decreasing surplus, their requests in the order of posting; the first with a qualified offer
    gets that of the tenant with the lowest surplus. O(requests * offers).
    """

    name = "balanced"

    def match(self, board: Board, surplus: Mapping[str, float]) -> Match | None:
        """One match, or None."""
        waiting = sorted(board.requests.items(), key=lambda of: (-surplus.get(of[1].tenant, 0.0), of[1].tenant, of[0]))
        for number, request in waiting:
            offers = board.qualified(request)
            best = min(offers, key=lambda of: (surplus.get(of[1].tenant, 0.0), of[0]), default=None)
            if best is not None:
                return Match(number, best[0])
        return None


class SecondPrice:
    """A sealed second-price auction of each offer (the draft, 3.3): the highest bid gets it, for the second highest.

    The price is at least that of the offer. Equal bids: the higher surplus, then the earlier post.
    O(requests * offers).
    """

    name = "auction"

    def match(self, board: Board, surplus: Mapping[str, float]) -> Match | None:
        """One match, or None."""
        bids: dict[int, list[tuple[float, float, int]]] = {}
        for number, request in board.requests.items():
            for offer, offered in board.qualified(request):
                if request.bid >= offered.price:
                    bid = -request.bid, -surplus.get(request.tenant, 0.0), number
                    bids.setdefault(offer, []).extend([bid] * min(2, request.times))  # the highest, and the second
        for offer in sorted(bids):
            of = sorted(bids[offer])
            second = -of[1][0] if len(of) > 1 else 0.0
            return Match(of[0][2], offer, max(second, board.offers[offer].price))
        return None


_ARBITERS = {arbiter.name: arbiter for arbiter in (Balanced, SecondPrice)}


def make_arbiter(name: str) -> Arbiter:
    """The arbiter of a name: ``balanced``, ``auction``. Raises :class:`~hived.errors.InputError` for another."""
    if name not in _ARBITERS:
        raise InputError(f"exchange {name!r}: no such arbiter; there is {', '.join(_ARBITERS)}")
    return _ARBITERS[name]()
