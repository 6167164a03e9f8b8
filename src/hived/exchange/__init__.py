"""Cell exchange: tenants trade cells of their virtual clusters for a while (the draft of HiveD, 3.3 and 4). Pure.

A bulletin board has the offers and requests of all tenants. Each tenant has a proxy that posts for it, by a policy of
its own. An arbiter matches one request with one offer at a time, by a policy; the trade that follows changes what both
have reserved, for a window of time, and is refused where that would break sharing safety.
"""

from .arbiter import Arbiter, ArbiterKind, Balanced, Match, SecondPrice, make_arbiter
from .board import Board, Offer, Request
from .cells import Cells, kind_of
from .market import Market, MarketState, Rebased, Refused, share_left
from .proxy import IdleCells, Proxy, TenantView
from .trades import Trade, Trades

__all__ = [
    "Arbiter",
    "ArbiterKind",
    "Balanced",
    "Board",
    "Cells",
    "IdleCells",
    "Market",
    "MarketState",
    "Match",
    "Offer",
    "Proxy",
    "Rebased",
    "Refused",
    "Request",
    "SecondPrice",
    "TenantView",
    "Trade",
    "Trades",
    "kind_of",
    "make_arbiter",
    "share_left",
]
