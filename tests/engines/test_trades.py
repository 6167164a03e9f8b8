"""Trades of cells on one machine: by the clock, through kills, other specs and stores that fail."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hived import Cluster
from hived.access import Person
from hived.engine.sentences import event_text
from hived.engine.trading import LiveTrading
from hived.engines.local.engine import Engine, displaced_by
from hived.engines.local.job_scheduler import JobScheduler
from hived.errors import ConflictError, NeverFitsError, StorageError
from hived.exchange import Cells, Offer, Request, SecondPrice
from hived.server.local_service import LocalService
from hived.server.schema import PlanRequest, Submission
from hived.spec import spec_from_dict
from hived.spec.compiled import EXACT, ClusterSpec, VirtualCellsSpec

from ..contract.specs import racks
from .driver import Driver, job, shares, states
from .living import STAYS, Clock, Lives, ended, noted, shell


def pairs_of_two() -> ClusterSpec:
    """Vision has a pair of devices twice, speech too."""
    pairs = shares(("vision", 2), ("speech", 2))
    vcs = [replace(vc, cells=(replace(vc.cells[0], number=2),)) for vc in pairs.virtual_clusters]
    return replace(pairs, virtual_clusters=tuple(vcs))


SPEC = pairs_of_two()
OWNER = Person("ann", owns=True)
VISION, SPEECH = SPEC.virtual_clusters
PAIR = Cells(SPEC.chains[0].name, VISION.cells[0].level)


@pytest.fixture
def engine() -> Driver:
    return Driver(SPEC)


def post(trading: LiveTrading, at: float, *posts: Offer | Request) -> None:
    for one in posts:
        if isinstance(one, Offer):
            trading.offer(one, at)
        else:
            trading.request(one, at)


def act(engine: Driver, *posts: Offer | Request) -> None:
    """Tenants post these, one after another."""

    def fact(job_scheduler: JobScheduler) -> None:
        post(job_scheduler.trading, engine.now, *posts)
        job_scheduler.trading.settle(engine.now)

    engine.do(fact)


def give(engine: Driver | Engine, seconds: float, start: float = 0.0) -> None:
    """Vision gives speech a pair for so long."""
    at = (engine.now if isinstance(engine, Driver) else engine.clock()) + start
    posts = Offer("vision", PAIR, at, at + seconds), Request("speech", PAIR, at, at + seconds)
    if isinstance(engine, Driver):
        act(engine, *posts)
    else:
        engine.trade(lambda trading, at: post(trading, at, *posts))


def told(engine: Driver) -> list[str]:
    """What the event log says of the market."""
    return [event_text(event) for event in engine.events if event.kind.startswith(("trade", "post", "offer_"))]


def surplus(engine: Driver) -> dict[str, float]:
    return dict(engine.job_scheduler.trading.market.surplus)


def test_a_job_that_is_too_large_for_a_while(tmp_path: Path) -> None:
    """It was refused as if it could never start; it waits until the cells that its VC has given away are back."""
    lives, clock = Lives(tmp_path / "state"), Clock()
    lives.folder.mkdir()
    lives.spec = SPEC

    async def story(engine: Engine) -> None:
        give(engine, 60.0)
        service = LocalService(engine)
        plan = service.plan(PlanRequest(job=Submission(vc="vision", command=("true",), gpus=2, tasks=2)), OWNER)
        assert plan.jobs[0].outcome == "waits"
        assert "has given" in plan.jobs[0].text
        whole = engine.submit(shell("vision", "exit 0", gpus=2, tasks=2))
        await asyncio.sleep(0)
        assert whole.state.waits
        with pytest.raises(NeverFitsError):
            engine.submit(shell("vision", "exit 0", gpus=2, tasks=3))
        clock.now += 61
        await ended(engine, whole)
        assert whole.exit_code == 0

    lives.live(story, clock=clock)


def test_given_cells_are_no_reason_of_every_job(engine: Driver) -> None:
    """A loan waits for no cells of its VC."""
    give(engine, 60.0)
    for vc in ("speech", "speech", "speech", "vision"):
        engine.submit(job(vc, 2))
    loan = engine.submit(job("vision", 1, priority=-1))
    assert states(loan) == "queued"
    assert "has given" not in engine.explain(loan)


# -- between jobs -----------------------------------------------------------------------------------------------------


def test_cells_are_guaranteed_to_the_taker_for_a_while(engine: Driver) -> None:
    """They come back whatever runs on them."""
    running = [engine.submit(job("speech", 2)) for _ in range(3)]
    assert states(*running) == "running running queued"
    give(engine, 60.0)
    assert all(found.guaranteed for found in running), "what waits starts on it"
    own, waits = engine.submit(job("vision", 2)), engine.submit(job("vision", 2))
    assert (own.guaranteed, states(waits)) == (True, "queued")
    assert "VC vision has given 1 x NODE.SOCKET.PAIR to VC speech" in engine.explain(waits)
    assert [reason.kind.value for reason in engine.reasons(waits)] == ["vc exhausted", "cells given"]
    assert "to VC speech until" in engine.explain(running[0])
    engine.wait(61.0)
    assert sorted(found.guaranteed for found in running) == [False, True, True]
    (lost,) = [found for found in running if not found.guaranteed]
    assert states(lost, waits) == "stopping reserved", "it has to make room, as any loan"
    engine.gone(lost)
    assert waits.guaranteed
    assert told(engine) == [
        "trade 1: vision gives speech 1 x NODE.SOCKET.PAIR for 1 m, 0.0 GPU hours",
        "trade 1 begins: 1 x NODE.SOCKET.PAIR of vision are speech's",
        "trade 1 is over: 1 x NODE.SOCKET.PAIR are vision's again",
    ]


def test_job_that_a_trade_has_made_a_loan_is_in_line(engine: Driver) -> None:
    """Though it may not start early: it is guaranteed again before what came after it starts."""
    give(engine, 60.0)
    running = [engine.submit(job("speech", 2)) for _ in range(3)]
    engine.wait(61.0)
    (lost,) = [found for found in running if not found.guaranteed]
    later = engine.submit(job("speech", 1))
    assert (states(lost, later), engine.kinds(lost)[-1]) == ("running queued", "downgraded")
    assert "it runs on a loan until its turn in speech; it is next in line" in engine.explain(lost)
    assert f"1 job of its VC is ahead of it in line: {lost.name}" in engine.explain(later)
    engine.end(next(found for found in running if found.guaranteed))
    assert (states(lost, later), lost.guaranteed) == ("running queued", True), "where it runs: it was first"
    assert lost.attempt == 1


def test_job_that_lacks_what_was_given_has_it_back(engine: Driver) -> None:
    """What a tenant reserved is promised to it; who has taken it is paid for the rest."""
    taker = engine.submit(job("speech", 2, tasks=3))
    give(engine, 3600.0)
    assert taker.guaranteed
    engine.wait(900.0)
    large = engine.submit(job("vision", 2, tasks=2))
    engine.wait(0.0)
    assert told(engine)[-1] == f"trade 1 ends: {large.name} of vision would not fit without them"
    assert (states(taker, large), surplus(engine)) == ("stopping reserved", {"vision": 0.5, "speech": -0.5})
    engine.gone(taker)
    assert large.guaranteed
    engine.end(large)
    engine.submit(job("vision", 2, tasks=3))
    assert engine.job_scheduler.trading.next_change == float("inf"), "what no trade could hold recalls none"


def test_cells_in_use_or_broken_are_not_given(engine: Driver) -> None:
    """Who takes broken ones could not use them."""
    jobs = [engine.submit(job("vision", 2)) for _ in range(2)]
    with pytest.raises(ConflictError, match=r"vision has 2 x .*PAIR of its own, 2 in use or bad, and would give 1"):
        give(engine, 60.0)
    assert not engine.job_scheduler.trading.market.board.posts()
    for found in jobs:
        engine.end(found)
    engine.set_health([("node", number) for number in range(6)])
    with pytest.raises(ConflictError, match="of its own, 1 in use or bad, and would give 2"):
        act(engine, Offer("vision", PAIR._replace(number=2), engine.now, engine.now + 60))


def test_trade_for_later_is_called_off(engine: Driver) -> None:
    """And paid back."""
    give(engine, 3600.0, start=10.0)
    assert surplus(engine) == {"vision": 2.0, "speech": -2.0}
    running = [engine.submit(job("vision", 2)) for _ in range(2)]
    engine.wait(11.0)
    assert all(found.guaranteed for found in running)
    assert surplus(engine) == {"vision": 0.0, "speech": 0.0}
    assert told(engine)[-1] == (
        "trade 1 is called off, and paid back: "
        "vision has 2 x NODE.SOCKET.PAIR of its own, 2 in use or bad, and would give 1"
    )


def test_trade_that_missed_its_window_is_paid_back(engine: Driver) -> None:
    give(engine, 3600.0, start=10.0)
    engine.now += 4000.0  # no engine ran
    engine.do(lambda job_scheduler: job_scheduler.trading.due(engine.now))
    assert told(engine)[-1] == "trade 1 is called off, and paid back: it could not begin in its time"
    assert surplus(engine) == {"vision": 0.0, "speech": 0.0}


def test_unlike_cells_are_swapped(engine: Driver) -> None:
    """A post that has found nobody is withdrawn."""
    gpus = Cells(PAIR.chain, PAIR.level - 1, 2)
    engine.reconfigure(replace(SPEC, virtual_clusters=(VISION, replace(SPEECH, cells=(VirtualCellsSpec(*gpus),)))))
    window = engine.now, engine.now + 3600.0
    act(engine, Offer("vision", PAIR, *window, wants=gpus), Request("speech", PAIR, *window, gives=gpus))
    act(engine, Offer("vision", PAIR, *window))
    engine.do(lambda job_scheduler: job_scheduler.trading.withdraw(3, "vision", engine.now))
    engine.do(lambda job_scheduler: job_scheduler.trading.settle(engine.now))
    assert [event_text(event) for event in engine.events[-6:]] == [
        "vision offers 1 x NODE.SOCKET.PAIR, for 2 x NODE.SOCKET.PAIR.GPU for 1 h (number 1)",
        "speech asks for 1 x NODE.SOCKET.PAIR, for 2 x NODE.SOCKET.PAIR.GPU for 1 h (number 2)",
        "trade 1: vision gives speech 1 x NODE.SOCKET.PAIR, for 2 x NODE.SOCKET.PAIR.GPU for 1 h, 0.0 GPU hours",
        "trade 1 begins: 1 x NODE.SOCKET.PAIR of vision are speech's, for 2 x NODE.SOCKET.PAIR.GPU",
        "vision offers 1 x NODE.SOCKET.PAIR for 1 h (number 3)",
        "vision's offer of 1 x NODE.SOCKET.PAIR is withdrawn (number 3)",
    ]


def test_board_is_not_filled_by_one_tenant(engine: Driver) -> None:
    request = Request("speech", PAIR, engine.now, engine.now + 60)
    act(engine, *[request] * 50)
    with pytest.raises(ConflictError, match="speech has 50 offers and requests on the board"):
        act(engine, request)


def test_request_with_cells_in_use_is_withdrawn(engine: Driver) -> None:
    """And not the offer."""
    gpu = Cells(PAIR.chain, PAIR.level - 1)
    gives = gpu._replace(number=2)
    single = replace(SPEECH, cells=(VirtualCellsSpec(*gpu.kind, 2),))
    engine.reconfigure(replace(SPEC, virtual_clusters=(VISION, single)))
    window = engine.now, engine.now + 3600.0
    act(engine, Request("speech", PAIR, *window, gives=gives))
    engine.submit(job("speech", 1))
    with pytest.raises(ConflictError, match="of its own, 1 in use or bad, and would give 2"):
        act(engine, Request("speech", PAIR, *window, gives=gives))
    act(engine, Offer("vision", PAIR, *window, wants=gives))
    assert [post.tenant for post in engine.job_scheduler.trading.market.board.posts().values()] == ["vision"]
    assert told(engine)[-1].endswith(
        "speech has 2 x NODE.SOCKET.PAIR.GPU of its own, 1 in use or bad, and would give 2"
    )


def test_end_of_a_trade_takes_nothing_of_a_third() -> None:
    """Of several levels: the taker's job of a high priority once got another level's cell, which was a third one's."""
    spec = spec_from_dict(racks({"a": {"RACK.NODE": 1}, "b": {"RACK": 1}, "c": {"RACK.NODE": 1}}))
    engine = Driver(spec)
    of_a, of_c = engine.submit(job("a", 4)), engine.submit(job("c", 4))
    rack = Cells("RACK", 4)
    act(engine, Offer("b", rack, engine.now, engine.now + 20), Request("c", rack, engine.now, engine.now + 6))
    taken = engine.submit(job("c", 4, priority=3))
    assert taken.guaranteed
    records = engine.job_scheduler.cluster.records()
    engine.wait(7.0)
    assert of_a.guaranteed
    assert sorted(found.guaranteed for found in (of_c, taken)) == [False, True]
    # nor if the trade has ended while no engine ran
    again = Cluster(spec)
    again.recover(records)
    assert again.group(of_a.name).guaranteed
    assert sorted(again.group(found.name).guaranteed for found in (of_c, taken)) == [False, True]


