"""What keeps jobs out of line: somebody, jobs that have to end first, and the limit of their array."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from hived.engine.sentences import event_text
from hived.engine.states import JobState
from hived.engines.local.engine import Engine
from hived.engines.local.holds import Holds, some_fails
from hived.engines.local.model import Job, JobSpec
from hived.engines.submission import After, indexes_of
from hived.errors import ConflictError, NotFoundError, RequestError
from hived.spec.compiled import AccessSpec, ClusterSpec

from .driver import EVERYWHERE, FAILED, WELL, Driver, job, small_spec, states
from .living import Lives, ended, printed, shell, state
from .test_any_facts import one_fact


def after(other: Job, when: str = "any", vc: str = "vision", **more: Any) -> JobSpec:
    return job(vc, waits_for=((other.id, when),), **more)


def array(engine: Driver, many: int, most: int, vc: str = "vision", gpus: int = 1) -> list[Job]:
    first = len(engine.jobs) + 1
    specs = [job(vc, gpus, array_id=first, array_index=n, array_most=most) for n in range(many)]
    return [engine.submit(spec) for spec in specs]


def hold(engine: Driver, job: Job) -> None:
    engine.do(lambda jobs: jobs.hold(job, "ann", engine.now))


def release(engine: Driver, job: Job) -> None:
    engine.do(lambda jobs: jobs.release(job, "ann", engine.now))


# -- by hand


def test_held_and_released(engine: Driver) -> None:
    """It loses its turn to those behind it, and has it again."""
    first = engine.submit(job("vision", 4))
    waits, behind = engine.submit(job("vision", 4)), engine.submit(job("vision", 2))
    engine.do(lambda jobs: jobs.hold(waits, "ann", engine.now))
    assert states(waits) == "held"
    assert "by ann" in engine.explain(waits)
    assert engine.shortly(waits) == "by ann"
    engine.end(first)
    assert states(waits, behind) == "held running"
    engine.do(lambda jobs: jobs.release(waits, "ann", engine.now))
    assert states(waits) == "queued"
    engine.end(behind)
    assert states(waits) == "running"
    engine.check_record()


def test_submitted_held(engine: Driver) -> None:
    held = engine.submit(job("vision", hold=True))
    assert states(held) == "held"
    (held,) = engine.restart(held)
    assert states(held) == "held"
    engine.do(lambda jobs: jobs.release(held, "", engine.now))
    assert states(held) == "running"


def test_a_reservation_is_given_up(engine: Driver) -> None:
    """Who was to make room runs on, where it has not ended yet; the GPUs are others' to take."""
    loan = engine.submit(job("speech", 8, priority=-1))
    mine = engine.submit(job("vision", 4))
    assert states(loan, mine) == "stopping reserved"
    engine.do(lambda jobs: jobs.hold(mine, "", engine.now))
    assert states(mine) == "held"
    assert mine.placement is None
    engine.gone(loan)
    assert states(loan) == "running"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            lambda jobs, one, at: jobs.hold(one, "", at),
            "is running, and only a job that waits is held; hived requeue --hold",
        ),
        (lambda jobs, one, at: jobs.release(one, "", at), "is running; nobody holds it"),
    ],
)
def test_what_is_refused(engine: Driver, what: object, words: str) -> None:
    runs = engine.submit(job("vision"))
    with pytest.raises(ConflictError, match=words):
        what(engine.job_scheduler, runs, engine.now)  # type: ignore[operator]
    waits = engine.submit(job("vision", 4))
    with pytest.raises(ConflictError, match="only what runs can be queued again"):
        engine.job_scheduler.requeue(waits, False, "", engine.now)


@pytest.mark.parametrize("hold", [False, True])
def test_queued_again(engine: Driver, hold: bool) -> None:
    runs = engine.submit(job("vision", 4))
    behind = engine.submit(job("vision", 4))
    engine.do(lambda jobs: jobs.requeue(runs, hold, "ann", engine.now))
    assert states(runs) == "stopping"
    (runs, behind) = engine.restart(runs, behind)
    engine.gone(runs)
    assert states(runs, behind) == ("held running" if hold else "running queued")
    assert runs.resumes == 1
    engine.check_record()


# -- after others


