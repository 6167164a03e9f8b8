"""Faults that were put into the engine on purpose, and that no test had noticed: one test for each."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from heapq import heappush
from pathlib import Path

import pytest
from msgspec.structs import asdict

from hived.cluster.reasons import BehindOthers
from hived.engines.local import supervisor
from hived.engines.local.devices import Simulated, spec_for
from hived.engines.local.engine import Engine
from hived.engines.local.environment import task_environment
from hived.engines.local.explaining import explain, reasons
from hived.engines.local.job_scheduler import Health
from hived.engines.local.model import Job, JobState, default_name
from hived.engines.local.store import Store
from hived.engines.local.tasks import Ending, Liveness
from hived.errors import ConflictError, InputError, StorageError
from hived.spec import spec_from_dict
from hived.spec.compiled import ClusterSpec, Device

from .driver import FAILED, SHARES, STOPPED, WELL, Driver, is_in, job, small_spec
from .living import Lives, ended, printed, shell, state
from .real import RealTask, marked, until

EVERYWHERE = [("node", device) for device in range(8)]


@pytest.fixture
def engine() -> Driver:
    return Driver()


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "state")
    yield made
    made.end()


# -- lines --------------------------------------------------------------------------------------------------------


def test_a_preempted_job_keeps_its_place_in_line(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    engine.wait(10)
    later = engine.submit(job("research", 8, priority=-1))
    engine.wait(10)
    owner = engine.submit(job("vision", 4))
    engine.wait(10)
    engine.gone(loan)
    engine.wait(10)
    engine.end(owner)
    assert is_in(loan, JobState.RUNNING)
    assert is_in(later, JobState.QUEUED)


def test_a_job_behind_a_withdrawn_opportunistic_job_has_its_turn(engine: Driver) -> None:
    engine.submit(job("vision", 4))
    large, small = engine.submit(job("speech", 8, priority=-1)), engine.submit(job("speech", 1, priority=-1))
    assert is_in(small, JobState.QUEUED)
    engine.do(lambda job_scheduler: job_scheduler.cancel(large, engine.now))
    assert is_in(small, JobState.RUNNING)


def test_a_new_job_comes_after_those_of_its_own_priority(engine: Driver) -> None:
    engine.submit(job("vision", 4, priority=5))
    waiting = [engine.submit(job("vision", 4, priority=priority)) for priority in (5, 3, 3, 0)]
    before, entries = engine.job_scheduler.scheduler.before, [found.entry for found in waiting]
    assert before("vision", 9, 10) == (0, [])
    assert before("vision", 3, 10) == (3, entries[:3])
    assert before("vision", 0, 10) == (len(entries), entries)
    assert before("vision", 0, 2) == (len(entries), entries[:2])


def test_a_requeued_head_of_line_is_not_behind_later_requests(engine: Driver) -> None:
    loan, later = engine.submit(job("research", 8, priority=-1)), engine.submit(job("research", 8, priority=-1))
    engine.submit(job("vision", 4))
    engine.gone(loan)
    assert is_in(later, JobState.QUEUED)
    assert not [why for why in reasons(engine.job_scheduler, loan) if isinstance(why, BehindOthers)]
    assert [why for why in reasons(engine.job_scheduler, later) if isinstance(why, BehindOthers)] == [
        BehindOthers(1, (loan.name,))
    ]


def test_an_overtaken_job_waits_in_line_again(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    low = engine.submit(job("vision", 4))
    assert is_in(low, JobState.RESERVED)
    high = engine.submit(job("vision", 4, priority=9))
    assert is_in(low, JobState.QUEUED)
    assert high.name in low.reason
    engine.gone(loan)
    assert is_in(high, JobState.RUNNING)
    engine.end(high)
    assert is_in(low, JobState.RUNNING)


def test_a_victim_that_is_being_cancelled_is_cancelled(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    engine.do(lambda job_scheduler: job_scheduler.cancel(loan, engine.now))
    owner = engine.submit(job("vision", 4))
    engine.gone(loan)
    assert is_in(loan, JobState.CANCELLED)
    assert is_in(owner, JobState.RUNNING)


def test_a_job_that_can_never_fit_again_does_not_block_the_line(engine: Driver) -> None:
    first = engine.submit(job("vision", 4))
    large, small = engine.submit(job("vision", 4)), engine.submit(job("vision", 1))
    other = spec_for("node", 8, "GPU", (("vision", 2), ("speech", 6)))
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(other, engine.now))
    engine.end(first)
    assert is_in(large, JobState.QUEUED)
    assert is_in(small, JobState.RUNNING)


def test_loans_go_to_the_tenant_with_the_least_on_loan_whatever_it_is_called(engine: Driver) -> None:
    busy = engine.submit(job("vision", 4))
    engine.submit(job("research", 3, priority=-1))
    engine.submit(job("speech", 1, priority=-1))
    earlier, later = engine.submit(job("research", 4, priority=-1)), engine.submit(job("speech", 4, priority=-1))
    engine.end(busy)
    assert is_in(later, JobState.RUNNING)
    assert is_in(earlier, JobState.QUEUED)


def test_the_more_a_tenant_reserved_the_more_it_may_have_on_loan(engine: Driver) -> None:
    busy = [engine.submit(job("research", 2)), engine.submit(job("vision", 2))]
    engine.submit(job("speech", 2, priority=-1))
    engine.submit(job("vision", 2, priority=-1))
    speech, vision = engine.submit(job("speech", 4, priority=-1)), engine.submit(job("vision", 4, priority=-1))
    for found in busy:
        engine.end(found)
    assert is_in(vision, JobState.RUNNING)
    assert is_in(speech, JobState.QUEUED)


# -- failures, and what is remembered of them ---------------------------------------------------------------------


def test_no_pause_is_longer_than_five_minutes(engine: Driver) -> None:
    flaky = engine.submit(job("vision", 1, retries=3, backoff_s=200.0))
    engine.end(flaky, FAILED)
    assert flaky.retry_at == 200.0
    engine.wait(200)
    engine.end(flaky, FAILED)
    assert flaky.retry_at == 500.0
    engine.wait(300)
    assert is_in(flaky, JobState.RUNNING)
    assert flaky.retry_at is None


def test_a_pause_can_be_doubled_for_ever(engine: Driver) -> None:
    flaky = engine.submit(job("vision", 1, retries=10_000, backoff_s=0.0))
    flaky.retries = 1_100  # 2.0 to that is more than a float can say
    engine.end(flaky, FAILED)
    assert is_in(flaky, JobState.BACKOFF)


def test_of_a_gang_the_task_that_failed_first_is_to_blame(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=3))
    engine.end(gang, {**FAILED, "code": 7}, rank=2)
    engine.end(gang, {**FAILED, "code": 1}, rank=0)  # its neighbour was gone
    engine.end(gang, STOPPED, rank=1)
    assert (gang.exit_code, gang.reason) == (7, "task 2 ended with exit code 7")


def test_of_a_gang_a_task_that_failed_by_itself_is_to_blame_before_a_stopped_one(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=2))
    engine.end(gang, STOPPED, rank=0)  # by somebody outside
    engine.end(gang, {**FAILED, "code": 3}, rank=1)
    assert (gang.exit_code, gang.reason) == (3, "task 1 ended with exit code 3")


def test_a_retried_job_was_not_preempted(engine: Driver) -> None:
    flaky = engine.submit(job("vision", 1, retries=1, backoff_s=1.0))
    engine.end(flaky, FAILED)
    assert "(try 2 of 2)" in explain(engine.job_scheduler, flaky, engine.now)
    engine.wait(1)
    assert is_in(flaky, JobState.RUNNING)
    assert "preempted" not in explain(engine.job_scheduler, flaky, engine.now)


def test_a_task_stopped_from_outside_ends_its_gang_even_if_it_exits_with_0(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=2))
    engine.end(gang, {**WELL, "stopped": True}, rank=0)
    assert is_in(gang, JobState.STOPPING)


def test_the_end_of_a_task_counts_once_and_for_its_attempt(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=2, retries=1, backoff_s=1.0))
    engine.end(gang, FAILED, rank=0)
    engine.do(lambda job_scheduler: job_scheduler.task_ended(gang.id, 1, 0, WELL, engine.now))
    assert gang.endings[0]["code"] == 1
    engine.gone(gang)
    engine.wait(1)
    assert gang.attempt == 2
    engine.do(lambda job_scheduler: job_scheduler.task_ended(gang.id, 1, 0, FAILED, engine.now))
    assert is_in(gang, JobState.RUNNING)
    assert (gang.endings, gang.exit_code) == ({}, None)


def test_a_pause_is_not_over_before_its_time(engine: Driver) -> None:
    flaky = engine.submit(job("vision", 1, retries=1, backoff_s=10.0))
    engine.end(flaky, FAILED)
    heappush(engine.wakes, (9.0, flaky.id))  # somebody wakes too early
    engine.wait(9.5)
    assert is_in(flaky, JobState.BACKOFF)


def test_a_restart_under_another_spec_reports_the_downgraded_jobs(engine: Driver) -> None:
    run = engine.submit(job("vision", 4))
    engine.spec = spec_for("node", 8, "GPU", (("speech", 8),))
    engine.restart()
    run = engine.jobs[run.id]
    assert is_in(run, JobState.RUNNING)
    assert not run.guaranteed
    assert engine.kinds(run)[-1] == "downgraded"
    assert run.reason not in ("", "the cluster has a new spec")


def test_a_stopping_job_is_stopped_again_at_once_after_a_restart(engine: Driver) -> None:
    run = engine.submit(job("vision", 4))
    engine.do(lambda job_scheduler: job_scheduler.cancel(run, engine.now))
    engine.stopped.clear()
    engine.restart()
    assert engine.stopped == {(run.id, 1)}


def test_why_a_job_was_preempted_is_said_once(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    owner = engine.submit(job("vision", 4))
    engine.gone(loan)
    text = explain(engine.job_scheduler, loan, engine.now)
    assert text.count(owner.name) == 1, text


def test_a_job_is_called_after_its_script_whatever_is_set_before_it() -> None:
    assert default_name(("env", "A=1", "B=2", "python3", "-u", "train.py")) == "train"


def test_a_gang_keeps_its_port_and_endings_over_a_restart(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=2))
    engine.end(gang, WELL, rank=1)
    engine.restart()
    gang = engine.jobs[gang.id]
    assert gang.port == 29_500
    assert list(gang.endings) == [1]
    engine.end(gang, WELL, rank=0)
    assert is_in(gang, JobState.SUCCEEDED)


def test_the_preemptor_of_a_job_is_known_after_a_restart(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    owner = engine.submit(job("vision", 4))
    engine.gone(loan)
    engine.restart()
    loan = engine.jobs[loan.id]
    assert loan.displaced_by == (owner.name, "vision", 0)
    assert owner.name in explain(engine.job_scheduler, loan, engine.now)


def test_a_job_is_where_it_is_since_it_came_there(engine: Driver) -> None:
    engine.now = 5.0
    gang = engine.submit(job("vision", 1, tasks=2))
    engine.wait(10)
    engine.end(gang, WELL, rank=0)
    assert is_in(gang, JobState.RUNNING)
    assert gang.since == 5.0


def test_a_job_that_waits_says_for_how_long_since_it_last_ran(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1))
    engine.submit(job("vision", 4))
    engine.wait(100)
    engine.gone(loan)
    engine.wait(7)
    assert explain(engine.job_scheduler, loan, engine.now).startswith(f"{loan.name} waits, for 7 s now")


def test_the_environment_of_a_task_counts_resumes_retries_and_attempts(engine: Driver) -> None:
    loan = engine.submit(job("research", 8, priority=-1, retries=1, backoff_s=1.0))
    engine.end(loan, FAILED)
    engine.wait(1)
    assert told(loan, "RESUMES", "RETRIES", "ATTEMPT") == ["0", "1", "2"]
    owner = engine.submit(job("vision", 4))
    engine.gone(loan)
    engine.end(owner)
    assert told(loan, "RESUMES", "RETRIES", "ATTEMPT") == ["1", "1", "3"]


def test_the_environment_of_a_task_says_whether_it_is_guaranteed(engine: Driver) -> None:
    own, loan = engine.submit(job("vision", 4)), engine.submit(job("vision", 4, priority=-1))
    assert told(own, "GUARANTEED", "PRIORITY") == ["1", "0"]
    assert told(loan, "GUARANTEED", "PRIORITY") == ["0", "-1"]


def test_every_task_of_a_gang_is_the_first_of_its_own_node(engine: Driver) -> None:
    gang = engine.submit(job("vision", 1, tasks=2))
    variables = task_environment(gang, 1, Path("/nowhere"), "mark", "0", {})
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["LOCAL_WORLD_SIZE"]) == ("1", "0", "1")


def told(found: Job, *names: str) -> list[str]:
    """What a task finds in its environment."""
    variables = task_environment(found, 0, Path("/nowhere"), "mark", "0", {})
    return [variables[f"HIVED_{name}"] for name in names]


# -- devices ------------------------------------------------------------------------------------------------------


class Told:
    """A core that remembers what it was told."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.said: list[tuple[str, int, bool]] = []

    def set_device_health(self, node: str, device: int, *, healthy: bool) -> None:
        self.said.append((node, device, healthy))


