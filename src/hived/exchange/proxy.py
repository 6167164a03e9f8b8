"""Proxies: each posts for one tenant, by a policy of its own: when to trade, what to ask for (the draft, 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .board import Offer, Request
from .cells import Cells


class TenantView(NamedTuple):
    """What a proxy sees of its tenant, of one kind of cells. Nothing of other tenants."""

    tenant: str
    now: float  #: seconds
    kind: tuple[str, int]  #: chain and level
    gpus: int  #: leaf cells of one
    cells: int  #: that it has now, with what it took and without what it gave
    own: int  #: of these, its own
    used: int  #: of these, with guaranteed jobs
    peak: int  #: the most that were used at the last looks (:attr:`IdleCells.idle_s`)
    wanted_gpus: int  #: of jobs that wait for their turn
    surplus: float  #: GPU hours that it has given beyond what it took


class Proxy(Protocol):
    """The policy of a tenant. A method that raises ends the round for it, and the board is as it was."""

    def offers(self, view: TenantView) -> Sequence[Offer]:
        """What it offers now, beside its trades; earlier offers are withdrawn."""

    def requests(self, view: TenantView) -> Sequence[Request]:
        """What it asks for now; earlier requests are withdrawn."""


@dataclass(frozen=True, slots=True)
class IdleCells:
    """Offers cells that have been idle for a while, and asks for those that the jobs in line need beyond its own.

    The papers do not say who posts what; this is our substitute, and its windows are its parameters.
    """

    idle_s: float = 10 * 3600.0  #: for so long a cell was idle that is offered
    window_s: float = 10 * 3600.0  #: and for so long it is
    bid: float = 1.0

    def offers(self, view: TenantView) -> Sequence[Offer]:
        """All in one offer, of which several tenants may have a part."""
        spare = 0 if view.wanted_gpus else view.own - view.peak
        if spare <= 0:
            return []
        return [Offer(view.tenant, Cells(*view.kind, spare), view.now, view.now + self.window_s)]

    def requests(self, view: TenantView) -> Sequence[Request]:
        """One cell each: those that jobs in line need, less those that are free."""
        lacking = -(-view.wanted_gpus // view.gpus) - (view.cells - view.used)
        if lacking <= 0:
            return []
        end = view.now + self.window_s
        return [Request(view.tenant, Cells(*view.kind), view.now, end, bid=self.bid, times=lacking)]
