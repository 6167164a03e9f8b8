"""GPU seconds by user, virtual cluster and use: an independent sum over the events says the same."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from hived.cluster.cluster import Cluster
from hived.engine.holdings import Holdings, Use
from hived.engine.job import Event
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.model import Job
from hived.engines.local.store import Store
from hived.policies import YarnCS

from .driver import STOPPED, WELL, Driver, job, shares, small_spec
from .test_store import FIFTH_VERSION, FIRST_VERSION, SEVENTH_VERSION, SIXTH_VERSION, execute

Sums = dict[tuple[str, str, str], float]
RELEASED = ("requeued", "retrying", "succeeded", "failed", "cancelled", "ended")


def summed(events: list[Event], start: float, end: float) -> Sums:
    """The GPU seconds of jobs between two times, of their events as they were stored, by nothing of the engine."""
    found: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    whose: dict[int, tuple[str, str]] = {}
    held: dict[int, tuple[int, bool, bool, bool, float]] = {}  #: GPUs, guaranteed, a guest, suspended, since

    def until(number: int, at: float) -> None:
        if number in held:
            gpus, guaranteed, guest, suspended, since = held[number]
            use = "suspended" if suspended else "guest" if guest else "guaranteed" if guaranteed else "opportunistic"
            seconds = min(at, end) - max(since, start)
            if seconds > 0:
                found[*whose[number], use] += gpus * seconds

    for event in events:
        data, number = event.data, event.job
        if event.kind == "submitted":
            whose[number] = data["user"], data["vc"]
        elif number is not None:
            until(number, event.at)
            gpus, guaranteed, guest, suspended, _ = held.get(number, (0, False, False, False, 0.0))
            if "placement" in data and event.kind != "reserved":
                gpus = sum(len(devices) for _, devices in data["placement"]["pods"])
                guaranteed = bool(data["placement"]["levels"])
            if event.kind == "shared":
                guest = data["guest"]
            if event.kind in ("suspended", "resumed", "stopping"):
                suspended = event.kind == "suspended"
            held.pop(number, None)
            if gpus and event.kind not in RELEASED:
                held[number] = gpus, guaranteed, guest, suspended, event.at
    for number in held:
        until(number, end)
    return {key: seconds for key, seconds in found.items() if seconds > 0}


def kept(store: Store, start: float, end: float, now: float) -> Sums:
    """What the store says of jobs."""
    accounts = store.gpu_seconds(start, end, now).of
    return {(a.user, a.vc, a.use.value): a.gpu_s for a in accounts if a.use is not Use.RESERVED and a.gpu_s > 0}


def same(ours: Sums, theirs: Sums) -> None:
    assert ours.keys() == theirs.keys()
    for key, seconds in ours.items():
        assert seconds == pytest.approx(theirs[key], abs=0.5), key


class Machine:
    """A job scheduler and its store, which lives through kills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1e9
        self.open()

    def open(self) -> None:
        self.store = Store(self.folder)
        cluster = Cluster(small_spec())
        self.scheduler = JobScheduler(cluster, YarnCS(), lambda: 29_500, self.store.last_event())
        self.scheduler.holdings.restore(self.store.open_holdings(), self.now)
        self.scheduler.recover(self.store.active(), self.now)
        self.turn()

    def turn(self) -> None:
        self.scheduler.dispatch(self.now)
        turn = self.scheduler.turn()
        self.store.keep(turn.events, turn.jobs, virtual=turn.virtual, holdings=turn.holdings)

    def kill(self) -> None:
        """What is not stored is lost."""
        self.store.close()
        self.open()

    def downgrade(self) -> None:
        """The version before this one has had the folder."""
        self.store.close()
        with closing(sqlite3.connect(self.folder / "hived.db", isolation_level=None)) as db:
            db.execute("DROP TABLE holdings")
            db.execute("PRAGMA user_version = 8")
        self.open()


def life(machine: Machine, draw: random.Random, jobs: int, users: int) -> None:
    """So many jobs come, run, fail, are cancelled and preempted; the engine is killed, and once comes from before."""
    number = 0
    while number < jobs or machine.scheduler.jobs:
        machine.now += draw.expovariate(1.0)
        for _ in range(draw.randint(1, 20)):
            if number < jobs and (len(machine.scheduler.jobs) < 30 or draw.random() < 0.3):
                number += 1
                user, vc = f"user{draw.randrange(users)}", draw.choice(("vision", "speech", "research"))
                more = {"priority": -1} if draw.random() < 0.4 else {"early": draw.random() < 0.3}
                spec = job(vc, draw.choice((1, 1, 2)), user=user, retries=1, backoff_s=1.0, **more)
                spec = spec.model_copy(update={"sequence": number, "submission": f"{number:x}"})
                machine.scheduler.submit(number, spec, machine.now)
            elif machine.scheduler.jobs:
                act(machine, draw.choice(list(machine.scheduler.jobs.values())), draw)
        machine.turn()
        if draw.random() < 20 / jobs:
            machine.kill()
        if number == jobs // 2:
            machine.downgrade()