def test_the_core_hears_once_of_a_device_that_is_bad_and_drained() -> None:
    core = Told(small_spec())
    health = Health(core)  # type: ignore[arg-type]
    health.set_bad(("node", 3), "NVML: lost")
    assert health.apply()
    health.set_drained([("node", 3)], True)
    assert not health.apply()
    health.set_bad(("node", 3), None)
    assert not health.apply()
    health.set_drained([("node", 3)], False)
    assert health.apply()
    assert core.said == [("node", 3, False), ("node", 3, True)]


def test_a_device_that_breaks_again_is_reported_to_the_core() -> None:
    core = Told(small_spec())
    health = Health(core)  # type: ignore[arg-type]
    for why in ("NVML: lost", None, "NVML: lost"):
        health.set_bad(("node", 3), why)
        assert health.apply()
    assert [healthy for _, _, healthy in core.said] == [False, True, False]


def test_every_bad_or_drained_device_is_reported_to_a_new_spec() -> None:
    core = Told(small_spec())
    health = Health(core)  # type: ignore[arg-type]
    health.set_bad(("node", 3), "NVML: lost")
    health.set_drained([("node", 4)], True)
    health.apply()
    core.said.clear()
    health.again()
    health.apply()
    assert sorted(core.said) == [("node", 3, False), ("node", 4, False)]


