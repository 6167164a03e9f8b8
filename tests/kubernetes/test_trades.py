"""Trades on Kubernetes: written down before they begin; meanwhile their cells are nobody's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from hived.engines.kubernetes import stored_market as module
from hived.engines.kubernetes.client.api import ApiError, KubeApi
from hived.engines.kubernetes.gangs.gang_scheduler import GangScheduler
from hived.engines.kubernetes.stored_market import RecordConflictError, StoredMarket, TradeRecord
from hived.engines.trading import LiveTrading
from hived.errors import ConflictError, ForbiddenError, UnavailableError
from hived.exchange import Balanced, Cells, Offer, Request

from .pods import flat_spec
from .scheduler_harness import World

PATH = "/api/v1/namespaces/hived/configmaps"
NODE = Cells("NODE", 3)
HOUR = 3600.0


class Api(KubeApi):
    """The ConfigMap, as the API server keeps it; ``mood``: refuses, deaf (answers to writes are lost), down."""

    def __init__(self) -> None:
        self.there: dict[str, Any] | None = None
        self.written = 0
        self.mood = ""
        self.before_write: Callable[[], None] = lambda: None

    async def get(self, path: str, params: Any = None) -> bytes:
        assert path == f"{PATH}/trades"
        await asyncio.sleep(0)
        if self.mood == "down":
            raise ApiError("nobody there", 0)
        if self.there is None:
            raise ApiError("there is none", 404)
        return json.dumps(self.there).encode()

    async def put(self, path: str, body: Any) -> bytes:
        assert path == f"{PATH}/trades"
        if self.there is None:
            raise ApiError("there is none", 404)
        if body["metadata"]["resourceVersion"] != str(self.written):
            raise ApiError("it has changed", 409)
        return self._keep(body)

    async def post(self, path: str, body: Any) -> bytes:
        assert path == PATH
        if self.there is not None:
            raise ApiError("there is one", 409)
        return self._keep(body)

    def _keep(self, body: Any) -> bytes:
        self.before_write()
        if self.mood == "refuses":
            raise ApiError("not permitted", 403)
        if self.mood == "down":
            raise ApiError("nobody there", 0)
        self.written += 1
        self.there = json.loads(json.dumps(body))
        assert self.there is not None
        self.there["metadata"]["resourceVersion"] = str(self.written)
        if self.mood == "deaf":
            raise ApiError("no answer in time", 0)
        return json.dumps(self.there).encode()


class Market:
    """Two tenants with two nodes each, on a service that keeps trades in ``api``."""

    def __init__(self, api: Api | None = None) -> None:
        self.api = api or Api()
        self.world = World(flat_spec(a=2, b=2))
        self.stored = StoredMarket(TradeRecord(self.api, "hived", "trades"), Balanced(), lambda: self.world.now)

    @property
    def gang_scheduler(self) -> GangScheduler:
        return self.world.known

    def cells(self) -> dict[str, int]:
        """How many nodes each tenant has by now, in the core."""
        vcs = self.gang_scheduler.cluster.spec.virtual_clusters
        return {vc.name: sum(cells.number for cells in vc.cells) for vc in vcs}

    async def change(self, act: Callable[[LiveTrading, float], object]) -> None:
        await self.stored.change(lambda: self.gang_scheduler, act)

    async def offer(self, seconds: float = HOUR) -> None:
        await self.change(lambda trading, at: trading.offer(Offer("a", NODE, at, at + seconds), at))

    async def request(self, seconds: float = HOUR) -> None:
        await self.change(lambda trading, at: trading.request(Request("b", NODE, at, at + seconds), at))


def test_nobody_has_the_cells_of_a_trade_while_it_is_written_down() -> None:
    async def story() -> None:
        market = Market()
        await market.offer()
        seen: list[dict[str, int]] = []
        market.api.before_write = lambda: seen.append(market.cells())
        await market.request()
        assert seen == [{"a": 1, "b": 2}]
        assert market.cells() == {"a": 1, "b": 3}

    asyncio.run(story())


def test_a_change_that_cannot_be_written_down_is_none() -> None:
    async def story() -> None:
        market = Market()
        await market.offer()
        before, events = market.api.there, market.gang_scheduler.seq
        market.api.mood = "refuses"
        with pytest.raises(ApiError, match="not permitted"):
            await market.request()
        assert market.cells() == {"a": 2, "b": 2}
        assert not market.gang_scheduler.trading.market.board.requests
        assert (market.api.there, market.gang_scheduler.seq) == (before, events)
        market.api.mood = ""
        await market.request()
        assert market.cells() == {"a": 1, "b": 3}

    asyncio.run(story())


def test_a_write_whose_answer_is_lost_is_read_again() -> None:
    async def story() -> None:
        market = Market()
        await market.offer()
        market.api.mood = "deaf"
        await market.request()
        assert market.cells() == {"a": 1, "b": 3}

    asyncio.run(story())


def test_until_it_is_known_whether_a_trade_was_written_down_its_cells_are_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)

    async def story() -> None:
        market = Market()
        await market.offer()
        market.api.mood = "down"
        waiting = asyncio.ensure_future(market.request())
        for _ in range(20):
            await asyncio.sleep(0)
        assert market.cells() == {"a": 1, "b": 2}
        assert not waiting.done()
        market.api.mood = ""  # the write has not arrived
        with pytest.raises(ApiError, match="nobody there"):
            await waiting
        assert market.cells() == {"a": 2, "b": 2}

    asyncio.run(story())


def test_cells_are_back_with_their_owner_at_the_end_even_if_that_cannot_be_written_down() -> None:
    async def story() -> None:
        market = Market()
        await market.offer(10.0)
        await market.request(10.0)
        market.api.mood = "refuses"
        market.world.now += 10.0
        assert market.stored.tick(market.gang_scheduler), "it is still to be written down"
        assert market.cells() == {"a": 2, "b": 2}
        # who reads the record finds it by the clock
        again = Market(market.api)
        again.world.now = market.world.now
        await again.stored.load()
        trading = again.stored.restored(again.world.spec)
        trading.expire(again.world.now)
        assert trading.in_force() == again.world.spec

    asyncio.run(story())


def test_another_leader_goes_on_with_what_is_written() -> None:
    async def story() -> None:
        market = Market()
        await market.offer()
        await market.request()
        again = Market(market.api)
        await again.stored.load()
        trading = again.stored.restored(again.world.spec)
        assert trading.in_force().virtual_clusters == market.gang_scheduler.cluster.spec.virtual_clusters
        # and the one before it cannot write any more once that one has
        again.world.gang_scheduler = GangScheduler(
            again.gang_scheduler.cluster, again.gang_scheduler.policies, trading=trading
        )
        await again.request(7.0)
        written = market.api.there
        with pytest.raises(RecordConflictError, match="was written by somebody else; this process ends"):
            await market.request(9.0)
        assert market.api.there == written, "it is not overwritten"

    asyncio.run(story())


def test_a_record_that_cannot_be_read_stops_trades_and_nothing_else() -> None:
    async def story() -> None:
        market = Market()
        market.api.there = {"metadata": {"resourceVersion": "0"}, "data": {"trades.json": '{"offers": 3}'}}
        await market.stored.load()
        trading = market.stored.restored(market.world.spec)
        assert trading.in_force() == market.world.spec
        with pytest.raises(UnavailableError, match=r"configmap/hived/trades: trades: not what hived has written"):
            await market.offer()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("change", "left_out"),
    [
        ({"giver": "nobody"}, "virtual cluster nobody is no more"),
        ({"cells": ["RACK", 1]}, "no such cell type"),
        ({"cells": ["NODE", 5]}, "a has 2 x NODE in that time, and would give 5"),
    ],
)
def test_a_trade_that_somebody_has_changed_by_hand_is_left_out_if_it_cannot_be(
    change: dict[str, Any], left_out: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        market = Market()
        await market.offer()
        await market.request()
        assert market.api.there is not None
        record = json.loads(market.api.there["data"]["trades.json"])
        record["trades"][0] |= change
        market.api.there["data"]["trades.json"] = json.dumps(record)
        again = Market(market.api)
        await again.stored.load()
        assert again.stored.restored(again.world.spec).in_force() == again.world.spec
        assert left_out in caplog.text

    asyncio.run(story())


def test_without_a_place_for_them_there_are_no_trades() -> None:
    async def story() -> None:
        market = Market()
        market.stored.record = None
        with pytest.raises(ForbiddenError, match="--exchange-configmap NS/NAME"):
            await market.offer()

    asyncio.run(story())


def test_cells_in_use_are_not_offered() -> None:
    async def story() -> None:
        market = Market()
        market.world = World()
        market.world.runs("speech", 4)
        with pytest.raises(
            ConflictError, match=r"speech has 1 x RACK\.NODE, 1 of them in use or bad, and would give 1"
        ):
            await market.change(lambda trading, at: trading.offer(Offer("speech", Cells("RACK", 2), at, at + 9), at))

    asyncio.run(story())


def test_a_leader_begins_without_the_trades_that_are_over() -> None:
    """Else the owner's jobs would be taken over as opportunistic, and make room for the taker's."""

    async def story() -> None:
        market = Market()
        await market.offer(10.0)
        await market.request(10.0)
        again = Market(market.api)
        again.world.now = market.world.now + 10.0
        await again.stored.load()
        assert again.stored.restored(again.world.spec).in_force() == again.world.spec

    asyncio.run(story())


def test_a_trade_that_ends_while_another_change_fails_to_be_written_is_over() -> None:
    async def story() -> None:
        market = Market()
        await market.offer(10.0)
        await market.request(10.0)

        def later() -> None:
            market.world.now += 10.0
            market.stored.tick(market.gang_scheduler)

        market.api.before_write, market.api.mood = later, "refuses"
        with pytest.raises(ApiError, match="not permitted"):
            await market.offer()
        assert market.cells() == {"a": 2, "b": 2}

    asyncio.run(story())


def test_a_window_that_opens_leads_to_a_match() -> None:
    async def story() -> None:
        market = Market()
        await market.request()
        start = market.world.now + 10.0
        await market.change(lambda trading, at: trading.offer(Offer("a", NODE, start, start + 2 * HOUR), at))
        assert not market.stored.tick(market.gang_scheduler)
        market.world.now += 10.0
        assert market.stored.tick(market.gang_scheduler)
        await market.change(LiveTrading.advance)
        assert market.cells() == {"a": 1, "b": 3}

    asyncio.run(story())


def test_whatever_else_the_config_map_has_stays() -> None:
    async def story() -> None:
        market = Market()
        market.api.there = {"metadata": {"labels": {"app": "x"}, "resourceVersion": "0"}, "data": {"notes": "mine"}}
        await market.stored.load()
        await market.offer()
        assert market.api.there["metadata"]["labels"] == {"app": "x"}
        assert market.api.there["data"]["notes"] == "mine"
        assert "trades.json" in market.api.there["data"]

    asyncio.run(story())


def test_while_a_write_is_being_found_out_about_others_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)

    async def story() -> None:
        market = Market()
        await market.offer()
        market.api.mood = "down"
        waiting = asyncio.ensure_future(market.request())
        for _ in range(20):
            await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="is not known yet"):
            await market.offer()
        market.api.mood = ""
        with pytest.raises(ApiError):
            await waiting

    asyncio.run(story())
