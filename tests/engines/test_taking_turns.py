"""Jobs take turns on GPUs that they share, decided by the one scheduler: never two on one that may not be there."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from hived import ConflictError
from hived.engine.states import JobState
from hived.engines.local.instructions import Instruction, ScaleTasks, StartTasks, SuspendTasks
from hived.engines.local.job_scheduler import JobScheduler
from hived.engines.local.model import Job, Obeying
from hived.spec.compiled import ClusterSpec

from .driver import FAILED, STOPPED, WELL, Driver, job, shares, states


def sliced(*of: tuple[str, int], devices: int = 8, policy: str = "gandiva:packs=false:quantum_s=10") -> ClusterSpec:
    """One node, shared out so; the jobs of the first tenant take turns."""
    spec = shares(*of, devices=devices)
    first, *others = spec.virtual_clusters
    return replace(spec, virtual_clusters=(replace(first, policy=policy), *others))


class Turns(Driver):
    """Jobs do what they are told when a test says so; what runs, and for how long, is recorded."""

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec, shares=True)
        self.paused: set[int] = set()  #: jobs whose tasks stand still
        self.ran: Counter[int] = Counter()
        self._together: dict[tuple[str, int], set[int]] = {}
        self.workers: dict[int, int] = {}  #: of elastic jobs
        self.took_s, self.moved_bytes = 0.0, 0  #: of the last suspension or resumption
        self.slower = 1.2  #: a mini-batch while another job is on the same device, over alone

    def carry_out(self, instruction: Instruction) -> None:
        """See :meth:`Driver.carry_out`. An elastic job begins with what it asked for."""
        super().carry_out(instruction)
        if isinstance(instruction, StartTasks) and self.started[instruction.job, instruction.attempt] == 1:
            self.workers = {
                number: self.jobs[number].gpus if number == instruction.job else workers
                for number, workers in self.workers.items()
            }

    def obey(self, most: int = 1_000) -> None:
        """Jobs do what they were told, and are looked at."""
        while self.told and most:
            most -= 1
            told = self.told.pop(0)
            found = self.jobs[told.job]
            if found.state.stays and found.attempt == told.attempt:
                if isinstance(told, ScaleTasks):
                    self.workers[told.job] = told.workers
                else:
                    (self.paused.add if isinstance(told, SuspendTasks) else self.paused.discard)(told.job)
                self.look(found)

    def look(self, found: Job) -> None:
        """What its page says is a fact, if nothing is on its way to it."""
        if not any(told.job == found.id for told in self.told):
            packed = self.job_scheduler.beside(found.id)
            doing = Obeying(
                found.id in self.paused, "framework", self.moved_bytes, self.took_s,
                mini_batch_s=0.1 * (self.slower if packed else 1.0),
                utilization=0.3, peak_bytes=2**30, least_bytes=2**20,
                elastic=found.id in self.workers, workers=self.workers.get(found.id, 1),
            )  # fmt: skip
            self.do(lambda jobs: jobs.obeys(found.id, found.attempt, doing, "by hand", "by hand", self.now))

    def turns_share(self, found: Job) -> float | None:
        """The part of the time that it is said to run for."""
        extension = self.job_scheduler.scheduler.extension
        turns = None if extension is None else extension.describe(found.entry)
        return None if turns is None else turns.share

    def running(self) -> list[Job]:
        """Jobs whose tasks are there and do not stand still."""
        alive = {number for number, _, _ in self.alive}
        return [found for found in self.jobs.values() if found.id in alive - self.paused]

    def check(self) -> None:
        """No device is with two, but with who is beside whom; else what always holds of jobs that share nothing."""
        self.paused &= {number for number, _, _ in self.alive}
        self.job_scheduler.trading.validate()
        self.job_scheduler.cluster.check_safety()
        extension = self.job_scheduler.scheduler.extension
        if extension is not None:
            extension.validate()
        on: dict[tuple[str, int], set[int]] = {}
        for found in self.running():
            assert found.state.holds, f"{found.name} is {found.state} and runs"
            assert found.placement is not None
            if found.id in self.workers:
                gpus, scaling = len(list(found.devices())), self.job_scheduler.turns.scaling
                # suspended when it had grown, and woken by hand, it shrinks then
                assert gpus >= self.workers[found.id] or scaling.get(found.id) == gpus
            else:
                assert [len(pod.leaf_cells) for pod in found.placement.pods] == found.spec.tasks * [found.spec.gpus]
            for place in found.devices():
                on.setdefault(place, set()).add(found.id)
        for place, numbers in on.items():
            for number in numbers:
                beside = {*self.job_scheduler.beside(number), number}
                told = {told.job for told in self.told}  # to pause: packed no more, and there yet
                allowed = numbers <= beside or numbers <= self._together.get(place, set())
                assert allowed or numbers & (told | self.job_scheduler.turns.told_to_pause), f"two jobs on {place}"
        self._together = on  # those that were packed may be so no more, and are there yet
        assert min([0, *self.job_scheduler.usage.used.values(), *self.job_scheduler.usage.lent.values()]) == 0
        gpus = sum(self.job_scheduler.usage.used.values()) + sum(self.job_scheduler.usage.lent.values())
        assert gpus == len({place for found in self.jobs.values() if found.holds for place in found.devices()})

    def pass_time(self, seconds: float) -> None:
        """Time passes; jobs obey at once."""
        until = self.now + seconds
        while True:
            review = self.job_scheduler.scheduler.next_review
            at = min(until, max(self.now, review))
            for found in self.running():
                self.ran[found.id] += round(1000 * (at - self.now))
            self.now = at
            for found in self.running():
                self.look(found)
            if review > until:
                return
            self.settle()
            self.obey()


def test_six_on_four() -> None:
    engine = Turns(sliced(("vision", 4), ("speech", 4)))
    six = [engine.submit(job("vision")) for _ in range(6)]
    engine.pass_time(600)
    assert {found.state for found in six} == {JobState.RUNNING, JobState.SUSPENDED}
    assert len(engine.running()) == 4
    assert {round(engine.ran[found.id] / 600_000, 2) for found in six} == {0.67}
    story = [event.kind for event in engine.events if event.job == six[5].id][:6]
    assert story == ["submitted", "started", "suspended", "resumed", "suspended", "resumed"]
    engine.check_record()


def test_successor_waits_for_the_fact() -> None:
    """What was told to pause is on its GPU until it is known that it stands still."""
    engine = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    first, second, third = (engine.submit(job("vision")) for _ in range(3))
    engine.wait(10.0)
    assert [type(told) for told in engine.told] == [SuspendTasks]
    assert (first.state, second.state, third.state) == (JobState.RUNNING, JobState.RUNNING, JobState.QUEUED)
    assert "turn" in engine.explain(third)
    engine.wait(25.0)  # it does not come to the end of a mini-batch
    assert states(third) == "queued"
    engine.obey()
    assert states(third) == "running"
    assert sorted(found.id for found in engine.running()) in ([1, 3], [2, 3])
    assert len({place for found in engine.running() for place in found.devices()}) == 2


def test_drained_jobs_come_back_and_turns_go_on() -> None:
    """A job that only takes turns is in line again too, when it is sent away; and a drain changes nobody's turns."""
    engine = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    jobs = [engine.submit(job("vision")) for _ in range(4)]
    engine.pass_time(35)
    engine.drain([("node", device) for device in range(4)], now=True)
    for found in jobs:
        engine.gone(found)
    assert {found.state for found in jobs} == {JobState.QUEUED}
    engine.drain([("node", device) for device in range(4)], undo=True)
    engine.pass_time(60)
    assert {found.attempt for found in jobs} == {2}
    (at,) = {place for found in engine.running()[:1] for place in found.devices()}
    engine.drain([at])
    engine.ran.clear()
    engine.pass_time(200)
    assert all(engine.ran[found.id] > 50_000 for found in jobs)