def test_the_reason_that_a_device_is_bad_is_the_latest(engine: Driver) -> None:
    for why in ("NVML: XID 79", "NVML: lost"):
        engine.do(lambda job_scheduler, why=why: job_scheduler.set_health([("node", 3)], why, engine.now))  # type: ignore[misc]
    assert engine.job_scheduler.health.bad == {("node", 3): "NVML: lost"}
    found = [event.data["why"] for event in engine.events if event.kind == "device_bad"]
    assert found == ["NVML: XID 79", "NVML: lost"]


def test_pinned_gpus_are_reserved_too() -> None:
    pinned = {
        "physicalCluster": {
            "cellTypes": {"NODE": {"childCellType": "GPU", "childCellNumber": 4, "isNodeLevel": True}},
            "physicalCells": [
                {"cellType": "NODE", "cellAddress": "a", "pinnedCellId": "own"},
                {"cellType": "NODE", "cellAddress": "b"},
            ],
        },
        "virtualClusters": {
            "one": {
                "virtualCells": [{"cellType": "NODE.GPU", "cellNumber": 3}],
                "pinnedCells": [{"pinnedCellId": "own"}],
            }
        },
    }
    assert Health(Told(spec_from_dict(pinned))).reserved_gpus("one") == 7  # type: ignore[arg-type]


