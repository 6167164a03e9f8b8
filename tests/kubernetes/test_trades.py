"""Trades on Kubernetes: written down before they begin; meanwhile their cells are nobody's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from hived.engine.trading import LiveTrading
from hived.engines.kubernetes import stored_market as module
from hived.engines.kubernetes.client.api import ApiError
from hived.engines.kubernetes.config_map import ConfigMapRecord
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.stored_market import KEY, RecordConflictError, StoredMarket
from hived.errors import ForbiddenError, UnavailableError
from hived.exchange import Balanced, Cells, Offer, Request

from .fake_kubernetes import World
from .stored_object import ObjectApi, StoredObject
from .virtual_time import played

NODE = Cells("NODE", 3)
HOUR = 3600.0


class Api(ObjectApi):
    """The ConfigMap; one more mood: it refuses writes."""

    def __init__(self) -> None:
        super().__init__("/api/v1/namespaces/hived/configmaps", "trades", StoredObject())
        self.before_write: Callable[[], None] = lambda: None

    async def write(self, act: Callable[[], bytes]) -> bytes:
        self.before_write()
        if self.mood == "refuses":
            raise ApiError("not permitted", 403)
        return await super().write(act)


class Market:
    """Two tenants with two nodes each, on a service that keeps trades in ``api``."""

    def __init__(self, api: Api | None = None) -> None:
        self.api = api or Api()
        self.world = World(a=2, b=2)
        self.stored = StoredMarket(
            ConfigMapRecord(self.api, "hived", "trades", KEY), Balanced(), lambda: self.world.now
        )

    @property
    def gang_scheduler(self) -> GangScheduler:
        return self.world.gang_scheduler

    def cells(self) -> dict[str, int]:
        """How many nodes each tenant has by now, in the core."""
        vcs = self.gang_scheduler.cluster.spec.virtual_clusters
        return {vc.name: sum(cells.number for cells in vc.cells) for vc in vcs}

    async def change(self, act: Callable[[LiveTrading, float], object]) -> None:
        await self.stored.change(lambda: self.gang_scheduler, act)

    async def offer(self, seconds: float = HOUR, start: float = 0.0) -> None:
        await self.change(lambda trading, at: trading.offer(Offer("a", NODE, at + start, at + start + seconds), at))

    async def request(self, seconds: float = HOUR) -> None:
        await self.change(lambda trading, at: trading.request(Request("b", NODE, at, at + seconds), at))

    async def trade(self, seconds: float = HOUR) -> None:
        """``b`` gets a node of ``a``."""
        await self.offer(seconds)
        await self.request(seconds)

    async def next_leader(self) -> Market:
        """Another process that reads the record."""
        again = Market(self.api)
        again.world.now = self.world.now
        await again.stored.load()
        return again

    def restored(self) -> LiveTrading:
        """The market as the record has it."""
        return self.stored.restored(self.world.spec)


@pytest.fixture
def market() -> Market:
    return Market()


@played
async def test_cells_are_nobodys_while_written(market: Market) -> None:
    await market.offer()
    seen: list[dict[str, int]] = []
    market.api.before_write = lambda: seen.append(market.cells())
    await market.request()
    assert seen == [{"a": 1, "b": 2}]
    assert market.cells() == {"a": 1, "b": 3}


@played
async def test_change_that_cannot_be_written(market: Market) -> None:
    """It is none; one whose answer is lost is one."""
    await market.offer()
    before, events = market.api.stored.there, market.gang_scheduler.seq
    market.api.mood = "refuses"
    with pytest.raises(ApiError, match="not permitted"):
        await market.request()
    assert market.cells() == {"a": 2, "b": 2}
    assert not market.gang_scheduler.trading.market.board.requests
    assert (market.api.stored.there, market.gang_scheduler.seq) == (before, events)
    market.api.mood = "deaf"  # the record is read again
    await market.request()
    assert market.cells() == {"a": 1, "b": 3}


@played
async def test_write_of_unknown_outcome(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is known, the cells are nobody's, and others are told so."""
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    await market.offer()
    market.api.mood = "down"
    waiting = asyncio.ensure_future(market.request())
    for _ in range(20):
        await asyncio.sleep(0)
    assert market.cells() == {"a": 1, "b": 2}
    assert not waiting.done()
    with pytest.raises(UnavailableError, match="is not known yet"):
        await market.offer()
    market.api.mood = ""  # the write has not arrived
    with pytest.raises(ApiError, match="nobody there"):
        await waiting
    assert market.cells() == {"a": 2, "b": 2}