# -- other specs, and exact safety --------------------------------------------------------------------------------


def test_trade_under_a_new_spec(engine: Driver) -> None:
    """It goes on if it can, and ends with a reason if not."""
    give(engine, 3600.0)
    running = [engine.submit(job("speech", 2)) for _ in range(3)]
    engine.reconfigure(replace(SPEC, virtual_clusters=(VISION, replace(SPEECH, opportunistic_weight=3.0))))
    assert all(found.guaranteed for found in running)
    engine.reconfigure(replace(SPEC, virtual_clusters=(replace(VISION, cells=()), SPEECH)))
    assert sorted(found.guaranteed for found in running) == [False, True, True]
    assert told(engine)[-1] == "trade 1 ends: vision has 0 x NODE.SOCKET.PAIR in that time, and would give 1"


def test_exact_timeline_stays_under_others_trades() -> None:
    three = shares(("vision", 2), ("speech", 2), ("research", 4))
    vision, speech, research = three.virtual_clusters
    engine = Driver(replace(three, virtual_clusters=(vision, speech, replace(research, safety=EXACT))))
    pair = Cells(three.chains[0].name, vision.cells[0].level)
    jobs = [engine.submit(job("research", 1)) for _ in range(3)]
    engine.end(jobs[0])  # a hole between the others
    scheduler = engine.job_scheduler.scheduler
    timeline = scheduler.timeline
    cells = [engine.job_scheduler.cluster.virtual_leaves(found.name).cells for found in jobs[1:]]
    window = engine.now, engine.now + 60.0
    act(engine, Offer("vision", pair, *window), Request("speech", pair, *window))
    taken = [engine.submit(job("speech", 2)) for _ in range(2)]
    assert all(found.guaranteed for found in taken)
    engine.wait(61.0)
    assert sorted(found.guaranteed for found in taken) == [False, True]
    assert scheduler.timeline is timeline
    assert [engine.job_scheduler.cluster.virtual_leaves(found.name).cells for found in jobs[1:]] == cells


