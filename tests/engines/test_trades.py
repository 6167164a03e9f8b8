"""Trades of cells on one machine: by the clock, through kills, other specs and stores that fail."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hived import Cluster
from hived.engines.local.engine import Engine, displaced_by
from hived.engines.local.explaining import event_text, explain, reasons
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.model import Job, JobState
from hived.engines.local.store import Store
from hived.engines.trading import LiveTrading
from hived.errors import ConflictError, RequestError, StorageError
from hived.exchange import Cells, Offer, Request, SecondPrice
from hived.spec import spec_from_dict
from hived.spec.compiled import EXACT, ClusterSpec, VirtualCellsSpec

from .driver import Driver, is_in, job
from .living import Lives, ended, other_spec, printed, shell

#: two pairs each, of eight devices
PAIRS = other_spec(("vision", 2), ("speech", 2))
STAYS = "echo here; sleep 1000"


def four_pairs() -> ClusterSpec:
    """Vision has a pair twice, speech too."""
    vcs = [replace(vc, cells=(replace(vc.cells[0], number=2),)) for vc in PAIRS.virtual_clusters]
    return replace(PAIRS, virtual_clusters=tuple(vcs))


SPEC = four_pairs()
PAIR = Cells(SPEC.chains[0].name, SPEC.virtual_clusters[0].cells[0].level)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "state")
    made.spec = SPEC
    yield made
    made.end()


def give(engine: Driver | Engine, seconds: float, start: float = 0.0) -> None:
    """Vision gives speech a pair for so long."""
    if isinstance(engine, Engine):
        end = engine.clock() + start + seconds
        engine.trade(lambda trading, at: trading.offer(Offer("vision", PAIR, at + start, end), at))
        engine.trade(lambda trading, at: trading.request(Request("speech", PAIR, at + start, end), at))
        return
    at = engine.now + start

    def act(job_scheduler: JobScheduler) -> None:
        job_scheduler.trading.offer(Offer("vision", PAIR, at, at + seconds), engine.now)
        job_scheduler.trading.request(Request("speech", PAIR, at, at + seconds), engine.now)
        job_scheduler.trade(engine.now)

    engine.do(act)


def told(engine: Driver) -> list[str]:
    """What the event log says of the market."""
    return [event_text(event) for event in engine.events if event.kind.startswith(("trade", "post", "offer_"))]


def test_cells_are_guaranteed_to_the_taker_and_come_back_whatever_runs_on_them() -> None:
    engine = Driver(SPEC)
    give(engine, 60.0)
    running = [engine.submit(job("speech", 2)) for _ in range(3)]
    assert all(found.guaranteed for found in running)
    own = engine.submit(job("vision", 2))
    waits = engine.submit(job("vision", 2))
    assert (own.guaranteed, waits.state) == (True, JobState.QUEUED)
    assert "VC vision has given 1 x NODE.SOCKET.PAIR to VC speech" in explain(engine.job_scheduler, waits, engine.now)
    assert [reason.kind.value for reason in reasons(engine.job_scheduler, waits)] == ["vc exhausted", "cells given"]
    assert "to VC speech until" in explain(engine.job_scheduler, running[0], engine.now)
    engine.wait(61.0)
    assert sorted(found.guaranteed for found in running) == [False, True, True]
    (lost,) = [found for found in running if not found.guaranteed]
    assert (lost.state, waits.state) == (JobState.STOPPING, JobState.RESERVED), "it has to make room, as any loan"
    engine.gone(lost)
    assert waits.guaranteed
    assert told(engine) == [
        "trade 1: vision gives speech 1 x NODE.SOCKET.PAIR for 1 m, 0.0 GPU hours",
        "trade 1 begins: 1 x NODE.SOCKET.PAIR of vision are speech's",
        "trade 1 is over: 1 x NODE.SOCKET.PAIR are vision's again",
    ]


def test_cells_in_use_are_not_given() -> None:
    engine = Driver(SPEC)
    for _ in range(2):
        engine.submit(job("vision", 2))
    with pytest.raises(ConflictError, match=r"vision has 2 x .*PAIR, 2 of them in use or bad, and would give 1"):
        give(engine, 60.0)
    assert not engine.job_scheduler.trading.market.board.posts()


def test_a_trade_for_later_is_called_off_if_its_cells_are_in_use_then_and_paid_back() -> None:
    engine = Driver(SPEC)
    give(engine, 3600.0, start=10.0)
    assert engine.job_scheduler.trading.market.surplus == {"vision": 2.0, "speech": -2.0}
    running = [engine.submit(job("vision", 2)) for _ in range(2)]
    engine.wait(11.0)
    assert all(found.guaranteed for found in running)
    assert engine.job_scheduler.trading.market.surplus == {"vision": 0.0, "speech": 0.0}
    assert told(engine)[-1] == (
        "trade 1 is called off, and paid back: "
        "vision has 2 x NODE.SOCKET.PAIR, 2 of them in use or bad, and would give 1"
    )


def test_broken_cells_are_not_given() -> None:
    """Who takes them could not use them."""
    engine = Driver(SPEC)
    bad = [("node", number) for number in range(6)]
    engine.do(lambda job_scheduler: job_scheduler.set_health(bad, "NVML: lost", engine.now))
    with pytest.raises(ConflictError, match="1 of them in use or bad, and would give 2"):
        engine.do(
            lambda job_scheduler: job_scheduler.trading.offer(
                Offer("vision", PAIR._replace(number=2), engine.now, engine.now + 60), engine.now
            )
        )


def test_a_trade_goes_on_under_a_new_spec_if_it_can_and_ends_with_a_reason_if_not() -> None:
    engine = Driver(SPEC)
    give(engine, 3600.0)
    running = [engine.submit(job("speech", 2)) for _ in range(3)]
    vision, speech = SPEC.virtual_clusters
    more = replace(SPEC, virtual_clusters=(vision, replace(speech, opportunistic_weight=3.0)))
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(more, engine.now))
    assert all(found.guaranteed for found in running)
    less = replace(SPEC, virtual_clusters=(replace(vision, cells=()), speech))
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(less, engine.now))
    assert sorted(found.guaranteed for found in running) == [False, True, True]
    assert told(engine)[-1] == "trade 1 ends: vision has 0 x NODE.SOCKET.PAIR in that time, and would give 1"


def test_a_tenant_that_becomes_exact_trades_no_more() -> None:
    engine = Driver(SPEC)
    give(engine, 3600.0)
    vision, speech = SPEC.virtual_clusters
    exact = replace(SPEC, virtual_clusters=(replace(vision, safety=EXACT), speech))
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(exact, engine.now))
    assert told(engine)[-1] == "trade 1 ends: vision is of exact safety, and so trades no cells"
    with pytest.raises(RequestError, match="vision is of exact safety"):
        give(engine, 60.0)


def test_a_board_is_not_filled_by_one_tenant() -> None:
    engine = Driver(SPEC)

    def ask() -> None:
        request = Request("speech", PAIR, engine.now, engine.now + 60)
        engine.do(lambda job_scheduler: job_scheduler.trading.request(request, engine.now))

    for _ in range(50):
        ask()
    with pytest.raises(ConflictError, match="speech has 50 offers and requests on the board"):
        ask()


# -- a real engine ----------------------------------------------------------------------------------------------------


def test_a_trade_survives_a_kill_and_ends_while_nobody_is_there(lives: Lives) -> None:
    async def first(engine: Engine) -> list[Job]:
        give(engine, 3.0)
        jobs = [engine.submit(shell("speech", STAYS, 2)) for _ in range(3)]
        for found in jobs:
            await printed(engine, found, "here")
        assert all(found.guaranteed for found in jobs)
        return jobs

    lives.live(first, killed=True)

    async def second(engine: Engine) -> None:
        jobs = list(engine.job_scheduler.jobs.values())
        assert all(found.guaranteed for found in jobs)
        while engine.trading.market.trades.records():
            await asyncio.sleep(0.05)  # its end comes by the clock
        assert sorted(found.guaranteed for found in jobs) == [False, True, True]
        give(engine, 0.3)

    lives.live(second, killed=True)

    async def third(engine: Engine) -> None:
        await asyncio.sleep(0.3)
        jobs = list(engine.job_scheduler.jobs.values())
        for found in jobs:
            engine.cancel(str(found.id))
        await ended(engine, *jobs)
        assert not engine.trading.market.trades.records()
        assert abs(sum(engine.trading.market.surplus.values())) < 1e-9
        engine.cluster.validate()

    lives.live(third)
    kinds = [event.kind for event in lives.events() if event.kind.startswith("trade")]
    assert kinds == ["trade_agreed", "trade_begun", "trade_over"] * 2


def test_a_start_with_another_spec_says_whom_it_displaces_with_trades_in_mind(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        give(engine, 3600.0)
        for _ in range(3):
            await printed(engine, engine.submit(shell("speech", STAYS, 2)), "here")

    lives.live(story, killed=True)
    vision, speech = SPEC.virtual_clusters
    without = replace(SPEC, virtual_clusters=(replace(vision, cells=()), speech))
    with closing(Store(lives.folder)) as store:
        assert displaced_by(SPEC, store, time.time()) == []
        assert len(displaced_by(without, store, time.time())) == 1
    lives.spec = without

    async def again(engine: Engine) -> list[bool]:
        return sorted(found.guaranteed for found in engine.job_scheduler.jobs.values())

    assert lives.live(again, killed=True) == [False, True, True]


def test_a_damaged_market_is_one_clear_error_and_stays_as_it_is(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        give(engine, 3600.0)

    lives.live(story)
    with closing(sqlite3.connect(lives.folder / "hived.db")) as db:
        db.execute("UPDATE meta SET value = ? WHERE name = 'trades'", (json.dumps({"offers": "many"}),))
        db.commit()
    with pytest.raises(StorageError, match=r"hived.db is damaged \(trades: not what hived has written"):
        lives.live(story)


def test_another_arbiter_goes_on_with_the_same_board(lives: Lives) -> None:
    async def offer(engine: Engine) -> None:
        engine.trade(lambda trading, at: trading.offer(Offer("vision", PAIR, at, at + 3600, price=2.0), at))

    lives.live(offer)

    async def auction(engine: Engine) -> None:
        def ask(bid: float) -> None:
            engine.trade(lambda trading, at: trading.request(Request("speech", PAIR, at, at + 60, bid=bid), at))

        ask(1.0)
        assert not engine.trading.market.trades.records(), "it bids less than the price"
        ask(3.0)
        (trade,) = engine.trading.market.trades.records()
        assert (trade.price, trade.taker) == (2.0, "speech")

    lives.live(auction, arbiter=SecondPrice())


def test_jobs_that_wait_start_on_what_their_tenant_has_got() -> None:
    engine = Driver(SPEC)
    waits = [engine.submit(job("speech", 2)) for _ in range(3)][2]
    assert is_in(waits, JobState.QUEUED)
    give(engine, 60.0)
    assert waits.guaranteed


def test_trades_of_others_leave_the_timeline_of_an_exact_tenant_as_it_is() -> None:
    three = other_spec(("vision", 2), ("speech", 2), ("research", 4))
    vision, speech, research = three.virtual_clusters
    engine = Driver(replace(three, virtual_clusters=(vision, speech, replace(research, safety=EXACT))))
    pair = Cells(three.chains[0].name, vision.cells[0].level)
    jobs = [engine.submit(job("research", 1)) for _ in range(3)]
    engine.end(jobs[0])  # a hole between the others
    scheduler = engine.job_scheduler.scheduler
    timeline = scheduler.timeline
    cells = [engine.job_scheduler.cluster.virtual_leaves(found.name).cells for found in jobs[1:]]
    end = engine.now + 60.0

    def act(job_scheduler: JobScheduler) -> None:
        job_scheduler.trading.offer(Offer("vision", pair, engine.now, end), engine.now)
        job_scheduler.trading.request(Request("speech", pair, engine.now, end), engine.now)
        job_scheduler.trade(engine.now)

    engine.do(act)
    taken = [engine.submit(job("speech", 2)) for _ in range(2)]
    assert all(found.guaranteed for found in taken)
    engine.wait(61.0)
    assert sorted(found.guaranteed for found in taken) == [False, True]
    assert scheduler.timeline is timeline
    assert [engine.job_scheduler.cluster.virtual_leaves(found.name).cells for found in jobs[1:]] == cells


def test_the_end_of_a_trade_takes_nothing_of_who_did_not_trade() -> None:
    """Of several levels: the taker's job of a high priority once got another level's cell, which was a third one's."""
    node = {"childCellType": "GPU", "childCellNumber": 2, "isNodeLevel": True}
    racks = [
        {"cellType": "RACK", "cellChildren": [{"cellAddress": f"{r}-{n}"} for n in range(2)]} for r in range(2)
    ]  # fmt: skip
    vcs = {"a": "RACK.NODE", "b": "RACK", "c": "RACK.NODE"}
    spec = spec_from_dict(
        {
            "physicalCluster": {
                "cellTypes": {"NODE": node, "RACK": {"childCellType": "NODE", "childCellNumber": 2}},
                "physicalCells": racks,
            },
            "virtualClusters": {
                vc: {"virtualCells": [{"cellType": cell_type, "cellNumber": 1}]} for vc, cell_type in vcs.items()
            },
        }
    )
    engine = Driver(spec)
    of_a, of_c = engine.submit(job("a", 2)), engine.submit(job("c", 2))
    rack = Cells("RACK", 3)

    def act(job_scheduler: JobScheduler) -> None:
        job_scheduler.trading.offer(Offer("b", rack, engine.now, engine.now + 20), engine.now)
        job_scheduler.trading.request(Request("c", rack, engine.now, engine.now + 6), engine.now)
        job_scheduler.trade(engine.now)

    engine.do(act)
    taken = engine.submit(job("c", 2, priority=3))
    assert taken.guaranteed
    records = engine.job_scheduler.cluster.records()
    engine.wait(7.0)
    assert of_a.guaranteed
    assert sorted(found.guaranteed for found in (of_c, taken)) == [False, True]
    # nor if the trade has ended while nobody was there
    again = Cluster(spec)
    again.recover(records)
    assert again.group(of_a.name).guaranteed
    assert sorted(again.group(found.name).guaranteed for found in (of_c, taken)) == [False, True]