@pytest.mark.parametrize(
    ("when", "ending", "becomes"),
    [
        ("any", WELL, "running"),
        ("any", FAILED, "running"),
        ("ok", WELL, "running"),
        ("ok", FAILED, "cancelled"),
        ("fail", WELL, "cancelled"),
        ("fail", FAILED, "running"),
    ],
)
def test_after(engine: Driver, when: str, ending: dict[str, object], becomes: str) -> None:
    first = engine.submit(job("vision", 4))
    second = engine.submit(after(first, when, "speech"))
    assert states(second) == "held"
    assert f"until {first.name} has" in engine.explain(second)
    (first, second) = engine.restart(first, second)
    engine.end(first, ending)
    assert states(second) == becomes
    if becomes == "cancelled":
        assert f"it was to run once {first.name}" in second.reason
    engine.check_record()


@pytest.mark.parametrize("fails", [[], [0], [1], [2], [0, 2]])
def test_after_an_array_of_which_one_fails(engine: Driver, fails: list[int]) -> None:
    """All of them had to fail, so that what cleans up after a failure was cancelled by the first that succeeded."""
    array = [engine.submit(job("vision", array_id=1, array_index=n)) for n in range(3)]
    cleans = engine.submit(job("speech", waits_for=tuple((one.id, some_fails(1)) for one in array)))
    assert "have ended" not in engine.explain(cleans)
    assert "and one of its array has failed at least" in engine.explain(cleans)
    for n, one in enumerate(array):
        assert states(cleans) == "held"
        engine.end(one, FAILED if n in fails else WELL)
        *array, cleans = engine.restart(*array, cleans)
    assert states(cleans) == ("running" if fails else "cancelled")
    if not fails:
        assert cleans.reason == "it was to run once one of array 1 had failed, and all have succeeded"
    assert cleans.failed_of == ((1,) if fails else ())
    engine.check_record()


def test_held_by_hand_though_one_of_an_array_has_failed(engine: Driver) -> None:
    array = [engine.submit(job("vision", array_id=1, array_index=n)) for n in range(6)]
    cleans = engine.submit(job("speech", waits_for=tuple((one.id, some_fails(1)) for one in array)))
    assert "until 6 jobs have ended, and one has failed at least, 1 to 6" in engine.explain(cleans)
    hold(engine, cleans)
    for one in array:
        if one.state is not JobState.RUNNING:
            engine.cancel(one)
    assert states(cleans) == "held"
    release(engine, cleans)
    assert "and one of its array" not in engine.explain(cleans)
    for one in [one for one in array if not one.state.ended]:
        engine.end(one)
    assert states(cleans) == "running"
    engine.check_record()


def test_after_several_and_a_chain(engine: Driver) -> None:
    """One that is cancelled takes with it what was to run after it had succeeded."""
    one, other = engine.submit(job("vision")), engine.submit(job("vision"))
    both = engine.submit(job("speech", waits_for=((one.id, "ok"), (other.id, "any"))))
    last = engine.submit(after(both, "ok"))
    anyhow = engine.submit(after(last))
    engine.end(other, FAILED)
    assert states(both, last, anyhow) == "held held held"
    engine.cancel(one)
    engine.gone(one)
    assert states(both, last, anyhow) == "cancelled cancelled running"


def test_held_by_hand_until_released_though_the_other_has_ended(engine: Driver) -> None:
    first = engine.submit(job("vision"))
    second = engine.submit(after(first))
    engine.do(lambda jobs: jobs.hold(second, "ann", engine.now))
    engine.end(first)
    assert states(second) == "held"
    engine.do(lambda jobs: jobs.release(second, "ann", engine.now))
    assert states(second) == "running"


def test_released_while_the_other_runs(engine: Driver) -> None:
    first = engine.submit(job("vision"))
    second = engine.submit(after(first, hold=True))
    engine.do(lambda jobs: jobs.release(second, "ann", engine.now))
    assert states(second) == "held"
    assert f"until {first.name} has ended" in engine.explain(second)
    engine.end(first)
    assert states(second) == "running"