def test_who_is_suspended_by_hand_takes_no_turns_of_others() -> None:
    engine = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    jobs = [engine.submit(job("vision")) for _ in range(4)]
    engine.pass_time(35)
    for found in jobs[:2]:
        by_hand(engine, found, pause=True)
        engine.job_scheduler.turns.hold(found, "told so", None, engine.now)
        engine.settle()
    assert [engine.turns_share(found) for found in jobs] == [0.0, 0.0, 1.0, 1.0]
    engine.obey()
    engine.ran.clear()
    engine.pass_time(100)
    assert [round(engine.ran[found.id] / 100_000, 1) for found in jobs] == [0.0, 0.0, 1.0, 1.0]
    for found in jobs[:2]:
        by_hand(engine, found, pause=False)
    assert {engine.turns_share(found) for found in jobs} == {0.5}
    engine.ran.clear()
    engine.pass_time(400)
    assert {round(engine.ran[found.id] / 400_000, 1) for found in jobs} == {0.5}


def test_restart_without_turns_stops_who_has_none_left() -> None:
    """Under a policy whose jobs do not share, each has GPUs of its own, or waits in line: none stands still."""
    spec = sliced(("vision", 2), ("speech", 2), devices=4)
    engine = Turns(spec)
    jobs = [engine.submit(job("vision")) for _ in range(4)]
    engine.pass_time(35)
    jobs = engine.restart(*jobs, spec=shares(("vision", 2), ("speech", 2), devices=4))
    for _ in range(3):
        engine.obey()
        for found in jobs:
            if found.state is JobState.STOPPING:
                engine.gone(found)
        engine.pass_time(20)
    assert sorted(found.state.value for found in jobs) == ["queued", "queued", "running", "running"]
    assert engine.job_scheduler.usage.used["vision"] == 2