def test_a_trade_that_missed_its_window_is_paid_back() -> None:
    engine = Driver(SPEC)
    give(engine, 3600.0, start=10.0)
    engine.now += 4000.0  # nobody was there
    engine.do(lambda job_scheduler: job_scheduler.trades_due(engine.now))
    assert told(engine)[-1] == "trade 1 is called off, and paid back: it could not begin in its time"
    assert engine.job_scheduler.trading.market.surplus == {"vision": 0.0, "speech": 0.0}


def test_a_trade_of_cells_that_are_no_more_is_paid_for_as_long_as_it_lasted() -> None:
    engine = Driver(SPEC)
    give(engine, 3600.0)
    record = engine.job_scheduler.trading.record()
    assert engine.job_scheduler.trading.market.surplus == {"vision": 2.0, "speech": -2.0}
    levels = tuple(replace(level, cell_type=f"NEW-{level.cell_type}") for level in SPEC.chains[0].levels)
    other = LiveTrading(replace(SPEC, chains=(replace(SPEC.chains[0], levels=levels),)))
    (left_out,) = other.restore(record, engine.now + 900.0)
    assert left_out.startswith("trade 1: ")
    assert other.market.surplus == {"vision": 0.5, "speech": -0.5}
    assert other.in_force() == other.base