def test_after_many_is_few_events(engine: Driver) -> None:
    """Each end was an event of each that waited, with all that it waited for: 92,146 of them, and 200 s."""
    many = array(engine, 40, 2)
    waits = engine.submit(job("speech", waits_for=tuple((one.id, "any") for one in many)))
    assert "until 40 jobs have ended, 1 to 40" in engine.explain(waits)
    for one in many[:10]:
        engine.end(one)
    *many, waits = engine.restart(*many[10:], waits)
    for one in many[:26]:
        engine.end(one)
    assert states(waits) == "held"
    assert "until 40 jobs" in engine.explain(waits)
    for one in many[26:]:
        engine.end(one)
    assert states(waits) == "running"
    held = [event for event in engine.events if event.job == waits.id and event.kind == "held"]
    assert len(held) <= 5
    engine.check_record()


# -- arrays


def test_an_array_with_a_limit(engine: Driver) -> None:
    found = array(engine, 5, 2)
    assert states(*found) == "running running held held held"
    assert "2 of its array are out" in engine.explain(found[2])
    found = engine.restart(*found)
    engine.end(found[1], FAILED)
    assert states(*found[2:]) == "running held held"
    engine.cancel(found[3])
    engine.end(found[0])
    engine.end(found[2])
    assert states(*found[3:]) == "cancelled running"
    engine.end(found[4])
    assert not engine.job_scheduler.jobs
    assert engine.job_scheduler.holds._out == {}
    engine.check_record()


def limit(engine: Driver, one: Job, most: int) -> None:
    engine.do(lambda jobs: jobs.limit_array(one.spec.array_id, most, "ann", engine.now))


def test_another_limit_of_an_array(engine: Driver) -> None:
    """Of those beyond it the ones that have GPUs keep them, and the others are held again, the last ones first."""
    found = array(engine, 8, 2)
    limit(engine, found[0], 6)
    assert states(*found) == "running running running running queued queued held held"
    assert "6 of its array are out" in engine.explain(found[7])
    limit(engine, found[0], 3)
    assert states(*found) == "running running running running held held held held"
    assert "3 of its array are out" in engine.explain(found[4])
    found = engine.restart(*found)
    assert {one.spec.array_most for one in found} == {3}
    engine.end(found[0])
    assert states(*found[1:5]) == "running running running held"
    engine.end(found[1])
    assert states(*found[2:]) == "running running running held held held"
    with pytest.raises(ConflictError, match="has that limit already"):
        limit(engine, found[2], 3)
    limit(engine, found[2], 0)
    assert states(*found[2:]) == "running running running running queued queued"
    assert engine.job_scheduler.holds._out == {}
    limit(engine, found[2], 5)
    assert states(*found[2:]) == "running running running running queued held"
    said = [event_text(event, "x") for event in engine.events if event.kind == "edited"]
    assert said[-1] == "x was edited by ann: of its array at a time 5 (was all)"
    for one in found[2:]:
        engine.end(one)
    assert not engine.job_scheduler.jobs
    with pytest.raises(ConflictError, match="all of array 1 has ended"):
        limit(engine, found[2], 1)
    engine.check_record()


def test_one_that_waits_for_gpus_is_out(engine: Driver) -> None:
    found = array(engine, 3, 2, gpus=4)
    assert states(*found) == "running queued held"


@pytest.mark.parametrize(
    ("text", "indexes", "most"),
    [("1-40%4", list(range(1, 41)), 4), ("0-9:3", [0, 3, 6, 9], 0), ("7", [7], 0), ("5,1-2,2%1", [1, 2, 5], 1)],
)
def test_indexes(text: str, indexes: list[int], most: int) -> None:
    assert indexes_of(text) == (indexes, most)


@pytest.mark.parametrize("text", ["3-1", "0-10000", "1-999999999"])
def test_wrong_indexes(text: str) -> None:
    with pytest.raises(RequestError, match="array: "):
        indexes_of(text)


# -- together with everything else