def test_end_of_an_owner_leaves_no_one_without_turns() -> None:
    engine = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    jobs = [engine.submit(job("vision")) for _ in range(4)]
    engine.pass_time(35)
    for found in jobs[:3]:
        if found.state is JobState.SUSPENDED:
            engine.cancel(found)
            engine.gone(found)
        else:
            engine.end(found)
        engine.obey()
        engine.pass_time(30)
    assert jobs[3].state is JobState.RUNNING
    engine.end(jobs[3])
    assert engine.job_scheduler.usage.used.total() == 0


def test_restart_in_the_middle_of_a_turn() -> None:
    """Who runs goes on where it is, who is suspended takes turns again; nobody is started anew, or lost."""
    engine = Turns(sliced(("vision", 4), ("speech", 4)))
    six = [engine.submit(job("vision")) for _ in range(6)]
    engine.pass_time(95)
    before = {found.id: (found.state, found.placement) for found in six if found.state is JobState.RUNNING}
    six = engine.restart(*six)
    assert {n: (engine.jobs[n].state, engine.jobs[n].placement) for n in before} == before
    engine.obey()
    engine.ran.clear()
    engine.pass_time(600)
    assert {found.attempt for found in six} == {1}
    assert {round(engine.ran[found.id] / 600_000, 1) for found in six} == {0.7}


def by_hand(engine: Turns, found: Job, pause: bool) -> None:
    """Somebody pauses a job, past the engine, or lets it go on, by the engine."""
    if pause and found.state is JobState.RUNNING:
        engine.paused.add(found.id)
        engine.look(found)
    elif not pause and found.state is JobState.SUSPENDED:
        engine.job_scheduler.turns.goes_on(found, "by hand", engine.now)
        engine.settle()


def test_priorities_change_while_jobs_run() -> None:
    """A higher one is never suspended for a lower one (Gandiva, 4.2); it survives the engine."""
    engine = Turns(sliced(("vision", 2), ("speech", 2), devices=4))
    first, second, third = (engine.submit(job("vision")) for _ in range(3))
    engine.pass_time(100)
    engine.do(lambda jobs: jobs.prioritize(first, 5, "told so", engine.now))
    engine.obey()
    engine.ran.clear()
    engine.pass_time(200)
    assert round(engine.ran[first.id] / 200_000, 1) == 1.0
    assert {round(engine.ran[found.id] / 200_000, 1) for found in (second, third)} == {0.5}
    (first,) = engine.restart(first)
    assert first.priority == 5
    engine.obey()
    engine.ran.clear()
    engine.pass_time(200)
    assert round(engine.ran[first.id] / 200_000, 1) == 1.0
    plain = engine.submit(job("speech"))
    with pytest.raises(ConflictError, match="or takes turns with others"):
        engine.job_scheduler.prioritize(plain, 5, "told so", engine.now)
    engine.check_record()


PACKS = "gandiva:quantum_s=10:profile_s=20:trial_s=20"


