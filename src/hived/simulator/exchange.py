"""Trading in a simulation: tenants look at the market every hour, and their trades change the spec of the cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hived.exchange import Arbiter, IdleCells, Market, Proxy, TenantView, Trade, share_left
from hived.scheduling import Scheduler
from hived.spec.compiled import ClusterSpec

from .traces.model import MS

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Sample:
    """What a tenant had and used at a look, in cells of the kind that is traded."""

    at: int  #: in milliseconds
    tenant: str
    used: int  #: with guaranteed jobs
    taken: int  #: from others
    given: int  #: to others


class Trading(Protocol):
    """What a simulation asks about trades."""

    made: list[Trade]  #: every trade so far
    samples: list[Sample]  #: every sample so far

    @property
    def next_look(self) -> int:
        """When it is to be asked next, in milliseconds."""

    def look(self, now: int, scheduler: Scheduler) -> ClusterSpec | None:
        """The spec from now on; None: it is as it was. :attr:`next_look` is later from then on."""

    def recall(self, tenant: str, now: int, scheduler: Scheduler) -> ClusterSpec | None:
        """The spec once a job of a tenant that does not fit has back what was given away; None: as it was."""


class HourlyTrading:
    """Cells of one kind, node by node: proxies post, and the arbiter matches, every hour.

    A proxy sees what its tenant used at the looks of the last hours. O(tenants * hosts) per look, and where trades
    began or ended what :meth:`~hived.cluster.cluster.Cluster.trade` costs.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        arbiter: Arbiter,
        proxies: Mapping[str, Proxy] | None = None,
        every_ms: int = HOUR_MS,
        idle_looks: int = 10,
        peaks: Callable[[str, int], int] | None = None,
    ) -> None:
        """``proxies``: of the tenants that trade (with :class:`~hived.exchange.IdleCells` all who can with anybody).

        ``idle_looks``: the peak of a tenant is over so many looks before the present one. ``peaks``: in place of it,
        the most cells that a tenant will use from a time on, known with hindsight.
        """
        self._every = every_ms
        self.next_look = every_ms
        self._chain = spec.chains[0]
        self._level = self._chain.node_level
        self._scheduler: Scheduler | None = None
        self.market = Market(spec, arbiter, self._in_use, self._displaces, self._strands)
        tenants = [vc.name for vc in spec.virtual_clusters]
        own, kind = self.market.trades.own, (self._chain.name, self._level)
        partners = [tenant for tenant in tenants if any(own[other, kind] for other in tenants if other != tenant)]
        self._proxies = dict.fromkeys(partners, IdleCells()) if proxies is None else dict(proxies)
        self._used: dict[str, deque[int]] = {tenant: deque(maxlen=idle_looks + 1) for tenant in tenants}
        self._peaks = peaks
        #: every trade that was made, and every sample
        self.made: list[Trade] = []
        self.samples: list[Sample] = []
        #: matches that were no trade, since safety would not have held
        self.refused = 0

    def _in_use(self, tenant: str) -> Mapping[tuple[str, int], int]:
        return {} if self._scheduler is None else self._scheduler.cluster.cells_in_use(tenant)

    def _displaces(self, spec: ClusterSpec) -> Sequence[str]:
        return () if self._scheduler is None else self._scheduler.cluster.would_downgrade(spec)

    def _strands(self, tenant: str, spec: ClusterSpec) -> Sequence[str]:
        return () if self._scheduler is None else self._scheduler.stranded(tenant, spec, self.market.trades.spec)

    def recall(self, tenant: str, now: int, scheduler: Scheduler) -> ClusterSpec | None:
        """The spec once a job of a tenant that does not fit has back what was given away; None: as it was."""
        self._scheduler = scheduler
        return self.market.trades.in_force() if self._recall([tenant], now / MS) else None

    def _recall(self, tenants: Iterable[str], at: float) -> bool:
        ended = {trade.number for trade, _ in self.market.recall(tenants, at)}
        self.made = [_cut(trade, at) if trade.number in ended else trade for trade in self.made]
        return bool(ended)

    def look(self, now: int, scheduler: Scheduler) -> ClusterSpec | None:
        """The spec from now on; None: it is as it was."""
        self.next_look = now + self._every
        market, seconds = self.market, now / MS
        self._scheduler = scheduler
        self._sample(now, scheduler)
        over = market.expire(seconds).trades
        self._recall([taker for trade in over for _, taker, _ in trade.sides()], seconds)
        market.post(self._proxies, self._views(now, scheduler))
        made, refused = market.match(seconds)
        self.made += made
        self.refused += len(refused)
        return market.trades.in_force() if over or made else None

    def _sample(self, now: int, scheduler: Scheduler) -> None:
        """What every tenant has used with the trades that were on up to now."""
        trades = self.market.trades.records()
        for vc in self.market.trades.spec.virtual_clusters:
            used = scheduler.cluster.cells_in_use(vc.name).get((self._chain.name, self._level), 0)
            given = sum(trade.cells.number for trade in trades if trade.giver == vc.name)
            taken = sum(trade.cells.number for trade in trades if trade.taker == vc.name)
            self._used[vc.name].append(used)
            self.samples.append(Sample(now, vc.name, used, taken, given))

    def _views(self, now: int, scheduler: Scheduler) -> Sequence[TenantView]:
        kind = self._chain.name, self._level
        trades = [trade for trade in self.market.trades.records() if trade.at(now / MS)]
        views = []
        for vc in self.market.trades.spec.virtual_clusters:
            tenant = vc.name
            own = sum(cells.number for cells in vc.cells if (cells.chain, cells.level) == kind)
            given = sum(trade.cells.number for trade in trades if trade.giver == tenant)
            taken = sum(trade.cells.number for trade in trades if trade.taker == tenant)
            used = self._used[tenant][-1]  # cells that have just gone back among them
            peak = max(self._used[tenant]) if self._peaks is None else max(used, self._peaks(tenant, now))
            if self._peaks is None and len(self._used[tenant]) < (self._used[tenant].maxlen or 0):
                peak = own  # nobody knows yet what is idle
            views.append(
                TenantView(
                    tenant,
                    now / MS,
                    kind,
                    self._chain.gpus_per_node,
                    own - given + taken,
                    own - given,
                    used,
                    peak,
                    scheduler.queues[tenant].line.gpus if tenant in scheduler.queues else 0,
                    self.market.surplus.get(tenant, 0.0),
                )
            )
        return views


def _cut(trade: Trade, now: float) -> Trade:
    """A trade that has ended early."""
    lasted = 1 - share_left(trade.start, trade.end, now)
    return replace(trade, end=now, gpu_hours=trade.gpu_hours * lasted)
