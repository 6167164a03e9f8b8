"""Devices that are drained, break and are healthy again, under jobs in virtual time; and what the core hears of it."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from hived.cluster.explain.reasons import OutOfService
from hived.engine.sentences import event_text
from hived.engine.states import JobState
from hived.engines.local.engine import Engine
from hived.engines.local.health import Health
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.model import Job
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec, Device

from ..contract.specs import cell_types, cluster_spec, reserves
from ..strategies import tiers
from .driver import EVERYWHERE, WELL, Driver, job, shares, small_spec, states
from .living import Lives

# -- drained ------------------------------------------------------------------------------------------------------


def test_drained_machine_takes_no_jobs_and_says_so(engine: Driver) -> None:
    running = engine.submit(job("vision", 2))
    for _ in range(2):
        engine.drain()
    late, loan = engine.submit(job("vision", 1)), engine.submit(job("research", 6, priority=-1))
    assert states(running, late, loan) == "running queued queued"
    for text in (engine.explain(late), engine.shortly(late)):
        assert "not drained (an operator undoes that: hived drain " in text
        assert "healthy" not in text
        assert "repaired" not in text
    engine.drain(undo=True, now=True)
    assert states(running, late, loan) == "running running queued", "undoing it stops no job"
    assert [event.kind for event in engine.events if event.job is None] == ["drained", "undrained"]
    engine.end(running)
    engine.end(late)
    assert states(loan) == "running"


def test_draining_at_once_requeues_the_jobs_there(engine: Driver) -> None:
    here, there = engine.submit(job("speech", 2)), engine.submit(job("research", 2))
    engine.drain(list(here.devices()), now=True)
    assert states(here, there) == "stopping running"
    engine.gone(here)
    assert here.resumes == 1


def test_drained_and_bad_needs_both_undone(engine: Driver) -> None:
    engine.set_health(EVERYWHERE)
    waiting = engine.submit(job("vision", 1))
    assert "drained" not in engine.explain(waiting)
    engine.drain()
    assert "healthy" in engine.explain(waiting), "what is broken as well is still said"
    engine.set_health(EVERYWHERE, None)
    assert states(waiting) == "queued"
    engine.drain(undo=True)
    assert states(waiting) == "running"


# -- broken -------------------------------------------------------------------------------------------------------


def test_job_that_waits_for_hardware_blocks_nobody(engine: Driver) -> None:
    engine.set_health(EVERYWHERE[2:])
    large, small = engine.submit(job("vision", 4)), engine.submit(job("vision", 1))
    assert states(large, small) == "queued running"


@pytest.mark.parametrize("how", ["bad", "drained"])
def test_reservation_leaves_hardware_kept_from_jobs(engine: Driver, how: str) -> None:
    """At once, to another victim's devices, though its first victim is still there."""
    loans = [engine.submit(job("research", 2, priority=-1)) for _ in range(4)]
    owner = engine.submit(job("vision", 2))
    assert states(owner) == "reserved"
    first = set(owner.devices())
    if how == "bad":
        engine.set_health(sorted(first)[:1], "NVML: XID 79")
    else:
        engine.drain(sorted(first)[:1])
    assert states(owner) == "reserved"
    assert first.isdisjoint(owner.devices())
    second = next(loan for loan in loans if set(loan.devices()) == set(owner.devices()))
    assert states(second) == "stopping"
    engine.gone(second)
    assert states(owner) == "running"


def test_reservation_without_other_hardware_is_lost(engine: Driver) -> None:
    """The job keeps its place in line."""
    loan, owner = engine.submit(job("research", 8, priority=-1)), engine.submit(job("vision", 4))
    broken = list(owner.devices())[:1]
    engine.set_health(broken, "NVML: XID 79")
    assert "unreserved" in engine.kinds(owner)
    engine.gone(loan)
    engine.set_health(broken, None)
    assert states(owner) in ("running", "reserved")


def test_reason_of_a_bad_device_is_the_latest(engine: Driver) -> None:
    for why in ("NVML: XID 79", "NVML: lost"):
        engine.set_health([("node", 3)], why)
    assert engine.job_scheduler.health.bad == {("node", 3): "NVML: lost"}
    found = [event.data["why"] for event in engine.events if event.kind == "device_bad"]
    assert found == ["NVML: XID 79", "NVML: lost"]


# -- what the core hears ------------------------------------------------------------------------------------------