@pytest.mark.parametrize(("slower", "kept"), [(1.2, True), (3.0, False)], ids=["gains", "loses"])
def test_packing_is_kept_or_undone_as_measured(slower: float, kept: bool) -> None:
    engine = Turns(sliced(("vision", 2), ("speech", 2), devices=4, policy=PACKS))
    engine.slower = slower
    jobs = [engine.submit(job("vision")) for _ in range(4)]
    engine.pass_time(400)
    packed = {found.id: engine.job_scheduler.beside(found.id) for found in jobs}
    assert all(packed.values()) is kept
    assert any(packed.values()) is kept
    if kept:
        assert {found.state for found in jobs} == {JobState.RUNNING}
        assert "beside" in engine.explain(jobs[0])
    engine.check_record()


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < 12 else pytest.mark.slow) for seed in range(300)]
)
def test_any_facts(seed: int) -> None:
    choose = random.Random(seed)
    packs = (PACKS if seed % 3 == 0 else "gandiva:packs=false:quantum_s=10") + ":idle_s=5"
    specs = [
        sliced(("vision", 4), ("speech", 2), ("research", 2), policy=packs),
        sliced(("vision", 4), ("speech", 4), policy=packs), shares(("vision", 4), ("speech", 4)),
        sliced(("vision", 2), ("speech", 4), ("research", 2), policy=packs), sliced(("vision", 4), devices=4),
    ]  # fmt: skip
    engine = Turns(specs[0])
    for _ in range(80):
        active = [found for found in engine.jobs.values() if not found.state.ended]
        stay = [found for found in active if found.state.stays]
        stopping = [found for found in active if found.state is JobState.STOPPING]
        match choose.randrange(18):
            case 0 | 1 | 2:
                vc = choose.choice(("vision", "vision", "vision", "speech"))
                gpus, tasks = choose.choice(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2)))
                share = choose.choice((None, None, None, None, False))
                found = engine.submit(job(vc, gpus, tasks=tasks, priority=choose.choice((0, 0, 0, -1)), share=share))
                if tasks == 1 and share is None and choose.random() < 0.4:
                    engine.workers[found.id] = gpus
            case 3 if stay:
                engine.end(choose.choice(stay), choose.choice((WELL, WELL, FAILED)))
            case 4 | 5 if stopping:
                engine.end(choose.choice(stopping), STOPPED)
            case 6 if active:
                found = choose.choice(active)
                if found.stopping_for != "cancelled":
                    engine.cancel(found)
            case 7 if stay:
                by_hand(engine, choose.choice(stay), pause=choose.random() < 0.5)
            case 8:
                engine.set_health([("node", choose.randrange(8))], choose.choice((None, None, "NVML: lost")))
            case 9 if choose.random() < 0.4:
                engine.restart(spec=choose.choice((None, None, *specs)))
            case 14:
                chosen = [("node", device) for device in choose.sample(range(4), 2)]
                engine.drain(chosen, undo=choose.random() < 0.6, now=choose.random() < 0.3)
            case 15 if stay and choose.random() < 0.5:
                held, until = choose.choice(stay), choose.choice((None, engine.now + 5))
                at = engine.now
                engine.do(lambda jobs, held=held, until=until, at=at: jobs.turns.hold(held, "by hand", until, at))  # type: ignore[misc]
            case 10 if choose.random() < 0.4:
                engine.reconfigure(choose.choice(specs))
                engine.spec = engine.job_scheduler.trading.base
            case 11 if stay and choose.random() < 0.2:
                engine.do(partial(JobScheduler.does_not_obey, job=choose.choice(stay), at=engine.now))
            case 16 if stay and choose.random() < 0.3:
                engine.do(partial(JobScheduler.does_not_scale, job=choose.choice(stay), at=engine.now))
            case 12 | 13:
                engine.obey(choose.randint(1, 4))
            case 17:
                for found in stay:
                    engine.look(found)
            case _:
                engine.wait(choose.uniform(0, 12))
        for found in engine.jobs.values():
            assert found.name in engine.explain(found)
    engine.check_record()
    # everything healthy, nobody suspended by hand, everybody obeys: nothing hangs
    engine.reconfigure(choose.choice((specs[0], specs[3])))
    engine.drain(undo=True)
    engine.set_health([("node", device) for device in range(8)], None)
    for _ in range(12 * len(engine.jobs) + 20):
        for found in engine.jobs.values():
            if found.by_hand:
                by_hand(engine, found, pause=False)
        engine.obey()
        for found in engine.jobs.values():
            engine.look(found)
        for found in list(engine.running()):
            engine.end(found, STOPPED if found.state is JobState.STOPPING else WELL)
        for found in engine.jobs.values():  # it was paused, and is woken to be stopped
            if found.state is JobState.STOPPING:
                engine.end(found, STOPPED)
        engine.pass_time(20)
    left = [(found.name, found.state, engine.explain(found)) for found in engine.jobs.values() if not found.state.ended]
    assert not left
    engine.check_record()


# -- elastic jobs grow and shrink ---------------------------------------------------------------------------------

ELASTIC = "gandiva:packs=false:quantum_s=10:idle_s=30"


def elastic(engine: Turns, gpus: int = 1) -> Job:
    """A job whose script declares that it grows and shrinks."""
    found = engine.submit(job("vision", gpus))
    engine.workers[found.id] = gpus
    engine.look(found)
    return found


def sizes(*of: Job) -> list[int]:
    """GPUs that jobs hold."""
    return [len(list(found.devices())) for found in of]