def act(machine: Machine, job: Job, draw: random.Random) -> None:
    scheduler, at = machine.scheduler, machine.now
    if job.state.holds and draw.random() < 0.8:
        how = STOPPED if job.stopping_for else {**WELL, "code": 1}
        ending = draw.choice((WELL, WELL, how))
        scheduler.task_ended(job.id, job.attempt, 0, ending, at)
    elif job.retry_at is not None and job.state.aside:
        machine.now = max(at, job.retry_at)
        scheduler.due(job.id, machine.now)
    elif draw.random() < 0.05 and job.stopping_for != "cancelled":
        scheduler.cancel(job, at)


@pytest.mark.parametrize("jobs", [400])  # with 10,000 it takes a minute, and says the same
def test_accounts_are_the_sum_of_events(tmp_path: Path, jobs: int) -> None:
    machine = Machine(tmp_path / "state")
    began = machine.now
    life(machine, random.Random(7), jobs, 50)
    events = machine.store.events(0, 10**7, None)
    assert {event.kind for event in events} >= {
        "requeued",
        "retrying",
        "cancelled",
        "stopping",
        "recovered",
        "succeeded",
    }
    for start, end in [(began, machine.now), (began + 30, began + 60), (0.0, 1e11), (machine.now, 1e11)]:
        same(kept(machine.store, start, end, machine.now), summed(events, start, min(end, machine.now)))
    (whole,) = {a.gpu_s for a in machine.store.gpu_seconds(0, 1e11, machine.now).of if a.vc == "vision" and not a.user}
    assert 0 < whole <= 4 * (machine.now - began)
    counted = machine.scheduler.holdings.gpu_seconds(machine.now)
    assert set(counted) >= {(vc, Use.RESERVED) for vc in ("vision", "speech", "research")}
    machine.store.close()


@pytest.mark.parametrize("version", [FIRST_VERSION, FIFTH_VERSION, SIXTH_VERSION, SEVENTH_VERSION])
def test_folders_of_before_have_all_of_it(tmp_path: Path, version: str) -> None:
    folder = tmp_path / "state"
    execute(folder, version)
    with closing(Store(folder)) as store:
        events, now = store.events(0, 10**6, None), 2e9
        found = kept(store, 0.0, now, now)
        assert found
        same(found, summed(events, 0.0, now))
        running = {str(job.id) for job in store.active() if job.holds}
        assert {holding.key for holding in store.open_holdings()} == running


def test_kinds_of_use() -> None:
    """A loan that is promoted, a guaranteed job that a new spec makes opportunistic, one that stands still."""
    engine = Driver()
    seen = engine.job_scheduler.holdings
    first = engine.submit(job("vision", 4, user="ann"))
    engine.wait(10)
    engine.reconfigure(shares(("speech", 4), ("vision", 2)))
    engine.wait(5)
    engine.end(first)
    engine.wait(100)
    sums = seen.gpu_seconds(engine.now)
    assert sums["vision", Use.GUARANTEED] == 40
    assert sums["vision", Use.OPPORTUNISTIC] == 20
    assert sums["vision", Use.RESERVED] == 4 * 10 + 2 * 105
    assert sums["speech", Use.RESERVED] == 2 * 10 + 4 * 105
    assert sums["research", Use.RESERVED] == 2 * 10


def test_a_clock_that_is_set_back() -> None:
    """No sum falls, and nothing is counted twice."""
    engine = Driver()
    engine.now = 1000.0
    running = engine.submit(job("vision", 2))
    engine.now = 900.0
    engine.end(running)
    told = engine.job_scheduler.holdings.gpu_seconds(950.0)
    assert told["vision", Use.GUARANTEED] == 0
    engine.now = 1000.0
    engine.submit(job("vision", 2))
    assert engine.job_scheduler.holdings.gpu_seconds(1010.0)["vision", Use.GUARANTEED] == 20
    assert engine.job_scheduler.holdings.gpu_seconds(1005.0)["vision", Use.GUARANTEED] == 20


def test_nothing_is_kept_where_nobody_stores_it() -> None:
    holdings = Holdings()
    holdings.reserve({"a": 4}, 0.0)
    holdings.reserve({}, 10.0)
    assert holdings.take() == []
    assert holdings.gpu_seconds(20.0) == {("a", Use.RESERVED): 40.0}
    assert json.dumps(list(holdings.open)) == "[]"
