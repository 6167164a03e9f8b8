"""Whatever happens, in whatever order: the machine's books are right after every fact."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

import pytest

from hived import ConflictError, InfeasibleError, RequestError
from hived.engines.local.devices import spec_for
from hived.engines.local.explaining import explain, reasons, shortly
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.model import JobState
from hived.errors import NotFoundError
from hived.exchange import Cells, Offer, Request
from hived.spec.compiled import EXACT, WORK_CONSERVING, ClusterSpec

from .driver import FAILED, STOPPED, WELL, Driver, is_in, job, small_spec

VCS = (("vision", 4), ("speech", 2), ("research", 2))
#: devices, and who reserved how many
OTHER_SHARES = (
    (8, VCS),
    (8, (("vision", 2), ("speech", 4), ("research", 2))),
    (8, (("vision", 8),)),
    (8, (("vision", 4), ("speech", 1))),
    (4, (("vision", 2), ("speech", 2))),
    (5, VCS[:1]),
)


def one_fact(engine: Driver, choose: random.Random, exact: bool) -> None:
    """Something happens. ``exact``: tenants may be of exact safety."""
    jobs = [found for found in engine.jobs.values() if not found.state.ended]
    running = [found for found in jobs if found.state is JobState.RUNNING]
    stopping = [found for found in jobs if found.state is JobState.STOPPING]
    devices = list(engine.job_scheduler.cluster.spec.devices())
    match choose.randrange(19):
        case 0 | 1 | 2 | 3:
            vc, size = choose.choice(VCS)
            tasks = choose.choice((1, 1, 1, 2))
            gpus = choose.randint(1, max(1, size // tasks))
            priority = choose.choice((-1, -1, 0, 0, 0, 3, 7))
            engine.submit(
                job(
                    vc,
                    gpus,
                    tasks=tasks,
                    priority=priority,
                    early=priority >= 0 and choose.random() < 0.4,
                    retries=choose.choice((0, 2)),
                    lazy_preemption=choose.random() < 0.3,
                )
            )
        case 4 | 5 | 6 if running:
            engine.end(choose.choice(running))
        case 7 if running:
            found = choose.choice(running)
            engine.end(found, FAILED, rank=choose.randrange(found.spec.tasks))
        case 8 | 9 | 10 if stopping:
            found = choose.choice(stopping)
            ending = choose.choice((STOPPED, STOPPED, STOPPED, WELL, FAILED))
            engine.end(found, ending, rank=choose.choice((None, *range(found.spec.tasks))))
        case 11 if jobs:
            found = choose.choice(jobs)
            try:
                engine.do(lambda job_scheduler: job_scheduler.cancel(found, engine.now))
            except ConflictError:
                assert found.stopping_for == "cancelled"
        case 12:
            chosen = choose.sample(devices, choose.randint(1, len(devices)))
            undo, now = choose.random() < 0.6, choose.random() < 0.3
            engine.do(lambda job_scheduler: job_scheduler.drain(chosen, undo, now, "some devices", engine.now))
        case 13:
            chosen = choose.sample(devices, choose.randint(1, 2))
            why = choose.choice((None, None, "NVML: lost"))
            engine.do(lambda job_scheduler: job_scheduler.set_health(chosen, why, engine.now))
        case 14:
            engine.restart(choose.choice((None, engine_spec(choose, exact))))
        case 15:
            try:
                engine.do(lambda job_scheduler: job_scheduler.reconfigure(engine_spec(choose, exact), engine.now))
            except InfeasibleError:
                pytest.fail("these shares fit")
            engine.spec = engine.job_scheduler.trading.base
        case 16 | 17 | 18:
            trade(engine, choose)
        case _:
            engine.wait(choose.uniform(0, 8))


def trade(engine: Driver, choose: random.Random) -> None:
    """A tenant posts or withdraws something at the market. No job loses its guarantee when a trade begins."""
    trading, now = engine.job_scheduler.trading, engine.now
    spec = trading.base
    of = {vc.name: vc.cells for vc in spec.virtual_clusters if vc.cells}
    giver = choose.choice(sorted(of))
    taker = choose.choice([vc for vc, _ in VCS])
    some = choose.choice(of[giver])
    start, length = now + choose.choice((0.0, 0.0, 3.0)), choose.choice((4.0, 20.0))
    cells, back = Cells(some.chain, some.level), None
    if choose.random() < 0.3 and taker in of:
        other = choose.choice(of[taker])
        back = Cells(other.chain, other.level, choose.choice((1, 2)))
    posts: list[Offer | Request] = [
        Offer(giver, cells, start, start + length, back),
        Request(taker, cells, start, start + length, back),
    ]
    before = {found.name for found in engine.jobs.values() if found.guaranteed and found.state.holds}
    known = len(engine.events)

    def act(job_scheduler: JobScheduler) -> None:
        with contextlib.suppress(ConflictError, RequestError, NotFoundError):
            for post in posts if choose.random() < 0.8 else posts[:1]:
                if isinstance(post, Offer):
                    trading.offer(post, now)
                else:
                    trading.request(post, now)
            if choose.random() < 0.1:
                trading.withdraw(choose.randint(1, 20), giver, now)
        job_scheduler.trade(now)

    engine.do(act)
    lost = [event for event in engine.events[known:] if event.kind == "downgraded"]
    over = [event for event in engine.events[known:] if event.kind == "trade_over"]
    assert over or not [event for event in lost if engine.jobs[event.job].name in before]


def engine_spec(choose: random.Random, exact: bool) -> ClusterSpec:
    devices, shares = choose.choice(OTHER_SHARES)
    return (
        some_exact(spec_for("node", devices, "GPU", shares), choose)
        if exact
        else spec_for("node", devices, "GPU", shares)
    )


def some_exact(spec: ClusterSpec, choose: random.Random) -> ClusterSpec:
    """Most tenants are of exact safety."""
    vcs = [replace(vc, safety=EXACT if choose.random() < 0.8 else WORK_CONSERVING) for vc in spec.virtual_clusters]
    return replace(spec, virtual_clusters=tuple(vcs))


@pytest.mark.parametrize("seed", range(120))
def test_after_any_facts_the_invariants_hold(seed: int) -> None:
    choose = random.Random(seed)
    exact = seed % 2 == 1
    engine = Driver(some_exact(small_spec(), choose) if exact else None)
    for _ in range(60):
        one_fact(engine, choose, exact)
        for found in engine.jobs.values():
            text = explain(engine.job_scheduler, found, engine.now)
            assert found.name in text
            if found.state in (JobState.QUEUED, JobState.RESERVED, JobState.BACKOFF):
                assert shortly(engine.job_scheduler, found), f"{found.name} waits, and nobody can say why"
            if found.state is JobState.RESERVED:
                assert reasons(engine.job_scheduler, found)
    engine.check_record()
    # everything given back, whoever waited gets a turn: nothing hangs
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(spec_for("node", 8, "GPU", VCS), engine.now))
    for place in engine.job_scheduler.cluster.spec.devices():
        engine.do(lambda job_scheduler, place=place: job_scheduler.set_health([place], None, engine.now))  # type: ignore[misc]
    everywhere = list(engine.job_scheduler.cluster.spec.devices())
    engine.do(lambda job_scheduler: job_scheduler.drain(everywhere, True, False, "the machine", engine.now))
    for _ in range(20 * len(engine.jobs) + 20):
        alive = [found for found in engine.jobs.values() if found.state.holds]
        for found in alive:
            engine.end(found)
        engine.wait(400)
    left = [found for found in engine.jobs.values() if not found.state.ended]
    assert not left, [(found.name, found.state, explain(engine.job_scheduler, found, engine.now)) for found in left]
    engine.check_record()


def test_a_job_of_a_vc_that_is_no_more_waits_and_says_so() -> None:
    engine = Driver()
    engine.submit(job("speech", 2))
    late = engine.submit(job("speech", 2))
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(spec_for("node", 8, "GPU", (("vision", 8),)), engine.now))
    assert is_in(late, JobState.QUEUED)
    assert "speech" in explain(engine.job_scheduler, late, engine.now)
    with pytest.raises(RequestError):
        engine.job_scheduler.cluster.schedule(late.entry.request)