def test_trade_of_cells_that_are_no_more_is_left_out(engine: Driver) -> None:
    """It is paid for as long as it lasted."""
    give(engine, 3600.0)
    record = engine.job_scheduler.trading.record()
    assert surplus(engine) == {"vision": 2.0, "speech": -2.0}
    levels = tuple(replace(level, cell_type=f"NEW-{level.cell_type}") for level in SPEC.chains[0].levels)
    other = LiveTrading(replace(SPEC, chains=(replace(SPEC.chains[0], levels=levels),)))
    (left_out,) = other.restore(record, engine.now + 900.0)
    assert left_out.startswith("trade 1: ")
    assert other.market.surplus == {"vision": 0.5, "speech": -0.5}
    assert other.in_force() == other.base


def test_post_that_ends_while_no_engine_runs_is_over(engine: Driver) -> None:
    """And not left out."""
    end = engine.now + 60.0
    act(engine, Offer("vision", PAIR, engine.now, end), Request("speech", PAIR, end, end + 3600.0))
    again = LiveTrading(SPEC)
    assert again.restore(engine.job_scheduler.trading.record(), end + 60.0) == []
    again.expire(end + 60.0)
    before = len(engine.job_scheduler.recent)
    again.attach(engine.job_scheduler)
    again.tell(end + 60.0)
    assert [event.kind for event in engine.job_scheduler.recent][before:] == ["post_over"]
    assert (len(again.market.board.offers), len(again.market.board.requests)) == (0, 1)