def test_what_a_vc_reserved_is_what_the_new_spec_says(engine: Driver) -> None:
    other = spec_for("node", 8, "GPU", (("vision", 6), ("new", 2)))
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(other, engine.now))
    health = engine.job_scheduler.health
    assert [health.reserved_gpus(vc) for vc in ("vision", "new", "speech")] == [6, 2, 0]


def test_only_jobs_on_drained_devices_are_stopped(engine: Driver) -> None:
    here, there = engine.submit(job("speech", 2)), engine.submit(job("research", 2))
    assert here.placement is not None
    places = [(pod.node, device) for pod in here.placement.pods for device in pod.leaf_cells]
    engine.do(lambda job_scheduler: job_scheduler.drain(places, False, True, "some devices", engine.now))
    assert is_in(here, JobState.STOPPING)
    assert is_in(there, JobState.RUNNING)


def test_undoing_a_drain_stops_no_job(engine: Driver) -> None:
    run = engine.submit(job("vision", 4))
    engine.do(lambda job_scheduler: job_scheduler.drain(EVERYWHERE, False, False, "the machine", engine.now))
    engine.do(lambda job_scheduler: job_scheduler.drain(EVERYWHERE, True, True, "the machine", engine.now))
    assert is_in(run, JobState.RUNNING)