def test_a_post_whose_window_ends_while_nobody_is_there_is_over_and_not_left_out() -> None:
    engine = Driver(SPEC)
    trading, end = engine.job_scheduler.trading, engine.now + 60.0
    engine.do(lambda _: trading.offer(Offer("vision", PAIR, engine.now, end), engine.now))
    again = LiveTrading(SPEC)
    assert again.restore(trading.record(), end + 60.0) == []
    again.expire(end + 60.0)
    assert [kind for kind, _ in again.take_notes()] == ["post_over"]
    assert not again.market.board.offers


def test_a_request_whose_own_cells_are_in_use_is_withdrawn_and_not_the_offer() -> None:
    engine = Driver(SPEC)
    gpu = Cells(PAIR.chain, PAIR.level - 1)
    trading, end = engine.job_scheduler.trading, engine.now + 3600.0
    spec = replace(SPEC, virtual_clusters=(SPEC.virtual_clusters[0], replace(
        SPEC.virtual_clusters[1], cells=(VirtualCellsSpec(*gpu.kind, 2),))))  # fmt: skip
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(spec, engine.now))
    gives = gpu._replace(number=2)
    engine.do(lambda _: trading.request(Request("speech", PAIR, engine.now, end, gives=gives), engine.now))
    engine.submit(job("speech", 1))
    engine.do(lambda _: trading.offer(Offer("vision", PAIR, engine.now, end, wants=gives), engine.now))
    engine.do(lambda job_scheduler: job_scheduler.trade(engine.now))
    assert [post.tenant for post in trading.market.board.posts().values()] == ["vision"]
    assert told(engine)[-1].endswith("speech has 2 x NODE.SOCKET.PAIR.GPU, 1 of them in use or bad, and would give 2")
