"""The machine's metrics and usage, recounted from its jobs and devices after whatever happens."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from hived.engine.states import JobState
from hived.server.local_metrics import LocalMetrics
from hived.server.local_service import LocalService
from hived.server.metrics import Metrics
from hived.spec.compiled import Device

from ..engines.driver import SHARES, Driver, job, shares, small_spec
from ..engines.test_any_facts import one_fact
from ..engines.test_guests import SETTLE_S, Hosts, hosting
from ..engines.test_taking_turns import Turns, sliced
from ..engines.test_taking_turns import by_hand as stopped_by_hand
from ..kubernetes.test_metrics import Told
from .test_live import Seen


def service_of(driver: Driver) -> LocalService:
    engine: Any = Seen(driver)  # as much as is read of an engine
    return LocalService(engine)


def gpus_by_use(driver: Driver) -> Counter[str]:
    """Each device of the spec, and each that a job holds, counted once."""
    health, spec = driver.job_scheduler.health, driver.job_scheduler.cluster.spec
    found: dict[Device, str] = {}
    for place in spec.devices():
        found[place] = "bad" if place in {*health.bad, *health.drained, *health.claimed} else "free"
    for one in sorted(driver.jobs.values(), key=lambda one: one.state is not JobState.RESERVED):
        if one.placement is not None:
            use = "guaranteed" if one.guaranteed else "opportunistic"
            if one.state is JobState.RESERVED:
                use = "reserved"
            found.update(dict.fromkeys(one.devices(), use))
    return Counter(found.values())


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 25))])
def test_numbers_of_a_naive_count(seed: int) -> None:
    choose = random.Random(seed)
    driver = Driver()
    service = service_of(driver)
    metrics = Metrics(service)
    of, over, ends = driver.job_scheduler, set[int](), Counter[str]()
    for _ in range(60):
        one_fact(driver, choose, True)
        told, usage = Told(metrics), service.usage()
        gpus = gpus_by_use(driver)
        assert told.by("hived_gpus", "state") == {(use,): number for use, number in gpus.items()}
        assert usage.gpus == gpus.total()
        assert {use: getattr(usage, use) for use in gpus if use != "free"} == {
            use: number for use, number in gpus.items() if use != "free"
        }
        holds = [one for one in driver.jobs.values() if one.state.holds]
        held: Counter[tuple[str, ...]] = Counter()
        for one in holds:
            held[one.vc, "used" if one.guaranteed else "borrowed"] += one.gpus
        kinds = told.by("hived_vc_gpus", "vc", "kind")
        assert {key: number for key, number in kinds.items() if key[1] in ("used", "borrowed")} == held
        known = {vc.name for vc in driver.job_scheduler.cluster.spec.virtual_clusters} | {one.vc for one in holds}
        assert {vc.name for vc in usage.vcs} == known
        assert all(service.vc(name).usage.name == name for name in known)
        shown = {one.id: one.vc if one.vc in known else "(unknown)" for one in driver.jobs.values()}
        states = Counter((shown[one.id], one.state.value) for one in driver.jobs.values() if not one.state.ended)
        assert told.by("hived_jobs", "vc", "state") == states
        if driver.job_scheduler is not of:  # another engine by now, which counts from its start
            of = driver.job_scheduler
            ends.clear()
            over |= {one.id for one in driver.jobs.values() if one.state.ended}
        for one in driver.jobs.values():
            if one.state.ended and one.id not in over:
                over.add(one.id)
                ends[one.state.value] += 1
        assert told.by("hived_jobs_ended_total", "state") == {(state,): number for state, number in ends.items()}


@pytest.mark.parametrize("seed", range(3))
def test_every_start_is_one_wait(seed: int) -> None:
    """Of those since the engine came; its successor begins anew."""
    choose = random.Random(seed)
    driver = Driver()
    metrics = Metrics(service_of(driver))
    for _ in range(60):
        one_fact(driver, choose, True)
        came = max((event.seq for event in driver.events if event.kind == "recovered"), default=0)
        started = Counter((driver.jobs[event.job].vc,) for event in driver.events[came:] if event.kind == "started")
        assert Told(metrics).by("hived_job_wait_seconds_count", "vc") == started


def test_devices_that_the_spec_lacks_are_counted() -> None:
    """GPUs were below 0: what jobs held of them was taken from those of the spec."""
    driver = Driver(small_spec())
    for vc, size in SHARES:
        driver.submit(job(vc, size))
    driver.reconfigure(shares(("vision", 2), devices=2))
    service = service_of(driver)
    told, usage = Told(Metrics(service)), service.usage()
    assert told("hived_gpus", state="free") == 0
    assert usage.gpus == usage.guaranteed + usage.opportunistic == 8
    assert {vc.name: vc.borrowed for vc in usage.vcs} == {"vision": 4, "speech": 2, "research": 2}
    assert len(service.vc("speech").running) == 1


# -- jobs that share GPUs ---------------------------------------------------------------------------------------------


def by_cause(told: Told, name: str) -> dict[str, float]:
    return {cause: number for (cause,), number in told.by(f"hived_{name}_total", "cause").items()}


def test_turns_are_counted() -> None:
    """Each suspension with what it took and copied, each resumption once the job is seen running."""
    driver = Turns(sliced(("vision", 1), ("speech", 1), devices=2))
    metrics = LocalMetrics(service_of(driver))
    driver.took_s, driver.moved_bytes = 0.2, 1000
    for _ in range(2):
        driver.submit(job("vision"))
    driver.pass_time(60)
    driver.obey()
    told, happened = Told(metrics), Counter(event.kind for event in driver.events)
    assert happened["suspended"] > 2
    assert happened["resumed"] > 1
    for name, many in ("suspension", happened["suspended"]), ("resumption", happened["resumed"]):
        assert by_cause(told, f"{name}s") == {"turn": many}
        assert told(f"hived_{name}_duration_seconds_count") == many
        assert told(f"hived_{name}_duration_seconds_sum") == pytest.approx(0.2 * many)
    assert told("hived_suspended_bytes_total") == 1000 * happened["suspended"]
    assert told("hived_suspensions_total", cause="hand") == 0, "so a rate sees the first one"


def test_jobs_told_by_hand_are_counted_so() -> None:
    """Once, though the reason is told anew, and whether or not it waits for its turn then."""
    driver = Turns(sliced(("vision", 1), ("speech", 1), devices=2))
    metrics = LocalMetrics(service_of(driver))
    found = driver.submit(job("vision"))
    stopped_by_hand(driver, found, pause=True)
    for _ in range(2):
        driver.do(lambda jobs: jobs.turns.hold(found, "told so", driver.now + 60, driver.now))
    stopped_by_hand(driver, found, pause=False)
    driver.obey()
    told = Told(metrics)
    assert by_cause(told, "suspensions") == by_cause(told, "resumptions") == {"hand": 1}
    assert told("hived_resumption_duration_seconds_count") == 1


def test_guests_and_what_their_owner_pays() -> None:
    driver = Hosts(hosting(("vision", 1), ("speech", 1), devices=2))
    metrics = LocalMetrics(service_of(driver))
    owner, other = driver.submit(job("vision")), driver.submit(job("speech"))
    driver.busy[other.id] = 0.9
    driver.pass_time(SETTLE_S + 20)
    assert Told(metrics)("hived_owner_slowdown") is None
    guest = driver.submit(job("speech", early=True))
    driver.pass_time(5)
    told = Told(metrics)
    assert told.by("hived_guests", "vc") == {("speech",): 1}
    assert told.by("hived_limited_jobs", "vc") == {("speech",): 1, ("vision",): 1}, "an owner's memory is limited too"
    assert told("hived_owner_slowdown") == 1
    driver.mini_batch[owner.id] = 0.75
    driver.pass_time(1)
    assert Told(metrics)("hived_owner_slowdown") == 1.5
    driver.busy[owner.id] = 1.0
    driver.pass_time(60)
    assert guest.state is JobState.SUSPENDED
    assert by_cause(Told(metrics), "suspensions") == {"guest": 1}
    driver.end(other)
    driver.pass_time(5)
    told = Told(metrics)
    assert by_cause(told, "resumptions") == {"moved": 1}
    assert told.by("hived_guests", "vc") == told.by("hived_limited_jobs", "vc") == {}
    assert told("hived_owner_slowdown") is None