def test_devices_that_come_back_are_lent_again(engine: Driver) -> None:
    engine.do(lambda job_scheduler: job_scheduler.drain(EVERYWHERE, False, False, "the machine", engine.now))
    loan = engine.submit(job("research", 8, priority=-1))
    assert is_in(loan, JobState.QUEUED)
    engine.do(lambda job_scheduler: job_scheduler.drain(EVERYWHERE, True, False, "the machine", engine.now))
    assert is_in(loan, JobState.RUNNING)


def test_a_device_that_is_only_bad_is_not_said_to_be_drained(engine: Driver) -> None:
    engine.do(lambda job_scheduler: job_scheduler.set_health(EVERYWHERE, "NVML: lost", engine.now))
    waiting = engine.submit(job("vision", 1))
    assert "drained" not in explain(engine.job_scheduler, waiting, engine.now)


def test_a_new_spec_starts_the_jobs_that_fit_now(engine: Driver) -> None:
    engine.submit(job("speech", 2))
    own, loan = engine.submit(job("speech", 2)), engine.submit(job("research", 8, priority=-1))
    assert is_in(own, JobState.QUEUED)
    other = spec_for("node", 8, "GPU", (("speech", 4), ("research", 4)))
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(other, engine.now))
    assert is_in(own, JobState.RUNNING)
    assert is_in(loan, JobState.QUEUED)
    more = spec_for("node", 16, "GPU", SHARES)
    engine.do(lambda job_scheduler: job_scheduler.reconfigure(more, engine.now))
    assert is_in(loan, JobState.RUNNING)


def test_a_machine_of_1024_devices_is_one() -> None:
    assert sum(chain.gpus for chain in spec_for("node", 1024, "GPU", (("all", 1024),)).chains) == 1024


# -- tasks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path) -> Iterator[RealTask]:
    made = RealTask(tmp_path / "task")
    yield made
    made.close()


#: leaves somebody behind who does not listen, and says so once the task itself is gone
LEAVES = "trap '' TERM; (while kill -0 $$ 2>/dev/null; do sleep 0.01; done; echo alone; exec sleep 600) & exit 3"