@played
async def test_trade_is_over_at_its_end(market: Market) -> None:
    """Even if that cannot be written down; who reads the record finds it by the clock.

    Else the owner's jobs would be adopted as opportunistic, and make room for the taker's.
    """
    await market.trade(10.0)
    market.api.mood = "refuses"
    market.world.now += 10.0
    assert market.stored.tick(market.gang_scheduler), "it is still to be written down"
    assert market.cells() == {"a": 2, "b": 2}
    again = await market.next_leader()
    assert again.restored().in_force() == again.world.spec


@played
async def test_trade_ends_during_a_change(market: Market) -> None:
    """Which fails to be written."""
    await market.trade(10.0)

    def later() -> None:
        market.world.now += 10.0
        market.stored.tick(market.gang_scheduler)

    market.api.before_write, market.api.mood = later, "refuses"
    with pytest.raises(ApiError, match="not permitted"):
        await market.offer()
    assert market.cells() == {"a": 2, "b": 2}


@played
async def test_another_leader_goes_on(market: Market) -> None:
    """With what is written; the one before it cannot write any more once that one has."""
    await market.trade()
    again = await market.next_leader()
    trading = again.restored()
    assert trading.in_force().virtual_clusters == market.gang_scheduler.cluster.spec.virtual_clusters
    known = again.gang_scheduler
    again.world.gang_scheduler = GangScheduler(known.cluster, known.policies, trading=trading)
    await again.request(7.0)
    written = market.api.stored.there
    with pytest.raises(RecordConflictError, match="was written by somebody else; this process ends"):
        await market.request(9.0)
    assert market.api.stored.there == written, "it is not overwritten"


@played
async def test_no_trades_without_a_record(market: Market) -> None:
    """That can be read; all else goes on."""
    market.api.stored.create({"metadata": {}, "data": {"trades.json": '{"offers": 3}'}})
    await market.stored.load()
    assert market.restored().in_force() == market.world.spec
    with pytest.raises(UnavailableError, match=r"configmap/hived/trades: trades: not what hived has written"):
        await market.offer()
    market.stored.record = None
    with pytest.raises(ForbiddenError, match="--exchange-configmap NS/NAME"):
        await market.offer()


@pytest.mark.parametrize(
    ("change", "left_out"),
    [
        ({"giver": "nobody"}, "virtual cluster nobody is no more"),
        ({"cells": ["RACK", 1]}, "no such cell type"),
        ({"cells": ["NODE", 5]}, "a has 2 x NODE in that time, and would give 5"),
    ],
    ids=["giver", "cells", "number"],
)
@played
async def test_trade_changed_by_hand(
    market: Market, change: dict[str, Any], left_out: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out if it cannot be."""
    await market.trade()
    data = market.api.stored.now["data"]
    record = json.loads(data["trades.json"])
    record["trades"][0] |= change
    data["trades.json"] = json.dumps(record)
    again = await market.next_leader()
    assert again.restored().in_force() == again.world.spec
    assert left_out in caplog.text


@played
async def test_window_that_opens_leads_to_a_match(market: Market) -> None:
    await market.request()
    await market.offer(2 * HOUR, start=10.0)
    assert not market.stored.tick(market.gang_scheduler)
    market.world.now += 10.0
    assert market.stored.tick(market.gang_scheduler)
    await market.change(LiveTrading.advance)
    assert market.cells() == {"a": 1, "b": 3}


@played
async def test_rest_of_the_config_map_stays(market: Market) -> None:
    market.api.stored.create({"metadata": {"labels": {"app": "x"}}, "data": {"notes": "mine"}})
    await market.stored.load()
    await market.offer()
    there = market.api.stored.now
    assert there["metadata"]["labels"] == {"app": "x"}
    assert there["data"]["notes"] == "mine"
    assert "trades.json" in there["data"]