class Told:
    """A core that remembers what it was told."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.said: list[tuple[str, int, bool]] = []

    def set_device_health(self, node: str, device: int, *, healthy: bool) -> None:
        self.said.append((node, device, healthy))


def test_core_hears_of_changes_alone() -> None:
    """Once of a device that is bad and drained, again when it breaks again, and of all under a new spec."""
    core = Told(small_spec())
    health = Health(core)  # type: ignore[arg-type]
    place = ("node", 3)
    health.set_bad(place, "NVML: lost")
    assert health.apply()
    health.set_drained([place], True)
    assert not health.apply()
    health.set_bad(place, None)
    assert not health.apply()
    health.set_drained([place], False)
    assert health.apply()
    health.set_bad(place, "NVML: lost")
    assert health.apply()
    assert core.said == [(*place, False), (*place, True), (*place, False)]
    health.set_drained([("node", 4)], True)
    health.apply()
    core.said.clear()
    health.again()
    health.apply()
    assert sorted(core.said) == [(*place, False), ("node", 4, False)]


def test_reserved_gpus_are_those_of_the_spec(engine: Driver) -> None:
    engine.reconfigure(shares(("vision", 6), ("new", 2)))
    health = engine.job_scheduler.health
    assert [health.reserved_gpus(vc) for vc in ("vision", "new", "speech")] == [6, 2, 0]
    nodes = [{"cellType": "NODE", "cellAddress": name} for name in "ab"]
    nodes[0]["pinnedCellId"] = "own"
    one = reserves({"NODE.SOCKET.GPU": 3}, pinned=["own"])
    pinned = cluster_spec(cell_types(), nodes, {"one": one})
    assert Health(Told(spec_from_dict(pinned))).reserved_gpus("one") == 7  # type: ignore[arg-type]


# -- what is said of it -------------------------------------------------------------------------------------------


def test_drained_device_that_changes_nothing(engine: Driver) -> None:
    # "1 GPU is drained by the machine's owner; hived drain --undo ..." to every job that waited for anything else
    holders = [engine.submit(job("vision", 4)), engine.submit(job("speech", 2))]
    waits, loan = engine.submit(job("vision", 4)), engine.submit(job("speech", 8, priority=-1))
    engine.drain([("node", 7)])
    for waiting in (waits, loan):
        assert "drain" not in engine.explain(waiting)
        assert "drain" not in engine.shortly(waiting)
    engine.drain([("node", 7)], undo=True)
    assert states(*holders, waits, loan) == "running running queued queued"


def test_who_drained_it_and_why(engine: Driver) -> None:
    def drain(**more: Any) -> None:
        places = [("node", device) for device in range(8)]
        engine.do(lambda jobs: jobs.drain(places, undo=False, now=False, what="node", at=engine.now, **more))

    waits = engine.submit(job("vision", 4))
    engine.end(waits)
    drain(user="dana", reason="a fan, ticket 811")
    waits = engine.submit(job("vision", 1))
    assert engine.explain(waits).count("--undo): drained by dana: a fan, ticket 811") == 1
    drain(user="dana", reason="the other fan")
    drain(user="dana", reason="the other fan")
    said = [event_text(event, "") for event in engine.events if event.kind == "drained"]
    assert said == [
        "node is drained by dana: no new jobs there (a fan, ticket 811)",
        "node is drained by dana: no new jobs there (the other fan)",
    ]
    engine.do(lambda jobs: jobs.drain([("node", 0)], undo=False, now=True, what="node", at=engine.now, user="olga"))
    assert engine.job_scheduler.health.why(("node", 0)) == "by olga: the other fan", "it was lost by the second step"
    drain()
    assert "--undo): drained by dana: the other fan" in engine.explain(waits), "a reason that is not given erased it"


def test_drained_by_itself_and_with_its_node(engine: Driver) -> None:
    """What is broken took jobs again as soon as the node did."""
    health = engine.job_scheduler.health
    whole = [("node", device) for device in range(8)]

    def drain(places: Sequence[Device], reason: str = "", undo: bool = False) -> dict[int, str]:
        def act(jobs: JobScheduler) -> None:
            jobs.drain(places, undo, False, "node", engine.now, "dana", reason, len(places) == 8)

        engine.do(act)
        return {device: health.why((node, device)) for node, device in sorted(health.drained)}

    drain([("node", 4)], "ECC errors")
    drain([("node", 5)])
    waits = engine.submit(job("research", 8, priority=-1))
    assert "node GPU 4 drained by dana: ECC errors; node GPU 5 drained by dana" in engine.explain(waits)
    assert drain(whole)[4] == "by dana: ECC errors"
    both = drain(whole, "a new kernel")
    assert (both[4], both[0], both[5]) == ("by dana: ECC errors", "by dana: a new kernel", "by dana: a new kernel")
    assert drain([("node", 4)], undo=True) == dict.fromkeys(range(8), "by dana: a new kernel"), "it is still the node's"
    drain([("node", 4)], "ECC errors")
    assert drain([("node", 0)], undo=True).keys() == set(range(1, 8))
    assert drain(whole, undo=True) == {4: "by dana: ECC errors"}, "what has no reason of its own is undone too"
    assert drain([("node", 4)], undo=True) == {}


def test_loan_that_is_too_large_without_what_is_drained(engine: Driver) -> None:
    """It was said to start once enough were idle, and the drain was not named."""

    def drain(device: int, reason: str) -> None:
        engine.do(lambda jobs: jobs.drain([("node", device)], False, False, "it", engine.now, "dana", reason))

    drain(2, "a fan")
    loans = [engine.submit(job("research", gpus, priority=-1)) for gpus in (8, 7)]
    said = "not before 1 GPU that takes no jobs now can be used again: node GPU 2 drained by dana: a fan"
    assert said in engine.explain(loans[0])
    drain(6, "ECC errors")
    assert "node GPU 2 drained by dana: a fan; node GPU 6 drained by dana: ECC errors" in engine.explain(loans[0])
    for loan in loans:
        engine.do(lambda jobs, loan=loan: jobs.cancel(loan, engine.now))  # type: ignore[misc]
    engine.submit(job("research", 2, priority=-1))
    assert "not before" not in engine.explain(engine.submit(job("research", 6, priority=-1)))


def test_drains_of_both_kinds_over_a_restart(lives: Lives) -> None:
    """Those of the version before, which told neither: what the whole node had was its."""

    async def first(engine: Engine) -> None:
        engine.drain("node", 1, False, False, "dana", "a fan")
        engine.drain("node", None, False, False, "dana", "a kernel")

    def story(left: list[int]) -> Callable[[Engine], Awaitable[None]]:
        async def life(engine: Engine) -> None:
            assert len(engine.job_scheduler.health.drained) == engine.cluster.spec.gpus
            engine.drain("node", None, True, False)
            assert [device for _, device in engine.job_scheduler.health.drained] == left

        return life

    lives.live(first, killed=True)
    with lives.store() as store:
        places, by = store.value("drained"), store.value("drained_by")
    lives.live(story([1]))
    with lives.store() as store:
        store.keep([], [], values={"drained": places or "", "drained_by": by or ""})
    lives.live(story([1]))
    with lives.store() as store:
        whole = [place for place, who in zip(json.loads(places or ""), json.loads(by or ""), strict=True) if who[2]]
        store.keep(
            [], [], values={"drained": json.dumps(whole), "drained_by": json.dumps([["dana", "x"]] * len(whole))}
        )
    lives.live(story([]))


def test_a_drain_and_its_reason_over_a_restart(lives: Lives) -> None:
    """Of a version that did not keep the reason, the drain alone; of the one that kept it as one text, that."""

    async def first(engine: Engine) -> None:
        engine.drain("node", 1, False, False, "dana", "a fan, ticket 811")
        engine.drain("node", 2, False, False)

    def story(*why: str) -> Callable[[Engine], Awaitable[None]]:
        async def life(engine: Engine) -> None:
            health = engine.job_scheduler.health
            assert list(health.drained) == [("node", 1), ("node", 2)]
            assert tuple(map(health.why, health.drained)) == why

        return life

    lives.live(first, killed=True)
    lives.live(story("by dana: a fan, ticket 811", ""))
    with lives.store() as store:
        store.keep([], [], values={"drained_by": "[]"})
    lives.live(story("", ""))
    with lives.store() as store:
        store.keep([], [], values={"drained_by": "null", "drained_why": json.dumps(["by dana: a fan", ""])})
    lives.live(story("by dana: a fan", ""))


def test_drained_while_it_is_used(engine: Driver) -> None:
    """It was said to start when that has ended, and did not."""
    runs = engine.submit(job("vision", 4))
    waits = engine.submit(job("vision", 1))
    assert "it starts when that ends, or with a higher priority" in engine.explain(waits)
    engine.drain()
    said = engine.explain(waits)
    assert (
        f"held by {runs.name} (4), of which 4 cannot be used after that (node GPUs 0-3: drained); it starts when "
        "enough of all these can be used"
    ) in said
    engine.drain([("node", 0)], undo=True)
    said = engine.explain(waits)
    assert "of which 3 cannot be used after that (node GPUs 1-3: drained); it starts when that ends, or with" in said
    engine.end(runs)
    assert states(waits) == "running"


def test_fewest_drained_devices_are_named() -> None:
    engine = Driver(shares(("vision", 8)))
    engine.drain()
    waits = engine.submit(job("vision", 1))
    (reason,) = engine.reasons(waits)
    assert isinstance(reason, OutOfService)
    ((node, devices),) = reason.drained
    assert len(devices) == 1
    assert (
        f"it would start with GPU {devices[0]} of node not drained (an operator undoes that: hived drain node"
        in engine.explain(waits)
    )
    engine.drain([(node, devices[0])], undo=True)
    assert states(waits) == "running"


def test_jobs_behind_others_wait_for_those(engine: Driver) -> None:
    """The cure of the first in line is not theirs."""
    engine.drain(EVERYWHERE[:7])
    first, second = engine.submit(job("vision", 4)), engine.submit(job("vision", 4))
    assert [type(reason) for reason in engine.reasons(first)] == [OutOfService]
    assert OutOfService((), (), (), (), (first.name,)) in engine.reasons(second)
    assert f"it waits for GPUs that are out of service, after {first.name}" in engine.explain(second)
    assert "drain" not in engine.explain(second)


@tiers(30, 400)
def test_cure_of_a_reason_starts_the_job(examples: int) -> None:
    """Devices are drained, break, or stay with jobs that a spec has cut off; each reason with a cure is undone."""
    cures = [_cures(seed) for seed in range(examples)]
    assert all(cures[:30])
    assert sum(map(bool, cures)) > 0.9 * examples  # few walks meet none


def _cures(seed: int) -> int:
    """How many reasons with a cure a walk has met."""
    choose, engine = random.Random(seed), Driver()
    cured = 0
    for _ in range(90):
        match choose.randrange(6):
            case 0:
                engine.drain(choose.sample(EVERYWHERE, choose.randint(1, 4)), undo=choose.random() < 0.4)
            case 1:
                places = choose.sample(EVERYWHERE, choose.randint(1, 3))
                engine.set_health(places, None if choose.random() < 0.4 else "NVML: lost")
            case 2 if len(engine.job_scheduler.jobs) > 3:
                running = [found for found in engine.job_scheduler.jobs.values() if found.state.holds]
                for found in running[:1]:
                    engine.end(found)
            case 3:
                devices = choose.choice((6, 7, 8))
                engine.reconfigure(shares(("vision", 4), ("speech", 1), ("research", 1), devices=devices))
            case _:
                vc = choose.choice(("vision", "speech", "research"))
                engine.submit(job(vc, choose.randint(1, 4 if vc == "vision" else 1), priority=choose.choice((0, 0, 1))))
        for waiting in [found for found in engine.job_scheduler.jobs.values() if found.state is JobState.QUEUED]:
            for reason in engine.reasons(waiting):
                if isinstance(reason, OutOfService) and (reason.drained or reason.broken or reason.kept):
                    _cure(engine, waiting, reason)
                    cured += 1
                    break
            else:
                continue
            break
    return cured


def _cure(engine: Driver, waiting: Job, reason: OutOfService) -> None:
    """Do what the reason says: the job starts by it, or is about to when its victims have gone."""
    drained, broken = ([(node, device) for node, of in at for device in of] for at in (reason.drained, reason.broken))

    def cures(job_scheduler: JobScheduler) -> None:  # at once: what is cured first could go to others
        job_scheduler.drain(drained, True, False, "some", engine.now)
        job_scheduler.set_health(broken, None, engine.now)
        for name in reason.kept_by:
            holder = next(found for found in engine.jobs.values() if found.name == name)
            for key in sorted(key for key in engine.alive if key[0] == holder.id):
                engine.alive.discard(key)
                job_scheduler.task_ended(*key, WELL, engine.now)

    last = len(engine.events)
    engine.do(cures)
    started = {event.job for event in engine.events[last:] if event.kind in ("started", "reserved", "promoted")}
    assert waiting.id in started, (waiting.name, reason, engine.explain(waiting))