@pytest.mark.parametrize("seed", range(12))
def test_walks(seed: int) -> None:
    """Any facts, among them these: all invariants hold, and once everything is given back nothing hangs."""
    choose = random.Random(seed)
    engine = Driver()
    for _ in range(60):
        held_fact(engine, choose)
        one_fact(engine, choose, exact=False)
    engine.check_record()
    for found in list(engine.job_scheduler.jobs.values()):
        if found.state is JobState.HELD and found.held_by_hand:
            release(engine, found)
    engine.reconfigure(small_spec())
    engine.set_health(EVERYWHERE, None)
    engine.drain(undo=True)
    for _ in range(20 * len(engine.jobs) + 20):
        for found in [found for found in engine.jobs.values() if found.state.holds]:
            engine.end(found)
        engine.wait(400)
        for found in list(engine.job_scheduler.jobs.values()):
            if found.state is JobState.HELD and found.held_by_hand:
                release(engine, found)
    held = [found for found in engine.job_scheduler.jobs.values() if found.state is JobState.HELD]
    assert not held, [(found.name, engine.explain(found)) for found in held]
    engine.check_record()


def held_fact(engine: Driver, choose: random.Random) -> None:
    """Somebody holds, releases, queues again, or submits what waits for others."""
    there = list(engine.job_scheduler.jobs.values())
    vc = choose.choice(("vision", "speech", "research"))
    match choose.randrange(7):
        case 6 if arrays := [found for found in there if found.spec.array_id]:
            found, most = choose.choice(arrays), choose.randint(0, 3)
            if any(one.spec.array_most != most for one in there if one.spec.array_id == found.spec.array_id):
                limit(engine, found, most)
        case 0:
            for found in there:
                if found.state.waits and not found.held_by_hand and choose.random() < 0.3:
                    hold(engine, found)
        case 1:
            for found in there:
                if found.state is JobState.HELD and found.held_by_hand and choose.random() < 0.5:
                    release(engine, found)
        case 2:
            if running := [found for found in there if found.state.stays]:
                found = choose.choice(running)
                engine.do(lambda jobs: jobs.requeue(found, choose.random() < 0.3, "ann", engine.now))
        case 3 | 4 if there:
            some = some_fails(choose.choice(there).spec.array_id)
            waits_for = tuple(
                (found.id, choose.choice(("any", "ok", "fail", some))) for found in choose.sample(there, 1)
            )
            engine.submit(job(vc, choose.randint(1, 2), waits_for=waits_for, hold=choose.random() < 0.1))
        case 5:
            array(engine, choose.randint(1, 4), choose.randint(1, 2), vc)
        case _:
            pass


# -- a real engine