def test_a_task_stopped_when_only_its_leftovers_live_has_ended_by_itself(task: RealTask) -> None:
    task.ready("sh", "-c", LEAVES).start()
    until(lambda: (task.output.exists() and "alone" in task.printed) or task.supervisors[0].poll() is not None)
    task.stop()
    ending = task.end()
    assert (ending.code, ending.stopped) == (3, False)


def test_the_time_limit_of_a_task_is_not_that_of_its_leftovers(task: RealTask) -> None:
    ending = task.ready("sh", "-c", LEAVES, time_limit_s=1.0).run()
    assert (ending.code, ending.stopped, ending.limit) == (3, False, False)


def test_a_descendant_that_ignores_signals_is_killed_however_deep_it_is(task: RealTask) -> None:
    hides = "trap '' TERM; setsid sh -c 'setsid sh -c \"echo deep; sleep 600\" & sleep 600' & sleep 600"
    task.ready("sh", "-c", hides, grace_s=0.1).started().stop()
    assert task.end().signal == signal.SIGKILL
    assert not marked(task.mark)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_supervisor_that_is_to_go_stops_its_task_first(task: RealTask, number: signal.Signals) -> None:
    task.ready("sh", "-c", "trap 'exit 5' TERM; echo here; while :; do sleep 0.02; done").started()
    task.supervisors[0].send_signal(number)
    ending = task.end()
    assert (ending.code, ending.stopped, ending.lost) == (5, True, False)