# -- a real engine ----------------------------------------------------------------------------------------------------


def test_trade_survives_kills(lives: Lives) -> None:
    """Its end comes by the clock, also while no engine runs; and a start says whom it would displace."""
    lives.spec, clock = SPEC, Clock()

    async def first(engine: Engine) -> None:
        give(engine, 0.2)  # of a clock that stands still
        for _ in range(3):
            engine.submit(shell("speech", STAYS, 2))
        engine._advance()
        assert all(found.guaranteed for found in engine.job_scheduler.jobs.values())

    lives.live(first, killed=True, clock=clock)
    without = replace(SPEC, virtual_clusters=(replace(VISION, cells=()), SPEECH))
    with lives.store() as store:
        assert [len(displaced_by(spec, store, clock.now)) for spec in (SPEC, without)] == [0, 1]

    async def second(engine: Engine) -> None:
        jobs = list(engine.job_scheduler.jobs.values())
        assert all(found.guaranteed for found in jobs)
        clock.now += 1.0
        await noted(engine, "trade_over")
        assert not engine.trading.market.trades.records()
        assert sorted(found.guaranteed for found in jobs) == [False, True, True]
        give(engine, 3600.0)

    lives.live(second, killed=True, clock=clock)
    clock.now += 7200.0

    async def third(engine: Engine) -> None:
        jobs = list(engine.job_scheduler.jobs.values())
        for found in jobs:
            engine.cancel(str(found.id))
        await ended(engine, *jobs)
        assert not engine.trading.market.trades.records()
        assert abs(sum(engine.trading.market.surplus.values())) < 1e-9
        engine.cluster.validate()

    lives.live(third, clock=clock)
    kinds = [event.kind for event in lives.events() if event.kind.startswith("trade")]
    assert kinds == ["trade_agreed", "trade_begun", "trade_over"] * 2


