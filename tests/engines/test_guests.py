"""Guests beside the owners of GPUs, decided by the one scheduler: owners are protected, and guests end for nobody."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from hived.engine.states import JobState
from hived.engines.local.guests import FLOOR, LEASE_S
from hived.engines.local.instructions import LimitTasks, SuspendTasks
from hived.engines.local.model import Job, Limiting, Obeying
from hived.engines.local.turns import OBEYS_WITHIN_S
from hived.policies.antman import GuestSharing
from hived.scheduling.checks import check_scheduler
from hived.spec.compiled import ClusterSpec, GuestsOf

from .driver import STOPPED, WELL, Driver, job, shares, states

SETTLE_S, STEP_S = GuestSharing().settle_s, GuestSharing().step_s


def hosting(
    *of: tuple[str, int], devices: int = 4, guests: GuestsOf = "all", policy: str = "antman:window_s=0"
) -> ClusterSpec:
    """One node, shared out so; the jobs of all tenants accept guests."""
    spec = shares(*of, devices=devices)
    vcs = tuple(replace(vc, policy=policy, guests=guests) for vc in spec.virtual_clusters)
    return replace(spec, virtual_clusters=vcs)


class Hosts(Driver):
    """Jobs do what they are told when they are looked at, and end a mini-batch a second."""

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec, shares=True)
        self.paused: set[int] = set()
        self.limits: dict[int, Limiting] = {}
        self.until: dict[int, float] = {}  #: when the limits of a guest end
        self.steps: dict[int, int] = {}
        self.busy: dict[int, float] = {}  #: utilization of a job, if it is not 0.3
        self.slow: dict[int, float] = {}  #: seconds of a mini-batch, if it is not 0.5
        self.mini_batch: dict[int, float] = {}  #: what its page says of that, if it is not 0.5
        self.loading: set[int] = set()  #: jobs that have no page yet
        self.frozen: set[int] = set()  #: jobs that come to no end of a mini-batch

    def carry_out(self, instruction: Any) -> None:
        """See :meth:`Driver.carry_out`."""
        super().carry_out(instruction)
        if isinstance(instruction, LimitTasks):
            before = self.limits.get(instruction.job, Limiting(0, 1.0))
            now = instruction.limiting
            self.limits[instruction.job] = Limiting(
                before.memory if now.memory is None else now.memory, before.share if now.share is None else now.share
            )
            self.until[instruction.job] = self.now + now.lease_s if now.lease_s else 0.0

    def obey(self) -> None:
        """Jobs do what they were told, and end a mini-batch if they run."""
        for told in [told for told in self.told if told.job not in self.frozen]:
            self.told.remove(told)
            found = self.jobs[told.job]
            if found.state.stays and found.attempt == told.attempt:
                (self.paused.add if isinstance(told, SuspendTasks) else self.paused.discard)(told.job)
        for found in list(self.jobs.values()):
            pending = any(told.job == found.id for told in self.told)
            if found.state.stays and not pending and found.id not in self.loading:
                self.look(found)

    def look(self, found: Job) -> None:
        """What its page says is a fact."""
        number = found.id
        limits = self.limits.get(number, Limiting(0, 1.0))
        if number in self.paused | self.frozen:
            self.until.pop(number, None)
        else:
            until = self.until.get(number, 0.0)
            assert until == 0.0 or until > self.now - 10, "a limit is not renewed"
            self.steps[number] = self.steps.get(number, 0) + 1
        doing = Obeying(
            number in self.paused, "framework", memory=limits.memory or 0, share=limits.share or 1.0,
            mini_batch_s=self.mini_batch.get(number, 0.5), utilization=self.busy.get(number, 0.3),
            peak_bytes=2**30, least_bytes=2**28,
            mini_batches=self.steps.get(number, 0), ended_at=self.steps.get(number, 0) * self.slow.get(number, 0.5),
            device_bytes=2**30, device="cuda:0",
        )  # fmt: skip
        self.do(lambda jobs: jobs.obeys(number, found.attempt, doing, "by hand", self.why(number), self.now))

    def why(self, number: int) -> str:
        """As the engine has it."""
        guests = self.job_scheduler.guests
        return "" if guests is None else guests.why(number)

    def gone(self, job: Job) -> None:
        super().gone(job)
        self._forget(job)

    def end(self, job: Job, *more: Any, **rest: Any) -> None:
        super().end(job, *more, **rest)
        self._forget(job)

    def _forget(self, job: Job) -> None:
        for of in self.limits, self.until, self.steps:
            of.pop(job.id, None)
        self.paused.discard(job.id)

    def running(self) -> list[Job]:
        """Jobs whose tasks are there and do not stand still."""
        alive = {number for number, _, _ in self.alive}
        return [found for found in self.jobs.values() if found.id in alive - self.paused]

    def pass_time(self, seconds: float) -> None:
        """Time passes, by seconds."""
        for _ in range(round(seconds)):
            self.now += 1.0
            self.obey()
            self.settle()

    def check(self) -> None:
        """Each device has one owner, beside whom guests alone are; what a guest may use is what its owner leaves."""
        self.job_scheduler.trading.validate()
        self.job_scheduler.cluster.check_safety()
        check_scheduler(self.job_scheduler.scheduler)
        scheduler = self.job_scheduler.scheduler
        if scheduler.extension is not None:
            scheduler.extension.validate()
        if self.job_scheduler.guests is not None:
            self.job_scheduler.guests.coordination.validate()
        owners: dict[tuple[str, int], int] = {}
        for found in self.jobs.values():
            told = found.id in self.job_scheduler.turns.told_to_pause
            if not found.entry.holds or found.state is not JobState.RUNNING or found.entry.runs_as_guest or told:
                continue
            for place in found.devices():
                assert owners.setdefault(place, found.id) == found.id, f"two owners of {place}"
        for found in self.jobs.values():
            self.shortly(found)
        used = self.job_scheduler.usage
        assert min([0, *used.used.values(), *used.lent.values()]) == 0
        places = {place for found in self.jobs.values() if found.holds for place in found.devices()}
        assert sum(used.used.values()) + sum(used.lent.values()) == len(places)
        guaranteed = {
            place for found in self.jobs.values() if found.holds and found.guaranteed for place in found.devices()
        }
        assert sum(used.used.values()) == len(guaranteed)


def owner_and_guest(**guest: Any) -> tuple[Hosts, Job, Job]:
    """A machine of two GPUs, its owner on both, and an opportunistic job of the other tenant that waits for it."""
    engine = Hosts(hosting(("vision", 2), ("speech", 2)))
    owners = [engine.submit(job("vision", 2)), engine.submit(job("speech", 2))]
    engine.pass_time(SETTLE_S + 10)
    return engine, owners[0], engine.submit(job("speech", 1, priority=-1, **guest))


def test_a_guest_runs_beside_an_owner_and_is_raised_step_by_step() -> None:
    engine, _, guest = owner_and_guest()
    assert states(guest) == "running", "the owners are measured, and leave 70%"
    engine.pass_time(1)
    assert (guest.guest, guest.beside) == (True, ("train-1",)) or guest.beside == ("train-2",)
    shares = []
    for _ in range(int(5 * STEP_S)):
        engine.pass_time(1)
        shares.append(engine.limits[guest.id].share)
    assert sorted({share or 0.0 for share in shares}) in ([0.17, 0.35, 0.52, 0.7], [0.18, 0.35, 0.52, 0.7])
    said = engine.explain(guest)
    assert "runs as a guest beside" in said
    assert "it is limited to 70% of the time and 1 GiB" in said
    assert "4 of 4 steps of what it leaves" in said
    assert guest.limits is not None
    assert not guest.limits.by_hand
    engine.pass_time(3 * LEASE_S)
    assert engine.kinds(guest)[:3] == ["submitted", "started", "shared"]
    engine.check_record()


def test_owner_comes_once_guests_have_paused() -> None:
    """They are held while it initialises, and raised beside it afterwards; nobody is stopped."""
    engine = Hosts(hosting(("vision", 2), ("speech", 2)))
    guest = engine.submit(job("speech", 2, priority=-1))
    engine.pass_time(5)
    assert not guest.guest, "alone it has a loan"
    owners = [engine.submit(job("vision", 2)), engine.submit(job("speech", 2))]
    late = next(found for found in owners if set(found.entry.placement.devices()) & set(guest.devices()))  # type: ignore[union-attr]
    assert states(late, guest) == "reserved running"
    assert f"once {guest.name} has paused" in engine.explain(late)
    assert [type(told) for told in engine.told] == [SuspendTasks]
    engine.pass_time(1)
    assert states(late, guest) == "running suspended"
    assert f"{late.name}, whose GPU it is, is measured alone first" in engine.explain(guest)
    engine.pass_time(SETTLE_S + 2)
    assert states(late, guest) == "running running"
    engine.pass_time(5 * STEP_S)
    assert engine.limits[guest.id].share == 0.7
    for found in owners:
        engine.end(found)
    engine.pass_time(6)
    assert (guest.guest, guest.beside, engine.limits[guest.id].share) == (False, (), 1.0)
    assert guest.attempt == 1
    engine.check_record()


def test_guest_that_does_not_pause_is_told_apart() -> None:
    """As a loan has it: after the grace of loans it is stopped, and is no guest any more."""
    engine = Hosts(hosting(("vision", 2), ("speech", 2)))
    guest = engine.submit(job("speech", 2, priority=-1))
    engine.look(guest)
    engine.frozen.add(guest.id)
    owners = [engine.submit(job("vision", 2)), engine.submit(job("speech", 2))]
    engine.pass_time(5)
    assert "reserved" in states(*owners)
    assert engine.job_scheduler.patience_s(guest) == engine.job_scheduler.health.grace_of_loans("speech")
    engine.do(lambda jobs: jobs.does_not_obey(guest, engine.now))
    engine.gone(guest)
    engine.pass_time(60)
    assert states(*owners, guest) == "running running queued"
    assert not guest.entry.guest
    for found in owners:
        engine.end(found)
    assert states(guest) == "running", "on a loan"


def test_guest_that_loads_yet_cannot_pause_and_stays_a_guest() -> None:
    """It makes room, and nothing is known of it; unless it has loaded for as long as nobody loads."""
    engine = Hosts(hosting(("vision", 2), ("speech", 2)))
    guest = engine.submit(job("speech", 2, priority=-1))
    engine.loading.add(guest.id)
    owners = [engine.submit(job("vision", 2)), engine.submit(job("speech", 2))]
    engine.pass_time(40)
    engine.do(lambda jobs: jobs.does_not_obey(guest, engine.now))
    assert "had ended no mini-batch" in engine.explain(guest)
    engine.gone(guest)
    engine.loading.discard(guest.id)
    engine.pass_time(60)
    assert states(*owners, guest) == "running running running"
    assert (guest.guest, guest.attempt) == (True, 2)
    engine.loading.add(guest.id)
    engine.job_scheduler.probe.forget(guest.id)
    engine.pass_time(OBEYS_WITHIN_S)
    engine.do(lambda jobs: jobs.does_not_obey(guest, engine.now))
    engine.gone(guest)
    assert not guest.entry.guest


def test_guest_is_upgraded_where_it_runs_and_its_limits_end() -> None:
    engine = Hosts(hosting(("vision", 2), ("speech", 2), policy="antman:window_s=0:moves=false"))
    owners = [engine.submit(job("vision", 2)), engine.submit(job("speech", 2))]
    engine.pass_time(SETTLE_S + 10)
    early = engine.submit(job("speech", 1, early=True))
    engine.pass_time(10)
    assert early.guest
    assert not early.guaranteed
    share = engine.limits[early.id].share
    assert share is not None
    assert 0 < share < 1
    for found in owners:
        engine.end(found)
    assert early.guaranteed
    engine.pass_time(6)
    assert (engine.limits[early.id].share, early.limits, early.guest, early.attempt) == (1.0, None, False, 1)


def test_owner_that_shares_with_nobody_has_its_gpus_alone() -> None:
    engine = Hosts(hosting(("vision", 2), ("speech", 2)))
    guest = engine.submit(job("speech", 2, priority=-1))
    engine.pass_time(5)
    owners = [engine.submit(job("vision", 2, share=False)), engine.submit(job("speech", 2, share=False))]
    engine.pass_time(200)
    assert states(*owners, guest) == "running running suspended"
    assert "shares it with nobody" in engine.explain(guest)
    other = engine.submit(job("speech", 1, priority=-1))
    assert states(other) == "queued"
    assert "no GPU has room for it as a guest: 4 GPUs are used too much" in engine.explain(other)
    for found in owners:
        engine.end(found)
    engine.pass_time(2)
    assert states(guest, other) == "running running"


def test_owner_without_a_mini_batch_has_its_gpus_alone() -> None:
    """It may be no training job: nobody is put beside it, and guests that were there are held."""
    engine = Hosts(hosting(("vision", 2), ("speech", 2)))
    guest = engine.submit(job("speech", 2, priority=-1))
    engine.pass_time(5)
    owners = [engine.submit(job("vision", 2)), engine.submit(job("speech", 2))]
    engine.frozen |= {found.id for found in owners}
    engine.pass_time(300)
    assert states(*owners, guest) == "running running suspended"


def test_owner_that_is_slowed_down_has_its_guest_limited() -> None:
    engine, _, guest = owner_and_guest()
    engine.pass_time(5 * STEP_S)
    assert engine.limits[guest.id].share == 0.7
    for number in (1, 2):
        engine.slow[number] = 0.6
    engine.pass_time(6)
    assert (engine.limits[guest.id].share or 1) < 0.7


def test_owner_that_does_not_use_its_gpus_leaves_them() -> None:
    engine, _, guest = owner_and_guest()
    engine.pass_time(5)
    engine.frozen |= {1, 2}
    engine.pass_time(15)
    assert engine.limits[guest.id].share == 1.0
    assert "does not use it now" in engine.explain(guest)
    engine.frozen.clear()
    engine.pass_time(3)
    assert (engine.limits[guest.id].share or 1) <= 0.7


@pytest.mark.parametrize("held", [False, True])
def test_a_new_engine_finds_guests_as_they_are(held: bool) -> None:
    engine = Hosts(hosting(("vision", 2), ("speech", 2)))
    guest = engine.submit(job("speech", 2, priority=-1))
    engine.pass_time(5)
    owners = [engine.submit(job("vision", 2)), engine.submit(job("speech", 2))]
    engine.pass_time(5 if held else 60)
    assert states(guest) == ("suspended" if held else "running")
    *owners, guest = engine.restart(*owners, guest)
    engine.pass_time(60)
    assert states(*owners, guest) == "running running running"
    assert guest.guest
    assert guest.attempt == 1
    assert engine.limits[guest.id].share == 0.7
    engine.check_record()


@pytest.mark.parametrize("how", ["guests", "policy", "restart", "restarted policy"])
def test_guests_that_are_not_accepted_any_more_wait(how: str) -> None:
    engine = Hosts(hosting(("vision", 2), ("speech", 2)))
    owners = [engine.submit(job("vision", 2)), engine.submit(job("speech", 2))]
    engine.pass_time(SETTLE_S + 10)
    guest = engine.submit(job("speech", 1, priority=-1))
    engine.pass_time(10)
    spec = hosting(("vision", 2), ("speech", 2), guests="none")
    if how.endswith("policy"):
        spec = hosting(("vision", 2), ("speech", 2), policy="yarn-cs")
    if how.startswith("restart"):
        *owners, guest = engine.restart(*owners, guest, spec=spec)
    else:
        engine.reconfigure(spec)
    engine.pass_time(5)
    assert states(*owners, guest) == "running running stopping"
    assert "where no guests are accepted" in guest.reason
    engine.gone(guest)
    engine.pass_time(5)
    assert states(*owners, guest) == "running running queued"
    engine.end(owners[0])
    engine.pass_time(2)
    assert states(guest) == "running"


def test_reserved_owners_under_another_spec() -> None:
    """They wait for guests to pause, on GPUs that are no more: they wait for others."""
    engine = Hosts(hosting(("vision", 4), ("speech", 4), devices=8))
    for _ in range(8):
        engine.frozen.add(engine.submit(job("speech", 1, priority=-1)).id)
    owners = [engine.submit(job(vc, 2)) for vc in ("vision", "speech", "vision")]
    assert states(*owners) == "reserved reserved reserved"
    engine.reconfigure(hosting(("vision", 4), devices=4))
    for found in engine.jobs.values():
        if found.holds:
            assert {device for _, device in found.devices()} <= set(range(8))
    assert all(device < 4 for found in owners for _, device in found.devices())
    engine.frozen.clear()
    engine.pass_time(40)
    for found in [found for found in engine.jobs.values() if found.state is JobState.STOPPING]:
        engine.gone(found)
    assert states(owners[0], owners[2]) == "running running"
    engine.reconfigure(hosting(("vision", 4), ("speech", 4), devices=8))
    engine.pass_time(40)
    assert states(*owners) == "running running running"
    engine.check_record()


def test_memory_is_the_owners_while_guests_are_held() -> None:
    engine = Hosts(hosting(("vision", 1), ("speech", 1), devices=2))
    guest = engine.submit(job("speech", 1, priority=-1))
    engine.pass_time(5)
    owners = [engine.submit(job("vision")), engine.submit(job("speech"))]
    engine.pass_time(10)
    (beside,) = (found for found in owners if set(found.devices()) == set(guest.devices()))
    assert states(beside, guest) == "running suspended"
    limit = engine.limits.get(beside.id, Limiting(0, None)).memory or 0
    assert limit == 0 or limit >= 31 * 2**30


def test_limits_end_with_the_guests() -> None:
    engine, _owner, guest = owner_and_guest()
    engine.pass_time(60)
    assert engine.limits[1].memory or engine.limits[2].memory
    engine.reconfigure(hosting(("vision", 2), ("speech", 2), policy="yarn-cs"))
    engine.gone(guest)
    engine.pass_time(2)
    assert {number: limit.memory for number, limit in engine.limits.items() if limit.memory} == {}


@pytest.mark.parametrize("restarted", [False, True])
def test_promoted_before_its_first_mini_batch(restarted: bool) -> None:
    """It was started with little of the time, as a guest; it is an owner now, and has all, whoever is to tell it."""
    engine = Hosts(hosting(("vision", 2), ("speech", 2), policy="antman:window_s=0:moves=false"))
    owners = [engine.submit(job("vision", 2)), engine.submit(job("speech", 2))]
    engine.pass_time(SETTLE_S + 10)
    early = engine.submit(job("speech", 1, early=True))
    engine.limits[early.id] = Limiting(0, FLOOR)  # by the environment that it was given
    assert early.floor == FLOOR
    engine.loading.add(early.id)
    for found in owners:
        engine.end(found)
    assert early.guaranteed
    if restarted:
        (early,) = engine.restart(early)
    engine.loading.clear()
    engine.pass_time(6)
    assert (engine.limits[early.id].share, early.limits) == (1.0, None)
    by_hand_at = Limiting(0, 0.3)
    engine.limits[early.id] = by_hand_at
    engine.pass_time(30)
    assert engine.limits[early.id] == by_hand_at
    assert early.limits is not None
    assert early.limits.by_hand
    engine.check_record()


def test_limits_end_after_a_start_without_guests() -> None:
    engine, owner, guest = owner_and_guest()
    engine.pass_time(60)
    owner, guest = engine.restart(owner, guest, spec=hosting(("vision", 2), ("speech", 2), policy="yarn-cs"))
    engine.gone(guest)
    engine.pass_time(3)
    assert {number: limit.memory for number, limit in engine.limits.items() if limit.memory} == {}
    assert owner.limits is None


def test_reserved_owner_is_overtaken() -> None:
    """By a higher priority, while guests on its GPUs do not pause: it waits again, and every job can be explained."""
    engine = Hosts(hosting(("vision", 2), ("speech", 2)))
    guest = engine.submit(job("speech", 4, priority=-1))
    engine.frozen.add(guest.id)
    first = engine.submit(job("vision", 2))
    assert states(first) == "reserved"
    second = engine.submit(job("vision", 2, priority=5))
    assert states(first, second) == "queued reserved"
    for found in engine.jobs.values():
        assert engine.explain(found)
        engine.shortly(found)
    engine.frozen.clear()
    engine.pass_time(2)
    assert states(first, second) == "queued running"


def by_hand(engine: Hosts, found: Job, pause: bool) -> None:
    """Somebody suspends it or has it go on, past the scheduler."""
    (engine.paused.add if pause else engine.paused.discard)(found.id)
    engine.look(found)


def test_suspended_by_hand_stays_so() -> None:
    engine, owner, guest = owner_and_guest()
    engine.pass_time(5)
    by_hand(engine, guest, True)
    engine.pass_time(60)
    assert (states(guest), guest.by_hand) == ("suspended", True)
    engine.do(lambda jobs: jobs.turns.goes_on(guest, "told so", engine.now))
    engine.pass_time(2)
    assert states(guest) == "running"
    by_hand(engine, owner, True)
    engine.pass_time(60)
    assert (states(owner), owner.by_hand) == ("suspended", True)
    engine.do(lambda jobs: jobs.turns.goes_on(owner, "told so", engine.now))
    engine.pass_time(2)
    assert states(owner) == "running"


@pytest.mark.parametrize("how", ["runs", "held", "taken over"])
def test_guest_goes_on_elsewhere_at_its_turn(how: str) -> None:
    """It pauses beside the owner and goes on where its VC has free cells: nothing is done again."""
    engine = Hosts(hosting(("vision", 1), ("speech", 1), devices=2))
    owner, other = engine.submit(job("vision")), engine.submit(job("speech"))
    engine.busy[other.id] = 0.9
    engine.pass_time(SETTLE_S + 20)
    guest = engine.submit(job("speech", early=True))
    engine.pass_time(5)
    assert (states(guest), guest.beside) == ("running", (owner.name,))
    if how == "held":
        engine.busy[owner.id] = 1.0
        engine.pass_time(60)
        assert states(guest) == "suspended"
    if how == "taken over":
        another = engine.submit(job("vision", early=True))
        engine.pass_time(40)
        assert set(another.devices()) == set(owner.devices())
    engine.end(other)
    if how == "runs":
        assert states(guest) == "running", "it has not paused yet"
    engine.pass_time(5)
    assert (states(guest), guest.guaranteed, guest.attempt) == ("running", True, 1)
    assert set(guest.devices()).isdisjoint(owner.devices())
    assert "stopping" not in engine.kinds(guest)
    engine.pass_time(60)
    assert (guest.guest, guest.limits) == (False, None)
    (again,) = engine.restart(guest)
    engine.pass_time(10)
    assert (states(again), again.guaranteed) == ("running", True)
    engine.check_record()


FACTS = (
    "submit", "submit", "time", "time", "time", "end", "cancel", "gone", "hand", "apart", "freeze", "busy", "restart",
    "spec", "health", "drain",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_any_facts(seed: int) -> None:
    random_ = random.Random(seed)
    specs = [
        hosting(("vision", 4), ("speech", 2), ("research", 2), devices=8, guests=random_.choice(["all", "own"])),
        hosting(("vision", 2), ("speech", 4), ("research", 2), devices=8),
        hosting(("vision", 4), ("speech", 4), devices=8, guests="none"),
        hosting(("vision", 4), ("speech", 2), ("research", 2), devices=8, policy="yarn-cs"),
    ]
    engine = Hosts(specs[0])
    for _ in range(70):
        alive = [found for found in engine.jobs.values() if not found.state.ended]
        running = [found for found in alive if found.state.stays]
        match random_.choice(FACTS):
            case "submit" if len(alive) < 14:
                kind: dict[str, Any] = random_.choice(
                    [{}, {}, {"priority": -1}, {"early": True}, {"priority": 3}, {"share": False}]
                )
                vc = random_.choice([vc.name for vc in engine.job_scheduler.cluster.spec.virtual_clusters])
                engine.submit(job(vc, random_.choice([1, 1, 2, 4]) if vc != "research" else 1, **kind))
            case "time":
                engine.pass_time(random_.choice([1, 5, 30]))
            case "end" if running:
                engine.end(random_.choice(running), random_.choice([WELL, {**WELL, "code": 1}]))
            case "cancel" if alive:
                found = random_.choice(alive)
                if found.state is not JobState.STOPPING:
                    engine.cancel(found)
            case "gone":
                for found in [found for found in alive if found.state is JobState.STOPPING]:
                    if (found.id, found.attempt) in engine.stopped:
                        engine.end(found, STOPPED)
            case "hand" if running:
                found = random_.choice(running)
                if found.by_hand:
                    engine.do(lambda jobs, found=found: jobs.turns.goes_on(found, "told so", engine.now))  # type: ignore[misc]
                else:
                    by_hand(engine, found, found.id not in engine.paused)
            case "apart" if running:
                found = random_.choice(running)
                if found.entry.runs_as_guest:
                    engine.do(lambda jobs, found=found: jobs.does_not_obey(found, engine.now))  # type: ignore[misc]
            case "freeze" if running:
                engine.frozen ^= {random_.choice(running).id}
            case "busy" if running:
                engine.busy[random_.choice(running).id] = random_.choice([0.0, 0.1, 0.5, 1.0])
            case "restart":
                engine.restart(spec=random_.choice([None, None, random_.choice(specs)]))
            case "spec":
                engine.reconfigure(random_.choice(specs))
            case "health":
                engine.set_health([("node", random_.randrange(8))], random_.choice([None, "lost"]))
            case "drain":
                engine.drain(
                    [("node", random_.randrange(8))], random_.choice([True, False]), random_.choice([True, False])
                )
            case _:
                pass
    engine.frozen.clear()
    engine.set_health([("node", device) for device in range(8)], None)
    engine.drain(undo=True)
    for _ in range(40):
        for found in list(engine.jobs.values()):
            if found.state is JobState.STOPPING and (found.id, found.attempt) in engine.stopped:
                engine.end(found, STOPPED)
            elif found.by_hand:
                engine.do(lambda jobs, found=found: jobs.turns.goes_on(found, "told so", engine.now))  # type: ignore[misc]
            elif found.state is JobState.RUNNING and random_.random() < 0.3:
                engine.end(found)
        engine.pass_time(20)
    engine.check_record()
    vcs = {vc.name for vc in engine.job_scheduler.cluster.spec.virtual_clusters}
    left = [found for found in engine.jobs.values() if not found.state.ended and found.vc in vcs]
    assert all(found.state.stays or "never start" in engine.explain(found) for found in left) or len(left) < 4, states(
        *left
    )