def test_a_supervisor_can_be_signalled_from_the_moment_it_has_the_claim(
    task: RealTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    # told in between, it died of it, and the task was lost
    task.ready("true")
    monkeypatch.chdir(task.folder)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    blocked: set[int] = set()

    def claim() -> None:
        blocked.update(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    monkeypatch.setattr(supervisor, "_claim", claim)
    try:
        supervisor.main(str(task.folder))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert blocked >= {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


def test_a_container_that_is_started_anew_is_another_world() -> None:
    started = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    assert supervisor.world().partition(":")[2] == started


def test_a_claim_that_cannot_be_looked_at_for_want_of_files_is_not_taken_for_lost(
    task: RealTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.ready("sh", "-c", "echo here; exec sleep 600").started()

    def scarce(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", scarce)
        with pytest.raises(OSError, match="Too many"):
            task.liveness()
    assert task.liveness() is Liveness.ALIVE


def test_a_claim_that_leads_nowhere_is_no_reason_to_run_a_task_again(task: RealTask) -> None:
    task.ready("true")
    (task.folder / "claim").symlink_to(task.folder / "nowhere")
    assert task.liveness() is Liveness.LOST


# -- a real engine ------------------------------------------------------------------------------------------------


class Broken(Simulated):
    """All devices are lost, and that is told once."""

    asked = 0

    def health(self, spec: ClusterSpec) -> Mapping[Device, str | None]:
        self.asked += 1
        return dict.fromkeys(EVERYWHERE, "NVML: lost") if self.asked == 1 else {}


def test_devices_are_looked_at_before_the_first_job_is_placed(lives: Lives) -> None:
    async def story(engine: Engine) -> Job:
        assert len(engine.job_scheduler.health.bad) == 8
        return engine.submit(shell("vision", "true"))

    assert lives.live(story, devices=Broken()).state is JobState.QUEUED


def test_what_has_just_happened_is_not_forgotten_over_a_submission(lives: Lives) -> None:
    # it would be kept with the submission, and what was to be done about it would not be done
    async def story(engine: Engine) -> list[Job]:
        flaky = engine.submit(shell("vision", "[ $HIVED_RETRIES = 1 ] || exec sleep 600", retries=1, backoff_s=0.01))
        await state(engine, flaky, JobState.RUNNING)
        engine.job_scheduler.task_ended(flaky.id, 1, 0, asdict(Ending(1)), engine.clock())
        engine._soon()
        other = engine.submit(shell("speech", "true"))
        return await ended(engine, flaky, other)

    flaky, other = lives.live(story)
    assert (flaky.state, flaky.attempt) == (JobState.SUCCEEDED, 2)
    assert other.state is JobState.SUCCEEDED


def test_a_spec_of_other_devices_is_refused_and_nothing_has_changed(lives: Lives) -> None:
    class Two(Simulated):
        def check(self, spec: ClusterSpec) -> None:
            if sum(chain.gpus for chain in spec.chains) != 8:
                raise InputError("this machine has 8")

    async def story(engine: Engine) -> None:
        last = engine.last_event
        with pytest.raises(InputError, match="has 8"):
            engine.reconfigure(spec_for("node", 16, "GPU", SHARES))
        assert engine.last_event == last
        assert sum(chain.gpus for chain in engine.cluster.spec.chains) == 8

    lives.live(story, devices=Two())


def test_a_follower_sleeps_until_there_is_a_new_event(lives: Lives) -> None:
    async def story(engine: Engine) -> None:
        following = asyncio.create_task(engine.changed(engine.last_event))
        await asyncio.sleep(0.05)
        assert not following.done()
        engine.submit(shell("vision", "true"))
        await following
        again = asyncio.create_task(engine.changed(engine.last_event + 1_000))
        await ended(engine, engine.find("1"))
        assert not again.done()
        again.cancel()

    lives.live(story)


def test_stopping_a_job_whose_folder_is_gone_is_no_error(lives: Lives) -> None:
    async def story(engine: Engine) -> Job:
        job = engine.submit(shell("vision", "echo here; exec sleep 600"))
        await printed(engine, job, "here")
        shutil.rmtree(engine.task(job, 0).folder)
        return engine.cancel(str(job.id))

    assert lives.live(story).stopping_for == "cancelled"


def test_a_pause_ends_although_the_clock_is_frozen(lives: Lives) -> None:
    async def story(engine: Engine) -> Job:
        flaky = engine.submit(shell("vision", "[ $HIVED_RETRIES = 1 ]", retries=1, backoff_s=0.01))
        return (await ended(engine, flaky))[0]

    assert lives.live(story, clock=lambda: 1e9).state is JobState.SUCCEEDED


def test_an_engine_whose_lock_was_deleted_writes_no_more(tmp_path: Path) -> None:
    # another could take the folder over
    with closing(Store(tmp_path)) as store:
        (tmp_path / "engine.lock").unlink()
        with pytest.raises(StorageError, match="moved or deleted"):
            store.keep((), (), values={"a": "b"})


def test_an_engine_that_is_refused_names_the_pid_of_the_other_whatever_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "engine.lock").write_text("9" * 15)
    with closing(Store(tmp_path)), pytest.raises(ConflictError, match=rf"\(pid {os.getpid()}\)"):
        Store(tmp_path)


def test_a_supervisor_knows_nothing_of_the_engines_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVED_TOKEN", "secret")
    task = RealTask(tmp_path / "task").ready("sh", "-c", "echo here; exec sleep 600")
    try:
        own = Path(f"/proc/{task.started().supervisors[0].pid}/environ").read_bytes().split(b"\0")
        assert {line.partition(b"=")[0] for line in own if line} <= {b"LC_ALL", b"LD_LIBRARY_PATH"}
    finally:
        task.close()


def test_a_task_that_is_claimed_while_it_is_stopped_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = RealTask(tmp_path / "task").ready("sh", "-c", "echo began; exec sleep 600")
    look = task.watch

    def just_before() -> int | None:
        """The look sees nobody; then comes a supervisor."""
        seen = look()
        task.start()
        until(lambda: task.supervisors[0].poll() is not None or task.output.exists())
        return seen

    monkeypatch.setattr(task, "watch", just_before)
    try:
        task.stop()
        assert not task.output.exists()
        assert task.end().stopped
    finally:
        task.close()