def test_damaged_market_is_one_clear_error(lives: Lives) -> None:
    lives.spec = SPEC

    async def story(engine: Engine) -> None:
        give(engine, 3600.0)

    lives.live(story, clock=Clock())
    with closing(sqlite3.connect(lives.folder / "hived.db")) as db:
        db.execute("UPDATE meta SET value = ? WHERE name = 'trades'", (json.dumps({"offers": "many"}),))
        db.commit()
    with pytest.raises(StorageError, match=r"hived.db is damaged \(trades: not what hived has written"):
        lives.live(story)


def test_another_arbiter_goes_on_with_the_same_board(lives: Lives) -> None:
    lives.spec = SPEC

    async def offer(engine: Engine) -> None:
        engine.trade(lambda trading, at: trading.offer(Offer("vision", PAIR, at, at + 3600, price=2.0), at))

    async def auction(engine: Engine) -> None:
        def ask(bid: float) -> None:
            engine.trade(lambda trading, at: trading.request(Request("speech", PAIR, at, at + 60, bid=bid), at))

        ask(1.0)
        assert not engine.trading.market.trades.records(), "it bids less than the price"
        ask(3.0)
        (trade,) = engine.trading.market.trades.records()
        assert (trade.price, trade.taker) == (2.0, "speech")

    lives.live(offer)
    lives.live(auction, arbiter=SecondPrice())