def test_an_array_of_real_jobs(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        spec = shell("vision", "echo $HIVED_ARRAY_ID.$HIVED_ARRAY_INDEX", array="3-5%1")
        first = engine.submit(spec)
        last = engine.submit(shell("vision", "echo last", after=(After(job="3"), After(job=first.name, when="ok"))))
        assert [engine.find(str(n)).state.value for n in range(2, 5)] == ["held", "held", "held"]
        await ended(engine, last)
        assert [await printed(engine, engine.find(str(n)), "\n") for n in (1, 2, 3)] == ["1.3\n", "1.4\n", "1.5\n"]

    lives.live(story)


def test_after_an_array_of_which_one_fails_or_has(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        script = '[ "$HIVED_ARRAY_INDEX" != 2 ]'
        engine.submit(shell("vision", script, array="1-3%1", name="some"))
        clean = engine.submit(shell("speech", "echo cleaned", after=(After(job="1", when="fail"),)))
        await ended(engine, clean)
        assert (clean.state, await printed(engine, clean, "\n")) == (JobState.SUCCEEDED, "cleaned\n")
        again = engine.submit(shell("speech", "true", after=(After(job="some", when="fail"),)))
        assert again.state is not JobState.HELD, "one of it has failed, and all have ended"
        well = engine.submit(shell("vision", "true", array="1-2"))
        for one in (again, engine.find(str(well.id + 1)), well):
            await ended(engine, one)
        with pytest.raises(ConflictError, match="fail: all of it has succeeded, so this could never run"):
            engine.submit(shell("vision", "true", after=(After(job=str(well.id), when="fail"),)))

    lives.live(story)


def test_after_what_has_ended(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        done = engine.submit(shell("vision", "true"))
        await ended(engine, done)
        second = engine.submit(shell("vision", "true", after=(After(job=done.name, when="ok"),)))
        assert second.state is not JobState.HELD
        with pytest.raises(ConflictError, match=rf"after {done.name}:fail: .* has succeeded already"):
            engine.submit(shell("vision", "true", after=(After(job="1", when="fail"),)))
        with pytest.raises(NotFoundError):
            engine.submit(shell("vision", "true", after=(After(job="77"),)))
        await ended(engine, second)

    lives.live(story)


def test_a_signal_before_the_time_limit(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        script = "trap 'echo saved; exit 3' USR1; echo here; while :; do sleep 0.05; done"
        warned = engine.submit(shell("vision", script, time_limit_s=30.0, limit_signal="USR1", limit_signal_s=29.0))
        await ended(engine, warned)
        assert await printed(engine, warned, "saved\n") == "here\nsaved\n"
        assert (warned.state, warned.exit_code) == (JobState.FAILED, 3)

    lives.live(story)


def test_held_over_a_kill(lives: Lives) -> None:
    async def first(engine: Engine) -> None:
        runs = engine.submit(shell("vision", "echo here; exec sleep 600", gpus=4))
        await state(engine, runs, JobState.RUNNING)
        engine.hold(str(engine.submit(shell("vision", "true")).id), "ann")
        engine.submit(shell("vision", "true", after=(After(job="1"),)))

    async def second(engine: Engine) -> None:
        assert [engine.find(n).state.value for n in "123"] == ["running", "held", "held"]
        engine.cancel("1")
        await ended(engine, engine.find("3"))
        assert engine.find("2").state is JobState.HELD
        engine.release("2", "ann")
        await ended(engine, engine.find("2"))

    lives.live(first, killed=True)
    lives.live(second)


# -- another priority


def test_priority_of_a_job_that_waits(engine: Driver) -> None:
    """It goes before those that it was behind, over a restart too, and takes what lower ones have."""
    runs = engine.submit(job("vision", 4))
    first, second = engine.submit(job("vision", 4)), engine.submit(job("vision", 4))
    engine.do(lambda jobs: jobs.prioritize(second, 0, "told so", engine.now))
    assert states(first, second) == "queued queued"
    engine.do(lambda jobs: jobs.prioritize(second, 3, "told so", engine.now))
    assert states(runs, second) == "stopping reserved"
    engine.gone(runs)
    assert states(first, second) == "queued running"
    runs, first, second = engine.restart(runs, first, second)
    assert (second.priority, second.entry.request.priority) == (3, 3)
    engine.do(lambda jobs: jobs.prioritize(first, 3, "told so", engine.now))
    assert states(runs, first, second) == "queued queued running"
    engine.end(second)
    assert states(runs, first) == "queued running"
    engine.check_record()


def test_priority_of_what_is_held_or_cannot_have_one(engine: Driver) -> None:
    engine.submit(job("vision", 4))
    held, loan = engine.submit(job("vision", 4, hold=True)), engine.submit(job("speech", 8, priority=-1))
    engine.do(lambda jobs: jobs.prioritize(held, 7, "told so", engine.now))
    (held, loan) = engine.restart(held, loan)
    assert (states(held), held.priority) == ("held", 7)
    with pytest.raises(ConflictError, match="train-3 is opportunistic, which is below all priorities"):
        engine.job_scheduler.prioritize(loan, 1, "told so", engine.now)
    release(engine, held)
    assert states(held) == "reserved"
    with pytest.raises(ConflictError, match="is reserved: a job gets"):
        engine.job_scheduler.prioritize(held, 1, "told so", engine.now)


# -- the limit of a member


def limited(most: int | None) -> ClusterSpec:
    """The small spec, whose members of vision have so many GPUs at most."""
    access = AccessSpec(("*",), max_gpus=most)
    vcs = tuple(replace(vc, access=access if vc.name == "vision" else None) for vc in small_spec().virtual_clusters)
    return replace(small_spec(), virtual_clusters=vcs)


def of(user: str, gpus: int = 1, **more: Any) -> JobSpec:
    return job("vision", gpus, user=user, is_limited=True, **more)


def array_of(engine: Driver, user: str, many: int, most: int) -> list[Job]:
    first = len(engine.jobs) + 1
    return [engine.submit(of(user, array_id=first, array_index=n, array_most=most)) for n in range(many)]


def test_the_most_urgent_of_a_member_goes_first() -> None:
    """It waited behind older ones of its user with a lower priority, and for those that were only in line."""
    engine = Driver(limited(3))
    runs, full = engine.submit(of("ann", 2, priority=9)), engine.submit(job("vision", 2, user="bob", priority=9))
    low, other = engine.submit(of("ann")), engine.submit(of("ann"))
    assert states(runs, full, low, other) == "running running queued held"
    urgent = engine.submit(of("ann", priority=5))
    assert states(low, other, urgent) == "held held queued", "low is only in line, and steps back"
    engine.end(full)
    assert states(low, other, urgent) == "held held running"
    engine.do(lambda jobs: jobs.prioritize(other, 3, "ann", engine.now))
    engine.end(urgent)
    assert states(low, other) == "held running"
    engine.end(runs)
    assert states(low) == "running"
    engine.check_record()


def test_an_urgent_one_that_could_not_go_has_nobody_step_back() -> None:
    """Nor do less urgent ones pass it, by which it would never go."""
    engine = Driver(limited(4))
    runs = engine.submit(of("ann", 3))
    low = engine.submit(of("ann"))
    assert states(runs, low) == "running running"
    big = engine.submit(of("ann", 2, priority=5))
    assert states(runs, low, big) == "running running held"
    engine.end(low)
    small = engine.submit(of("ann"))
    assert states(big, small) == "held held"
    assert f"{big.name} of the same member is more urgent, and is held by maxGpus" in engine.explain(small)
    other = engine.submit(of("ann", priority=5))
    assert states(other) == "running", "as urgent, and it fits"
    engine.end(runs)
    assert states(big, small) == "running running"
    engine.check_record()


def test_one_in_line_that_is_less_urgent_by_now() -> None:
    engine = Driver(limited(1))
    engine.submit(job("vision", 4, user="bob", priority=9))
    top, mid = engine.submit(of("ann", priority=5)), engine.submit(of("ann", priority=4))
    assert states(top, mid) == "queued held"
    engine.do(lambda jobs: jobs.prioritize(top, 1, "ann", engine.now))
    assert states(top, mid) == "held queued"


def test_one_that_no_limit_lets_go_is_in_nobodys_way() -> None:
    engine = Driver(limited(3))
    runs, big = engine.submit(of("ann", 3)), engine.submit(of("ann", 3, priority=5))
    engine.reconfigure(limited(2))
    assert "is 2 by now, and it needs 3 GPUs" in engine.explain(big)
    engine.end(runs)
    small = engine.submit(of("ann"))
    assert states(big, small) == "held running"


def test_what_somebody_holds_of_an_array_is_not_out(engine: Driver) -> None:
    """An array stood still while GPUs were idle: the one that was held had the only place."""
    first = len(engine.jobs) + 1
    some = [engine.submit(job("vision", array_id=first, array_index=n, array_most=1, hold=True)) for n in range(3)]
    release(engine, some[1])
    release(engine, some[2])
    assert states(*some) == "held running held"
    assert "1 of its array are out" in engine.explain(some[2])
    release(engine, some[0])
    (*some,) = engine.restart(*some)
    hold(engine, some[2])
    assert states(*some) == "held running held"
    engine.end(some[1])
    assert states(*some) == "running succeeded held"
    engine.do(lambda jobs: jobs.requeue(some[0], True, "ann", engine.now))
    release(engine, some[2])
    assert states(some[2]) == "held", "the first has its GPUs yet"
    engine.gone(some[0])
    assert states(some[0], some[2]) == "held running"
    engine.check_record()


def test_of_an_array_the_most_urgent_goes_first(engine: Driver) -> None:
    first, second, third, fourth = array(engine, 4, 1)
    engine.do(lambda jobs: jobs.prioritize(fourth, 5, "ann", engine.now))
    engine.end(first)
    assert states(second, third, fourth) == "held held running"
    second, third, fourth = engine.restart(second, third, fourth)
    engine.end(fourth)
    assert states(second, third) == "running held"


def test_what_is_over_the_limit_of_a_member_is_held() -> None:
    """It waits for jobs of its own user, not for GPUs: others pass it, and an admin has no such limit."""
    engine = Driver(limited(2))
    first, second = engine.submit(of("ann")), engine.submit(of("ann", 2))
    third, other, admins = (
        engine.submit(of("ann")),
        engine.submit(of("bob", 2)),
        engine.submit(job("vision", 1, user="ann")),
    )
    assert states(first, second, third, other) == "running held running running"
    why = "maxGpus of a member of vision is 2, and other jobs of ann in line or at work leave no room for 2 GPUs"
    assert why in engine.explain(second)
    assert "hived cancel or hived requeue, of another guaranteed job of theirs, makes room" in engine.explain(second)
    first, second, third, admins = engine.restart(first, second, third, admins)
    assert states(second) == "held"
    engine.end(first)
    assert states(second) == "held"
    engine.end(third)
    assert states(second) == "held", "the job that she has submitted as an admin counts too"
    engine.cancel(admins)
    if not admins.state.ended:
        engine.gone(admins)
    assert states(second) in ("running", "queued")
    engine.check_record()


def test_loan_that_the_version_before_has_held() -> None:
    """It counted loans; nobody looked at this one again, and nobody could release it."""
    engine = Driver(limited(2))
    first, loan = engine.submit(of("ann", 2)), engine.submit(of("ann", 1, priority=-1))
    assert states(first, loan) == "running running"
    second = engine.submit(of("ann", 1, priority=-1, hold=True))
    second.held_by_hand = False  # as it was read from there
    first, loan, second = engine.restart(first, loan, second)
    assert states(first, loan, second) == "running running running"


def test_loans_are_beside_the_limit_of_a_member() -> None:
    """They take nothing from anybody: a loan of hers kept her own guaranteed job out."""
    engine = Driver(limited(2))
    loan = engine.submit(of("ann", 4, priority=-1))
    own = engine.submit(of("ann", 2))
    assert states(loan, own) == "running running"
    more = engine.submit(of("ann", 1))
    again = engine.submit(of("ann", 1, priority=-1))
    assert states(more, again) == "held running"
    loan, own, more, again = engine.restart(loan, own, more, again)
    assert states(loan, own, more, again) == "running running held running"
    assert engine.job_scheduler.holds.why_not_yet("vision", "ann", 1, 0)
    engine.end(own)
    assert states(more) == "running"
    assert not engine.job_scheduler.holds.why_not_yet("vision", "ann", 1, 0)
    engine.check_record()


def test_holding_one_lets_another_go() -> None:
    engine = Driver(limited(2))
    runs, waits = engine.submit(job("vision", 4, user="bob")), engine.submit(of("ann", 2))
    second = engine.submit(of("ann"))
    assert states(runs, waits, second) == "running queued held"
    hold(engine, waits)
    assert states(waits, second) == "held queued"
    release(engine, waits)
    assert states(waits, second) == "held queued"
    assert "maxGpus" in engine.explain(waits)
    engine.cancel(second)
    assert states(waits) == "queued"


def test_another_limit_in_a_new_spec() -> None:
    engine = Driver(limited(1))
    jobs = [engine.submit(of("ann")) for _ in range(3)]
    assert states(*jobs) == "running held held"
    engine.reconfigure(limited(2))
    assert states(*jobs) == "running running held"
    engine.reconfigure(limited(1))
    assert states(*jobs) == "running running held"
    engine.reconfigure(limited(None))
    assert states(*jobs) == "running running running"
    engine.check_record()


def test_an_array_over_the_limit_of_a_member_goes_on_after_a_restart() -> None:
    """Those that both limits keep are out of the one of the array, and held by the other."""
    engine = Driver(limited(1))
    found = array_of(engine, "ann", 4, 2)
    assert states(*found) == "running held held held"
    assert "maxGpus" in engine.explain(found[1])
    assert "2 of its array are out" in engine.explain(found[2])
    for number in range(4):
        found = engine.restart(*found)
        assert states(found[number]) == "running"
        engine.end(found[number])
    assert not engine.job_scheduler.jobs


@pytest.mark.parametrize("limit", ["of its array", "of a member"])
def test_what_ends_costs_no_more_where_more_are_held(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    why = Holds.why

    def counting(self: Holds, job: Job) -> str:
        asked.append(job.id)
        return why(self, job)

    monkeypatch.setattr(Holds, "why", counting)
    costs = []
    for many in (10, 80):
        engine = Driver(limited(1))
        found = [engine.submit(of("ann")) for _ in range(many)] if limit == "of a member" else array(engine, many, 1)
        asked.clear()
        for runs in found[:8]:
            assert states(runs) == "running"
            engine.end(runs)
        costs.append(len(asked))
        assert states(*found[8:10]) == "running held"
    assert costs[0] == costs[1] > 0


def test_a_submission_that_cannot_be_stored_leaves_nothing() -> None:
    engine = Driver(limited(1))
    first, waits = engine.submit(of("ann")), engine.submit(of("ann"))
    holds = engine.job_scheduler.holds
    before = repr(vars(holds))
    scheduler, seq = engine.job_scheduler, engine.job_scheduler.seq
    specs = [of("ann", array_id=3, array_index=n, array_most=1, waits_for=((first.id, "ok"),)) for n in range(3)]
    specs.append(of("bob", 2))
    gone = [scheduler.submit(3 + n, spec, engine.now) for n, spec in enumerate(specs)]
    assert states(*gone) == "held held held held"
    events = scheduler.seq - seq
    scheduler.turn()
    scheduler.unsubmit(gone, events)
    holds._freed.clear()
    assert repr(vars(holds)) == before
    engine.end(first)
    assert states(waits) == "running"


@pytest.mark.parametrize("restarts", [False, True])
def test_beyond_a_smaller_limit_of_an_array_nobody_starts_again(engine: Driver, restarts: bool) -> None:
    """Those that had GPUs when it was changed had new ones for ever, however often they were queued again."""
    found = [engine.submit(job("vision", array_id=1, array_index=n)) for n in range(4)]
    engine.do(lambda jobs: jobs.limit_array(1, 1, "ann", engine.now))
    assert states(*found) == "running running running running"
    for again in found[1:]:
        engine.do(lambda jobs, again=again: jobs.requeue(again, False, "ann", engine.now))  # type: ignore[misc]
        if not restarts:
            engine.gone(again)
    if restarts:
        found = list(engine.restart(*found))
        for again in found[1:]:
            engine.gone(again)
    assert states(*found) == "running held held held"
    engine.end(found[0])
    assert states(*found[1:]) == "running held held"
    engine.do(lambda jobs: jobs.limit_array(1, 0, "ann", engine.now))
    assert states(*found[1:]) == "running running running"


def test_the_limit_of_a_large_array_is_not_changed(engine: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its jobs is an event, for everybody who looks."""
    monkeypatch.setattr("hived.engines.local.job_scheduler.MOST_LIMITED", 3)
    for n in range(4):
        engine.submit(job("vision", array_id=1, array_index=n))
    with pytest.raises(ConflictError, match=r"array 1 has 4 jobs that have not ended, and of 3 at most the limit"):
        engine.do(lambda jobs: jobs.limit_array(1, 1, "ann", engine.now))


@pytest.mark.parametrize("seed", range(6))
def test_no_member_has_more_than_the_limit(seed: int) -> None:
    """Whatever happens, and once everything has ended nobody is held."""
    choose = random.Random(seed)
    engine = Driver(limited(3))
    for _ in range(150):
        there = list(engine.job_scheduler.jobs.values())
        match choose.randrange(6):
            case 0:
                many = array_of(engine, choose.choice("ab"), choose.randint(1, 4), choose.randint(1, 2))
                assert many
            case 1 | 5:
                engine.submit(of(choose.choice("ab"), choose.randint(1, 3), hold=choose.random() < 0.1))
            case 2 if running := [found for found in there if found.state.holds]:
                engine.end(choose.choice(running), choose.choice((WELL, FAILED)))
            case 3 if there:
                held_fact(engine, choose)
            case 4:
                engine.restart()
        out: dict[str, int] = {}
        for found in engine.job_scheduler.jobs.values():
            if found.spec.is_limited and found.state is not JobState.HELD:
                out[found.spec.user] = out.get(found.spec.user, 0) + found.gpus
        assert all(gpus <= 3 for gpus in out.values()), out
    for _ in range(400):
        for found in list(engine.job_scheduler.jobs.values()):
            if found.state is JobState.HELD and found.held_by_hand:
                release(engine, found)
            elif found.state.holds:
                engine.end(found)
        engine.wait(400)
    assert not engine.job_scheduler.jobs
    engine.check_record()