def test_elastic_job_grows_when_nothing_changes_and_gives_up_at_once() -> None:
    """Gandiva, 4.2.2, Figure 11: 1, 2, 4 GPUs; back when others come."""
    engine = Turns(sliced(("vision", 4), ("speech", 4), policy=ELASTIC))
    grower = elastic(engine)
    engine.pass_time(25)
    assert sizes(grower) == [1]
    engine.pass_time(40)
    assert (sizes(grower), engine.workers[grower.id], states(grower)) == ([4], 4, "running")
    assert "4 GPUs" in engine.explain(grower) or "node:0,1,2,3" in engine.explain(grower)
    second = engine.submit(job("vision", 2))
    assert states(second) == "queued", "the workers are there yet"
    assert "paused" not in engine.explain(second)
    engine.obey()
    assert (sizes(grower, second), states(second), engine.workers[grower.id]) == ([2, 2], "running", 2)
    engine.end(second)
    engine.pass_time(60)
    assert sizes(grower) == [4]
    assert "reshaped" in engine.kinds(grower)
    engine.check_record()


def test_elastic_job_takes_turns_with_what_it_asked_for() -> None:
    engine = Turns(sliced(("vision", 2), ("speech", 2), devices=4, policy=ELASTIC))
    grower = elastic(engine)
    engine.pass_time(60)
    others = [engine.submit(job("vision")) for _ in range(2)]
    engine.obey()
    engine.ran.clear()
    engine.pass_time(300)
    assert engine.workers[grower.id] == 1
    assert {round(engine.ran[found.id] / 300_000, 1) for found in (grower, *others)} == {0.7}


@pytest.mark.parametrize("told", [False, True])
def test_grown_job_over_a_restart(told: bool) -> None:
    engine = Turns(sliced(("vision", 4), ("speech", 4), policy=ELASTIC))
    grower = elastic(engine)
    engine.pass_time(60)
    if told:  # it has not shrunk when the engine is killed
        engine.submit(job("vision", 2))
        engine.told.clear()
    (grower,) = engine.restart(grower)
    engine.obey()
    engine.pass_time(40)
    waits = [found for found in engine.jobs.values() if found is not grower]
    assert sizes(grower, *waits) == ([2, 2] if told else [4])
    assert engine.workers[grower.id] == (2 if told else 4)
    assert states(grower, *waits) == ("running running" if told else "running")


def test_job_that_does_not_grow_keeps_what_it_asked_for() -> None:
    engine = Turns(sliced(("vision", 4), ("speech", 4), policy=ELASTIC))
    grower = elastic(engine)
    engine.pass_time(25)
    engine.wait(10)
    assert [type(told) for told in engine.told] == [ScaleTasks]
    engine.told.clear()
    engine.do(lambda jobs: jobs.does_not_scale(grower, engine.now))
    engine.obey()
    engine.pass_time(200)
    assert (sizes(grower), states(grower), engine.workers[grower.id]) == ([1], "running", 1)


def test_job_that_does_not_shrink_is_stopped_for_others() -> None:
    engine = Turns(sliced(("vision", 2), ("speech", 2), devices=4, policy=ELASTIC))
    grower = elastic(engine)
    engine.pass_time(60)
    other = engine.submit(job("vision"))
    engine.told.clear()
    engine.do(lambda jobs: jobs.does_not_scale(grower, engine.now))
    assert states(grower, other) == "stopping queued"
    assert "does not give up" in engine.explain(grower)
    engine.workers[grower.id] = 1
    engine.gone(grower)
    assert (states(grower, other), sizes(grower)) == ("running running", [1])


def test_elastic_job_grows_onto_no_loan() -> None:
    engine = Turns(sliced(("vision", 4), ("speech", 4), policy=ELASTIC))
    grower = elastic(engine)
    loan = engine.submit(job("speech", 7, priority=-1))
    engine.pass_time(100)
    assert (sizes(grower), states(loan)) == ([1], "running")


@pytest.mark.parametrize("restarted", [False, True])
def test_the_loan_that_has_just_begun_makes_room(restarted: bool) -> None:
    """Where jobs share GPUs, the least work is lost, also after a restart."""
    engine = Turns(sliced(("vision", 4), ("speech", 4)))
    engine.submit(job("speech", 4))
    hour = engine.submit(job("speech", 1, priority=-1))
    engine.wait(3540)
    minute = engine.submit(job("speech", 3, priority=-1))
    engine.wait(60)
    if restarted:
        hour, minute = engine.restart(hour, minute)
    owner = engine.submit(job("vision", 1))
    assert states(hour, minute, owner) == "running stopping reserved"
    assert f"{minute.name} loses 1 m of work on 3 GPUs" in engine.explain(owner)
